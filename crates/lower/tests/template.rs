//! Templates that a constraint asks for: each computes the same, shows as what was asked, or is refused with the reason.
mod common;
use common::{difference, kernel, run_steps, text};
use kiln_graph::{Graph, random};
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{LowerError, Target, lower, template};
use kiln_plan::{KernelKind, Template};

/// The template that `text`, lowered as `wanted`, shows; its results are checked.
fn lowered(kind: KernelKind, graph: &str, wanted: &str, target: Target) -> Result<Template, String> {
    let body: Graph = graph.parse().expect("a graph");
    let mut k = kernel(kind, body);
    k.reason.template = Some(wanted.parse().expect("a template"));
    let steps = lower(&k, target).map_err(|LowerError::Unsupported { why, .. }| why)?;
    let inputs = random::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    let got = run_steps(&k.body, &steps, &inputs).expect("runs");
    difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{wanted}: {e}\n{}", text(&steps)));
    Ok(template::of(kind, steps.steps.iter().map(template::Part::from)))
}
const GPU: Target = Target::Gpu { arch: 90 };

#[test]
fn products_take_the_template_they_are_told() {
    let product = |d: &str, m: usize| {
        format!(
            "graph k(%a: {d}[{m},72], %b: {d}[48,72], %c: {d}[48]) {{ %y = linear %a, %b, %c\n %z = tanh %y\n return %z }}"
        )
    };
    for (d, wanted, target) in [
        ("f32", "tile", GPU),
        ("f32", "tile 16x32", GPU),
        ("f32", "tile 128x16", GPU),
        ("f64", "rows", GPU),
        ("bf16", "tile 64x64", GPU),
        ("bf16", "warpgroup", GPU),
        ("bf16", "warpgroup 64x64", GPU),
        ("f32", "warpgroup", GPU),
        ("f32", "warpgroup 64x128", GPU),
        ("f32", "library", Target::Host),
        ("f32", "rows", Target::Host),
    ] {
        for m in [3, 70] {
            let found = lowered(KernelKind::Gemm, &product(d, m), wanted, target);
            let wanted: Template = wanted.parse().expect("a template");
            assert!(found.clone().is_ok_and(|f| wanted.fits(f)), "{d} {m} {wanted}: {found:?}");
        }
    }
    for (d, wanted, target, why) in [
        ("f64", "warpgroup", GPU, "bf16, f16 or f32"),
        ("bf16", "warpgroup 256x256", GPU, "one of the tiles"),
        ("bf16", "warpgroup", Target::Gpu { arch: 80 }, "sm_90"),
        ("f32", "library", GPU, "lowered as `warpgroup"),
        ("f32", "flash", GPU, "lowered as `warpgroup"),
        ("f32", "tile", Target::Host, "lowered as `library`"),
    ] {
        let e = lowered(KernelKind::Gemm, &product(d, 70), wanted, target).expect_err(wanted);
        assert!(e.contains(why), "{wanted}: {e}");
    }
}

#[test]
fn attention_has_one_template_on_each_side() {
    let text = "graph k(%q: f32[2,9,16], %k: f32[2,11,16], %v: f32[2,11,16]) {
        %y = attention %q, %k, %v scale=0.25
        return %y }";
    assert_eq!(lowered(KernelKind::Attention, text, "flash", GPU).map(|t| t.to_string()).as_deref(), Ok("flash"));
    assert!(lowered(KernelKind::Attention, text, "library", Target::Host).is_ok());
    let e = lowered(KernelKind::Attention, text, "tile", GPU).expect_err("flash alone");
    assert!(e.contains("lowered as `flash`"), "{e}");
}

#[test]
fn sums_over_pairs_go_in_tiles_where_they_are_many() {
    let squares = "%d = sub %x, %y\n %s = mul %d, %d\n %t = reduce.sum %s axes=[2]\n %r = sqrt %t\n return %r }";
    let apart = "%d = sub %y, %x\n %s = abs %d\n %r = reduce.sum %s axes=[0]\n return %r }";
    let batched =
        "%d = sub %x, %y\n %s = mul %d, %d\n %r = reduce.sum %s axes=[2]\n %z = mul %r, 0.5\n return %z, %r }";
    for (text, wanted) in [
        (format!("graph k(%x: f32[96,1,720], %y: f32[70,720]) {{ {squares}"), "warpgroup"),
        (format!("graph k(%x: f32[300,1,131], %y: f32[1,144,131]) {{ {squares}"), "tile"),
        (format!("graph k(%x: f32[520,1,131], %y: f32[1,301,131]) {{ {squares}"), "warpgroup"),
        (format!("graph k(%x: f32[700,80,1], %y: f32[700,1,96]) {{ {apart}"), "warpgroup"),
        (format!("graph k(%x: f32[3,36,1028,1], %y: f32[3,1,1028,52]) {{ {batched}"), "warpgroup"),
        (format!("graph k(%x: f32[65,1,1021], %y: f32[1,65,1021]) {{ {squares}"), "tile"),
        (format!("graph k(%x: f32[20,1,720], %y: f32[400,720]) {{ {squares}"), "rows"),
        (format!("graph k(%x: f32[40,1,7], %y: f32[400,7]) {{ {squares}"), "rows"),
    ] {
        let body: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let k = kernel(KernelKind::Reduction, body);
        let steps = lower(&k, GPU).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let found = template::of(k.kind, steps.steps.iter().map(template::Part::from));
        assert_eq!(found.family.name(), wanted, "{text}");
        let inputs = random::inputs(&k.body, 7);
        let compared = common::compare_kernel(&k, &inputs, GPU).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(compared.is_ok(), "{text}");
    }
}
