//! The memory plan: where each buffer lives. Temporaries and scratch share an arena by liveness; everything else has
//! its own memory.
//!
//! Takes: an executable. Gives: a place for every buffer and for every kernel's scratch, and the sizes of the arenas.
//! Never: allocates anything, or knows a device. Two buffers that are alive during the same kernel never overlap.
use crate::Executable;
use kiln_plan::{BufferKind, Stage};
use std::collections::HashSet;

/// Alignment of every allocation in an arena, in bytes: enough for any vector load and for the GPU's bulk copies.
pub const ALIGN: usize = 256;
/// Distance between the records of out-of-range indices, and between counters, in bytes: the alignment that kernels
/// assume of their arguments.
pub(crate) const RECORD: usize = 16;

/// An allocation and its lifetime, from time `first` to time `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Size in bytes.
    pub bytes: usize,
    /// The first time at which it is alive.
    pub first: usize,
    /// The last time at which it is alive.
    pub last: usize,
}
impl Interval {
    fn meets(&self, o: &Interval) -> bool {
        self.first <= o.last && o.first <= self.last
    }
}

/// Offsets in an arena.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// Offset of each interval in bytes, a multiple of [`ALIGN`].
    pub offsets: Vec<usize>,
    /// Size of the arena in bytes.
    pub bytes: usize,
    /// Most bytes alive at one time: a lower bound of any placement.
    pub live: usize,
}

/// Places allocations, largest first, each into the smallest gap that fits between those whose lifetimes overlap its
/// own.
pub fn place(intervals: &[Interval]) -> Placement {
    let size = |i: usize| intervals[i].bytes.next_multiple_of(ALIGN);
    let mut order: Vec<usize> = (0..intervals.len()).filter(|i| intervals[*i].bytes > 0).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(intervals[*i].bytes), intervals[*i].first, *i));
    let mut offsets = vec![0usize; intervals.len()];
    // Placed so far, sorted by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut bytes = 0;
    for i in order {
        let (mut end, mut best) = (0, None::<(usize, usize)>);
        for &p in placed.iter().filter(|p| intervals[**p].meets(&intervals[i])) {
            let gap = offsets[p].saturating_sub(end);
            if gap >= size(i) && best.is_none_or(|(g, _)| gap < g) {
                best = Some((gap, end));
            }
            end = end.max(offsets[p] + size(p));
        }
        let at = best.map_or(end, |b| b.1);
        offsets[i] = at;
        bytes = bytes.max(at + size(i));
        let rank = placed.partition_point(|p| (offsets[*p], *p) < (at, i));
        placed.insert(rank, i);
    }
    Placement { offsets, bytes, live: most_alive(intervals) }
}

fn most_alive(intervals: &[Interval]) -> usize {
    let mut events: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * intervals.len());
    for i in intervals.iter().filter(|i| i.bytes > 0) {
        events.push((i.first, true, i.bytes.next_multiple_of(ALIGN)));
        events.push((i.last + 1, false, i.bytes.next_multiple_of(ALIGN)));
    }
    events.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, begins, bytes) in events {
        now = if begins { now + bytes } else { now - bytes };
        most = most.max(now);
    }
    most
}

/// Where a buffer lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The caller's n-th input.
    Input(usize),
    /// The n-th parameter.
    Param(usize),
    /// Memory of its own, written at load time and read by runs; lives as long as the session.
    Frozen,
    /// At this offset in bytes of the arena for loading, which is freed afterwards.
    LoadArena(usize),
    /// At this offset in bytes of the arena for runs.
    Arena(usize),
    /// Memory of its own that the caller receives: the n-th output, and possibly later outputs that repeat it.
    Output(usize),
    /// No kernel uses it.
    Nowhere,
}

/// The place of every buffer and scratch of an executable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryPlan {
    /// The place of each buffer, in the order of [`Executable::buffers`].
    pub buffers: Vec<Place>,
    /// For each kernel, the offsets in bytes of its scratch buffers in the arena of its stage.
    pub scratch: Vec<Vec<usize>>,
    /// The arena for load-time kernels, freed after loading.
    pub load: Arena,
    /// The arena for runs.
    pub run: Arena,
    /// Bytes of frozen buffers.
    pub frozen: usize,
    /// Bytes of parameters that runs read or return.
    pub params: usize,
    /// Indices of parameters that only load-time kernels read; they can be dropped after loading.
    pub load_only_params: Vec<usize>,
}
/// The size of an arena, and a lower bound of it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arena {
    /// Size of the arena.
    pub bytes: usize,
    /// Most bytes alive at one time.
    pub live: usize,
}

/// First and last kernel of a stage that touch a buffer.
type Use = Option<(usize, usize)>;

/// Plans the memory of an executable that has been checked ([`Executable::check`]).
pub fn plan(exe: &Executable) -> MemoryPlan {
    let n = exe.buffers.len();
    let [mut load, mut run]: [Vec<Use>; 2] = [vec![None; n], vec![None; n]];
    for (t, k) in exe.kernels.iter().enumerate() {
        let uses = if k.stage == Stage::Load { &mut load } else { &mut run };
        for b in k.inputs.iter().chain(&k.outputs) {
            let u = &mut uses[b.0 as usize];
            *u = Some((u.map_or(t, |u| u.0), t));
        }
    }
    let mut outputs: Vec<Option<usize>> = vec![None; n];
    for (i, o) in exe.outputs.iter().enumerate() {
        outputs[o.0 as usize].get_or_insert(i);
    }
    let output_of = |b: usize| outputs[b];
    let mut m =
        MemoryPlan { buffers: vec![Place::Nowhere; n], scratch: vec![vec![]; exe.kernels.len()], ..Default::default() };
    let (mut load_items, mut run_items) = (Items::default(), Items::default());
    for (b, buffer) in exe.buffers.iter().enumerate() {
        let bytes = buffer.ty.bytes();
        let kept = run[b].is_some() || output_of(b).is_some();
        m.buffers[b] = match buffer.kind {
            BufferKind::Input(i) => Place::Input(i as usize),
            BufferKind::Param(p) => {
                match kept {
                    true => m.params += bytes,
                    false => m.load_only_params.push(p.0 as usize),
                }
                Place::Param(p.0 as usize)
            }
            BufferKind::Frozen | BufferKind::Temp => match (load[b], run[b], output_of(b)) {
                (Some(_), _, _) if kept => {
                    m.frozen += bytes;
                    Place::Frozen
                }
                (Some(u), _, _) => load_items.buffer(b, bytes, u),
                (None, _, Some(o)) => Place::Output(o),
                (None, Some(u), None) => run_items.buffer(b, bytes, u),
                (None, None, None) => Place::Nowhere,
            },
        };
    }
    for (t, k) in exe.kernels.iter().enumerate() {
        let items = if k.stage == Stage::Load { &mut load_items } else { &mut run_items };
        for (s, ty) in k.steps.scratch.iter().enumerate() {
            items.push(Item::Scratch(t, s), ty.bytes(), (t, t));
        }
        m.scratch[t] = vec![0; k.steps.scratch.len()];
    }
    // A parameter may have several buffers: it is load-only if none of them is read by runs.
    let kept: HashSet<usize> = (0..n)
        .filter(|b| run[*b].is_some() || output_of(*b).is_some())
        .filter_map(|b| match m.buffers[b] {
            Place::Param(p) => Some(p),
            _ => None,
        })
        .collect();
    m.load_only_params.retain(|p| !kept.contains(p));
    m.load = load_items.settle(&mut m, Place::LoadArena);
    m.run = run_items.settle(&mut m, Place::Arena);
    m
}

enum Item {
    Buffer(usize),
    Scratch(usize, usize),
}
/// The allocations that share an arena.
#[derive(Default)]
struct Items {
    items: Vec<Item>,
    intervals: Vec<Interval>,
}
impl Items {
    fn push(&mut self, item: Item, bytes: usize, (first, last): (usize, usize)) {
        self.items.push(item);
        self.intervals.push(Interval { bytes, first, last });
    }
    /// Adds a buffer. The place returned is preliminary: `settle` overwrites it.
    fn buffer(&mut self, b: usize, bytes: usize, uses: (usize, usize)) -> Place {
        self.push(Item::Buffer(b), bytes, uses);
        Place::Nowhere
    }
    /// Places all allocations and writes their offsets to the plan.
    fn settle(&self, m: &mut MemoryPlan, make: fn(usize) -> Place) -> Arena {
        let p = place(&self.intervals);
        for (item, offset) in self.items.iter().zip(&p.offsets) {
            match item {
                Item::Buffer(b) => m.buffers[*b] = make(*offset),
                Item::Scratch(k, s) => m.scratch[*k][*s] = *offset,
            }
        }
        Arena { bytes: p.bytes, live: p.live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(intervals: &[Interval]) {
        let p = place(intervals);
        for (i, a) in intervals.iter().enumerate() {
            assert_eq!(p.offsets[i] % ALIGN, 0);
            assert!(
                p.offsets[i] + a.bytes <= p.bytes || a.bytes == 0,
                "{i} ends beyond the arena: {intervals:?} {p:?}"
            );
            for (j, b) in intervals.iter().enumerate().skip(i + 1) {
                let apart = p.offsets[i] + a.bytes <= p.offsets[j] || p.offsets[j] + b.bytes <= p.offsets[i];
                assert!(!a.meets(b) || apart || a.bytes * b.bytes == 0, "{i} and {j} overlap: {intervals:?} {p:?}");
            }
        }
        assert!(p.live <= p.bytes);
    }

    #[test]
    fn live_buffers_never_overlap() {
        let mut random = kiln_graph::Random::new(7);
        let mut next = |n| random.next_below(n);
        for round in 0..500 {
            let n = next(40);
            let intervals: Vec<Interval> = (0..n)
                .map(|_| {
                    let first = next(30);
                    let bytes = if next(8) == 0 { 0 } else { next(if round % 2 == 0 { 5000 } else { 300 }) };
                    Interval { bytes, first, last: first + next(6) }
                })
                .collect();
            check(&intervals);
        }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let chain: Vec<Interval> = (0..10).map(|t| Interval { bytes: 1000, first: t, last: t + 1 }).collect();
        let p = place(&chain);
        assert_eq!((p.bytes, p.live), (2048, 2048));
    }

    #[test]
    fn the_tightest_gap_is_taken() {
        let all = [(4096, 0, 9), (2048, 0, 1), (1536, 0, 9), (1024, 0, 1), (768, 0, 9), (512, 2, 3)];
        let all = all.map(|(bytes, first, last)| Interval { bytes, first, last });
        let p = place(&all);
        assert_eq!(p.offsets[5], p.offsets[3], "{p:?}");
    }
}
