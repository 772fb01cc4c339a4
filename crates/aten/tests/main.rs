//! All integration tests of this crate in one binary. A new file under `tests/` needs a line here (`kiln-xtask tests`
//! checks).
mod collectives;
mod compare;
mod fuzz;
mod launches;
mod mutate;
mod operators;
