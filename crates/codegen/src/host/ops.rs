//! Pointwise ops on registers, with the meanings that `kiln_block::ops` documents.
//!
//! Half types are computed in f32 and rounded once per op; a register of a half type always holds a rounded value.
use super::math;
use super::memory::Store;
use super::short_float::by_integers;
use super::text::{Name, float, literal, mem, reg, suffix, vector};
use super::value::{Arith, Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{BinaryOp, CmpOp, Elem, UnaryOp};

impl Emit<'_> {
    /// An overloaded intrinsic whose operands and result have one type.
    pub fn intrinsic(&mut self, d: usize, name: &str, ty: &str, lanes: usize, args: &[&str]) -> Name {
        let t = vector(ty, lanes);
        let list: Vec<(&str, &str)> = args.iter().map(|a| (t.as_str(), *a)).collect();
        self.text.call(d, &t, &format!("llvm.{name}.{}", suffix(ty, lanes)), &list)
    }
    /// Rounds an f32 register to a half type's values; others as they are.
    pub fn round(&mut self, d: usize, elem: Elem, x: Name, n: usize) -> Res<Name> {
        let (f, i, h) = (vector("float", n), vector("i32", n), vector("half", n));
        let lit = |v: i64| literal("i32", n, &v.to_string());
        Ok(match elem {
            Elem::F16 if self.machine.f16c => {
                let t = self.text.emit(d, format!("fptrunc {f} {x} to {h}"));
                self.text.emit(d, format!("fpext {h} {t} to {f}"))
            }
            Elem::Bf16 => {
                let u = self.text.emit(d, format!("bitcast {f} {x} to {i}"));
                let s = self.text.emit(d, format!("lshr {i} {u}, {}", lit(16)));
                let odd = self.text.emit(d, format!("and {i} {s}, {}", lit(1)));
                let a = self.text.emit(d, format!("add {i} {u}, {}", lit(0x7fff)));
                let b = self.text.emit(d, format!("add {i} {a}, {odd}"));
                let r = self.text.emit(d, format!("and {i} {b}, {}", lit(-0x10000)));
                let nan = self.text.emit(d, format!("fcmp uno {f} {x}, {x}"));
                let c = vector("i1", n);
                let q = self.text.emit(d, format!("select {c} {nan}, {i} {}, {i} {r}", lit(0x7fc0_0000)));
                self.text.emit(d, format!("bitcast {i} {q} to {f}"))
            }
            e => match by_integers(e) {
                Some(format) => self.short_round(d, format, &x, n),
                None => x,
            },
        })
    }

    pub fn unary(&mut self, op: UnaryOp, v: &Val) -> Res<Val> {
        if v.elem.is_int() && op == UnaryOp::Neg {
            let zero = Val::int(v.elem, 0);
            if matches!(v.elem, Elem::I32 | Elem::I64) {
                return Ok(self.int_op(Arith::Sub, &zero, v));
            }
        }
        let (n, d, e) = (self.width(&[v]), v.depth, v.elem);
        let ty = reg(e);
        let t = vector(ty, n);
        let x = self.reg(v, n);
        if e.is_float() {
            let lit = |c: f64| literal(ty, n, &float(ty, c));
            if matches!(op, UnaryOp::IsNan | UnaryOp::IsInf) {
                let r = if op == UnaryOp::IsNan {
                    self.text.emit(d, format!("fcmp uno {t} {x}, {x}"))
                } else {
                    let a = self.intrinsic(d, "fabs", ty, n, &[&x]);
                    self.text.emit(d, format!("fcmp oeq {t} {a}, {}", lit(f64::INFINITY)))
                };
                return Ok(self.wrap(Elem::Bool, r, n, d));
            }
            let r = match op {
                UnaryOp::Neg => self.text.emit(d, format!("fneg {t} {x}")),
                UnaryOp::Abs => self.intrinsic(d, "fabs", ty, n, &[&x]),
                UnaryOp::Sqrt | UnaryOp::SqrtRn => self.intrinsic(d, "sqrt", ty, n, &[&x]),
                UnaryOp::Rsqrt => {
                    let s = self.intrinsic(d, "sqrt", ty, n, &[&x]);
                    self.text.emit(d, format!("fdiv {t} {}, {s}", lit(1.0)))
                }
                UnaryOp::Floor => self.intrinsic(d, "floor", ty, n, &[&x]),
                UnaryOp::Ceil => self.intrinsic(d, "ceil", ty, n, &[&x]),
                UnaryOp::Round => self.intrinsic(d, "roundeven", ty, n, &[&x]),
                UnaryOp::Trunc => self.intrinsic(d, "trunc", ty, n, &[&x]),
                UnaryOp::Not | UnaryOp::Tf32 => return Err(format!("{op:?} of {e}")),
                _ => math::unary(self, d, op, e, x, n)?,
            };
            let r = self.round(d, e, r, n)?;
            return Ok(self.wrap(e, r, n, d));
        }
        let r = match op {
            UnaryOp::Neg => self.text.emit(d, format!("sub {t} {}, {x}", literal(ty, n, "0"))),
            UnaryOp::Abs if !e.is_signed() => x,
            UnaryOp::Abs => {
                let zero = literal(ty, n, "0");
                let m = self.text.emit(d, format!("sub {t} {zero}, {x}"));
                self.intrinsic(d, "smax", ty, n, &[&x, &m])
            }
            UnaryOp::Not => self
                .text
                .emit(d, format!("xor {t} {x}, {}", literal(ty, n, if e == Elem::Bool { "true" } else { "-1" }))),
            UnaryOp::IsNan | UnaryOp::IsInf => return Ok(Val::truth(false)),
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => x,
            _ => return Err(format!("{op:?} of {e}")),
        };
        Ok(self.wrap(e, r, n, d))
    }

    pub fn binary(&mut self, op: BinaryOp, a: &Val, b: &Val) -> Res<Val> {
        let e = a.elem;
        if matches!(e, Elem::I32 | Elem::I64) {
            let arith = match op {
                BinaryOp::Add => Some(Arith::Add),
                BinaryOp::Sub => Some(Arith::Sub),
                BinaryOp::Mul => Some(Arith::Mul),
                _ => None,
            };
            if let Some(arith) = arith {
                return Ok(self.int_op(arith, a, b));
            }
            if let (BinaryOp::Div | BinaryOp::Rem, Some(c)) = (op, b.konst())
                && let Some(v) = self.div_const(a, c, op == BinaryOp::Rem)
            {
                return Ok(v);
            }
        }
        if e == Elem::Bool
            && op == BinaryOp::And
            && let Some(v) = self.and_masks(a, b)
        {
            return Ok(v);
        }
        let d = a.depth.max(b.depth);
        let n = self.width(&[a, b]);
        let (x, y) = (self.reg(a, n), self.reg(b, n));
        let r = self.binary_reg(op, e, d, &x, &y, n)?;
        Ok(self.wrap(e, r, n, d))
    }
    /// Conjunctions of masks, which keep the prefix form.
    fn and_masks(&mut self, a: &Val, b: &Val) -> Option<Val> {
        let d = a.depth.max(b.depth);
        match (&a.form, &b.form) {
            _ if a.is_true() => Some(b.clone()),
            _ if b.is_true() => Some(a.clone()),
            (Form::Prefix(x), Form::Prefix(y)) => {
                let t = self.text.call(d, "i64", "llvm.smin.i64", &[("i64", &x.text), ("i64", &y.text)]);
                Some(Val { elem: Elem::Bool, form: Form::Prefix(Num::opaque(t)), depth: d })
            }
            (Form::Prefix(x), Form::Scalar(c)) | (Form::Scalar(c), Form::Prefix(x)) => {
                let t = self.text.emit(d, format!("select i1 {c}, i64 {}, i64 0", x.text));
                Some(Val { elem: Elem::Bool, form: Form::Prefix(Num::opaque(t)), depth: d })
            }
            _ => None,
        }
    }
    /// On registers of `n` lanes.
    pub fn binary_reg(&mut self, op: BinaryOp, e: Elem, d: usize, x: &Name, y: &Name, n: usize) -> Res<Name> {
        let ty = reg(e);
        let t = vector(ty, n);
        if e.is_float() {
            let r = match op {
                BinaryOp::Add => self.text.emit(d, format!("fadd {t} {x}, {y}")),
                BinaryOp::Sub => self.text.emit(d, format!("fsub {t} {x}, {y}")),
                BinaryOp::Mul => self.text.emit(d, format!("fmul {t} {x}, {y}")),
                BinaryOp::Div | BinaryOp::DivRn => self.text.emit(d, format!("fdiv {t} {x}, {y}")),
                BinaryOp::MaxNum | BinaryOp::MinNum => {
                    let name = if op == BinaryOp::MaxNum { "maxnum" } else { "minnum" };
                    self.intrinsic(d, name, ty, n, &[x, y])
                }
                BinaryOp::Max | BinaryOp::Min => {
                    let name = if op == BinaryOp::Max { "maximum" } else { "minimum" };
                    let name = format!("llvm.{name}.{}", suffix(ty, n));
                    self.text.call(d, &format!("nsz {t}"), &name, &[(&t, x), (&t, y)])
                }
                BinaryOp::Rem | BinaryOp::Pow | BinaryOp::Atan2 => math::binary(self, d, op, e, x, y, n)?,
                _ => return Err(format!("{op:?} of {e}")),
            };
            return self.round(d, e, r, n);
        }
        let signed = e.is_signed();
        let simple = |s: &'static str| Some(s);
        let name = match op {
            BinaryOp::Add if e == Elem::Bool => simple("or"),
            BinaryOp::Mul if e == Elem::Bool => simple("and"),
            BinaryOp::Add => simple("add"),
            BinaryOp::Sub => simple("sub"),
            BinaryOp::Mul => simple("mul"),
            BinaryOp::And => simple("and"),
            BinaryOp::Or => simple("or"),
            BinaryOp::Xor => simple("xor"),
            _ => None,
        };
        if let Some(name) = name {
            return Ok(self.text.emit(d, format!("{name} {t} {x}, {y}")));
        }
        Ok(match op {
            BinaryOp::Max => self.intrinsic(d, if signed { "smax" } else { "umax" }, ty, n, &[x, y]),
            BinaryOp::Min => self.intrinsic(d, if signed { "smin" } else { "umin" }, ty, n, &[x, y]),
            BinaryOp::MulHi => self.upper_product(e, d, x, y, n),
            BinaryOp::Div | BinaryOp::Rem if e != Elem::Bool => self.int_div(op, e, d, x, y, n),
            BinaryOp::Shl | BinaryOp::Shr if e != Elem::Bool => {
                let bits = e.bytes() * 8;
                let lim = literal(ty, n, &bits.to_string());
                let c = vector("i1", n);
                let inside = self.text.emit(d, format!("icmp ult {t} {y}, {lim}"));
                let s = self.intrinsic(d, "umin", ty, n, &[y, &literal(ty, n, &(bits - 1).to_string())]);
                let name = match (op, signed) {
                    (BinaryOp::Shl, _) => "shl",
                    (_, true) => "ashr",
                    _ => "lshr",
                };
                let r = self.text.emit(d, format!("{name} {t} {x}, {s}"));
                if name == "ashr" {
                    r
                } else {
                    self.text.emit(d, format!("select {c} {inside}, {t} {r}, {t} {}", literal(ty, n, "0")))
                }
            }
            _ => return Err(format!("{op:?} of {e}")),
        })
    }
    /// The upper half of a product.
    fn upper_product(&mut self, e: Elem, d: usize, x: &Name, y: &Name, n: usize) -> Name {
        let bits = 8 * e.bytes();
        let (t, twice) = (vector(reg(e), n), format!("i{}", 2 * bits));
        let (w, s) = (vector(&twice, n), if e.is_signed() { "s" } else { "z" });
        let x = self.text.emit(d, format!("{s}ext {t} {x} to {w}"));
        let y = self.text.emit(d, format!("{s}ext {t} {y} to {w}"));
        let p = self.text.emit(d, format!("mul {w} {x}, {y}"));
        let p = self.text.emit(d, format!("lshr {w} {p}, {}", literal(&twice, n, &bits.to_string())));
        self.text.emit(d, format!("trunc {w} {p} to {t}"))
    }
    /// A product and a sum, rounded once.
    pub fn fma(&mut self, a: &Val, b: &Val, c: &Val) -> Res<Val> {
        let (n, d, e) = (self.width(&[a, b, c]), a.depth.max(b.depth).max(c.depth), a.elem);
        let [x, y, z] = [a, b, c].map(|v| self.reg(v, n));
        let r = self.intrinsic(d, "fma", reg(e), n, &[&x, &y, &z]);
        let r = self.round(d, e, r, n)?;
        Ok(self.wrap(e, r, n, d))
    }
    /// To a smaller float, toward zero: the nearest number, or the one of less magnitude next to it.
    pub fn cast_to_zero(&mut self, v: &Val, to: Elem) -> Res<Val> {
        let (from, d, n) = (v.elem, v.depth, self.width(&[v]));
        let x = self.reg(v, n);
        let near = self.cast_reg(from, to, d, x.clone(), n)?;
        let back = if reg(from) == reg(to) { near.clone() } else { self.cast_reg(to, from, d, near.clone(), n)? };
        let (f, c) = (vector(reg(from), n), vector("i1", n));
        let size = self.intrinsic(d, "fabs", reg(from), n, &[&back]);
        let of = self.intrinsic(d, "fabs", reg(from), n, &[&x]);
        let away = self.text.emit(d, format!("fcmp ogt {f} {size}, {of}"));
        let word = format!("i{}", 8 * to.bytes());
        let w = vector(&word, n);
        let held = self.pack(d, to, Store::Tensor, near, n)?;
        let bits = match mem(to) {
            ty if ty == word => held,
            ty => self.text.emit(d, format!("bitcast {} {held} to {w}", vector(ty, n))),
        };
        let less = self.text.emit(d, format!("sub {w} {bits}, {}", literal(&word, n, "1")));
        let bits = self.text.emit(d, format!("select {c} {away}, {w} {less}, {w} {bits}"));
        let held = match mem(to) {
            ty if ty == word => bits,
            ty => self.text.emit(d, format!("bitcast {w} {bits} to {}", vector(ty, n))),
        };
        let r = self.unpack(d, to, Store::Tensor, held, n)?;
        Ok(self.wrap(to, r, n, d))
    }
    /// Truncates; division by zero gives 0; the smallest number by -1 wraps.
    fn int_div(&mut self, op: BinaryOp, e: Elem, d: usize, x: &Name, y: &Name, n: usize) -> Name {
        let ty = reg(e);
        let (t, c) = (vector(ty, n), vector("i1", n));
        let (zero, one) = (literal(ty, n, "0"), literal(ty, n, "1"));
        let is_zero = self.text.emit(d, format!("icmp eq {t} {y}, {zero}"));
        let rem = op == BinaryOp::Rem;
        if !e.is_signed() {
            let s = self.text.emit(d, format!("select {c} {is_zero}, {t} {one}, {t} {y}"));
            let q = self.text.emit(d, format!("{} {t} {x}, {s}", if rem { "urem" } else { "udiv" }));
            return self.text.emit(d, format!("select {c} {is_zero}, {t} {zero}, {t} {q}"));
        }
        let minus = self.text.emit(d, format!("icmp eq {t} {y}, {}", literal(ty, n, "-1")));
        let odd = self.text.emit(d, format!("or {c} {is_zero}, {minus}"));
        let s = self.text.emit(d, format!("select {c} {odd}, {t} {one}, {t} {y}"));
        let q = self.text.emit(d, format!("{} {t} {x}, {s}", if rem { "srem" } else { "sdiv" }));
        let neg = if rem { zero.clone() } else { self.text.emit(d, format!("sub {t} {zero}, {x}")) };
        let r = self.text.emit(d, format!("select {c} {minus}, {t} {neg}, {t} {q}"));
        self.text.emit(d, format!("select {c} {is_zero}, {t} {zero}, {t} {r}"))
    }
    pub fn cmp(&mut self, op: CmpOp, a: &Val, b: &Val) -> Res<Val> {
        let d = a.depth.max(b.depth);
        if let Some(count) = self.prefix(op, a, b, d) {
            return Ok(Val { elem: Elem::Bool, form: Form::Prefix(count), depth: d });
        }
        let n = self.width(&[a, b]);
        let (x, y) = (self.reg(a, n), self.reg(b, n));
        let r = self.cmp_reg(op, a.elem, d, &x, &y, n);
        Ok(self.wrap(Elem::Bool, r, n, d))
    }
    pub fn cmp_reg(&mut self, op: CmpOp, e: Elem, d: usize, x: &Name, y: &Name, n: usize) -> Name {
        let t = vector(reg(e), n);
        if e.is_float() {
            let p = match op {
                CmpOp::Eq => "oeq",
                CmpOp::Ne => "une",
                CmpOp::Lt => "olt",
                CmpOp::Le => "ole",
                CmpOp::Gt => "ogt",
                CmpOp::Ge => "oge",
            };
            return self.text.emit(d, format!("fcmp {p} {t} {x}, {y}"));
        }
        let sign = if e.is_signed() { "s" } else { "u" };
        let p = match op {
            CmpOp::Eq => "eq".into(),
            CmpOp::Ne => "ne".into(),
            CmpOp::Lt => format!("{sign}lt"),
            CmpOp::Le => format!("{sign}le"),
            CmpOp::Gt => format!("{sign}gt"),
            CmpOp::Ge => format!("{sign}ge"),
        };
        self.text.emit(d, format!("icmp {p} {t} {x}, {y}"))
    }
    /// `base + lane < bound` and its variants, as the number of leading lanes that are true (unclamped).
    fn prefix(&mut self, op: CmpOp, a: &Val, b: &Val, d: usize) -> Option<Num> {
        let (lanes, bound, plus) = match (op, &a.form, &b.form) {
            (CmpOp::Lt, Form::Lanes(x, 1), Form::Num(y)) => (x, y, 0),
            (CmpOp::Le, Form::Lanes(x, 1), Form::Num(y)) => (x, y, 1),
            (CmpOp::Gt, Form::Num(y), Form::Lanes(x, 1)) => (x, y, 0),
            (CmpOp::Ge, Form::Num(y), Form::Lanes(x, 1)) => (x, y, 1),
            _ => return None,
        };
        let (lanes, bound) = (lanes.clone(), bound.clone());
        let n = self.num_op(Arith::Sub, &bound, &lanes, d);
        Some(if plus == 0 { n } else { self.num_op(Arith::Add, &n, &Num::konst(1), d) })
    }

    pub fn select(&mut self, c: &Val, a: &Val, b: &Val) -> Res<Val> {
        if c.is_true() || a == b {
            return Ok(a.clone());
        }
        if matches!(a.form, Form::Ptr(..)) {
            return self.select_pointer(c, a, b);
        }
        let d = a.depth.max(b.depth).max(c.depth);
        let t = reg(a.elem);
        if c.uniform() {
            let n = self.width(&[a, b]);
            let (c, x, y) = (self.reg(c, 1), self.reg(a, n), self.reg(b, n));
            let t = vector(t, n);
            let r = self.text.emit(d, format!("select i1 {c}, {t} {x}, {t} {y}"));
            return Ok(self.wrap(a.elem, r, n, d));
        }
        let n = self.lanes;
        let (c, x, y) = (self.reg(c, n), self.reg(a, n), self.reg(b, n));
        let t = vector(t, n);
        let r = self.text.emit(d, format!("select {} {c}, {t} {x}, {t} {y}", vector("i1", n)));
        Ok(self.wrap(a.elem, r, n, d))
    }

    pub fn cast(&mut self, v: &Val, to: Elem) -> Res<Val> {
        let (from, d) = (v.elem, v.depth);
        if from == to {
            return Ok(v.clone());
        }
        // Between index types the affine form stays (indices do not overflow). A uniform number may have been read from
        // memory, so it wraps: what is compared and what becomes an address must be the same.
        if matches!((from, to), (Elem::I32 | Elem::I64, Elem::I32 | Elem::I64)) {
            match &v.form {
                Form::Num(n) => {
                    let mut n = self.exact(from, n, d);
                    if to == Elem::I32 {
                        n = self.exact(to, &Num { exact: false, nonneg: false, ..n }, d);
                    }
                    return Ok(Val::num(to, n, d));
                }
                Form::Lanes(b, s) => {
                    let mut b = b.clone();
                    b.exact = false;
                    return Ok(Val { elem: to, form: Form::Lanes(b, *s), depth: d });
                }
                _ => {}
            }
        }
        let n = self.width(&[v]);
        let x = self.reg(v, n);
        let r = self.cast_reg(from, to, d, x.clone(), n)?;
        if (from, to) == (Elem::I32, Elem::I64) {
            self.same_run(&x, &r);
        }
        Ok(self.wrap(to, r, n, d))
    }
    pub fn cast_reg(&mut self, from: Elem, to: Elem, d: usize, x: Name, n: usize) -> Res<Name> {
        let (ft, tt) = (reg(from), reg(to));
        let (f, t) = (vector(ft, n), vector(tt, n));
        let half = matches!(to, Elem::F16 | Elem::Bf16);
        Ok(match (from.is_float(), to.is_float()) {
            (true, true) => {
                let r = match (ft, tt) {
                    ("double", "float") if half => self.round_to_odd(d, &x, n),
                    ("double", "float") => self.text.emit(d, format!("fptrunc {f} {x} to {t}")),
                    ("float", "double") => self.text.emit(d, format!("fpext {f} {x} to {t}")),
                    (from, to) if from == to => x,
                    (from, to) => return Err(format!("no conversion of {from} to {to}")),
                };
                self.round(d, to, r, n)?
            }
            (true, false) => {
                if to == Elem::Bool {
                    return Ok(self.text.emit(d, format!("fcmp une {f} {x}, {}", literal(ft, n, &float(ft, 0.0)))));
                }
                let name = format!(
                    "llvm.fpto{}i.sat.{}.{}",
                    if to.is_signed() { "s" } else { "u" },
                    suffix(tt, n),
                    suffix(ft, n)
                );
                self.text.call(d, &t, &name, &[(&f, &x)])
            }
            (false, true) => {
                let s = if from.is_signed() { "s" } else { "u" };
                if half && from.bytes() >= 4 {
                    let w = vector("double", n);
                    let y = self.text.emit(d, format!("{s}itofp {f} {x} to {w}"));
                    let r = self.round_to_odd(d, &y, n);
                    self.round(d, to, r, n)?
                } else {
                    let r = self.text.emit(d, format!("{s}itofp {f} {x} to {t}"));
                    self.round(d, to, r, n)?
                }
            }
            (false, false) if to == Elem::Bool => {
                self.text.emit(d, format!("icmp ne {f} {x}, {}", literal(ft, n, "0")))
            }
            (false, false) if ft == tt => x,
            (false, false) if from.bytes() > to.bytes() => self.text.emit(d, format!("trunc {f} {x} to {t}")),
            (false, false) => {
                let s = if from.is_signed() { "s" } else { "z" };
                self.text.emit(d, format!("{s}ext {f} {x} to {t}"))
            }
        })
    }
    /// f64 to f32, rounded to odd, so that a second rounding to a half type is correct.
    fn round_to_odd(&mut self, d: usize, x: &Name, n: usize) -> Name {
        let (f, w, i, c) = (vector("float", n), vector("double", n), vector("i32", n), vector("i1", n));
        let one = literal("i32", n, "1");
        let r = self.text.emit(d, format!("fptrunc {w} {x} to {f}"));
        let back = self.text.emit(d, format!("fpext {f} {r} to {w}"));
        let inexact = self.text.emit(d, format!("fcmp one {w} {back}, {x}"));
        let (ab, ax) = (self.intrinsic(d, "fabs", "double", n, &[&back]), self.intrinsic(d, "fabs", "double", n, &[x]));
        let above = self.text.emit(d, format!("fcmp ogt {w} {ab}, {ax}"));
        let bits = self.text.emit(d, format!("bitcast {f} {r} to {i}"));
        let down = self.text.emit(d, format!("sub {i} {bits}, {one}"));
        let low = self.text.emit(d, format!("select {c} {above}, {i} {down}, {i} {bits}"));
        let odd = self.text.emit(d, format!("or {i} {low}, {one}"));
        let q = self.text.emit(d, format!("select {c} {inexact}, {i} {odd}, {i} {bits}"));
        self.text.emit(d, format!("bitcast {i} {q} to {f}"))
    }
}
