//! Rows that are read modulo a size, in place of a mask: whether what is read for positions from the size on matters.
//!
//! `position % size` and `position` are the same row below the size. Above it, any row may be read if its values reach
//! nothing but stores whose mask says `position < size`: a row of a left operand is only in its row of the matmul.
use crate::analysis::strided::{StridedForms, Wrap};
use crate::{BlockProgram, CmpOp, InstData, Op, Value};
use std::collections::HashMap;

/// Whether the elements of a loaded block beyond these sizes only reach stores that are masked by them.
pub fn is_masked(k: &BlockProgram, forms: &mut StridedForms, loaded: Value, wraps: &[Wrap]) -> bool {
    wraps.iter().all(|wrap| {
        let mut rows = Rows { k, axes: HashMap::from([(loaded, wrap.axis)]), grown: true };
        while std::mem::take(&mut rows.grown) {
            let mut fits = true;
            k.walk(&mut |_, d| fits &= rows.pass(d).is_some());
            if !fits {
                return false;
            }
        }
        rows.stores_are_masked(forms, wrap)
    })
}

/// The blocks that have rows of a loaded one, by the axis along which these lie.
struct Rows<'a> {
    k: &'a BlockProgram,
    axes: HashMap<Value, usize>,
    grown: bool,
}

impl Rows<'_> {
    fn note(&mut self, v: Value, axis: usize) -> Option<()> {
        match self.axes.insert(v, axis) {
            None => self.grown = true,
            Some(known) if known != axis => return None,
            Some(_) => {}
        }
        Some(())
    }
    /// Notes the results of an op that has such a block as an operand; `None` if rows may mix.
    fn pass(&mut self, d: &InstData) -> Option<()> {
        let axes: Vec<Option<usize>> = d.args.iter().map(|v| self.axes.get(v).copied()).collect();
        if axes.iter().all(Option::is_none) {
            return Some(());
        }
        let first = axes.iter().flatten().next().copied()?;
        let same = axes.iter().flatten().all(|a| *a == first);
        match &d.op {
            Op::Dot { .. } => {
                let [left, right, sum] = axes[..] else { return None };
                let made = [left.map(|a| (a, 0)), right.map(|a| (a, 1)), sum.map(|a| (a, a))];
                let mut made = made.into_iter().flatten();
                // The other axis of an operand is summed.
                let fits = left.is_none_or(|a| a == 0) && right.is_none_or(|a| a == 1);
                let axis = made.next()?.1;
                (fits && made.all(|m| m.1 == axis)).then_some(())?;
                self.note(d.results[0], axis)
            }
            Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Cmp(_) | Op::Select | Op::Fma | Op::Broadcast if same => {
                self.note(d.results[0], first)
            }
            Op::Permute(perm) => {
                let axis = perm.iter().position(|p| *p as usize == first)?;
                self.note(d.results[0], axis)
            }
            Op::For => {
                let region = d.regions.first()?;
                for (n, axis) in axes.iter().enumerate().filter_map(|(n, a)| Some((n.checked_sub(3)?, (*a)?))) {
                    self.note(region.params[1 + n], axis)?;
                    self.note(d.results[n], axis)?;
                }
                axes[..3].iter().all(Option::is_none).then_some(())
            }
            Op::Yield => self.carried_on(d, &axes),
            // The value of a store; its pointer and mask may not depend on it.
            Op::Store(_) => (axes[1].is_some() && axes.iter().flatten().count() == 1).then_some(()),
            _ => None,
        }
    }
    /// What a loop yields is what it carries.
    fn carried_on(&mut self, d: &InstData, axes: &[Option<usize>]) -> Option<()> {
        let mut owner = None;
        self.k.walk(&mut |inst, loop_data| {
            let is_last = |r: &crate::Region| r.insts.last().is_some_and(|i| std::ptr::eq(self.k.inst(*i), d));
            if loop_data.op == Op::For && loop_data.regions.iter().any(is_last) {
                owner = Some(inst);
            }
        });
        let owner = self.k.inst(owner?);
        for (n, axis) in axes.iter().enumerate().filter_map(|(n, a)| Some((n, (*a)?))) {
            self.note(owner.regions.first()?.params[1 + n], axis)?;
            self.note(owner.results[n], axis)?;
        }
        Some(())
    }
    /// Whether every store of such a block has a mask that keeps it from positions beyond the size.
    fn stores_are_masked(&self, forms: &mut StridedForms, wrap: &Wrap) -> bool {
        let mut stores = vec![];
        self.k.walk(&mut |_, d| {
            if let (Op::Store(_), Some(axis)) = (&d.op, d.args.get(1).and_then(|v| self.axes.get(v))) {
                stores.push((d.args.get(2).copied(), *axis));
            }
        });
        let Some(limit) = wrap.start.add_scaled(&wrap.size, -1) else { return false };
        stores.into_iter().all(|(mask, axis)| {
            let bounds = mask.and_then(|mask| forms.bounds(mask)).unwrap_or_default();
            bounds.iter().any(|(bound, op)| {
                let along = |(a, s): (usize, &crate::analysis::Polynomial)| {
                    if a == axis { s.as_constant() == Some(1) } else { s.is_zero() }
                };
                *op == CmpOp::Lt
                    && bound.base == limit
                    && bound.wraps.is_empty()
                    && bound.strides.iter().enumerate().all(along)
            })
        })
    }
}
