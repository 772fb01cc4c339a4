//! Atomic accesses three ways, and on the host by threads.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_codegen::host;
use kiln_machine::Arch;

pub const OPS: [AtomicOp; 7] =
    [AtomicOp::Add, AtomicOp::Max, AtomicOp::Min, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor, AtomicOp::Exchange];
pub const ORDERS: [MemoryOrder; 4] =
    [MemoryOrder::Relaxed, MemoryOrder::Acquire, MemoryOrder::Release, MemoryOrder::AcquireRelease];

/// Each lane updates an element of its own, under a mask, and stores what it was; a scalar update by all instances.
pub fn updates(elem: Elem, op: AtomicOp, order: MemoryOrder, lanes: usize) -> BlockProgram {
    let how = Atomicity { order, scope: Scope::Device };
    let mut b = Builder::new("updates", Grid::Launch, 2);
    let [x, y, old, one] = ["x", "y", "old", "one"].map(|name| b.param(name, elem, false));
    let n = b.scalar("n", Elem::I32, Facts::default());
    let (pid, size, i) = (b.program_id(0), b.i32(lanes as i64), b.iota(lanes));
    let start = b.binary(BinaryOp::Mul, pid, size);
    let at = b.binary(BinaryOp::Add, start, i);
    let mask = b.cmp(CmpOp::Lt, at, n);
    let [px, py, po] = [x, y, old].map(|p| b.ptr_add(p, at));
    let v = b.load(py, Some(mask), None);
    let before = b.atomic_old((op, how), px, v, Some(mask));
    b.store(po, before, Some(mask));
    let first = b.load(y, None, None);
    let was = b.atomic_old((op, how), one, first, None);
    let slot = b.binary(BinaryOp::Add, n, pid);
    let p = b.ptr_add(old, slot);
    b.store(p, was, None);
    b.finish()
}

/// Each lane replaces an element that is as expected.
pub fn swaps(elem: Elem) -> BlockProgram {
    let how = Atomicity { order: MemoryOrder::AcquireRelease, scope: Scope::System };
    let mut b = Builder::new("swap", Grid::Launch, 1);
    let [x, expected, new, old] = ["x", "expected", "new", "old"].map(|name| b.param(name, elem, false));
    let i = b.iota(64);
    let [px, pe, pn, po] = [x, expected, new, old].map(|p| b.ptr_add(p, i));
    let (e, n) = (b.load(pe, None, None), b.load(pn, None, None));
    let before = b.compare_swap(how, px, [e, n]);
    b.store(po, before, None);
    b.finish()
}

fn data(elem: Elem, n: usize, seed: u64) -> Vec<u8> {
    let mut r = Random::new(seed);
    let one = |r: &mut Random| if elem.is_float() { r.value(elem) } else { Num::I(elem.wrapped(r.next_u64() as i64)) };
    let all: Vec<Num> = (0..n).map(|_| one(&mut r)).collect();
    encode_all(elem, &all)
}

#[test]
fn updates_give_what_was_there() {
    let types = [Elem::I32, Elem::U32, Elem::I64, Elem::U64, Elem::F32, Elem::F64, Elem::F16, Elem::Bf16];
    for (i, elem) in types.into_iter().enumerate() {
        let on_processors = |op: AtomicOp| op.takes(elem) && !(elem.is_half() && op != AtomicOp::Add);
        for (j, op) in OPS.into_iter().enumerate().filter(|(_, op)| on_processors(*op)) {
            let (order, lanes) = (ORDERS[(i + j) % 4], [128, 8, 64][(i + j) % 3]);
            let (k, n) = (updates(elem, op, order, lanes), 2 * lanes - 3);
            let given = Launch::new([2, 1, 1])
                .buffer(elem, data(elem, n, 1 + i as u64))
                .buffer(elem, data(elem, n, 50 + j as u64))
                .buffer(elem, vec![0; (n + 2) * elem.bytes()])
                .buffer(elem, data(elem, 1, 9))
                .scalar(Elem::I32, n as f64);
            assert!(given.agrees(&k, Arch::Sm90a, &format!("{op:?} of {elem}, {order:?}")), "{op:?} of {elem}: no PTX");
        }
    }
}

/// Maxima and minima of halves, which GPUs alone have: an exchange that is tried again.
/// Updates that give nothing are by vectors in any order: fences say when, once for all elements of a thread.
#[test]
fn sums_by_vectors_between_fences() {
    for (seed, order) in ORDERS.into_iter().enumerate() {
        let mut b = Builder::new("sums", Grid::Launch, 2);
        let (from, to) = (b.param("from", Elem::F32, true), b.param("to", Elem::F32, false));
        let n = b.scalar("n", Elem::I32, Facts { div: 16, ..Facts::default() });
        let at = b.iota(512);
        let (from, to) = (b.ptr_add(from, at), b.ptr_add(to, at));
        let mask = b.cmp(CmpOp::Lt, at, n);
        let v = b.load(from, Some(mask), None);
        let how = Atomicity { order, scope: Scope::Device };
        b.inst(Op::Atomic { op: AtomicOp::Add, how }, &[to, v, mask], &[], vec![]);
        let k = b.finish();
        let ptx = kiln_codegen::nvptx::compile(&k, Arch::Sm90a.machine()).unwrap().text;
        let count = |what: &str| ptx.lines().filter(|l| l.contains(what)).count();
        let fences = usize::from(order.releases()) + usize::from(order.acquires());
        assert_eq!(
            [count("red.global.add.v4.f32"), count("atom."), count("fence.acq_rel.gpu")],
            [2, 0, fences],
            "{ptx}"
        );
        let given = Launch::new([1, 1, 1])
            .buffer(Elem::F32, data(Elem::F32, 512, 3 + seed as u64))
            .buffer(Elem::F32, data(Elem::F32, 512, 90 + seed as u64))
            .scalar(Elem::I32, 400.0);
        assert!(given.agrees(&k, Arch::Sm90a, &format!("{order:?}")), "{order:?}: no PTX");
    }
}

#[test]
fn extremes_of_halves() {
    for elem in [Elem::F16, Elem::Bf16] {
        for (op, order) in [(AtomicOp::Max, MemoryOrder::Relaxed), (AtomicOp::Min, MemoryOrder::AcquireRelease)] {
            let (k, n) = (updates(elem, op, order, 64), 125);
            let given = Launch::new([2, 1, 1])
                .buffer(elem, data(elem, n, 3))
                .buffer(elem, data(elem, n, 4))
                .buffer(elem, vec![0; (n + 2) * elem.bytes()])
                .buffer(elem, data(elem, 1, 9))
                .scalar(Elem::I32, n as f64);
            verify::verify(&k).unwrap();
            let want = given.interpreted(&k).unwrap();
            for arch in [Arch::Sm90a, Arch::Sm80] {
                let found = given.by_ptx(&k, arch).unwrap_or_else(|| panic!("{op:?} of {elem}: no PTX"));
                for (found, want) in found.iter().zip(&want).take(4) {
                    let (found, want) = (decode_all(elem, found), decode_all(elem, want));
                    let same = found.iter().zip(&want).all(|(a, b)| near(elem, *a, *b, 0.0));
                    assert!(same, "{op:?} of {elem}, {arch}: {found:?}, expected {want:?}");
                }
            }
            let why = host::llvm_text(std::slice::from_ref(&k)).unwrap_err().to_string();
            assert!(why.contains(&format!("an atomic {op:?} of {elem} on processors")), "{why}");
        }
    }
}

#[test]
fn elements_as_expected_are_replaced() {
    for elem in [Elem::I32, Elem::U64, Elem::F32, Elem::F64, Elem::F16, Elem::Bf16, Elem::I16, Elem::U16] {
        let k = swaps(elem);
        let mut half = data(elem, 64, 5);
        half[..32 * elem.bytes()].copy_from_slice(&data(elem, 32, 6));
        let given = Launch::new([1, 1, 1])
            .buffer(elem, data(elem, 64, 5))
            .buffer(elem, half)
            .buffer(elem, data(elem, 64, 7))
            .buffer(elem, vec![0; 64 * elem.bytes()]);
        assert!(given.agrees(&k, Arch::Sm80, elem.name()));
    }
}

/// A lock that instances on several threads take by compare-and-swap around a sum that is not atomic, and sums of
/// halves and of i64 that are.
#[test]
fn threads_exclude_each_other() {
    let text = "kernel @locked(%lock: ptr<i32>, %sum: ptr<i64>, %total: ptr<i64>, %halves: ptr<f16>)
  grid launch warps 1 {
  %zero = const 0 : i32
  %one = const 1 : i32
  while with (%turn = %zero : i32) {
    %was = atomic_compare_swap acquire %lock, %zero, %one : i32
    %held = cmp ne %was, %zero : bool
    yield %held, %turn
  }
  %pid = program_id 0 : i32
  %wide = cast i64 %pid : i64
  %s = load %sum : i64
  %next = add %s, %wide : i64
  store %sum, %next
  %open = atomic_exchange release %lock, %zero : i32
  atomic_add %total, %wide
  %h = const 1.0 : f16
  atomic_add %halves, %h
}";
    let k = text::parse(text).unwrap();
    verify::verify(&k).unwrap();
    const INSTANCES: u64 = 2000;
    let module = host::compile(std::slice::from_ref(&k)).unwrap();
    let f = module.function(0).unwrap();
    let (mut lock, mut sum, mut total, mut halves) = (0i32, 0i64, 0i64, 0u16);
    let sizes = [INSTANCES, 1, 1];
    let places = [
        std::ptr::from_mut(&mut lock).expose_provenance(),
        std::ptr::from_mut(&mut sum).expose_provenance(),
        std::ptr::from_mut(&mut total).expose_provenance(),
        std::ptr::from_mut(&mut halves).expose_provenance(),
        sizes.as_ptr().expose_provenance(),
    ];
    std::thread::scope(|s| {
        for t in 0..4 {
            s.spawn(move || {
                let args = places.map(std::ptr::with_exposed_provenance_mut::<u8>);
                // SAFETY: the numbers live until all threads have ended; what is shared is locked or atomic.
                unsafe { f(args.as_ptr(), INSTANCES * t / 4, INSTANCES * (t + 1) / 4) }
            });
        }
    });
    let want = (0..INSTANCES as i64).sum::<i64>();
    assert_eq!([sum, total], [want, want]);
    assert_eq!(decode(Elem::F16, &halves.to_le_bytes()).f(), INSTANCES as f64);
}
