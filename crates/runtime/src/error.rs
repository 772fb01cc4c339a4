//! What can go wrong when code is run. A message starts with what was asked for and ends with what to do.
use kiln_graph::{Type, count};

/// The type of what was given, and the one that is needed.
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
    /// The executable contradicts itself: a defect of whoever made it.
    #[error("loading `{model}`: {at}: {what}; the compiled program is damaged, compile the model again")]
    Invalid { model: String, at: String, what: String },
    #[error("running kernel `{kernel}` on {device}: {what}; {remedy}")]
    Unsupported { kernel: String, device: String, what: String, remedy: String },
    /// A callback (libtorch, the interpreter) failed. `by` has the place in the model's source where it is known, and `what` ends with
    /// what to do.
    #[error("running kernel `{kernel}` through {by}: {what}")]
    Callback { kernel: String, by: String, what: String },
    /// Data of the run: an index that is not one of the axis it is used on.
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
    /// The driver refused something or a kernel failed.
    #[error("{doing} on {device}: {what}; {remedy}")]
    Driver { device: String, doing: String, what: String, remedy: String },
}
