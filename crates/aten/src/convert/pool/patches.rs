//! Windows of an image as columns (`F.unfold`), and sums of such columns into an image (`F.fold`).
use super::super::{
    context::{Ctx, Res, at},
    conv::per_axis,
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, DType, Op, Scalar, ScatterMode, Type, ValueId};

/// One spatial axis of the windows.
struct Axis {
    window: usize,
    dilation: usize,
    padding: usize,
    stride: usize,
    /// How many windows fit.
    count: usize,
}

/// The two axes, from the arguments (window, dilation, padding, stride) from `first`, for an image of this size.
fn axes(c: &Ctx, call: &Call, first: usize, image: [usize; 2]) -> Res<[Axis; 2]> {
    let [window, dilation, padding, stride] = [0, 1, 2, 3].map(|i| per_axis(c, call, first + i, 2));
    let (window, dilation, padding, stride) = (window?, dilation?, padding?, stride?);
    let axis = |i: usize| {
        let [w, d, p, s, size] =
            [at(&window, i)?, at(&dilation, i)?, at(&padding, i)?, at(&stride, i)?, at(&image, i)?];
        let reach = w.checked_sub(1).and_then(|w| w.checked_mul(d)).and_then(|r| r.checked_add(1));
        let room = p.checked_mul(2).and_then(|p| p.checked_add(size)).zip(reach);
        let steps = room.and_then(|(have, reach)| have.checked_sub(reach)).and_then(|room| room.checked_div(s));
        let count = steps.ok_or("windows larger than the image")? + 1;
        Ok::<Axis, String>(Axis { window: w, dilation: d, padding: p, stride: s, count })
    };
    Ok([axis(0)?, axis(1)?])
}

/// Positions in the padded axis, `[window, count]`.
fn positions(c: &mut Ctx, a: &Axis) -> Res<ValueId> {
    let element = c.iota(Type::new(DType::I64, [a.window, 1]), 0);
    let window = c.iota(Type::new(DType::I64, [1, a.count]), 1);
    let element = c.with(BinaryOp::Mul, element, a.dilation as f64)?;
    let window = c.with(BinaryOp::Mul, window, a.stride as f64)?;
    c.binary(BinaryOp::Add, element, window)
}

/// `(x, window, dilation, padding, stride)`: `[batch?, C, H, W]` to `[batch?, C windows, count]`.
pub fn im2col(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let shape = c.shape(x);
    let [lead @ .., h, w] = &shape[..] else { return Err("im2col of a vector".into()) };
    let [rows, columns] = axes(c, call, 1, [*h, *w])?;
    let pad = [vec![0; lead.len()], vec![rows.padding as i64, columns.padding as i64]].concat();
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    let padded =
        if pad.iter().all(|p| *p == 0) { x } else { c.node(Op::Pad { lo: pad.clone(), hi: pad }, &[x, zero])? };
    let n = lead.len();
    let (across, down) = (positions(c, &columns)?, positions(c, &rows)?);
    let taken = c.node(Op::Take { axis: n + 1 }, &[padded, across])?;
    let taken = c.node(Op::Take { axis: n }, &[taken, down])?;
    // [.., window row, row, window column, column] to [.., window row, window column, row, column].
    let order: Vec<usize> = (0..n).chain([n, n + 2, n + 1, n + 3]).collect();
    let columns = c.permute(taken, &order)?;
    Ok(vec![c.reshape(columns, &ty.shape)?])
}

/// `(x, size, window, dilation, padding, stride)`: `[batch?, C windows, count]` to `[batch?, C, H, W]`, sums where
/// windows overlap.
pub fn col2im(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let [lead @ .., h, w] = &ty.shape[..] else { return Err("col2im to a vector".into()) };
    let [rows, columns] = axes(c, call, 2, [*h, *w])?;
    // `axes` has checked that these sums fit.
    let (height, width) = (h + 2 * rows.padding, w + 2 * columns.padding);
    let pixels = height.checked_mul(width).ok_or("padding beyond all bounds")?;
    let images: usize = lead.iter().product();
    let (down, across) = (positions(c, &rows)?, positions(c, &columns)?);
    let down = c.with(BinaryOp::Mul, down, width as f64)?;
    let down = c.reshape(down, &[rows.window, 1, rows.count, 1])?;
    let across = c.reshape(across, &[1, columns.window, 1, columns.count])?;
    let at = c.binary(BinaryOp::Add, down, across)?;
    let each = c.ty(at).count();
    let at = c.reshape(at, &[1, each])?;
    let at = c.broadcast(at, &[images, each])?;
    let parts = c.reshape(x, &[images, each])?;
    let r = c.in_compute(parts, ty.dtype, |c, parts| {
        let none = c.full(&Type::new(c.dtype(parts), [images, pixels]), Scalar::Int(0))?;
        c.node(Op::Scatter { axis: 1, mode: ScatterMode::Add }, &[none, at, parts])
    })?;
    let mut r = c.reshape(r, &[lead, &[height, width]].concat())?;
    for (i, (a, len)) in [(rows, *h), (columns, *w)].into_iter().enumerate() {
        r = c.slice(r, lead.len() + i, a.padding, len, 1)?;
    }
    Ok(vec![r])
}
