//! Kernels that people write: from a source and the arguments of a launch to code on a device, and launches of it.
//!
//! Takes: functions as text with what their names are bound to ([`Unit`]), the types and facts of a launch's arguments
//! ([`Signature`]). Gives: a [`Kernel`], whose launches take addresses and numbers. Code comes from the cache of
//! programs, by the text of the block program, if another process has made it. Never: reads Python objects.
use crate::compile::{
    CompileOptions, DeviceKind,
    codes::{self, Source},
    open_device,
};
use crate::error::{Cause, Error};
use kiln_codegen::{CodegenError, host, nvptx};
use kiln_machine::Machine;
use kiln_runtime::{CudaProgram, Device, HostDevice};
use std::sync::Arc;

pub use kiln_block::{BlockProgram, text::print};
pub use kiln_kernels::{
    Argument as Known, ArgumentFacts, Binding, Compiled, DescriptorArgument, ErrorKind, Function, KernelError, Literal,
    Number, Options, Signature, Unit, free_names,
};
pub use kiln_runtime::Argument;

/// Why a kernel does not compile.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Its source is wrong, or has what the language has not.
    #[error(transparent)]
    Source(#[from] Box<KernelError>),
    /// Code generation lacks what it does.
    #[error("{0}")]
    NoCode(String),
    /// The device refuses it, or a defect of Kiln.
    #[error(transparent)]
    Kiln(#[from] Error),
}

/// Where kernels run, with what it takes to compile for it.
pub struct Place {
    device: Device,
    options: CompileOptions,
}

impl Place {
    /// The processor, or a GPU.
    ///
    /// # Errors
    /// If there is no such device, or Kiln has no target for it.
    pub fn open(kind: DeviceKind) -> Result<Place, Error> {
        Ok(Place { device: open_device(kind, None)?, options: CompileOptions::default().on(kind)? })
    }
    fn machine(&self) -> &Machine {
        self.options.machine()
    }
}

enum Code {
    Host { module: Arc<host::HostModule>, device: HostDevice },
    Cuda(Box<OnGpu>),
}

struct OnGpu {
    program: CudaProgram,
    ptx: nvptx::Ptx,
}

/// A kernel that is compiled for arguments of some types and facts, and loaded on its device.
pub struct Kernel {
    compiled: Compiled,
    code: Code,
}

impl Kernel {
    /// Compiles a kernel for arguments of these types and facts.
    ///
    /// # Errors
    /// [`Failure::Source`] with the place in the source, otherwise why it has no code.
    pub fn compile(unit: &Unit, signature: &Signature, options: &Options, place: &Place) -> Result<Kernel, Failure> {
        let compiled = program(unit, signature, options)?;
        let code = code_of(&compiled.program, place)?;
        Ok(Kernel { compiled, code })
    }
    /// For each parameter of the code the argument that it is: its number among the kernel's parameters, then the place
    /// in tuples.
    pub fn parameters(&self) -> &[Vec<usize>] {
        &self.compiled.parameters
    }
    /// Whether it runs on a GPU, where launches only enqueue.
    pub fn is_on_gpu(&self) -> bool {
        matches!(self.code, Code::Cuda(_))
    }
    /// What `static_print` wrote.
    pub fn printed(&self) -> &[String] {
        &self.compiled.printed
    }
    /// The block program.
    pub fn program(&self) -> &BlockProgram {
        &self.compiled.program
    }
    /// The PTX, of a kernel on a GPU.
    pub fn ptx(&self) -> Option<&str> {
        match &self.code {
            Code::Cuda(gpu) => Some(&gpu.ptx.text),
            Code::Host { .. } => None,
        }
    }
    /// Runs the instances of a grid: on the processor until all have run, on a GPU on this stream.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Safety
    /// There is an argument for each of [`Kernel::parameters`], of its type. Behind each address is memory of the
    /// device, which holds what the kernel accesses until it has run, and which nobody else writes.
    pub unsafe fn launch(&self, grid: [usize; 3], arguments: &[Argument], stream: u64) -> Result<(), Error> {
        match &self.code {
            Code::Host { module, device } => {
                let function = module
                    .function(0)
                    .ok_or_else(|| Error::failed("a kernel's code has no function; please report it", ""))?;
                // SAFETY: this function's contract.
                unsafe { device.launch(function, grid, arguments) };
                Ok(())
            }
            // SAFETY: this function's contract.
            Code::Cuda(gpu) => unsafe { gpu.program.launch(grid, arguments, stream) }.map_err(Error::from),
        }
    }
}

/// The block program of a kernel, after the passes that every program goes through.
///
/// # Errors
/// As [`Kernel::compile`].
pub fn program(unit: &Unit, signature: &Signature, options: &Options) -> Result<Compiled, Failure> {
    let mut compiled = kiln_kernels::compile(unit, signature, options)?;
    kiln_block::verify::verify(&compiled.program).map_err(defect)?;
    kiln_block::passes::canonicalise(&mut compiled.program).map_err(defect)?;
    Ok(compiled)
}

fn defect<E: Into<Cause> + std::fmt::Display>(e: E) -> Error {
    Error::caused(
        format!("{e}; this is a defect of Kiln: please report it with the kernel"),
        "write this part of the kernel differently until it is fixed",
        e,
    )
}

fn code_of(program: &BlockProgram, place: &Place) -> Result<Code, Failure> {
    let text = print(program);
    let source = Source { program, text: &text, used: true };
    let refused = |e: CodegenError| match e {
        CodegenError::Unsupported { .. } => Failure::NoCode(format!("{e}; write this part of the kernel differently")),
        other => Failure::Kiln(defect(other)),
    };
    match &place.device {
        Device::Host(device) => {
            let module = codes::host_module(&[source], place.options.cache()).map_err(refused)?;
            Ok(Code::Host { module: Arc::new(module), device: device.clone() })
        }
        Device::Cuda(device) => {
            let machine = place.machine();
            let described = serde_json::to_vec(machine).ok();
            let cache = place.options.cache();
            let ptx = codes::ptx_of(&source, machine, cache.zip(described.as_deref())).map_err(refused)?;
            let loadable = crate::compile::loadable(&ptx, None);
            crate::assembler::Assembler::new(device, machine.arch, 1, cache).load(&loadable);
            let program = device.program(&loadable).map_err(Error::from)?;
            Ok(Code::Cuda(Box::new(OnGpu { program, ptx })))
        }
    }
}
