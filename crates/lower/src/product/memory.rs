//! Operands that no tensor map describes (rows of any length, windows, gathers, arithmetic before the product) go through
//! memory first, in rows of multiples of 16 bytes, where the product is large enough to pay for that. So do operands of large
//! products in f32 whose rows run along K: turned, their multiply-adds have no bank conflicts.
use super::{OperandAt, Product, swapped};
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::expr::{Atom, CoordId, Expr, linear};
use crate::resolve::{Body, Resolved, Resolver};
use crate::rows::Emitted;
use crate::warpgroup::{self, Major, Strided};
use crate::{LowerError, Target, pointwise};
use kiln_block::Kernel;
use kiln_graph::{DType, Type};
use kiln_plan::exec::{Slot, Work};

/// Rows or columns that read each element of the copy, at least, for the copy to cost less than it saves.
const USES: usize = 64;
/// The same for turning an operand of multiply-adds, and their number.
const TURNED: (usize, usize) = (1024, 1 << 31);
/// Multiply-adds of a product that is worth another launch.
const WORK: usize = 1 << 24;
/// Bytes of a copy.
const MOST: usize = 1 << 28;

/// An operand's copy: axes of the product's batch that it has, then its two axes, the contiguous one last.
pub struct Copied {
    slot: Slot,
    dtype: DType,
    batch: Vec<usize>,
    /// K is the last axis.
    deep: bool,
    shape: Vec<usize>,
}

impl Copied {
    /// The element at `(batch…, m, k)` of the left operand, `(batch…, k, n)` of the right one.
    pub fn at(&self, r: &mut Resolver, at: &[Expr], which: usize) -> NodeId {
        let place = self.place(at, which);
        r.dag.add(NodeOp::Load { slot: self.slot, at: linear(&place, &self.shape), guards: vec![] }, self.dtype)
    }
    fn place(&self, at: &[Expr], which: usize) -> Vec<Expr> {
        let n = at.len();
        let (outer, depth) = if which == 0 { (&at[n - 2], &at[n - 1]) } else { (&at[n - 1], &at[n - 2]) };
        let last = if self.deep { [outer, depth] } else { [depth, outer] };
        self.batch.iter().map(|i| &at[*i]).chain(last).cloned().collect()
    }
}

/// What an operand reads at the product's coordinates: batch…, m, n, then k.
pub struct Read {
    pub scene: Scene,
    pub node: NodeId,
    outer: (CoordId, usize),
    depth: (CoordId, usize),
}

/// Operand `which` (0: left) at a point.
pub fn read(of: &Body, p: &Product, which: usize) -> Result<Read, LowerError> {
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
    pub fn strided(&self, p: &Product) -> Option<Strided> {
        Strided::load(&self.scene, self.node, p, self.outer, self.depth)
    }
    /// Whether neighbours along K are neighbours in memory.
    fn is_deep(&self) -> bool {
        let NodeOp::Load { at, .. } = &self.scene.dag.node(self.node).op else { return false };
        at.terms.iter().any(|(a, c)| *c == 1 && matches!(a, Atom::Coord { id, .. } if *id == self.depth.0))
    }
}

/// Copies of the operands that need one, if that makes both fit; the steps that make them go to `out`.
pub fn copied(of: &Body, p: &Product, target: Target, out: &mut Emitted) -> Result<[Option<Copied>; 2], LowerError> {
    let dtype = of.graph.dtype(p.v);
    let work = [p.m, p.n, p.k].into_iter().chain(p.batch.iter().copied()).fold(1usize, usize::saturating_mul);
    if !warpgroup::takes(dtype, target) || work < WORK || p.twin.is_some() {
        return Ok([None, None]);
    }
    let reads = [read(of, p, 0)?, read(of, p, 1)?];
    // Rows of tf32 run along K. Where both sides of multiply-adds are turned, turning one alone gains nothing.
    let lies = |s: &Strided| s.major == if p.tf32 { Major::Depth } else { Major::Outer };
    let runs = |r: &Read| r.strided(p).is_some_and(|s| s.major == Major::Outer);
    let turn = dtype == DType::F32
        && !p.tf32
        && work >= TURNED.1
        && reads.iter().zip([p.n, p.m]).all(|(r, uses)| uses >= TURNED.0 || runs(r));
    let mut copies = [None, None];
    for (which, r) in reads.iter().enumerate() {
        let uses = [p.n, p.m][which];
        let layout = r.layout(p, dtype, which);
        match r.strided(p) {
            None if uses < USES || layout.is_none() => return Ok([None, None]),
            Some(s) if lies(&s) || !(turn || p.tf32 && uses >= USES && layout.is_some()) => {}
            _ => copies[which] = layout,
        }
    }
    for (which, copy) in copies.iter_mut().enumerate() {
        if let Some(copy) = copy {
            copy.slot = Slot::Scratch(out.scratch.len() as u32);
            out.steps.push(copy.step(of, p, which, target)?);
            out.scratch.push(Type::new(dtype, [copy.shape.iter().product::<usize>()]));
        }
    }
    Ok(copies)
}

impl Read {
    /// How a copy lies, if it is not too large.
    fn layout(&self, p: &Product, dtype: DType, which: usize) -> Option<Copied> {
        let mut used = vec![];
        for n in self.scene.dag.reach(&[self.node]) {
            self.scene.dag.node(n).exprs(&mut |e| e.coords(&mut |c| used.push(c as usize)));
        }
        let batch: Vec<usize> = (0..p.batch.len()).filter(|i| p.batch[*i] > 1 && used.contains(i)).collect();
        let (outer, deep) = ([p.m, p.n][which], p.tf32 || self.is_deep() && dtype != DType::F32);
        let row = 16 / dtype.bytes();
        let last = if deep { [outer, p.k.next_multiple_of(row)] } else { [p.k, outer.next_multiple_of(row)] };
        let shape: Vec<usize> = batch.iter().map(|i| p.batch[*i]).chain(last).collect();
        let bytes = Type::new(dtype, shape.clone()).bytes();
        (bytes <= MOST).then_some(Copied { slot: Slot::Scratch(0), dtype, batch, deep, shape })
    }
}

impl Copied {
    /// The step that makes the copy.
    fn step(&self, of: &Body, p: &Product, which: usize, target: Target) -> Result<Work<Kernel>, LowerError> {
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
            let store = Store { slot: self.slot, dtype: self.dtype, at: place, guards: vec![], value };
            Ok(Scene { dag: r.dag, stores: vec![store] })
        };
        pointwise::points(&format!("{}_{}", of.name, ["left", "right"][which]), &space, &scene, target)
    }
}

/// An operand from its copy, or as it is.
pub fn from<'a>(
    copy: &'a Option<Copied>,
    plain: OperandAt<'a>,
    which: usize,
) -> impl Fn(&mut Resolver, &[Expr]) -> Resolved + 'a {
    move |r, at| match copy {
        Some(c) => Ok(c.at(r, at, which)),
        None => plain(r, at),
    }
}
