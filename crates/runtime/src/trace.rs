//! Traced runs: when each kernel started and ended on its device, and what the host did during the run.
//!
//! On a GPU, CUDA events are recorded around every kernel. A trace replays what a run replays: where a run replays a
//! CUDA graph, the events are nodes of that graph. Device and host clocks are matched once per run and agree to a few
//! microseconds. Under a profiler a session launches kernels one by one instead, each in an NVTX range of its name
//! (`cuda/nvtx.rs`). Never: measures runs without events, which are slightly faster; `profile` does.
use crate::{
    RuntimeError, Session,
    session::{Backend, check_inputs},
};
use kiln_graph::Tensor;
use std::time::Instant;

/// A span of time, in microseconds since tracing began.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Span {
    /// When it starts.
    pub start_us: f64,
    /// When it ends.
    pub end_us: f64,
}
impl Span {
    /// Its length in microseconds.
    pub fn us(&self) -> f64 {
        self.end_us - self.start_us
    }
}

/// Something the host did, as `launch of 3 kernels` or `wait`.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct HostSpan {
    /// What was done.
    pub name: String,
    /// When.
    #[serde(flatten)]
    pub span: Span,
}

/// One traced run.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct RunTrace {
    /// The whole run, by the host's clock.
    pub run: Span,
    /// Launches and waiting on the host. Empty if the host is the device.
    pub host: Vec<HostSpan>,
    /// The run-time kernels, in launch order.
    pub kernels: Vec<Span>,
}

/// The host's clock in microseconds since tracing began.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);
impl Clock {
    pub fn at(self, when: Instant) -> f64 {
        when.saturating_duration_since(self.0).as_secs_f64() * 1e6
    }
    pub fn now(self) -> f64 {
        self.at(Instant::now())
    }
    /// Calls `f` and measures it.
    pub fn span<T, E>(self, f: impl FnOnce() -> Result<T, E>) -> Result<(T, Span), E> {
        let start_us = self.now();
        let value = f()?;
        Ok((value, Span { start_us, end_us: self.now() }))
    }
}

impl Session {
    /// Traces `n` runs over these inputs, after two warm-up runs.
    ///
    /// # Errors
    /// Those of [`Session::run`].
    pub fn trace(&self, inputs: &[Tensor], n: usize) -> Result<Vec<RunTrace>, RuntimeError> {
        check_inputs(self.executable(), inputs)?;
        let backend = &mut *self.backend();
        for _ in 0..2 {
            match backend {
                Backend::Host(s) => drop(s.run(inputs)?),
                Backend::Cuda(s) => drop(s.run(inputs)?),
            }
        }
        let clock = Clock(Instant::now());
        match backend {
            Backend::Host(s) => (0..n)
                .map(|_| {
                    let (times, run) = clock.span(|| s.run_profiled(inputs))?;
                    let span = |[start, end]: [Instant; 2]| Span { start_us: clock.at(start), end_us: clock.at(end) };
                    Ok(RunTrace { run, host: vec![], kernels: times.into_iter().map(span).collect() })
                })
                .collect(),
            Backend::Cuda(s) => s.trace_runs(inputs, n, clock),
        }
    }
}
