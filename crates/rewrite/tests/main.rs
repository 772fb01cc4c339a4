//! All tests of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks):
//! with one program per file, the crate's dependencies (LLVM for some) would be linked once per file.
mod common;
mod constraints;
mod cross_entropy;
mod differential;
mod fusion;
mod growth;
mod log_sum_exp;
mod models;
mod operands;
mod planning;
mod proofs;
mod sinks;
