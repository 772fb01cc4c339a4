//! Every test of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks): a program
//! for each would link what the crate stands on, LLVM for some, once for each.
mod artifact;
mod decisions;
mod exact;
mod host_rows;
mod indices;
mod invariance;
mod ops;
mod random;
mod targets;
