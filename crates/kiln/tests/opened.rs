//! Engines of artifacts and text graphs: the plan of an artifact is kept, state stays from run to run, and what cannot
//! be run says why.
use kiln::{
    CompileOptions, DType, Engine, Error, Model, Numerics, Program, Settings, Tensor, Type, artifact, compile,
    model::{State, Written},
    snapshot,
};
use std::path::{Path, PathBuf};

fn model(text: &str) -> Model {
    Model::from_graph(text.parse().expect("a graph")).expect("a model")
}
fn stored(folder: &Path, model: &Model, options: &CompileOptions) -> PathBuf {
    let path = folder.join("m.kiln");
    artifact::write(&path, &compile(model, options).expect("compiles"), model).expect("written");
    path
}
fn vector(values: &[f64]) -> Tensor {
    Tensor::from_f64(Type::new(DType::F32, [values.len()]), values.iter().copied())
}
fn refusal(opened: Result<Engine, Error>) -> String {
    match opened {
        Err(e) => e.sentence(),
        Ok(_) => panic!("it was opened"),
    }
}

const TEXT: &str = "graph g(%0: f32[4]) {\n  @w: f32[4]\n  %2 = exp %0\n  %3 = mul %2, @w\n  return %3\n}";

#[test]
fn an_artifact_keeps_its_plan_and_its_contract_unless_another_is_asked_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = CompileOptions { fuse: false, contract: Numerics::Exact.into(), ..CompileOptions::default() };
    let model = model(TEXT);
    let path = stored(dir.path(), &model, &made);
    let plan = |settings: &Settings| {
        let engine = Engine::open(&path, settings).expect("opens");
        let binding = engine.bind(&model.input_types(), &[]).expect("compiles");
        (binding.compiled.options.contract, snapshot::text(&binding.compiled.plan))
    };
    let own = snapshot::text(&artifact::plan(&path).expect("a plan"));
    assert_eq!(plan(&Settings::default()), (made.contract, own.clone()));
    let (contract, other) = plan(&Settings { contract: Some(Numerics::Torch.into()), ..Settings::default() });
    assert!(contract == Numerics::Torch.into() && other != own, "{other}");
}

#[test]
fn text_graphs_and_artifacts_compute_what_their_models_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(TEXT);
    let inputs = model.example_inputs(1);
    let compiled = compile(&model, &CompileOptions::default()).expect("compiles");
    let want = compiled.session().expect("loads").run(&inputs).expect("runs")[0].to_f64_vec();
    let text = dir.path().join("text.kiln");
    std::fs::write(&text, TEXT).expect("written");
    for path in [text, stored(dir.path(), &model, &CompileOptions::default())] {
        let engine = Engine::open(&path, &Settings::default()).expect("opens");
        let program = engine.program();
        assert_eq!(program.inputs()[0].name, "input0");
        assert_eq!(program.param_names().collect::<Vec<_>>(), ["w"]);
        assert_eq!(
            (&program.input_dims(), program.input_dims()[0].shape[..].to_vec()),
            (&program.output_dims(), vec![Some(4)])
        );
        assert_eq!(engine.run(&inputs).expect("runs")[0].to_f64_vec(), want);
        let said = engine.run(&[vector(&[1.0])]).expect_err("another size").sentence();
        assert!(said.contains("has to be 4, not 1"), "{said}");
    }
}

/// A run adds its input to the state and gives the state before.
fn counter() -> Model {
    let states = vec![State { name: "sum".into(), initial: vector(&[10.0, 20.0]) }];
    let writes = vec![Written { input: 1, output: 1 }];
    let text = "graph c(%0: f32[2], %1: f32[2]) {\n  %2 = add %0, %1\n  %3 = neg %1\n  return %3, %2\n}";
    Model { states, writes, ..model(text) }
}

#[test]
fn state_stays_from_run_to_run_until_it_is_reset() {
    let dir = tempfile::tempdir().expect("a folder");
    let engine =
        Engine::open(&stored(dir.path(), &counter(), &CompileOptions::default()), &Settings::default()).expect("opens");
    for _ in 0..2 {
        for n in 0..3 {
            let outputs = engine.run(&[vector(&[1.0, 2.0])]).expect("runs");
            assert_eq!(outputs.len(), 1);
            assert_eq!(outputs[0].to_f64_vec(), [-(10.0 + f64::from(n)), -(20.0 + 2.0 * f64::from(n))]);
        }
        engine.reset().expect("reset");
    }
}

/// A state that becomes an input as it is does not follow the caller's memory.
#[test]
fn state_is_not_in_the_callers_memory() {
    let states = vec![State { name: "last".into(), initial: vector(&[0.0, 0.0]) }];
    let writes = vec![Written { input: 1, output: 1 }];
    let text = "graph c(%0: f32[2], %1: f32[2]) {\n  %2 = neg %1\n  return %2, %0\n}";
    let program = Program::from_model(Model { states, writes, ..model(text) }).expect("a program");
    let device = kiln::Device::open("cpu:1").expect("the host");
    let (options, limits) = (CompileOptions::default(), kiln::engine::Limits::default());
    let engine = Engine::new(program, device, options, limits, std::sync::Arc::new(kiln::compile::Reference));
    let mut memory = [1.0f32, 2.0];
    // SAFETY: the memory outlives the tensor, which is dropped before it is written.
    let borrowed =
        unsafe { Tensor::foreign(Type::new(DType::F32, [2]), memory.as_mut_ptr().cast(), std::sync::Arc::new(())) };
    engine.run(&[borrowed]).expect("runs");
    memory.fill(7.0);
    assert_eq!(engine.run(&[vector(&[0.0, 0.0])]).expect("runs")[0].to_f64_vec(), [-1.0, -2.0], "{memory:?}");
}

#[test]
fn what_cannot_be_run_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let open = |path: &Path| Engine::open(path, &Settings::default());
    let torchscript = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../graphs/mlp.pt");
    let said = refusal(open(&torchscript));
    assert!(said.contains("TorchScript") && said.contains("torch.export.save"), "{said}");
    let guarded = Model {
        guards: vec![(0, kiln_graph::Scalar::Float(2.0))],
        ..model("graph g(%0: f32[]) {\n  %1 = exp %0\n  return %1\n}")
    };
    let said = refusal(open(&stored(dir.path(), &guarded, &CompileOptions::default())));
    assert!(said.contains("input 0 is 2") && said.contains("`kiln run`"), "{said}");
    let writes = vec![Written { input: 0, output: 0 }];
    let written = Model { writes, ..model("graph g(%0: f32[2]) {\n  %1 = exp %0\n  return %1\n}") };
    let engine = open(&stored(dir.path(), &written, &CompileOptions::default())).expect("opens");
    let said = engine.run(&[vector(&[1.0, 2.0])]).expect_err("its input is borrowed").sentence();
    assert!(said.contains("writes to its input `input0`") && said.contains("return"), "{said}");
}
