//! A program that is launched by itself: instances over all threads, in rising order.
use super::{HostDevice, INLINE_NS, Shared};
use crate::{Argument, HostFn};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// How long an instance of a program took in its last launch, in nanoseconds; 0 before the first.
#[derive(Default)]
pub struct Pace(AtomicU64);

/// Parts of a launch for each thread.
const PARTS: u64 = 8;

impl HostDevice {
    /// Runs the instances of a program, one per position of the grid. Threads take them in rising order, so that an
    /// instance may wait for those before it. A grid of few instances that take no time runs on the calling thread:
    /// `pace` says so, or, before the first launch and after short ones, the time of the first instance.
    ///
    /// # Safety
    /// The program is compiled with this grid or with one of the launch. There is an argument for each of its
    /// parameters, and behind each address what the program accesses; other threads leave that alone until this
    /// returns.
    pub unsafe fn launch(&self, program: HostFn, grid: [usize; 3], arguments: &[Argument], pace: &Pace) {
        let sizes = grid.map(|n| n as u64);
        let instances = sizes.iter().product::<u64>();
        if instances == 0 {
            return;
        }
        let numbers: Vec<u64> = arguments.iter().map(|a| a.bits()).collect();
        let place = |(a, number): (&Argument, &u64)| match a {
            Argument::Address(address) => std::ptr::with_exposed_provenance_mut(*address as usize),
            Argument::Scalar(_) => std::ptr::from_ref(number).cast_mut().cast::<u8>(),
        };
        let mut places: Vec<*mut u8> = arguments.iter().zip(&numbers).map(place).collect();
        places.push(sizes.as_ptr().cast_mut().cast());
        let places = Shared(places.as_ptr());
        // SAFETY: this function's contract; scalars and the grid live until the end.
        let run = |from: u64, to: u64| unsafe { program(places.get(), from, to) };
        let parallel = self.parallel_beside_libtorch();
        let known = pace.0.load(Ordering::Relaxed).saturating_mul(instances);
        let mut begin = 0;
        if parallel.threads == 1 || instances == 1 || known < INLINE_NS {
            let start = Instant::now();
            run(0, 1);
            let once = start.elapsed().as_nanos() as u64;
            pace.0.store(once, Ordering::Relaxed);
            begin = 1;
            if parallel.threads == 1 || once.saturating_mul(instances - 1) < INLINE_NS {
                return run(1, instances);
            }
        }
        let part = ((instances - begin) / (PARTS * parallel.threads as u64)).max(1);
        let (next, spent) = (AtomicU64::new(begin), AtomicU64::new(0));
        parallel.each(parallel.threads, |_| {
            let start = Instant::now();
            loop {
                let from = next.fetch_add(part, Ordering::Relaxed);
                if from >= instances {
                    break;
                }
                run(from, instances.min(from + part));
            }
            spent.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        });
        pace.0.store(spent.into_inner() / (instances - begin), Ordering::Relaxed);
    }
}
