//! How archives lie in their files: weights are mapped where they can be, and files that lie or are cut are refused.
use crate::at;
#[path = "../../aten/tests/mutate.rs"]
mod mutate;

use kiln_aten::Problem;
use kiln_graph::{Random, Tensor};
use mutate::{Words, cases, mutate, recording};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// An archive's entries by name.
fn entries(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut zip = ZipArchive::new(File::open(path).expect("written")).expect("a zip");
    let count = zip.len();
    let read = |i| {
        let mut entry = zip.by_index(i).expect("an entry");
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).expect("stored");
        (entry.name().to_string(), bytes)
    };
    (0..count).map(read).collect()
}

/// Writes entries at multiples of `align` bytes.
fn write(path: &Path, entries: &[(String, Vec<u8>)], align: u16) {
    let mut zip = ZipWriter::new(File::create(path).expect("a file"));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).with_alignment(align);
    for (name, bytes) in entries {
        zip.start_file(name, options).expect("a new entry");
        zip.write_all(bytes).expect("room");
    }
    zip.finish().expect("room");
}

fn params(path: &Path) -> Vec<(String, Tensor)> {
    let exported = kiln_pt2::open(path).expect("read");
    let names = exported.program.params.iter().map(|id| exported.program.values[*id].name.clone().unwrap_or_default());
    names.zip(exported.params).collect()
}

#[test]
fn weights_lie_in_the_mapped_file() {
    let (file, mut views) = (at("tied.pt2"), 0);
    for (name, t) in params(&file) {
        // A transposed view of its storage.
        let strided = name == "mixed";
        views += usize::from(strided);
        assert_eq!(t.is_foreign(), !strided, "{name}");
        assert!(strided || t.bytes().as_ptr().addr().is_multiple_of(64), "{name}");
    }
    assert_eq!(views, 1, "the transposed weight");
}

#[test]
fn weights_that_are_not_aligned_are_copied() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, moved) = (at("tied.pt2"), dir.path().join("moved.pt2"));
    let all = entries(&file);
    // One more byte in an entry before them moves the others.
    let mut found = false;
    for extra in 0..4 {
        let mut all = all.clone();
        all.insert(0, ("tied/extra/padding".into(), vec![0; extra]));
        write(&moved, &all, 1);
        for ((name, t), (_, want)) in params(&moved).iter().zip(params(&file)) {
            assert_eq!(*t, want, "{name}, {extra} bytes on");
            found |= !t.is_foreign() && want.is_foreign();
        }
    }
    assert!(found, "no weight was out of line");
}

/// Tensors keep the file mapped: another one that takes its place changes nothing.
#[test]
fn a_file_may_be_replaced_while_its_weights_are_in_use() {
    let dir = tempfile::tempdir().expect("a folder");
    let (one, other) = (dir.path().join("one.pt2"), dir.path().join("other.pt2"));
    let all = entries(&at("tied.pt2"));
    write(&one, &all, 64);
    let read = params(&one);
    let before: Vec<Vec<f64>> = read.iter().map(|(_, t)| t.to_f64_vec()).collect();
    let zeroed = |(name, bytes): &(String, Vec<u8>)| match name.contains("/weight_") {
        true => (name.clone(), vec![0; bytes.len()]),
        false => (name.clone(), bytes.clone()),
    };
    write(&other, &all.iter().map(zeroed).collect::<Vec<_>>(), 64);
    std::fs::rename(&other, &one).expect("renamed");
    assert!(read.iter().map(|(_, t)| t.to_f64_vec()).eq(before.clone()));
    assert!(!params(&one).iter().map(|(_, t)| t.to_f64_vec()).eq(before));
}

#[test]
fn pickled_weights_are_refused_with_a_remedy() {
    let mut all = entries(&at("tied.pt2"));
    for (name, _) in &mut all {
        *name = name.replace("/model_weights_config.json", "/model.pt");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("pickled.pt2");
    write(&path, &all, 1);
    let why = kiln_pt2::open(&path).expect_err("pickled").to_string();
    assert!(why.contains("pickled file") && why.contains("2.9 or later"), "{why}");
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let cut = dir.path().join("cut.pt2");
    let bytes = std::fs::read(at("tied.pt2")).expect("written");
    for keep in [0, 100, bytes.len() / 2, bytes.len() - 10] {
        std::fs::write(&cut, &bytes[..keep]).expect("room");
        let e = kiln_pt2::open(&cut).expect_err("cut").to_string();
        assert!(e.contains("is not a .pt2 archive"), "{keep} bytes: {e}");
    }
}

/// Whether an archive gives a graph; if not, whether its program could be read.
fn graph(path: &Path) -> Result<(), bool> {
    let exported = kiln_pt2::open(path).map_err(|_| false)?;
    let sizes = exported.program.sizes(&Default::default(), &[]).map_err(|_: Problem| false)?;
    exported.program.specialise(&sizes).map(drop).map_err(|_| true)
}

/// Archives whose JSON was edited are read or refused, and never panic. `KILN_CASES=100000` runs long.
#[test]
fn archives_that_lie_are_read_or_refused() {
    let words = Words {
        texts: [
            "x",
            "weight_0",
            "torch.ops.aten.add.Tensor",
            "torch.ops.aten.slice.Tensor",
            "Symbol('u0')",
            "",
            "../../etc",
        ]
        .map(str::to_string)
        .to_vec(),
        objects: vec![
            json!({"as_none": true}),
            json!({"as_tensor": {"name": "x"}}),
            json!({"as_tensors": []}),
            json!({"as_int": -1}),
            json!({"as_int": i64::MIN}),
            json!({"as_ints": [0, 0, i64::MAX]}),
            json!({"as_float": "NaN"}),
            json!({"as_bool": true}),
            json!({"as_sym_int": {"as_int": 1i64 << 40}}),
            json!({"as_expr": {"expr_str": "Mul(Integer(4611686018427387904), Symbol('s0'))", "hint": {"as_int": 0}}}),
            json!({"as_expr": {"expr_str": "Pow(Symbol('s0'), Symbol('s0'))", "hint": null}}),
        ],
    };
    let programs = ["attention", "convolutions.core", "tied", "sizes", "in_place", "slices", "branch", "counter"];
    let originals = programs.map(|name| entries(&at(&format!("{name}.pt2"))));
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("lies.pt2");
    let total = cases(1500);
    let (read, refused) = recording(|panics| {
        let (mut read, mut refused) = (0, 0);
        for seed in 0..total as u64 {
            let mut random = Random::new(seed);
            let which = random.next_below(programs.len());
            let mut all = originals[which].clone();
            let edited = if random.next_below(4) == 0 { "_weights_config.json" } else { "models/model.json" };
            let mut text = String::new();
            for (_, bytes) in all.iter_mut().filter(|(name, _)| name.ends_with(edited)) {
                let mut document: Value = serde_json::from_slice(bytes).expect("JSON");
                strip(&mut document);
                for _ in 0..=random.next_below(3) {
                    mutate(&mut document, &mut random, &words);
                }
                text = document.to_string();
                *bytes = text.clone().into_bytes();
            }
            write(&file, &all, 64);
            match panics.catch(|| format!("{} with {text}", programs[which]), || graph(&file)) {
                Some(Ok(())) => read += 1,
                Some(Err(true)) => refused += 1,
                _ => {}
            }
        }
        (read, refused)
    });
    // Most edits must leave a program that is read.
    assert!(read > total / 10 && refused > total / 50, "{read} read and {refused} refused of {total}");
}

/// Takes away what is not read, which would take most of the edits.
fn strip(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Object(fields) => {
            for name in ["metadata", "module_call_graph", "verifiers", "torch_version", "treespec_namedtuple_fields"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(strip);
        }
        _ => {}
    }
}
