//! Every test of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks): a program
//! for each would link what the crate stands on, LLVM for some, once for each.
mod host_basic;
mod host_check;
mod host_math;
mod host_nests;
mod host_ops;
mod host_random;
mod nvptx_common;
mod nvptx_ptxas;
mod support;
