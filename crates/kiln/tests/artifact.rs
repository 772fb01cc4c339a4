//! Modified artifacts are refused: by digests, and, where the digests were recomputed, by checking the plan against the
//! graph.
use kiln::{CompileOptions, Error, Model, artifact, compile};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    path::{Path, PathBuf},
};

pub(crate) type Parts = Vec<(String, Vec<u8>)>;

fn compiled(folder: &Path) -> PathBuf {
    let text = "graph g(%0: f32[4,8]) {\n  @w: f32[8] = fill(2)\n  %2 = exp %0\n  %3 = mul %2, @w\n  return %3\n}";
    let model = Model::from_graph(text.parse().expect("a graph")).expect("a model");
    let path = folder.join("g.kiln");
    artifact::write(&path, &compile(&model, &CompileOptions::default()).expect("compiles"), &model).expect("written");
    path
}
pub(crate) fn parts(path: &Path) -> Parts {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).expect("there")).expect("a zip");
    let mut all = vec![];
    for i in 0..zip.len() {
        let mut file = zip.by_index(i).expect("a part");
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).expect("read");
        all.push((file.name().to_string(), bytes));
    }
    all
}
pub(crate) fn write(path: &Path, parts: &Parts) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).expect("created"));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in parts {
        zip.start_file(name, stored).expect("started");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("finished");
}
/// The text of a part with something replaced.
pub(crate) fn change(parts: &mut Parts, name: &str, from: &str, to: &str) {
    let part = parts.iter_mut().find(|p| p.0 == format!("kiln/{name}")).expect("the part");
    let text = String::from_utf8(part.1.clone()).expect("text");
    assert!(text.contains(from), "no `{from}` in {name}:\n{text}");
    part.1 = text.replace(from, to).into_bytes();
}
/// Recomputes the digests, as an attacker would.
pub(crate) fn sign(parts: &mut Parts) {
    let digest = |b: &[u8]| Sha256::digest(b).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let digests: BTreeMap<&str, String> =
        parts.iter().map(|(n, b)| (n.strip_prefix("kiln/").expect("a name"), digest(b))).collect();
    let text = serde_json::to_vec(&digests).expect("JSON");
    parts.iter_mut().find(|p| p.0 == "kiln/digests.json").expect("digests").1 = text;
}
pub(crate) fn refusal(path: &Path) -> String {
    match artifact::open(path, &CompileOptions::default()) {
        Err(e @ Error::Failed { .. }) => e.to_string(),
        Err(e) => panic!("another error: {e}"),
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

#[test]
fn every_part_that_was_changed_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = compiled(dir.path());
    let whole = parts(&path);
    assert!(artifact::open(&path, &CompileOptions::default()).is_ok());
    for (name, from, to) in
        [("graph.json", "exp", "log"), ("plan.txt", "exp", "log"), ("meta.json", "\"fuse\": true", "\"fuse\": false")]
    {
        let mut changed = whole.clone();
        change(&mut changed, name, from, to);
        write(&path, &changed);
        let said = refusal(&path);
        assert!(said.contains(name) && said.contains("its digest does not match"), "{said}");
        assert!(!said.contains('\n'), "{said}");
    }
    let mut without = whole.clone();
    without.retain(|p| p.0 != "kiln/digests.json");
    write(&path, &without);
    assert!(refusal(&path).contains("digests.json is missing"));
}

#[test]
fn weights_have_a_digest() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "graph g(%0: f32[2]) {\n  @w: f32[2]\n  %2 = add %0, @w\n  return %2\n}";
    let model = Model::from_graph(text.parse().expect("a graph")).expect("a model");
    let path = dir.path().join("w.kiln");
    artifact::write(&path, &compile(&model, &CompileOptions::default()).expect("compiles"), &model).expect("written");
    let mut all = parts(&path);
    let weights = all.iter_mut().find(|p| p.0 == "kiln/params/0").expect("weights");
    weights.1[0] ^= 1;
    write(&path, &all);
    let said = refusal(&path);
    assert!(said.contains("params/0") && said.contains("digest"), "{said}");
}

/// An artifact's own plan is used only with the numerics and the machine it was compiled with.
#[test]
fn an_artifact_is_what_was_compiled_or_planned_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "graph g(%0: bf16[4,8]) {\n  %1 = exp %0\n  %2 = mul %1, %1\n  return %2\n}";
    let model = Model::from_graph(text.parse().expect("a graph")).expect("a model");
    let path = dir.path().join("g.kiln");
    let mut machine = kiln::Target::Cpu.machine().clone();
    machine.device = "another".into();
    let exact =
        CompileOptions { contract: kiln::Numerics::Exact.into(), machine: Some(machine), ..CompileOptions::default() };
    artifact::write(&path, &compile(&model, &exact).expect("compiles"), &model).expect("written");
    let made = artifact::options(&path).expect("an artifact's options");
    assert_eq!((made.contract, &made.machine), (exact.contract, &exact.machine));
    let rounds_each = |o: &CompileOptions| {
        let (_, c) = artifact::open(&path, o).expect("opens");
        c.plan.kernels.iter().all(|k| k.rounding == kiln_plan::Rounding::PerOp)
    };
    assert!(rounds_each(&made));
    assert!(!rounds_each(&CompileOptions { contract: kiln::Contract::default(), ..made }));
}

/// Whoever changes a part can recompute its digest, so the plan is also checked against the graph.
#[test]
fn a_plan_of_another_graph_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = compiled(dir.path());
    let whole = parts(&path);
    for (name, from, to) in [
        // A larger output, input or weight than the graph has.
        ("plan.txt", "f32[4,8]", "f32[400,8]"),
        ("graph.json", "[4,8]", "[2,8]"),
        ("plan.txt", "f32[8]", "f32[80]"),
        ("meta.json", "\"guards\": []", "\"guards\": [[0, {\"int\": 1}]]"),
    ] {
        let mut changed = whole.clone();
        change(&mut changed, name, from, to);
        sign(&mut changed);
        write(&path, &changed);
        let said = refusal(&path);
        assert!(said.contains("is not a usable artifact"), "{name}, {from} as {to}: {said}");
    }
}

/// The archive path in an artifact is untrusted.
#[test]
fn the_archive_an_artifact_names_is_not_opened() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = compiled(dir.path());
    let mut all = parts(&path);
    let trap = dir.path().join("trap.pt");
    change(&mut all, "meta.json", "\"archive\": null", &format!("\"archive\": {:?}", trap.display().to_string()));
    sign(&mut all);
    write(&path, &all);
    let model = artifact::read(&path).expect("opens").model;
    assert_eq!((model.archive, model.compiled_from), (None, Some(trap.display().to_string())));
}
