//! Every graph in `graphs/` parses, verifies, round-trips, and computes the same with composites whole and decomposed.
use kiln_graph::{DType, Graph, Tensor, decompose, random_params, random_tensor, text};
use kiln_interp::graph::{Precision, no_fallback, run, run_with};

fn seeds() -> Vec<(String, Graph)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    assert!(files.len() >= 28, "{} graphs in {folder}", files.len());
    let parse = |f: &std::path::PathBuf| {
        let name = f.file_stem().unwrap().to_string_lossy().to_string();
        let g = text::parse(&std::fs::read_to_string(f).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", f.display()));
        assert_eq!(g.name, name, "a graph has the name of its file");
        (name, g)
    };
    files.iter().map(parse).collect()
}

fn inputs(g: &Graph) -> Vec<Tensor> {
    let input = |(i, v): (usize, &kiln_graph::ValueId)| {
        let ty = g.ty(*v).clone();
        let scale = if ty.dtype.is_int() { 100.0 } else { 1.0 };
        random_tensor(ty, i as u64, scale)
    };
    g.inputs.iter().enumerate().map(input).collect()
}

/// Error of `x` against `y`, relative if `|y| > 1`; infinite if exactly one is NaN, since `max` would drop a NaN.
fn off(x: f64, y: f64) -> f64 {
    let off = (x - y).abs() / y.abs().max(1.0);
    if x == y || (x.is_nan() && y.is_nan()) {
        0.0
    } else if off.is_nan() {
        f64::INFINITY
    } else {
        off
    }
}

#[test]
fn round_trip() {
    for (name, g) in seeds() {
        let printed = text::print(&g);
        assert_eq!(text::parse(&printed).unwrap_or_else(|e| panic!("{name}: {e}\n{printed}")), g, "{name}");
        assert_eq!(Graph::from_json(&g.to_json().unwrap()).unwrap(), g, "{name}");
    }
}

#[test]
fn interpret() {
    for (name, g) in seeds() {
        let started = std::time::Instant::now();
        let (inputs, params) = (inputs(&g), random_params(&g));
        let native = run(&g, &inputs, &params, &mut no_fallback).unwrap_or_else(|e| panic!("{name}: {e}"));
        let took = started.elapsed();
        let exact = run_with(&g, &inputs, &params, Precision::F64, &mut no_fallback).unwrap();
        for (o, (a, b)) in native.iter().zip(&exact).enumerate() {
            // Three bits more than bf16 are an eighth of its error.
            let tolerance = match g.dtype(g.outputs[o]) {
                DType::Bf16 => 0.06,
                DType::F16 => 0.06 / 8.0,
                _ => 2e-4,
            };
            let worst = a.to_f64_vec().into_iter().zip(b.to_f64_vec()).fold(0.0f64, |m, (x, y)| {
                assert!(x.is_finite(), "{name}: output {o} has {x}");
                m.max(off(x, y))
            });
            println!("{name} output {o}: error {worst:.1e}, {took:?}");
            assert!(worst < tolerance, "{name}: output {o} is off by {worst}");
        }
        if g.values().any(|v| decompose::is_composite(g.op(v))) {
            let apart = decompose::decompose_all(&g, |_| true).unwrap();
            apart.verify().unwrap();
            let apart = run_with(&apart, &inputs, &params, Precision::F64, &mut no_fallback).unwrap();
            for (a, b) in apart.iter().zip(&exact) {
                let pairs = a.to_f64_vec().into_iter().zip(b.to_f64_vec());
                let worst = pairs.fold(0.0f64, |m, (x, y)| m.max(off(x, y)));
                assert!(worst < 1e-9, "{name}: decomposed it is off by {worst}");
            }
        }
    }
}
