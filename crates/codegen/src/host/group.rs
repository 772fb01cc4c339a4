//! What one nest computes: the sinks of a group, and the state of its reductions while it runs.
use super::eval::Buffer;
use super::text::Name;
use super::value::Val;
use super::{Emit, Res};
use kiln_block::{Elem, Inst, ReduceOp, ScanOp, Type, Value};
use std::collections::{BTreeSet, HashSet};

/// A result that a nest is written for.
#[derive(Clone, Debug)]
pub(super) enum Sink {
    Store {
        ptr: Value,
        value: Value,
        mask: Option<Value>,
    },
    /// Stores faults for the indices where the condition holds.
    Check {
        /// Destination, condition, index.
        values: [Value; 3],
        mask: Option<Value>,
        site: u32,
    },
    /// Into scratch memory; `place`: later uses read the value from there.
    Keep {
        value: Value,
        buffer: Buffer,
        place: bool,
    },
    Reduce {
        op: ReduceOp,
        axis: usize,
        operand: Value,
        result: Value,
    },
    Scan {
        op: ScanOp,
        axis: usize,
        operand: Value,
        result: Value,
    },
}

/// Sinks of one shape that one nest computes.
#[derive(Default)]
pub(super) struct Group {
    pub shape: Vec<usize>,
    pub sinks: Vec<(Inst, Sink)>,
    /// Results that are available only after the nest.
    pub late: HashSet<Value>,
    /// Kept values that the nest itself can use at the same coordinates.
    pub same: HashSet<Value>,
    /// Roots of pending stores.
    pub stored: HashSet<Value>,
    /// Roots that the nest reads, with the pointers.
    pub read: Vec<(Value, Value)>,
}

impl Group {
    pub fn sinks(&self) -> &[(Inst, Sink)] {
        &self.sinks
    }
    /// Masks of the sinks and of the loads that they read at their own coordinates.
    pub fn masks(&self, e: &Emit) -> Vec<Value> {
        let (mut masks, mut seen) = (vec![], HashSet::new());
        for (_, s) in &self.sinks {
            match s {
                Sink::Store { value, mask, .. } => {
                    e.masks_of(*value, &mut masks, &mut seen);
                    masks.extend(mask);
                }
                Sink::Keep { value: v, .. } | Sink::Reduce { operand: v, .. } | Sink::Scan { operand: v, .. } => {
                    e.masks_of(*v, &mut masks, &mut seen)
                }
                Sink::Check { values: [_, _, index], mask, .. } => {
                    e.masks_of(*index, &mut masks, &mut seen);
                    masks.extend(mask);
                }
            }
        }
        masks.extend(self.common_masks(e));
        masks
    }
    /// Masks outside of which no sink has an effect.
    pub fn common_masks(&self, e: &Emit) -> Vec<Value> {
        self.masks_of_all(e, |s| match s {
            Sink::Keep { value, place: true, .. } => e.demand.within(*value),
            Sink::Reduce { op, operand, .. } => e.demand.reduced(e.kernel, *op, *operand),
            _ => BTreeSet::new(),
        })
    }
    /// The same, if pads do not change what is reduced here.
    pub fn padded_masks(&self, e: &Emit) -> Vec<Value> {
        let reductions = self.sinks.iter().filter(|(_, s)| matches!(s, Sink::Reduce { .. })).map(|(i, _)| *i).collect();
        self.masks_of_all(e, |s| match s {
            Sink::Keep { value, place: true, .. } => e.demand.within_of_others(*value, &reductions),
            Sink::Reduce { operand, .. } => e.padding(*operand),
            _ => BTreeSet::new(),
        })
    }
    fn masks_of_all(&self, e: &Emit, read: impl Fn(&Sink) -> BTreeSet<Value>) -> Vec<Value> {
        let of = |s: &Sink| match s {
            Sink::Store { mask, .. } => mask.map_or_else(BTreeSet::new, |m| e.demand.conjuncts(e.kernel, m)),
            Sink::Check { mask, .. } => mask.map_or_else(BTreeSet::new, |m| e.demand.conjuncts(e.kernel, m)),
            Sink::Keep { .. } | Sink::Reduce { .. } | Sink::Scan { .. } => read(s),
        };
        let all = self.sinks.iter().map(|(_, s)| of(s)).reduce(|mut a, b| {
            a.retain(|m| b.contains(m));
            a
        });
        // A mask that is computed later cannot be used yet.
        all.into_iter().flatten().filter(|m| e.place.contains_key(m)).collect()
    }
}

/// An inner loop's state: the accumulators of a reduction.
pub(super) enum Running {
    Lanes(Accumulators),
    /// Reduced along a leading axis: accumulated in the result's buffer.
    Memory(Buffer, Option<Buffer>),
    None,
}

/// The accumulators of a reduction in one nest.
pub(super) struct Accumulators {
    pub elem: Elem,
    /// Values and, for arg reductions, indices; one of each per unrolled iteration.
    pub slots: Vec<(Name, Option<Name>)>,
    /// Lanes of f64 that the slots are flushed into periodically.
    pub wide: Option<Name>,
    /// If the result is a block.
    pub buffer: Option<Buffer>,
    /// If the result is a scalar, after the nest.
    pub done: Option<Val>,
}

/// The element that a reduction or scan accumulates in.
pub(super) fn accumulator(e: Elem) -> Elem {
    e.compute()
}

/// Elements of a block type.
pub(super) fn block_elem(t: &Type) -> Res<Elem> {
    t.elem().ok_or_else(|| format!("{t} where a block is needed"))
}
