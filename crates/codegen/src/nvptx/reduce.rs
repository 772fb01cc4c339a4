//! Reductions: over a thread's registers, then lanes by shuffles, then warps through shared memory.
//!
//! Every step combines two neighbouring ranges of the axis, whatever bits of the layout they lie on, so one loop over
//! the axis's bits serves all layouts. Where a thread has several results, as in sums of columns, each step between
//! lanes halves the number of results that a lane is in charge of. Half types accumulate in f32 and are rounded once.
use super::emit::{Fail, Res, Val, int};
use super::exchange::shuffle;
use super::r#gen::Gen;
use super::index::Reg;
use super::places::Places;
use inkwell::values::{FloatValue, IntValue};
use inkwell::{FloatPredicate, IntPredicate};
use kiln_block::layout::{Flat, axis_bits, bits_of};
use kiln_block::{BinaryOp, CmpOp, Elem, InstData, ReduceOp};

/// From this many registers of a row on, holding partial results of half as many at once is too much.
const MANY: usize = 32;

/// A partial result: the value and, for arg-reductions, its index.
pub(super) type Part<'c> = Vec<Val<'c>>;

/// What combines two partial results, of which the first one is earlier on the axis.
#[derive(Clone, Copy)]
pub(super) enum Combiner<'d> {
    Op(ReduceOp),
    /// The region of this instruction, which need not commute.
    Region(&'d InstData),
}

/// Elements of the parts, in the order of [`Part`].
pub(super) fn part_elems(op: ReduceOp, elem: Elem) -> Vec<Elem> {
    match op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => vec![wide(elem), Elem::I32],
        _ => vec![wide(elem)],
    }
}
/// Bytes of the widest element of a partial result.
pub(super) fn widest(elems: &[Elem]) -> usize {
    elems.iter().map(|e| e.bytes()).max().unwrap_or(1)
}
pub(super) fn wide(elem: Elem) -> Elem {
    match elem {
        Elem::F16 | Elem::Bf16 => Elem::F32,
        other => other,
    }
}

impl<'c> Gen<'c, '_> {
    pub fn reduce(&mut self, data: &InstData, op: ReduceOp, axis: usize) -> Res<Vec<Reg<'c>>> {
        let arg = data.args[0];
        let (k, flat, elem) = (self.k, self.flat(arg)?, self.elem(arg)?);
        let shape = k.ty(arg).shape();
        let bits = axis_bits(shape, axis);
        let (mut op, mut elems) = (op, part_elems(op, elem));
        let mut parts: Vec<Part<'c>> = vec![];
        for v in self.plain(arg)? {
            let v = if elem.is_float() { self.wide(v, elem)?.into() } else { v };
            parts.push(vec![v]);
        }
        if elems.len() == 2 {
            let at = self.coordinates(&flat, shape, axis)?;
            for (p, i) in parts.iter_mut().zip(at) {
                p.push(i.value(&self.e, &mut self.memo)?.into());
            }
        }
        let on_axis = |b: u8| bits.contains(&b);
        let mut parts = match self.over_halves(op, arg, &flat, on_axis)? {
            Some(parts) => parts,
            None => self.over_registers(op, &elems, &flat, parts, on_axis)?,
        };
        // Threads compare floats as integers of the same order, which takes fewer instructions.
        if elems == [Elem::F32, Elem::I32] {
            for p in &mut parts {
                p[0] = self.order(op, super::emit::float(p[0])?)?.into();
            }
            (op, elems[0]) = (ReduceOp::ArgMax, Elem::I32);
        }
        let crossing: Vec<usize> =
            (0..flat.warps.len()).filter(|i| flat.warps[*i].is_some_and(|b| bits.contains(&b))).collect();
        let (warps, blocks): (Vec<usize>, Vec<usize>) = crossing.into_iter().partition(|i| *i < self.own_warp_bits());
        let mut result = k.ty(arg).shape().to_vec();
        result.remove(axis);
        let (whole, result) = (flat.without(&bits), bits_of(&result));
        let across = flat.lanes.iter().enumerate().filter(|(_, b)| b.is_some_and(|b| bits.contains(&b)));
        let mut slice = whole.clone();
        for i in across.map(|l| l.0) {
            // What continues through shared memory is divided among the lanes.
            if (!warps.is_empty() || !blocks.is_empty()) && parts.len() > 1 {
                parts = self.halve(op, &elems, parts, i)?;
                slice.lanes[i] = slice.registers.pop();
                continue;
            }
            for p in &mut parts {
                *p = self.with_lane(Combiner::Op(op), &elems, p, i)?;
            }
        }
        if !warps.is_empty() {
            parts = self.over_warps(Combiner::Op(op), &elems, &slice, result, &warps, parts)?;
        }
        if !blocks.is_empty() {
            parts = self.over_blocks(op, &elems, &slice, result, &parts)?;
        }
        if slice != whole {
            parts = self.handed_out(&slice, &whole, &parts)?;
        }
        let out = *elems.last().unwrap_or(&elem);
        parts
            .iter()
            .map(|p| {
                let v = *p.last().ok_or_else(|| Fail::Llvm("an empty reduction".into()))?;
                let half = elems.len() == 1 && matches!(elem, Elem::F16 | Elem::Bf16);
                if half { Ok(Reg::Plain(self.narrow(super::emit::float(v)?, elem)?)) } else { Ok(Reg::of(v, out)) }
            })
            .collect()
    }
    /// Combines registers that differ in axis bits, as a tree; the others keep their order.
    fn over_registers(
        &mut self,
        op: ReduceOp,
        elems: &[Elem],
        flat: &Flat,
        parts: Vec<Part<'c>>,
        on_axis: impl Fn(u8) -> bool,
    ) -> Res<Vec<Part<'c>>> {
        let axis: Vec<usize> = (0..flat.registers.len()).filter(|i| on_axis(flat.registers[*i])).collect();
        let positions = elems.len() > 1;
        if positions || 1 << axis.len() >= MANY {
            let mask = axis.iter().fold(0, |m, i| m | 1usize << i);
            let at = |r: &usize| axis.iter().map(|i| (r >> i & 1) << flat.registers[*i]).sum::<usize>();
            let mut out = vec![];
            for first in (0..parts.len()).filter(|r| r & mask == 0) {
                let mut one: Vec<usize> = (0..parts.len()).filter(|r| r & !mask == first).collect();
                if positions {
                    one.sort_by_key(at);
                }
                let one: Vec<&Part<'c>> = one.into_iter().map(|r| &parts[r]).collect();
                out.push(self.branch_by_branch(op, elems, &one)?);
            }
            return Ok(out);
        }
        let mut parts = parts;
        // From the highest register bit down, so that lower ones keep their positions.
        for i in axis.into_iter().rev() {
            let mut next = vec![];
            for r in (0..parts.len()).filter(|r| r >> i & 1 == 0) {
                next.push(self.combine(op, elems, &parts[r], &parts[r | 1 << i])?);
            }
            parts = next;
        }
        Ok(parts)
    }
    /// Neighbours first, and each branch of the tree before the next one, so that few partial results are held at a
    /// time.
    fn branch_by_branch(&mut self, op: ReduceOp, elems: &[Elem], parts: &[&Part<'c>]) -> Res<Part<'c>> {
        match parts.split_at(parts.len() / 2) {
            ([], [one]) => Ok((*one).clone()),
            (low, high) => {
                let low = self.branch_by_branch(op, elems, low)?;
                let high = self.branch_by_branch(op, elems, high)?;
                match op {
                    ReduceOp::ArgMax | ReduceOp::ArgMin => self.later_if_better(op, elems[0], &low, &high),
                    _ => self.combine(op, elems, &low, &high),
                }
            }
        }
    }
    /// Combines a lane's partial result with another lane's. Both lanes have the same bits then: a product that is
    /// summed must not contract to an FMA, which rounds the product of one lane alone.
    pub(super) fn with_lane(&mut self, by: Combiner, elems: &[Elem], part: &Part<'c>, lane: usize) -> Res<Part<'c>> {
        let other = self.lanes_value(part, 1 << lane)?;
        let (mut low, mut high) = (part.clone(), other.clone());
        if matches!(by, Combiner::Region(data) if !self.commutes(data)) {
            let upper = self.threads.bit(&self.e, lane)?;
            for ((low, high), (own, other)) in low.iter_mut().zip(&mut high).zip(part.iter().zip(other)) {
                *low = self.e.select(upper, other, *own)?;
                *high = self.e.select(upper, *own, other)?;
            }
        }
        let ieee = std::mem::replace(&mut self.e.ieee, true);
        let both = self.combine_by(by, elems, &low, &high);
        self.e.ieee = ieee;
        both
    }
    /// Combines the partial results of two lanes, each lane for half of them: the lower lane for those of the lower
    /// registers.
    fn halve(&mut self, op: ReduceOp, elems: &[Elem], parts: Vec<Part<'c>>, lane: usize) -> Res<Vec<Part<'c>>> {
        let upper = self.threads.bit(&self.e, lane)?;
        let (low, high) = parts.split_at(parts.len() / 2);
        let mut out = vec![];
        for (low, high) in low.iter().zip(high) {
            let pick = |a: &Part<'c>, b: &Part<'c>| -> Res<Part<'c>> {
                a.iter().zip(b).map(|(a, b)| self.e.select(upper, *a, *b)).collect()
            };
            let (own, other) = (pick(high, low)?, pick(low, high)?);
            let other = self.lanes_value(&other, 1 << lane)?;
            out.push(self.combine(op, elems, &own, &other)?);
        }
        Ok(out)
    }
    /// Sends results that are divided among lanes to all lanes that need them.
    fn handed_out(&mut self, from: &Flat, to: &Flat, parts: &[Part<'c>]) -> Res<Vec<Part<'c>>> {
        let s = shuffle(from, to).ok_or_else(|| Fail::Unsupported("the layout of this reduction".into()))?;
        let lane = self.threads.sum(&self.e, &s.moves)?.value(&self.e, &mut self.memo)?;
        let mut out = vec![];
        for &(r, add) in &s.sources {
            let at = self.e.xor(lane, self.e.int(add as i64))?;
            out.push(parts[r].iter().map(|v| self.lane_value("idx", *v, at)).collect::<Res<_>>()?);
        }
        Ok(out)
    }
    fn lanes_value(&mut self, part: &Part<'c>, mask: i64) -> Res<Part<'c>> {
        let mask = self.e.int(mask);
        part.iter().map(|v| self.lane_value("bfly", *v, mask)).collect()
    }
    /// Partial results of the warps that share an axis, side by side in scratch for each element of the result.
    pub(super) fn over_warps(
        &mut self,
        by: Combiner,
        elems: &[Elem],
        slice: &Flat,
        bits: usize,
        crossing: &[usize],
        parts: Vec<Part<'c>>,
    ) -> Res<Vec<Part<'c>>> {
        let sharers = 1usize << crossing.len();
        let starts = self.partials(elems, bits, sharers, slice.per_thread())?;
        let places = Places::of(slice, bits, sharers, widest(elems));
        let slot = |i: usize| crossing.iter().position(|c| *c + 5 == i).map_or(0, |n| places.sharer << n);
        let element = |b: Option<u8>| b.map_or(0, |b| places.element << b);
        let own: Vec<i64> = slice.threads().map(element).enumerate().map(|(i, w)| w + slot(i)).collect();
        for (n, (elem, start)) in elems.iter().zip(&starts).enumerate() {
            let at = self.byte_offset(&own, *elem)?;
            for (i, run) in parts.chunks(places.run).enumerate() {
                let place = places.of_element(slice.register(i * places.run));
                let ptr = self.shared_at(at, start + place * elem.bytes())?;
                let values: Vec<Val<'c>> = run.iter().map(|p| p[n]).collect();
                self.shared_store(ptr, &values, *elem)?;
            }
        }
        self.filled()?;
        self.collect(by, elems, slice, bits, sharers, &starts)
    }
    /// Combines neighbours first.
    pub(super) fn combine_all(&mut self, by: Combiner, elems: &[Elem], mut slots: Vec<Part<'c>>) -> Res<Part<'c>> {
        while slots.len() > 1 {
            slots = slots.chunks(2).map(|c| self.combine_by(by, elems, &c[0], &c[1])).collect::<Res<_>>()?;
        }
        slots.pop().ok_or_else(|| Fail::Llvm("an empty reduction".into()))
    }
    pub(super) fn combine_by(&mut self, by: Combiner, elems: &[Elem], a: &Part<'c>, b: &Part<'c>) -> Res<Part<'c>> {
        match by {
            Combiner::Op(op) => self.combine(op, elems, a, b),
            Combiner::Region(data) => self.by_region(data, a.iter().chain(b)),
        }
    }
    pub fn combine(&mut self, op: ReduceOp, elems: &[Elem], a: &Part<'c>, b: &Part<'c>) -> Res<Part<'c>> {
        let elem = elems[0];
        let op = match op {
            ReduceOp::ArgMax => return self.better(CmpOp::Gt, elem, a, b),
            ReduceOp::ArgMin => return self.better(CmpOp::Lt, elem, a, b),
            ReduceOp::Sum if elem == Elem::Bool => BinaryOp::Or,
            ReduceOp::Prod if elem == Elem::Bool => BinaryOp::And,
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Prod => BinaryOp::Mul,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::MaxNum => BinaryOp::MaxNum,
            ReduceOp::MinNum => BinaryOp::MinNum,
            ReduceOp::And => BinaryOp::And,
            ReduceOp::Or => BinaryOp::Or,
        };
        Ok(vec![self.binary(op, a[0], b[0], elem)?])
    }
    /// The better of two, of which the first one is earlier: it stays if they are equal.
    fn later_if_better(&mut self, op: ReduceOp, elem: Elem, a: &Part<'c>, b: &Part<'c>) -> Res<Part<'c>> {
        let most = op == ReduceOp::ArgMax;
        let take = match (a[0], b[0]) {
            (Val::FloatValue(x), Val::FloatValue(y)) => {
                let worse = self.e.fcmp(if most { FloatPredicate::ULT } else { FloatPredicate::UGT }, x, y)?;
                self.e.and(worse, self.e.fcmp(FloatPredicate::ORD, x, x)?)?
            }
            _ => self.compare(if most { CmpOp::Gt } else { CmpOp::Lt }, b[0], a[0], elem)?,
        };
        Ok(vec![self.e.select(take, b[0], a[0])?, self.e.select(take, b[1], a[1])?])
    }
    /// An integer that is the larger the better a float is: equal for both zeros, the largest for NaN.
    fn order(&mut self, op: ReduceOp, v: FloatValue<'c>) -> Res<IntValue<'c>> {
        let e = &self.e;
        let zero = v.get_type().const_zero();
        let v = super::emit::float(e.select(e.fcmp(FloatPredicate::OEQ, v, zero)?, zero.into(), v.into())?)?;
        let bits = int(e.bitcast(v.into(), e.i32())?)?;
        let magnitude = e.int(i64::from(i32::MAX));
        let mut order = e.xor(bits, e.and(e.ashr(bits, e.int(31))?, magnitude)?)?;
        if op == ReduceOp::ArgMin {
            order = e.not(order)?;
        }
        int(e.select(e.fcmp(FloatPredicate::UNO, v, v)?, magnitude.into(), order.into())?)
    }
    /// The better of two, the earlier if they are equal; NaN is better than any number.
    fn better(&mut self, op: CmpOp, elem: Elem, a: &Part<'c>, b: &Part<'c>) -> Res<Part<'c>> {
        let mut wins = self.compare(op, b[0], a[0], elem)?;
        let mut ties = self.compare(CmpOp::Eq, b[0], a[0], elem)?;
        if let (Val::FloatValue(x), Val::FloatValue(y)) = (a[0], b[0]) {
            let nan = [self.e.fcmp(FloatPredicate::UNO, x, x)?, self.e.fcmp(FloatPredicate::UNO, y, y)?];
            let only = self.e.and(nan[1], self.e.not(nan[0])?)?;
            wins = self.e.or(wins, only)?;
            ties = self.e.or(ties, self.e.and(nan[0], nan[1])?)?;
        }
        let earlier = self.e.icmp(IntPredicate::SLT, int(b[1])?, int(a[1])?)?;
        let take = self.e.or(wins, self.e.and(ties, earlier)?)?;
        Ok(vec![self.e.select(take, b[0], a[0])?, self.e.select(take, b[1], a[1])?])
    }
}
