//! The text form of block programs: prints, and parses back to the same program.
//!
//! ```text
//! # Comments start with # or ;
//! kernel @double(%x: ptr<f32> readonly align 16, %out: ptr<f32>) grid [8, 1, 1] warps 4 {
//!   %pid = program_id 0 : i32
//!   %n = const 128 : i32
//!   %start = mul %pid, %n : i32
//!   %from = ptr_add %x, %start : ptr<f32>
//!   ...
//! }
//! ```
//! One op per line: results, `=`, the op with its attributes, operands, `:` and the results' types, then regions.
//! Values are `v3` or `%name`; names are only for the reader and are not kept. A pointer parameter without `align` is
//! aligned to 16 bytes. `ieee` before the brace: [`crate::Arithmetic::Ieee`].
//! `parse(print(k))` is [`crate::BlockProgram::compacted`] of `k`.
//! Never checks more than the syntax needs; types and dominance are up to [`crate::verify`].
mod lexer;
mod names;
mod parser;
mod printer;

pub use parser::{MAX_DEPTH, parse};
pub use printer::{print, print_inst};
