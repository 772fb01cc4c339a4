//! Graphs that launch block programs: they run on the processor as the interpreter runs them, are stored in artifacts,
//! have PTX, and what is wrong with a launch is said with its line.
use kiln::kernels::{Elem, write};
use kiln::launches::{ArgumentValue, LaunchArgument, LaunchOp, ProgramText, defined_at, program_text};
use kiln::{
    CompileOptions, DType, Graph, Model, Report, Target, Tensor, artifact, compile, compile::CompiledCode, facts, ptxas,
};
use kiln_graph::{Op, Scalar, Type};
use std::path::Path;

/// `out = by * x`, and `sums` with the sums of four neighbours of `x` added.
const PROGRAM: &str =
    "kernel @scale(%x: ptr<f32>, %sums: ptr<f32>, %out: ptr<f32>, %n: i32, %by: f32) grid launch warps 1 {
    %p = program_id 0 : i32
    %four = const 4 : i32
    %start = mul %p, %four : i32
    %starts = splat %start : i32[4]
    %lane = iota : i32[4]
    %i = add %starts, %lane : i32[4]
    %all = splat %n : i32[4]
    %inside = cmp lt %i, %all : bool[4]
    %from = splat %x : ptr<f32>[4]
    %from_i = ptr_add %from, %i : ptr<f32>[4]
    %v = load %from_i, %inside : f32[4]
    %bys = splat %by : f32[4]
    %y = mul %v, %bys : f32[4]
    %to = splat %out : ptr<f32>[4]
    %to_i = ptr_add %to, %i : ptr<f32>[4]
    store %to_i, %y, %inside
    %sum = reduce sum %v axis 0 : f32
    %slot = ptr_add %sums, %p : ptr<f32>
    %old = load %slot : f32
    %new = add %old, %sum : f32
    store %slot, %new
  }";

fn source(lines: &str) -> String {
    format!("graph g(%x: f32[10], %s: f32[3]) {{\n  {PROGRAM}\n{lines}\n}}\n")
}
fn model(text: &str) -> Model {
    Model::from_graph(text.parse().expect("a graph")).expect("a model")
}
fn interpreted(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    let none = &mut kiln_interp::graph::no_fallback;
    kiln_interp::graph::run(&model.graph, inputs, &model.params, none).expect("interpreted")
}
fn compiled_and_run(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    let compiled = compile(model, &CompileOptions::default()).expect("compiles");
    assert!(Report::new(&compiled).fallback.is_empty(), "it has code");
    compiled.session().expect("loads").run(inputs).expect("runs")
}

/// Equal but for the order in which five numbers of about one are added: four roundings to f32.
fn assert_agree(got: &[Tensor], want: &[Tensor]) {
    const ROUNDINGS: f64 = 4.0 * f32::EPSILON as f64 * 8.0;
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.ty, want.ty);
        for i in 0..got.ty.count() {
            assert!((got.get_f64(i) - want.get_f64(i)).abs() <= ROUNDINGS, "{got:?}\n{want:?}");
        }
    }
}

const WHOLE: &str = "  %e = neg %x
  %sums = launch scale(x=%e, sums=copy %s, out=new f32[10], n=10, by=2.5) grid=[3]
  %out = result %sums index=1
  %y = add %out, %x
  return %sums, %y, %s";

#[test]
fn a_launch_gives_what_its_program_writes() {
    let model = model(&source(WHOLE));
    let inputs = model.example_inputs(7);
    let (got, want) = (compiled_and_run(&model, &inputs), interpreted(&model, &inputs));
    assert_agree(&got, &want);
    let x = |i: usize| inputs[0].get_f64(i);
    for i in 0..10 {
        assert_eq!(got[1].get_f64(i) as f32, (-x(i) as f32) * 2.5 + x(i) as f32);
    }
    assert!(got[0] != inputs[1], "the copy was added to");
    assert_eq!(got[2], inputs[1], "the operand stays as it is");
}

#[test]
fn a_result_that_nothing_reads_and_a_grid_of_zero() {
    let unread = model(&source(&WHOLE.replace("return %sums, ", "return ")));
    let inputs = unread.example_inputs(3);
    assert_agree(&compiled_and_run(&unread, &inputs), &interpreted(&unread, &inputs));
    let nothing =
        model(&source(&WHOLE.replace("grid=[3]", "grid=[0]").replace("return %sums, %y, %s", "return %sums")));
    assert_eq!(compiled_and_run(&nothing, &inputs), [inputs[1].clone()], "the copy alone");
}

#[test]
fn an_artifact_carries_its_programs() {
    let model = model(&source(WHOLE));
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("g.kiln");
    artifact::write(&path, &compile(&model, &CompileOptions::default()).expect("compiles"), &model).expect("written");
    let inputs = model.example_inputs(7);
    let opened = Model::open(&path, &inputs).expect("opens");
    assert_eq!(opened.graph, model.graph);
    assert_agree(&compiled_and_run(&opened, &inputs), &interpreted(&model, &inputs));
}

#[test]
fn reports_name_the_program() {
    let compiled = compile(&model(&source(WHOLE)), &CompileOptions::default()).expect("compiles");
    let report = Report::new(&compiled);
    let kernel = report.kernels.iter().find(|k| k.kind == "launch").expect("a kernel");
    let ops: Vec<&str> = kernel.ops.iter().map(|op| op.op.as_str()).collect();
    assert_eq!(ops, ["neg", "scale", "result", "add"], "with what is before and after it");
    let text = report.in_depth(&kernel.name, 100).expect("there");
    assert!(text.contains("written by hand") && text.contains("program `scale`"), "{text}");
    let program = ProgramText { name: "scale".into(), text: PROGRAM.into() };
    let placed = defined_at(program, "/models/scaling.py:12").text;
    let compiled = compile(&model(&source(WHOLE).replace(PROGRAM, &placed)), &CompileOptions::default());
    let compiled = compiled.expect("compiles");
    let text = Report::new(&compiled).in_depth(&kernel.name, 100).expect("there");
    assert!(text.contains("program `scale` (scaling.py:12), as its text says"), "{text}");
    let plan = compiled.plan.to_string();
    assert!(plan.contains("kernel @scale("), "the plan's text holds the program:\n{plan}");
    let read: kiln::Plan = plan.parse().expect("a plan");
    assert_eq!(read.to_string(), plan);
}

#[test]
fn ptx_of_a_launch_assembles() {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    for name in ["sm_80", "sm_90a"] {
        let target: Target = name.parse().expect("a target");
        let options = CompileOptions { target, ..CompileOptions::default() };
        let compiled = compile(&model(&source(WHOLE)), &options).expect("compiles");
        assert!(Report::new(&compiled).fallback.is_empty(), "{name}: it has code");
        let CompiledCode::Ptx(all) = &compiled.code else { panic!("no PTX") };
        for ptx in all {
            assert_eq!(facts::assemble(&ptxas, &ptx.text, name).err().map(|e| e.to_string()), None);
        }
    }
}

fn refusal(dir: &Path, text: &str) -> String {
    let path = dir.join("g.kiln");
    std::fs::write(&path, text).expect("written");
    match Model::open(&path, &[]) {
        Ok(_) => panic!("it opened:\n{text}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn what_is_wrong_with_a_launch_is_said_with_its_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let whole = source(WHOLE);
    let table = [
        ("%y = mul %v, %bys : f32[4]", "%y = mul %v : f32[4]", "program `scale`, launched as %3"),
        ("splat %by : f32[4]", "splat %bi : f32[4]", "line 14: program `scale`, launched as %3: column"),
        ("n=10, ", "", "line 26: program `scale`, launched as %3: its parameter `n` is not given"),
        ("x=%e, ", "x=%e, z=1, ", "it has no parameter `z`"),
        ("neg %x", "cast %x to=f16", "`x` points to f32, and a tensor of f16 is given"),
        ("x=%e, sums=copy %s, out=new f32[10]", "sums=copy %s, out=new f32[10], x=copy %e", "it never writes `x`"),
        ("store %to_i, %y, %inside", "store %to_i, %y", "`out` is written at element 11, and has 10"),
        ("grid=[3]", "grid=[4]", "`sums` is read at element 3, and has 3"),
        ("grid=[3]", "", "its grid is of the launch, which gives none"),
    ];
    for (from, to, wanted) in table {
        assert!(whole.contains(from), "{from}");
        let found = refusal(dir.path(), &whole.replace(from, to));
        assert!(found.contains(wanted), "{found}\nnot: {wanted}");
    }
}

#[test]
fn a_program_may_lie_beside_its_graph() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("g.kiln");
    let text = source(WHOLE).replace(PROGRAM, "kernel @scale from \"scale.txt\"");
    std::fs::write(&path, &text).expect("written");
    let missing = Model::open(&path, &[]).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(missing.contains("give the path of a block program, from this file's folder"), "{missing}");
    std::fs::write(dir.path().join("scale.txt"), PROGRAM.replace("\n  ", "\n")).expect("written");
    let opened = Model::open(&path, &[]).expect("opens");
    let inputs = opened.example_inputs(7);
    assert_agree(&compiled_and_run(&opened, &inputs), &interpreted(&model(&source(WHOLE)), &inputs));
}

#[test]
fn a_graph_launches_a_program_that_rust_wrote() {
    let add = write("add", |k| {
        let [x, y, out] = ["x", "y", "out"].map(|name| k.pointer(name, Elem::F32));
        let n = k.scalar("n", Elem::I32);
        let i = k.program_id(0) * 4 + k.arange(4);
        let inside = i.lt(n);
        let sum = (x + i).masked(inside).load() + (y + i).masked(inside).load();
        (out + i).masked(inside).store(sum);
    });
    let ty = Type::new(DType::F32, [10]);
    let argument = |parameter: &str, value| LaunchArgument { parameter: parameter.into(), value };
    let launch = LaunchOp {
        program: program_text(&add.expect("a program")),
        grid: vec![3],
        arguments: vec![
            argument("x", ArgumentValue::Operand),
            argument("n", ArgumentValue::Number(Scalar::Int(10))),
            argument("y", ArgumentValue::Operand),
            argument("out", ArgumentValue::New(ty.clone())),
        ],
    };
    let mut g = Graph::new("g");
    let x = g.input(ty);
    let sum = g.add(Op::Launch(Box::new(launch)), &[x, x]).expect("a node");
    g.outputs = vec![sum];
    assert_eq!(g.to_string().parse::<Graph>().as_ref(), Ok(&g));
    let model = Model::from_graph(g).expect("a model");
    let inputs = model.example_inputs(1);
    let got = compiled_and_run(&model, &inputs);
    assert_eq!(got, interpreted(&model, &inputs));
    assert!((0..10).all(|i| got[0].get_f64(i) == 2.0 * inputs[0].get_f64(i)));
}
