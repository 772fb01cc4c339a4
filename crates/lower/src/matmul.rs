//! GPU matmuls: one tile of the result per program instance, a loop over K, the epilogue on the accumulators.
//!
//! Takes: a batched matmul, its operands as functions of an index, and the body around it. Gives: the steps. Warpgroups
//! compute it where they apply ([`crate::matmul::wgmma`]), else tiles of masked pointer loads ([`mma`]). Operands may
//! be copied first ([`operands`]), and K may be split ([`split_k`]). An epilogue that does not fit a tile is a step of
//! its own.
//!
//! **Row reductions in the epilogue.** Softmax, norms and sums over the columns of a tensor-core matmul are computed in
//! its tile where one tile has all columns (`tile` in a machine's description: 256 on an H200). A thread computes its
//! part of a row once, combines it column by column, and the row is reduced in registers and across four lanes. Under
//! split-K the step that sums the slices reduces. Rows that are heads, parts of the result's rows, are reduced in tiles
//! as wide as a head.
pub mod conv;
pub mod dims;
pub mod gemm;
pub mod host;
pub mod library;
pub mod mma;
pub mod operands;
pub mod pairwise;
pub mod problem;
pub mod slices;
pub mod split_k;
pub mod wgmma;

use crate::emit::emitter::TileRow;
use crate::emit::frame::{loads, open_with};
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::mma::{accumulate, grouped};
pub use crate::matmul::problem::{
    Dual, Matmul, OperandAt, Run, epilogue_bytes, epilogue_ops, operand_dtype, precision, swapped,
};
use crate::matmul::slices::Parts;
use crate::matmul::wgmma::shape;
use crate::matmul::wgmma::strided::{Side, majors};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{Dag, Guard, NodeOp, Scene, Store};
use crate::scalar::epilogue_map::{self, Positions, accumulators};
use crate::scalar::expr::{CoordId, Expr, linear};
use crate::scalar::resolve::{Body, MatmulSource};
use crate::scalar::row::Row;
use crate::scalar::space::Space;
use crate::schedule::tile::{Cut, Shape};
use crate::steps::Emitted;
use kiln_block::BlockProgram;
use kiln_graph::Type;
use kiln_plan::exec::{Slot, Work};
use kiln_plan::matmul_schedule::{MatmulForm, MatmulSchedule, TiledMatmul};
use kiln_plan::{Axis, Hardware, Step};

/// What computes other epilogues, as an error message.
const EPILOGUE_BY_LAUNCH: &str = "`stage c global` computes it by a launch of its own";

/// The matmul by a schedule.
pub fn lower(kernel: &Lowering, p: &Matmul, machine: &Hardware, asked: &TiledMatmul) -> Result<Emitted, LowerError> {
    let out =
        operands::prepared(kernel, p, machine, asked, |p, before| with_operands(kernel, p, machine, asked, before))?;
    Ok(out.in_form(|form| form.copies = asked.form.copies))
}

/// The matmul with the operands that it is to read; `out` has the steps that come before.
pub fn with_operands(
    kernel: &Lowering,
    p: &Matmul,
    machine: &Hardware,
    asked: &TiledMatmul,
    mut out: Emitted,
) -> Result<Emitted, LowerError> {
    let first = out.scratch.len() as u32;
    if asked.form.slices > 1 {
        let split = in_slices(kernel, p, machine, asked, first)?;
        return Ok(out.then(split));
    }
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    if !asked.form.separate_epilogue {
        let Some(placed) = fitting(kernel, p) else {
            return Err(kernel.unsupported(format!("the epilogue is not that of a tile; {EPILOGUE_BY_LAUNCH}")));
        };
        let scene = |at: &[Expr]| epilogue(kernel, p, &placed, at);
        let (step, schedule) = tiled(kernel, p, &dims, asked, machine, &scene)?;
        return Ok(out.then(Emitted { matmul_schedule: Some(schedule), ..Emitted::step(step) }));
    }
    // The matmuls go through memory.
    let p = &Matmul { batch: p.batch.clone(), row: None, ..*p };
    let acc = kernel.graph.dtype(p.v).compute();
    let scene = |at: &[Expr]| sums(kernel, p, at, first, &Expr::default());
    let (step, schedule) = tiled(kernel, p, &dims, asked, machine, &scene)?;
    let name = format!("{}_epilogue", kernel.name);
    let rest = p.at(kernel, |i| MatmulSource::At(Slot::Scratch(first + i as u32), acc));
    let rest = rest.with_body(Body { name: &name, ..rest.body });
    out.scratch.extend(p.values().map(|v| Type::new(acc, [kernel.graph.ty(v).count()])));
    out.steps.push(step);
    out.matmul_schedule = Some(schedule);
    let scratch = out.scratch.len() as u32;
    let out = out.then(launch::body(&rest, scratch)?);
    Ok(out.in_form(|form| form.separate_epilogue = true))
}

/// How the epilogue is placed in tiles, where it is elementwise or row by row within one.
pub fn fitting(kernel: &Lowering, p: &Matmul) -> Option<Vec<epilogue_map::Placed>> {
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    epilogue_map::outputs(&p.nodes(kernel), &dims, Positions { place: p.place, lattice: p.lattice }, p.row)
        .filter(|_| p.row.is_none_or(|n| n <= p.n))
}

/// Whether tiles can compute the epilogue.
pub fn is_fused(kernel: &Lowering, p: &Matmul) -> bool {
    p.row.is_none() && fitting(kernel, p).is_some()
}

/// The matmul in slices of K.
fn in_slices(
    kernel: &Lowering,
    p: &Matmul,
    machine: &Hardware,
    asked: &TiledMatmul,
    scratch: u32,
) -> Result<Emitted, LowerError> {
    let step = Step::SplitReduce(Axis::K, asked.form.slices);
    if machine.contract.batch_invariant {
        return Err(kernel.unsupported(format!("`{step}` does not fit: a batch-invariant matmul sums K in one order")));
    }
    let depth = match asked.tile.stages {
        Some(_) => sides(kernel, p, machine)?
            .and_then(|sides| shape::Engine::of(operand_dtype(kernel, p.v), p.precision, majors(sides)))
            .map(shape::Engine::slice_depth),
        None => Some(asked.tile.size[2]),
    };
    let parts = depth.filter(|depth| *depth > 0).and_then(|depth| Parts::of(asked.form.slices, p.k, depth));
    let Some(parts) = parts.filter(|_| !asked.form.separate_epilogue) else {
        let why = "slices are whole stages in shared memory, or whole tiles, and their sum computes the epilogue";
        return Err(kernel.unsupported(format!("`{step}` does not fit: {why}")));
    };
    match split_k::lower(kernel, p, parts, machine, asked, scratch) {
        Err(LowerError::Unsupported { why, .. }) => {
            Err(kernel.unsupported(format!("`{step}` does not fit: in slices, {why}")))
        }
        split => split,
    }
}

/// Which axes of the operands are contiguous, if warpgroups can read both.
fn sides(kernel: &Lowering, p: &Matmul, machine: &Hardware) -> Result<Option<[Side; 2]>, LowerError> {
    if !wgmma::takes(operand_dtype(kernel, p.v), machine) {
        return Ok(None);
    }
    let (left, right) = (operands::read(kernel, p, 0)?.strided(p), operands::read(kernel, p, 1)?.strided(p));
    let bytes = operand_dtype(kernel, p.v).bytes();
    let sides = left.zip(right).map(|(left, right)| [left.side(bytes), right.side(bytes)]);
    let Some(dual) = p.dual else { return Ok(sides) };
    let other = operands::read(kernel, &Matmul { b: dual.b, batch: p.batch.clone(), ..*p }, 1)?.strided(p);
    Ok(sides.filter(|s| other.is_some_and(|o| o.major == s[1].major)))
}

/// Stores of the accumulators at `at` (batch…, m, n), for an epilogue in a later step: each value in a scratch buffer
/// from `first` on, in its own row-major order. `from`: where in the buffer it begins.
fn sums(kernel: &Lowering, p: &Matmul, at: &[Expr], first: u32, from: &Expr) -> Stored {
    if p.values().count() < p.sums() {
        return Err(kernel.unsupported("a dual GEMM of the halves of one matmul cannot store them separately"));
    }
    let (mut dag, dtype) = (Dag::default(), kernel.graph.dtype(p.v));
    let (order, guards) = value_position(kernel, p, at)?;
    let order = from.plus(&order);
    let mut stores = vec![];
    for i in 0..p.sums() {
        let mut shifted = at.to_vec();
        if let Some(column) = shifted.last_mut() {
            *column = column.clone().shift((i * p.n) as i64);
        }
        let value = dag.add(NodeOp::Anchor { at: shifted }, dtype);
        let slot = Slot::Scratch(first + i as u32);
        stores.push(Store::new(slot, dtype.compute(), order.clone(), value).within(guards.clone()));
    }
    Ok((dag, stores))
}

/// Row-major position of an element of the matmul in its value (and of the dual in its own), and guards for where it
/// has one.
fn value_position(kernel: &Lowering, p: &Matmul, at: &[Expr]) -> Result<(Expr, Vec<Guard>), LowerError> {
    let shape = kernel.graph.shape(p.v).to_vec();
    let mut space = Space::new(&shape, &vec![false; shape.len()]);
    let mut left = vec![];
    for l in p.lattice {
        let along = space.axes[l.axis].clone();
        left.extend(l.restrict(&mut space, &along));
    }
    let (mut solved, mut guards): (Vec<(CoordId, Expr)>, _) = (vec![], vec![]);
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    let exprs = (p.place)(&space.axes);
    for ((e, d), extent) in exprs.iter().zip(at).zip(dims) {
        let inverse = crate::scalar::invert::invert(e, d)
            .ok_or_else(|| kernel.unsupported("a matmul whose result order cannot be inverted"))?;
        solved.extend(inverse.coords.iter().cloned());
        guards.extend(inverse.guards(extent));
    }
    let find = |id| solved.iter().find(|s| s.0 == id).map(|s| s.1.clone());
    let index: Vec<Expr> = space.axes.iter().map(|e| e.substitute(&find)).collect();
    guards.extend(left.into_iter().map(|a| Guard { expr: index[a].clone(), lo: 0, hi: shape[a] as i64 }));
    Ok((linear(&index, &shape), guards))
}

/// The stores of the epilogue at `at` (batch…, m, n).
pub fn epilogue(kernel: &Lowering, p: &Matmul, placed: &[epilogue_map::Placed], at: &[Expr]) -> Stored {
    let matmul = p.nodes(kernel);
    let mut r = matmul.resolver();
    r.row = p.row.zip(at.last()).map(|(len, column)| Row::part_of(column, len));
    let stores = placed.iter().map(|o| o.store(&mut r, at)).collect::<Result<Vec<_>, _>>()?;
    Ok((r.dag, stores))
}

/// Coordinates of the program: batch…, m, n, then k as A sees it and as B does.
pub struct Coords {
    pub m: CoordId,
    pub n: CoordId,
    pub ka: CoordId,
    pub kb: CoordId,
}

type Stored = Result<(Dag, Vec<Store>), LowerError>;

fn tiled(
    kernel: &Lowering,
    p: &Matmul,
    dims: &[usize],
    asked: &TiledMatmul,
    machine: &Hardware,
    scene: &dyn Fn(&[Expr]) -> Stored,
) -> Result<(Work<BlockProgram>, MatmulSchedule), LowerError> {
    let (name, dtype, asked) = (kernel.name, operand_dtype(kernel, p.v), asked.tile);
    let schedule_of = |tile| MatmulSchedule::Matmul(TiledMatmul { form: MatmulForm::default(), tile });
    let row =
        p.row.filter(|_| p.full_k.is_none()).map(|_| TileRow { coord: dims.len() as CoordId - 1, axis: 1, rank: 2 });
    let base = dims.len() as CoordId;
    let ids = Coords { m: base - 2, n: base - 1, ka: base, kb: base + 1 };
    let axes: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let batch = &axes[..dims.len() - 2];
    let (em, en) = (axes[dims.len() - 2].clone(), axes[dims.len() - 1].clone());
    let (ka, kb) = (Expr::coord(ids.ka, p.k), Expr::coord(ids.kb, p.k));

    let (dag, stores) = scene(&axes)?;
    let mut r = p.nodes(kernel).resolver();
    r.dag = dag;
    let a = (p.a)(&mut r, &[batch, &[em.clone(), ka.clone()]].concat())?;
    let at = [batch, &[kb, en]].concat();
    let b = std::iter::once(p.b).chain(p.dual.map(|t| t.b)).map(|b| b(&mut r, &at)).collect::<Result<Vec<_>, _>>()?;
    let low = match p.low {
        Some([a, b]) => {
            let at = [[batch, &[em.clone(), ka.clone()]].concat(), at];
            Some([a(&mut r, &at[0])?, b(&mut r, &at[1])?])
        }
        None => None,
    };
    let scene = Scene { dag: r.dag, stores };
    let anchors =
        accumulators(&scene, p.sums()).ok_or_else(|| kernel.unsupported("a matmul read at several elements"))?;

    if asked.stages.is_some() {
        let task = wgmma::Task {
            name,
            matmul: p,
            scene: &scene,
            coords: &ids,
            left: a,
            right: &b,
            low,
            anchors: &anchors,
            dtype,
            row,
            asked,
        };
        let (work, tile) = wgmma::lower(&task, machine).unwrap_or_else(|| Err(kernel.unsupported(wgmma::NEEDS)))?;
        return Ok((work, schedule_of(tile)));
    }
    if p.low.is_some() {
        return Err(kernel.unsupported(wgmma::NEEDS));
    }
    let t = mma::of_schedule(p, dtype, &asked).map_err(|why| kernel.unsupported(why))?;
    if row.is_some() && (t.n < p.n || p.row != Some(p.n)) {
        return Err(kernel
            .unsupported(format!("the rows that the epilogue reduces are not those of a tile; {EPILOGUE_BY_LAUNCH}")));
    }
    let cut = |id: CoordId, extent: usize, block: usize, axis: usize| Cut { id, extent, block, axis };
    let mut cuts: Vec<Cut> = (p.batch.iter().enumerate()).map(|(i, &d)| Cut::uniform(i as CoordId, d)).collect();
    cuts.extend([cut(ids.m, p.m, t.m, 0), cut(ids.n, p.n, t.n, 1)]);
    let shape = Shape { cuts, rank: 2, parts: 1, warps: t.warps, blocks: 1, reversed: false };
    let mut used = loads(&scene.dag, &[scene.roots(), vec![a], b.clone()].concat(), |_| false);
    used.extend(scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
    let mut f = open_with(name, &scene, &shape, &used, machine);
    grouped(&mut f, p, &ids, t);
    f.em.row = row;
    let sums = accumulate(&mut f, p, &ids, t, (a, &b), dtype);
    for (anchor, sum) in anchors.into_iter().zip(sums) {
        f.em.set(anchor, sum);
    }
    for s in &scene.stores {
        f.store(s);
    }
    Ok((f.finish()?, schedule_of(t.of_schedule(mma::engine(dtype, p)))))
}
