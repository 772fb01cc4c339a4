//! What sessions of one program have in common: folded and packed weights, copies of parameters, and memory for
//! intermediate results.
//!
//! Takes: names of the sessions' parameters and of what their load-time kernels compute. Gives: each value that was
//! computed before, while some session still has it. Never: keeps a value that no session uses. A session alone has a
//! [`Shared`] of its own.
//!
//! A value is named by how it came about: a parameter by its name, the result of a load-time kernel by the kernel's
//! name and the values that it reads, a packed operand by the value and the form of its panels. Values that depend on
//! memory of another owner have a generation: [`Shared::renew`] begins the next one, and sessions then compute them
//! again, each value once.
use crate::{
    CudaDevice, Device, Executable, HostDevice, Param, cuda::shared::CudaShared, error::RuntimeError,
    host::shared::HostShared, memory::Place,
};
use kiln_plan::{BufferId, Stage};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// What sessions on one device have in common.
pub struct Shared {
    /// From 1.
    generation: AtomicU64,
    ids: Mutex<HashMap<String, u64>>,
    pub(crate) pool: Pool,
}
/// A device, and the values and memory there.
pub(crate) enum Pool {
    Host(HostDevice, Arc<HostShared>),
    Cuda(CudaDevice, Arc<CudaShared>),
}

/// Names of a session's values. Whoever gives two sessions of one [`Shared`] the same name vouches that the values are
/// equal.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// One for each parameter: its value.
    pub params: Vec<String>,
    /// One for each kernel of the executable: what it computes of its inputs, down to the last bit. Only load-time
    /// kernels need one.
    pub kernels: Vec<String>,
}
impl Names {
    /// Names for a session alone.
    pub(crate) fn alone(exe: &Executable, params: usize) -> Names {
        let numbers = |n: usize| (0..n).map(|i| i.to_string()).collect();
        Names { params: numbers(params), kernels: numbers(exe.kernels.len()) }
    }
}

impl Shared {
    /// Nothing yet.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(device: &Device) -> Result<Arc<Shared>, RuntimeError> {
        let pool = match device {
            Device::Host(d) => Pool::Host(d.clone(), Arc::default()),
            Device::Cuda(d) => Pool::Cuda(d.clone(), Arc::new(CudaShared::new(d)?)),
        };
        Ok(Arc::new(Shared { generation: AtomicU64::new(1), ids: Mutex::default(), pool }))
    }
    /// Bytes on the device of all that sessions have in common, each value and arena once. Parameters that runs read in
    /// place are not among them.
    pub fn bytes(&self) -> usize {
        match &self.pool {
            Pool::Host(_, p) => p.bytes(),
            Pool::Cuda(_, p) => p.bytes(),
        }
    }
    /// Says that parameters of another owner have changed: the next [`crate::Session::refresh`] of each session takes
    /// this up.
    pub fn renew(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
    /// How often parameters have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The number of the value that came about like this.
    pub(crate) fn id(&self, origin: String) -> u64 {
        let mut ids = lock(&self.ids);
        let next = ids.len() as u64;
        *ids.entry(origin).or_insert(next)
    }
    /// The values of a session's buffers that are known when it is loaded.
    pub(crate) fn constants(&self, exe: &Executable, places: &[Place], names: &Names, params: &[Param]) -> Constants {
        let param = |place: &Place| {
            let Place::Param(p) = place else { return None };
            let name = names.params.get(*p)?;
            Some(Constant {
                id: self.id(format!("param {name}")),
                varies: params.get(*p).is_some_and(Param::is_foreign),
            })
        };
        let mut all: Vec<Option<Constant>> = places.iter().map(param).collect();
        for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Load) {
            // Invariant: load-time kernels read parameters and what earlier ones wrote (`Executable::check`); buffers
            // without elements may be neither, and have no value.
            let read: Vec<Constant> = kernel.inputs.iter().filter_map(|b| all[b.0 as usize]).collect();
            let ids: Vec<u64> = read.iter().map(|c| c.id).collect();
            for (o, b) in kernel.outputs.iter().enumerate() {
                let name = names.kernels.get(k).map_or("", String::as_str);
                let id = self.id(format!("output {o} {} of {ids:?} by {name}", exe.ty(*b)));
                all[b.0 as usize] = Some(Constant { id, varies: read.iter().any(|c| c.varies) });
            }
        }
        Constants(all)
    }
}

/// By buffer: its value, if that is known when the session is loaded.
pub(crate) struct Constants(Vec<Option<Constant>>);
/// A value that runs do not change.
#[derive(Clone, Copy)]
pub(crate) struct Constant {
    pub id: u64,
    /// Whether it depends on memory of another owner.
    pub varies: bool,
}
impl Constant {
    /// The oldest generation of the value that is right in this one.
    pub fn least(self, generation: u64) -> u64 {
        if self.varies { generation } else { 1 }
    }
}
impl Constants {
    pub fn of(&self, buffer: usize) -> Option<Constant> {
        self.0[buffer]
    }
}

/// Load-time kernels to run so that these buffers are computed, in launch order; `have`: buffers whose values are at
/// hand.
pub(crate) fn kernels_for(exe: &Executable, wanted: &[bool], have: impl Fn(BufferId) -> bool) -> Vec<usize> {
    let mut wanted = wanted.to_vec();
    let mut all = vec![];
    for (k, kernel) in exe.kernels.iter().enumerate().rev().filter(|(_, k)| k.stage == Stage::Load) {
        if kernel.outputs.iter().any(|b| wanted[b.0 as usize]) {
            all.push(k);
            kernel.inputs.iter().filter(|b| !have(**b)).for_each(|b| wanted[b.0 as usize] = true);
        }
    }
    all.reverse();
    all
}

/// A value and the generation that it was computed in.
pub(crate) struct Value<T> {
    pub data: T,
    /// 0 before it is computed.
    pub generation: AtomicU64,
}
impl<T> Value<T> {
    pub fn new(data: T, generation: u64) -> Arc<Value<T>> {
        Arc::new(Value { data, generation: AtomicU64::new(generation) })
    }
    pub fn is_of(&self, least: u64) -> bool {
        self.generation.load(Ordering::Relaxed) >= least
    }
}

/// Values that sessions have, by number.
pub(crate) struct Values<T>(Mutex<HashMap<u64, Weak<Value<T>>>>);
impl<T> Default for Values<T> {
    fn default() -> Values<T> {
        Values(Mutex::default())
    }
}
impl<T> Values<T> {
    /// A value, whatever its generation.
    pub fn get(&self, id: u64) -> Option<Arc<Value<T>>> {
        lock(&self.0).get(&id)?.upgrade()
    }
    /// A value of this generation or a later one.
    pub fn get_of(&self, id: u64, least: u64) -> Option<Arc<Value<T>>> {
        self.get(id).filter(|v| v.is_of(least))
    }
    /// Takes note of a value. Sessions that have an older one keep it until they are refreshed.
    pub fn put(&self, id: u64, value: &Arc<Value<T>>) {
        let mut all = lock(&self.0);
        all.retain(|_, v| v.strong_count() > 0);
        all.insert(id, Arc::downgrade(value));
    }
    /// The bytes of all, `each` giving those of one.
    pub fn bytes(&self, each: impl Fn(&T) -> usize) -> usize {
        lock(&self.0).values().filter_map(Weak::upgrade).map(|v| each(&v.data)).sum()
    }
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is changed by single operations that do not panic.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
