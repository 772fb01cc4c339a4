//! Turns pointers to strided arrays into tensor-map descriptors: for operands of matmuls, and for stores of their
//! results.
//!
//! The affine form of a pointer block gives the array: a contiguous axis, a row pitch, and the tile's start along both.
//! An axis that no mask bounds ends where the program's own positions end. A parameter must have this one use; it
//! becomes the descriptor, so the order of arguments does not change. Pointers of other forms stay pointers.
pub mod launch;
mod wrapped;

use super::Refusal;
use crate::analysis::{Affine, Analysis, analyse};
use crate::passes::dce;
use crate::{
    Array, BinaryOp as B, BlockProgram, Builder, CmpOp, Elem, Inst, InstData, Op, Region, Swizzle, Type, Value,
};
use std::collections::{HashMap, HashSet};

/// A tile of a strided array.
struct Tile {
    param: Value,
    array: Array,
    /// Sizes in the array: outer, inner.
    shape: [usize; 2],
    /// The block's first axis is the contiguous one.
    swapped: bool,
    /// Start along the outer and the inner axis, as forms over scalars.
    starts: [Affine; 2],
}

/// The same program, with descriptors where the forms allow them.
pub fn run(kernel: &BlockProgram) -> Result<BlockProgram, Refusal> {
    let mut k = kernel.clone();
    let facts = analyse(&k);
    let uses = uses(&k, &facts);
    let mut tiles: HashMap<Inst, Tile> = HashMap::new();
    for i in accesses(&k) {
        if let Some(tile) = tile(&k, &facts, &uses, i) {
            tiles.insert(i, tile);
        }
    }
    for t in tiles.values() {
        let Some(p) = k.params.iter_mut().find(|p| p.value == t.param) else { continue };
        p.array = Some(t.array.clone());
        let Some(elem) = k.values[t.param.0 as usize].ty.elem() else { continue };
        let swizzle = Swizzle::widest(elem, t.shape[1]);
        k.values[t.param.0 as usize].ty = Type::Desc { elem, shape: t.shape.to_vec(), swizzle };
    }
    let mut k = Builder::rewrite(k, |b, i| match tiles.get(&i) {
        Some(t) => {
            let starts = [0, 1].map(|n| scalar(b, &t.starts[n]));
            access(b, i, t.param, &starts, t.swapped.then_some(t.shape));
        }
        None => b.keep(i),
    });
    dce::run(&mut k);
    Ok(k)
}

/// Loads that are operands of matmuls as they are, stores of blocks of a matmul's size, and what the epilogue reads
/// beside.
fn accesses(k: &BlockProgram) -> Vec<Inst> {
    let (mut operands, mut sizes) = (HashSet::new(), HashSet::new());
    k.walk(&mut |_, d| {
        if matches!(d.op, Op::Dot { .. }) {
            operands.extend([d.args[0], d.args[1]]);
            sizes.insert(k.ty(d.results[0]).shape().to_vec());
        }
    });
    k.walk(&mut |_, d| {
        if matches!(d.op, Op::Permute(_)) && operands.contains(&d.results[0]) {
            operands.insert(d.args[0]);
        }
    });
    let mut all = vec![];
    computed_before_loops(k, &mut operands);
    k.walk(&mut |i, d| match d.op {
        Op::Load(..) if operands.contains(&d.results[0]) => all.push(i),
        Op::Store(_) if sizes.contains(k.ty(d.args[0]).shape()) => all.push(i),
        _ => {}
    });
    all.extend(beside(k, &sizes));
    all
}

/// Adds what operands are computed from element by element, outside of all loops: roles do that once.
fn computed_before_loops(k: &BlockProgram, operands: &mut HashSet<Value>) {
    for data in k.body.insts.iter().rev().map(|i| k.inst(*i)) {
        if matches!(data.op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_)) && operands.contains(&data.results[0]) {
            operands.extend(data.args.iter().filter(|v| !k.ty(**v).is_scalar()));
        }
    }
}

/// The load of a block of a matmul's size outside of loops that multiply, if it is the only one and has the type of the
/// only store: roles prefetch that through the buffers of the result.
fn beside(k: &BlockProgram, sizes: &HashSet<Vec<usize>>) -> Option<Inst> {
    let multiplies = |r: &Region| r.insts.iter().any(|i| matches!(k.inst(*i).op, Op::Dot { .. }));
    let mut inside: HashSet<Inst> = HashSet::new();
    let (mut loads, mut stores) = (vec![], vec![]);
    k.walk(&mut |i, d| {
        if d.op == Op::For && d.regions.iter().any(multiplies) {
            d.regions.iter().for_each(|r| k.walk_region(r, &mut |i, _| _ = inside.insert(i)));
        }
        match d.op {
            Op::Load(..) if sizes.contains(k.ty(d.args[0]).shape()) => loads.push(i),
            Op::Store(_) if sizes.contains(k.ty(d.args[0]).shape()) => stores.push(i),
            _ => {}
        }
    });
    loads.retain(|i| !inside.contains(i));
    match (&loads[..], &stores[..]) {
        ([load], [store]) if k.ty(k.inst(*load).args[0]).elem() == k.ty(k.inst(*store).args[0]).elem() => Some(*load),
        _ => None,
    }
}

/// The number of accesses through each parameter; a pointer of unknown origin counts for all of them.
fn uses(k: &BlockProgram, facts: &Analysis) -> HashMap<Value, usize> {
    let mut all: HashMap<Value, usize> = HashMap::new();
    let mut unknown = 0;
    k.walk(&mut |_, d| {
        if matches!(d.op, Op::Load(..) | Op::Store(_)) {
            match facts.affine(d.args[0]).and_then(|f| f.root) {
                Some(root) => *all.entry(root).or_default() += 1,
                None => unknown += 1,
            }
        }
    });
    all.values_mut().for_each(|n| *n += unknown);
    all
}

fn tile(k: &BlockProgram, facts: &Analysis, uses: &HashMap<Value, usize>, i: Inst) -> Option<Tile> {
    let data = k.inst(i);
    let ptr = data.args[0];
    let (mask, other) = match data.op {
        Op::Load(..) => (data.args.get(1), data.args.get(2)),
        _ => (data.args.get(2), None),
    };
    let form = facts.affine(ptr)?;
    let param = form.root.filter(|r| uses.get(r) == Some(&1))?;
    let aligned = k.params.iter().any(|p| p.value == param && p.align >= 16);
    let elem = k.ty(ptr).elem().filter(|e| e.is_float() && e.bytes() <= 4)?;
    let (&[_, _], &[c0, c1]) = (k.ty(ptr).shape(), &form.coeffs[..]) else { return None };
    let (swapped, pitch) = match (c0, c1) {
        (p, 1) if p > 1 => (false, p),
        (1, p) if p > 1 && matches!(data.op, Op::Load(..)) => (true, p),
        _ => return None,
    };
    if !aligned || other.is_some() || !(pitch as usize * elem.bytes()).is_multiple_of(16) || pitch >= 1 << 36 {
        return None;
    }
    let starts = split(form, pitch)?;
    if starts.iter().flat_map(|s| &s.scalars).any(|(v, _)| *k.ty(*v) != Type::scalar(Elem::I32)) {
        return None;
    }
    let block = k.ty(ptr).shape();
    let bounds = match mask {
        Some(mask) => facts.bounds(*mask)?.clone(),
        None => vec![],
    };
    // Positions in the block, along the outer and the inner axis.
    let positions = [0, 1].map(|n| {
        let mut coeffs = vec![0, 0];
        coeffs[n ^ usize::from(swapped)] = 1;
        Affine { coeffs, ..starts[n].clone() }
    });
    let mut sizes = [0i64; 2];
    for (size, at) in sizes.iter_mut().zip(&positions) {
        let (lo, hi) = facts.range(at, block)?;
        *size = hi + 1;
        if lo < 0 {
            return None;
        }
    }
    for (bound, op) in &bounds {
        let end = |at: &Affine| bound.add_scaled(at, -1)?.as_constant().map(|c| -c);
        let n = (0..2).find(|n| *op == CmpOp::Lt && end(&positions[*n]).is_some())?;
        sizes[n] = sizes[n].min(end(&positions[n])?);
    }
    let fits = sizes.iter().all(|n| (1..1 << 31).contains(n)) && sizes[1] <= pitch;
    let shape = if swapped { [block[1], block[0]] } else { [block[0], block[1]] };
    let array = Array { offset: 0, sizes: sizes.map(|n| n as usize).to_vec(), strides: vec![pitch as usize, 1] };
    fits.then_some(Tile { param, array, shape, swapped, starts })
}

/// Splits an address into the starts of rows (a pitch apart) and of elements in a row. Counting a term for one or the
/// other changes no address, but the bounds of a mask must agree.
fn split(form: &Affine, pitch: i64) -> Option<[Affine; 2]> {
    let mut starts =
        [Affine::constant(form.constant.div_euclid(pitch), 0), Affine::constant(form.constant.rem_euclid(pitch), 0)];
    for &(v, c) in &form.scalars {
        if c < 0 {
            return None;
        }
        let (n, c) = if c % pitch == 0 { (0, c / pitch) } else { (1, c) };
        starts[n].scalars.push((v, c));
    }
    Some(starts)
}

/// Appends an access of a tile by its descriptor in place of one by pointers. `swapped`: the tile's size in the array,
/// where the block is its transpose.
fn access(b: &mut Builder, i: Inst, param: Value, starts: &[Value], swapped: Option<[usize; 2]>) {
    let InstData { op, args, results, .. } = b.program().inst(i).clone();
    if matches!(op, Op::Store(_)) {
        return b.define(&[], Op::TileStore, &[&[param, args[1]], starts].concat(), vec![]);
    }
    let args = [&[param], starts].concat();
    match swapped {
        None => b.define(&results, Op::TileLoad, &args, vec![]),
        Some(shape) => {
            let ty = b.ty(results[0]).with_shape(shape);
            let tile = b.inst(Op::TileLoad, &args, &[ty], vec![])[0];
            b.define(&results, Op::Permute(vec![1, 0]), &[tile], vec![]);
        }
    }
}

/// The value of a form over scalars.
fn scalar(b: &mut Builder, form: &Affine) -> Value {
    let mut sum = None;
    for &(v, c) in &form.scalars {
        let term = match c {
            1 => v,
            c => {
                let c = b.i32(c);
                b.binary(B::Mul, v, c)
            }
        };
        sum = Some(match sum {
            None => term,
            Some(sum) => b.binary(B::Add, sum, term),
        });
    }
    match sum {
        Some(sum) if form.constant == 0 => sum,
        _ => {
            let c = b.i32(form.constant);
            sum.map_or(c, |sum| b.binary(B::Add, sum, c))
        }
    }
}
