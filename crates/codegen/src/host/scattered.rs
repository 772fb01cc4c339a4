//! Loads at offsets of which nothing is known, as a vector where they turn out to be neighbours.
//!
//! Hand-written kernels wrap indices (`i % n`), choose them (`where(i < n, i, 0)`) or read them from memory. Mostly
//! they are neighbours all the same, and a gather takes ten times as long as a load. Where offsets are kept in memory,
//! it is kept with them which vectors are those of neighbours ([`Run`]).
use super::eval::Buffer;
use super::memory::{Guard, Store};
use super::text::{Name, literal, reg, suffix, vector};
use super::value::{Arith, Form, Num, Val};
use super::{Emit, Res};
use kiln_block::Elem;

/// A vector of offsets that may be those of neighbours, as was found out when it was computed.
#[derive(Clone)]
pub(super) struct Run {
    /// The first lane's.
    first: Num,
    /// Whether each lane's is one more than the last.
    neighbours: Name,
}

/// Lanes of one load.
pub(super) struct Scattered<'a> {
    /// Type and alignment of an element in memory.
    pub ty: &'a str,
    pub align: usize,
    pub root: &'a Name,
    /// A vector of offsets in elements.
    pub offsets: Name,
    /// Lanes outside of it are zero.
    pub mask: Option<Name>,
}

impl Emit<'_> {
    /// One address a lane.
    pub fn gather(&mut self, d: usize, load: &Scattered) -> Name {
        let (n, ty) = (self.lanes, load.ty);
        let (t, pointers) = (vector(ty, n), format!("{} align {}", vector("ptr", n), load.align));
        let mask = load.mask.clone().unwrap_or_else(|| literal("i1", n, "true"));
        let p = self.text.emit(d, format!("getelementptr {ty}, ptr {}, <{n} x i64> {}", load.root, load.offsets));
        let name = format!("llvm.masked.gather.{}.v{n}p0", suffix(ty, n));
        self.text.call(d, &t, &name, &[(&pointers, &p), (&vector("i1", n), &mask), (&t, "zeroinitializer")])
    }
    /// One load if the offsets are those of neighbours.
    pub fn gather_or_load(&mut self, d: usize, load: &Scattered) -> Name {
        let (n, ty) = (self.lanes, load.ty);
        let t = vector(ty, n);
        let Run { first, neighbours } = match self.runs.get(&load.offsets) {
            Some(run) => run.clone(),
            None => self.find_run(d, "i64", &load.offsets),
        };
        let label = self.text.label();
        self.text.line(d, format!("br i1 {neighbours}, label %{label}.row, label %{label}.each"));
        self.text.mark_at(d, &format!("{label}.row"));
        let p = self.gep(d, ty, load.root, &first.text);
        let row = match &load.mask {
            None => self.text.emit(d, format!("load {t}, ptr {p}, align {}", load.align)),
            Some(mask) => {
                let ptr = format!("ptr align {}", load.align);
                let name = format!("llvm.masked.load.{}.p0", suffix(ty, n));
                let mask_type = vector("i1", n);
                self.text.call(d, &t, &name, &[(&ptr, &p), (&mask_type, mask), (&t, "zeroinitializer")])
            }
        };
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark_at(d, &format!("{label}.each"));
        let lanes = self.gather(d, load);
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark_at(d, &format!("{label}.on"));
        self.text.emit(d, format!("phi {t} [ {row}, %{label}.row ], [ {lanes}, %{label}.each ]"))
    }
    /// Whether integers of a vector are those of neighbours.
    fn find_run(&mut self, d: usize, ty: &str, offsets: &Name) -> Run {
        let n = self.lanes;
        let t = vector(ty, n);
        let first = self.text.emit(d, format!("extractelement {t} {offsets}, i64 0"));
        let all = self.splat(ty, &first, n, d);
        let steps: Vec<String> = (0..n).map(|lane| format!("{ty} {lane}")).collect();
        let row = self.text.emit(d, format!("add {t} {all}, <{}>", steps.join(", ")));
        let same = self.text.emit(d, format!("icmp eq {t} {row}, {offsets}"));
        let bits = self.text.emit(d, format!("bitcast <{n} x i1> {same} to i{n}"));
        Run { first: Num::opaque(first), neighbours: self.text.emit(d, format!("icmp eq i{n} {bits}, -1")) }
    }
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
