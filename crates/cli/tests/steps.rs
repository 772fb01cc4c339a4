//! `kiln run --steps --feed`: runs that follow each other.
use kiln::{
    CompileOptions, DType, Model, Tensor, Type, artifact, compile, io,
    model::{State, Written},
};
use std::{path::Path, process::Command};

/// Runs the model on `inputs`. Gives the first output, or what is said.
fn run(folder: &Path, model: &Path, inputs: &[Tensor], more: &[&str]) -> Result<Vec<f64>, String> {
    let (from, to) = (folder.join("in.safetensors"), folder.join("out.safetensors"));
    io::write(&from, inputs).expect("written");
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.arg("run").arg(model).args(["--device", "cpu", "--inputs"]).arg(&from).arg("--outputs").arg(&to).args(more);
    let done = kiln.output().expect("kiln starts");
    match done.status.success() {
        true => Ok(io::read(&to).expect("outputs")[0].to_f64_vec()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}
fn vector(values: &[f64]) -> Tensor {
    Tensor::from_f64(Type::new(DType::F32, [values.len()]), values.iter().copied())
}

#[test]
fn an_input_takes_an_output_of_the_run_before() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("g.kiln");
    let text =
        "graph g(%0: f32[2], %1: f32[2]) {\n  %2 = add %0, %1\n  %3 = reduce.sum %2 axes=[0]\n  return %2, %3\n}";
    std::fs::write(&path, text).expect("written");
    let inputs = [vector(&[1.0, 2.0]), vector(&[10.0, 20.0])];
    let run = |more: &[&str]| run(dir.path(), &path, &inputs, more);
    assert_eq!(run(&["--steps", "3"]), Ok(vec![11.0, 22.0]), "nothing is fed");
    assert_eq!(run(&["--steps", "3", "--feed", "0=output:0"]), Ok(vec![31.0, 62.0]));
    assert_eq!(run(&["--steps", "3", "--feed", "0=output:0", "--feed", "1=output:0"]), Ok(vec![44.0, 88.0]));
    for (feed, words) in [
        ("0=output:1", "an output of its type"),
        ("2=output:0", "does not have"),
        ("0=output:2", "does not have"),
        ("0=1", "0=output:2"),
    ] {
        let said = run(&["--feed", feed]).expect_err(feed);
        assert!(said.contains(words), "{feed}: {said}");
    }
    assert!(run(&["--steps", "0"]).expect_err("no run").contains("no number from 1"));
}

#[test]
fn state_goes_on_from_run_to_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("c.kiln");
    let text = "graph c(%0: f32[2], %1: f32[2]) {\n  %2 = add %0, %1\n  %3 = neg %1\n  return %3, %2\n}";
    let graph = Model::from_graph(text.parse().expect("a graph")).expect("a model");
    let states = vec![State { name: "sum".into(), initial: vector(&[10.0, 20.0]) }];
    let model = Model { states, writes: vec![Written { input: 1, output: 1 }], ..graph };
    let compiled = compile(&model, &CompileOptions::default()).expect("compiles");
    artifact::write(&path, &compiled, &model).expect("written");
    let x = [vector(&[1.0, 2.0])];
    assert_eq!(run(dir.path(), &path, &x, &[]), Ok(vec![-10.0, -20.0]));
    assert_eq!(run(dir.path(), &path, &x, &["--steps", "4"]), Ok(vec![-13.0, -26.0]));
}
