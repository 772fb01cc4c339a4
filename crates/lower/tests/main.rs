//! All tests of this crate in one program, so that dependencies (LLVM for some crates) are linked once. A new file
//! under `tests/` needs a line here (`kiln-xtask tests` checks).
mod attention;
mod common;
mod computed_operands;
mod conv;
mod epilogue;
mod handwritten;
mod indices;
mod key_blocks;
mod large;
mod launches;
mod left_registers;
mod lengths;
mod masks;
mod matmul;
mod multiply;
mod nested;
mod pairs;
mod pointwise;
mod pool;
mod prices;
mod random;
mod reduction;
mod scatter;
mod schedules;
mod score_tiles;
