//! The text form of a graph: prints, parses back to an equal graph, and is easy to write by hand.
//!
//! ```text
//! # Comments run from `#` or `;` to the end of the line.
//! graph bias_gelu(%x: f32[64,256]) {
//!   @b "bias": f32[256] = random(seed=1, scale=0.1)
//!   %sum = add %x, @b
//!   %y = gelu_tanh %sum : f32[64,256] loc("mlp.act", "model.py:12")
//!   return %y
//! }
//! ```
//! - Names of values (`%x`) and parameters (`@b`) consist of letters, digits, `_` and `.`; the printer uses numbers.
//! - A line is `%name = op operands attributes : type loc("module", "file:line")`. `loc` is optional, and so is the
//!   type, except for `iota` and `input`. Operands are separated by commas; attributes are `key=value`, in any order.
//! - An operand is a value, a parameter, or (not printed) a number, which becomes a constant of the other operands'
//!   dtype.
//! - A block program is declared in front of its launches, as text or by its file (`kernel @scale from "scale.kiln"`).
//!   `%y = launch scale(x=%x, out=new f32[8], n=8) grid=[1]` launches it: `%x` is read, `copy %x` gives a result that
//!   starts as a copy, `new f32[8]` gives a result that the program writes, a number is a scalar of the launch.
//! - A parameter's data is `external` (the default), `random(seed=, scale=)`, `fill(value)` or a list `[1.0, 2.0]`.
//!
//! Never panics: text that does not parse, infer and verify is an error with line and column.
mod lex;
mod ops;
mod parse;
mod print;
mod programs;

pub use parse::{ReadFile, parse, parse_with};
pub use print::{attributes, print};

use crate::{Graph, GraphError};

impl std::fmt::Display for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print(self))
    }
}

impl std::str::FromStr for Graph {
    type Err = GraphError;
    fn from_str(text: &str) -> Result<Graph, GraphError> {
        parse(text)
    }
}
