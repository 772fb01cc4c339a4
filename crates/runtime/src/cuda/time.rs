//! Timing on a GPU by CUDA events, with inputs that stay on the device.
//!
//! Takes: a session and inputs. Gives: samples in microseconds. Never: includes copies of inputs or outputs.
use super::{
    raw::{Event, Graph},
    session::{CudaSession, graph::Whose},
};
use crate::RuntimeError;
use kiln_graph::Tensor;
use kiln_plan::Stage;
use std::time::Instant;

/// Target length of one measurement, in microseconds: short kernels are repeated until they take about this long.
const SPAN_US: f64 = 100.0;
/// Most repetitions of a kernel in one measurement.
const MOST_REPEATS: f64 = 50.0;

/// A kernel that is prepared to be timed any number of times.
pub(crate) struct Timed {
    kernel: usize,
    /// The kernel `times` over, if a single launch is too short to measure.
    graph: Option<Graph>,
    times: usize,
    events: [Event; 2],
}

impl CudaSession {
    /// Microseconds of each of `n` runs. They are enqueued back to back, which hides launch latency if runs are long
    /// enough.
    pub fn time_runs(&mut self, inputs: &[Tensor], n: usize) -> Result<Vec<f64>, RuntimeError> {
        self.stale = true;
        self.upload_inputs(inputs)?;
        let events = self.events(n + 1)?;
        // A run before the first event keeps the device busy while the others are enqueued.
        self.enqueue(Whose::Own, self.shared.stream.handle)?;
        self.record_event(&events[0])?;
        for e in &events[1..] {
            self.enqueue(Whose::Own, self.shared.stream.handle)?;
            self.record_event(e)?;
        }
        self.wait("timing")?;
        events.windows(2).map(|w| self.elapsed(&w[0], &w[1])).collect()
    }

    /// Microseconds of each kernel of a run, `n` samples of each. Kernels run in launch order, so their inputs are
    /// valid, but each one runs several times in a row: data that fits the L2 cache is warm.
    pub fn time_kernels(&mut self, inputs: &[Tensor], n: usize) -> Result<Vec<Vec<f64>>, RuntimeError> {
        self.stale = true;
        self.upload_inputs(inputs)?;
        self.enqueue(Whose::Own, self.shared.stream.handle)?;
        self.wait("timing")?;
        let kernels = self.kernels(Stage::Run);
        let mut samples = vec![Vec::with_capacity(n); kernels.len()];
        for (k, samples) in kernels.into_iter().zip(&mut samples) {
            let timed = self.timed(k)?;
            for _ in 0..n {
                samples.push(self.sample(&timed)?);
            }
        }
        Ok(samples)
    }

    /// Uploads the inputs and prepares all kernels of a run for timing, in launch order.
    pub fn timed_kernels(&mut self, inputs: &[Tensor]) -> Result<Vec<Timed>, RuntimeError> {
        self.stale = true;
        self.upload_inputs(inputs)?;
        self.kernels(Stage::Run).into_iter().map(|k| self.timed(k)).collect()
    }
    /// Prepares a kernel; one sample decides how often to repeat it.
    fn timed(&mut self, kernel: usize) -> Result<Timed, RuntimeError> {
        let events = [self.event()?, self.event()?];
        let mut timed = Timed { kernel, graph: None, times: 1, events };
        if !self.needs_host(kernel) {
            let once = self.sample(&timed)?;
            timed.times = (SPAN_US / once.max(1.0)).clamp(1.0, MOST_REPEATS) as usize;
            if timed.times > 1 {
                // The graph refers to it.
                self.pinned = self.shared.arena();
                timed.graph = Some(self.record(kernel..kernel + 1, timed.times)?);
            }
        }
        Ok(timed)
    }
    /// Microseconds of one launch; the mean where the kernel is repeated.
    pub fn sample(&mut self, timed: &Timed) -> Result<f64, RuntimeError> {
        // A run over the caller's memory may have come between.
        self.begin()?;
        if self.needs_host(timed.kernel) {
            self.wait("timing")?;
            let start = Instant::now();
            self.own_kernel(timed.kernel)?;
            self.wait("timing")?;
            return Ok(start.elapsed().as_secs_f64() * 1e6);
        }
        let run = || match &timed.graph {
            Some(g) => self.device.check(|| "timing".into(), g.launch(self.shared.stream.handle)),
            None => self.own_kernel(timed.kernel),
        };
        // The first launch keeps the device busy while the measured one is enqueued.
        let [start, end] = &timed.events;
        run()?;
        self.record_event(start)?;
        run()?;
        self.record_event(end)?;
        self.wait("timing")?;
        Ok(self.elapsed(start, end)? / timed.times as f64)
    }

    pub(super) fn event(&self) -> Result<Event, RuntimeError> {
        self.device.check(|| "timing".into(), Event::new(&self.device.inner.context))
    }
    fn events(&self, n: usize) -> Result<Vec<Event>, RuntimeError> {
        (0..n).map(|_| self.event()).collect()
    }
    pub(super) fn record_event(&self, e: &Event) -> Result<(), RuntimeError> {
        self.device.check(|| "timing".into(), e.record(self.shared.stream.handle))
    }
    pub(super) fn elapsed(&self, start: &Event, end: &Event) -> Result<f64, RuntimeError> {
        self.device.check(|| "timing".into(), end.us_since(start))
    }
}
