//! State of engines: steps that follow each other, and what the host reads and sets between them. On the CPU, and on a
//! GPU if there is one.
use kiln::{
    CompileOptions, DType, Device, DeviceKind, Engine, Param, Program, RuntimeError, Storage, Tensor, Type,
    compile::Reference, engine::Limits,
};
use std::sync::Arc;

/// The next token is the last one and the sum of the input. It goes to `out` at the position, which moves on.
const STEP: &str = r#"{
    "name": "step",
    "symbols": {"n": {"min": 1, "max": 4, "hint": 1}},
    "values": [
        {"dtype": "i64", "shape": ["Symbol('n')"]},
        {"dtype": "i64", "shape": [1], "name": "token"},
        {"dtype": "i64", "shape": [16], "name": "out"},
        {"dtype": "i64", "shape": [1], "name": "position"},
        {"dtype": "i64", "shape": []},
        {"dtype": "i64", "shape": [1]},
        {"dtype": "i64", "shape": [16]},
        {"dtype": "i64", "shape": [1]}],
    "inputs": [{"name": "more", "value": 0}],
    "params": [1, 2, 3],
    "calls": [
        {"name": "aten::sum", "overload": "", "args": [{"value": 0}, "none"], "outs": [4]},
        {"name": "aten::add", "overload": "Tensor", "args": [{"value": 1}, {"value": 4}, {"int": 1}], "outs": [5]},
        {"name": "aten::index_copy", "overload": "", "args": [{"value": 2}, {"int": 0}, {"value": 3}, {"value": 5}],
         "outs": [6]},
        {"name": "aten::add", "overload": "Scalar", "args": [{"value": 3}, {"int": 1}, {"int": 1}], "outs": [7]}],
    "outputs": [{"value": 5}],
    "writes": [{"target": 1, "value": 5}, {"target": 2, "value": 6}, {"target": 3, "value": 7}]
}"#;

fn numbers(values: &[i64]) -> Tensor {
    Tensor::from_f64(Type::new(DType::I64, [values.len()]), values.iter().map(|v| *v as f64))
}
fn read(t: &Tensor) -> Vec<i64> {
    (0..t.ty.count()).map(|i| t.get_i64(i)).collect()
}
/// An engine of the program on a device of this machine.
fn engine(kind: DeviceKind, name: &str) -> Engine {
    let device = Device::open(name).unwrap_or_else(|e| panic!("this test needs {name}: {e}"));
    let options = CompileOptions::default().on(kind).expect("options");
    let params = [numbers(&[10]), numbers(&[-1; 16]), numbers(&[0])].map(Param::Host).into();
    let program = Program::from_json(STEP, params).expect("valid");
    Engine::new(program, device, options, Limits::default(), Arc::new(Reference))
}
fn state(engine: &Engine, name: &str) -> Vec<i64> {
    read(&engine.state(name).expect("a state"))
}

fn steps_follow_each_other_over_all_bindings(engine: &Engine) {
    assert_eq!(engine.state_names().expect("names"), ["token", "out", "position"]);
    assert_eq!(state(engine, "token"), [10], "before the first run");
    let one = [numbers(&[1])];
    let step = |inputs: &[Tensor]| read(&engine.step(inputs).expect("runs")[0]);
    assert_eq!(step(&one), [11]);
    // Another binding goes on where the first has stopped.
    assert_eq!(step(&[numbers(&[2, 3, 4])]), [20]);
    assert_eq!(read(&engine.steps(5, &one).expect("runs")[0]), [25]);
    assert_eq!(state(engine, "out")[..8], [11, 20, 21, 22, 23, 24, 25, -1]);
    assert_eq!((state(engine, "token"), state(engine, "position")), (vec![25], vec![7]));
    assert_eq!(engine.bindings().len(), 2);

    engine.set_state("token", &numbers(&[100])).expect("set");
    engine.set_state("position", &numbers(&[15])).expect("set");
    assert_eq!(step(&one), [101]);
    assert_eq!(state(engine, "out")[15], 101);

    engine.reset().expect("reset");
    assert_eq!((state(engine, "token"), state(engine, "position")), (vec![10], vec![0]));
    assert_eq!(state(engine, "out"), [-1; 16]);
    assert_eq!(read(&engine.steps(2, &one).expect("runs")[0]), [12]);
    assert_eq!(state(engine, "out")[..3], [11, 12, -1]);
}

fn state_is_set_before_the_first_run(engine: &Engine) {
    engine.set_state("token", &numbers(&[3])).expect("set");
    assert_eq!(read(&engine.step(&[numbers(&[1])]).expect("runs")[0]), [4]);
}

/// A step out of range is an error of the call that ran it, on a GPU too, and the state can be reset.
fn a_step_that_fails_says_so(engine: &Engine) {
    let one = [numbers(&[1])];
    let said = engine.steps(17, &one).expect_err("position 16").sentence();
    assert!(said.contains("16") && said.contains("indices"), "{said}");
    engine.reset().expect("reset");
    assert_eq!(read(&engine.steps(16, &one).expect("fits")[0]), [26]);
}

fn wrong_calls_say_what_there_is(engine: &Engine) {
    let said = engine.state("tokens").expect_err("misspelt").sentence();
    assert!(said.contains("no state `tokens`") && said.contains("token, out, position"), "{said}");
    let said = engine.set_state("out", &numbers(&[1])).expect_err("short").sentence();
    assert!(said.contains("i64[16]") && said.contains("i64[1]"), "{said}");
    let said = engine.steps(0, &[numbers(&[1])]).expect_err("none").sentence();
    assert!(said.contains("at least one step"), "{said}");
}

/// Runs over the caller's memory change the same state.
fn runs_over_memory_of_the_device(engine: &Engine) {
    let binding = engine.bind(&[Type::new(DType::I64, [1])], &[]).expect("compiled");
    assert!(binding.session.executable().writes_input(2), "`out` is written in place");
    let mut more = Storage::of(engine.device(), &numbers(&[2]), "an input").expect("memory");
    let mut token = Storage::new(engine.device(), Type::new(DType::I64, [1]), "an output").expect("memory");
    let (from, to) = (more.address(), token.address());
    for want in [12, 14] {
        // SAFETY: memory of these types on the engine's device, which lives until it is read.
        unsafe { engine.run_binding_on(&binding, &[from], &[to], 0) }.expect("runs");
        assert_eq!(read(&token.read().expect("a copy")), [want]);
    }
    assert_eq!(read(&engine.step(&[numbers(&[1])]).expect("runs")[0]), [15]);
    assert_eq!(state(engine, "out")[..4], [12, 14, 15, -1]);
    assert!(matches!(token.write(&numbers(&[1, 2])), Err(RuntimeError::StorageType(_))));

    // An input cannot take an output of another type, or one that there is not.
    for feed in [(2, 0), (0, 9)] {
        let outputs = vec![to; binding.session.executable().outputs.len()];
        // SAFETY: refused before anything runs.
        let refused = unsafe { binding.session.steps_on(1, &[from; 4], &outputs, &[feed], None) };
        assert!(matches!(refused, Err(RuntimeError::Feed { .. })), "{refused:?}");
    }
}

/// A test of each of these on the host, and one on a GPU.
macro_rules! on_each_device {
    ($($name:ident),*) => {
        mod host {
            $(#[test]
            fn $name() {
                super::$name(&super::engine(super::DeviceKind::Cpu, "cpu:1"));
            })*
        }
        mod gpu {
            $(#[test]
            #[ignore = "needs a GPU"]
            fn $name() {
                super::$name(&super::engine(super::DeviceKind::Cuda(0), "cuda:0"));
            })*
        }
    };
}
on_each_device!(
    steps_follow_each_other_over_all_bindings,
    state_is_set_before_the_first_run,
    a_step_that_fails_says_so,
    wrong_calls_say_what_there_is,
    runs_over_memory_of_the_device
);
