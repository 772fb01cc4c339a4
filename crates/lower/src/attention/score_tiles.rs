//! Operands of the scores that come as tiles through tensor maps: biases and masks over queries and keys.
//!
//! A vector over keys or over queries stays with the loads by address: a thread needs few of its elements, and several
//! rows or columns share them. So does what no tensor map describes: strides that are no multiples of 16 bytes, indices
//! that are read, elements of which only some are there.
use crate::emit::frame::{Used, loads};
use crate::matmul::wgmma::strided::Strided;
use crate::scalar::dag::{Dag, NodeId, NodeOp};
use crate::scalar::expr::CoordId;

/// Widest element in bytes: wider ones would fill a thread's registers.
const WIDEST: usize = 4;

/// Nodes that the score reads as arrays of these rows and columns, those of narrow elements first: they take the least
/// room.
pub fn of(dag: &Dag, score: NodeId, extents: &[usize], axes: [(CoordId, usize); 2]) -> Vec<(NodeId, Strided)> {
    let bytes = |n: NodeId| dag.node(n).dtype.bytes();
    let array = |n: NodeId| match &dag.node(n).op {
        NodeOp::Load { slot, at, guards } if guards.is_empty() && bytes(n) <= WIDEST => {
            Strided::array(*slot, at, extents, axes, bytes(n))
        }
        _ => None,
    };
    let mut all: Vec<(NodeId, Strided)> =
        dag.reach_until(&[score], |_| false).into_iter().filter_map(|n| Some((n, array(n)?))).collect();
    all.sort_by_key(|(n, _)| bytes(*n));
    all
}

/// Buffers that the score reads beside these tiles.
pub fn others(dag: &Dag, score: NodeId, tiles: &[NodeId]) -> Vec<Used> {
    let is_tile = |n: NodeId| tiles.contains(&n);
    let mut rest = dag.reach_until(&[score], is_tile);
    rest.retain(|n| !is_tile(*n));
    loads(dag, &rest, |_| true)
}
