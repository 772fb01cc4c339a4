//! Archives of torch.export in functional form and in core ATen: what they compute is what PyTorch computed; others are
//! refused.
mod files;

use kiln_aten::{ParamData, Specialised};
use kiln_graph::{DType, Tensor, Type};
use std::{
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

/// The graph of an archive for these sizes and inputs, with its parameters; or what is wrong.
fn import(name: &str, sizes: &[(&str, i64)], inputs: &[Type]) -> Result<(Specialised, Vec<Tensor>), String> {
    let sizes = sizes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let exported = kiln_pt2::open(&at(name)).map_err(|e| e.to_string())?;
    let sizes = exported.program.sizes(&sizes, inputs).map_err(|e| e.to_string())?;
    let made = exported.program.specialise(&sizes).map_err(|e| e.to_string())?;
    let data = |p: &ParamData| match p {
        ParamData::Made(t) => t.clone(),
        ParamData::Raw(index) => exported.params[*index].clone(),
    };
    let params = made.params.iter().map(data).collect();
    Ok((made, params))
}

/// Results of the program for these sizes, against those that PyTorch stored as `data`.
fn check(archive: &str, data: &str, sizes: &[(&str, i64)]) {
    let (made, params) = import(archive, sizes, &[]).unwrap_or_else(|e| panic!("{archive}: {e}"));
    let (inputs, wanted) = (tensors(data, "in"), tensors(data, "out"));
    assert_eq!(made.graph.inputs.len(), inputs.len(), "{archive}:\n{}", made.graph);
    let results = kiln_interp::graph::run(&made.graph, &inputs, &params, &mut kiln_interp::graph::no_fallback)
        .unwrap_or_else(|e| panic!("{archive}: {e}\n{}", made.graph));
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
    let program = kiln_pt2::open(&at("sizes.pt2")).expect("read").program;
    let known = program.traced_sizes();
    let (symbol, size) = known.first_key_value().expect("a symbol");
    assert_eq!((known.len(), *size), (1, 6));
    check("sizes.pt2", "sizes9", &[(symbol, 9)]);
    check("sizes.pt2", "sizes9", &[("x.0", 9)]);
    let (by_inputs, _) = import("sizes.pt2", &[], &[Type::new(DType::F32, [9, 3])]).expect("read");
    assert_eq!(by_inputs.graph.ty(by_inputs.graph.inputs[0]).shape, [9, 3]);
    let refused = |sizes: &[(&str, i64)]| import("sizes.pt2", sizes, &[]).expect_err("a bad size");
    assert!(refused(&[(symbol, 65)]).contains("(x.0) cannot be 65: the program was exported for 4 to 64"));
    assert!(refused(&[("rows", 9)]).contains("no dimension `rows`"));
}

/// A branch on a size, which export followed, leaves a guard: it is evaluated for other sizes.
#[test]
fn a_branch_on_a_size_holds_where_its_guard_does() {
    check("branch.pt2", "branch", &[]);
    check("branch.pt2", "branch8", &[("x.0", 8)]);
    let e = import("branch.pt2", &[], &[Type::new(DType::F32, [7, 3])]).expect_err("an odd size");
    assert!(e.contains("% 2") && e.contains("which these sizes do not meet") && e.contains("export again"), "{e}");
}

#[test]
fn composites_stay_whole_and_ops_know_their_lines() {
    let graph = import("attention.pt2", &[], &[]).expect("read").0.graph.to_string();
    for op in ["layer_norm", "attention", "linear"] {
        assert!(graph.contains(&format!("= {op} ")), "no {op} in\n{graph}");
    }
    assert!(graph.contains("programs.py:"), "{graph}");
    assert!(graph.contains("qkv"), "{graph}");
}

/// The form of plain `torch.export.export`, whose operators change tensors in place.
#[test]
fn programs_in_training_form_compute_what_pytorch_computes() {
    check("in_place.pt2", "convolutions", &[]);
    check("slices.pt2", "slices", &[]);
}

/// Parts under `torch.no_grad` and without autocast are regions that a node calls. Autocast's casts are not in an
/// archive.
#[test]
fn regions_are_part_of_the_program() {
    check("regions.pt2", "regions", &[]);
    check("regions.pt2", "regions9", &[("x.0", 9)]);
    let e = import("autocast.pt2", &[], &[]).expect_err("autocast");
    assert!(e.contains("under `torch.autocast`") && e.contains("run_decompositions({})"), "{e}");
}

#[test]
fn other_files_are_refused_with_a_remedy() {
    let refused = |name: &str| import(name, &[], &[]).expect_err(name);
    let other = refused("attention.safetensors");
    assert!(other.contains("is not a .pt2 archive") && other.contains("torch.export.save"), "{other}");
    assert!(refused("nothing.pt2").contains("cannot open"));
}

/// A buffer that is written is an input of the graph, and what it then holds is an output.
#[test]
fn a_buffer_that_is_written_is_state() {
    for name in ["counter.pt2", "counter_in_place.pt2"] {
        let (made, params) = import(name, &[], &[]).expect("read");
        assert_eq!((made.states.len(), made.graph.inputs.len(), made.graph.outputs.len()), (1, 2, 2), "{name}");
        assert_eq!(made.writes, [kiln_aten::Written { input: 1, output: 1 }]);
        let state = kiln_pt2::open(&at(name)).expect("read").params[made.states[0]].clone();
        let x = Tensor::from_f64(made.graph.ty(made.graph.inputs[0]).clone(), [1.0, 2.0, 3.0]);
        let out = kiln_interp::graph::run(&made.graph, &[x, state], &params, &mut kiln_interp::graph::no_fallback);
        let out: Vec<Vec<f64>> = out.expect("runs").iter().map(Tensor::to_f64_vec).collect();
        assert_eq!(out, [vec![2.0, 3.0, 4.0], vec![1.0]], "{name}");
    }
}
