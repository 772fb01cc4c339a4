//! Exact numerics: fused chains of the operations that IEEE 754 defines give the same bits as PyTorch's eager
//! operators.
use kiln::{CompileOptions, DType, Graph, Model, Numerics, Target, Tensor, Torch, eager};
use kiln::{compile::CompiledCode, compile::DeviceKind, compile::open_device};
use kiln_difftest::{chains::chain, programs};
use kiln_graph::{Op, Type};
use kiln_interp::graph::no_fallback;

fn torch() -> Torch {
    Torch::load()
        .unwrap_or_else(|e| panic!("this test compares with libtorch: run scripts/setup and scripts/test\n{e}"))
}

fn same(g: &Graph, want: &[Tensor], got: &[Tensor]) -> Result<(), String> {
    assert_eq!(want.len(), got.len());
    for (o, (w, t)) in want.iter().zip(got).enumerate() {
        assert_eq!(w.ty, t.ty);
        let differs = |i: &usize| {
            let (a, b) = (w.get_f64(*i), t.get_f64(*i));
            a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()) || w.get_i64(*i) != t.get_i64(*i)
        };
        if let Some(i) = (0..w.ty.count()).find(differs) {
            let (g_, w_) = (t.get_f64(i), w.get_f64(i));
            return Err(format!("output {o} element {i}: {g_:e}, should be {w_:e}\n{g}"));
        }
    }
    Ok(())
}

fn exact(target: Target) -> CompileOptions {
    CompileOptions { target, contract: Numerics::Exact.into(), ..CompileOptions::default() }
}
fn host_code(g: &Graph, inputs: &[Tensor], options: &CompileOptions) -> Vec<Tensor> {
    let model = Model::from_graph(g.clone()).unwrap();
    let device = open_device(DeviceKind::Cpu, Some(1)).unwrap();
    let compiled = kiln::compile(&model, options).unwrap_or_else(|e| panic!("{e}\n{g}"));
    compiled.session_in(&device).unwrap().run(inputs).unwrap()
}

fn all_the_same(seeds: std::ops::Range<u64>) {
    let torch = torch();
    let mut failures = vec![];
    for seed in seeds {
        let (g, inputs) = chain(seed).unwrap();
        if g.outputs.is_empty() {
            continue;
        }
        let want = eager::run(&torch, &g, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
        let interpreted = kiln_interp::graph::run(&g, &inputs, &[], &mut no_fallback).unwrap();
        let host = host_code(&g, &inputs, &exact(Target::Cpu));
        let compiled = kiln::compile(&Model::from_graph(g.clone()).unwrap(), &exact(Target::Sm90a)).unwrap();
        let (programs, left) = programs::run(&compiled, &inputs).unwrap();
        // GPUs have no remainder in f64.
        let refused = left.iter().find(|why| !why.ends_with("Rem of f64 is not supported on sm_90a"));
        assert!(refused.is_none(), "seed {seed}: {refused:?}\n{g}");
        for (by, got) in [("the interpreter", interpreted), ("host code", host), ("programs for GPUs", programs)] {
            if let Err(e) = same(&g, &want, &got) {
                failures.push(format!("seed {seed}, {by}: {e}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} fail\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn chains_have_the_bits_of_eager_pytorch_1() {
    all_the_same(0..400);
}
#[test]
fn chains_have_the_bits_of_eager_pytorch_2() {
    all_the_same(400..800);
}

/// `(x + 1) - x` on bf16: always 1 if only the result is rounded, sometimes 0 if the sum is rounded as well.
#[test]
fn a_sum_is_rounded_before_it_is_used() {
    let g: Graph = "graph g(%x: bf16[64]) {\n %a = add %x, 1\n %b = sub %a, %x\n return %b\n}".parse().unwrap();
    let x = Tensor::from_f64(Type::new(DType::Bf16, [64]), (0..64).map(|i| 1000.0 + 4.0 * f64::from(i)));
    let exactly = host_code(&g, std::slice::from_ref(&x), &exact(Target::Cpu));
    assert_eq!(exactly, eager::run(&torch(), &g, std::slice::from_ref(&x)).unwrap());
    let default = host_code(&g, &[x], &CompileOptions::default());
    assert!(default[0].to_f64_vec().iter().all(|v| *v == 1.0) && exactly[0].to_f64_vec().contains(&0.0));
}

/// PTX of exact plans contracts no product and sum into an FMA, has no approximate division, and rounds between ops.
#[test]
fn ptx_rounds_as_written() {
    let ptx = |text: &str, numerics: Numerics| -> String {
        let g: Graph = text.parse().unwrap();
        let options = CompileOptions { target: Target::Sm90a, contract: numerics.into(), ..CompileOptions::default() };
        let compiled = kiln::compile(&Model::from_graph(g).unwrap(), &options).unwrap();
        assert_eq!(compiled.plan.kernels.len(), 1, "{}", compiled.plan);
        let CompiledCode::Ptx(all) = &compiled.code else { panic!("no PTX") };
        all.iter().map(|p| p.text.as_str()).collect()
    };
    let f32s = "graph g(%x: f32[4096], %y: f32[4096], %z: f32[1]) {\n %a = mul %x, %y\n %b = add %a, %x\n \
                %c = div %b, %z\n return %c\n}";
    let (exact, usual) = (ptx(f32s, Numerics::Exact), ptx(f32s, Numerics::default()));
    assert!(usual.contains("fma.rn.f32"), "{usual}");
    assert!(!exact.contains("fma") && exact.contains("div.rn.f32"), "{exact}");
    // Without `.rn`, ptxas would contract `mul` and `add` to `fma`.
    for op in ["mul", "add"] {
        assert!(exact.contains(&format!("{op}.rn.f32")) && !exact.contains(&format!("{op}.f32")), "{exact}");
    }
    let halves =
        "graph g(%x: bf16[4096]) {\n %a = add %x, 1\n %b = sub %a, %x\n %c = exp %b\n %s = sigmoid %c\n return %s\n}";
    let (exact, usual) = (ptx(halves, Numerics::Exact), ptx(halves, Numerics::default()));
    let roundings = |text: &str| {
        let count = |op: &str| text.lines().filter(|l| l.trim_start().starts_with(op)).count();
        [".rn.bf16.f32", ".rn.bf16x2.f32"].iter().map(|s| count(&format!("cvt{s}"))).sum::<usize>()
            + ["add.rn.bf16", "sub.rn.bf16", "add.bf16", "sub.bf16", "add.rn.bf16x2", "sub.rn.bf16x2"]
                .iter()
                .map(|op| count(op))
                .sum::<usize>()
    };
    assert!(roundings(&exact) >= 3 * roundings(&usual), "{} and {}\n{exact}", roundings(&exact), roundings(&usual));
    assert!(!exact.contains("div.full"), "{exact}");
}

/// The chains contain every operation that they are meant to test.
#[test]
fn chains_have_every_operation_of_ieee() {
    let mut seen: Vec<&str> = (0..300)
        .flat_map(|s| {
            let g = chain(s).unwrap().0;
            g.values()
                .map(|v| g.op(v).clone())
                .filter(|op| !matches!(op, Op::Input(_)))
                .map(|op| op.name())
                .collect::<Vec<_>>()
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    let wanted = [
        "abs",
        "add",
        "and",
        "cast",
        "ceil",
        "div",
        "eq",
        "floor",
        "floor_div",
        "fmod",
        "ge",
        "gt",
        "le",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "reciprocal",
        "relu",
        "remainder",
        "round",
        "select",
        "sign",
        "sqrt",
        "sub",
        "trunc",
        "xor",
    ];
    let missing: Vec<_> = wanted.iter().filter(|w| !seen.contains(w)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
