//! Elementwise neighbours of a launch are computed where its program loads and stores: the same bits as by kernels of
//! their own, on the processor, and PTX that assembles. What does not fuse says why.
use kiln::kernels::{Elem, write};
use kiln::launches::program_text;
use kiln::{
    CompileOptions, Contract, Graph, Model, Report, Target, Tensor, compile, compile::CompiledCode,
    constraints::Constraints, facts, proof, ptxas,
};
use kiln_plan::{KernelKind, Numerics, Plan, Stage};

/// Rows and columns of the tensors, none of them a multiple of a tile.
const ROWS: usize = 12;
const COLUMNS: usize = 10;
const TILE: [usize; 2] = [8, 4];

/// `out = 2 x`, by masked tiles in row-major order.
fn tile(elem: Elem) -> String {
    let program = write("tile", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, elem));
        let (id, across) = (k.program_id(0), COLUMNS.div_ceil(TILE[1]) as i64);
        let row = (id / across * TILE[0] as i64 + k.arange(TILE[0])).expand(1);
        let column = (id % across * TILE[1] as i64 + k.arange(TILE[1])).expand(0);
        let inside = row.lt(ROWS as i64) & column.lt(COLUMNS as i64);
        let at = row * COLUMNS as i64 + column;
        let v = (x + at).masked(inside).load();
        (out + at).masked(inside).store(v + v);
    });
    program_text(&program.expect("a program")).text
}

fn source(lines: &str) -> String {
    let inputs = "%x: f32[12,10], %r: f32[12,10], %row: f32[10], %column: f32[12,1], %t: f32[10,12], %h: f16[12,10]";
    format!("graph g({inputs}) {{\n  {}\n{lines}\n}}\n", tile(Elem::F32))
}
fn model(text: &str) -> Model {
    Model::from_graph(text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))).expect("a model")
}
fn exact(fuse: bool) -> CompileOptions {
    CompileOptions { fuse, contract: Contract::from(Numerics::Exact), cache: false, ..CompileOptions::default() }
}
fn run(model: &Model, options: &CompileOptions, inputs: &[Tensor]) -> (Plan, Vec<Tensor>) {
    let compiled = compile(model, options).expect("compiles");
    assert!(Report::new(&compiled).fallback.is_empty(), "it has code");
    let outputs = compiled.session().expect("loads").run(inputs).expect("runs");
    (compiled.plan, outputs)
}
fn kinds(plan: &Plan) -> Vec<KernelKind> {
    plan.kernels.iter().filter(|k| k.stage == Stage::Run).map(|k| k.kind).collect()
}

/// The kinds of the kernels of a fused plan, whose results have the bits of the unfused one.
fn fused(text: &str) -> Plan {
    let model = model(text);
    let inputs = model.example_inputs(5);
    let (_, want) = run(&model, &exact(false), &inputs);
    let (plan, got) = run(&model, &exact(true), &inputs);
    assert_eq!(got, want, "{text}\n{plan}");
    let none = &mut kiln_interp::graph::no_fallback;
    let interpreted = kiln_interp::graph::run(&model.graph, &inputs, &model.params, none).expect("interpreted");
    for (got, want) in got.iter().zip(&interpreted) {
        for i in 0..got.ty.count() {
            let (got, want) = (got.get_f64(i), want.get_f64(i));
            // A few roundings to the type of the result, of numbers below 64.
            let rounding = if text.contains("f16") { 0.03 } else { 1e-5 };
            assert!((got - want).abs() <= rounding * want.abs().max(1.), "{got} {want}\n{text}\n{plan}");
        }
    }
    plan
}

#[test]
fn neighbours_are_part_of_the_launch() {
    const LAUNCH: &str = "launch tile(x=%a, out=new f32[12,10]) grid=[6]";
    let table = [
        ("after", "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %y = relu %a"),
        ("a residual", "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %y = add %a, %r"),
        ("its own operand", "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %y = add %a, %x"),
        ("a row", "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %y = add %a, %row"),
        ("a column", "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %y = mul %a, %column"),
        ("a cast", "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %y = cast %a to=f16"),
        (
            "a chain",
            "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %b = add %a, %row\n  %c = gelu_erf %b\n  \
             %d = mul %c, %column\n  %y = add %d, %r",
        ),
        (
            "another shape",
            "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]\n  %b = reshape %a shape=[3,4,10]\n  \
             %c = reshape %r shape=[3,4,10]\n  %y = add %b, %c",
        ),
        ("before", &format!("%a = neg %x\n  %y = {LAUNCH}")),
        ("of another type", &format!("%a = cast %h to=f32\n  %y = {LAUNCH}")),
        ("a transpose", &format!("%a = permute %t perm=[1,0]\n  %y = {LAUNCH}")),
        ("a scaled operand", &format!("%b = mul %x, %row\n  %a = mul %b, %column\n  %y = {LAUNCH}")),
        ("not zero outside", &format!("%a = exp %x\n  %y = {LAUNCH}")),
        ("both", &format!("%a = neg %x\n  %b = {LAUNCH}\n  %c = relu %b\n  %y = add %c, %x")),
    ];
    for (what, lines) in table {
        let plan = fused(&source(&format!("  {lines}\n  return %y")));
        assert_eq!(kinds(&plan), [KernelKind::Launch], "{what}\n{plan}");
        let text = plan.to_string();
        let read: Plan = text.parse().expect("a plan");
        assert_eq!(read.to_string(), text);
    }
}

/// Why the launch of a plan was not merged with its neighbours.
fn stops(text: &str) -> Vec<String> {
    let (plan, _) = run(&model(text), &exact(true), &model(text).example_inputs(5));
    let launches = plan.kernels.iter().filter(|k| k.kind == KernelKind::Launch);
    launches.flat_map(|k| k.reason.stops.iter().map(|s| s.why.clone())).collect()
}

#[test]
fn what_does_not_fuse_says_why() {
    let plain = "%a = launch tile(x=%x, out=new f32[12,10]) grid=[6]";
    let table = [
        (format!("{plain}\n  %y = reduce.mean %a axes=[1]"), "more than elementwise ops around a launch"),
        (format!("{plain}\n  %y = softmax %a axis=1"), "more than elementwise ops around a launch"),
        (format!("{plain}\n  %y = slice %a axis=1 start=2 len=4 step=1"), "view after an anchor op"),
        (
            "%a = launch tile(x=%x, out=new f32[12,10]) grid=[5]\n  %y = relu %a".into(),
            "launch does not store every element",
        ),
        ("%a = launch tile(x=%x, out=copy %r) grid=[6]\n  %y = relu %a".into(), "launch updates the tensor"),
        (
            format!("%s = softmax %r axis=1\n  {}\n  %y = neg %a", plain.replace("x=%x", "x=%s")),
            "more than elementwise",
        ),
    ];
    for (lines, why) in table {
        let found = stops(&source(&format!("  {lines}\n  return %y")));
        assert!(found.iter().any(|stop| stop.contains(why)), "{found:?}\nnot: {why}\n{lines}");
    }
}

fn matmul_text() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs/handwritten_matmul.kiln");
    std::fs::read_to_string(path).expect("a file")
}
fn matmul() -> Graph {
    matmul_text().parse().expect("a graph")
}

/// In roles where the program has their form; with a left operand that is computed, which the cast before it is part of
/// then, or before sm_90a, pipelined.
#[test]
fn a_matmul_with_bias_relu_and_residual_is_one_kernel_by_tensor_cores() {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    let dot = "%next = dot %left";
    let computed = matmul_text().replace(dot, "%square = mul %left, %left : f16[128,64]\n      %next = dot %square");
    assert_ne!(computed, matmul_text());
    let two = &[KernelKind::Pointwise, KernelKind::Launch][..];
    for (text, name, kernels, instructions) in [
        (matmul_text(), "sm_80", two, &["mma.sync", "cp.async.cg", "ldmatrix"][..]),
        (matmul_text(), "sm_90a", two, &["wgmma.mma_async", "cp.async.bulk.tensor"]),
        (computed, "sm_90a", &[KernelKind::Launch], &["wgmma.mma_async", "cp.async.cg"]),
    ] {
        let target: Target = name.parse().expect("a target");
        let options = CompileOptions { target, cache: false, ..CompileOptions::default() };
        let compiled = compile(&model(&text), &options).expect("compiles");
        assert!(Report::new(&compiled).fallback.is_empty(), "{name}: it has code");
        assert_eq!(kinds(&compiled.plan), kernels, "{}", compiled.plan);
        let CompiledCode::Ptx(all) = &compiled.code else { panic!("no PTX") };
        for ptx in all {
            assert_eq!(facts::assemble(&ptxas, &ptx.text, name).err().map(|e| e.to_string()), None);
        }
        for instruction in instructions {
            assert!(all.iter().any(|ptx| ptx.text.contains(instruction)), "{name}: {instruction}");
        }
    }
}

#[test]
fn constraints_and_certificates_hold_fused_launches() {
    let model = Model::from_graph(matmul()).expect("a model");
    let compiled = compile(&model, &exact(true)).expect("compiles");
    let pinned = CompileOptions { constraints: Constraints::pin(&compiled.plan), ..exact(true) };
    let again = compile(&model, &pinned).expect("compiles");
    assert_eq!(kinds(&again.plan), kinds(&compiled.plan));
    let apart = Constraints { never_fuse: vec![vec!["%4".into(), "%6".into()]], ..Constraints::default() };
    let apart = compile(&model, &CompileOptions { constraints: apart, ..exact(true) }).expect("compiles");
    assert_eq!(kinds(&apart.plan), [KernelKind::Pointwise, KernelKind::Launch, KernelKind::Pointwise]);
    let certificate = proof::certificate(&model, &exact(true)).expect("a plan");
    let checked = kiln_proof_check::check(&serde_json::to_string(&certificate).expect("JSON"));
    assert!(checked.is_ok(), "{:?}", checked.err());
}
