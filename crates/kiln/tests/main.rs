//! All tests of this crate as one program, since each test program links all dependencies (for some crates LLVM) again. A new file under
//! `tests/` needs a line here; `kiln-xtask tests` checks that.
mod artifact;
mod decisions;
mod engine;
mod exact;
mod exported;
mod host_rows;
mod indices;
mod invariance;
mod lengths;
mod machine_code;
mod opened;
mod ops;
mod ptx;
mod random;
mod reference;
mod state;
mod targets;
