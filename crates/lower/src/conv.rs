//! Convolutions on the host: 1×1 ones are products as they lie, others go through a patch matrix in scratch, a bounded
//! number of images at a time; depthwise ones are direct.
use crate::dag::{Dag, NodeOp, Scene, Store};
use crate::expr::{Expr, delinear, linear};
use crate::host::{Host, Operand, the_product};
use crate::resolve::{Body, Inside, inside};
use crate::rows::Emitted;
use crate::window::UNROLL;
use crate::{LowerError, Target, pointwise, reduction};
use kiln_graph::{DType, Op, Scalar, Type};
use kiln_plan::exec::Matrix;

/// Elements of the patch matrix that are made at a time.
const PATCHES: usize = 1 << 25;

pub fn lower(of: &Body, target: Target) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let v = the_product(of, |v| matches!(g.op(v), Op::Conv { .. }))?;
    let Op::Conv { stride, padding, dilation, groups, transposed, .. } = g.op(v) else {
        return Err(of.unsupported("not a convolution"));
    };
    let args = g.args(v);
    let (x, w, out) = (g.shape(args[0]).to_vec(), g.shape(args[1]).to_vec(), g.shape(v).to_vec());
    let (cin, cout) = (x[1] / groups, out[1] / groups);
    let k = cin * w[2..].iter().product::<usize>();
    let points: usize = out[2..].iter().product();
    if k == 0 || (cout <= 2 && k <= UNROLL) || target != Target::Host {
        return if k <= UNROLL || target == Target::Host {
            reduction::lower(of, target, 0)
        } else {
            Err(of.unsupported("no convolution template with large windows on this target"))
        };
    }
    let (n, dtype) = (x[0], g.dtype(v));
    let mut h = Host::new(*of);
    // Weight as [group, o, (c, window)].
    let wshape = [*groups, cout, k];
    let a = h.operand(args[1], &wshape, "weight", |at| {
        let inner = delinear(&at[2], &[&[cin], &w[2..]].concat());
        let mut ix = if *transposed {
            vec![at[0].clone().scale(cin as i64).plus(&inner[0]), at[1].clone()]
        } else {
            vec![at[0].clone().scale(cout as i64).plus(&at[1]), inner[0].clone()]
        };
        ix.extend_from_slice(&inner[1..]);
        ix
    })?;
    let plain = |l: &[usize], v: usize| l.iter().all(|&s| s == v);
    let direct = !*transposed && plain(&w[2..], 1) && plain(stride, 1) && plain(padding, 0);
    let place = h.destination(v)?;
    let image = out[1] * points;
    let c = |first: usize| Matrix {
        slot: place.0,
        offset: first * image,
        row_stride: points,
        col_stride: 1,
        batch_strides: vec![image, cout * points],
    };
    let weight =
        Matrix { batch_strides: vec![0, a.strides[0]], ..Operand { strides: a.strides.clone(), ..a }.matrix() };
    if direct {
        let shape = [n, *groups, k, points];
        let b = h.operand(args[0], &shape, "input", |at| {
            let mut ix = vec![at[0].clone(), at[1].clone().scale(cin as i64).plus(&at[2])];
            ix.extend(delinear(&at[3], &out[2..]));
            ix
        })?;
        h.gemm(dtype, place.1, &[n, *groups, cout, points], k, [weight, b.matrix(), c(0)]);
        return h.finish(v, place);
    }
    let each = groups * k * points;
    let at_once = (PATCHES / each.max(1)).clamp(1, n);
    let slot = h.scratch(dtype, &[at_once, *groups, k, points]);
    for (i, first) in (0..n).step_by(at_once).enumerate() {
        let count = at_once.min(n - first);
        let shape = [count, *groups, k, points];
        let scene = |axes: &[Expr]| {
            let mut r = of.resolver();
            let inner = delinear(&axes[2], &[&[cin], &w[2..]].concat());
            let place = delinear(&axes[3], &out[2..]);
            let mut ix = vec![axes[0].clone().shift(first as i64), axes[1].clone().scale(cin as i64).plus(&inner[0])];
            let mut bounds = vec![];
            for d in 0..stride.len() {
                let (s, p) = (stride[d] as i64, padding[d] as i64);
                let reach = inner[d + 1].clone().scale(dilation[d] as i64);
                let e = if *transposed {
                    let e = place[d].clone().shift(p).plus(&reach.scale(-1));
                    bounds.push((e.clone().rem(s), 0, 1));
                    bounds.push((e.clone(), 0, i64::MAX));
                    e.div(s)
                } else {
                    place[d].clone().scale(s).plus(&reach).shift(-p)
                };
                bounds.push((e.clone(), 0, x[d + 2] as i64));
                ix.push(e);
            }
            let value = match inside(bounds.into_iter()) {
                Inside::Always => r.at(args[0], &ix, &[])?,
                Inside::Never => zero(&mut r.dag, dtype),
                Inside::When(own) => {
                    let value = r.at(args[0], &ix, &own)?;
                    let c = r.dag.add(NodeOp::Inside(own), DType::Bool);
                    let zero = zero(&mut r.dag, dtype);
                    r.dag.add(NodeOp::Select(c, value, zero), dtype)
                }
            };
            let store = Store { slot, dtype, at: linear(axes, &shape), guards: vec![], value };
            Ok(Scene { dag: r.dag, stores: vec![store] })
        };
        let name = format!("{}_patches{i}", of.name);
        h.out.steps.push(pointwise::points(&name, &shape, &scene, target)?);
        let b = Operand { slot, offset: 0, strides: Type::new(dtype, shape).strides() };
        h.gemm(dtype, place.1, &[count, *groups, cout, points], k, [weight.clone(), b.matrix(), c(first)]);
    }
    h.finish(v, place)
}

fn zero(dag: &mut Dag, dtype: DType) -> u32 {
    dag.add(NodeOp::Const(Scalar::Float(0.0)), dtype)
}
