//! A program's loops and branches. Values enter and leave them in stack slots and scratch memory.
use super::eval::{Buffer, Place, pointee};
use super::group::{Sink, block_elem};
use super::memory::Store;
use super::text::{Name, reg};
use super::value::{Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, Inst, Op, Type, Value};

impl Emit<'_> {
    pub fn for_loop(&mut self, i: Inst) -> Res<()> {
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
        let [lo, mut hi, step] = [self.number(inst.args[0])?, self.number(inst.args[1])?, self.number(inst.args[2])?];
        if kernel.has_launch_values() && step.konst.is_none() {
            // A step that is not positive would not end.
            let ends = self.text.emit(0, format!("icmp sgt i64 {}, 0", step.text));
            let end = self.text.emit(0, format!("select i1 {ends}, i64 {}, i64 {}", hi.text, lo.text));
            hi = Num::opaque(end);
        }
        let turn = self.slot("i64", "0");
        let counter = self.slot("i64", &lo.text);
        let mut carried = vec![];
        for (n, (&p, &init)) in params.iter().zip(inits).enumerate() {
            carried.push(self.carry(i, p, init, (next, n))?);
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
        let elem = block_elem(kernel.ty(index))?;
        self.place.insert(index, Place::Reg(Val::num(elem, n, 0)));
        let turn_num = count(&turns);
        for (c, &p) in carried.iter().zip(params) {
            let place = self.current(c, &turn_num)?;
            self.place.insert(p, place);
        }
        self.region(region)?;
        self.next_values(i, &carried, next)?;
        let t = self.text.emit(0, format!("add i64 {turns}, 1"));
        self.text.line(0, format!("store i64 {t}, ptr {turn}"));
        let a = match elem {
            // Past the largest number there is no iteration.
            Elem::I64 => self.text.call(0, "i64", "llvm.sadd.sat.i64", &[("i64", &at), ("i64", &step.text)]),
            _ => self.text.emit(0, format!("add i64 {at}, {}", step.text)),
        };
        self.text.line(0, format!("store i64 {a}, ptr {counter}"));
        self.text.line(0, format!("br label %{label}.head"));
        self.text.mark(&format!("{label}.exit"));
        self.results(i, &carried, &turn_num)
    }
    /// A loop whose body ends with a condition.
    pub fn while_loop(&mut self, i: Inst) -> Res<()> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        let region = inst.regions.first().ok_or("a loop without a body")?;
        let last = region.insts.last().map(|&y| kernel.inst(y)).filter(|y| matches!(y.op, Op::Yield));
        let Some((&more, next)) = last.and_then(|y| y.args.split_first()) else {
            return Err("a loop without a condition".into());
        };
        if next.len() != region.params.len() || inst.args.len() != next.len() {
            return Err("a loop with unequal numbers of carried values".into());
        }
        self.flush()?;
        let turn = self.slot("i64", "0");
        let mut carried = vec![];
        for (n, (&p, &init)) in region.params.iter().zip(&inst.args).enumerate() {
            carried.push(self.carry(i, p, init, (next, n))?);
        }
        self.flush()?;
        let label = self.text.label();
        self.text.line(0, format!("br label %{label}.body"));
        self.text.mark(&format!("{label}.body"));
        let turns = self.text.emit(0, format!("load i64, ptr {turn}"));
        for (c, &p) in carried.iter().zip(&region.params) {
            let place = self.current(c, &count(&turns))?;
            self.place.insert(p, place);
        }
        self.region(region)?;
        self.flush()?;
        let more = self.scalar(more)?;
        let more = self.reg(&more, 1);
        self.next_values(i, &carried, next)?;
        let t = self.text.emit(0, format!("add i64 {turns}, 1"));
        self.text.line(0, format!("store i64 {t}, ptr {turn}"));
        self.text.line(0, format!("br i1 {more}, label %{label}.body, label %{label}.exit"));
        self.text.mark(&format!("{label}.exit"));
        let turns = self.text.emit(0, format!("load i64, ptr {turn}"));
        self.results(i, &carried, &count(&turns))
    }
    /// Behind a loop: its results are what it carried last.
    fn results(&mut self, i: Inst, carried: &[Carried], turns: &Num) -> Res<()> {
        for (c, &r) in carried.iter().zip(&self.kernel.inst(i).results) {
            if let Carried::Induction { step, .. } = c {
                // The body's own names are out of scope here.
                self.hoist(*step, i)?;
            }
            let place = self.current(c, turns)?;
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
                    let (elem, shape) = (*elem, shape.clone());
                    let buffer = Buffer { ptr, elem, shape, memory: Store::Scratch, neighbours: None };
                    // The yield itself is the sink, so that values that only the yield demands stay in registers.
                    self.push(loop_inst, &buffer.shape.clone(), Sink::Keep { value: n, buffer, place: false })?;
                }
                Carried::Replaced { buffer } => match self.place.get(&n) {
                    Some(Place::Buffer(b)) if b.ptr == buffer.ptr => {}
                    _ => {
                        let (shape, buffer) = (buffer.shape.clone(), buffer.clone());
                        self.push(loop_inst, &shape, Sink::Keep { value: n, buffer, place: false })?;
                    }
                },
                Carried::Scalar { .. } | Carried::Pointer { .. } => stores.push((c, n)),
                Carried::Induction { .. } => {}
            }
        }
        self.flush()?;
        let mut lines = vec![];
        for (c, n) in stores {
            let v = self.scalar(n)?;
            match c {
                Carried::Scalar { slot, elem } => {
                    let x = self.reg(&v, 1);
                    lines.push(format!("store {} {x}, ptr {slot}", reg(*elem)));
                }
                Carried::Pointer { slot, .. } => {
                    let address = self.address(&v)?;
                    let x = self.reg(&address, 1);
                    lines.push(format!("store i64 {x}, ptr {slot}"));
                }
                Carried::Block { .. } | Carried::Replaced { .. } | Carried::Induction { .. } => {}
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
    /// How a carried value is held; its next value is the n-th of all.
    fn carry(&mut self, loop_inst: Inst, p: Value, init: Value, (all, n): (&[Value], usize)) -> Res<Carried> {
        let next = all[n];
        if let Some(step) = self.induction(loop_inst, p, next) {
            self.hoist(step, loop_inst)?;
            return Ok(Carried::Induction { init, step });
        }
        let pointee = pointee(self.kernel.ty(p));
        match self.kernel.ty(p) {
            Type::Ptr { .. } if next == p => Ok(Carried::Induction { init, step: init }),
            Type::Block { elem, shape } | Type::Ptr { elem, shape } if !shape.is_empty() => {
                if pointee.is_none() && self.demand.replaces(self.kernel, loop_inst, p, (all, n)) {
                    let buffer = self.new_buffer(*elem, shape);
                    self.push(loop_inst, shape, Sink::Keep { value: init, buffer: buffer.clone(), place: false })?;
                    self.homes.insert(next, buffer.clone());
                    return Ok(Carried::Replaced { buffer });
                }
                let elem = if pointee.is_some() { &Elem::I64 } else { elem };
                let (a, b) = (self.new_buffer(*elem, shape), self.new_buffer(*elem, shape));
                self.push(loop_inst, shape, Sink::Keep { value: init, buffer: a.clone(), place: false })?;
                self.flush()?;
                let (cur, other) = (self.slot("ptr", &a.ptr), self.slot("ptr", &b.ptr));
                Ok(Carried::Block { cur, other, elem: *elem, shape: shape.clone(), pointee })
            }
            Type::Block { elem, .. } => {
                let v = self.scalar(init)?;
                let x = self.reg(&v, 1);
                Ok(Carried::Scalar { slot: self.slot(reg(*elem), &x), elem: *elem })
            }
            Type::Ptr { elem, .. } => {
                let p = self.scalar(init)?;
                let address = self.address(&p)?;
                let x = self.reg(&address, 1);
                Ok(Carried::Pointer { slot: self.slot("i64", &x), elem: *elem })
            }
            other => Err(format!("a carried {other}")),
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
            Carried::Block { cur, elem, shape, pointee, .. } => {
                let ptr = self.text.emit(0, format!("load ptr, ptr {cur}"));
                let (elem, shape) = (*elem, shape.clone());
                Place::of_buffer(Buffer { ptr, elem, shape, memory: Store::Scratch, neighbours: None }, *pointee)
            }
            Carried::Replaced { buffer } => Place::Buffer(buffer.clone()),
            Carried::Pointer { slot, elem } => {
                let x = self.text.emit(0, format!("load i64, ptr {slot}"));
                Place::Reg(self.pointer_to(*elem, &Val::num(Elem::I64, Num::opaque(x), 0)))
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

    pub fn if_else(&mut self, i: Inst) -> Res<()> {
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
                Type::Block { elem, shape } => Home::Buffer(self.new_buffer(*elem, shape), None),
                Type::Ptr { elem, shape } if shape.is_empty() => Home::Pointer(self.text.alloca("i64", 8), *elem),
                Type::Ptr { elem, shape } => Home::Buffer(self.new_buffer(Elem::I64, shape), Some(*elem)),
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
                        Home::Buffer(b, _) => {
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
                        Home::Pointer(s, _) => {
                            self.flush()?;
                            let p = self.scalar(v)?;
                            let address = self.address(&p)?;
                            let x = self.reg(&address, 1);
                            self.text.line(0, format!("store i64 {x}, ptr {s}"));
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
                Home::Buffer(b, pointee) => Place::of_buffer(b, pointee),
                Home::Pointer(s, e) => {
                    let x = self.text.emit(0, format!("load i64, ptr {s}"));
                    Place::Reg(self.pointer_to(e, &Val::num(Elem::I64, Num::opaque(x), 0)))
                }
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

/// Where both sides of a branch leave a result; blocks of pointers as addresses.
enum Home {
    Slot(Name, Elem),
    Pointer(Name, Elem),
    Buffer(Buffer, Option<Elem>),
}

/// How a loop holds a carried value: two buffers that are swapped, one where each element is replaced, a stack slot, or
/// nothing at all. Pointers are addresses there.
enum Carried {
    Replaced { buffer: Buffer },
    Block { cur: Name, other: Name, elem: Elem, shape: Vec<usize>, pointee: Option<Elem> },
    Scalar { slot: Name, elem: Elem },
    Pointer { slot: Name, elem: Elem },
    Induction { init: Value, step: Value },
}

/// A number of iterations.
fn count(text: &Name) -> Num {
    Num { text: text.clone(), konst: None, tz: 0, nonneg: true, exact: true }
}
