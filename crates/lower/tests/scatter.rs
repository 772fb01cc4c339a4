//! Scatter: indexed writes, with repeated indices, along every axis.
use crate::common::{self, compare};
use kiln_graph::{DType, Graph, Tensor, Type};
use kiln_plan::KernelKind::Scatter;

/// Indices that repeat.
fn indices(shape: &[usize], len: usize, seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let at = |i: usize| ((i * 2654435761 + seed * 40503) >> 7) % len;
    Tensor::from_f64(Type::new(DType::I64, shape), (0..count).map(|i| at(i) as f64))
}
fn list(s: &[usize]) -> String {
    s.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn writes_in_order() {
    let cases: [(&[usize], &[usize], usize); 9] = [
        (&[7], &[20], 0),
        (&[5, 9], &[5, 4], 1),
        (&[5, 9], &[3, 9], 0),
        (&[40, 70], &[90, 33], 0),
        (&[40, 70], &[33, 90], 1),
        (&[4, 5, 6], &[2, 11, 6], 1),
        (&[4, 5, 300], &[9, 5, 257], 0),
        (&[6, 3, 4], &[6, 3, 1], 2),
        (&[3, 4], &[3, 0], 1),
    ];
    for (seed, (shape, walked, axis)) in cases.into_iter().enumerate() {
        for dtype in [DType::F32, DType::Bf16, DType::F64, DType::I64, DType::I16, DType::I8, DType::U8] {
            for mode in ["replace", "add"] {
                let text = format!(
                    "graph k(%x: {dtype}[{0}], %i: i64[{1}], %s: {dtype}[{1}]) {{ %y = scatter %x, %i, %s axis={axis} mode={mode}\n return %y }}",
                    list(shape),
                    list(walked)
                );
                let body: Graph = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
                let random = |s: &[usize], seed| kiln_graph::random_tensor(Type::new(dtype, s), seed, 1.0);
                let inputs = [random(shape, 1), indices(walked, shape[axis], seed), random(walked, 2)];
                for target in common::TARGETS {
                    let done = compare(Scatter, &body, &inputs, target).unwrap_or_else(|e| panic!("{text}: {e}"));
                    done.unwrap_or_else(|e| panic!("{text}: {e}"));
                }
            }
        }
    }
}
