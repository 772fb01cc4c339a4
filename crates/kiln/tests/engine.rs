//! Engines: programs compiled for the sizes they are called with, and state that is written in place.
use kiln::{
    CompileOptions, DType, Device, Engine, Param, Program, Tensor, Type,
    compile::Reference,
    engine::{Limits, Result as Given},
    program::Sizes,
};
use std::sync::Arc;

/// A step over a cache of 6 rows: rows `place` become `new`; gives the sum of the cache over rows, and counts steps.
const STEP: &str = r#"{
    "name": "step",
    "symbols": {"n": {"min": 1, "max": 6, "hint": 1}},
    "values": [
        {"dtype": "f32", "shape": ["Symbol('n')", 2]},
        {"dtype": "i64", "shape": ["Symbol('n')"]},
        {"dtype": "f32", "shape": [6, 2], "name": "cache"},
        {"dtype": "f32", "shape": [], "name": "steps"},
        {"dtype": "f32", "shape": [6, 2]},
        {"dtype": "f32", "shape": [2]},
        {"dtype": "f32", "shape": []}],
    "inputs": [{"name": "new", "value": 0}, {"name": "place", "value": 1}, {"name": "n", "size": "Symbol('n')"}],
    "params": [2, 3],
    "calls": [
        {"name": "aten::index_copy", "overload": "", "args": [{"value": 2}, {"int": 0}, {"value": 1}, {"value": 0}],
         "outs": [4]},
        {"name": "aten::sum", "overload": "dim_IntList", "args": [{"value": 4}, {"ints": [0]}, {"bool": false}, "none"],
         "outs": [5]},
        {"name": "aten::add", "overload": "Tensor", "args": [{"value": 3}, {"float": 1.0}, {"int": 1}], "outs": [6]}],
    "outputs": [{"value": 5}, {"size": "Mul(Integer(2), Symbol('n'))"}, "none"],
    "writes": [{"target": 2, "value": 4}, {"target": 3, "value": 6}]
}"#;

fn f32s(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(Type::new(DType::F32, shape), values.iter().copied())
}

fn engine(limits: Limits) -> Engine {
    let params = [f32s(&[6, 2], &[0.0; 12]), f32s(&[], &[0.0])].map(Param::Host).into();
    let program = Program::from_json(STEP, params).expect("valid");
    Engine::new(program, Device::open("cpu").expect("a host"), CompileOptions::default(), limits, Arc::new(Reference))
}

#[test]
fn state_is_written_in_place() {
    let engine = engine(Limits::default());
    let (mut cache, mut steps) = (f32s(&[6, 2], &[0.0; 12]), f32s(&[], &[0.0]));
    let mut step = |new: &[f64], places: &[f64]| {
        let n = places.len();
        let new = f32s(&[n, 2], new);
        let places = Tensor::from_f64(Type::new(DType::I64, [n]), places.iter().copied());
        let binding = engine.bind(&[new.ty.clone(), places.ty.clone()], &[n as i64]).expect("compiled");
        assert_eq!(binding.states, [0, 1]);
        assert_eq!(binding.results[1..], [Given::Number(2 * n as i64), Given::None]);
        // The counter's kernel reads what it would overwrite, so its value is copied; the cache is no output.
        assert_eq!(binding.copies.iter().map(|w| (w.input, w.output)).collect::<Vec<_>>(), [(3, 1)]);
        assert_eq!(binding.session.executable().outputs.len(), 2);
        let (mut sum, mut counted) = (f32s(&[2], &[0.0; 2]), f32s(&[], &[0.0]));
        let inputs =
            [new.bytes().as_ptr(), places.bytes().as_ptr(), cache.bytes_mut().as_ptr(), steps.bytes().as_ptr()];
        let outputs = [sum.bytes_mut().as_ptr(), counted.bytes_mut().as_ptr()];
        // SAFETY: dense tensors of these types, which live through the call.
        unsafe { binding.session.run_on(&inputs.map(|p| p as u64), &outputs.map(|p| p as u64), None) }.expect("runs");
        steps = counted;
        (sum.to_f64_vec(), cache.to_f64_vec(), steps.get_f64(0))
    };
    let (sum, cache, count) = step(&[1.0, 2.0], &[4.0]);
    assert_eq!((sum, count), (vec![1.0, 2.0], 1.0));
    assert_eq!(cache, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
    let (sum, cache, count) = step(&[5.0, 6.0, 7.0, 8.0], &[0.0, 4.0]);
    assert_eq!((sum, count), (vec![12.0, 14.0], 2.0));
    assert_eq!(cache, [5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 0.0, 0.0]);
    assert!(step(&[0.0, 0.0], &[0.0]).2 == 3.0);
    let hits: Vec<(i64, u64)> = engine.bindings().iter().map(|b| (b.sizes["n"], b.hits())).collect();
    assert_eq!(hits, [(2, 1), (1, 2)], "the last one used is last");
}

#[test]
fn runs_over_tensors_do_not_write_in_place() {
    let engine = engine(Limits::default());
    let binding = engine.at(&Sizes::from([("n".into(), 1)])).expect("compiled");
    let inputs: Vec<Tensor> = binding.session.executable().inputs.iter().map(|i| Tensor::zeros(i.ty.clone())).collect();
    let e = binding.session.run(&inputs).expect_err("state").to_string();
    assert!(e.contains("written in place"), "{e}");
}

#[test]
fn the_least_recently_used_binding_goes_first() {
    let engine = engine(Limits { bindings: 2, ..Limits::default() });
    let at = |n: i64| engine.at(&Sizes::from([("n".into(), n)])).expect("compiled").seconds;
    let kept = || engine.bindings().iter().map(|b| b.sizes["n"]).collect::<Vec<_>>();
    at(1);
    at(2);
    at(1);
    at(3);
    assert_eq!(kept(), [1, 3]);
    let one = engine_of_bytes();
    one.at(&Sizes::from([("n".into(), 1)])).expect("compiled");
    one.at(&Sizes::from([("n".into(), 2)])).expect("compiled");
    assert_eq!(one.bindings().len(), 1, "one is kept, whatever it takes");
}
fn engine_of_bytes() -> Engine {
    engine(Limits { bytes: 1, ..Limits::default() })
}

#[test]
fn inputs_that_do_not_fit_are_errors_of_their_own() {
    let engine = engine(Limits::default());
    let types = |n: usize, m: usize| [Type::new(DType::F32, [n, 2]), Type::new(DType::I64, [m])];
    for (inputs, numbers, told) in [
        (types(7, 7), vec![7], "cannot be 7: the program was exported for 1 to 6"),
        (types(2, 3), vec![2], "has to be 2, not 3"),
        (types(2, 2), vec![3], "input `n` has to be 2, not 3"),
    ] {
        match engine.bind(&inputs, &numbers).err() {
            Some(kiln::Error::Inputs { what, help }) => assert!(what.contains(told) && !help.is_empty(), "{what}"),
            other => panic!("{told}: {other:?}"),
        }
    }
    assert!(engine.bindings().is_empty());
}

/// Rows of `x` times a weight that is transposed, and so folded when it is loaded; `n` rows.
const PROJECT: &str = r#"{
    "name": "project",
    "symbols": {"n": {"min": 1, "max": 100, "hint": 8}},
    "values": [
        {"dtype": "f32", "shape": ["Symbol('n')", 16]},
        {"dtype": "f32", "shape": [16, 16], "name": "weight"},
        {"dtype": "f32", "shape": [16, 16]},
        {"dtype": "f32", "shape": [16, 16]},
        {"dtype": "f32", "shape": ["Symbol('n')", 16]},
        {"dtype": "f32", "shape": ["Symbol('n')", 16]}],
    "inputs": [{"name": "x", "value": 0}],
    "params": [1],
    "calls": [
        {"name": "aten::exp", "overload": "", "args": [{"value": 1}], "outs": [2]},
        {"name": "aten::mul", "overload": "Tensor", "args": [{"value": 2}, {"value": 1}], "outs": [3]},
        {"name": "aten::mm", "overload": "", "args": [{"value": 0}, {"value": 3}], "outs": [4]},
        {"name": "aten::softmax", "overload": "int", "args": [{"value": 4}, {"int": AXIS}, "none"], "outs": [5],
         "source": "model.py:7"}],
    "outputs": [{"value": 5}],
    "writes": []
}"#;

fn project(axis: usize, limits: Limits) -> Engine {
    let params = vec![Param::Host(f32s(&[16, 16], &std::array::from_fn::<_, 256, _>(|i| (i % 7) as f64 / 7.0)))];
    let program = Program::from_json(&PROJECT.replace("AXIS", &axis.to_string()), params).expect("valid");
    Engine::new(program, Device::open("cpu").expect("a host"), CompileOptions::default(), limits, Arc::new(Reference))
}
fn of(n: i64) -> Sizes {
    Sizes::from([("n".into(), n)])
}
fn rows(n: usize) -> Tensor {
    Tensor::from_f64(Type::new(DType::F32, [n, 16]), (0..16 * n).map(|i| (i % 13) as f64 / 13.0))
}

#[test]
fn bindings_share_weights_and_the_arena() {
    let engine = project(1, Limits::default());
    let [first, second] = [40, 64].map(|n| engine.at(&of(n)).expect("compiled"));
    let [own, shared] = second.session.bytes();
    assert!(shared > 16 * 16 * 4, "the folded weight is there: {shared}");
    // The second is larger in memory for intermediate results alone, which is the first one's as well.
    let values = |b: &kiln::Binding| b.session.bytes()[1] - b.session.memory().run.bytes;
    assert_eq!(values(&first), values(&second));
    let arena = first.session.memory().run.bytes.max(second.session.memory().run.bytes);
    let before = engine.bytes();
    assert_eq!(before, values(&second) + arena + own + first.session.bytes()[0]);
    assert_eq!(
        engine.run(&[rows(40)]).expect("runs")[0].bytes(),
        &engine.run(&[rows(64)]).expect("runs")[0].bytes()[..40 * 64]
    );
    let alone = project(1, Limits { bytes: before - 1, ..Limits::default() });
    for n in [40, 64] {
        alone.at(&of(n)).expect("compiled");
    }
    assert_eq!(alone.bindings().len(), 1, "what is shared counts once, and one more byte is too many");
    let both = project(1, Limits { bytes: before, ..Limits::default() });
    for n in [40, 64] {
        both.at(&of(n)).expect("compiled");
    }
    assert_eq!(both.bindings().len(), 2);
}

/// A new binding is compiled elsewhere; calls meanwhile are counted.
#[test]
fn a_binding_soon() {
    let engine = Arc::new(project(1, Limits::default()));
    assert!(engine.compile_in_background(&of(5)).expect("nothing yet").is_none());
    let mut calls = 1;
    let ready = loop {
        match engine.compile_in_background(&of(5)).expect("compiles") {
            Some(ready) => break ready,
            None => calls += 1,
        }
        std::thread::yield_now();
    };
    assert_eq!(ready.hits(), 1);
    // The thread adds them up right after the binding is there.
    while ready.calls_before() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(ready.calls_before(), calls);
    assert!(Arc::ptr_eq(&ready, &engine.at(&of(5)).expect("known")));
    let x = rows(5);
    assert_eq!(
        engine.run_binding(&ready, 1, std::slice::from_ref(&x)).expect("runs"),
        project(1, Limits::default()).run(&[x]).expect("runs")
    );
}

/// Threads that ask for the same and other sizes at once get each binding once.
#[test]
fn bindings_soon_for_many_threads() {
    let engine = Arc::new(project(1, Limits::default()));
    let together = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (engine, together) = (&engine, &together);
            scope.spawn(move || {
                together.wait();
                for n in [3, 4, 3 + t] {
                    while engine.compile_in_background(&of(n)).expect("compiles").is_none() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let mut sizes: Vec<i64> = engine.bindings().iter().map(|b| b.sizes["n"]).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [3, 4, 5, 6]);
}

#[test]
fn a_batch_is_rounded_up_where_rows_are_independent() {
    let buckets = || std::collections::BTreeMap::from([("x.0".to_string(), vec![32, 8])]);
    let engine = project(1, Limits::default()).with_buckets(buckets()).expect("rows are independent");
    let rounded = |n: i64| engine.rounded(&of(n)).expect("proved").map(|r| (r.sizes["n"], r.keep));
    assert_eq!(rounded(5), Some((8, vec![vec![(0, 5)]])));
    assert_eq!(rounded(1), Some((8, vec![vec![(0, 1)]])));
    assert_eq!(rounded(9), Some((32, vec![vec![(0, 9)]])));
    assert_eq!([rounded(8), rounded(32), rounded(33)], [None, None, None]);
    let e = project(0, Limits::default()).with_buckets(buckets()).err().expect("softmax mixes").to_string();
    assert_eq!(e, "`x.0` of project cannot be rounded up: `softmax` (model.py:7) mixes the rows of the batch");
    let unknown = std::collections::BTreeMap::from([("y.0".to_string(), vec![8])]);
    assert!(project(1, Limits::default()).with_buckets(unknown).is_err());
    let large = std::collections::BTreeMap::from([("n".to_string(), vec![200])]);
    assert!(project(1, Limits::default()).with_buckets(large).is_err(), "out of range");
}
