//! Plans compute what the graph computes: kernel by kernel through the interpreter, on generated graphs and on `graphs/`.
use crate::common::{self, Random, differential, graph};
use kiln_graph::{BinaryOp, CompareOp, DType, FallbackOp, Graph, Op, ReduceOp, Scalar, ScanOp, Type, UnaryOp, ValueId};
use kiln_rewrite::{Constraints, Group, Options, RewriteError, plan_under};

/// A random graph of views, pointwise ops, reductions, rows and products.
fn random_graph(seed: u64) -> Graph {
    let mut r = Random(seed);
    let mut g = Graph::new(format!("random_{seed}"));
    let dtype = [DType::F32, DType::F32, DType::Bf16, DType::F16][r.below(4)];
    let dims = [1, 2, 3, 4, 6, 8];
    let shape: Vec<usize> = (0..1 + r.below(4)).map(|_| dims[r.below(dims.len())]).collect();
    g.input(Type::new(dtype, shape.clone()));
    g.input(Type::new(dtype, shape.clone()));
    g.param("w", Type::new(dtype, shape), kiln_graph::Init::External);
    for _ in 0..4 + r.below(20) {
        grow(&mut g, &mut r);
    }
    for _ in 0..1 + r.below(3) {
        let n = g.len();
        g.outputs.push(ValueId((n - 1 - r.below(n.min(6))) as u32));
    }
    g
}
/// Adds one op, if the one drawn fits.
fn grow(g: &mut Graph, r: &mut Random) {
    let n = g.len();
    let pick = |r: &mut Random| ValueId((n - 1 - r.below(n.min(8))) as u32);
    let x = pick(r);
    let (shape, rank, dtype) = (g.shape(x).to_vec(), g.shape(x).len(), g.dtype(x));
    let axis = r.below(rank);
    let unary = [UnaryOp::Tanh, UnaryOp::Neg, UnaryOp::Sigmoid, UnaryOp::Abs, UnaryOp::Relu, UnaryOp::Silu];
    let binary = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Max];
    let reduce = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min];
    let (op, args) = match r.below(28) {
        0..3 => (Op::Unary(unary[r.below(unary.len())]), vec![x]),
        3..7 => (Op::Binary(binary[r.below(binary.len())]), vec![x, pick(r)]),
        7 if dtype.is_float() => {
            let c = g.constant(dtype, Scalar::Float([0.5, 2., 3., 0.7][r.below(4)]));
            (Op::Binary([BinaryOp::Mul, BinaryOp::Div, BinaryOp::Add][r.below(3)]), vec![x, c])
        }
        8 => {
            let mut p: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                p.swap(i, r.below(i + 1));
            }
            (Op::Permute(p), vec![x])
        }
        9 => (Op::Reshape(vec![shape.iter().product()]), vec![x]),
        10 if rank > 0 && shape[axis] % 2 == 0 => {
            let mut to = shape.clone();
            to.splice(axis..=axis, [2, shape[axis] / 2]);
            (Op::Reshape(to), vec![x])
        }
        11 if rank > 0 && shape[axis] > 1 => {
            let start = r.below(shape[axis] - 1);
            let step = 1 + r.below(2);
            let len = (shape[axis] - start).div_ceil(step);
            (Op::Slice { axis, start, len, step }, vec![x])
        }
        12 if rank > 0 => (Op::Concat { axis }, vec![x, pick(r)]),
        13 | 14 if rank > 0 => (Op::Reduce { op: reduce[r.below(4)], axes: vec![axis] }, vec![x]),
        15 if rank > 0 => (Op::Softmax { axis }, vec![x]),
        16 if rank > 0 => {
            let op = Op::LayerNorm { axes: 1, affine: false, eps: Scalar::Float(1e-5) };
            (if r.below(2) == 0 { Op::LogSoftmax { axis } } else { op }, vec![x])
        }
        17 => (Op::Dot, vec![x, pick(r)]),
        18 => {
            let y = pick(r);
            match g.add(Op::Compare(CompareOp::Lt), &[x, y]) {
                Ok(c) => (Op::Select, vec![c, x, y]),
                Err(_) => return,
            }
        }
        19 if rank > 0 => (Op::Flip(vec![axis]), vec![x]),
        20 if rank > 0 => (Op::Scan { op: ScanOp::Sum, axis }, vec![x]),
        21 if rank > 0 => (Op::Reduce { op: ReduceOp::ArgMax, axes: vec![axis] }, vec![x]),
        22 if rank > 0 && dtype.is_float() => {
            let zero = g.constant(dtype, Scalar::Float(0.));
            let (mut lo, mut hi) = (vec![0; rank], vec![0; rank]);
            (lo[axis], hi[axis]) = (r.below(3) as i64 - 1, r.below(2) as i64);
            (Op::Pad { lo, hi }, vec![x, zero])
        }
        23 if rank > 0 && shape[axis] > 0 => {
            let count = 1 + r.below(shape[axis]);
            let index = g.push(Op::Iota { axis: 0 }, Type::new(DType::I64, [count]), &[]);
            (Op::Take { axis }, vec![x, index])
        }
        24 if rank > 0 && shape[rank - 1] > 0 => {
            let w = g.param("w", Type::new(dtype, [4, shape[rank - 1]]), kiln_graph::Init::External);
            let b = g.param("b", Type::new(dtype, [4]), kiln_graph::Init::External);
            (Op::Linear, vec![x, w, b])
        }
        25 if rank > 1 && shape[1] % 2 == 0 => {
            (Op::GroupNorm { groups: 2, affine: false, eps: Scalar::Float(1e-5) }, vec![x])
        }
        26 if rank > 0 => {
            let mut to = shape.clone();
            to.insert(0, 2);
            (Op::Broadcast(to), vec![x])
        }
        27 => {
            let y = pick(r);
            return fall_back(g, r, &[x, y]);
        }
        _ => (Op::Cast([DType::F32, DType::Bf16, DType::F16][r.below(3)]), vec![x]),
    };
    // What does not fit is left out.
    if args.iter().map(|a| g.ty(*a).count()).sum::<usize>() < 4096 {
        let _ = g.add(op, &args);
    }
}
/// Adds a fallback with one result per operand, some of which are used. Its operands may be views, constants and frozen.
fn fall_back(g: &mut Graph, r: &mut Random, args: &[ValueId]) {
    let results: Vec<Type> = args.iter().map(|a| g.ty(*a).clone()).collect();
    let (name, why) = ("test::same".to_string(), "a test".to_string());
    let first = results[0].clone();
    let op = FallbackOp { name, overload: String::new(), args: "[]".to_string(), results: results.clone(), why };
    let call = g.push(Op::Fallback(Box::new(op)), first, args);
    if r.below(2) == 0 {
        g.push(Op::Result(1), results[1].clone(), &[call]);
    }
}

#[test]
fn generated_graphs() {
    let cases = std::env::var("KILN_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    for seed in 0..cases {
        differential(&random_graph(seed));
    }
}

/// Constraints drawn at random are met, or refused in words; what is planned within them computes the same.
#[test]
fn generated_graphs_under_constraints() {
    let (mut met, mut refused) = (0, 0);
    for seed in 0..200 {
        let g = random_graph(seed);
        let mut r = Random(seed + 99);
        let mut live: Vec<ValueId> = g.outputs.clone();
        for i in 0..64 {
            let Some(&v) = live.get(i) else { break };
            let leaf = |a: &ValueId| matches!(g.op(*a), Op::Input(_) | Op::Param(_) | Op::Const(_));
            live.extend(g.args(v).into_iter().filter(|a| !leaf(a)));
        }
        let mut group = || {
            let values = (0..1 + r.below(2)).map(|_| live[r.below(live.len())]).collect();
            Group { label: format!("{values:?}"), values }
        };
        let mut c = Constraints::default();
        match seed % 4 {
            0 => c.must_fuse.push(group()),
            1 => c.never_fuse.push(vec![group(), group()]),
            2 => c.keep_in_memory.push(group()),
            _ => {
                c.must_fuse.push(group());
                c.never_fuse.push(vec![group()]);
                c.keep_in_memory.push(group());
            }
        }
        match plan_under(&g, &common::h200(), &Options::default(), &c) {
            Ok(p) => {
                kiln_plan::verify::verify(&p).unwrap_or_else(|e| panic!("{e}\n{g}\n{p}"));
                common::agrees(&g, &p);
                met += 1;
            }
            Err(RewriteError::Impossible { constraint, why }) => {
                assert!(!constraint.is_empty() && !why.is_empty(), "seed {seed}");
                refused += 1;
            }
            Err(e) => panic!("seed {seed}: {e}\n{g}"),
        }
    }
    assert!(met > 60 && refused > 10, "{met} met, {refused} refused");
}

#[test]
fn graphs_in_the_repository() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    for path in files.into_iter().filter(|p| p.extension().is_some_and(|e| e == "kiln")) {
        let g = graph(&std::fs::read_to_string(&path).expect("the file was listed"));
        let small = g.values().all(|v| g.ty(v).count() < 1 << 16);
        let ours = g.values().all(|v| !matches!(g.op(v), Op::Fallback(_)));
        if small && ours {
            differential(&g);
        } else {
            common::plan_with(&g, kiln_rewrite::Options::default());
        }
    }
}
