//! Sessions on a GPU that share folded weights, copies of parameters and one arena. Without a GPU there is nothing to
//! run, and the tests say so.
use crate::{
    cuda_caller::{ADD, Array, capture, executable, finish, gpu, kernel, ptx, run_on, stream},
    host::{N, b, tensor},
};
use cudarc::driver::result;
use kiln_graph::ParamId;
use kiln_plan::{BufferKind, Stage};
use kiln_runtime::{CudaDevice, Device, Executable, Names, NoCallbacks, Param, Session, Shared};
use std::sync::Arc;

/// t0 = x + 2 w, t1 = t0 + x, …, all of them live at once; gives t0 + (t1 + (t2 + …)).
fn wide(count: u32) -> Executable {
    let add = || ptx(ADD, "add", vec![]);
    let mut kinds = vec![BufferKind::Input(0), BufferKind::Param(ParamId(0)), BufferKind::Frozen];
    let mut kernels = vec![kernel("fold", Stage::Load, &[1, 1], &[2], add())];
    let mut next = |inputs: [u32; 2]| {
        let to = kinds.len() as u32;
        kinds.push(BufferKind::Temp);
        kernels.push(kernel(&format!("add_{to}"), Stage::Run, &inputs, &[to], add()));
        to
    };
    let mut all = vec![next([0, 2])];
    for _ in 1..count {
        all.push(next([all[all.len() - 1], 0]));
    }
    let first = all.pop().unwrap();
    let sum = all.into_iter().rev().fold(first, |sum, t| next([sum, t]));
    executable(kinds, kernels, &[sum])
}
fn wanted(count: u32, x: f64, w: f64) -> f64 {
    let count = f64::from(count);
    count * 2.0 * w + x * count * (count + 1.0) / 2.0
}

struct Sessions(Arc<Shared>);
impl Sessions {
    fn new(device: &CudaDevice) -> Sessions {
        Sessions(Shared::new(&Device::Cuda(device.clone())).unwrap())
    }
    fn one(&self, count: u32, weight: &Param) -> (u32, Session) {
        let names = Names { params: vec!["w".into()], kernels: vec!["twice".into()] };
        let exe = wide(count);
        (count, Session::sharing(&self.0, exe, vec![weight.clone()], &names, Arc::new(NoCallbacks)).unwrap())
    }
}
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

/// Each session has run, and was recorded, before the arena moves under it.
#[test]
#[ignore = "needs a GPU"]
fn the_arena_grows_under_recorded_graphs() {
    let device = gpu();
    let sessions = Sessions::new(&device);
    let weight = Param::Host(tensor(|i| i as f64));
    let (x, to, on) = (Array::new(|_| 3.0), vec![Array::new(|_| -1.0)], stream());
    let mut all: Vec<(u32, Session)> = vec![];
    for count in [2, 3, 7, 5, 20] {
        all.push(sessions.one(count, &weight));
        for _ in 0..4 {
            for (count, session) in &all {
                to[0].set(|_| -1.0);
                run_on(session, &x, &to, on).unwrap();
                finish(on);
                assert_eq!(to[0].get().get_f64(5), wanted(*count, 3.0, 5.0), "{count} of {}", all.len());
                assert_eq!(session.run(&[tensor(|_| 1.0)]).unwrap()[0].get_f64(7), wanted(*count, 1.0, 7.0));
            }
        }
    }
    // One folded weight, and one arena.
    let largest = all.iter().map(|(_, s)| s.memory().run.bytes).max().unwrap();
    assert_eq!(sessions.0.bytes(), padded(4 * N) + largest);
    all.truncate(1);
    assert_eq!(all[0].1.run(&[tensor(|_| 1.0)]).unwrap()[0].get_f64(7), wanted(2, 1.0, 7.0));
}

/// Runs of different sessions on different streams, without waiting in between, use the one arena.
#[test]
#[ignore = "needs a GPU"]
fn runs_of_sessions_are_ordered() {
    let device = gpu();
    let sessions = Sessions::new(&device);
    let weight = Param::Host(tensor(|_| 1.0));
    let all = [4, 9, 6].map(|count| sessions.one(count, &weight));
    let streams = [stream(), stream()];
    let runs: Vec<_> = (0..60).map(|r| (Array::new(|_| f64::from(r)), vec![Array::new(|_| -1.0)])).collect();
    for (r, (x, to)) in runs.iter().enumerate() {
        run_on(&all[r % 3].1, x, to, streams[r % 2]).unwrap();
    }
    all.iter().for_each(|(_, s)| s.check().unwrap());
    streams.into_iter().for_each(finish);
    for (r, (_, to)) in runs.iter().enumerate() {
        assert_eq!(to[0].get(), tensor(|_| wanted(all[r % 3].0, r as f64, 1.0)), "run {r}");
    }
}

/// Folding follows a change once, for all sessions, in the memory that launches refer to.
#[test]
#[ignore = "needs a GPU"]
fn refreshing_folds_once_for_all() {
    let device = gpu();
    for skip in [0, 4] {
        let sessions = Sessions::new(&device);
        let weight = Array::skipping(skip, |i| i as f64);
        let all = [2, 5].map(|count| sessions.one(count, &weight.param()));
        let before = sessions.0.bytes();
        let check = |w: f64| {
            for (count, session) in &all {
                for _ in 0..3 {
                    assert_eq!(session.run(&[tensor(|_| 1.0)]).unwrap()[0].get_f64(7), wanted(*count, 1.0, 7.0 * w));
                }
            }
        };
        check(1.0);
        weight.set(|i| 3.0 * i as f64);
        all[0].1.refresh().unwrap();
        check(1.0);
        sessions.0.renew();
        all[1].1.refresh().unwrap();
        check(3.0);
        all[0].1.refresh().unwrap();
        check(3.0);
        assert_eq!(sessions.0.bytes(), before);
    }
}

/// A graph of the caller keeps its arena when another session makes the shared one grow.
#[test]
#[ignore = "needs a GPU"]
fn captured_runs_keep_their_arena() {
    let device = gpu();
    let sessions = Sessions::new(&device);
    let weight = Param::Host(tensor(|i| i as f64));
    let (count, session) = sessions.one(3, &weight);
    let (x, to, on) = (Array::new(|_| 1.0), vec![Array::new(|_| -1.0)], stream());
    run_on(&session, &x, &to, on).unwrap();
    finish(on);
    let graph = capture(on, || run_on(&session, &x, &to, on).unwrap());
    let (more, large) = sessions.one(30, &weight);
    for round in 1..4 {
        x.set(|_| f64::from(round));
        // SAFETY: instantiated above; the session and the arrays live.
        unsafe { result::graph::launch(graph, on) }.unwrap();
        finish(on);
        assert_eq!(to[0].get().get_f64(5), wanted(count, f64::from(round), 5.0));
        assert_eq!(large.run(&[tensor(|_| 2.0)]).unwrap()[0].get_f64(5), wanted(more, 2.0, 5.0));
        assert_eq!(session.run(&[tensor(|_| 2.0)]).unwrap()[0].get_f64(5), wanted(count, 2.0, 5.0));
    }
    assert_eq!(large.executable().outputs[0], b(large.executable().buffers.len() as u32 - 1));
}
