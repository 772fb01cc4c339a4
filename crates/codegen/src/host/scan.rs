//! Scans inside a nest.
//!
//! Along the innermost axis a vector of lanes is scanned in log2 steps, each combining lanes at twice the distance of
//! the step before, and then combined with the carry of the previous vectors. Sums and products of f32 are accumulated
//! in f64, as PyTorch does. Along a leading axis an element is combined with the one before it, from the result's
//! scratch memory.
use super::group::{Accumulators, Running};
use super::memory::{Guard, Store};
use super::reduce::{combiner, identity, scan_reduce};
use super::text::{Name, literal, reg, vector};
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, ScanOp};

/// The element in which a scan along the innermost axis accumulates.
fn held(op: ScanOp, e: Elem) -> Elem {
    if e == Elem::F32 && op != ScanOp::Max { Elem::F64 } else { e }
}

impl Emit<'_> {
    /// Sets the carry at the start of a row to the identity, in all lanes.
    pub fn begin_scan(&mut self, op: ScanOp, acc: &mut Accumulators) {
        let (d, n, e) = (self.text.depth(), self.lanes, held(op, acc.elem));
        let t = vector(reg(e), n);
        if acc.slots.is_empty() {
            acc.slots.push((self.text.alloca(&t, 64), None));
        }
        if let Some((slot, _)) = acc.slots.first() {
            let first = literal(reg(e), n, &identity(scan_reduce(op), e));
            self.text.line(d, format!("store {t} {first}, ptr {slot}"));
        }
    }
    /// Scans one vector, given the carry; `carry` then holds the last lane's result in all lanes.
    fn scan_lanes(&mut self, op: ScanOp, from: Elem, x: Name, carry: &Name) -> Res<Name> {
        let (d, n, e) = (self.text.depth(), self.lanes, held(op, from));
        let (t, reduce) = (vector(reg(e), n), scan_reduce(op));
        let combine = combiner(reduce, e);
        let first = literal(reg(e), n, &identity(reduce, e));
        let mut x = if e == from { x } else { self.cast_reg(from, e, d, x, n)? };
        let mut distance = 1;
        while distance < n {
            let lanes: Vec<String> =
                (0..n).map(|l| format!("i32 {}", if l < distance { n + l } else { l - distance })).collect();
            let lanes = lanes.join(", ");
            let before = self.text.emit(d, format!("shufflevector {t} {x}, {t} {first}, <{n} x i32> <{lanes}>"));
            x = self.binary_reg(combine, e, d, &before, &x, n)?;
            distance *= 2;
        }
        let old = self.text.emit(d, format!("load {t}, ptr {carry}"));
        let result = self.binary_reg(combine, e, d, &old, &x, n)?;
        let mut next = result.clone();
        if n > 1 {
            // Not from `result`, so that only one operation of each vector depends on the vector before.
            let last = literal("i32", n, &(n - 1).to_string());
            let total = self.text.emit(d, format!("shufflevector {t} {x}, {t} poison, <{n} x i32> {last}"));
            next = self.binary_reg(combine, e, d, &old, &total, n)?;
        }
        self.text.line(d, format!("store {t} {next}, ptr {carry}"));
        if e == from { Ok(result) } else { self.cast_reg(e, from, d, result, n) }
    }
    pub fn scan_step(
        &mut self,
        op: ScanOp,
        axis: usize,
        v: &Val,
        at: &[Val],
        run: &mut Running,
        shape: &[usize],
    ) -> Res<()> {
        let d = self.text.depth();
        let reduce = scan_reduce(op);
        match run {
            Running::Lanes(acc) => {
                let (Some((slot, _)), Some(b)) = (acc.slots.first().cloned(), acc.buffer.clone()) else {
                    return Err("a scan without memory".into());
                };
                let e = acc.elem;
                let x = self.reg(v, self.lanes);
                let r = self.scan_lanes(op, e, x, &slot)?;
                let r = self.round(d, v.elem, r, self.lanes)?;
                let r = self.wrap(e, r, self.lanes, d);
                let off = self.linear(shape, at);
                self.write(Store::Scratch, &b.ptr, &off, &r, None)
            }
            Running::Memory(b, _) => {
                let b = b.clone();
                let e = b.elem;
                let mut before = at.to_vec();
                let one = Val::int(Elem::I64, 1);
                before[axis] = self.int_op(super::value::Arith::Sub, &at[axis], &one);
                let c = self.reg(&at[axis], 1);
                let inside = if c.starts_with('%') {
                    let m = self.text.emit(d, format!("icmp sgt i64 {c}, 0"));
                    Val { elem: Elem::Bool, form: Form::Scalar(m), depth: d }
                } else {
                    Val { elem: Elem::Bool, form: Form::Scalar("false".into()), depth: 0 }
                };
                let off = self.linear(shape, &before);
                let first = identity(reduce, e);
                let form = if matches!(e, Elem::I32 | Elem::I64) {
                    Form::Num(Num::konst(first.parse().unwrap_or(0)))
                } else {
                    Form::Scalar(first.as_str().into())
                };
                let first = Val { elem: e, form, depth: 0 };
                let old = self.read(
                    e,
                    Store::Scratch,
                    &b.ptr,
                    &off,
                    Guard { mask: Some(&inside), other: Some(&first), pin: true },
                )?;
                let v = Val { elem: e, ..v.clone() };
                let w = self.width(&[&old, &v]);
                let (a, x) = (self.reg(&old, w), self.reg(&v, w));
                let r = self.binary_reg(combiner(reduce, e), e, d, &a, &x, w)?;
                let r = self.wrap(e, r, w, d);
                let off = self.linear(shape, at);
                self.write(Store::Scratch, &b.ptr, &off, &r, None)
            }
            Running::None => Ok(()),
        }
    }
}
