//! Rows of pointwise ops with two operands of one dtype, which broadcast: arithmetic, logic, comparison.
use super::{Class, Operands, Rounding, Row, family};
use crate::{BinaryOp, CompareOp};

const fn row(name: &'static str, weight: f64, rounding: Rounding) -> Row {
    let operands = Operands::Count(2, 2);
    Row { name, operands, class: Class::Pointwise, weight, rounding, f8: false, infer: None, decompose: None }
}
use Rounding::{Exact, Once, Sums};

family! { BinaryOp, 14:
    Add => row("add", 1., Sums),
    Sub => row("sub", 1., Sums),
    Mul => row("mul", 1., Once),
    Div => row("div", 8., Once),
    FloorDiv => row("floor_div", 8., Once),
    Remainder => row("remainder", 8., Once),
    Fmod => row("fmod", 8., Once),
    Pow => row("pow", 8., Once),
    Max => row("max", 1., Exact),
    Min => row("min", 1., Exact),
    Atan2 => row("atan2", 16., Once),
    And => row("and", 1., Once),
    Or => row("or", 1., Once),
    Xor => row("xor", 1., Once),
}

impl BinaryOp {
    /// Whether the operands may be swapped.
    pub fn commutes(self) -> bool {
        use BinaryOp::*;
        matches!(self, Add | Mul | Max | Min | And | Or | Xor)
    }
}

family! { CompareOp, 6:
    Eq => row("eq", 1., Exact),
    Ne => row("ne", 1., Exact),
    Lt => row("lt", 1., Exact),
    Le => row("le", 1., Exact),
    Gt => row("gt", 1., Exact),
    Ge => row("ge", 1., Exact),
}
