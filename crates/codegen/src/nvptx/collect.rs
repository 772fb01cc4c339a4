//! Reads and combines partial results of a reduction, which lie in shared memory.
use super::emit::Res;
use super::exchange::Placement;
use super::r#gen::Gen;
use super::places::{Places, READS};
use super::reduce::{Combiner, Part, widest};
use inkwell::values::IntValue;
use kiln_block::Elem;
use kiln_block::layout::Flat;

impl<'c> Gen<'c, '_> {
    /// Room for `sharers` partial results of each of 2^`bits` elements, followed by room for the results if these are
    /// first combined there.
    pub fn partials(&mut self, elems: &[Elem], bits: usize, sharers: usize, registers: usize) -> Res<Vec<usize>> {
        let places = sharers + usize::from(registers * sharers > READS);
        let sizes: Vec<usize> = elems.iter().map(|e| (places << bits) * e.bytes()).collect();
        self.room(&sizes)
    }
    /// The results for the registers of `slice`, the same in every replica.
    pub(super) fn collect(
        &mut self,
        by: Combiner,
        elems: &[Elem],
        slice: &Flat,
        bits: usize,
        sharers: usize,
        starts: &[usize],
    ) -> Res<Vec<Part<'c>>> {
        let places = Places::of(slice, bits, sharers, widest(elems));
        let element: Vec<i64> = slice.threads().map(|b| b.map_or(0, |b| places.element << b)).collect();
        let registers = slice.per_thread();
        // Lanes may take one partial result each if they do not already distinguish elements of the result.
        let lanes = sharers.ilog2() as usize;
        let alone = registers == 1 && element[..lanes].iter().all(|w| *w == 0);
        let by_lane = (8..=32).contains(&sharers) && places.sharer == 1 && alone;
        if !by_lane && registers * sharers > READS {
            return self.collect_shared_out(by, elems, slice, bits, sharers, starts);
        }
        let count = if by_lane { 1 } else { sharers };
        let mut all: Vec<Vec<Part<'c>>> = vec![vec![vec![]; count]; registers];
        for (elem, start) in elems.iter().zip(starts) {
            let lane = |i: usize| if by_lane && i < lanes { 1 << i } else { 0 };
            let weights: Vec<i64> = element.iter().enumerate().map(|(i, w)| w + lane(i)).collect();
            let at = self.byte_offset(&weights, *elem)?;
            for (i, run) in all.chunks_mut(places.run).enumerate() {
                let first = start + places.of_element(slice.register(i * places.run)) * elem.bytes();
                self.read_partials(at, first, (places, *elem), run)?;
            }
        }
        let mut out = vec![];
        for slots in all {
            let part = self.combine_all(by, elems, slots)?;
            out.push(self.over_lanes(by, elems, part, if by_lane { lanes } else { 0 })?);
        }
        Ok(out)
    }
    /// Every thread combines its share of the results; then all read what they need.
    fn collect_shared_out(
        &mut self,
        by: Combiner,
        elems: &[Elem],
        slice: &Flat,
        bits: usize,
        sharers: usize,
        starts: &[usize],
    ) -> Res<Vec<Part<'c>>> {
        let places = Places::of(slice, bits, sharers, widest(elems));
        let own = 5 + self.own_warp_bits();
        // Lanes of an element: one where those of a warp read what a sharer has.
        let lanes = if places.sharer == 1 { sharers.min(32) } else { 1 };
        let (low, each) = (lanes.ilog2() as usize, sharers / lanes);
        let together = (1usize << bits).min(1 << (own - low));
        // Bits of the thread number: lanes of one element, then elements, then replicas.
        let weights = |lane: i64, element: i64| -> Vec<i64> {
            let elements = low + together.ilog2() as usize;
            let weight = |i: usize| match i {
                i if i < low => lane << i,
                i if i < elements => element << (i - low),
                _ => 0,
            };
            (0..own).map(weight).collect()
        };
        let replicas = ((1i64 << own) - 1) & !(((together << low) - 1) as i64);
        for first in (0..1usize << bits).step_by(together) {
            let after = self.new_block("results");
            let only = |g: &mut Self, idle: i64| -> Res<()> {
                let (when, then) = (g.threads.first(&g.e, idle)?, g.new_block("result"));
                g.e.b.build_conditional_branch(when, then, after)?;
                g.e.b.position_at_end(then);
                Ok(())
            };
            if lanes == 1 {
                only(self, replicas)?;
            }
            let mut slots: Vec<Part<'c>> = vec![vec![]; each];
            for (elem, start) in elems.iter().zip(starts) {
                let at = self.byte_offset(&weights(each as i64, places.element), *elem)?;
                let from = start + places.of_element(first) * elem.bytes();
                self.read_partials(at, from, (places, *elem), std::slice::from_mut(&mut slots))?;
            }
            let part = self.combine_all(by, elems, slots)?;
            let part = self.over_lanes(by, elems, part, low)?;
            if lanes > 1 {
                only(self, replicas | (lanes as i64 - 1))?;
            }
            for (v, (elem, start)) in part.iter().zip(elems.iter().zip(starts)) {
                let at = self.byte_offset(&weights(0, 1), *elem)?;
                let ptr = self.shared_at(at, start + ((sharers << bits) + first) * elem.bytes())?;
                self.shared_store(ptr, &[*v], *elem)?;
            }
            self.e.b.build_unconditional_branch(after)?;
            self.e.b.position_at_end(after);
            self.memo = super::index::Memo::default();
        }
        self.filled()?;
        let place = Placement { weights: (0..bits).map(|b| 1 << b).collect(), elements: 1 << bits };
        let mut out: Vec<Part<'c>> = vec![vec![]; slice.per_thread()];
        for (elem, start) in elems.iter().zip(starts) {
            let values = self.gather(slice, &place, start + (sharers << bits) * elem.bytes(), *elem)?;
            out.iter_mut().zip(values).for_each(|(part, v)| part.push(v));
        }
        Ok(out)
    }
    /// Appends to the slots of each of a run of elements the value of the next sharer, from `at + start` on.
    fn read_partials(
        &mut self,
        at: IntValue<'c>,
        start: usize,
        (places, elem): (Places, Elem),
        run: &mut [Vec<Part<'c>>],
    ) -> Res<()> {
        let sharers = run.first().map_or(0, Vec::len);
        let vector = if places.sharer == 1 { sharers.min(16 / elem.bytes()) } else { 1 };
        for first in (0..sharers).step_by(vector) {
            let ptr = self.shared_at(at, start + first * places.sharer as usize * elem.bytes())?;
            for (i, v) in self.shared_load(ptr, vector * run.len(), elem)?.into_iter().enumerate() {
                run[i / vector][first + i % vector].push(v);
            }
        }
        Ok(())
    }
    fn over_lanes(&mut self, by: Combiner, elems: &[Elem], mut part: Part<'c>, bits: usize) -> Res<Part<'c>> {
        for i in 0..bits {
            part = self.with_lane(by, elems, &part, i)?;
        }
        Ok(part)
    }
    pub fn byte_offset(&mut self, weights: &[i64], elem: Elem) -> Res<IntValue<'c>> {
        let bytes: Vec<i64> = weights.iter().map(|w| w * elem.bytes() as i64).collect();
        self.threads.sum(&self.e, &bytes)?.value(&self.e, &mut self.memo)
    }
}
