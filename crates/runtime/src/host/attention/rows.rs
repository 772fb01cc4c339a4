//! One head of an attention: its operands, and a block of its rows over some of its keys.
use super::{
    Room,
    softmax::{Score, Seen},
    unit::{Panels, Rows, Unit},
};
use crate::host::gemm::{
    block::put,
    buffer::Buffer,
    kernel::Real,
    pack::{Element, Side, Source},
};
use kiln_cpu::Level;
use kiln_graph::{DType, FullyMasked};
use kiln_plan::exec::AttentionCall;
use std::{any::TypeId, ops::Range};

/// Most rows of a block.
pub const MOST: usize = 128;
/// Elements between rows of scores beyond the keys of a block, so that rows do not share sets of the caches.
const GAP: usize = 16;

/// The operands of a head of keys and its group of queries.
pub struct Head<'a, U: Unit, C> {
    pub call: &'a AttentionCall,
    pub q: Source<'a, U::Source>,
    pub k: Source<'a, U::Source>,
    pub v: Source<'a, U::Source>,
    pub out: *mut C,
    pub mask: Option<*const u8>,
    pub ends: Option<*const i64>,
    pub sink: Option<*const u8>,
    pub level: Level,
}

/// Panels of keys and values of several heads.
pub struct Packed<P> {
    keys: *mut P,
    values: *mut P,
    /// Elements from one head to the next, and from one panel of values to the next.
    steps: [usize; 2],
    panel: usize,
}
// SAFETY: addresses of panels that tasks write apart from each other, and later only read.
unsafe impl<P> Send for Packed<P> {}
// SAFETY: as above.
unsafe impl<P> Sync for Packed<P> {}
impl<P> Clone for Packed<P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Packed<P> {}

impl<P: Copy> Packed<P> {
    /// Room for this many heads with so many keys.
    pub fn new<U: Unit<Panel = P>>(
        unit: &U,
        heads: usize,
        a: &AttentionCall,
        keys: usize,
        [for_keys, for_values]: [&mut Buffer; 2],
    ) -> Packed<P> {
        let panel = unit.padded(keys) * unit.lanes();
        let steps =
            [keys.next_multiple_of(unit.lanes()) * unit.padded(a.depth), a.width.div_ceil(unit.lanes()) * panel];
        Packed { keys: for_keys.room(heads * steps[0]), values: for_values.room(heads * steps[1]), steps, panel }
    }
    /// Those of one head.
    pub fn of(&self, head: usize) -> Packed<P> {
        let [keys, values] = self.steps;
        Packed { keys: self.keys.wrapping_add(head * keys), values: self.values.wrapping_add(head * values), ..*self }
    }
}

impl<U: Unit, C: Element<Acc = U::Sum>> Head<'_, U, C> {
    /// Keys and values as they lie in memory, where they are not packed.
    pub fn in_place(&self, unit: &U) -> [Option<Panels<U::Panel>>; 2] {
        // Sums over keys in memory have another order.
        if self.call.batch_invariant {
            return [None; 2];
        }
        let rows = self.call.rows();
        match [unit.keys(self.k, rows), unit.values(self.v, rows, self.call.width)] {
            [Some(k), Some(v)] if k.by_key == v.by_key => [Some(k), Some(v)],
            // Rows are in panels for both, or for none.
            [k, v] => [k, v].map(|x| x.filter(|x| !x.by_key)),
        }
    }
    /// The number of keys that a row attends to.
    fn end(&self, row: usize) -> usize {
        let a = self.call;
        let end = if a.causal { a.keys.min(row % a.queries + 1) } else { a.keys };
        match (self.ends, &a.ends) {
            (Some(at), Some(m)) => {
                // SAFETY: the ends hold a number for each row.
                let found = unsafe { at.add(Side(&m.rows).at(row)).read() };
                end.min(usize::try_from(found).unwrap_or(0))
            }
            _ => end,
        }
    }
    /// The number of keys that some row attends to.
    pub fn last(&self) -> usize {
        let a = self.call;
        match self.ends {
            Some(_) => (0..a.rows()).map(|r| self.end(r)).max().unwrap_or(0),
            None if a.causal => a.keys.min(a.queries),
            None => a.keys,
        }
    }
    /// Whether scores are scaled and masked before the softmax; else it scales them.
    fn explicit(&self) -> bool {
        self.mask.is_some() || self.call.scale.is_nan() || self.call.scale <= 0.0
    }
    /// The factor on differences of scores in the exponent of two.
    pub fn power(&self) -> U::Sum {
        U::Sum::of(std::f64::consts::LOG2_E * if self.explicit() { 1.0 } else { self.call.scale })
    }

    /// Packs the first keys and their values in this thread's buffers.
    ///
    /// # Safety
    /// The operands hold what the call says.
    pub unsafe fn pack(&self, unit: &U, keys: usize, room: &mut Room) -> Packed<U::Panel> {
        let packed = Packed::new(unit, 1, self.call, keys, [&mut room.keys, &mut room.values]);
        // SAFETY: this function's contract.
        unsafe { self.pack_slice(unit, 0..keys, packed) };
        packed
    }
    /// Packs some keys and their values, but those that are read in place. The first begins a block.
    ///
    /// # Safety
    /// As `pack`; nothing else accesses these panels.
    pub unsafe fn pack_slice(&self, unit: &U, keys: Range<usize>, to: Packed<U::Panel>) {
        let (a, lanes) = (self.call, unit.lanes());
        let [k_in_place, v_in_place] = self.in_place(unit).map(|p| p.is_some());
        // SAFETY: this function's contract.
        unsafe {
            if !k_in_place {
                unit.pack(self.k, [keys.start, keys.len()], a.depth, to.keys.add(keys.start * unit.padded(a.depth)));
            }
            if v_in_place {
                return;
            }
            let v = Source { at: self.v.at.wrapping_add(self.v.depth.at(keys.start)), ..self.v };
            for column in (0..a.width).step_by(lanes) {
                let to = to.values.add(column / lanes * to.panel + keys.start * lanes);
                unit.pack(v, [column, lanes.min(a.width - column)], keys.len(), to);
            }
        }
    }
    /// Keys and values of a block: in place, packed before, or packed now.
    ///
    /// # Safety
    /// As `pack`.
    unsafe fn panels(
        &self,
        unit: &U,
        keys: Range<usize>,
        packed: Option<Packed<U::Panel>>,
        room: [&mut Buffer; 2],
    ) -> [Panels<U::Panel>; 2] {
        let (a, lanes) = (self.call, unit.lanes());
        let [k, v] = self.in_place(unit);
        let moved = |p: Panels<U::Panel>, side: Side| Panels { at: p.at.wrapping_add(side.at(keys.start)), ..p };
        let (k, v) = (k.map(|p| moved(p, self.k.lanes)), v.map(|p| moved(p, self.v.depth)));
        if let (Some(k), Some(v)) = (k, v) {
            return [k, v];
        }
        let (at, first) = match packed {
            Some(packed) => (packed, keys.start),
            None => {
                let at = Packed::new(unit, 1, a, keys.len(), room);
                let mut now = Head { k: self.k, v: self.v, ..*self };
                now.k.at = self.k.at.wrapping_add(self.k.lanes.at(keys.start));
                now.v.at = self.v.at.wrapping_add(self.v.depth.at(keys.start));
                // SAFETY: this function's contract.
                unsafe { now.pack_slice(unit, 0..keys.len(), at) };
                (at, 0)
            }
        };
        let depth = unit.padded(a.depth);
        let own = [
            Panels {
                at: at.keys.wrapping_add(first * depth).cast_const(),
                step: lanes * depth,
                pitch: lanes,
                by_key: false,
            },
            Panels {
                at: at.values.wrapping_add(first * lanes).cast_const(),
                step: at.panel,
                pitch: lanes,
                by_key: false,
            },
        ];
        [k.unwrap_or(own[0]), v.unwrap_or(own[1])]
    }

    /// Attention of a block of rows to some keys, the first of which begins a block of keys. Gives sums of values, the
    /// elements between their rows, and what was seen of each row.
    ///
    /// # Safety
    /// As `pack`; the panels hold these keys.
    pub unsafe fn block(
        &self,
        unit: &U,
        rows: Range<usize>,
        height: usize,
        keys: Range<usize>,
        packed: Option<Packed<U::Panel>>,
        room: &mut Room,
    ) -> (*mut U::Sum, usize, [Seen<U::Sum>; MOST]) {
        let (a, zero, c) = (self.call, U::Sum::of(0.0), self.power());
        let depth = unit.padded(a.depth);
        let (high, pitch) = (rows.len().next_multiple_of(height), U::KEYS + GAP);
        let wide = a.width.next_multiple_of(unit.lanes());
        let mut ends = [0; MOST];
        rows.clone().zip(&mut ends).for_each(|(row, end)| *end = self.end(row).min(keys.end));
        let ends = &ends[..rows.len()];
        let last = ends.iter().copied().max().unwrap_or(0);
        let mut seen = [Seen { greatest: U::Sum::LOWEST, sum: zero }; MOST];
        let loops = U::Sum::rows(self.level);
        // SAFETY: this function's contract; the buffers have room for whole panels.
        unsafe {
            let sums = room.sums.room::<U::Sum>(high * wide);
            std::slice::from_raw_parts_mut(sums, high * wide).fill(zero);
            let queries = room.queries.room::<U::Panel>(high * depth);
            for first in (0..rows.len()).step_by(height) {
                let some = [rows.start + first, height.min(rows.len() - first)];
                unit.queries(self.q, some, a.depth, height, queries.add(first * depth));
            }
            let scores = room.scores.room::<U::Sum>(high * pitch);
            let apart = room.apart.room::<U::Panel>(unit.apart(high));
            let bias = room.bias.room::<U::Sum>(U::KEYS);
            for key in (keys.start..last).step_by(U::KEYS) {
                let (mut counts, mut most, mut of) = ([0; MOST], [0; MOST], None);
                for (i, (row, end)) in rows.clone().zip(ends).enumerate() {
                    let n = end.saturating_sub(key).min(U::KEYS);
                    counts[i] = self.counted([row, key, n], &mut of);
                    most[i / height] = counts[i].max(most[i / height]);
                }
                let some = Rows { count: rows.len(), height, keys: &most[..rows.len().div_ceil(height)] };
                if some.most() == 0 {
                    continue;
                }
                let block = key..key + some.most();
                let [k, v] = self.panels(unit, block, packed, [&mut room.keys, &mut room.values]);
                unit.scores(a.depth, queries, some, k, scores, pitch);
                let mut of = None;
                for (first, panel, n) in some.panels() {
                    for i in first..first + panel {
                        let (x, own, old) = (scores.add(i * pitch), counts[i], seen[i]);
                        if self.explicit() {
                            let bias = self.bias([rows.start + i, key, n], bias, &mut of);
                            (loops.masked)(x, bias, own, U::Sum::of(a.scale));
                        }
                        let new = unit.powers(x, [i, own, n], old.greatest, c, apart);
                        let factor = U::Sum::carried(old.greatest, new.greatest, c);
                        if old.greatest != new.greatest {
                            (loops.scaled)(sums.add(i * wide), wide, factor);
                        }
                        seen[i] = Seen { greatest: new.greatest, sum: old.sum.times(factor).plus(new.sum) };
                    }
                }
                unit.add((scores, pitch, apart), some, v, a.width, sums, wide);
            }
            (sums, wide, seen)
        }
    }

    /// Of `n` keys from `key` on, the number of those up to the last that the mask lets the row attend to. `of`: where
    /// the mask was last looked at, for how many keys, and the answer.
    ///
    /// # Safety
    /// The mask holds what the call says.
    unsafe fn counted(&self, [row, key, n]: [usize; 3], of: &mut Option<([usize; 2], usize)>) -> usize {
        let (Some(at), Some(mask)) = (self.mask, &self.call.mask) else { return n };
        let stride = Side(&mask.matrix.cols).stride().unwrap_or(0);
        let first = Side(&mask.matrix.rows).at(row) + key * stride;
        // Masks are often the same for many queries.
        if let Some((from, found)) = *of
            && from == [first, n]
        {
            return found;
        }
        // SAFETY: this function's contract.
        let found = unsafe {
            match mask.dtype {
                DType::Bool => to_last(at.add(first), stride, n, |x| x != 0),
                wide if wide != self.call.dtype => {
                    to_last(at.cast::<U::Sum>().add(first), stride, n, |x| x != U::Sum::LOWEST)
                }
                _ => to_last(at.cast::<U::Source>().add(first), stride, n, |x| x.widen() != U::Sum::LOWEST),
            }
        };
        *of = Some(([first, n], found));
        found
    }

    /// What the mask adds to the scores of a row and `n` keys from `key` on: in place if it can be read there, else in
    /// `to`. `of`: where what is in `to` came from.
    ///
    /// # Safety
    /// The mask holds what the call says; there is room for `n` numbers.
    unsafe fn bias(
        &self,
        [row, key, n]: [usize; 3],
        to: *mut U::Sum,
        of: &mut Option<(usize, usize)>,
    ) -> *const U::Sum {
        let (Some(at), Some(mask)) = (self.mask, &self.call.mask) else {
            if of.replace((0, n)).is_none_or(|o| o.1 < n) {
                // SAFETY: this function's contract.
                unsafe { std::slice::from_raw_parts_mut(to, n) }.fill(U::Sum::of(0.0));
            }
            return to;
        };
        let stride = Side(&mask.matrix.cols).stride().unwrap_or(0);
        let first = Side(&mask.matrix.rows).at(row) + key * stride;
        let wide = mask.dtype != self.call.dtype || TypeId::of::<U::Source>() == TypeId::of::<U::Sum>();
        if stride == 1 && mask.dtype != DType::Bool && wide {
            return at.cast::<U::Sum>().wrapping_add(first);
        }
        // Masks are often the same for many queries.
        if of.is_some_and(|(from, count)| from == first && count >= n) {
            return to;
        }
        *of = Some((first, n));
        // SAFETY: this function's contract.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to, n);
            match mask.dtype {
                DType::Bool => {
                    let counts = |x: u8| if x != 0 { U::Sum::of(0.0) } else { U::Sum::LOWEST };
                    fill(to, at.add(first), stride, counts);
                }
                wide if wide != self.call.dtype => fill(to, at.cast::<U::Sum>().add(first), stride, |x| x),
                _ => fill(to, at.cast::<U::Source>().add(first), stride, Element::widen),
            }
        }
        to
    }

    /// The sink of a row.
    ///
    /// # Safety
    /// The sinks hold what the call says.
    unsafe fn sink(&self, row: usize) -> Option<U::Sum> {
        let (at, sink) = (self.sink?, self.call.sink.as_ref()?);
        let i = Side(&sink.matrix.rows).at(row);
        // SAFETY: this function's contract; a sink that is not of the operands' type is of the sums'.
        Some(unsafe {
            match sink.dtype == self.call.dtype {
                true => at.cast::<U::Source>().add(i).read().widen(),
                false => at.cast::<U::Sum>().add(i).read(),
            }
        })
    }

    /// Writes a row of the result: sums of values over the sum of the powers, to which the sink adds its own.
    ///
    /// # Safety
    /// The row exists in the result, and nothing else accesses it; the sinks hold what the call says.
    pub unsafe fn write(&self, row: usize, sums: *mut U::Sum, seen: Seen<U::Sum>) {
        let (a, zero) = (self.call, U::Sum::of(0.0));
        // SAFETY: this function's contract.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(sums, a.width);
            let sum = match self.sink(row) {
                Some(sink) => {
                    // In the unit of the sink. A comparison leaves NaN out, whose power is NaN.
                    let scale = if self.explicit() { 1.0 } else { a.scale };
                    let (own, sink) = (seen.greatest.value() * scale, sink.value());
                    let greatest = if sink > own { sink } else { own };
                    let power = |x: f64| if x == f64::NEG_INFINITY { 0.0 } else { (x - greatest).exp() };
                    let factor = U::Sum::of(power(own));
                    sums.iter_mut().for_each(|x| *x = x.times(factor));
                    seen.sum.times(factor).plus(U::Sum::of(power(sink)))
                }
                None => seen.sum,
            };
            match sum == zero {
                true => sums.fill(if a.fully_masked == FullyMasked::Nan { U::Sum::of(f64::NAN) } else { zero }),
                false => sums.iter_mut().for_each(|x| *x = *x / sum),
            }
            let to = self.out.wrapping_add(Side(&a.out.rows).at(row));
            Side(&a.out.cols).stretches(0, a.width, |first, count, offset, stride| {
                put(&sums[first..first + count], to.wrapping_add(offset), stride);
            });
        }
    }
}

/// The number of elements up to the last that `counts`; these are `stride` apart.
///
/// # Safety
/// They exist.
unsafe fn to_last<S: Copy>(from: *const S, stride: usize, n: usize, counts: impl Fn(S) -> bool) -> usize {
    /// Elements that are looked at together, which the compiler does in vectors.
    const SOME: usize = 64;
    // SAFETY: this function's contract.
    let at = |i: usize| unsafe { *from.add(i * stride) };
    let mut end = n;
    if stride == 1 {
        // SAFETY: this function's contract.
        let all = unsafe { std::slice::from_raw_parts(from, n) };
        let none = |some: &[S]| !some.iter().fold(false, |found, x| found | counts(*x));
        end -= all.rchunks_exact(SOME).take_while(|some| none(some)).count() * SOME;
    } else if stride == 0 && n > 0 {
        return if counts(at(0)) { n } else { 0 };
    }
    while end > 0 && !counts(at(end - 1)) {
        end -= 1;
    }
    end
}

/// Elements that are `stride` apart, each turned into a number.
///
/// # Safety
/// They exist.
unsafe fn fill<S: Copy, T>(to: &mut [T], from: *const S, stride: usize, f: impl Fn(S) -> T) {
    // SAFETY: this function's contract.
    unsafe {
        match stride {
            1 => {
                let from = std::slice::from_raw_parts(from, to.len());
                to.iter_mut().zip(from).for_each(|(to, x)| *to = f(*x));
            }
            _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = f(*from.add(i * stride))),
        }
    }
}
