//! Sessions on a GPU over memory and streams that belong to the test. Without a GPU there is nothing to run, and the
//! tests say so.
use crate::host::{N, b, buffer, matmul, tensor, ty};
use cudarc::driver::{
    result::{self, stream::StreamKind},
    sys,
};
use kiln_graph::{DType, FallbackOp, Graph, ParamId, Tensor, Type};
use kiln_plan::{
    BufferKind, Stage,
    exec::{LibraryCall, Slot, Work},
};
use kiln_runtime::{
    Callbacks, Code, CudaDevice, Device, DeviceTensor, Executable, InputSpec, KernelCode, NoCallbacks, Param, Passed,
    Ptx, Refused, RuntimeError, Session, TensorMap,
    cuda::{Allocator, DeviceMemory},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// `add`: c = a + b. `check`: b = 2 a, with a record of index 7 at node 0 if an element is above 5000.
pub(crate) const ADD: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 pa, .param .u64 pb, .param .u64 pc) {
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 256, %r2;
    setp.ge.u32 %p1, %r3, 1000; @%p1 ret;
    mul.wide.u32 %rd1, %r3, 4;
    ld.param.u64 %rd2, [pa]; ld.param.u64 %rd3, [pb]; ld.param.u64 %rd4, [pc];
    add.s64 %rd5, %rd2, %rd1; add.s64 %rd6, %rd3, %rd1; add.s64 %rd7, %rd4, %rd1;
    ld.global.f32 %f1, [%rd5]; ld.global.f32 %f2, [%rd6]; add.f32 %f3, %f1, %f2; st.global.f32 [%rd7], %f3;
    ret;
}
.visible .entry check(.param .u64 pa, .param .u64 pb, .param .u64 faults) {
    .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .f32 %f<3>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 256, %r2;
    setp.ge.u32 %p1, %r3, 1000; @%p1 ret;
    mul.wide.u32 %rd1, %r3, 4;
    ld.param.u64 %rd2, [pa]; ld.param.u64 %rd3, [pb]; ld.param.u64 %rd4, [faults];
    add.s64 %rd5, %rd2, %rd1; add.s64 %rd6, %rd3, %rd1;
    ld.global.f32 %f1, [%rd5]; add.f32 %f2, %f1, %f1; st.global.f32 [%rd6], %f2;
    setp.gt.f32 %p2, %f1, 0f459C4000;
    mov.u64 %rd7, 17592186044423;
    @%p2 st.global.u64 [%rd4], %rd7;
    ret;
}";
/// Copies an array by tensor map, 256 elements a block.
const COPY: &str = r"
.version 8.0
.target sm_90
.address_size 64
.visible .entry copy(.param .align 64 .b8 map[128], .param .u64 pc) {
    .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<6>; .reg .f32 %f<2>;
    .shared .align 128 .b8 tile[1024];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mul.lo.u32 %r3, %r2, 256;
    mov.u32 %r4, bar; mov.u32 %r5, tile;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    fence.proxy.async.shared::cta;
    mov.b64 %rd1, map; cvta.param.u64 %rd2, %rd1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r5], [%rd2, {%r3}], [%r4];
READY:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
    @!%p2 bra WAIT;
    add.u32 %r6, %r3, %r1; setp.ge.u32 %p3, %r6, 1000; @%p3 ret;
    shl.b32 %r7, %r1, 2; add.u32 %r8, %r5, %r7; ld.shared.f32 %f1, [%r8];
    ld.param.u64 %rd3, [pc]; mul.wide.u32 %rd4, %r6, 4; add.s64 %rd5, %rd3, %rd4; st.global.f32 [%rd5], %f1;
    ret;
}";

/// The first GPU, with its context current on this thread. Tests that need one are ignored, with that as the reason,
/// where they are not asked for (`--include-ignored`).
pub(crate) fn gpu() -> CudaDevice {
    let device = CudaDevice::open(0).unwrap_or_else(|e| panic!("this test needs a GPU: {e}"));
    // SAFETY: the device retains its primary context, which stays alive until the process ends because it is retained
    // here too.
    unsafe {
        let context = result::primary_ctx::retain(result::device::get(0).unwrap()).unwrap();
        result::ctx::set_current(context).unwrap();
    }
    device
}

/// `N` f32 on the device, some bytes past an aligned address.
pub(crate) struct Array {
    base: u64,
    skip: u64,
}
impl Array {
    pub(crate) fn skipping(skip: u64, f: impl Fn(usize) -> f64) -> Arc<Array> {
        // SAFETY: the values are written before anything reads them.
        let base = unsafe { result::malloc_sync(4 * N + 64) }.unwrap();
        let array = Array { base, skip };
        array.set(f);
        Arc::new(array)
    }
    pub(crate) fn new(f: impl Fn(usize) -> f64) -> Arc<Array> {
        Array::skipping(0, f)
    }
    pub(crate) fn at(&self) -> u64 {
        self.base + self.skip
    }
    pub(crate) fn set(&self, f: impl Fn(usize) -> f64) {
        // The copy may end after the call: wait for the default stream.
        // SAFETY: the allocation has the bytes.
        unsafe {
            result::memcpy_htod_sync(self.at(), tensor(f).bytes()).unwrap();
            result::stream::synchronize(std::ptr::null_mut()).unwrap();
        }
    }
    pub(crate) fn get(&self) -> Tensor {
        let mut t = Tensor::zeros(ty());
        // SAFETY: the allocation has the bytes.
        unsafe { result::memcpy_dtoh_sync(t.bytes_mut(), self.at()) }.unwrap();
        t
    }
    pub(crate) fn param(self: &Arc<Array>) -> Param {
        // SAFETY: the allocation lives as long as the owner, and is written by synchronous copies.
        unsafe { Param::device(ty(), self.at(), self.clone()) }
    }
}
impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: allocated by `skipping`.
        unsafe { result::free_sync(self.base) }.unwrap();
    }
}

pub(crate) fn ptx(text: &str, entry: &str, passed: Vec<Passed>) -> Code {
    let (entry, text) = (entry.into(), text.into());
    Code::Ptx(Ptx { entry, text, cubin: None, grid: [4, 1, 1], threads: 256, shared: 0, cluster: 1, passed })
}
pub(crate) fn kernel(name: &str, stage: Stage, inputs: &[u32], outputs: &[u32], code: Code) -> KernelCode {
    let mut args: Vec<Slot> =
        (0..inputs.len() as u32).map(Slot::Input).chain((0..outputs.len() as u32).map(Slot::Output)).collect();
    if matches!(&code, Code::Ptx(p) if p.entry == "check") {
        args.push(Slot::Faults);
    }
    let ids = |x: &[u32]| x.iter().map(|i| b(*i)).collect();
    let steps = vec![Work::Block { code, args }].into();
    KernelCode { name: name.into(), stage, inputs: ids(inputs), outputs: ids(outputs), steps, sites: vec![] }
}
pub(crate) fn executable(kinds: Vec<BufferKind>, kernels: Vec<KernelCode>, outputs: &[u32]) -> Executable {
    let inputs = vec![InputSpec { name: "x".into(), ty: ty() }];
    let buffers = kinds.into_iter().map(buffer).collect();
    Executable {
        name: "test".into(),
        inputs,
        buffers,
        kernels,
        outputs: outputs.iter().map(|i| b(*i)).collect(),
        written: vec![],
    }
}
/// t = x + 2 w, u = t + x; returns u, x, w, `2 w` and u again.
fn chain() -> Executable {
    let add = || ptx(ADD, "add", vec![]);
    let kernels = vec![
        kernel("fold", Stage::Load, &[1, 1], &[2], add()),
        kernel("add_0", Stage::Run, &[0, 2], &[3], add()),
        kernel("add_1", Stage::Run, &[3, 0], &[4], add()),
    ];
    let param = BufferKind::Param(ParamId(0));
    let kinds = vec![BufferKind::Input(0), param, BufferKind::Frozen, BufferKind::Temp, BufferKind::Temp];
    executable(kinds, kernels, &[4, 0, 1, 2, 4])
}
fn wanted(x: impl Fn(usize) -> f64 + Copy, w: impl Fn(usize) -> f64 + Copy) -> Vec<Tensor> {
    let u = tensor(|i| 2.0 * x(i) + 2.0 * w(i));
    vec![u.clone(), tensor(x), tensor(w), tensor(|i| 2.0 * w(i)), u]
}
pub(crate) fn stream() -> sys::CUstream {
    result::stream::create(StreamKind::NonBlocking).unwrap()
}
pub(crate) fn run_on(s: &Session, x: &Array, outputs: &[Arc<Array>], on: sys::CUstream) -> Result<(), RuntimeError> {
    let outputs: Vec<u64> = outputs.iter().map(|o| o.at()).collect();
    // SAFETY: the tests keep the arrays until the stream is done, and use their own streams.
    unsafe { s.run_on(&[x.at()], &outputs, Some(on.expose_provenance() as u64)) }
}
pub(crate) fn finish(on: sys::CUstream) {
    // SAFETY: a stream of the test, or the default stream.
    unsafe { result::stream::synchronize(on) }.unwrap();
}
fn room(skip: u64) -> Vec<Arc<Array>> {
    (0..5).map(|_| Array::skipping(skip, |_| -1.0)).collect()
}
fn values(outputs: &[Arc<Array>]) -> Vec<Tensor> {
    outputs.iter().map(|o| o.get()).collect()
}

/// Runs over addresses that change, stay and come back, on changing streams and between runs of the session's own.
#[test]
#[ignore = "needs a GPU"]
fn addresses_and_streams_may_change() {
    let device = gpu();
    let w = |i: usize| i as f64;
    let session = Session::new(&Device::Cuda(device), chain(), vec![tensor(w)], Arc::new(NoCallbacks)).unwrap();
    let streams = [stream(), std::ptr::null_mut(), stream()];
    let places: Vec<_> =
        [[0, 0], [0, 0], [4, 0], [0, 8], [16, 32]].map(|[from, to]| (Array::skipping(from, |_| 0.0), room(to))).into();
    for round in 0..30 {
        let x = |i: usize| (i * round % 97) as f64;
        // Each place three times in a row, then another.
        let (from, to) = &places[round / 3 % places.len()];
        let on = streams[round / 2 % streams.len()];
        from.set(x);
        run_on(&session, from, to, on).unwrap();
        finish(on);
        assert_eq!(values(to), wanted(x, w), "round {round}");
        if round % 7 == 6 {
            assert_eq!(session.run(&[tensor(x)]).unwrap(), wanted(x, w), "round {round}");
        }
    }
    session.check().unwrap();
}

/// Threads without a context assemble code that sessions then use; what the driver refuses is told by the session that
/// needs it.
#[test]
#[ignore = "needs a GPU"]
fn code_is_assembled_ahead() {
    let device = gpu();
    let codes = [ptx(ADD, "add", vec![]), ptx(ADD, "add", vec![]), ptx("no PTX", "broken", vec![])];
    std::thread::scope(|s| {
        for code in codes {
            let device = device.clone();
            s.spawn(move || {
                if let Code::Ptx(p) = &code {
                    device.assemble(p);
                }
                let mut current = std::ptr::null_mut();
                // SAFETY: writes one handle.
                unsafe { sys::cuCtxGetCurrent(&mut current) }.result().unwrap();
                assert!(current.is_null());
            });
        }
    });
    let device = Device::Cuda(device);
    let session = Session::new(&device, chain(), vec![tensor(|_| 1.0)], Arc::new(NoCallbacks)).unwrap();
    assert_eq!(session.run(&[tensor(|_| 3.0)]).unwrap(), wanted(|_| 3.0, |_| 1.0));
    let mut broken = chain();
    broken.kernels[1] = kernel("add_0", Stage::Run, &[0, 2], &[3], ptx("no PTX", "broken", vec![]));
    let refused = Session::new(&device, broken, vec![tensor(|_| 1.0)], Arc::new(NoCallbacks)).err();
    assert!(refused.is_some_and(|e| e.to_string().contains("`add_0`")));
}

/// Runs on two streams without waiting in between share the session's arena.
#[test]
#[ignore = "needs a GPU"]
fn runs_on_several_streams_are_ordered() {
    let device = gpu();
    let w = |_: usize| 1.0;
    let session = Session::new(&Device::Cuda(device), chain(), vec![tensor(w)], Arc::new(NoCallbacks)).unwrap();
    let streams = [stream(), stream()];
    let all: Vec<_> = (0..40).map(|r| (Array::new(|i| (i + r) as f64), room(0))).collect();
    for (r, (x, to)) in all.iter().enumerate() {
        run_on(&session, x, to, streams[r % 2]).unwrap();
    }
    session.check().unwrap();
    for (r, (_, to)) in all.iter().enumerate() {
        assert_eq!(values(to), wanted(|i| (i + r) as f64, w), "run {r}");
    }
}

/// Parameters on the device are read in place if they are aligned, through a copy if not; folded values follow at a
/// refresh.
#[test]
#[ignore = "needs a GPU"]
fn parameters_on_the_device() {
    let device = gpu();
    for (skip, bytes) in [(0, 0), (4, (4 * N).next_multiple_of(256))] {
        let weight = Array::skipping(skip, |i| i as f64);
        let device = Device::Cuda(device.clone());
        let owned = Session::new(&device, chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
        let session = Session::with_params(&device, chain(), vec![weight.param()], Arc::new(NoCallbacks)).unwrap();
        // The same, without the copy of the parameter.
        assert_eq!(session.bytes_held() + (4 * N).next_multiple_of(256), owned.bytes_held() + bytes);
        let (x, to, on) = (Array::new(|_| 1.0), room(0), stream());
        let check = |frozen: f64, w: f64| {
            run_on(&session, &x, &to, on).unwrap();
            finish(on);
            let got: Vec<f64> = values(&to).iter().map(|t| t.get_f64(5)).collect();
            assert_eq!(got, [2.0 + frozen, 1.0, w, frozen, 2.0 + frozen]);
            assert_eq!(session.run(&[tensor(|_| 1.0)]).unwrap()[2].get_f64(5), w);
        };
        check(10.0, 5.0);
        weight.set(|i| 3.0 * i as f64);
        check(10.0, if skip == 0 { 15.0 } else { 5.0 });
        session.refresh().unwrap();
        check(30.0, 15.0);
        assert_eq!(Arc::strong_count(&weight), 2);
        drop(session);
        assert_eq!(Arc::strong_count(&weight), 1);
    }
}

/// A graph of the caller that a run was captured in, launched over other values.
#[test]
#[ignore = "needs a GPU"]
fn runs_are_captured_by_the_caller() {
    let device = gpu();
    let w = |i: usize| i as f64;
    let session = Session::new(&Device::Cuda(device), chain(), vec![tensor(w)], Arc::new(NoCallbacks)).unwrap();
    let on = stream();
    let (x, to, other) = (Array::new(|_| 0.0), room(0), room(0));
    for _ in 0..3 {
        run_on(&session, &x, &other, on).unwrap();
    }
    finish(on);
    let exec = capture(on, || run_on(&session, &x, &to, on).unwrap());
    assert_eq!(to[0].get(), tensor(|_| -1.0), "nothing runs during the capture");
    for round in 1..4 {
        let values_of = |i: usize| (i * round) as f64;
        x.set(values_of);
        // SAFETY: instantiated below; the session and the arrays live.
        unsafe { result::graph::launch(exec, on) }.unwrap();
        finish(on);
        assert_eq!(values(&to), wanted(values_of, w));
        run_on(&session, &x, &other, on).unwrap();
        finish(on);
        assert_eq!(values(&other), wanted(values_of, w));
    }
}
pub(crate) fn capture(on: sys::CUstream, f: impl FnOnce()) -> sys::CUgraphExec {
    // SAFETY: the stream is the test's; the graph was just captured.
    unsafe {
        result::stream::begin_capture(on, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        f();
        let graph = result::stream::end_capture(on).unwrap();
        result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)).unwrap()
    }
}

/// An index out of range is the error of a later call, or of `check`; then it is forgotten.
#[test]
#[ignore = "needs a GPU"]
fn indices_out_of_range_are_found_later() {
    let device = gpu();
    let kernels = vec![kernel("take", Stage::Run, &[0], &[1], ptx(ADD, "check", vec![]))];
    let exe = executable(vec![BufferKind::Input(0), BufferKind::Temp], kernels, &[1]);
    let session = Session::new(&Device::Cuda(device), exe, vec![], Arc::new(NoCallbacks)).unwrap();
    let on = stream();
    let (good, bad) = (Array::new(|i| i as f64), Array::new(|i| 6.0 * i as f64));
    let to = vec![Array::new(|_| -1.0)];
    let index = |r: Result<(), RuntimeError>| {
        assert!(matches!(r, Err(RuntimeError::Index { .. })), "{r:?}");
    };
    for _ in 0..3 {
        run_on(&session, &good, &to, on).unwrap();
        run_on(&session, &bad, &to, on).unwrap();
        finish(on);
        to[0].set(|_| -1.0);
        index(run_on(&session, &good, &to, on));
        finish(on);
        assert_eq!(to[0].get(), tensor(|_| -1.0), "the call with the error does not run");
        run_on(&session, &good, &to, on).unwrap();
        finish(on);
        run_on(&session, &good, &to, on).unwrap();
        session.check().unwrap();
        assert_eq!(to[0].get(), tensor(|i| 2.0 * i as f64));
        run_on(&session, &bad, &to, on).unwrap();
        index(session.check());
        session.check().unwrap();
        run_on(&session, &bad, &to, on).unwrap();
        index(session.run(&[tensor(|_| 1.0)]).map(drop));
        run_on(&session, &good, &to, on).unwrap();
    }
}

/// Tensor maps follow the addresses of inputs.
#[test]
#[ignore = "needs a GPU"]
fn tensor_maps_move() {
    let device = gpu();
    if device.info().capability < (9, 0) {
        eprintln!("no tensor maps on this GPU: nothing was tested");
        return;
    }
    let map = TensorMap { dtype: DType::F32, offset: 0, sizes: vec![N], strides: vec![1], tile: vec![256], swizzle: 0 };
    let kernels = vec![
        kernel("copy", Stage::Run, &[0], &[1], ptx(COPY, "copy", vec![Passed::Map(map), Passed::Address])),
        kernel("add", Stage::Run, &[1, 0], &[2], ptx(ADD, "add", vec![])),
    ];
    let exe = executable(vec![BufferKind::Input(0), BufferKind::Temp, BufferKind::Temp], kernels, &[2]);
    let session = Session::new(&Device::Cuda(device), exe, vec![], Arc::new(NoCallbacks)).unwrap();
    let (on, to) = (stream(), vec![Array::new(|_| -1.0)]);
    let from: Vec<_> = (0..3).map(|k| Array::skipping(16 * k, |i| (i * (k as usize + 1)) as f64)).collect();
    for round in 0..12 {
        let k = round / 2 % 3;
        run_on(&session, &from[k], &to, on).unwrap();
        finish(on);
        assert_eq!(to[0].get(), tensor(|i| (2 * i * (k + 1)) as f64), "round {round}");
    }
}

/// Copies its operand on the stream that it holds, like an operator of a framework.
struct Enqueues(AtomicU64);
impl Callbacks for Enqueues {
    fn fallback(&self, op: &FallbackOp, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Err(Refused::Op(format!("{} runs in place", op.name)))
    }
    fn interpret(&self, _: &Graph, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Err(Refused::Op("nothing is interpreted".into()))
    }
    fn fallback_in_place(
        &self,
        _: &FallbackOp,
        args: &[DeviceTensor],
        results: &[DeviceTensor],
        _: Option<usize>,
    ) -> Option<()> {
        let on = std::ptr::with_exposed_provenance_mut(self.0.load(Ordering::Relaxed) as usize);
        let [arg, result] = [&args[0], &results[0]];
        // SAFETY: the session passes buffers of one type, and the test the stream.
        unsafe { result::memcpy_dtod_async(result.address, arg.address, arg.ty.bytes(), on) }.ok()
    }
    fn in_order(&self) -> bool {
        true
    }
}

/// A library that enqueues on the caller's stream is not waited for, and can be captured; other steps of the host
/// cannot.
#[test]
#[ignore = "needs a GPU"]
fn library_calls_on_the_callers_stream() {
    let device = gpu();
    let op = FallbackOp {
        name: "aten::clone".into(),
        overload: String::new(),
        args: "[]".into(),
        results: vec![ty()],
        why: "test".into(),
        vouched: false,
    };
    let add = || ptx(ADD, "add", vec![]);
    let mut kernels = vec![
        kernel("add_0", Stage::Run, &[0, 0], &[1], add()),
        kernel("clone_1", Stage::Run, &[1], &[2], add()),
        kernel("add_2", Stage::Run, &[2, 0], &[3], add()),
    ];
    kernels[1].steps.steps =
        vec![Work::Fallback(LibraryCall { op, place: String::new(), operands: vec![0], results: vec![0] })];
    let exe =
        executable(vec![BufferKind::Input(0), BufferKind::Temp, BufferKind::Temp, BufferKind::Temp], kernels, &[3]);
    let device = Device::Cuda(device);
    let on = stream();
    let library = Arc::new(Enqueues(AtomicU64::new(on.expose_provenance() as u64)));
    let session = Session::new(&device, exe.clone(), vec![], library.clone()).unwrap();
    let (x, to) = (Array::new(|i| i as f64), vec![Array::new(|_| -1.0)]);
    let want = tensor(|i| 3.0 * i as f64);
    for _ in 0..3 {
        to[0].set(|_| -1.0);
        run_on(&session, &x, &to, on).unwrap();
        finish(on);
        assert_eq!(to[0].get(), want);
        assert_eq!(session.run(&[tensor(|i| i as f64)]).unwrap()[0], want);
    }
    to[0].set(|_| -1.0);
    let exec = capture(on, || run_on(&session, &x, &to, on).unwrap());
    // SAFETY: just instantiated; the session and the arrays live.
    unsafe { result::graph::launch(exec, on) }.unwrap();
    finish(on);
    assert_eq!(to[0].get(), want);
    let refusing = Session::new(&device, exe, vec![], Arc::new(NoCallbacks)).unwrap();
    capture(on, || {
        let e = run_on(&refusing, &x, &to, on).unwrap_err().to_string();
        assert!(e.contains("`clone_1`") && e.ends_with("run the model outside of the capture"), "{e}");
    });
}

/// An allocator of the caller's: counts the bytes that are in use, and has a limit.
struct Counted {
    used: Arc<AtomicU64>,
    limit: u64,
}
struct Block(u64, u64, Arc<AtomicU64>);
impl Drop for Block {
    fn drop(&mut self) {
        self.2.fetch_sub(self.1, Ordering::Relaxed);
        // SAFETY: allocated by `Counted`.
        unsafe { result::free_sync(self.0) }.unwrap();
    }
}
// SAFETY: the driver's memory is aligned to 256 bytes, and freed with its block.
unsafe impl Allocator for Counted {
    fn allocate(&self, bytes: usize) -> Result<DeviceMemory, String> {
        if self.used.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 > self.limit {
            self.used.fetch_sub(bytes as u64, Ordering::Relaxed);
            return Err("the test's limit".into());
        }
        // SAFETY: the size is not zero.
        let address = unsafe { result::malloc_sync(bytes) }.unwrap();
        Ok(DeviceMemory { address, owner: Box::new(Block(address, bytes as u64, self.used.clone())) })
    }
}

#[test]
#[ignore = "needs a GPU"]
fn sessions_allocate_from_the_callers_allocator() {
    let device = gpu();
    let used = Arc::new(AtomicU64::new(0));
    let make = |limit| {
        let device = Device::Cuda(device.with_allocator(Arc::new(Counted { used: used.clone(), limit })));
        Session::new(&device, chain(), vec![tensor(|i| i as f64)], Arc::new(NoCallbacks))
    };
    let session = make(1 << 20).unwrap();
    let held = session.bytes_held() as u64;
    assert_eq!(used.load(Ordering::Relaxed), held, "all that the session holds comes from the allocator");
    let x = tensor(|_| 1.0);
    assert_eq!(session.run(std::slice::from_ref(&x)).unwrap(), wanted(|_| 1.0, |i| i as f64));
    assert!(session.bytes_held() as u64 > held, "runs of the session's own need memory for inputs and outputs");
    assert_eq!(used.load(Ordering::Relaxed), session.bytes_held() as u64);
    drop(session);
    assert_eq!(used.load(Ordering::Relaxed), 0);
    let e = make(1 << 12).err().unwrap().to_string();
    assert!(e.contains("the test's limit"), "{e}");
    assert_eq!(used.load(Ordering::Relaxed), 0);
}

/// Matmuls of the library follow the addresses of inputs and outputs, also to less aligned ones; where the library has
/// no algorithm or is missing, the host computes on copies.
#[test]
#[ignore = "needs a GPU"]
fn matmuls_move() {
    let device = gpu();
    eprintln!("cuBLASLt: {}", device.has_library());
    for workspace in [true, false] {
        let mut kernels = vec![kernel("gemm", Stage::Run, &[0, 1], &[2], ptx(ADD, "add", vec![]))];
        let mut work = matmul(Slot::Input(0), Slot::Input(1), Slot::Output(0));
        if let Work::Gemm(g) = &mut work {
            g.workspace = workspace.then_some(Slot::Scratch(0));
        }
        kernels[0].steps.scratch = vec![Type::new(DType::U8, [1 << 22])];
        kernels[0].steps.steps = vec![work];
        let param = BufferKind::Param(ParamId(0));
        let exe = executable(vec![BufferKind::Input(0), param, BufferKind::Temp], kernels, &[2]);
        let w = tensor(|i| (i % 5) as f64);
        let device = Device::Cuda(device.clone());
        let session = Session::new(&device, exe, vec![w.clone()], Arc::new(NoCallbacks)).unwrap();
        let on = stream();
        let places: Vec<_> =
            [0, 16, 0, 48, 4].map(|skip| (Array::skipping(skip, |_| 0.0), Array::skipping(skip, |_| -1.0))).into();
        for round in 0..15 {
            let x = tensor(|i| ((i + round) % 7) as f64);
            let (from, to) = &places[round / 2 % places.len()];
            from.set(|i| x.get_f64(i));
            run_on(&session, from, std::slice::from_ref(to), on).unwrap();
            finish(on);
            let got = to.get();
            for (i, j) in [(0, 0), (3, 9), (9, 4)] {
                let want: f64 = (0..100).map(|k| x.get_f64(i * 100 + k) * w.get_f64(k * 10 + j)).sum();
                assert_eq!(got.get_f64(i * 100 + j), want, "round {round}, workspace: {workspace}");
            }
        }
    }
}
