//! The kernels of well-known blocks, written in primitives as models write them.
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

/// Self-attention in primitives over `[B,S,H·D]`; `scale` and `mask` are lines that take `%k…` to `%s`.
fn attention(dtype: &str, scores: &str) -> String {
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
fn attention_however_it_is_scaled_and_masked() {
    for scores in [
        "%d = dot %q, %kt\n %e = div %d, 4.0\n %s = add %e, %m",
        "%d = dot %q, %kt\n %e = mul 0.25, %d\n %s = add %m, %e",
        "%d = dot %q, %kt\n %e = div %d, 5.0\n %s = add %m, %e",
        "%q2 = mul %q, 0.25\n %d = dot %q2, %kt\n %s = add %d, %m",
        "%k2 = mul %kt, 0.25\n %s = dot %q, %k2",
        "%q2 = mul %q, 0.5\n %k2 = mul %kt, 0.5\n %d = dot %q2, %k2\n %s = add %d, %m",
        "%s = dot %q, %kt",
        "%d = dot %q, %kt\n %e = div %d, 4.0\n %c = lt %m, 0.0\n %s = select %c, %e, -inf",
        "%d = dot %q, %kt\n %e = div %d, 4.0\n %c = lt %m, 0.0\n %s = select %c, %e, -3.4028234663852886e38",
        "%d = dot %q, %kt\n %e = div %d, 4.0\n %c = lt %m, 0.0\n %s = select %c, -inf, %e",
        "%d = dot %q, %kt\n %e = div %d, 4.0\n %c = lt %m, 0.0\n %s = select %c, -3.4028234663852886e38, %e",
        // No key counts: the softmax is NaN.
        "%d = dot %q, %kt\n %e = div %d, 4.0\n %c = lt %m, -9.0\n %s = select %c, %e, -inf",
        "%d = dot %q, %kt\n %c = lt %m, -9.0\n %n = select %c, %m, -inf\n %s = add %d, %n",
    ] {
        let text = attention("f32", scores);
        let g = graph(&text);
        let p = plan_with(&g, Options::default());
        let k: Vec<_> = kinds(&p).into_iter().filter(|k| *k != Pointwise).collect();
        assert_eq!(k, [Gemm, Attention, Gemm], "QKV; attention; output and residual\n{scores}\n{p}");
        agrees(&g, &p);
        assert!(!kinds(&exact(&text)).contains(&Attention));
    }
}
/// As the core form of `scaled_dot_product_attention`: batches and heads in one axis, and zeros for queries without a
/// key.
#[test]
fn attention_whose_masked_queries_are_zero() {
    for (mask, everything) in [
        ("%z = const 0.0 : f32[]\n %n = select %c, %z, -inf\n %s = add %d, %n", false),
        ("%s = select %c, %d, -inf", true),
    ] {
        let blind = if everything {
            "%e = eq %s, -inf\n %b = reduce.all %e axes=[3]"
        } else {
            "%e = eq %s, -inf\n %f = not %e\n %g = reduce.any %f axes=[3]\n %b = not %g"
        };
        for low in ["0.0", "-9.0"] {
            let p = checked(&format!(
                "graph g(%q: f32[2,4,16,16], %k: f32[2,4,16,16], %v: f32[2,4,16,16], %m: f32[2,1,1,16]) {{
                %q1 = mul %q, 0.5\n %q2 = reshape %q1 shape=[8,16,16]\n %kt = permute %k perm=[0,1,3,2]\n %k1 = mul %kt, 0.5
                %k2 = reshape %k1 shape=[8,16,16]\n %d1 = dot %q2, %k2\n %d = reshape %d1 shape=[2,4,16,16]\n %c = lt %m, {low}
                {mask}\n {blind}\n %p1 = softmax %s axis=3\n %p2 = select %b, 0.0, %p1\n %p = reshape %p2 shape=[8,16,16]
                %v1 = reshape %v shape=[8,16,16]\n %a = dot %p, %v1\n %y = reshape %a shape=[2,4,16,16]\n return %y\n}}"
            ));
            let kinds: Vec<_> = kinds(&p).into_iter().filter(|k| *k != Pointwise).collect();
            assert_eq!(kinds, [Attention], "{mask}\n{p}");
        }
    }
}
/// Causal masks as models make them, of ones that `triu` or `tril` keep: attention computes them from indices.
#[test]
fn attention_computes_a_causal_mask() {
    let parts = "%t = const true : bool[]\n %f = const false : bool[]\n %one = const 1.0 : f32[]\n %zero = const 0.0 : f32[]
        %r = iota axis=0 : i64[16,1]\n %k1 = iota axis=1 : i64[1,16]\n %n = add %r, 1\n %late = ge %k1, %n\n %early = le %k1, %r";
    for mask in [
        "%u = select %late, %t, %f\n %s = select %u, -inf, %e",
        "%u = select %early, %t, %f\n %s = select %u, %e, -inf",
        "%u = select %early, %one, %zero\n %c = eq %u, %zero\n %s = select %c, -inf, %e",
        "%u = select %late, %one, %zero\n %c = gt %u, %zero\n %s = select %c, -inf, %e",
        "%s = select %late, -inf, %e",
    ] {
        let p = checked(&format!(
            "graph g(%q: f32[2,4,16,16], %k: f32[2,4,16,16], %v: f32[2,4,16,16]) {{\n {parts}
            %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n %e = div %d, 4.0\n {mask}
            %p = softmax %s axis=3\n %y = dot %p, %v\n return %y\n}}"
        ));
        assert_eq!(kinds(&p), [Attention], "{mask}\n{p}");
    }
}
/// Zeros in other places than those of queries without a key are no attention.
#[test]
fn softmax_with_zeros_elsewhere_is_no_attention() {
    for blind in ["%e = eq %s, -inf\n %b = reduce.any %e axes=[3]", "%e = eq %d, -inf\n %b = reduce.all %e axes=[3]"] {
        let p = checked(&format!(
            "graph g(%q: f32[2,4,16,16], %k: f32[2,4,16,16], %v: f32[2,4,16,16], %m: f32[2,1,1,16]) {{
            %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n %c = lt %m, 0.0\n %s = select %c, %d, -inf\n {blind}
            %p1 = softmax %s axis=3\n %p = select %b, 0.0, %p1\n %y = dot %p, %v\n return %y\n}}"
        ));
        assert!(!kinds(&p).contains(&Attention), "{blind}\n{p}");
    }
}
#[test]
fn attention_with_softmax_in_f32_of_half() {
    let scores = "%d = dot %q, %kt\n %e = mul %d, 0.25\n %f = add %e, %m";
    let text = attention("bf16", scores)
        .replace("%p = softmax %s axis=3", "%f2 = cast %f to=f32\n %f3 = softmax %f2 axis=3\n %p = cast %f3 to=bf16");
    let p = checked(&text);
    assert_eq!(kinds(&p), [Gemm, Attention, Gemm], "{p}");
}
/// Half types as PyTorch's operators multiply them by numbers that they do not have: in f32. Scores are f32 in the
/// kernel, so roundings of half types between the matmul and the softmax are left out.
#[test]
fn attention_of_half_types_scaled_in_f32() {
    let wide = "%d32 = cast %d to=f32\n %e32 = mul %d32, 0.2041241452319315\n %e = cast %e32 to=T";
    let causal =
        "%r = iota axis=0 : i64[20,1]\n %j = iota axis=1 : i64[1,20]\n %late = gt %j, %r\n %zero = const 0.0 : T[]
        %low = const -60416.0 : T[]";
    let soft = "%p = softmax %s axis=3";
    let soft32 = "%s32 = cast %s to=f32\n %p32 = softmax %s32 axis=3\n %p = cast %p32 to=T";
    let lines = [
        format!("%d = dot %q, %kt\n {wide}\n %s = mul %e, 1.0\n {soft}"),
        format!("%d = dot %q, %kt\n %d32 = cast %d to=f32\n %e32 = div %d32, 4.898979\n %s = cast %e32 to=T\n {soft}"),
        format!("%d = dot %q, %kt\n {wide}\n %s = add %e, %m\n {soft32}"),
        format!("%d = dot %q, %kt\n {wide}\n {causal}\n %s = select %late, -inf, %e\n {soft32}"),
        format!("%d = dot %q, %kt\n {wide}\n {causal}\n %c = select %late, %low, %zero\n %s = add %e, %c\n {soft}"),
        format!("%d = dot %q, %kt\n {wide}\n {causal}\n %a = add %e, %m\n %s = select %late, -inf, %a\n {soft}"),
        format!("%d = dot %q, %kt\n {wide}\n {causal}\n %a = select %late, -inf, %e\n %s = add %m, %a\n {soft}"),
        format!(
            "%d = dot %q, %kt\n {wide}\n {causal}\n %n = lt %m, 1.5\n %a = select %late, -inf, %e\n \
             %s = select %n, %a, -inf\n {soft}"
        ),
        // Scores stay in f32 up to the softmax.
        "%d = dot %q, %kt\n %d32 = cast %d to=f32\n %e32 = mul %d32, 0.2041241452319315\n %m32 = cast %m to=f32\n %s = add %e32, %m32
         %p32 = softmax %s axis=3\n %p = cast %p32 to=T"
            .to_string(),
        // The queries are scaled.
        format!(
            "%q32 = cast %q to=f32\n %q33 = mul %q32, 0.2041241452319315\n %q3 = cast %q33 to=T\n %s = dot %q3, %kt\n \
             {soft}"
        ),
    ];
    for lines in lines {
        for dtype in ["bf16", "f16"] {
            let text = format!(
                "graph g(%q: T[2,2,20,24], %k: T[2,2,20,24], %v: T[2,2,20,24], %m: T[2,1,1,20]) {{
                %kt = permute %k perm=[0,1,3,2]\n {lines}\n %y = dot %p, %v\n return %y\n}}"
            );
            let text = text.replace("T[", &format!("{dtype}[")).replace("=T", &format!("={dtype}"));
            let p = checked(&text);
            assert_eq!(kinds(&p), [Attention], "{text}\n{p}");
            assert!(!kinds(&exact(&text)).contains(&Attention));
        }
    }
}
/// What is made of a score by pointwise steps is attention's, before a mask: soft caps, tensors that scale, limits.
#[test]
fn attention_of_score_functions() {
    let causal = "%r = iota axis=0 : i64[20,1]\n %j = iota axis=1 : i64[1,20]\n %late = gt %j, %r";
    let cap = "%c1 = div %e, 5.0\n %c2 = tanh %c1\n %c = mul %c2, 5.0";
    let cases = [
        (format!("%e = mul %d, 0.204\n {cap}\n %s = mul %c, 1.0"), "mul 5"),
        (format!("%e = mul %d, 0.204\n {cap}\n %s = add %c, %m"), "tanh"),
        (format!("%e = mul %d, 0.204\n {cap}\n {causal}\n %s = select %late, -inf, %c"), "tanh"),
        (format!("%e = mul %d, 0.204\n {cap}\n {causal}\n %a = add %c, %m\n %s = select %late, -inf, %a"), "tanh"),
        ("%s = mul %d, %scale".into(), "mul operand"),
        ("%s = mul %one, %d".into(), "mul operand"),
        ("%s = div %d, %root".into(), "operand"),
        ("%e = mul %d, %scale\n %s = add %e, %m".into(), "mul operand"),
        (
            format!("%e = mul %scale, %d\n {cap}\n %f = div %c, %root\n {causal}\n %s = select %late, -inf, %f"),
            "tanh, mul 5.0",
        ),
        ("%e = sub %d, %scale\n %f = max %e, -1.0\n %s = min %f, %one".into(), "sub operand, max -1.0, min operand"),
        ("%e = mul %d, 0.204\n %f = silu %e\n %s = add %f, %m".into(), "silu"),
    ];
    for (lines, steps) in &cases {
        for dtype in ["f32", "bf16"] {
            let text = format!(
                "graph g(%q: T[2,2,20,24], %k: T[2,2,20,24], %v: T[2,2,20,24], %m: T[2,1,1,20], %scale: T[2,1,1], %one: T[]) {{
                %big = exp %one\n %root = sqrt %big\n %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n {lines}
                %p = softmax %s axis=3\n %y = dot %p, %v\n return %y\n}}"
            );
            let g = graph(&text.replace("T[", &format!("{dtype}[")));
            let host = kiln_rewrite::plan(&g, Arch::Cpu.machine(), &Options::default()).unwrap();
            assert!(!kinds(&host).contains(&Attention), "the host's attention has no score function\n{host}");
            let p = plan_with(&g, Options::default());
            agrees(&g, &p);
            let kernels: Vec<_> = kinds(&p).into_iter().filter(|k| *k != Pointwise).collect();
            assert_eq!(kernels, [Attention], "{lines}\n{p}");
            let root = usize::from(lines.contains("root") && p.kernels.len() > 1);
            assert_eq!(p.kernels.len(), 1 + root, "{lines}\n{p}");
            assert!(p.to_string().contains(steps), "{lines}\n{p}");
        }
    }
}
/// Windows of an image, as Swin computes them: a bias of each head, and a mask of each window, which a view of the
/// scores has an axis for.
#[test]
fn attention_of_windows() {
    for dtype in ["f32", "bf16"] {
        let text = "graph g(%q: T[6,2,20,24], %k: T[6,2,20,24], %v: T[6,2,20,24], %b: T[2,20,20], %m: T[3,20,20]) {
            %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n %e = mul %d, 0.25\n %s1 = add %e, %b
            %s2 = reshape %s1 shape=[2,3,2,20,20]\n %m1 = reshape %m shape=[1,3,1,20,20]\n %s3 = add %s2, %m1
            %s = reshape %s3 shape=[6,2,20,20]\n %p = softmax %s axis=3\n %y = dot %p, %v\n return %y\n}";
        let p = checked(&text.replace("T[", &format!("{dtype}[")));
        assert_eq!(kinds(&p), [Attention], "{p}");
    }
}
/// Steps after a mask are not the score function's; nor is a function of two scores.
#[test]
fn other_functions_of_scores_are_no_attention() {
    for lines in [
        "%c = lt %m, 0.0\n %e = select %c, %d, -inf\n %s = tanh %e",
        "%e = tanh %d\n %s = mul %e, %d",
        "%e = add %d, %m\n %s = mul %e, 2.0",
        "%f = gt %d, %m\n %s = select %f, %d, %m",
    ] {
        let p = checked(&format!(
            "graph g(%q: f32[2,2,20,24], %k: f32[2,2,20,24], %v: f32[2,2,20,24], %m: f32[2,1,1,20]) {{
            %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n {lines}\n %p = softmax %s axis=3\n %y = dot %p, %v
            return %y\n}}"
        ));
        assert!(!kinds(&p).contains(&Attention), "{lines}\n{p}");
    }
}
#[test]
fn heads_shared_by_groups_of_queries_are_not_copied() {
    let p = checked("graph g(%q: f32[1,8,16,16], %k: f32[1,2,16,16], %v: f32[1,2,16,16]) {
        %k1 = reshape %k shape=[1,2,1,16,16]\n %k2 = broadcast %k1 shape=[1,2,4,16,16]\n %k3 = reshape %k2 shape=[1,8,16,16]
        %v1 = reshape %v shape=[1,2,1,16,16]\n %v2 = broadcast %v1 shape=[1,2,4,16,16]\n %v3 = reshape %v2 shape=[1,8,16,16]
        %kt = permute %k3 perm=[0,1,3,2]\n %d = dot %q, %kt\n %s = mul %d, 0.25\n %p = softmax %s axis=3\n %y = dot %p, %v3
        return %y\n}");
    assert_eq!(kinds(&p), [Attention], "{p}");
    assert_eq!(p.kernels[0].cost.bytes_read, 4 * (8 + 2 + 2) * 256);
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
    let text = attention("f32", "%d = dot %q, %kt\n %e = div %d, 4.0\n %s = add %e, %m");
    let first = fused(&text).to_string();
    for _ in 0..3 {
        assert_eq!(fused(&text).to_string(), first);
    }
}

/// Attention over a cache of 64 keys under a mask `%m`, which `lines` compute from `%p` or `%n`.
fn cached(lines: &str, layers: usize) -> String {
    let layer = |i: usize| format!("%a{i} = attention %q, %k, %v, %m scale={}.5 fully_masked=nan\n", i + 1);
    let results: Vec<String> = (0..layers).map(|i| format!("%a{i}")).collect();
    format!(
        "graph g(%q: f32[2,4,3,16], %k: f32[2,2,64,16], %v: f32[2,2,64,16], %p: i64[3,1], %n: bool[2,1,1,64]) {{
        %t = iota axis=1 : i64[1,64]\n {lines}\n {}return {}\n}}",
        (0..layers).map(layer).collect::<String>(),
        results.join(", ")
    )
}
/// A mask that ends the keys by a comparison belongs to the kernel of each attention that it masks, which reads the
/// positions.
#[test]
fn attention_computes_a_mask_that_ends_the_keys() {
    for lines in [
        "%m = le %t, %p",
        "%m = gt %p, %t",
        "%c = le %t, %p\n %m = and %c, %n",
        "%c = gt %t, %p\n %m = not %c",
        "%c = le %t, %p\n %c1 = reshape %c shape=[1,1,3,64]\n %m = broadcast %c1 shape=[2,4,3,64]",
        "%c = le %t, %p\n %zero = const 0.0 : f32[]\n %m = select %c, %zero, -inf",
        "%t1 = iota axis=0 : i64[64]\n %t2 = reshape %t1 shape=[1,1,1,64]\n %m = le %t2, %p",
    ] {
        for layers in [1, 3] {
            let g = graph(&cached(lines, layers));
            let p = plan_with(&g, Options::default());
            assert_eq!(kinds(&p), vec![Attention; layers], "{lines}\n{p}");
            agrees(&g, &p);
        }
    }
}
/// A mask of few operations on indices and small vectors is computed for each score, whatever its form.
#[test]
fn attention_computes_masks_of_indices() {
    for lines in [
        "%m = ge %t, %p",
        "%c = le %t, %p\n %m = or %c, %n",
        "%m = not %n",
        "%t1 = cast %n to=i64\n %m = le %t1, %p",
        "%r = iota axis=0 : i64[3,1]\n %m = le %r, %p",
        "%r = iota axis=0 : i64[3,1]\n %m = le %t, %r",
        "%r = iota axis=0 : i64[3,1]\n %c = le %t, %r\n %d = sub %r, %t\n %w = lt %d, 2\n %m = and %c, %w",
        "%r = iota axis=0 : i64[3,1]\n %d = sub %t, %r\n %f = cast %d to=f32\n %m = mul %slope, %f",
        "%r = iota axis=0 : i64[3,1]\n %d = sub %t, %r\n %f = cast %d to=f32\n %a = mul %slope, %f\n %c = le %t, %r
         %m = select %c, %a, -inf",
    ] {
        let g = graph(&cached(lines, 2).replace("%n: bool", "%slope: f32[4,1,1], %n: bool"));
        let p = plan_with(&g, Options::default());
        assert_eq!(kinds(&p), [Attention, Attention], "{lines}\n{p}");
        assert_eq!(p.kernels.len(), 2, "nothing is computed at load time\n{p}");
        agrees(&g, &p);
    }
}
/// Masks at the sizes of language models: none of them is in memory, neither from a run nor from load time.
#[test]
fn masks_of_indices_are_not_stored() {
    let parts = "%r = iota axis=0 : i64[4096,1]\n %t = iota axis=1 : i64[1,4096]\n %zero = const 0.0 : bf16[]\n %causal = le %t, %r
        %dist = sub %r, %t\n %near = lt %dist, 1024\n %dq = reshape %doc shape=[4,1,4096,1]\n %dk = reshape %doc shape=[4,1,1,4096]";
    for (lines, mask) in [
        ("", "causal"),
        ("%m = and %causal, %near", "m"),
        ("%early = lt %t, %prefix\n %m = or %causal, %early", "m"),
        ("%same = eq %dq, %dk\n %m = and %same, %causal", "m"),
        ("%same = eq %dq, %dk\n %c = and %same, %causal\n %m = select %c, %zero, -inf", "m"),
        ("%f = cast %dist to=bf16\n %m = mul %slope, %f", "m"),
        ("%f = cast %dist to=bf16\n %a = mul %slope, %f\n %m = select %causal, %a, -inf", "m"),
    ] {
        for layers in [1, 3] {
            let attention: String =
                (0..layers).map(|i| format!("%y{i} = attention %q, %k, %v, %{mask} scale={}.5\n", i + 1)).collect();
            let results: Vec<String> = (0..layers).map(|i| format!("%y{i}")).collect();
            let g = graph(&format!(
                "graph g(%q: bf16[4,32,4096,128], %k: bf16[4,8,4096,128], %v: bf16[4,8,4096,128], %doc: i64[4,4096],
                %prefix: i64[4,1,1,1], %slope: bf16[32,1,1]) {{
                {parts}\n {lines}\n {attention} return {}\n}}",
                results.join(", ")
            ));
            for arch in [Arch::Sm90a, Arch::Cpu] {
                let p = kiln_rewrite::plan(&g, arch.machine(), &Options::default()).unwrap();
                assert_eq!(kinds(&p), vec![Attention; layers], "{lines}\n{p}");
                assert_eq!(p.kernels.len(), layers, "{lines}\n{p}");
            }
        }
    }
}
/// A mask of many operations that all heads share is computed once.
#[test]
fn attention_reads_masks_that_cost_more() {
    let steps: String = (0..40).map(|i| format!("%s{} = sin %s{i}\n", i + 1)).collect();
    let p = fused(&format!(
        "graph g(%q: bf16[4,32,4096,128], %k: bf16[4,32,4096,128], %v: bf16[4,32,4096,128], %s0: bf16[4096,4096]) {{
        {steps}%y = attention %q, %k, %v, %s40 scale=0.1\n return %y\n}}"
    ));
    assert_eq!(kinds(&p), [Pointwise, Attention], "{p}");
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
