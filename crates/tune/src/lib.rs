//! Autotuning: measures which of the schedules of a kernel is the fastest on this machine, and stores the result.
//!
//! Takes: candidates with predicted times, and a [`Bench`] that compiles and times them. Gives: an [`Outcome`], and a
//! [`Store`] of such outcomes as text. Never: generates candidates, accesses a device or a clock, reads or writes
//! files. The outcome depends on the bench alone, so a fake bench with fixed times gives the same outcome on every
//! machine.
pub mod kernels;
mod machine;
pub mod search;
pub mod store;

pub use kernels::{ConfigurationTime, KernelEntry, KernelKey, Measured};
pub use machine::Machine;
pub use search::{Bench, Budget, Candidate, Outcome, Progress, Timed, search};
pub use store::{Entry, Found, Key, Store, StoreError};
