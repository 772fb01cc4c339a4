//! Forms of kernels that multiply: rules give every form that lowering has schedules of, constraints ask for one, and
//! the planner's bound is below every price.
use kiln::constraints::{Constraints, FormText};
use kiln::{CompileOptions, Graph, Model, Target, compile, why_form};
use kiln_graph::Type;
use kiln_plan::{Form, FormNeeds, Hardware, KernelKind, Plan, Stage};
use kiln_rewrite::compare::ELEMENTWISE_RANGE;
use kiln_rewrite::cost::{OpTypes, Price, bound};
use std::collections::BTreeSet;

fn model(file: &str) -> Model {
    let path = format!("{}/../../graphs/{file}.kiln", env!("CARGO_MANIFEST_DIR"));
    let graph: Graph = std::fs::read_to_string(path).expect("a file").parse().expect("a graph");
    Model::from_graph(graph).expect("a model")
}
fn options(target: Target) -> CompileOptions {
    CompileOptions { target, ..CompileOptions::default() }
}
fn with_form(model: &Model, target: Target, at: &str, form: &str) -> Result<Plan, kiln::Error> {
    let use_form = vec![FormText { at: at.into(), form: form.into() }];
    let constraints = Constraints { use_form, ..Constraints::default() };
    compile::plan(model, &CompileOptions { constraints, ..options(target) })
}

#[test]
fn every_form_with_a_schedule_can_be_asked_for() {
    let mut seen = BTreeSet::new();
    for (file, target) in [
        ("swiglu_bf16", Target::Sm90a),
        ("llama_block", Target::Sm90a),
        ("resnet_basic_block", Target::Sm90a),
        ("attention_bf16", Target::Sm90a),
        ("linear_f8", Target::Sm90a),
        ("linear_softmax_bf16", Target::Sm90a),
        ("gpt2_block", Target::Sm80),
        ("resnet_basic_block", Target::Sm80),
    ] {
        let model = model(file);
        let plan = compile::plan(&model, &options(target)).expect("a plan");
        for k in plan.kernels.iter().filter(|k| k.form.is_some()) {
            for priced in kiln_lower::forms(k, target.machine()).expect("forms") {
                if !seen.insert((
                    target.name(),
                    k.kind.name(),
                    priced.form.to_string(),
                    k.body.dtype(k.body.outputs[0]),
                )) {
                    continue;
                }
                let answer = why_form::ask(&model, &options(target), &k.name, priced.form).expect("an answer");
                assert_eq!(answer.plan.forbidden, None, "{file} {}: {}", k.name, priced.form);
                assert_eq!(answer.asked.map(|a| a.form), Some(priced.form.to_string()), "{file} {}", k.name);
            }
        }
    }
    assert!(seen.len() > 25, "{}: {seen:?}", seen.len());
}

/// Slices of register-loaded tiles can be asked for with and without warpgroups, of matmuls and convolutions, and give
/// machine code; not where a sum must have one order.
#[test]
fn slices_of_register_tiles_can_be_asked_for() {
    let matmul = ("swiglu_bf16", "op:linear", "gemm{mma, split}(a, b)");
    let conv = ("resnet_basic_block", "op:conv", "gemm{mma, split}(w, im2col(x))");
    for target in [Target::Sm80, Target::Sm89, Target::Sm90a] {
        for (file, op, form) in [matmul, conv] {
            let model = model(file);
            let plan = with_form(&model, target, op, form).unwrap_or_else(|e| panic!("{target:?} {file}: {e}"));
            let wanted: Option<Form> = form.parse().ok();
            let found: Vec<_> = plan.kernels.iter().filter(|k| k.form == wanted && k.form.is_some()).collect();
            assert!(!found.is_empty(), "{plan}");
            for k in found {
                let schedule = k.schedule.as_ref().expect("a schedule").to_string();
                assert!(schedule.contains("split-reduce k") && schedule.contains("tensor-core mma"), "{schedule}");
            }
            let use_form = vec![FormText { at: op.into(), form: form.into() }];
            let constraints = Constraints { use_form, ..Constraints::default() };
            let options = CompileOptions { constraints, ..options(target) };
            let mut compiled = kiln::compile(&model, &options).expect("compiles");
            compiled.assemble().unwrap_or_else(|e| panic!("{target:?} {file}: {e}"));
            let contract = "torch+batch_invariant".parse().expect("a contract");
            let invariant = CompileOptions { contract, ..options };
            let e = compile::plan(&model, &invariant).expect_err("sums in one order").to_string();
            assert!(e.contains("no rule gives it the form"), "{e}");
        }
    }
}

#[test]
fn constraints_ask_for_a_form() {
    let model = model("swiglu");
    let found = |form: &str| with_form(&model, Target::Sm90a, "op:linear", form);
    let plan = found("gemm{fma}(a, b)").expect("a plan");
    let forms: BTreeSet<Option<Form>> = plan.kernels.iter().filter(|k| k.stage == Stage::Run).map(|k| k.form).collect();
    assert!(forms.contains(&"gemm{fma}(a, b)".parse().ok()), "{plan}");
    assert!(!forms.contains(&"gemm{fma, split}(a, b)".parse().ok()), "{plan}");
    for (target, at, form, why) in [
        (Target::Sm90a, "op:linear", "gemm{wgmma}(a, b)", "no rule gives it the form"),
        (Target::Sm90a, "op:linear", "gemm{dmma}(a, b)", "is not a form"),
        (Target::Sm90a, "op:silu", "gemm{fma}(a, b)", "no kernel that computes it multiplies"),
        (Target::Cpu, "op:linear", "gemm{fma}(a, b)", "no kernel that computes it multiplies"),
    ] {
        let e = with_form(&model, target, at, form).expect_err(form).to_string();
        assert!(e.contains(why), "{at} {form}: {e}");
    }
}

/// Two matmuls are joined where one wide GEMM fills the machine better, which a roofline does not see.
#[test]
fn prices_join_matmuls() {
    let model = model("swiglu");
    let plan = compile::plan(&model, &options(Target::Sm90a)).expect("a plan");
    let wide = Type::new(kiln_graph::DType::F32, [64, 2048]);
    let matmuls = plan.kernels.iter().filter(|k| k.form.is_some());
    assert!(matmuls.clone().any(|k| k.body.values().any(|v| k.body.ty(v).count() == wide.count())), "{plan}");
    assert_eq!(matmuls.count(), 2, "{plan}");
}

/// No schedule of any kernel is priced below the bound by which the planner refuses programs, and 98 of
/// 100 elementwise kernels in the range of their estimate.
#[test]
fn bounds_are_below_prices() {
    let machine = Target::Sm90a.machine();
    let (mut checked, mut multiply, mut elementwise) = (0, 0, vec![]);
    for seed in 0..250 {
        let model = Model::from_graph(kiln_graphgen::case(seed, kiln_graphgen::Scale::Small)).expect("a model");
        let plan = compile::plan(&model, &options(Target::Sm90a)).expect("a plan");
        for k in plan.kernels.iter().filter(|k| k.stage == Stage::Run) {
            let (Some(us), Some(roofline), true) = (k.cost.us, k.cost.roofline_us, k.cost.us != k.cost.roofline_us)
            else {
                continue;
            };
            if k.kind == KernelKind::Pointwise {
                let price = Price { seconds: roofline / 1e6, ..Price::default() };
                let range = us / (price.least_seconds(machine) * 1e6);
                elementwise.push(range);
            }
            let m = &Hardware { machine, contract: plan.contract };
            let seconds = |v| {
                let op = k.body.op(v);
                let types =
                    OpTypes { op, ty: k.body.ty(v), args: k.body.args(v).iter().map(|a| k.body.ty(*a)).collect() };
                if types.matrix_flops() > 0.0 { types.matrix_seconds(m) } else { 0.0 }
            };
            let matrix_seconds = k.body.values().map(seconds).sum();
            let (read, written) = (k.cost.bytes_read as f64, k.cost.bytes_written as f64);
            let least = bound(&Price { read, written, matrix_seconds, ..Price::default() }, machine) * 1e6;
            assert!(least <= us * 1.0001, "seed {seed}, {}: bound {least}, price {us}", k.name);
            checked += 1;
            multiply += usize::from(k.form.is_some());
        }
    }
    let inside = elementwise.iter().filter(|r| (1.0 / ELEMENTWISE_RANGE..=ELEMENTWISE_RANGE).contains(*r)).count();
    assert!(inside as f64 > 0.98 * elementwise.len() as f64, "{inside} of {}", elementwise.len());
    assert!(checked > 300 && multiply > 20 && inside > 150, "{checked}, {multiply}, {inside}");
}

/// A matmul of one row with arithmetic before it, on `columns` columns and `depth` elements of K.
fn skinny(operands: &str, before: &str, matmul: &str) -> Model {
    let text = format!("graph g({operands}) {{\n {before}\n %y = {matmul}\n return %y\n}}");
    let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    Model::from_graph(graph).expect("a model")
}

/// Sums along rows compute operands where they read them, which tiles do not: the price decides.
#[test]
fn a_form_decides_what_is_fused() {
    let weight = "%x: bf16[1,4096], %q: i8[4096,4096], %s: bf16[4096,1]";
    let dequantised = skinny(weight, "%c = cast %q to=bf16\n %w = mul %c, %s", "linear %x, %w");
    let plan = compile::plan(&dequantised, &options(Target::Sm90a)).expect("a plan");
    let [k] = &plan.kernels[..] else { panic!("{plan}") };
    assert_eq!(k.form, "gemm{rows}(a, b)".parse().ok(), "{plan}");
    assert_eq!(FormNeeds::of(&k.body).names(), ["right-operand"]);
    // With a form that reads its operands from memory, the weight is stored.
    let form = "permute(gemm{wgmma, split}(b, a))".parse().expect("a form");
    let answer = why_form::ask(&dequantised, &options(Target::Sm90a), &k.name, form).expect("an answer");
    assert_eq!((answer.plan.gone.len(), answer.plan.new.len()), (1, 2), "{answer:?}");
    assert!(answer.plan.predicted_us > Some(answer.predicted_us) && answer.plan.by_price, "{answer:?}");
    // Each of the many sums would compute the row again.
    let row = "%x: bf16[1,11008], %z: bf16[1,11008], %w: bf16[4096,11008]";
    let gated = skinny(row, "%s = silu %x\n %m = mul %s, %z", "linear %m, %w");
    let plan = compile::plan(&gated, &options(Target::Sm90a)).expect("a plan");
    let [pointwise, matmul] = &plan.kernels[..] else { panic!("{plan}") };
    let [stop] = &matmul.reason.stops[..] else { panic!("{plan}") };
    assert!(stop.kernel == pointwise.name && stop.why.starts_with("no gain"), "{plan}");
    assert_eq!(stop.needs.names(), ["left-operand"]);
    // The number of rows must not decide how a row is computed.
    let contract = "torch+batch_invariant".parse().expect("a contract");
    let invariant = CompileOptions { contract, ..options(Target::Sm90a) };
    let plan = compile::plan(&dequantised, &invariant).expect("a plan");
    assert!(plan.kernels.iter().all(|k| !FormNeeds::of(&k.body).computes_operands()), "{plan}");
}
