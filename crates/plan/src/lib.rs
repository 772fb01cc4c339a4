//! The plan: which kernels compute a graph, over which buffers, and the reason for each. Plain data.
//!
//! A kernel's body is itself a [`Graph`]: its inputs are the buffers read, its outputs the buffers written. So a plan
//! can be interpreted, printed and compared with the graph crate alone. Also holds what several later stages must agree
//! on: steps of a kernel ([`exec`]), the tiling of attention, which the planner prices before lowering applies it
//! ([`attention`]), what is known of launches ([`launch`]), how far prices err ([`price_error`]), records of
//! out-of-range indices ([`index`]). Never: block programs, launches, measurements.
#![warn(missing_docs)]

pub mod attention;
pub mod error;
pub mod exec;
pub mod form;
mod hardware;
pub mod index;
pub mod launch;
pub mod matmul_schedule;
mod numerics;
pub mod price_error;
pub mod schedule;
pub mod text;
pub mod verify;

pub use error::PlanError;
pub use form::{Form, FormNeeds};
pub use hardware::Hardware;
pub use launch::{LaunchAccess, TensorAccess, Unfusable};
pub use numerics::{Contract, Numerics, Precision, Rounding};
pub use schedule::{Axis, Engine, Operand, Schedule, Step};

use kiln_graph::{Graph, ParamId, Type, ValueId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Index into [`Plan::buffers`]. `Display` is the text syntax (`b3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct BufferId(pub u32);
impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// What a buffer holds. All buffers are dense and row-major.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// The n-th input of the graph.
    Input(u32),
    /// A parameter (weight) of the graph.
    Param(ParamId),
    /// Computed from parameters only, once at load time.
    Frozen,
    /// Computed in a run. Outputs are temporaries that [`Plan::outputs`] names.
    Temp,
}

/// Memory for one value: dense and row-major.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Buffer {
    /// Element type and shape.
    pub ty: Type,
    /// Where its contents come from.
    pub kind: BufferKind,
}

/// The kind of a kernel, by which it is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// Any DAG of pointwise ops, views, gathers, concatenations and pads over one iteration space.
    Pointwise,
    /// Reductions that share their rows, with pointwise work before, between and after.
    Reduction,
    /// One scan (as a cumulative sum), with pointwise work over the same iteration space.
    Scan,
    /// One matmul, or two that share their left operand (dual GEMM), with views of the operands and an epilogue.
    Gemm,
    /// One attention, with views of its operands and its result.
    Attention,
    /// One convolution with an epilogue.
    Conv,
    /// One pooling with an epilogue.
    Pool,
    /// A scatter, with what computes its operands element by element.
    Scatter,
    /// A launch of a block program that a person wrote, with elementwise ops before its loads and after its stores.
    Launch,
    /// Run by libtorch.
    Fallback,
}
impl KernelKind {
    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            KernelKind::Pointwise => "pointwise",
            KernelKind::Reduction => "reduction",
            KernelKind::Scan => "scan",
            KernelKind::Gemm => "gemm",
            KernelKind::Attention => "attention",
            KernelKind::Conv => "conv",
            KernelKind::Pool => "pool",
            KernelKind::Scatter => "scatter",
            KernelKind::Launch => "launch",
            KernelKind::Fallback => "fallback",
        }
    }
}

/// Predicted work and time of a kernel.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes read from memory.
    pub bytes_read: u64,
    /// Bytes written to memory.
    pub bytes_written: u64,
    /// Floating-point operations on matrix units (2·M·N·K).
    pub matrix_flops: u64,
    /// Other arithmetic, weighted (a transcendental counts as 8).
    pub other_flops: u64,
    /// Predicted microseconds, by the schedule that the kernel has; `None` if libtorch runs it, whose time is unknown.
    pub us: Option<f64>,
    /// Microseconds by the roofline, which chose the kernel before any had a schedule: alternatives and stops compare
    /// with it. The same as `us` where schedules have no prices.
    #[serde(default)]
    pub roofline_us: Option<f64>,
}
impl Cost {
    /// Bytes read plus bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }
    /// Operations on matrix units plus other arithmetic.
    pub fn flops(&self) -> u64 {
        self.matrix_flops + self.other_flops
    }
}

/// The terms of a roofline in microseconds, which add up to it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Terms {
    /// Bytes moved over the machine's bandwidth.
    pub memory_us: f64,
    /// Matrix units and other arithmetic, over their rates.
    pub arithmetic_us: f64,
    /// Overhead of the launch.
    pub launch_us: f64,
    /// What the overlap of memory and arithmetic saves: zero or negative.
    pub overlap_us: f64,
    /// `memory`, `arithmetic` or `launch`: the largest.
    pub bound: String,
}

/// Why the planner chose this kernel.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reason {
    /// Rewrite rules whose result is part of the body, by name, sorted.
    pub rules: Vec<String>,
    /// The next best way to compute the same outputs.
    pub alternative: Option<Alternative>,
    /// Neighbours that the kernel was not merged with, and the named legality fact or the cost that prevented it.
    pub stops: Vec<Stop>,
    /// Where the body's values come from, in the order of the body; operands and constants are left out.
    pub origins: Vec<Origin>,
    /// What a store of measurements says about it, if the plan was made with one.
    #[serde(default)]
    pub tuning: Option<Tuning>,
}
/// What a store of measurements says about a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tuning {
    /// The kernel's schedule is the fastest that was measured on this device.
    Measured {
        /// Name of the device, as its driver reports it.
        device: String,
        /// Median microseconds of this schedule.
        us: f64,
        /// Median microseconds of the schedule that lowering chooses by itself.
        default_us: f64,
    },
    /// There is an entry, but it was not used.
    Unused {
        /// The reason, as a clause for the user.
        why: String,
    },
}
/// Where a value of a kernel's body comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// In the body.
    pub value: ValueId,
    /// Its names outside: the values of the imported graph that it equals (`%17`), or, if a rule made it, the
    /// expression that computes it (`linear(%17,concat(%46,%50))`). The first is unique in the plan's program.
    pub names: Vec<String>,
    /// Rules that gave it this form.
    pub rules: Vec<String>,
}
/// Another way to compute a kernel's outputs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alternative {
    /// As `cut after linear %25 f32[64,768] (2 kernels)`.
    pub what: String,
    /// Microseconds by the roofline.
    pub us: f64,
}
/// Why a kernel was not merged with a neighbour.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stop {
    /// Name of the neighbouring kernel.
    pub kernel: String,
    /// As `two anchor ops`, `row reduction after a matmul`, `no gain: 12.10 us together, 11.80 us apart`.
    pub why: String,
    /// What the form of the two as one kernel would have to fuse; nothing if all forms can, or none.
    #[serde(default)]
    pub needs: FormNeeds,
}

/// When a kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Once, when parameters are loaded.
    Load,
    /// In every run.
    Run,
}

/// One kernel: the plan's unit of execution, which may be lowered to several steps ([`exec`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Unique in the plan, made of its main ops: `softmax_3`, `gemm_gelu_7`.
    pub name: String,
    /// What it is lowered as.
    pub kind: KernelKind,
    /// When it runs.
    pub stage: Stage,
    /// What it computes. Inputs and outputs correspond to `inputs` and `outputs`; there are no parameters and no dead
    /// values.
    pub body: Graph,
    /// Buffers read, in the order of the body's inputs.
    pub inputs: Vec<BufferId>,
    /// Buffers written, in the order of the body's outputs. The first one's shape is the iteration space.
    pub outputs: Vec<BufferId>,
    /// Predicted work and time.
    pub cost: Cost,
    /// The precision of its f32 matmuls and convolutions.
    #[serde(default)]
    pub precision: Precision,
    /// Where it rounds.
    #[serde(default)]
    pub rounding: Rounding,
    /// The order of sums does not depend on the number of rows ([`Contract::batch_invariant`]).
    pub batch_invariant: bool,
    /// By which template a GPU computes what it multiplies; `None` for other kernels, and on the host.
    #[serde(default)]
    pub form: Option<Form>,
    /// How it is mapped onto the machine: the steps of its nest or of its matmul, and of its other launches; see
    /// [`schedule`].
    #[serde(default)]
    pub schedule: Option<Schedule>,
    /// Why the planner chose it.
    pub reason: Reason,
}

/// What the e-graph and the planner did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Search {
    /// Iterations of saturation.
    pub iterations: usize,
    /// E-nodes of the imported graph.
    pub enodes_before: usize,
    /// E-nodes after saturation.
    pub enodes_after: usize,
    /// `saturated`, `node limit` or `iteration limit`; `not fused` for an unfused plan.
    pub stopped: String,
    /// Distinct regions that were checked as kernels.
    pub candidates: usize,
    /// Programs (choices of form) that were planned and priced.
    pub tried: usize,
    /// Predicted microseconds of the first choice of forms, before any other was tried.
    pub greedy_us: f64,
}

/// The kernels that compute a graph on a machine, and their buffers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the graph.
    pub name: String,
    /// Name of the machine description it was made for.
    pub machine: String,
    /// How results may differ from the graph as written.
    pub contract: Contract,
    /// By [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// In launch order.
    pub kernels: Vec<Kernel>,
    /// Buffers of the graph's outputs, in order. May repeat, and may be inputs, parameters or frozen buffers.
    pub outputs: Vec<BufferId>,
    /// How the plan was found.
    pub search: Search,
    /// A lower bound in microseconds of the roofline of any plan of these forms on this machine.
    pub lower_bound_us: f64,
}

impl Kernel {
    /// Matmuls of the body.
    pub fn matmuls(&self) -> usize {
        self.body.values().filter(|&v| matches!(self.body.op(v), kiln_graph::Op::Dot | kiln_graph::Op::Linear)).count()
    }
    /// The form that a schedule gives it.
    pub fn form_of(&self, schedule: &Schedule) -> Option<Form> {
        Form::of(schedule, self.kind, self.matmuls())
    }
}

impl Plan {
    /// The buffer of this id. Panics if there is none, which [`verify`](mod@verify) excludes for the ids in a plan.
    pub fn buffer(&self, b: BufferId) -> &Buffer {
        &self.buffers[b.0 as usize]
    }
    /// Predicted microseconds of a run: the sum over its kernels, without fallbacks, whose time is unknown.
    pub fn predicted_us(&self) -> f64 {
        // A sum of nothing begins at -0.
        self.run().filter_map(|k| k.cost.us).fold(0.0, |sum, us| sum + us)
    }
    /// The same by the roofline; never below [`Plan::lower_bound_us`].
    pub fn roofline_us(&self) -> f64 {
        self.run().filter_map(|k| k.cost.roofline_us).fold(0.0, |sum, us| sum + us)
    }
    /// The kernels of a run.
    fn run(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().filter(|k| k.stage == Stage::Run)
    }
    /// Number of kernels of a run whose time is unknown (fallbacks), which [`Plan::predicted_us`] leaves out.
    pub fn unpriced(&self) -> usize {
        self.run().filter(|k| k.cost.us.is_none()).count()
    }
}
