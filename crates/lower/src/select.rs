//! The only place that chooses schedules: lists those that a kernel may have, prices them, and takes the cheapest that
//! fits.
//!
//! [`candidates`] is the entry; [`forms`] lists templates, [`neighbours`] what tuning searches. Nests: [`propose`],
//! ordered by [`order`], under a batch-invariant contract by [`invariant`]; on the host [`host`] has the one schedule.
//! Matmuls: [`matmul`].

pub mod allowed;
pub mod attention;
pub mod candidates;
pub mod conv;
pub mod extents;
pub mod forms;
pub mod gemm;
pub mod host;
pub mod invariant;
pub mod matmul;
pub mod neighbours;
pub mod order;
pub mod pairwise;
pub mod propose;
