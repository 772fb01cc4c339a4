//! What operators and primitives mean: which types operands are converted to, how they are broadcast, what is emitted.
//!
//! Takes: values. Gives: values. The rules are Triton's; where it leaves something undefined, the strict reading.
pub mod arithmetic;
pub mod atomic;
pub mod convert;
pub mod dot;
pub mod elements;
pub mod math;
pub mod memory;
pub mod report;
pub mod shape;
pub mod window;
