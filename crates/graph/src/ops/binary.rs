//! Rows of pointwise ops with two operands of one dtype, which broadcast: arithmetic, logic, comparison.
use super::{Class, Operands, Rounding, Row, family};

const fn row(name: &'static str, weight: f64, rounding: Rounding) -> Row {
    let operands = Operands::Count(2, 2);
    Row { name, operands, class: Class::Pointwise, weight, rounding, f8: false, infer: None, decompose: None }
}
use Rounding::{Exact, Once, Sums};

family! {
    /// Pointwise ops with two operands of one dtype. The result has that dtype.
    BinaryOp, 14:
    /// `aten::add`.
    Add => row("add", 1., Sums),
    /// `aten::sub`.
    Sub => row("sub", 1., Sums),
    /// `aten::mul`.
    Mul => row("mul", 1., Once),
    /// True division (floats); truncating division (integers).
    Div => row("div", 8., Once),
    /// Division rounded toward minus infinity.
    FloorDiv => row("floor_div", 8., Once),
    /// Remainder with the sign of the divisor (`torch.remainder`).
    Remainder => row("remainder", 8., Once),
    /// Remainder with the sign of the dividend (`torch.fmod`).
    Fmod => row("fmod", 8., Once),
    /// A rank-0 exponent of 0.5 or -0.5 is computed as a root, as `torch.pow` does with a number.
    Pow => row("pow", 8., Once),
    /// NaN if either is NaN.
    Max => row("max", 1., Exact),
    /// NaN if either is NaN.
    Min => row("min", 1., Exact),
    /// `aten::atan2`.
    Atan2 => row("atan2", 16., Once),
    /// Logical (bool) or bitwise (integers).
    And => row("and", 1., Once),
    /// Logical (bool) or bitwise (integers).
    Or => row("or", 1., Once),
    /// Logical (bool) or bitwise (integers).
    Xor => row("xor", 1., Once),
}

impl BinaryOp {
    /// Whether the operands may be swapped.
    pub fn commutes(self) -> bool {
        use BinaryOp::*;
        matches!(self, Add | Mul | Max | Min | And | Or | Xor)
    }
}

family! {
    /// Comparisons of two operands of one dtype. The result is bool; with a NaN all but `Ne` are false.
    CompareOp, 6:
    /// `a == b`.
    Eq => row("eq", 1., Exact),
    /// `a != b`.
    Ne => row("ne", 1., Exact),
    /// `a < b`.
    Lt => row("lt", 1., Exact),
    /// `a <= b`.
    Le => row("le", 1., Exact),
    /// `a > b`.
    Gt => row("gt", 1., Exact),
    /// `a >= b`.
    Ge => row("ge", 1., Exact),
}
