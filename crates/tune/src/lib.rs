//! Tuning: which of the templates that take a matmul is the fastest on this machine, found by measuring, and kept.
//!
//! Takes: candidates with predicted times, and a [`Bench`] that compiles and times them. Gives: an [`Outcome`], and a [`Store`] of
//! such outcomes as text.
//! Never: makes candidates, knows a device or a clock, reads or writes files. What it finds depends on the bench alone, so a bench
//! that makes up its times gives the same outcome on every machine.
pub mod search;
pub mod store;

pub use search::{Bench, Budget, Candidate, Outcome, Progress, Timed, search};
pub use store::{Entry, Found, Key, Machine, Store, StoreError};
