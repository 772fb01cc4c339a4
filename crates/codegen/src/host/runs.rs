//! Vectors of kept offsets that may be those of neighbours: what is noted with them in memory, and where it goes.
//!
//! Whether a vector is one is found out once, when it is kept, and read again with it; sums and casts of the vector
//! take it along. What [`super::scattered`] loads by it is one vector then.
use super::eval::Buffer;
use super::memory::{Guard, Store};
use super::text::{Name, reg};
use super::value::{Arith, Form, Run, Val};
use super::{Emit, Res};
use kiln_block::Elem;

impl Emit<'_> {
    /// Where the run of a vector of a buffer is noted, if it is.
    fn run_at(&mut self, buffer: &Buffer, off: &Val) -> Option<Name> {
        let (Some(neighbours), Form::Lanes(base, 1)) = (&buffer.neighbours, &off.form) else { return None };
        let shift = self.machine.lanes.trailing_zeros();
        if self.lanes != self.machine.lanes || base.tz < shift {
            return None;
        }
        let d = off.depth;
        let vector = self.text.emit(d, format!("lshr i64 {}, {shift}", base.text));
        Some(self.gep(d, "i8", neighbours, &vector))
    }
    /// Notes with a vector of kept offsets whether they are those of neighbours.
    pub fn write_run(&mut self, buffer: &Buffer, off: &Val, v: &Val) -> Res<()> {
        if buffer.neighbours.is_none() {
            return Ok(());
        }
        let p = self.run_at(buffer, off).ok_or("kept offsets that are not written in vectors")?;
        let d = self.text.depth();
        let byte = match &v.form {
            Form::Lanes(_, 1) => "1".into(),
            Form::Vec(x) => {
                let Run { neighbours, .. } = self.find_run(d, reg(v.elem), x);
                self.text.emit(d, format!("zext i1 {neighbours} to i8"))
            }
            _ => "0".into(),
        };
        self.text.line(d, format!("store i8 {byte}, ptr {p}"));
        Ok(())
    }
    /// Remembers what is noted with a vector of kept offsets that was read.
    pub fn read_run(&mut self, buffer: &Buffer, off: &Val, read: &Val) -> Res<()> {
        let (Form::Lanes(base, 1), Form::Vec(x)) = (&off.form, &read.form) else { return Ok(()) };
        let Some(p) = self.run_at(buffer, off) else { return Ok(()) };
        let d = read.depth;
        let byte = self.text.emit(d, format!("load i8, ptr {p}"));
        let neighbours = self.text.emit(d, format!("icmp ne i8 {byte}, 0"));
        let first = Val::num(Elem::I64, base.clone(), off.depth);
        let first = self.read(buffer.elem, Store::Scratch, &buffer.ptr, &first, Guard::default())?;
        let Form::Num(first) = first.form else { return Ok(()) };
        self.runs.insert(x.clone(), Run { first, neighbours });
        Ok(())
    }
    /// The same offsets in other registers.
    pub fn same_run(&mut self, from: &Name, to: &Name) {
        if let Some(run) = self.runs.get(from).cloned() {
            self.runs.insert(to.clone(), run);
        }
    }
    /// Offsets that all moved by the same number: the sum or difference of `a` and `b`.
    pub fn move_run(&mut self, op: Arith, a: &Val, b: &Val, moved: &Name) {
        let (x, by) = match (&a.form, &b.form) {
            (Form::Vec(x), Form::Num(by)) if op != Arith::Mul => (x, by),
            (Form::Num(by), Form::Vec(x)) if op == Arith::Add => (x, by),
            _ => return,
        };
        if let Some(Run { first, neighbours }) = self.runs.get(x).cloned() {
            let first = self.num_op(op, &first, by, a.depth.max(b.depth));
            self.runs.insert(moved.clone(), Run { first, neighbours });
        }
    }
}
