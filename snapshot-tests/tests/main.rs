//! All tests of this crate as one program, since each test program links all dependencies (for some crates LLVM) again.
//! A new file under `tests/` needs a line here; `kiln-xtask tests` checks that.
mod filetests;
mod layouts;
mod machines;
mod memory_bound;
mod stages;
