//! A kernel's compiled variants, by the types and facts of launches.
//!
//! The first launch with arguments of some types compiles for its facts. Another variant of the same types is made on
//! another thread, while launches run one whose facts theirs imply: there is one soon that knows nothing of numbers.
//! What was made is loaded by a later launch, never while a stream is being captured.
use super::{key::Key, launch_key::LaunchKey};
use kiln::kernels::{ArgumentFacts, Kernel, Known, Literal, Options, Pending, Place, Prepared, Signature, State, Unit};
use pyo3::{prelude::*, types::PyList};
use rustc_hash::FxHashMap;
use std::sync::Arc;

#[derive(Default)]
pub struct Variants {
    /// By all facts of a launch.
    launched: FxHashMap<LaunchKey, Arc<Kernel>>,
    /// By types alone.
    families: FxHashMap<Key, Family>,
}

/// What a launch is told apart by: as variants are, and as it is looked up.
pub struct Keys {
    pub variant: Key,
    pub launch: LaunchKey,
}

/// What is compiled for arguments of the same types.
pub struct Source {
    pub unit: Unit,
    /// Constants of the launch that Python describes.
    pub literals: Vec<Literal>,
    pub options: Options,
    pub place: &'static Place,
    /// Functions are told apart by their addresses in keys, so that none may go.
    pub _constants: Py<PyList>,
}

/// The variants for arguments of the same types, by the facts that matter.
struct Family {
    source: Arc<Source>,
    first: Arc<Kernel>,
    compiled: FxHashMap<Key, Arc<Kernel>>,
    pending: FxHashMap<Key, Arc<Pending<Prepared>>>,
}

/// What there is for a launch.
pub enum Found {
    Variant(Arc<Kernel>),
    /// One that makes no use of some facts of the launch, while the one that does is being made.
    Weaker(Arc<Kernel>, Arc<Pending<Prepared>>),
    /// Nothing yet, but this is being made.
    Pending(Arc<Pending<Prepared>>),
    /// Nothing, for arguments of types that are known or not.
    Nothing(Option<Arc<Source>>),
}

impl Variants {
    /// The variant for what was launched before.
    pub fn launched(&self, key: &LaunchKey) -> Option<Arc<Kernel>> {
        self.launched.get(key).cloned()
    }
    /// The variant for another launch. `signature` gives the types and facts of it, `loads` says whether code may be
    /// loaded now.
    pub fn find(
        &mut self,
        keys: &Keys,
        signature: impl FnOnce(&Source) -> Signature,
        loads: impl FnOnce() -> bool,
    ) -> Found {
        let key = &keys.variant;
        let types = key.types();
        let Some(family) = self.families.get_mut(&types) else { return Found::Nothing(None) };
        let relevant = key.relevant(family.first.stages().parameters(), family.first.relevance());
        if !family.compiled.contains_key(&relevant) && loads() {
            family.load(&relevant);
            family.load(&relevant.without_numbers());
        }
        if let Some(found) = family.compiled.get(&relevant) {
            self.launched.insert(keys.launch.clone(), found.clone());
            return Found::Variant(found.clone());
        }
        let Some(weaker) = family.weaker(&relevant) else {
            return family.without_numbers(&relevant.without_numbers());
        };
        let pending = match family.pending.get(&relevant) {
            Some(pending) => pending.clone(),
            None => {
                let signature = signature(&family.source);
                family.prepare(relevant, signature)
            }
        };
        if pending.has_failed() {
            self.launched.insert(keys.launch.clone(), weaker.clone());
            return Found::Variant(weaker);
        }
        Found::Weaker(weaker, pending)
    }
    /// Notes what a launch has compiled. If it knows numbers, a variant without these follows.
    pub fn insert(&mut self, keys: Keys, kernel: &Arc<Kernel>, signature: Signature, source: Arc<Source>) {
        let Keys { variant: key, launch } = keys;
        let relevant = key.relevant(kernel.stages().parameters(), kernel.relevance());
        let family = self.families.entry(key.types()).or_insert_with(|| Family {
            source,
            first: kernel.clone(),
            compiled: FxHashMap::default(),
            pending: FxHashMap::default(),
        });
        let general = relevant.without_numbers();
        if general != relevant && !family.compiled.contains_key(&general) && !family.pending.contains_key(&general) {
            family.prepare(general, without_numbers(signature));
        }
        family.pending.remove(&relevant);
        family.compiled.insert(relevant, kernel.clone());
        self.launched.insert(launch, kernel.clone());
    }
}

impl Family {
    /// Makes a variant on another thread.
    fn prepare(&mut self, key: Key, signature: Signature) -> Arc<Pending<Prepared>> {
        let source = self.source.clone();
        let make = move || Kernel::prepare(&source.unit, &signature, &source.options, source.place).ok();
        let pending = Arc::new(Pending::later(make));
        self.pending.insert(key, pending.clone());
        pending
    }
    /// Loads a variant that has been made. One that cannot be made stays pending: it is not tried again.
    fn load(&mut self, key: &Key) {
        let Some(pending) = self.pending.get(key) else { return };
        match pending.take() {
            State::Ready(prepared) => {
                if let Ok(kernel) = prepared.load(self.source.place) {
                    self.pending.remove(key);
                    self.compiled.insert(key.clone(), Arc::new(kernel));
                }
            }
            State::Gone => _ = self.pending.remove(key),
            State::Waiting | State::Failed => {}
        }
    }
    /// The variant that knows nothing of numbers, or how far it is. As what a caller compiles, it is loaded even if a
    /// stream is being captured.
    fn without_numbers(&mut self, general: &Key) -> Found {
        if let Some(pending) = self.pending.get(general).filter(|pending| pending.is_waiting()) {
            return Found::Pending(pending.clone());
        }
        self.load(general);
        match self.compiled.get(general) {
            Some(kernel) => Found::Variant(kernel.clone()),
            None => Found::Nothing(Some(self.source.clone())),
        }
    }
    /// The variant with the most facts of those that hold wherever the facts of a key do.
    fn weaker(&self, key: &Key) -> Option<Arc<Kernel>> {
        let holds = self.compiled.iter().filter(|(known, _)| known.is_implied_by(key));
        holds.max_by_key(|(known, _)| known.count_facts()).map(|(_, kernel)| kernel.clone())
    }
}

/// Without facts about numbers.
pub fn without_numbers(mut signature: Signature) -> Signature {
    fn forget(known: &mut Known) {
        match known {
            Known::Scalar { facts, .. } => facts.forget_value(),
            Known::Tuple(parts) => parts.iter_mut().for_each(forget),
            Known::Descriptor(known) => {
                known.shape.iter_mut().chain(&mut known.strides).for_each(ArgumentFacts::forget_value);
            }
            Known::Array(known) => {
                known.shape.iter_mut().chain(&mut known.strides).for_each(ArgumentFacts::forget_value);
            }
            Known::Pointer { .. } | Known::Constant(_) => {}
        }
    }
    signature.arguments.iter_mut().for_each(forget);
    signature
}
