//! Host code: a block program as vectorised loops, compiled in memory.
//!
//! Takes: verified upper-level block programs. Gives: functions that run a range of the program's instances. Block
//! values are lazy: loops are written where a value is forced ([`nest`]), everything else is computed inside them
//! ([`eval`]). The code is LLVM text ([`text`]) that is vectorised as it is written; LLVM only cleans it up and
//! allocates registers ([`jit`]).
//! Never: threads (the caller splits the grid), lower-level ops of the block IR.
mod atomic;
mod combine;
mod control;
mod demand;
mod dot;
mod eval;

mod group;
mod half;
mod index;
mod jit;
mod math;
mod memory;
mod nest;
mod ops;
mod pads;
mod pointers;
mod prefetch;
mod program;
mod reduce;
mod report;
mod runs;
mod scan;
mod scattered;
mod short_float;
mod sums;
mod text;
mod tiles;
mod transpose;
mod value;

use crate::CodegenError;
pub use report::take_failure;

use kiln_block::{BlockProgram, Value};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Runs instances `lo..hi` of the linearised grid (axis 0 fastest). `args`: one address per kernel parameter, that of a
/// scalar's value for a scalar; for a grid of the launch, then the address of its three sizes (u64).
pub type HostFn = unsafe extern "C" fn(args: *const *mut u8, lo: u64, hi: u64);

/// `Err`: what cannot be compiled.
type Res<T> = Result<T, String>;

/// Compiled kernels; the code lives as long as this does.
pub struct HostModule {
    /// Keeps the code alive.
    _code: Option<jit::Code>,
    functions: Vec<HostFn>,
}

/// State while a kernel's text is written.
struct Emit<'k> {
    kernel: &'k BlockProgram,
    machine: &'k jit::Machine,
    text: text::Text,
    demand: demand::Demand,
    prefetch: prefetch::Prefetch,
    place: HashMap<Value, eval::Place>,
    /// Values computed so far, per open scope.
    memo: Vec<HashMap<(Value, Vec<value::Val>), value::Val>>,
    /// Masks that hold throughout the loop being written, at the coordinates `here`.
    assumed: HashSet<Value>,
    here: Vec<value::Val>,
    pending: group::Group,
    /// Vectors of offsets of which it is known at run time whether they are those of neighbours.
    runs: HashMap<text::Name, value::Run>,
    /// Buffers of the values that are computed in the place of what they replace.
    homes: HashMap<Value, eval::Buffer>,
    /// Lanes of the nest being written.
    lanes: usize,
    /// Number of elements that `Form::Lanes` spans where that is not `lanes`.
    span: Option<usize>,
    pid: Vec<value::Num>,
    /// The grid's sizes.
    sizes: Vec<value::Num>,
    /// Bytes of scratch memory so far.
    scratch: usize,
    dummy: Option<text::Name>,
    /// A product is computed by the matrix unit.
    uses_tiles: bool,
}

/// Kernels as an object file: what [`HostModule::load`] makes code of. It runs on the processor of [`processor`] alone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Object {
    /// The file, ELF.
    pub bytes: Vec<u8>,
    /// Functions of the C library that it calls.
    pub externs: Vec<String>,
    /// How many kernels it has.
    pub kernels: usize,
}

/// What the code of an [`Object`] depends on besides its kernels: the processor, its features that are used, the
/// version of LLVM.
pub fn processor() -> String {
    let m = jit::machine();
    format!("{} {} {} lanes, LLVM {}", m.cpu, m.features, m.lanes, jit::version())
}

/// Compiles kernels for this machine's processor.
pub fn compile(kernels: &[BlockProgram]) -> Result<HostModule, CodegenError> {
    HostModule::load(&object(kernels)?)
}

/// The same, as a file.
pub fn object(kernels: &[BlockProgram]) -> Result<Object, CodegenError> {
    let Some(first) = kernels.first() else { return Ok(Object { bytes: vec![], externs: vec![], kernels: 0 }) };
    let machine = jit::machine();
    let (text, externs) = emit(kernels, machine)?;
    let bytes = jit::object(&text, machine).map_err(|what| CodegenError::Llvm { kernel: first.name.clone(), what })?;
    Ok(Object { bytes, externs: externs.iter().map(|s| s.to_string()).collect(), kernels: kernels.len() })
}

/// The LLVM text of kernels, before LLVM's own passes: for inspection and snapshot tests.
pub fn llvm_text(kernels: &[BlockProgram]) -> Result<String, CodegenError> {
    emit(kernels, jit::machine()).map(|(text, _)| text)
}

/// The assembly of kernels for this machine's processor.
pub fn assembly(kernels: &[BlockProgram]) -> Result<String, CodegenError> {
    assembly_for(kernels, jit::machine())
}

fn assembly_for(kernels: &[BlockProgram], machine: &jit::Machine) -> Result<String, CodegenError> {
    let name = || kernels.first().map_or(String::new(), |k| k.name.clone());
    jit::assembly(&emit(kernels, machine)?.0, machine).map_err(|what| CodegenError::Llvm { kernel: name(), what })
}

fn emit(kernels: &[BlockProgram], machine: &jit::Machine) -> Result<(String, Vec<&'static str>), CodegenError> {
    let mut shared = text::Text::default();
    let mut functions = String::new();
    for (n, kernel) in kernels.iter().enumerate() {
        let mut e = Emit {
            kernel,
            machine,
            text: std::mem::take(&mut shared),
            demand: Default::default(),
            prefetch: Default::default(),
            place: HashMap::new(),
            memo: vec![HashMap::new()],
            assumed: HashSet::new(),
            here: vec![],
            pending: Default::default(),
            runs: HashMap::new(),
            homes: HashMap::new(),
            lanes: 1,
            span: None,
            pid: vec![],
            sizes: vec![],
            scratch: 0,
            dummy: None,
            uses_tiles: false,
        };
        let text = program::function(&mut e, &format!("kiln.{n}")).map_err(|what| CodegenError::Unsupported {
            kernel: kernel.name.clone(),
            target: "the host".into(),
            what,
        })?;
        functions.push_str(&text);
        shared = e.text;
    }
    let mut text = shared.preamble();
    text.push_str(&functions);
    let bits = machine.lanes * 32;
    let _ = writeln!(
        text,
        "attributes #0 = {{ \"target-cpu\"=\"{}\" \"target-features\"=\"{}\" \"prefer-vector-width\"=\"{bits}\" \
         \"min-legal-vector-width\"=\"{bits}\" \"no-trapping-math\"=\"true\" }}",
        machine.cpu, machine.features
    );
    Ok((text, shared.externs.clone()))
}

impl HostModule {
    /// Links an object in memory.
    ///
    /// # Errors
    /// If it is no object of [`object`] for this processor.
    pub fn load(object: &Object) -> Result<HostModule, CodegenError> {
        if object.kernels == 0 {
            return Ok(HostModule { _code: None, functions: vec![] });
        }
        let names: Vec<String> = (0..object.kernels).map(|n| format!("kiln.{n}")).collect();
        let named = |s: &'_ String| math::address(s).map(|a| (s.clone(), a));
        let found: Vec<(String, usize)> = object.externs.iter().filter_map(named).collect();
        let mut symbols: Vec<(&str, usize)> = found.iter().map(|(s, a)| (s.as_str(), *a)).collect();
        symbols.push(("kiln_scratch", scratch as *const () as usize));
        symbols.extend(report::functions());
        let code = jit::load(&object.bytes, &names, &symbols)
            .map_err(|what| CodegenError::Llvm { kernel: names[0].clone(), what })?;
        // SAFETY: the addresses are those of functions that were generated with this signature.
        let functions = code.addresses.iter().map(|&a| unsafe { std::mem::transmute::<usize, HostFn>(a) }).collect();
        Ok(HostModule { _code: Some(code), functions })
    }
    /// The n-th kernel's function.
    pub fn function(&self, n: usize) -> Option<HostFn> {
        self.functions.get(n).copied()
    }
}

/// At least `bytes` of this thread's scratch memory, aligned to 64; generated code calls it once per range of
/// instances.
extern "C" fn scratch(bytes: u64) -> *mut u8 {
    thread_local!(static MEMORY: RefCell<Vec<[u64; 8]>> = const { RefCell::new(vec![]) });
    MEMORY.with_borrow_mut(|m| {
        let lines = bytes as usize / 64 + 2;
        if m.len() < lines {
            m.resize(lines, [0; 8]);
        }
        let p = m.as_mut_ptr().cast::<u8>();
        p.wrapping_add(p.align_offset(64))
    })
}
