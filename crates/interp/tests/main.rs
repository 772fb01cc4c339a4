//! Every test of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks): a program
//! for each would link what the crate stands on, LLVM for some, once for each.
mod block;
mod block_passes;
mod common;
mod decompose;
mod graph_ops;
mod random;
mod seeds;
mod warpgroups;
