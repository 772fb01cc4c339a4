//! Which loads a store must wait for, in programs whose parameters may be one tensor.
//!
//! An instance's accesses keep the order of the program, but its threads do not keep step: a thread may store before
//! another has loaded what the store overwrites. Lowering gives each parameter memory of its own; a caller may pass one
//! tensor twice.
use super::r#gen::Gen;
use kiln_block::analysis::Writes;
use kiln_block::layout::Flat;
use kiln_block::{BlockProgram, Op, Region, Value};
use std::collections::HashSet;
use std::rc::Rc;

/// Loads since the last barrier.
#[derive(Clone)]
pub(super) struct Reads {
    /// `None`: no store overwrites what another thread has yet to load.
    memories: Option<Rc<Memories>>,
    /// Pointers, and how their elements lie.
    loaded: Vec<(Value, Flat)>,
    /// Pointers of earlier iterations, whose addresses are not those of this one.
    earlier: HashSet<Value>,
}

/// Which pointers may lead to one place.
struct Memories {
    writes: Writes,
    /// Parameters, and whether no other pointer reaches their memory.
    parameters: Vec<(Value, bool)>,
}

impl Memories {
    fn of(k: &BlockProgram) -> Memories {
        let parameters = k.params.iter().map(|p| (p.value, p.readonly || p.facts.noalias)).collect();
        Memories { writes: Writes::of(k), parameters }
    }
    /// Whether all parameters that a pointer may start from are separate; `None` for a pointer that is made of a number.
    fn is_separate(&self, v: Value) -> Option<bool> {
        let mut all = self.parameters.iter().filter(|(p, _)| self.writes.share_memory(*p, v)).peekable();
        all.peek().is_some().then(|| all.all(|(_, separate)| *separate))
    }
    fn differ(&self, a: Value, b: Value) -> bool {
        let separate = self.is_separate(a).zip(self.is_separate(b));
        !self.writes.share_memory(a, b) && separate.is_some_and(|(a, b)| a || b)
    }
}

impl Reads {
    pub fn of(k: &BlockProgram) -> Reads {
        let memories = k.has_launch_values().then(|| Rc::new(Memories::of(k)));
        Reads { memories, loaded: vec![], earlier: HashSet::new() }
    }
    pub fn load(&mut self, pointer: Value, flat: Flat) {
        if self.memories.is_some() {
            self.loaded.push((pointer, flat));
        }
    }
    /// At the start of a loop's body: loads of the iteration before.
    pub fn enter(&mut self, k: &BlockProgram, region: &Region) {
        if self.memories.is_some() {
            k.walk_region(region, &mut |_, d| {
                self.earlier.extend(d.args.first().filter(|_| matches!(d.op, Op::Load(..))));
            });
        }
    }
    /// Whether a barrier must come before a store: another thread may not have loaded yet what it overwrites. A thread
    /// itself loads before it stores.
    pub fn waits(&self, pointer: Value, flat: &Flat) -> bool {
        let Some(memories) = &self.memories else { return false };
        let same = |(v, f): &&(Value, Flat)| *v == pointer && f == flat;
        let loaded = self.loaded.iter().filter(|load| !same(load)).map(|(v, _)| v);
        loaded.chain(&self.earlier).any(|v| !memories.differ(*v, pointer))
    }
    /// Whether a pointer, however it moved, leads to memory that the program does not write.
    pub fn is_unwritten(&self, k: &BlockProgram, pointer: Value) -> bool {
        self.memories.as_ref().is_some_and(|m| m.writes.is_readonly(k, pointer))
    }
    /// After paths that join: what any of them leaves.
    pub fn join(&mut self, other: &Reads) {
        self.earlier.extend(&other.earlier);
        for load in &other.loaded {
            if !self.loaded.contains(load) {
                self.loaded.push(load.clone());
            }
        }
    }
    /// Whether parameters may be one tensor.
    pub fn is_kept(&self) -> bool {
        self.memories.is_some()
    }
    pub fn clear(&mut self) {
        self.loaded.clear();
        self.earlier.clear();
    }
}

/// What threads have not waited for at a point of the program.
#[derive(Clone)]
pub(super) struct Pending {
    wrote: bool,
    reads: Reads,
}

impl Gen<'_, '_> {
    pub fn pending(&self) -> Pending {
        Pending { wrote: self.wrote, reads: self.reads.clone() }
    }
    /// At the start of the other side of a branch: what was pending before it.
    pub fn resume(&mut self, before: &Pending) {
        if before.reads.is_kept() {
            (self.wrote, self.reads) = (before.wrote, before.reads.clone());
        }
    }
    /// Where another path joins, which may have had fewer barriers.
    pub fn join_pending(&mut self, other: &Pending) {
        if other.reads.is_kept() {
            self.wrote |= other.wrote;
            self.reads.join(&other.reads);
        }
    }
}
