//! Convolutions as products of the weight with patches of the input. On the host 1×1 ones are products as they lie, others go
//! through a patch matrix in scratch, a bounded number of images at a time; on GPUs patches are read where they are wanted.
//! Depthwise ones are direct.
use crate::dag::{NodeOp, Scene, Store};
use crate::expr::{Expr, delinear, linear};
use crate::host::{Host, Operand, the_product};
use crate::resolve::{Body, Inside, Resolved, Resolver, inside};
use crate::rows::Emitted;
use crate::window::UNROLL;
use crate::{LowerError, Target, pointwise, product, reduction};
use kiln_graph::{DType, Graph, Op, Scalar, Type, ValueId};
use kiln_plan::exec::{Matrix, axes};

/// Elements of the patch matrix that are made at a time.
const PATCHES: usize = 1 << 25;

/// A convolution's operands and numbers.
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
    /// Channels of a group: read, written.
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
    /// A position in a patch as channel and window.
    fn in_patch(&self, k: &Expr) -> Vec<Expr> {
        delinear(k, &[&[self.cin], &self.w_shape[2..]].concat())
    }
    /// Index of the weight at (group, channel written, position in the patch).
    fn weight_index(&self, at: &[Expr]) -> Vec<Expr> {
        let inner = self.in_patch(&at[2]);
        let mut ix = if self.transposed {
            vec![at[0].clone().scale(self.cin as i64).plus(&inner[0]), at[1].clone()]
        } else {
            vec![at[0].clone().scale(self.cout as i64).plus(&at[1]), inner[0].clone()]
        };
        ix.extend_from_slice(&inner[1..]);
        ix
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
            let e = if self.transposed {
                let e = place[d].clone().shift(p).plus(&reach.scale(-1));
                bounds.push((e.clone().rem(s), 0, 1));
                bounds.push((e.clone(), 0, i64::MAX));
                e.div(s)
            } else {
                place[d].clone().scale(s).plus(&reach).shift(-p)
            };
            bounds.push((e.clone(), 0, self.x_shape[d + 2] as i64));
            ix.push(e);
        }
        let zero = |r: &mut Resolver| {
            let dtype = r.graph.dtype(self.x);
            r.dag.add(NodeOp::Const(Scalar::Float(0.0)), dtype)
        };
        match inside(bounds.into_iter()) {
            Inside::Always => r.at(self.x, &ix, &[]),
            Inside::Never => Ok(zero(r)),
            Inside::When(own) => {
                let value = r.at(self.x, &ix, &own)?;
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
}

pub fn lower(of: &Body, target: Target) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let v = the_product(of, |v| matches!(g.op(v), Op::Conv { .. }))?;
    let c = Conv::new(g, v).ok_or_else(|| of.unsupported("not a convolution"))?;
    // Depthwise and nearly so: no product worth the name.
    if c.k == 0 || (c.cout <= 2 && c.k <= UNROLL) {
        return reduction::lower(of, target, 0);
    }
    match target {
        Target::Host => host(of, v, &c),
        Target::Gpu { .. } => gpu(of, v, &c, target),
    }
}

/// The patch matrix is never made: its elements are read where the product wants them.
fn gpu(of: &Body, v: ValueId, c: &Conv, target: Target) -> Result<Emitted, LowerError> {
    let images = c.x_shape[0];
    let product = product::Product {
        v,
        batch: vec![c.groups],
        m: c.cout,
        n: images * c.points,
        k: c.k,
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
    product::lower(of, &product, target)
}

fn host(of: &Body, v: ValueId, c: &Conv) -> Result<Emitted, LowerError> {
    let (n, dtype, points) = (c.x_shape[0], of.graph.dtype(v), c.points);
    let mut h = Host::new(*of);
    let a = h.operand(c.w, &[c.groups, c.cout, c.k], "weight", |at| c.weight_index(at))?;
    let plain = |l: &[usize], v: usize| l.iter().all(|&s| s == v);
    let direct = !c.transposed && plain(&c.w_shape[2..], 1) && plain(c.stride, 1) && plain(c.padding, 0);
    let place = h.destination(v)?;
    let image = c.out[1] * points;
    let result = |first: usize| Matrix {
        slot: place.0,
        offset: first * image,
        rows: axes([(c.cout, points)]),
        cols: axes([(points, 1)]),
        batch_strides: vec![image, c.cout * points],
    };
    let weight = Matrix { batch_strides: vec![0, a.strides[0]], ..a.matrix([c.cout, c.k]) };
    if direct {
        let shape = [n, c.groups, c.k, points];
        let b = h.operand(c.x, &shape, "input", |at| {
            let mut ix = vec![at[0].clone(), at[1].clone().scale(c.cin as i64).plus(&at[2])];
            ix.extend(delinear(&at[3], &c.out[2..]));
            ix
        })?;
        h.gemm(dtype, place.1, &[n, c.groups, c.cout, points], c.k, [weight, b.matrix([c.k, points]), result(0)]);
        return h.finish(v, place);
    }
    let each = c.groups * c.k * points;
    let at_once = (PATCHES / each.max(1)).clamp(1, n);
    let slot = h.scratch(dtype, &[at_once, c.groups, c.k, points]);
    for (i, first) in (0..n).step_by(at_once).enumerate() {
        let count = at_once.min(n - first);
        let shape = [count, c.groups, c.k, points];
        let scene = |axes: &[Expr]| {
            let mut r = of.resolver();
            let mut at = axes.to_vec();
            at[0] = at[0].clone().shift(first as i64);
            let value = c.patch(&mut r, &at)?;
            let store = Store { slot, dtype, at: linear(axes, &shape), guards: vec![], value };
            Ok(Scene { dag: r.dag, stores: vec![store] })
        };
        let name = format!("{}_patches{i}", of.name);
        h.out.steps.push(pointwise::points(&name, &shape, &scene, Target::Host)?);
        let b = Operand { slot, offset: 0, strides: Type::new(dtype, shape).strides() };
        let shape = [count, c.groups, c.cout, points];
        h.gemm(dtype, place.1, &shape, c.k, [weight.clone(), b.matrix([c.k, points]), result(first)]);
    }
    h.finish(v, place)
}
