//! LLVM's optimiser and back end.
use super::emit::{Fail, Res};
use super::{small_integers, widen};
use inkwell::OptimizationLevel;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetMachineOptions, TargetTriple,
};
use kiln_machine::Arch;
use std::sync::Once;

/// The target machine of an architecture. PTX 8.1 is the oldest version that has all that is used of `sm_90a`.
pub(super) fn machine(arch: Arch) -> Res<TargetMachine> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Target::initialize_nvptx(&InitializationConfig::default()));
    let triple = TargetTriple::create("nvptx64-nvidia-cuda");
    let target = Target::from_triple(&triple).map_err(|e| Fail::Llvm(e.to_string()))?;
    let options = TargetMachineOptions::new()
        .set_cpu(arch.name())
        .set_features("+ptx81")
        .set_level(OptimizationLevel::Aggressive)
        .set_reloc_mode(RelocMode::Default)
        .set_code_model(CodeModel::Default);
    target
        .create_target_machine_from_options(&triple, options)
        .ok_or_else(|| Fail::Llvm(format!("this LLVM has no back end for {}", arch.name())))
}

/// The passes that a kernel needs: its loops are already written out, so there is no vectoriser and no unrolling.
const PASSES: &str = "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,reassociate,gvn,\
                      loop-mssa(licm),separate-const-offset-from-gep,early-cse,instcombine<no-verify-fixpoint>,\
                      simplifycfg,sink,adce)";

/// Optimises the module and prints PTX.
pub(super) fn to_ptx(module: &Module, arch: Arch) -> Res<String> {
    let machine = machine(arch)?;
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    module.verify().map_err(|e| Fail::Llvm(e.to_string()))?;
    let options = PassBuilderOptions::create();
    module.run_passes(PASSES, &machine, options).map_err(|e| Fail::Llvm(e.to_string()))?;
    widen::run(module)?;
    small_integers::run(module)?;
    let text = machine.write_to_memory_buffer(module, FileType::Assembly).map_err(|e| Fail::Llvm(e.to_string()))?;
    Ok(String::from_utf8_lossy(text.as_slice()).trim_end_matches('\0').to_string())
}
