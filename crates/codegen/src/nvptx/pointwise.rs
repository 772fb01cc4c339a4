//! Pointwise ops, register by register. Half types are computed in f32 and rounded once.
use super::emit::{Fail, GLOBAL, Res, Val, float, int, mistyped};
use super::f8;
use super::r#gen::Gen;
use super::index::{Index, Pointer, Reg, two};
use super::math;
use inkwell::types::BasicTypeEnum;
use inkwell::values::{FloatValue, IntValue};
use inkwell::{FloatPredicate, IntPredicate};
use kiln_block::{BinaryOp, CachePolicy, CmpOp, Elem, InstData, Op, Type, UnaryOp};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

impl<'c> Gen<'c, '_> {
    pub fn pointwise(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let args: Vec<Vec<Reg<'c>>> = data.args.iter().map(|v| self.regs(*v)).collect::<Res<_>>()?;
        let count = self.flat(data.results[0])?.per_thread();
        let from = match self.k.ty(data.args[0]) {
            Type::Block { elem, .. } => Some(*elem),
            _ => None,
        };
        if data.op == Op::Binary(BinaryOp::Div) && from == Some(Elem::F32) && !self.e.ieee {
            if self.e.rounded && self.above_one.contains(&data.args[1]) {
                return self.by_reciprocals(&args, |g, y| Ok((g.e.rcp(y)?, None)));
            }
            let mut divisors: Vec<Reg<'c>> = vec![];
            for y in &args[1] {
                if !divisors.contains(y) {
                    divisors.push(*y);
                }
            }
            if divisors.len() * 4 <= count {
                return self.by_reciprocals(&args, Self::reciprocal);
            }
        }
        if let (Op::Cast(to), Some(from), [x]) = (&data.op, from, &args[..])
            && from != *to
            && (from.f8().is_some() || to.f8().is_some())
        {
            return self.cast_f8(x, from, *to);
        }
        // Registers that hold the same operands (replicas along a broadcast axis) share the result.
        let mut known: HashMap<Vec<Val<'c>>, Reg<'c>> = HashMap::new();
        let mut out = vec![];
        for r in 0..count {
            let row: Vec<Reg<'c>> =
                args.iter().map(|a| a.get(r).copied().ok_or_else(|| mistyped("a pointwise op"))).collect::<Res<_>>()?;
            let unwrapped = self.unwrapped.contains(&data.results[0]);
            let meant = |x: &Reg<'c>| if let Reg::Int(i) = x { Reg::Int(i.unwrapped()) } else { *x };
            let row = if unwrapped { row.iter().map(meant).collect() } else { row };
            if let Some(reg) = self.by_index(&data.op, &row, from)? {
                out.push(match (reg, &data.op, &row[..]) {
                    (Reg::Int(i), Op::Binary(op), [Reg::Int(a), Reg::Int(b)]) if unwrapped => {
                        Reg::Int(i.unwrapped_result(*op, a, b))
                    }
                    (reg, ..) => reg,
                });
                continue;
            }
            let row = match (&data.op, &row[..]) {
                (Op::Binary(BinaryOp::Div), [Reg::Int(n), Reg::Int(by)]) => {
                    vec![Reg::Int(n.with_same_quotient(by).unwrap_or(*n)), Reg::Int(*by)]
                }
                _ => row,
            };
            let plain: Vec<Val<'c>> = row.iter().map(|x| x.plain(&self.e, &mut self.memo)).collect::<Res<_>>()?;
            let reg = match known.get(&plain) {
                Some(reg) => *reg,
                None => {
                    let v = self.one(&data.op, &plain, from)?;
                    let reg = match self.k.ty(data.results[0]) {
                        Type::Block { elem, .. } => Reg::of(v, *elem),
                        _ => match row.get(1) {
                            // A select between pointers: aligned to its elements at least.
                            Some(Reg::Ptr(p)) => self.pointer_like(p, v)?,
                            _ => return Err(mistyped("pointers")),
                        },
                    };
                    known.insert(plain, reg);
                    reg
                }
            };
            out.push(reg);
        }
        Ok(out)
    }
    /// The same bits as another type.
    pub fn bitcast(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let (from, to) = (self.k.ty(data.args[0]).clone(), self.k.ty(data.results[0]).clone());
        let mut out = vec![];
        for x in self.regs(data.args[0])? {
            let e = &self.e;
            out.push(match (&x, &to) {
                (Reg::Ptr(p), Type::Ptr { elem, .. }) => {
                    let align = p.align.min(two(p.off * p.elem.bytes() as i64));
                    Reg::Ptr(Pointer { base: p.value(e)?, elem: *elem, align, off: 0, ..*p })
                }
                (Reg::Ptr(p), _) => Reg::of(e.b.build_ptr_to_int(p.value(e)?, e.i64(), "")?.into(), Elem::I64),
                (_, Type::Ptr { elem, .. }) => {
                    let address = int(x.plain(e, &mut self.memo)?)?;
                    let base = e.b.build_int_to_ptr(address, e.ptr(GLOBAL), "")?;
                    let known = if let Reg::Int(n) = x { n.div.min(two(n.off)) } else { 1 };
                    let align = known.max(elem.bytes() as u64);
                    Reg::Ptr(Pointer { base, elem: *elem, align, off: 0, readonly: false, cache: CachePolicy::Normal })
                }
                (_, Type::Block { elem, .. }) => {
                    let v = x.plain(e, &mut self.memo)?;
                    Reg::of(e.bitcast(v, e.elem(*elem))?, *elem)
                }
                _ => return Err(mistyped(&format!("the bits of {from}"))),
            });
        }
        Ok(out)
    }
    /// Quotients as products with reciprocals, each made once. `make` gives the factor for a divisor, and a second one
    /// if the product needs it.
    fn by_reciprocals(
        &mut self,
        args: &[Vec<Reg<'c>>],
        make: impl Fn(&Self, FloatValue<'c>) -> Res<(FloatValue<'c>, Option<FloatValue<'c>>)>,
    ) -> Res<Vec<Reg<'c>>> {
        let mut known = HashMap::new();
        let mut out = vec![];
        for (x, y) in args[0].iter().zip(&args[1]) {
            let (x, y) = (float(x.plain(&self.e, &mut self.memo)?)?, float(y.plain(&self.e, &mut self.memo)?)?);
            let (by, then) = match known.get(&y) {
                Some(r) => *r,
                None => *known.entry(y).or_insert(make(self, y)?),
            };
            let product = self.e.fmul(x, by)?;
            out.push(Reg::Plain(then.map_or(Ok(product), |s| self.e.fmul(product, s))?.into()));
        }
        Ok(out)
    }
    /// 1/y in two factors, since the reciprocal of a subnormal number is not finite.
    fn reciprocal(&self, y: FloatValue<'c>) -> Res<(FloatValue<'c>, Option<FloatValue<'c>>)> {
        let e = &self.e;
        let number = |v: f64| e.f32().const_float(v);
        let size = e.call_float("llvm.fabs", &[y])?;
        let small = e.fcmp(FloatPredicate::OLT, size, number(2f64.powi(-100)))?;
        let scale = e.fselect(small, number(2f64.powi(60)), number(1.0))?;
        Ok((e.fdiv(number(1.0), e.fmul(y, scale)?)?, Some(scale)))
    }
    fn pointer_like(&self, p: &super::index::Pointer<'c>, v: Val<'c>) -> Res<Reg<'c>> {
        match v {
            Val::PointerValue(base) => Ok(Reg::Ptr(super::index::Pointer {
                base,
                off: 0,
                align: p.elem.bytes() as u64,
                readonly: false,
                ..*p
            })),
            _ => Err(mistyped("pointers")),
        }
    }
    /// Arithmetic that keeps the form `base + constant`.
    fn by_index(&mut self, op: &Op, args: &[Reg<'c>], elem: Option<Elem>) -> Res<Option<Reg<'c>>> {
        let (e, memo) = (&self.e, &mut self.memo);
        if let (Op::PtrAdd, [p, i]) = (op, args) {
            return Ok(Some(Reg::Ptr(p.pointer()?.add(i.index()?, e, memo)?)));
        }
        if !matches!(elem, Some(Elem::I32 | Elem::I64)) {
            return Ok(None);
        }
        let some = |i: Index<'c>| Ok(Some(Reg::Int(i)));
        match (op, args) {
            (Op::Cmp(op), [a, b]) => {
                let c = a.index()?.compare(*op, b.index()?, e, memo)?;
                // Negations of one condition must stay one condition.
                Ok(Some(Reg::Plain(c.into())))
            }
            (Op::Cast(Elem::I64), [a]) => some(a.index()?.resize(64, e, memo)?),
            (Op::Cast(Elem::I32), [a]) => some(a.index()?.resize(32, e, memo)?),
            (Op::Cast(to), [a]) if matches!(to, Elem::F32 | Elem::F16 | Elem::Bf16) => {
                let number = a.index()?.as_float(e)?;
                let narrowed = number.map(|x| match e.elem(*to) {
                    BasicTypeEnum::FloatType(t) if *to != Elem::F32 => e.b.build_float_trunc(x, t, ""),
                    _ => Ok(x),
                });
                Ok(narrowed.transpose()?.map(|x| Reg::Plain(x.into())))
            }
            (Op::Unary(UnaryOp::Neg), [a]) => {
                let a = a.index()?;
                some(Index::constant(0, a.bits).sub(a, e, memo)?)
            }
            (Op::Binary(op), [a, b]) => {
                let (a, b) = (a.index()?, b.index()?);
                let divided = |c: i64, memo: &mut _| a.divide(c, e, memo);
                Ok(match (op, b.as_constant()) {
                    (BinaryOp::Add, _) => Some(a.add(b, e, memo)?),
                    (BinaryOp::Sub, _) => Some(a.sub(b, e, memo)?),
                    (BinaryOp::Mul, _) => Some(a.mul(b, e, memo)?),
                    (BinaryOp::Min | BinaryOp::Max, _) => Some(a.extreme(b, *op == BinaryOp::Min, e, memo)?),
                    (BinaryOp::Shl, Some(c @ 0..=30)) => Some(a.mul(Index::constant(1 << c, a.bits), e, memo)?),
                    (BinaryOp::Shr, Some(c @ 0..=30)) => divided(1 << c, memo)?.map(|d| d.0),
                    (BinaryOp::Div, Some(c)) => divided(c, memo)?.map(|d| d.0),
                    (BinaryOp::Rem, Some(c)) => divided(c, memo)?.map(|d| d.1),
                    (BinaryOp::And, Some(c)) if c > 0 && (c + 1) & c == 0 => divided(c + 1, memo)?.map(|d| d.1),
                    _ => None,
                }
                .map(Reg::Int))
            }
            _ => Ok(None),
        }
    }
    fn one(&mut self, op: &Op, args: &[Val<'c>], from: Option<Elem>) -> Res<Val<'c>> {
        match (op, args, from) {
            (Op::Select, [c, a, b], _) => self.e.select(int(*c)?, *a, *b),
            (Op::Unary(op), [a], Some(elem)) => self.unary(*op, *a, elem),
            (Op::Binary(op), [a, b], Some(elem)) => self.binary(*op, *a, *b, elem),
            (Op::Cmp(op), [a, b], Some(elem)) => self.compare(*op, *a, *b, elem).map(Into::into),
            (Op::Cast(to), [a], Some(elem)) => self.cast(*a, elem, *to),
            (Op::CastToZero(to), [a], Some(elem)) => self.cast_to_zero(*a, elem, *to),
            (Op::Fma, [a, b, c], Some(elem)) => {
                let v = math::fma(&self.e, self.wide(*a, elem)?, self.wide(*b, elem)?, self.wide(*c, elem)?)?;
                self.narrow(v, elem)
            }
            _ => Err(mistyped("a pointwise op")),
        }
    }
    /// The number to compute with: half types as f32.
    pub fn wide(&self, v: Val<'c>, elem: Elem) -> Res<FloatValue<'c>> {
        match elem {
            Elem::F16 | Elem::Bf16 => Ok(self.e.b.build_float_ext(float(v)?, self.e.f32(), "")?),
            Elem::F32 | Elem::F64 => float(v),
            other => Err(mistyped(&format!("arithmetic on {other}"))),
        }
    }
    pub fn narrow(&self, v: FloatValue<'c>, elem: Elem) -> Res<Val<'c>> {
        match (elem, self.e.elem(elem)) {
            (Elem::F16 | Elem::Bf16, BasicTypeEnum::FloatType(t)) => Ok(self.e.b.build_float_trunc(v, t, "")?.into()),
            _ => Ok(v.into()),
        }
    }
    fn unary(&mut self, op: UnaryOp, a: Val<'c>, elem: Elem) -> Res<Val<'c>> {
        if !elem.is_float() {
            return self.unary_int(op, int(a)?, elem);
        }
        if op == UnaryOp::Tf32 && self.group.is_some() {
            return self.rounded_here(a);
        }
        let x = self.wide(a, elem)?;
        match op {
            UnaryOp::IsNan => return Ok(self.e.fcmp(FloatPredicate::UNO, x, x)?.into()),
            UnaryOp::IsInf => {
                let size = self.e.call_float("llvm.fabs", &[x])?;
                let inf = x.get_type().const_float(f64::INFINITY);
                return Ok(self.e.fcmp(FloatPredicate::OEQ, size, inf)?.into());
            }
            _ => {}
        }
        self.narrow(math::unary(&self.e, op, x)?, elem)
    }
    fn unary_int(&mut self, op: UnaryOp, a: IntValue<'c>, elem: Elem) -> Res<Val<'c>> {
        let e = &self.e;
        let zero = a.get_type().const_zero();
        Ok(match op {
            UnaryOp::Neg => e.sub(zero, a)?.into(),
            UnaryOp::Not => e.not(a)?.into(),
            UnaryOp::Abs if !elem.is_signed() => a.into(),
            // abs.s16 of the least number gives 32768 in a 32-bit register, which comparisons see; LLVM emits it for
            // any other form of the same.
            UnaryOp::Abs if elem == Elem::I16 => {
                let wide = e.sext(a, e.i32())?;
                let size = e.asm("abs.s32 $0, $1;", "=r,r", Some(e.i32().into()), &[wide.into()], false, false)?;
                let size = int(size.ok_or_else(|| mistyped("an absolute value"))?)?;
                e.trunc(size, a.get_type())?.into()
            }
            UnaryOp::Abs => e.call("llvm.abs", &[a.get_type().into()], &[a.into(), e.bool(false).into()])?,
            UnaryOp::IsNan | UnaryOp::IsInf => e.bool(false).into(),
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => a.into(),
            other => return Err(Fail::Unsupported(format!("{other:?} of {elem}"))),
        })
    }
    pub fn binary(&mut self, op: BinaryOp, a: Val<'c>, b: Val<'c>, elem: Elem) -> Res<Val<'c>> {
        if !elem.is_float() {
            return self.binary_int(op, int(a)?, int(b)?, elem);
        }
        let (x, y) = (self.wide(a, elem)?, self.wide(b, elem)?);
        self.narrow(math::binary(&self.e, op, x, y)?, elem)
    }
    fn binary_int(&mut self, op: BinaryOp, a: IntValue<'c>, b: IntValue<'c>, elem: Elem) -> Res<Val<'c>> {
        let e = &self.e;
        let ty = a.get_type();
        let signed = elem.is_signed();
        let pick = |name: &str| e.call(name, &[ty.into()], &[a.into(), b.into()]);
        Ok(match op {
            BinaryOp::Add => e.add(a, b)?.into(),
            BinaryOp::Sub => e.sub(a, b)?.into(),
            BinaryOp::Mul => e.mul(a, b)?.into(),
            BinaryOp::And => e.and(a, b)?.into(),
            BinaryOp::Or => e.or(a, b)?.into(),
            BinaryOp::Xor => e.xor(a, b)?.into(),
            BinaryOp::Max => pick(if signed { "llvm.smax" } else { "llvm.umax" })?,
            BinaryOp::Min => pick(if signed { "llvm.smin" } else { "llvm.umin" })?,
            BinaryOp::Shl | BinaryOp::Shr => {
                // A shift by the width or more gives 0, or the sign.
                let width = ty.const_int(ty.get_bit_width().into(), false);
                let over = e.icmp(IntPredicate::UGE, b, width)?;
                let last = ty.const_int(u64::from(ty.get_bit_width()) - 1, false);
                let by = e.iselect(over, last, b)?;
                match (op, signed) {
                    (BinaryOp::Shr, true) => e.ashr(a, by)?.into(),
                    (BinaryOp::Shr, false) => e.iselect(over, ty.const_zero(), e.lshr(a, by)?)?.into(),
                    _ => e.iselect(over, ty.const_zero(), e.shl(a, by)?)?.into(),
                }
            }
            BinaryOp::Div | BinaryOp::Rem => {
                let zero = ty.const_zero();
                let none = e.icmp(IntPredicate::EQ, b, zero)?;
                let by = e.iselect(none, ty.const_int(1, false), b)?;
                if !signed {
                    let v = if op == BinaryOp::Div { e.udiv(a, by)? } else { e.urem(a, by)? };
                    return Ok(e.iselect(none, zero, v)?.into());
                }
                // The least number by -1 would trap; it is its own negative.
                let minus = e.icmp(IntPredicate::EQ, by, ty.const_all_ones())?;
                let safe = e.iselect(minus, ty.const_int(1, false), by)?;
                let v = match op {
                    BinaryOp::Div => e.iselect(minus, e.sub(zero, a)?, e.sdiv(a, safe)?)?,
                    _ => e.srem(a, safe)?,
                };
                e.iselect(none, zero, v)?.into()
            }
            BinaryOp::MulHi => {
                let width = ty.get_bit_width();
                let twice = if width == 32 { e.i64() } else { e.cx.i128_type() };
                let widened = |x| if signed { e.sext(x, twice) } else { e.zext(x, twice) };
                let product = e.mul(widened(a)?, widened(b)?)?;
                e.trunc(e.lshr(product, twice.const_int(width.into(), false))?, ty)?.into()
            }
            BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::DivRn | BinaryOp::MaxNum | BinaryOp::MinNum => {
                return Err(Fail::Unsupported(format!("{op:?} of {elem}")));
            }
        })
    }
    pub fn compare(&mut self, op: CmpOp, a: Val<'c>, b: Val<'c>, elem: Elem) -> Res<IntValue<'c>> {
        if elem.is_float() {
            let (x, y) = (self.wide(a, elem)?, self.wide(b, elem)?);
            let p = match op {
                CmpOp::Eq => FloatPredicate::OEQ,
                CmpOp::Ne => FloatPredicate::UNE,
                CmpOp::Lt => FloatPredicate::OLT,
                CmpOp::Le => FloatPredicate::OLE,
                CmpOp::Gt => FloatPredicate::OGT,
                CmpOp::Ge => FloatPredicate::OGE,
            };
            return self.e.fcmp(p, x, y);
        }
        let signed = elem.is_signed();
        let p = match (op, signed) {
            (CmpOp::Eq, _) => IntPredicate::EQ,
            (CmpOp::Ne, _) => IntPredicate::NE,
            (CmpOp::Lt, true) => IntPredicate::SLT,
            (CmpOp::Le, true) => IntPredicate::SLE,
            (CmpOp::Gt, true) => IntPredicate::SGT,
            (CmpOp::Ge, true) => IntPredicate::SGE,
            (CmpOp::Lt, false) => IntPredicate::ULT,
            (CmpOp::Le, false) => IntPredicate::ULE,
            (CmpOp::Gt, false) => IntPredicate::UGT,
            (CmpOp::Ge, false) => IntPredicate::UGE,
        };
        self.e.icmp(p, int(a)?, int(b)?)
    }
    /// Casts from or to an 8-bit float, of neighbours together; equal operands are cast once.
    fn cast_f8(&mut self, xs: &[Reg<'c>], from: Elem, to: Elem) -> Res<Vec<Reg<'c>>> {
        let plain: Vec<Val<'c>> = xs.iter().map(|x| x.plain(&self.e, &mut self.memo)).collect::<Res<_>>()?;
        let mut distinct = plain.clone();
        let mut seen = HashSet::new();
        distinct.retain(|x| seen.insert(*x));
        let mut known: HashMap<Val<'c>, Val<'c>> = HashMap::new();
        for pair in distinct.chunks(2) {
            let casts = match from.f8() {
                Some(format) => {
                    let pair: Vec<_> = pair.iter().map(|x| int(*x)).collect::<Res<_>>()?;
                    let halves = f8::to_f16(&self.e, format, &pair)?;
                    halves.into_iter().map(|x| self.cast(x, Elem::F16, to)).collect::<Res<Vec<_>>>()?
                }
                None => {
                    let Some(format) = to.f8() else { return Err(mistyped("a cast to an 8-bit float")) };
                    let wide = pair.iter().map(|x| self.cast(*x, from, Elem::F32).and_then(float));
                    let wide: Vec<_> = wide.collect::<Res<_>>()?;
                    f8::from_f32(&self.e, format, &wide)?
                }
            };
            known.extend(pair.iter().copied().zip(casts));
        }
        Ok(plain.iter().map(|x| Reg::of(known[x], to)).collect())
    }
    /// To a smaller float, toward zero: the nearest number, or the one of less magnitude next to it.
    fn cast_to_zero(&mut self, a: Val<'c>, from: Elem, to: Elem) -> Res<Val<'c>> {
        let near = self.cast(a, from, to)?;
        let back = self.cast(near, to, from)?;
        let e = &self.e;
        let (size, of) = (e.call_float("llvm.fabs", &[float(back)?])?, e.call_float("llvm.fabs", &[float(a)?])?);
        let away = e.fcmp(FloatPredicate::OGT, size, of)?;
        let word = if to.bytes() == 2 { e.cx.i16_type() } else { e.i32() };
        let bits = int(e.bitcast(near, word)?)?;
        let less = e.sub(bits, word.const_int(1, false))?;
        e.bitcast(e.iselect(away, less, bits)?.into(), e.elem(to))
    }
    pub fn cast(&mut self, a: Val<'c>, from: Elem, to: Elem) -> Res<Val<'c>> {
        match (from.f8(), to.f8()) {
            _ if from == to => return Ok(a),
            (Some(format), _) => {
                let wide = f8::to_f16(&self.e, format, &[int(a)?])?;
                return self.cast(wide[0], Elem::F16, to);
            }
            (_, Some(format)) => {
                let x = self.cast(a, from, Elem::F32)?;
                return Ok(f8::from_f32(&self.e, format, &[float(x)?])?[0]);
            }
            _ => {}
        }
        let e = &self.e;
        match (a, e.elem(to)) {
            (Val::FloatValue(_), BasicTypeEnum::FloatType(t)) => {
                let x = self.wide(a, from)?;
                Ok(match (x.get_type() == e.f32(), to) {
                    (_, Elem::F64) => e.b.build_float_ext(x, t, "")?.into(),
                    (true, Elem::F32) => x.into(),
                    // The GPU has no conversion from f64 to bf16.
                    (false, Elem::Bf16) => {
                        let x = e.b.build_float_trunc(x, e.f32(), "")?;
                        e.b.build_float_trunc(x, t, "")?.into()
                    }
                    _ => e.b.build_float_trunc(x, t, "")?.into(),
                })
            }
            (Val::FloatValue(_), BasicTypeEnum::IntType(t)) => {
                let x = self.wide(a, from)?;
                if to == Elem::Bool {
                    return Ok(e.fcmp(FloatPredicate::UNE, x, x.get_type().const_zero())?.into());
                }
                let name = if to.is_signed() { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
                e.call(name, &[t.into(), x.get_type().into()], &[x.into()])
            }
            (Val::IntValue(x), BasicTypeEnum::FloatType(t)) => {
                let via = if to == Elem::Bf16 { e.f32() } else { t };
                let v = if from.is_signed() {
                    e.b.build_signed_int_to_float(x, via, "")?
                } else {
                    e.b.build_unsigned_int_to_float(x, via, "")?
                };
                if to == Elem::Bf16 { self.narrow(v, to) } else { Ok(v.into()) }
            }
            (Val::IntValue(x), BasicTypeEnum::IntType(t)) => {
                if to == Elem::Bool {
                    return Ok(e.icmp(IntPredicate::NE, x, x.get_type().const_zero())?.into());
                }
                let (old, new) = (x.get_type().get_bit_width(), t.get_bit_width());
                Ok(match (old.cmp(&new), from.is_signed()) {
                    (Ordering::Greater, _) => e.trunc(x, t)?.into(),
                    (Ordering::Equal, _) => x.into(),
                    (Ordering::Less, false) => e.zext(x, t)?.into(),
                    (Ordering::Less, true) => e.sext(x, t)?.into(),
                })
            }
            _ => Err(mistyped("a cast")),
        }
    }
}
