//! Tests indices out of range on a device: each run is refused with op, line, index and axis, and the session stays
//! usable.
//!
//!     cargo run --release -p kiln --example indices -- [cpu|cuda:0]
use kiln::{CompileOptions, Model, Target, Tensor, compile, compile::DeviceKind, compile::cuda_capability};

/// The op, the inputs and ops of the graph, and the length of the indexed axis. Indices are input 1.
const GRAPHS: [(&str, &str, usize); 7] = [
    ("take", "%x: f32[37,48], %i: i64[5,11] -> %t = take %x, %i axis=0 loc(\"emb\", \"m.py:7\")\n%y = exp %t", 37),
    (
        "take",
        "%x: f32[37,48], %i: i64[6] -> %t = take %x, %i axis=0 loc(\"emb\", \"m.py:7\")\n%y = softmax %t axis=1",
        37,
    ),
    (
        "gather",
        "%x: f32[7,19], %i: i64[7,3] -> %l = log_softmax %x axis=1\n\
         %t = gather %l, %i axis=1 loc(\"emb\", \"m.py:7\")\n%y = neg %t",
        19,
    ),
    (
        "take",
        "%x: f32[37,64], %i: i64[40], %w: f32[80,64] -> %t = take %x, %i axis=0 loc(\"emb\", \"m.py:7\")\n\
         %y = linear %t, %w",
        37,
    ),
    (
        "take",
        "%x: f32[37], %i: i64[100] -> %t = take %x, %i axis=0 loc(\"emb\", \"m.py:7\")\n%y = reduce.sum %t axes=[0]",
        37,
    ),
    (
        "scatter",
        "%x: f32[40,7], %i: i64[9,7], %s: f32[9,7] -> %y = scatter %x, %i, %s axis=0 mode=replace loc(\"emb\", \
         \"m.py:7\")",
        40,
    ),
    (
        "scatter",
        "%x: f32[40,7], %i: i64[9,7], %s: f32[9,7] -> %y = scatter %x, %i, %s axis=0 mode=add loc(\"emb\", \"m.py:7\")",
        40,
    ),
];

/// Inputs with indices in range; the last index is replaced by `wrong`, if given.
fn inputs(model: &Model, extent: usize, wrong: Option<i64>) -> Vec<Tensor> {
    let mut all = model.example_inputs(3);
    let index = &mut all[1];
    for i in 0..index.ty.count() {
        index.set_i64(i, (i * 5 % extent) as i64);
    }
    if let Some(v) = wrong {
        let last = index.ty.count() - 1;
        index.set_i64(last, v);
    }
    all
}

/// Runs after which a session replays a recorded graph.
const WARM: usize = 3;

/// Runs every graph, fused and unfused, with valid and with invalid indices. Gives the number of refused runs.
pub fn check(device: DeviceKind) -> Result<usize, String> {
    let target = match device {
        DeviceKind::Cpu => Target::Cpu,
        DeviceKind::Cuda(i) if cuda_capability(i).map_err(|e| e.to_string())? >= (9, 0) => Target::Sm90a,
        DeviceKind::Cuda(_) => Target::Sm80,
    };
    let mut refused = 0;
    for (op, text, extent) in GRAPHS {
        let (types, ops) = text.split_once(" -> ").ok_or("inputs, then ops")?;
        let text = format!("graph g({types}) {{ {ops}\n return %y }}");
        let at = |e: &dyn std::fmt::Display| format!("{text}: {e}");
        let model = Model::from_graph(text.parse().map_err(|e: kiln_graph::GraphError| at(&e))?).map_err(|e| at(&e))?;
        for fuse in [true, false] {
            let options = CompileOptions { fuse, target, ..CompileOptions::default() };
            let session = compile(&model, &options).and_then(|c| c.session_on(device, None)).map_err(|e| at(&e))?;
            let right = inputs(&model, extent, None);
            let first = session.run(&right).map_err(|e| at(&e))?;
            for _ in 0..WARM {
                session.run(&right).map_err(|e| at(&e))?;
            }
            for wrong in [extent as i64, -1, 1 << 40] {
                let e = match session.run(&inputs(&model, extent, Some(wrong))) {
                    Ok(_) => return Err(at(&format!("index {wrong} was taken"))),
                    Err(e) => e.to_string(),
                };
                let said = format!("{op} (emb, m.py:7): index {wrong} is out of range for an axis of {extent}");
                if !e.contains(&said) {
                    return Err(at(&format!("`{said}` is wanted, it said: {e}")));
                }
                refused += 1;
                // The fault must not affect the next run.
                if session.run(&right).map_err(|e| at(&e))? != first {
                    return Err(at(&format!("other results after index {wrong}")));
                }
            }
        }
    }
    Ok(refused)
}

fn main() -> Result<(), String> {
    let device = match std::env::args().nth(1).as_deref() {
        None | Some("cpu") => DeviceKind::Cpu,
        Some("cuda" | "cuda:0") => DeviceKind::Cuda(0),
        Some(other) => return Err(format!("there is no device `{other}`; write cpu or cuda:0")),
    };
    println!("{} indices out of range were refused", check(device)?);
    Ok(())
}
