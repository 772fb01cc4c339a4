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

#[test]
fn parameters() {
    for target in TARGETS {
        let p = program(KernelKind::Pointwise, "(%x: f32[50], %y: f32[50]) { %z = add %x, %y\n return %z }", target);
        let header =
            "kernel @k(%in0: ptr<f32> readonly align 16, %in1: ptr<f32> readonly align 16, %out0: ptr<f32> align 16)";
        assert!(p.contains(header), "{p}");
    }
}
