//! How K is split into slices, and the schedules of a matmul by warpgroups.
use super::cost;
use super::operand::{Side, majors};
use super::shape::{self, Choices, Engine, SPAN, Through};
use crate::matmul::Matmul;
use crate::multiply::Tile;
use kiln_graph::DType;

/// Most slices.
pub const SLICES: usize = 16;

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

fn elements(p: &Matmul) -> usize {
    p.batch.iter().product::<usize>() * p.m * p.n * p.sums()
}

/// So many slices.
pub fn in_slices(p: &Matmul, dtype: DType, sides: [Side; 2], count: usize) -> Option<Parts> {
    Parts::of(count, p.k, Engine::of(dtype, p.precision, majors(sides))?)
}

/// Slices (at most `most`) and tiles that fit a matmul, with the cycles they are predicted to take, the launch that sums slices included.
/// Larger tiles come first.
pub fn candidates(
    p: &Matmul,
    dtype: DType,
    sides: [Side; 2],
    through: &Through,
    most: usize,
) -> Vec<(usize, Tile, f64)> {
    let Some(engine) = Engine::of(dtype, p.precision, majors(sides)) else { return vec![] };
    let mut all = vec![];
    // Slices are stored as they are summed.
    let sums = Through { stored: vec![DType::F32.bytes()], prefetched: false };
    for count in 1..=most {
        // An array of windows goes on beyond K: its slices are whole.
        let parts = Parts::of(count, p.k, engine).filter(|parts| p.run.is_none() || count * parts.len == p.k);
        let Some(parts) = parts else { continue };
        let (piece, through) = (parts.piece(p), if count == 1 { through } else { &sums });
        for &(m, n, copies, spans) in engine.tiles().iter().filter(|t| !engine.is_wide(p, t)) {
            for (cluster, in_flight) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
                let choices = Choices { cluster, ..Choices::of(in_flight) };
                let found = shape::shape(&piece, engine, [m, n, copies, spans], choices, sides, through);
                all.extend(found.map(|s| {
                    let cycles = s.cycles(&piece, sides) + cost::sum(p, count, elements(p));
                    (count, s.tile(p.machine), cycles)
                }));
            }
        }
    }
    all
}
