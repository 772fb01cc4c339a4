//! Converted operators compute what PyTorch's eager operators compute. `operators.py` makes the calls, runs them and
//! stores the results.
use crate::compare::difference_beyond;
use kiln_aten::{ImportErrors, ParamData, Raw, convert::convert};
use kiln_graph::{DType, Op, Tensor, Type, verify::verify};
use serde::Deserialize;
use std::{path::Path, process::Command, sync::LazyLock};

#[derive(Deserialize)]
struct Case {
    /// The operator, its overload, and what is special about the call.
    name: String,
    raw: Raw,
    /// Words of the refusal, if the call is to be refused.
    refused: Option<String>,
    /// Words of the reason, if the call is to be left to libtorch.
    left: Option<String>,
    /// Of each result, how far torch's own rounding may be from the exact value.
    rounding: Vec<f64>,
}

pub struct Calls {
    cases: Vec<Case>,
    /// The text of the cases.
    pub json: Vec<u8>,
    tensors: Vec<u8>,
}

pub static CALLS: LazyLock<Calls> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut call = Command::new(root.join("../../.deps/venv/bin/python"));
    let run = call.arg(root.join("tests/operators.py")).arg(dir.path()).output();
    let run = run.expect("scripts/setup has made .deps/venv");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let read = |name: &str| std::fs::read(dir.path().join(name)).expect("written");
    let json = read("calls.json");
    let cases = serde_json::from_slice(&json).expect("calls");
    Calls { cases, json, tensors: read("tensors.safetensors") }
});

/// The tensors `CASE.KIND0`, `CASE.KIND1`, …
fn tensors(file: &safetensors::SafeTensors, case: usize, kind: &str) -> Vec<Tensor> {
    let read = |i: usize| {
        let view = file.tensor(&format!("{case}.{kind}{i}")).ok()?;
        let dtype = DType::of_safetensors_name(&view.dtype().to_string()).expect("a dtype of Kiln");
        Tensor::from_bytes(Type::new(dtype, view.shape()), view.data())
    };
    (0..).map_while(read).collect()
}

/// What is wrong with a case, if anything.
fn wrong(case: &Case, inputs: &[Tensor], wanted: &[Tensor]) -> Option<String> {
    let converted = match (convert(&case.raw, "case"), &case.refused) {
        (Ok(c), None) => c,
        (Ok(c), Some(_)) => return Some(format!("was converted\n{}", c.graph)),
        (Err(e), None) => return Some(e.to_string()),
        (Err(e), Some(words)) => return refusal_lacks(&e, words),
    };
    let graph = &converted.graph;
    let fallback = graph.values().find_map(|v| match graph.op(v) {
        Op::Fallback(f) => Some(f.why.clone()),
        _ => None,
    });
    match (fallback, &case.left) {
        (None, None) => {}
        (Some(why), Some(words)) if why.contains(words) => return None,
        (Some(why), _) => return Some(format!("falls back: {why}")),
        (None, Some(_)) => return Some(format!("does not fall back\n{graph}")),
    }
    if let Err(e) = verify(graph) {
        return Some(format!("{e}\n{graph}"));
    }
    let params: Option<Vec<Tensor>> = converted
        .params
        .iter()
        .map(|p| match p {
            ParamData::Made(t) => Some(t.clone()),
            ParamData::Raw(_) => None,
        })
        .collect();
    let params = params.expect("cases have no constants");
    match kiln_interp::graph::run(graph, inputs, &params, &mut kiln_interp::graph::no_fallback) {
        Ok(results) => difference_beyond(&results, wanted, &case.rounding).map(|d| format!("{d}\n{graph}")),
        Err(e) => Some(format!("{e}\n{graph}")),
    }
}

fn refusal_lacks(e: &ImportErrors, words: &str) -> Option<String> {
    let said = e.to_string();
    let complete = said.contains(words) && said.contains("help:") && e.errors.len() == 1;
    (!complete).then(|| format!("is refused with other words than `{words}`: {said}"))
}

#[test]
fn operators_compute_what_eager_pytorch_computes() {
    let file = safetensors::SafeTensors::deserialize(&CALLS.tensors).expect("safetensors");
    let each = CALLS.cases.iter().enumerate();
    let failures: Vec<String> = each
        .filter_map(|(i, case)| {
            let found = wrong(case, &tensors(&file, i, "in"), &tensors(&file, i, "out"))?;
            Some(format!("{}: {found}", case.name))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), CALLS.cases.len(), failures.join("\n\n"));
}
