//! torch's type promotion, and arithmetic with Python scalars.
use super::context::{Ctx, Res, holds, scalar_for};
use kiln_graph::{BinaryOp, DType, Op, Scalar, ValueId};

/// An operand of a pointwise operator.
#[derive(Clone, Copy)]
pub enum Operand {
    /// A tensor.
    Value(ValueId),
    /// A Python number: only its kind (bool, int, float) takes part in promotion.
    Number(Scalar),
}

/// Rank of a dtype's kind in promotion: 0 bool, 1 integer, 2 float.
fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        d if d.is_int() => 1,
        _ => 2,
    }
}

/// torch's default dtype of a Python number.
pub fn number_type(s: Scalar) -> DType {
    match s {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F32,
    }
}

/// The common dtype of two dtypes (`torch.promote_types`).
pub fn promote(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    match (kind(a), kind(b)) {
        (2, 2) => match (a, b) {
            (F64, _) | (_, F64) => F64,
            _ => F32, // f16 with bf16, or either with f32
        },
        (2, _) => a,
        (_, 2) => b,
        (0, _) => b,
        (_, 0) => a,
        // Neither can represent the other.
        (1, 1) if matches!((a, b), (U8, I8) | (I8, U8)) => I16,
        // The wider.
        _ => {
            if a.bytes() >= b.bytes() {
                a
            } else {
                b
            }
        }
    }
}

/// How much an operand counts in promotion, the strongest first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// A tensor with axes.
    Tensor,
    /// A tensor of rank 0.
    Rank0,
    /// A Python number.
    Number,
}

impl Weight {
    /// Of a tensor.
    pub fn of_rank(rank: usize) -> Weight {
        if rank == 0 { Weight::Rank0 } else { Weight::Tensor }
    }
}

/// `torch.result_type`: tensors with axes decide; rank-0 tensors and numbers count only if their kind is higher. `None`
/// without operands.
pub fn common_type(operands: impl IntoIterator<Item = (Weight, DType)>) -> Option<DType> {
    let (mut tensors, mut rank_0, mut numbers) = (None::<DType>, None, None);
    for (weight, dtype) in operands {
        let of_weight = match weight {
            Weight::Tensor => &mut tensors,
            Weight::Rank0 => &mut rank_0,
            Weight::Number => &mut numbers,
        };
        *of_weight = Some(of_weight.map_or(dtype, |b| promote(b, dtype)));
    }
    let weak = |strong: Option<DType>, weak: Option<DType>| match (strong, weak) {
        (Some(s), Some(w)) if kind(w) > kind(s) => Some(promote(s, w)),
        (Some(s), _) => Some(s),
        (None, w) => w,
    };
    weak(weak(tensors, rank_0), numbers)
}

/// `torch.result_type` of operands in the graph.
pub fn result_type(ctx: &Ctx, operands: &[Operand]) -> DType {
    let each = operands.iter().map(|o| match o {
        Operand::Value(v) => (Weight::of_rank(ctx.rank(*v)), ctx.dtype(*v)),
        Operand::Number(s) => (Weight::Number, number_type(*s)),
    });
    common_type(each).unwrap_or(DType::F32)
}

/// The operand as a value of type `dtype`.
pub fn as_value(ctx: &mut Ctx, o: Operand, dtype: DType) -> Res<ValueId> {
    match o {
        Operand::Value(v) => ctx.cast(v, dtype),
        Operand::Number(s) => Ok(ctx.constant(dtype, s)),
    }
}

/// The dtype in which torch computes a pointwise operator with a result of `dtype`: a dtype narrower than f32 becomes
/// f32 if a rank-0 operand or a number would lose digits in it, since torch reads these unrounded.
fn working_type(ctx: &Ctx, operands: &[Operand], dtype: DType) -> DType {
    let loses = |o: &Operand| match o {
        Operand::Number(s) => !holds(dtype, s.as_f64()),
        Operand::Value(v) => match ctx.graph.op(*v) {
            Op::Const(s) => !holds(dtype, s.as_f64()),
            _ => ctx.rank(*v) == 0 && ctx.dtype(*v).is_float() && ctx.dtype(*v).bytes() > dtype.bytes(),
        },
    };
    if dtype.compute() != dtype && operands.iter().any(loses) { dtype.compute() } else { dtype }
}

/// A binary op with result `dtype`, computed in the working type.
pub fn binary(ctx: &mut Ctx, op: BinaryOp, a: Operand, b: Operand, dtype: DType) -> Res<ValueId> {
    let work = working_type(ctx, &[a, b], dtype);
    let (a, b) = (as_value(ctx, a, work)?, as_value(ctx, b, work)?);
    let r = ctx.binary(op, a, b)?;
    ctx.cast(r, dtype)
}

/// `v * s`; `v` itself if `s` is 1.
pub fn scale(ctx: &mut Ctx, v: ValueId, s: Scalar) -> Res<ValueId> {
    if s.as_f64() == 1.0 {
        return Ok(v);
    }
    let dtype = ctx.dtype(v);
    let c = ctx.constant(dtype, scalar_for(dtype, s));
    ctx.binary(BinaryOp::Mul, v, c)
}
