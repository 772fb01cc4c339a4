//! All integration tests of this crate, in one binary. A new file under `tests/` needs a line here (`kiln-xtask tests`
//! checks this): a binary per file would link the dependencies once per file.
mod cuda;
mod cuda_caller;
mod cuda_shared;
mod foreign;
mod host;
mod launch;
mod random;
mod shared;
