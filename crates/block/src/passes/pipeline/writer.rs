//! Writes the program of a plan: values keep their names, and what is computed keeps its order.
use super::plan::{Left, Matmul, Operand, Plan, Reuse, Tile};
use crate::{BlockProgram, Builder, Inst, InstData, Op, Region, Swizzle, Type, Value};
use std::collections::HashMap;

pub fn write(k: &BlockProgram, plan: &Plan) -> BlockProgram {
    let mut b = Builder::of(k.clone());
    b.set_warps(plan.warps);
    b.set_registers(plan.registers.or(k.registers));
    let zero = b.i32(0);
    let mut w = Writer {
        k,
        plan,
        b,
        tiles: HashMap::new(),
        stages: HashMap::new(),
        flight: vec![],
        loops: 0,
        waiting_copies: vec![],
        unseen: false,
        zero,
    };
    w.allocate();
    k.params.iter().for_each(|p| w.defined(p.value));
    k.body.insts.iter().for_each(|i| w.inst(*i));
    w.b.finish()
}

/// A dot that has not been waited for: what it gives, and its token.
pub(super) struct Flight {
    pub result: Value,
    pub token: Value,
}

pub(super) struct Writer<'k> {
    pub k: &'k BlockProgram,
    plan: &'k Plan,
    pub b: Builder,
    /// Shared tiles by what they hold, and the stage that is read where it is not the first.
    pub tiles: HashMap<Value, Value>,
    pub stages: HashMap<Value, Value>,
    /// Dots that were started in the open region, oldest first.
    pub flight: Vec<Flight>,
    /// Loops that are open.
    pub loops: usize,
    /// Copies of the open loop that wait for a barrier.
    pub waiting_copies: Vec<Inst>,
    /// Whether something was stored into a tile that other warps do not see yet.
    unseen: bool,
    /// i32 0.
    pub zero: Value,
}

impl<'k> Writer<'k> {
    // ---- Instructions ----
    pub(super) fn effect(&mut self, op: Op, args: &[Value]) {
        self.b.inst(op, args, &[], vec![]);
    }
    pub(super) fn one(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.b.inst(op, args, &[ty], vec![])[0]
    }
    /// A barrier after which all warps and matmuls see what was stored and copied.
    pub(super) fn show(&mut self) {
        if !self.plan.matmuls.is_empty() {
            self.effect(Op::FenceAsync, &[]);
        }
        self.effect(Op::Sync, &[]);
        self.unseen = false;
    }

    /// Starts the copies that waited for a barrier.
    pub(super) fn start_waiting_copies(&mut self) {
        let copies = std::mem::take(&mut self.waiting_copies);
        self.b.append(copies);
    }

    // ---- Tiles ----
    fn allocate(&mut self) {
        for (source, t) in &self.plan.tiles {
            let stored = if t.reuse == Reuse::Alternates { 2 } else { 1 };
            let stages = t.copied.and_then(|i| self.plan.pipelines.get(&i)).map_or(stored, |p| p.stages);
            let ty = Type::Shared { elem: t.elem, shape: t.shape.to_vec(), stages, swizzle: Swizzle::B128 };
            let tile = self.one(Op::AllocShared, &[], ty);
            self.tiles.insert(*source, tile);
        }
    }
    pub(super) fn tile(&self, source: Value) -> &'k Tile {
        &self.plan.tiles[&source]
    }
    pub(super) fn alternates(&self, source: Value) -> bool {
        self.plan.tiles.get(&source).is_some_and(|t| t.reuse == Reuse::Alternates)
    }
    fn stage_of(&self, source: Value) -> Value {
        self.stages.get(&source).copied().unwrap_or(self.zero)
    }
    /// A value that has been computed: stored, if dots read it from a tile.
    fn defined(&mut self, v: Value) {
        let Some(tile) = self.plan.tiles.get(&v).filter(|t| t.copied.is_none()) else { return };
        if self.loops > 0 && tile.reuse == Reuse::Waits {
            // Dots of the iteration before may still read it.
            self.land_all();
            self.effect(Op::Sync, &[]);
        }
        let value = if tile.permuted { self.b.permute(v, &[1, 0]) } else { v };
        self.effect(Op::SharedStore, &[self.tiles[&v], self.stage_of(v), value]);
        self.unseen = true;
    }

    // ---- Dots ----
    /// Starts a dot by warpgroups.
    fn start(&mut self, dot: &InstData, m: &Matmul) {
        if self.unseen {
            // Tiles that dots before this one read are free behind the barrier.
            if !self.flight.is_empty() {
                self.effect(Op::WgmmaWait { pending: 0 }, &[]);
            }
            self.show();
            self.start_waiting_copies();
        }
        let flag = |o: &Operand, t: &Tile| o.transposed != t.permuted;
        let right = &self.plan.tiles[&m.right.source];
        let transpose_b = flag(&m.right, right);
        let mut args = vec![];
        let mut transpose_a = false;
        match &m.left {
            Left::Registers => args.push(dot.args[0]),
            Left::Tile(left) => {
                transpose_a = flag(left, &self.plan.tiles[&left.source]);
                args.extend([self.tiles[&left.source], self.stage_of(left.source)]);
            }
        }
        args.extend([self.tiles[&m.right.source], self.stage_of(m.right.source)]);
        // Sums in flight are added to as they are.
        let (sums, result) = (dot.args[2], dot.results[0]);
        let chained = self.flight.iter().position(|f| f.result == sums);
        args.push(chained.map_or(sums, |at| self.flight.remove(at).token));
        let token = self.one(Op::Wgmma { transpose_a, transpose_b }, &args, m.token.clone());
        self.effect(Op::WgmmaCommit, &[]);
        self.flight.push(Flight { result, token });
    }
    /// Waits for the dot that gives a value, if it is in flight.
    fn land(&mut self, v: Value) {
        let Some(at) = self.flight.iter().position(|f| f.result == v) else { return };
        let pending = self.flight.len() - 1 - at;
        // Those before are done with it.
        for f in self.flight.drain(..=at).collect::<Vec<_>>() {
            self.b.define(&[f.result], Op::WgmmaWait { pending: pending as u8 }, &[f.token], vec![]);
            self.defined(f.result);
        }
    }
    pub(super) fn land_all(&mut self) {
        while let Some(last) = self.flight.last().map(|f| f.result) {
            self.land(last);
        }
    }

    // ---- The program ----
    fn inst(&mut self, i: Inst) {
        let data = self.k.inst(i);
        if let Some(m) = self.plan.matmuls.get(&i) {
            let sums = data.args[2];
            // Only sums may be in flight.
            data.args[..2].iter().for_each(|v| self.land(*v));
            if self.flight.iter().any(|f| f.result == sums) && self.is_read_again(sums, i) {
                self.land(sums);
            }
            return self.start(data, m);
        }
        if let Some(tile) = data.results.first().and_then(|v| self.plan.tiles.get(v)).filter(|t| t.copied.is_some()) {
            return self.read(data.results[0], tile);
        }
        if data.regions.is_empty() {
            data.args.iter().for_each(|v| self.land(*v));
            self.b.keep(i);
            return data.results.iter().for_each(|v| self.defined(*v));
        }
        self.land_all();
        if self.unseen || !self.waiting_copies.is_empty() {
            self.show();
            self.start_waiting_copies();
        }
        match self.plan.pipelines.get(&i) {
            Some(p) => self.pipelined(i, p),
            None => self.nested(i),
        }
        data.results.iter().for_each(|v| self.defined(*v));
    }
    /// Whether more than one instruction reads a value.
    fn is_read_again(&self, v: Value, by: Inst) -> bool {
        let mut again = false;
        self.k.walk(&mut |i, d| again |= i != by && d.args.contains(&v));
        again
    }
    /// What was copied, as a block, for what is no dot; unused, it is dropped.
    fn read(&mut self, v: Value, tile: &Tile) {
        let ty = Type::block(tile.elem, tile.shape.to_vec());
        let (from, stage) = (self.tiles[&v], self.stage_of(v));
        if !tile.permuted {
            return self.b.define(&[v], Op::SharedLoad, &[from, stage], vec![]);
        }
        let block = self.one(Op::SharedLoad, &[from, stage], ty);
        self.b.define(&[v], Op::Permute(vec![1, 0]), &[block], vec![]);
    }
    /// A loop or branch whose regions are rewritten.
    fn nested(&mut self, i: Inst) {
        let data = self.k.inst(i);
        let repeats = matches!(data.op, Op::For | Op::While);
        self.loops += usize::from(repeats);
        let regions =
            data.regions.iter().map(|r| self.region(r, r.params.clone(), |_| (), |_, args, ()| args)).collect();
        self.loops -= usize::from(repeats);
        self.b.program_mut().inst_mut(i).regions = regions;
        self.b.keep(i);
    }
    /// A region after what `first` writes, which yields what `last` makes of its values.
    pub(super) fn region<T>(
        &mut self,
        region: &Region,
        params: Vec<Value>,
        first: impl FnOnce(&mut Self) -> T,
        last: impl FnOnce(&mut Self, Vec<Value>, T) -> Vec<Value>,
    ) -> Region {
        let outside = std::mem::take(&mut self.flight);
        self.b.open_region_of(params);
        let begun = first(self);
        region.params.iter().for_each(|v| self.defined(*v));
        // Nested regions of a verified program end in a `yield`.
        let Some((end, insts)) = region.insts.split_last() else { return self.b.close_region(&[]) };
        insts.iter().for_each(|i| self.inst(*i));
        let args = last(self, self.k.inst(*end).args.clone(), begun);
        self.land_all();
        if self.unseen {
            self.show();
        }
        self.flight = outside;
        self.b.close_region(&args)
    }
}
