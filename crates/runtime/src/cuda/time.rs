//! Times on the device, by events, over inputs that stay there.
use super::{raw::Event, session::CudaSession};
use crate::RuntimeError;
use kiln_graph::Tensor;
use kiln_plan::Stage;
use std::time::Instant;

/// Aim of one measurement of a short kernel, in microseconds: it is repeated until it takes about this long.
const SPAN_US: f64 = 100.0;
const MOST_REPEATS: f64 = 50.0;

impl CudaSession {
    /// Microseconds of each of `n` runs, enqueued back to back, so that launch latency hides where runs are long enough.
    pub fn time_runs(&mut self, inputs: &[Tensor], n: usize) -> Result<Vec<f64>, RuntimeError> {
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
        self.upload_inputs(inputs)?;
        self.enqueue()?;
        self.wait("timing")?;
        let kernels = self.kernels(Stage::Run);
        let mut samples = vec![Vec::with_capacity(n); kernels.len()];
        let [start, end] = [self.event()?, self.event()?];
        for (k, samples) in kernels.into_iter().zip(&mut samples) {
            if self.needs_host(k) {
                for _ in 0..n {
                    self.wait("timing")?;
                    let start = Instant::now();
                    self.kernel(k)?;
                    self.wait("timing")?;
                    samples.push(start.elapsed().as_secs_f64() * 1e6);
                }
                continue;
            }
            let sample = |run: &dyn Fn() -> Result<(), RuntimeError>| {
                // The first keeps the device busy while the measured one is enqueued.
                run()?;
                self.record_event(&start)?;
                run()?;
                self.record_event(&end)?;
                self.wait("timing")?;
                self.elapsed(&start, &end)
            };
            let once = sample(&|| self.kernel(k))?;
            let times = (SPAN_US / once.max(1.0)).clamp(1.0, MOST_REPEATS) as usize;
            let graph = if times > 1 { Some(self.record(k..k + 1, times)?) } else { None };
            for _ in 0..n {
                let us = sample(&|| match &graph {
                    Some(g) => self.device.check(|| "timing".into(), g.launch(&self.stream)),
                    None => self.kernel(k),
                })?;
                samples.push(us / times as f64);
            }
        }
        Ok(samples)
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
