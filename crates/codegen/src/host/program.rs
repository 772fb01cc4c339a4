//! One kernel: its function, its instructions in order, and the program's loops and branches.
use super::demand::{Demand, forces};
use super::eval::{Buffer, Place};
use super::group::{Sink, block_elem};
use super::memory::{Guard, Store};
use super::prefetch::Prefetch;
use super::text::{Name, reg};
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
    Ok(format!(
        "define void @{name}(ptr %args, i64 %lo, i64 %hi) nounwind #0 {{\nentry:\n{entry}{scratch}{body}  ret void\n}}\n"
    ))
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
    fn is_block(&self, v: Value) -> bool {
        !self.kernel.ty(v).is_scalar()
    }
    fn shape(&self, v: Value) -> Vec<usize> {
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
            (Op::For, _) => self.for_loop(i),
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
                    let buffer = self.new_buffer(block_elem(self.kernel.ty(result))?, &shape);
                    return self.push(i, &shape, Sink::Keep { value: result, buffer, place: true });
                }
                Ok(())
            }
            (op, _) => Err(format!("{op:?}")),
        }
    }
    /// A scalar computed from blocks (a reshape to no axes): its element may be pending.
    fn reads_blocks(&self, i: Inst) -> bool {
        self.kernel.inst(i).args.iter().any(|a| self.is_block(*a))
    }

    /// A number in a stack slot that loops can change.
    fn slot(&mut self, ty: &str, value: &str) -> Name {
        let s = self.text.alloca(ty, 8);
        self.text.line(0, format!("store {ty} {value}, ptr {s}"));
        s
    }
    fn scalar(&mut self, v: Value) -> Res<Val> {
        match self.place.get(&v) {
            Some(Place::Reg(x)) => Ok(x.clone()),
            _ => {
                self.memo = vec![Default::default()];
                self.lanes = 1;
                self.eval(v, &[])
            }
        }
    }
    fn number(&mut self, v: Value) -> Res<Num> {
        let x = self.scalar(v)?;
        let n = self.as_num(&x)?;
        Ok(self.exact(x.elem, &n, 0))
    }

    fn for_loop(&mut self, i: Inst) -> Res<()> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        let region = inst.regions.first().ok_or("a loop without a body")?;
        let (Some((&index, params)), true) = (region.params.split_first(), inst.args.len() >= 3) else {
            return Err("a loop without bounds".into());
        };
        let next = region
            .insts
            .last()
            .map(|&y| kernel.inst(y))
            .filter(|y| matches!(y.op, Op::Yield))
            .map_or(&[][..], |y| &y.args);
        let inits = &inst.args[3..];
        if next.len() != params.len() || inits.len() != params.len() || inst.results.len() != params.len() {
            return Err("a loop with unequal numbers of carried values".into());
        }
        self.flush()?;
        let [lo, hi, step] = [self.number(inst.args[0])?, self.number(inst.args[1])?, self.number(inst.args[2])?];
        let turn = self.slot("i64", "0");
        let counter = self.slot("i64", &lo.text);
        let mut carried = vec![];
        for ((&p, &init), &n) in params.iter().zip(inits).zip(next) {
            carried.push(self.carry(i, p, init, n)?);
        }
        self.flush()?;
        let label = self.text.label();
        self.text.line(0, format!("br label %{label}.head"));
        self.text.mark(&format!("{label}.head"));
        let at = self.text.emit(0, format!("load i64, ptr {counter}"));
        let go = self.text.emit(0, format!("icmp slt i64 {at}, {}", hi.text));
        let turns = self.text.emit(0, format!("load i64, ptr {turn}"));
        self.text.line(0, format!("br i1 {go}, label %{label}.body, label %{label}.exit"));
        self.text.mark(&format!("{label}.body"));
        let n = Num { text: at.clone(), konst: None, tz: lo.tz.min(step.tz), nonneg: lo.nonneg, exact: true };
        self.place.insert(index, Place::Reg(Val::num(Elem::I32, n, 0)));
        let turn_num = Num { text: turns.clone(), konst: None, tz: 0, nonneg: true, exact: true };
        for (c, &p) in carried.iter().zip(params) {
            let place = self.current(c, &turn_num)?;
            self.place.insert(p, place);
        }
        self.region(region)?;
        self.next_values(i, &carried, next)?;
        let t = self.text.emit(0, format!("add i64 {turns}, 1"));
        self.text.line(0, format!("store i64 {t}, ptr {turn}"));
        let a = self.text.emit(0, format!("add i64 {at}, {}", step.text));
        self.text.line(0, format!("store i64 {a}, ptr {counter}"));
        self.text.line(0, format!("br label %{label}.head"));
        self.text.mark(&format!("{label}.exit"));
        for (c, &r) in carried.iter().zip(&inst.results) {
            if let Carried::Induction { step, .. } = c {
                // The body's own names are out of scope here.
                self.hoist(*step, i)?;
            }
            let place = self.current(c, &turn_num)?;
            self.place.insert(r, place);
        }
        Ok(())
    }
    /// The end of an iteration: what it carried becomes what the yield gives.
    fn next_values(&mut self, loop_inst: Inst, carried: &[Carried], next: &[Value]) -> Res<()> {
        // Next values: blocks go to the other buffer; all scalars are computed before any is stored.
        let mut stores = vec![];
        for (c, &n) in carried.iter().zip(next) {
            match c {
                Carried::Block { other, elem, shape, .. } => {
                    let ptr = self.text.emit(0, format!("load ptr, ptr {other}"));
                    let buffer = Buffer { ptr, elem: *elem, shape: shape.clone() };
                    // The yield itself is the sink, so that values that only the yield demands stay in registers.
                    self.push(loop_inst, shape, Sink::Keep { value: n, buffer, place: false })?;
                }
                Carried::Scalar { .. } => stores.push((c, n)),
                Carried::Induction { .. } => {}
            }
        }
        self.flush()?;
        let mut lines = vec![];
        for (c, n) in stores {
            if let Carried::Scalar { slot, elem } = c {
                let v = self.scalar(n)?;
                let x = self.reg(&v, 1);
                lines.push(format!("store {} {x}, ptr {slot}", reg(*elem)));
            }
        }
        for l in lines {
            self.text.line(0, l);
        }
        for c in carried {
            if let Carried::Block { cur, other, .. } = c {
                let (a, b) = (
                    self.text.emit(0, format!("load ptr, ptr {cur}")),
                    self.text.emit(0, format!("load ptr, ptr {other}")),
                );
                self.text.line(0, format!("store ptr {b}, ptr {cur}"));
                self.text.line(0, format!("store ptr {a}, ptr {other}"));
            }
        }
        Ok(())
    }
    /// How a carried value is held.
    fn carry(&mut self, loop_inst: Inst, p: Value, init: Value, next: Value) -> Res<Carried> {
        if let Some(step) = self.induction(loop_inst, p, next) {
            self.hoist(step, loop_inst)?;
            return Ok(Carried::Induction { init, step });
        }
        match self.kernel.ty(p) {
            Type::Block { elem, shape } if !shape.is_empty() => {
                let (a, b) = (self.new_buffer(*elem, shape), self.new_buffer(*elem, shape));
                self.push(loop_inst, shape, Sink::Keep { value: init, buffer: a.clone(), place: false })?;
                self.flush()?;
                let (cur, other) = (self.slot("ptr", &a.ptr), self.slot("ptr", &b.ptr));
                Ok(Carried::Block { cur, other, elem: *elem, shape: shape.clone() })
            }
            Type::Block { elem, .. } => {
                let v = self.scalar(init)?;
                let x = self.reg(&v, 1);
                Ok(Carried::Scalar { slot: self.slot(reg(*elem), &x), elem: *elem })
            }
            _ if next == p => Ok(Carried::Induction { init, step: init }),
            other => Err(format!("a carried {other} that does not grow by the same each turn")),
        }
    }
    /// The step, if `next` is `p` plus something from outside of the loop.
    fn induction(&self, loop_inst: Inst, p: Value, next: Value) -> Option<Value> {
        let k = self.kernel;
        let inst = k.inst(*self.demand.def.get(&next)?);
        let pointer = matches!(inst.op, Op::PtrAdd);
        let integer = matches!(inst.op, Op::Binary(kiln_block::BinaryOp::Add))
            && matches!(k.ty(p), Type::Block { elem: Elem::I32 | Elem::I64, shape } if !shape.is_empty());
        let (&a, &b) = (inst.args.first()?, inst.args.get(1)?);
        let step = match (pointer, integer) {
            (true, _) if a == p => b,
            (_, true) if a == p => b,
            (_, true) if b == p => a,
            _ => return None,
        };
        self.demand.invariant(k, step, loop_inst).then_some(step)
    }
    /// Computes an invariant value of a loop's body outside of it.
    fn hoist(&mut self, v: Value, loop_inst: Inst) -> Res<()> {
        let Some(&i) = self.demand.def.get(&v).filter(|_| self.demand.inside(v, loop_inst)) else { return Ok(()) };
        for &a in &self.kernel.inst(i).args {
            self.hoist(a, loop_inst)?;
        }
        let place = if self.is_block(v) {
            Place::Virtual(i)
        } else {
            self.memo = vec![Default::default()];
            self.lanes = 1;
            Place::Reg(self.compute_inst(i, &[])?)
        };
        self.place.insert(v, place);
        Ok(())
    }
    fn current(&mut self, c: &Carried, turn: &Num) -> Res<Place> {
        Ok(match c {
            Carried::Block { cur, elem, shape, .. } => {
                let ptr = self.text.emit(0, format!("load ptr, ptr {cur}"));
                Place::Buffer(Buffer { ptr, elem: *elem, shape: shape.clone() })
            }
            Carried::Scalar { slot, elem } => {
                let x = self.text.emit(0, format!("load {}, ptr {slot}", reg(*elem)));
                Place::Reg(self.wrap(*elem, x, 1, 0))
            }
            Carried::Induction { init, step } if init == step => {
                self.place.get(init).cloned().ok_or("a carried pointer without an initial value")?
            }
            Carried::Induction { init, step } => Place::Induction { init: *init, step: *step, turn: turn.clone() },
        })
    }

    fn if_else(&mut self, i: Inst) -> Res<()> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        self.flush()?;
        let c = inst.args.first().copied().ok_or("a condition without a value")?;
        let c = self.scalar(c)?;
        let c = self.reg(&c, 1);
        // Results in memory that both branches write.
        let mut homes = vec![];
        for &r in &inst.results {
            homes.push(match self.kernel.ty(r) {
                Type::Block { elem, shape } if shape.is_empty() => Home::Slot(self.text.alloca(reg(*elem), 8), *elem),
                Type::Block { elem, shape } => Home::Buffer(self.new_buffer(*elem, shape)),
                other => return Err(format!("a conditional {other}")),
            });
        }
        let label = self.text.label();
        self.text.line(0, format!("br i1 {c}, label %{label}.0, label %{label}.1"));
        for n in 0..2 {
            self.text.mark(&format!("{label}.{n}"));
            if let Some(region) = inst.regions.get(n) {
                self.region(region)?;
                let values = region.insts.last().map(|&y| kernel.inst(y)).filter(|y| matches!(y.op, Op::Yield));
                for (h, &v) in homes.iter().zip(values.map_or(&[][..], |y| &y.args)) {
                    match h {
                        Home::Buffer(b) => {
                            let shape = b.shape.clone();
                            self.push(i, &shape, Sink::Keep { value: v, buffer: b.clone(), place: false })?;
                            self.flush()?;
                        }
                        Home::Slot(s, e) => {
                            self.flush()?;
                            let x = self.scalar(v)?;
                            let x = self.reg(&x, 1);
                            self.text.line(0, format!("store {} {x}, ptr {s}", reg(*e)));
                        }
                    }
                }
                self.flush()?;
            }
            self.text.line(0, format!("br label %{label}.2"));
        }
        self.text.mark(&format!("{label}.2"));
        for (h, &r) in homes.into_iter().zip(&inst.results) {
            let place = match h {
                Home::Buffer(b) => Place::Buffer(b),
                Home::Slot(s, e) => {
                    let x = self.text.emit(0, format!("load {}, ptr {s}", reg(e)));
                    Place::Reg(self.wrap(e, x, 1, 0))
                }
            };
            self.place.insert(r, place);
        }
        Ok(())
    }
}

enum Home {
    Slot(Name, Elem),
    Buffer(Buffer),
}

/// How a loop holds a carried value: two buffers that are swapped, a stack slot, or nothing at all.
enum Carried {
    Block { cur: Name, other: Name, elem: Elem, shape: Vec<usize> },
    Scalar { slot: Name, elem: Elem },
    Induction { init: Value, step: Value },
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
            | Op::PtrAdd
            | Op::Load(..)
    )
}
