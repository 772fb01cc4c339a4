//! Schedules that tuning or a constraint requests: each computes the same or is refused, and the first candidate is
//! what lowering chooses by default.
use crate::common::{difference, kernel, run_steps, text};
use kiln_graph::{Graph, random};
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{LowerError, candidates, lower, neighbours, template};
use kiln_machine::Arch;
use kiln_plan::{Kernel, KernelKind, Template, exec::Steps};

const GPU: Arch = Arch::Sm90a;

fn matmul(graph: &str, wanted: Option<Template>) -> Kernel {
    let mut k = kernel(KernelKind::Gemm, graph.parse::<Graph>().expect("a graph"));
    k.reason.template = wanted;
    k
}
fn steps(graph: &str, wanted: Option<Template>) -> Result<Steps<kiln_block::Kernel>, String> {
    lower(&matmul(graph, wanted), GPU).map_err(LowerError::why)
}
fn template(text: &str) -> Template {
    text.parse().expect("a template")
}
/// Lowers with this template, interprets and compares; the steps must show the template.
fn computes(graph: &str, wanted: &str) {
    let k = matmul(graph, Some(template(wanted)));
    let steps = lower(&k, GPU).unwrap_or_else(|e| panic!("{wanted}: {e}\n{graph}"));
    let inputs = random::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    let got = run_steps(&k.body, &steps, &inputs).unwrap_or_else(|e| panic!("{wanted}: {e}\n{graph}"));
    difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{wanted}: {e}\n{graph}\n{}", text(&steps)));
    let seen = template::of(KernelKind::Gemm, steps.steps.iter().map(template::Part::from));
    assert!(template(wanted).fits(seen), "{wanted} shows as {seen}");
}

#[test]
fn every_choice_of_a_schedule_computes_the_same() {
    let linear = |d: &str, m: usize, n: usize, k: usize| {
        format!(
            "graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %c: {d}[{n}]) {{ %y = linear %a, %b, %c\n %z = tanh %y\n return %z }}"
        )
    };
    for (d, [m, n, k], schedules) in [
        ("bf16", [70, 136, 520], &["warpgroup 64x64 split-k 3", "warpgroup 64x128 split-k 2 depth 256 stages 2"][..]),
        (
            "bf16",
            [130, 72, 200],
            &["warpgroup 64x64 group 1", "warpgroup 64x64 group 2 stages 3", "warpgroup 128x64 depth 256"],
        ),
        (
            "f16",
            [256, 64, 136],
            &["warpgroup 128x64 cluster 2", "warpgroup 128x64 cluster 2 group 2 stages 2 split-k 2"],
        ),
        // More tiles than blocks.
        (
            "bf16",
            [760, 712, 136],
            &["warpgroup 64x64 tiles 2", "warpgroup 64x64 tiles 2 split-k 2", "warpgroup 64x64 tiles 2 cluster 2"],
        ),
        ("f16", [256, 136, 72], &["warpgroup 128x64 tiles 2", "warpgroup 64x128 tiles 2 stages 2 depth 256"]),
        ("f32", [40, 72, 260], &["warpgroup 64x64 split-k 3", "warpgroup 32x64 split-k 2 stages 2 group 1"]),
        // Fewer columns than the tile has.
        (
            "bf16",
            [130, 72, 136],
            &["warpgroup 64x256", "warpgroup 128x128", "warpgroup 64x256 tiles 2", "warpgroup 64x128 split-k 2"],
        ),
        (
            "f16",
            [256, 200, 72],
            &["warpgroup 64x256", "warpgroup 128x256 cluster 2", "warpgroup 64x256 depth 256 stages 2"],
        ),
        // Rows of results that no tensor map describes.
        (
            "bf16",
            [130, 129, 136],
            &["warpgroup 64x64", "warpgroup 64x256", "warpgroup 64x64 tiles 2", "warpgroup 128x256"],
        ),
        ("f16", [70, 33, 72], &["warpgroup 64x64", "warpgroup 128x64"]),
        ("f32", [130, 77, 72], &["warpgroup 64x64", "warpgroup 128x128"]),
        // One row or one column: the others of the tile are not stored.
        (
            "f16",
            [1, 90, 520],
            &["warpgroup 64x64", "warpgroup 128x64", "warpgroup 64x64 split-k 3", "warpgroup 64x64 tiles 2"],
        ),
        ("bf16", [90, 1, 520], &["warpgroup 64x64", "warpgroup 64x16 split-k 2"]),
        ("f32", [1, 77, 260], &["warpgroup 64x64", "warpgroup 64x64 split-k 2"]),
        ("f32", [77, 1, 72], &["warpgroup 64x64"]),
    ] {
        schedules.iter().for_each(|s| computes(&linear(d, m, n, k), s));
    }
}

#[test]
fn tiles_wider_than_the_matmul_read_only_its_columns() {
    for graph in [
        "graph k(%a: bf16[2,130,136], %b: bf16[2,136,72]) { %y = dot %a, %b\n return %y }",
        "graph k(%a: bf16[2,130,136], %b: bf16[2,136,200]) { %y = dot %a, %b\n %s = softmax %y axis=2\n return %s }",
        "graph k(%a: bf16[130,136], %b: bf16[200,136]) { %y = linear %a, %b\n %s = softmax %y axis=1\n return %y, %s }",
        "graph k(%a: bf16[2,130,136], %b: bf16[2,136,200]) { %y = dot %a, %b\n %z = tanh %y\n return %y, %z }",
    ] {
        for wanted in ["warpgroup 64x256", "warpgroup 128x256", "warpgroup 64x256 tiles 2 stages 2"] {
            computes(graph, wanted);
        }
    }
}

#[test]
fn split_k_takes_operands_of_any_layout_and_batch() {
    for graph in [
        "graph k(%a: bf16[328,72], %b: bf16[328,64]) { %t = permute %a perm=[1,0]\n %y = dot %t, %b\n return %y }",
        "graph k(%a: bf16[2,3,72,328], %b: bf16[3,328,64]) { %y = dot %a, %b\n return %y }",
        "graph k(%a: bf16[72,384], %b: bf16[384,64]) { %y = dot %a, %b\n %s = softmax %y axis=1\n return %s }",
    ] {
        for wanted in ["warpgroup 64x64 split-k 2", "warpgroup 64x64 split-k 3"] {
            computes(graph, wanted);
        }
    }
}

#[test]
fn a_schedule_without_room_or_sense_is_refused() {
    let graph = "graph k(%a: bf16[384,256], %b: bf16[256,256]) { %y = linear %a, %b\n return %y }";
    for (wanted, why) in [
        ("warpgroup 128x256 stages 9", "a schedule must fit"),
        ("warpgroup 128x256 stages 1", "a schedule must fit"),
        ("warpgroup 64x64 depth 100", "a schedule must fit"),
        ("warpgroup 64x64 depth 512", "a schedule must fit"),
        ("warpgroup 128x128 cluster 2", "a schedule must fit"),
        ("warpgroup 64x64 cluster 4", "a schedule must fit"),
        ("warpgroup 64x64 split-k 3", "a schedule must fit"),
        ("warpgroup 64x64 split-k 40", "a schedule must fit"),
        ("warpgroup 128x256 tiles 2", "a schedule must fit"),
        ("warpgroup 64x64 tiles 3", "a schedule must fit"),
    ] {
        let e = steps(graph, Some(template(wanted))).expect_err(wanted);
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
        let all = candidates(&matmul(&graph, None), GPU.machine());
        let first = all.first().unwrap_or_else(|| panic!("no candidates: {graph}")).template;
        let shown =
            |s: Result<Steps<kiln_block::Kernel>, String>| text(&s.unwrap_or_else(|e| panic!("{first}: {e}\n{graph}")));
        assert_eq!(shown(steps(&graph, Some(first))), shown(steps(&graph, None)), "{first}\n{graph}");
        assert!(all.iter().skip(1).all(|c| c.template != first), "{graph}");
        assert!(all[1..].is_sorted_by(|a, b| a.us <= b.us), "{graph}");
        let reads = |t: Template| assert_eq!(t.to_string().parse(), Ok(t));
        all.iter().take(20).for_each(|c| reads(c.template));
        neighbours(first).into_iter().for_each(reads);
    }
    let host = matmul("graph k(%a: f32[9,9]) { %y = dot %a, %a\n return %y }", None);
    let host = candidates(&host, Arch::Cpu.machine());
    assert!(host.is_empty());
}

#[test]
fn operands_indexed_by_quotients_of_k_are_split_evenly() {
    let graph = "graph k(%x: f32[1,256,14,14], %w: f32[256,256,3,3]) {
        %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1
        return %y }";
    let k = kernel(KernelKind::Conv, graph.parse::<Graph>().expect("a graph"));
    let steps = lower(&k, GPU).expect("lowers");
    assert_eq!(steps.steps.len(), 3, "im2col patches, split-K slices, their sum: {}", text(&steps));
}
