//! Errors of loading and running a model. Each message starts with what was attempted and ends with a remedy.
use kiln_graph::{Type, count};

/// A type mismatch between a tensor that was passed and what the model was compiled for.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    pub got: Type,
    pub want: Type,
}

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A run was given the wrong number of inputs.
    #[error("running `{model}` with {}, but it takes {want} ({inputs}); pass one tensor per input, in order", count(*.got, "input"))]
    InputCount { model: String, got: usize, want: usize, inputs: String },
    /// An input has another dtype or shape than the code was compiled for.
    #[error("running `{model}`: {input} is {}, but the model was compiled for {}; {remedy}", types.got, types.want)]
    InputType { model: String, input: String, types: Box<Mismatch>, remedy: &'static str },
    #[error(
        "loading `{model}` with {}, but it uses {want}; pass the parameters of the graph it was compiled from",
        count(*.got, "parameter")
    )]
    ParamCount { model: String, got: usize, want: usize },
    #[error(
        "loading `{model}`: parameter @{param} is {}, but the model was compiled for {}; \
         pass the parameters of the graph it was compiled from", types.got, types.want
    )]
    ParamType { model: String, param: u32, types: Box<Mismatch> },
    /// The executable is inconsistent: a bug in whatever produced it.
    #[error("loading `{model}`: {at}: {what}; the compiled program is damaged, compile the model again")]
    Invalid { model: String, at: String, what: String },
    #[error("running kernel `{kernel}` on {device}: {what}; {remedy}")]
    Unsupported { kernel: String, device: String, what: String, remedy: String },
    /// A callback failed. `by` names it (libtorch or the interpreter), with the place in the model's source where that is known; `what`
    /// ends with a remedy.
    #[error("running kernel `{kernel}` through {by}: {what}")]
    Callback { kernel: String, by: String, what: String },
    /// An index in the data of a run is out of range for the axis it is used on.
    #[error("running `{model}`, kernel `{kernel}`: {what}; give indices from 0 to one below the axis' length")]
    Index { model: String, kernel: String, what: String },
    #[error("allocating {bytes} bytes for {what}: {why}; use a smaller batch or a device with more free memory")]
    Memory { bytes: usize, what: String, why: String },
    #[error("{0}")]
    HostMemory(#[from] kiln_graph::memory::NoMemory),
    /// The device cannot be used at all.
    #[error("opening {device}: {what}; {remedy}")]
    Device { device: String, what: String, remedy: String },
    #[error(transparent)]
    Level(#[from] kiln_cpu::LevelError),
    /// A call of the CUDA driver or of cuBLASLt failed, or a kernel did.
    #[error("{doing} on {device}: {what}; {remedy}")]
    Driver { device: String, doing: String, what: String, remedy: String },
}
