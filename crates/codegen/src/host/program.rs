//! One kernel: its function, its instructions in order, and the program's loops and branches.
use super::demand::{Demand, forces};
use super::eval::{Buffer, Place};
use super::group::{Sink, block_elem};
use super::memory::{Guard, Store};
use super::prefetch::Prefetch;
use super::text::Name;
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, Grid, Inst, Op, Param, Region, Terms, Type, Value};

/// Scratch memory of an instance above this many bytes comes from the heap (one buffer per thread), not from the stack.
const STACK: usize = 256 << 10;

/// The function `name` that runs instances lo..hi.
pub(super) fn function(e: &mut Emit, name: &str) -> Res<String> {
    let k = e.kernel;
    e.text.start();
    e.demand = Demand::of(k);
    e.prefetch = Prefetch::of(k, &e.demand);
    for (n, p) in k.params.iter().enumerate() {
        let slot = e.text.emit(0, format!("getelementptr ptr, ptr %args, i64 {n}"));
        let ptr = e.text.emit(0, format!("load ptr, ptr {slot}"));
        let v = match k.ty(p.value) {
            Type::Ptr { elem, shape } if shape.is_empty() => {
                Val { elem: *elem, form: Form::Ptr(ptr, Box::new(Val::int(Elem::I64, 0))), depth: 0 }
            }
            Type::Block { elem, shape } if shape.is_empty() => e.scalar_param(p, *elem, &ptr)?,
            other => return Err(format!("a parameter of type {other}")),
        };
        e.place.insert(p.value, Place::Reg(v));
    }
    e.grid_sizes();
    let (label, i) = e.text.open_loop();
    // The scope of the instance loop becomes the program's scope 0; the outer scopes are set aside and put back.
    e.position(&i);
    let outer = e.text.rebase();
    e.region(&k.body)?;
    e.flush()?;
    e.text.restore(outer);
    e.text.close_loop(&label, &i, "%lo", "%hi", 1);
    let (entry, body) = e.text.finish();
    let scratch = match e.scratch {
        0 => "  %scratch = getelementptr i8, ptr null, i64 0\n".to_string(),
        n if n <= STACK => format!("  %scratch = alloca [{n} x i8], align 64\n"),
        n => {
            e.text.declare_scratch();
            format!("  %scratch = call ptr @kiln_scratch(i64 {n})\n")
        }
    };
    let [ready, release] = e.unit_guards();
    let head = format!("define void @{name}(ptr %args, i64 %lo, i64 %hi) nounwind #0 {{\nentry:\n");
    Ok(format!("{head}{entry}{scratch}{ready}{body}{release}  ret void\n}}\n"))
}

fn pid(text: Name) -> Num {
    let konst = text.parse().ok();
    Num { text, konst, tz: if konst == Some(0) { 32 } else { 0 }, nonneg: true, exact: true }
}

impl Emit<'_> {
    /// A scalar parameter at its address, with what is known about it.
    fn scalar_param(&mut self, p: &Param, elem: Elem, at: &Name) -> Res<Val> {
        let mut v = self.read(elem, Store::Tensor, at, &Val::int(Elem::I64, 0), Guard::default())?;
        if let Form::Num(n) = &mut v.form {
            match p.facts.equals {
                Some(equals) => *n = Num::konst(equals),
                None => {
                    n.tz = n.tz.max(p.facts.div.trailing_zeros().min(32));
                    n.nonneg |= p.facts.least.is_some_and(|least| least >= 0);
                }
            }
        }
        Ok(v)
    }
    /// The grid's sizes: constants, or what the launch gives after the parameters.
    fn grid_sizes(&mut self) {
        self.sizes = match self.kernel.grid {
            Grid::Constant(sizes) => sizes.iter().map(|n| Num::konst(*n as i64)).collect(),
            Grid::Launch => {
                let n = self.kernel.params.len();
                let slot = self.text.emit(0, format!("getelementptr ptr, ptr %args, i64 {n}"));
                let sizes = self.text.emit(0, format!("load ptr, ptr {slot}"));
                let size = |axis: usize| {
                    let p = self.text.emit(0, format!("getelementptr i64, ptr {sizes}, i64 {axis}"));
                    Num { nonneg: true, ..Num::opaque(self.text.emit(0, format!("load i64, ptr {p}"))) }
                };
                (0..3).map(size).collect()
            }
        };
    }
    /// The position of instance `i`, axis 0 fastest.
    fn position(&mut self, i: &Name) {
        let mut rest = i.clone();
        let sizes = self.sizes.clone();
        let one = |axis: usize| matches!(sizes[axis].konst, Some(0 | 1));
        for (axis, size) in sizes.iter().enumerate().take(2) {
            let size = &size.text;
            let (p, q): (Name, Name) = if one(axis) {
                ("0".into(), rest.clone())
            } else if (axis + 1..3).all(one) {
                // The last axis with instances needs no division.
                (rest.clone(), "0".into())
            } else {
                let d = self.text.depth();
                let p = self.text.emit(d, format!("urem i64 {rest}, {size}"));
                (p, self.text.emit(d, format!("udiv i64 {rest}, {size}")))
            };
            self.pid.push(pid(p));
            rest = q;
        }
        self.pid.push(pid(if one(2) { "0".into() } else { rest }));
    }
    pub fn region(&mut self, r: &Region) -> Res<()> {
        r.insts.iter().try_for_each(|&i| self.inst(i))
    }
    pub fn is_block(&self, v: Value) -> bool {
        !self.kernel.ty(v).is_scalar()
    }
    pub fn shape(&self, v: Value) -> Vec<usize> {
        self.kernel.ty(v).shape().to_vec()
    }
    fn inst(&mut self, i: Inst) -> Res<()> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        let arg = |n: usize| inst.args.get(n).copied().ok_or_else(|| format!("{:?} without operand {n}", inst.op));
        let result = inst.results.first().copied();
        match (&inst.op, result) {
            (Op::Store(_), _) => {
                let shape = self.shape(arg(0)?);
                self.push(i, &shape, Sink::Store { ptr: arg(0)?, value: arg(1)?, mask: inst.args.get(2).copied() })
            }
            (Op::Check { site }, _) => {
                let shape = self.shape(arg(2)?);
                self.push(
                    i,
                    &shape,
                    Sink::Check { values: [arg(0)?, arg(1)?, arg(2)?], mask: inst.args.get(3).copied(), site: *site },
                )
            }
            (Op::Reduce { op, axis }, Some(result)) => {
                let shape = self.shape(arg(0)?);
                self.push(i, &shape, Sink::Reduce { op: *op, axis: *axis as usize, operand: arg(0)?, result })
            }
            (Op::Scan { op, axis }, Some(result)) => {
                let shape = self.shape(arg(0)?);
                self.push(i, &shape, Sink::Scan { op: *op, axis: *axis as usize, operand: arg(0)?, result })
            }
            (Op::Dot { terms, .. }, _) if *terms != Terms::Products => Err("sums of differences of tiles".into()),
            (Op::Dot { .. }, Some(result)) => {
                self.flush()?;
                self.dot(arg(0)?, arg(1)?, arg(2)?, result)
            }
            (Op::Atomic { .. } | Op::CompareSwap { .. }, _) => self.atomic(inst),
            (Op::ReduceBy { .. } | Op::ScanBy { .. }, _) => self.combine(inst),
            (Op::Print(_) | Op::Assert(_), _) => self.report(inst),
            (Op::For, _) => self.for_loop(i),
            (Op::While, _) => self.while_loop(i),
            (Op::If, _) => self.if_else(i),
            (Op::Yield, _) => Ok(()),
            (op, Some(result)) if upper(op) => {
                if self.waits(i) || (!self.is_block(result) && self.reads_blocks(i)) {
                    self.flush()?;
                }
                if !self.is_block(result) && !forces(op) {
                    self.memo = vec![Default::default()];
                    self.lanes = 1;
                    let v = self.compute_inst(i, &[])?;
                    self.place.insert(result, Place::Reg(v));
                    return Ok(());
                }
                self.place.insert(result, Place::Virtual(i));
                if self.demand.keep.contains_key(&result) {
                    let shape = self.shape(result);
                    let elem = match self.kernel.ty(result) {
                        Type::Ptr { .. } => Elem::I64,
                        other => block_elem(other)?,
                    };
                    let buffer = match self.homes.get(&result) {
                        Some(home) => home.clone(),
                        None => self.kept_buffer(result, elem, &shape),
                    };
                    return self.push(i, &shape, Sink::Keep { value: result, buffer, place: true });
                }
                Ok(())
            }
            (Op::Asm(assembly), _) => Err(format!("inline assembly for GPUs, `{}`", assembly.text)),
            (op, _) => Err(format!("{op:?}")),
        }
    }
    /// Memory for a value that is kept.
    fn kept_buffer(&mut self, v: Value, elem: Elem, shape: &[usize]) -> Buffer {
        let mut buffer = self.buffer_in(self.memory_of(v, elem), elem, shape);
        let (lanes, inner) = (self.machine.lanes, shape.iter().rfind(|n| **n > 1));
        let index = matches!(elem, Elem::I32 | Elem::I64) && self.kernel.has_launch_values();
        if index && self.demand.offsets.contains(&v) && inner.is_some_and(|n| *n >= lanes) {
            let vectors = shape.iter().product::<usize>() / lanes;
            buffer.neighbours = Some(self.buffer_in(Store::Tensor, Elem::I8, &[vectors]).ptr);
        }
        buffer
    }
    /// How a kept value is stored. Halves of hand-written kernels stay halves, except factors of matmuls, which convert
    /// each element once, unless they multiply pairs of bf16.
    fn memory_of(&self, v: Value, elem: Elem) -> Store {
        let factor = self.demand.packed.contains(&v);
        let halves = match elem {
            Elem::Bf16 => !factor || self.machine.pairs_of_bf16,
            Elem::F16 => !factor && self.machine.f16c,
            _ => false,
        };
        if halves && self.kernel.has_launch_values() { Store::Tensor } else { Store::Scratch }
    }
    /// A scalar computed from blocks (a reshape to no axes): its element may be pending.
    fn reads_blocks(&self, i: Inst) -> bool {
        self.kernel.inst(i).args.iter().any(|a| self.is_block(*a))
    }

    /// A number in a stack slot that loops can change.
    pub fn slot(&mut self, ty: &str, value: &str) -> Name {
        let s = self.text.alloca(ty, 8);
        self.text.line(0, format!("store {ty} {value}, ptr {s}"));
        s
    }
    pub fn scalar(&mut self, v: Value) -> Res<Val> {
        match self.place.get(&v) {
            Some(Place::Reg(x)) => Ok(x.clone()),
            _ => {
                self.memo = vec![Default::default()];
                self.lanes = 1;
                self.eval(v, &[])
            }
        }
    }
    pub fn number(&mut self, v: Value) -> Res<Num> {
        let x = self.scalar(v)?;
        let n = self.as_num(&x)?;
        Ok(self.exact(x.elem, &n, 0))
    }
}

/// Ops of the upper level that have a result.
fn upper(op: &Op) -> bool {
    matches!(
        op,
        Op::Const(_)
            | Op::ProgramId(_)
            | Op::NumPrograms(_)
            | Op::Iota
            | Op::Splat
            | Op::Broadcast
            | Op::ExpandDims(_)
            | Op::Reshape
            | Op::Permute(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Cmp(_)
            | Op::Select
            | Op::Cast(_)
            | Op::Bitcast
            | Op::MultipleOf(_)
            | Op::CastToZero(_)
            | Op::Fma
            | Op::Join
            | Op::Split(_)
            | Op::Part { .. }
            | Op::Cat { .. }
            | Op::Gather { .. }
            | Op::PtrAdd
            | Op::Load(..)
    )
}
