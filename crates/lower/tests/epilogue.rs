//! Every epilogue with every kind of schedule: each computes what the graph does, or is refused for a known reason.
use crate::common::{difference, kernel, run_steps, text};
use kiln_graph::Graph;
use kiln_interp::graph::{Precision as As, no_fallback, run_with};
use kiln_lower::{LowerError, lower};
use kiln_machine::Arch;
use kiln_plan::{KernelKind, Precision};

/// What comes after the matmul `%c`, `M` by `N`. `%v` and `%w` have an element per column, `%u` one per row, `%r` is of
/// the same shape, and `%d` is a matmul of the same left operand with another right one.
const EPILOGUES: [&str; 22] = [
    "return %c",
    "%y = add %c, %v\n return %y",
    "%y = mul %c, %u\n return %y",
    "%y = add %c, %r\n return %y",
    "%h = add %c, %v\n %y = relu %h\n return %y",
    "%h = add %c, %v\n %y = gelu_tanh %h\n return %y",
    "%y = gelu_erf %c\n return %y",
    "%s = mul %c, 0.5\n %t = mul %r, 2.0\n %y = add %s, %t\n return %y",
    "%s = mul %c, %u\n %t = mul %s, %v\n %y = add %t, %w\n return %y",
    "%p = gt %c, 0.0\n %l = mul %c, 0.01\n %y = select %p, %c, %l\n return %y",
    "%y = permute %c perm=[1,0]\n return %y",
    "%y = cast %c to=f32\n %z = neg %y\n return %z",
    "%y = relu %c\n return %c, %y",
    "%y = slice %c axis=1 start=8 len=16\n return %y",
    "%l = slice %c axis=1 start=0 len=HALF\n %g = slice %c axis=1 start=HALF len=HALF\n %s = silu %g\n \
     %y = mul %l, %s\n return %y",
    "%y = softmax %c axis=1\n return %y",
    "%y = log_softmax %c axis=1\n return %y",
    "%y = rms_norm %c, %v eps=1e-6\n return %y",
    "%s = add %c, %r\n %y = layer_norm %s, %v, %w eps=1e-5\n return %y",
    "%y = reduce.max %c axes=[1]\n return %y",
    "%y = reduce.argmax %c axes=[1]\n return %y",
    "%y = reduce.sum %c axes=[0]\n return %y",
];
/// A dual GEMM.
const PAIR: &str = "%d = linear %a, %e\n %s = silu %c\n %y = mul %s, %d\n return %y";

/// Operands, precision, schedule, compute capability, and why some epilogues may be refused.
const SCHEDULES: [(&str, Precision, &str, Arch, &[&str]); 24] = [
    ("bf16", Precision::Exact, "", Arch::Sm90a, &[]),
    ("f16", Precision::Exact, "", Arch::Sm80, &[]),
    ("f32", Precision::Exact, "", Arch::Sm90a, &[]),
    ("f64", Precision::Exact, "", Arch::Sm90a, &[]),
    ("f8e4m3", Precision::Exact, "", Arch::Sm90a, &[]),
    ("f8e4m3", Precision::Exact, "", Arch::Sm80, &[]),
    ("f8e5m2", Precision::Exact, "", Arch::Sm80, &[]),
    ("f32", Precision::Tf32, "", Arch::Sm80, &[]),
    ("bf16", Precision::Exact, "call library", Arch::Sm90a, &["one matmul"]),
    ("f32", Precision::Tf32, "call library", Arch::Sm90a, &["one matmul"]),
    ("bf16", Precision::Exact, "split r 512; bind warp 1", Arch::Sm90a, &["rows"]),
    ("bf16", Precision::Exact, "tensor-core mma 64x64x64; bind warp 4", Arch::Sm90a, &[]),
    ("f32", Precision::Exact, "fma 32x64x32; bind warp 4", Arch::Sm80, &[]),
    (
        "bf16",
        Precision::Exact,
        "tensor-core wgmma 128x256x64; stage a,b shared 3; bind cluster 2",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "f16",
        Precision::Exact,
        "tensor-core wgmma 64x128x64; stage a,b shared 3",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "bf16",
        Precision::Exact,
        "tensor-core wgmma 64x128x64; stage a,b shared 3; ping-pong",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "bf16",
        Precision::Exact,
        "tensor-core wgmma 64x256x64; stage a,b shared 3; ping-pong",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "bf16",
        Precision::Exact,
        "split-reduce k 2; tensor-core wgmma 64x64x64; stage a,b shared 3",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    ("f32", Precision::Exact, "fma 64x64x32; stage a,b shared 3", Arch::Sm90a, &["stages in shared", "does not fit"]),
    (
        "f32",
        Precision::Exact,
        "split-reduce k 3; fma 64x128x32; stage a,b shared 3",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "f32",
        Precision::Tf32,
        "tensor-core wgmma 128x128x32; stage a,b shared 3; ping-pong",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "f8e4m3",
        Precision::Exact,
        "tensor-core wgmma 64x128x128; stage a,b shared 3",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "f8e5m2",
        Precision::Exact,
        "tensor-core wgmma 64x128x128; stage a,b shared 3",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
    (
        "f8e4m3",
        Precision::Exact,
        "split-reduce k 2; tensor-core wgmma 64x64x128; stage a,b shared 3",
        Arch::Sm90a,
        &["stages in shared", "does not fit"],
    ),
];

/// M, N and K of matmuls: whole and partial tiles, and few rows, for which operands are swapped.
const SIZES: [[usize; 3]; 3] = [[66, 40, 272], [17, 72, 272], [65, 24, 272]];

fn graph(d: &str, [m, n, k]: [usize; 3], rest: &str) -> String {
    // Matmuls of f8 give f32.
    let r = if d.starts_with("f8") { "f32" } else { d };
    let dual = if rest == PAIR { format!(", %e: {d}[{n},{k}]") } else { String::new() };
    let rest = rest.replace("HALF", &(n / 2).to_string());
    format!(
        "graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %v: {r}[{n}], %w: {r}[{n}], %u: {r}[{m},1], %r: \
         {r}[{m},{n}]{dual}) {{ %c = linear %a, %b\n {rest} }}"
    )
}

/// How many epilogues the schedule computes, and how many it refuses.
fn check((d, precision, schedule, arch, reasons): (&str, Precision, &str, Arch, &[&str])) -> [usize; 2] {
    let (mut done, mut refused) = (0, 0);
    for (i, rest) in EPILOGUES.into_iter().chain([PAIR]).enumerate() {
        let text_of = graph(d, SIZES[i % SIZES.len()], rest);
        let body: Graph = text_of.parse().unwrap_or_else(|e| panic!("{e}\n{text_of}"));
        let mut k = kiln_plan::Kernel { precision, ..kernel(KernelKind::Gemm, body) };
        let by = |before: &str| Some(format!("{before}{schedule}").parse().expect("a schedule"));
        k.schedule = by("").filter(|_| !schedule.is_empty());
        let mut lowered = lower(&k, arch);
        if let Err(LowerError::Unsupported { why, .. }) = &lowered
            && why.contains("`stage c global` computes it")
        {
            k.schedule = by("stage c global; ");
            lowered = lower(&k, arch);
        }
        let steps = match lowered {
            Ok(steps) => steps,
            Err(LowerError::Unsupported { why, .. }) => {
                assert!(reasons.iter().any(|r| why.contains(r)), "{d} {schedule} {arch}: {why}\n{text_of}");
                refused += 1;
                continue;
            }
            Err(defect) => panic!("{defect}\n{text_of}"),
        };
        let inputs = kiln_graphgen::inputs(&k.body, 11 + i as u64);
        let want = run_with(&k.body, &inputs, &[], As::F64, &mut no_fallback).expect("interprets");
        let native = run_with(&k.body, &inputs, &[], As::Native, &mut no_fallback).expect("interprets");
        let got = run_steps(&k.body, &steps, &inputs).expect("runs");
        // Where rounding to half types decides which element is the largest, either is right.
        let right = difference(&k.body, &want, &got).or_else(|e| difference(&k.body, &native, &got).map_err(|_| e));
        right.unwrap_or_else(|e| panic!("{d} {schedule} {arch}: {e}\n{text_of}\n{}", text(&steps)));
        done += 1;
    }
    [done, refused]
}

#[test]
fn every_epilogue_with_every_schedule() {
    let counts = std::thread::scope(|s| {
        let all = SCHEDULES.map(|t| s.spawn(move || check(t)));
        all.map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
    });
    let [done, refused] = counts.into_iter().fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    // Refused are epilogues that need more registers or columns than the requested tile has.
    assert!(done > 5 * refused, "{done} done, {refused} refused");
}
