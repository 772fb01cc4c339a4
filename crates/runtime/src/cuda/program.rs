//! A program that is launched by itself, on a stream of its caller.
use super::{CudaDevice, launch::Launch, launch_maps::LaunchMaps, raw::StreamHandle};
use crate::{Argument, Passed, Ptx, RuntimeError};
use std::ffi::c_void;

/// A program that is loaded on a device.
pub struct CudaProgram {
    device: CudaDevice,
    launch: Launch,
    /// How each argument of a launch is passed.
    arguments: Vec<Passed>,
    /// Maps that launches make of their arguments, passed after these.
    maps: Vec<LaunchMaps>,
}

// SAFETY: a launch reads the handle of the loaded function, and changes nothing of the program.
unsafe impl Sync for CudaProgram {}

impl CudaDevice {
    /// Loads a program. The driver compiles PTX on first use.
    ///
    /// # Errors
    /// [`RuntimeError::Unsupported`] if the device lacks what it needs or it takes descriptors of arrays that its
    /// arguments do not describe, otherwise what the driver refuses.
    pub fn program(&self, ptx: &Ptx) -> Result<CudaProgram, RuntimeError> {
        if ptx.passed.iter().any(|p| matches!(p, Passed::Map(_))) {
            return Err(RuntimeError::Unsupported {
                kernel: ptx.entry.clone(),
                device: self.name(),
                what: "it takes descriptors of arrays, which a launch by itself does not make".into(),
                remedy: "load and store through pointers".into(),
            });
        }
        let _current = self.check(|| format!("loading kernel `{}`", ptx.entry), self.inner.context.enter())?;
        let launch = Launch::new(self, &ptx.entry, ptx, vec![])?;
        let mut arguments = ptx.passed.clone();
        arguments.retain(|p| !matches!(p, Passed::LaunchMap(_)));
        let maps = ptx.passed.iter().filter_map(|p| match p {
            Passed::LaunchMap(map) => Some(LaunchMaps::new(map.clone())),
            _ => None,
        });
        Ok(CudaProgram { device: self.clone(), launch, arguments, maps: maps.collect() })
    }
    /// Whether work on a stream of the caller (0: the default stream) is being captured, or the driver does not say.
    ///
    /// # Safety
    /// The stream lives and is one of this device.
    pub unsafe fn captures(&self, stream: u64) -> bool {
        let asked = || {
            let _current = self.inner.context.enter()?;
            // SAFETY: this function's contract.
            unsafe { StreamHandle::of_caller(stream) }.is_capturing()
        };
        asked().unwrap_or(true)
    }
}

impl CudaProgram {
    /// Registers of a thread, and its bytes in local memory; `None` if the driver does not say.
    pub fn registers(&self) -> Option<(u64, u64)> {
        let _current = self.device.inner.context.enter().ok()?;
        self.launch.registers().ok()
    }
    /// Enqueues a launch on a stream of the caller (0: the default stream). An empty grid launches nothing.
    ///
    /// # Errors
    /// If there are more or fewer arguments than parameters, or the driver refuses the launch.
    ///
    /// # Safety
    /// Arguments have the types of the parameters; behind each address is what the program accesses until the launch
    /// has run; the stream lives and is one of this device.
    pub unsafe fn launch(&self, grid: [usize; 3], arguments: &[Argument], stream: u64) -> Result<(), RuntimeError> {
        let refused = |what: String, remedy: &str| RuntimeError::Device {
            device: self.device.name(),
            what,
            remedy: remedy.into(),
        };
        if arguments.len() != self.arguments.len() {
            let what = format!("{} arguments for {} parameters", arguments.len(), self.arguments.len());
            return Err(refused(what, "pass one argument for each parameter of the program"));
        }
        let sizes = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        if sizes.contains(&u32::MAX) {
            let what = format!("a grid of {grid:?} is too large for a launch");
            return Err(refused(what, "launch fewer instances, each of which does more"));
        }
        let mut numbers: Vec<u64> = arguments.iter().map(|a| a.bits()).collect();
        let mut maps = Vec::with_capacity(self.maps.len());
        for map in &self.maps {
            let made = map.made(&self.arguments, &numbers);
            maps.push(self.device.check(|| "describing an array of a launch".into(), made)?);
        }
        let mut pointers: Vec<*mut c_void> = numbers.iter_mut().map(|n| std::ptr::from_mut(n).cast()).collect();
        pointers.extend(maps.iter().map(|map| std::ptr::from_ref(&**map).cast_mut().cast::<c_void>()));
        let mut done = || {
            let _current = self.device.inner.context.enter()?;
            // SAFETY: this function's contract; the driver copies the arguments before it returns.
            unsafe {
                let stream = StreamHandle::of_caller(stream);
                self.launch.enqueue_with(sizes, pointers.as_mut_ptr(), stream)
            }
        };
        let done = done();
        self.device.check(|| "launching a program".into(), done)
    }
}
