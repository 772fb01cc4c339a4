//! Copies of operands before a matmul.
//!
//! A tensor map describes rows of multiples of 16 bytes. Operands that none describes (rows of any length, windows,
//! gathers, arithmetic before the matmul) may be copied to padded rows first: for a large matmul that costs less than a
//! matmul without tensor maps, for a smaller one the model decides. In large exact f32 matmuls the copy also
//! transposes K-major operands: FMAs want neighbours of the result in neighbouring registers, and read M/N-major
//! operands without bank conflicts.
//!
//! **3xTF32** (`precision tf32x3`, under `splits`). The copy writes each operand as the sum of two tf32 numbers, and
//! three tf32 matmuls of these give a large f32 matmul. Where the model predicts that to be slower, and for dual GEMMs,
//! the matmul stays exact. Tensor cores truncate when they accumulate, so the accumulator of each stage is
//! zero-initialised and added to the others in f32. An infinity is split into itself and 1, which keeps it infinite.
//! Operands below 2^-100 lose accuracy; from 2^127 on they, or products, may become infinite.
use super::cost::{Rows, tiles};
use super::{Matmul, OperandAt, swapped};
use crate::dag::{Guard, NodeId, NodeOp, Scene, Store, Tf32};
use crate::expr::{Atom, CoordId, Expr, linear};
use crate::multiply::Product;
use crate::resolve::{Body, Resolved, Resolver};
use crate::rows::Emitted;
use crate::warpgroup::{self, Major, SPAN, Side, Strided};
use crate::{LowerError, if_taken, pointwise};
use kiln_block::Kernel;
use kiln_graph::{DType, Type};
use kiln_plan::Hardware;
use kiln_plan::{
    Engine, Operand, Precision, Step,
    exec::{Slot, Work},
};

/// Least rows or columns of the result that read each element of a copy, for the copy to cost less than it saves.
const USES: usize = 64;
/// The same for transposing an operand of the FMA engine, and the least number of FMAs.
const TRANSPOSED: (usize, usize) = (1024, 1 << 31);
/// FMAs from which on a matmul is worth another launch without asking the model.
const WORK: usize = 1 << 24;
/// Elements of K above which that holds for half types: a shorter K is read at once.
const SHORT: usize = 64;
/// Bytes of rows from which on copies pad them to whole lines.
const LONG: usize = 1024;
/// Most bytes of a copy.
const MOST: usize = 1 << 29;

/// The copy of an operand: the batch axes that it depends on, then its two axes, the contiguous one last.
pub struct Copied {
    slot: Slot,
    dtype: DType,
    batch: Vec<usize>,
    /// K-major: K is the last axis.
    deep: bool,
    shape: Vec<usize>,
    /// 2 for 3xTF32: the high parts of all elements, then the low parts.
    parts: usize,
}

impl Copied {
    /// Predicted cycles of the launch that makes it.
    fn cycles(&self, read: &Read, machine: &Hardware) -> f64 {
        let of = &machine.gemm;
        let (transposes, bytes) = (read.is_deep() != self.deep, self.count() * self.dtype.bytes());
        if transposes { warpgroup::transpose(of, bytes, machine.units.l2) } else { warpgroup::copy(of, bytes) }
    }
    fn side(&self) -> Side {
        let pitch = self.shape.last().map_or(0, |n| n * self.dtype.bytes());
        Side::new(if self.deep { Major::Depth } else { Major::Outer }, pitch)
    }
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

/// Resolves operand `which` (0: left) at a point.
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
    /// As a strided array that a tensor map describes.
    pub fn strided(&self, p: &Matmul) -> Option<Strided> {
        Strided::load(&self.scene, self.node, p, self.outer, self.depth)
    }
    /// Whether the operand is K-major.
    fn is_deep(&self) -> bool {
        let NodeOp::Load { at, .. } = &self.scene.dag.node(self.node).op else { return false };
        at.terms.iter().any(|(a, c)| *c == 1 && matches!(a, Atom::Coord { id, .. } if *id == self.depth.0))
    }
}

/// Calls `then` with the matmul, its operands replaced by copies where that is faster, the steps that make these
/// copies, and which operands they are of (none where both are split for 3xTF32).
pub fn prepared<T>(
    of: &Body,
    p: &Matmul,
    machine: &Hardware,
    then: impl Fn(&Matmul, Emitted, [bool; 2]) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    let asked = of.product();
    let mut out = Emitted::default();
    if let Some(parts) = split_3xtf32(of, p, machine, &mut out)? {
        let at = |which: usize, part: usize| {
            let copy = &parts[which];
            move |r: &mut Resolver, at: &[Expr]| Ok(copy.at(r, at, which, part))
        };
        let (a, b, a_low, b_low) = (at(0, 0), at(1, 0), at(0, 1), at(1, 1));
        let low: Option<[OperandAt; 2]> = Some([&a_low, &b_low]);
        let lowered = then(&Matmul { batch: p.batch.clone(), a: &a, b: &b, low, ..*p }, out, [false; 2]);
        if asked.is_some() {
            return lowered;
        }
        if let Some(lowered) = if_taken(lowered)? {
            return Ok(lowered);
        }
        out = Emitted::default();
    }
    let precision = if p.precision == Precision::Tf32x3 { Precision::Exact } else { p.precision };
    let p = &Matmul { batch: p.batch.clone(), precision, ..*p };
    let copies = copied(of, p, machine, &mut out)?;
    let (a, b) = (from(&copies[0], p.a, 0), from(&copies[1], p.b, 1));
    then(&Matmul { batch: p.batch.clone(), a: &a, b: &b, ..*p }, out, copies.each_ref().map(Option::is_some))
}

/// Copies of the operands that are split in two for 3xTF32, where that is predicted to be faster than one exact f32
/// matmul.
fn split_3xtf32(
    of: &Body,
    p: &Matmul,
    machine: &Hardware,
    out: &mut Emitted,
) -> Result<Option<[Copied; 2]>, LowerError> {
    let by_warpgroups = warpgroup::takes(DType::F32, machine) && p.dual.is_none();
    let may = p.precision == Precision::Tf32x3 && by_warpgroups && !p.batch.contains(&0);
    let asked = of.product().map(|asked| asked.tile.engine == Engine::Wgmma3xTf32);
    if asked == Some(true) && !may {
        let name = Engine::Wgmma3xTf32.name();
        return Err(of.unsupported(format!(
            "`{name}` is for f32 where the contract has `splits`, from sm_90 on, without `dual-gemm`"
        )));
    }
    if !may || asked == Some(false) {
        return Ok(None);
    }
    let layout = |which: usize| Ok(read(of, p, which)?.layout(p, DType::F32, which));
    let (Some(a), Some(b)) = (layout(0)?, layout(1)?) else { return Ok(None) };
    let mut copies = [a, b].map(|c| Copied { parts: 2, ..c });
    let elements = copies.iter().map(Copied::count).sum();
    if asked.is_none() && !warpgroup::prefers_3xtf32(p, elements) {
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
    match of.product() {
        Some(asked) => as_asked(of, p, asked),
        None => predicted(of, p, machine),
    }
}

/// The copies that a schedule asks for.
fn as_asked(of: &Body, p: &Matmul, asked: Product) -> Result<[Option<Copied>; 2], LowerError> {
    let (dtype, mut copies) = (super::operands(of, p.v), [None, None]);
    for (which, operand) in [Operand::A, Operand::B].into_iter().enumerate().filter(|w| asked.forms.copies[w.0]) {
        let layout = read(of, p, which)?.layout(p, dtype, which).filter(|_| p.dual.is_none());
        let step = Step::Copy(vec![operand]);
        copies[which] = Some(layout.ok_or_else(|| {
            of.unsupported(format!("`{step}` does not fit: the operand is too large, or one of two"))
        })?);
    }
    // Tensor cores truncate tf32 operands that they read in place.
    let rounds = (p.nearest || of.machine.contract.batch_invariant) && p.precision == Precision::Tf32;
    if rounds && asked.tile.engine == Engine::Wgmma && copies.iter().any(Option::is_none) {
        let step = Step::Copy(vec![Operand::A, Operand::B]);
        return Err(of.unsupported(format!("operands are rounded to tf32 when they are copied: `{step}`")));
    }
    Ok(copies)
}

/// The copies that are predicted to be worth it.
fn predicted(of: &Body, p: &Matmul, machine: &Hardware) -> Result<[Option<Copied>; 2], LowerError> {
    let dtype = super::operands(of, p.v);
    let work = [p.m, p.n, p.k].into_iter().chain(p.batch.iter().copied()).fold(1usize, usize::saturating_mul);
    if !warpgroup::takes(dtype, machine) || p.dual.is_some() {
        return Ok([None, None]);
    }
    // Batch invariance: which engine multiplies must not depend on the number of rows, so operands are copied wherever
    // they can be.
    let invariant = machine.contract.batch_invariant;
    let large = invariant || work >= WORK;
    let reads = [read(of, p, 0)?, read(of, p, 1)?];
    let mut sure = large && (p.k > SHORT || dtype.bytes() != 2);
    // Tensor cores truncate tf32 operands that they read in place.
    let cut_off = |r: &Read| r.strided(p).is_some_and(|s| s.major == Major::Depth);
    let rounds = (p.nearest || invariant) && p.precision == Precision::Tf32;
    let cut_off = rounds && reads.iter().all(cut_off);
    if !large && !cut_off && reads.iter().all(|r| r.strided(p).is_some()) {
        return Ok([None, None]);
    }
    // For the FMA engine, transposing only one of two K-major operands gains nothing.
    let deep = is_deep(p, dtype);
    let has_layout = |s: &Strided| s.major == if deep { Major::Depth } else { Major::Outer };
    let is_outer = |r: &Read| r.strided(p).is_some_and(|s| s.major == Major::Outer);
    let transpose = dtype == DType::F32
        && !deep
        && work >= TRANSPOSED.1
        && reads.iter().zip([p.n, p.m]).all(|(r, uses)| uses >= TRANSPOSED.0 || is_outer(r));
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
            Some(s) if has_layout(&s) || !(transpose || deep && (invariant || uses >= USES) && layout.is_some()) => {}
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

/// Whether copies and a matmul of them are predicted to be faster than a matmul that reads its operands in place.
fn is_profitable(of: &Body, p: &Matmul, reads: &[Read; 2], copies: &[Option<Copied>; 2]) -> bool {
    by_copies(of, p, (reads, copies)).is_some_and(|cycles| cycles < as_they_are(of, p))
}

/// Predicted cycles of copies and of a matmul of them, if warpgroups apply to it.
fn by_copies(of: &Body, p: &Matmul, (reads, copies): (&[Read; 2], &[Option<Copied>; 2])) -> Option<f64> {
    let dtype = super::operands(of, p.v);
    let side = |which: usize| match &copies[which] {
        Some(copy) => Some(copy.side()),
        None => reads[which].strided(p).map(|s| s.side(dtype.bytes())),
    };
    let sides = side(0).zip(side(1))?;
    let matmul = warpgroup::cycles(p, dtype, [sides.0, sides.1])?;
    let copied = copies.iter().zip(reads).filter_map(|(copy, read)| Some(copy.as_ref()?.cycles(read, p.machine)));
    Some(matmul + copied.sum::<f64>())
}

/// Predicted cycles of a matmul that reads its operands in place.
fn as_they_are(of: &Body, p: &Matmul) -> f64 {
    let dtype = super::operands(of, p.v);
    let tile = super::tile(p, dtype);
    tiles(p, &tile, super::tiles::engine(dtype, p), dtype.bytes(), [Rows::Unaligned; 2])
}

/// Where the operands lie.
pub fn rows(of: &Body, p: &Matmul) -> Result<[Rows; 2], LowerError> {
    let one = |which: usize| {
        let r = read(of, p, which)?;
        Ok(match &r.scene.dag.node(r.node).op {
            _ if r.strided(p).is_some() => Rows::Aligned,
            NodeOp::Load { guards, .. } if guards.is_empty() => Rows::Unaligned,
            _ => Rows::Gathered,
        })
    };
    Ok([one(0)?, one(1)?])
}

/// Predicted cycles of the copies of these operands.
pub fn cycles(of: &Body, p: &Matmul, copies: [bool; 2]) -> Result<f64, LowerError> {
    let dtype = super::operands(of, p.v);
    let mut all = 0.0;
    for which in (0..2).filter(|which| copies[*which]) {
        let read = read(of, p, which)?;
        all += read.layout(p, dtype, which).map_or(0.0, |copy| copy.cycles(&read, p.machine));
    }
    Ok(all)
}

/// Predicted cycles of an im2col matmul, with the copies before it.
pub fn of_patches(of: &Body, p: &Matmul, machine: &Hardware) -> Result<f64, LowerError> {
    let reads = [read(of, p, 0)?, read(of, p, 1)?];
    let by_copies = by_copies(of, p, (&reads, &wanted(of, p, machine)?));
    Ok(by_copies.unwrap_or_else(|| as_they_are(of, p)))
}

/// Whether operands must be K-major: `wgmma` reads M/N-major ones only in half types.
fn is_deep(p: &Matmul, dtype: DType) -> bool {
    p.precision != Precision::Exact || dtype.is_f8()
}

impl Read {
    /// The layout of a copy, if it is not too large.
    fn layout(&self, p: &Matmul, dtype: DType, which: usize) -> Option<Copied> {
        let mut used = vec![];
        for n in self.scene.dag.reach(&[self.node]) {
            self.scene.dag.node(n).exprs(&mut |e| e.coords(&mut |c| used.push(c as usize)));
        }
        let batch: Vec<usize> = (0..p.batch.len()).filter(|i| p.batch[*i] > 1 && used.contains(i)).collect();
        let (outer, deep) = ([p.m, p.n][which], is_deep(p, dtype) || self.is_deep() && dtype != DType::F32);
        // Long rows are whole lines of the cache.
        let len = if deep { p.k } else { outer };
        let row = if len * dtype.bytes() >= LONG { SPAN } else { 16 } / dtype.bytes();
        let last = if deep { [outer, p.k.next_multiple_of(row)] } else { [p.k, outer.next_multiple_of(row)] };
        let shape: Vec<usize> = batch.iter().map(|i| p.batch[*i]).chain(last).collect();
        let bytes = Type::new(dtype, shape.clone()).bytes();
        (bytes <= MOST).then_some(Copied { slot: Slot::Scratch(0), dtype, batch, deep, shape, parts: 1 })
    }
}

impl Copied {
    /// Adds a scratch buffer for the copy, and the step that fills it.
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
        // Batch axes that the copy does not have stay at 0.
        let axis = |(i, &d): (usize, &usize)| if self.batch.contains(&i) { d } else { 1 };
        let batch = p.batch.iter().enumerate().map(axis);
        // Rows are written whole, with zeros beyond the operand: what is stored is contiguous.
        let row = if self.deep { p.k } else { [p.m, p.n][which] };
        let space: Vec<usize> = batch.chain(self.shape[self.batch.len()..].iter().copied()).collect();
        let scene = |axes: &[Expr]| -> Result<Scene, LowerError> {
            // In the operand's own order: (m, k) on the left, (k, n) on the right.
            let at = if self.deep == (which == 0) { axes.to_vec() } else { swapped(axes.to_vec()) };
            let mut r = of.resolver();
            let inside = axes.last().filter(|_| space.last() != Some(&row)).map(|e| Guard {
                expr: e.clone(),
                lo: 0,
                hi: row as i64,
            });
            r.bounds.extend(inside);
            let mut value = ([p.a, p.b][which])(&mut r, &at)?;
            // A masked load is zero outside already.
            if !r.bounds.is_empty() && !matches!(r.dag.node(value).op, NodeOp::Load { .. }) {
                let inside = r.dag.add(NodeOp::Inside(r.bounds.clone()), DType::Bool);
                let dtype = r.dag.node(value).dtype;
                let zero = r.dag.number(dtype, 0.0);
                value = r.dag.add(NodeOp::Select(inside, value, zero), dtype);
            }
            let place = linear(&self.place(&at, which), &self.shape);
            let mut store = |part: usize| {
                let tf32 = |r: &mut Resolver, part| r.dag.add(NodeOp::Tf32 { of: value, part }, self.dtype);
                let value = match (self.parts, p.precision) {
                    (1, Precision::Tf32) => tf32(&mut r, Tf32::Nearest),
                    (1, _) => value,
                    _ => tf32(&mut r, if part > 0 { Tf32::Rest } else { Tf32::Large }),
                };
                let at = place.clone().shift((part * self.count()) as i64);
                Store::new(self.slot, self.dtype, at, value)
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
