//! Every test of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks): a program
//! for each would link what the crate stands on, LLVM for some, once for each.
mod filetests;
mod memory_bound;
mod stages;
