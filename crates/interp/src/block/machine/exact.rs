//! Addresses as they were meant: sums and products of integers on the way to them, computed in 64 bits.
use super::{Flow, Machine, Said, shape};
use crate::block::value::*;
use kiln_block::{BinaryOp, Elem, Op, Value};
use std::collections::HashMap;
use std::rc::Rc;

/// Integers that are followed from an address.
const MOST: usize = 200;

type Integers = Rc<Vec<i64>>;

impl Machine<'_, '_> {
    /// The bytes of each address of a block from the start of its buffer, if one may differ from what was computed.
    pub(super) fn meant(&self, flow: &Flow, pointer: Value) -> Said<Option<Integers>> {
        if self.checks.is_none() || !self.may_wrap(flow, pointer, &mut HashMap::new())?.1 {
            return Ok(None);
        }
        self.exact(flow, pointer, &mut HashMap::new()).map(Some)
    }
    /// The range of a value that is followed, and whether an integer on the way may be outside of its type.
    fn may_wrap(
        &self,
        flow: &Flow,
        value: Value,
        known: &mut HashMap<Value, ((i128, i128), bool)>,
    ) -> Said<((i128, i128), bool)> {
        if let Some(found) = known.get(&value) {
            return Ok(*found);
        }
        let elem = self.k.ty(value).elem().unwrap_or(Elem::I32);
        let found = match self.followed(value, known.len()) {
            Some((op, args)) => {
                let parts = args.iter().map(|v| self.may_wrap(flow, *v, known)).collect::<Said<Vec<_>>>()?;
                let wraps = parts.iter().any(|part| part.1);
                match (op, &parts[..]) {
                    (Op::PtrAdd, [(base, _), (by, _)]) => {
                        let bytes = elem.bytes() as i128;
                        ((base.0 + by.0 * bytes, base.1 + by.1 * bytes), wraps)
                    }
                    (Op::Binary(op), [(a, _), (b, _)]) => {
                        let range = range(*op, *a, *b);
                        let fits = |n: i128| i64::try_from(n).is_ok_and(|n| elem.wrapped(n) == n);
                        (range, wraps || !fits(range.0) || !fits(range.1))
                    }
                    (_, parts) => {
                        let lows = parts.iter().map(|p| p.0.0).min().unwrap_or(0);
                        ((lows, parts.iter().map(|p| p.0.1).max().unwrap_or(0)), wraps)
                    }
                }
            }
            None => {
                let all = leaf(&*flow.block(value)?);
                let ends = all.iter().fold((i64::MAX, i64::MIN), |(lo, hi), n| (lo.min(*n), hi.max(*n)));
                ((ends.0 as i128, ends.1.max(ends.0) as i128), false)
            }
        };
        known.insert(value, found);
        Ok(found)
    }
    /// The op that makes a value of integers that are followed, and these.
    fn followed(&self, value: Value, depth: usize) -> Option<(&Op, Vec<Value>)> {
        let data = self.k.inst(self.checks.as_ref()?.defining(value)?);
        let is_int = |v: &Value| self.k.ty(*v).elem().is_some_and(|e| !e.is_float() && e != Elem::Bool);
        let args = match &data.op {
            Op::PtrAdd | Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) => &data.args[..],
            Op::MultipleOf(_) => &data.args[..],
            Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) if data.args.iter().all(is_int) => &data.args[..],
            Op::Cast(to) if is_int(&data.args[0]) && to.bytes() >= self.k.ty(data.args[0]).elem()?.bytes() => {
                &data.args[..]
            }
            _ => return None,
        };
        (depth < MOST).then(|| (&data.op, args.to_vec()))
    }
    fn exact(&self, flow: &Flow, value: Value, known: &mut HashMap<Value, Integers>) -> Said<Integers> {
        if let Some(found) = known.get(&value) {
            return Ok(found.clone());
        }
        let Some((op, args)) = self.followed(value, known.len()) else {
            return Ok(Rc::new(leaf(&*flow.block(value)?)));
        };
        let parts = args.iter().map(|v| self.exact(flow, *v, known)).collect::<Said<Vec<_>>>()?;
        let pairs = |f: &dyn Fn(i64, i64) -> i64| -> Vec<i64> {
            parts[0].iter().zip(parts[1].iter()).map(|(a, b)| f(*a, *b)).collect()
        };
        let bytes = self.k.ty(value).elem().map_or(1, |e| e.bytes() as i64);
        let found = match op {
            Op::PtrAdd => pairs(&|base, by| base.wrapping_add(by.wrapping_mul(bytes))),
            Op::Binary(BinaryOp::Add) => pairs(&i64::wrapping_add),
            Op::Binary(BinaryOp::Sub) => pairs(&i64::wrapping_sub),
            Op::Binary(_) => pairs(&i64::wrapping_mul),
            moved => {
                let (from, to) = (self.k.ty(args[0]).shape().to_vec(), self.k.ty(value).shape());
                let block = Block { elem: Elem::I64, shape: from, data: Data::Int(parts[0].to_vec()) };
                match moved {
                    Op::Splat => shape::splat(&block, to).ints().to_vec(),
                    Op::Broadcast => shape::broadcast(&block, to).ints().to_vec(),
                    Op::Permute(perm) => shape::permute(&block, perm).ints().to_vec(),
                    _ => block.ints().to_vec(),
                }
            }
        };
        let found = Rc::new(found);
        known.insert(value, found.clone());
        Ok(found)
    }
}

/// Integers as they are; of pointers the bytes from the start of their buffers.
fn leaf(block: &Block) -> Vec<i64> {
    match &block.data {
        Data::Ptr(all) => all.iter().map(|a| a.at).collect(),
        _ => block.ints().to_vec(),
    }
}

fn range(op: BinaryOp, a: (i128, i128), b: (i128, i128)) -> (i128, i128) {
    match op {
        BinaryOp::Add => (a.0.saturating_add(b.0), a.1.saturating_add(b.1)),
        BinaryOp::Sub => (a.0.saturating_sub(b.1), a.1.saturating_sub(b.0)),
        _ => {
            let all = [a.0, a.1].map(|a| [b.0, b.1].map(|b| a.saturating_mul(b)));
            let all = [all[0][0], all[0][1], all[1][0], all[1][1]];
            (all.into_iter().min().unwrap_or(0), all.into_iter().max().unwrap_or(0))
        }
    }
}
