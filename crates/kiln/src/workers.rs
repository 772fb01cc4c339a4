//! Work spread over the cores of this machine.
//!
//! Takes: items and a function of one item. Gives: the results in the items' order, whichever thread computed them.
//! Never: keeps threads.
use crate::cores::cores;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread::{Builder, ScopedJoinHandle},
};

/// Bytes of stack of a thread, as many as a main thread has: lowering and LLVM recurse over expressions. Memory that is
/// not used is not taken.
const STACK: usize = 8 << 20;

/// Applies `f` to every item, on as many threads as there are cores; this thread is one of them. Each takes the next
/// item when it is done with its last one, so items that take longest come first.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    // To ask for the number of cores reads files.
    if items.len() < 2 {
        return items.iter().map(f).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = vec![];
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, f(item)));
        }
    };
    let others = cores().min(items.len()).saturating_sub(1);
    let mut done = std::thread::scope(|s| {
        // Where the system gives no more threads, those that run do the work.
        let spawn = |_| Builder::new().stack_size(STACK).spawn_scoped(s, work).ok();
        let threads: Vec<ScopedJoinHandle<_>> = (0..others).map_while(spawn).collect();
        let mut done = work();
        for t in threads {
            done.extend(t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        // The first items take longest, so that others overtake them.
        let slow = |n: &u64| {
            std::thread::sleep(std::time::Duration::from_micros(100 - n));
            n * n
        };
        assert_eq!(map(&items, slow), items.iter().map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(map(&[] as &[u64], slow), Vec::<u64>::new());
    }

    /// One thread alone would wait for ever.
    #[test]
    fn items_run_at_once() {
        let n = cores();
        let all = Barrier::new(n);
        let leaders = map(&vec![(); n], |()| all.wait().is_leader());
        assert_eq!((leaders.len(), leaders.iter().filter(|l| **l).count()), (n, 1));
    }

    #[test]
    fn a_panic_comes_through() {
        let panics = || map(&[1, 2, 3], |n| assert!(*n < 3, "an item of {n}"));
        let panic = std::panic::catch_unwind(panics).expect_err("an assertion fails");
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("an item of 3"));
    }
}
