//! The plan: which kernels compute a graph, over which buffers, and the reason for each. Plain data.
//!
//! A kernel's body is itself a [`Graph`]: its inputs are the buffers read, its outputs the buffers written. So a plan can be
//! interpreted, printed and compared with nothing but the graph crate's means.
//! Also what several later stages have to agree on: steps of a kernel ([`exec`]), templates ([`template`]), how instances share an
//! attention or a scan, which is priced before it is lowered ([`attention`], [`scan`]), records of bad indices ([`index`]).
//! Never: block programs, launches, measuring.
pub mod attention;
pub mod error;
pub mod exec;
mod hardware;
pub mod index;
mod numerics;
pub mod scan;
pub mod template;
pub mod text;
pub mod verify;

pub use error::PlanError;
pub use hardware::Hardware;
pub use numerics::{Contract, Numerics, Precision, Rounding};
pub use template::{Family, Schedule, Template};

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
    Param(ParamId),
    /// Computed from parameters only, once at load time.
    Frozen,
    /// Computed in a run. Outputs are temporaries that [`Plan::outputs`] names.
    Temp,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Buffer {
    pub ty: Type,
    pub kind: BufferKind,
}

/// The family a kernel is lowered by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// Any DAG of pointwise ops, views, gathers, concatenations and pads over one iteration space.
    Pointwise,
    /// Reductions that share their rows, with pointwise work before, between and after.
    Reduction,
    Scan,
    /// One matmul with prologue views and an epilogue.
    Gemm,
    Attention,
    Conv,
    Pool,
    Scatter,
    /// Run by libtorch.
    Fallback,
}
impl KernelKind {
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
            KernelKind::Fallback => "fallback",
        }
    }
}

/// Predicted work and time of one launch of a kernel.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Floating-point operations on matrix units (2·M·N·K).
    pub matrix_flops: u64,
    /// Other arithmetic, weighted (a transcendental counts as 8).
    pub other_flops: u64,
    /// `None`: nobody knows, as libtorch runs it.
    pub us: Option<f64>,
}
impl Cost {
    pub fn bytes(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }
    pub fn flops(&self) -> u64 {
        self.matrix_flops + self.other_flops
    }
}

/// Where a kernel's predicted time comes from; the terms add up to it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Terms {
    /// Bytes moved over the machine's bandwidth.
    pub memory_us: f64,
    /// Matrix units and other arithmetic, over their rates.
    pub arithmetic_us: f64,
    pub launch_us: f64,
    /// What memory and arithmetic save by running side by side: zero or negative.
    pub overlap_us: f64,
    /// `memory`, `arithmetic` or `launch`: the largest.
    pub bound: String,
}

/// Why a kernel is as it is.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reason {
    /// Rewrite rules whose result is part of the body, by name, sorted.
    pub rules: Vec<String>,
    /// The next best way to compute the same outputs, and its predicted microseconds.
    pub alternative: Option<Alternative>,
    /// What stopped the kernel from growing: neighbour and named legality fact or cost.
    pub stops: Vec<Stop>,
    /// Where the body's values come from, in the order of the body; operands and constants are left out.
    pub origins: Vec<Origin>,
    /// How it must be lowered, where a constraint or a measurement says so.
    pub template: Option<Template>,
    /// What measurements say of it, where the plan was made with some.
    #[serde(default)]
    pub tuning: Option<Tuning>,
}
/// What a store of measurements says of a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tuning {
    /// Its template is the fastest that was measured on this device: median microseconds, and those of the choice without the store.
    Measured { device: String, us: f64, default_us: f64 },
    /// There is an entry, but it was not used.
    Unused { why: String },
}
/// Where a value of a kernel's body comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// In the body.
    pub value: ValueId,
    /// What it is called outside: the values of the imported graph that it equals (`%17`), or, where a rule made it, what it is
    /// computed from (`linear(%17,concat(%46,%50))`). The first is unique in the plan's program.
    pub names: Vec<String>,
    /// Rules that gave it this form.
    pub rules: Vec<String>,
}
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alternative {
    /// As `split before softmax (2 kernels)`.
    pub what: String,
    pub us: f64,
}
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stop {
    /// Name of the neighbouring kernel.
    pub kernel: String,
    /// As `two anchors`, `rows differ`, `row wider than a tile`, `no gain: 12.1 us together, 11.8 us apart`.
    pub why: String,
}

/// When a kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Once, when parameters are loaded.
    Load,
    Run,
}

/// One kernel: one launch, as far as the plan is concerned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Unique in the plan, made of what it does: `softmax_3`, `gemm_gelu_7`.
    pub name: String,
    pub kind: KernelKind,
    pub stage: Stage,
    /// Inputs and outputs correspond to `inputs` and `outputs`; has no parameters of its own. Contains no dead values.
    pub body: Graph,
    pub inputs: Vec<BufferId>,
    pub outputs: Vec<BufferId>,
    pub cost: Cost,
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub rounding: Rounding,
    /// Sums are made in an order that does not depend on how many rows there are ([`Contract::batch_invariant`]).
    pub batch_invariant: bool,
    pub reason: Reason,
}

/// What the e-graph and the planner did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Search {
    pub iterations: usize,
    pub enodes_before: usize,
    pub enodes_after: usize,
    /// `saturated`, `node limit`, `iteration limit`.
    pub stopped: String,
    pub candidates: usize,
    /// Programs (choices of form) that were planned and priced.
    pub tried: usize,
    /// Of the first choice of forms, before any other was tried.
    pub greedy_us: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    /// Name of the machine description it was made for.
    pub machine: String,
    /// What is promised of the results' numbers.
    pub contract: Contract,
    pub buffers: Vec<Buffer>,
    /// In launch order.
    pub kernels: Vec<Kernel>,
    /// Buffers of the graph's outputs, in order. May repeat, and may be inputs, parameters or frozen buffers.
    pub outputs: Vec<BufferId>,
    pub search: Search,
    /// No plan of this graph can take less on this machine.
    pub lower_bound_us: f64,
}

impl Plan {
    pub fn buffer(&self, b: BufferId) -> &Buffer {
        &self.buffers[b.0 as usize]
    }
    /// Sum over the kernels of a run whose time is predicted: all but fallbacks.
    pub fn predicted_us(&self) -> f64 {
        self.kernels.iter().filter(|k| k.stage == Stage::Run).filter_map(|k| k.cost.us).sum()
    }
    /// Kernels of a run whose time is unknown, which [`Plan::predicted_us`] leaves out: fallbacks.
    pub fn unpriced(&self) -> usize {
        self.kernels.iter().filter(|k| k.stage == Stage::Run && k.cost.us.is_none()).count()
    }
}
