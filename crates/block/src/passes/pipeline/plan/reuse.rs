//! Shared tiles that an iteration stores again, while dots of the iteration before are in flight.
//!
//! A dot that reads stored tiles starts after a barrier, and dots before it are waited for there. So a tile whose last
//! dot comes before such a barrier is free when it is stored again; where there is no other barrier in an iteration,
//! iterations alternate between two stages.
use super::Plan;
use crate::{BlockProgram, Inst, Value};

/// How storing a tile again avoids dots that still read it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Reuse {
    /// Dots are waited for, by all warps, before it is stored.
    #[default]
    Waits,
    /// They are done by then.
    Free,
    /// Iterations alternate between two stages.
    Alternates,
}

/// A stored tile in the body of a loop: where it is stored, and the dots that read it, in the order of the body.
struct Stored {
    source: Value,
    at: usize,
    dots: Vec<usize>,
}

/// How a pipelined loop reuses the tiles that its body stores.
pub fn loop_reuse(k: &BlockProgram, plan: &Plan, parent: Inst) -> Vec<(Value, Reuse)> {
    let tiles = stored(k, plan, parent);
    let in_flight = plan.pipelines.get(&parent).is_some_and(|p| !p.in_flight.is_empty());
    let reuse = |t: &Stored| match in_flight {
        // Dots are waited for at the end of an iteration, and the next one begins with a barrier.
        false => Reuse::Free,
        true if tiles.iter().any(|other| has_barrier(t, other)) => Reuse::Free,
        true => Reuse::Alternates,
    };
    tiles.iter().map(|t| (t.source, reuse(t))).collect()
}

/// Tiles that the body of a loop stores, and that it alone reads.
fn stored(k: &BlockProgram, plan: &Plan, parent: Inst) -> Vec<Stored> {
    let Some(region) = k.inst(parent).regions.first() else { return vec![] };
    let mut all = vec![];
    for (at, inst) in region.insts.iter().enumerate() {
        for source in &k.inst(*inst).results {
            if plan.tiles.get(source).is_none_or(|t| t.copied.is_some()) {
                continue;
            }
            let reads = |i: &Inst| plan.matmuls.get(i).is_some_and(|m| m.sources().contains(source));
            let dots: Vec<usize> = (0..region.insts.len()).filter(|n| reads(&region.insts[*n])).collect();
            if dots.len() == plan.matmuls.keys().filter(|i| reads(i)).count() {
                all.push(Stored { source: *source, at, dots });
            }
        }
    }
    all
}

/// Whether the barrier of another tile's first dot is between a tile's last dot and its next store.
fn has_barrier(tile: &Stored, other: &Stored) -> bool {
    let (Some(last), Some(first)) = (tile.dots.last(), other.dots.first()) else { return false };
    tile.source != other.source && (other.at > *last || *first < tile.at)
}
