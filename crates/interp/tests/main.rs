//! All integration tests of this crate in one binary. A new file under `tests/` needs a line here (`kiln-xtask tests`
//! checks). One binary per file would link the crate's dependencies (for some crates LLVM) once per file.
mod block;
mod block_passes;
mod decompose;
mod graph_ops;
mod left_registers;
mod parts;
mod random;
mod seeds;
mod warpgroups;
mod written;
