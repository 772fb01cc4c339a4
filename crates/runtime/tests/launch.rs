//! Programs that are launched by themselves on the host.
use kiln_runtime::{Argument, HostDevice, Pace};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// `to[i] += scale * (i + 1)` for instance `i` of a grid of three axes.
unsafe extern "C" fn scaled(args: *const *mut u8, lo: u64, hi: u64) {
    // SAFETY: the test passes a buffer of an i64 for each instance, two numbers, and the runtime the grid.
    unsafe {
        let to = (*args).cast::<i64>();
        let (scale, offset) = (*(*args.add(1)).cast::<i32>(), *(*args.add(2)).cast::<f64>());
        let grid = std::slice::from_raw_parts((*args.add(3)).cast::<u64>(), 3);
        assert!(hi <= grid.iter().product::<u64>());
        for i in lo..hi {
            *to.add(i as usize) += i64::from(scale) * (i as i64 + 1) + offset as i64;
        }
    }
}

#[test]
fn every_instance_runs_once() {
    for threads in [1, 2, 3] {
        let device = HostDevice::new(threads).unwrap();
        for grid in [[1, 1, 1], [7, 5, 3], [0, 4, 4], [100_000, 1, 1]] {
            let n = grid.iter().product::<usize>();
            let mut to = vec![1i64; n];
            let arguments = [Argument::Address(to.as_mut_ptr().expose_provenance() as u64), 3i32.into(), (-2.0).into()];
            // SAFETY: the buffer has an element for each instance.
            unsafe { device.launch(scaled, grid, &arguments, &Pace::default()) };
            assert!(to.into_iter().eq((0..n as i64).map(|i| 3 * (i + 1) - 1)), "{threads} threads, {grid:?}");
        }
    }
}

/// Takes a millisecond. Of two instances the first then waits until the second has begun, but not for ever.
unsafe extern "C" fn meeting(args: *const *mut u8, lo: u64, hi: u64) {
    // SAFETY: the test passes a counter, which lives until the launch has ended, and the runtime the grid.
    let (begun, instances) = unsafe { (&*(*args).cast::<AtomicU64>(), *(*args.add(1)).cast::<u64>()) };
    for instance in lo..hi {
        std::thread::sleep(Duration::from_millis(1));
        if instance == 1 {
            begun.store(1, Ordering::Relaxed);
        }
        let start = Instant::now();
        while instances == 2 && begun.load(Ordering::Relaxed) == 0 && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        if instance == 0 && begun.load(Ordering::Relaxed) == 1 {
            begun.store(2, Ordering::Relaxed);
        }
    }
}

#[test]
fn two_long_instances_run_at_the_same_time_once_their_pace_is_known() {
    let device = HostDevice::new(2).unwrap();
    let (pace, begun) = (Pace::default(), AtomicU64::new(0));
    let argument = Argument::Address(std::ptr::from_ref(&begun).expose_provenance() as u64);
    for grid in [[1, 1, 1], [2, 1, 1]] {
        // SAFETY: the counter lives, and is shared as a counter only.
        unsafe { device.launch(meeting, grid, &[argument], &pace) };
    }
    assert_eq!(begun.into_inner(), 2, "the first instance has not seen the second begin");
}

#[test]
fn numbers_as_bytes() {
    assert_eq!(Argument::from(true), Argument::Scalar([1, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(Argument::from(-1i16), Argument::Scalar([255, 255, 0, 0, 0, 0, 0, 0]));
    assert_eq!(Argument::from(1.0f32), Argument::Scalar([0, 0, 128, 63, 0, 0, 0, 0]));
}
