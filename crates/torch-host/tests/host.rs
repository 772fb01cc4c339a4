//! End to end: finds and opens libtorch and the plugin, imports a model, runs it, and runs a fallback operator.
use kiln_graph::{DType, FallbackOp, Tensor, Type};
use kiln_torch_host::{Device, Torch};
use std::path::{Path, PathBuf};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../graphs/mlp.pt")
}

fn torch() -> Torch {
    Torch::load()
        .unwrap_or_else(|e| panic!("this needs libtorch and the plugin: run scripts/setup and scripts/test\n{e}"))
}

fn input() -> Tensor {
    Tensor::from_f64(Type::new(DType::F32, [8, 32]), (0..256).map(|i| f64::from(i % 17) / 8.0 - 1.0))
}

#[test]
fn imports_and_runs() {
    let torch = torch();
    let imported = torch.import(&model(), &[input()]).unwrap();
    assert_eq!(imported.graph.inputs.len(), 1);
    assert_eq!(imported.params.len(), imported.graph.params.len());
    let mut session = torch.session(&model(), &[input()], Device::Cpu, 1).unwrap();
    session.run().unwrap();
    let outputs = session.outputs().unwrap();
    assert_eq!(outputs[0].ty, Type::new(DType::F32, [8, 16]));
    assert_eq!(outputs, torch.run_module(&model(), &[input()], 0).unwrap());
    assert_eq!(torch.arguments(&model()).unwrap().len(), 1);
}

#[test]
fn errors_cross_the_boundary() {
    let torch = torch();
    let e = torch.import(&model(), &[]).unwrap_err();
    assert!(e.to_string().contains("0 inputs were given"), "{e}");
    let e = torch.import(Path::new("/nowhere.pt"), &[]).unwrap_err();
    assert!(e.to_string().contains("no such file"), "{e}");
}

#[test]
fn fallbacks_run() {
    let torch = torch();
    let ty = Type::new(DType::F32, [2, 3]);
    let x = Tensor::from_f64(ty.clone(), [3.0, 1.0, 2.0, -1.0, 5.0, 0.0]);
    let sort = FallbackOp {
        name: "aten::sort".into(),
        overload: String::new(),
        args: r#"[{"tensor": 0}, 1, false]"#.into(),
        results: vec![ty.clone(), Type::new(DType::I64, [2, 3])],
        why: String::new(),
        vouched: false,
    };
    let results = torch.run_fallback(&sort, &[x]).unwrap();
    assert_eq!(results[0].to_f64_vec(), [1.0, 2.0, 3.0, -1.0, 0.0, 5.0]);
    assert_eq!(results[1].to_f64_vec(), [1.0, 2.0, 0.0, 0.0, 2.0, 1.0]);
}

#[test]
fn one_thread_calls_libtorch() {
    let torch = torch();
    torch.import(&model(), &[input()]).unwrap();
    let mut session = torch.session(&model(), &[input()], Device::Cpu, 0).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| session.run().unwrap());
        for _ in 0..3 {
            s.spawn(|| torch.run_module(&model(), &[input()], 0).unwrap());
        }
    });
    drop(session);
    assert_eq!(torch.calling_threads(), 1);
}

#[test]
fn operators_beyond_their_operands_are_refused() {
    let torch = torch();
    let ty = Type::new(DType::F32, [4]);
    for (name, args) in [
        ("aten::from_file", r#"["/etc/hostname", false, 4, 6]"#),
        ("aten::save", r#"[{"tensor": 0}, "/tmp/kiln-must-not-exist"]"#),
        ("aten::_reshape_alias", r#"[{"tensor": 0}, [99999], [1]]"#),
        ("prim::ConstantChunk", "[]"),
    ] {
        let (name, args, results) = (name.to_string(), args.to_string(), vec![ty.clone()]);
        let op = FallbackOp { name, overload: String::new(), args, results, why: String::new(), vouched: false };
        let e = torch.run_fallback(&op, &[Tensor::zeros(ty.clone())]).unwrap_err().to_string();
        assert!(e.contains("not among the operators that a graph may leave to libtorch"), "{e}");
    }
    assert!(!Path::new("/tmp/kiln-must-not-exist").exists());
}
