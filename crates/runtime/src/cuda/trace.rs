//! Traced runs on a GPU: events before and after every kernel.
//!
//! Takes: a session and inputs. Gives: spans on the host's clock. A trace replays what a run replays: the CUDA graphs
//! are captured again with the events in them.
use super::{
    raw::{Event, Graph},
    session::{
        CudaSession,
        graph::{Fault, Mode},
    },
};
use crate::{HostSpan, RunTrace, RuntimeError, Span, trace::Clock};
use kiln_graph::Tensor;
use kiln_plan::Stage;
use std::ops::Range;

/// Events before and after each kernel of the executable; `None` for load-time kernels.
type Marks = Vec<Option<[Event; 2]>>;

impl CudaSession {
    /// Traces `n` runs. Segments that a run replays as a CUDA graph are replayed as a graph with events in it.
    pub(crate) fn trace_runs(
        &mut self,
        inputs: &[Tensor],
        n: usize,
        clock: Clock,
    ) -> Result<Vec<RunTrace>, RuntimeError> {
        self.upload_inputs(inputs)?;
        let mut marks: Marks = self.exe.kernels.iter().map(|_| None).collect();
        for k in self.kernels(Stage::Run) {
            marks[k] = Some([self.event()?, self.event()?]);
        }
        let segments: Vec<(Range<usize>, Option<Graph>)> = self.runs[0]
            .segments
            .iter()
            .map(|s| {
                let recorded = matches!(s.mode, Mode::Recorded(_));
                (s.kernels.clone(), recorded.then(|| self.record_marked(s.kernels.clone(), &marks)).flatten())
            })
            .collect();
        (0..n).map(|_| self.trace_run(&segments, &marks, clock)).collect()
    }

    /// Captures the kernels with their events. `None` if the driver cannot capture them; they are then enqueued one by
    /// one.
    fn record_marked(&self, mut kernels: Range<usize>, marks: &Marks) -> Option<Graph> {
        let one = |k: usize| -> Result<(), Fault> {
            let Some([start, end]) = &marks[k] else { return Ok(()) };
            start.record_in_graph(self.shared.stream.handle)?;
            self.own_kernel(k)?;
            Ok(end.record_in_graph(self.shared.stream.handle)?)
        };
        self.shared.stream.capture(|| kernels.try_for_each(one)).ok()
    }

    fn trace_run(
        &self,
        segments: &[(Range<usize>, Option<Graph>)],
        marks: &Marks,
        clock: Clock,
    ) -> Result<RunTrace, RuntimeError> {
        let base = self.event()?;
        self.record_event(&base)?;
        self.wait("tracing")?;
        let (start_us, mut host) = (clock.now(), vec![]);
        for (kernels, graph) in segments {
            if let Some(graph) = graph {
                let launch = || self.device.check(|| "tracing".into(), graph.launch(self.shared.stream.handle));
                let name = format!("launch of {}", kiln_graph::count(kernels.len(), "kernel"));
                host.push(HostSpan { name, span: clock.span(launch)?.1 });
                continue;
            }
            for k in kernels.clone() {
                let Some([start, end]) = &marks[k] else { continue };
                self.record_event(start)?;
                let span = clock.span(|| self.own_kernel(k))?.1;
                self.record_event(end)?;
                host.push(HostSpan { name: self.exe.kernels[k].name.clone(), span });
            }
        }
        let waited = clock.span(|| self.wait("tracing"))?.1;
        host.push(HostSpan { name: "wait".into(), span: waited });
        let run = Span { start_us, end_us: waited.end_us };
        let at = |e: &Event| Ok::<_, RuntimeError>(start_us + self.elapsed(&base, e)?);
        let kernels = marks.iter().flatten().map(|[start, end]| Ok(Span { start_us: at(start)?, end_us: at(end)? }));
        Ok(RunTrace { run, host, kernels: kernels.collect::<Result<_, RuntimeError>>()? })
    }
}
