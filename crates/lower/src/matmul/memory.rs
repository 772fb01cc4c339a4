//! Operands that no tensor map describes (rows of any length, windows, gathers, arithmetic before the matmul) go through
//! memory first, in rows of multiples of 16 bytes, where the matmul is large enough to pay for that. So do operands of large
//! matmuls in f32 whose rows run along K: turned, their FMAs have no bank conflicts.
use super::candidates::tiles;
use super::{Matmul, OperandAt, swapped};
use crate::dag::{NodeId, NodeOp, Scene, Store, Tf32};
use crate::expr::{Atom, CoordId, Expr, linear};
use crate::resolve::{Body, Resolved, Resolver};
use crate::rows::Emitted;
use crate::warpgroup::{self, Major, Strided};
use crate::{LowerError, if_taken, pointwise};
use kiln_block::Kernel;
use kiln_graph::{DType, Type};
use kiln_machine::Gemm;
use kiln_plan::Hardware;
use kiln_plan::{
    Family, Precision,
    exec::{Slot, Work},
};

/// Rows or columns that read each element of the copy, at least, for the copy to cost less than it saves.
const USES: usize = 64;
/// The same for turning an operand of FMAs, and their number.
const TURNED: (usize, usize) = (1024, 1 << 31);
/// FMAs of a matmul that is worth another launch without a price.
const WORK: usize = 1 << 24;
/// Elements of K from which that holds for half types: a shorter one is read at once.
const SHORT: usize = 64;
/// Bytes of a copy.
const MOST: usize = 1 << 29;

/// An operand's copy: axes of the matmul's batch that it has, then its two axes, the contiguous one last.
pub struct Copied {
    slot: Slot,
    dtype: DType,
    batch: Vec<usize>,
    /// K is the last axis.
    deep: bool,
    shape: Vec<usize>,
    /// With 2, one behind the other: the larger parts of numbers that are sums of two in tf32, then the smaller ones.
    parts: usize,
}

impl Copied {
    /// The element at `(batch…, m, k)` of the left operand, `(batch…, k, n)` of the right one.
    pub fn at(&self, r: &mut Resolver, at: &[Expr], which: usize, part: usize) -> NodeId {
        let at = linear(&self.place(at, which), &self.shape).shift((part * self.count()) as i64);
        r.dag.add(NodeOp::Load { slot: self.slot, at, guards: vec![] }, self.dtype)
    }
    /// Elements of one part.
    fn count(&self) -> usize {
        self.shape.iter().product()
    }
    fn place(&self, at: &[Expr], which: usize) -> Vec<Expr> {
        let n = at.len();
        let (outer, depth) = if which == 0 { (&at[n - 2], &at[n - 1]) } else { (&at[n - 1], &at[n - 2]) };
        let last = if self.deep { [outer, depth] } else { [depth, outer] };
        self.batch.iter().map(|i| &at[*i]).chain(last).cloned().collect()
    }
}

/// What an operand reads at the matmul's coordinates: batch…, m, n, then k.
pub struct Read {
    pub scene: Scene,
    pub node: NodeId,
    outer: (CoordId, usize),
    depth: (CoordId, usize),
}

/// Operand `which` (0: left) at a point.
pub fn read(of: &Body, p: &Matmul, which: usize) -> Result<Read, LowerError> {
    let n = p.batch.len() as CoordId;
    let batch: Vec<Expr> = p.batch.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let outer = if which == 0 { (n, p.m) } else { (n + 1, p.n) };
    let depth = (n + 2, p.k);
    let (o, d) = (Expr::coord(outer.0, outer.1), Expr::coord(depth.0, depth.1));
    let mut r = of.resolver();
    let node = match which {
        0 => (p.a)(&mut r, &[batch, vec![o, d]].concat())?,
        _ => (p.b)(&mut r, &[batch, vec![d, o]].concat())?,
    };
    Ok(Read { scene: Scene { dag: r.dag, stores: vec![] }, node, outer, depth })
}

impl Read {
    /// As an array that a tensor map describes.
    pub fn strided(&self, p: &Matmul) -> Option<Strided> {
        Strided::load(&self.scene, self.node, p, self.outer, self.depth)
    }
    /// Whether neighbours along K are neighbours in memory.
    fn is_deep(&self) -> bool {
        let NodeOp::Load { at, .. } = &self.scene.dag.node(self.node).op else { return false };
        at.terms.iter().any(|(a, c)| *c == 1 && matches!(a, Atom::Coord { id, .. } if *id == self.depth.0))
    }
}

/// The matmul with operands that go through memory where that makes it faster, and the steps that bring them there.
pub fn prepared<T>(
    of: &Body,
    p: &Matmul,
    machine: &Hardware,
    then: impl Fn(&Matmul, Emitted) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    if of.template.is_some_and(|t| t.family == Family::Tile) {
        return then(p, Emitted::default());
    }
    let mut out = Emitted::default();
    if let Some(parts) = split_3xtf32(of, p, machine, &mut out)? {
        let at = |which: usize, part: usize| {
            let copy = &parts[which];
            move |r: &mut Resolver, at: &[Expr]| Ok(copy.at(r, at, which, part))
        };
        let (a, b, a_low, b_low) = (at(0, 0), at(1, 0), at(0, 1), at(1, 1));
        let low: Option<[OperandAt; 2]> = Some([&a_low, &b_low]);
        let lowered = then(&Matmul { batch: p.batch.clone(), a: &a, b: &b, low, ..*p }, out);
        if let Some(lowered) = if_taken(lowered)? {
            return Ok(lowered);
        }
        out = Emitted::default();
    }
    let precision = if p.precision == Precision::Tf32x3 { Precision::Exact } else { p.precision };
    let p = &Matmul { batch: p.batch.clone(), precision, ..*p };
    let copies = copied(of, p, machine, &mut out)?;
    let (a, b) = (from(&copies[0], p.a, 0), from(&copies[1], p.b, 1));
    then(&Matmul { batch: p.batch.clone(), a: &a, b: &b, ..*p }, out)
}

/// Operands as sums of two numbers in tf32, where three matmuls of such take less time than one in f32.
fn split_3xtf32(
    of: &Body,
    p: &Matmul,
    machine: &Hardware,
    out: &mut Emitted,
) -> Result<Option<[Copied; 2]>, LowerError> {
    let by_warpgroups = warpgroup::takes(DType::F32, machine) && p.dual.is_none();
    if p.precision != Precision::Tf32x3 || !by_warpgroups || p.batch.contains(&0) {
        return Ok(None);
    }
    let layout = |which: usize| Ok(read(of, p, which)?.layout(p, DType::F32, which));
    let (Some(a), Some(b)) = (layout(0)?, layout(1)?) else { return Ok(None) };
    let mut copies = [a, b].map(|c| Copied { parts: 2, ..c });
    let elements = copies.iter().map(Copied::count).sum();
    if !warpgroup::prefers_3xtf32(p, elements, of.template.into()) {
        return Ok(None);
    }
    for (which, copy) in copies.iter_mut().enumerate() {
        copy.put(of, p, which, machine, out)?;
    }
    Ok(Some(copies))
}

/// Copies of the operands that need one, if that makes both fit; the steps that make them go to `out`.
fn copied(of: &Body, p: &Matmul, machine: &Hardware, out: &mut Emitted) -> Result<[Option<Copied>; 2], LowerError> {
    let mut copies = wanted(of, p, machine)?;
    for (which, copy) in copies.iter_mut().enumerate() {
        if let Some(copy) = copy {
            copy.put(of, p, which, machine, out)?;
        }
    }
    Ok(copies)
}

/// Operands that are to be copied, and how.
fn wanted(of: &Body, p: &Matmul, machine: &Hardware) -> Result<[Option<Copied>; 2], LowerError> {
    let dtype = super::operands(of, p.v);
    let work = [p.m, p.n, p.k].into_iter().chain(p.batch.iter().copied()).fold(1usize, usize::saturating_mul);
    if !warpgroup::takes(dtype, machine) || p.dual.is_some() {
        return Ok([None, None]);
    }
    // Which engine multiplies must not depend on the number of rows: where operands can be copied, they are.
    let invariant = machine.contract.batch_invariant;
    let large = invariant || work >= WORK;
    let reads = [read(of, p, 0)?, read(of, p, 1)?];
    let mut sure = large && (p.k > SHORT || dtype.bytes() != 2);
    // What tensor cores would read as it lies is cut off, not rounded.
    let cut_off = |r: &Read| r.strided(p).is_some_and(|s| s.major == Major::Depth);
    let rounds = (p.nearest || invariant) && p.precision == Precision::Tf32;
    let cut_off = rounds && reads.iter().all(cut_off);
    if !large && !cut_off && reads.iter().all(|r| r.strided(p).is_some()) {
        return Ok([None, None]);
    }
    // Where both sides of FMAs are turned, turning one alone gains nothing.
    let deep = is_deep(p, dtype);
    let lies = |s: &Strided| s.major == if deep { Major::Depth } else { Major::Outer };
    let runs = |r: &Read| r.strided(p).is_some_and(|s| s.major == Major::Outer);
    let turn = dtype == DType::F32
        && !deep
        && work >= TURNED.1
        && reads.iter().zip([p.n, p.m]).all(|(r, uses)| uses >= TURNED.0 || runs(r));
    let mut copies = [None, None];
    for (which, r) in reads.iter().enumerate() {
        let uses = [p.n, p.m][which];
        let layout = r.layout(p, dtype, which);
        match r.strided(p) {
            None if layout.is_none() => return Ok([None, None]),
            None => {
                sure &= invariant || uses >= USES;
                copies[which] = layout;
            }
            Some(s) if lies(&s) || !(turn || deep && (invariant || uses >= USES) && layout.is_some()) => {}
            _ => copies[which] = layout,
        }
    }
    if rounds && (cut_off || copies.iter().any(Option::is_some)) {
        for (which, copy) in copies.iter_mut().enumerate() {
            *copy = copy.take().or_else(|| reads[which].layout(p, dtype, which));
        }
    }
    let lacking = reads.iter().any(|r| r.strided(p).is_none());
    if !sure && lacking && (invariant || !is_profitable(of, p, &reads, &copies)) {
        return Ok([None, None]);
    }
    Ok(copies)
}

/// Whether copies and a matmul of them take less time than a matmul of operands as they are.
fn is_profitable(of: &Body, p: &Matmul, reads: &[Read; 2], copies: &[Option<Copied>; 2]) -> bool {
    by_copies(of, p, (reads, copies), warpgroup::copy).is_some_and(|cycles| cycles < as_they_are(of, p))
}

/// Cycles of copies, by their bytes, and a matmul of them, where warpgroups take it.
fn by_copies(
    of: &Body,
    p: &Matmul,
    (reads, copies): (&[Read; 2], &[Option<Copied>; 2]),
    copy: fn(&Gemm, usize) -> f64,
) -> Option<f64> {
    let dtype = super::operands(of, p.v);
    let side = |which: usize| match &copies[which] {
        Some(copy) => Some(if copy.deep { Major::Depth } else { Major::Outer }),
        None => reads[which].strided(p).map(|s| s.major),
    };
    let sides = side(0).zip(side(1))?;
    let matmul = warpgroup::cycles(p, dtype, [sides.0, sides.1], of.template.into())?;
    Some(matmul + copies.iter().flatten().map(|c| copy(&p.machine.gemm, c.count() * dtype.bytes())).sum::<f64>())
}

/// Cycles of a matmul that reads its operands wherever they are.
fn as_they_are(of: &Body, p: &Matmul) -> f64 {
    let dtype = super::operands(of, p.v);
    let tile = super::tile(p, dtype, None);
    let elements = p.batch.iter().product::<usize>() * (p.m * p.k + p.k * p.n + p.m * p.n);
    let times = &p.machine.gemm;
    tiles(p, [tile.m, tile.n], times.unaligned).max((elements * dtype.bytes()) as f64 / times.ragged)
}

/// Cycles of a matmul of patches, with what is copied before it.
pub fn of_patches(of: &Body, p: &Matmul, machine: &Hardware) -> Result<f64, LowerError> {
    let reads = [read(of, p, 0)?, read(of, p, 1)?];
    let by_copies = by_copies(of, p, (&reads, &wanted(of, p, machine)?), warpgroup::gather);
    Ok(by_copies.unwrap_or_else(|| as_they_are(of, p)))
}

/// Whether rows of operands must run along K: `wgmma` reads halves alone the other way.
fn is_deep(p: &Matmul, dtype: DType) -> bool {
    p.precision != Precision::Exact || dtype.is_f8()
}

impl Read {
    /// How a copy lies, if it is not too large.
    fn layout(&self, p: &Matmul, dtype: DType, which: usize) -> Option<Copied> {
        let mut used = vec![];
        for n in self.scene.dag.reach(&[self.node]) {
            self.scene.dag.node(n).exprs(&mut |e| e.coords(&mut |c| used.push(c as usize)));
        }
        let batch: Vec<usize> = (0..p.batch.len()).filter(|i| p.batch[*i] > 1 && used.contains(i)).collect();
        let (outer, deep) = ([p.m, p.n][which], is_deep(p, dtype) || self.is_deep() && dtype != DType::F32);
        let row = 16 / dtype.bytes();
        let last = if deep { [outer, p.k.next_multiple_of(row)] } else { [p.k, outer.next_multiple_of(row)] };
        let shape: Vec<usize> = batch.iter().map(|i| p.batch[*i]).chain(last).collect();
        let bytes = Type::new(dtype, shape.clone()).bytes();
        (bytes <= MOST).then_some(Copied { slot: Slot::Scratch(0), dtype, batch, deep, shape, parts: 1 })
    }
}

impl Copied {
    /// Has a scratch buffer, and a step that fills it.
    fn put(
        &mut self,
        of: &Body,
        p: &Matmul,
        which: usize,
        machine: &Hardware,
        out: &mut Emitted,
    ) -> Result<(), LowerError> {
        self.slot = Slot::Scratch(out.scratch.len() as u32);
        out.steps.push(self.step(of, p, which, machine)?);
        out.scratch.push(Type::new(self.dtype, [self.parts * self.count()]));
        Ok(())
    }
    /// The step that makes the copy.
    fn step(&self, of: &Body, p: &Matmul, which: usize, machine: &Hardware) -> Result<Work<Kernel>, LowerError> {
        // Axes that the copy does not have are at their first position.
        let axis = |(i, &d): (usize, &usize)| if self.batch.contains(&i) { d } else { 1 };
        let batch = p.batch.iter().enumerate().map(axis);
        let outer = [p.m, p.n][which];
        let last = if self.deep { [outer, p.k] } else { [p.k, outer] };
        let space: Vec<usize> = batch.chain(last).collect();
        let scene = |axes: &[Expr]| -> Result<Scene, LowerError> {
            // In the operand's own order: (m, k) on the left, (k, n) on the right.
            let at = if self.deep == (which == 0) { axes.to_vec() } else { swapped(axes.to_vec()) };
            let mut r = of.resolver();
            let value = ([p.a, p.b][which])(&mut r, &at)?;
            let place = linear(&self.place(&at, which), &self.shape);
            let mut store = |part: usize| {
                let tf32 = |r: &mut Resolver, part| r.dag.add(NodeOp::Tf32 { of: value, part }, self.dtype);
                let value = match (self.parts, p.precision) {
                    (1, Precision::Tf32) => tf32(&mut r, Tf32::Nearest),
                    (1, _) => value,
                    _ => tf32(&mut r, if part > 0 { Tf32::Rest } else { Tf32::Large }),
                };
                let at = place.clone().shift((part * self.count()) as i64);
                Store { slot: self.slot, dtype: self.dtype, at, guards: vec![], value }
            };
            let stores = (0..self.parts).map(&mut store).collect();
            Ok(Scene { dag: r.dag, stores })
        };
        pointwise::points(&format!("{}_{}", of.name, ["left", "right"][which]), &space, &scene, machine)
    }
}

/// An operand from its copy, or as it is.
fn from<'a>(
    copy: &'a Option<Copied>,
    plain: OperandAt<'a>,
    which: usize,
) -> impl Fn(&mut Resolver, &[Expr]) -> Resolved + 'a {
    move |r, at| match copy {
        Some(c) => Ok(c.at(r, at, which, 0)),
        None => plain(r, at),
    }
}
