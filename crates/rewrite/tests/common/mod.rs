//! Planning of graphs written as text; every plan is verified and its text parsed back.
use kiln_graph::Graph;
use kiln_machine::Machine;
use kiln_plan::{KernelKind, Numerics, Plan, Stage};
use kiln_rewrite::{Options, plan};

pub fn h200() -> Machine {
    kiln_machine::Arch::Sm90a.machine().clone()
}
pub fn graph(text: &str) -> Graph {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}
pub fn plan_with(g: &Graph, options: Options) -> Plan {
    let p = plan(g, &h200(), &options).unwrap_or_else(|e| panic!("{e}\n{g}"));
    let text = p.to_string();
    if let Err(e) = kiln_plan::verify::verify(&p) {
        panic!("{e}\n{g}\n{text}");
    }
    let again: Plan = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(again.to_string(), text);
    p
}
pub fn fused(text: &str) -> Plan {
    plan_with(&graph(text), Options::default())
}
pub fn exact(text: &str) -> Plan {
    plan_with(&graph(text), Options { contract: Numerics::Exact.into(), fuse: true })
}
pub fn unfused(text: &str) -> Plan {
    plan_with(&graph(text), Options { fuse: false, ..Options::default() })
}
pub fn planned(text: &str) {
    fused(text);
    exact(text);
    unfused(text);
}
/// Kinds of the kernels of a run.
pub fn kinds(p: &Plan) -> Vec<KernelKind> {
    p.kernels.iter().filter(|k| k.stage == Stage::Run).map(|k| k.kind).collect()
}

use kiln_graph::{DType, Init, Random, Tensor, Type};
use kiln_interp::graph::{Precision, run_with};
use kiln_plan::BufferKind;

/// Data of a type: floats in ±1, integers and booleans 0 or 1.
pub fn data(ty: &Type, seed: u64) -> Tensor {
    let mut r = Random::new(seed * 77 + 1);
    let float = ty.dtype.is_float();
    let values: Vec<f64> =
        (0..ty.count()).map(|_| if float { r.uniform() * 2. - 1. } else { r.next_below(2) as f64 }).collect();
    Tensor::from_f64(ty.clone(), values)
}
pub fn params(g: &Graph) -> Vec<Tensor> {
    let one = |(i, p): (usize, &kiln_graph::ParamInfo)| match &p.init {
        Init::Fill(v) => Tensor::from_f64(p.ty.clone(), vec![v.as_f64(); p.ty.count()]),
        Init::Data(v) => Tensor::from_f64(p.ty.clone(), v.iter().map(|s| s.as_f64())),
        _ => data(&p.ty, 1000 + i as u64),
    };
    g.params.iter().enumerate().map(one).collect()
}
fn interpret(g: &Graph, inputs: &[Tensor], params: &[Tensor], precision: Precision) -> Vec<Tensor> {
    // The fallback of generated graphs returns its operands unchanged.
    run_with(g, inputs, params, precision, &mut |_, args| Ok(args.to_vec())).unwrap_or_else(|e| panic!("{e}\n{g}"))
}
/// Runs the plan kernel by kernel, each body by the interpreter.
pub fn execute(p: &Plan, inputs: &[Tensor], params: &[Tensor]) -> Vec<Tensor> {
    let given = |b: &kiln_plan::Buffer| match b.kind {
        BufferKind::Input(n) => Some(inputs[n as usize].clone()),
        BufferKind::Param(id) => Some(params[id.0 as usize].clone()),
        _ => None,
    };
    let mut buffers: Vec<Option<Tensor>> = p.buffers.iter().map(given).collect();
    for k in &p.kernels {
        let args: Vec<Tensor> =
            k.inputs.iter().map(|b| buffers[b.0 as usize].clone().expect("written before")).collect();
        for (b, t) in k.outputs.iter().zip(interpret(&k.body, &args, &[], Precision::Native)) {
            buffers[b.0 as usize] = Some(t);
        }
    }
    p.outputs.iter().map(|b| buffers[b.0 as usize].clone().expect("every output is written")).collect()
}

/// The plan computes what the graph computes: its error against f64 is no worse than twice the graph's own, plus a few
/// units in the last place of the largest value.
pub fn agrees(g: &Graph, p: &Plan) {
    let inputs: Vec<Tensor> = g.inputs.iter().enumerate().map(|(i, v)| data(g.ty(*v), i as u64)).collect();
    agrees_on(g, p, &inputs);
}
pub fn agrees_on(g: &Graph, p: &Plan, inputs: &[Tensor]) {
    let params = params(g);
    let native = interpret(g, inputs, &params, Precision::Native);
    let exact = interpret(g, inputs, &params, Precision::F64);
    for (i, got) in execute(p, inputs, &params).iter().enumerate() {
        assert_eq!(got.ty, native[i].ty, "output {i}\n{g}\n{p}");
        let unit = match got.ty.dtype {
            DType::Bf16 => 1. / 128.,
            DType::F16 => 1. / 1024.,
            DType::F32 => 2e-6,
            DType::F64 => 1e-13,
            _ => 0.,
        };
        let (e, n) = (exact[i].to_f64_vec(), native[i].to_f64_vec());
        let largest = e.iter().filter(|v| v.is_finite()).fold(1f64, |m, v| m.max(v.abs()));
        let own = e.iter().zip(&n).map(|(e, n)| (e - n).abs()).filter(|d| d.is_finite()).fold(0f64, f64::max);
        for (j, ((e, n), v)) in e.iter().zip(&n).zip(got.to_f64_vec()).enumerate() {
            let same = v == *n || (v.is_nan() && n.is_nan());
            let near = (v - e).abs() <= 2. * own + unit * largest;
            assert!(same || near, "output {i}[{j}]: plan {v}, graph {n}, in f64 {e}\n{g}\n{p}");
        }
    }
}
/// Plans unfused, exact and by default, and checks each plan against the interpreter.
pub fn differential(g: &Graph) {
    for options in [
        Options { fuse: false, ..Options::default() },
        Options { contract: Numerics::Exact.into(), fuse: true },
        Options::default(),
    ] {
        agrees(g, &plan_with(g, options));
    }
}
