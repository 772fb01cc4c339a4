//! Kernels that people write: from a source and the arguments of a launch to code on a device, and launches of it.
//!
//! Takes: functions as text with what their names are bound to ([`Unit`]), the types and facts of a launch's arguments
//! ([`Signature`]). Gives: a [`Kernel`], whose launches take addresses and numbers. Code comes from the cache of
//! programs, by the text of the block program, if another process has made it. Never: reads Python objects.
//!
//! Kernels in Rust ([`write()`]) are the same programs:
//!
//! ```
//! use kiln::{DeviceKind, kernels::{Argument, Elem, Kernel, Place, write}};
//! let scale = write("scale", |k| {
//!     let (x, n) = (k.pointer("x", Elem::F32), k.scalar("n", Elem::I32));
//!     let i = k.program_id(0) * 64 + k.arange(64);
//!     let there = (x + i).masked(i.lt(n));
//!     there.store(there.load() * 2.0);
//! })?;
//! let kernel = Kernel::of_program(&scale, &Place::open(DeviceKind::Cpu)?)?;
//! let mut x = vec![1.5_f32; 100];
//! let arguments = [Argument::Address(x.as_mut_ptr() as u64), Argument::from(100_i32)];
//! // SAFETY: the address is that of 100 numbers, which nobody else uses, and the mask leaves out what is behind them.
//! unsafe { kernel.launch([2, 1, 1], &arguments, 0) }?;
//! assert_eq!(x, [3.0; 100]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod background;
mod facts;
pub mod file;
mod footprint;
pub mod interpret;
pub mod node;
mod page;
mod price;
mod quote;
mod stages;
pub mod tunings;
mod work;

use crate::assembler::Assembler;
use crate::compile::{
    CompileOptions, DeviceKind,
    codes::{self, Source},
    open_device,
};
use crate::error::{Cause, Error};
use kiln_block::{Op, passes};
use kiln_codegen::{CodegenError, host, nvptx};
use kiln_machine::Machine;
use kiln_runtime::{Cubin, CudaProgram, Device, HostDevice, Pace, Ptx};
use std::sync::Arc;

pub use crate::bounds::LaunchValues;
pub use background::{Pending, State, finish, postpone};
pub use facts::{KernelFacts, Occupancy};
pub use footprint::Footprint;
pub use kiln_block::memories::{PointerPlace, PointerStart, PointerUse};
pub use kiln_block::text::{parse, print};
pub use kiln_block::write::{Access, Block, Fault, Operand, Range, WriteError, Writer, write};
pub use kiln_block::{AtomicOp, BlockProgram, DotPrecision, Elem, Facts, Type, analysis::Relevance};
pub use kiln_kernels::{
    Argument as Known, ArgumentFacts, ArrayArgument, Binding, Compiled, DescriptorArgument, ErrorKind, Function,
    KernelError, Literal, Number, Options, Place as SourcePlace, Signature, Site, Unit, free_names,
};
pub use kiln_runtime::Argument;
pub use price::LaunchPrice;
pub use quote::{Front, Quote};
pub use stages::{PassResult, Stages};
pub use work::Prediction;

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
    /// Whether launches on a stream of this device (0: the default one) are being captured: then nothing is loaded.
    pub fn captures(&self, stream: u64) -> bool {
        match &self.device {
            Device::Host(_) => false,
            // SAFETY: as for a launch on it, the caller's stream lives and is one of this device.
            Device::Cuda(device) => unsafe { device.captures(stream) },
        }
    }
    fn machine(&self) -> &Machine {
        self.options.machine()
    }
}

enum Code {
    Host { module: Arc<host::HostModule>, device: HostDevice, asserts: bool, pace: Pace },
    Cuda(Box<CudaProgram>),
}

/// A kernel that is compiled for arguments of some types and facts, and loaded on its device.
pub struct Kernel {
    printed: Vec<String>,
    relevance: Vec<Relevance>,
    stages: Stages,
    code: Code,
}

impl Kernel {
    /// Compiles a kernel for arguments of these types and facts.
    ///
    /// # Errors
    /// [`Failure::Source`] with the place in the source, otherwise why it has no code.
    pub fn compile(unit: &Unit, signature: &Signature, options: &Options, place: &Place) -> Result<Kernel, Failure> {
        prepared(unit, signature, options, place)?.load(place)
    }
    /// Compiles a program, as [`write()`] gives it.
    ///
    /// # Errors
    /// Why it has no code, or what the device refuses.
    pub fn of_program(program: &BlockProgram, place: &Place) -> Result<Kernel, Failure> {
        kiln_block::verify::verify(program).map_err(defect)?;
        let parameters = (0..program.params.len()).map(|n| vec![n]).collect();
        let written =
            Written { unit: Unit::default(), program: program.clone(), parameters, printed: vec![], sites: vec![] };
        coded(written, place)?.load(place)
    }
    /// Compiles a kernel, and assembles it, but loads nothing: for another thread than that of the launch.
    ///
    /// # Errors
    /// As [`Kernel::compile`].
    pub fn prepare(unit: &Unit, signature: &Signature, options: &Options, place: &Place) -> Result<Prepared, Failure> {
        let mut prepared = prepared(unit, signature, options, place)?;
        if let (Generated::Ptx(code), Device::Cuda(device)) = (&mut prepared.code, &place.device) {
            let assembler = Assembler::new(device, place.machine().arch, 1, place.options.cache());
            code.cubin = assembler.assembled(&code.loadable);
        }
        Ok(prepared)
    }
    /// For each of [`Stages::parameters`], which facts the code makes use of: arguments of the same types that differ in
    /// others have the same code.
    pub fn relevance(&self) -> &[Relevance] {
        &self.relevance
    }
    /// Whether it runs on a GPU, where launches only enqueue.
    pub fn is_on_gpu(&self) -> bool {
        matches!(self.code, Code::Cuda(_))
    }
    /// Registers of a thread and its bytes in memory, as the driver says, on a GPU.
    pub fn registers(&self) -> Option<(u64, u64)> {
        match &self.code {
            Code::Cuda(program) => program.registers(),
            Code::Host { .. } => None,
        }
    }
    /// What `static_print` wrote.
    pub fn printed(&self) -> &[String] {
        &self.printed
    }
    /// The kernel at every stage.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }
    /// Runs the instances of a grid: on the processor until all have run, on a GPU on this stream.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Safety
    /// There is an argument for each of [`Stages::parameters`], of its type. Behind each address is memory of the
    /// device, which holds what the kernel accesses until it has run, and which nobody else writes.
    pub unsafe fn launch(&self, grid: [usize; 3], arguments: &[Argument], stream: u64) -> Result<(), Error> {
        match &self.code {
            Code::Host { module, device, asserts, pace } => {
                let function = module
                    .function(0)
                    .ok_or_else(|| Error::failed("a kernel's code has no function; please report it", ""))?;
                // SAFETY: this function's contract.
                unsafe { device.launch(function, grid, arguments, pace) };
                match asserts.then(host::take_failure).flatten() {
                    Some(why) => Err(Error::failed(format!("a kernel's assertion failed: {why}"), ASSERTION_HELP)),
                    None => Ok(()),
                }
            }
            // SAFETY: this function's contract.
            Code::Cuda(program) => unsafe { program.launch(grid, arguments, stream) }.map_err(Error::from),
        }
    }
}

/// A kernel at every stage, compiled for a target without a device.
///
/// # Errors
/// As [`Kernel::compile`].
pub fn stages(
    unit: &Unit,
    signature: &Signature,
    options: &Options,
    target: &CompileOptions,
) -> Result<Stages, Failure> {
    target.check()?;
    let machine = target.machine().clone();
    let mut compiled = checked(unit, signature, options)?;
    if !machine.arch.is_gpu() {
        without_assembly(unit, &mut compiled)?;
    }
    let Compiled { program: written, parameters, sites, .. } = compiled;
    let program = canonical(&written)?.0;
    let (placed, ptx) = match machine.arch.is_gpu() {
        true => coded_for_gpu(&program, &machine, target).map(|(placed, ptx)| (placed, Some(ptx)))?,
        false => (program.clone(), None),
    };
    Ok(Stages { unit: unit.clone(), sites, written, program, placed, parameters, machine, ptx })
}

/// The program that code is generated from, and its PTX: of what multiplies, in roles where the program has the form,
/// otherwise with pipelined loops, and as it is where these need more of a multiprocessor than there is.
fn coded_for_gpu(
    program: &BlockProgram,
    machine: &Machine,
    options: &CompileOptions,
) -> Result<(BlockProgram, nvptx::Ptx), Failure> {
    let coded = |placed: BlockProgram| {
        let ptx = ptx_of(&Source { program: &placed, text: &print(&placed), used: true }, machine, options)?;
        Ok((placed, ptx))
    };
    if passes::multiplies(program) {
        let roles = passes::to_warpgroups(program, machine).ok().map(|made| coded(made.roles));
        if let Some(Ok(done)) = roles {
            return Ok(done);
        }
        let pipeline = passes::to_pipeline(program, machine).ok().map(coded);
        if let Some(Ok(done)) = pipeline {
            return Ok(done);
        }
    }
    coded(program.clone())
}

/// Inline assembly of a program for what is no GPU, as ops; refused if a text has no meaning there.
fn without_assembly(unit: &Unit, compiled: &mut Compiled) -> Result<(), Failure> {
    compiled.program = passes::portable_assembly::portable(&compiled.program);
    let Some((inst, assembly)) = passes::portable_assembly::unknown(&compiled.program) else {
        return Ok(());
    };
    let text: Vec<&str> = assembly.text.split_whitespace().collect();
    let message = format!("the inline assembly `{}` is for GPUs", text.join(" "));
    let error = KernelError::new(ErrorKind::Unsupported, message).with_hint(
        "on a processor plain instructions of single elements run; write the others as functions of the language",
    );
    let place = compiled.sites.get(inst.0 as usize).and_then(|site| unit.place(*site));
    Err(Box::new(KernelError { place, ..*error }).into())
}

/// The verified program of a kernel.
fn checked(unit: &Unit, signature: &Signature, options: &Options) -> Result<Compiled, Failure> {
    let compiled = kiln_kernels::compile(unit, signature, options)?;
    kiln_block::verify::verify(&compiled.program).map_err(defect)?;
    Ok(compiled)
}

/// The block program of a kernel after the passes that every program goes through, and which facts about its parameters
/// it makes use of.
fn canonical(written: &BlockProgram) -> Result<(BlockProgram, Vec<Relevance>), Error> {
    let mut program = written.clone();
    let relevance = passes::drop_irrelevant_facts(&mut program);
    passes::canonicalise(&mut program).map_err(defect)?;
    Ok((program, relevance))
}

/// What to do about an assertion that failed.
const ASSERTION_HELP: &str = "look at the values with `interpret=True`, or compile without `debug=True`";

fn defect<E: Into<Cause> + std::fmt::Display>(e: E) -> Error {
    Error::caused(
        format!("{e}; this is a defect of Kiln: please report it with the kernel"),
        "write this part of the kernel differently until it is fixed",
        e,
    )
}

fn refused(e: CodegenError) -> Failure {
    match e {
        CodegenError::Unsupported { .. } => Failure::NoCode(format!("{e}; write this part of the kernel differently")),
        other => Failure::Kiln(defect(other)),
    }
}

fn ptx_of(source: &Source, machine: &Machine, options: &CompileOptions) -> Result<nvptx::Ptx, Failure> {
    let described = serde_json::to_vec(machine).ok();
    let cache = options.cache();
    codes::ptx_of(source, machine, cache.zip(described.as_deref())).map_err(refused)
}

/// Code that is not loaded.
enum Generated {
    Host(Arc<host::HostModule>),
    Ptx(Box<Assembly>),
}

struct Assembly {
    loadable: Ptx,
    /// Machine code, where it is assembled ahead of loading.
    cubin: Option<Cubin>,
}

/// A kernel that is compiled, and not loaded yet.
pub struct Prepared {
    printed: Vec<String>,
    relevance: Vec<Relevance>,
    stages: Stages,
    code: Generated,
}

fn prepared(unit: &Unit, signature: &Signature, options: &Options, place: &Place) -> Result<Prepared, Failure> {
    let mut compiled = checked(unit, signature, options)?;
    if matches!(place.device, Device::Host(_)) {
        without_assembly(unit, &mut compiled)?;
    }
    let Compiled { program, parameters, printed, sites, .. } = compiled;
    coded(Written { unit: unit.clone(), program, parameters, printed, sites }, place)
}

/// A verified program with where it comes from.
struct Written {
    unit: Unit,
    program: BlockProgram,
    parameters: Vec<Vec<usize>>,
    printed: Vec<String>,
    sites: Vec<Site>,
}

fn coded(written: Written, place: &Place) -> Result<Prepared, Failure> {
    let Written { unit, program: written, parameters, printed, sites } = written;
    let (program, relevance) = canonical(&written)?;
    let machine = place.machine().clone();
    let (placed, code, ptx) = match &place.device {
        Device::Host(_) => {
            let text = print(&program);
            let source = Source { program: &program, text: &text, used: true };
            let module = codes::host_module(&[source], place.options.cache()).map_err(refused)?;
            (program.clone(), Generated::Host(Arc::new(module)), None)
        }
        Device::Cuda(_) => {
            let (placed, ptx) = coded_for_gpu(&program, &machine, &place.options)?;
            let assembly = Assembly { loadable: crate::compile::loadable(&ptx, None), cubin: None };
            (placed, Generated::Ptx(Box::new(assembly)), Some(ptx))
        }
    };
    let stages = Stages { unit, sites, written, program, placed, parameters, machine, ptx };
    Ok(Prepared { printed, relevance, stages, code })
}

impl Prepared {
    /// Loads it on the device that it was compiled for.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn load(self, place: &Place) -> Result<Kernel, Failure> {
        let Prepared { printed, relevance, stages, code } = self;
        let code = match (code, &place.device) {
            (Generated::Host(module), Device::Host(device)) => {
                let mut asserts = false;
                stages.program.walk(&mut |_, data| asserts |= matches!(data.op, Op::Assert(_)));
                Code::Host { module, device: device.clone(), asserts, pace: Pace::default() }
            }
            (Generated::Ptx(code), Device::Cuda(device)) => {
                let Assembly { loadable, cubin } = *code;
                if !cubin.is_some_and(|cubin| device.load_assembled(&loadable, &cubin)) {
                    Assembler::new(device, place.machine().arch, 1, place.options.cache()).load(&loadable);
                }
                Code::Cuda(Box::new(device.program(&loadable).map_err(Error::from)?))
            }
            _ => return Err(Error::failed("a kernel is loaded on another device than it is for", REPORT).into()),
        };
        Ok(Kernel { printed, relevance, stages, code })
    }
}

const REPORT: &str = "report it with the kernel; this is a defect of Kiln";

/// The Rust of the guide's chapter on block programs, run as a test of this crate's documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/block-programs.md")]
struct GuideOfBlockPrograms;
