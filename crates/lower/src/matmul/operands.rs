//! Copies of operands before a matmul.
//!
//! A tensor map describes rows of multiples of 16 bytes. Operands that none describes (rows of any length, windows,
//! gathers, arithmetic before the matmul) may be copied to padded rows first. For exact f32 matmuls a copy may also
//! transpose K-major operands: FMAs want neighbours of the result in neighbouring registers, and read M/N-major
//! operands without bank conflicts. [`ways`] lists what may be copied, with its price.
//!
//! **3xTF32** (`precision tf32x3`, under `splits`). The copy writes each operand as the sum of two tf32 numbers, and
//! three tf32 matmuls of these give an f32 matmul. Dual GEMMs stay exact. Tensor cores truncate when they accumulate,
//! so the accumulator of each stage is zero-initialised and added to the others in f32. An infinity is split into
//! itself and 1, which keeps it infinite. Operands below 2^-100 lose accuracy; from 2^127 on they, or products, may
//! become infinite.
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::wgmma::strided::{Major, SPAN, Side, Strided};
use crate::matmul::{Matmul, OperandAt, swapped, wgmma};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{Guard, NodeId, NodeOp, Scene, Store, Tf32};
use crate::scalar::expr::{Atom, CoordId, Expr, linear};
use crate::scalar::resolve::{Resolved, Resolver};
use crate::steps::Emitted;
use kiln_graph::{DType, Type};
use kiln_plan::exec::Slot;
use kiln_plan::matmul_schedule::TiledMatmul;
use kiln_plan::{Engine, Hardware, Operand, Precision, Step};

/// Bytes of rows from which on copies pad them to whole lines.
const MIN_PADDED_ROW_BYTES: usize = 1024;
/// Most bytes of a copy.
const MAX_COPY_BYTES: usize = 1 << 29;

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
    /// The launch that makes it.
    fn launch(&self, read: &Read) -> CopyLaunch {
        let bytes = self.count() * self.dtype.bytes();
        if read.is_deep() != self.deep { CopyLaunch::Transpose { bytes } } else { CopyLaunch::Copy { bytes } }
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
pub fn read(kernel: &Lowering, p: &Matmul, which: usize) -> Result<Read, LowerError> {
    let n = p.batch.len() as CoordId;
    let batch: Vec<Expr> = p.batch.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let outer = if which == 0 { (n, p.m) } else { (n + 1, p.n) };
    let depth = (n + 2, p.k);
    let (o, d) = (Expr::coord(outer.0, outer.1), Expr::coord(depth.0, depth.1));
    let mut r = kernel.resolver();
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

/// One way for tiles in shared memory to get their operands.
pub struct Way {
    /// Operands that are copied first; none where both are split for 3xTF32.
    pub copies: [bool; 2],
    /// How f32 is multiplied then.
    pub precision: Precision,
    /// The left operand is rounded to tf32 in registers.
    pub rounded: bool,
    /// How the operands lie then.
    pub sides: [Side; 2],
    /// What makes the copies.
    pub launches: Vec<CopyLaunch>,
}

/// A launch that copies operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyLaunch {
    /// To rows that a tensor map describes, or of im2col patches.
    Copy { bytes: usize },
    /// The same with the operand's axes exchanged.
    Transpose { bytes: usize },
    /// Both operands are split for 3xTF32, into so many elements.
    Split3xTf32 { elements: usize },
}

/// The ways for tiles in shared memory to get the operands of a matmul.
pub fn ways(kernel: &Lowering, p: &Matmul, machine: &Hardware) -> Result<Vec<Way>, LowerError> {
    let dtype = crate::matmul::operand_dtype(kernel, p.v);
    let mut all = vec![];
    if !wgmma::takes(dtype, machine) {
        return Ok(all);
    }
    if let Some(parts) = split_3xtf32(kernel, p, machine)? {
        let elements = parts.iter().map(Copied::count).sum();
        let sides = parts.map(|copy| copy.side());
        let launches = vec![CopyLaunch::Split3xTf32 { elements }];
        all.push(Way { copies: [false; 2], precision: Precision::Tf32x3, rounded: false, sides, launches });
    }
    let precision = one_matmul(p.precision);
    let p = &Matmul { batch: p.batch.clone(), precision, ..*p };
    if p.dual.is_some() {
        let sides = crate::matmul::sides(kernel, p, machine)?;
        all.extend(sides.map(|sides| Way { copies: [false; 2], precision, rounded: false, sides, launches: vec![] }));
        return Ok(all);
    }
    let rounds = rounds(p, machine);
    let options = |which: usize| -> Result<Vec<(Side, Option<CopyLaunch>)>, LowerError> {
        let read = read(kernel, p, which)?;
        let side = read.strided(p).map(|s| s.side(dtype.bytes()));
        // The left operand may be rounded on its way through registers.
        let in_place = side.filter(|_| !rounds || which == 0).map(|side| (side, None));
        // A copy of what is an array already rounds its elements, or exchanges its axes.
        let useful = |copy: &Copied| side.is_none_or(|side| rounds || side.major != copy.side().major);
        let copied = read.layout(p, dtype, which).filter(useful);
        let copied = copied.map(|copy| (copy.side(), Some(copy.launch(&read))));
        Ok(in_place.into_iter().chain(copied).collect())
    };
    let (left, right) = (options(0)?, options(1)?);
    for &(left, copy_left) in &left {
        for &(right, copy_right) in &right {
            let copies = [copy_left.is_some(), copy_right.is_some()];
            let launches = copy_left.into_iter().chain(copy_right).collect();
            all.push(Way { copies, precision, rounded: rounds && !copies[0], sides: [left, right], launches });
        }
    }
    Ok(all)
}

/// The precision of one matmul in place of the three of 3xTF32.
fn one_matmul(precision: Precision) -> Precision {
    if precision == Precision::Tf32x3 { Precision::Exact } else { precision }
}

/// Whether operands are rounded to tf32 by copies, or the left one in registers: tensor cores truncate those that they
/// read in place.
fn rounds(p: &Matmul, machine: &Hardware) -> bool {
    (p.nearest || machine.contract.batch_invariant) && p.precision == Precision::Tf32
}

/// Calls `then` with the matmul, its operands replaced by the copies that its schedule asks for, and the steps that
/// make these.
pub fn prepared<T>(
    kernel: &Lowering,
    p: &Matmul,
    machine: &Hardware,
    asked: &TiledMatmul,
    then: impl Fn(&Matmul, Emitted) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    let mut out = Emitted::default();
    if asked.tile.engine == Engine::Wgmma3xTf32 {
        let Some(mut parts) = split_3xtf32(kernel, p, machine)? else {
            let name = Engine::Wgmma3xTf32.name();
            return Err(kernel.unsupported(format!(
                "`{name}` is for f32 where the contract has `splits`, from sm_90 on, without `dual-gemm`"
            )));
        };
        for (which, copy) in parts.iter_mut().enumerate() {
            copy.put(kernel, p, which, &mut out)?;
        }
        let at = |which: usize, part: usize| {
            let copy = &parts[which];
            move |r: &mut Resolver, at: &[Expr]| Ok(copy.at(r, at, which, part))
        };
        let (a, b, a_low, b_low) = (at(0, 0), at(1, 0), at(0, 1), at(1, 1));
        let low: Option<[OperandAt; 2]> = Some([&a_low, &b_low]);
        return then(&Matmul { batch: p.batch.clone(), a: &a, b: &b, low, ..*p }, out);
    }
    let p = &Matmul { batch: p.batch.clone(), precision: one_matmul(p.precision), ..*p };
    let mut copies = copied(kernel, p, machine, asked)?;
    for (which, copy) in copies.iter_mut().enumerate() {
        if let Some(copy) = copy {
            copy.put(kernel, p, which, &mut out)?;
        }
    }
    let (a, b) = (from(&copies[0], p.a, 0), from(&copies[1], p.b, 1));
    let rounded = rounds(p, machine) && copies[0].is_none();
    then(&Matmul { batch: p.batch.clone(), a: &a, b: &b, rounded, ..*p }, out)
}

/// Layouts of the operands split in two for 3xTF32, where that applies.
fn split_3xtf32(kernel: &Lowering, p: &Matmul, machine: &Hardware) -> Result<Option<[Copied; 2]>, LowerError> {
    let by_warpgroups = wgmma::takes(DType::F32, machine) && p.dual.is_none();
    if p.precision != Precision::Tf32x3 || !by_warpgroups || p.batch.contains(&0) {
        return Ok(None);
    }
    let layout = |which: usize| Ok(read(kernel, p, which)?.layout(p, DType::F32, which));
    let parts = layout(0)?.zip(layout(1)?);
    Ok(parts.map(|(a, b)| [a, b].map(|c| Copied { parts: 2, ..c })))
}

/// The copies that a schedule asks for.
fn copied(
    kernel: &Lowering,
    p: &Matmul,
    machine: &Hardware,
    asked: &TiledMatmul,
) -> Result<[Option<Copied>; 2], LowerError> {
    let (dtype, mut copies) = (crate::matmul::operand_dtype(kernel, p.v), [None, None]);
    for (which, operand) in [Operand::A, Operand::B].into_iter().enumerate().filter(|w| asked.form.copies[w.0]) {
        let layout = read(kernel, p, which)?.layout(p, dtype, which).filter(|_| p.dual.is_none());
        let step = Step::Copy(vec![operand]);
        copies[which] = Some(layout.ok_or_else(|| {
            kernel.unsupported(format!("`{step}` does not fit: the operand is too large, or one of two"))
        })?);
    }
    if rounds(p, machine) && asked.tile.engine == Engine::Wgmma && copies[1].is_none() {
        let step = Step::Copy(vec![Operand::B]);
        return Err(kernel.unsupported(format!("a right operand is rounded to tf32 when it is copied: `{step}`")));
    }
    Ok(copies)
}

/// Where an operand lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    /// In rows of multiples of 16 bytes.
    Aligned,
    /// In rows of any length, which are read element by element.
    Unaligned,
    /// Each element where an index and its bounds say: patches of a convolution.
    Gathered,
}

/// Where the operands lie.
pub fn rows(kernel: &Lowering, p: &Matmul) -> Result<[Rows; 2], LowerError> {
    let one = |which: usize| {
        let r = read(kernel, p, which)?;
        Ok(match &r.scene.dag.node(r.node).op {
            _ if r.strided(p).is_some() => Rows::Aligned,
            NodeOp::Load { guards, .. } if guards.is_empty() => Rows::Unaligned,
            _ => Rows::Gathered,
        })
    };
    Ok([one(0)?, one(1)?])
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
        let row = if len * dtype.bytes() >= MIN_PADDED_ROW_BYTES { SPAN } else { 16 } / dtype.bytes();
        let last = if deep { [outer, p.k.next_multiple_of(row)] } else { [p.k, outer.next_multiple_of(row)] };
        let shape: Vec<usize> = batch.iter().map(|i| p.batch[*i]).chain(last).collect();
        let bytes = Type::new(dtype, shape.clone()).bytes();
        (bytes <= MAX_COPY_BYTES).then_some(Copied { slot: Slot::Scratch(0), dtype, batch, deep, shape, parts: 1 })
    }
}

impl Copied {
    /// Adds a scratch buffer for the copy, and the step that fills it.
    fn put(&mut self, kernel: &Lowering, p: &Matmul, which: usize, out: &mut Emitted) -> Result<(), LowerError> {
        self.slot = Slot::Scratch(out.scratch.len() as u32);
        *out = std::mem::take(out).then(self.step(kernel, p, which)?);
        out.scratch.push(Type::new(self.dtype, [self.parts * self.count()]));
        Ok(())
    }
    /// The launch that makes the copy.
    fn step(&self, kernel: &Lowering, p: &Matmul, which: usize) -> Result<Emitted, LowerError> {
        // Batch axes that the copy does not have stay at 0.
        let axis = |(i, &d): (usize, &usize)| if self.batch.contains(&i) { d } else { 1 };
        let batch = p.batch.iter().enumerate().map(axis);
        // Rows are written whole, with zeros beyond the operand: what is stored is contiguous.
        let row = if self.deep { p.k } else { [p.m, p.n][which] };
        let space: Vec<usize> = batch.chain(self.shape[self.batch.len()..].iter().copied()).collect();
        let scene = |axes: &[Expr]| -> Result<Scene, LowerError> {
            // In the operand's own order: (m, k) on the left, (k, n) on the right.
            let at = if self.deep == (which == 0) { axes.to_vec() } else { swapped(axes.to_vec()) };
            let mut r = kernel.resolver();
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
        launch::points(kernel, ["left", "right"][which], &space, &scene)
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
