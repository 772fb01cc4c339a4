//! The registry: one row per op, with the properties that most compiler stages use.
//!
//! A row gives the name in the text form, the arity, the class for the planner, the weight for the cost model, and how
//! checks treat rounding. Pointwise functions also have their PyTorch names, reference and formula ([`unary`],
//! [`binary`]); composites have their inference and decomposition (`softmax`, `norm`, `window`, …). A row never names a
//! kernel, a device or a machine.
pub mod attention;
mod attributes;
pub mod binary;
pub mod linear;
pub mod norm;
mod pointwise;
pub mod real;
pub mod reduce;
pub mod softmax;
mod special;
pub mod unary;
pub mod window;

pub(crate) use attributes::quoted;
pub use attributes::{Attr, Attribute, Visitor};

use crate::{
    BinaryOp, CompareOp, DType, FullyMasked, Graph, GraphError, Op, ParamId, PoolKind, ReduceOp, Scalar, ScanOp,
    ScatterMode, Type, UnaryOp, ValueId,
};

/// Result of a builder or decomposition step.
pub(crate) type Built = Result<ValueId, GraphError>;

/// How a kernel can contain an op: all that the planner's legality and cost need to know about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Class {
    /// In memory before execution begins: an input, a parameter, a value frozen at load time.
    Leaf,
    /// Recomputed wherever it is needed, from no operands: constants, iota.
    Generator,
    /// Only reindexes elements; its users read through it.
    View,
    /// Elementwise: one result element from one element of each operand.
    Pointwise,
    /// Pointwise over its result, with computed positions in its operands: pad, concat, gather, take.
    Movement,
    /// A reduction that gives a value: sum, mean, maximum, …
    Reduce,
    /// A reduction that gives a position: argmax, argmin.
    ArgReduce,
    /// Each result row depends on the whole operand row: softmax, norms.
    Row,
    /// An inclusive scan.
    Scan,
    /// A matmul: `dot`, `linear`.
    Matmul,
    /// Scaled dot-product attention.
    Attention,
    /// A convolution.
    Conv,
    /// A pool.
    Pool,
    /// A scatter.
    Scatter,
    /// A call into libtorch.
    Fallback,
    /// A launch of a block program that a person wrote.
    Launch,
    /// The second or a later result of a fallback or a launch.
    Result,
}

impl Class {
    /// The class of an op.
    pub fn of(op: &Op) -> Class {
        op.row().class
    }
    /// Whether it is a call of code that the compiler does not look into: a kernel of its own with its results.
    pub fn is_opaque(self) -> bool {
        matches!(self, Class::Fallback | Class::Launch)
    }
    /// Whether a kernel may contain at most one op of this class, whose whole result it computes once.
    pub fn is_anchor(self) -> bool {
        matches!(self, Class::Matmul | Class::Attention | Class::Conv | Class::Pool | Class::Scatter | Class::Scan)
    }
    /// Whether it is an anchor whose kernel may compute its operands element by element.
    pub fn computes_operands(self) -> bool {
        matches!(self, Class::Scatter | Class::Scan)
    }
    /// Whether it needs no kernel of its own if its users can compute it inline.
    pub fn is_free(self) -> bool {
        matches!(self, Class::View | Class::Generator)
    }
}

/// How rounding affects a result; used by numerics classes and error bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// Not rounded: the result is an element of an operand, or not a float.
    Exact,
    /// The exact result rounded once, or within a few units in the last place.
    Once,
    /// Sums terms in any order, so that rounding of the terms and their order affects the result.
    Sums,
}

/// Number of operands an op takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operands {
    /// At least the first number, at most the second.
    Count(usize, usize),
    /// Three (input, gain, bias) if the attribute `affine` is set, else one.
    Affine,
}

/// Infers a composite's result type from its operand types. The error is a clause for the user.
pub type Infer = fn(&Op, &[&Type]) -> Result<Type, String>;
/// Adds a composite's decomposition to a graph. Takes operands already cast to the type in which it computes, and the
/// result type.
pub type Decompose = fn(&mut Graph, &Op, &[ValueId], &Type) -> Result<ValueId, GraphError>;

/// The properties of an op that most compiler stages use.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name in the text form and in messages.
    pub name: &'static str,
    /// How many operands it takes.
    pub operands: Operands,
    /// How a kernel can contain it.
    pub class: Class,
    /// Arithmetic per element of the result, in simple operations; an elementary function counts as 8. A composite
    /// never costs more than its primitives. The cost of summing (reductions, matmuls) is modelled separately and not
    /// included.
    pub weight: f64,
    /// How rounding affects its result.
    pub rounding: Rounding,
    /// Whether it accepts 8-bit floats: moves, casts and matmuls do.
    pub f8: bool,
    /// Type inference of a composite; `None` for ops that [`crate::infer`] handles itself.
    pub infer: Option<Infer>,
    /// Decomposition of a composite. Pointwise functions have a [`unary::Formula`] instead.
    pub decompose: Option<Decompose>,
}

const fn row(name: &'static str, class: Class, operands: usize) -> Row {
    let operands = Operands::Count(operands, operands);
    Row { name, operands, class, weight: 1., rounding: Rounding::Exact, f8: false, infer: None, decompose: None }
}
impl Row {
    const fn upto(mut self, most: usize) -> Row {
        if let Operands::Count(least, _) = self.operands {
            self.operands = Operands::Count(least, most);
        }
        self
    }
    const fn affine(mut self) -> Row {
        self.operands = Operands::Affine;
        self
    }
    const fn weight(mut self, weight: f64) -> Row {
        self.weight = weight;
        self
    }
    const fn sums(mut self) -> Row {
        self.rounding = Rounding::Sums;
        self
    }
    const fn f8(mut self) -> Row {
        self.f8 = true;
        self
    }
    /// Sets the inference and decomposition of a composite.
    const fn composite(mut self, infer: Infer, decompose: Decompose) -> Row {
        (self.infer, self.decompose) = (Some(infer), Some(decompose));
        self
    }
}

/// The row of every op: families, whose enums have the rows; then all others, each with its pattern and an op of the
/// kind, whose attributes are the defaults of the text form.
macro_rules! rows {
    (families { $($family:pat => $of:expr;)* } $($pattern:pat, $new:expr => $row:expr;)*) => {
        impl Op {
            /// The op's row.
            pub fn row(&self) -> &'static Row {
                match self {
                    $($family => $of,)*
                    $($pattern => { const ROW: &Row = &$row; ROW })*
                }
            }
        }
        /// One op for each row outside of the families.
        fn own_ops() -> Vec<Op> {
            vec![$($new),*]
        }
    };
}

use Class::{Attention, Conv, Fallback, Generator, Launch, Leaf, Matmul, Movement, Pointwise, Pool, Scatter, View};

rows! {
    families {
        Op::Unary(op) => &op.function().row;
        Op::Binary(op) => op.row();
        Op::Compare(op) => op.row();
        Op::Reduce { op, .. } => op.row();
        Op::Scan { op, .. } => op.row();
    }
    Op::Input(_), Op::Input(0) => row("input", Leaf, 0).weight(0.);
    Op::Param(_), Op::Param(ParamId(0)) => row("param", Leaf, 0).weight(0.);
    Op::Const(_), Op::Const(Scalar::Int(0)) => row("const", Generator, 0).weight(0.);
    Op::Iota { .. }, Op::Iota { axis: 0 } => row("iota", Generator, 0).weight(0.);
    Op::Select, Op::Select => row("select", Pointwise, 3).f8();
    Op::Cast(_), Op::Cast(DType::F32) => row("cast", Pointwise, 1).f8();
    Op::Logaddexp, Op::Logaddexp =>
        row("logaddexp", Pointwise, 2).weight(22.).composite(pointwise::infer, pointwise::logaddexp);
    Op::Reshape(_), Op::Reshape(vec![]) => row("reshape", View, 1).weight(0.).f8();
    Op::Permute(_), Op::Permute(vec![]) => row("permute", View, 1).weight(0.).f8();
    Op::Broadcast(_), Op::Broadcast(vec![]) => row("broadcast", View, 1).weight(0.).f8();
    Op::Slice { .. }, Op::Slice { axis: 0, start: 0, len: 0, step: 1 } => row("slice", View, 1).weight(0.).f8();
    Op::Flip(_), Op::Flip(vec![]) => row("flip", View, 1).f8();
    Op::Pad { .. }, Op::Pad { lo: vec![], hi: vec![] } => row("pad", Movement, 2).f8();
    Op::Concat { .. }, Op::Concat { axis: 0 } => row("concat", Movement, 1).upto(usize::MAX).f8();
    Op::Gather { .. }, Op::Gather { axis: 0 } => row("gather", Movement, 2).f8();
    Op::Take { .. }, Op::Take { axis: 0 } => row("take", Movement, 2).f8();
    Op::Scatter { mode: ScatterMode::Replace, .. }, Op::Scatter { axis: 0, mode: ScatterMode::Replace } =>
        row("scatter", Scatter, 3).f8();
    Op::Scatter { mode: ScatterMode::Add, .. }, Op::Scatter { axis: 0, mode: ScatterMode::Add } =>
        row("scatter", Scatter, 3).sums();
    Op::Dot, Op::Dot => row("dot", Matmul, 2).sums().f8();
    Op::Linear, Op::Linear => row("linear", Matmul, 2).upto(3).sums().f8().composite(linear::infer, linear::decompose);
    Op::Conv { .. }, Op::Conv {
        stride: vec![], padding: vec![], dilation: vec![], groups: 1, transposed: false, output_padding: vec![],
    } => row("conv", Conv, 2).upto(3).sums().composite(window::infer_conv, window::decompose_conv);
    Op::Pool { kind: PoolKind::Max, .. }, window::pool_op(PoolKind::Max) =>
        row("pool.max", Pool, 1).composite(window::infer_pool, window::decompose_pool);
    Op::Pool { kind: PoolKind::Avg { .. }, .. }, window::pool_op(PoolKind::Avg { count_pad: true }) =>
        row("pool.avg", Pool, 1).sums().composite(window::infer_pool, window::decompose_pool);
    Op::Softmax { .. }, Op::Softmax { axis: 0 } =>
        row("softmax", Class::Row, 1).weight(11.).sums().composite(softmax::infer, softmax::decompose);
    Op::LogSoftmax { .. }, Op::LogSoftmax { axis: 0 } =>
        row("log_softmax", Class::Row, 1).weight(11.).sums().composite(softmax::infer, softmax::decompose);
    Op::LayerNorm { .. }, Op::LayerNorm { axes: 1, affine: false, eps: Scalar::Int(0) } =>
        row("layer_norm", Class::Row, 1).affine().weight(4.).sums().composite(norm::infer, norm::decompose);
    Op::RmsNorm { .. }, Op::RmsNorm { eps: Scalar::Int(0) } =>
        row("rms_norm", Class::Row, 2).weight(3.).sums().composite(norm::infer, norm::decompose);
    Op::GroupNorm { .. }, Op::GroupNorm { groups: 1, affine: false, eps: Scalar::Int(0) } =>
        row("group_norm", Class::Row, 1).affine().weight(4.).sums().composite(norm::infer, norm::decompose);
    Op::BatchNorm { .. }, Op::BatchNorm { eps: Scalar::Int(0) } =>
        row("batch_norm", Pointwise, 5).weight(4.).sums().composite(norm::infer, norm::decompose);
    Op::Attention { .. }, Op::Attention {
        scale: Scalar::Int(1), causal: false, fully_masked: FullyMasked::Zero, score: vec![], sink: false, lse: false,
    } =>
        row("attention", Attention, 3).upto(usize::MAX).sums().composite(attention::infer, attention::decompose);
    Op::Fallback(_), Op::Fallback(Box::default()) => row("fallback", Fallback, 0).upto(usize::MAX).f8();
    Op::Launch(_), Op::Launch(Box::default()) => row("launch", Launch, 0).upto(usize::MAX).f8();
    Op::Result(_), Op::Result(1) => row("result", Class::Result, 1).f8();
}

impl Op {
    /// The op's name in the text form, as `add` or `reduce.max`.
    pub fn name(&self) -> &'static str {
        self.row().name
    }
    /// Arithmetic per element of the result ([`Row::weight`]).
    pub fn weight(&self) -> f64 {
        self.row().weight
    }
    /// Whether it is elementwise over broadcast operands.
    pub fn is_pointwise(&self) -> bool {
        self.row().class == Pointwise && self.row().infer.is_none()
    }
    /// Axes of an operand of this rank that are reduced, scanned or normalised together; of `group_norm` those of a
    /// channel. Row-wise ops that do not say otherwise work along the last axis.
    pub fn row_axes(&self, rank: usize) -> Vec<usize> {
        match self {
            Op::Reduce { axes, .. } => axes.clone(),
            Op::Scan { axis, .. } | Op::Softmax { axis } | Op::LogSoftmax { axis } => vec![*axis],
            Op::LayerNorm { axes, .. } => (rank.saturating_sub(*axes)..rank).collect(),
            Op::GroupNorm { .. } => (2..rank).collect(),
            _ => (rank.saturating_sub(1)..rank).collect(),
        }
    }
    /// Moves elements (or none) without computing: reshape, permute, broadcast, slice, flip.
    pub fn is_view(&self) -> bool {
        self.row().class == View
    }
    /// Whether it has no operands: input, param, const, iota.
    pub fn is_leaf(&self) -> bool {
        matches!(self.row().class, Leaf | Generator)
    }
    /// Minimum and maximum number of operands.
    pub fn arity(&self) -> (usize, usize) {
        match (self.row().operands, self) {
            (Operands::Count(least, most), _) => (least, most),
            (Operands::Affine, Op::LayerNorm { affine: true, .. } | Op::GroupNorm { affine: true, .. }) => (3, 3),
            (Operands::Affine, _) => (1, 1),
        }
    }
    /// The op with this name in the text form, with default attributes.
    pub fn named(name: &str) -> Option<Op> {
        let family = UnaryOp::from_name(name).map(Op::Unary);
        let family = family.or_else(|| BinaryOp::from_name(name).map(Op::Binary));
        let family = family.or_else(|| CompareOp::from_name(name).map(Op::Compare));
        let family = family.or_else(|| ReduceOp::from_name(name).map(|op| Op::Reduce { op, axes: vec![] }));
        let family = family.or_else(|| ScanOp::from_name(name).map(|op| Op::Scan { op, axis: 0 }));
        family.or_else(|| own_ops().into_iter().find(|op| op.name() == name))
    }
    /// The names of all ops, each once.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let names = UnaryOp::ALL.map(UnaryOp::name).into_iter().chain(BinaryOp::ALL.map(BinaryOp::name));
        let names = names.chain(CompareOp::ALL.map(CompareOp::name)).chain(ReduceOp::ALL.map(ReduceOp::name));
        let mut own: Vec<&str> = own_ops().iter().map(Op::name).collect();
        own.dedup();
        names.chain(ScanOp::ALL.map(ScanOp::name)).chain(own)
    }
}

/// The rows of a family: `ALL`, `row`, `name`, `from_name`.
macro_rules! family {
    ($ty:ident, $n:literal: $($variant:ident => $row:expr),* $(,)?) => {
        impl $ty {
            /// All variants.
            pub const ALL: [$ty; $n] = [$($ty::$variant),*];
            /// The op's row in the registry.
            pub fn row(self) -> &'static crate::ops::Row {
                match self { $($ty::$variant => { const ROW: &crate::ops::Row = &$row; ROW })* }
            }
            /// The op's name in the text form.
            pub fn name(self) -> &'static str {
                self.row().name
            }
            /// The op with this name in the text form.
            pub fn from_name(name: &str) -> Option<$ty> {
                $ty::ALL.into_iter().find(|v| v.name() == name)
            }
        }
    };
}
pub(crate) use family;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_op() {
        let names: Vec<&str> = Op::names().collect();
        for (i, name) in names.iter().enumerate() {
            assert_eq!(Op::named(name).map(|op| op.name()), Some(*name));
            assert!(!names[..i].contains(name), "{name} is there twice");
        }
    }

    #[test]
    fn a_composite_has_inference_and_decomposition() {
        for op in Op::names().filter_map(Op::named) {
            let row = op.row();
            assert_eq!(row.infer.is_some(), row.decompose.is_some() && !matches!(op, Op::Unary(_)), "{}", row.name);
        }
    }
}
