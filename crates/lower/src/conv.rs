//! Convolutions as matmuls of the weight with patches of the input.
//!
//! - On the host, the matmul reads patches through strided windows of the input, which is copied to scratch only for
//!   padding.
//! - On GPUs: an implicit GEMM over a padded copy ([`implicit_gemm`]), or im2col with guarded loads.
//! - Transposed convolutions are matmuls of every point's channels with the whole window; the epilogue sums what
//!   overlapping windows contribute to one place. No weight is multiplied with the zeros between points, so an infinite
//!   weight gives what PyTorch gives.
//! - Depthwise convolutions are direct.
mod implicit_gemm;

use crate::composite::Decomposed;
use crate::dag::NodeOp;
use crate::expr::{Expr, delinear, linear};
use crate::host::{Host, the_matmul};
use crate::multiply::{Multiply, Product};
use crate::nest::Visit;
use crate::resolve::{Body, Inside, Resolved, Resolver, inside};
use crate::rows::Emitted;
use crate::window::UNROLL;
use crate::{LowerError, gemm, matmul, reduction};
use kiln_block::Terms;
use kiln_graph::{DType, Graph, Op, Scalar, ValueId, decompose::transposed_conv};
use kiln_plan::exec::{Matrix, Slot, axes};
use kiln_plan::{Hardware, Step};

/// A convolution's operands and sizes.
struct Conv<'a> {
    x: ValueId,
    w: ValueId,
    x_shape: Vec<usize>,
    w_shape: Vec<usize>,
    out: Vec<usize>,
    stride: &'a [usize],
    padding: &'a [usize],
    dilation: &'a [usize],
    groups: usize,
    transposed: bool,
    /// Input and output channels of a group.
    cin: usize,
    cout: usize,
    /// Elements of a patch, and points of an image of the result.
    k: usize,
    points: usize,
}

impl<'a> Conv<'a> {
    fn new(g: &'a Graph, v: ValueId) -> Option<Conv<'a>> {
        let Op::Conv { stride, padding, dilation, groups, transposed, .. } = g.op(v) else { return None };
        let args = g.args(v);
        let (x_shape, w_shape, out) = (g.shape(args[0]).to_vec(), g.shape(args[1]).to_vec(), g.shape(v).to_vec());
        let (cin, cout) = (x_shape[1] / groups, out[1] / groups);
        let k = cin * w_shape[2..].iter().product::<usize>();
        let points = out[2..].iter().product();
        let (x, w, groups, transposed) = (args[0], args[1], *groups, *transposed);
        Some(Conv { x, w, x_shape, w_shape, out, stride, padding, dilation, groups, transposed, cin, cout, k, points })
    }
    /// A window of one point, without strides and padding.
    fn is_pointwise(&self) -> bool {
        let window = self.w_shape[2..].iter().chain(self.stride).all(|&n| n == 1);
        window && self.padding.iter().all(|&p| p == 0)
    }
    /// A position in a patch as channel and point of the window.
    fn in_patch(&self, k: &Expr) -> Vec<Expr> {
        delinear(k, &[&[self.cin], &self.w_shape[2..]].concat())
    }
    /// Index of the weight at (group, output channel, position in the patch).
    fn weight_index(&self, at: &[Expr]) -> Vec<Expr> {
        let inner = self.in_patch(&at[2]);
        let mut ix = vec![at[0].clone().scale(self.cout as i64).plus(&at[1]), inner[0].clone()];
        ix.extend_from_slice(&inner[1..]);
        ix
    }
    /// The weight as an operand on the host.
    fn weight(&self, h: &mut Host) -> Result<Matrix, LowerError> {
        let a = h.operand(self.w, &[self.groups, self.cout, self.k], "weight", |at| self.weight_index(at))?;
        Ok(Matrix { batch_strides: vec![0, a.strides[0]], ..a.matrix([self.cout, self.k]) })
    }
    /// The result on the host as a matrix, from image `first` on.
    fn result(&self, slot: Slot, first: usize) -> Matrix {
        let image = self.out[1] * self.points;
        Matrix {
            slot,
            offset: first * image,
            rows: axes([(self.cout, self.points)]),
            cols: axes([(self.points, 1)]),
            batch_strides: vec![image, self.cout * self.points],
        }
    }
    /// The input at (image, group, position in the patch, point of the result); zero in the padding.
    fn patch(&self, r: &mut Resolver, at: &[Expr]) -> Resolved {
        let inner = self.in_patch(&at[2]);
        let place = delinear(&at[3], &self.out[2..]);
        let mut ix = vec![at[0].clone(), at[1].clone().scale(self.cin as i64).plus(&inner[0])];
        let mut bounds = vec![];
        for d in 0..self.stride.len() {
            let (s, p) = (self.stride[d] as i64, self.padding[d] as i64);
            let reach = inner[d + 1].clone().scale(self.dilation[d] as i64);
            let e = place[d].clone().scale(s).plus(&reach).shift(-p);
            bounds.push((e.clone(), 0, self.x_shape[d + 2] as i64));
            ix.push(e);
        }
        or_zero(r, self.x, &ix, bounds)
    }
}

/// A value where an index lies within bounds, zero elsewhere.
pub fn or_zero(r: &mut Resolver, v: ValueId, ix: &[Expr], bounds: Vec<(Expr, i64, i64)>) -> Resolved {
    let zero = |r: &mut Resolver| {
        let dtype = r.graph.dtype(v);
        r.dag.add(NodeOp::Const(Scalar::Float(0.0)), dtype)
    };
    match inside(bounds.into_iter()) {
        Inside::Always => r.at(v, ix, &[]),
        Inside::Never => Ok(zero(r)),
        Inside::When(own) => {
            let value = r.at(v, ix, &own)?;
            // A masked load is zero outside already.
            if matches!(r.dag.node(value).op, NodeOp::Load { .. }) {
                return Ok(value);
            }
            let dtype = r.dag.node(value).dtype;
            let c = r.dag.add(NodeOp::Inside(own), DType::Bool);
            let zero = zero(r);
            Ok(r.dag.add(NodeOp::Select(c, value, zero), dtype))
        }
    }
}

/// The convolution of a body.
fn find<'a>(of: &Body<'a>) -> Result<(ValueId, Conv<'a>), LowerError> {
    let g = of.graph;
    let v = the_matmul(of, |v| matches!(g.op(v), Op::Conv { .. }))?;
    Ok((v, Conv::new(g, v).ok_or_else(|| of.unsupported("not a convolution"))?))
}

/// Depthwise, or nearly so: too small to be a matmul.
fn is_small(c: &Conv) -> bool {
    c.k == 0 || (c.cout <= 2 && c.k <= UNROLL)
}

pub fn lower(of: &Body, machine: &Hardware) -> Result<Emitted, LowerError> {
    let (v, c) = find(of)?;
    match of.multiply {
        None if is_small(&c) || of.schedule.is_some() && !c.transposed => return reduction::lower(of, machine, 0),
        Some(Multiply::Attention(_)) => return Err(of.unsupported("the schedule is one of attention")),
        Some(Multiply::Library) if machine.arch.is_gpu() && !c.transposed => {
            return Err(of.unsupported("the library takes matmuls, not convolutions"));
        }
        Some(Multiply::Matmul(_)) if !machine.arch.is_gpu() => return Err(of.unsupported(gemm::ON_HOST)),
        _ => {}
    }
    if c.transposed {
        return by_columns(of, v, &mut |of| gemm::lower(of, machine));
    }
    match of.product() {
        Some(asked) => gpu(of, v, &c, machine, &asked),
        None if machine.arch.is_gpu() => reduction::lower(of, machine, 0),
        None => host(of, v, &c),
    }
}

/// Schedules of a convolution on a GPU, with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(of: &Body, machine: &Hardware) -> Result<Vec<(Multiply, f64)>, LowerError> {
    let (v, c) = find(of)?;
    if is_small(&c) {
        return Ok(vec![]);
    }
    if c.transposed {
        return by_columns(of, v, &mut |of| gemm::candidates(of, machine));
    }
    let one = |(p, us)| (Multiply::Matmul(p), us);
    let all = match by_images(&c) {
        true => by_image(of, v, &c, machine, &|p| matmul::candidates(of, p, machine))?,
        false => by_patches(of, v, &c, machine, &|p| {
            let mut all = implicit_gemm::candidates(of, &c, p, machine)?;
            all.extend(matmul::candidates(of, p, machine)?);
            Ok(all)
        })?,
    };
    Ok(all.into_iter().map(one).collect())
}

/// What is made of a convolution's matmul.
type Then<'a, T> = &'a dyn Fn(&matmul::Matmul) -> Result<T, LowerError>;

/// A convolution by the schedule of a matmul: an implicit GEMM, or one that reads patches.
fn gpu(of: &Body, v: ValueId, c: &Conv, machine: &Hardware, asked: &Product) -> Result<Emitted, LowerError> {
    match (asked.forms.implicit, by_images(c)) {
        (true, true) => {
            let step = Step::ImplicitGemm;
            Err(of.unsupported(format!("`{step}` does not fit: {}", implicit_gemm::NEEDS)))
        }
        (true, false) => by_patches(of, v, c, machine, &|p| implicit_gemm::lower(of, c, p, machine, asked)),
        (false, true) => by_image(of, v, c, machine, &|p| matmul::lower(of, p, machine, asked)),
        (false, false) => by_patches(of, v, c, machine, &|p| matmul::lower(of, p, machine, asked)),
    }
}

/// The matmul of the weight with im2col patches.
fn by_patches<T>(of: &Body, v: ValueId, c: &Conv, machine: &Hardware, then: Then<T>) -> Result<T, LowerError> {
    let images = c.x_shape[0];
    let matmul = matmul::Matmul {
        v,
        batch: vec![c.groups],
        m: c.cout,
        n: images * c.points,
        k: c.k,
        whole: None,
        run: None,
        dual: None,
        machine,
        precision: matmul::precision(of, v),
        nearest: true,
        low: None,
        terms: Terms::Products,
        row: None,
        after: matmul::after(of, v),
        beside: matmul::beside(of.graph, of.bytes, v) as f64,
        a: &|r, at| r.at(c.w, &c.weight_index(at), &[]),
        b: &|r, at| {
            let (image, point) = (at[2].clone().div(c.points as i64), at[2].clone().rem(c.points as i64));
            c.patch(r, &[image, at[0].clone(), at[1].clone(), point])
        },
        place: &|ix| {
            let (group, channel) = (ix[1].clone().div(c.cout as i64), ix[1].clone().rem(c.cout as i64));
            let point = linear(&ix[2..], &c.out[2..]);
            vec![group, channel, ix[0].clone().scale(c.points as i64).plus(&point)]
        },
    };
    then(&matmul)
}

/// Points of an image that fill a tile by themselves.
const POINTS: usize = 192;

/// Whether each image is a matmul of its own.
fn by_images(c: &Conv) -> bool {
    c.is_pointwise() && c.points >= POINTS
}

/// A window of one point: a batch of matmuls, one per image, that read the input in place.
fn by_image<T>(of: &Body, v: ValueId, c: &Conv, machine: &Hardware, then: Then<T>) -> Result<T, LowerError> {
    let matmul = matmul::Matmul {
        v,
        batch: vec![c.x_shape[0], c.groups],
        m: c.cout,
        n: c.points,
        k: c.k,
        whole: None,
        run: None,
        dual: None,
        machine,
        precision: matmul::precision(of, v),
        nearest: true,
        low: None,
        terms: Terms::Products,
        row: None,
        after: matmul::after(of, v),
        beside: matmul::beside(of.graph, of.bytes, v) as f64,
        a: &|r, at| r.at(c.w, &c.weight_index(&at[1..]), &[]),
        b: &|r, at| c.patch(r, at),
        place: &|ix| {
            let (group, channel) = (ix[1].clone().div(c.cout as i64), ix[1].clone().rem(c.cout as i64));
            vec![ix[0].clone(), group, channel, linear(&ix[2..], &c.out[2..])]
        },
    };
    then(&matmul)
}

/// Images of fewer points than this share a matmul, so that it is wide.
const FEW: usize = 256;

/// The matmul reads patches through strided windows of the input, which is copied only to add its padding.
fn host(of: &Body, v: ValueId, c: &Conv) -> Result<Emitted, LowerError> {
    let (n, dims) = (c.x_shape[0], c.stride.len());
    let mut h = Host::new(*of);
    let weight = c.weight(&mut h)?;
    let reach = |d: usize| (c.out[d + 2].max(1) - 1) * c.stride[d] + (c.w_shape[d + 2] - 1) * c.dilation[d] + 1;
    let mut shape = c.x_shape.clone();
    if c.padding.iter().any(|&p| p > 0) {
        (0..dims).for_each(|d| shape[d + 2] = reach(d));
    }
    let x = h.padded(c.x, &shape, "padded", |at| {
        let shifted = |(d, e): (usize, &Expr)| match d {
            0 | 1 => e.clone(),
            _ => e.clone().shift(-(c.padding[d - 2] as i64)),
        };
        let ix: Vec<Expr> = at.iter().enumerate().map(shifted).collect();
        let bounds = ix.iter().zip(&c.x_shape).skip(2).map(|(e, s)| (e.clone(), 0, *s as i64)).collect();
        (ix, bounds)
    })?;
    let place = h.destination(v)?;
    let together = n > 1 && c.points < FEW;
    let images = |stride: usize| if together { (n, stride) } else { (1, 0) };
    let window = (0..dims).map(|d| (c.w_shape[d + 2], c.dilation[d] * x.strides[d + 2]));
    let points = (0..dims).map(|d| (c.out[d + 2], c.stride[d] * x.strides[d + 2]));
    let b = Matrix {
        slot: x.slot,
        offset: x.offset,
        rows: axes([(c.cin, x.strides[1])].into_iter().chain(window)),
        cols: axes([images(x.strides[0])].into_iter().chain(points)),
        batch_strides: vec![x.strides[0], c.cin * x.strides[1]],
    };
    let image = c.out[1] * c.points;
    let mut result = c.result(place.0, 0);
    result.cols = axes([images(image), (c.points, 1)]);
    let (batch, wide) = if together { (1, n * c.points) } else { (n, c.points) };
    h.gemm(of.graph.dtype(v), place.1, &[batch, c.groups, c.cout, wide], c.k, [weight, b, result]);
    h.finish(v, place)
}

/// A transposed convolution as a matmul with an epilogue that sums overlapping windows.
fn by_columns<T>(of: &Body, v: ValueId, then: &mut dyn FnMut(&Body) -> Result<T, LowerError>) -> Result<T, LowerError> {
    let graph = of.graph.rebuild(|new, u, args| match u == v {
        true => transposed_conv(new, of.graph.op(v), args).map(Some),
        false => Ok(None),
    });
    let graph = graph.map_err(|e| LowerError::Invariant {
        kernel: of.name.to_string(),
        what: format!("a transposed convolution cannot be written as a matmul: {e}"),
    })?;
    let decomposed = Decomposed::of(of.name, &graph)?;
    then(&Body { graph: &graph, decomposed: &decomposed, ..*of })
}

/// The nests of a convolution that is not computed as a matmul of large tiles.
pub fn each(of: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let (v, c) = find(of)?;
    match c.transposed && !is_small(&c) {
        true => by_columns(of, v, &mut |of| reduction::each(of, machine, f)),
        false => reduction::each(of, machine, f),
    }
}
