//! Writes the kernel launches of text graphs as JSON, for benches that run Kiln's kernels and others in one process.
//!
//!     cargo run --release -p kiln --example launches -- OUT.json GRAPH.kiln…
//!
//! Writes a list with one entry per graph: buffers (bytes), which of them are inputs and outputs, and the launches in
//! order with their code, shape and arguments (indices of buffers; scratch buffers follow those of the plan).
use kiln::{CompileOptions, Compiled, Model, compile::CompiledCode};
use kiln_plan::{BufferKind, Stage, exec::Slot, exec::Work};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let out = args.next().ok_or("usage: launches OUT.json GRAPH.kiln…")?;
    let options = CompileOptions { target: kiln::Target::Sm90a, ..CompileOptions::default() };
    let mut list = vec![];
    for path in args {
        let model = Model::open(path.as_ref(), &[])?;
        // The first compilation is a warm-up, so that the compile time does not include one-time costs.
        kiln::compile(&model, &options)?;
        let compiled = kiln::compile(&model, &options)?;
        list.push(entry(&compiled).map_err(|e| format!("{path}: {e}"))?);
    }
    std::fs::write(out, serde_json::to_vec(&list)?)?;
    Ok(())
}

fn entry(c: &Compiled) -> Result<Value, String> {
    let CompiledCode::Ptx(programs) = &c.code else { return Err("no code for a GPU".into()) };
    let plan = &c.plan;
    let mut bytes: Vec<usize> = plan.buffers.iter().map(|b| b.ty.bytes()).collect();
    let mut launches = vec![];
    for (k, steps) in plan.kernels.iter().zip(&c.steps) {
        let scratch = bytes.len();
        bytes.extend(steps.scratch.iter().map(|t| t.bytes()));
        let faults = bytes.len();
        bytes.push(size_of::<i64>());
        let counter = bytes.len();
        bytes.push(size_of::<i32>());
        for work in &steps.steps {
            let Work::Block { code, args } = work else { return Err(format!("{} has a step without PTX", k.name)) };
            if k.stage != Stage::Run {
                return Err("kernels at load time are not run here".into());
            }
            let p = &programs[*code];
            let buffer = |s: &Slot| match s {
                Slot::Input(i) => k.inputs[*i as usize].0 as usize,
                Slot::Output(i) => k.outputs[*i as usize].0 as usize,
                Slot::Scratch(i) => scratch + *i as usize,
                Slot::Faults => faults,
                Slot::Counter => counter,
            };
            launches.push(json!({
                "entry": p.name, "ptx": p.text, "grid": p.grid, "threads": p.threads, "shared": p.shared,
                "cluster": p.cluster, "args": args.iter().map(buffer).collect::<Vec<_>>(),
            }));
        }
    }
    let mut inputs = vec![Value::Null; c.graph.inputs.len()];
    for (i, b) in plan.buffers.iter().enumerate() {
        match b.kind {
            BufferKind::Input(n) => inputs[n as usize] = json!(i),
            BufferKind::Param(_) | BufferKind::Frozen => return Err("graphs with parameters are not run here".into()),
            BufferKind::Temp => {}
        }
    }
    let ty = |b: &kiln_plan::BufferId| &plan.buffer(*b).ty;
    let shown = |b| json!({"buffer": b, "dtype": ty(b).dtype.to_string(), "shape": ty(b).shape.to_vec()});
    Ok(json!({
        "name": plan.name, "kernels": plan.kernels.len(), "predicted_us": plan.predicted_us(),
        "compile_ms": c.timings.compile_s * 1e3, "bytes": bytes, "inputs": inputs,
        "outputs": plan.outputs.iter().map(shown).collect::<Vec<_>>(), "launches": launches,
    }))
}
