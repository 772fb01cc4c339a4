//! Unrolled axes: a thread computes neighbours along an axis for each element of its tile, and what they have in common once: elements that
//! windows share, and partial results of a window's rows.
//!
//! Takes: a nest of points. Gives: the nest of groups of neighbours, whose program is that of each member, with equal nodes once.
use crate::LowerError;
use crate::facts::{Access, Facts};
use crate::nest::Nest;
use crate::schedule::refusal;
use kiln_plan::{Axis, Step};

/// Most neighbours.
const MOST: usize = 8;

/// How many neighbours along the kept axis number `k` may be computed together, where they read the same elements: the fewest, the most, and
/// half of what may be. Those along the last axis are those of a vector.
pub fn counts(nest: &Nest, facts: &Facts, k: usize) -> Vec<usize> {
    let extents: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let shares = |a: &Access, b: &Access| match a.strides[k] {
        Some(s) if s != 0 && a.strides == b.strides && a.slot == b.slot => {
            let apart = (a.offset - b.offset) / s;
            apart != 0 && apart.unsigned_abs() < MOST as u64 && (a.offset - b.offset) % s == 0
        }
        _ => false,
    };
    // Pieces that are put together are read in few points each.
    let loads = || facts.accesses.iter().filter(|a| !a.store && !a.gathered && a.share > 0.5);
    let last = k + 1 == extents.len();
    if !facts.window || nest.row().is_some() || last || !loads().any(|a| loads().any(|b| shares(a, b))) {
        return vec![];
    }
    let mut all: Vec<usize> = (2..=MOST).filter(|n| extents[k].is_multiple_of(*n)).collect();
    let ends = [all.first().copied(), all.last().copied(), Some(MOST / 2)];
    all.retain(|n| ends.contains(&Some(*n)));
    all
}

/// The nest with `count` neighbours along this axis as one point.
pub fn unrolled<'a>(nest: &Nest<'a>, (axis, count): (Axis, usize)) -> Result<Nest<'a>, LowerError> {
    let refuse = |why: String| refusal(nest, &Step::Unroll(axis, count), why);
    let (mut space, names) = nest.named();
    if nest.row().is_some() {
        return Err(refuse("the nest has a row".into()));
    }
    if space.group.is_some() {
        return Err(refuse("an axis is unrolled already".into()));
    }
    let found = names.iter().find(|n| n.0 == axis).and_then(|n| space.find(n.1).copied());
    let coord = found.ok_or_else(|| refuse(crate::schedule::no_axis(nest, axis)))?;
    if !(2..=MOST).contains(&count) || !coord.extent.is_multiple_of(count) {
        return Err(refuse(format!("2 to {MOST} neighbours are computed together, which divide {}", coord.extent)));
    }
    space.group(coord.id, count);
    nest.moved_to(space)
}
