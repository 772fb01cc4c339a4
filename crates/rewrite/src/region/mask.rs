//! The mask of attention, and other operands of its scores: a kernel may compute them from what they are made of,
//! element by element, or read them from memory. Prices decide.
//!
//! A mask is needed for every score, in every head. So its arithmetic is priced once for each score, also where the
//! mask itself is smaller; and so is the loading of every element that it is computed from. What depends on the query
//! alone or on the key alone is computed once for a tile's row or column. Where a mask bounds the keys, blocks of keys
//! are skipped, which saves more than its arithmetic costs.
use super::{CheckedRegion, Use, dequantises};
use crate::space::{Atom, Map};
use kiln_graph::ops::Class;
use std::collections::BTreeSet;

/// Operations for an element that is loaded for each score: its address, the load and its conversion. An estimate, as
/// the operations of a softmax are.
const LOAD: f64 = 6.;
/// Rows or columns of a tile of scores, which share what does not depend on the other index.
const TILE: f64 = 64.;

/// The scores of an attention.
pub(super) struct Scores {
    /// What the kernel reads or computes for them: the operands of the score function, and the mask.
    pub operands: Vec<usize>,
    pub queries: Vec<Atom>,
    pub keys: Vec<Atom>,
    pub count: f64,
    /// Whether the kernel computes the mask, and skips keys by it.
    pub skips: bool,
}

impl CheckedRegion<'_> {
    /// How often what a mask reads with this map is computed or loaded.
    fn elements(&self, scores: &Scores, map: &Map) -> f64 {
        let along = self.space.flat(map);
        let varies = |atoms: &[Atom]| atoms.is_empty() || self.space.now(atoms).iter().any(|a| along.contains(a));
        let shared = !varies(&scores.queries) || !varies(&scores.keys);
        scores.count / if shared { TILE } else { 1. }
    }
    /// The number of elements for which a mask's arithmetic is priced; `None` if the kernel's arithmetic is not priced
    /// by scores.
    pub(super) fn computed(&self, map: &Map) -> Option<f64> {
        let scores = self.scores.as_ref().filter(|s| !s.skips)?;
        Some(self.elements(scores, map))
    }
    /// Operations to load a value for the mask.
    pub(super) fn loads(&self, uses: &[Use]) -> f64 {
        let Some(scores) = &self.scores else { return 0. };
        uses.iter().filter(|u| !u.prologue).map(|u| LOAD * self.elements(scores, &u.map)).sum()
    }
    /// Do all members that are more than views of attention's operands and result belong to its scores, element by
    /// element, or dequantise operands that are read once?
    pub(super) fn computes_scores_alone(&self, anchor: usize) -> bool {
        let (dag, members) = (self.dag, self.members);
        let (mut cone, mut open) =
            (BTreeSet::new(), self.scores.iter().flat_map(|s| s.operands.clone()).collect::<Vec<_>>());
        while let Some(v) = open.pop() {
            if members.binary_search(&v).is_ok() && cone.insert(v) {
                open.extend(dag.args(v));
            }
        }
        let plain = |v: usize| matches!(dag.class[v], Class::Pointwise | Class::View | Class::Generator);
        let before = |v: &usize| self.uses.get(v).is_some_and(|us| us.iter().all(|u| u.prologue));
        let operand = |v: &usize| self.reads_once && dequantises(dag.op(*v)) && before(v);
        let fits = |v: &usize| *v == anchor || dag.class[*v].is_free() || cone.contains(v) && plain(*v) || operand(v);
        members.iter().all(fits)
    }
}
