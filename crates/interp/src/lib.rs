//! Slow, obvious interpreters of graphs ([`graph`]), of block programs ([`block`]) and of PTX ([`ptx`]): the oracle
//! that compiled code must match.
pub mod block;
pub mod graph;
pub mod ptx;
