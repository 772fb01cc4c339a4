//! Programs drawn at random, as traces: `python/tests/families.py` writes them with what eager PyTorch computed.
//! Results have the dtype, the shape and the values of eager.
use crate::common::*;
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("families.{}", std::process::id()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut write = Command::new(root.join(".deps/venv/bin/python"));
    let run = write.arg(root.join("python/tests/families.py")).arg(&folder).output();
    let run = run.expect("scripts/setup has made .deps/venv");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    folder
});

/// What is wrong with a program of the family, if anything.
fn wrong(name: &str) -> Option<String> {
    let file = |suffix: &str| FOLDER.join(format!("{name}.{suffix}"));
    let (inputs, eager) = (load_inputs(&file("in.safetensors")), load_inputs(&file("out.safetensors")));
    let model = match kiln_torchscript::import(&file("pt"), &inputs) {
        Ok(model) => model,
        Err(e) => return Some(format!("{name} is refused: {e}")),
    };
    let texts = std::fs::read_to_string(file("txt")).expect("written");
    let got = evaluate(&model, &inputs);
    let each = texts.lines().zip(got.iter().zip(&eager));
    let found: Vec<String> = each
        .filter_map(|(text, (got, eager))| {
            difference(std::slice::from_ref(got), std::slice::from_ref(eager)).map(|d| format!("  {text}: {d}"))
        })
        .collect();
    (!found.is_empty()).then(|| format!("{name}:\n{}", found.join("\n")))
}

fn check(family: &str) {
    let mut names: Vec<String> = std::fs::read_dir(&*FOLDER)
        .expect("written")
        .filter_map(|f| f.ok()?.file_name().to_str()?.strip_suffix(".pt").map(str::to_string))
        .filter(|n| n.starts_with(family))
        .collect();
    names.sort();
    assert!(names.len() >= 8, "{names:?}");
    let failures: Vec<String> = names.iter().filter_map(|n| wrong(n)).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), names.len(), failures.join("\n"));
}

#[test]
fn resampling_by_sizes_and_factors() {
    check("resampling");
}

#[test]
fn views_of_results_of_fallbacks() {
    check("fallback_views");
}

#[test]
fn complex_values_as_pairs() {
    check("complex_pairs");
}

#[test]
fn promotion_of_scalars_and_tensors_of_rank_0() {
    check("promotion");
}
