//! Random graphs for differential tests, and shrinking of failing ones.
//!
//! A graph depends only on its seed and options, on every machine. Values stay moderate (functions with poles get safe
//! arguments), so results can be compared with tolerances. Print the seed when a test fails.
#![warn(missing_docs)]
mod cases;
mod shrink;

pub use cases::{Scale, case, case_inputs};
pub use shrink::shrink;

use kiln_graph::Random;
use kiln_graph::{
    BinaryOp, CompareOp, DType, Graph, GraphError, Op, ReduceOp, Scalar, ScanOp, Tensor, Type, UnaryOp, ValueId,
    random_tensor,
};

/// Options of [`graph`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of ops, not counting inputs and helper ops such as casts.
    pub ops: usize,
    /// Float dtypes of inputs.
    pub dtypes: Vec<DType>,
    /// Permute, reshape, slice, flip, broadcast.
    pub views: bool,
    /// Reductions, including argmax, argmin, any, all.
    pub reductions: bool,
    /// Matmuls.
    pub dots: bool,
    /// Softmax, norms, named functions.
    pub composites: bool,
    /// Concat, pad, take, scan.
    pub movement: bool,
    /// With `movement`: reflected and flipped edges and cropping pads, whose indices run backwards and below 0.
    pub edges: bool,
    /// Also axes of size 0 and 1, and rank 0.
    pub odd_shapes: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ops: 12,
            dtypes: vec![DType::F32, DType::F64, DType::Bf16, DType::F16],
            views: true,
            reductions: true,
            dots: true,
            composites: true,
            movement: true,
            edges: false,
            odd_shapes: true,
        }
    }
}

/// A random graph of one float dtype, with some integer and bool intermediates. Valid by construction.
pub fn graph(seed: u64, options: &Options) -> Graph {
    let mut r = Random::new(seed);
    let mut g = Graph::new(format!("random_{seed}"));
    let dtype = if options.dtypes.is_empty() { DType::F32 } else { r.choose(&options.dtypes) };
    let sizes: &[usize] =
        if options.odd_shapes && r.next_below(3) == 0 { &[0, 1, 1, 3, 17] } else { &[1, 2, 5, 16, 33] };
    let least_rank = if options.odd_shapes { 0 } else { 1 };
    let rank = (least_rank + r.next_below(4)).min(3);
    let base: Vec<usize> = (0..rank).map(|_| r.choose(sizes)).collect();
    for _ in 0..1 + r.next_below(3) {
        // Shapes that broadcast against each other: some axes of size 1, some leading axes missing.
        let mut shape: Vec<usize> = base.iter().map(|&d| if r.next_below(4) == 0 { 1 } else { d }).collect();
        if r.next_below(5) == 0 && !shape.is_empty() {
            shape.remove(0);
        }
        g.input(Type::new(dtype, shape));
    }
    let mut floats: Vec<ValueId> = g.inputs.clone();
    let (mut made, mut tries) = (0, 0);
    while made < options.ops && tries < options.ops * 20 {
        tries += 1;
        // Skip steps that do not fit (shapes that do not broadcast, results that are too large); helper ops they leave
        // are dead.
        if let Ok(v) = step(&mut g, &mut r, &floats, options)
            && g.ty(v).count() <= 1 << 16
        {
            floats.push(v);
            made += 1;
        }
    }
    g.outputs.extend(floats.last().copied());
    for _ in 0..r.next_below(3) {
        let v = r.choose(&floats);
        if !g.outputs.contains(&v) {
            g.outputs.push(v);
        }
    }
    g.without_dead()
}

/// Random inputs for a graph: Normal(0, 1) for floats, `0..5` for integers, even odds for bool.
pub fn inputs(g: &Graph, seed: u64) -> Vec<Tensor> {
    let input = |(i, v): (usize, &ValueId)| {
        let ty = g.ty(*v).clone();
        let scale = if ty.dtype.is_int() { 5.0 } else { 1.0 };
        random_tensor(ty, seed.wrapping_mul(31).wrapping_add(i as u64), scale)
    };
    g.inputs.iter().enumerate().map(input).collect()
}

/// Adds one more float value.
fn step(g: &mut Graph, r: &mut Random, values: &[ValueId], o: &Options) -> Result<ValueId, GraphError> {
    // Prefers recent values, so that graphs get deep.
    let near = |r: &mut Random| values[values.len() - 1 - r.next_below(values.len()).min(r.next_below(values.len()))];
    let x = near(r);
    match r.next_below(12) {
        0..=2 => unary(g, r, x, o),
        3..=5 => {
            let y = near(r);
            let op = r.choose(&[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Max, BinaryOp::Min]);
            g.binary(op, x, y)
        }
        6 => {
            let y = near(r);
            let op = r.choose(&[CompareOp::Lt, CompareOp::Ge, CompareOp::Eq]);
            let cond = g.compare(op, x, y)?;
            let no = near(r);
            g.select(cond, x, no)
        }
        7 if o.views => view(g, r, x),
        8 if o.reductions => reduce(g, r, x),
        9 if o.dots => {
            let y = near(r);
            let (a, b) = (g.shape(x).to_vec(), g.shape(y).to_vec());
            match (a.as_slice(), b.as_slice()) {
                ([.., k], [.., j, _]) if k == j && a.len() >= 2 => dot(g, x, y),
                ([.., k], [.., j]) if k == j && a.len() >= 2 && b.len() >= 2 => {
                    let t = g.transpose(y)?;
                    dot(g, x, t)
                }
                _ => {
                    let number = r.normal();
                    g.binary_scalar(BinaryOp::Mul, x, number)
                }
            }
        }
        10 if o.composites => composite(g, r, x),
        11 if o.movement && o.edges && r.next_below(2) == 0 => edge(g, r, x),
        11 if o.movement => movement(g, r, x),
        _ => {
            let number = (r.normal() * 8.0).round() / 8.0;
            g.binary_scalar(BinaryOp::Add, x, number)
        }
    }
}

fn unary(g: &mut Graph, r: &mut Random, x: ValueId, o: &Options) -> Result<ValueId, GraphError> {
    use UnaryOp::*;
    let safe = [Neg, Abs, Sin, Cos, Tanh, Erf, Atan, Sigmoid, Relu];
    match r.next_below(4) {
        // Positive arguments.
        0 => {
            let y = g.unary(Abs, x)?;
            let y = g.binary_scalar(BinaryOp::Add, y, 1.0)?;
            let op = r.choose(&[Log, Log2, Sqrt, Rsqrt, Reciprocal, Log1p]);
            g.unary(op, y)
        }
        // Bounded arguments.
        1 => {
            let y = g.binary_scalar(BinaryOp::Min, x, 2.0)?;
            let op = r.choose(&[Exp, Exp2, Expm1]);
            g.unary(op, y)
        }
        2 if o.composites => {
            let named: Vec<UnaryOp> = UnaryOp::ALL.into_iter().filter(|op| op.is_composite()).collect();
            let op = r.choose(&named);
            g.unary(op, x)
        }
        _ => {
            let op = r.choose(&safe);
            g.unary(op, x)
        }
    }
}

fn view(g: &mut Graph, r: &mut Random, x: ValueId) -> Result<ValueId, GraphError> {
    let shape = g.shape(x).to_vec();
    let rank = shape.len();
    match r.next_below(5) {
        0 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                perm.swap(i, r.next_below(i + 1));
            }
            g.permute(x, perm)
        }
        1 => {
            // Merges two axes, or inserts an axis of size 1.
            let mut to = shape.clone();
            if rank >= 2 && r.next_below(2) == 0 {
                let i = r.next_below(rank - 1);
                let joined = to.remove(i);
                to[i] *= joined;
            } else {
                to.insert(r.next_below(rank + 1), 1);
            }
            g.reshape(x, to)
        }
        2 if rank > 0 => {
            let axis = r.next_below(rank);
            let step = 1 + r.next_below(2);
            let start = r.next_below(shape[axis]);
            let len = (shape[axis] - start).div_ceil(step);
            g.slice(x, axis, start, len, step)
        }
        3 if rank > 0 => {
            let axis = r.next_below(rank);
            g.add(Op::Flip(vec![axis]), &[x])
        }
        _ => {
            let mut to = shape;
            to.insert(0, 1 + r.next_below(3));
            g.broadcast_to(x, to)
        }
    }
}

fn reduce(g: &mut Graph, r: &mut Random, x: ValueId) -> Result<ValueId, GraphError> {
    let axes: Vec<usize> = (0..g.shape(x).len()).filter(|_| r.next_below(2) == 0).collect();
    match r.next_below(6) {
        0 => {
            let zero = g.constant_like(x, 0.0)?;
            let positive = g.compare(CompareOp::Gt, x, zero)?;
            let op = r.choose(&[ReduceOp::Any, ReduceOp::All]);
            let all = g.reduce(op, positive, axes)?;
            let dtype = g.dtype(x);
            g.cast(all, dtype)
        }
        1 if !axes.is_empty() => {
            let op = r.choose(&[ReduceOp::ArgMax, ReduceOp::ArgMin]);
            let place = g.reduce(op, x, [axes[0]])?;
            let dtype = g.dtype(x);
            g.cast(place, dtype)
        }
        _ => {
            let op = r.choose(&[ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min]);
            // The mean of no elements is NaN, which has its own tests.
            let empty = axes.iter().any(|&a| g.shape(x)[a] == 0);
            g.reduce(if empty { ReduceOp::Sum } else { op }, x, axes)
        }
    }
}

/// A matmul scaled so that sums over k stay moderate.
fn dot(g: &mut Graph, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
    let k = g.shape(a).last().copied().unwrap_or(1);
    let y = g.dot(a, b)?;
    g.binary_scalar(BinaryOp::Mul, y, 1.0 / (k.max(1) as f64).sqrt())
}

fn composite(g: &mut Graph, r: &mut Random, x: ValueId) -> Result<ValueId, GraphError> {
    let rank = g.shape(x).len();
    if rank == 0 {
        return g.unary(UnaryOp::Silu, x);
    }
    let axis = r.next_below(rank);
    match r.next_below(3) {
        0 => g.add(Op::Softmax { axis }, &[x]),
        1 => g.add(Op::LogSoftmax { axis }, &[x]),
        _ => g.add(Op::LayerNorm { axes: 1, affine: false, eps: Scalar::Float(0.01) }, &[x]),
    }
}

fn movement(g: &mut Graph, r: &mut Random, x: ValueId) -> Result<ValueId, GraphError> {
    let shape = g.shape(x).to_vec();
    if shape.is_empty() {
        return g.reshape(x, [1]);
    }
    let axis = r.next_below(shape.len());
    match r.next_below(4) {
        0 => {
            let mut lo = vec![0; shape.len()];
            let mut hi = vec![0; shape.len()];
            lo[axis] = r.next_below(3) as i64;
            hi[axis] = r.next_below(3) as i64;
            g.pad(x, 0.5, lo, hi)
        }
        1 => g.concat(&[x, x], axis),
        2 if shape[axis] > 0 => {
            let count = g.iota(DType::I64, [shape[axis]], 0);
            let last = g.constant(DType::I64, Scalar::Int(shape[axis] as i64 - 1));
            let index = g.binary(BinaryOp::Sub, last, count)?;
            g.add(Op::Take { axis }, &[x, index])
        }
        _ => g.scan(ScanOp::Sum, x, axis),
    }
}

/// Reflects, flips or crops the ends of an axis, so that some index into the operand runs backwards or below 0.
fn edge(g: &mut Graph, r: &mut Random, x: ValueId) -> Result<ValueId, GraphError> {
    let shape = g.shape(x).to_vec();
    if shape.is_empty() {
        return g.reshape(x, [1]);
    }
    let axis = r.next_below(shape.len());
    let n = shape[axis];
    let flipped = g.add(Op::Flip(vec![axis]), &[x])?;
    match r.next_below(4) {
        // Reflection without repeating the outermost element, on one side or both.
        0 if n > 1 => {
            let width = 1 + r.next_below(n - 1);
            let before = g.slice(flipped, axis, n - 1 - width, width, 1)?;
            if r.next_below(2) == 0 {
                return g.concat(&[before, x], axis);
            }
            let after = g.slice(flipped, axis, 1, width, 1)?;
            g.concat(&[before, x, after], axis)
        }
        1 => g.concat(&[flipped, x], axis),
        2 => {
            let joined = g.concat(&[x, flipped], axis)?;
            g.add(Op::Flip(vec![axis]), &[joined])
        }
        // Crop one end, pad the other, then flatten.
        _ => {
            let (mut lo, mut hi) = (vec![0; shape.len()], vec![0; shape.len()]);
            let cut = r.next_below(n.max(1)) as i64;
            (lo[axis], hi[axis]) = if r.next_below(2) == 0 { (-cut, cut + 1) } else { (cut + 1, -cut) };
            let moved = g.pad(flipped, 0.5, lo, hi)?;
            g.reshape(moved, [g.ty(moved).count()])
        }
    }
}
