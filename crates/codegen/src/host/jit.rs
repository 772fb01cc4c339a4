//! From LLVM text to code in memory, for this machine's processor.
//!
//! Each module has a context of its own, so modules can be compiled in parallel. The pipeline is short, since the text
//! is already vectorised: promotion to registers, common subexpressions, loop-invariant code motion and cleanup.
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::execution_engine::ExecutionEngine;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine};
use kiln_cpu::Level;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

/// What the processor offers.
pub(super) struct Machine {
    pub cpu: String,
    pub features: String,
    /// f32 lanes of a vector register.
    pub lanes: usize,
    /// Conversions between f16 and f32 in hardware.
    pub f16c: bool,
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
        Machine { lanes, f16c: has("f16c"), cpu, features }
    })
}

/// LLVM's name of the processor and its features, for a level on a processor whose best level is given: the processor's
/// own, unless the level leaves out vectors that it has.
fn target(level: Level, best: Level) -> (String, String) {
    match level {
        Level::Portable if best > level => ("x86-64".into(), "+sse2".into()),
        Level::Avx2 if best > level => ("x86-64-v3".into(), "+avx2,+fma,+f16c".into()),
        // Generated code never uses the matrix unit.
        _ => (TargetMachine::get_host_cpu_name().to_string(), TargetMachine::get_host_cpu_features().to_string()),
    }
}

/// Compiled code with what keeps it alive.
pub(super) struct Code {
    engine: ManuallyDrop<ExecutionEngine<'static>>,
    context: ManuallyDrop<Box<Context>>,
    pub addresses: Vec<usize>,
}

// SAFETY: after compilation the engine and the context are not touched except to be dropped once, by the only owner;
// the code itself is immutable memory.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: dropped once, the engine (which holds the module) before its context.
        unsafe {
            ManuallyDrop::drop(&mut self.engine);
            ManuallyDrop::drop(&mut self.context);
        }
    }
}

const PIPELINE: &str = "function(sroa,early-cse,simplifycfg,instcombine<no-verify-fixpoint>,loop-mssa(loop-rotate,licm),\
    simplifycfg,early-cse<memssa>,instcombine<no-verify-fixpoint>,loop(indvars,loop-deletion),loop-mssa(licm),simplifycfg)";

/// The module of `text` after the pipeline, and the machine that it is for.
fn optimised<'c>(ctx: &'c Context, text: &str) -> Result<(Module<'c>, TargetMachine), String> {
    static INIT: OnceLock<Result<(), String>> = OnceLock::new();
    INIT.get_or_init(|| Target::initialize_native(&InitializationConfig::default())).clone()?;
    let buffer = MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "kernels");
    let module = ctx.create_module_from_ir(buffer).map_err(|e| e.to_string())?;
    let m = machine();
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

/// The assembly of `text` for this processor.
pub(super) fn assembly(text: &str) -> Result<String, String> {
    let context = Context::create();
    let (module, machine) = optimised(&context, text)?;
    let out = machine.write_to_memory_buffer(&module, FileType::Assembly).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(out.as_slice()).trim_end_matches('\0').to_string())
}

/// Compiles `text` and finds the functions `names`; `externs` are addresses of functions it calls.
pub(super) fn compile(text: &str, names: &[String], externs: &[(&str, usize)]) -> Result<Code, String> {
    let context = Box::new(Context::create());
    // SAFETY: the box outlives every use: `Code` drops the engine before the context.
    let ctx: &'static Context = unsafe { &*(&*context as *const Context) };
    let module = optimised(ctx, text)?.0;
    let engine = module.create_jit_execution_engine(OptimizationLevel::Default).map_err(|e| e.to_string())?;
    for (name, address) in externs {
        if let Some(f) = module.get_function(name) {
            engine.add_global_mapping(&f, *address);
        }
    }
    let addresses =
        names.iter().map(|n| engine.get_function_address(n).map_err(|e| e.to_string())).collect::<Result<_, _>>();
    let (engine, context) = (ManuallyDrop::new(engine), ManuallyDrop::new(context));
    drop(module);
    let mut code = Code { engine, context, addresses: vec![] };
    code.addresses = addresses?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_level_leaves_out_wider_vectors() {
        let has = |level, best, what: &str| target(level, best).1.split(',').any(|f| f == what);
        assert!(!has(Level::Portable, Level::Amx, "+avx2"));
        assert!(has(Level::Avx2, Level::Amx, "+avx2") && !has(Level::Avx2, Level::Amx, "+avx512f"));
        // Without a level below the best, all features of the processor are used.
        assert_eq!(target(Level::best(), Level::best()).1, TargetMachine::get_host_cpu_features().to_string());
    }
}
