//! Sessions on the host over memory of another owner: parameters that change, and inputs and outputs at the caller's addresses.
use crate::host::{N, add, buffer, chain, double, executable, host, kernel, matmul, tensor, ty};
use kiln_graph::{ParamId, Tensor, Type};
use kiln_plan::{BufferKind, Stage, exec::Slot};
use kiln_runtime::{Executable, NoCallbacks, Param, RuntimeError, Session};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Memory of another library, of `N` f32 that may change.
struct Foreign(Vec<AtomicU32>);
impl Foreign {
    fn new(f: impl Fn(usize) -> f32) -> Arc<Foreign> {
        Arc::new(Foreign((0..N).map(|i| AtomicU32::new(f(i).to_bits())).collect()))
    }
    fn set(&self, f: impl Fn(usize) -> f32) {
        self.0.iter().enumerate().for_each(|(i, v)| v.store(f(i).to_bits(), Ordering::Relaxed));
    }
    fn get(&self, i: usize) -> f32 {
        f32::from_bits(self.0[i].load(Ordering::Relaxed))
    }
    fn param(self: &Arc<Foreign>) -> Param {
        // SAFETY: `N` f32 that live as long as the owner, and change only between runs.
        Param::Host(unsafe { Tensor::foreign(ty(), self.0.as_ptr().cast(), self.clone()) })
    }
}

fn first(session: &Session, x: &Tensor, i: usize) -> Vec<f64> {
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
fn panels() -> Executable {
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

/// Packing drops the originals of weights that the session owns, and keeps foreign ones; refreshing packs again what may have changed.
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
