//! All tests of this crate in one program, so that its dependencies (LLVM for some crates) are linked once. A new file
//! under `tests/` needs a line here (`kiln-xtask tests` checks).
mod bind;
mod footprints;
mod passes;
mod text;
mod verify;
mod warpgroups;
