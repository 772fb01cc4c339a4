//! Kernels too large to run here: offsets past 2^31 are i64; names and parameters are as promised.
use crate::common::{TARGETS, compare_at, kernel, text};
use kiln_graph::Graph;
use kiln_lower::{lower, lower_at};
use kiln_machine::{Arch, Machine};
use kiln_plan::{KernelKind, exec::Work};

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

/// Offsets that fit 32 bits in programs whose last group of tiles has fewer rows of them: positions are bounded by the
/// tiles that there are.
#[test]
fn short_offsets_of_ragged_groups() {
    let large = "(%x: bf16[128,6,7,112], %w: bf16[6,512,7,7], %b: bf16[1024]) { %y = conv %x, %w, %b stride=[3,3] \
                 padding=[3,3] transposed=true \
                 output_padding=[2,0] groups=2\n %z = tanh %y\n return %z }";
    program(KernelKind::Conv, large, Arch::Sm90a);
    // Rows of tiles that no group divides.
    for (m, n) in [(17 * 128, 900_000), (33 * 128, 480_000), (100 * 128 + 5, 160_000)] {
        let body = format!("(%x: bf16[{m},64], %w: bf16[{n},64]) {{ %y = linear %x, %w\n %z = tanh %y\n return %z }}");
        program(KernelKind::Gemm, &body, Arch::Sm90a);
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

/// A kernel of each family over `n` images of 4 channels: kind, arguments, ops.
fn families(d: &str, n: usize, [rows, columns]: [usize; 2]) -> Vec<(KernelKind, String, String)> {
    use KernelKind::{Conv, Pointwise, Reduction};
    let windows = "stride=[2,2] padding=[1,1]";
    let strips = "window=[5,5] stride=[5,5] padding=[0,0]";
    let conv = |attrs: &str| format!("conv %x, %w {attrs}");
    let steps = |s: usize, p: usize| format!("stride=[{s},{s}] padding=[{p},{p}] dilation=[1,1] groups=1");
    let x = format!("%x: {d}[{n},4,{rows},{columns}]");
    let weight = |shape: &str| format!("{x}, %w: {d}{shape}");
    let cases = [
        (Pointwise, x.clone(), "exp %x".to_string()),
        (Pointwise, x.clone(), "permute %x perm=[1,3,0,2]".into()),
        (Pointwise, x.clone(), "flip %x axes=[0,3]".into()),
        (Pointwise, x.clone(), format!("slice %x axis=3 start=1 len={}", columns - 1)),
        (Pointwise, x.clone(), "pad %x, 0.0 lo=[0,0,1,1] hi=[0,0,1,1]".into()),
        (Pointwise, x.clone(), "concat %x, %x axis=3".into()),
        (Pointwise, format!("{x}, %i: i64[{n},4,{rows},7]"), "gather %x, %i axis=3".into()),
        (Reduction, x.clone(), "reduce.sum %x axes=[3]".into()),
        (Reduction, x.clone(), "reduce.max %x axes=[0,2,3]".into()),
        (Reduction, x.clone(), "reduce.argmax %x axes=[2]".into()),
        (Reduction, x.clone(), "softmax %x axis=3".into()),
        (Reduction, x.clone(), format!("pool.avg %x {strips} count_pad=true")),
        (Reduction, x.clone(), format!("pool.avg %x window=[3,3] {windows} count_pad=false")),
        (Reduction, x.clone(), format!("pool.max %x window=[3,3] {windows} dilation=[1,1]")),
        (Reduction, x.clone(), format!("pool.max %r {strips} dilation=[1,1]")),
        (Conv, weight("[16,4,3,3]"), conv(&steps(1, 1))),
        (Conv, weight("[16,4,4,4]"), conv(&steps(4, 0))),
        (Conv, weight("[16,4,1,1]"), conv(&steps(1, 0))),
        (Conv, weight("[4,8,4,4]"), conv(&format!("transposed=true {}", steps(2, 1)))),
        (Conv, weight("[4,8,3,3]"), conv(&format!("transposed=true {}", steps(3, 0)))),
    ];
    cases.into_iter().map(|(kind, args, op)| (kind, args, format!("%r = relu %x\n %y = {op}"))).collect()
}

fn graph(args: &str, ops: &str) -> Graph {
    format!("graph k({args}) {{ {ops}\n return %y }}").parse().unwrap_or_else(|e| panic!("{ops}: {e}"))
}

/// Every family past 2^31 and past 2^32 elements: no program computes an offset in too few bits, or lowering is an
/// error that names the instruction ([`kiln_block::verify::offsets`]). Windows among them, whose positions are
/// quotients, with padding and without.
#[test]
fn no_offset_wraps() {
    for n in [2100, 4300] {
        for d in ["bf16", "f32"] {
            for (kind, args, ops) in families(d, n, [1024, 256]) {
                let g = graph(&args, &ops);
                for target in [Arch::Cpu, Arch::Sm80, Arch::Sm90a] {
                    if let Err(e) = lower(&kernel(kind, g.clone()), target) {
                        panic!("{target:?}: {e}\n{g}");
                    }
                }
            }
        }
    }
}

/// The same kernels with offsets of 64 bits, on small arrays, by a machine that computes almost nothing in 32 bits.
#[test]
fn long_offsets_compute_the_same() {
    for target in TARGETS {
        let machine = Machine { narrow_offsets: 8, ..target.machine().clone() };
        for (kind, args, ops) in families("f32", 3, [13, 20]) {
            let g = graph(&args, &ops);
            let k = kernel(kind, g.clone());
            match compare_at(&k, &kiln_graphgen::inputs(&g, 7), &machine) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => panic!("{target:?}: {e}\n{g}"),
                Err(e) => panic!("{target:?}: {e}\n{g}"),
            }
            let blocks = lower_at(&k, &machine).unwrap_or_else(|e| panic!("{e}"));
            let short = |w: &Work<kiln_block::BlockProgram>| {
                let Work::Block { code, .. } = w else { return false };
                let text = kiln_block::text::print(code);
                text.contains("= load") && !text.contains("i64")
            };
            assert!(!blocks.steps.iter().any(short), "{target:?}\n{}", text(&blocks));
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
