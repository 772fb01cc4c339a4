//! Loads libtorch at run time, opens the TorchScript plugin, and wraps the plugin's C ABI in a safe API.
//!
//! Takes: paths of archives, host tensors, raw device memory. Gives: [`kiln_graph::Graph`]s with their parameters,
//! reference runs of whole modules, and runs of single fallback operators.
//!
//! libtorch is a plugin: Kiln never links it. This crate loads the libtorch that it finds, then
//! `libkiln_torchscript.so`, which is linked against libtorch, so one binary works with and without libtorch. The
//! plugin's interface is C: JSON and raw memory. Without libtorch, [`Torch::load`] says what is missing and how to
//! install it. Libraries stay loaded for the life of the process, since libtorch cannot be unloaded safely.
//!
//! Every call into libtorch runs on one dedicated thread ([`thread`]), whichever thread makes it. [`child`] imports in
//! a separate process.
mod abi;
pub mod child;
mod error;
mod find;
mod model;
mod session;
mod thread;

pub use child::Limits;
pub use error::{ImportErrors, Problem, TorchError};
pub use find::{find_libtorch, find_plugin};
pub use model::{Argument, Guard, Imported};
pub use session::Session;

use abi::{Dense, Str, Symbols, Text};
use kiln_graph::{FallbackOp, Tensor, Type};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::{
    ffi::c_void,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// The device of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host.
    Cpu,
    /// The CUDA device with this index.
    Cuda(u32),
}

impl Device {
    /// The device's number in the plugin's ABI: -1 is the host.
    fn number(self) -> i32 {
        match self {
            Device::Cpu => -1,
            Device::Cuda(i) => i32::try_from(i).unwrap_or(i32::MAX),
        }
    }
}

/// A dense row-major tensor in memory owned by the caller, on the device of the call.
#[derive(Debug, Clone)]
pub struct Memory {
    /// First byte, on the call's device.
    pub ptr: *mut c_void,
    /// Element type and shape.
    pub ty: Type,
}

/// A loaded libtorch with its plugin. Cheap to clone.
#[derive(Clone)]
pub struct Torch {
    symbols: Arc<Symbols>,
    libtorch: PathBuf,
    plugin: PathBuf,
}

impl Torch {
    /// Loads libtorch and the plugin once per process; later calls return the same handle or the same error.
    pub fn load() -> Result<Torch, TorchError> {
        static TORCH: OnceLock<Result<Torch, TorchError>> = OnceLock::new();
        TORCH.get_or_init(|| thread::call(|| Torch::load_from(&find_libtorch()?, &find_plugin()?))).clone()
    }

    fn load_from(libtorch: &Path, plugin: &Path) -> Result<Torch, TorchError> {
        let lib = libtorch.join("lib");
        // In dependency order. A CPU build may lack all but the first two.
        for (name, required) in [
            ("libc10.so", true),
            ("libtorch_cpu.so", true),
            ("libc10_cuda.so", false),
            ("libtorch_cuda.so", false),
            ("libtorch.so", false),
        ] {
            let path = lib.join(name);
            if !required && !path.is_file() {
                continue;
            }
            // SAFETY: opening libtorch runs its initialisers, as it does in every program that links it.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(library) => std::mem::forget(library),
                Err(e) if required => return Err(TorchError::Open { path, what: e.to_string() }),
                Err(_) => {}
            }
        }
        // SAFETY: the plugin has no initialisers of its own.
        let library = unsafe { Library::open(Some(plugin), RTLD_NOW) }
            .map_err(|e| TorchError::Open { path: plugin.into(), what: e.to_string() })?;
        let symbols = Symbols::resolve(library, plugin)?;
        Ok(Torch { symbols: Arc::new(symbols), libtorch: libtorch.into(), plugin: plugin.into() })
    }

    /// The folder from which libtorch was loaded.
    pub fn libtorch(&self) -> &Path {
        &self.libtorch
    }
    /// Path of the plugin's file.
    pub fn plugin(&self) -> &Path {
        &self.plugin
    }

    /// The arguments of an archive's `forward`.
    pub fn arguments(&self, path: &Path) -> Result<Vec<Argument>, TorchError> {
        let (mut text, mut error) = (Text::EMPTY, Text::EMPTY);
        let path = error::utf8(path)?;
        // SAFETY: the pointers live through the call.
        let status = thread::call(|| unsafe { (self.symbols.arguments)(Str::new(path), &mut text, &mut error) });
        self.symbols.checked(status == 0, error)?;
        self.symbols.json(text)
    }

    /// Imports a TorchScript archive, specialised on example inputs, in this process. See [`child::import`] for
    /// untrusted archives.
    pub fn import(&self, path: &Path, inputs: &[Tensor]) -> Result<Imported, TorchError> {
        thread::call(|| model::import(&self.symbols, path, inputs))
    }

    /// Loads a module for repeated runs on these inputs. `threads` sets the number of libtorch threads for the whole
    /// process; 0 leaves the choice to libtorch.
    pub fn session(
        &self,
        path: &Path,
        inputs: &[Tensor],
        device: Device,
        threads: usize,
    ) -> Result<Session, TorchError> {
        thread::call(|| Session::open(&self.symbols, path, inputs, device, threads))
    }

    /// Runs a module once on the host and returns its flattened outputs. `threads` as in [`Torch::session`].
    pub fn run_module(&self, path: &Path, inputs: &[Tensor], threads: usize) -> Result<Vec<Tensor>, TorchError> {
        let mut session = self.session(path, inputs, Device::Cpu, threads)?;
        session.run()?;
        session.outputs()
    }

    /// Runs a fallback op on host tensors and returns all its results.
    pub fn run_fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, TorchError> {
        let zeros = |ty: &Type| Tensor::try_zeros(ty.clone(), &format!("a result of {}", op.name));
        let mut results: Vec<Tensor> = op.results.iter().map(zeros).collect::<Result<_, _>>()?;
        let ins: Vec<Memory> =
            args.iter().map(|t| Memory { ptr: t.bytes().as_ptr().cast_mut().cast(), ty: t.ty.clone() }).collect();
        let outs: Vec<Memory> =
            results.iter_mut().map(|t| Memory { ty: t.ty.clone(), ptr: t.bytes_mut().as_mut_ptr().cast() }).collect();
        // SAFETY: dense host tensors of these types; results are newly allocated, so they do not overlap the operands.
        unsafe { self.run_fallback_on(op, &ins, &outs, Device::Cpu) }?;
        Ok(results)
    }

    /// Number of threads that have called libtorch so far: one, however many threads use this crate.
    pub fn calling_threads(&self) -> usize {
        // SAFETY: no arguments; reads a counter.
        unsafe { (self.symbols.threads)() }
    }

    /// Whether this libtorch is a CUDA build. Does not check for a GPU.
    pub fn has_cuda(&self) -> bool {
        self.libtorch.join("lib/libtorch_cuda.so").is_file()
    }

    /// Runs a fallback op on memory of `device`, writes its first results to `outs`, and waits for the device.
    ///
    /// # Safety
    /// Every `Memory` holds a dense tensor of its type on `device` that nothing else writes during the call, the work
    /// that produces the operands has finished, and no result overlaps an operand.
    pub unsafe fn run_fallback_on(
        &self,
        op: &FallbackOp,
        ins: &[Memory],
        outs: &[Memory],
        device: Device,
    ) -> Result<(), TorchError> {
        fn dense(m: &Memory) -> Dense<'_> {
            Dense::new(m.ptr, &m.ty)
        }
        let (ins, outs): (Vec<Dense>, Vec<Dense>) = (ins.iter().map(dense).collect(), outs.iter().map(dense).collect());
        let mut error = Text::EMPTY;
        // SAFETY: this function's contract; the lists outlive the call.
        let status = thread::call(|| unsafe {
            (self.symbols.call)(
                Str::new(&op.name),
                Str::new(&op.overload),
                Str::new(&op.args),
                ins.as_ptr(),
                ins.len(),
                outs.as_ptr(),
                outs.len(),
                device.number(),
                &mut error,
            )
        });
        self.symbols.checked(status == 0, error)
    }
}
