//! Slices of K by tensor-core tiles whose operands are loaded to registers.
use super::*;
use crate::common::{compare_kernel, in_tf32};
use kiln_plan::form::Form;

/// Lowers a matmul by a schedule on machines with and without warpgroups, and compares with the graph; in tf32, on
/// inputs that rounding to it does not change.
fn computes_in_slices(graph: &str, wanted: &str, precision: kiln_plan::Precision) {
    let kind = if graph.contains("= conv") { KernelKind::Conv } else { KernelKind::Gemm };
    let k = kernel(kind, graph.parse().unwrap_or_else(|e| panic!("{e}\n{graph}")));
    let k = Kernel { precision, schedule: Some(schedule(wanted)), ..k };
    let mut inputs = kiln_graphgen::inputs(&k.body, 7);
    if precision == kiln_plan::Precision::Tf32 {
        inputs.iter_mut().for_each(in_tf32);
    }
    for target in [Arch::Sm80, Arch::Sm90a] {
        let launches = lower(&k, target).unwrap_or_else(|e| panic!("{target:?}: {e}\n{wanted}\n{graph}")).steps;
        assert!(launches.len() >= 2, "slices, and their sum: {wanted}\n{graph}");
        let compared = compare_kernel(&k, &inputs, target).unwrap_or_else(|e| panic!("{wanted}\n{graph}\n{e}"));
        compared.unwrap_or_else(|e| panic!("{target:?}: {e}\n{wanted}\n{graph}"));
    }
}

#[test]
fn slices_of_register_tiles_compute_the_matmul() {
    for d in ["bf16", "f16"] {
        for ([m, n, k], wanted) in [
            // Whole tiles in every slice.
            ([64, 64, 512], "split-reduce k 4; tensor-core mma 64x64x64; bind warp 4"),
            // The last slice ends within a tile, or after fewer tiles.
            ([70, 36, 520], "split-reduce k 3; tensor-core mma 32x64x64; bind warp 4"),
            ([33, 65, 333], "split-reduce k 3; tensor-core mma 16x64x64; bind warp 1"),
            ([17, 7, 97], "split-reduce k 2; tensor-core mma 16x16x16; bind warp 1"),
            ([5, 130, 449], "split-reduce k 5; tensor-core mma 16x128x32; bind warp 4"),
            ([1, 40, 700], "split-reduce k 2; tensor-core mma 16x64x256; bind warp 2"),
            ([90, 1, 260], "split-reduce k 2; tensor-core mma 64x16x64; bind warp 2"),
        ] {
            let linear = format!(
                "graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %c: {d}[{n}]) {{ %y = linear %a, %b, %c\n \
                 %z = gelu_erf %y\n return %z }}"
            );
            computes_in_slices(&linear, wanted, kiln_plan::Precision::Exact);
        }
    }
}

#[test]
fn slices_of_register_tiles_take_operands_of_any_layout_and_batch() {
    for graph in [
        "graph k(%a: bf16[328,72], %b: bf16[328,64]) { %t = permute %a perm=[1,0]\n %y = dot %t, %b\n return %y }",
        "graph k(%a: bf16[2,3,33,328], %b: bf16[3,328,40]) { %y = dot %a, %b\n return %y }",
        "graph k(%a: bf16[40,384], %b: bf16[384,64]) { %y = dot %a, %b\n %s = softmax %y axis=1\n return %s }",
        "graph k(%a: f16[40,333], %b: f16[333,24]) { %y = dot %a, %b\n %t = permute %y perm=[1,0]\n return %t, %y }",
        // What is computed beyond K must not reach the sums: the sigmoid of zero is not zero.
        "graph k(%a: f16[20,333], %b: f16[24,333]) { %s = sigmoid %a\n %y = linear %s, %b\n return %y }",
        // Split-K slices that are read from two arrays, or lie in two axes of one.
        "graph k(%a: bf16[20,200], %c: bf16[20,133], %b: bf16[333,24]) { %j = concat %a, %c axis=1\n \
         %y = dot %j, %b\n return %y }",
        "graph k(%a: bf16[3,20,111], %b: bf16[333,24]) { %p = permute %a perm=[1,0,2]\n \
         %r = reshape %p shape=[20,333]\n %y = dot %r, %b\n return %y }",
        // A dual GEMM.
        "graph k(%x: f16[20,333], %g: f16[24,333], %u: f16[24,333]) { %a = linear %x, %g\n %b = linear %x, %u\n \
         %s = silu %a\n %y = mul %s, %b\n return %y }",
        "graph k(%x: bf16[2,40,7,7], %w: bf16[24,40,3,3]) {
            %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1
            %z = relu %y
            return %z }",
    ] {
        for wanted in [
            "split-reduce k 2; tensor-core mma 64x64x64; bind warp 4",
            "split-reduce k 3; tensor-core mma 16x64x64; bind warp 2",
        ] {
            computes_in_slices(graph, wanted, kiln_plan::Precision::Exact);
        }
    }
}

#[test]
fn slices_of_register_tiles_multiply_in_tf32() {
    for [m, n, k] in [[40, 72, 256], [33, 20, 203]] {
        let graph = format!(
            "graph k(%a: f32[{m},{k}], %b: f32[{k},{n}], %c: f32[{n}]) {{ %y = dot %a, %b\n %z = add %y, %c\n \
             return %z }}"
        );
        for wanted in [
            "split-reduce k 2; tensor-core mma 64x64x32; bind warp 4",
            "split-reduce k 4; tensor-core mma 16x64x32; bind warp 1",
        ] {
            computes_in_slices(&graph, wanted, kiln_plan::Precision::Tf32);
        }
    }
}

/// FMAs have slices by a schedule alone.
#[test]
fn slices_of_fmas_in_registers_compute_the_matmul() {
    for (d, wanted) in
        [("f32", "split-reduce k 3; fma 32x32x32; bind warp 2"), ("f64", "split-reduce k 2; fma 16x64x16; bind warp 4")]
    {
        let graph =
            format!("graph k(%a: {d}[33,203], %b: {d}[203,20]) {{ %y = dot %a, %b\n %z = neg %y\n return %z }}");
        computes_in_slices(&graph, wanted, kiln_plan::Precision::Exact);
    }
}

/// The form that a matmul gets, with its price, and the cheapest price of tiles without slices.
fn forms_of(k: &Kernel, target: Arch) -> (Form, f64, f64) {
    let tiles: Form = "gemm{mma}(a, b)".parse().expect("a form");
    let all = kiln_lower::forms(k, target.machine()).expect("forms");
    let whole = all.iter().find(|f| f.form == tiles).map_or(f64::INFINITY, |f| f.us);
    (all[0].form, all[0].us, whole)
}

/// A matmul of few tiles and a long K leaves multiprocessors idle; one of many tiles does not, nor does a short K.
#[test]
fn few_register_tiles_and_a_long_k_are_computed_in_slices() {
    let split: Form = "gemm{mma, split}(a, b)".parse().expect("a form");
    let linear = |d: &str, [m, n, k]: [usize; 3]| {
        matmul(&format!("graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}]) {{ %y = linear %a, %b\n return %y }}"), None)
    };
    for target in [Arch::Sm80, Arch::Sm89] {
        for (d, size) in [("bf16", [64, 64, 16384]), ("f16", [128, 64, 8192]), ("bf16", [32, 256, 8192])] {
            let (form, us, whole) = forms_of(&linear(d, size), target);
            assert_eq!(form, split, "{target:?} {d} {size:?}");
            assert!(us < 0.7 * whole, "{target:?} {d} {size:?}: {us} {whole}");
        }
        for (d, size) in [("bf16", [4096, 4096, 4096]), ("bf16", [256, 256, 128]), ("f32", [64, 64, 16384])] {
            assert_ne!(forms_of(&linear(d, size), target).0, split, "{target:?} {d} {size:?}");
        }
        // The order of a sum must not depend on the number of rows.
        let invariant = Kernel { batch_invariant: true, ..linear("bf16", [64, 64, 16384]) };
        let chosen = chosen(&invariant, target.machine()).expect("lowers");
        assert_ne!(chosen.form, Some(split), "{:?}", chosen.schedule);
        let wanted = schedule("split-reduce k 4; tensor-core mma 64x64x64; bind warp 4");
        let e = lower(&Kernel { schedule: Some(wanted), ..invariant }, target).expect_err("sums in one order");
        assert!(e.why().contains("sums K in one order"));
    }
    // Prices of two kinds of programs err apart: with warpgroups it must be much cheaper than staged tiles.
    for size in [[64, 64, 1024], [64, 64, 16384], [63, 1000, 5001]] {
        let k = linear("bf16", size);
        assert!(kiln_lower::forms(&k, GPU.machine()).expect("forms").iter().any(|f| f.form == split), "{size:?}");
        assert_eq!(way(&k), "warpgroup", "{size:?}");
        let asked = kiln_lower::chosen_among(&k, GPU.machine(), Some(&[split])).expect("lowers");
        assert_eq!(asked.form, Some(split), "{size:?}");
    }
}
