//! Reductions and scans by a region: element after element along the axis, in vectors where that is a leading one; and
//! elements that are taken from several blocks or positions.
use super::eval::{Buffer, Place};
use super::group::block_elem;
use super::memory::Store;
use super::text::{Name, literal, reg, vector};
use super::value::{Arith, Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{BinaryOp, CmpOp, Elem, Inst, InstData, Op, Region, Value};

impl Emit<'_> {
    pub fn combine(&mut self, data: &InstData) -> Res<()> {
        let (axis, scan, reverse) = match data.op {
            Op::ReduceBy { axis } => (axis as usize, false, false),
            Op::ScanBy { axis, reverse } => (axis as usize, true, reverse),
            _ => return Err("nothing to combine".into()),
        };
        let kernel = self.kernel;
        let (Some(&first), Some(region)) = (data.args.first(), data.regions.first()) else {
            return Err("a combination of nothing".into());
        };
        let shape = self.shape(first);
        let mut to = vec![];
        for &v in &data.results {
            to.push(self.new_buffer(block_elem(kernel.ty(v))?, kernel.ty(v).shape()));
        }
        self.flush()?;
        self.memo = vec![Default::default()];
        // Rows of elements that are combined with other rows.
        let row = shape.iter().rposition(|&n| n > 1).filter(|&a| a != axis);
        self.lanes = row.map_or(1, |a| self.machine.lanes.min(shape[a]));
        let mut slots: Vec<(Name, Elem)> = vec![];
        for &v in &data.args {
            let elem = block_elem(kernel.ty(v))?;
            slots.push((self.text.alloca(&vector(reg(elem), self.lanes), 64), elem));
        }
        let mut at: Vec<Val> = vec![Val::int(Elem::I64, 0); shape.len()];
        let mut open = vec![];
        for (a, &n) in shape.iter().enumerate().filter(|(a, n)| *a != axis && **n > 1) {
            let (label, i) = self.text.open_loop();
            self.memo.push(Default::default());
            let step = if row == Some(a) { self.lanes } else { 1 };
            let c = self.counter(&i, 0, step.trailing_zeros());
            at[a] = match c.form {
                Form::Num(first) if step > 1 => Val { form: Form::Lanes(first, 1), ..c },
                _ => c,
            };
            open.push((label, i, n, step));
        }
        let last = shape[axis] as i64 - 1;
        at[axis] = Val::int(Elem::I64, if reverse { last } else { 0 });
        let start = self.elements(&data.args, &at)?;
        self.keep_in(&slots, &start);
        if scan {
            self.leave(&slots, &to, &at)?;
        }
        // The others, one after the other.
        let (label, i) = self.text.open_loop();
        self.memo.push(Default::default());
        let step = self.counter(&i, 0, 0);
        at[axis] = if reverse { self.int_op(Arith::Sub, &Val::int(Elem::I64, last), &step) } else { step };
        let next = self.elements(&data.args, &at)?;
        let before: Vec<Val> = slots.iter().map(|s| self.kept(s)).collect();
        let now = self.by_region(region, before.iter().chain(&next))?;
        self.keep_in(&slots, &now);
        if scan {
            self.leave(&slots, &to, &at)?;
        }
        self.memo.pop();
        self.text.close_loop(&label, &i, "1", &shape[axis].to_string(), 1);
        if !scan {
            at.remove(axis);
            self.leave(&slots, &to, &at)?;
        }
        while let Some((label, i, n, step)) = open.pop() {
            self.memo.pop();
            self.text.close_loop(&label, &i, "0", &n.to_string(), step as i64);
        }
        self.memo = vec![Default::default()];
        self.lanes = 1;
        for (&v, buffer) in data.results.iter().zip(to) {
            self.place.insert(v, Place::Buffer(buffer));
        }
        Ok(())
    }
    fn elements(&mut self, blocks: &[Value], at: &[Val]) -> Res<Vec<Val>> {
        blocks.iter().map(|v| self.eval(*v, at)).collect()
    }
    fn keep_in(&mut self, slots: &[(Name, Elem)], values: &[Val]) {
        let (d, lanes) = (self.text.depth(), self.lanes);
        for ((slot, elem), v) in slots.iter().zip(values) {
            let x = self.reg(v, lanes);
            self.text.line(d, format!("store {} {x}, ptr {slot}", vector(reg(*elem), lanes)));
        }
    }
    fn kept(&mut self, (slot, elem): &(Name, Elem)) -> Val {
        let (d, lanes) = (self.text.depth(), self.lanes);
        let x = self.text.emit(d, format!("load {}, ptr {slot}", vector(reg(*elem), lanes)));
        self.wrap(*elem, x, lanes, d)
    }
    /// Writes what is kept to memory.
    fn leave(&mut self, slots: &[(Name, Elem)], to: &[Buffer], at: &[Val]) -> Res<()> {
        for (slot, buffer) in slots.iter().zip(to) {
            let v = self.kept(slot);
            let off = self.linear(&buffer.shape, at);
            self.write(Store::Scratch, &buffer.ptr, &off, &v, None)?;
        }
        Ok(())
    }
    /// What the region gives for these values of its parameters.
    fn by_region<'v>(&mut self, region: &Region, values: impl Iterator<Item = &'v Val>) -> Res<Vec<Val>> {
        let kernel = self.kernel;
        for (p, v) in region.params.iter().zip(values) {
            self.place.insert(*p, Place::Reg(v.clone()));
        }
        let Some((last, insts)) = region.insts.split_last() else { return Err("a region without an end".into()) };
        self.memo.push(Default::default());
        for i in insts {
            if let Some(v) = kernel.inst(*i).results.first() {
                let value = self.compute_inst(*i, &[])?;
                self.place.insert(*v, Place::Reg(value));
            }
        }
        self.memo.pop();
        kernel.inst(*last).args.iter().map(|v| self.eval(*v, &[])).collect()
    }

    /// The element of a block that is made of others, or of elements of another, at these coordinates.
    pub fn moved(&mut self, i: Inst, at: &[Val]) -> Res<Val> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        match (&inst.op, &inst.args[..]) {
            (Op::Join, [a, b]) => {
                let Some((half, rest)) = at.split_last() else { return Err("a join without an axis".into()) };
                let first = self.cmp(CmpOp::Eq, half, &Val::int(Elem::I64, 0))?;
                let (x, y) = (self.eval(*a, rest)?, self.eval(*b, rest)?);
                self.select(&first, &x, &y)
            }
            (Op::Part { axis, at: start }, [v]) => {
                let mut whole = at.to_vec();
                let start = Val::int(Elem::I64, (*start).into());
                whole[*axis as usize] = self.int_op(Arith::Add, &at[*axis as usize], &start);
                self.eval(*v, &whole)
            }
            (Op::Split(half), [v]) => {
                let whole = [at, &[Val::int(Elem::I64, (*half).into())]].concat();
                self.eval(*v, &whole)
            }
            (Op::Cat { axis }, [a, b]) => {
                let n = Val::int(Elem::I64, kernel.ty(*a).shape()[*axis as usize] as i64);
                let first = self.cmp(CmpOp::Lt, &at[*axis as usize], &n)?;
                let mut inside = at.to_vec();
                inside[*axis as usize] = self.binary(BinaryOp::Rem, &at[*axis as usize], &n)?;
                let (x, y) = (self.eval(*a, &inside)?, self.eval(*b, &inside)?);
                self.select(&first, &x, &y)
            }
            (Op::Gather { axis }, [v, positions]) => {
                let position = self.eval(*positions, at)?;
                let position = self.inside(&position, kernel.ty(*v).shape()[*axis as usize] as i64 - 1);
                let mut from = at.to_vec();
                from[*axis as usize] = position;
                self.eval(*v, &from)
            }
            (op, _) => Err(format!("{op:?} of these operands")),
        }
    }
    /// A position along an axis, as a coordinate: whatever it is, no access is outside of the block.
    fn inside(&mut self, position: &Val, last: i64) -> Val {
        let (d, n) = (position.depth, self.width(&[position]));
        let x = self.reg(position, n);
        let (narrow, wide) = (vector("i32", n), vector("i64", n));
        let x = self.text.emit(d, format!("and {narrow} {x}, {}", literal("i32", n, &last.to_string())));
        let x = self.text.emit(d, format!("zext {narrow} {x} to {wide}"));
        let form = if n == 1 { Form::Num(Num { nonneg: true, ..Num::opaque(x) }) } else { Form::Vec(x) };
        Val { elem: Elem::I64, form, depth: d }
    }
}
