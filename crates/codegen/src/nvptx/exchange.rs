//! Exchange of values between threads: layout conversions by registers, warp shuffles or shared memory, and the scratch
//! memory for these.
use super::emit::{Fail, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::Reg;
use inkwell::values::{IntValue, PointerValue};
use kiln_block::layout::{Flat, bits_of};
use kiln_block::{CachePolicy, Elem, Op, Type, Value};

/// Scratch in shared memory: which bytes other threads may still be reading.
#[derive(Default)]
pub(super) struct Scratch {
    /// Bytes at the start that are not scratch, and how many of them are tiles.
    kept: usize,
    tiles: usize,
    high: usize,
    busy: usize,
    /// Another path through the program may have left reads pending.
    unknown: bool,
}

/// Past this size exchanges start over at the bottom (after a barrier).
const SOFT_LIMIT: usize = 32 << 10;

impl Scratch {
    pub fn behind(kept: usize, tiles: usize) -> Scratch {
        let kept = kept + tiles;
        Scratch { kept, tiles, high: kept, busy: kept, unknown: false }
    }
    pub fn bytes(&self) -> usize {
        self.high
    }
    pub fn unknown(&mut self) {
        self.unknown = true;
    }
    /// Nothing reads or writes tiles any more: their memory is scratch, once all threads have passed a barrier.
    pub fn take_tiles(&mut self) {
        self.kept -= std::mem::take(&mut self.tiles);
        self.unknown = true;
    }
    /// All threads have passed a barrier.
    pub fn synced(&mut self) {
        (self.busy, self.unknown) = (self.kept, false);
    }
}

/// Where the elements of a block are in scratch: the offset of each bit of the element number, in elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placement {
    pub weights: Vec<usize>,
    pub elements: usize,
}

impl Placement {
    /// Address bits take element bits in this order; from bit `every` on, neighbours are `pad` more elements apart.
    pub fn of(order: &[u8], every: usize, pad: usize) -> Placement {
        let mut weights = vec![0; order.len()];
        for (p, b) in order.iter().enumerate() {
            weights[*b as usize] = (1 << p) + if p >= every { (1 << (p - every)) * pad } else { 0 };
        }
        Placement { elements: weights.iter().sum::<usize>() + 1, weights }
    }
    pub fn at(&self, element: usize) -> usize {
        self.weights.iter().enumerate().filter(|(b, _)| element >> b & 1 == 1).map(|(_, w)| w).sum()
    }
    /// Registers of `flat` that are adjacent, at most 16 bytes.
    fn vector(&self, flat: &Flat, bytes: usize) -> usize {
        let run = flat.registers.iter().enumerate().take_while(|(i, b)| self.weights[**b as usize] == 1 << i).count();
        let mut n = (1usize << run).min((16 / bytes).max(1));
        // All other bits must keep the accesses aligned.
        let rest = |n: usize| self.weights.iter().all(|w| *w < n && w.is_power_of_two() || w.is_multiple_of(n));
        while n > 1 && !rest(n) {
            n /= 2;
        }
        n
    }
    /// Shared-memory passes that one warp takes to access the whole block in this layout.
    pub fn cost(&self, flat: &Flat, bytes: usize) -> usize {
        let n = self.vector(flat, bytes);
        self.passes(flat, n, bytes) * flat.per_thread() / n
    }
    /// How many times the fewest passes such an access takes.
    pub fn ways(&self, flat: &Flat, n: usize, bytes: usize) -> usize {
        let lanes = (128 / (n * bytes)).clamp(1, 32);
        self.passes(flat, n, bytes).div_ceil(32 / lanes)
    }
    /// Passes of a warp whose lanes access `n` elements from their first one on.
    pub fn passes(&self, flat: &Flat, n: usize, bytes: usize) -> usize {
        let lanes = (128 / (n * bytes)).clamp(1, 32);
        let mut passes = 0;
        for group in (0..32).step_by(lanes) {
            let mut words: Vec<usize> = (group..group + lanes)
                .flat_map(|l| {
                    let byte = self.at(flat.at(0, l, 0)) * bytes;
                    (byte / 4..(byte + n * bytes).div_ceil(4)).collect::<Vec<_>>()
                })
                .collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0usize; 32];
            words.iter().for_each(|w| banks[w % 32] += 1);
            passes += banks.iter().max().copied().unwrap_or(1);
        }
        passes
    }
    /// The cheapest of a few placements for writing in one layout and reading in another.
    pub fn best(from: &Flat, to: &Flat, bits: usize, bytes: usize) -> Placement {
        let after = |flat: &Flat| {
            let vector = (16 / bytes).max(1).ilog2() as usize;
            let first = flat.registers.iter().take(vector).copied();
            let rest = flat.registers.iter().skip(vector).copied();
            let mut order: Vec<u8> = first.chain(flat.threads().flatten()).chain(rest).collect();
            order.dedup();
            order
        };
        let row_major: Vec<u8> = (0..bits as u8).collect();
        let word = (128 / bytes).ilog2() as usize;
        let mut best: Option<(usize, Placement)> = None;
        for order in [row_major, after(to), after(from)] {
            for every in word - 1..=word + 2 {
                for pad in [0, 16 / bytes, 8 / bytes, 4 / bytes].into_iter().filter(|p| *p > 0 || every == word) {
                    let p = Placement::of(&order, every, pad);
                    let cost = p.cost(from, bytes) + p.cost(to, bytes);
                    if best.as_ref().is_none_or(|(c, b)| (cost, p.elements) < (*c, b.elements)) {
                        best = Some((cost, p));
                    }
                }
            }
        }
        best.map_or_else(|| Placement::of(&[], 0, 0), |b| b.1)
    }
}

/// A conversion within warps: for every register of the result, the operand's register and an offset to the number of
/// the lane to read from; `moves`: weights of the thread's own bits in that number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shuffle {
    pub sources: Vec<(usize, usize)>,
    pub moves: Vec<i64>,
    /// Every thread already has what it needs.
    pub stays: bool,
}

/// The conversion within warps, if no element must cross between warps and no thread must choose between registers.
pub(super) fn shuffle(from: &Flat, to: &Flat) -> Option<Shuffle> {
    if from.warps != to.warps || from.registers.iter().any(|b| !to.registers.contains(b)) {
        return None;
    }
    let mut moves = vec![0i64; 5 + to.warps.len()];
    for (i, b) in from.lanes.iter().enumerate() {
        match b {
            // Replicas: stay in the own half.
            None => moves[i] += 1 << i,
            Some(b) => {
                if let Some(j) = to.lanes.iter().position(|t| t == &Some(*b)) {
                    moves[j] += 1 << i;
                }
            }
        }
    }
    if to.lanes.iter().flatten().any(|b| !from.lanes.contains(&Some(*b))) {
        return None;
    }
    let source = |r: usize| {
        let element = to.register(r);
        let lane: usize = from
            .lanes
            .iter()
            .enumerate()
            .filter(|(_, b)| b.is_some_and(|b| element >> b & 1 == 1))
            .map(|(i, _)| 1usize << i)
            .sum();
        let held: usize = from.registers.iter().map(|b| element & (1 << b)).sum();
        Some((from.register_of(held)?, lane))
    };
    let sources: Vec<(usize, usize)> = (0..to.per_thread()).map(source).collect::<Option<_>>()?;
    let own = |(i, w): (usize, &i64)| {
        *w == if i < 5 { 1 << i } else { 0 } || i < 5 && from.lanes[i].is_none() && to.lanes[i].is_none()
    };
    let stays = moves.iter().enumerate().all(own) && sources.iter().all(|s| s.1 == 0);
    Some(Shuffle { sources, moves, stays })
}

/// An op as the program's text names it, without its attributes.
pub(super) fn op_name(op: &Op) -> String {
    let debug = format!("{op:?}");
    let name: String = debug.chars().take_while(|c| c.is_alphanumeric()).collect();
    format!("the op {name}")
}

impl<'c> Gen<'c, '_> {
    /// Room for blocks of these bytes that no earlier reader uses.
    pub fn room(&mut self, sizes: &[usize]) -> Res<Vec<usize>> {
        let total: usize = sizes.iter().map(|s| s.next_multiple_of(16)).sum();
        let full = self.scratch.busy + total > (self.scratch.tiles + SOFT_LIMIT).max(self.scratch.high);
        if self.scratch.unknown || full && self.scratch.busy > self.scratch.kept {
            // Other blocks then write elsewhere, so a barrier of this block suffices.
            if self.blocks.turn.is_some() {
                self.e.barrier()?
            } else {
                self.sync()?
            }
            self.scratch.synced();
            self.wrote = false;
        }
        let mut at = self.scratch.busy;
        let starts = sizes.iter().map(|s| {
            let start = at;
            at += s.next_multiple_of(16);
            start
        });
        let starts = starts.collect();
        self.scratch.busy = at;
        self.scratch.high = self.scratch.high.max(at);
        Ok(starts)
    }
    /// A barrier between writing to the room and reading from it.
    pub fn filled(&mut self) -> Res<()> {
        self.wrote = false;
        self.e.barrier()
    }
    pub fn shared_at(&self, bytes: IntValue<'c>, constant: usize) -> Res<PointerValue<'c>> {
        let base = self.e.gep(self.e.i8().into(), self.shared, bytes)?;
        self.e.gep(self.e.i8().into(), base, self.e.int(constant as i64))
    }
    /// Converts each pair's first value to the second's layout.
    pub fn convert_all(&mut self, pairs: &[(Value, Value)]) -> Res<()> {
        let mut through_memory = vec![];
        for &(from, to) in pairs {
            let (a, b) = (self.flat(from)?, self.flat(to)?);
            if self.blocks.count > 1 && a.warps != b.warps {
                return Err(Fail::Unsupported("a layout conversion in an instance of several blocks".into()));
            }
            match shuffle(&a, &b) {
                Some(s) if s.stays || s.sources.len() <= 16 => {
                    let regs = self.shuffled(from, &s)?;
                    self.set(to, regs);
                }
                _ => through_memory.push((from, to, a, b)),
            }
        }
        if through_memory.is_empty() {
            return Ok(());
        }
        let k = self.k;
        let mut plans = vec![];
        for (from, _, a, b) in &through_memory {
            let elem = match k.ty(*from) {
                Type::Block { elem, .. } => *elem,
                // Addresses are exchanged as integers.
                _ => Elem::I64,
            };
            plans.push((elem, Placement::best(a, b, bits_of(k.ty(*from).shape()), elem.bytes())));
        }
        let sizes: Vec<usize> = plans.iter().map(|(e, p)| p.elements * e.bytes()).collect();
        let starts = self.room(&sizes)?;
        for (((from, _, a, _), (elem, place)), start) in through_memory.iter().zip(&plans).zip(&starts) {
            let values = self.words_of(*from)?;
            self.scatter(a, place, *start, &values, *elem)?;
        }
        self.filled()?;
        for (((_, to, _, b), (elem, place)), start) in through_memory.iter().zip(&plans).zip(&starts) {
            let values = self.gather(b, place, *start, *elem)?;
            let regs = match k.ty(*to) {
                Type::Ptr { elem, .. } => self.addresses(&values, *elem)?,
                _ => values.into_iter().map(|v| Reg::of(v, *elem)).collect(),
            };
            self.set(*to, regs);
        }
        Ok(())
    }
    /// A value's registers; addresses as integers.
    fn words_of(&mut self, v: Value) -> Res<Vec<Val<'c>>> {
        let values = self.plain(v)?;
        values
            .into_iter()
            .map(|v| match v {
                Val::PointerValue(p) => Ok(self.e.b.build_ptr_to_int(p, self.e.i64(), "")?.into()),
                v => Ok(v),
            })
            .collect()
    }
    fn addresses(&mut self, values: &[Val<'c>], elem: Elem) -> Res<Vec<Reg<'c>>> {
        values
            .iter()
            .map(|v| {
                let base = self.e.b.build_int_to_ptr(int(*v)?, self.e.ptr(super::emit::GLOBAL), "")?;
                let align = elem.bytes() as u64;
                Ok(Reg::Ptr(super::index::Pointer {
                    base,
                    elem,
                    align,
                    off: 0,
                    readonly: false,
                    cache: CachePolicy::Normal,
                }))
            })
            .collect()
    }
    fn shuffled(&mut self, v: Value, s: &Shuffle) -> Res<Vec<Reg<'c>>> {
        if s.stays {
            let regs = self.regs(v)?;
            return Ok(s.sources.iter().map(|(r, _)| regs[*r]).collect());
        }
        let values = self.words_of(v)?;
        let lane = self.threads.sum(&self.e, &s.moves)?;
        let mut out = vec![];
        for &(r, add) in &s.sources {
            let at = lane.value(&self.e, &mut self.memo)?;
            let at = self.e.xor(at, self.e.int(add as i64))?;
            out.push(self.lane_value("idx", values[r], at)?);
        }
        match self.k.ty(v) {
            Type::Ptr { elem, .. } => self.addresses(&out, *elem),
            ty => {
                let elem = ty.elem().ok_or_else(|| mistyped("an exchange between threads"))?;
                Ok(out.into_iter().map(|v| Reg::of(v, elem)).collect())
            }
        }
    }
    /// A warp shuffle (`idx`: from lane `at`; `bfly`: from lane xor `at`) of a value of any type.
    pub fn lane_value(&mut self, mode: &str, v: Val<'c>, at: IntValue<'c>) -> Res<Val<'c>> {
        let ty = v.get_type();
        let e = &self.e;
        let name = format!("llvm.nvvm.shfl.sync.{mode}.i32");
        let one = |word: IntValue<'c>| -> Res<IntValue<'c>> {
            int(e.call(&name, &[], &[e.int(-1).into(), word.into(), at.into(), e.int(31).into()])?)
        };
        let bits = match v {
            Val::IntValue(i) => i.get_type().get_bit_width(),
            Val::FloatValue(f) => f.get_type().get_bit_width(),
            other => return Err(Fail::Unsupported(format!("a shuffle of {}", other.get_type()))),
        };
        match bits {
            64 => {
                let pair = e.bitcast(v, e.i32().vec_type(2))?;
                let (low, high) = (one(int(e.element(pair, 0)?)?)?, one(int(e.element(pair, 1)?)?)?);
                e.bitcast(e.vector(&[low.into(), high.into()])?, ty)
            }
            32 => e.bitcast(one(int(e.bitcast(v, e.i32())?)?)?.into(), ty),
            _ => {
                let narrow = match bits {
                    16 => e.cx.i16_type(),
                    8 => e.i8(),
                    _ => e.i1(),
                };
                let word = one(e.zext(int(e.bitcast(v, narrow)?)?, e.i32())?)?;
                e.bitcast(e.trunc(word, narrow)?.into(), ty)
            }
        }
    }
    /// Writes a block's registers to scratch.
    pub fn scatter(&mut self, flat: &Flat, p: &Placement, start: usize, values: &[Val<'c>], elem: Elem) -> Res<()> {
        let (base, n) = (self.scratch_base(flat, p, elem)?, p.vector(flat, elem.bytes()));
        self.note_ways(flat, p, n, elem.bytes());
        for (i, part) in values.chunks(n).enumerate() {
            let ptr = self.shared_at(base, start + p.at(flat.register(i * n)) * elem.bytes())?;
            self.shared_store(ptr, part, elem)?;
        }
        Ok(())
    }
    pub fn gather(&mut self, flat: &Flat, p: &Placement, start: usize, elem: Elem) -> Res<Vec<Val<'c>>> {
        let (base, n) = (self.scratch_base(flat, p, elem)?, p.vector(flat, elem.bytes()));
        self.note_ways(flat, p, n, elem.bytes());
        let mut out = vec![];
        for i in (0..flat.per_thread()).step_by(n) {
            let ptr = self.shared_at(base, start + p.at(flat.register(i)) * elem.bytes())?;
            out.extend(self.shared_load(ptr, n, elem)?);
        }
        Ok(out)
    }
    /// Notes how often banks conflict in accesses of `n` elements.
    fn note_ways(&mut self, flat: &Flat, p: &Placement, n: usize, bytes: usize) {
        *self.bank_ways.entry(p.ways(flat, n, bytes)).or_default() += flat.per_thread() / n;
    }
    /// The thread's offset in bytes, which is added to the address of each of its elements.
    pub fn scratch_base(&mut self, flat: &Flat, p: &Placement, elem: Elem) -> Res<IntValue<'c>> {
        let weight = |b: Option<u8>| b.map_or(0, |b| (p.weights[b as usize] * elem.bytes()) as i64);
        let weights: Vec<i64> = flat.threads().map(weight).collect();
        self.threads.sum(&self.e, &weights)?.value(&self.e, &mut self.memo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_block::layout::fragment::Tiling;

    /// Shuffles element numbers and checks that each register gets its own.
    fn check_shuffle(from: &Flat, to: &Flat) {
        let s = shuffle(from, to).unwrap();
        for w in 0..1 << to.warps.len() {
            for l in 0..32usize {
                for (r, &(register, add)) in s.sources.iter().enumerate() {
                    let dynamic: usize = (0..5).filter(|j| l >> j & 1 == 1).map(|j| s.moves[j] as usize).sum();
                    let lane = if s.stays { l } else { dynamic ^ add };
                    assert_eq!(from.at(register, lane, w), to.at(r, l, w), "register {r} of lane {l}");
                }
            }
        }
    }
    /// The same through scratch.
    fn check_memory(from: &Flat, to: &Flat, bits: usize, bytes: usize) -> Placement {
        let p = Placement::best(from, to, bits, bytes);
        let mut memory = vec![None; p.elements];
        for e in 0..1 << bits {
            assert_eq!(memory[p.at(e)].replace(e), None, "two elements in one place");
        }
        for flat in [from, to] {
            let n = p.vector(flat, bytes);
            for (l, r) in [(0, 0), (7, 0), (31, flat.per_thread() / n - 1)] {
                let first = p.at(flat.at(r * n, l, 0));
                assert_eq!(first % n, 0);
                (0..n).for_each(|i| assert_eq!(memory[first + i], Some(flat.at(r * n + i, l, 0))));
            }
        }
        p
    }

    #[test]
    fn slices_and_copies_by_shuffles() {
        let rows = Flat::blocked(&[4, 256], &[1, 0], 4, 2, &[1]).without(&(0..8));
        check_shuffle(&rows, &rows);
        let spread =
            Flat { registers: vec![], lanes: vec![Some(0), Some(1), Some(2), Some(3), Some(4)], warps: vec![] };
        let other = Flat { registers: vec![3], lanes: vec![Some(1), Some(0), None, Some(4), Some(2)], warps: vec![] };
        check_shuffle(&spread, &other);
    }

    #[test]
    fn attention_weights_stay_in_their_threads() {
        let scores = Tiling::new([64, 32, 16], 16, 2, true).unwrap().accumulator();
        let weights = Tiling::new([64, 16, 32], 16, 2, true).unwrap().left(false);
        assert!(shuffle(&scores, &weights).unwrap().stays);
        check_shuffle(&scores, &weights);
    }

    #[test]
    fn transposition_through_memory_is_nearly_free_of_conflicts() {
        let from = Flat::blocked(&[64, 64], &[1, 0], 4, 2, &[]);
        let to = Flat::blocked(&[64, 64], &[0, 1], 4, 2, &[]);
        let p = check_memory(&from, &to, 12, 4);
        // 32 registers per thread, at best 1 pass each (4 bytes) or 4 passes for 4 (16 bytes).
        assert!(p.cost(&from, 4) + p.cost(&to, 4) <= 2 * 32 + 64, "{} + {}", p.cost(&from, 4), p.cost(&to, 4));
    }

    /// Lanes along a row of 32 words, and along a column: without and with a word between rows.
    #[test]
    fn ways_of_conflicts() {
        let lanes =
            |first: u8| Flat { registers: vec![], lanes: (first..first + 5).map(Some).collect(), warps: vec![] };
        let order: Vec<u8> = (0..10).collect();
        let (rows, padded) = (Placement::of(&order, 10, 0), Placement::of(&order, 5, 1));
        assert_eq!([&rows, &padded].map(|p| p.ways(&lanes(0), 1, 4)), [1, 1]);
        assert_eq!([&rows, &padded].map(|p| p.ways(&lanes(5), 1, 4)), [32, 1]);
    }

    #[test]
    fn operands_through_memory() {
        let t = Tiling::new([64, 64, 32], 16, 2, false).unwrap();
        let a = Flat::blocked(&[64, 32], &[1, 0], 8, 2, &[]);
        let b = Flat::blocked(&[32, 64], &[1, 0], 8, 2, &[]);
        check_memory(&a, &t.left(false), 11, 2);
        check_memory(&b, &t.right(false), 11, 2);
        check_memory(&t.accumulator(), &Flat::blocked(&[64, 64], &[1, 0], 8, 2, &[]), 12, 2);
    }
}
