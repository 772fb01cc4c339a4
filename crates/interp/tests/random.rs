//! Random graphs run without errors, and composites agree with their decompositions in f64.
use kiln_graph::{DType, Graph, decompose};
use kiln_interp::graph::{Precision, no_fallback, run, run_with};

/// The largest relative difference of the outputs; infinite if one is NaN where the other is not.
fn difference(a: &Graph, b: &Graph, seed: u64) -> Result<f64, String> {
    let inputs = kiln_graphgen::inputs(a, seed);
    let outputs = |g: &Graph| run_with(g, &inputs, &[], Precision::F64, &mut no_fallback).map_err(|e| e.to_string());
    let mut worst = 0.0f64;
    for (x, y) in outputs(a)?.iter().zip(outputs(b)?) {
        for (x, y) in x.to_f64_vec().into_iter().zip(y.to_f64_vec()) {
            if x != y && !(x.is_nan() && y.is_nan()) {
                let off = (x - y).abs() / y.abs().max(1.0);
                worst = worst.max(if off.is_nan() { f64::INFINITY } else { off });
            }
        }
    }
    Ok(worst)
}

#[test]
fn whole_and_apart_agree() {
    // Without rounding; comparisons and argmax would magnify it.
    let options = kiln_graphgen::Options { dtypes: vec![DType::F64], ops: 8, ..kiln_graphgen::Options::default() };
    let mut off = Vec::new();
    for seed in 0..150 {
        let g = kiln_graphgen::graph(seed, &options);
        let differs = |g: &Graph| {
            let apart = decompose::decompose_all(g, |_| true).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
            difference(g, &apart, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}")) > 1e-6
        };
        if differs(&g) {
            off.push(format!("seed {seed}:\n{}", kiln_graphgen::shrink(&g, differs)));
        }
    }
    assert!(off.is_empty(), "{}", off.join("\n"));
}

#[test]
fn every_dtype_runs() {
    for seed in 0..150 {
        let g = kiln_graphgen::graph(seed, &kiln_graphgen::Options::default());
        let inputs = kiln_graphgen::inputs(&g, seed);
        let outputs = run(&g, &inputs, &[], &mut no_fallback).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
        for (o, v) in outputs.iter().zip(&g.outputs) {
            assert_eq!(o.ty, *g.ty(*v), "seed {seed}\n{g}");
        }
    }
}
