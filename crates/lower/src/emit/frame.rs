//! The frame of a block program: its parameters, the position of a program instance in the grid, and the lanes of its
//! tile.
//!
//! Takes: a scene and the shape that a schedule chose. Gives: a builder in which coordinates are bound to values, and
//! stores of results.
use crate::emit::emitter::{Emitter, Lanes, joint};
use crate::emit::row_run::Run;
use crate::error::LowerError;
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene, Store, Write};
use crate::scalar::expr::{Atom, CoordId, Expr};
use crate::scalar::types;
use crate::schedule::row_plan::{RowPlan, Unaligned};
use crate::schedule::tile::{Cut, Shape};
use kiln_block::{Array, BinaryOp as B, BlockProgram, Builder, CmpOp, Elem, Type, Value};
use kiln_graph::DType;
use kiln_machine::Machine;
use kiln_plan::exec::{Slot, Work};
use std::collections::BTreeMap;

/// A block program under construction.
pub struct Frame<'a> {
    pub b: Builder,
    pub em: Emitter<'a>,
    pub rank: usize,
    /// Which of [`Shape::parts`] the instance computes (a scalar of the index type); absent if there is only one.
    pub part: Option<Value>,
    args: Vec<Slot>,
}

/// A buffer that a program uses: its slot, its dtype, whether it is only read.
pub type Used = (Slot, DType, bool);

/// Buffers that nodes read, not looking below nodes where `stop` holds.
pub fn loads(dag: &Dag, roots: &[NodeId], stop: impl Fn(NodeId) -> bool) -> Vec<Used> {
    let load = |n: NodeId| match dag.node(n).op {
        NodeOp::Load { slot, .. } => Some((slot, dag.node(n).dtype, true)),
        _ => None,
    };
    dag.reach_until(roots, stop).into_iter().filter_map(load).collect()
}

/// Starts a program for the scene's stores.
pub fn open<'a>(name: &str, scene: &'a Scene, shape: &Shape, machine: &Machine) -> Frame<'a> {
    let written = scene.stores.iter().map(|s| (s.slot, s.dtype, false));
    let used: Vec<Used> = loads(&scene.dag, &scene.roots(), |_| false).into_iter().chain(written).collect();
    open_with(name, scene, shape, &used, machine)
}

/// Starts a program that uses these buffers; parameters are in the order of the slots.
pub fn open_with<'a>(name: &str, scene: &'a Scene, shape: &Shape, used: &[Used], machine: &Machine) -> Frame<'a> {
    let instances = shape.instances();
    let mut frame = open_bare(name, scene, used, (&shape.cuts, instances), machine);
    frame.b.set_warps(shape.warps.max(1));
    frame.b.set_blocks(shape.blocks.max(1));
    frame.rank = shape.rank;
    frame.place(shape);
    frame
}

/// Starts a program of `instances` instances without binding coordinates: the caller computes the position in the grid.
/// Tiles have two axes.
pub fn open_bare<'a>(
    name: &str,
    scene: &'a Scene,
    used: &[Used],
    (cuts, instances): (&[Cut], usize),
    machine: &Machine,
) -> Frame<'a> {
    let slots: BTreeMap<Slot, (DType, bool)> = used.iter().map(|&(slot, d, readonly)| (slot, (d, readonly))).collect();
    let mut b = Builder::new(name, [instances, 1, 1], 1);
    let mut em = Emitter::new(&scene.dag, index_elem(scene, cuts, machine));
    let mut args = vec![];
    for (slot, (dtype, readonly)) in &slots {
        let p = b.param(slot_name(*slot), types::stored(*dtype), *readonly);
        em.params.insert(*slot, p);
        args.push(*slot);
    }
    Frame { b, em, rank: 2, part: None, args }
}

fn slot_name(slot: Slot) -> String {
    match slot {
        Slot::Input(i) => format!("in{i}"),
        Slot::Output(i) => format!("out{i}"),
        Slot::Scratch(i) => format!("scratch{i}"),
        Slot::Faults => "faults".into(),
        Slot::Counter => "counter".into(),
    }
}

/// i64 where an offset, or a position rounded up to a tile, can exceed what the machine computes in 32 bits.
fn index_elem(scene: &Scene, cuts: &[Cut], machine: &Machine) -> Elem {
    let limit = i128::from(machine.narrow_offsets);
    let points: i128 = cuts.iter().map(|c| (c.count() * c.block) as i128).product();
    let mut large = points > limit;
    let mut see = |e: &Expr| e.walk(&mut |e| large |= magnitude(e) > limit);
    // Those of operands too, which a program loads by itself: no store reaches them.
    scene.dag.nodes.iter().for_each(|n| n.exprs(&mut see));
    scene.stores.iter().for_each(|s| std::iter::once(&s.at).chain(s.guards.iter().map(|g| &g.expr)).for_each(&mut see));
    if large { Elem::I64 } else { Elem::I32 }
}
/// Bound on the absolute value of an expression, of each of its terms, and of every sum of some of them.
fn magnitude(e: &Expr) -> i128 {
    let atom = |a: &Atom| match a {
        Atom::Coord { extent, .. } | Atom::Value { extent, .. } => *extent as i128,
        // A quotient rounds toward minus infinity.
        Atom::Div(x, k) => magnitude(x) / i128::from(*k) + 1,
        Atom::Mod(_, k) => i128::from(*k),
    };
    let terms: i128 = e.terms.iter().map(|(a, c)| atom(a) * i128::from(c.abs())).sum();
    terms + i128::from(e.constant.abs())
}

impl Frame<'_> {
    /// A descriptor of an array in a buffer.
    pub fn descriptor(&mut self, name: &str, slot: Slot, (ty, array): (Type, Array), readonly: bool) -> Value {
        self.args.push(slot);
        self.b.descriptor(name, ty, array, readonly)
    }
    fn place(&mut self, shape: &Shape) {
        let number = (shape.instances() > 1).then(|| {
            let number = self.number();
            if !shape.reversed {
                return number;
            }
            let last = self.em.int(&mut self.b, shape.instances() as i64 - 1);
            self.b.binary(B::Sub, last, number)
        });
        self.place_at(shape, number);
    }
    /// The instance's number.
    pub fn number(&mut self) -> Value {
        let pid = self.b.program_id(0);
        self.b.cast(pid, self.em.index)
    }
    /// Splits an instance's number into positions, the last cut fastest.
    pub fn place_at(&mut self, shape: &Shape, number: Option<Value>) {
        let counts = shape.counts();
        let (mut rest, mut outer) = (number, shape.instances());
        for (i, &n) in counts.iter().enumerate().rev() {
            outer /= n.max(1);
            let position = match rest {
                Some(r) if n > 1 && outer > 1 => {
                    let n = self.em.int(&mut self.b, n as i64);
                    rest = Some(self.b.binary(B::Div, r, n));
                    Some(self.b.binary(B::Rem, r, n))
                }
                Some(r) if n > 1 => Some(r),
                _ => None,
            };
            match i.checked_sub(1).and_then(|i| shape.cuts.get(i)) {
                None => self.part = position,
                Some(cut) => {
                    let lanes = self.lanes(*cut, position);
                    self.em.coords.insert(cut.id, lanes);
                }
            }
        }
    }
    /// Lanes of the block number `position` of a cut.
    pub fn lanes(&mut self, cut: Cut, position: Option<Value>) -> Lanes {
        let base = position.map(|p| {
            let block = self.em.int(&mut self.b, cut.block as i64);
            if cut.block == 1 { p } else { self.b.binary(B::Mul, p, block) }
        });
        let lane = self.iota(cut);
        let ragged = !cut.extent.is_multiple_of(cut.block);
        let mask = lane.filter(|_| ragged).map(|l| self.below(base, l, cut.extent));
        Lanes { base, lane, mask, block: cut.block }
    }
    /// Lanes of the cut's block that starts at `start`.
    pub fn lanes_from(&mut self, cut: Cut, start: usize) -> Lanes {
        let base = (start > 0).then(|| self.em.int(&mut self.b, start as i64));
        let lane = self.iota(cut);
        let ragged = start + cut.block > cut.extent;
        let mask = lane.filter(|_| ragged).map(|l| self.below(base, l, cut.extent));
        Lanes { base, lane, mask, block: 0 }
    }
    /// The lanes of an unaligned row, which starts at some lane of these.
    pub fn peeled(&mut self, cut: Cut, shift: &Unaligned, lanes: Lanes) -> Lanes {
        let within = self.within_peeled(cut, shift, lanes);
        let Some(lane) = lanes.lane else { return lanes };
        let at = lanes.base.map_or(lane, |base| self.b.binary(B::Add, base, lane));
        let start = self.em.expr(&mut self.b, &shift.start);
        let length = self.em.int(&mut self.b, cut.extent as i64);
        let end = self.b.binary(B::Add, start, length);
        let (after, before) = (self.b.cmp(CmpOp::Ge, at, start), self.b.cmp(CmpOp::Lt, at, end));
        Lanes { mask: Some(self.b.binary(B::And, after, before)), ..within }
    }
    /// The same where all of these lanes are inside the row.
    pub fn within_peeled(&mut self, cut: Cut, shift: &Unaligned, lanes: Lanes) -> Lanes {
        self.em.coords.insert(shift.lane, lanes);
        self.em.skew = Some((cut.id, shift.position.clone()));
        Lanes { base: None, mask: None, block: 0, ..lanes }
    }
    /// `0..block` along the cut's axis; nothing for uniform coordinates.
    pub fn iota(&mut self, cut: Cut) -> Option<Value> {
        if cut.block == 1 {
            return None;
        }
        let mut v = self.b.iota(cut.block);
        for axis in (0..self.rank).filter(|a| *a != cut.axis) {
            v = self.b.expand_dims(v, axis);
        }
        Some(self.b.cast(v, self.em.index))
    }
    pub fn below(&mut self, base: Option<Value>, lane: Value, extent: usize) -> Value {
        let at = match base {
            Some(base) => self.b.binary(B::Add, base, lane),
            None => lane,
        };
        let n = self.em.int(&mut self.b, extent as i64);
        self.b.cmp(CmpOp::Lt, at, n)
    }
    /// Stores a value where its coordinates are in range and its guards hold. Coordinates that it does not depend on
    /// must be uniform.
    pub fn store(&mut self, s: &Store) {
        self.store_within(s, &[]);
    }
    /// Stores the lanes that are in range of the coordinates `within` and of those that the address depends on.
    pub fn store_within(&mut self, s: &Store, within: &[CoordId]) {
        let v = self.em.value(&mut self.b, s.value);
        if !self.store_run(s, v) {
            self.store_lanes(s, v, within);
        }
    }
    pub fn store_value(&mut self, s: &Store, v: Value) {
        if !self.store_run(s, v) {
            self.store_lanes(s, v, &[]);
        }
    }
    fn store_lanes(&mut self, s: &Store, v: Value, within: &[CoordId]) {
        let Write::Atomic(op) = s.how else {
            let (p, mask) = self.place_of(s, within);
            let v = self.b.cast(v, types::stored(s.dtype));
            let mut shape = joint(&self.b.shape(p), &self.b.shape(v));
            if let Some(m) = mask {
                shape = joint(&shape, &self.b.shape(m));
            }
            let p = self.b.broadcast_to(p, &shape);
            return self.b.store(p, v, mask);
        };
        // Each point of the tile counts once, also where its place and value do not depend on a coordinate.
        let all: Vec<CoordId> = self.em.coords.keys().copied().collect();
        let lanes: Vec<Value> = self.em.coords.values().filter_map(|c| c.lane).collect();
        let (p, mask) = self.place_of(s, &all);
        let v = self.b.cast(v, types::stored(s.dtype));
        let shape = lanes.iter().fold(self.b.shape(p), |shape, lane| joint(&shape, &self.b.shape(*lane)));
        let p = self.b.broadcast_to(p, &shape);
        self.b.atomic(op, p, v, mask);
    }
    /// Adds a value to what its element has, in the type `held`; no other instance may write there.
    pub fn accumulate(&mut self, s: &Store, elem: Elem) {
        let (p, mask) = self.place_of(s, &[]);
        let v = self.em.value(&mut self.b, s.value);
        let old = self.b.load(p, mask, None);
        let (old, new) = (self.b.cast(old, elem), self.b.cast(v, elem));
        let sum = self.b.binary(B::Add, old, new);
        let sum = self.b.cast(sum, types::stored(s.dtype));
        let sum = self.b.broadcast_to(sum, &self.b.shape(p));
        self.b.store(p, sum, mask);
    }
    /// Where a value is written, and the lanes that do: those in range of the coordinates `within` and of those that
    /// the address depends on.
    fn place_of(&mut self, s: &Store, within: &[CoordId]) -> (Value, Option<Value>) {
        let mut used = within.to_vec();
        s.at.coords(&mut |c| used.push(c));
        // An index that is read may depend on any coordinate.
        s.at.nodes(&mut |_| used.extend(self.em.coords.keys()));
        used.sort_unstable();
        used.dedup();
        let mut mask = None;
        for m in used.iter().filter_map(|c| self.em.coords.get(c)?.mask).collect::<Vec<_>>() {
            mask = Some(match mask {
                Some(old) => self.b.binary(B::And, old, m),
                None => m,
            });
        }
        let mask = self.em.guard(&mut self.b, &s.guards, mask);
        (self.em.address(&mut self.b, s.slot, &s.at), mask)
    }
    /// Stores the tile's rows as one contiguous run, if they are one.
    fn store_run(&mut self, s: &Store, v: Value) -> bool {
        let Some(run) = self.em.run.clone().filter(|_| s.guards.is_empty()) else { return false };
        let (Some(more), Some(&p)) = (run.at(&s.at, s.dtype), self.em.params.get(&s.slot)) else { return false };
        let v = self.b.cast(v, types::stored(s.dtype));
        let v = self.b.broadcast_to(v, &run.shape);
        let v = self.b.pack(v, run.len, run.extent);
        let p = self.em.run_address(&mut self.b, p, &run, more);
        self.b.store(p, v, run.mask);
        true
    }
    /// The step, or the invariant that was broken while it was built.
    pub fn finish(mut self) -> Result<Work<BlockProgram>, LowerError> {
        let faults = self.em.end(&mut self.b).map(|_| Slot::Faults);
        self.args.extend(faults);
        if let Some(what) = self.b.fault() {
            return Err(LowerError::Invariant { kernel: self.b.name().to_string(), what: what.to_string() });
        }
        Ok(Work::Block { code: self.b.finish(), args: self.args })
    }

    /// The run of a tile that [`crate::schedule::stage_rows::packs`] holds for.
    pub fn run(&mut self, plan: &RowPlan) -> Option<Run> {
        let kept = plan.kept.first()?;
        let (len, high) = (plan.row.extent, kept.block);
        let extent = (len * high).next_power_of_two();
        let lane = self.b.iota(extent);
        let lane = self.b.cast(lane, self.em.index);
        let row = self.em.coords.get(&kept.id).copied().unwrap_or_default().base;
        let base = row.map(|row| {
            let len = self.em.int(&mut self.b, len as i64);
            self.b.binary(B::Mul, row, len)
        });
        let in_tile = (extent > len * high).then(|| self.below(None, lane, len * high));
        let all = kept.extent * len;
        let ragged = !kept.extent.is_multiple_of(high);
        let all = ragged.then(|| self.below(base, lane, all));
        let mask = match (in_tile, all) {
            (Some(in_tile), Some(all)) => Some(self.b.binary(B::And, in_tile, all)),
            (in_tile, all) => in_tile.or(all),
        };
        let shape = [high, plan.row.block];
        Some(Run { kept: kept.id, row: plan.row.id, len, shape, extent, base, lane, mask })
    }
}

/// A loop whose body uses the frame; values that the body emits are out of scope after it.
pub fn looped(
    f: &mut Frame,
    bounds: [Value; 3],
    carried: &[Value],
    body: impl FnOnce(&mut Frame, Value, &[Value]) -> Vec<Value>,
) -> Vec<Value> {
    // The builder is moved through the closure, so that the frame can be used inside.
    let mut b = std::mem::replace(&mut f.b, Builder::new("", [0; 3], 1));
    let out = b.for_loop(bounds, carried, |inner, index, now| {
        std::mem::swap(inner, &mut f.b);
        f.em.enter();
        let next = body(f, index, now);
        f.em.leave(&mut f.b);
        std::mem::swap(inner, &mut f.b);
        next
    });
    f.b = b;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matmul_that_nothing_states_is_a_defect() {
        let mut scene = Scene::default();
        let value = scene.dag.add(NodeOp::Anchor { at: vec![] }, DType::F32);
        let store = Store::new(Slot::Output(0), DType::F32, Expr::default(), value);
        scene.stores.push(store);
        let machine = kiln_machine::Arch::Cpu.machine();
        let mut f = open("k", &scene, &Shape::default(), machine);
        f.store(&scene.stores[0]);
        match f.finish() {
            Err(LowerError::Invariant { kernel, what }) => {
                assert_eq!((&*kernel, what.contains("matmul")), ("k", true))
            }
            other => panic!("{other:?}"),
        }
    }
}
