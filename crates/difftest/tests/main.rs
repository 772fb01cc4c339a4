//! All tests of this crate as one program, since each test program links all dependencies (for some crates LLVM) again.
//! A new file under `tests/` needs a line here; `kiln-xtask tests` checks that.
mod exact;
mod invariance;
mod lengths;
mod ops;
mod ptx;
mod random;
