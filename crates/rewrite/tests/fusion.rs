//! The kernels of well-known blocks, written in primitives as models write them.
mod attention;

use crate::common::{self, agrees, exact, fused, graph, kinds, plan_with, unfused};
use kiln_machine::Arch;
use kiln_plan::{KernelKind::*, Plan};
use kiln_rewrite::Options;

/// Plans, checks against the interpreter, and gives the kinds of kernels.
fn checked(text: &str) -> Plan {
    let g = graph(text);
    let p = plan_with(&g, Options::default());
    agrees(&g, &p);
    p
}
fn rules(p: &Plan) -> Vec<&str> {
    p.kernels.iter().flat_map(|k| k.reason.rules.iter().map(String::as_str)).collect()
}
/// One kernel, fused and exact, and the rule that recognised it.
fn one(kind: kiln_plan::KernelKind, rule: &str, text: &str) {
    let p = checked(text);
    assert_eq!(kinds(&p), [kind], "{p}");
    assert!(rule.is_empty() || rules(&p).contains(&rule), "{p}");
    assert_eq!(kinds(&exact(text)), [kind]);
    assert!(kinds(&unfused(text)).len() > 1);
}
/// Self-attention in primitives over `[B,S,H·D]`; `scale` and `mask` are lines that take `%k…` to `%s`.
fn self_attention(dtype: &str, scores: &str) -> String {
    format!(
        "graph g(%x: {dtype}[2,16,64], %m: {dtype}[2,1,1,16]) {{
        @wq: {dtype}[64,64] = random(seed=1, scale=0.1)\n @wk: {dtype}[64,64] = random(seed=2, scale=0.1)
        @wv: {dtype}[64,64] = random(seed=3, scale=0.1)\n @wo: {dtype}[64,64] = random(seed=4, scale=0.1)
        @bq: {dtype}[64] = random(seed=5, scale=0.1)\n @bk: {dtype}[64] = random(seed=6, scale=0.1)
        @bv: {dtype}[64] = random(seed=7, scale=0.1)\n @bo: {dtype}[64] = random(seed=8, scale=0.1)
        %q0 = linear %x, @wq, @bq\n %q1 = reshape %q0 shape=[2,16,4,16]\n %q = permute %q1 perm=[0,2,1,3]
        %k0 = linear %x, @wk, @bk\n %k1 = reshape %k0 shape=[2,16,4,16]\n %k = permute %k1 perm=[0,2,1,3]
        %v0 = linear %x, @wv, @bv\n %v1 = reshape %v0 shape=[2,16,4,16]\n %v = permute %v1 perm=[0,2,1,3]
        %kt = permute %k perm=[0,1,3,2]
        {scores}
        %p = softmax %s axis=3\n %a = dot %p, %v\n %a1 = permute %a perm=[0,2,1,3]\n %a2 = reshape %a1 shape=[2,16,64]
        %o = linear %a2, @wo, @bo\n %y = add %o, %x\n return %y\n}}"
    )
}

#[test]
fn softmax() {
    one(
        Reduction,
        "softmax",
        "graph g(%x: f32[4,16,64]) {
        %m = reduce.max %x axes=[2]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[2]
        %y = div %e, %t\n return %y\n}",
    );
}
#[test]
fn softmax_in_f32_of_half() {
    let text = "graph g(%x: bf16[16,64]) {
        %w = cast %x to=f32\n %m = reduce.max %w axes=[1]\n %s = sub %w, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]
        %d = div %e, %t\n %y = cast %d to=bf16\n return %y\n}";
    one(Reduction, "softmax", text);
}
#[test]
fn log_softmax() {
    one(
        Reduction,
        "log-softmax",
        "graph g(%x: f32[16,64]) {
        %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]\n %l = log %t
        %y = sub %s, %l\n return %y\n}",
    );
}
#[test]
fn gelu_tanh() {
    one(
        Pointwise,
        "gelu-tanh",
        "graph g(%x: f32[16,64]) {
        %h = mul 0.5, %x\n %c = pow %x, 3.0\n %d = mul 0.044715, %c\n %i = add %x, %d\n %k = mul 0.7978845608028654, %i
        %t = tanh %k\n %o = add 1.0, %t\n %y = mul %h, %o\n return %y\n}",
    );
}
#[test]
fn gelu_erf() {
    one(Pointwise, "gelu-erf", "graph g(%x: f32[16,64]) {
        %a = div %x, 1.4142135623730951\n %e = erf %a\n %o = add %e, 1.0\n %h = mul %x, 0.5\n %y = mul %h, %o\n return %y\n}");
}
#[test]
fn layer_norm() {
    one(
        Reduction,
        "layer-norm",
        "graph g(%x: f32[4,16,64]) {
        @g: f32[64] = random(seed=1, scale=1.0)\n @b: f32[64] = random(seed=2, scale=1.0)
        %m = reduce.mean %x axes=[2]\n %c = sub %x, %m\n %q = pow %c, 2.0\n %v = reduce.mean %q axes=[2]
        %w = add %v, 1e-5\n %r = sqrt %w\n %n = div %c, %r\n %s = mul %n, @g\n %y = add %s, @b\n return %y\n}",
    );
}
#[test]
fn rms_norm() {
    one(
        Reduction,
        "rms-norm",
        "graph g(%x: f32[4,16,64]) {
        @g: f32[64] = random(seed=1, scale=1.0)
        %q = pow %x, 2.0\n %v = reduce.mean %q axes=[2]\n %w = add %v, 1e-6\n %r = rsqrt %w\n %n = mul %x, %r
        %y = mul @g, %n\n return %y\n}",
    );
}
#[test]
fn rms_norm_of_half_between_casts() {
    one(
        Reduction,
        "",
        "graph g(%x: bf16[4,16,64]) {
        @g: bf16[64] = random(seed=1, scale=1.0)
        %f = cast %x to=f32\n %q = pow %f, 2.0\n %v = reduce.mean %q axes=[2]\n %w = add %v, 1e-6\n %r = rsqrt %w
        %n = mul %f, %r\n %h = cast %n to=bf16\n %y = mul @g, %h\n return %y\n}",
    );
}
#[test]
fn residual_and_norm() {
    let p = checked(
        "graph g(%x: f32[4,16,64], %z: f32[4,16,64]) {
        @g: f32[64] = random(seed=1, scale=1.0)\n @b: f32[64] = random(seed=2, scale=1.0)
        %r = add %x, %z\n %n = layer_norm %r, @g, @b axes=1 affine=true eps=1e-5\n return %r, %n\n}",
    );
    assert_eq!((kinds(&p), p.kernels[0].outputs.len()), (vec![Reduction], 2), "{p}");
}
#[test]
fn rope() {
    one(
        Pointwise,
        "",
        "graph g(%q: f32[1,8,16,64], %cos: f32[1,1,16,64], %sin: f32[1,1,16,64]) {
        %a = slice %q axis=3 start=0 len=32 step=1\n %b = slice %q axis=3 start=32 len=32 step=1\n %n = neg %b
        %r = concat %n, %a axis=3\n %x = mul %q, %cos\n %z = mul %r, %sin\n %y = add %x, %z\n return %y\n}",
    );
}
#[test]
fn swiglu() {
    one(
        Pointwise,
        "silu",
        "graph g(%x: f32[16,128]) {
        %a = slice %x axis=1 start=0 len=64 step=1\n %b = slice %x axis=1 start=64 len=64 step=1
        %s = sigmoid %a\n %g = mul %a, %s\n %y = mul %g, %b\n return %y\n}",
    );
}
#[test]
fn linear_bias_gelu_is_one_matmul() {
    let text = "graph g(%x: f32[32,64]) {
        @w: f32[64,256] = random(seed=1, scale=0.1)\n @b: f32[256] = random(seed=2, scale=1.0)
        %d = dot %x, @w\n %l = add %d, @b
        %a = mul %l, 0.7071067811865476\n %e = erf %a\n %o = add %e, 1.0\n %h = mul %l, 0.5\n %y = mul %h, %o\n return %y\n}";
    one(Gemm, "gelu-erf", text);
}
#[test]
fn gate_and_up_are_one_matmul() {
    let p = checked(
        "graph g(%x: f32[32,64]) {
        @w: f32[128,64] = random(seed=1, scale=0.1)\n @u: f32[128,64] = random(seed=2, scale=0.1)
        %a = linear %x, @w\n %b = linear %x, @u\n %s = silu %a\n %y = mul %s, %b\n return %y\n}",
    );
    // Small: gate is read in the epilogue of up, or both matmuls are joined. Both take two launches, never three.
    assert_eq!(kinds(&p).len(), 2, "{p}");
}
/// Rows of a tensor-core matmul that fit a tile are reduced in its epilogue.
#[test]
fn rows_of_a_matmul_are_reduced_in_its_tile() {
    let plan = |dtype: &str, [m, n]: [usize; 2], lines: &str| {
        kinds(&checked(&format!(
            "graph g(%x: {dtype}[{m},64], %r: {dtype}[{m},{n}]) {{
            @w: {dtype}[{n},64] = random(seed=1, scale=0.1)\n @g: {dtype}[{n}] = fill(1.0)\n @b: {dtype}[{n}] = fill(0.5)
            %h = linear %x, @w, @b\n {lines}\n return %y\n}}"
        )))
    };
    let norm = "%s = add %h, %r\n %y = layer_norm %s, @g, @b eps=1e-5";
    let softmax = "%y = softmax %h axis=1";
    for lines in [softmax, norm, "%y = rms_norm %h, @g eps=1e-6", "%p = mul %h, %r\n %y = reduce.sum %p axes=[1]"] {
        assert_eq!(plan("bf16", [32, 100], lines), [Gemm], "{lines}");
    }
    assert_eq!(plan("f16", [32, 256], norm), [Gemm]);
    assert_eq!(plan("bf16", [32, 257], softmax), [Gemm, Reduction], "wider than a tile");
    assert_eq!(plan("bf16", [4, 64], softmax), [Gemm, Reduction], "no tiles");
    assert_eq!(plan("f32", [32, 64], softmax), [Gemm, Reduction], "FMAs");
    assert_eq!(plan("bf16", [32, 64], "%y = softmax %h axis=0"), [Gemm, Reduction], "columns");
    assert_eq!(plan("bf16", [32, 64], "%y = reduce.argmax %h axes=[1]"), [Gemm, Reduction], "places");
}
/// Two matmuls that share their left operand share a kernel on machines with dual GEMMs.
#[test]
fn pairs_of_matmuls_on_machines_that_have_them() {
    let gated = |d: &str, k: usize, left: &str| {
        graph(&format!(
            "graph g(%x: {d}[32,{k}], %o: {d}[32,{k}], %w: {d}[128,{k}], %u: {d}[128,{k}]) {{
            %a = linear %x, %w\n %b = linear {left}, %u\n %s = silu %a\n %y = mul %s, %b\n return %y\n}}"
        ))
    };
    let kernels = |g: &kiln_graph::Graph, machine: &str| {
        let machine = kiln_machine::machine(machine).expect("it is built in");
        let p = kiln_rewrite::plan(g, machine, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
        agrees(g, &p);
        p.kernels.len()
    };
    assert_eq!(kernels(&gated("bf16", 64, "%x"), "h200"), 1);
    assert_eq!(kernels(&gated("f16", 64, "%x"), "h200"), 1);
    for (g, machine) in [
        (gated("bf16", 64, "%x"), "a100"),
        (gated("bf16", 64, "%x"), "cpu"),
        (gated("f32", 64, "%x"), "h200"),
        // Rows that are no multiples of 16 bytes, and another left operand.
        (gated("bf16", 63, "%x"), "h200"),
        (gated("bf16", 64, "%o"), "h200"),
    ] {
        assert_eq!(kernels(&g, machine), 2, "{g}");
    }
    let glu = |start: usize| {
        graph(&format!(
            "graph g(%x: bf16[32,64], %w: bf16[256,64], %c: bf16[256]) {{
            %h = linear %x, %w, %c\n %a = slice %h axis=1 start=0 len=128\n %b = slice %h axis=1 start={start} len=128
            %s = sigmoid %b\n %y = mul %a, %s\n return %y\n}}"
        ))
    };
    assert_eq!((kernels(&glu(128), "h200"), kernels(&glu(128), "cpu"), kernels(&glu(64), "h200")), (1, 2, 2));
    let three = "graph g(%x: bf16[32,64], %w: bf16[128,64], %u: bf16[128,64], %v: bf16[128,64]) {
        %a = linear %x, %w\n %b = linear %x, %u\n %c = linear %x, %v\n %s = silu %a\n %y = mul %s, %b\n %z = add %y, %c\n return %z\n}";
    assert_eq!(kernels(&graph(three), "h200"), 2);
}
/// f32 matmuls are in tf32, or 3xTF32, where the contract allows it and the machine has it.
#[test]
fn tf32_only_where_it_is_allowed() {
    let g = graph(
        "graph g(%x: f32[32,64], %w: f32[64,64], %h: f64[32,64], %v: f64[64,64]) {
        %a = linear %x, %w\n %s = softmax %a axis=1\n %b = linear %h, %v\n return %s, %b\n}",
    );
    let tf32 = |contract: &str, machine: &str| {
        let contract: kiln_plan::Contract = contract.parse().expect("a contract");
        let machine = kiln_machine::machine(machine).expect("it is built in");
        let p = kiln_rewrite::plan(&g, machine, &Options { contract, fuse: true }).unwrap_or_else(|e| panic!("{e}"));
        let again: Plan = p.to_string().parse().unwrap();
        assert_eq!(again.to_string(), p.to_string());
        again.kernels.iter().filter_map(|k| k.precision.name()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((&tf32("fast", "h200")[..], &tf32("torch+splits", "h200")[..]), ("tf32", "tf32x3"));
    for (contract, machine) in [("exact", "h200"), ("torch", "h200"), ("torch+splits", "cpu"), ("fast", "cpu")] {
        assert_eq!(tf32(contract, machine), "");
    }
}
/// By PyTorch's defaults, convolutions of f32 are in tf32 and matmuls are not.
#[test]
fn convolutions_are_in_tf32_unless_exact() {
    let g = graph("graph g(%x: f32[2,8,9,9], %w: f32[16,8,3,3]) {\n %y = conv %x, %w padding=[1,1]\n return %y\n}");
    let precision = |contract: &str, machine: &str| {
        let machine = kiln_machine::machine(machine).expect("it is built in");
        let contract: kiln_plan::Contract = contract.parse().expect("a contract");
        let p = kiln_rewrite::plan(&g, machine, &Options { contract, fuse: true }).unwrap_or_else(|e| panic!("{e}"));
        p.kernels[0].precision.name()
    };
    assert_eq!(["torch", "fast", "torch+batch_invariant"].map(|c| precision(c, "h200")), [Some("tf32"); 3]);
    assert_eq!((precision("exact", "h200"), precision("torch", "cpu")), (None, None));
}
/// Sums of squared pairwise differences, where a plan may approximate: one matmul with everything else in its epilogue,
/// and a small kernel for the squares of each side.
#[test]
fn distances_by_matmuls() {
    use kiln_plan::Numerics::{Fast, Torch};
    // A slow ALU, so that arithmetic dominates as with more rows than the interpreter has time for.
    let mut machine = common::h200();
    machine.rates.alu = 1e11;
    let planned = |text: &str, numerics: kiln_plan::Numerics| {
        let contract = numerics.into();
        kiln_rewrite::plan(&graph(text), &machine, &Options { contract, fuse: true }).unwrap_or_else(|e| panic!("{e}"))
    };
    let far = "%d = sub %x, %y\n %s = mul %d, %d\n";
    for dtype in ["f32", "bf16", "f16"] {
        for text in [
            format!(
                "(%a: {dtype}[300,64], %b: {dtype}[200,64]) {{ %x = reshape %a shape=[300,1,64]\n
                %y = broadcast %b shape=[300,200,64]\n {far} %t = reduce.sum %s axes=[2]\n %r = sqrt %t\n return %r }}"
            ),
            format!(
                "(%x: {dtype}[3,1,64,90], %y: {dtype}[3,70,64,1]) {{ {far} %r = reduce.sum %s axes=[2]\n return %r }}"
            ),
        ] {
            let text = format!("graph g{text}");
            let p = planned(&text, Fast);
            agrees(&graph(&text), &p);
            // Half types are widened first.
            let most = if dtype == "f32" { 3 } else { 5 };
            assert!(kinds(&p).contains(&Gemm) && kinds(&p).len() <= most, "{p}");
            assert!(rules(&p).contains(&"distance-by-matmul"), "{p}");
            assert_eq!(kinds(&planned(&text, Torch)), [Reduction], "{text}");
        }
    }
}
#[test]
fn siblings_join_only_with_frozen_weights() {
    let p = checked(
        "graph g(%x: f32[32,64], %w: f32[128,64], %u: f32[128,64]) {
        %a = linear %x, %w\n %b = linear %x, %u\n return %a, %b\n}",
    );
    assert_eq!(kinds(&p), [Gemm, Gemm]);
}

#[test]
fn batch_norm_folds_into_a_convolution() {
    let p = checked(
        "graph g(%x: f32[1,3,8,8]) {
        @w: f32[4,3,3,3] = random(seed=1, scale=0.3)\n @g: f32[4] = random(seed=2, scale=1.0)
        @b: f32[4] = random(seed=3, scale=1.0)\n @m: f32[4] = random(seed=4, scale=1.0)\n @v: f32[4] = fill(1.5)
        %c = conv %x, @w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]
        %n = batch_norm %c, @g, @b, @m, @v eps=1e-5\n %y = relu %n\n return %y\n}",
    );
    assert_eq!(kinds(&p), [Conv], "{p}");
    assert!(rules(&p).contains(&"batch-norm-into-convolution"));
}
#[test]
fn a_fallback_stands_alone_with_its_results() {
    let g = graph(
        "graph g(%x: f32[4,8]) {
        %t = tanh %x
        %f = fallback %t name=\"aten::topk\" overload=\"\" args=\"[{\\\"tensor\\\":0}, 2]\" results=[f32[4,2], i64[4,2]] why=\"a test\"
        %i = result %f index=1\n %e = exp %f\n return %e, %i\n}",
    );
    let p = plan_with(&g, Options::default());
    assert_eq!(kinds(&p), [Pointwise, Fallback, Pointwise]);
    // The time of libtorch is unknown: there is no prediction, and the total leaves it out.
    let us: Vec<Option<f64>> = p.kernels.iter().map(|k| k.cost.us).collect();
    assert!(matches!(us[..], [Some(a), None, Some(b)] if (p.predicted_us() - a - b).abs() < 1e-9), "{us:?}");
    assert!(p.to_string().contains("us=unknown"), "{p}");
    assert_eq!(p.to_string().parse::<kiln_plan::Plan>().map(|again| again.to_string()), Ok(p.to_string()));
    // A plan may also be read from a file.
    let attack = p.to_string().replace("aten::topk", "aten::from_file").parse::<kiln_plan::Plan>();
    let e = attack.map(|p| p.to_string()).expect_err("refused").to_string();
    assert!(e.contains("`aten::from_file` is not among the operators"), "{e}");
}
#[test]
fn same_graph_same_plan() {
    let text = self_attention("f32", "%d = dot %q, %kt\n %e = div %d, 4.0\n %s = add %e, %m");
    let first = fused(&text).to_string();
    for _ in 0..3 {
        assert_eq!(fused(&text).to_string(), first);
    }
}

/// Where two kernels would compute the mean, one stores it: the image is read once for mean and deviation, and once to
/// be normalised.
#[test]
fn values_that_several_kernels_compute_are_stored() {
    let p = fused(
        "graph g(%x: f32[64,64,112,112]) {
        %m = reduce.mean %x axes=[0,2,3]\n %d = sub %x, %m\n %q = mul %d, %d\n %v = reduce.mean %q axes=[0,2,3]
        %e = const 1e-5 : f32[]\n %w = add %v, %e\n %s = rsqrt %w\n %y = mul %d, %s\n return %y\n}",
    );
    assert_eq!(kinds(&p), [Reduction, Pointwise], "{p}");
    assert_eq!(p.kernels[0].outputs.len(), 2, "{p}");
}
