//! Sessions that share folded and packed weights and memory for intermediate results.
use crate::{
    foreign::{Foreign, first, panels},
    host::{N, add, buffer, chain, double, executable, host, kernel, tensor, ty},
};
use kiln_graph::{ParamId, Tensor};
use kiln_plan::{BufferKind, Stage};
use kiln_runtime::{Executable, Names, NoCallbacks, Param, RuntimeError, Session, Shared};
use std::sync::{
    Arc, Barrier,
    atomic::{AtomicU64, Ordering},
};

fn names(params: &[&str], kernels: &[&str]) -> Names {
    let own = |all: &[&str]| all.iter().map(|n| n.to_string()).collect();
    Names { params: own(params), kernels: own(kernels) }
}
fn session(shared: &Arc<Shared>, exe: Executable, params: &[Param], names: &Names) -> Result<Session, RuntimeError> {
    Session::sharing(shared, exe, params.to_vec(), names, Arc::new(NoCallbacks))
}
/// The names of `chain`: one kernel at load time.
fn of_chain() -> Names {
    names(&["w"], &["double", "", "", ""])
}

static FOLDED: AtomicU64 = AtomicU64::new(0);
/// As `double`, counted.
unsafe extern "C" fn counted(args: *const *mut u8, lo: u64, hi: u64) {
    if lo == 0 {
        FOLDED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: as `double`.
    unsafe { double(args, lo, hi) }
}
fn counting_chain() -> Executable {
    let mut exe = chain();
    exe.kernels[0] = kernel("fold", Stage::Load, &[1], &[2], counted);
    exe
}

#[test]
fn a_value_is_folded_once() {
    let shared = Shared::new(&host(2)).unwrap();
    let weight = Foreign::new(|i| i as f32);
    let one = |name: &str| session(&shared, counting_chain(), &[weight.param()], &names(&[name], &["double"])).unwrap();
    let before = FOLDED.load(Ordering::Relaxed);
    let folded = || FOLDED.load(Ordering::Relaxed) - before;
    let (a, b) = (one("w"), one("w"));
    assert_eq!(folded(), 1);
    let other = one("v");
    assert_eq!(folded(), 2, "another parameter is another value");
    let x = tensor(|_| 1.0);
    assert_eq!([first(&a, &x, 5), first(&b, &x, 5), first(&other, &x, 5)], [(); 3].map(|()| [33.0, 1.0, 10.0, 33.0]));
    weight.set(|i| 10.0 * i as f32);
    a.refresh().unwrap();
    assert_eq!((folded(), first(&a, &x, 5)[0]), (2, 33.0), "no change was announced");
    shared.renew();
    a.refresh().unwrap();
    assert_eq!(first(&b, &x, 5), [33.0, 1.0, 10.0, 33.0], "values do not change under a session");
    b.refresh().unwrap();
    b.refresh().unwrap();
    assert_eq!(folded(), 3, "each value is folded once a change");
    assert_eq!([first(&a, &x, 5), first(&b, &x, 5)], [(); 2].map(|()| [303.0, 1.0, 100.0, 303.0]));
    drop((a, b));
    assert_eq!(first(&one("w"), &x, 5), [303.0, 1.0, 100.0, 303.0]);
    assert_eq!(folded(), 4, "nobody had it any more");
}

#[test]
fn packed_weights_are_shared_and_counted_once() {
    let shared = Shared::new(&host(2)).unwrap();
    let weight = Foreign::new(|i| (i % 5) as f32);
    let params = [weight.param(), Param::Host(tensor(|i| (i % 3) as f64))];
    let names = names(&["a", "b"], &["double", "double", "", "", "", ""]);
    let make = || session(&shared, panels(), &params, &names).unwrap();
    let first_one = make();
    let (alone, [own, common]) = (shared.bytes(), first_one.bytes());
    let second = make();
    assert_eq!(shared.bytes(), alone, "nothing was folded or packed again");
    assert_eq!(second.bytes(), [own, common]);
    // The sessions count the parameter that they were passed; what they share does not.
    assert!(alone >= 4 * 4 * N && common >= alone, "{alone} {common}");
    let x = tensor(|i| (i % 7) as f64);
    assert_eq!(first(&first_one, &x, 304), first(&second, &x, 304));
    weight.set(|i| (i % 11) as f32);
    shared.renew();
    second.refresh().unwrap();
    first_one.refresh().unwrap();
    assert_eq!(shared.bytes(), alone);
    let fresh = Session::with_params(&host(1), panels(), params.to_vec(), Arc::new(NoCallbacks)).unwrap();
    assert_eq!(first(&first_one, &x, 304), first(&fresh, &x, 304));
    assert_eq!(first(&second, &x, 304), first(&fresh, &x, 304));
    drop(second);
    assert_eq!(shared.bytes(), alone, "another session still has it all");
    drop(first_one);
    assert_eq!(shared.bytes(), 0);
}

/// `count` doublings of the input, each in a temporary: needs an arena of two.
fn doublings(count: u32) -> Executable {
    let kinds = (0..=count).map(|i| if i == 0 { BufferKind::Input(0) } else { BufferKind::Temp });
    let kernels = (0..count).map(|i| kernel(&format!("double_{i}"), Stage::Run, &[i], &[i + 1], double)).collect();
    executable(1, kinds.map(buffer).collect(), kernels, &[count])
}
/// The sum of all doublings at the end: needs an arena of all of them.
fn wide(count: u32) -> Executable {
    let mut exe = doublings(count);
    let mut last = count;
    for i in 1..count {
        exe.buffers.push(buffer(BufferKind::Temp));
        exe.kernels.push(kernel(&format!("add_{i}"), Stage::Run, &[i, last], &[count + i], add));
        last = count + i;
    }
    exe.outputs = vec![crate::host::b(last)];
    exe
}

#[test]
fn sessions_run_in_one_arena_as_large_as_the_largest() {
    let shared = Shared::new(&host(1)).unwrap();
    let one = |exe| session(&shared, exe, &[], &Names::default()).unwrap();
    let small = one(doublings(3));
    let arena = |s: &Session| s.memory().run.bytes;
    assert_eq!(shared.bytes(), arena(&small));
    let x = tensor(|i| i as f64);
    assert_eq!(first(&small, &x, 3), [24.0]);
    let large = one(wide(6));
    assert!(arena(&large) > arena(&small));
    // 2x + 4x + ... + 64x.
    let check =
        || assert_eq!([first(&small, &x, 3), first(&large, &x, 3), first(&small, &x, 3)], [[24.0], [378.0], [24.0]]);
    check();
    assert_eq!(shared.bytes(), arena(&large));
    check();
    drop(large);
    assert_eq!(first(&small, &x, 3), [24.0]);
    assert_eq!(shared.bytes(), arena(&small), "the largest is gone");
    drop(small);
    assert_eq!(shared.bytes(), 0);
}

/// Runs at one time have an arena each.
#[test]
fn sessions_run_at_one_time() {
    static BOTH: std::sync::OnceLock<Barrier> = std::sync::OnceLock::new();
    /// As `double`, once both sessions are here.
    unsafe extern "C" fn meeting(args: *const *mut u8, lo: u64, hi: u64) {
        BOTH.get_or_init(|| Barrier::new(2)).wait();
        // SAFETY: as `double`.
        unsafe { double(args, lo, hi) }
        BOTH.get_or_init(|| Barrier::new(2)).wait();
    }
    let shared = Shared::new(&host(1)).unwrap();
    let mut exe = doublings(4);
    exe.kernels[1] = kernel("meet", Stage::Run, &[1], &[2], meeting);
    let all = [1.0, 3.0].map(|x| (x, session(&shared, exe.clone(), &[], &Names::default()).unwrap()));
    std::thread::scope(|scope| {
        for (x, session) in &all {
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(first(session, &tensor(|_| *x), 3), [16.0 * x]);
                }
            });
        }
    });
    assert_eq!(shared.bytes(), 2 * all[0].1.memory().run.bytes);
}

/// A load-time kernel that fails leaves the session as it was.
#[test]
fn a_refresh_that_fails_changes_nothing() {
    static WRONG: AtomicU64 = AtomicU64::new(0);
    /// As `double`, with an index out of range while that is asked for.
    unsafe extern "C" fn checked(args: *const *mut u8, lo: u64, hi: u64) {
        // SAFETY: as `double`, and the third argument is the kernel's record.
        unsafe {
            if WRONG.load(Ordering::Relaxed) == 1 {
                (*args.add(2)).cast::<i64>().write(17592186044423);
            }
            double(args, lo, hi);
        }
    }
    let mut exe = chain();
    exe.kernels[0] = kernel("fold", Stage::Load, &[1], &[2], checked);
    if let kiln_plan::exec::Work::Block { args, .. } = &mut exe.kernels[0].steps.steps[0] {
        args.push(kiln_plan::exec::Slot::Faults);
    }
    let shared = Shared::new(&host(1)).unwrap();
    let weight = Foreign::new(|i| i as f32);
    let all = [(); 2].map(|()| session(&shared, exe.clone(), &[weight.param()], &of_chain()).unwrap());
    weight.set(|i| 10.0 * i as f32);
    shared.renew();
    WRONG.store(1, Ordering::Relaxed);
    let x: Tensor = tensor(|_| 1.0);
    assert!(all[0].refresh().is_err() && all[1].refresh().is_err());
    assert_eq!(all.each_ref().map(|s| first(s, &x, 5)[0]), [33.0; 2]);
    WRONG.store(0, Ordering::Relaxed);
    all.iter().for_each(|s| s.refresh().unwrap());
    assert_eq!(all.each_ref().map(|s| first(s, &x, 5)[0]), [303.0; 2]);
}

/// Two parameters with one name are one value; parameters without are values of their own.
#[test]
fn names_tell_values_apart() {
    let shared = Shared::new(&host(1)).unwrap();
    let sum = || {
        let kinds = [BufferKind::Input(0), BufferKind::Param(ParamId(0)), BufferKind::Frozen, BufferKind::Temp];
        let kernels =
            vec![kernel("fold", Stage::Load, &[1], &[2], double), kernel("add", Stage::Run, &[0, 2], &[3], add)];
        executable(1, kinds.map(buffer).into(), kernels, &[3])
    };
    let x = tensor(|_| 0.0);
    let get = |name: &str, kernel: &str, value: f64| {
        let s = session(&shared, sum(), &[Param::Host(tensor(|_| value))], &names(&[name], &[kernel])).unwrap();
        (first(&s, &x, 0)[0], s)
    };
    let (one, _keep) = get("w", "double", 1.0);
    let same = get("w", "double", 5.0).0;
    let [other, another] = [get("w", "twice", 5.0).0, get("v", "double", 5.0).0];
    assert_eq!([one, same, other, another], [2.0, 2.0, 10.0, 10.0]);
    assert_eq!(x.ty, ty());
}
