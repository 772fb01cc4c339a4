//! Benchmarks: times the fused plan, the unfused plan and PyTorch, interleaved in one process, and every kernel by
//! itself, with its predicted time. Also compares the results with PyTorch's, or with a reference of bounded work
//! ([`Reference`]).
mod load;
mod reference;
mod table;
mod text;

pub use reference::{Reference, interpret};
pub use table::{KernelTime, ModuleTime};
pub(crate) use text::{mark_means, marked};

use crate::{
    CompileOptions, Compiled, Error, Model, compile, compile::DeviceKind, cores::cores, model::FileKind, torch,
};
use kiln_graph::Tensor;
use kiln_runtime::{RunTrace, Session, TimeOptions};
use reference::{Checked, checked, count};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What to measure in addition to the fused plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Against {
    /// One kernel per op.
    pub unfused: bool,
    /// The archive, run by libtorch.
    pub torch: bool,
}

/// What to measure, on what, and for how long.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Options of the fused plan.
    pub compile: CompileOptions,
    /// Where all sides run.
    pub device: DeviceKind,
    /// Threads of the host; `None`: all cores.
    pub threads: Option<usize>,
    /// The sides to compare with.
    pub against: Against,
    /// Time to spend on measured runs of each side, of which there are at least 5.
    pub min_time: Duration,
}

/// `bench --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Bench {
    /// Name of the graph.
    pub model: String,
    /// Name of the device.
    pub device: String,
    /// Threads of the host that ran kernels.
    pub threads: usize,
    /// Share of all cores' time that other processes took during the measurement.
    pub others: f64,
    /// Runs of the fused plan.
    pub fused: Spread,
    /// Runs with one kernel per op.
    pub unfused: Option<Spread>,
    /// Runs by libtorch.
    pub torch: Option<Spread>,
    /// Requested sides that could not be measured, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Seconds to compile the fused plan.
    pub compile_s: f64,
    /// Seconds of each of its stages.
    pub timings: crate::compile::Timings,
    /// Largest absolute difference from the reference; NaN (null in JSON) if there is none.
    pub max_abs_err: f64,
    /// Largest relative difference, over elements above a thousandth of the largest.
    pub max_rel_err: f64,
    /// What the results were compared with.
    pub reference: Reference,
    /// Elements of the outputs that were compared with it.
    pub compared: usize,
    /// Elements of the outputs.
    pub elements: usize,
    /// Number of ops of the imported graph, without inputs, parameters and constants.
    pub ops: usize,
    /// The kernels of a run, in order.
    pub kernels: Vec<KernelTime>,
    /// The same by module path.
    pub modules: Vec<ModuleTime>,
    /// What predictions were made for, if not for this device; else empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub predicted_for: String,
    /// Microseconds of a traced run in which the device waited for its next kernel.
    pub gaps_us: f64,
    /// A few runs in full (`--trace`).
    #[serde(skip)]
    pub trace: Vec<RunTrace>,
}

/// Times of a side's runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Median of a run, in milliseconds.
    pub median_ms: f64,
    /// A tenth of the runs took at most this, in milliseconds.
    pub p10: f64,
    /// Nine tenths of the runs took at most this, in milliseconds.
    pub p90: f64,
    /// Measured runs.
    pub runs: usize,
}
/// Above this ratio of p90 to p10, the median of the runs is unreliable.
const NOISY: f64 = 2.0;

/// Above this share of the processor taken by other processes, times are unreliable: a side's threads may have waited
/// for each other.
const BUSY: f64 = 0.2;

impl Bench {
    /// Whether the ratio of this side's time to the fused time is unreliable: runs of either differed widely, or the
    /// machine was busy.
    pub fn doubtful(&self, s: &Spread) -> bool {
        s.noisy() || self.fused.noisy() || self.others > BUSY
    }
}
impl Spread {
    /// Whether runs differed so much that the median is unreliable.
    pub fn noisy(&self) -> bool {
        noisy(self.p10, self.p90)
    }
    fn of(mut ms: Vec<f64>) -> Spread {
        ms.sort_by(f64::total_cmp);
        let at = |q: f64| ms.get(((ms.len().max(1) - 1) as f64 * q).round() as usize).copied().unwrap_or(f64::NAN);
        Spread { median_ms: at(0.5), p10: at(0.1), p90: at(0.9), runs: ms.len() }
    }
}

fn noisy(p10: f64, p90: f64) -> bool {
    p90 > NOISY * p10
}

/// Compiles and measures a model; gives the measurements and the compiled model.
pub fn bench(model: &Model, inputs: &[Tensor], options: &BenchOptions) -> Result<(Bench, Compiled), Error> {
    let fused = compile(model, &options.compile)?;
    let session = fused.session_on(options.device, options.threads)?;
    let outputs = session.run(inputs)?;
    let mut missing = vec![];

    let mut unfused = None;
    if options.against.unfused {
        let c = compile(model, &CompileOptions { fuse: false, ..options.compile.clone() })?;
        unfused = Some(c.session_on(options.device, options.threads)?);
    }
    let mut peer = Peer::default();
    if options.against.torch {
        peer = Peer::torch(model, inputs, options, &mut missing)?;
    }
    let checked = match &peer.outputs {
        Some(all) => Checked::with(Reference::Libtorch, &outputs, all),
        None => checked(model, inputs, &outputs, || torch::torch().ok())?,
    };

    let before = load::Ticks::now();
    // Interleaved rounds of all sides, so that load from other processes affects each of them.
    let (mut f, mut u, mut t) = (vec![], vec![], vec![]);
    let rounds = 5;
    let slice = options.min_time / rounds;
    for _ in 0..rounds {
        f.extend(whole(&session, inputs, slice)?);
        if let Some(s) = &unfused {
            u.extend(whole(s, inputs, slice)?);
        }
        if let Some(r) = &mut peer.session {
            t.extend(time_torch(r, slice)?);
        }
    }
    let others = load::Ticks::now().zip(before).map_or(0.0, |(now, before)| now.others_since(&before));
    let trace = session.trace(inputs, TRACED)?;
    let kernels = table::kernels(&fused, &session, inputs, &trace)?;
    let device = crate::compile::device_name(options.device)?;
    let bench = Bench {
        model: fused.graph.name.clone(),
        predicted_for: crate::calibrate::unmeasured(options.compile.machine(), &device).unwrap_or_default(),
        device,
        threads: options.threads.unwrap_or_else(cores),
        others,
        fused: Spread::of(f),
        unfused: unfused.map(|_| Spread::of(u)),
        torch: peer.session.map(|_| Spread::of(t)),
        missing,
        compile_s: fused.timings.compile_s,
        timings: fused.timings,
        max_abs_err: checked.difference.max_abs,
        max_rel_err: checked.difference.max_rel,
        reference: checked.reference,
        compared: checked.compared,
        elements: count(&outputs),
        ops: crate::Report::new(&fused).nodes,
        modules: table::modules(&kernels),
        gaps_us: kernels.iter().map(|k| k.gap_us).sum(),
        kernels,
        trace,
    };
    Ok((bench, fused))
}

/// Number of runs that are traced.
const TRACED: usize = 5;

/// PyTorch's side.
#[derive(Default)]
struct Peer {
    /// The session to time, if the archive runs on the same device.
    session: Option<kiln_torch_host::Session>,
    outputs: Option<Vec<Tensor>>,
}
impl Peer {
    /// An archive may have been traced for the CPU only; then its results on the CPU are the reference, and nothing is
    /// timed.
    fn torch(
        model: &Model,
        inputs: &[Tensor],
        options: &BenchOptions,
        missing: &mut Vec<String>,
    ) -> Result<Peer, Error> {
        let Some(path) = &model.archive else {
            missing.push(match &model.compiled_from {
                Some(from) => format!(
                    "torch: the archive that the artifact names ({from}) is not opened automatically; give --archive \
                     {from} if you trust it"
                ),
                None if matches!(FileKind::of(&model.path), Ok(FileKind::ExportedProgram)) => {
                    "torch: libtorch alone does not run programs of torch.export; in Python, `kiln.compile(module, \
                     inputs).bench(against=(\"eager\", \"inductor\"))` measures beside them; or give a TorchScript \
                     archive of the model with --archive"
                        .to_string()
                }
                None => "torch: no TorchScript archive to run; give one with --archive".to_string(),
            });
            return Ok(Peer::default());
        };
        let torch = torch::torch()?;
        let threads = options.threads.unwrap_or_else(cores);
        let on = |device| {
            let mut session = torch.session(path, inputs, device, threads)?;
            session.run()?;
            let outputs = session.outputs()?;
            Ok((session, outputs))
        };
        if let DeviceKind::Cuda(i) = options.device {
            match on(kiln_torch_host::Device::Cuda(i as u32)).map_err(torch::failed) {
                Ok((session, outputs)) => {
                    return Ok(Peer { session: Some(session), outputs: Some(outputs) });
                }
                Err(e) => missing.push(format!("torch on the GPU: {}", last_line(&e.to_string()))),
            }
        }
        let (session, outputs) = on(kiln_torch_host::Device::Cpu).map_err(torch::failed)?;
        let session = matches!(options.device, DeviceKind::Cpu).then_some(session);
        Ok(Peer { session, outputs: Some(outputs) })
    }
}

/// The last line of libtorch's message, which says what was wrong; those before it say where.
fn last_line(message: &str) -> &str {
    message.lines().rfind(|l| !l.trim().is_empty()).unwrap_or(message).trim()
}

/// Milliseconds of each run.
fn time_torch(r: &mut kiln_torch_host::Session, min_time: Duration) -> Result<Vec<f64>, Error> {
    r.run().map_err(torch::failed)?;
    let (begin, mut samples) = (Instant::now(), vec![]);
    while samples.is_empty() || begin.elapsed() < min_time {
        let start = Instant::now();
        r.run().map_err(torch::failed)?;
        samples.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(samples)
}

fn whole(s: &Session, inputs: &[Tensor], min_time: Duration) -> Result<Vec<f64>, Error> {
    let options = TimeOptions { warmup: 1, runs: 1, min_seconds: min_time.as_secs_f64(), kernel_runs: 0 };
    Ok(s.time(inputs, options)?.samples_us.iter().map(|us| us / 1e3).collect())
}
