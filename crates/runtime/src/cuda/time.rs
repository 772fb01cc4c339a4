//! Times on the device, by events, over inputs that stay there.
use super::{
    raw::{Event, Graph},
    session::CudaSession,
};
use crate::RuntimeError;
use kiln_graph::Tensor;
use kiln_plan::Stage;
use std::time::Instant;

/// Aim of one measurement of a short kernel, in microseconds: it is repeated until it takes about this long.
const SPAN_US: f64 = 100.0;
const MOST_REPEATS: f64 = 50.0;

/// A kernel that is ready to be timed over and over.
pub(crate) struct Timed {
    kernel: usize,
    /// Of several launches, where one is short.
    graph: Option<Graph>,
    times: usize,
    events: [Event; 2],
}

impl CudaSession {
    /// Microseconds of each of `n` runs, enqueued back to back, so that launch latency hides where runs are long enough.
    pub fn time_runs(&mut self, inputs: &[Tensor], n: usize) -> Result<Vec<f64>, RuntimeError> {
        self.stale = true;
        self.upload_inputs(inputs)?;
        let events = self.events(n + 1)?;
        // One run ahead of the first event keeps the device busy while the others are enqueued.
        self.enqueue()?;
        self.record_event(&events[0])?;
        for e in &events[1..] {
            self.enqueue()?;
            self.record_event(e)?;
        }
        self.wait("timing")?;
        events.windows(2).map(|w| self.elapsed(&w[0], &w[1])).collect()
    }

    /// Microseconds of each kernel of a run, `n` samples of each. Every kernel runs at its place in the run, so that its
    /// inputs are right, but several times over: what fits the L2 cache is found there.
    pub fn time_kernels(&mut self, inputs: &[Tensor], n: usize) -> Result<Vec<Vec<f64>>, RuntimeError> {
        self.stale = true;
        self.upload_inputs(inputs)?;
        self.enqueue()?;
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

    /// All kernels of a run, in order, ready to be timed on inputs that are there from now on.
    pub fn timed_kernels(&mut self, inputs: &[Tensor]) -> Result<Vec<Timed>, RuntimeError> {
        self.stale = true;
        self.upload_inputs(inputs)?;
        self.kernels(Stage::Run).into_iter().map(|k| self.timed(k)).collect()
    }
    /// One launch tells how often to repeat it.
    fn timed(&self, kernel: usize) -> Result<Timed, RuntimeError> {
        let events = [self.event()?, self.event()?];
        let mut timed = Timed { kernel, graph: None, times: 1, events };
        if !self.needs_host(kernel) {
            let once = self.sample(&timed)?;
            timed.times = (SPAN_US / once.max(1.0)).clamp(1.0, MOST_REPEATS) as usize;
            if timed.times > 1 {
                timed.graph = Some(self.record(kernel..kernel + 1, timed.times)?);
            }
        }
        Ok(timed)
    }
    /// Microseconds of one launch.
    pub fn sample(&self, timed: &Timed) -> Result<f64, RuntimeError> {
        if self.needs_host(timed.kernel) {
            self.wait("timing")?;
            let start = Instant::now();
            self.kernel(timed.kernel)?;
            self.wait("timing")?;
            return Ok(start.elapsed().as_secs_f64() * 1e6);
        }
        let run = || match &timed.graph {
            Some(g) => self.device.check(|| "timing".into(), g.launch(&self.stream)),
            None => self.kernel(timed.kernel),
        };
        // The first keeps the device busy while the measured one is enqueued.
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
        self.device.check(|| "timing".into(), e.record(&self.stream))
    }
    pub(super) fn elapsed(&self, start: &Event, end: &Event) -> Result<f64, RuntimeError> {
        self.device.check(|| "timing".into(), end.us_since(start))
    }
}
