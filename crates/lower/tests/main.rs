//! Every test of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks): a program
//! for each would link what the crate stands on, LLVM for some, once for each.
mod common;
mod conv;
mod epilogue;
mod indices;
mod large;
mod matmul;
mod nested;
mod pointwise;
mod pool;
mod random;
mod reduction;
mod scatter;
mod schedule;
mod template;
