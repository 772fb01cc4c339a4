//! Unrolled axes: a thread computes neighbours along an axis for each element of its tile, and what they have in common
//! once: elements that windows share, and partial results of a window's rows.
//!
//! Takes: a nest of points. Gives: the nest of groups of neighbours, whose program is that of each member, with equal
//! nodes once.
use crate::error::LowerError;
use crate::nest::Nest;
use crate::schedule::tile::{no_axis, refusal};
use kiln_plan::{Axis, Step};

/// Most neighbours.
pub const MAX_NEIGHBOURS: usize = 8;

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
    let coord = found.ok_or_else(|| refuse(no_axis(nest, axis)))?;
    if !(2..=MAX_NEIGHBOURS).contains(&count) || !coord.extent.is_multiple_of(count) {
        return Err(refuse(format!(
            "2 to {MAX_NEIGHBOURS} neighbours are computed together, which divide {}",
            coord.extent
        )));
    }
    space.group(coord.id, count);
    nest.moved_to(space)
}
