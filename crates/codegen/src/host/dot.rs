//! Matmuls of blocks: a register tile of rows by vectors over packed operands.
use super::eval::{Buffer, Place};
use super::group::block_elem;
use super::memory::Store;
use super::text::{Name, reg, vector};
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, Value};

impl Emit<'_> {
    /// `a [M,K] x b [K,N] + acc [M,N]`. The operands were kept in scratch memory by demand analysis.
    pub fn dot(&mut self, a: Value, b: Value, acc: Value, result: Value) -> Res<()> {
        let [m, n] = self.kernel.ty(result).shape() else { return Err("a matmul that is not a matrix".into()) };
        let (m, n) = (*m, *n);
        let k = self.kernel.ty(a).shape().get(1).copied().ok_or("a matmul of vectors")?;
        let elem = block_elem(self.kernel.ty(acc))?;
        let (Some(Place::Buffer(pa)), Some(Place::Buffer(pb))) =
            (self.place.get(&a).cloned(), self.place.get(&b).cloned())
        else {
            return Err("a matmul of values that are not in memory".into());
        };
        let to = self.new_buffer(elem, &[m, n]);
        self.memo = vec![Default::default()];
        self.lanes = self.machine.lanes.min(n);
        let lanes = self.lanes;
        // Accumulators in registers: rows x columns vectors, 8 of them.
        let columns = (n / lanes).min(2);
        let rows = m.min(if columns == 2 { 4 } else { 8 });
        let (li, i) = self.text.open_loop();
        self.memo.push(Default::default());
        let (lj, j) = self.text.open_loop();
        self.memo.push(Default::default());
        self.tile(&pa, &pb, acc, &to, (rows, columns, k), (&i, &j))?;
        self.memo.pop();
        self.text.close_loop(&lj, &j, "0", &n.to_string(), (columns * lanes) as i64);
        self.memo.pop();
        self.text.close_loop(&li, &i, "0", &m.to_string(), rows as i64);
        self.memo = vec![Default::default()];
        self.lanes = 1;
        self.place.insert(result, Place::Buffer(to));
        Ok(())
    }
    fn tile(
        &mut self,
        a: &Buffer,
        b: &Buffer,
        acc: Value,
        to: &Buffer,
        (rows, columns, k): (usize, usize, usize),
        (i, j): (&Name, &Name),
    ) -> Res<()> {
        let (d, lanes, e) = (self.text.depth(), self.lanes, to.elem);
        let t = vector(reg(e), lanes);
        let at = |s: &mut Self, r: usize, c: usize| {
            let row = s.text.emit(d, format!("add nuw nsw i64 {i}, {r}"));
            let col = s.text.emit(d, format!("add nuw nsw i64 {j}, {}", c * lanes));
            let num = |text: Name| Num { text, konst: None, tz: 0, nonneg: true, exact: true };
            let form = if lanes > 1 { Form::Lanes(num(col), 1) } else { Form::Num(num(col)) };
            [Val::num(Elem::I64, num(row), d), Val { elem: Elem::I64, form, depth: d }]
        };
        let mut slots = vec![];
        for r in 0..rows {
            for c in 0..columns {
                let at = at(self, r, c);
                let v = self.eval(acc, &at)?;
                let x = self.reg(&v, lanes);
                let slot = self.text.alloca(&t, 64);
                self.text.line(d, format!("store {t} {x}, ptr {slot}"));
                slots.push(slot);
            }
        }
        let (label, kk) = self.text.open_loop();
        let dk = self.text.depth();
        let (ma, mb) = (Store::Scratch.ty(a.elem), Store::Scratch.ty(b.elem));
        let wide = |s: &mut Self, e: Elem, from: Elem, x: Name, n: usize| -> Res<Name> {
            if reg(from) == reg(e) { Ok(x) } else { s.cast_reg(from, e, dk, x, n) }
        };
        let n = to.shape[1];
        let brow = self.text.emit(dk, format!("mul nuw nsw i64 {kk}, {n}"));
        let bcol = self.text.emit(dk, format!("add nuw nsw i64 {brow}, {j}"));
        let mut bs = vec![];
        for c in 0..columns {
            let p = self.text.emit(dk, format!("add nuw nsw i64 {bcol}, {}", c * lanes));
            let p = self.gep(dk, mb, &b.ptr, &p);
            let x = self
                .text
                .emit(dk, format!("load {}, ptr {p}, align {}", vector(mb, lanes), Store::Scratch.bytes(b.elem)));
            bs.push(wide(self, e, b.elem, x, lanes)?);
        }
        for r in 0..rows {
            let row = self.text.emit(dk, format!("add nuw nsw i64 {i}, {r}"));
            let row = self.text.emit(dk, format!("mul nuw nsw i64 {row}, {k}"));
            let p = self.text.emit(dk, format!("add nuw nsw i64 {row}, {kk}"));
            let p = self.gep(dk, ma, &a.ptr, &p);
            let x = self.text.emit(dk, format!("load {ma}, ptr {p}"));
            let x = wide(self, e, a.elem, x, 1)?;
            let x = self.splat(reg(e), &x, lanes, dk);
            for (c, y) in bs.iter().enumerate() {
                let slot = &slots[r * columns + c];
                let s = self.text.emit(dk, format!("load {t}, ptr {slot}"));
                let s = if e.is_float() {
                    self.intrinsic(dk, "fma", reg(e), lanes, &[&x, y, &s])
                } else {
                    let p = self.text.emit(dk, format!("mul {t} {x}, {y}"));
                    self.text.emit(dk, format!("add {t} {p}, {s}"))
                };
                self.text.line(dk, format!("store {t} {s}, ptr {slot}"));
            }
        }
        self.text.close_loop(&label, &kk, "0", &k.to_string(), 1);
        for r in 0..rows {
            for c in 0..columns {
                let at = at(self, r, c);
                let x = self.text.emit(d, format!("load {t}, ptr {}", slots[r * columns + c]));
                let v = if lanes == 1 { self.wrap(e, x, 1, d) } else { Val { elem: e, form: Form::Vec(x), depth: d } };
                let off = self.linear(&to.shape, &at);
                self.write(Store::Scratch, &to.ptr, &off, &v, None)?;
            }
        }
        Ok(())
    }
}
