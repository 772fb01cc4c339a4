//! Sessions on the host, with plain Rust functions in place of generated code.
use kiln_graph::{DType, FallbackOp, FullyMasked, Graph, ParamId, Tensor, Type};
use kiln_plan::{
    Buffer, BufferId, BufferKind, Stage,
    exec::{AttentionCall, BodyGraph, GemmCall, LibraryCall, Mask, Matrix, Sink, Slot, Work, axes},
};
use kiln_runtime::{
    Callbacks, Code, Device, Executable, HostDevice, HostFn, InputSpec, KernelCode, NoCallbacks, Ptx, Refused,
    RuntimeError, Session, TimeOptions, memory::Place,
};
use std::sync::Arc;

pub(crate) const N: usize = 1000;

/// `c = a + b`, ten elements per instance.
pub(crate) unsafe extern "C" fn add(args: *const *mut u8, lo: u64, hi: u64) {
    // SAFETY: the tests pass three buffers of `N` f32.
    unsafe {
        let [a, b, c] = [0, 1, 2].map(|i| (*args.add(i)).cast::<f32>());
        for i in lo as usize * 10..hi as usize * 10 {
            *c.add(i) = *a.add(i) + *b.add(i);
        }
    }
}
/// `b = 2 a`, ten elements per instance.
pub(crate) unsafe extern "C" fn double(args: *const *mut u8, lo: u64, hi: u64) {
    // SAFETY: the tests pass two buffers of `N` f32.
    unsafe {
        let [a, b] = [0, 1].map(|i| (*args.add(i)).cast::<f32>());
        for i in lo as usize * 10..hi as usize * 10 {
            *b.add(i) = *a.add(i) * 2.0;
        }
    }
}
/// Must not be called.
unsafe extern "C" fn never(_: *const *mut u8, _: u64, _: u64) {
    std::process::abort();
}

pub(crate) fn ty() -> Type {
    Type::new(DType::F32, [N])
}
pub(crate) fn buffer(kind: BufferKind) -> Buffer {
    Buffer { ty: ty(), kind }
}
pub(crate) fn b(i: u32) -> BufferId {
    BufferId(i)
}
pub(crate) fn code(f: HostFn) -> Code {
    Code::Host { f, instances: N as u64 / 10, keep: Arc::new(()) }
}
pub(crate) fn kernel(name: &str, stage: Stage, inputs: &[u32], outputs: &[u32], f: HostFn) -> KernelCode {
    let args = (0..inputs.len() as u32).map(Slot::Input).chain((0..outputs.len() as u32).map(Slot::Output)).collect();
    let steps = vec![Work::Block { code: code(f), args }].into();
    let ids = |x: &[u32]| x.iter().map(|i| b(*i)).collect();
    KernelCode { name: name.into(), stage, inputs: ids(inputs), outputs: ids(outputs), steps, sites: vec![] }
}
pub(crate) fn executable(inputs: usize, buffers: Vec<Buffer>, kernels: Vec<KernelCode>, outputs: &[u32]) -> Executable {
    let inputs = (0..inputs).map(|_| InputSpec { name: "x".into(), ty: ty() }).collect();
    Executable {
        name: "test".into(),
        inputs,
        buffers,
        kernels,
        outputs: outputs.iter().map(|i| b(*i)).collect(),
        written: vec![],
    }
}
pub(crate) fn tensor(f: impl Fn(usize) -> f64) -> Tensor {
    Tensor::from_f64(ty(), (0..N).map(f))
}
pub(crate) fn host(threads: usize) -> Device {
    Device::Host(HostDevice::new(threads).unwrap())
}

/// input 0, param 0, frozen = 2 param, t = input + frozen, u = 2 t, out = t + u.
pub(crate) fn chain() -> Executable {
    let kinds = [
        BufferKind::Input(0),
        BufferKind::Param(ParamId(0)),
        BufferKind::Frozen,
        BufferKind::Temp,
        BufferKind::Temp,
        BufferKind::Temp,
    ];
    let kernels = vec![
        kernel("fold", Stage::Load, &[1], &[2], double),
        kernel("add_0", Stage::Run, &[0, 2], &[3], add),
        kernel("double_1", Stage::Run, &[3], &[4], double),
        kernel("add_2", Stage::Run, &[3, 4], &[5], add),
    ];
    executable(1, kinds.map(buffer).into(), kernels, &[5, 0, 2, 5])
}

#[test]
fn runs_a_chain_on_any_number_of_threads() {
    for threads in [1, 2, 5] {
        let param = tensor(|i| i as f64);
        let session = Session::new(&host(threads), chain(), vec![param.clone()], Arc::new(NoCallbacks)).unwrap();
        assert_eq!(session.memory().load_only_params, [0]);
        assert_eq!(session.memory().run.bytes, 2 * 4096);
        for round in 0..3 {
            let x = tensor(|i| (i * round) as f64);
            let out = session.run(std::slice::from_ref(&x)).unwrap();
            let want = tensor(|i| 3.0 * (i * round + 2 * i) as f64);
            assert_eq!(out.len(), 4);
            assert_eq!(out[0], want);
            assert_eq!(out[1], x);
            assert_eq!(out[2], tensor(|i| 2.0 * i as f64));
            assert_eq!(out[3], want);
        }
    }
}

#[test]
fn outputs_belong_to_the_caller() {
    let session = Session::new(&host(2), chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
    let mut first = session.run(&[tensor(|_| 1.0)]).unwrap();
    first[2].set_f64(0, 9.0);
    let second = session.run(&[tensor(|_| 2.0)]).unwrap();
    assert_eq!((first[0].get_f64(5), second[0].get_f64(5), second[2].get_f64(0)), (3.0, 6.0, 0.0));
}

#[test]
fn wrong_inputs_are_named() {
    let session = Session::new(&host(1), chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
    let say = |inputs: &[Tensor]| session.run(inputs).unwrap_err().to_string();
    assert_eq!(
        say(&[]),
        "running `test` with 0 inputs, but it takes 1 (input 0 (`x`): f32[1000]); pass one tensor per input, in order"
    );
    assert_eq!(
        say(&[Tensor::zeros(Type::new(DType::F32, [3, 4]))]),
        "running `test`: input 0 (`x`) is f32[3,4], but the model was compiled for f32[1000]; \
         pass that shape, or compile again with an example input of this one"
    );
    assert!(say(&[Tensor::zeros(Type::new(DType::I64, [N]))]).contains("convert the input"));
    let missing = Session::new(&host(1), chain(), vec![], Arc::new(NoCallbacks)).err().unwrap();
    assert!(matches!(missing, RuntimeError::ParamCount { want: 1, got: 0, .. }));
    let wrong = vec![Tensor::zeros(Type::new(DType::F32, [1]))];
    let wrong = Session::new(&host(1), chain(), wrong, Arc::new(NoCallbacks)).err().unwrap();
    assert!(wrong.to_string().contains("parameter @0 is f32[1]"), "{wrong}");
}

#[test]
fn damaged_executables_are_refused() {
    let refuse = |change: &dyn Fn(&mut Executable), want: &str| {
        let mut exe = chain();
        change(&mut exe);
        let e = Session::new(&host(1), exe, vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).err().unwrap().to_string();
        assert!(e.contains(want), "{e}");
    };
    refuse(&|e| e.kernels.swap(1, 3), "kernel `add_2`: reads b3 before anything wrote it");
    refuse(&|e| e.kernels[1].inputs[0] = b(77), "uses b77, which does not exist");
    refuse(&|e| e.kernels[1].outputs[0] = b(0), "writes b0, which it may only read");
    refuse(&|e| e.outputs[0] = b(99), "b99 is never written");
    refuse(&|e| e.kernels[0].inputs[0] = b(0), "runs at load time but reads input b0");
    let slot = |e: &mut Executable| {
        e.kernels[1].steps.steps[0] = Work::Block { code: code(add), args: vec![Slot::Scratch(0)] };
    };
    refuse(&slot, "has no Scratch(0)");
}

#[test]
fn scratch_buffers_and_matmuls() {
    let m =
        |slot, rows, cols| Matrix { slot, offset: 0, rows: axes([rows]), cols: axes([cols]), batch_strides: vec![] };
    let g = GemmCall {
        batch_invariant: false,
        dtype: DType::F32,
        c_dtype: DType::F32,
        tf32: false,
        m: 10,
        n: 10,
        k: 100,
        batch: vec![],
        a: m(Slot::Input(0), (10, 100), (100, 1)),
        b: m(Slot::Scratch(0), (100, 10), (10, 1)),
        c: m(Slot::Output(0), (10, 100), (10, 1)),
        workspace: None,
        epilogue: Default::default(),
    };
    let kinds = [BufferKind::Input(0), BufferKind::Temp];
    let mut k = kernel("gemm_0", Stage::Run, &[0], &[1], double);
    k.steps.scratch = vec![ty()];
    k.steps.steps =
        vec![Work::Block { code: code(double), args: vec![Slot::Input(0), Slot::Scratch(0)] }, Work::Gemm(g.clone())];
    let exe = executable(1, kinds.map(buffer).into(), vec![k.clone()], &[1]);
    let session = Session::new(&host(2), exe.clone(), vec![], Arc::new(NoCallbacks)).unwrap();
    let x = tensor(|i| (i % 7) as f64);
    let out = session.run(std::slice::from_ref(&x)).unwrap();
    for (i, j) in [(0, 0), (3, 9), (9, 4)] {
        let want: f64 = (0..100).map(|k| x.get_f64(i * 100 + k) * 2.0 * x.get_f64(k * 10 + j)).sum();
        assert_eq!(out[0].get_f64(i * 100 + j), want);
    }
    let mut far = exe;
    let mut refuse = |g: GemmCall, want: &str| {
        far.kernels[0].steps.steps[1] = Work::Gemm(g);
        let e = Session::new(&host(1), far.clone(), vec![], Arc::new(NoCallbacks)).err().unwrap().to_string();
        assert!(e.contains(want), "{e}");
    };
    let what = "the axes of operand a of a matmul do not make 10×101 elements";
    refuse(GemmCall { k: 101, ..g.clone() }, what);
    let a = m(Slot::Input(0), (10, 101), (100, 1));
    refuse(GemmCall { a, ..g }, "operand a of a matmul reaches beyond its buffer of f32[1000]");
}

#[test]
fn attention_and_what_it_refuses() {
    let m = |slot| Matrix { slot, offset: 0, rows: axes([(10, 10)]), cols: axes([(10, 1)]), batch_strides: vec![100] };
    let a = AttentionCall {
        dtype: DType::F32,
        out_dtype: DType::F32,
        batch_invariant: false,
        batch: vec![10],
        group: 1,
        queries: 10,
        keys: 10,
        depth: 10,
        width: 10,
        scale: 0.5,
        causal: true,
        fully_masked: FullyMasked::Zero,
        q: m(Slot::Input(0)),
        k: m(Slot::Input(0)),
        v: m(Slot::Input(0)),
        out: m(Slot::Output(0)),
        mask: None,
        ends: None,
        sink: None,
    };
    let mut k = kernel("attention_0", Stage::Run, &[0], &[1], double);
    k.steps.steps = vec![Work::Attention(Box::new(a.clone()))];
    let mut exe = executable(1, [BufferKind::Input(0), BufferKind::Temp].map(buffer).into(), vec![k], &[1]);
    let x = tensor(|i| (i % 7) as f64 / 7.0);
    let session = Session::new(&host(2), exe.clone(), vec![], Arc::new(NoCallbacks)).unwrap();
    let out = session.run(std::slice::from_ref(&x)).unwrap();
    for (head, row, e) in [(0, 0, 0), (3, 9, 9), (9, 4, 7)] {
        let at = |row: usize, e: usize| x.get_f64(head * 100 + row * 10 + e);
        let power = |key: usize| (0.5 * (0..10).map(|d| at(row, d) * at(key, d)).sum::<f64>()).exp();
        let sum: f64 = (0..=row).map(power).sum();
        let want: f64 = (0..=row).map(|key| power(key) / sum * at(key, e)).sum();
        let got = out[0].get_f64(head * 100 + row * 10 + e);
        assert!((got - want).abs() < 1e-6, "[{head}][{row},{e}] is {got}, not {want}");
    }
    let mut refuse = |change: &dyn Fn(&mut AttentionCall), want: &str| {
        let mut call = a.clone();
        change(&mut call);
        exe.kernels[0].steps.steps[0] = Work::Attention(Box::new(call));
        let e = Session::new(&host(1), exe.clone(), vec![], Arc::new(NoCallbacks)).err().unwrap().to_string();
        assert!(e.contains(want), "{e}");
    };
    refuse(&|a| a.keys = 11, "the axes of operand k of attention do not make 11×10 elements");
    refuse(&|a| a.v.offset = 1, "operand v of attention reaches beyond its buffer of f32[1000]");
    refuse(&|a| a.dtype = DType::I64, "no attention of i64 operands");
    refuse(&|a| a.out_dtype = DType::F64, "no attention of f32 operands with a result of f64");
    refuse(&|a| a.out.slot = Slot::Input(0), "attention writes an input");
    refuse(&|a| a.keys = 0, "attention without keys");
    refuse(&|a| a.ends = Some(Matrix { cols: vec![], ..m(Slot::Input(0)) }), "operand ends of attention is f32[1000]");
    refuse(&|a| a.mask = Some(Mask { dtype: DType::F64, matrix: m(Slot::Input(0)) }), "a mask of f64 does not fit");
    let one = Matrix { cols: vec![], ..m(Slot::Input(0)) };
    refuse(&|a| a.sink = Some(Sink { dtype: DType::F64, matrix: one.clone() }), "a sink of f64 does not fit");
    let long = Matrix { rows: axes([(10, 101)]), ..one.clone() };
    refuse(&|a| a.sink = Some(Sink { dtype: DType::F32, matrix: long.clone() }), "operand sink of attention reaches");
    let halves = Matrix { rows: axes([(2, 30), (5, 10)]), ..m(Slot::Input(0)) };
    refuse(&|a| a.k = halves.clone(), "keys and values of attention need one axis for their rows");
}

/// A matmul of `10×100` by `100×10`, all at offset 0 of their buffers.
pub(crate) fn matmul(a: Slot, b: Slot, c: Slot) -> Work<Code> {
    let m =
        |slot, rows, cols| Matrix { slot, offset: 0, rows: axes([rows]), cols: axes([cols]), batch_strides: vec![] };
    let dtype = DType::F32;
    let (a, b, c) = (m(a, (10, 100), (100, 1)), m(b, (100, 10), (10, 1)), m(c, (10, 100), (10, 1)));
    Work::Gemm(GemmCall {
        batch_invariant: false,
        dtype,
        c_dtype: dtype,
        tf32: false,
        m: 10,
        n: 10,
        k: 100,
        batch: vec![],
        a,
        b,
        c,
        workspace: None,
        epilogue: Default::default(),
    })
}

/// A parameter or frozen buffer that only matmuls read is kept in packed form only; others keep their originals.
#[test]
fn weights_in_panels() {
    let (x, w) = (tensor(|i| (i % 7) as f64), tensor(|i| (i % 5) as f64));
    for (outputs, shared) in [(vec![3, 4], false), (vec![3, 4, 1, 2], false), (vec![3, 4, 5], true)] {
        let kinds = [
            BufferKind::Input(0),
            BufferKind::Param(ParamId(0)),
            BufferKind::Frozen,
            BufferKind::Temp,
            BufferKind::Temp,
            BufferKind::Temp,
        ];
        let mut kernels = vec![kernel("fold", Stage::Load, &[1], &[2], double)];
        for (name, weight, to) in [("gemm_0", 1, 3), ("gemm_1", 2, 4)] {
            let mut k = kernel(name, Stage::Run, &[0, weight], &[to], add);
            k.steps.steps = vec![matmul(Slot::Input(0), Slot::Input(1), Slot::Output(0))];
            kernels.push(k);
        }
        kernels.extend(shared.then(|| kernel("add_2", Stage::Run, &[1, 2], &[5], add)));
        let exe = executable(1, kinds.map(buffer).into(), kernels, &outputs);
        let session = Session::new(&host(2), exe, vec![w.clone()], Arc::new(NoCallbacks)).unwrap();
        for _ in 0..2 {
            let out = session.run(std::slice::from_ref(&x)).unwrap();
            for (i, j) in [(0, 0), (3, 9), (9, 4)] {
                let want: f64 = (0..100).map(|k| x.get_f64(i * 100 + k) * w.get_f64(k * 10 + j)).sum();
                assert_eq!([out[0].get_f64(i * 100 + j), out[1].get_f64(i * 100 + j)], [want, 2.0 * want]);
            }
            if shared {
                assert_eq!(out[2].get_f64(77), 3.0 * w.get_f64(77));
            } else if outputs.len() == 4 {
                assert_eq!([out[2].get_f64(77), out[3].get_f64(77)], [w.get_f64(77), 2.0 * w.get_f64(77)]);
            }
        }
    }
}

/// Fallback: adds 1. Interpreter: negates.
pub(crate) struct Plus;
impl Callbacks for Plus {
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        match op.name.as_str() {
            "aten::plus" => {
                Ok(vec![Tensor::from_f64(args[0].ty.clone(), args[0].to_f64_vec().iter().map(|v| v + 1.0))])
            }
            "aten::wrong" => Ok(vec![Tensor::zeros(Type::new(DType::F32, [1]))]),
            other => Err(Refused::Op(format!("no {other}"))),
        }
    }
    fn interpret(&self, _: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Ok(vec![Tensor::from_f64(args[0].ty.clone(), args[0].to_f64_vec().iter().map(|v| -v))])
    }
}

pub(crate) fn with_fallback(name: &str) -> Executable {
    let op = FallbackOp {
        name: name.into(),
        overload: String::new(),
        args: "[]".into(),
        results: vec![ty()],
        why: "test".into(),
        vouched: false,
    };
    let kinds = [BufferKind::Input(0), BufferKind::Temp, BufferKind::Temp, BufferKind::Temp];
    let mut kernels = vec![
        kernel("double_0", Stage::Run, &[0], &[1], double),
        kernel("fallback_1", Stage::Run, &[1], &[2], double),
        kernel("interpreted_2", Stage::Run, &[2], &[3], double),
    ];
    kernels[1].steps.steps = vec![Work::Fallback(LibraryCall {
        op,
        place: "net.sort, net.py:3".into(),
        operands: vec![0],
        results: vec![0],
    })];
    kernels[2].steps.steps =
        vec![Work::Interpret { body: Box::new(BodyGraph(Graph::new("body"))), why: "test".into() }];
    executable(1, kinds.map(buffer).into(), kernels, &[3])
}

#[test]
fn callbacks_run_what_is_not_compiled() {
    let session = Session::new(&host(2), with_fallback("aten::plus"), vec![], Arc::new(Plus)).unwrap();
    let out = session.run(&[tensor(|i| i as f64)]).unwrap();
    assert_eq!(out[0], tensor(|i| -(2.0 * i as f64 + 1.0)));
    let say = |name| {
        let session = Session::new(&host(1), with_fallback(name), vec![], Arc::new(Plus)).unwrap();
        session.run(&[tensor(|_| 0.0)]).unwrap_err().to_string()
    };
    let wrong = "kernel `fallback_1` through libtorch (net.sort, net.py:3): result 0 is f32[1] instead of f32[1000]";
    assert!(say("aten::wrong").contains(wrong));
    assert!(say("aten::topk").contains("no aten::topk"));
}

#[test]
fn empty_buffers_cost_nothing() {
    let empty = |kind| Buffer { ty: Type::new(DType::F32, [0, 4]), kind };
    let mut k = kernel("add_0", Stage::Run, &[0, 0], &[1], never);
    if let Work::Block { code: Code::Host { instances, .. }, .. } = &mut k.steps.steps[0] {
        *instances = 0;
    }
    let buffers = vec![empty(BufferKind::Input(0)), empty(BufferKind::Temp), empty(BufferKind::Frozen)];
    let mut exe = executable(1, buffers, vec![k], &[1, 2, 0]);
    exe.inputs[0].ty = Type::new(DType::F32, [0, 4]);
    let session = Session::new(&host(2), exe, vec![], Arc::new(NoCallbacks)).unwrap();
    assert_eq!(session.memory().buffers[1], Place::Output(0));
    let out = session.run(&[Tensor::zeros(Type::new(DType::F32, [0, 4]))]).unwrap();
    assert!(out.len() == 3 && out.iter().all(|t| t.ty.shape == [0, 4]));
}

#[test]
fn times_come_with_names() {
    let session = Session::new(&host(2), chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
    let options = TimeOptions { warmup: 1, runs: 5, min_seconds: 0.0, kernel_runs: 3 };
    let timing = session.time(&[tensor(|_| 1.0)], options).unwrap();
    assert_eq!(timing.run.samples, 5);
    assert!(timing.run.p10_us <= timing.run.median_us && timing.run.median_us <= timing.run.p90_us);
    let names: Vec<&str> = timing.kernels.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(names, ["add_0", "double_1", "add_2"]);
    assert!(timing.kernels.iter().all(|k| k.spread.samples == 3 && k.spread.median_us > 0.0));
    assert!(session.time(&[], options).is_err());
}

#[test]
fn code_for_a_gpu_is_refused() {
    let mut exe = chain();
    let ptx = Ptx {
        entry: "k".into(),
        text: "".into(),
        cubin: None,
        grid: [1; 3],
        threads: 32,
        shared: 0,
        cluster: 1,
        passed: vec![],
    };
    exe.kernels[1].steps.steps = vec![Work::Block { code: Code::Ptx(ptx), args: vec![] }];
    let e = Session::new(&host(1), exe, vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).err().unwrap().to_string();
    assert_eq!(
        e,
        "running kernel `add_0` on cpu: its code is for an NVIDIA GPU; compile with --target cpu, or run with --device \
         cuda:0"
    );
}

#[test]
fn results_are_written_into_the_memory_of_dropped_ones() {
    let session = Session::new(&host(1), chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
    let run = |x: f64| session.run(&[tensor(|_| x)]).unwrap();
    let (first, second) = (run(1.0), run(2.0));
    let (place, values) = (first[0].bytes().as_ptr(), first[0].to_f64_vec());
    assert_ne!(place, second[0].bytes().as_ptr());
    drop(first);
    let third = run(1.0);
    assert_eq!((place, values), (third[0].bytes().as_ptr(), third[0].to_f64_vec()));
    assert_ne!(second[0].to_f64_vec(), third[0].to_f64_vec());
}

/// Every program instance runs exactly once, however the grid is split.
#[test]
fn grids_are_covered_exactly_once() {
    unsafe extern "C" fn count(args: *const *mut u8, lo: u64, hi: u64) {
        for i in lo as usize..hi as usize {
            // SAFETY: one buffer with one i32 per instance.
            unsafe { *(*args).cast::<i32>().add(i) += 1 };
        }
    }
    for n in [1usize, 2, 7, 63, 64, 65, 1000, 100_003] {
        let buffers = vec![Buffer { ty: Type::new(DType::I32, [n]), kind: BufferKind::Temp }];
        let mut k = kernel("count_0", Stage::Run, &[], &[0], count);
        let code = Code::Host { f: count, instances: n as u64, keep: Arc::new(()) };
        k.steps.steps = vec![Work::Block { code, args: vec![Slot::Output(0)] }];
        let session =
            Session::new(&host(3), executable(0, buffers, vec![k], &[0]), vec![], Arc::new(NoCallbacks)).unwrap();
        // A run does not overwrite results that the caller holds: each run counts in fresh memory.
        let runs: Vec<_> = (0..3).map(|_| session.run(&[]).unwrap()).collect();
        for out in &runs {
            assert!(out[0].as_slice::<i32>().unwrap().iter().all(|c| *c == 1), "{n} instances");
        }
    }
}
