//! Archives of torch.export in functional form and in core ATen: what they compute is what PyTorch computed; others are refused.
use kiln_graph::{DType, Tensor, Type};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// The programs of `programs.py`, written once.
static PROGRAMS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut call = Command::new(root.join("../../.deps/venv/bin/python"));
    let run =
        call.arg(root.join("tests/programs.py")).arg(dir.path()).output().expect("scripts/setup has made .deps/venv");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    dir
});

fn at(name: &str) -> PathBuf {
    PROGRAMS.path().join(name)
}

fn tensors(name: &str, kind: &str) -> Vec<Tensor> {
    let bytes = std::fs::read(at(&format!("{name}.safetensors"))).expect("written");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let read = |i: usize| {
        let view = file.tensor(&format!("{kind}{i}")).ok()?;
        let dtype = if view.dtype() == safetensors::Dtype::I64 { DType::I64 } else { DType::F32 };
        Tensor::from_bytes(Type::new(dtype, view.shape()), view.data())
    };
    (0..).map_while(read).collect()
}

/// Results of the program for these sizes, against those that PyTorch stored as `data`.
fn check(archive: &str, data: &str, sizes: &[(&str, i64)]) {
    let sizes: BTreeMap<String, i64> = sizes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let program = kiln_pt2::import(&at(archive), &sizes, &[]).unwrap_or_else(|e| panic!("{archive}: {e}"));
    let (inputs, wanted) = (tensors(data, "in"), tensors(data, "out"));
    assert_eq!(program.inputs.len(), inputs.len(), "{archive}: {:?}", program.inputs);
    let results =
        kiln_interp::graph::run(&program.graph, &inputs, &program.params, &mut kiln_interp::graph::no_fallback)
            .unwrap_or_else(|e| panic!("{archive}: {e}\n{}", program.graph));
    assert_eq!(results.len(), wanted.len(), "{archive}");
    for (got, want) in results.iter().zip(&wanted) {
        assert_eq!(got.ty, want.ty, "{archive}");
        for (g, w) in got.to_f64_vec().iter().zip(want.to_f64_vec()) {
            assert!((g - w).abs() <= 1e-5 * (1.0 + w.abs()), "{archive}: {g}, PyTorch has {w}");
        }
    }
}

#[test]
fn functional_programs_compute_what_pytorch_computes() {
    for name in ["attention", "convolutions", "tied", "sizes"] {
        check(&format!("{name}.pt2"), name, &[]);
    }
}

#[test]
fn programs_in_core_aten_compute_what_pytorch_computes() {
    for name in ["convolutions", "tied", "sizes"] {
        check(&format!("{name}.core.pt2"), name, &[]);
    }
}

#[test]
fn sizes_are_bound_within_their_range() {
    let known = kiln_pt2::import(&at("sizes.pt2"), &BTreeMap::new(), &[]).expect("read").symbols;
    let (symbol, size) = known.first_key_value().expect("a symbol");
    assert_eq!((known.len(), *size), (1, 6));
    check("sizes.pt2", "sizes9", &[(symbol, 9)]);
    let by_inputs =
        kiln_pt2::import(&at("sizes.pt2"), &BTreeMap::new(), &[Type::new(DType::F32, [9, 3])]).expect("read");
    assert_eq!(by_inputs.symbols[symbol], 9);
    let refused = |sizes: &[(&str, i64)]| {
        let sizes = sizes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        kiln_pt2::import(&at("sizes.pt2"), &sizes, &[]).expect_err("a bad size").to_string()
    };
    assert!(refused(&[(symbol, 65)]).contains("cannot be 65: it was exported for 4 to 64"));
    assert!(refused(&[("rows", 9)]).contains("no dimension `rows`"));
}

/// A guard beyond the types of inputs keeps a program to the sizes that it was exported for.
#[test]
fn a_branch_on_a_size_holds_at_export_alone() {
    let at_size = |n| kiln_pt2::import(&at("branch.pt2"), &BTreeMap::new(), &[Type::new(DType::F32, [n, 3])]);
    assert!(at_size(6).is_ok());
    for n in [7, 8] {
        let e = at_size(n).expect_err("another size").to_string();
        assert!(e.contains("% 2") && e.contains("export again for these sizes"), "{e}");
    }
}

#[test]
fn composites_stay_whole_and_ops_know_their_lines() {
    let graph = kiln_pt2::import(&at("attention.pt2"), &BTreeMap::new(), &[]).expect("read").graph.to_string();
    for op in ["layer_norm", "attention", "linear"] {
        assert!(graph.contains(&format!("= {op} ")), "no {op} in\n{graph}");
    }
    assert!(graph.contains("programs.py:"), "{graph}");
    assert!(graph.contains("qkv"), "{graph}");
}

#[test]
fn what_is_not_functional_is_refused_with_a_remedy() {
    let refused = |name: &str| kiln_pt2::import(&at(name), &BTreeMap::new(), &[]).expect_err(name).to_string();
    let in_place = refused("in_place.pt2");
    assert!(
        in_place.contains("changes a tensor in place") && in_place.contains("run_decompositions({})"),
        "{in_place}"
    );
    assert_eq!(in_place.matches("help:").count(), 1, "one problem alone: {in_place}");
    let state = refused("counter.pt2");
    assert!(state.contains("writes its buffer `count`"), "{state}");
    let other = refused("attention.safetensors");
    assert!(other.contains("is not a .pt2 archive") && other.contains("torch.export.save"), "{other}");
    assert!(refused("nothing.pt2").contains("cannot open"));
}
