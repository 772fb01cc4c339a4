//! How K is split into slices, and the schedules of a matmul by warpgroups that tuning tries.
use super::cost;
use super::operand::{Major, Side, majors};
use super::shape::{self, Choices, Engine, SPAN, Through};
use crate::matmul::Matmul;
use crate::multiply::Tile;
use kiln_graph::DType;

/// Most split-K slices.
const MOST: usize = 16;

/// Split-K slices: `count` of them, each of length `len` except the last, which may end earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    pub count: usize,
    pub len: usize,
}
impl Parts {
    /// As even as whole stages allow.
    fn of(count: usize, k: usize, engine: Engine) -> Option<Parts> {
        if count == 1 {
            return Some(Parts { count, len: k });
        }
        let stage = 2 * SPAN / engine.bytes();
        let len = k.div_ceil(count).next_multiple_of(stage);
        ((count - 1) * len < k).then_some(Parts { count, len })
    }
    /// The matmul of slices, which has them as an additional first batch axis.
    fn piece<'a>(self, p: &Matmul<'a>) -> Matmul<'a> {
        match self.count {
            1 => Matmul { batch: p.batch.clone(), ..*p },
            n => Matmul { batch: [&[n], &p.batch[..]].concat(), k: self.len, whole: Some(p.k), ..*p },
        }
    }
}

/// For each number of slices: the slices, the matmul of them, and the bytes of an element that a tile stores.
fn pieces<'a>(p: &'a Matmul, engine: Engine) -> impl Iterator<Item = (Parts, Matmul<'a>, usize)> {
    (1..=MOST).filter_map(move |n| {
        // An array of windows goes on beyond K: its slices are whole.
        let parts = Parts::of(n, p.k, engine).filter(|parts| p.run.is_none() || parts.count * parts.len == p.k)?;
        Some((parts, parts.piece(p), if n > 1 { 4 } else { engine.bytes().max(2) }))
    })
}
fn elements(p: &Matmul) -> usize {
    p.batch.iter().product::<usize>() * p.m * p.n * p.sums()
}

/// Splits of K that some shape fits, those with the least predicted time first, the launch that sums slices included.
pub fn parts(p: &Matmul, dtype: DType, sides: [Side; 2]) -> Vec<Parts> {
    let Some(engine) = Engine::of(dtype, p.precision, majors(sides)) else { return vec![] };
    timed(p, engine, sides).into_iter().map(|t| t.1).collect()
}
/// So many slices.
pub fn in_slices(p: &Matmul, dtype: DType, sides: [Side; 2], count: usize) -> Option<Parts> {
    Parts::of(count, p.k, Engine::of(dtype, p.precision, majors(sides))?)
}
/// Predicted clock cycles of the matmul as lowering chooses it, the launch that sums slices included.
pub fn cycles(p: &Matmul, dtype: DType, sides: [Side; 2]) -> Option<f64> {
    let engine = Engine::of(dtype, p.precision, majors(sides))?;
    timed(p, engine, sides).first().map(|t| t.0)
}
fn timed(p: &Matmul, engine: Engine, sides: [Side; 2]) -> Vec<(f64, Parts)> {
    let timed = pieces(p, engine).filter_map(|(parts, piece, outputs)| {
        let shape = shape::choose(&piece, engine, sides, &Through { stored: vec![outputs], prefetched: false })?;
        let time = shape.cycles(&piece, sides) + cost::sum(p, parts.count, elements(p));
        Some((time, parts))
    });
    let mut all: Vec<(f64, Parts)> = timed.collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// Whether 3xTF32 is predicted to be faster than one exact f32 matmul, the copies that split both operands (`elements`
/// in all) included.
pub fn prefers_3xtf32(p: &Matmul, elements: usize) -> bool {
    let best = |engine, major| timed(p, engine, [Side { major, lines: true }; 2]).first().map(|t| t.0);
    let Some(three) = best(Engine::Tf32x3, Major::Depth) else { return false };
    best(Engine::Simt, Major::Outer).is_none_or(|one| three + cost::split_3xtf32(&p.machine.gemm, elements) < one)
}

/// Slices and tiles that fit the matmul, with the microseconds they are predicted to take. `prefetched`: the epilogue reads a tile that can be
/// copied ahead.
pub fn candidates(p: &Matmul, dtype: DType, sides: [Side; 2], prefetched: bool) -> Vec<(usize, Tile, f64)> {
    let Some(engine) = Engine::of(dtype, p.precision, majors(sides)) else { return vec![] };
    let mut all = vec![];
    for (parts, piece, outputs) in pieces(p, engine) {
        let through = Through { stored: vec![outputs], prefetched: prefetched && parts.count == 1 };
        for &(m, n, copies, spans) in engine.tiles() {
            for (cluster, in_flight) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
                let choices = Choices { cluster: Some(cluster), ..Choices::of(in_flight) };
                let found = shape::shape(&piece, engine, [m, n, copies, spans], choices, sides, &through);
                all.extend(found.map(|s| {
                    let cycles = s.cycles(&piece, sides) + cost::sum(p, parts.count, elements(p));
                    (parts.count, s.tile(p.machine), cycles / p.machine.units.clock * 1e6)
                }));
            }
        }
    }
    all
}
