//! Errors of loading and running a model. Each message starts with what was attempted and ends with a remedy.
use kiln_graph::{Type, count};

/// A type mismatch between a tensor that was passed and what the model was compiled for.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    /// The type of the tensor that was passed.
    pub got: Type,
    /// The type that the model was compiled for.
    pub want: Type,
}

/// Why a model could not be loaded or run. `Display` gives the whole message, remedy included.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A run was given the wrong number of inputs.
    #[error(
        "running `{model}` with {}, but it takes {want} ({inputs}); pass one tensor per input, in order",
        count(*.got, "input")
    )]
    InputCount {
        /// Name of the model.
        model: String,
        /// Number of inputs that were passed.
        got: usize,
        /// Number of inputs that the model takes.
        want: usize,
        /// Names and types of all inputs of the model, as text.
        inputs: String,
    },
    /// A run was given the wrong number of places for its outputs.
    #[error(
        "running `{model}` with addresses of {}, but it gives {want}; pass one address per output, in order",
        count(*.got, "output")
    )]
    OutputCount {
        /// Name of the model.
        model: String,
        /// Number of addresses that were passed.
        got: usize,
        /// Number of outputs that the model gives.
        want: usize,
    },
    /// An input has another dtype or shape than the code was compiled for.
    #[error("running `{model}`: {input} is {}, but the model was compiled for {}; {remedy}", types.got, types.want)]
    InputType {
        /// Name of the model.
        model: String,
        /// The input as messages name it ([`crate::Executable::input_name`]).
        input: String,
        /// The type that was passed and the one that is required.
        types: Box<Mismatch>,
        /// What to do; depends on whether the dtype or the shape differs.
        remedy: &'static str,
    },
    /// A kernel was asked for that a run does not have.
    #[error("timing kernel {kernel} of `{model}`, which has fewer; kernels of a run are numbered from 0")]
    NoKernel {
        /// Name of the model.
        model: String,
        /// The number asked for.
        kernel: usize,
    },
    /// A session was given too few parameters.
    #[error(
        "loading `{model}` with {}, but it uses {want}; pass the parameters of the graph it was compiled from",
        count(*.got, "parameter")
    )]
    ParamCount {
        /// Name of the model.
        model: String,
        /// Number of parameters that were passed.
        got: usize,
        /// Number of parameters that the model reads.
        want: usize,
    },
    /// A parameter has another dtype or shape than the code was compiled for.
    #[error(
        "loading `{model}`: parameter @{param} is {}, but the model was compiled for {}; \
         pass the parameters of the graph it was compiled from", types.got, types.want
    )]
    ParamType {
        /// Name of the model.
        model: String,
        /// Index of the parameter in the graph.
        param: u32,
        /// The type that was passed and the one that is required.
        types: Box<Mismatch>,
    },
    /// A parameter lies in memory of a GPU, and the session runs on the host.
    #[error(
        "loading `{model}` on the host: parameter @{param} lies in memory of a GPU; \
         copy it to the host, or compile the model for the GPU"
    )]
    ParamPlace {
        /// Name of the model.
        model: String,
        /// Index of the parameter in the graph.
        param: usize,
    },
    /// The executable is inconsistent: a bug in whatever produced it.
    #[error("loading `{model}`: {at}: {what}; the compiled program is damaged, compile the model again")]
    Invalid {
        /// Name of the model.
        model: String,
        /// The kernel, buffer or output that is wrong.
        at: String,
        /// What is wrong with it.
        what: String,
    },
    /// A kernel cannot run on this device, as when its code is for another one. Found when a session is created.
    #[error("running kernel `{kernel}` on {device}: {what}; {remedy}")]
    Unsupported {
        /// Name of the kernel.
        kernel: String,
        /// Name of the device, as `cuda:0`.
        device: String,
        /// What the kernel needs and the device lacks.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A callback failed, or gave results of other types than the kernel's outputs.
    #[error("running kernel `{kernel}` through {by}: {what}")]
    Callback {
        /// Name of the kernel.
        kernel: String,
        /// The callback (libtorch or the interpreter), with the place in the model's source where that is known.
        by: String,
        /// What went wrong; ends with a remedy.
        what: String,
    },
    /// An index in the data of a run is out of range for the axis it is used on.
    #[error("running `{model}`, kernel `{kernel}`: {what}; give indices from 0 to one below the axis' length")]
    Index {
        /// Name of the model.
        model: String,
        /// Name of the kernel that read the index.
        kernel: String,
        /// The op, the index and the length of the axis ([`kiln_plan::index::out_of_range`]).
        what: String,
    },
    /// An allocation failed, on the host or on a GPU.
    #[error("allocating {bytes} bytes for {what}: {why}; use a smaller batch or a device with more free memory")]
    Memory {
        /// Size of the allocation in bytes.
        bytes: usize,
        /// What the memory was for, and the device if it is a GPU.
        what: String,
        /// The reason, as the driver states it on a GPU.
        why: String,
    },
    /// The host has less free memory than the session needs. Found before the session allocates it.
    #[error("{0}")]
    HostMemory(#[from] kiln_graph::memory::NoMemory),
    /// An input was to take the value of an output of another type ([`crate::Session::steps_on`]).
    #[error("running `{model}` in steps: {what}; feed an input from an output of its type")]
    Feed {
        /// Name of the model.
        model: String,
        /// The input, the output and their types.
        what: String,
    },
    /// Memory of a device was given values of another type ([`crate::Storage::write`]).
    #[error("setting a tensor of {} to values of {}; give values of the same dtype and shape", _0.want, _0.got)]
    StorageType(Box<Mismatch>),
    /// The device cannot be used at all.
    #[error("opening {device}: {what}; {remedy}")]
    Device {
        /// Name of the device, as it was requested.
        device: String,
        /// Why it cannot be used.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// `KILN_CPU` names an instruction set that does not exist or that this processor lacks.
    #[error(transparent)]
    Level(#[from] kiln_cpu::LevelError),
    /// A call of the CUDA driver or of cuBLASLt failed, or a kernel did.
    #[error("{doing} on {device}: {what}; {remedy}")]
    Driver {
        /// Name of the device.
        device: String,
        /// What was being done, with the name of the kernel or model.
        doing: String,
        /// The error as the driver or cuBLASLt states it.
        what: String,
        /// What to do.
        remedy: String,
    },
}
