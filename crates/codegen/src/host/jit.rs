//! From LLVM text to an object file for this machine's processor ([`object`]), and from that to code in memory
//! ([`load`]).
//!
//! Each module has a context of its own, so modules can be compiled in parallel. The pipeline is short, since the text
//! is already vectorised: promotion to registers, common subexpressions, loop-invariant code motion and cleanup.
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::llvm_sys::error::{LLVMDisposeErrorMessage, LLVMErrorRef, LLVMGetErrorMessage};
use inkwell::llvm_sys::orc2::lljit::{
    LLVMOrcCreateLLJIT, LLVMOrcDisposeLLJIT, LLVMOrcLLJITAddObjectFile, LLVMOrcLLJITGetMainJITDylib,
    LLVMOrcLLJITLookup, LLVMOrcLLJITMangleAndIntern, LLVMOrcLLJITRef,
};
use inkwell::llvm_sys::orc2::{
    LLVMJITEvaluatedSymbol, LLVMJITSymbolFlags, LLVMOrcAbsoluteSymbols, LLVMOrcCSymbolMapPair, LLVMOrcJITDylibDefine,
};
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine};
use kiln_cpu::Level;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// What the processor offers.
pub(super) struct Machine {
    pub cpu: String,
    pub features: String,
    /// f32 lanes of a vector register.
    pub lanes: usize,
    /// Conversions between f16 and f32 in hardware.
    pub f16c: bool,
    /// Sums of products of pairs of bf16, in vectors of 16 f32.
    pub pairs_of_bf16: bool,
    /// The matrix unit for bf16 may be used.
    pub tiles: bool,
}

pub(super) fn machine() -> &'static Machine {
    static M: OnceLock<Machine> = OnceLock::new();
    M.get_or_init(|| {
        let (cpu, features) = target(Level::used(), Level::best());
        let has = |f: &str| features.split(',').any(|x| x.strip_prefix('+') == Some(f));
        let lanes = if has("avx512f") && has("avx512bw") && has("avx512vl") {
            16
        } else if has("avx2") {
            8
        } else {
            4
        };
        let pairs_of_bf16 = lanes == 16 && has("avx512bf16");
        let tiles = pairs_of_bf16 && has("amx-tile") && has("amx-bf16");
        Machine { lanes, f16c: has("f16c"), pairs_of_bf16, tiles, cpu, features }
    })
}

/// LLVM's name of the processor and its features, for a level on a processor whose best level is given: the processor's
/// own, unless the level leaves out vectors that it has.
fn target(level: Level, best: Level) -> (String, String) {
    match level {
        Level::Portable if best > level => ("x86-64".into(), "+sse2".into()),
        Level::Avx2 if best > level => ("x86-64-v3".into(), "+avx2,+fma,+f16c".into()),
        // Generated code uses the matrix unit only where the system has let this process use it.
        _ => {
            let mut features = without_unit(&TargetMachine::get_host_cpu_features().to_string());
            if level == Level::Amx {
                features.push_str(",+amx-tile,+amx-bf16");
            }
            (TargetMachine::get_host_cpu_name().to_string(), features)
        }
    }
}

/// Features of a processor without its matrix unit.
fn without_unit(features: &str) -> String {
    features.split(',').filter(|f| !f.starts_with("+amx")).collect::<Vec<_>>().join(",")
}
/// Compiled code with what keeps it alive.
pub(super) struct Code {
    jit: LLVMOrcLLJITRef,
    pub addresses: Vec<usize>,
}

// SAFETY: after loading the linker is not touched except to be disposed of once, by the only owner; the code itself is
// immutable memory.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: disposed of once. An error could only be told, and there is nobody to tell.
        let _ = check(unsafe { LLVMOrcDisposeLLJIT(self.jit) });
    }
}

const PIPELINE: &str = "function(sroa,early-cse,simplifycfg,instcombine<no-verify-fixpoint>,\
    loop-mssa(loop-rotate,licm),simplifycfg,early-cse<memssa>,instcombine<no-verify-fixpoint>,\
    loop(indvars,loop-deletion),loop-mssa(licm),simplifycfg)";

fn initialised() -> Result<(), String> {
    static INIT: OnceLock<Result<(), String>> = OnceLock::new();
    INIT.get_or_init(|| Target::initialize_native(&InitializationConfig::default())).clone()
}

/// The module of `text` after the pipeline, and LLVM's description of the machine.
fn optimised<'c>(ctx: &'c Context, text: &str, m: &Machine) -> Result<(Module<'c>, TargetMachine), String> {
    initialised()?;
    let buffer = MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "kernels");
    let module = ctx.create_module_from_ir(buffer).map_err(|e| e.to_string())?;
    let triple = TargetMachine::get_default_triple();
    let target = Target::from_triple(&triple).map_err(|e| e.to_string())?;
    let tm = target
        .create_target_machine(
            &triple,
            &m.cpu,
            &m.features,
            OptimizationLevel::Default,
            RelocMode::Static,
            CodeModel::JITDefault,
        )
        .ok_or("no target machine for this processor")?;
    module.set_triple(&triple);
    module.set_data_layout(&tm.get_target_data().get_data_layout());
    module.run_passes(PIPELINE, &tm, PassBuilderOptions::create()).map_err(|e| e.to_string())?;
    Ok((module, tm))
}

/// The assembly of `text`.
pub(super) fn assembly(text: &str, m: &Machine) -> Result<String, String> {
    let context = Context::create();
    let (module, machine) = optimised(&context, text, m)?;
    let out = machine.write_to_memory_buffer(&module, FileType::Assembly).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(out.as_slice()).trim_end_matches('\0').to_string())
}

/// The object file of `text`.
pub(super) fn object(text: &str, m: &Machine) -> Result<Vec<u8>, String> {
    let context = Context::create();
    let (module, machine) = optimised(&context, text, m)?;
    let out = machine.write_to_memory_buffer(&module, FileType::Object).map_err(|e| e.to_string())?;
    Ok(out.as_slice().to_vec())
}

/// LLVM's message, if there is an error.
fn check(error: LLVMErrorRef) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: it is an error, which this takes and ends; the message lives until it is disposed of.
    unsafe {
        let message = LLVMGetErrorMessage(error);
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(message);
        Err(text)
    }
}

/// Links an object file in memory and finds the functions `names`; `externs` are addresses of functions it calls.
pub(super) fn load(object: &[u8], names: &[String], externs: &[(&str, usize)]) -> Result<Code, String> {
    initialised()?;
    let named = |name: &str| CString::new(name).map_err(|e| e.to_string());
    let mut jit: LLVMOrcLLJITRef = std::ptr::null_mut();
    // SAFETY: without a builder all is as by default.
    check(unsafe { LLVMOrcCreateLLJIT(&mut jit, std::ptr::null_mut()) })?;
    let mut code = Code { jit, addresses: vec![] };
    // SAFETY: the linker lives; it owns the library.
    let library = unsafe { LLVMOrcLLJITGetMainJITDylib(jit) };
    let mut symbols = vec![];
    for (name, address) in externs {
        let name = named(name)?;
        symbols.push(LLVMOrcCSymbolMapPair {
            // SAFETY: the name is copied.
            Name: unsafe { LLVMOrcLLJITMangleAndIntern(jit, name.as_ptr()) },
            Sym: LLVMJITEvaluatedSymbol {
                Address: *address as u64,
                Flags: LLVMJITSymbolFlags { GenericFlags: EXPORTED | CALLABLE, TargetFlags: 0 },
            },
        });
    }
    // SAFETY: the pairs are copied, and the names with them. The library takes the definitions.
    check(unsafe { LLVMOrcJITDylibDefine(library, LLVMOrcAbsoluteSymbols(symbols.as_mut_ptr(), symbols.len())) })?;
    let buffer = MemoryBuffer::create_from_memory_range_copy(object, "kernels");
    let owned = buffer.as_mut_ptr();
    std::mem::forget(buffer);
    // SAFETY: the linker takes the buffer, also if it fails.
    check(unsafe { LLVMOrcLLJITAddObjectFile(jit, library, owned) })?;
    for name in names {
        let (name, mut address) = (named(name)?, 0);
        // SAFETY: the name lives during the call.
        check(unsafe { LLVMOrcLLJITLookup(jit, &mut address, name.as_ptr()) })?;
        code.addresses.push(usize::try_from(address).map_err(|e| e.to_string())?);
    }
    Ok(code)
}

/// `JITSymbolFlags` of LLVM.
const EXPORTED: u8 = 1;
const CALLABLE: u8 = 4;

/// The version of LLVM.
pub(super) fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: these are three numbers to write to.
    unsafe { inkwell::llvm_sys::core::LLVMGetVersion(&mut major, &mut minor, &mut patch) };
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_level_leaves_out_wider_vectors() {
        let has = |level, best, what: &str| target(level, best).1.split(',').any(|f| f == what);
        assert!(!has(Level::Portable, Level::Amx, "+avx2"));
        assert!(has(Level::Avx2, Level::Amx, "+avx2") && !has(Level::Avx2, Level::Amx, "+avx512f"));
        // Without a level below the best, all features of the processor are used, and its matrix unit where it may be.
        let all = without_unit(&TargetMachine::get_host_cpu_features().to_string());
        assert_eq!(without_unit(&target(Level::best(), Level::best()).1), all);
        assert_eq!(has(Level::best(), Level::best(), "+amx-bf16"), Level::best() == Level::Amx);
    }
}
