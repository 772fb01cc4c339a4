//! All tests of this crate as one program, since each test program links all dependencies (for some crates LLVM) again.
//! A new file under `tests/` needs a line here; `kiln-xtask tests` checks that.
mod artifact;
mod certificates;
mod decisions;
mod engine;
mod exported;
mod forms;
mod fused_launches;
mod host_rows;
mod indices;
mod launches;
mod machine_code;
mod opened;
mod prices;
mod reference;
mod state;
mod targets;
