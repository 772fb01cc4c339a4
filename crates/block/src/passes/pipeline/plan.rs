//! Where operands of dots lie, and which loads are copied ahead.
mod reuse;
mod room;

use super::addresses::Address;
use crate::analysis::{Analysis, Readers, Writes, analyse};
use crate::passes::warpgroup::{self, Refusal};
use crate::{BlockProgram, Const, DotPrecision, Elem, Inst, Op, Swizzle, Terms, Type, Value};
use kiln_machine::isa::{GROUP_ROWS, VECTOR, WARP};
use kiln_machine::{Machine, isa, ptxas};
use std::collections::{BTreeMap, HashMap, HashSet};

pub use reuse::Reuse;

/// A value in a shared tile, as a dot takes it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Operand {
    /// What the tile holds.
    pub source: Value,
    /// The dot takes the source transposed.
    pub transposed: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Left {
    Tile(Operand),
    Registers,
}

/// A dot by warpgroups.
#[derive(Clone, Debug)]
pub struct Matmul {
    pub left: Left,
    pub right: Operand,
    /// The type of its sums in flight.
    pub token: Type,
}

impl Matmul {
    pub fn sources(&self) -> Vec<Value> {
        let left = if let Left::Tile(left) = self.left { Some(left.source) } else { None };
        left.into_iter().chain([self.right.source]).collect()
    }
}

/// A shared tile of a value.
#[derive(Clone, Debug)]
pub struct Tile {
    pub elem: Elem,
    /// Shape in shared memory.
    pub shape: [usize; 2],
    /// Columns of the value are rows of the tile.
    pub permuted: bool,
    /// The loop that copies it ahead. `None`: it is stored where it is computed.
    pub copied: Option<Inst>,
    /// Of a tile that is stored in a loop.
    pub reuse: Reuse,
}
impl Tile {
    /// Bytes of one stage of what is copied, or of all that is stored.
    fn bytes(&self) -> usize {
        let stages = if self.reuse == Reuse::Alternates { 2 } else { 1 };
        Swizzle::B128.row_bytes(self.elem, self.shape[1]) * self.shape[0] * stages
    }
}

/// When an iteration starts the copies of a later one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CopyTime {
    /// First of all.
    Begin,
    /// Behind the barrier of its first stored operand, before which dots in flight are waited for: their stage is free
    /// then.
    BehindBarrier,
}

/// A loop that copies ahead.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub loads: Vec<Inst>,
    /// The program never writes what they read.
    pub readonly: bool,
    pub address: Address,
    pub stages: usize,
    /// Iterations between a copy and its use.
    pub distance: usize,
    pub copies: CopyTime,
    pub in_flight: Vec<CarriedSums>,
}

/// A carried value that goes from dot to dot, and is in flight between iterations.
#[derive(Clone, Debug)]
pub struct CarriedSums {
    /// Its number among what the loop carries.
    pub number: usize,
    pub token: Type,
}

#[derive(Default)]
pub struct Plan {
    pub warps: usize,
    /// Registers of a thread, at most, where two blocks are to share a multiprocessor.
    pub registers: Option<usize>,
    pub matmuls: HashMap<Inst, Matmul>,
    pub tiles: BTreeMap<Value, Tile>,
    pub pipelines: HashMap<Inst, Pipeline>,
}

/// What the plan is made from.
pub(super) struct Planner<'k> {
    pub k: &'k BlockProgram,
    pub m: &'k Machine,
    facts: Analysis,
    writes: Writes,
    /// The instruction that gives each value, and the loop or branch that each instruction is in.
    pub definitions: HashMap<Value, Inst>,
    pub parents: HashMap<Inst, Inst>,
    readers: Readers,
    /// Accumulators of a thread.
    pub accumulators: usize,
    pub plan: Plan,
}

impl Plan {
    pub fn of(k: &BlockProgram, m: &Machine) -> Result<Plan, Refusal> {
        let mut dots = vec![];
        let mut lower = false;
        let mut parents = HashMap::new();
        k.walk(&mut |i, d| {
            if matches!(d.op, Op::Dot { .. }) {
                dots.push(i);
            }
            lower |= matches!(d.op, Op::AllocShared | Op::Roles(_));
            d.regions.iter().flat_map(|r| &r.insts).for_each(|inner| _ = parents.insert(*inner, i));
        });
        if dots.is_empty() || lower || k.blocks != 1 || k.cluster != 1 {
            return Err(Refusal("the program has no dot, or is of the lower level already".into()));
        }
        let plan = Plan { warps: k.warps.max(isa::GROUP_WARPS), ..Plan::default() };
        let (facts, writes, readers) = (analyse(k), Writes::of(k), Readers::of(k));
        let definitions = k.definitions();
        let mut p = Planner { k, m, facts, writes, definitions, parents, readers, accumulators: 0, plan };
        if m.arch.has_wgmma() {
            p.share_warps(&dots);
            dots.iter().for_each(|i| p.add(*i));
        }
        if p.plan.matmuls.is_empty() {
            p.plan.warps = k.warps;
        }
        dots.iter().for_each(|i| p.read_from_tiles(*i));
        p.pipeline()?;
        if p.plan.matmuls.is_empty() && p.plan.pipelines.is_empty() {
            return Err(Refusal(
                "no dot has the types and sizes of warpgroups, and no load can be copied ahead".into(),
            ));
        }
        Ok(p.plan)
    }
    /// Bytes of the tiles that `of` takes, one stage each.
    fn bytes(&self, of: impl Fn(&Tile) -> bool) -> usize {
        self.tiles.values().filter(|t| of(t)).map(Tile::bytes).sum()
    }
}

impl<'k> Planner<'k> {
    fn size(&self, dot: Inst) -> [usize; 2] {
        match self.k.ty(self.k.inst(dot).results[0]).shape() {
            [m, n] => [*m, *n],
            _ => [0, 0],
        }
    }
    /// As many warps as rows of all dots allow, so that a thread has room for its sums.
    fn share_warps(&mut self, dots: &[Inst]) {
        let rows = dots.iter().map(|i| self.size(*i)[0]).filter(|m| *m >= GROUP_ROWS).min().unwrap_or(GROUP_ROWS);
        // With more, threads would have fewer registers than twice the sums that they have room for.
        let max_sums = warpgroup::max_sums(self.m);
        let max_warps = self.m.limits.registers_per_multiprocessor / (max_sums * WARP);
        let most = (rows / GROUP_ROWS * isa::GROUP_WARPS).min(max_warps);
        self.plan.warps = self.plan.warps.min(most);
        // A sum that a loop carries is its dot's result, or one beside that.
        let starts = |i: &Inst| !self.is_dot(self.k.inst(*i).args[2]);
        let results = dots.iter().filter(|i| starts(i)).map(|i| self.k.ty(self.k.inst(*i).results[0]).count());
        let loops: HashSet<Inst> = dots.iter().filter_map(|i| self.parents.get(i).copied()).collect();
        let sums = results.sum::<usize>() + loops.into_iter().map(|i| self.carried_beside(i)).sum::<usize>();
        while sums / (self.plan.warps * WARP) > max_sums && self.plan.warps < most {
            self.plan.warps *= 2;
        }
        self.accumulators = sums / (self.plan.warps * WARP);
    }
    fn is_dot(&self, v: Value) -> bool {
        self.definitions.get(&v).is_some_and(|i| matches!(self.k.inst(*i).op, Op::Dot { .. }))
    }
    /// Elements of the blocks of two axes that a loop carries and no dot of it gives.
    fn carried_beside(&self, i: Inst) -> usize {
        let yielded = self.k.inst(i).regions.iter().filter_map(|r| r.insts.last()).flat_map(|i| &self.k.inst(*i).args);
        let blocks = yielded.filter(|v| matches!(self.k.ty(**v), Type::Block { shape, .. } if shape.len() == 2));
        blocks.filter(|v| !self.is_dot(**v)).map(|v| self.k.ty(*v).count()).sum()
    }
    /// The type of a dot's sums in flight, if warpgroups multiply its types and sizes.
    fn token(&self, dot: Inst) -> Option<Type> {
        let data = self.k.inst(dot);
        let (Op::Dot { terms: Terms::Products, precision }, [a, b, _]) = (&data.op, &data.args[..]) else {
            return None;
        };
        let ([_, depth], [m, n]) = (self.k.ty(*a).shape(), self.size(dot)) else { return None };
        let elem = self.k.ty(*a).elem().filter(|e| self.k.ty(*b).elem() == Some(*e))?;
        let known = match elem {
            Elem::F32 => *precision == DotPrecision::Tf32,
            _ => elem.is_half() || elem.is_f8() || matches!(elem, Elem::I8 | Elem::U8),
        };
        let sums = if elem.is_int() { Elem::I32 } else { Elem::F32 };
        let whole = m.is_multiple_of(GROUP_ROWS * self.plan.warps / isa::GROUP_WARPS)
            && (8..=isa::GROUP_COLUMNS).contains(&n)
            && n.is_power_of_two();
        let roomy = m * n / (self.plan.warps * WARP) <= warpgroup::max_sums(self.m);
        let typed = self.k.ty(data.results[0]).elem() == Some(sums);
        let fits = known && whole && roomy && depth * elem.bytes() >= isa::GROUP_DEPTH_BYTES && typed;
        fits.then(|| Type::Token { elem: sums, shape: vec![m, n] })
    }
    /// Plans a dot, if it is one for warpgroups.
    fn add(&mut self, dot: Inst) {
        let Some(token) = self.token(dot) else { return };
        let [a, b, _] = self.k.inst(dot).args[..] else { return };
        let wide = self.k.ty(a).elem().is_some_and(|e| e.bytes() == 2);
        let (left, right) = (self.source(a), self.source(b));
        // Operands of other than 16 bits lie K-major.
        let tile = |s: &Self, o: Operand, k_major: bool| {
            let order = if wide { s.permuted(o.source) } else { o.transposed != k_major };
            s.plan.tiles.get(&o.source).is_none_or(|t| t.permuted == order).then_some((o.source, order))
        };
        let registers = wide && !self.is_load(left.source) && !self.stores_left(dot, left.source);
        let places = [if registers { None } else { Some(tile(self, left, false)) }, Some(tile(self, right, true))];
        let places: Option<Vec<(Value, bool)>> = places.into_iter().flatten().collect();
        let Some(places) = places else { return };
        for (source, permuted) in places {
            self.tile(source, permuted);
        }
        let left = if registers { Left::Registers } else { Left::Tile(left) };
        self.plan.matmuls.insert(dot, Matmul { left, right, token });
    }
    /// Whether a computed left operand is stored, so that it is computed while dots before are in flight: where it
    /// follows from loads of the loop, a sum goes from dot to dot, and no second block's dots are run meanwhile.
    fn stores_left(&self, dot: Inst, left: Value) -> bool {
        let (data, Some(parent)) = (self.k.inst(dot), self.parents.get(&dot)) else { return false };
        let Some(region) = self.k.inst(*parent).regions.first() else { return false };
        let next = region.insts.last().map_or(&[][..], |i| &self.k.inst(*i).args[..]);
        let mut carried = region.params.iter().skip(1).zip(next);
        let chain = carried.any(|(from, to)| *from == data.args[2] && *to == data.results[0]);
        let second_block = self.registers_of_two() >= self.accumulators + ptxas().loops.beside_sums;
        let inside = self.definitions.get(&left).is_some_and(|i| self.parents.get(i) == Some(parent));
        chain && !second_block && inside && self.follows_from_loads(left)
    }
    /// The value that an operand is, or is the transpose of.
    fn source(&self, v: Value) -> Operand {
        let mut o = Operand { source: v, transposed: false };
        while let Some(data) = self.definitions.get(&o.source).map(|i| self.k.inst(*i)) {
            match &data.op {
                Op::Permute(perm) if perm[..] == [1, 0] => {
                    o = Operand { source: data.args[0], transposed: !o.transposed };
                }
                _ => break,
            }
        }
        o
    }
    fn is_load(&self, v: Value) -> bool {
        self.definitions.get(&v).is_some_and(|i| matches!(self.k.inst(*i).op, Op::Load(..)))
    }
    /// Whether neighbours in memory lie along a value's columns' axis, not its rows', in the loads that it is computed
    /// from.
    fn permuted(&self, source: Value) -> bool {
        let mut longer = [0, 0];
        for o in self.sources_of(source) {
            let Some(load) = self.definitions.get(&o.source).filter(|_| self.is_load(o.source)) else { continue };
            let pointer = self.k.inst(*load).args[0];
            let [rows, columns] = [0, 1].map(|axis| self.facts.alignment(pointer, axis).0);
            longer[usize::from(o.transposed)] += usize::from(rows > columns);
            longer[usize::from(!o.transposed)] += usize::from(columns > rows);
        }
        longer[0] > longer[1]
    }
    fn tile(&mut self, source: Value, permuted: bool) {
        let Type::Block { elem, shape } = self.k.ty(source) else { return };
        let mut shape = [shape[0], shape[1]];
        if permuted {
            shape.reverse();
        }
        self.plan.tiles.entry(source).or_insert(Tile {
            elem: *elem,
            shape,
            permuted,
            copied: None,
            reuse: Reuse::Waits,
        });
    }

    /// Gives tiles to what is loaded in the loop of a dot, whoever reads it: then it is copied ahead.
    fn read_from_tiles(&mut self, dot: Inst) {
        let Some(parent) = self.parents.get(&dot).copied().filter(|i| self.is_innermost(*i)) else { return };
        for load in self.k.inst(parent).regions.iter().flat_map(|r| &r.insts) {
            let data = self.k.inst(*load);
            let (Op::Load(..), [result]) = (&data.op, &data.results[..]) else { continue };
            let Type::Block { elem, shape } = self.k.ty(*result) else { continue };
            let vectors = shape.iter().product::<usize>() * elem.bytes() / VECTOR;
            if self.plan.tiles.contains_key(result) || shape.len() != 2 || vectors < self.plan.warps * WARP {
                continue;
            }
            let permuted = self.permuted(*result);
            let shape = if permuted { [shape[1], shape[0]] } else { [shape[0], shape[1]] };
            let tile = Tile { elem: *elem, shape, permuted, copied: None, reuse: Reuse::Waits };
            if self.copied(*result, &tile).is_some() {
                self.plan.tiles.insert(*result, tile);
            }
        }
    }
    /// Decides which loops copy ahead, and how far.
    fn pipeline(&mut self) -> Result<(), Refusal> {
        let mut loops: BTreeMap<Inst, Vec<Inst>> = BTreeMap::new();
        for (source, tile) in &self.plan.tiles {
            let Some((load, parent)) = self.copied(*source, tile) else { continue };
            loops.entry(parent).or_default().push(load);
        }
        for (parent, mut loads) in loops {
            let unwritten = |v: Value| self.is_unwritten(parent, v);
            loads.retain(|load| Address::of(self.k, parent, &self.k.inst(*load).args, &unwritten).is_some());
            if loads.is_empty() {
                continue;
            }
            let args: Vec<Value> = loads.iter().flat_map(|i| self.k.inst(*i).args.iter().take(2).copied()).collect();
            let Some(address) = Address::of(self.k, parent, &args, &unwritten) else { continue };
            for load in &loads {
                let source = self.k.inst(*load).results[0];
                self.plan.tiles.entry(source).and_modify(|t| t.copied = Some(parent));
            }
            let in_flight = self.in_flight(parent);
            let readonly = loads.iter().all(|i| self.writes.is_readonly(self.k, self.k.inst(*i).args[0]));
            let copies = CopyTime::Begin;
            let pipeline = Pipeline { loads, readonly, address, stages: 0, distance: 0, copies, in_flight };
            self.plan.pipelines.insert(parent, pipeline);
        }
        // What no dot reads from a tile is loaded as before, unless it is copied.
        let sources: HashSet<Value> = self.plan.matmuls.values().flat_map(Matmul::sources).collect();
        self.plan.tiles.retain(|source, t| t.copied.is_some() || sources.contains(source));
        self.reuse();
        self.stages().or_else(|_| {
            // Without dots in flight stored tiles need one stage each.
            self.plan.pipelines.values_mut().for_each(|p| p.in_flight.clear());
            self.reuse();
            self.stages()
        })
    }
    /// The load that gives a tile, and the loop that can copy it ahead.
    fn copied(&self, source: Value, tile: &Tile) -> Option<(Inst, Inst)> {
        let load = *self.definitions.get(&source)?;
        let (data, parent) = (self.k.inst(load), *self.parents.get(&load)?);
        let (Op::Load(..), [pointer, rest @ ..]) = (&data.op, &data.args[..]) else { return None };
        if !self.is_innermost(parent) || rest.get(1).is_some_and(|other| !self.is_zero(*other)) {
            return None;
        }
        let (run, align) = self.facts.alignment(*pointer, usize::from(!tile.permuted));
        let vectors =
            run * tile.elem.bytes() >= VECTOR && align >= VECTOR && tile.shape[1] * tile.elem.bytes() >= VECTOR;
        (vectors && self.is_unwritten(parent, *pointer)).then_some((load, parent))
    }
    /// Whether an instruction is a loop over a number, without loops in it.
    fn is_innermost(&self, i: Inst) -> bool {
        let data = self.k.inst(i);
        let mut nested = false;
        data.regions.iter().for_each(|r| {
            self.k.walk_region(r, &mut |_, d| nested |= matches!(d.op, Op::For | Op::While));
        });
        data.op == Op::For && !nested
    }
    /// Whether memory that a pointer leads to is not written by a loop.
    fn is_unwritten(&self, parent: Inst, pointer: Value) -> bool {
        let region = self.k.inst(parent).regions.first();
        region.is_some_and(|region| self.writes.is_unwritten_in(self.k, region, pointer))
    }
    fn is_zero(&self, v: Value) -> bool {
        matches!(warpgroup::form::constant(self.k, v), Some(Const::Float(0.0) | Const::Int(0)))
    }
    /// Values that a loop carries from dot to dot: each is added to by dots alone, which read tiles copied by the loop
    /// or stored before it.
    fn in_flight(&self, parent: Inst) -> Vec<CarriedSums> {
        let data = self.k.inst(parent);
        let Some(region) = data.regions.first() else { return vec![] };
        let next = region.insts.last().map_or(&[][..], |i| &self.k.inst(*i).args[..]);
        let carried = region.params.iter().skip(1).zip(next).enumerate();
        let sums = |(number, (from, to)): (usize, (&Value, &Value))| {
            Some(CarriedSums { number, token: self.accumulated(parent, *from, *to)? })
        };
        carried.filter_map(sums).collect()
    }
    /// The type in flight of a sum that goes from dot to dot.
    fn accumulated(&self, parent: Inst, mut from: Value, to: Value) -> Option<Type> {
        let mut seen = HashSet::new();
        let mut token = None;
        while from != to {
            let [dot] = self.readers.reading(from) else { return None };
            let matmul = self.plan.matmuls.get(dot)?;
            let data = self.k.inst(*dot);
            let here = self.parents.get(dot) == Some(&parent) && data.args[2] == from && data.args[..2] != [from; 2];
            if !here || !seen.insert(*dot) || !self.stays(matmul, parent) {
                return None;
            }
            token = Some(matmul.token.clone());
            from = data.results[0];
        }
        token.filter(|_| matches!(self.readers.reading(to), [last] if self.k.inst(*last).op == Op::Yield))
    }
    /// Whether what an instruction of a loop's body gives is read by dots of the body alone.
    fn is_read_inside(&self, inst: Inst, parent: Inst) -> bool {
        let sources = &self.k.inst(inst).results;
        let reads = |m: &Matmul| m.sources().iter().any(|v| sources.contains(v));
        let inside = |i: &Inst| self.parents.get(i) == Some(&parent);
        inside(&inst) && self.plan.matmuls.iter().all(|(i, m)| inside(i) || !reads(m))
    }
    /// Whether a dot's operands are not overwritten while it is in flight at the end of an iteration.
    fn stays(&self, matmul: &Matmul, parent: Inst) -> bool {
        let Left::Tile(left) = matmul.left else { return false };
        [left, matmul.right].iter().all(|o| {
            let inside = |i: &Inst| self.parents.get(i) == Some(&parent);
            let tile = self.plan.tiles.get(&o.source);
            let made = self.definitions.get(&o.source);
            let stored =
                tile.is_some_and(|t| t.copied.is_none()) && made.is_some_and(|i| self.is_read_inside(*i, parent));
            tile.is_some_and(|t| t.copied == Some(parent)) || stored || !made.is_some_and(inside)
        })
    }
}
