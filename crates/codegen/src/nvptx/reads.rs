//! Which loads a store must wait for, in programs whose parameters may be one tensor.
//!
//! An instance's accesses keep the order of the program, but its threads do not keep step: a thread may store before
//! another has loaded what the store overwrites. Lowering gives each parameter memory of its own; a caller may pass one
//! tensor twice.
use super::r#gen::Gen;
use kiln_block::layout::Flat;
use kiln_block::{BlockProgram, Inst, InstData, Op, Region, Type, Value};
use std::collections::{HashMap, HashSet};

/// Loads since the last barrier.
#[derive(Clone)]
pub(super) struct Reads {
    /// `None`: no store overwrites what another thread has yet to load.
    roots: Option<HashMap<Value, Value>>,
    /// Parameters whose memory no other pointer reaches.
    separate: HashSet<Value>,
    /// Pointers, and how their elements lie.
    loaded: Vec<(Value, Flat)>,
    /// Loads of another iteration may be among them.
    any: bool,
}

impl Reads {
    pub fn of(k: &BlockProgram) -> Reads {
        let separate = k.params.iter().filter(|p| p.readonly || p.facts.noalias).map(|p| p.value).collect();
        Reads { roots: k.has_launch_values().then(|| roots(k)), separate, loaded: vec![], any: false }
    }
    pub fn load(&mut self, pointer: Value, flat: Flat) {
        if self.roots.is_some() {
            self.loaded.push((pointer, flat));
        }
    }
    /// At the start of a loop's body: loads of the iteration before.
    pub fn enter(&mut self, k: &BlockProgram, region: &Region) {
        let mut loads = false;
        k.walk_region(region, &mut |_, d| loads |= matches!(d.op, Op::Load(..)));
        self.any |= loads && self.roots.is_some();
    }
    /// Whether a barrier must come before a store: another thread may not have loaded yet what it overwrites. A thread
    /// itself loads before it stores.
    pub fn waits(&self, pointer: Value, flat: &Flat) -> bool {
        let Some(roots) = &self.roots else { return false };
        let root = |v: Value| roots.get(&v).copied().unwrap_or(v);
        let apart = |v: Value| {
            let (a, b) = (root(v), root(pointer));
            a != b && (self.separate.contains(&a) || self.separate.contains(&b))
        };
        self.any || self.loaded.iter().any(|(v, f)| !(*v == pointer && f == flat || apart(*v)))
    }
    /// After paths that join: what any of them leaves.
    pub fn join(&mut self, other: &Reads) {
        self.any |= other.any;
        for load in &other.loaded {
            if !self.loaded.contains(load) {
                self.loaded.push(load.clone());
            }
        }
    }
    /// Whether parameters may be one tensor.
    pub fn is_kept(&self) -> bool {
        self.roots.is_some()
    }
    pub fn clear(&mut self) {
        self.loaded.clear();
        self.any = false;
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

/// The parameters that pointers start from, where they only move.
fn roots(k: &BlockProgram) -> HashMap<Value, Value> {
    let mut roots: HashMap<Value, Value> = HashMap::new();
    k.walk(&mut |_: Inst, d: &InstData| {
        let moves = matches!(
            d.op,
            Op::PtrAdd
                | Op::Splat
                | Op::Broadcast
                | Op::ExpandDims(_)
                | Op::Reshape
                | Op::Permute(_)
                | Op::ConvertLayout
        );
        if let ([v], [from, ..], true) = (&d.results[..], &d.args[..], moves)
            && matches!(k.ty(*v), Type::Ptr { .. })
        {
            let root = roots.get(from).copied().unwrap_or(*from);
            roots.insert(*v, root);
        }
    });
    roots
}
