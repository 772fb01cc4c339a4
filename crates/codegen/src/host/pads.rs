//! Reductions of rows that loads pad: whether their loop may end before the pads.
//!
//! A kernel loads a row in a block of a power of two, with minus infinity behind it, and sums up exponentials. Behind
//! the row each element is what the same arithmetic gives for the pad, which is one number: where that is the
//! reduction's identity, as it is but for rows of infinities and NaN, the pads are left out.
use super::eval::Place;
use super::group::{Group, Sink, accumulator};
use super::reduce::identity;
use super::text::{Name, reg};
use super::value::{Form, Val};
use super::{Emit, Res};
use kiln_block::{Elem, InstData, Op, ReduceOp, Value};
use std::collections::{BTreeSet, HashSet};

/// What the elements of a value are computed from.
#[derive(Default)]
struct Padded {
    loads: Vec<Value>,
    /// Masks of all of these loads; `None` before the first.
    masks: Option<BTreeSet<Value>>,
    seen: HashSet<Value>,
}

fn of_elements(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Cmp(_)
            | Op::Select
            | Op::Cast(_)
            | Op::Bitcast
            | Op::MultipleOf(_)
            | Op::CastToZero(_)
            | Op::Fma
    )
}

impl Emit<'_> {
    fn virtual_inst(&self, v: Value) -> Option<&InstData> {
        match self.place.get(&v) {
            Some(Place::Virtual(i)) => Some(self.kernel.inst(*i)),
            _ => None,
        }
    }
    /// Follows a value to its loads; false if one has no mask.
    fn follow_pads(&self, v: Value, found: &mut Padded) -> bool {
        let Some(inst) = self.virtual_inst(v).filter(|_| found.seen.insert(v)) else { return true };
        if of_elements(&inst.op) {
            return inst.args.iter().all(|a| self.follow_pads(*a, found));
        }
        if !matches!(inst.op, Op::Load(..)) {
            return true;
        }
        let Some(&mask) = inst.args.get(1) else { return false };
        let conjuncts = self.demand.conjuncts(self.kernel, mask);
        match &mut found.masks {
            Some(masks) => masks.retain(|m| conjuncts.contains(m)),
            None => found.masks = Some(conjuncts),
        }
        found.loads.push(v);
        true
    }
    /// Masks outside of which the operand of a reduction is computed from pads alone.
    pub fn padding(&self, operand: Value) -> BTreeSet<Value> {
        let mut found = Padded::default();
        if self.follow_pads(operand, &mut found) { found.masks.unwrap_or_default() } else { BTreeSet::new() }
    }
    /// The end of a loop that has done some elements: before the pads, or, where these count, the whole extent. Where
    /// nothing is left to do, it is not asked what pads give.
    pub fn before_pads(&mut self, group: &Group, at: &[Val], [done, before, extent]: [&Name; 3]) -> Res<Name> {
        let (d, label) = (self.text.depth(), self.text.label());
        let left = self.text.emit(d, format!("icmp slt i64 {done}, {extent}"));
        self.text.line(d, format!("br label %{label}.done"));
        self.text.mark(&format!("{label}.done"));
        self.text.line(d, format!("br i1 {left}, label %{label}.pads, label %{label}.on"));
        self.text.mark(&format!("{label}.pads"));
        let end = match self.pads_are_neutral(group, at)? {
            Some(neutral) => self.text.emit(d, format!("select i1 {neutral}, i64 {before}, i64 {extent}")),
            None => extent.clone(),
        };
        self.text.line(d, format!("br label %{label}.end"));
        self.text.mark(&format!("{label}.end"));
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark(&format!("{label}.on"));
        Ok(self.text.emit(d, format!("phi i64 [ {extent}, %{label}.done ], [ {end}, %{label}.end ]")))
    }
    /// Whether what the reductions of a group have for pads leaves them as they are, at run time; `None` if pads do not
    /// give one number.
    fn pads_are_neutral(&mut self, group: &Group, at: &[Val]) -> Res<Option<Name>> {
        let mut all: Option<Name> = None;
        for (_, sink) in &group.sinks {
            let Sink::Reduce { op, operand, .. } = sink else { continue };
            if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                return Ok(None);
            }
            let Some(pad) = self.of_pads(*operand, at)? else { return Ok(None) };
            let e = accumulator(pad.elem);
            let (d, ty) = (self.text.depth(), reg(e));
            if reg(pad.elem) != ty {
                return Ok(None);
            }
            let x = self.reg(&pad, 1);
            let compare = if e.is_float() { "fcmp oeq" } else { "icmp eq" };
            let same = self.text.emit(d, format!("{compare} {ty} {x}, {}", identity(*op, e)));
            all = Some(match all {
                Some(others) => self.text.emit(d, format!("and i1 {others}, {same}")),
                None => same,
            });
        }
        Ok(all)
    }
    /// An operand with what its loads give where their masks are false, if that is one number for the whole axis.
    fn of_pads(&mut self, operand: Value, at: &[Val]) -> Res<Option<Val>> {
        let mut found = Padded::default();
        if !self.follow_pads(operand, &mut found) {
            return Ok(None);
        }
        let scopes = self.memo.iter().map(|_| Default::default()).collect();
        let memo = std::mem::replace(&mut self.memo, scopes);
        let mut replaced = vec![];
        let mut uniform = true;
        for load in found.loads {
            let other = self.virtual_inst(load).and_then(|inst| inst.args.get(2)).copied();
            let pad = match other {
                Some(other) => self.eval(other, at)?,
                None => self.zero_of(load)?,
            };
            uniform &= pad.uniform();
            replaced.push((load, self.place.insert(load, Place::Reg(pad))));
        }
        let value = if uniform { Some(self.eval(operand, at)?) } else { None };
        for (load, place) in replaced {
            place.map(|place| self.place.insert(load, place));
        }
        self.memo = memo;
        Ok(value.filter(Val::uniform))
    }
    fn zero_of(&self, load: Value) -> Res<Val> {
        let elem = self.kernel.ty(load).elem().ok_or("a load without an element")?;
        Ok(match elem {
            Elem::I32 | Elem::I64 => Val::int(elem, 0),
            Elem::Bool => Val::truth(false),
            _ => {
                let zero = if elem.is_float() { "0.0" } else { "0" };
                Val { elem, form: Form::Scalar(zero.into()), depth: 0 }
            }
        })
    }
}
