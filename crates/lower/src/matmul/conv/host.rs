//! Convolutions on the host: matmuls that read patches through strided windows of the input, which is copied only to
//! add its padding.
//!
//! A transposed convolution is such a matmul for each of its parts ([`crate::matmul::conv::transposed`]), with all
//! residues of a part where their results are within the same range of positions, else for each residue. Results are
//! stored where they belong, and nothing is computed beyond them.
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::conv::Conv;
use crate::matmul::conv::transposed::Part;
use crate::matmul::host::{Host, Operand};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{NodeOp, Scene, Store};
use crate::scalar::expr::Expr;
use crate::steps::Emitted;
use kiln_graph::{DType, Scalar, ValueId};
use kiln_plan::exec::{Matrix, Slot, axes};
use std::ops::Range;

/// Images of fewer points than this share a matmul, so that it is wide.
const MAX_NARROW_POINTS: usize = 256;

impl Conv {
    /// The weight as an operand.
    fn weight(&self, h: &mut Host) -> Result<Matrix, LowerError> {
        let a = h.operand(self.w, &[self.groups, self.cout, self.k], "weight", |at| self.weight_index(at))?;
        Ok(Matrix { batch_strides: vec![0, a.strides[0]], ..a.matrix([self.cout, self.k]) })
    }
    /// The input from so many zeros before its first position on, with as many positions along each axis of its window.
    fn padded(&self, h: &mut Host, front: &[i64], positions: &[usize]) -> Result<Operand, LowerError> {
        let shape = [&self.x_shape[..2], positions].concat();
        h.padded(self.x, &shape, "padded", |at| {
            let shifted = |(d, e): (usize, &Expr)| match d {
                0 | 1 => e.clone(),
                _ => e.clone().shift(-front[d - 2]),
            };
            let ix: Vec<Expr> = at.iter().enumerate().map(shifted).collect();
            let bounds = ix.iter().zip(&self.x_shape).skip(2).map(|(e, s)| (e.clone(), 0, *s as i64)).collect();
            (ix, bounds)
        })
    }
    /// Patches of the input `x`, from this element of it on, at so many points; images are columns too where they share
    /// a matmul.
    fn patches(&self, x: &Operand, first: usize, points: &[usize], images: Option<usize>) -> Matrix {
        let dims = 0..self.stride.len();
        let window = dims.clone().map(|d| (self.w_shape[d + 2], self.dilation[d] * x.strides[d + 2]));
        let points = dims.map(|d| (points[d], self.stride[d] * x.strides[d + 2]));
        Matrix {
            slot: x.slot,
            offset: x.offset + first,
            rows: axes([(self.cin, x.strides[1])].into_iter().chain(window)),
            cols: axes(images.map(|n| (n, x.strides[0])).into_iter().chain(points)),
            batch_strides: vec![x.strides[0], self.cin * x.strides[1]],
        }
    }
}

pub fn lower(kernel: &Lowering, v: ValueId, c: &Conv) -> Result<Emitted, LowerError> {
    let (n, dims) = (c.x_shape[0], 0..c.stride.len());
    let mut h = Host::new(*kernel);
    let weight = c.weight(&mut h)?;
    let reach = |d: usize| (c.out[d + 2].max(1) - 1) * c.stride[d] + (c.w_shape[d + 2] - 1) * c.dilation[d] + 1;
    let x = match c.padding.iter().any(|&p| p > 0) {
        true => c.padded(&mut h, &c.padding, &dims.map(reach).collect::<Vec<_>>())?,
        false => c.padded(&mut h, &c.padding, &c.x_shape[2..])?,
    };
    let place = h.destination(v)?;
    let together = (n > 1 && c.points < MAX_NARROW_POINTS).then_some(n);
    let patches = c.patches(&x, 0, &c.out[2..], together);
    let image = c.out[1] * c.points;
    let result = Matrix {
        slot: place.0,
        offset: 0,
        rows: axes([(c.cout, c.points)]),
        cols: axes(together.map(|n| (n, image)).into_iter().chain([(c.points, 1)])),
        batch_strides: vec![image, c.cout * c.points],
    };
    let (batch, wide) = if together.is_some() { (1, n * c.points) } else { (n, c.points) };
    h.gemm(kernel.graph.dtype(v), place.1, &[batch, c.groups, c.cout, wide], c.k, [weight, patches, result]);
    h.finish(v, place)
}

/// A transposed convolution in parts, all of which read one copy of the input.
pub fn transposed(kernel: &Lowering, v: ValueId, c: &Conv, parts: &[Part]) -> Result<Emitted, LowerError> {
    let parts: Vec<Part> = parts.iter().flat_map(|p| p.within_ranges(c)).collect();
    let names: Vec<String> = (0..parts.len()).map(|n| format!("{}_part{n}", kernel.name)).collect();
    let mut h = Host::new(*kernel);
    let Some(first) = parts.first() else { return Err(kernel.unsupported("a transposed convolution without results")) };
    let positions: Vec<usize> = (0..c.stride.len()).map(|d| first.extent(c, d) + first.reach[d]).collect();
    let x = c.padded(&mut h, &first.front, &positions)?;
    let place = h.destination(v)?;
    for (part, name) in parts.iter().zip(&names) {
        let ranges: Vec<Range<usize>> = (0..c.stride.len()).map(|d| part.range(c, d)).collect();
        let points: Vec<usize> = ranges.iter().map(Range::len).collect();
        if points.contains(&0) {
            continue;
        }
        h.of.body.name = name;
        match part.window_points() {
            0 => without_terms(&mut h, c, part, &ranges, place)?,
            _ => with_terms(&mut h, (v, c), part, &ranges, (&x, place))?,
        }
    }
    h.of.body.name = kernel.name;
    h.finish(v, place)
}

/// Positions of a part's results: the first one's element in an image and channel, and the axes of residues and of
/// positions.
struct Elements {
    first: usize,
    residues: Vec<(usize, usize)>,
    positions: Vec<(usize, usize)>,
}

impl Elements {
    fn of(h: &Host, c: &Conv, part: &Part, ranges: &[Range<usize>]) -> Result<Elements, LowerError> {
        let mut at = Elements { first: 0, residues: vec![], positions: vec![] };
        let mut pitch = c.points;
        for (d, range) in ranges.iter().enumerate() {
            pitch /= c.out[d + 2].max(1);
            let (stride, count) = (c.stride[d], part.counts()[d]);
            at.first += index(h, part.position(d, range.start), "a part begins before the result")? * pitch;
            at.residues.push((count, pitch));
            at.positions.push((range.len(), stride * pitch));
        }
        Ok(at)
    }
}

/// A position that is not negative.
fn index(h: &Host, position: i64, defect: &str) -> Result<usize, LowerError> {
    usize::try_from(position)
        .map_err(|_| LowerError::Invariant { kernel: h.of.name.to_string(), what: format!("{defect}: {position}") })
}

/// The matmul of a part at its ranges of positions.
fn with_terms(
    h: &mut Host,
    (v, c): (ValueId, &Conv),
    part: &Part,
    ranges: &[Range<usize>],
    (x, place): (&Operand, (Slot, DType)),
) -> Result<(), LowerError> {
    let (conv, at, n) = (part.conv(c), Elements::of(h, c, part, ranges)?, c.x_shape[0]);
    let weight = conv.weight(h)?;
    let mut start = 0;
    for (d, range) in ranges.iter().enumerate() {
        let first = range.start as i64 + part.front[d] - conv.padding[d];
        start += index(h, first, "a part reads before the copy of the input")? * x.strides[d + 2];
    }
    let points: Vec<usize> = ranges.iter().map(Range::len).collect();
    let count: usize = points.iter().product();
    let together = (n > 1 && count < MAX_NARROW_POINTS).then_some(n);
    let patches = conv.patches(x, start, &points, together);
    let image = c.out[1] * c.points;
    let result = Matrix {
        slot: place.0,
        offset: at.first,
        rows: axes([(c.cout, c.points)].into_iter().chain(at.residues)),
        cols: axes(together.map(|n| (n, image)).into_iter().chain(at.positions)),
        batch_strides: vec![image, c.cout * c.points],
    };
    let (batch, wide) = if together.is_some() { (1, n * count) } else { (n, count) };
    let dtype = h.of.graph.dtype(v);
    h.gemm(dtype, place.1, &[batch, c.groups, conv.cout, wide], conv.k, [weight, patches, result]);
    Ok(())
}

/// Zeros at the positions of residues that no point of the window reaches.
fn without_terms(
    h: &mut Host,
    c: &Conv,
    part: &Part,
    ranges: &[Range<usize>],
    place: (Slot, DType),
) -> Result<(), LowerError> {
    let at = Elements::of(h, c, part, ranges)?;
    let images = [(c.x_shape[0] * c.out[1], c.points)];
    let all: Vec<(usize, usize)> = images.into_iter().chain(at.residues).chain(at.positions).collect();
    let scene = |axes: &[Expr]| {
        let terms = axes.iter().zip(&all).map(|(e, (_, stride))| e.clone().scale(*stride as i64));
        let to = terms.fold(Expr::constant(at.first as i64), |sum, e| sum.plus(&e));
        let mut r = h.of.resolver();
        let zero = r.dag.add(NodeOp::Const(Scalar::Float(0.0)), place.1);
        Ok(Scene { dag: r.dag, stores: vec![Store::new(place.0, place.1, to, zero)] })
    };
    let extents: Vec<usize> = all.iter().map(|a| a.0).collect();
    let zeros = launch::points(&h.of, "zeros", &extents, &scene)?;
    h.out = std::mem::take(&mut h.out).then(zeros);
    Ok(())
}
