//! Pairs of reductions of which the second needs the first, accumulated in one pass over rows that do not fit a tile:
//! maxima with sums of exponentials, means with squared deviations.
use crate::common::{compare_kernel, kernel};
use kiln_graph::{Graph, Tensor};
use kiln_lower::lower;
use kiln_machine::Arch;
use kiln_plan::{Kernel, KernelKind};

const GPU: Arch = Arch::Sm90a;

/// Lowers by this schedule and compares on random inputs and on rows with infinities and NaN; gives the number of
/// programs.
fn computes(graph: &str, schedule: &str) -> usize {
    let body: Graph = graph.parse().unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let k =
        Kernel { schedule: Some(schedule.parse().expect("a schedule")), ..kernel(KernelKind::Reduction, body.clone()) };
    let mut inputs = kiln_graphgen::inputs(&body, 7);
    for special in [false, true] {
        if special {
            specials(&mut inputs[0]);
        }
        compare_kernel(&k, &inputs, GPU)
            .unwrap_or_else(|e| panic!("{schedule}, special {special}: {e}\n{graph}"))
            .unwrap_or_else(|e| panic!("{schedule}: {e}\n{graph}"));
    }
    let steps = lower(&k, GPU).expect("lowers");
    steps.steps.len()
}

/// Rows (or columns) of minus infinity alone, from minus infinity to very small numbers, with infinity, NaN, and large
/// numbers.
fn specials(x: &mut Tensor) {
    let [rows, n] = x.ty.shape[..] else { return };
    let across = rows > n;
    let (count, len) = if across { (n, rows) } else { (rows, n) };
    let at = |row: usize, i: usize| if across { i * n + row } else { row * n + i };
    for row in 0..count {
        for i in 0..len {
            let v = match row % 6 {
                0 => f64::NEG_INFINITY,
                1 if i < len / 2 => f64::NEG_INFINITY,
                1 => -1000.0 - (i % 7) as f64,
                2 if i == len - 3 => f64::INFINITY,
                3 if i == len / 3 => f64::NAN,
                4 => 200.0 + (i % 5) as f64,
                _ => continue,
            };
            x.set_f64(at(row, i), v);
        }
    }
}

/// The logarithm of the sum of exponentials of rows with one more element each.
fn log_sum_exp(dtype: &str, shape: [usize; 2], axis: usize) -> String {
    let [m, n] = shape;
    let more = if axis == 1 { [m, 1] } else { [1, n] };
    format!(
        "graph k(%a: {dtype}[{m},{n}], %more: f32[{},{}]) {{
  %x = cast %a to=f32
  %m = reduce.max %x axes=[{axis}]
  %size = abs %m
  %infinite = eq %size, inf
  %f = select %infinite, 0.0, %m
  %o = max %f, %more
  %d = sub %x, %o
  %e = exp %d
  %s = reduce.sum %e axes=[{axis}]
  %l = log %s
  %y = add %l, %o
  return %y
}}",
        more[0], more[1]
    )
}

#[test]
fn exponentials() {
    for dtype in ["f32", "bf16"] {
        for (axis, shape, schedules) in [
            (
                1,
                [7, 5003],
                [
                    ("split r 1024; bind warp 4", 1),
                    ("split r 256; bind warp 4; split-reduce r 3", 2),
                    ("split r 128; bind warp 4; split-reduce r 40", 2),
                ],
            ),
            (
                0,
                [515, 70],
                [
                    ("split r 64; split i0 32; bind warp 4", 1),
                    ("split r 16; split i0 64; bind warp 4; split-reduce r 5", 2),
                    ("split r 8; split i0 32; bind warp 8; split-reduce r 33", 2),
                ],
            ),
        ] {
            for (schedule, programs) in schedules {
                let [m, n] = shape;
                assert_eq!(computes(&log_sum_exp(dtype, shape, axis), schedule), programs, "{schedule}");
                for op in ["softmax", "log_softmax"] {
                    let graph = format!("graph k(%a: {dtype}[{m},{n}]) {{ %y = {op} %a axis={axis}\n return %y }}");
                    assert_eq!(computes(&graph, schedule), programs, "{schedule}");
                }
            }
        }
    }
}

#[test]
fn moments() {
    for dtype in ["f32", "f16"] {
        for (axis, shape, schedules) in [
            (1, [5, 5003], [("split r 1024; bind warp 4", 1), ("split r 256; bind warp 4; split-reduce r 3", 2)]),
            (
                0,
                [515, 70],
                [
                    ("split r 64; split i0 32; bind warp 4", 1),
                    ("split r 8; split i0 32; bind warp 8; split-reduce r 33", 2),
                ],
            ),
        ] {
            for (schedule, programs) in schedules {
                let [m, n] = shape;
                let graph = format!(
                    "graph k(%a: {dtype}[{m},{n}]) {{
  %mean = reduce.mean %a axes=[{axis}]
  %d = sub %a, %mean
  %sq = mul %d, %d
  %var = reduce.mean %sq axes=[{axis}]
  %v = add %var, 0.001
  %scale = rsqrt %v
  %y = mul %d, %scale
  return %y
}}"
                );
                assert_eq!(computes(&graph, schedule), programs, "{schedule}");
            }
        }
    }
}

/// What a level has besides the pair is reduced in the same pass.
#[test]
fn beside_others() {
    let graph = "graph k(%a: f32[5,3001]) {
  %m = reduce.max %a axes=[1]
  %mean = reduce.mean %a axes=[1]
  %d = sub %a, %m
  %e = exp %d
  %s = reduce.sum %e axes=[1]
  %c = sub %a, %mean
  %sq = mul %c, %c
  %v = reduce.sum %sq axes=[1]
  %r = div %s, %v
  %l = log %r
  %y = add %l, %m
  return %y
}";
    for (schedule, programs) in [("split r 512; bind warp 4", 1), ("split r 512; bind warp 4; split-reduce r 3", 2)] {
        assert_eq!(computes(graph, schedule), programs, "{schedule}");
    }
}
