//! All tests of this crate in one program. A new file under `tests/` needs a line here (`kiln-xtask tests` checks).
mod arrays;
mod assembly;
mod const_pointers;
mod elements;
mod errors;
mod harness;
mod kernels;
mod mutations;
mod programs;
mod promises;
mod promotion;
mod scaled;
mod sizes;
mod statements;
mod units;
mod warpgroups;
mod windows;
