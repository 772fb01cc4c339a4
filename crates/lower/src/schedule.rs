//! Steps of schedules, a file for each: what a step means and when it fits a nest.
//!
//! A refusal names the step and why it does not fit. [`tile`] has the steps that cut axes into tiles, [`apply`] puts
//! the steps of a row program together. Never: emits a program, or compares schedules.

pub mod apply;
pub mod look_back;
pub mod peel;
pub mod persist;
pub mod prefetch;
pub mod reverse;
pub mod row_plan;
pub mod split_reduce;
pub mod stage_operands;
pub mod stage_rows;
pub mod tail;
pub mod tile;
pub mod unroll;
pub mod widen;
