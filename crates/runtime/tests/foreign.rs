//! Sessions on the host over memory of another owner: parameters that change, and inputs and outputs at the caller's
//! addresses.
use crate::host::{N, Plus, add, buffer, chain, double, executable, host, kernel, matmul, tensor, ty, with_fallback};
use kiln_graph::{DType, ParamId, Tensor, Type};
use kiln_plan::{
    BufferKind, Stage,
    exec::{GemmCall, Matrix, Slot, Work, axes},
};
use kiln_runtime::{Executable, NoCallbacks, Param, RuntimeError, Session};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Memory of another library, of `N` f32 that may change.
pub(crate) struct Foreign(Vec<AtomicU32>);
impl Foreign {
    pub(crate) fn new(f: impl Fn(usize) -> f32) -> Arc<Foreign> {
        Arc::new(Foreign((0..N).map(|i| AtomicU32::new(f(i).to_bits())).collect()))
    }
    pub(crate) fn set(&self, f: impl Fn(usize) -> f32) {
        self.0.iter().enumerate().for_each(|(i, v)| v.store(f(i).to_bits(), Ordering::Relaxed));
    }
    fn get(&self, i: usize) -> f32 {
        f32::from_bits(self.0[i].load(Ordering::Relaxed))
    }
    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
    pub(crate) fn param(self: &Arc<Foreign>) -> Param {
        // SAFETY: `N` f32 that live as long as the owner, and change only between runs.
        Param::Host(unsafe { Tensor::foreign(ty(), self.0.as_ptr().cast(), self.clone()) })
    }
}

pub(crate) fn first(session: &Session, x: &Tensor, i: usize) -> Vec<f64> {
    session.run(std::slice::from_ref(x)).unwrap().iter().map(|t| t.get_f64(i)).collect()
}

/// out = 3 (input + 2 param); also returns the input, the frozen `2 param` and `out` again.
#[test]
fn refreshing_reads_foreign_parameters_again() {
    let weight = Foreign::new(|i| i as f32);
    let session = Session::with_params(&host(2), chain(), vec![weight.param()], Arc::new(NoCallbacks)).unwrap();
    assert_eq!(Arc::strong_count(&weight), 2, "the session keeps the owner, and no copy");
    let x = tensor(|_| 1.0);
    let before = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!(first(&session, &x, 5), [33.0, 1.0, 10.0, 33.0]);
    weight.set(|i| 10.0 * i as f32);
    assert_eq!(first(&session, &x, 5), [33.0, 1.0, 10.0, 33.0], "folded values change with a refresh only");
    session.refresh().unwrap();
    assert_eq!(first(&session, &x, 5), [303.0, 1.0, 100.0, 303.0]);
    assert_eq!(before[2].get_f64(5), 10.0, "results belong to the caller");
    drop(session);
    assert_eq!(Arc::strong_count(&weight), 1, "a dropped session lets the owner go");
}

/// x·a, x·(2 a), x·b and x·(2 b), with the parameters a and b.
pub(crate) fn panels() -> Executable {
    let param = |p| BufferKind::Param(ParamId(p));
    let mut kinds = vec![BufferKind::Input(0), param(0), param(1), BufferKind::Frozen, BufferKind::Frozen];
    let mut kernels =
        vec![kernel("fold_0", Stage::Load, &[1], &[3], double), kernel("fold_1", Stage::Load, &[2], &[4], double)];
    let mut outputs = vec![];
    for weight in [1, 3, 2, 4] {
        let to = kinds.len() as u32;
        let mut k = kernel(&format!("gemm_{weight}"), Stage::Run, &[0, weight], &[to], add);
        k.steps.steps = vec![matmul(Slot::Input(0), Slot::Input(1), Slot::Output(0))];
        kernels.push(k);
        kinds.push(BufferKind::Temp);
        outputs.push(to);
    }
    executable(1, kinds.into_iter().map(buffer).collect(), kernels, &outputs)
}

/// Packing drops the originals of weights that the session owns, and keeps foreign ones; refreshing packs again what
/// may have changed.
#[test]
fn refreshing_packs_foreign_weights_again() {
    let (x, owned) = (tensor(|i| (i % 7) as f64), tensor(|i| (i % 3) as f64));
    let weight = Foreign::new(|i| (i % 5) as f32);
    let params = vec![weight.param(), Param::Host(owned.clone())];
    let session = Session::with_params(&host(2), panels(), params, Arc::new(NoCallbacks)).unwrap();
    // Element [3, 4] of the 10×10 results lies at 3·100 + 4 (`matmul`).
    let at = |w: &dyn Fn(usize) -> f64| (0..100).map(|k| x.get_f64(300 + k) * w(k * 10 + 4)).sum::<f64>();
    let want = || {
        let (a, b) = (at(&|i| f64::from(weight.get(i))), at(&|i| owned.get_f64(i)));
        vec![a, 2.0 * a, b, 2.0 * b]
    };
    assert_eq!(first(&session, &x, 304), want());
    for round in 1..3 {
        let old = want();
        weight.set(|i| ((i + round) % 11) as f32);
        assert_ne!(old, want());
        assert_eq!(first(&session, &x, 304), old);
        session.refresh().unwrap();
        assert_eq!(first(&session, &x, 304), want());
    }
}

#[test]
fn refreshing_what_the_session_owns_changes_nothing() {
    let session = Session::new(&host(1), panels(), vec![tensor(|i| i as f64); 2], Arc::new(NoCallbacks)).unwrap();
    let x = tensor(|i| (i % 7) as f64);
    let before = session.run(std::slice::from_ref(&x)).unwrap();
    session.refresh().unwrap();
    assert_eq!(session.run(&[x]).unwrap(), before);
}

#[test]
fn memory_of_a_gpu_is_no_parameter_of_the_host() {
    // SAFETY: the session refuses the parameter before anything reads it.
    let param = unsafe { Param::device(ty(), 4096, Arc::new(())) };
    let e = Session::with_params(&host(1), chain(), vec![param], Arc::new(NoCallbacks)).err().unwrap();
    assert!(matches!(e, RuntimeError::ParamPlace { param: 0, .. }));
    assert_eq!(
        e.to_string(),
        "loading `test` on the host: parameter @0 lies in memory of a GPU; \
         copy it to the host, or compile the model for the GPU"
    );
    // SAFETY: as above.
    let wrong = unsafe { Param::device(Type::new(ty().dtype, [3]), 4096, Arc::new(())) };
    let e = Session::with_params(&host(1), chain(), vec![wrong], Arc::new(NoCallbacks)).err().unwrap();
    assert!(e.to_string().contains("parameter @0 is f32[3]"), "{e}");
}

/// Room for `count` tensors, `skip` bytes past an aligned address, filled with 0xff so that what is not written shows.
struct Room(Vec<u64>, usize);
impl Room {
    fn new(skip: usize, tensors: &[&Tensor]) -> Room {
        let mut room = Room(vec![u64::MAX; tensors.len().max(1) * N / 2 + 1], skip);
        for (i, t) in tensors.iter().enumerate() {
            let at = room.at(i);
            let bytes: &mut [u8] = &mut room.bytes()[at..at + 4 * N];
            bytes.copy_from_slice(t.bytes());
        }
        room
    }
    /// Room for outputs.
    fn empty(skip: usize, count: usize) -> Room {
        Room(vec![u64::MAX; count * N / 2 + 1], skip)
    }
    fn at(&self, i: usize) -> usize {
        self.1 + i * 4 * N
    }
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the bytes of the vector.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), 8 * self.0.len()) }
    }
    fn addresses(&mut self, count: usize) -> Vec<u64> {
        let base = self.0.as_mut_ptr().expose_provenance();
        (0..count).map(|i| (base + self.at(i)) as u64).collect()
    }
    fn tensor(&mut self, i: usize) -> Tensor {
        let at = self.at(i);
        Tensor::from_bytes(ty(), &self.bytes()[at..at + 4 * N]).unwrap()
    }
}

/// Runs over the caller's memory, inputs and outputs as many bytes past an aligned address as `skip` says.
fn run_on(session: &Session, inputs: &[&Tensor], skip: [usize; 2]) -> Result<Vec<Tensor>, RuntimeError> {
    let count = session.executable().outputs.len();
    let (mut from, mut to) = (Room::new(skip[0], inputs), Room::empty(skip[1], count));
    let (inputs, outputs) = (from.addresses(inputs.len()), to.addresses(count));
    // SAFETY: the rooms have the tensors at these addresses, and live.
    unsafe { session.run_on(&inputs, &outputs, None) }?;
    assert!(to.bytes()[..skip[1]].iter().all(|b| *b == 0xff), "wrote before the first output");
    let end = to.at(count);
    assert!(to.bytes()[end..].iter().all(|b| *b == 0xff), "wrote behind the last output");
    Ok((0..count).map(|i| to.tensor(i)).collect())
}

/// Outputs: computed, the input, a parameter, a frozen buffer, and computed again.
fn all_kinds_of_outputs() -> Executable {
    Executable { outputs: [5, 0, 1, 2, 5].map(kiln_plan::BufferId).into(), ..chain() }
}

#[test]
fn runs_over_the_callers_memory_equal_runs() {
    for (threads, skip) in [(1, [0, 0]), (2, [0, 0]), (2, [4, 4]), (2, [1, 0]), (2, [0, 3]), (1, [2, 7])] {
        let params = || vec![tensor(|i| i as f64)];
        let session = Session::new(&host(threads), all_kinds_of_outputs(), params(), Arc::new(NoCallbacks)).unwrap();
        for round in 0..3 {
            let x = tensor(|i| (i * round) as f64);
            let want = session.run(std::slice::from_ref(&x)).unwrap();
            assert_eq!(want[2], params()[0]);
            assert_eq!(run_on(&session, &[&x], skip).unwrap(), want, "{skip:?}, round {round}");
        }
    }
}

/// The caller's tensors are used where they are: kernels see their addresses.
#[test]
fn aligned_tensors_are_not_copied() {
    static SEEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    unsafe extern "C" fn note(args: *const *mut u8, lo: u64, hi: u64) {
        // SAFETY: as `double`, with two arguments.
        unsafe {
            for (i, seen) in SEEN.iter().enumerate() {
                seen.store((*args.add(i)).addr() as u64, Ordering::Relaxed);
            }
            double(args, lo, hi);
        }
    }
    let kinds = [BufferKind::Input(0), BufferKind::Temp];
    let exe = executable(1, kinds.map(buffer).into(), vec![kernel("note", Stage::Run, &[0], &[1], note)], &[1]);
    let session = Session::new(&host(1), exe, vec![], Arc::new(NoCallbacks)).unwrap();
    let held = session.bytes_held();
    let (from, to) = (Foreign::new(|i| i as f32), Foreign::new(|_| 0.0));
    // SAFETY: both have `N` f32 and live.
    unsafe { session.run_on(&[from.address()], &[to.address()], None) }.unwrap();
    assert_eq!(SEEN.each_ref().map(|s| s.load(Ordering::Relaxed)), [from.address(), to.address()]);
    assert_eq!((to.get(7), session.bytes_held()), (14.0, held));
}

#[test]
fn steps_without_code_run_over_the_callers_memory() {
    let session = Session::new(&host(2), with_fallback("aten::plus"), vec![], Arc::new(Plus)).unwrap();
    let x = tensor(|i| i as f64);
    for skip in [[0, 0], [2, 2]] {
        assert_eq!(run_on(&session, &[&x], skip).unwrap(), session.run(std::slice::from_ref(&x)).unwrap());
    }
    let session = Session::new(&host(1), with_fallback("aten::topk"), vec![], Arc::new(Plus)).unwrap();
    assert!(run_on(&session, &[&x], [0, 0]).unwrap_err().to_string().contains("no aten::topk"));
}

#[test]
fn addresses_are_counted() {
    let session = Session::new(&host(1), chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
    let say = |inputs: &[u64], outputs: &[u64]| {
        // SAFETY: the numbers of addresses are wrong, so none is used.
        unsafe { session.run_on(inputs, outputs, None) }.unwrap_err().to_string()
    };
    assert!(say(&[], &[8; 4]).starts_with("running `test` with 0 inputs, but it takes 1 (input 0 (`x`): f32[1000]);"));
    assert_eq!(
        say(&[8], &[8; 3]),
        "running `test` with addresses of 3 outputs, but it gives 4; pass one address per output, in order"
    );
}

/// Frozen, packed and own memory counts; foreign memory does not.
#[test]
fn held_bytes_are_those_of_the_session() {
    let weight = Foreign::new(|i| i as f32);
    let owned = Session::new(&host(1), chain(), vec![tensor(|_| 0.0)], Arc::new(NoCallbacks)).unwrap();
    let foreign = Session::with_params(&host(1), chain(), vec![weight.param()], Arc::new(NoCallbacks)).unwrap();
    // One frozen buffer and two temporaries in the arena; the parameter is read at load time only.
    let (frozen, arena) = (4 * N, 2 * 4096);
    assert_eq!([owned.bytes_held(), foreign.bytes_held()], [frozen + arena; 2]);
    let one = |params| Session::with_params(&host(1), panels(), params, Arc::new(NoCallbacks)).unwrap().bytes_held();
    let packed = one(vec![Param::Host(tensor(|_| 0.0)), Param::Host(tensor(|_| 0.0))]);
    // Four packed weights, whose originals are dropped: each has 100 rows of at least 10 columns, rounded up to a whole
    // panel of f32.
    assert!(packed >= 4 * 4 * N && packed.is_multiple_of(4 * 4 * 100), "{packed}");
    assert_eq!(one(vec![weight.param(), weight.param()]), packed);
}

/// Pages that end where a page begins that nobody may touch.
#[cfg(target_os = "linux")]
struct Guarded {
    at: *mut u8,
    bytes: usize,
}
#[cfg(target_os = "linux")]
mod pages {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        pub fn mmap(at: *mut c_void, bytes: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
        pub fn mprotect(at: *mut c_void, bytes: usize, prot: c_int) -> c_int;
        pub fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    }
    /// A multiple of the page size of all Linux systems.
    pub const PAGE: usize = 1 << 16;
}
#[cfg(target_os = "linux")]
impl Guarded {
    fn new(bytes: usize) -> Guarded {
        let bytes = bytes.next_multiple_of(pages::PAGE);
        // SAFETY: new private anonymous pages, readable and writable; the last of them is then protected.
        unsafe {
            let at = pages::mmap(std::ptr::null_mut(), bytes + pages::PAGE, 3, 0x22, -1, 0).cast::<u8>();
            assert_ne!(at.addr(), usize::MAX);
            assert_eq!(pages::mprotect(at.add(bytes).cast(), pages::PAGE, 0), 0);
            Guarded { at, bytes }
        }
    }
    /// Where the last `bytes` bytes begin.
    fn last(&self, bytes: usize) -> *mut u8 {
        self.at.wrapping_add(self.bytes - bytes)
    }
}
#[cfg(target_os = "linux")]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { pages::munmap(self.at.cast(), self.bytes + pages::PAGE) };
    }
}
// SAFETY: owns its pages.
#[cfg(target_os = "linux")]
unsafe impl Send for Guarded {}
// SAFETY: as above.
#[cfg(target_os = "linux")]
unsafe impl Sync for Guarded {}

/// Matmuls touch nothing behind their operands, which end at the end of a page as a mapped file or a tensor of another
/// library may.
#[test]
#[cfg(target_os = "linux")]
fn matmuls_stay_within_the_callers_memory() {
    let side = |slot, rows, cols| Matrix {
        slot,
        offset: 0,
        rows: axes([(rows, cols)]),
        cols: axes([(cols, 1)]),
        batch_strides: vec![],
    };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
        for (m, n, k) in [(1, 7, 33), (3, 1, 100), (17, 5, 1), (33, 47, 65), (130, 3, 129), (2, 200, 31), (64, 64, 64)]
        {
            let types = [[m, k], [k, n], [m, n]].map(|shape| Type::new(dtype, shape));
            let tensors =
                types.each_ref().map(|ty| Tensor::from_f64(ty.clone(), (0..ty.count()).map(|i| (i % 5) as f64 - 2.0)));
            let call = GemmCall {
                batch_invariant: false,
                dtype,
                c_dtype: dtype,
                tf32: false,
                m,
                n,
                k,
                batch: vec![],
                a: side(Slot::Input(0), m, k),
                b: side(Slot::Input(1), k, n),
                c: side(Slot::Output(0), m, n),
                workspace: None,
                epilogue: Default::default(),
            };
            let mut kernel = kernel("gemm", Stage::Run, &[0, 1], &[2], add);
            kernel.steps.steps = vec![Work::Gemm(call)];
            let kinds = [BufferKind::Input(0), BufferKind::Param(ParamId(0)), BufferKind::Temp];
            let mut exe = executable(1, kinds.map(buffer).into(), vec![kernel], &[2]);
            exe.buffers.iter_mut().zip(&types).for_each(|(b, ty)| b.ty = ty.clone());
            exe.inputs[0].ty = types[0].clone();
            let places = types.each_ref().map(|ty| Arc::new(Guarded::new(ty.bytes())));
            let [x, w, to] = [0, 1, 2].map(|i: usize| places[i].last(types[i].bytes()));
            // SAFETY: the pages hold the operands and live as long as the session.
            let param = unsafe {
                x.copy_from(tensors[0].bytes().as_ptr(), types[0].bytes());
                w.copy_from(tensors[1].bytes().as_ptr(), types[1].bytes());
                Tensor::foreign(types[1].clone(), w, places[1].clone())
            };
            let foreign =
                Session::with_params(&host(1), exe.clone(), vec![param.into()], Arc::new(NoCallbacks)).unwrap();
            // SAFETY: as above.
            unsafe {
                foreign.run_on(&[x.expose_provenance() as u64], &[to.expose_provenance() as u64], None).unwrap();
            }
            let own = Session::new(&host(1), exe, vec![tensors[1].clone()], Arc::new(NoCallbacks)).unwrap();
            let want = own.run(&tensors[..1]).unwrap();
            // SAFETY: the run has written the result there.
            let got = unsafe { std::slice::from_raw_parts(to, types[2].bytes()) };
            assert_eq!(got, want[0].bytes(), "{dtype} {m}×{n}×{k}");
        }
    }
}
