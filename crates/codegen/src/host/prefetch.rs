//! Prefetches cache lines of the next instance while this one computes.
//!
//! A kernel that reads its rows more than once waits for memory in the first loop and computes from the cache in the
//! later ones. The second loop over a load therefore prefetches the same elements of the next instance, so that memory
//! and arithmetic work at the same time. Prefetching past the end of a tensor is harmless.
use super::Emit;
use super::demand::Demand;
use super::text::Name;
use kiln_block::analysis::{Def, analyse};
use kiln_block::{BlockProgram, Elem, Op, Type, Value};
use kiln_machine::Caches;
use std::collections::{HashMap, HashSet};

/// The largest distance in bytes to the next instance's elements at which prefetching is profitable.
const REACH: i64 = Caches::HOST.reach as i64;

#[derive(Default)]
pub(super) struct Prefetch {
    /// Bytes from a load's elements to those of the next instance, for loads that several loops read.
    distance: HashMap<Value, i64>,
    /// Loads that a finished loop has read.
    warm: HashSet<Value>,
    /// Loads that the loop being written reads.
    read: HashSet<Value>,
}

impl Prefetch {
    pub fn of(k: &BlockProgram, demand: &Demand) -> Prefetch {
        let loads = || k.insts.iter().filter(|i| matches!(i.op, Op::Load(..)));
        let mut ahead = Prefetch::default();
        if !loads().any(|i| i.results.iter().any(|&r| demand.repeated(r))) {
            return ahead;
        }
        let facts = analyse(k);
        for i in loads() {
            let (&[p, ..], &[r]) = (&i.args[..], &i.results[..]) else { continue };
            let (Type::Ptr { elem, .. }, Some(form)) = (k.ty(p), facts.affine(p)) else { continue };
            // Along the first axis of the grid, which runs fastest.
            let [(v, step)] = form.scalars[..] else { continue };
            let first = matches!(facts.def(v), Some(Def::Result(i, _)) if matches!(k.inst(i).op, Op::ProgramId(0)));
            let bytes = step.saturating_mul(elem.bytes() as i64);
            if first && demand.repeated(r) && (1..=REACH).contains(&bytes) {
                ahead.distance.insert(r, bytes);
            }
        }
        ahead
    }
    /// Called when the loop being written is complete.
    pub fn turn(&mut self) {
        for v in self.read.drain() {
            if !self.warm.insert(v) {
                self.distance.remove(&v);
            }
        }
    }
}

impl Emit<'_> {
    /// Next to a load from `root` at element `base`: prefetches the next instance's line, if this is the loop to do so.
    pub fn prefetch(&mut self, load: Value, d: usize, elem: Elem, root: &Name, base: &str) {
        let Some(&bytes) = self.prefetch.distance.get(&load) else { return };
        self.prefetch.read.insert(load);
        if self.prefetch.warm.contains(&load) {
            let p = self.gep(d, super::text::mem(elem), root, base);
            let p = self.gep(d, "i8", &p, &bytes.to_string());
            self.text.call_void(d, "llvm.prefetch.p0", &[("ptr", &p), ("i32", "0"), ("i32", "2"), ("i32", "1")]);
        }
    }
}
