//! Slow, obvious interpreters of graphs ([`graph`]) and of block programs ([`block`]): the oracle that compiled code must match.
pub mod block;
pub mod graph;
