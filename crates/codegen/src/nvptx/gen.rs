//! The walk over a program with layouts: every op for one thread, loops and branches as LLVM control flow.
use super::batched_loads;
use super::blocks::Blocks;
use super::emit::{Emit, Fail, GLOBAL, Res, SHARED, Val, int, mistyped};
use super::exchange;
use super::exchange::Scratch;
use super::halves::{self, Half};
use super::head;
use super::index::{Index, Memo, Pointer, Reg};
use super::reads::Reads;
use super::roles::Group;
use super::rows;
use super::threads::Threads;
use super::tiles::{self, Places};
use inkwell::AddressSpace;
use inkwell::basic_block::BasicBlock;
use inkwell::context::Context;
use inkwell::module::{Linkage, Module};
use inkwell::types::BasicTypeEnum;
use inkwell::values::{FunctionValue, IntValue, PointerValue};
use kiln_block::layout::{Flat, axis_bits};
use kiln_block::passes::layout::anchors::{roles, warp_bits};
use kiln_block::{
    Arithmetic, BinaryOp, BlockProgram, CachePolicy, Const, Elem, Grid, Inst, InstData, Op, Region, Swizzle, Type,
    UnaryOp, Value, analysis,
};
use kiln_machine::Machine;
use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) struct Gen<'c, 'k> {
    pub e: Emit<'c>,
    pub k: &'k BlockProgram,
    pub m: &'k Machine,
    pub threads: Threads<'c>,
    /// Values made for the current instruction.
    pub memo: Memo<'c>,
    pub shared: PointerValue<'c>,
    pub scratch: Scratch,
    /// As [`super::Ptx::bank_ways`].
    pub bank_ways: BTreeMap<usize, usize>,
    /// Global memory may have been written since the last barrier.
    pub wrote: bool,
    pub blocks: Blocks<'c>,
    /// Values that are 1 + exp(…): at least 1, or NaN.
    pub above_one: HashSet<Value>,
    /// Offsets of shared tiles and barriers, and hardware arrivals per arrival at each barrier.
    pub places: Places,
    pub arrivals: HashMap<Value, usize>,
    /// Tensor maps by descriptor.
    pub maps: HashMap<Value, PointerValue<'c>>,
    /// Blocks of f32 that are casts of half types.
    pub halves: HashMap<Value, Half>,
    /// Inside a role: its warps.
    pub group: Option<Group<'c>>,
    pub function: FunctionValue<'c>,
    /// Threads have several rows, whose loads the assembler must not serialise.
    pub in_turns: bool,
    /// The instance waits for others.
    pub waits: bool,
    /// The last loads of loops that sum what they read, and the index of the current iteration.
    pub batched: HashSet<Value>,
    pub turn: Option<Val<'c>>,
    /// Lanes have fenced their accesses, each for itself, and have not met since.
    pub fenced: bool,
    /// Some matmul's left operand is in registers; and those that a token's matmuls read.
    pub left_in_registers: bool,
    pub read: HashMap<Value, Vec<Val<'c>>>,
    /// Pointers whose elements threads have read since the last barrier, where stores may overwrite what others read.
    pub reads: Reads,
    /// What is known of values, in programs with values of the launch.
    pub facts: Option<analysis::Analysis>,
    /// Integers that do not wrap, although their ranges are not known.
    pub unwrapped: HashSet<Value>,
    regs: Vec<Option<Vec<Reg<'c>>>>,
}

/// A kernel's module.
pub(super) struct Generated<'c> {
    pub module: Module<'c>,
    /// Bytes of shared memory.
    pub shared: usize,
    /// As [`super::Ptx::bank_ways`].
    pub bank_ways: BTreeMap<usize, usize>,
}

/// The module of a kernel whose values have layouts.
pub(super) fn generate<'c>(cx: &'c Context, k: &BlockProgram, m: &Machine, blocks: usize) -> Res<Generated<'c>> {
    let ieee = k.arithmetic == Arithmetic::Ieee;
    let rounded = rounds_all(k) && !ieee;
    let e = Emit {
        cx,
        module: cx.create_module(&k.name),
        b: cx.create_builder(),
        host: false,
        rounded,
        ieee,
        f8: m.arch.has_f8_casts(),
    };
    let shared = e.module.add_global(e.i8().array_type(0), Some(AddressSpace::from(SHARED)), "_shared");
    shared.set_linkage(Linkage::External);
    // Tiles lie between reserved memory and scratch. Roles exchange nothing.
    let kept = Blocks::kept(k, blocks);
    let exchanges = roles(k).is_none();
    let places = Places::of(k, if exchanges { kept } else { 0 }, blocks);
    let tiled = if exchanges { places.bytes - kept } else { 0 };
    shared.set_alignment(if places.bytes > 0 { 1024 } else { 128 });
    let function = head::declare(&e, k, blocks)?;
    let (entry, body) = (cx.append_basic_block(function, "entry"), cx.append_basic_block(function, "body"));
    e.b.position_at_end(entry);
    let at_entry = cx.create_builder();
    at_entry.position_at_end(entry);
    let groups = roles(k).map_or(1, |r| r.iter().map(|r| r.copies).sum());
    let threads = Threads::new(&e, at_entry, warp_bits(k), blocks, groups)?;
    e.b.position_at_end(body);
    let blocks = Blocks::enter(&e, blocks)?;
    let mut g = Gen {
        e,
        k,
        m,
        threads,
        memo: Memo::default(),
        shared: shared.as_pointer_value(),
        scratch: Scratch::behind(kept, tiled),
        bank_ways: BTreeMap::new(),
        wrote: false,
        blocks,
        above_one: above_one(k),
        places,
        arrivals: tiles::arrivals(k)?,
        maps: HashMap::new(),
        halves: halves::of(k),
        group: None,
        function,
        in_turns: rows::in_turns(k),
        waits: k.insts.iter().any(|i| i.op == Op::Await),
        batched: batched_loads::last(k),
        turn: None,
        fenced: false,
        left_in_registers: has_left_in_registers(k),
        read: HashMap::new(),
        reads: Reads::of(k),
        facts: (k.has_launch_values() || copies_to_tiles(k)).then(|| analysis::analyse(k)),
        unwrapped: if k.has_launch_values() { analysis::unwrapped(k) } else { HashSet::new() },
        regs: vec![None; k.values.len()],
    };
    g.params()?;
    let (with_tiles, after) = k.body.insts.split_at(last_access(k));
    g.region(&Region { params: vec![], insts: with_tiles.to_vec() })?;
    if tiled > 0 {
        g.scratch.take_tiles();
    }
    g.region(&Region { params: vec![], insts: after.to_vec() })?;
    g.blocks.cluster_wait(&g.e)?;
    g.e.b.build_return(None)?;
    g.threads.entry().build_unconditional_branch(body)?;
    let (tiles, scratch) = (g.places.bytes, g.scratch.bytes());
    if tiles > 0 && scratch > 0 && !exchanges {
        return Err(Fail::Unsupported("an exchange between threads in a program with roles".into()));
    }
    Ok(Generated { module: g.e.module, shared: tiles.max(scratch), bank_ways: g.bank_ways })
}

/// Whether pointers are copied from into tiles that matmuls read: their alignment is known by analysis alone.
fn copies_to_tiles(k: &BlockProgram) -> bool {
    let swizzled = |v: &Value| matches!(k.ty(*v), Type::Shared { swizzle, .. } if *swizzle != Swizzle::None);
    let mut found = false;
    k.walk(&mut |_, d| found |= d.op == Op::AsyncCopy && d.args.first().is_some_and(swizzled));
    found
}

/// How many of a kernel's own instructions there are up to the last one that reads or writes a shared tile.
fn last_access(k: &BlockProgram) -> usize {
    let tile = |v: &Value| matches!(k.ty(*v), Type::Shared { .. });
    let accesses = |i: &Inst| {
        let mut found = k.inst(*i).args.iter().any(tile);
        k.inst(*i).regions.iter().for_each(|r| k.walk_region(r, &mut |_, d| found |= d.args.iter().any(tile)));
        found
    };
    k.body.insts.iter().rposition(accesses).map_or(0, |n| n + 1)
}

/// Whether all floats that are stored are of half types.
fn rounds_all(k: &BlockProgram) -> bool {
    let mut stored = vec![];
    k.walk(&mut |_, d| match d.op {
        Op::Store(_) => stored.push(k.ty(d.args[1]).elem()),
        // Scalars are numbers that roles send each other.
        Op::SharedStore if !k.ty(d.args[2]).is_scalar() => stored.push(k.ty(d.args[2]).elem()),
        _ => {}
    });
    !stored.is_empty() && stored.iter().all(|e| matches!(e, Some(Elem::F16 | Elem::Bf16)))
}

fn has_left_in_registers(k: &BlockProgram) -> bool {
    let mut found = false;
    k.walk(&mut |_, d| found |= d.left_in_registers().is_some());
    found
}

fn above_one(k: &BlockProgram) -> HashSet<Value> {
    let (mut ones, mut powers, mut sums) = (HashSet::new(), HashSet::new(), HashSet::new());
    k.walk(&mut |_, d| {
        let Some(&v) = d.results.first() else { return };
        let known = |set: &HashSet<Value>, n: usize| d.args.get(n).is_some_and(|a| set.contains(a));
        let found = match d.op {
            Op::Const(Const::Float(1.0)) => &mut ones,
            Op::Unary(UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Exp2Approx) => &mut powers,
            Op::Binary(BinaryOp::Add) if known(&powers, 0) && known(&ones, 1) => &mut sums,
            _ => return,
        };
        found.insert(v);
    });
    sums
}

impl<'c> Gen<'c, '_> {
    pub fn warp_bits(&self) -> usize {
        warp_bits(self.k)
    }
    pub fn flat(&self, v: Value) -> Res<Flat> {
        let shape = self.k.ty(v).shape();
        match &self.k.value(v).layout {
            _ if shape.is_empty() => Ok(Flat::scalar(self.warp_bits())),
            Some(l) => l.flat(shape).ok_or_else(|| Fail::Unsupported(format!("the layout of {v}"))),
            None => Err(Fail::Defect(format!("{v} without a layout"))),
        }
    }
    pub fn regs(&self, v: Value) -> Res<Vec<Reg<'c>>> {
        self.regs[v.0 as usize].clone().ok_or_else(|| Fail::Defect(format!("{v} is read before its definition")))
    }
    pub fn set(&mut self, v: Value, regs: Vec<Reg<'c>>) {
        self.regs[v.0 as usize] = Some(regs);
    }
    /// Element of a block; pointers have none.
    pub fn elem(&self, v: Value) -> Res<Elem> {
        match self.k.ty(v) {
            Type::Block { elem, .. } => Ok(*elem),
            other => Err(Fail::Unsupported(format!("a value of type {other} here"))),
        }
    }
    pub fn plain(&mut self, v: Value) -> Res<Vec<Val<'c>>> {
        let regs = self.regs(v)?;
        regs.iter().map(|r| r.plain(&self.e, &mut self.memo)).collect()
    }
    pub fn scalar(&self, v: Value) -> Res<Reg<'c>> {
        self.regs(v)?.first().copied().ok_or_else(|| mistyped("a scalar"))
    }
    /// LLVM's type of a register of the value.
    pub fn register_type(&self, v: Value) -> Res<BasicTypeEnum<'c>> {
        match self.k.ty(v) {
            Type::Ptr { .. } => Ok(self.e.ptr(GLOBAL).into()),
            Type::Block { elem, .. } | Type::Token { elem, .. } => Ok(self.e.elem(*elem)),
            other => Err(Fail::Unsupported(format!("a value of type {other}"))),
        }
    }
    pub fn register(&self, v: Value, val: Val<'c>) -> Reg<'c> {
        match (self.k.ty(v), val) {
            (Type::Ptr { elem, .. }, Val::PointerValue(base)) => Reg::Ptr(Pointer {
                base,
                elem: *elem,
                align: elem.bytes() as u64,
                off: 0,
                readonly: false,
                cache: CachePolicy::Normal,
            }),
            (Type::Block { elem, .. }, val) => Reg::of(val, *elem),
            _ => Reg::Plain(val),
        }
    }
    /// Adjacent conversions share one exchange through shared memory, unless one converts the result of another.
    pub fn region(&mut self, region: &Region) -> Res<()> {
        let mut rest = &region.insts[..];
        while let [first, after @ ..] = rest {
            let converted = self.conversions(rest);
            self.memo = Memo::default();
            if converted.is_empty() {
                self.inst(self.k.inst(*first))?;
                rest = after;
            } else {
                self.convert_all(&converted)?;
                rest = &rest[converted.len()..];
            }
        }
        Ok(())
    }
    /// Operands and results of the conversions at the start of `insts` that do not depend on one another.
    fn conversions(&self, insts: &[Inst]) -> Vec<(Value, Value)> {
        let mut pairs: Vec<(Value, Value)> = vec![];
        for data in insts.iter().map(|i| self.k.inst(*i)).take_while(|d| d.op == Op::ConvertLayout) {
            if pairs.iter().any(|p| p.1 == data.args[0]) {
                break;
            }
            pairs.push((data.args[0], data.results[0]));
        }
        pairs
    }
    fn inst(&mut self, data: &InstData) -> Res<()> {
        let regs = match &data.op {
            Op::Store(_) => return self.store(data),
            Op::Publish => return self.publish(data),
            Op::Atomic { op, how } => match self.atomic(*op, *how, data)? {
                Some(before) => before,
                None => return Ok(()),
            },
            Op::CompareSwap { how } => self.compare_swap(*how, data)?,
            Op::For => return self.for_loop(data),
            Op::While => return self.while_loop(data),
            Op::If => return self.branch(data),
            Op::Yield => return Ok(()),
            Op::Check { site } => return self.check(data, *site),
            Op::Print(text) => return self.print(data, text),
            Op::Assert(text) => return self.assert(data, text),
            Op::Prefetch { bytes } => return self.prefetch(data, *bytes as usize),
            Op::Sync => return self.sync(),
            Op::ClusterSync => return self.cluster_sync(),
            Op::Roles(roles) => return self.roles(data, roles),
            Op::AllocShared => return Ok(()),
            Op::AllocBarriers => return self.alloc_barriers(data),
            Op::BarrierExpect { bytes } => return self.barrier_expect(data, *bytes),
            Op::BarrierArrive { multicast } => return self.barrier_arrive(data, *multicast),
            Op::BarrierWait => return self.barrier_wait(data),
            Op::TmaLoad { multicast } => return self.tma_load(data, *multicast),
            Op::TmaStore => return self.tma_store(data),
            Op::TmaStoreWait { pending } => return self.store_wait(*pending),
            Op::FenceAsync => return self.fence_async(),
            Op::SharedStore if self.k.ty(data.args[2]).is_scalar() => return self.share_scalar(data),
            Op::SharedStore => return self.tile_store(data),
            Op::AsyncCopy => return self.async_copy(data),
            Op::AsyncCommit => return self.async_commit(),
            Op::AsyncWait { pending } => return self.async_wait(*pending),
            Op::SharedLoad if self.k.ty(data.results[0]).is_scalar() => vec![self.shared_scalar(data)?],
            Op::SharedLoad => self.staged_load(data)?,
            Op::WgmmaToken => self.plain(data.args[0])?.into_iter().map(Reg::Plain).collect(),
            Op::WgmmaCommit => return self.wgmma_commit(),
            Op::WgmmaWait { pending } => return self.wgmma_wait(data, *pending),
            Op::SharedDot { terms, transpose_a, transpose_b } => {
                self.shared_dot(data, *terms, [*transpose_a, *transpose_b])?
            }
            Op::Wgmma { transpose_a, transpose_b } => self.wgmma(data, [*transpose_a, *transpose_b])?,
            Op::Const(c) => self.constant(data.results[0], *c)?,
            Op::ProgramId(axis) => vec![self.program_id(*axis)?],
            Op::NumPrograms(axis) => vec![self.num_programs(*axis)?],
            Op::Iota => self.iota(data.results[0])?,
            Op::Splat => {
                let one = self.scalar(data.args[0])?;
                vec![one; self.flat(data.results[0])?.per_thread()]
            }
            Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) | Op::Part { .. } => self.view(data)?,
            Op::Unpack { row } => self.unpack_rows(data, *row as usize)?,
            Op::Pack { row } => self.pack_rows(data, *row as usize)?,
            Op::Load(..) => self.load(data)?,
            Op::Await => self.wait_for(data)?,
            Op::AtomicInc => vec![self.atomic_inc(data)?],
            Op::Reduce { op, axis } => self.reduce(data, *op, *axis as usize)?,
            Op::Scan { op, axis } => self.scan(data, *op, *axis as usize)?,
            Op::Dot { terms, .. } => self.dot(data, *terms)?,
            Op::ReduceBy { axis } => return self.reduce_by(data, *axis as usize),
            Op::ScanBy { .. } => return self.scan_by(data),
            Op::Asm(assembly) => return self.inline(data, assembly),
            Op::Join | Op::Split(_) => self.paired(data)?,
            Op::Cat { .. } | Op::Gather { .. } => self.moved(data)?,
            Op::Bitcast => self.bitcast(data)?,
            Op::MultipleOf(divisors) => self.multiple_of(data, divisors)?,
            Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Select | Op::Cast(_) | Op::PtrAdd => {
                self.pointwise(data)?
            }
            Op::CastToZero(_) | Op::Fma => self.pointwise(data)?,
            other => return Err(Fail::Unsupported(exchange::op_name(other))),
        };
        self.set(data.results[0], regs);
        Ok(())
    }
    pub fn program_id(&mut self, axis: u8) -> Res<Reg<'c>> {
        let n = self.k.grid.along(axis).map_or(Grid::MOST, |n| n as i64);
        if n <= 1 {
            return Ok(Reg::Int(Index::constant(0, 32)));
        }
        let mut v = self.special("ctaid", axis)?;
        if axis == 0 && self.blocks.count > 1 {
            v = self.e.lshr(v, self.e.int(self.blocks.count.ilog2().into()))?;
        }
        Ok(Reg::Int(Index { hi: n - 1, lo: 0, ..Index::opaque(v) }))
    }
    fn num_programs(&mut self, axis: u8) -> Res<Reg<'c>> {
        Ok(Reg::Int(match self.k.grid.along(axis) {
            Some(n) => Index::constant(n as i64, 32),
            None => Index { lo: 1, hi: Grid::MOST, ..Index::opaque(self.special("nctaid", axis)?) },
        }))
    }
    /// A register of the grid along an axis.
    fn special(&self, register: &str, axis: u8) -> Res<IntValue<'c>> {
        let name = ["x", "y", "z"].get(axis as usize).ok_or_else(|| mistyped("a grid axis"))?;
        int(self.e.call(&format!("llvm.nvvm.read.ptx.sreg.{register}.{name}"), &[], &[])?)
    }
    fn constant(&mut self, v: Value, c: Const) -> Res<Vec<Reg<'c>>> {
        let elem = self.elem(v)?;
        let reg = match (c, self.e.elem(elem)) {
            (Const::Int(n), _) if matches!(elem, Elem::I32 | Elem::I64) => {
                Reg::Int(Index::constant(n, if elem == Elem::I32 { 32 } else { 64 }))
            }
            (Const::Int(n), BasicTypeEnum::IntType(t)) => Reg::Plain(t.const_int(n as u64, true).into()),
            (Const::Bool(b), BasicTypeEnum::IntType(t)) => Reg::Plain(t.const_int(u64::from(b), false).into()),
            (Const::Float(0.0), BasicTypeEnum::IntType(t)) => Reg::Plain(t.const_zero().into()),
            (Const::Float(x), BasicTypeEnum::FloatType(t)) => Reg::Plain(t.const_float(x).into()),
            (Const::Int(n), BasicTypeEnum::FloatType(t)) => Reg::Plain(t.const_float(n as f64).into()),
            _ => return Err(mistyped("a constant")),
        };
        Ok(vec![reg; self.flat(v)?.per_thread()])
    }
    /// Coordinates along `axis` of each register: the thread's part plus the register's.
    pub fn coordinates(&mut self, flat: &Flat, shape: &[usize], axis: usize) -> Res<Vec<Index<'c>>> {
        let bits = axis_bits(shape, axis);
        let weight = |b: Option<u8>| b.filter(|b| bits.contains(b)).map_or(0, |b| 1i64 << (b - bits.start));
        let weights: Vec<i64> = flat.threads().map(weight).collect();
        let base = self.threads.sum(&self.e, &weights)?;
        let part = |r: usize| (flat.register(r) >> bits.start) & ((1 << bits.len()) - 1);
        Ok((0..flat.per_thread()).map(|r| base.plus(part(r) as i64)).collect())
    }
    fn iota(&mut self, v: Value) -> Res<Vec<Reg<'c>>> {
        let flat = self.flat(v)?;
        let k = self.k;
        Ok(self.coordinates(&flat, k.ty(v).shape(), 0)?.into_iter().map(Reg::Int).collect())
    }
    /// Ops that move no element between threads: registers of the result are registers of the operand.
    fn view(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let (arg, result) = (data.args[0], data.results[0]);
        let (from, to) = (self.flat(arg)?, self.flat(result)?);
        let (old, new) = (self.k.ty(arg).shape(), self.k.ty(result).shape());
        if let Op::Part { axis, .. } = &data.op {
            let (axis_of_old, axis_of_new) = (axis_bits(old, *axis as usize), axis_bits(new, *axis as usize));
            let mut choice = axis_of_old.start + axis_of_new.len() as u8..axis_of_old.end;
            // Where threads differ in what chooses the part, some have none of it.
            if choice.any(|bit| !from.registers.contains(&bit)) {
                return self.moved(data);
            }
        }
        let regs = self.regs(arg)?;
        let source = |r: usize| {
            let element = to.register(r);
            let element = match &data.op {
                Op::Broadcast => drop_axes(element, old, new),
                Op::Permute(perm) => unpermute(element, old, perm),
                Op::Part { axis, at } => tiles::whole_of(element, old, new, *axis as usize, *at as usize),
                _ => element,
            };
            from.register_of(element).and_then(|r| regs.get(r)).copied()
        };
        (0..to.per_thread())
            .map(|r| source(r).ok_or_else(|| Fail::Unsupported(format!("the layouts of {arg} and {result}"))))
            .collect()
    }
    pub fn block(&self) -> Res<BasicBlock<'c>> {
        self.e.b.get_insert_block().ok_or_else(|| Fail::Llvm("no block to write to".into()))
    }
    pub fn new_block(&self, name: &str) -> BasicBlock<'c> {
        self.e.cx.append_basic_block(self.function, name)
    }
    /// Whether the thread is the first of those that hold replicas in this layout; `None` if there are no replicas.
    pub fn first_copy(&mut self, flat: &Flat) -> Res<Option<IntValue<'c>>> {
        let copies: i64 = flat.threads().enumerate().filter(|(_, b)| b.is_none()).map(|(i, _)| 1i64 << i).sum();
        if copies == 0 { Ok(None) } else { Ok(Some(self.threads.first(&self.e, copies)?)) }
    }
}

/// The operand's element number of a broadcast, from the result's.
fn drop_axes(element: usize, from: &[usize], to: &[usize]) -> usize {
    let mut at = 0;
    for (axis, n) in from.iter().enumerate() {
        let bits = axis_bits(to, axis);
        let x = (element >> bits.start) & ((1 << bits.len()) - 1);
        at = at * n + if *n == 1 { 0 } else { x };
    }
    at
}

/// The operand's element number of a permutation, from the result's.
fn unpermute(element: usize, from: &[usize], perm: &[u8]) -> usize {
    let to: Vec<usize> = perm.iter().map(|p| from[*p as usize]).collect();
    let mut x = vec![0; from.len()];
    for (i, p) in perm.iter().enumerate() {
        let bits = axis_bits(&to, i);
        x[*p as usize] = (element >> bits.start) & ((1 << bits.len()) - 1);
    }
    x.iter().zip(from).fold(0, |at, (x, n)| at * n + x)
}
