//! Blocks in other shapes.
use super::convert::{broadcast, broadcast_to, cast, scalar_constant, to_tensor};
use crate::emit::Emitter;
use crate::error::{Eval, type_error, value_error};
use crate::types::{Number, Scalar, TensorType};
use crate::value::{Tensor, Value};

/// An axis counted from the front, where negative ones count from the back.
pub fn axis(number: i128, rank: usize) -> Eval<usize> {
    let from_front = if number < 0 { number + rank as i128 } else { number };
    if (0..rank as i128).contains(&from_front) {
        return Ok(from_front as usize);
    }
    Err(value_error(
        format!("axis {number} of a block of {rank} axes"),
        format!("axes of it are {} to {}", -(rank as i128), rank as i128 - 1),
    ))
}

pub fn expand_dims(emit: &mut Emitter, x: &Tensor, axes: &[i128]) -> Eval<Tensor> {
    let rank = x.ty.shape.len() + axes.len();
    let mut places: Vec<usize> = axes.iter().map(|number| axis(*number, rank)).collect::<Eval<_>>()?;
    places.sort_unstable();
    if places.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(value_error(format!("expand_dims names an axis twice: {axes:?}"), "name each axis once"));
    }
    places.into_iter().try_fold(x.clone(), |x, at| emit.expand_dims(&x, at))
}

pub fn reshape(emit: &mut Emitter, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
    let count: usize = shape.iter().product();
    if count != x.ty.count() {
        return Err(value_error(
            format!("{} has {} elements, and shape {shape:?} has {count}", x.ty, x.ty.count()),
            "reshape keeps the number of elements",
        ));
    }
    match (x.ty.is_block(), shape.is_empty()) {
        (false, _) => emit.splat(x, shape),
        (true, true) => item(emit, x),
        (true, false) => emit.reshape(x, shape),
    }
}

/// The only element of a block.
pub fn item(emit: &mut Emitter, x: &Tensor) -> Eval<Tensor> {
    if !x.ty.is_block() {
        return Ok(x.clone());
    }
    if x.ty.count() != 1 {
        return Err(value_error(
            format!("{} has {} elements, where one is needed", x.ty, x.ty.count()),
            "reduce the block, such as with `sum`",
        ));
    }
    let flat = emit.reshape(x, &[1])?;
    emit.drop_axis(&flat, 0, &[])
}

pub fn permute(emit: &mut Emitter, x: &Tensor, order: &[i128]) -> Eval<Tensor> {
    let rank = x.ty.shape.len();
    let order_axes: Vec<usize> = order.iter().map(|number| axis(*number, rank)).collect::<Eval<_>>()?;
    let mut sorted = order_axes.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank) {
        return Err(value_error(
            format!("{order:?} is no order of the {rank} axes of {}", x.ty),
            "name each axis once",
        ));
    }
    if order_axes.iter().copied().eq(0..rank) {
        return Ok(x.clone());
    }
    emit.permute(x, &order_axes)
}

/// Without an order: the last two axes change places.
pub fn transpose(emit: &mut Emitter, x: &Tensor) -> Eval<Tensor> {
    let rank = x.ty.shape.len();
    if rank < 2 {
        return Err(type_error(format!("{} has no two axes to exchange", x.ty), "use `x[:, None]` for a column"));
    }
    let mut order: Vec<i128> = (0..rank as i128).collect();
    order.swap(rank - 1, rank - 2);
    permute(emit, x, &order)
}

pub fn broadcast_shape(emit: &mut Emitter, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
    let rank = x.ty.shape.len();
    if x.ty.is_block() && rank != shape.len() {
        return Err(type_error(
            format!("{} has {rank} axes, and shape {shape:?} has {}", x.ty, shape.len()),
            "add axes with `x[None, :]` first",
        ));
    }
    crate::types::broadcast_shape(&x.ty.shape, shape).and_then(|common| {
        if common == shape {
            broadcast_to(emit, x, shape)
        } else {
            Err(type_error(format!("{} does not broadcast to {shape:?}", x.ty), "only sizes of 1 are repeated"))
        }
    })
}

pub fn join(emit: &mut Emitter, a: &Tensor, b: &Tensor) -> Eval<Tensor> {
    same_scalar("join", a, b)?;
    let (a, b) = broadcast(emit, a, b)?;
    if a.ty.is_block() {
        return emit.join(&a, &b);
    }
    let (a, b) = (emit.splat(&a, &[1])?, emit.splat(&b, &[1])?);
    let joined = emit.join(&a, &b)?;
    emit.reshape(&joined, &[2])
}

pub fn split(emit: &mut Emitter, x: &Tensor) -> Eval<[Tensor; 2]> {
    if x.ty.shape.last() != Some(&2) {
        return Err(type_error(
            format!("split takes a block whose last axis is 2; this is {}", x.ty),
            "reshape it first",
        ));
    }
    emit.split(x)
}

/// Two blocks one after the other along an axis.
pub fn concatenate(emit: &mut Emitter, a: &Tensor, b: &Tensor, along: i128) -> Eval<Tensor> {
    same_scalar("cat", a, b)?;
    if a.ty.shape != b.ty.shape || !a.ty.is_block() {
        return Err(type_error(
            format!("cat takes blocks of one shape; these are {} and {}", a.ty, b.ty),
            "reshape them first",
        ));
    }
    let rank = a.ty.shape.len();
    let along = axis(along, rank)?;
    emit.concatenate(a, b, along)
}

/// The elements of a block at positions along an axis.
pub fn gather(emit: &mut Emitter, x: &Tensor, positions: &Tensor, along: i128) -> Eval<Tensor> {
    let rank = x.ty.shape.len();
    let along = axis(along, rank)?;
    let elsewhere = |ty: &TensorType| {
        let mut shape = ty.shape.clone();
        shape.remove(along);
        shape
    };
    if !positions.number()?.is_int() || positions.ty.shape.len() != rank || elsewhere(&positions.ty) != elsewhere(&x.ty)
    {
        return Err(type_error(
            format!("gather of {} at positions of type {} along axis {along}", x.ty, positions.ty),
            "positions are integers of the block's shape, except along the axis",
        ));
    }
    let positions = cast(emit, positions, Scalar::Number(Number::Int32))?;
    emit.gather(x, &positions, along)
}

fn same_scalar(name: &str, a: &Tensor, b: &Tensor) -> Eval<()> {
    if a.ty.scalar == b.ty.scalar {
        return Ok(());
    }
    Err(type_error(
        format!("{name} takes two blocks of one type; these are {} and {}", a.ty, b.ty),
        "cast one of them with `.to(...)`",
    ))
}

/// The type of one element.
pub fn element(ty: &TensorType) -> TensorType {
    TensorType { scalar: ty.scalar, shape: vec![] }
}

/// Whether pointers are among them.
pub fn any_pointer(tensors: &[Tensor]) -> bool {
    tensors.iter().any(Tensor::is_pointer)
}

/// A block of one value in every element.
pub fn full(emit: &mut Emitter, value: &Value, ty: &TensorType) -> Eval<Tensor> {
    let scalar = match (value, ty.scalar) {
        (Value::Constant(constant), Scalar::Number(number)) => scalar_constant(emit, constant, number)?,
        _ => {
            let tensor = to_tensor(emit, value)?;
            cast(emit, &tensor, ty.scalar)?
        }
    };
    let scalar = if scalar.ty.is_block() { item(emit, &scalar)? } else { scalar };
    emit.splat(&scalar, &ty.shape)
}
