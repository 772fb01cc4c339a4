//! Passes from the upper level of block IR to the lower, as functions from kernel to kernel.
pub mod layout;
