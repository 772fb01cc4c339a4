//! Scans by a region, and ops that take elements from other threads through shared memory.
//!
//! A scan doubles its reach: in turn `k` the elements of the upper half of each 2^(k+1) take on the last one of the
//! lower half, which covers all of it. All threads have the elements of their layout in registers: which bit of the
//! position a turn is about says whether the end of a half is in the same thread, in another lane, or has to go through
//! shared memory.
use super::emit::{Emit, Fail, Res, Val};
use super::exchange::Placement;
use super::r#gen::Gen;
use super::index::{Memo, Reg};
use inkwell::values::IntValue;
use kiln_block::layout::{Flat, LANE_BITS, axis_bits};
use kiln_block::{Elem, InstData, Op, Value};
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of one shape in shared memory, element after element.
struct Spread {
    /// Where each block begins, in bytes.
    starts: Vec<usize>,
    elems: Vec<Elem>,
}

/// A turn of a scan: the bit of an element's number in which halves differ, and those below it along the axis.
struct Turn {
    lower: Range<u8>,
    bit: u8,
    /// Lower halves take on upper ones.
    reverse: bool,
}
impl Turn {
    /// What a bit of the number is in an end that is taken on. `None`: as it is in who takes it.
    fn wanted(&self, bit: u8) -> Option<bool> {
        match bit {
            b if b == self.bit => Some(self.reverse),
            b if self.lower.contains(&b) => Some(!self.reverse),
            _ => None,
        }
    }
    /// Whether a register may take on another element.
    fn takes(&self, flat: &Flat, r: usize) -> bool {
        let at = flat.registers.iter().position(|b| *b == self.bit);
        at.is_none_or(|at| (r >> at & 1 == 1) != self.reverse)
    }
    /// The register of the element that a register takes on.
    fn partner(&self, flat: &Flat, r: usize) -> usize {
        flat.registers.iter().enumerate().fold(r, |r, (n, b)| match self.wanted(*b) {
            Some(true) => r | 1 << n,
            Some(false) => r & !(1 << n),
            None => r,
        })
    }
    /// The number of the element that an element takes on.
    fn element<'c>(&self, e: &Emit<'c>, element: IntValue<'c>) -> Res<IntValue<'c>> {
        let (mut kept, mut set) = (-1, 0);
        for (b, wanted) in self.lower.clone().chain([self.bit]).filter_map(|b| Some((b, self.wanted(b)?))) {
            kept &= !(1 << b);
            set |= i64::from(wanted) << b;
        }
        e.or(e.and(element, e.int(kept))?, e.int(set))
    }
}

impl<'c> Gen<'c, '_> {
    pub fn scan_by(&mut self, data: &InstData) -> Res<()> {
        let Op::ScanBy { axis, reverse } = data.op else { return Err(Fail::Defect("nothing to scan".into())) };
        self.one_block()?;
        let flat = self.lie_together(data.args.iter().chain(&data.results))?;
        let bits = axis_bits(self.k.ty(data.args[0]).shape(), axis as usize);
        let mut now: Vec<Vec<Val<'c>>> = data.args.iter().map(|v| self.plain(*v)).collect::<Res<_>>()?;
        let spread = self.room_for(&data.args)?;
        for bit in bits.clone() {
            let turn = Turn { lower: bits.start..bit, bit, reverse };
            now = self.turn(data, &spread, &flat, &turn, &now)?;
        }
        for (v, regs) in data.results.iter().zip(now) {
            let regs = regs.into_iter().map(|x| self.register(*v, x)).collect();
            self.set(*v, regs);
        }
        Ok(())
    }
    /// The layout of values, which must all have the same.
    pub(super) fn lie_together<'v>(&self, values: impl Iterator<Item = &'v Value>) -> Res<Flat> {
        let mut first: Option<(Value, Flat)> = None;
        for v in values {
            let flat = self.flat(*v)?;
            match &first {
                None => first = Some((*v, flat)),
                Some((of, one)) if *one != flat => {
                    return Err(Fail::Defect(format!("{v} lies as {of} does not, which it is combined with")));
                }
                Some(_) => {}
            }
        }
        first.map(|f| f.1).ok_or_else(|| Fail::Defect("nothing to combine".into()))
    }
    /// One turn: halves of the axis that differ in a bit become one.
    fn turn(
        &mut self,
        data: &InstData,
        spread: &Spread,
        flat: &Flat,
        turn: &Turn,
        now: &[Vec<Val<'c>>],
    ) -> Res<Vec<Vec<Val<'c>>>> {
        let thread = flat.threads().position(|b| b == Some(turn.bit));
        let takes = match thread {
            Some(bit) => Some(self.threads.bit(&self.e, bit)?),
            None => None,
        };
        let takes = match takes {
            Some(upper) if turn.reverse => Some(self.e.not(upper)?),
            upper => upper,
        };
        let ends = self.ends(spread, flat, turn, now)?;
        let mut next: Vec<Vec<Val<'c>>> = now.to_vec();
        for r in (0..flat.per_thread()).filter(|r| turn.takes(flat, *r)) {
            let before = ends.get(&turn.partner(flat, r)).cloned().unwrap_or_default();
            let own: Vec<Val<'c>> = now.iter().map(|v| v[r]).collect();
            let both = self.by_region(data, before.iter().chain(&own))?;
            for ((next, both), own) in next.iter_mut().zip(both).zip(own) {
                next[r] = takes.map_or(Ok(both), |takes| self.e.select(takes, both, own))?;
            }
        }
        Ok(next)
    }
    /// The ends of the halves that others take on, by their registers: as they are, from another lane, or through shared
    /// memory where warps hold them.
    fn ends(
        &mut self,
        spread: &Spread,
        flat: &Flat,
        turn: &Turn,
        now: &[Vec<Val<'c>>],
    ) -> Res<HashMap<usize, Vec<Val<'c>>>> {
        let mut partners: Vec<usize> =
            (0..flat.per_thread()).filter(|r| turn.takes(flat, *r)).map(|r| turn.partner(flat, r)).collect();
        partners.sort_unstable();
        partners.dedup();
        let moves = |bits: &[Option<u8>]| bits.iter().flatten().any(|b| turn.wanted(*b).is_some());
        let mut ends = HashMap::new();
        if moves(&flat.warps) {
            self.spread(spread, flat, now, &partners)?;
            for r in partners {
                self.memo = Memo::default();
                let element = self.element_of(flat, r)?;
                let element = turn.element(&self.e, element)?;
                ends.insert(r, self.read_at(spread, element)?);
            }
            self.sync()?;
        } else if moves(&flat.lanes) {
            let lane = self.lane_of(flat, turn)?;
            for r in partners {
                let values: Res<Vec<Val<'c>>> = now.iter().map(|v| self.lane_value("idx", v[r], lane)).collect();
                ends.insert(r, values?);
            }
        } else {
            ends.extend(partners.into_iter().map(|r| (r, now.iter().map(|v| v[r]).collect())));
        }
        Ok(ends)
    }
    /// The lane that holds the end of a half.
    fn lane_of(&mut self, flat: &Flat, turn: &Turn) -> Res<IntValue<'c>> {
        let weights: Vec<i64> = (0..self.threads.bits).map(|n| if n < LANE_BITS { 1 << n } else { 0 }).collect();
        let lane = self.threads.sum(&self.e, &weights)?.value(&self.e, &mut Memo::default())?;
        let (mut kept, mut set) = (-1, 0);
        for (n, wanted) in flat.lanes.iter().enumerate().filter_map(|(n, b)| Some((n, turn.wanted((*b)?)?))) {
            kept &= !(1 << n);
            set |= i64::from(wanted) << n;
        }
        self.e.or(self.e.and(lane, self.e.int(kept))?, self.e.int(set))
    }
    /// What the region gives for these values of its parameters.
    pub(super) fn by_region<'v>(
        &mut self,
        data: &InstData,
        values: impl Iterator<Item = &'v Val<'c>>,
    ) -> Res<Vec<Val<'c>>>
    where
        'c: 'v,
    {
        let Some(region) = data.regions.first() else { return Err(Fail::Defect("no region".into())) };
        for (p, v) in region.params.iter().zip(values) {
            let reg = self.register(*p, *v);
            self.set(*p, vec![reg]);
        }
        self.region(region)?;
        let last = region.insts.last().map(|i| self.k.inst(*i).args.clone()).unwrap_or_default();
        self.memo = Memo::default();
        let all: Vec<Vec<Val<'c>>> = last.iter().map(|v| self.plain(*v)).collect::<Res<_>>()?;
        Ok(all.into_iter().flatten().collect())
    }
    /// The number of a register's element in its block.
    fn element_of(&mut self, flat: &Flat, r: usize) -> Res<IntValue<'c>> {
        let weights: Vec<i64> = flat.threads().map(|b| b.map_or(0, |b| 1i64 << b)).collect();
        let thread = self.threads.sum(&self.e, &weights)?.value(&self.e, &mut self.memo)?;
        self.e.add(thread, self.e.int(flat.register(r) as i64))
    }
    fn room_for(&mut self, blocks: &[Value]) -> Res<Spread> {
        let elems: Vec<Elem> = blocks.iter().map(|v| self.elem(*v)).collect::<Res<_>>()?;
        let count = self.k.ty(blocks[0]).count();
        let sizes: Vec<usize> = elems.iter().map(|e| count * e.bytes()).collect();
        Ok(Spread { starts: self.room(&sizes)?, elems })
    }
    /// Writes these registers of blocks of one layout, and waits for all threads. Threads that hold copies write the
    /// same.
    fn spread(&mut self, spread: &Spread, flat: &Flat, values: &[Vec<Val<'c>>], registers: &[usize]) -> Res<()> {
        let bits = flat.registers.iter().copied().chain(flat.threads().flatten()).max().map_or(0, |b| b as usize + 1);
        let place = Placement { weights: (0..bits).map(|b| 1 << b).collect(), elements: 1 << bits };
        for ((start, elem), values) in spread.starts.iter().zip(&spread.elems).zip(values) {
            self.memo = Memo::default();
            let at = self.scratch_base(flat, &place, *elem)?;
            for r in registers {
                let ptr = self.shared_at(at, start + flat.register(*r) * elem.bytes())?;
                self.shared_store(ptr, &[values[*r]], *elem)?;
            }
        }
        self.filled()
    }
    fn read_at(&mut self, spread: &Spread, element: IntValue<'c>) -> Res<Vec<Val<'c>>> {
        (0..spread.elems.len()).map(|n| self.read_one(spread, n, element)).collect()
    }
    /// An element of the n-th block.
    fn read_one(&mut self, spread: &Spread, n: usize, element: IntValue<'c>) -> Res<Val<'c>> {
        let elem = spread.elems[n];
        let at = self.e.mul(element, self.e.int(elem.bytes() as i64))?;
        let ptr = self.shared_at(at, spread.starts[n])?;
        self.shared_load(ptr, 1, elem)?.pop().ok_or_else(|| Fail::Defect("no element".into()))
    }
    pub(super) fn one_block(&self) -> Res<()> {
        match self.blocks.count {
            1 => Ok(()),
            _ => Err(Fail::Unsupported("an exchange of elements over several blocks".into())),
        }
    }

    /// A block of the pairs of two, or the first or second elements of pairs: each thread has whole pairs.
    pub fn paired(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let (pairs, alone) = match data.op {
            Op::Join => (data.results[0], &data.args[..]),
            _ => (data.args[0], &data.results[..]),
        };
        let (flat, halves) = (self.flat(pairs)?, self.lie_together(alone.iter())?);
        let at = flat.registers.iter().position(|b| *b == 0);
        let at = at.filter(|_| flat.halves().as_ref() == Some(&halves));
        let at = at.ok_or_else(|| Fail::Defect(format!("the elements of {pairs} do not lie as its pairs")))?;
        // The register of a pair's first element, and the other way round.
        let below = (1usize << at) - 1;
        let first = |r: usize| r & below | (r & !below) << 1;
        let pair = |r: usize| r & below | r >> (at + 1) << at;
        if let Op::Split(half) = data.op {
            let regs = self.regs(pairs)?;
            return Ok((0..halves.per_thread()).map(|r| regs[first(r) | usize::from(half) << at]).collect());
        }
        let both = [self.regs(data.args[0])?, self.regs(data.args[1])?];
        Ok((0..flat.per_thread()).map(|r| both[r >> at & 1][pair(r)]).collect())
    }
    /// A block that is made of others, or of elements of another.
    pub fn moved(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        self.one_block()?;
        let result = data.results[0];
        let sources = if matches!(data.op, Op::Gather { .. }) { &data.args[..1] } else { &data.args[..] };
        let flat = self.flat(result)?;
        let positions = match data.op {
            Op::Gather { .. } => Some(self.plain(data.args[1])?),
            _ => None,
        };
        let spread = self.room_for(sources)?;
        for (n, v) in sources.iter().enumerate() {
            let (from, values) = (self.flat(*v)?, self.plain(*v)?);
            let one = Spread { starts: vec![spread.starts[n]], elems: vec![spread.elems[n]] };
            let all: Vec<usize> = (0..from.per_thread()).collect();
            self.spread(&one, &from, &[values], &all)?;
        }
        let mut out = vec![];
        for r in 0..flat.per_thread() {
            self.memo = Memo::default();
            let element = self.element_of(&flat, r)?;
            let position = positions.as_ref().map(|p| p[r]);
            let x = self.source(&spread, data, element, position)?;
            out.push(self.register(result, x));
        }
        self.sync()?;
        Ok(out)
    }
    /// The element that is the result's at this number.
    fn source(
        &mut self,
        spread: &Spread,
        data: &InstData,
        element: IntValue<'c>,
        position: Option<Val<'c>>,
    ) -> Res<Val<'c>> {
        let k = self.k;
        let int = |g: &Self, v: usize| g.e.int(v as i64);
        match &data.op {
            Op::Part { axis, at } => {
                let (to, from) = (k.ty(data.results[0]).shape(), k.ty(data.args[0]).shape());
                let (to, from) = (axis_bits(to, *axis as usize), axis_bits(from, *axis as usize));
                let low = self.e.and(element, int(self, (1 << to.start) - 1))?;
                let high =
                    self.e.shl(self.e.lshr(element, int(self, to.end as usize))?, int(self, from.end as usize))?;
                let along =
                    self.e.and(self.e.lshr(element, int(self, to.start as usize))?, int(self, (1 << to.len()) - 1))?;
                let along = self.e.shl(self.e.add(along, int(self, *at as usize))?, int(self, from.start as usize))?;
                let element = self.e.add(self.e.add(high, along)?, low)?;
                self.read_one(spread, 0, element)
            }
            Op::Cat { axis } => {
                // One bit of the result's number says which.
                let bit = axis_bits(k.ty(data.results[0]).shape(), *axis as usize).end as usize - 1;
                let low = self.e.and(element, int(self, (1 << bit) - 1))?;
                let high = self.e.shl(self.e.lshr(element, int(self, bit + 1))?, int(self, bit))?;
                let from = self.e.add(high, low)?;
                let second = self.e.trunc(self.e.lshr(element, int(self, bit))?, self.e.i1())?;
                let (a, b) = (self.read_one(spread, 0, from)?, self.read_one(spread, 1, from)?);
                self.e.select(second, b, a)
            }
            Op::Gather { axis } => {
                let (to, from) = (k.ty(data.results[0]).shape(), k.ty(data.args[0]).shape());
                let (to, from) = (axis_bits(to, *axis as usize), axis_bits(from, *axis as usize));
                let position = super::emit::int(position.ok_or_else(|| Fail::Defect("no positions".into()))?)?;
                let position = self.e.and(position, int(self, (1 << from.len()) - 1))?;
                let low = self.e.and(element, int(self, (1 << to.start) - 1))?;
                let high = self.e.lshr(element, int(self, to.end as usize))?;
                let high = self.e.shl(high, int(self, from.end as usize))?;
                let along = self.e.shl(position, int(self, from.start as usize))?;
                let element = self.e.add(self.e.add(high, along)?, low)?;
                self.read_one(spread, 0, element)
            }
            other => Err(Fail::Unsupported(format!("{other:?}"))),
        }
    }
}
