//! Every form that rules find is what they say it equals: all forms of a class, computed in f64 from the values of
//! their operands, agree. A chain of rules from the graph as it was written to a kernel's body goes through forms of
//! such classes, so all of its steps are checked.
use super::{all, saturate};
use crate::build::Builder;
use crate::language::{ENode, op};
use egg::Id;
use kiln_graph::{DType, Graph, Init, Op, Tensor, Type, random_tensor};
use kiln_graphgen::Scale;
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_plan::Numerics;
use std::collections::BTreeMap;

/// Units of the last place of the class's type by which forms may differ, relative to the largest element: constants
/// are rounded to it.
const ULPS: f64 = 16.;
/// Elements of the largest value of a graph that is interpreted form by form.
const LARGEST: usize = 1 << 20;

/// Columns of a tile of a matmul: few, so that small graphs have several.
const TILE: usize = 16;

fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-50),
    }
}

/// One op on these values, in f64.
fn evaluate(op: &Op, ty: &Type, args: &[&Tensor], types: &[&Type]) -> Result<Tensor, String> {
    let mut g = Graph::new("form");
    let ids: Vec<_> = types.iter().map(|ty| g.input((*ty).clone())).collect();
    let y = g.push(op.clone(), ty.clone(), &ids);
    g.outputs = vec![y];
    let args: Vec<Tensor> = args.iter().map(|t| (*t).clone()).collect();
    let mut found = run_with(&g, &args, &[], Precision::F64, &mut no_fallback).map_err(|e| e.to_string())?;
    found.pop().ok_or_else(|| "no result".to_string())
}

/// Whether two results agree, and by how much they differ if not.
fn agree(a: &Tensor, b: &Tensor, dtype: DType) -> Result<(), String> {
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    let largest = a.iter().chain(&b).filter(|v| v.is_finite()).fold(1f64, |m, v| m.max(v.abs()));
    let limit = ULPS * unit(dtype) * largest;
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        let same = x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= limit;
        if !same {
            return Err(format!("element {i} is {x} and {y}; the limit is {limit:e}"));
        }
    }
    Ok(())
}

/// Compares all forms of all classes; gives how many forms were compared with another.
fn sound(g: &Graph, inputs: &[Tensor], params: &[Tensor], upto: Numerics) -> usize {
    let s = saturate(Builder { tile: TILE, ..Builder::import(g).0 }, upto);
    let e = &s.builder.g;
    let mut values: BTreeMap<Id, Tensor> = BTreeMap::new();
    let of = |t: &ENode, values: &BTreeMap<Id, Tensor>, ty: &Type| -> Option<Result<Tensor, String>> {
        match op(e, t) {
            Op::Input(i) => return Some(Ok(inputs[*i as usize].clone())),
            Op::Param(p) => return Some(Ok(params[p.0 as usize].clone())),
            // libtorch's are not interpreted here, nor is what depends on them.
            Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => return None,
            _ => {}
        }
        let args = t.args.iter().map(|a| values.get(&e.find(*a))).collect::<Option<Vec<&Tensor>>>()?;
        let types: Vec<&Type> = t.args.iter().map(|a| &e[*a].data.ty).collect();
        Some(evaluate(op(e, t), ty, &args, &types))
    };
    let mut compared = 0;
    loop {
        let known = values.len();
        for class in e.classes() {
            if !values.contains_key(&class.id)
                && let Some(Ok(value)) = class.nodes.iter().find_map(|t| of(t, &values, &class.data.ty))
            {
                values.insert(class.id, value);
            }
        }
        if values.len() == known {
            break;
        }
    }
    for class in e.classes() {
        let Some(value) = values.get(&class.id) else { continue };
        for t in &class.nodes {
            let Some(other) = of(t, &values, &class.data.ty) else { continue };
            let name = op(e, t).name();
            let rules = s.made.get(&(class.id, t.key));
            let other = other.unwrap_or_else(|err| panic!("{name} of {rules:?}: {err}\n{g}"));
            if let Err(how) = agree(value, &other, class.data.ty.dtype) {
                let forms: Vec<&str> = class.nodes.iter().map(|t| op(e, t).name()).collect();
                panic!("{name} {} of {rules:?} is not what the forms {forms:?} are: {how}\n{g}", class.data.ty);
            }
            compared += usize::from(class.nodes.len() > 1);
        }
    }
    compared
}

fn given(g: &Graph, seed: u64) -> (Vec<Tensor>, Vec<Tensor>) {
    let params = g.params.iter().enumerate().map(|(i, p)| match &p.init {
        Init::Fill(v) => Tensor::from_f64(p.ty.clone(), vec![v.as_f64(); p.ty.count()]),
        Init::Data(v) => Tensor::from_f64(p.ty.clone(), v.iter().map(|s| s.as_f64())),
        _ => random_tensor(p.ty.clone(), seed * 31 + i as u64 + 1000, 0.3),
    });
    (kiln_graphgen::inputs(g, seed), params.collect())
}
fn check(g: &Graph, seed: u64) -> usize {
    let (inputs, params) = given(g, seed);
    // Not `Fast`: distances by matmuls cancel where points are near.
    sound(g, &inputs, &params, Numerics::Torch)
}

#[test]
fn forms_of_examples() {
    for r in all() {
        let g: Graph = format!("graph g{}", r.example).parse().unwrap_or_else(|e| panic!("{}: {e}", r.name));
        let (inputs, params) = given(&g, 3);
        assert!(sound(&g, &inputs, &params, r.numerics) > 0, "{}: no form to compare", r.name);
    }
}

#[test]
fn forms_of_random_graphs() {
    let compared: usize =
        (0..400).map(|seed| check(&kiln_graphgen::graph(seed, &kiln_graphgen::Options::default()), seed)).sum();
    let cases = (0..400).map(|seed| {
        let g = kiln_graphgen::case(seed, Scale::Small);
        let inputs = kiln_graphgen::case_inputs(&g, seed);
        let (_, params) = given(&g, seed);
        sound(&g, &inputs, &params, Numerics::Torch)
    });
    let compared = compared + cases.sum::<usize>();
    assert!(compared > 500, "{compared} forms");
}

#[test]
fn forms_of_the_graphs_in_the_repository() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    let mut compared = 0;
    for path in files {
        let text = std::fs::read_to_string(&path).expect("the file was listed");
        let g: Graph = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        if g.values().all(|v| g.ty(v).count() <= LARGEST) {
            compared += check(&g, 5);
        }
    }
    assert!(compared > 20, "{compared} forms");
}
