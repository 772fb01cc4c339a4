//! Decompositions compute the same as their composites: in f64, and with the same roundings in f32 and bf16.
use kiln_graph::{Graph, Tensor, UnaryOp, decompose, random_tensor, text};
use kiln_interp::graph::{Precision, no_fallback, run, run_with};

fn inputs(g: &Graph) -> Vec<Tensor> {
    g.inputs.iter().enumerate().map(|(i, v)| random_tensor(g.ty(*v).clone(), i as u64 + 7, 1.0)).collect()
}

/// `line` defines `%y` from inputs %a, %b, … of the given types.
fn check(types: &[&str], line: &str) {
    for dtype in ["f32", "bf16"] {
        let names: Vec<String> =
            types.iter().zip('a'..).map(|(t, n)| format!("%{n}: {}", t.replace("f32", dtype))).collect();
        let source = format!("graph g({}) {{ %y = {line} return %y }}", names.join(", "));
        let whole = text::parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
        let apart = decompose::decompose_all(&whole, |_| true).unwrap_or_else(|e| panic!("{e}\n{source}"));
        apart.verify().unwrap_or_else(|e| panic!("{e}\n{apart}"));
        assert!(apart.values().all(|v| !decompose::is_composite(apart.op(v))), "{apart}");
        assert_eq!(whole.ty(whole.outputs[0]), apart.ty(apart.outputs[0]), "{apart}");
        // Variances are positive.
        let mut x = inputs(&whole);
        if line.starts_with("batch_norm") {
            let v = x[4].to_f64_vec().into_iter().map(f64::abs);
            x[4] = Tensor::from_f64(x[4].ty.clone(), v);
        }
        let outs = |g: &Graph, p| run_with(g, &x, &[], p, &mut no_fallback).unwrap().remove(0).to_f64_vec();
        let close = |p, tolerance: f64| {
            for (i, (a, b)) in outs(&whole, p).into_iter().zip(outs(&apart, p)).enumerate() {
                let ok = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * a.abs().max(1.0);
                assert!(ok, "{line} {dtype} {p:?}: element {i} is {a} whole, {b} apart\n{apart}");
            }
        };
        close(Precision::F64, 1e-9);
        close(Precision::Native, if dtype == "f32" { 1e-5 } else { 0.008 });
        // The decomposition also runs natively without an error.
        run(&apart, &x, &[], &mut no_fallback).unwrap();
    }
}

#[test]
fn named_functions() {
    for op in UnaryOp::ALL.into_iter().filter(|op| op.is_composite()) {
        check(&["f32[3,50]"], &format!("{} %a", op.name()));
    }
}

#[test]
fn softmax_and_norms() {
    check(&["f32[4,7]"], "softmax %a axis=1");
    check(&["f32[4,7,2]"], "softmax %a axis=1");
    check(&["f32[4,0]"], "softmax %a axis=1");
    check(&["f32[4,7]"], "log_softmax %a axis=0");
    check(&["f32[2,4,7]"], "layer_norm %a axes=2 eps=1e-5");
    check(&["f32[2,4,7]", "f32[7]", "f32[7]"], "layer_norm %a, %b, %c eps=1e-5");
    check(&["f32[2,4,7]", "f32[7]"], "rms_norm %a, %b eps=1e-6");
    check(&["f32[2,6,3,3]", "f32[6]", "f32[6]"], "group_norm %a, %b, %c groups=3 eps=1e-5");
    check(&["f32[2,6]"], "group_norm %a groups=2 eps=1e-5");
    check(&["f32[2,3,4,5]", "f32[3]", "f32[3]", "f32[3]", "f32[3]"], "batch_norm %a, %b, %c, %d, %e eps=1e-5");
}

#[test]
fn linear_and_attention() {
    check(&["f32[5,8]", "f32[3,8]"], "linear %a, %b");
    check(&["f32[2,5,8]", "f32[3,8]", "f32[3]"], "linear %a, %b, %c");
    check(&["f32[8]", "f32[3,8]", "f32[3]"], "linear %a, %b, %c");
    check(&["f32[2,4,5,8]", "f32[2,4,6,8]", "f32[2,4,6,3]"], "attention %a, %b, %c scale=0.3");
    check(&["f32[4,5,8]", "f32[4,5,8]", "f32[4,5,8]"], "attention %a, %b, %c scale=0.3 causal=true");
    check(&["f32[2,4,5,8]", "f32[2,2,6,8]", "f32[2,2,6,3]"], "attention %a, %b, %c scale=0.3 causal=true");
    check(&["f32[1,2,3,4]", "f32[1,2,5,4]", "f32[1,2,5,4]", "bool[3,5]"], "attention %a, %b, %c, %d scale=0.5");
    let line = "attention %a, %b, %c, %d scale=0.5 fully_masked=nan";
    check(&["f32[1,2,13,4]", "f32[1,2,2,4]", "f32[1,2,2,4]", "bool[13,2]"], line);
    check(&["f32[1,4,3,4]", "f32[1,2,5,4]", "f32[1,2,5,4]", "f32[1,1,3,5]"], "attention %a, %b, %c, %d scale=0.5");
    check(&["f32[1,4,3,4]", "f32[1,2,5,4]", "f32[1,2,5,4]", "f32[4,1,5]"], "attention %a, %b, %c, %d scale=0.5");
    check(&["f32[1,2,3,4]", "f32[1,2,0,4]", "f32[1,2,0,4]"], "attention %a, %b, %c scale=0.5");
    let line = "attention %a, %b, %c, %d scale=0.5 sink=true";
    check(&["f32[2,4,5,8]", "f32[2,2,6,8]", "f32[2,2,6,3]", "f32[4,1,1]"], line);
    check(&["f32[4,5,8]", "f32[4,6,8]", "f32[4,6,3]", "f32[5,1]"], &format!("{line} causal=true"));
    check(&["f32[1,2,3,4]", "f32[1,2,0,4]", "f32[1,2,0,4]", "f32[1]"], line);
    for masked in ["zero", "nan"] {
        let line = format!("attention %a, %b, %c, %d, %e scale=0.5 sink=true fully_masked={masked}");
        check(&["f32[1,4,13,4]", "f32[1,2,2,4]", "f32[1,2,2,4]", "f32[4,13,1]", "bool[13,2]"], &line);
    }
}

#[test]
fn convolutions() {
    let conv = |x: &str, w: &str, rest: &str| {
        check(&[x, w], &format!("conv %a, %b {rest}"));
        let source = format!("graph g(%a: {x}, %b: {w}) {{ %y = conv %a, %b {rest} return %y }}");
        let g = text::parse(&source).unwrap();
        let outs = g.shape(g.outputs[0])[1];
        check(&[x, w, &format!("f32[{outs}]")], &format!("conv %a, %b, %c {rest}"));
    };
    conv("f32[2,3,7]", "f32[4,3,3]", "padding=[1]");
    conv("f32[2,3,8,9]", "f32[4,3,3,2]", "stride=[2,3] padding=[1,0] dilation=[2,1]");
    conv("f32[1,3,8,8]", "f32[5,3,4,4]", "stride=[4,4]");
    conv("f32[1,3,9,8]", "f32[5,3,4,4]", "stride=[4,4]");
    conv("f32[2,4,5,5]", "f32[6,2,3,3]", "groups=2 padding=[1,1]");
    conv("f32[2,4,5,5]", "f32[4,1,3,3]", "groups=4");
    conv("f32[1,2,4,4,4]", "f32[3,2,2,2,2]", "stride=[2,2,2]");
    conv("f32[1,4,3,5]", "f32[4,3,3,2]", "transposed=true stride=[2,3] padding=[1,0] output_padding=[1,2]");
    conv("f32[1,4,3]", "f32[4,1,3]", "transposed=true groups=2 stride=[2] dilation=[2] padding=[3]");
    conv("f32[1,1,6]", "f32[1,1,1]", "stride=[2]");
}

#[test]
fn pools() {
    for kind in ["pool.max %a", "pool.avg %a count_pad=true", "pool.avg %a count_pad=false"] {
        check(&["f32[2,3,7,8]"], &format!("{kind} window=[3,2] stride=[2,1] padding=[1,1]"));
        check(&["f32[2,3,7,8]"], &format!("{kind} window=[3,3] stride=[2,2] padding=[1,1] ceil=true"));
        check(&["f32[3,10]"], &format!("{kind} window=[3] stride=[4] ceil=true"));
        check(&["f32[2,3,4]"], &format!("{kind} window=[3,4]"));
    }
    check(&["f32[2,3,7,8]"], "pool.max %a window=[2,2] stride=[1,1] dilation=[3,2]");
}
