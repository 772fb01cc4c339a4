//! Values during emission: what is known about an element (or W of them) at given coordinates.
//!
//! Integers keep their affine form over the lanes, so that contiguous accesses, uniform values and prefix masks are
//! recognised where they are used. An i32 in affine form is not wrapped (64 bits): sums and products are correct after
//! truncation, and addresses and bounds assume that indices do not overflow.
use super::text::{Name, literal, reg, vector};
use super::{Emit, Res};
use kiln_block::Elem;

/// A uniform integer of 64 bits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Num {
    pub text: Name,
    pub konst: Option<i64>,
    /// It is a multiple of 2^tz.
    pub tz: u32,
    pub nonneg: bool,
    /// In the range of its element; false where an i32 may have wrapped.
    pub exact: bool,
}
impl Num {
    pub fn konst(v: i64) -> Num {
        Num { text: v.to_string().into(), konst: Some(v), tz: v.trailing_zeros().min(32), nonneg: v >= 0, exact: true }
    }
    pub fn opaque(text: Name) -> Num {
        Num { text, konst: None, tz: 0, nonneg: false, exact: true }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Form {
    /// I32 and I64, the same in all lanes.
    Num(Num),
    /// I32 and I64: base + lane * stride.
    Lanes(Num, i64),
    /// Other elements, the same in all lanes.
    Scalar(Name),
    /// Bool: lane < n.
    Prefix(Num),
    Vec(Name),
    /// A pointer: root address, offset in elements (an I64).
    Ptr(Name, Box<Val>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Val {
    pub elem: Elem,
    pub form: Form,
    /// The scope that its names are defined in.
    pub depth: usize,
}
impl Val {
    pub fn int(elem: Elem, v: i64) -> Val {
        Val { elem, form: Form::Num(Num::konst(v)), depth: 0 }
    }
    pub fn truth(v: bool) -> Val {
        Val { elem: Elem::Bool, form: Form::Scalar(if v { "true" } else { "false" }.into()), depth: 0 }
    }
    pub fn num(elem: Elem, n: Num, depth: usize) -> Val {
        Val { elem, form: Form::Num(n), depth }
    }
    pub fn is_true(&self) -> bool {
        matches!(&self.form, Form::Scalar(s) if &**s == "true")
    }
    pub fn uniform(&self) -> bool {
        match &self.form {
            Form::Num(_) | Form::Scalar(_) => true,
            Form::Ptr(_, off) => off.uniform(),
            _ => false,
        }
    }
    pub fn konst(&self) -> Option<i64> {
        match &self.form {
            Form::Num(n) => n.konst,
            _ => None,
        }
    }
}

/// A vector of offsets that may be those of neighbours, as was found out when it was computed.
#[derive(Clone)]
pub(super) struct Run {
    /// The first lane's.
    pub first: Num,
    /// Whether each lane's is one more than the last.
    pub neighbours: Name,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Arith {
    Add,
    Sub,
    Mul,
}

impl Emit<'_> {
    pub fn num_op(&mut self, op: Arith, a: &Num, b: &Num, depth: usize) -> Num {
        if let (Some(x), Some(y)) = (a.konst, b.konst) {
            return Num::konst(match op {
                Arith::Add => x.wrapping_add(y),
                Arith::Sub => x.wrapping_sub(y),
                Arith::Mul => x.wrapping_mul(y),
            });
        }
        match (op, a.konst, b.konst) {
            (Arith::Add, Some(0), _) | (Arith::Mul, Some(1), _) => return b.clone(),
            (Arith::Add | Arith::Sub, _, Some(0)) | (Arith::Mul, _, Some(1)) => return a.clone(),
            (Arith::Mul, Some(0), _) | (Arith::Mul, _, Some(0)) => return Num::konst(0),
            _ => {}
        }
        let name = match op {
            Arith::Add => "add",
            Arith::Sub => "sub",
            Arith::Mul => "mul",
        };
        let text = self.text.emit(depth, format!("{name} i64 {}, {}", a.text, b.text));
        Num {
            text,
            konst: None,
            tz: if op == Arith::Mul { (a.tz + b.tz).min(32) } else { a.tz.min(b.tz) },
            nonneg: op != Arith::Sub && a.nonneg && b.nonneg,
            exact: false,
        }
    }
    /// The number as its element would hold it (an i32 wrapped).
    pub fn exact(&mut self, elem: Elem, n: &Num, depth: usize) -> Num {
        if n.exact || elem == Elem::I64 {
            return n.clone();
        }
        if let Some(v) = n.konst {
            return Num::konst(v as i32 as i64);
        }
        let t = self.text.emit(depth, format!("trunc i64 {} to i32", n.text));
        let text = self.text.emit(depth, format!("sext i32 {t} to i64"));
        Num { text, konst: None, tz: n.tz, nonneg: n.nonneg, exact: true }
    }
    /// Sum, difference or product of integers of one element type.
    pub fn int_op(&mut self, op: Arith, a: &Val, b: &Val) -> Val {
        let depth = a.depth.max(b.depth);
        let elem = a.elem;
        let form = match (&a.form, &b.form) {
            (Form::Num(x), Form::Num(y)) => Some(Form::Num(self.num_op(op, x, y, depth))),
            (Form::Lanes(x, s), Form::Num(y)) => match (op, y.konst) {
                (Arith::Mul, Some(c)) => Some(Form::Lanes(self.num_op(op, x, y, depth), s.wrapping_mul(c))),
                (Arith::Mul, None) => None,
                _ => Some(Form::Lanes(self.num_op(op, x, y, depth), *s)),
            },
            (Form::Num(x), Form::Lanes(y, s)) => match (op, x.konst) {
                (Arith::Mul, Some(c)) => Some(Form::Lanes(self.num_op(op, x, y, depth), s.wrapping_mul(c))),
                (Arith::Mul, None) => None,
                (Arith::Sub, _) => Some(Form::Lanes(self.num_op(op, x, y, depth), -s)),
                _ => Some(Form::Lanes(self.num_op(op, x, y, depth), *s)),
            },
            (Form::Lanes(x, s), Form::Lanes(y, t)) => match op {
                Arith::Add => Some(Form::Lanes(self.num_op(op, x, y, depth), s + t)),
                Arith::Sub => Some(Form::Lanes(self.num_op(op, x, y, depth), s - t)),
                Arith::Mul => None,
            },
            _ => None,
        };
        let form = match form {
            Some(Form::Lanes(b, 0)) => Form::Num(b),
            Some(f) => f,
            None => {
                let (x, y) = (self.reg(a, self.lanes), self.reg(b, self.lanes));
                let name = match op {
                    Arith::Add => "add",
                    Arith::Sub => "sub",
                    Arith::Mul => "mul",
                };
                let ty = vector(reg(elem), self.lanes);
                let moved = self.text.emit(depth, format!("{name} {ty} {x}, {y}"));
                self.move_run(op, a, b, &moved);
                Form::Vec(moved)
            }
        };
        Val { elem, form, depth }
    }
    /// Quotient (or remainder) by a positive constant where the lanes allow an affine result; `None` otherwise.
    pub fn div_const(&mut self, a: &Val, c: i64, rem: bool) -> Option<Val> {
        if c <= 0 {
            return None;
        }
        let depth = a.depth;
        let width = self.span.unwrap_or(self.lanes) as i64;
        match &a.form {
            Form::Num(n) => {
                let n = self.exact(a.elem, n, depth);
                let n = self.num_div(&n, c, rem, depth);
                Some(Val { elem: a.elem, form: Form::Num(n), depth })
            }
            Form::Lanes(n, 1) if n.nonneg && c % width == 0 && 1i64 << n.tz.min(30) >= width => {
                let q = self.num_div(n, c, rem, depth);
                let form = if rem { Form::Lanes(q, 1) } else { Form::Num(q) };
                Some(Val { elem: a.elem, form, depth })
            }
            _ => None,
        }
    }
    fn num_div(&mut self, n: &Num, c: i64, rem: bool, depth: usize) -> Num {
        if let Some(v) = n.konst {
            return Num::konst(if rem { v % c } else { v / c });
        }
        if c == 1 {
            return if rem { Num::konst(0) } else { n.clone() };
        }
        let name = match (n.nonneg, rem) {
            (true, false) => "udiv",
            (true, true) => "urem",
            (false, false) => "sdiv",
            (false, true) => "srem",
        };
        let text = self.text.emit(depth, format!("{name} i64 {}, {c}", n.text));
        let ctz = c.trailing_zeros();
        let tz = if rem {
            n.tz.min(ctz)
        } else if c.count_ones() == 1 {
            n.tz.saturating_sub(ctz)
        } else {
            0
        };
        Num { text, konst: None, tz, nonneg: n.nonneg, exact: true }
    }

    /// The value in a register of `lanes` lanes (1: it must be uniform).
    pub fn reg(&mut self, v: &Val, lanes: usize) -> Name {
        let (ty, d) = (reg(v.elem), v.depth);
        match &v.form {
            Form::Num(n) => match n.konst {
                Some(c) => {
                    let c = if v.elem == Elem::I32 { c as i32 as i64 } else { c };
                    literal(ty, lanes, &c.to_string())
                }
                None => {
                    let s = self.native(v.elem, n, d);
                    self.splat(ty, &s, lanes, d)
                }
            },
            Form::Scalar(s) => {
                if lanes > 1 && !s.starts_with('%') {
                    return literal(ty, lanes, s);
                }
                self.splat(ty, s, lanes, d)
            }
            Form::Lanes(base, stride) => {
                let s = self.native(v.elem, base, d);
                let b = self.splat(ty, &s, lanes, d);
                let steps: Vec<String> = (0..lanes as i64)
                    .map(|l| {
                        let x = l.wrapping_mul(*stride);
                        format!("{ty} {}", if v.elem == Elem::I32 { x as i32 as i64 } else { x })
                    })
                    .collect();
                self.text.emit(d, format!("add {} {b}, <{}>", vector(ty, lanes), steps.join(", ")))
            }
            Form::Prefix(n) => {
                // Compared in 32 bits: the count is first clamped to the number of lanes.
                let w = lanes.to_string();
                let lo = self.text.call(d, "i64", "llvm.smax.i64", &[("i64", &n.text), ("i64", "0")]);
                let hi = self.text.call(d, "i64", "llvm.smin.i64", &[("i64", &lo), ("i64", &w)]);
                let c = self.text.emit(d, format!("trunc i64 {hi} to i32"));
                let b = self.splat("i32", &c, lanes, d);
                let iota: Vec<String> = (0..lanes).map(|l| format!("i32 {l}")).collect();
                self.text.emit(d, format!("icmp ult <{lanes} x i32> <{}>, {b}", iota.join(", ")))
            }
            Form::Vec(s) => s.clone(),
            Form::Ptr(root, _) => root.clone(),
        }
    }
    /// A number as a scalar register of its element.
    pub fn native(&mut self, elem: Elem, n: &Num, depth: usize) -> Name {
        match (elem, n.konst) {
            (Elem::I32, Some(c)) => (c as i32).to_string().into(),
            (Elem::I32, None) => self.text.emit(depth, format!("trunc i64 {} to i32", n.text)),
            _ => n.text.clone(),
        }
    }
    pub fn splat(&mut self, ty: &str, s: &Name, lanes: usize, d: usize) -> Name {
        if lanes == 1 {
            return s.clone();
        }
        let t = vector(ty, lanes);
        let one = self.text.emit(d, format!("insertelement {t} poison, {ty} {s}, i64 0"));
        self.text.emit(d, format!("shufflevector {t} {one}, {t} poison, <{lanes} x i32> zeroinitializer"))
    }
    /// Wraps a register; uniform integers become numbers.
    pub fn wrap(&mut self, elem: Elem, name: Name, lanes: usize, depth: usize) -> Val {
        let form = match (lanes, elem) {
            (1, Elem::I64) => Form::Num(Num::opaque(name)),
            (1, Elem::I32) => Form::Num(Num::opaque(self.text.emit(depth, format!("sext i32 {name} to i64")))),
            (1, _) => Form::Scalar(name),
            _ => Form::Vec(name),
        };
        Val { elem, form, depth }
    }
    /// Lanes that an operation on these values needs: 1 if all are uniform.
    pub fn width(&self, vals: &[&Val]) -> usize {
        if vals.iter().all(|v| v.uniform()) { 1 } else { self.lanes }
    }
    /// A uniform integer.
    pub fn as_num(&self, v: &Val) -> Res<Num> {
        match &v.form {
            Form::Num(n) => Ok(n.clone()),
            _ => Err("a scalar that varies over lanes".into()),
        }
    }
}
