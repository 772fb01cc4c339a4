//! Artifacts with machine code: it is used only on request, and only for PTX that is generated again as it was.
use crate::artifact::{Parts, change, parts, sign, write};
use kiln::{CompileOptions, Compiled, Error, Model, Target, artifact, compile};
use kiln_plan::exec::Work;
use kiln_runtime::{Code, Cubin};
use std::path::{Path, PathBuf};

/// With one kernel for each of its two outputs, as they differ in size.
const TEXT: &str =
    "graph g(%0: f32[64,96], %1: f32[500]) {\n  %2 = softmax %0 axis=1\n  %3 = exp %1\n  return %2, %3\n}";

fn options(target: Target) -> CompileOptions {
    CompileOptions { target, ..CompileOptions::default() }
}
fn assembled(folder: &Path, target: Target) -> PathBuf {
    let model = Model::from_graph(TEXT.parse().expect("a graph")).expect("a model");
    let mut compiled = compile(&model, &options(target)).expect("compiles");
    assert!(cubins(&compiled).iter().all(Option::is_none));
    compiled.assemble().expect("scripts/setup has installed ptxas");
    let path = folder.join("m.kiln");
    artifact::write(&path, &compiled, &model).expect("written");
    path
}
/// The machine code of every launch.
fn cubins(compiled: &Compiled) -> Vec<Option<Cubin>> {
    let exe = compiled.executable();
    let code = |w: &Work<Code>| match w {
        Work::Block { code: Code::Ptx(p), .. } => Some(p.cubin.clone()),
        _ => None,
    };
    let all: Vec<_> = exe.kernels.iter().flat_map(|k| &k.steps.steps).filter_map(code).collect();
    assert!(all.len() >= 2, "{} launches", all.len());
    all
}
fn opened(path: &Path, machine_code: bool) -> Result<Vec<Option<Cubin>>, Error> {
    let made = artifact::options(path)?;
    artifact::open(path, &CompileOptions { machine_code, ..made }).map(|(_, compiled)| cubins(&compiled))
}

#[test]
fn machine_code_is_used_on_request_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    for (target, capability) in [(Target::Sm90a, (9, 0)), (Target::Sm80, (8, 0))] {
        let path = assembled(dir.path(), target);
        let stored: Parts = parts(&path).into_iter().filter(|p| p.0.starts_with("kiln/cubin/")).collect();
        assert!(
            stored.len() >= 2 && stored.iter().all(|(name, b)| name.ends_with(".cubin") && b.starts_with(b"\x7fELF"))
        );
        assert!(opened(&path, false).expect("opens").iter().all(Option::is_none));
        for cubin in opened(&path, true).expect("opens") {
            let cubin = cubin.expect("every program has machine code");
            assert_eq!(cubin.capability, capability);
            assert!(stored.iter().any(|(_, bytes)| bytes[..] == cubin.bytes[..]));
        }
    }
}

/// What another version of Kiln made of other PTX is left out.
#[test]
fn machine_code_of_other_ptx_is_left_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = assembled(dir.path(), Target::Sm90a);
    let mut all = parts(&path);
    let meta = String::from_utf8(all.iter().find(|p| p.0 == "kiln/meta.json").expect("meta").1.clone()).expect("text");
    let digest = meta.split_once("\"ptx\": {").and_then(|t| t.1.split('"').nth(3)).expect("a digest");
    change(&mut all, "meta.json", digest, &digest.chars().rev().collect::<String>());
    sign(&mut all);
    write(&path, &all);
    let found = opened(&path, true).expect("opens");
    assert_eq!(found.iter().filter(|c| c.is_none()).count(), 1, "{}", found.len());
}

#[test]
fn changed_machine_code_and_another_architecture_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = assembled(dir.path(), Target::Sm90a);
    let whole = parts(&path);
    let said = |all: &Parts| {
        write(&path, all);
        opened(&path, true).expect_err("refused").to_string()
    };
    let mut all = whole.clone();
    let cubin = all.iter_mut().find(|p| p.0.starts_with("kiln/cubin/")).expect("machine code");
    cubin.1[100] ^= 1;
    let changed = said(&all);
    assert!(changed.contains(".cubin was changed"), "{changed}");
    let mut all = whole;
    change(&mut all, "meta.json", "\"arch\": \"sm_90a\"", "\"arch\": \"sm_80\"");
    sign(&mut all);
    let other = said(&all);
    assert!(other.contains("its machine code is for `sm_80`"), "{other}");
}

#[test]
fn the_cpu_has_no_machine_code_to_assemble() {
    let model = Model::from_graph(TEXT.parse().expect("a graph")).expect("a model");
    let mut compiled = compile(&model, &options(Target::Cpu)).expect("compiles");
    let e = compiled.assemble().expect_err("a CPU");
    assert!(e.exit_status() == 2 && e.help().contains("sm_90a"), "{e}");
}
