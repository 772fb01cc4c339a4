//! All integration tests of this crate in one binary. A new file under `tests/` needs a line here (`kiln-xtask tests`
//! checks). One binary per file would link the crate's dependencies (for some crates LLVM) once per file.
mod infer;
mod launch;
mod text;
