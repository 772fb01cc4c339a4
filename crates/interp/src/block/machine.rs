//! Runs one program instance. Control flow is an explicit stack of frames, so that a role can stop at a barrier and
//! resume later.
mod access;
mod addresses;
mod combine;
mod exact;
mod reports;

use super::{Buffer, Checks, InterpError, Observer, memory::*, scalar, shape, value::*};
use kiln_block::{BlockProgram, Const, DotPrecision, Elem, Inst, InstData, Op, Region, Terms, Type, Value, text};
use std::{collections::VecDeque, rc::Rc};

/// A region being executed: its next instruction, and the op that owns it.
struct Frame<'a> {
    region: &'a Region,
    next: usize,
    owner: Option<&'a InstData>,
    /// Of a `for`: current index, upper bound, step. Of a `while`: the number of the iteration.
    counter: Option<[i64; 3]>,
}

type Copies = Vec<(usize, usize, Rc<Block>)>;

/// A thread of control: the whole instance, or one role of it.
#[derive(Default)]
struct Flow<'a> {
    values: Vec<Option<Val>>,
    frames: Vec<Frame<'a>>,
    /// Asynchronous copies issued since the last commit.
    open: Copies,
    /// Committed groups in flight, oldest first.
    groups: VecDeque<Copies>,
}

#[derive(PartialEq)]
enum Stop {
    Done,
    Waiting,
}

struct Machine<'a, 'b> {
    k: &'a BlockProgram,
    instance: Position,
    buffers: &'b mut [Buffer],
    checks: Option<&'b mut Checks>,
    observer: Option<&'b mut dyn Observer>,
    /// The address of each buffer's first byte; 0 where there is none.
    origins: Option<&'b [u64]>,
    /// The instruction that is executed.
    at: Inst,
    tiles: Vec<Tile>,
    barriers: Vec<Vec<Barrier>>,
}

/// How a flow proceeds after an instruction.
enum Next {
    /// With the next instruction.
    On,
    /// It blocks on a barrier and retries this instruction later.
    Wait,
}

type Said<T> = Result<T, String>;

/// Who checks and watches a run, if anyone does, and where pointers point.
#[derive(Default)]
pub struct Watch<'b> {
    pub checks: Option<&'b mut Checks>,
    pub observer: Option<&'b mut dyn Observer>,
    /// Of each parameter the buffer and the byte in it; its own buffer's first byte where there is none.
    pub starts: Option<&'b [(usize, usize)]>,
    /// The address of each buffer's first byte, as integers in memory have it; 0 where there is none.
    pub origins: Option<&'b [u64]>,
}

/// Runs one instance of a verified kernel on checked buffers.
pub fn run_instance<'b>(
    k: &BlockProgram,
    instance: Position,
    buffers: &'b mut [Buffer],
    watch: Watch<'b>,
) -> Result<(), InterpError> {
    let Watch { checks, observer, starts, origins } = watch;
    let mut m =
        Machine { k, instance, buffers, checks, observer, origins, at: Inst(0), tiles: vec![], barriers: vec![] };
    if let Some(checks) = &mut m.checks {
        checks.enter(instance);
    }
    let mut flow = Flow { values: vec![None; k.values.len()], ..Flow::default() };
    for (n, p) in k.params.iter().enumerate() {
        let ty = k.ty(p.value);
        let (elem, shape) = block_type(ty);
        flow.values[p.value.0 as usize] = Some(match ty {
            Type::Ptr { .. } => {
                let (param, at) = starts.and_then(|starts| starts.get(n).copied()).unwrap_or((n, 0));
                let address = Address { param, at: at as i64 };
                Val::Block(Rc::new(Block { elem, shape, data: Data::Ptr(vec![address]) }))
            }
            Type::Desc { .. } => Val::Desc(n),
            _ => Val::Block(Rc::new(collected(elem, &shape, std::iter::once(m.buffers[n].read(0))))),
        });
    }
    flow.frames.push(Frame { region: &k.body, next: 0, owner: None, counter: None });
    match m.run(&mut flow)? {
        Stop::Done => Ok(()),
        Stop::Waiting => Err(m.deadlock(&[("the instance", &flow)])),
    }
}

impl<'a> Flow<'a> {
    fn block(&self, v: Value) -> Said<Rc<Block>> {
        match self.values.get(v.0 as usize) {
            Some(Some(Val::Block(b))) => Ok(b.clone()),
            _ => Err(format!("{v} has no value")),
        }
    }
    fn int(&self, v: Value) -> Said<i64> {
        self.block(v)?.ints().first().copied().ok_or_else(|| format!("{v} is not an integer"))
    }
    fn set(&mut self, v: Value, val: Val) {
        self.values[v.0 as usize] = Some(val);
    }
    fn copy(&mut self, from: &[Value], to: &[Value]) {
        let vals: Vec<_> = from.iter().map(|v| self.values[v.0 as usize].clone()).collect();
        to.iter().zip(vals).for_each(|(v, val)| self.values[v.0 as usize] = val);
    }
}

impl<'a> Machine<'a, '_> {
    fn wrong(&self, i: Inst, what: String) -> InterpError {
        InterpError::Op {
            kernel: self.k.name.clone(),
            instance: self.instance.at,
            op: text::print_inst(self.k, i),
            what,
        }
    }
    fn deadlock(&self, waiting: &[(&str, &Flow)]) -> InterpError {
        let at = |f: &Flow| {
            let i = f.frames.last().and_then(|f| f.region.insts.get(f.next));
            i.map_or(String::new(), |i| text::print_inst(self.k, *i))
        };
        let waits: Vec<String> = waiting.iter().map(|(name, f)| format!("{name} at `{}`", at(f))).collect();
        InterpError::Deadlock { kernel: self.k.name.clone(), instance: self.instance.at, waits: waits.join(", ") }
    }
    /// Runs the flow until it ends or blocks on a barrier.
    fn run(&mut self, flow: &mut Flow<'a>) -> Result<Stop, InterpError> {
        let k = self.k;
        while let Some(frame) = flow.frames.last_mut() {
            let Some(&i) = frame.region.insts.get(frame.next) else {
                flow.frames.pop();
                continue;
            };
            let data = k.inst(i);
            self.at = i;
            match &data.op {
                Op::Yield => self.end_region(flow, data).map_err(|e| self.wrong(i, e))?,
                Op::For => {
                    frame.next += 1;
                    self.enter_loop(flow, data).map_err(|e| self.wrong(i, e))?;
                }
                Op::While => {
                    frame.next += 1;
                    let region = &data.regions[0];
                    flow.copy(&data.args, &region.params);
                    flow.frames.push(Frame { region, next: 0, owner: Some(data), counter: Some([0; 3]) });
                }
                Op::If => {
                    frame.next += 1;
                    let is_else = flow.int(data.args[0]).map_err(|e| self.wrong(i, e))? == 0;
                    let region = &data.regions[usize::from(is_else)];
                    flow.frames.push(Frame { region, next: 0, owner: Some(data), counter: None });
                }
                Op::Roles(_) => {
                    frame.next += 1;
                    self.roles(flow, data)?;
                }
                _ => match self.inst(flow, data).map_err(|e| self.wrong(i, e))? {
                    Next::Wait => return Ok(Stop::Waiting),
                    Next::On => {
                        if let Some(frame) = flow.frames.last_mut() {
                            frame.next += 1;
                        }
                    }
                },
            }
        }
        Ok(Stop::Done)
    }
    /// Type of a loop's index.
    fn index_elem(&self, region: &Region) -> Elem {
        region.params.first().and_then(|v| self.k.ty(*v).elem()).unwrap_or(Elem::I32)
    }
    fn enter_loop(&mut self, flow: &mut Flow<'a>, data: &'a InstData) -> Said<()> {
        let [lo, hi, step] = [flow.int(data.args[0])?, flow.int(data.args[1])?, flow.int(data.args[2])?];
        if step <= 0 {
            return Err(format!("the step is {step}; it must be positive"));
        }
        if lo >= hi {
            flow.copy(&data.args[3..], &data.results);
            return Ok(());
        }
        let region = &data.regions[0];
        flow.copy(&data.args[3..], &region.params[1..]);
        flow.set(region.params[0], Val::Block(Rc::new(Block::int(self.index_elem(region), lo))));
        flow.frames.push(Frame { region, next: 0, owner: Some(data), counter: Some([lo, hi, step]) });
        Ok(())
    }
    /// `yield`: starts the next loop iteration, or leaves the region and continues after its op.
    fn end_region(&mut self, flow: &mut Flow<'a>, data: &InstData) -> Said<()> {
        let Some(mut frame) = flow.frames.pop() else { return Ok(()) };
        let Some(owner) = frame.owner else { return Ok(()) };
        match frame.counter {
            Some([iteration, ..]) if owner.op == Op::While => {
                if flow.int(data.args[0])? != 0 {
                    flow.copy(&data.args[1..], &frame.region.params);
                    (frame.next, frame.counter) = (0, Some([iteration + 1, 0, 0]));
                    flow.frames.push(frame);
                } else {
                    flow.copy(&data.args[1..], &owner.results);
                }
            }
            Some([index, hi, step]) if index.checked_add(step).is_some_and(|next| next < hi) => {
                flow.copy(&data.args, &frame.region.params[1..]);
                let next = Block::int(self.index_elem(frame.region), index + step);
                flow.set(frame.region.params[0], Val::Block(Rc::new(next)));
                (frame.next, frame.counter) = (0, Some([index + step, hi, step]));
                flow.frames.push(frame);
            }
            _ => flow.copy(&data.args, &owner.results),
        }
        Ok(())
    }
    /// Runs all roles round-robin, each until it blocks, until all are done. A round without progress is a deadlock.
    fn roles(&mut self, flow: &mut Flow<'a>, data: &'a InstData) -> Result<(), InterpError> {
        let Op::Roles(roles) = &data.op else { return Ok(()) };
        let mut all: Vec<(&str, Flow)> = vec![];
        for (role, region) in roles.iter().zip(&data.regions) {
            for copy in 0..role.copies {
                let frames = vec![Frame { region, next: 0, owner: None, counter: None }];
                let mut own = Flow { values: flow.values.clone(), frames, ..Flow::default() };
                for v in &region.params {
                    own.set(*v, Val::Block(Rc::new(Block::int(Elem::I32, copy as i64))));
                }
                all.push((role.name.as_str(), own));
            }
        }
        while !all.is_empty() {
            let mut moved = false;
            let mut waiting = vec![];
            for (name, mut flow) in all {
                let at = |f: &Flow| f.frames.iter().map(|f| (f.next, f.counter)).collect::<Vec<_>>();
                let before = at(&flow);
                match self.run(&mut flow)? {
                    Stop::Done => moved = true,
                    Stop::Waiting => {
                        moved |= at(&flow) != before;
                        waiting.push((name, flow));
                    }
                }
            }
            if !moved {
                let names: Vec<(&str, &Flow)> = waiting.iter().map(|(n, f)| (*n, f)).collect();
                return Err(self.deadlock(&names));
            }
            all = waiting;
        }
        Ok(())
    }
    /// Executes an op without regions.
    fn inst(&mut self, flow: &mut Flow<'a>, data: &InstData) -> Said<Next> {
        let arg = |n: usize| flow.block(data.args[n]);
        let (elem, to) = match data.results.first() {
            Some(v) => block_type(self.k.ty(*v)),
            None => (Elem::I32, vec![]),
        };
        let result = match &data.op {
            Op::Const(c) => {
                let n = to.iter().product();
                let data = match c {
                    Const::Float(x) => Data::Float(vec![nearest(elem, *x); n]),
                    Const::Int(x) => Data::Int(vec![*x; n]),
                    Const::Bool(x) => Data::Int(vec![i64::from(*x); n]),
                };
                Block { elem, shape: to, data }
            }
            Op::ProgramId(axis) => Block::int(elem, self.instance.at[*axis as usize] as i64),
            Op::NumPrograms(axis) => Block::int(elem, self.instance.grid[*axis as usize] as i64),
            Op::Iota => Block { elem, data: Data::Int((0..to[0] as i64).collect()), shape: to },
            Op::Splat => shape::splat(&*arg(0)?, &to),
            Op::Broadcast => shape::broadcast(&*arg(0)?, &to),
            Op::WgmmaWait { .. } if data.results.is_empty() => return Ok(Next::On),
            Op::ExpandDims(_)
            | Op::Reshape
            | Op::MultipleOf(_)
            | Op::ConvertLayout
            | Op::WgmmaToken
            | Op::WgmmaWait { .. } => Block { shape: to, ..(*arg(0)?).clone() },
            Op::Part { axis, at } => shape::part(&*arg(0)?, *axis as usize, *at as usize, &to),
            Op::Unpack { row } => shape::unpack(&*arg(0)?, *row as usize, &to),
            Op::Pack { row } => shape::pack(&*arg(0)?, *row as usize, &to),
            Op::Permute(perm) => shape::permute(&*arg(0)?, perm),
            Op::Unary(op) => scalar::unary(*op, &*arg(0)?)?,
            Op::Binary(op) => scalar::binary(*op, &*arg(0)?, &*arg(1)?)?,
            Op::Cmp(op) => scalar::compare(*op, &*arg(0)?, &*arg(1)?),
            Op::Select => scalar::select(&*arg(0)?, &*arg(1)?, &*arg(2)?),
            Op::Cast(to) => scalar::cast(*to, &*arg(0)?),
            Op::CastToZero(to) => scalar::cast_to_zero(*to, &*arg(0)?),
            Op::Fma => scalar::fma(&*arg(0)?, &*arg(1)?, &*arg(2)?),
            Op::Bitcast => self.bitcast(&*arg(0)?, self.k.ty(data.results[0])),
            Op::PtrAdd => {
                let (p, by) = (arg(0)?, arg(1)?);
                let bytes = p.elem.bytes() as i64;
                let moved = |(p, by): (&Address, &i64)| p.plus(by.wrapping_mul(bytes));
                let all = p.pointers().iter().zip(by.ints()).map(moved).collect();
                Block { data: Data::Ptr(all), ..(*p).clone() }
            }
            Op::Join => shape::join(&*arg(0)?, &*arg(1)?),
            Op::Split(half) => shape::split(&*arg(0)?, *half as usize, &to),
            Op::Cat { axis } => shape::cat(&*arg(0)?, &*arg(1)?, *axis as usize),
            Op::Gather { axis } => shape::taken(&*arg(0)?, &*arg(1)?, *axis as usize)?,
            Op::ReduceBy { .. } | Op::ScanBy { .. } => {
                self.combine(flow, data)?;
                return Ok(Next::On);
            }
            Op::Load(..) => self.load(flow, &data.args, elem, &to)?,
            Op::Await => self.wait(flow, &data.args, elem, &to)?,
            Op::AtomicInc => self.atomic_inc(flow, &data.args)?,
            Op::Reduce { op, axis } => shape::reduce(*op, *axis as usize, &*arg(0)?)?,
            Op::Scan { op, axis } => shape::scan(*op, *axis as usize, &*arg(0)?),
            Op::Dot { precision: DotPrecision::Tf32x3, .. } => shape::split_dot(&*arg(0)?, &*arg(1)?, &*arg(2)?),
            Op::Dot { terms, .. } => shape::dot(*terms, &*arg(0)?, &*arg(1)?, &*arg(2)?, usize::MAX),
            Op::TileLoad => self.tile_load(flow, data.args[0], &data.args[1..], elem, &to)?,
            Op::SharedLoad => {
                let (tile, stage) = self.stage(flow, data.args[0], data.args[1])?;
                (*self.tiles[tile].stages[stage]).clone()
            }
            Op::Wgmma { transpose_a, transpose_b } | Op::SharedDot { transpose_a, transpose_b, .. } => {
                let terms = if let Op::SharedDot { terms, .. } = data.op { terms } else { Terms::Products };
                let operand = |n: usize, transposed: bool| {
                    let (tile, stage) = self.stage(flow, data.args[n], data.args[n + 1])?;
                    let tile = &*self.tiles[tile].stages[stage];
                    Ok::<_, String>(if transposed { shape::permute(tile, &[1, 0]) } else { tile.clone() })
                };
                if let [left, _, _, sum] = data.args[..] {
                    let right = operand(1, *transpose_b)?;
                    let sums = shape::dot(terms, &*flow.block(left)?, &right, &*flow.block(sum)?, usize::MAX);
                    flow.set(data.results[0], Val::Block(Rc::new(sums)));
                    return Ok(Next::On);
                }
                let deep = data.args.get(5).map_or(Ok(i64::MAX), |v| flow.int(*v))? as usize;
                shape::dot(terms, &operand(0, *transpose_a)?, &operand(2, *transpose_b)?, &*arg(4)?, deep)
            }
            _ => return self.effect(flow, data),
        };
        flow.set(data.results[0], Val::Block(Rc::new(result)));
        Ok(Next::On)
    }
    /// Executes an op that changes memory or blocks.
    fn effect(&mut self, flow: &mut Flow<'a>, data: &InstData) -> Said<Next> {
        let args = &data.args;
        match &data.op {
            Op::Store(_) => self.store(flow, args)?,
            Op::Publish => self.publish(flow, args)?,
            Op::Atomic { op, how } => {
                let before = self.atomic(flow, args, *op, *how)?;
                if let Some(v) = data.results.first() {
                    flow.set(*v, Val::Block(Rc::new(before)));
                }
            }
            Op::CompareSwap { how } => {
                let before = self.compare_swap(flow, args, *how)?;
                flow.set(data.results[0], Val::Block(Rc::new(before)));
            }
            Op::Check { site } => self.check(flow, args, *site)?,
            Op::Print(text) => self.print(flow, args, text)?,
            Op::Assert(text) => self.assert(flow, args, text)?,
            Op::TileStore => {
                let value = flow.block(args[1])?;
                self.tile_store(flow, args[0], &value, &args[2..])?;
            }
            Op::AllocShared => {
                if let Type::Shared { elem, shape, stages, .. } = self.k.ty(data.results[0]) {
                    let empty = Rc::new(Block::unwritten(*elem, shape));
                    self.tiles.push(Tile { stages: (0..*stages).map(|_| empty.clone()).collect() });
                    flow.set(data.results[0], Val::Shared(self.tiles.len() - 1));
                }
            }
            Op::AllocBarriers => {
                if let Type::Barrier { count, arrivals } = self.k.ty(data.results[0]) {
                    self.barriers.push(vec![Barrier::new(*arrivals); *count]);
                    flow.set(data.results[0], Val::Barrier(self.barriers.len() - 1));
                }
            }
            Op::SharedStore => {
                let (tile, stage) = self.stage(flow, args[0], args[1])?;
                self.tiles[tile].stages[stage] = flow.block(args[2])?;
            }
            Op::AsyncCopy => {
                let (tile, stage) = self.stage(flow, args[0], args[1])?;
                let (elem, shape) = block_type(self.k.ty(args[0]));
                let block = self.load(flow, &args[2..], elem, &shape)?;
                flow.open.push((tile, stage, Rc::new(block)));
            }
            Op::AsyncCommit => {
                let group = std::mem::take(&mut flow.open);
                flow.groups.push_back(group);
            }
            Op::AsyncWait { pending } => {
                while flow.groups.len() > usize::from(*pending) {
                    for (tile, stage, block) in flow.groups.pop_front().unwrap_or_default() {
                        self.tiles[tile].stages[stage] = block;
                    }
                }
            }
            Op::BarrierExpect { bytes } => {
                let b = self.barrier(flow, args[0], args[1])?;
                b.arrived += 1;
                b.bytes += i64::from(*bytes);
                b.settle();
            }
            Op::BarrierArrive { multicast } => {
                // A multicast arrival counts once per block of the cluster, since all blocks do the same as this one.
                let arrivals = if *multicast { self.k.cluster } else { 1 };
                let b = self.barrier(flow, args[0], args[1])?;
                b.arrived += arrivals;
                b.settle();
            }
            Op::BarrierWait => {
                let parity = flow.int(args[2])?;
                if !self.barrier(flow, args[0], args[1])?.passed(parity) {
                    return Ok(Next::Wait);
                }
            }
            Op::TmaLoad { multicast } => {
                let (tile, stage) = self.stage(flow, args[0], args[1])?;
                let (elem, shape) = block_type(self.k.ty(args[0]));
                self.starts_aligned(flow, elem, &args[5..])?;
                let mut copied = shape.clone();
                if let (false, Some(rows)) = (multicast, copied.first_mut()) {
                    let desc = self.k.ty(args[2]).shape();
                    *rows = desc.len().checked_sub(shape.len()).map_or(*rows, |lead| desc[lead].min(*rows));
                }
                let block = self.tile_load(flow, args[2], &args[5..], elem, &copied)?;
                // Whole panels are copied, zeros beyond the array.
                let columns = block.shape.last().copied().unwrap_or(1);
                let row = self.swizzle(args[2]).row_bytes(block.elem, columns);
                let bytes = (block.count() / columns.max(1) * row) as i64;
                self.tiles[tile].stages[stage] = Rc::new(undefined_after(block, &shape));
                let b = self.barrier(flow, args[3], args[4])?;
                b.bytes -= bytes;
                b.settle();
            }
            Op::TmaStore => {
                let (tile, stage) = self.stage(flow, args[1], args[2])?;
                let value = self.tiles[tile].stages[stage].clone();
                self.starts_aligned(flow, value.elem, &args[3..])?;
                self.tile_store(flow, args[0], &value, &args[3..])?;
            }
            Op::Prefetch { .. }
            | Op::Sync
            | Op::FenceAsync
            | Op::TmaStoreWait { .. }
            | Op::WgmmaCommit
            | Op::ClusterSync => {}
            Op::Asm(_) => return Err("inline assembly is for GPUs; see the pass `portable_assembly`".into()),
            other => return Err(format!("{other:?} is not executable here")),
        }
        Ok(Next::On)
    }

    /// Index of a shared tile and of one of its stages, bounds-checked.
    fn stage(&self, flow: &Flow, tile: Value, stage: Value) -> Said<(usize, usize)> {
        let Some(Val::Shared(t)) = flow.values[tile.0 as usize] else {
            return Err(format!("{tile} is not a shared tile"));
        };
        let (n, s) = (self.tiles[t].stages.len(), flow.int(stage)?);
        usize::try_from(s).ok().filter(|s| *s < n).map(|s| (t, s)).ok_or(format!("stage {s} of {n}"))
    }
    fn barrier(&mut self, flow: &Flow, barrier: Value, stage: Value) -> Said<&mut Barrier> {
        let Some(Val::Barrier(b)) = flow.values[barrier.0 as usize] else {
            return Err(format!("{barrier} is not a barrier"));
        };
        let (n, s) = (self.barriers[b].len(), flow.int(stage)?);
        usize::try_from(s).ok().and_then(|s| self.barriers[b].get_mut(s)).ok_or(format!("barrier {s} of {n}"))
    }
}
