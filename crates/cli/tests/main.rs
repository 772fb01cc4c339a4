//! Every test of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks): a program
//! for each would link what the crate stands on, LLVM for some, once for each.
mod bad_input;
mod decisions;
mod foreign;
mod guide;
mod levels;
mod measure;
mod page;
mod trust;
