//! Example archives, exported once by `scripts/export-models`, and comparison of an imported graph with libtorch.
#[path = "../../../aten/tests/compare.rs"]
mod compare;

use kiln_graph::{DType, FallbackOp, Graph, Op, Tensor, Type};
use kiln_torchscript::{Imported, Memory, Session};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The first difference beyond the tolerance, if any.
pub fn difference(got: &[Tensor], want: &[Tensor]) -> Option<String> {
    compare::difference_beyond(got, want, &[])
}

/// The folder with all archives of the group `small` and the small networks, exported at the first call.
pub fn archives() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("target/tmp")).join("archives");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let newest = |p: &Path| {
            let files = std::fs::read_dir(p).into_iter().flatten().flatten();
            files.filter_map(|f| f.metadata().ok()?.modified().ok()).max()
        };
        let stamp = dir.join("complete");
        let made = std::fs::metadata(&stamp).and_then(|m| m.modified()).ok();
        let scripts = newest(&root.join("scripts/example_models"));
        if made.is_none() || made < scripts {
            // Several test processes may export at once: each writes its own folder, and the first one to rename it
            // wins.
            let own = dir.with_extension(std::process::id().to_string());
            let status = Command::new(root.join("scripts/export-models"))
                .args(["--group", "small", "mlp", "loopif", "datadep", "llama", "llama_eager", "--out"])
                .arg(&own)
                .status()
                .expect("scripts/export-models runs");
            assert!(status.success(), "scripts/export-models failed; run scripts/setup first");
            std::fs::write(own.join("complete"), "").unwrap();
            let now = std::fs::metadata(&stamp).and_then(|m| m.modified()).ok();
            if now.is_some() && now < scripts {
                let _ = std::fs::remove_dir_all(&dir);
            }
            if std::fs::rename(&own, &dir).is_err() {
                let _ = std::fs::remove_dir_all(&own);
            }
        }
        dir
    })
}

pub fn archive(name: &str) -> PathBuf {
    archives().join(format!("{name}.pt"))
}

/// The archive that a Python program writes to its first argument.
pub fn exported(name: &str, program: &str) -> PathBuf {
    let (script, path) = (archives().join(format!("{name}_test.py")), archives().join(format!("{name}_test.pt")));
    std::fs::write(&script, program).unwrap();
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps/venv/bin/python");
    let run = Command::new(python).arg(&script).arg(&path).output().expect("scripts/setup made the venv");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    path
}

/// The tensors "0", "1", … of a safetensors file.
pub fn load_inputs(path: &Path) -> Vec<Tensor> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let dtype = |d: safetensors::Dtype| {
        DType::of_safetensors_name(&d.to_string()).unwrap_or_else(|| panic!("{}: {d}", path.display()))
    };
    (0..)
        .map_while(|i| file.tensor(&i.to_string()).ok())
        .map(|t| Tensor::from_bytes(Type::new(dtype(t.dtype()), t.shape()), t.data()).unwrap())
        .collect()
}

pub fn inputs(name: &str) -> Vec<Tensor> {
    load_inputs(&archives().join(format!("{name}.safetensors")))
}

/// Different data of the same types: floats are reversed and perturbed, which reveals example data baked into a graph.
/// Integers and scalars stay the same, since they are indices, masks and fixed arguments.
pub fn fresh(inputs: &[Tensor]) -> Vec<Tensor> {
    let other = |t: &Tensor| {
        if !t.ty.dtype.is_float() || t.ty.rank() == 0 {
            return t.clone();
        }
        let n = t.ty.count();
        Tensor::from_f64(t.ty.clone(), (0..n).map(|i| t.get_f64(n - 1 - i) * 0.9375 + 0.015625))
    };
    inputs.iter().map(other).collect()
}

/// Runs a fallback by libtorch on the host.
pub fn fallback(op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let mut results: Vec<Tensor> = op.results.iter().map(|ty| Tensor::zeros(ty.clone())).collect();
    let ins: Vec<Memory> =
        args.iter().map(|t| Memory { ptr: t.bytes().as_ptr().cast_mut().cast(), ty: t.ty.clone() }).collect();
    let outs: Vec<Memory> = results
        .iter_mut()
        .map(|t| {
            let ty = t.ty.clone();
            Memory { ptr: t.bytes_mut().as_mut_ptr().cast(), ty }
        })
        .collect();
    // SAFETY: host tensors of these types, alive during the call; results do not overlap operands.
    unsafe { kiln_torchscript::call(&op.name, &op.overload, &op.args, &ins, &outs, -1) }.map_err(|e| e.to_string())?;
    Ok(results)
}

/// Runs the imported graph in the interpreter, with fallbacks by libtorch.
pub fn evaluate(model: &Imported, inputs: &[Tensor]) -> Vec<Tensor> {
    let run = kiln_interp::graph::run(&model.graph, inputs, &model.params, &mut fallback);
    run.unwrap_or_else(|e| panic!("{e}\n{}", summary(&model.graph)))
}

pub fn reference(path: &Path, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut session = Session::open(path, inputs, -1, 0).unwrap_or_else(|e| panic!("{e}"));
    session.run().unwrap_or_else(|e| panic!("{e}"));
    session.outputs().unwrap_or_else(|e| panic!("{e}"))
}

/// Fallbacks as `name: why`, sorted, without duplicates.
pub fn fallbacks(graph: &Graph) -> Vec<String> {
    let mut list: Vec<String> = graph
        .values()
        .filter_map(|v| match graph.op(v) {
            Op::Fallback(f) => Some(format!("{}: {}", f.name, f.why)),
            _ => None,
        })
        .collect();
    list.sort();
    list.dedup();
    list
}

pub fn summary(graph: &Graph) -> String {
    let lines = graph.values().map(|v| {
        let args: Vec<String> = graph.args(v).iter().map(|a| a.to_string()).collect();
        format!("{v}: {} = {:?}({})", graph.ty(v), graph.op(v), args.join(", "))
    });
    lines.collect::<Vec<_>>().join("\n")
}
