//! Rows of reductions and scans. Both keep their axes.
use super::{Class, Operands, Rounding, Row, family};

const fn row(name: &'static str, class: Class, rounding: Rounding) -> Row {
    let operands = Operands::Count(1, 1);
    Row { name, operands, class, weight: 1., rounding, f8: false, infer: None, decompose: None }
}
use Rounding::{Exact, Sums};

family! {
    /// Reductions. `Sum` and `Prod` do not take bool (cast to i64 first). `ArgMax` and `ArgMin` give i64, the first of equal elements; NaN
    /// wins over all numbers.
    ReduceOp, 9:
    /// `aten::sum`; 0 over no elements.
    Sum => row("reduce.sum", Class::Reduce, Sums),
    /// `aten::mean`, of floats; NaN over no elements.
    Mean => row("reduce.mean", Class::Reduce, Sums),
    /// `aten::prod`; 1 over no elements.
    Prod => row("reduce.prod", Class::Reduce, Sums),
    /// `aten::amax`: NaN if any element is NaN. Undefined over axes of size 0.
    Max => row("reduce.max", Class::Reduce, Exact),
    /// `aten::amin`: NaN if any element is NaN. Undefined over axes of size 0.
    Min => row("reduce.min", Class::Reduce, Exact),
    /// `aten::any`, of bool.
    Any => row("reduce.any", Class::Reduce, Exact),
    /// `aten::all`, of bool.
    All => row("reduce.all", Class::Reduce, Exact),
    /// `aten::argmax`, over exactly one axis.
    ArgMax => row("reduce.argmax", Class::ArgReduce, Exact),
    /// `aten::argmin`, over exactly one axis.
    ArgMin => row("reduce.argmin", Class::ArgReduce, Exact),
}

family! {
    /// Inclusive scans along one axis.
    ScanOp, 2:
    /// `aten::cumsum`.
    Sum => row("scan.sum", Class::Scan, Sums),
    /// `aten::cumprod`.
    Prod => row("scan.prod", Class::Scan, Sums),
}
