//! Kernels too large to run here: offsets past 2^31 are i64; names and parameters are as promised.
use crate::common::{TARGETS, kernel, text};
use kiln_graph::Graph;
use kiln_lower::lower;
use kiln_machine::Arch;
use kiln_plan::KernelKind;

fn program(kind: KernelKind, body: &str, target: Arch) -> String {
    let g: Graph = format!("graph k{body}").parse().unwrap_or_else(|e| panic!("{e}"));
    text(&lower(&kernel(kind, g), target).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn long_offsets() {
    for target in TARGETS {
        let small = program(KernelKind::Pointwise, "(%x: f32[1000,1000]) { %y = exp %x\n return %y }", target);
        assert!(!small.contains("i64"), "{small}");
        for (kind, body) in [
            (KernelKind::Pointwise, "(%x: f32[70000,70000]) { %y = exp %x\n return %y }"),
            (KernelKind::Reduction, "(%x: f32[70000,70000]) { %y = softmax %x axis=1\n return %y }"),
            (KernelKind::Reduction, "(%x: f32[70000,70000]) { %y = reduce.sum %x axes=[0]\n return %y }"),
        ] {
            let large = program(kind, body, target);
            assert!(large.contains("cast i64"), "{target:?}\n{large}");
        }
    }
}

/// Keys and values of attention, whose sizes are not those of its result.
#[test]
fn long_offsets_of_operands() {
    for d in ["bf16", "f32"] {
        for (heads, long) in [(32, true), (8, true), (1, false)] {
            let body = format!(
                "(%q: {d}[8,32,1,128], %k: {d}[8,{heads},131072,128], %v: {d}[8,{heads},131072,128]) {{
                %y = attention %q, %k, %v scale=0.125\n return %y }}"
            );
            for target in TARGETS.into_iter().filter(|t| t.is_gpu()) {
                let p = program(KernelKind::Attention, &body, target);
                assert_eq!(p.contains("cast i64"), long, "{target:?} {d} {heads}\n{p}");
            }
        }
    }
}

#[test]
fn parameters() {
    for target in TARGETS {
        let p = program(KernelKind::Pointwise, "(%x: f32[50], %y: f32[50]) { %z = add %x, %y\n return %z }", target);
        let header =
            "kernel @k(%in0: ptr<f32> readonly align 16, %in1: ptr<f32> readonly align 16, %out0: ptr<f32> align 16)";
        assert!(p.contains(header), "{p}");
    }
}
