//! Blocks that lie transposed in memory: read along their first axis, and turned in registers.
//!
//! The keys of an attention, or a matrix given by its strides, are neighbours along the first axis of the block, while
//! loops run along the last one. A vector of lanes would be gathered; squares of as many vectors as there are lanes are
//! read as they lie instead, and turned by as many stages of interleaving as the number of lanes has bits.
use super::eval::{Buffer, Place};
use super::group::{Group, Sink};
use super::text::{Name, reg, vector};
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, Op, Value};

/// A kept block whose nest reads squares.
pub(super) struct Transposed {
    value: Value,
    buffer: Buffer,
}

impl Emit<'_> {
    /// The block of a group that is only one load, if its elements are neighbours along its first axis alone.
    pub fn transposed(&mut self, group: &Group) -> Res<Option<Transposed>> {
        let [(_, Sink::Keep { value, buffer, .. })] = &group.sinks[..] else { return Ok(None) };
        let lanes = self.machine.lanes;
        let squares = matches!(group.shape[..], [m, n] if m.is_multiple_of(lanes) && n.is_multiple_of(lanes));
        let Some(Place::Virtual(load)) = self.place.get(value) else { return Ok(None) };
        let load = self.kernel.inst(*load);
        let (Op::Load(..), Some(&ptr)) = (&load.op, load.args.first()) else { return Ok(None) };
        let numbers = buffer.elem.is_float() || buffer.elem.is_int();
        if !squares || !numbers || buffer.neighbours.is_some() || !self.kernel.has_launch_values() {
            return Ok(None);
        }
        self.lanes = lanes;
        let (along, across) = (Form::Lanes(Num::konst(0), 1), Form::Num(Num::konst(0)));
        let [along, across] = [along, across].map(|form| Val { elem: Elem::I64, form, depth: 0 });
        let neighbours = |p: &Val| matches!(&p.form, Form::Ptr(_, off) if matches!(off.form, Form::Lanes(_, 1)));
        let rows = self.eval(ptr, &[across.clone(), along.clone()])?;
        let columns = self.eval(ptr, &[along, across])?;
        // What is known of a vector here is not what bounds of a whole axis ask for.
        self.memo = vec![Default::default()];
        let found = !neighbours(&rows) && neighbours(&columns);
        Ok(found.then(|| Transposed { value: *value, buffer: buffer.clone() }))
    }
    /// The nest of such a block.
    pub fn transpose(&mut self, block: &Transposed) -> Res<()> {
        let Transposed { value, buffer } = block;
        let (lanes, step) = (self.lanes, self.lanes as i64);
        let tz = lanes.trailing_zeros();
        let [rows, columns] = buffer.shape[..] else { return Err("a transposed block that is not a matrix".into()) };
        let (outer, column) = self.text.open_loop();
        self.memo.push(Default::default());
        let within: Vec<Val> = (0..step).map(|n| self.counter(&column, n, tz)).collect();
        let (inner, row) = self.text.open_loop();
        self.memo.push(Default::default());
        let along = self.lanes_from(&row);
        let mut square = vec![];
        for column in within {
            let x = self.eval(*value, &[along.clone(), column])?;
            square.push(self.reg(&x, lanes));
        }
        let square = self.turned_square(reg(buffer.elem), square);
        let along = self.lanes_from(&column);
        for (n, x) in square.into_iter().enumerate() {
            let at = [self.counter(&row, n as i64, tz), along.clone()];
            let off = self.linear(&buffer.shape, &at);
            let x = Val { elem: buffer.elem, form: Form::Vec(x), depth: self.text.depth() };
            self.write(buffer.memory, &buffer.ptr, &off, &x, None)?;
        }
        self.memo.pop();
        self.text.close_loop(&inner, &row, "0", &rows.to_string(), step);
        self.memo.pop();
        self.text.close_loop(&outer, &column, "0", &columns.to_string(), step);
        Ok(())
    }
    /// Coordinates of lanes from a counter on, which is a multiple of their number.
    fn lanes_from(&self, counter: &Name) -> Val {
        let tz = self.lanes.trailing_zeros();
        let first = Num { text: counter.clone(), konst: None, tz, nonneg: true, exact: true };
        Val { elem: Elem::I64, form: Form::Lanes(first, 1), depth: self.text.depth() }
    }
    /// As many vectors as they have lanes, turned: a stage rotates the bits of rows and lanes by one.
    fn turned_square(&mut self, ty: &str, mut square: Vec<Name>) -> Vec<Name> {
        let (d, n) = (self.text.depth(), self.lanes);
        let t = vector(ty, n);
        for _ in 0..n.trailing_zeros() {
            let (upper, lower) = square.split_at(n / 2);
            let mut next = vec![];
            for (a, b) in upper.iter().zip(lower) {
                for start in [0, n / 2] {
                    let pairs = (start..start + n / 2).map(|lane| format!("i32 {lane}, i32 {}", n + lane));
                    let order = pairs.collect::<Vec<_>>().join(", ");
                    next.push(self.text.emit(d, format!("shufflevector {t} {a}, {t} {b}, <{n} x i32> <{order}>")));
                }
            }
            square = next;
        }
        square
    }
}
