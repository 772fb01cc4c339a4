//! Runs as sequences of launches, recorded as CUDA graphs and replayed.
//!
//! A run over the session's own memory always has the same addresses. In a run over the caller's memory those of inputs
//! and outputs change: launches that refer to them get new arguments in the recorded graph (`Recording::nodes`);
//! matmuls of the library, whose arguments cannot be changed there, stay outside of it. Never: records a step that
//! needs the host.
use crate::RuntimeError;
use crate::cuda::{
    launch::Launch,
    nvtx,
    raw::{Graph, Node, StreamHandle, text},
    session::{CudaSession, Step},
};
use cudarc::driver::{result::DriverError, sys};
use kiln_plan::Stage;
use std::ops::Range;

/// Whose memory a run reads its inputs from and writes its outputs to, and how it is enqueued.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Whose {
    /// The session's, on the session's stream.
    Own,
    /// The caller's, on the caller's stream.
    Caller,
    /// The caller's, on a stream that the caller captures: nothing may wait, and no recorded graph can be launched.
    Captured,
}

/// How runs over one kind of memory are enqueued.
#[derive(Default)]
pub(in crate::cuda) struct Runs {
    pub segments: Vec<Segment>,
    /// Whether a run has completed. Launches are captured only then, so that errors of the first run name their kernel.
    warm: bool,
}
/// Consecutive kernels that can be captured in one CUDA graph, or one kernel that cannot.
pub(in crate::cuda) struct Segment {
    pub kernels: Range<usize>,
    pub mode: Mode,
}
pub(in crate::cuda) enum Mode {
    /// Enqueued kernel by kernel: it needs the host, is a single kernel, could not be captured, or a profiler is
    /// attached.
    Plain,
    /// To be captured after the first run.
    Fresh,
    /// Replayed as a CUDA graph.
    Recorded(Recording),
}
pub(in crate::cuda) struct Recording {
    graph: Graph,
    /// Launches that refer to memory of the caller: kernel, step, and node of the graph.
    nodes: Vec<(usize, usize, Node)>,
    /// The version of the bindings that the nodes have.
    version: u64,
}

/// An error during a capture.
pub(in crate::cuda) enum Fault {
    Driver(DriverError),
    Runtime(RuntimeError),
}
impl From<DriverError> for Fault {
    fn from(e: DriverError) -> Fault {
        Fault::Driver(e)
    }
}
impl From<RuntimeError> for Fault {
    fn from(e: RuntimeError) -> Fault {
        Fault::Runtime(e)
    }
}

impl CudaSession {
    /// Divides the run-time kernels into segments.
    pub(in crate::cuda) fn split(&self, whose: Whose) -> Runs {
        let mut segments: Vec<Segment> = vec![];
        let profiled = nvtx::watched();
        for k in self.kernels(Stage::Run) {
            let fixed = |(kernel, step): &(usize, usize)| {
                *kernel == k && matches!(self.launches[k][*step], Some(Step::Matmul(_)))
            };
            let moves = whose != Whose::Own && self.touching.iter().any(fixed);
            let plain = profiled || moves || self.needs_host(k);
            match segments.last_mut() {
                Some(s) if matches!(s.mode, Mode::Fresh) && !plain && s.kernels.end == k => s.kernels.end = k + 1,
                _ => {
                    let mode = if plain { Mode::Plain } else { Mode::Fresh };
                    segments.push(Segment { kernels: k..k + 1, mode });
                }
            }
        }
        Runs { segments, warm: false }
    }

    /// Enqueues the kernels of a run. Inputs and outputs are bound. Returns after the last step of the host, if there
    /// is one.
    pub(in crate::cuda) fn enqueue(&mut self, whose: Whose, stream: StreamHandle) -> Result<(), RuntimeError> {
        let which = usize::from(whose != Whose::Own);
        for s in 0..self.runs[which].segments.len() {
            if self.runs[which].warm && whose != Whose::Captured {
                self.prepare_segment(which, s);
            }
            let segment = &self.runs[which].segments[s];
            match &segment.mode {
                Mode::Recorded(r) if whose != Whose::Captured => {
                    self.device.check(|| format!("running `{}`", self.exe.name), r.graph.launch(stream))?;
                }
                _ => segment.kernels.clone().try_for_each(|k| self.kernel(k, whose, stream))?,
            }
        }
        // What is captured does not run now.
        self.runs[which].warm |= whose != Whose::Captured;
        Ok(())
    }

    /// Records a segment that is new, and brings the arguments of a recorded one up to date. One for which the driver
    /// refuses either is enqueued kernel by kernel from now on.
    fn prepare_segment(&mut self, which: usize, s: usize) {
        let kernels = self.runs[which].segments[s].kernels.clone();
        let mut mode = std::mem::replace(&mut self.runs[which].segments[s].mode, Mode::Plain);
        mode = match mode {
            // A graph makes a single launch no cheaper.
            Mode::Fresh if kernels.len() > 1 => self.record_moving(kernels, which).map_or(Mode::Plain, Mode::Recorded),
            Mode::Fresh | Mode::Plain => Mode::Plain,
            Mode::Recorded(mut r) => match self.update(&mut r) {
                Ok(()) => Mode::Recorded(r),
                Err(_) => Mode::Plain,
            },
        };
        self.runs[which].segments[s].mode = mode;
    }

    /// Gives the nodes of a recording the arguments that launches have now.
    fn update(&self, r: &mut Recording) -> Result<(), DriverError> {
        if r.nodes.is_empty() || r.version == self.version {
            return Ok(());
        }
        for (k, step, node) in &r.nodes {
            if let Some(Step::Launch(launch)) = &self.launches[*k][*step]
                && launch.changed > r.version
            {
                // SAFETY: the node was captured from this launch; its arguments were bound to memory of the right
                // types.
                unsafe { launch.update(&r.graph, *node) }?;
            }
        }
        r.version = self.version;
        Ok(())
    }

    /// Captures these kernels, with the nodes of launches that refer to memory of the caller if this is a run over such
    /// memory. `None` if the driver refuses.
    fn record_moving(&self, kernels: Range<usize>, which: usize) -> Option<Recording> {
        if which == 0 {
            let graph = self.record(kernels, 1).ok()?;
            return Some(Recording { graph, nodes: vec![], version: self.version });
        }
        let mut nodes = vec![];
        let captured = self.shared.stream.capture(|| -> Result<(), Fault> {
            for k in kernels {
                for (s, step) in self.launches[k].iter().enumerate() {
                    // Invariant: no kernel of such a segment needs the host.
                    let Some(step) = step else { continue };
                    // SAFETY: as in `kernel`.
                    unsafe { step.enqueue(self, &self.exe.kernels[k].name, self.shared.stream.handle) }?;
                    let launched = matches!(step, Step::Launch(l) if Launch::is_launched(l));
                    if launched && self.touching.contains(&(k, s)) {
                        let unknown = DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
                        nodes.push((k, s, self.shared.stream.last_node()?.ok_or(unknown)?));
                    }
                }
            }
            Ok(())
        });
        captured.ok().map(|graph| Recording { graph, nodes, version: self.version })
    }

    /// Captures the launches of these kernels, each kernel `times` over. None of them may need the host.
    pub(in crate::cuda) fn record(&self, mut kernels: Range<usize>, times: usize) -> Result<Graph, RuntimeError> {
        let stream = self.shared.stream.handle;
        let one = |k: usize| (0..times).try_for_each(|_| self.kernel(k, Whose::Own, stream));
        self.shared.stream.capture(|| kernels.try_for_each(one).map_err(Fault::Runtime)).map_err(|f| match f {
            Fault::Driver(e) => self.device.refused(format!("recording `{}`", self.exe.name), text(e), e),
            Fault::Runtime(e) => e,
        })
    }
}
