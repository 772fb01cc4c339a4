//! What assembles the PTX of a compilation for the GPU that will run it: `ptxas`, one process for each program, or the
//! driver.
//!
//! Takes: PTX, as it is generated, from several threads. Gives: modules that the device has loaded. Never: fails;
//! what `ptxas` or the loader refuses, the driver assembles, and a session reports what the driver refuses.
//!
//! The driver assembles one text at a time, however many threads ask it: a model of 76 programs takes it 3.2 s on 16
//! cores, where `ptxas` needs 2 s of one core. What `ptxas` makes is kept in the cache, where other processes find it.
//! Without a cache the driver assembles few programs, and all of them on few cores: it keeps on disk what it has
//! assembled, and that is worth more there.
//!
//! nvJitLink is no alternative: it assembles each text to be linked with others, as `ptxas --compile-only` does.
//! `setmaxnreg` is then ignored, and divisions are calls, for which kernels hold more registers.
use crate::{
    cache::{Cache, Key, Kind},
    cores,
    cubin::capability,
    facts, ptxas,
};
use kiln_machine::Arch as Target;
use kiln_runtime::{Cubin, CudaDevice, Ptx};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// Fewest cores on which `ptxas` is used.
const CORES: usize = 4;
/// Fewest programs for which `ptxas` is used.
const PROGRAMS: usize = 4;

/// The assembler of one compilation.
pub(crate) struct Assembler<'a> {
    gpu: &'a CudaDevice,
    target: Target,
    /// `None`: the driver assembles.
    ptxas: Option<PathBuf>,
    /// `ptxas` refused a text, or the driver its machine code, as when `ptxas` is of a newer CUDA: it is not asked
    /// again.
    refused: AtomicBool,
    /// Where machine code is kept.
    cache: Option<&'a Cache>,
}

impl<'a> Assembler<'a> {
    /// For this many programs of this target.
    pub fn new(gpu: &'a CudaDevice, target: Target, programs: usize, cache: Option<&'a Cache>) -> Assembler<'a> {
        let is_worth = cache.is_some() || is_worth(cores::cores(), programs);
        let ptxas = if is_worth { ptxas::installed_ptxas() } else { None };
        Assembler { gpu, target, ptxas, refused: AtomicBool::new(false), cache }
    }
    /// Assembles a program and loads it.
    pub fn load(&self, ptx: &Ptx) {
        // The driver assembles code of another architecture for this device.
        let capability = capability(self.target).filter(|c| *c == self.gpu.info().capability);
        if !capability.is_some_and(|c| self.by_cache(ptx, c) || self.by_ptxas(ptx, c)) {
            self.gpu.assemble(ptx);
        }
    }
    /// Machine code of a program from the cache or `ptxas`; it is not loaded. `None`: the driver has to assemble it.
    pub fn assembled(&self, ptx: &Ptx) -> Option<Cubin> {
        let capability = capability(self.target).filter(|c| *c == self.gpu.info().capability)?;
        let known = self.cache.and_then(|cache| cache.get(&self.key(ptx)));
        let bytes = known.or_else(|| facts::cubin(self.ptxas.as_ref()?, &ptx.text, self.target.name()).ok())?;
        Some(Cubin { capability, bytes: bytes.into() })
    }
    fn key(&self, ptx: &Ptx) -> Key {
        Key::new(Kind::Cubin).with(self.target.name().as_bytes()).with(ptx.text.as_bytes())
    }
    /// Whether another process has kept its machine code, and the driver takes it.
    fn by_cache(&self, ptx: &Ptx, capability: (u32, u32)) -> bool {
        let known = self.cache.and_then(|cache| cache.get(&self.key(ptx)));
        known.is_some_and(|bytes| self.gpu.load_assembled(ptx, &Cubin { capability, bytes: bytes.into() }))
    }
    /// False if the driver has to.
    fn by_ptxas(&self, ptx: &Ptx, capability: (u32, u32)) -> bool {
        let Some(ptxas) = self.ptxas.as_ref().filter(|_| !self.refused.load(Ordering::Relaxed)) else { return false };
        let cubin = facts::cubin(ptxas, &ptx.text, self.target.name());
        let cubin = cubin.map(|bytes| Cubin { capability, bytes: bytes.into() });
        let loaded = cubin.as_ref().is_ok_and(|cubin| self.gpu.load_assembled(ptx, cubin));
        if let (Some(cache), Ok(cubin), true) = (self.cache, &cubin, loaded) {
            cache.put(&self.key(ptx), &cubin.bytes);
        }
        self.refused.fetch_or(!loaded, Ordering::Relaxed);
        loaded
    }
}

/// Whether processes of `ptxas` on this many cores are faster than the driver, which may have the programs in its
/// cache.
fn is_worth(cores: usize, programs: usize) -> bool {
    cores >= CORES && programs >= PROGRAMS
}

/// What `kiln doctor` says of it.
pub(crate) fn finding() -> String {
    match ptxas::installed_ptxas() {
        Some(path) if cores::cores() >= CORES => format!("{}, on all cores", path.display()),
        Some(_) => format!("the driver: fewer than {CORES} cores"),
        None => "the driver, one program at a time: no ptxas on the PATH or beside PyTorch".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: &str = ".version 8.1\n.target sm_90a\n.address_size 64\n.visible .entry copy(.param .u64 p) { ret; }\n";

    fn ptx() -> Ptx {
        let (entry, grid, passed) = (String::from("copy"), [1; 3], vec![]);
        Ptx { entry, text: COPY.into(), cubin: None, grid, threads: 32, shared: 0, cluster: 1, passed }
    }

    #[test]
    fn the_driver_assembles_few_programs_and_on_few_cores() {
        assert!(is_worth(16, 76) && is_worth(4, 4));
        assert!(!is_worth(2, 76) && !is_worth(16, 1));
    }

    /// `ptxas` is not asked again once it has failed, and then the driver has the program.
    #[test]
    #[ignore = "needs a GPU"]
    fn what_ptxas_refuses_the_driver_assembles() {
        let gpu = CudaDevice::open(0).unwrap_or_else(|e| panic!("this test needs a GPU: {e}"));
        let capability = gpu.info().capability;
        let target = Target::of_capability(capability).expect("a GPU that Kiln has a target for");
        let ptx = || Ptx { text: COPY.replace("sm_90a", target.name()).into(), ..ptx() };
        let with = |ptxas| Assembler { gpu: &gpu, target, ptxas, refused: AtomicBool::new(false), cache: None };
        let found = ptxas::find_ptxas().expect("run scripts/setup, which installs ptxas");
        let good = with(Some(found));
        assert!(good.by_ptxas(&ptx(), capability) && !good.refused.load(Ordering::Relaxed));
        let bad = with(Some("/bin/false".into()));
        bad.load(&ptx());
        assert!(bad.refused.load(Ordering::Relaxed) && !bad.by_ptxas(&ptx(), capability));
        assert!(!with(None).by_ptxas(&ptx(), capability));
        // What one process has assembled another loads, without ptxas.
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path().into());
        let found = ptxas::find_ptxas().expect("found above");
        assert!(!Assembler { cache: Some(&cache), ..with(None) }.by_cache(&ptx(), capability));
        Assembler { cache: Some(&cache), ..with(Some(found)) }.load(&ptx());
        assert!(Assembler { cache: Some(&cache), ..with(None) }.by_cache(&ptx(), capability));
    }
}
