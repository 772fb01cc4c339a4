//! Schedules of kernels that multiply: each computes the same or is refused with the reason, and the first candidate is
//! what lowering chooses by default.
mod library;
mod slices;

use crate::common::{self, difference, kernel, run_steps, text};
use kiln_graph::Graph;
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{LowerError, chosen, lower, neighbours, schedules};
use kiln_machine::{Arch, Library, Machine};
use kiln_plan::{
    Kernel, KernelKind, Schedule, Step,
    exec::{Slot, Steps, Work},
};

const GPU: Arch = Arch::Sm90a;

fn matmul(graph: &str, wanted: Option<Schedule>) -> Kernel {
    let mut k = kernel(KernelKind::Gemm, graph.parse::<Graph>().expect("a graph"));
    k.schedule = wanted;
    k
}
fn steps(graph: &str, wanted: Option<Schedule>) -> Result<Steps<kiln_block::BlockProgram>, String> {
    lower(&matmul(graph, wanted), GPU).map_err(LowerError::why)
}
fn schedule(text: &str) -> Schedule {
    text.parse().expect("a schedule")
}
/// Lowers by this schedule, interprets and compares.
fn computes(graph: &str, wanted: &str) {
    let k = matmul(graph, Some(schedule(wanted)));
    let steps = lower(&k, GPU).unwrap_or_else(|e| panic!("{wanted}: {e}\n{graph}"));
    let inputs = kiln_graphgen::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    let got = run_steps(&k.body, &steps, &inputs).unwrap_or_else(|e| panic!("{wanted}: {e}\n{graph}"));
    difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{wanted}: {e}\n{graph}\n{}", text(&steps)));
}

#[test]
fn every_choice_of_a_schedule_computes_the_same() {
    let linear = |d: &str, m: usize, n: usize, k: usize| {
        format!(
            "graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %c: {d}[{n}]) {{ %y = linear %a, %b, %c\n %z = tanh %y\n \
             return %z }}"
        )
    };
    for (d, [m, n, k], schedules) in [
        (
            "bf16",
            [70, 136, 520],
            &[
                "split-reduce k 3; tensor-core wgmma 64x64x64; stage a,b shared 3",
                "split-reduce k 2; tensor-core wgmma 64x128x128; stage a,b shared 2",
            ][..],
        ),
        (
            "bf16",
            [130, 72, 200],
            &[
                "tensor-core wgmma 64x64x64; stage a,b shared 3",
                "tensor-core wgmma 64x64x64; stage a,b shared 3; group m 2",
                "tensor-core wgmma 128x64x128; stage a,b shared 2",
            ],
        ),
        (
            "f16",
            [256, 64, 136],
            &[
                "tensor-core wgmma 128x64x64; stage a,b shared 3; bind cluster 2",
                "split-reduce k 2; tensor-core wgmma 128x64x64; stage a,b shared 2; bind cluster 2; group m 2",
            ],
        ),
        // More tiles than blocks.
        (
            "bf16",
            [760, 712, 136],
            &[
                "tensor-core wgmma 64x64x64; stage a,b shared 3; ping-pong",
                "split-reduce k 2; tensor-core wgmma 64x64x64; stage a,b shared 3; ping-pong",
                "tensor-core wgmma 64x64x64; stage a,b shared 3; bind cluster 2; ping-pong",
            ],
        ),
        (
            "f16",
            [256, 136, 72],
            &[
                "tensor-core wgmma 128x64x64; stage a,b shared 3; ping-pong",
                "tensor-core wgmma 64x128x128; stage a,b shared 2; ping-pong",
            ],
        ),
        (
            "f32",
            [40, 72, 260],
            &[
                "split-reduce k 3; fma 64x64x32; stage a,b shared 3",
                "split-reduce k 2; fma 32x64x32; stage a,b shared 2",
            ],
        ),
        // Fewer columns than the tile has.
        (
            "bf16",
            [130, 72, 136],
            &[
                "tensor-core wgmma 64x256x64; stage a,b shared 3",
                "tensor-core wgmma 128x128x64; stage a,b shared 3",
                "tensor-core wgmma 64x256x64; stage a,b shared 3; ping-pong",
                "split-reduce k 2; tensor-core wgmma 64x128x64; stage a,b shared 3",
            ],
        ),
        (
            "f16",
            [256, 200, 72],
            &[
                "tensor-core wgmma 64x256x64; stage a,b shared 3",
                "tensor-core wgmma 128x256x64; stage a,b shared 3; bind cluster 2",
                "tensor-core wgmma 64x256x128; stage a,b shared 2",
            ],
        ),
        // Tiles of 192 columns.
        (
            "bf16",
            [256, 512, 136],
            &[
                "tensor-core wgmma 128x192x64; stage a,b shared 3; bind cluster 2",
                "tensor-core wgmma 128x192x64; stage a,b shared 3; persist 2",
                "tensor-core wgmma 64x192x64; stage a,b shared 3; ping-pong",
                "split-reduce k 2; tensor-core wgmma 64x192x64; stage a,b shared 3",
            ],
        ),
        (
            "f16",
            [130, 389, 72],
            &["tensor-core wgmma 128x192x64; stage a,b shared 3", "tensor-core wgmma 64x192x128; stage a,b shared 2"],
        ),
        ("bf16", [256, 384, 72], &["tensor-core wgmma 128x192x64; stage a,b shared 3; bind cluster 2"]),
        ("bf16", [130, 136, 72], &["tensor-core wgmma 128x192x64; stage a,b shared 3"]),
        // Rows of results that no tensor map describes.
        (
            "bf16",
            [130, 129, 136],
            &[
                "tensor-core wgmma 64x64x64; stage a,b shared 3",
                "tensor-core wgmma 64x256x64; stage a,b shared 3",
                "tensor-core wgmma 64x64x64; stage a,b shared 3; ping-pong",
                "tensor-core wgmma 128x256x64; stage a,b shared 3",
            ],
        ),
        (
            "f16",
            [70, 33, 72],
            &["tensor-core wgmma 64x64x64; stage a,b shared 3", "tensor-core wgmma 128x64x64; stage a,b shared 3"],
        ),
        ("f32", [130, 77, 72], &["fma 64x64x32; stage a,b shared 3", "fma 128x128x32; stage a,b shared 3"]),
        // One row or one column: the others of the tile are not stored.
        (
            "f16",
            [1, 90, 520],
            &[
                "tensor-core wgmma 64x64x64; stage a,b shared 3",
                "tensor-core wgmma 128x64x64; stage a,b shared 3",
                "split-reduce k 3; tensor-core wgmma 64x64x64; stage a,b shared 3",
                "tensor-core wgmma 64x64x64; stage a,b shared 3; ping-pong",
            ],
        ),
        (
            "bf16",
            [90, 1, 520],
            &[
                "tensor-core wgmma 64x64x64; stage a,b shared 3",
                "split-reduce k 2; tensor-core wgmma 64x16x64; stage a,b shared 3",
            ],
        ),
        (
            "f32",
            [1, 77, 260],
            &["fma 64x64x32; stage a,b shared 3", "split-reduce k 2; fma 64x64x32; stage a,b shared 3"],
        ),
        ("f32", [77, 1, 72], &["fma 64x64x32; stage a,b shared 3"]),
    ] {
        schedules.iter().for_each(|s| computes(&linear(d, m, n, k), s));
    }
}

/// The epilogue reads a residual through the buffers of its result.
#[test]
fn residuals_are_read_through_the_buffers_of_the_result() {
    let residual = |d: &str, r: &str, [m, n, k]: [usize; 3], after: &str| {
        format!(
            "graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %r: {d}[{r}]) {{ %y = linear %a, %b\n %z = add %y, %r\n \
             {after} }}"
        )
    };
    let last = "%s = tanh %z\n return %s";
    for (d, [m, n, k], schedules) in [
        (
            "bf16",
            [700, 712, 136],
            &[
                "tensor-core wgmma 64x64x64; stage a,b shared 3; stage c shared 1; ping-pong",
                "tensor-core wgmma 128x128x64; stage a,b shared 3; stage c shared 2",
                "tensor-core wgmma 128x128x64; stage a,b shared 3",
                "tensor-core wgmma 64x256x64; stage a,b shared 3; stage c shared 4; ping-pong",
                "tensor-core wgmma 64x256x64; stage a,b shared 3; stage c shared 2; ping-pong",
                "tensor-core wgmma 128x192x64; stage a,b shared 3; stage c shared 3",
            ][..],
        ),
        (
            "f16",
            [512, 256, 72],
            &[
                "tensor-core wgmma 128x256x64; stage a,b shared 3; stage c shared 4; bind cluster 2",
                "tensor-core wgmma 256x128x64; stage a,b shared 3; stage c shared 2; bind cluster 2; persist 2",
            ],
        ),
        // Three slices of the tile are used.
        ("f16", [130, 136, 72], &["tensor-core wgmma 64x256x64; stage a,b shared 3; stage c shared 3; persist 2"]),
        ("f32", [130, 136, 72], &["fma 64x128x32; stage a,b shared 3; stage c shared 2; persist 2"]),
    ] {
        let graph = residual(d, &format!("{m},{n}"), [m, n, k], last);
        schedules.iter().for_each(|s| computes(&graph, s));
    }
    let batched = "graph k(%a: bf16[3,130,136], %b: bf16[136,72], %r: bf16[3,130,72]) { %y = dot %a, %b\n \
                   %z = mul %r, %y\n return %z }";
    computes(batched, "tensor-core wgmma 64x64x64; stage a,b shared 3; stage c shared 1; persist 2");
    // The residual is the left operand.
    let own = "graph k(%a: bf16[130,136], %b: bf16[136,136]) { %y = linear %a, %b\n %z = add %y, %a\n return %z }";
    computes(own, "tensor-core wgmma 64x192x64; stage a,b shared 3; stage c shared 3; persist 2");
    // A residual that the batches share, and a second one that is read by address.
    let shared = "graph k(%a: bf16[3,130,136], %b: bf16[3,136,72], %r: bf16[130,72], %q: bf16[3,130,72]) {
        %y = dot %a, %b\n %z = add %y, %r\n %s = mul %z, %q\n return %s }";
    computes(shared, "tensor-core wgmma 64x128x64; stage a,b shared 3; stage c shared 2; persist 2");

    let wanted = "tensor-core wgmma 128x256x64; stage a,b shared 3; stage c shared 4";
    for (graph, wanted, why) in [
        (residual("bf16", "256", [384, 256, 136], last), wanted, "no array of the type and size"),
        (residual("bf16", "384,256", [384, 256, 136], "return %y, %z"), wanted, "no array of the type and size"),
        (residual("bf16", "384,129", [384, 129, 136], last), wanted, "no array of the type and size"),
        (residual("bf16", "384,256", [384, 256, 136], last), &wanted.replace("shared 4", "shared 3"), "4 slices"),
        (residual("bf16", "384,256", [384, 256, 136], last), &wanted.replace("shared 3", "shared 4"), "2 to 3 stages"),
    ] {
        let e = steps(&graph, Some(schedule(wanted))).expect_err(&graph);
        assert!(e.contains(why), "{e}\n{graph}");
    }
    // Which it does by default where shared memory has room.
    let graph = residual("bf16", "8192,768", [8192, 768, 3072], last);
    let chosen = chosen(&matmul(&graph, None), GPU.machine()).expect("lowers").schedule.expect("one matmul");
    assert!(chosen.to_string().contains("stage c shared"), "{chosen}");
}

#[test]
fn tiles_wider_than_the_matmul_read_only_its_columns() {
    for graph in [
        "graph k(%a: bf16[2,130,136], %b: bf16[2,136,72]) { %y = dot %a, %b\n return %y }",
        "graph k(%a: bf16[2,130,136], %b: bf16[2,136,200]) { %y = dot %a, %b\n %s = softmax %y axis=2\n return %s }",
        "graph k(%a: bf16[130,136], %b: bf16[200,136]) { %y = linear %a, %b\n %s = softmax %y axis=1\n return %y, %s }",
        "graph k(%a: bf16[2,130,136], %b: bf16[2,136,200]) { %y = dot %a, %b\n %z = tanh %y\n return %y, %z }",
    ] {
        for wanted in [
            "tensor-core wgmma 64x256x64; stage a,b shared 3",
            "tensor-core wgmma 128x256x64; stage a,b shared 3",
            "tensor-core wgmma 64x256x64; stage a,b shared 2; ping-pong",
        ] {
            computes(graph, wanted);
        }
    }
    // The operand on the right is N-major, so clusters share rows of K.
    for wanted in [
        "tensor-core wgmma 128x192x64; stage a,b shared 3",
        "tensor-core wgmma 128x192x64; stage a,b shared 3; bind cluster 2",
        "tensor-core wgmma 128x256x64; stage a,b shared 3; bind cluster 2",
    ] {
        computes(
            "graph k(%a: bf16[2,256,136], %b: bf16[2,136,424]) { %y = dot %a, %b\n %z = tanh %y\n return %z }",
            wanted,
        );
    }
}

#[test]
fn tiles_taller_than_the_matmul_read_only_its_rows() {
    let wide = "graph k(%a: bf16[20,136], %b: bf16[136,200]) { %y = dot %a, %b\n %s = softmax %y axis=1\n return %s }";
    let batched = "graph k(%a: bf16[3,17,136], %b: bf16[3,136,72], %r: bf16[3,17,72]) { %y = dot %a, %b\n \
                   %z = add %y, %r\n return %z }";
    for (graph, wanted) in [
        (wide, "tensor-core wgmma 64x256x64; stage a,b shared 3"),
        (wide, "tensor-core wgmma 128x256x64; stage a,b shared 3"),
        (wide, "tensor-core wgmma 64x256x64; stage a,b shared 2; ping-pong"),
        (batched, "tensor-core wgmma 64x128x64; stage a,b shared 3"),
        (batched, "tensor-core wgmma 128x128x64; stage a,b shared 3; ping-pong"),
    ] {
        computes(graph, wanted);
    }
    let steps = steps(wide, Some(schedule("tensor-core wgmma 64x256x64; stage a,b shared 3"))).expect("lowers");
    assert!(text(&steps).contains("%a: desc<bf16[24,64], b128>"), "{}", text(&steps));
}

#[test]
fn split_k_takes_operands_of_any_layout_and_batch() {
    for graph in [
        "graph k(%a: bf16[328,72], %b: bf16[328,64]) { %t = permute %a perm=[1,0]\n %y = dot %t, %b\n return %y }",
        "graph k(%a: bf16[2,3,72,328], %b: bf16[3,328,64]) { %y = dot %a, %b\n return %y }",
        "graph k(%a: bf16[72,384], %b: bf16[384,64]) { %y = dot %a, %b\n %s = softmax %y axis=1\n return %s }",
    ] {
        for wanted in [
            "split-reduce k 2; tensor-core wgmma 64x64x64; stage a,b shared 3",
            "split-reduce k 3; tensor-core wgmma 64x64x64; stage a,b shared 3",
        ] {
            computes(graph, wanted);
        }
    }
}

#[test]
fn a_schedule_without_room_or_sense_is_refused() {
    let graph = "graph k(%a: bf16[384,256], %b: bf16[256,256]) { %y = linear %a, %b\n return %y }";
    for (wanted, why) in [
        (
            "tensor-core wgmma 128x256x64; stage a,b shared 9",
            "`stage a,b shared 9` does not fit: shared memory has room for 2 to 4",
        ),
        ("tensor-core wgmma 128x256x64; stage a,b shared 1", "`stage a,b shared 1` does not fit"),
        ("tensor-core wgmma 64x64x50; stage a,b shared 3", "K of a stage is 128 bytes"),
        ("tensor-core wgmma 64x64x256; stage a,b shared 2", "K of a stage is 128 bytes"),
        ("tensor-core wgmma 256x256x64; stage a,b shared 2", "tiles are 128x256"),
        ("tensor-core wgmma 64x32x64; stage a,b shared 2", "tiles of fewer than 64 columns"),
        ("tensor-core wgmma 128x128x64; stage a,b shared 3; bind cluster 2", "`bind cluster 2` does not fit"),
        ("tensor-core wgmma 64x64x64; stage a,b shared 3; bind cluster 4", "`bind cluster 4` does not fit"),
        ("split-reduce k 3; tensor-core wgmma 64x64x64; stage a,b shared 3", "`split-reduce k 3` does not fit"),
        ("split-reduce k 40; tensor-core wgmma 64x64x64; stage a,b shared 3", "`split-reduce k 40` does not fit"),
        ("split-reduce k 5; tensor-core mma 64x64x64; bind warp 4", "`split-reduce k 5` does not fit"),
        ("stage c global; split-reduce k 2; tensor-core mma 64x64x64; bind warp 4", "their sum computes the epilogue"),
        ("split-reduce k 2; tensor-core mma 64x64x64; bind warp 4; group m 2", "`group m 2` does not fit"),
        ("tensor-core wgmma 128x256x64; stage a,b shared 3; ping-pong", "do not fit a thread's registers"),
        ("tensor-core wgmma 64x64x64; stage a,b shared 3; persist 999", "`persist 999` does not fit: at most 24"),
        ("tensor-core wgmma 64x64x64", "`tensor-core mma`, not `tensor-core wgmma`"),
        ("tensor-core wgmma-3xtf32 64x64x32; stage a,b shared 3", "is for f32"),
        ("fma 64x64x64; stage a,b shared 3", "`tensor-core wgmma`, not `fma`"),
        ("fma 64x64x64; bind warp 4", "`tensor-core mma`, not `fma`"),
        ("tensor-core mma 64x64x64", "needs `bind warp N`"),
        ("tensor-core mma 63x64x64; bind warp 4", "powers of two"),
        ("tensor-core mma 64x64x64; bind warp 4; ping-pong", "unless `stage a,b shared N`"),
        ("tensor-core mma 64x64x64; bind warp 4; group m 4", "`group m 4` does not fit"),
        ("dual-gemm; tensor-core mma 64x64x64; bind warp 4", "`dual-gemm` does not apply"),
        ("implicit-gemm; tensor-core mma 64x64x64; bind warp 4", "`implicit-gemm` does not apply"),
        ("tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2", "one of attention"),
        ("split j 64", "is not an axis"),
        ("split r 64; ping-pong", "does not multiply"),
    ] {
        let e = wanted.parse().and_then(|s| steps(graph, Some(s))).expect_err(wanted);
        assert!(e.contains(why), "{wanted}: {e}");
    }
}

#[test]
fn the_first_candidate_is_the_choice_without_tuning() {
    for (d, m, n, k) in [
        ("bf16", 1, 4096, 4096),
        ("bf16", 16, 11008, 4096),
        ("bf16", 128, 4096, 11008),
        ("bf16", 4096, 4096, 4096),
        ("bf16", 4096, 4096, 65536),
        ("bf16", 63, 65, 129),
        ("f16", 1000, 4097, 1000),
        ("f32", 197, 3072, 768),
        ("f32", 4096, 4096, 4096),
        ("f64", 300, 300, 300),
    ] {
        let graph = format!("graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}]) {{ %y = linear %a, %b\n return %y }}");
        let all = schedules(&matmul(&graph, None), GPU.machine()).expect("schedules");
        let first = all.first().unwrap_or_else(|| panic!("no candidates: {graph}")).0.clone();
        let shown = |s: Result<Steps<kiln_block::BlockProgram>, String>| {
            text(&s.unwrap_or_else(|e| panic!("{first}: {e}\n{graph}")))
        };
        assert_eq!(shown(steps(&graph, Some(first.clone()))), shown(steps(&graph, None)), "{first}\n{graph}");
        assert!(all.iter().skip(1).all(|c| c.0 != first), "{graph}");
        // Where sums along rows are the first, the schedules of the nest come before others.
        let from = 1 + all.iter().rposition(|c| !c.0.multiplies()).filter(|_| !first.multiplies()).unwrap_or(0);
        assert!(all[from..].is_sorted_by(|a, b| a.1.us <= b.1.us), "{graph}");
        let reads = |s: &Schedule| assert_eq!(s.to_string().parse().as_ref(), Ok(s));
        all.iter().take(20).for_each(|c| reads(&c.0));
        neighbours(&first, GPU.machine()).iter().for_each(reads);
    }
    let host = matmul("graph k(%a: f32[9,9]) { %y = dot %a, %a\n return %y }", None);
    let host = schedules(&host, Arch::Cpu.machine()).expect("schedules");
    assert_eq!(host.iter().map(|s| s.0.to_string()).collect::<Vec<_>>(), ["call library"]);
}

#[test]
fn operands_indexed_by_quotients_of_k_are_split_evenly() {
    let graph = "graph k(%x: f32[1,256,14,14], %w: f32[256,256,3,3]) {
        %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1
        return %y }";
    let k = kernel(KernelKind::Conv, graph.parse::<Graph>().expect("a graph"));
    let k = common::by_step(k, GPU, Some("stage b global; split-reduce k"));
    let steps = lower(&k, GPU).expect("lowers");
    assert_eq!(steps.steps.len(), 3, "im2col patches, split-K slices, their sum: {}", text(&steps));
}

/// How a schedule multiplies, in a word.
fn kind(schedule: Result<Option<Schedule>, LowerError>) -> &'static str {
    let schedule = schedule.expect("lowers").expect("a schedule");
    let staged = schedule.steps.iter().any(|s| matches!(s, Step::Stage(..)));
    match schedule.multiplies() {
        _ if schedule.is_call() => "library",
        true if staged => "warpgroup",
        true => "tile",
        false => "rows",
    }
}
/// How a kernel multiplies on the H200.
fn way(k: &Kernel) -> &'static str {
    kind(chosen(k, GPU.machine()).map(|c| c.schedule))
}

/// Lowers `graph` by the schedule `wanted`, checks the results, and returns the steps.
fn lowered(
    kind: KernelKind,
    graph: &str,
    wanted: &str,
    target: Arch,
) -> Result<Steps<kiln_block::BlockProgram>, String> {
    let body: Graph = graph.parse().expect("a graph");
    let mut k = kernel(kind, body);
    k.schedule = Some(schedule(wanted));
    let steps = lower(&k, target).map_err(LowerError::why)?;
    let inputs = kiln_graphgen::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    let got = run_steps(&k.body, &steps, &inputs).expect("runs");
    difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{wanted}: {e}\n{}", text(&steps)));
    Ok(steps)
}

#[test]
fn matmuls_take_the_requested_schedule() {
    let matmul = |d: &str, m: usize| {
        format!(
            "graph k(%a: {d}[{m},72], %b: {d}[48,72], %c: {d}[48]) {{ %y = linear %a, %b, %c\n %z = tanh %y\n \
             return %z }}"
        )
    };
    for (d, wanted, target) in [
        ("f32", "fma 16x32x32; bind warp 1", GPU),
        ("f32", "fma 128x16x32; bind warp 4", GPU),
        ("f32", "fma 16x16x16; bind warp 1", Arch::Sm80),
        ("f64", "split r 128; bind warp 1", GPU),
        ("f64", "fma 64x64x16; bind warp 4", GPU),
        ("bf16", "tensor-core mma 64x64x64; bind warp 4", GPU),
        ("bf16", "tensor-core mma 256x128x32; bind warp 8", GPU),
        ("bf16", "tensor-core wgmma 64x64x64; stage a,b shared 2", GPU),
        ("bf16", "tensor-core wgmma 64x64x64; stage a,b shared 5; persist 1", GPU),
        ("bf16", "swap a,b; tensor-core wgmma 64x128x64; stage a,b shared 3", GPU),
        ("bf16", "swap a,b; tensor-core mma 32x128x64; bind warp 4", GPU),
        ("bf16", "stage a,b global; tensor-core wgmma 64x64x64; stage a,b shared 3", GPU),
        ("bf16", "stage a global; tensor-core mma 64x64x64; bind warp 4", GPU),
        ("bf16", "stage c global; tensor-core wgmma 64x64x64; stage a,b shared 3", GPU),
        ("bf16", "stage b,c global; tensor-core mma 16x16x16; bind warp 1", GPU),
        ("f32", "fma 64x64x32; stage a,b shared 2", GPU),
        ("f32", "fma 64x128x32; stage a,b shared 3", GPU),
        ("f32", "call library", Arch::Cpu),
        ("f32", "call library", GPU),
        ("bf16", "call library", GPU),
        ("f64", "call library", GPU),
        ("f32", "split r 128; bind warp 1", Arch::Cpu),
    ] {
        for m in [3, 70] {
            let found = lowered(KernelKind::Gemm, &matmul(d, m), wanted, target);
            assert!(found.is_ok(), "{d} {m} {wanted}: {found:?}");
        }
    }
    for (d, wanted, target, why) in [
        ("f64", "tensor-core wgmma 64x64x16; stage a,b shared 2", GPU, "bf16, f16, f32 or f8"),
        ("bf16", "tensor-core wgmma 64x64x64; stage a,b shared 2", Arch::Sm80, "sm_90"),
        ("f32", "fma 64x64", GPU, "one of attention"),
        ("f32", "fma 64x64x32; bind warp 4", Arch::Cpu, "`call library`"),
        ("f32", "split r 128; persist 4", GPU, "only clusters"),
    ] {
        let e = lowered(KernelKind::Gemm, &matmul(d, 70), wanted, target).expect_err(wanted);
        assert!(e.contains(why), "{wanted}: {e}");
    }
}

/// Schedules of convolutions and of attention.
#[test]
fn convolutions_and_attention_take_the_requested_schedule() {
    let conv = "graph k(%x: f16[2,128,9,10], %w: f16[48,128,3,3]) {
        %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1
        %z = relu %y
        return %z }";
    for wanted in [
        "implicit-gemm; tensor-core wgmma 64x64x64; stage a,b shared 4",
        "implicit-gemm; split-reduce k 3; tensor-core wgmma 64x64x64; stage a,b shared 3",
        "implicit-gemm; stage c global; tensor-core wgmma 64x128x64; stage a,b shared 3",
        "stage b global; tensor-core wgmma 64x64x64; stage a,b shared 4",
        "stage a,b global; split-reduce k 2; tensor-core wgmma 64x64x128; stage a,b shared 2",
        "tensor-core mma 64x64x64; bind warp 4",
        "split-reduce k 5; tensor-core mma 16x64x64; bind warp 2",
        "split r 1024; bind warp 4",
    ] {
        let found = lowered(KernelKind::Conv, conv, wanted, GPU);
        assert!(found.is_ok(), "{wanted}: {found:?}");
    }
    let attention = "graph k(%q: f16[2,160,64], %k: f16[2,300,64], %v: f16[2,300,64]) {
        %y = attention %q, %k, %v scale=0.125
        return %y }";
    for wanted in [
        "tensor-core mma 64x64; bind warp 4",
        "tensor-core mma 16x128; bind warp 4",
        "split-reduce keys 3; tensor-core mma 64x64; bind warp 4",
        "tensor-core wgmma 64x128; stage q shared 2; stage k,v shared 2",
        "tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2; persist 3",
        "split-reduce keys 2; tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2",
    ] {
        let found = lowered(KernelKind::Attention, attention, wanted, GPU);
        assert!(found.is_ok(), "{wanted}: {found:?}");
    }
    for (kind, graph, wanted, why) in [
        (KernelKind::Conv, conv, "call library", "not convolutions"),
        (KernelKind::Conv, conv, "tensor-core wgmma 64x64x64; stage a,b shared 4", "`stage a,b global`"),
        (KernelKind::Conv, conv, "tensor-core mma 64x64; bind warp 4", "one of attention"),
        (KernelKind::Attention, attention, "call library", "not attention"),
        (KernelKind::Attention, attention, "tensor-core mma 64x64x64; bind warp 4", "one of a matmul"),
        (KernelKind::Attention, attention, "fma 64x64; bind warp 4", "multiplied by `tensor-core mma`"),
        (KernelKind::Attention, attention, "tensor-core mma 64x48; bind warp 4", "a power of two"),
        (
            KernelKind::Attention,
            attention,
            "split-reduce keys 4; tensor-core mma 64x64; bind warp 4",
            "`split-reduce keys 4`",
        ),
        (
            KernelKind::Attention,
            attention,
            "tensor-core wgmma 192x128; stage q shared 2; stage k,v shared 2",
            "64 or 128 queries",
        ),
        (
            KernelKind::Attention,
            attention,
            "tensor-core wgmma 64x128; stage q shared 1; stage k,v shared 2",
            "`stage q shared 1`",
        ),
        (
            KernelKind::Attention,
            attention,
            "tensor-core wgmma 64x128; stage q shared 2; stage k,v shared 2; block-mask",
            "`block-mask`",
        ),
        (KernelKind::Attention, attention, "split r 64", "no step that multiplies"),
    ] {
        let e = lowered(kind, graph, wanted, GPU).expect_err(wanted);
        assert!(e.contains(why), "{wanted}: {e}");
    }
}

#[test]
fn pairwise_distances_take_matmul_tiles_where_profitable() {
    let squares = "%d = sub %x, %y\n %s = mul %d, %d\n %t = reduce.sum %s axes=[2]\n %r = sqrt %t\n return %r }";
    let apart = "%d = sub %y, %x\n %s = abs %d\n %r = reduce.sum %s axes=[0]\n return %r }";
    let batched =
        "%d = sub %x, %y\n %s = mul %d, %d\n %r = reduce.sum %s axes=[2]\n %z = mul %r, 0.5\n return %z, %r }";
    for (text, tiled) in [
        (format!("graph k(%x: f32[96,1,720], %y: f32[70,720]) {{ {squares}"), true),
        (format!("graph k(%x: f32[300,1,131], %y: f32[1,144,131]) {{ {squares}"), true),
        (format!("graph k(%x: f32[520,1,131], %y: f32[1,301,131]) {{ {squares}"), true),
        (format!("graph k(%x: f32[700,80,1], %y: f32[700,1,96]) {{ {apart}"), true),
        (format!("graph k(%x: f32[3,36,1028,1], %y: f32[3,1,1028,52]) {{ {batched}"), true),
        (format!("graph k(%x: f32[65,1,1021], %y: f32[1,65,1021]) {{ {squares}"), true),
        (format!("graph k(%x: f32[20,1,720], %y: f32[400,720]) {{ {squares}"), false),
        (format!("graph k(%x: f32[40,1,7], %y: f32[400,7]) {{ {squares}"), false),
    ] {
        let body: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let k = kernel(KernelKind::Reduction, body);
        assert_eq!(way(&k) != "rows", tiled, "{text}");
        let inputs = kiln_graphgen::inputs(&k.body, 7);
        let compared = common::compare_kernel(&k, &inputs, GPU).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(compared.is_ok(), "{text}");
    }
}
