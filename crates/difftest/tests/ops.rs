//! Every op on every element type against libtorch's eager operators: by the interpreter, host code, and the block
//! programs for GPUs.
use kiln::{CompileOptions, DType, Model, Target, Tensor, Torch, compile::CompiledCode, compile::open_device};
use kiln::{compile::DeviceKind, facts, ptxas};
use kiln_difftest::near::{self, Wanted};
use kiln_difftest::{ops, ops::Case, pack::wanted, programs};
use kiln_interp::graph::no_fallback;
use std::sync::Mutex;

fn torch() -> Torch {
    Torch::load()
        .unwrap_or_else(|e| panic!("this test compares with libtorch: run scripts/setup and scripts/test\n{e}"))
}

/// Runs one of `parts` shares of the cases by `f`, compares with libtorch, and reports all failures together.
fn against_torch(f: impl Fn(&Case) -> Result<Vec<Tensor>, String> + Sync, part: usize, parts: usize) {
    let torch = torch();
    let cases = ops::cases().unwrap();
    assert!(cases.len() > 500, "{} cases", cases.len());
    let mut failures = vec![];
    for case in cases.iter().skip(part).step_by(parts) {
        let want = match wanted(&torch, case) {
            Ok(want) => want,
            Err(e) => {
                failures.push(format!("{}: no reference: {e}", case.name));
                continue;
            }
        };
        let checked = f(case).and_then(|got| {
            assert_eq!(got.len(), want.len(), "{}", case.name);
            let one = |(o, (g, w)): (usize, (&Tensor, &Wanted))| {
                near::check(case.near, g, w, false).map_err(|e| format!("output {o}, {e}"))
            };
            got.iter().zip(&want).enumerate().try_for_each(one)
        });
        if let Err(e) = checked {
            failures.push(format!("{}: {e}", case.name));
        }
    }
    assert!(failures.is_empty(), "{} of the cases fail\n{}", failures.len(), failures.join("\n"));
}

fn model(case: &Case) -> Result<Model, String> {
    Model::from_graph(case.graph.clone()).map_err(|e| e.to_string())
}
fn options(target: Target) -> CompileOptions {
    CompileOptions { target, ..CompileOptions::default() }
}

fn by_interpreter(case: &Case) -> Result<Vec<Tensor>, String> {
    kiln_interp::graph::run(&case.graph, &case.inputs, &[], &mut no_fallback).map_err(|e| e.to_string())
}
fn by_host_code(case: &Case) -> Result<Vec<Tensor>, String> {
    let device = open_device(DeviceKind::Cpu, Some(1)).map_err(|e| e.to_string())?;
    let compiled = kiln::compile(&model(case)?, &options(Target::Cpu)).map_err(|e| e.to_string())?;
    let session = compiled.session_in(&device).map_err(|e| e.to_string())?;
    session.run(&case.inputs).map_err(|e| e.to_string())
}
/// Cases without a GPU program, which the graph interpreter runs.
const NO_PROGRAMS: [&str; 8] = [
    "sin f64",
    "cos f64",
    "tan f64",
    "attention f64",
    "attention f64, row 2",
    "attention f64, row 3",
    "attention f64, row 4",
    "attention f64, row 5",
];

fn by_gpu_programs(case: &Case) -> Result<Vec<Tensor>, String> {
    let compiled = kiln::compile(&model(case)?, &options(Target::Sm90a)).map_err(|e| e.to_string())?;
    let (outputs, interpreted) = programs::run(&compiled, &case.inputs)?;
    let known = NO_PROGRAMS.contains(&case.name.as_str());
    match interpreted.is_empty() {
        true if known => Err("has a program: leave it out of NO_PROGRAMS".into()),
        false if !known => Err(format!("has no program: {}", interpreted.join(", "))),
        _ => Ok(outputs),
    }
}

#[test]
fn the_interpreter_is_libtorch() {
    against_torch(by_interpreter, 0, 1);
}
#[test]
fn host_code_is_libtorch_1() {
    against_torch(by_host_code, 0, 2);
}
#[test]
fn host_code_is_libtorch_2() {
    against_torch(by_host_code, 1, 2);
}
#[test]
fn gpu_programs_are_libtorch_1() {
    against_torch(by_gpu_programs, 0, 2);
}
#[test]
fn gpu_programs_are_libtorch_2() {
    against_torch(by_gpu_programs, 1, 2);
}

/// The PTX of every case must assemble for the architecture, without warnings.
fn assembles(target: Target, arch: &str) {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    let cases = ops::cases().unwrap();
    let (next, failures) = (Mutex::new(cases.iter()), Mutex::new(vec![]));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(case) = { next.lock().unwrap().next() } {
                    let compiled = kiln::compile(&model(case).unwrap(), &options(target)).unwrap();
                    let CompiledCode::Ptx(all) = &compiled.code else { panic!("{} has no PTX", case.name) };
                    // Programs that code generation does not support have no text.
                    for ptx in all.iter().filter(|p| !p.text.is_empty()) {
                        let assembled = facts::assemble(&ptxas, &ptx.text, arch);
                        let fine = assembled.as_ref().is_ok_and(|a| a.warnings.is_empty());
                        if !fine {
                            failures.lock().unwrap().push(format!("{}: {assembled:?}", case.name));
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
#[test]
fn ptx_assembles() {
    assembles(Target::Sm90a, "sm_90a");
}
#[test]
fn ptx_assembles_for_ada() {
    assembles(Target::Sm89, "sm_89");
}

/// Matmuls of f8 use the tensor-core instruction of their type, or that of f16 on targets without one for f8.
#[test]
fn matmuls_of_f8_assemble() {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    for d in DType::ALL.into_iter().filter(|d| d.is_f8()) {
        let text = format!("graph f8(%x: {d}[256,512], %w: {d}[384,512]) {{\n %y = linear %x, %w\n return %y\n}}");
        let name = &d.name()[2..];
        for (target, arch, matmul) in [
            (Target::Sm90a, "sm_90a", format!("k32.f32.{name}.{name}")),
            (Target::Sm80, "sm_80", "m16n8k16.row.col.f32.f16.f16.f32".into()),
        ] {
            let compiled = kiln::compile(&Model::from_graph(text.parse().unwrap()).unwrap(), &options(target)).unwrap();
            let CompiledCode::Ptx(all) = &compiled.code else { panic!("{d} has no PTX") };
            assert!(all.iter().any(|p| p.text.contains(&matmul)), "{d} on {arch} is multiplied otherwise");
            for ptx in all {
                let assembled = facts::assemble(&ptxas, &ptx.text, arch);
                assert!(assembled.as_ref().is_ok_and(|a| a.warnings.is_empty()), "{d}: {assembled:?}");
            }
        }
    }
}
