//! All tests of this crate as one program, since each test program links all dependencies (for some crates LLVM) again.
//! A new file under `tests/` needs a line here; `kiln-xtask tests` checks that.
mod bad_input;
mod decisions;
mod foreign;
mod guide;
mod kernel;
mod levels;
mod measure;
mod page;
mod steps;
mod trust;
mod tunings;
