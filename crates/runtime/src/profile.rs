//! Timing of whole runs and of single kernels, as medians with their spread.
//!
//! On the host by the clock; on a GPU by CUDA events, with the inputs already on the device. Never: reports a number
//! without its spread.
use crate::{
    RuntimeError, Session,
    session::{Backend, check_inputs},
};
use kiln_graph::Tensor;
use kiln_plan::Stage;
use std::time::Instant;

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimeOptions {
    /// Warm-up runs before the first sample; at least one is made.
    pub warmup: usize,
    /// Least number of samples.
    pub runs: usize,
    /// Sampling goes on for at least this many seconds, but for at most 100 times `runs` samples.
    pub min_seconds: f64,
    /// Samples of each kernel; 0: kernels are not timed.
    pub kernel_runs: usize,
}
impl Default for TimeOptions {
    fn default() -> TimeOptions {
        TimeOptions { warmup: 5, runs: 20, min_seconds: 0.5, kernel_runs: 20 }
    }
}

/// Median and spread of samples, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Spread {
    /// The median.
    pub median_us: f64,
    /// The 10th percentile.
    pub p10_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// Number of samples.
    pub samples: usize,
}
impl Spread {
    /// The spread of samples in microseconds, in any order. `None` without samples.
    pub fn of(mut samples: Vec<f64>) -> Option<Spread> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)? as f64;
        // Interpolates linearly between the two samples around a quantile.
        let quantile = |q: f64| {
            let at = q * last;
            let (low, high) = (samples[at.floor() as usize], samples[at.ceil() as usize]);
            low + (high - low) * at.fract()
        };
        Some(Spread { median_us: quantile(0.5), p10_us: quantile(0.1), p90_us: quantile(0.9), samples: samples.len() })
    }
}

/// The time of a kernel.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct KernelTime {
    /// Name of the kernel.
    pub name: String,
    /// Samples of one launch.
    #[serde(flatten)]
    pub spread: Spread,
}

/// What [`Session::time`] measures.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Timing {
    /// Samples of a whole run.
    pub run: Spread,
    /// Every sample of a run in microseconds, in order, so that several measurements can be joined.
    #[serde(skip)]
    pub samples_us: Vec<f64>,
    /// The run-time kernels, in launch order; empty if [`TimeOptions::kernel_runs`] is 0.
    pub kernels: Vec<KernelTime>,
}

/// Most runs that are enqueued on a device before the host waits for it.
const BATCH: usize = 50;

impl Session {
    /// Times runs over these inputs, then each run-time kernel.
    ///
    /// # Errors
    /// Those of [`Session::run`], but indices out of range are not reported on a GPU.
    pub fn time(&self, inputs: &[Tensor], o: TimeOptions) -> Result<Timing, RuntimeError> {
        check_inputs(self.executable(), inputs)?;
        let backend = &mut *self.backend();
        // At least one: the second run records the CUDA graph.
        sample(backend, inputs, o.warmup.max(1))?;
        let mut samples = vec![];
        let (start, least) = (Instant::now(), o.runs.max(1));
        while samples.len() < least
            || start.elapsed().as_secs_f64() < o.min_seconds && samples.len() < least.saturating_mul(100)
        {
            samples.extend(sample(backend, inputs, least.min(BATCH))?);
        }
        let names = self.executable().kernels.iter().filter(|k| k.stage == Stage::Run).map(|k| k.name.clone());
        let kernels = match o.kernel_runs {
            0 => vec![],
            n => names.zip(sample_kernels(backend, inputs, n)?).filter_map(kernel_time).collect(),
        };
        // Invariant: the loop above took a sample.
        let run =
            Spread::of(samples.clone()).unwrap_or(Spread { median_us: 0.0, p10_us: 0.0, p90_us: 0.0, samples: 0 });
        Ok(Timing { run, samples_us: samples, kernels })
    }
}

/// A run's kernels, prepared to be timed one at a time and in any order.
#[derive(Default)]
pub struct KernelTimer {
    on_gpu: Vec<crate::cuda::time::Timed>,
}

impl Session {
    /// Prepares the kernels of a run to be timed on these inputs. No kernel may read what another one writes.
    ///
    /// # Errors
    /// If the inputs do not fit the model, or the device fails.
    pub fn kernel_timer(&self, inputs: &[Tensor]) -> Result<KernelTimer, RuntimeError> {
        check_inputs(self.executable(), inputs)?;
        match &mut *self.backend() {
            Backend::Host(_) => Ok(KernelTimer::default()),
            Backend::Cuda(s) => Ok(KernelTimer { on_gpu: s.timed_kernels(inputs)? }),
        }
    }
    /// Microseconds of one launch of the n-th run-time kernel. `timer` must come from this session,
    /// and `inputs` must be those that it was made with.
    ///
    /// # Errors
    /// If the inputs do not fit the model, there is no n-th run-time kernel, or the device fails.
    pub fn sample_kernel(&self, timer: &KernelTimer, inputs: &[Tensor], n: usize) -> Result<f64, RuntimeError> {
        let exe = self.executable();
        check_inputs(exe, inputs)?;
        let missing = || RuntimeError::NoKernel { model: exe.name.clone(), kernel: n };
        match &mut *self.backend() {
            Backend::Host(s) => {
                let all = s.run_profiled(inputs)?;
                let [from, to] = all.get(n).ok_or_else(missing)?;
                Ok((*to - *from).as_secs_f64() * 1e6)
            }
            Backend::Cuda(s) => s.sample(timer.on_gpu.get(n).ok_or_else(missing)?),
        }
    }
}

fn kernel_time((name, samples): (String, Vec<f64>)) -> Option<KernelTime> {
    Some(KernelTime { name, spread: Spread::of(samples)? })
}

fn sample(backend: &mut Backend, inputs: &[Tensor], n: usize) -> Result<Vec<f64>, RuntimeError> {
    match backend {
        Backend::Host(s) => (0..n)
            .map(|_| {
                let start = Instant::now();
                s.run(inputs)?;
                Ok(start.elapsed().as_secs_f64() * 1e6)
            })
            .collect(),
        Backend::Cuda(s) => s.time_runs(inputs, n),
    }
}

/// Samples of each run-time kernel, in microseconds.
fn sample_kernels(backend: &mut Backend, inputs: &[Tensor], n: usize) -> Result<Vec<Vec<f64>>, RuntimeError> {
    match backend {
        Backend::Host(s) => {
            let mut all: Vec<Vec<f64>> = vec![];
            for _ in 0..n {
                let times = s.run_profiled(inputs)?;
                all.resize(times.len(), vec![]);
                let us = times.iter().map(|[start, end]| (*end - *start).as_secs_f64() * 1e6);
                all.iter_mut().zip(us).for_each(|(a, t)| a.push(t));
            }
            Ok(all)
        }
        Backend::Cuda(s) => s.time_kernels(inputs, n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_samples() {
        assert_eq!(Spread::of(vec![]), None);
        let one = Spread::of(vec![3.0]).unwrap();
        assert_eq!((one.median_us, one.p10_us, one.p90_us), (3.0, 3.0, 3.0));
        let many = Spread::of((0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((many.median_us, many.p10_us, many.p90_us, many.samples), (50.0, 10.0, 90.0, 101));
    }
}
