//! Rows of reductions and scans. Both keep their axes.
use super::{Class, Operands, Rounding, Row, family};
use crate::{ReduceOp, ScanOp};

const fn row(name: &'static str, class: Class, rounding: Rounding) -> Row {
    let operands = Operands::Count(1, 1);
    Row { name, operands, class, weight: 1., rounding, f8: false, infer: None, decompose: None }
}
use Rounding::{Exact, Sums};

family! { ReduceOp, 9:
    Sum => row("reduce.sum", Class::Reduce, Sums),
    Mean => row("reduce.mean", Class::Reduce, Sums),
    Prod => row("reduce.prod", Class::Reduce, Sums),
    Max => row("reduce.max", Class::Reduce, Exact),
    Min => row("reduce.min", Class::Reduce, Exact),
    Any => row("reduce.any", Class::Reduce, Exact),
    All => row("reduce.all", Class::Reduce, Exact),
    ArgMax => row("reduce.argmax", Class::ArgReduce, Exact),
    ArgMin => row("reduce.argmin", Class::ArgReduce, Exact),
}

family! { ScanOp, 2:
    Sum => row("scan.sum", Class::Scan, Sums),
    Prod => row("scan.prod", Class::Scan, Sums),
}
