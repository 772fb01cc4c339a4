//! Traced runs: when each kernel began and ended on its device, and what the host did meanwhile.
//!
//! On a GPU by events around every kernel, also within a replayed graph; the two clocks are matched once a run, so that device
//! and host agree to a few microseconds. Never: a run without the events, which is a little faster (`profile` times those).
use crate::{
    RuntimeError, Session,
    session::{Backend, check_inputs},
};
use kiln_graph::Tensor;
use std::time::Instant;

/// Microseconds since tracing began.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Span {
    pub start_us: f64,
    pub end_us: f64,
}
impl Span {
    pub fn us(&self) -> f64 {
        self.end_us - self.start_us
    }
}

/// What the host did.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct HostSpan {
    pub name: String,
    #[serde(flatten)]
    pub span: Span,
}

#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct RunTrace {
    /// As the host saw it.
    pub run: Span,
    /// Within the run: launches and waiting. Empty where the host is the device.
    pub host: Vec<HostSpan>,
    /// Kernels of a run, in order.
    pub kernels: Vec<Span>,
}

/// The host's clock, from when tracing began.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);
impl Clock {
    pub fn at(self, when: Instant) -> f64 {
        when.saturating_duration_since(self.0).as_secs_f64() * 1e6
    }
    pub fn now(self) -> f64 {
        self.at(Instant::now())
    }
    /// What `f` took.
    pub fn span<T, E>(self, f: impl FnOnce() -> Result<T, E>) -> Result<(T, Span), E> {
        let start_us = self.now();
        let value = f()?;
        Ok((value, Span { start_us, end_us: self.now() }))
    }
}

impl Session {
    /// Traces `n` runs over these inputs, after two that warm up.
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
