//! One op on parts of its operands: the part of its result that is wanted.
//!
//! Most ops compute a part as they would a smaller tensor. Those that know of positions (a causal mask, windows,
//! reshapes, counts along an axis) are told the regions.
use super::{
    Precision, composite,
    composite::Rows,
    demand::groups_of,
    eval, matmul, movement,
    region::{Positions, Region, reshape, shape},
    value::{Data, Value},
    window::{self, Steps},
};
use kiln_graph::{DType, Graph, Op, Type, ValueId};
use std::sync::Arc;

/// The part `region` of a value. `args` hold the parts `from` of its operands (see [`super::demand::needs`]).
pub(super) fn eval_part(
    g: &Graph,
    v: ValueId,
    region: &Region,
    args: &[&Value],
    from: &[Region],
    precision: Precision,
) -> Result<Value, String> {
    let ty = Type::new(g.dtype(v), shape(region));
    let data = match g.op(v) {
        Op::Iota { axis } => {
            let mut along = vec![1; ty.rank()];
            along[*axis] = ty.shape[*axis];
            let counts = Arc::new(region[*axis].iter().map(|p| p as i64).collect());
            let counts = Value { ty: Type::new(DType::I64, along), data: Data::Int(counts) };
            movement::broadcast(&counts, &ty.shape).cast(DType::I64, ty.dtype, precision)
        }
        Op::Reshape(_) => reshape(args[0], &from[0], region)?,
        Op::Broadcast(_) => movement::broadcast(args[0], &ty.shape),
        Op::Slice { .. } => args[0].data.clone(),
        Op::Pad { lo, .. } => {
            let before = |(p, lo): (&Positions, &i64)| p.iter().filter(|k| (*k as i64) < *lo).count() as i64;
            let lo: Vec<i64> = region.iter().zip(lo).map(before).collect();
            movement::pad(args[0], args[1], &lo, &ty.shape)?
        }
        op @ Op::Attention { .. } => {
            let r = region.len();
            let (heads, key_heads) = (&region[r - 3], &from[1][r - 3]);
            let of = |h| key_heads.find(h * key_heads.size() / heads.size());
            let key_head = heads.iter().map(of).collect::<Option<_>>().ok_or("a head's keys were not computed")?;
            let rows = Rows { queries: region[r - 2].clone(), key_head, every_value: true };
            composite::attention(op, args, &rows)?
        }
        Op::Conv { stride, padding, dilation, groups, transposed, .. } => {
            let steps = Steps { stride, padding, dilation };
            let groups = groups_of(&region[1], *groups).count();
            matmul::conv(args[0], args[1], args.get(2).copied(), &steps, groups, *transposed, [&from[0], region])?
        }
        Op::Pool { kind, window, stride, padding, dilation, .. } => {
            let steps = Steps { stride, padding, dilation };
            window::pool(args[0], *kind, window, &steps, &from[0], region)?
        }
        op => return eval(op, &ty, args, precision),
    };
    let data = data.rounded(ty.dtype, precision);
    Ok(Value { ty, data })
}
