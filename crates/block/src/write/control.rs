//! Loops, branches and combinations by a function: closures that take blocks and give the next ones.
use super::handle::Operand;
use super::{Block, Built, Writer, wrong};
use crate::{Elem, Op, Region, Type, Value};

/// What a loop's index runs through: from the first number up to the second, which it does not reach.
pub struct Range<'k> {
    from: Operand<'k>,
    to: Operand<'k>,
    step: Operand<'k>,
}
impl<'k, A: Into<Operand<'k>>, B: Into<Operand<'k>>> From<(A, B)> for Range<'k> {
    fn from((from, to): (A, B)) -> Range<'k> {
        Range { from: from.into(), to: to.into(), step: Operand::Int(1) }
    }
}
impl<'k, A: Into<Operand<'k>>, B: Into<Operand<'k>>, C: Into<Operand<'k>>> From<(A, B, C)> for Range<'k> {
    fn from((from, to, step): (A, B, C)) -> Range<'k> {
        Range { from: from.into(), to: to.into(), step: step.into() }
    }
}

impl Writer {
    /// Runs `body` for each index of a range, `(from, to)` or `(from, to, step)`: it takes the index and the carried
    /// blocks, and gives the next ones, of the same types. Gives the last ones.
    #[track_caller]
    pub fn for_range<'k, const N: usize>(
        &'k self,
        range: impl Into<Range<'k>>,
        carried: [Block<'k>; N],
        body: impl FnOnce(Block<'k>, [Block<'k>; N]) -> [Block<'k>; N],
    ) -> [Block<'k>; N] {
        let Some((bounds, initial)) = self.noted(self.entered(range.into(), &carried)) else {
            return [self.nothing(); N];
        };
        let types: Vec<Type> = initial.iter().map(|v| self.ty(*v)).collect();
        let index = self.ty(bounds[0]);
        let parameters = self.with(|b| b.open_region(&[vec![index], types.clone()].concat()));
        let next = body(self.handle(parameters[0]), self.handles(&parameters[1..]));
        let last = self.kept(&types, next);
        let region = self.closed(last.as_deref().unwrap_or(&[]));
        if self.noted(last).is_none() {
            return [self.nothing(); N];
        }
        let args: Vec<Value> = bounds.into_iter().chain(initial).collect();
        self.handles(&self.with(|b| b.inst(Op::For, &args, &types, vec![region])))
    }
    /// Runs `body` while `condition` of the carried blocks holds. Gives the last ones.
    #[track_caller]
    pub fn while_loop<'k, const N: usize>(
        &'k self,
        carried: [Block<'k>; N],
        condition: impl Fn([Block<'k>; N]) -> Block<'k>,
        body: impl FnOnce([Block<'k>; N]) -> [Block<'k>; N],
    ) -> [Block<'k>; N] {
        let enters = condition(carried);
        let repeat = || {
            self.repeat(carried, |now| {
                let next = body(now);
                (next, condition(next))
            })
        };
        self.if_else(enters, repeat, || carried)
    }
    /// Runs `body` at least once: it gives the next blocks, and whether it runs again. Gives the last ones.
    #[track_caller]
    pub fn repeat<'k, const N: usize>(
        &'k self,
        carried: [Block<'k>; N],
        body: impl FnOnce([Block<'k>; N]) -> ([Block<'k>; N], Block<'k>),
    ) -> [Block<'k>; N] {
        let Some(initial) = self.noted(values(&carried)) else { return [self.nothing(); N] };
        let types: Vec<Type> = initial.iter().map(|v| self.ty(*v)).collect();
        let parameters = self.with(|b| b.open_region(&types));
        let (next, again) = body(self.handles(&parameters));
        let last = self.kept(&types, next).and_then(|next| Ok([vec![self.decided(&again)?], next].concat()));
        let region = self.closed(last.as_deref().unwrap_or(&[]));
        if self.noted(last).is_none() {
            return [self.nothing(); N];
        }
        self.handles(&self.with(|b| b.inst(Op::While, &initial, &types, vec![region])))
    }
    /// The blocks that one of two closures gives, by a condition.
    #[track_caller]
    pub fn if_else<'k, const N: usize>(
        &'k self,
        condition: Block<'k>,
        then: impl FnOnce() -> [Block<'k>; N],
        otherwise: impl FnOnce() -> [Block<'k>; N],
    ) -> [Block<'k>; N] {
        self.with(|b| b.open_region(&[]));
        let yes = values(&then());
        let then = self.closed(yes.as_deref().unwrap_or(&[]));
        let types: Vec<Type> = yes.as_deref().unwrap_or(&[]).iter().map(|v| self.ty(*v)).collect();
        self.with(|b| b.open_region(&[]));
        let no = otherwise();
        let no = yes.and_then(|_| self.kept(&types, no));
        let otherwise = self.closed(no.as_deref().unwrap_or(&[]));
        let condition = no.and_then(|_| self.decided(&condition));
        match self.noted(condition) {
            Some(condition) => {
                self.handles(&self.with(|b| b.inst(Op::If, &[condition], &types, vec![then, otherwise])))
            }
            None => [self.nothing(); N],
        }
    }
    /// Runs `body` if a condition holds.
    #[track_caller]
    pub fn when<'k>(&'k self, condition: Block<'k>, body: impl FnOnce()) {
        let run = || {
            body();
            []
        };
        self.if_else(condition, run, || []);
    }
    /// Combines all elements along an axis: `combine` takes one of each block and another of each.
    #[track_caller]
    pub fn reduce_by<'k, const N: usize>(
        &'k self,
        blocks: [Block<'k>; N],
        axis: usize,
        combine: impl FnOnce([Block<'k>; N], [Block<'k>; N]) -> [Block<'k>; N],
    ) -> [Block<'k>; N] {
        self.combined(Op::ReduceBy { axis: axis as u8 }, axis, blocks, combine)
    }
    /// Combines all elements up to each one along an axis.
    #[track_caller]
    pub fn scan_by<'k, const N: usize>(
        &'k self,
        blocks: [Block<'k>; N],
        axis: usize,
        combine: impl FnOnce([Block<'k>; N], [Block<'k>; N]) -> [Block<'k>; N],
    ) -> [Block<'k>; N] {
        self.combined(Op::ScanBy { axis: axis as u8, reverse: false }, axis, blocks, combine)
    }
    #[track_caller]
    fn combined<'k, const N: usize>(
        &'k self,
        op: Op,
        axis: usize,
        blocks: [Block<'k>; N],
        combine: impl FnOnce([Block<'k>; N], [Block<'k>; N]) -> [Block<'k>; N],
    ) -> [Block<'k>; N] {
        let Some(operands) = self.noted(self.combinable(&blocks, axis)) else { return [self.nothing(); N] };
        let mut types: Vec<Type> = operands.iter().map(|v| self.ty(*v)).collect();
        let scalars: Vec<Type> = types.iter().map(|ty| ty.with_shape([])).collect();
        let parameters = self.with(|b| b.open_region(&[scalars.clone(), scalars.clone()].concat()));
        let combined = combine(self.handles(&parameters[..N]), self.handles(&parameters[N..]));
        let last = self.kept(&scalars, combined);
        let region = self.closed(last.as_deref().unwrap_or(&[]));
        if self.noted(last).is_none() {
            return [self.nothing(); N];
        }
        if matches!(op, Op::ReduceBy { .. }) {
            for ty in &mut types {
                let mut shape = ty.shape().to_vec();
                shape.remove(axis);
                *ty = ty.with_shape(shape);
            }
        }
        self.handles(&self.with(|b| b.inst(op, &operands, &types, vec![region])))
    }

    fn combinable(&self, blocks: &[Block], axis: usize) -> Built<Vec<Value>> {
        let operands = values(blocks)?;
        let shapes: Vec<Vec<usize>> = operands.iter().map(|v| self.ty(*v).shape().to_vec()).collect();
        match shapes.first() {
            Some(initial) if shapes.iter().all(|shape| shape == initial) && axis < initial.len() => Ok(operands),
            _ => wrong(format!(
                "blocks of shapes {shapes:?} are not combined along axis {axis}; give blocks of one shape"
            )),
        }
    }
    /// Bounds of one type, and the initial carried values.
    fn entered(&self, range: Range, carried: &[Block]) -> Built<([Value; 3], Vec<Value>)> {
        let bounds = [self.offset(&range.from)?, self.offset(&range.to)?, self.offset(&range.step)?];
        let wide = bounds.iter().any(|v| self.with(|b| b.elem(*v)) == Some(Elem::I64));
        let elem = if wide { Elem::I64 } else { Elem::I32 };
        let bounds = bounds.map(|v| self.with(|b| b.cast(v, elem)));
        if bounds.iter().any(|v| !self.ty(*v).is_scalar()) {
            return wrong("a loop's bounds are single integers; reduce the block to one");
        }
        Ok((bounds, values(carried)?))
    }
    /// A single bool.
    fn decided(&self, condition: &Block) -> Built<Value> {
        let value = self.condition(condition)?;
        match self.ty(value).is_scalar() {
            true => Ok(value),
            false => wrong("a condition is a single bool; use `select` for blocks, or reduce it"),
        }
    }
    /// Next values of these types.
    fn kept<const N: usize>(&self, types: &[Type], next: [Block; N]) -> Built<Vec<Value>> {
        let next = values(&next)?;
        for (n, (value, wanted)) in next.iter().zip(types).enumerate() {
            let ty = self.ty(*value);
            if ty != *wanted {
                return wrong(format!(
                    "value {n} is {wanted} at first and then {ty}; cast or broadcast it to {wanted}"
                ));
            }
        }
        Ok(next)
    }
    fn closed(&self, yields: &[Value]) -> Region {
        self.with(|b| b.close_region(yields))
    }
    fn handles<const N: usize>(&self, values: &[Value]) -> [Block<'_>; N] {
        std::array::from_fn(|n| match values.get(n) {
            Some(value) => self.handle(*value),
            None => self.nothing(),
        })
    }
}

fn values(blocks: &[Block]) -> Built<Vec<Value>> {
    blocks.iter().map(Block::get).collect()
}
