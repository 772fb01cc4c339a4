//! Names of ops, as they stand in the text form, in plans and in messages.
use crate::{BinaryOp, CompareOp, Op, PoolKind, ReduceOp, ScanOp, UnaryOp};

/// Gives an enum without fields its list of variants, their names, and the way back.
macro_rules! names {
    ($ty:ident, $n:literal: $($variant:ident $name:literal),* $(,)?) => {
        impl $ty {
            pub const ALL: [$ty; $n] = [$($ty::$variant),*];
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $name),* }
            }
            pub fn from_name(name: &str) -> Option<$ty> {
                $ty::ALL.into_iter().find(|v| v.name() == name)
            }
        }
    };
}

names!(UnaryOp, 40:
    Neg "neg", Abs "abs", Sign "sign", Exp "exp", Exp2 "exp2", Expm1 "expm1", Log "log", Log2 "log2", Log10 "log10",
    Log1p "log1p", Sqrt "sqrt", Rsqrt "rsqrt", Reciprocal "reciprocal", Sin "sin", Cos "cos", Tan "tan", Asin "asin",
    Acos "acos", Atan "atan", Sinh "sinh", Cosh "cosh", Tanh "tanh", Erf "erf", Floor "floor", Ceil "ceil",
    Round "round", Trunc "trunc", Not "not", IsNan "is_nan", IsInf "is_inf", Relu "relu", Sigmoid "sigmoid",
    Silu "silu", GeluErf "gelu_erf", GeluTanh "gelu_tanh", Softplus "softplus", Mish "mish", Hardswish "hardswish",
    Hardsigmoid "hardsigmoid", LogSigmoid "log_sigmoid");
names!(BinaryOp, 14:
    Add "add", Sub "sub", Mul "mul", Div "div", FloorDiv "floor_div", Remainder "remainder", Fmod "fmod", Pow "pow",
    Max "max", Min "min", Atan2 "atan2", And "and", Or "or", Xor "xor");
names!(CompareOp, 6: Eq "eq", Ne "ne", Lt "lt", Le "le", Gt "gt", Ge "ge");
names!(ReduceOp, 9:
    Sum "reduce.sum", Mean "reduce.mean", Prod "reduce.prod", Max "reduce.max", Min "reduce.min", Any "reduce.any",
    All "reduce.all", ArgMax "reduce.argmax", ArgMin "reduce.argmin");
names!(ScanOp, 2: Sum "scan.sum", Prod "scan.prod");

impl UnaryOp {
    /// A named function of the reals that `decompose` can take apart.
    pub fn is_composite(self) -> bool {
        use UnaryOp::*;
        matches!(
            self,
            Relu | Sigmoid | Silu | GeluErf | GeluTanh | Softplus | Mish | Hardswish | Hardsigmoid | LogSigmoid
        )
    }
}

/// The ops' names: those of the families, and of the others as listed here. The list is what is matched, so it has them all.
macro_rules! op_names {
    ($($pattern:pat => $name:literal),* $(,)?) => {
        impl Op {
            /// The op's name in the text form, as `add` or `reduce.max`.
            pub fn name(&self) -> &'static str {
                match self {
                    Op::Unary(op) => op.name(),
                    Op::Binary(op) => op.name(),
                    Op::Compare(op) => op.name(),
                    Op::Reduce { op, .. } => op.name(),
                    Op::Scan { op, .. } => op.name(),
                    $($pattern => $name),*
                }
            }
            /// The name of every op that there is.
            pub fn names() -> impl Iterator<Item = &'static str> {
                let names = UnaryOp::ALL.map(UnaryOp::name).into_iter().chain(BinaryOp::ALL.map(BinaryOp::name));
                let names = names.chain(CompareOp::ALL.map(CompareOp::name)).chain(ReduceOp::ALL.map(ReduceOp::name));
                names.chain(ScanOp::ALL.map(ScanOp::name)).chain([$($name),*])
            }
        }
    };
}

op_names!(
    Op::Input(_) => "input",
    Op::Param(_) => "param",
    Op::Const(_) => "const",
    Op::Iota { .. } => "iota",
    Op::Select => "select",
    Op::Cast(_) => "cast",
    Op::Reshape(_) => "reshape",
    Op::Permute(_) => "permute",
    Op::Broadcast(_) => "broadcast",
    Op::Slice { .. } => "slice",
    Op::Flip(_) => "flip",
    Op::Pad { .. } => "pad",
    Op::Concat { .. } => "concat",
    Op::Gather { .. } => "gather",
    Op::Take { .. } => "take",
    Op::Scatter { .. } => "scatter",
    Op::Dot => "dot",
    Op::Conv { .. } => "conv",
    Op::Pool { kind: PoolKind::Max, .. } => "pool.max",
    Op::Pool { kind: PoolKind::Avg { .. }, .. } => "pool.avg",
    Op::Softmax { .. } => "softmax",
    Op::LogSoftmax { .. } => "log_softmax",
    Op::LayerNorm { .. } => "layer_norm",
    Op::RmsNorm { .. } => "rms_norm",
    Op::GroupNorm { .. } => "group_norm",
    Op::BatchNorm { .. } => "batch_norm",
    Op::Linear => "linear",
    Op::Attention { .. } => "attention",
    Op::Fallback(_) => "fallback",
    Op::Result(_) => "result",
);

impl Op {
    /// Elementwise over broadcast operands.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_))
    }
    /// Moves elements (or none) without computing: reshape, permute, broadcast, slice, flip.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Flip(_))
    }
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Iota { .. })
    }
}
