//! Schedules of the same kernels on different GPUs: what a description of a machine changes. Their PTX assembles for
//! the machine's target.
use kiln::{CompileOptions, Machine, Model, Target, compile, compile::CompiledCode};
use std::path::PathBuf;
use std::process::Command;

/// Kernels of every family of schedules.
const GRAPHS: &[&str] = &[
    "points(%x: f32[8192,4096], %b: f32[4096]) {\n %s = add %x, %b\n %y = gelu_tanh %s\n return %y\n}",
    "transpose(%x: bf16[4096,3000]) {\n %t = permute %x perm=[1,0]\n %y = relu %t\n return %y\n}",
    "short_rows(%x: f32[200000,96]) {\n %y = softmax %x axis=1\n return %y\n}",
    "long_rows(%x: f32[256,131072]) {\n %y = softmax %x axis=1\n return %y\n}",
    "norm(%x: bf16[8192,5120], %g: bf16[5120]) {\n %y = rms_norm %x, %g eps=1e-6\n return %y\n}",
    "few_sums(%x: f32[8,4000000]) {\n %y = reduce.sum %x axes=[1]\n return %y\n}",
    "columns(%x: f32[30000,1000]) {\n %y = reduce.sum %x axes=[0]\n return %y\n}",
    "many_columns(%x: bf16[512,100000]) {\n %y = reduce.max %x axes=[0]\n return %y\n}",
    "scan(%x: f32[32,1000000]) {\n %y = scan.sum %x axis=1\n return %y\n}",
    "column_scan(%x: f32[30000,2057]) {\n %y = scan.sum %x axis=0\n return %y\n}",
    "sums_by_index(%x: f32[10000,256], %i: i64[100000], %s: f32[100000,256]) {\n %r = reshape %i shape=[100000,1]\n \
     %b = broadcast %r shape=[100000,256]\n %y = scatter %x, %b, %s axis=0 mode=add\n return %y\n}",
];

fn assemble(name: &str, text: &str, target: Target) {
    let local = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.deps/ptxas/bin/ptxas"));
    let ptxas = std::env::var_os("PTXAS").map_or(local, PathBuf::from);
    let dir = tempfile::tempdir().expect("a folder");
    let (source, binary) = (dir.path().join("k.ptx"), dir.path().join("k.cubin"));
    std::fs::write(&source, text).expect("written");
    let arch = format!("-arch={target}");
    let out = Command::new(ptxas).args(["-v", &arch]).arg(&source).arg("-o").arg(&binary).output().expect("ptxas runs");
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && log.contains("0 bytes spill stores, 0 bytes spill loads"), "{name}: {log}");
}

#[test]
fn machines_have_schedules_of_their_own() {
    let mut text = String::new();
    let mut differ = 0;
    for graph in GRAPHS {
        let name = graph.split('(').next().unwrap_or_default();
        text += &format!("{name}\n");
        let model = Model::from_graph(format!("graph {graph}").parse().unwrap_or_else(|e| panic!("{e}\n{graph}")));
        let model = model.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut all = vec![];
        for machine in ["a100", "rtx4090", "h100", "h200"] {
            let machine: Machine = kiln_machine::machine(machine).expect("a description").clone();
            let target = match machine.arch {
                kiln_machine::Arch::Sm80 => Target::Sm80,
                kiln_machine::Arch::Sm89 => Target::Sm89,
                _ => Target::Sm90a,
            };
            let options = CompileOptions { target, machine: Some(machine.clone()), ..CompileOptions::default() };
            let compiled = compile(&model, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            let schedules: Vec<String> = (compiled.plan.kernels.iter())
                .map(|k| k.schedule.as_ref().map_or("none".into(), ToString::to_string))
                .collect();
            text += &format!("  {:8} {}\n", machine.name, schedules.join(" | "));
            all.push(schedules);
            let CompiledCode::Ptx(programs) = &compiled.code else { panic!("a GPU target gives PTX") };
            programs.iter().for_each(|p| assemble(name, &p.text, target));
        }
        differ += usize::from(all.iter().any(|s| *s != all[0]));
    }
    assert!(differ > 0, "machines differ in {differ} of {} kernels\n{text}", GRAPHS.len());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("machines", text));
}
