//! All tests of this crate in one program, so that its dependencies (LLVM for some crates) are linked once. A new file
//! under `tests/` needs a line here (`kiln-xtask tests` checks).
mod host_basic;
mod host_check;
mod host_growth;
mod host_loops;
mod host_math;
mod host_nests;
mod host_offsets;
mod host_ops;
mod host_random;
mod launch_arrays;
mod launch_assembly;
mod launch_atomics;
mod launch_control;
mod launch_dots;
mod launch_elements;
mod launch_moves;
mod launch_offsets;
mod launch_pads;
mod launch_random;
mod launch_sizes;
mod launch_values;
mod nvptx_common;
mod nvptx_ptxas;
mod nvptx_run;
mod support;
