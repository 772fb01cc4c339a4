//! Scatter: indexed writes, with repeated indices, along every axis.
use crate::common::{self, compare};
use kiln_graph::{DType, Graph, Tensor, Type};
use kiln_plan::KernelKind::Scatter;
use kiln_plan::Rounding;

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
                    "graph k(%x: {dtype}[{0}], %i: i64[{1}], %s: {dtype}[{1}]) {{ %y = scatter %x, %i, %s axis={axis} \
                     mode={mode}\n return %y }}",
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

/// Operands may be computed where they are needed: indices that lines share, sources that need arithmetic, or neither
/// of both in memory. On a GPU all elements are then written at once, and in order where rounding must not depend on
/// one.
#[test]
fn operands_are_computed() {
    let rows = "\n  %b = broadcast %r shape=[60,70]\n  %y = scatter %x, %b, %d axis=0 mode=";
    let cases = [
        (
            "%x: f32[40,70], %i: i64[60], %s: f32[60,70]",
            "%r = reshape %i shape=[60,1]\n  %d = mul %s, %s",
            rows,
            "replace",
        ),
        ("%x: f32[40,70], %i: i64[60], %s: f32[60,70]", "%r = reshape %i shape=[60,1]\n  %d = mul %s, %s", rows, "add"),
        (
            "%x: bf16[40,70], %i: i32[60], %s: bf16[60,1]",
            "%r = reshape %i shape=[60,1]\n  %d = broadcast %s shape=[60,70]",
            rows,
            "add",
        ),
        (
            "%x: i8[40,70], %i: i64[60], %s: i8[60,1]",
            "%r = reshape %i shape=[60,1]\n  %d = broadcast %s shape=[60,70]",
            rows,
            "add",
        ),
        // A histogram, and the last position of each number.
        (
            "%x: f32[40], %i: i64[999]",
            "%o = const 1.0 : f32[]\n  %d = broadcast %o shape=[999]",
            "\n  %y = scatter %x, %i, %d axis=0 mode=",
            "add",
        ),
        (
            "%x: i64[40], %i: i64[999]",
            "%d = iota axis=0 : i64[999]",
            "\n  %y = scatter %x, %i, %d axis=0 mode=",
            "replace",
        ),
        // One place for all.
        (
            "%x: i32[40], %s: i32[77]",
            "%o = const 3 : i64[]\n  %i = broadcast %o shape=[77]",
            "\n  %y = scatter %x, %i, %s axis=0 mode=",
            "add",
        ),
    ];
    for (inputs, values, scatter, mode) in cases {
        let text = format!("graph k({inputs}) {{\n  {values}{scatter}{mode}\n  return %y\n}}");
        let body: Graph = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let tensors: Vec<Tensor> = (body.inputs.iter().enumerate())
            .map(|(n, v)| match body.ty(*v).clone() {
                ty if n == 1 && ty.dtype.is_int() && !inputs.contains("%s: i32") => {
                    let i = indices(&ty.shape, 40, 3);
                    Tensor::from_f64(ty, i.to_f64_vec())
                }
                ty => kiln_graph::random_tensor(ty, n as u64, 1.0),
            })
            .collect();
        for (target, rounding) in
            common::TARGETS.into_iter().flat_map(|t| [(t, Rounding::AtStores), (t, Rounding::PerOp)])
        {
            let k = kiln_plan::Kernel { rounding, ..common::kernel(Scatter, body.clone()) };
            let done = common::compare_kernel(&k, &tensors, target).unwrap_or_else(|e| panic!("{text}: {e}"));
            done.unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }
}

/// Rows that are written at once have the schedule of a nest of points.
#[test]
fn writes_have_schedules() {
    let of = |mode: &str, batch_invariant| {
        let text = format!(
            "graph k(%x: f32[99,64], %i: i64[300,64], %s: f32[300,64]) {{ %y = scatter %x, %i, %s axis=0 mode={mode} \
             return %y }}"
        );
        let k = common::kernel(Scatter, text.parse().expect("a graph"));
        kiln_lower::schedules(&kiln_plan::Kernel { batch_invariant, ..k }, kiln_machine::Arch::Sm90a.machine())
            .map_or(0, |all| all.len())
    };
    assert!(of("add", false) > 1 && of("replace", false) > 1);
    assert_eq!(of("add", true), 0, "lines in order");
}
