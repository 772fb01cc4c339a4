//! Ops that move elements or combine them along an axis.
use super::{
    memory::{collected, element},
    scalar::{float_max, undefined},
    value::*,
};
use kiln_block::{Elem, ReduceOp, ScanOp, Terms};

/// Coordinates of row-major position `i`.
pub fn coordinates(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (a, n) in at.iter_mut().zip(shape).rev() {
        (*a, i) = (i % n, i / n);
    }
    at
}
fn place(at: impl Iterator<Item = usize>, shape: &[usize]) -> usize {
    at.zip(shape).fold(0, |i, (a, n)| i * n + a)
}

pub fn splat(a: &Block, shape: &[usize]) -> Block {
    a.gathered(shape, (0..shape.iter().product()).map(|_| 0))
}
pub fn broadcast(a: &Block, shape: &[usize]) -> Block {
    let from = |i| {
        let at = coordinates(i, shape);
        place(at.iter().zip(&a.shape).map(|(c, n)| if *n == 1 { 0 } else { *c }), &a.shape)
    };
    a.gathered(shape, (0..shape.iter().product()).map(from))
}
pub fn permute(a: &Block, perm: &[u8]) -> Block {
    let shape: Vec<usize> = perm.iter().map(|p| a.shape[*p as usize]).collect();
    let from = |i| {
        let at = coordinates(i, &shape);
        let mut old = vec![0; at.len()];
        perm.iter().zip(at).for_each(|(p, c)| old[*p as usize] = c);
        place(old.into_iter(), &a.shape)
    };
    a.gathered(&shape, (0..a.count()).map(from))
}

/// Row-major positions of every line along `axis`, outer coordinates slowest.
pub fn lines(shape: &[usize], axis: usize) -> Vec<Vec<usize>> {
    let (n, inner): (usize, usize) = (shape[axis], shape[axis + 1..].iter().product());
    let outer: usize = shape[..axis].iter().product();
    let line = |o: usize, i: usize| (0..n).map(move |j| (o * n + j) * inner + i).collect();
    (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| line(o, i)).collect()
}

pub fn reduce(op: ReduceOp, axis: usize, a: &Block) -> Result<Block, String> {
    let lines = lines(&a.shape, axis);
    let mut shape = a.shape.clone();
    shape.remove(axis);
    if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
        let data = lines.iter().map(|l| position(op == ReduceOp::ArgMin, a, l)).collect();
        return Ok(Block { elem: Elem::I32, shape, data: Data::Int(data) });
    }
    let float = |v: &[f64], line: &[usize]| {
        let x = line.iter().map(|i| v[*i]);
        let all = match op {
            // -0.0 is the identity of addition: 0.0 would turn a sum of -0.0 into +0.0.
            ReduceOp::Sum => x.fold(-0.0, |a, b| a + b),
            ReduceOp::Prod => x.product(),
            ReduceOp::Max => x.fold(f64::NEG_INFINITY, float_max),
            ReduceOp::Min => -x.map(|x| -x).fold(f64::NEG_INFINITY, float_max),
            ReduceOp::MaxNum => x.fold(f64::NAN, f64::max),
            ReduceOp::MinNum => x.fold(f64::NAN, f64::min),
            ReduceOp::And | ReduceOp::Or | ReduceOp::ArgMax | ReduceOp::ArgMin => {
                return Err(undefined(op, "floats"));
            }
        };
        Ok(rounded(a.elem, all))
    };
    let int = |v: &[i64], line: &[usize]| {
        let x = line.iter().map(|i| v[*i]);
        let all = match op {
            ReduceOp::Sum => x.fold(0, i64::wrapping_add),
            ReduceOp::Prod => x.fold(1, i64::wrapping_mul),
            ReduceOp::Max => x.max_by_key(|x| a.elem.ordered(*x)).unwrap_or_default(),
            ReduceOp::Min => x.min_by_key(|x| a.elem.ordered(*x)).unwrap_or_default(),
            ReduceOp::And => x.fold(-1, |a, b| a & b),
            ReduceOp::Or => x.fold(0, |a, b| a | b),
            ReduceOp::MaxNum | ReduceOp::MinNum => return Err(undefined(op, "integers")),
            ReduceOp::ArgMax | ReduceOp::ArgMin => return Err(undefined(op, "values of a reduction")),
        };
        Ok(a.elem.wrapped(all))
    };
    let data = match &a.data {
        Data::Float(v) => Data::Float(lines.iter().map(|l| float(v, l)).collect::<Result<_, String>>()?),
        Data::Int(v) => Data::Int(lines.iter().map(|l| int(v, l)).collect::<Result<_, String>>()?),
        Data::Ptr(_) => return Err(undefined(op, "pointers")),
    };
    Ok(Block { elem: a.elem, shape, data })
}

/// Index of the first largest (or smallest) element of a line; the first NaN wins over all numbers.
fn position(smallest: bool, a: &Block, line: &[usize]) -> i64 {
    let better = |i: usize, j: usize| match &a.data {
        Data::Float(v) => {
            let (x, y) = (v[line[i]], v[line[j]]);
            !y.is_nan() && (x.is_nan() || if smallest { x < y } else { x > y })
        }
        _ => {
            let (x, y) = (a.elem.ordered(a.ints()[line[i]]), a.elem.ordered(a.ints()[line[j]]));
            if smallest { x < y } else { x > y }
        }
    };
    (1..line.len()).fold(0, |best, i| if better(i, best) { i } else { best }) as i64
}

pub fn scan(op: ScanOp, axis: usize, a: &Block) -> Block {
    let mut out = a.clone();
    for line in lines(&a.shape, axis) {
        match &mut out.data {
            Data::Float(v) => {
                let mut acc = None;
                for i in line {
                    let x = v[i];
                    let next = match (op, acc) {
                        (_, None) => x,
                        (ScanOp::Sum, Some(acc)) => acc + x,
                        (ScanOp::Prod, Some(acc)) => acc * x,
                        (ScanOp::Max, Some(acc)) => float_max(acc, x),
                    };
                    acc = Some(next);
                    v[i] = rounded(a.elem, next);
                }
            }
            Data::Int(v) => {
                let mut acc = None;
                for i in line {
                    let x = v[i];
                    let next = match (op, acc) {
                        (_, None) => x,
                        (ScanOp::Sum, Some(acc)) => x.wrapping_add(acc),
                        (ScanOp::Prod, Some(acc)) => x.wrapping_mul(acc),
                        (ScanOp::Max, Some(acc)) if a.elem.ordered(x) > a.elem.ordered(acc) => x,
                        (ScanOp::Max, Some(acc)) => acc,
                    };
                    acc = Some(next);
                    v[i] = a.elem.wrapped(next);
                }
            }
            Data::Ptr(_) => {}
        }
    }
    out
}

/// Both blocks in elements of which `from` says the block, second or not, and the position.
fn picked(a: &Block, b: &Block, shape: &[usize], from: impl Fn(usize) -> (bool, usize)) -> Block {
    let count = shape.iter().product();
    let one = |i| {
        let (second, at) = from(i);
        element(if second { b } else { a }, at)
    };
    collected(a.elem, shape, (0..count).map(one))
}
pub fn join(a: &Block, b: &Block) -> Block {
    picked(a, b, &[&a.shape[..], &[2]].concat(), |i| (i % 2 == 1, i / 2))
}
pub fn split(v: &Block, half: usize, to: &[usize]) -> Block {
    v.gathered(to, (0..to.iter().product()).map(|i| 2 * i + half))
}
pub fn cat(a: &Block, b: &Block, axis: usize) -> Block {
    let mut shape = a.shape.clone();
    shape[axis] *= 2;
    picked(a, b, &shape.clone(), |i| {
        let mut at = coordinates(i, &shape);
        let second = at[axis] >= a.shape[axis];
        at[axis] %= a.shape[axis];
        (second, place(at.into_iter(), &a.shape))
    })
}
/// The elements at positions along an axis.
pub fn taken(v: &Block, positions: &Block, axis: usize) -> Result<Block, String> {
    let n = v.shape[axis];
    let mut from = vec![];
    for (i, p) in positions.ints().iter().enumerate() {
        let mut at = coordinates(i, &positions.shape);
        at[axis] = usize::try_from(*p)
            .ok()
            .filter(|p| *p < n)
            .ok_or_else(|| format!("position {p} along an axis of {n}; give one inside"))?;
        from.push(place(at.into_iter(), &v.shape));
    }
    Ok(v.gathered(&positions.shape, from.into_iter()))
}

/// A slice of shape `to` that starts at `at` along `axis`.
pub fn part(v: &Block, axis: usize, at: usize, to: &[usize]) -> Block {
    let from = |i: usize| {
        let mut c = coordinates(i, to);
        c[axis] += at;
        c.iter().zip(&v.shape).fold(0, |place, (c, n)| place * n + c)
    };
    v.gathered(to, (0..to.iter().product()).map(from))
}

/// Splits a flat block of back-to-back rows of `row` elements into a block of shape `to`, one row each. Elements past
/// the end of a row repeat the block's first element.
pub fn unpack(v: &Block, row: usize, to: &[usize]) -> Block {
    let from = |i: usize| if i % to[1] < row { i / to[1] * row + i % to[1] } else { 0 };
    v.gathered(to, (0..to[0] * to[1]).map(from))
}

/// The inverse of [`unpack`]: the first `row` elements of each row, back to back. Elements past the end repeat the
/// block's first one.
pub fn pack(v: &Block, row: usize, to: &[usize]) -> Block {
    let wide = v.shape[1];
    let from = |i: usize| if i < v.shape[0] * row { i / row * wide + i % row } else { 0 };
    v.gathered(to, (0..to[0]).map(from))
}

/// One term of the sum along K.
fn term(terms: Terms, x: f64, y: f64) -> f64 {
    match terms {
        Terms::Products => x * y,
        Terms::Squares => (x - y) * (x - y),
        Terms::Distances => (x - y).abs(),
    }
}
/// The parts of f32 numbers in 3xTF32: the nearest tf32 number, and what is left of the rest in tf32. Infinities are ±1
/// and themselves.
fn tf32_parts(v: &Block) -> [Block; 2] {
    let large = |x: f64| match f32::from_bits(((x as f32).to_bits() + 0x1000) & !0x1fff) {
        _ if x.is_nan() => x,
        near if near.is_infinite() => x.signum(),
        near => near.into(),
    };
    let rest = |x: f64| f64::from(f32::from_bits(((x - large(x)) as f32).to_bits() & !0x1fff));
    let of = |part: &dyn Fn(f64) -> f64| Block {
        data: Data::Float(v.floats().iter().map(|x| part(*x)).collect()),
        ..v.clone()
    };
    let rest = |x: f64| if x.is_nan() { x } else { rest(x) };
    [of(&large), of(&rest)]
}
/// [`dot`] by 3xTF32: without the products of the rests.
pub fn split_dot(a: &Block, b: &Block, acc: &Block) -> Block {
    let ([a, rest_a], [b, rest_b]) = (tf32_parts(a), tf32_parts(b));
    [(&rest_a, &b), (&a, &rest_b), (&a, &b)]
        .into_iter()
        .fold(acc.clone(), |acc, (a, b)| dot(Terms::Products, a, b, &acc, usize::MAX))
}
/// `acc + sum over K of term(a, b)` for a `[M,K]`, b `[K,N]`, acc `[M,N]` or wider. The sum covers the first `deep`
/// elements of K.
pub fn dot(terms: Terms, a: &Block, b: &Block, acc: &Block, deep: usize) -> Block {
    let (m, k, n) = (a.shape[0], a.shape[1], b.shape[1]);
    let deep = k.min(deep);
    let (mut out, pitch) = (acc.clone(), acc.shape[1]);
    for i in 0..m {
        for j in 0..n {
            match &mut out.data {
                Data::Float(v) => {
                    let one = |l: usize| term(terms, a.floats()[i * k + l], b.floats()[l * n + j]);
                    let sum: f64 = (0..deep).map(one).sum();
                    v[i * pitch + j] = rounded(acc.elem, v[i * pitch + j] + sum);
                }
                Data::Int(v) => {
                    let sum: i64 = (0..deep).map(|l| a.ints()[i * k + l] * b.ints()[l * n + j]).sum();
                    v[i * pitch + j] = acc.elem.wrapped(v[i * pitch + j] + sum);
                }
                Data::Ptr(_) => {}
            }
        }
    }
    out
}
