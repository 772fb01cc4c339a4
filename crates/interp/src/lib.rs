//! Slow, obvious interpreters of graphs and of block programs: what every other way of running must agree with.
pub mod block;
pub mod graph;
