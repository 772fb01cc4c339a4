//! Imports an archive and prints a summary of its graph: `import MODEL.pt INPUTS.safetensors [--graph] [--check]`.
#[path = "../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

use kiln_graph::{Op, Tensor};
use std::{collections::BTreeMap, path::Path, time::Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, inputs, rest @ ..] = &args[..] else { return eprintln!("usage: import MODEL.pt INPUTS.safetensors") };
    let inputs = common::load_inputs(Path::new(inputs));
    let start = Instant::now();
    let model = match kiln_torchscript::import(Path::new(path), &inputs) {
        Ok(m) => m,
        Err(e) => return eprintln!("{e}"),
    };
    let seconds = start.elapsed().as_secs_f64();
    let mut histogram: BTreeMap<String, usize> = BTreeMap::new();
    for v in model.graph.values() {
        let name = match model.graph.op(v) {
            Op::Unary(u) => format!("{u:?}"),
            Op::Binary(b) => format!("{b:?}"),
            Op::Compare(c) => format!("{c:?}"),
            Op::Reduce { op, .. } => format!("reduce {op:?}"),
            op => format!("{op:?}").split([' ', '(', '{']).next().unwrap_or_default().to_string(),
        };
        *histogram.entry(name.to_lowercase()).or_default() += 1;
    }
    let bytes: usize = model.params.iter().map(|t| t.ty.bytes()).sum();
    println!("{path}: {} nodes, {} params ({bytes} bytes), {seconds:.2} s", model.graph.len(), model.params.len());
    println!("  {}", histogram.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", "));
    println!("  outputs {}, guards {:?}", model.structure, model.guards);
    for f in common::fallbacks(&model.graph) {
        println!("  fallback {f}");
    }
    if rest.iter().any(|a| a == "--graph") {
        for v in model.graph.values() {
            let (source, args) = (model.graph.source(v), model.graph.args(v));
            let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
            let (ty, op) = (model.graph.ty(v), model.graph.op(v));
            println!("{v}: {ty} = {op:?}({})   # {} {}", args.join(", "), source.module, source.line);
        }
    }
    if rest.iter().any(|a| a == "--check") {
        let fresh: Vec<Tensor> = common::fresh(&inputs);
        let (got, want) = (common::evaluate(&model, &fresh), common::reference(Path::new(path), &fresh));
        println!("  against libtorch: {}", common::difference(&got, &want).unwrap_or("equal".into()));
    }
}
