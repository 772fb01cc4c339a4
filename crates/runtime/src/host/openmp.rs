//! The threads of OpenMP, where another library of the process has them: loops between operators of libtorch run on
//! these.
//!
//! libgomp's threads spin for milliseconds after a loop, and wait for its next one. Workers of Kiln's team would then
//! share cores with them, and a loop of a few 100 us would take as long as the spinning. A program with operators of
//! libtorch therefore runs its loops on the threads that these operators leave spinning.
//!
//! Takes: a number of tasks and a closure for one task. Gives control back when all tasks are done. Never: loads a
//! library; only one that is in the process already counts.
use super::team::Parts;
use std::{
    any::Any,
    ffi::{c_int, c_uint, c_void},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{LazyLock, Mutex, PoisonError},
};

/// The entry points of libgomp, as its manual describes them ("The libgomp ABI", "Runtime library routines").
#[derive(Clone, Copy)]
pub(crate) struct OpenMp {
    /// Runs a function on each of a number of threads; with 0 on as many as the process has set.
    parallel: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint),
    thread_number: unsafe extern "C" fn() -> c_int,
    most_threads: unsafe extern "C" fn() -> c_int,
}

/// A loop that is running.
struct Loop<'a, F> {
    task: &'a F,
    parts: &'a Parts,
    tasks: usize,
    thread_number: unsafe extern "C" fn() -> c_int,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl OpenMp {
    /// That of the process, if exactly one libgomp is loaded. It is looked up once, so only after what loads it.
    pub fn of_process() -> Option<OpenMp> {
        static FOUND: LazyLock<Option<OpenMp>> = LazyLock::new(find);
        *FOUND
    }

    /// How many threads a loop of the calling thread has, as OMP_NUM_THREADS and `torch.set_num_threads` set it.
    pub fn threads(self) -> usize {
        // SAFETY: the function takes nothing and may be called from any thread.
        usize::try_from(unsafe { (self.most_threads)() }).unwrap_or(1).max(1)
    }

    /// Calls `f(i)` once for each `i` in `0..tasks`, on OpenMP's threads as they become free. Returns when all calls
    /// have returned.
    pub fn each<F: Fn(usize) + Sync>(self, tasks: usize, f: F) {
        unsafe extern "C" fn body<F: Fn(usize) + Sync>(data: *mut c_void) {
            // SAFETY: `data` is the loop, which `each` keeps alive until all threads have returned.
            let all = unsafe { &*data.cast_const().cast::<Loop<'_, F>>() };
            // SAFETY: the function takes nothing and may be called from any thread.
            let thread = unsafe { (all.thread_number)() };
            let part = usize::try_from(thread).unwrap_or(0) % all.parts.len();
            let run = || all.parts.take(part, all.tasks, all.task);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                all.parts.drop_rest();
                *all.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
        }
        if tasks < 2 {
            return (0..tasks).for_each(f);
        }
        let parts = Parts::new(self.threads());
        parts.fill(tasks);
        let all = Loop { task: &f, parts: &parts, tasks, thread_number: self.thread_number, panic: Mutex::new(None) };
        // SAFETY: `body` takes a loop of this type and does not unwind; the call returns after every thread has left
        // it. Tasks are `Sync`, and the loop is only read.
        unsafe { (self.parallel)(body::<F>, (&raw const all).cast_mut().cast(), 0, 0) };
        let panic = all.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

#[cfg(target_os = "linux")]
fn find() -> Option<OpenMp> {
    use libloading::os::unix::{Library, RTLD_LAZY};
    /// `dlopen` only gives a library that is loaded already.
    const RTLD_NOLOAD: c_int = 4;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libgomp")))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let [path] = paths[..] else { return None };
    // SAFETY: the library is loaded, so nothing of it is run; the functions have these types in every version of
    // libgomp since GCC 4.9.
    unsafe {
        let library = Library::open(Some(path), RTLD_LAZY | RTLD_NOLOAD).ok()?;
        let found = OpenMp {
            parallel: *library.get(b"GOMP_parallel\0").ok()?,
            thread_number: *library.get(b"omp_get_thread_num\0").ok()?,
            most_threads: *library.get(b"omp_get_max_threads\0").ok()?,
        };
        // The functions are called until the process ends.
        std::mem::forget(library);
        Some(found)
    }
}
#[cfg(not(target_os = "linux"))]
fn find() -> Option<OpenMp> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// libgomp where the compiler's own is installed; loaded for this test.
    fn loaded() -> Option<OpenMp> {
        // SAFETY: libgomp runs nothing but its own set-up when it is loaded.
        let library = unsafe { libloading::Library::new("libgomp.so.1") }.ok()?;
        std::mem::forget(library);
        find()
    }

    #[test]
    fn every_task_runs_once_and_panics_reach_the_caller() {
        let Some(openmp) = loaded() else { return };
        for tasks in 0..97 {
            let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            openmp.each(tasks, |i| {
                done[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1), "{tasks} tasks: {done:?}");
        }
        for bad in 0..8 {
            let run = || openmp.each(8, |i| assert_ne!(i, bad, "task {bad}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the panic of task {bad} was lost");
        }
        // A loop within a loop.
        let sum = AtomicUsize::new(0);
        openmp.each(5, |i| {
            openmp.each(3, |j| {
                sum.fetch_add(i * 3 + j, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), (0..15).sum::<usize>());
    }
}
