//! Pointers as numbers: addresses in bytes, choices between pointers of different roots, and the bits of elements.
use super::memory::Store;
use super::text::{Name, literal, mem, vector};
use super::value::{Arith, Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, Type};

impl Emit<'_> {
    /// The address in bytes.
    pub fn address(&mut self, p: &Val) -> Res<Val> {
        let Form::Ptr(root, off) = &p.form else { return Err("an address of something other than a pointer".into()) };
        let base = self.text.emit(p.depth, format!("ptrtoint ptr {root} to i64"));
        let base = Val::num(Elem::I64, Num::opaque(base), p.depth);
        let bytes = self.int_op(Arith::Mul, off, &Val::int(Elem::I64, p.elem.bytes() as i64));
        Ok(self.int_op(Arith::Add, &base, &bytes))
    }
    /// The pointer to elements at an address. Its root is the list of arguments, which is aligned for all elements, so
    /// that lanes may have addresses of different tensors.
    pub fn pointer_to(&mut self, elem: Elem, address: &Val) -> Val {
        let d = address.depth;
        let root = self.text.emit(d, "ptrtoint ptr %args to i64");
        let root = Val::num(Elem::I64, Num { tz: 3, ..Num::opaque(root) }, d);
        let bytes = self.int_op(Arith::Sub, address, &root);
        let off = self.divided(&bytes, elem.bytes() as i64);
        Val { elem, form: Form::Ptr("%args".into(), Box::new(off)), depth: d }
    }
    /// A multiple of a power of two, divided by it.
    fn divided(&mut self, v: &Val, by: i64) -> Val {
        let (d, bits) = (v.depth, by.trailing_zeros());
        let form = match &v.form {
            _ if by == 1 => v.form.clone(),
            Form::Num(n) => Form::Num(self.shifted(n, bits, d)),
            Form::Lanes(n, stride) if stride % by == 0 => Form::Lanes(self.shifted(n, bits, d), stride / by),
            _ => {
                let (t, n) = (vector("i64", self.lanes), self.lanes);
                let x = self.reg(v, n);
                let by = literal("i64", n, &bits.to_string());
                Form::Vec(self.text.emit(d, format!("ashr {t} {x}, {by}")))
            }
        };
        Val { elem: v.elem, form, depth: d }
    }
    fn shifted(&mut self, n: &Num, bits: u32, d: usize) -> Num {
        let text = self.text.emit(d, format!("ashr i64 {}, {bits}", n.text));
        Num { text, konst: None, tz: n.tz.saturating_sub(bits), nonneg: n.nonneg, exact: true }
    }
    /// A choice between pointers.
    pub fn select_pointer(&mut self, c: &Val, a: &Val, b: &Val) -> Res<Val> {
        if let (Form::Ptr(x, xo), Form::Ptr(y, yo)) = (&a.form, &b.form)
            && x == y
        {
            let off = self.select(c, xo, yo)?;
            let depth = off.depth.max(a.depth).max(b.depth);
            return Ok(Val { elem: a.elem, form: Form::Ptr(x.clone(), Box::new(off)), depth });
        }
        let (x, y) = (self.address(a)?, self.address(b)?);
        let address = self.select(c, &x, &y)?;
        Ok(self.pointer_to(a.elem, &address))
    }
    /// The same bits as a value of another type.
    pub fn bitcast(&mut self, v: &Val, to: &Type) -> Res<Val> {
        let elem = to.elem().ok_or("the bits of something without elements")?;
        match (&v.form, to) {
            (Form::Ptr(..), Type::Ptr { .. }) if v.elem.bytes() == elem.bytes() => Ok(Val { elem, ..v.clone() }),
            (Form::Ptr(..), Type::Ptr { .. }) => {
                let address = self.address(v)?;
                Ok(self.pointer_to(elem, &address))
            }
            (Form::Ptr(..), _) => self.address(v),
            (_, Type::Ptr { .. }) => Ok(self.pointer_to(elem, v)),
            _ => self.bits_as(v, elem),
        }
    }
    fn bits_as(&mut self, v: &Val, to: Elem) -> Res<Val> {
        let (from, d, n) = (v.elem, v.depth, self.width(&[v]));
        let x = self.reg(v, n);
        let x: Name = self.pack(d, from, Store::Tensor, x, n)?;
        let x = match (mem(from), mem(to)) {
            (a, b) if a == b => x,
            (a, b) => self.text.emit(d, format!("bitcast {} {x} to {}", vector(a, n), vector(b, n))),
        };
        let x = self.unpack(d, to, Store::Tensor, x, n)?;
        Ok(self.wrap(to, x, n, d))
    }
}
