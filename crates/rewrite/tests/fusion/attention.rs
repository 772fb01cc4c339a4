//! Attention, however its scores are scaled and masked, and what is none.
use super::*;

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
        let text = self_attention("f32", scores);
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
    let text = self_attention("bf16", scores)
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
