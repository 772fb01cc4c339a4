//! Reductions inside a nest.
//!
//! Along the innermost axis a reduction runs in several vector accumulators that are combined in a fixed order; along a
//! leading axis it accumulates in the result's scratch memory. Half types accumulate in f32 and are rounded once at the
//! end.
use super::eval::{Buffer, Place};
use super::group::{Accumulators, Group, Running, Sink, accumulator, block_elem};
use super::memory::{Guard, Store};
use super::sums::CHUNK;
use super::text::{Name, float, literal, reg, vector};
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{BinaryOp, CmpOp, Elem, ReduceOp, ScanOp};

fn is_arg(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin)
}
pub(super) fn combiner(op: ReduceOp, e: Elem) -> BinaryOp {
    match (op, e) {
        (ReduceOp::Max, Elem::Bool) | (ReduceOp::Or, _) => BinaryOp::Or,
        (ReduceOp::Min, Elem::Bool) | (ReduceOp::And, _) => BinaryOp::And,
        (ReduceOp::Sum, _) => BinaryOp::Add,
        (ReduceOp::Prod, _) => BinaryOp::Mul,
        (ReduceOp::Min | ReduceOp::ArgMin, _) => BinaryOp::Min,
        (ReduceOp::Max | ReduceOp::ArgMax, _) => BinaryOp::Max,
        (ReduceOp::MaxNum, _) => BinaryOp::MaxNum,
        (ReduceOp::MinNum, _) => BinaryOp::MinNum,
    }
}
pub(super) fn scan_reduce(op: ScanOp) -> ReduceOp {
    match op {
        ScanOp::Sum => ReduceOp::Sum,
        ScanOp::Prod => ReduceOp::Prod,
        ScanOp::Max => ReduceOp::Max,
    }
}
pub(super) fn identity(op: ReduceOp, e: Elem) -> String {
    let largest = |positive: bool| match e {
        Elem::Bool => positive.to_string(),
        // All bits of the largest.
        Elem::U64 => if positive { "-1" } else { "0" }.into(),
        _ => match e.int_range() {
            Some((least, largest)) => if positive { largest } else { least }.to_string(),
            None => float(reg(e), if positive { f64::INFINITY } else { f64::NEG_INFINITY }),
        },
    };
    match op {
        ReduceOp::Sum if e.is_float() => float(reg(e), 0.0),
        ReduceOp::Prod if e.is_float() => float(reg(e), 1.0),
        ReduceOp::Sum | ReduceOp::Or => if e == Elem::Bool { "false" } else { "0" }.into(),
        ReduceOp::Prod => if e == Elem::Bool { "true" } else { "1" }.into(),
        ReduceOp::And => if e == Elem::Bool { "true" } else { "-1" }.into(),
        ReduceOp::Max | ReduceOp::ArgMax => largest(false),
        ReduceOp::Min | ReduceOp::ArgMin => largest(true),
        ReduceOp::MaxNum | ReduceOp::MinNum => float(reg(e), f64::NAN),
    }
}
fn without(at: &[Val], axis: usize) -> Vec<Val> {
    at.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, c)| c.clone()).collect()
}

impl Emit<'_> {
    /// Buffers and initial contents before the nest.
    pub fn prepare(&mut self, sink: &Sink, inner: Option<usize>) -> Res<Running> {
        match sink {
            Sink::Reduce { op, axis, operand, result } => {
                let (from, to) = (block_elem(self.kernel.ty(*operand))?, block_elem(self.kernel.ty(*result))?);
                let shape = self.kernel.ty(*result).shape().to_vec();
                let elem = accumulator(from);
                if inner.is_none() || Some(*axis) == inner {
                    let buffer = (!shape.is_empty()).then(|| self.new_buffer(to, &shape));
                    return Ok(Running::Lanes(Accumulators { elem, slots: vec![], wide: None, buffer, done: None }));
                }
                // A sum of many f32 terms is rounded once.
                let elem = if (*op, elem) == (ReduceOp::Sum, Elem::F32) { Elem::F64 } else { elem };
                let values = self.new_buffer(elem, &shape);
                self.fill(&values, &identity(*op, elem))?;
                let mut index = None;
                if is_arg(*op) {
                    let b = self.new_buffer(Elem::I32, &shape);
                    self.fill(&b, "2147483647")?;
                    index = Some(b);
                }
                Ok(Running::Memory(values, index))
            }
            Sink::Scan { axis, operand, result, .. } => {
                let elem = accumulator(block_elem(self.kernel.ty(*operand))?);
                let shape = self.kernel.ty(*result).shape().to_vec();
                let buffer = self.new_buffer(elem, &shape);
                if inner.is_none() || Some(*axis) == inner {
                    let buffer = Some(buffer);
                    return Ok(Running::Lanes(Accumulators { elem, slots: vec![], wide: None, buffer, done: None }));
                }
                Ok(Running::Memory(buffer, None))
            }
            _ => Ok(Running::None),
        }
    }
    /// Sets every element of a buffer.
    fn fill(&mut self, b: &Buffer, value: &str) -> Res<()> {
        let form = if matches!(b.elem, Elem::I32 | Elem::I64) {
            Form::Num(Num::konst(value.parse().unwrap_or(0)))
        } else {
            Form::Scalar(value.into())
        };
        let v = Val { elem: b.elem, form, depth: 0 };
        self.flat(b, |_, _| Ok(v.clone()))
    }
    /// Writes every element of a buffer from its position.
    fn flat(&mut self, b: &Buffer, f: impl Fn(&mut Self, &Val) -> Res<Val>) -> Res<()> {
        let count: usize = b.shape.iter().product();
        let saved = self.lanes;
        self.lanes = self.machine.lanes.min(count);
        let (label, i) = self.text.open_loop();
        let n = Num { text: i.clone(), konst: None, tz: self.lanes.trailing_zeros(), nonneg: true, exact: true };
        let form = if self.lanes > 1 { Form::Lanes(n, 1) } else { Form::Num(n) };
        let off = Val { elem: Elem::I64, form, depth: self.text.depth() };
        let v = f(self, &off)?;
        self.write(Store::Scratch, &b.ptr, &off, &v, None)?;
        self.text.close_loop(&label, &i, "0", &count.to_string(), self.lanes as i64);
        self.lanes = saved;
        Ok(())
    }

    /// Initialises accumulators to their identities, before the innermost loop of this many iterations.
    pub fn begin(&mut self, group: &Group, running: &mut [Running], unroll: usize, turns: usize) -> Res<()> {
        let d = self.text.depth();
        for ((_, sink), run) in group.sinks().iter().zip(running) {
            let Running::Lanes(acc) = run else { continue };
            let op = match sink {
                Sink::Reduce { op, .. } => *op,
                Sink::Scan { op, .. } => {
                    self.begin_scan(*op, acc);
                    continue;
                }
                _ => continue,
            };
            let (ty, n) = (reg(acc.elem), self.lanes);
            let (t, it) = (vector(ty, n), vector("i32", n));
            while acc.slots.len() < unroll {
                let slot = self.text.alloca(&t, 64);
                let index = is_arg(op).then(|| self.text.alloca(&it, 64));
                acc.slots.push((slot, index));
            }
            if turns > CHUNK && self.widens(sink) {
                acc.wide = Some(self.open_wide());
            }
            let first = literal(ty, n, &identity(op, acc.elem));
            for (slot, index) in &acc.slots {
                self.text.line(d, format!("store {t} {first}, ptr {slot}"));
                if let Some(i) = index {
                    self.text.line(d, format!("store {it} {}, ptr {i}", literal("i32", n, "2147483647")));
                }
            }
        }
        Ok(())
    }
    pub fn accumulate(
        &mut self,
        op: ReduceOp,
        axis: usize,
        v: &Val,
        at: &[Val],
        run: &mut Running,
        turn: usize,
    ) -> Res<()> {
        let (d, n) = (self.text.depth(), self.lanes);
        let index = Val { elem: Elem::I32, ..at[axis].clone() };
        match run {
            Running::Lanes(acc) => {
                let e = acc.elem;
                let t = vector(reg(e), n);
                let Some((slot, is)) = acc.slots.get(turn).cloned() else {
                    return Err("an accumulator is missing".into());
                };
                let x = self.reg(v, n);
                let a = self.text.emit(d, format!("load {t}, ptr {slot}"));
                if let Some(is) = is {
                    let it = vector("i32", n);
                    let ai = self.text.emit(d, format!("load {it}, ptr {is}"));
                    let xi = self.reg(&index, n);
                    let (r, ri) = self.better(op, e, d, (&a, &ai), (&x, &xi), n);
                    self.text.line(d, format!("store {t} {r}, ptr {slot}"));
                    self.text.line(d, format!("store {it} {ri}, ptr {is}"));
                } else {
                    let r = self.binary_reg(combiner(op, e), e, d, &a, &x, n)?;
                    self.text.line(d, format!("store {t} {r}, ptr {slot}"));
                }
            }
            Running::Memory(values, indices) => {
                let off = self.linear(&values.shape, &without(at, axis));
                let e = values.elem;
                let old = self.read(e, Store::Scratch, &values.ptr, &off, Guard::pinned())?;
                let v = if e == Elem::F64 { self.cast(v, e)? } else { Val { elem: e, ..v.clone() } };
                let w = self.width(&[&old, &v]);
                let (a, x) = (self.reg(&old, w), self.reg(&v, w));
                if let Some(indices) = indices {
                    let oi = self.read(Elem::I32, Store::Scratch, &indices.ptr, &off, Guard::pinned())?;
                    let (ai, xi) = (self.reg(&oi, w), self.reg(&index, w));
                    let (r, ri) = self.better(op, e, d, (&a, &ai), (&x, &xi), w);
                    let (r, ri) = (self.wrap(e, r, w, d), self.wrap(Elem::I32, ri, w, d));
                    self.write(Store::Scratch, &values.ptr, &off, &r, None)?;
                    self.write(Store::Scratch, &indices.ptr, &off, &ri, None)?;
                } else {
                    let r = self.binary_reg(combiner(op, e), e, d, &a, &x, w)?;
                    let r = self.wrap(e, r, w, d);
                    self.write(Store::Scratch, &values.ptr, &off, &r, None)?;
                }
            }
            Running::None => {}
        }
        Ok(())
    }
    /// The better of two (value, index) pairs: NaN first, then the value, then the smaller index.
    fn better(
        &mut self,
        op: ReduceOp,
        e: Elem,
        d: usize,
        a: (&Name, &Name),
        x: (&Name, &Name),
        n: usize,
    ) -> (Name, Name) {
        let (t, c, it) = (vector(reg(e), n), vector("i1", n), vector("i32", n));
        let cmp = if op == ReduceOp::ArgMax { CmpOp::Gt } else { CmpOp::Lt };
        let mut wins = self.cmp_reg(cmp, e, d, x.0, a.0, n);
        let mut ties = self.cmp_reg(CmpOp::Eq, e, d, x.0, a.0, n);
        if e.is_float() {
            let xn = self.text.emit(d, format!("fcmp uno {t} {0}, {0}", x.0));
            let ao = self.text.emit(d, format!("fcmp ord {t} {0}, {0}", a.0));
            let first = self.text.emit(d, format!("and {c} {xn}, {ao}"));
            wins = self.text.emit(d, format!("or {c} {wins}, {first}"));
            let not = self.text.emit(d, format!("xor {c} {ao}, {}", literal("i1", n, "true")));
            let both = self.text.emit(d, format!("and {c} {xn}, {not}"));
            ties = self.text.emit(d, format!("or {c} {ties}, {both}"));
        }
        let earlier = self.text.emit(d, format!("icmp slt {it} {}, {}", x.1, a.1));
        let tie = self.text.emit(d, format!("and {c} {ties}, {earlier}"));
        let take = self.text.emit(d, format!("or {c} {wins}, {tie}"));
        let v = self.text.emit(d, format!("select {c} {take}, {t} {}, {t} {}", x.0, a.0));
        let i = self.text.emit(d, format!("select {c} {take}, {it} {}, {it} {}", x.1, a.1));
        (v, i)
    }
    /// After the innermost loop: reduces the accumulators to one element.
    pub fn end(&mut self, group: &Group, at: &[Val], running: &mut [Running]) -> Res<()> {
        let d = self.text.depth();
        for ((_, sink), run) in group.sinks().iter().zip(running) {
            let (Running::Lanes(acc), Sink::Reduce { op, axis, operand, result }) = (run, sink) else { continue };
            let mut best = self.merged(*op, acc)?;
            let wide = self.widens(sink);
            let e = if wide { Elem::F64 } else { acc.elem };
            if wide {
                best.0 = self.plus_wide(&best.0, acc.wide.as_ref());
            }
            let mut n = self.lanes;
            while n > 1 {
                n /= 2;
                let halves = |s: &mut Self, x: &Name, ty: &str| {
                    let from = vector(ty, n * 2);
                    let pick = |lo: usize| (lo..lo + n).map(|l| format!("i32 {l}")).collect::<Vec<_>>().join(", ");
                    if n == 1 {
                        return (
                            s.text.emit(d, format!("extractelement {from} {x}, i64 0")),
                            s.text.emit(d, format!("extractelement {from} {x}, i64 1")),
                        );
                    }
                    (
                        s.text.emit(d, format!("shufflevector {from} {x}, {from} poison, <{n} x i32> <{}>", pick(0))),
                        s.text.emit(d, format!("shufflevector {from} {x}, {from} poison, <{n} x i32> <{}>", pick(n))),
                    )
                };
                let (lo, hi) = halves(self, &best.0, reg(e));
                let (li, hi_i) = if is_arg(*op) { halves(self, &best.1, "i32") } else { ("".into(), "".into()) };
                best = self.merge(*op, e, d, &(lo, li), &(hi, hi_i), n)?;
            }
            if wide {
                best.0 = self.text.emit(d, format!("fptrunc double {} to float", best.0));
            }
            let to = block_elem(self.kernel.ty(*result))?;
            let v = if is_arg(*op) {
                self.wrap(Elem::I32, best.1, 1, d)
            } else {
                let from = block_elem(self.kernel.ty(*operand))?;
                let r = self.round(d, from, best.0, 1)?;
                self.wrap(to, r, 1, d)
            };
            match &acc.buffer {
                None => acc.done = Some(v),
                Some(b) => {
                    let b = b.clone();
                    let off = self.linear(&b.shape, &without(at, *axis));
                    self.write(Store::Scratch, &b.ptr, &off, &v, None)?;
                }
            }
        }
        Ok(())
    }
    /// The accumulators of all unrolled iterations, merged into one vector.
    pub fn merged(&mut self, op: ReduceOp, acc: &Accumulators) -> Res<(Name, Name)> {
        let (d, e, n) = (self.text.depth(), acc.elem, self.lanes);
        let (t, it) = (vector(reg(e), n), vector("i32", n));
        let mut parts: Vec<(Name, Name)> = vec![];
        for (slot, index) in &acc.slots {
            let v = self.text.emit(d, format!("load {t}, ptr {slot}"));
            let i = index.as_ref().map_or("".into(), |i| self.text.emit(d, format!("load {it}, ptr {i}")));
            parts.push((v, i));
        }
        while parts.len() > 1 {
            let upper = parts.split_off(parts.len().div_ceil(2));
            for (p, q) in parts.iter_mut().zip(upper) {
                *p = self.merge(op, e, d, p, &q, n)?;
            }
        }
        parts.pop().ok_or_else(|| "a reduction without accumulators".into())
    }
    fn merge(
        &mut self,
        op: ReduceOp,
        e: Elem,
        d: usize,
        a: &(Name, Name),
        b: &(Name, Name),
        n: usize,
    ) -> Res<(Name, Name)> {
        if is_arg(op) {
            return Ok(self.better(op, e, d, (&a.0, &a.1), (&b.0, &b.1), n));
        }
        Ok((self.binary_reg(combiner(op, e), e, d, &a.0, &b.0, n)?, "".into()))
    }
    /// After the nest: records where the results are.
    pub fn settle(&mut self, group: &Group, running: Vec<Running>) -> Res<()> {
        for ((_, sink), run) in group.sinks().iter().zip(running) {
            let (operand, result) = match sink {
                Sink::Reduce { operand, result, .. } | Sink::Scan { operand, result, .. } => (*operand, *result),
                _ => continue,
            };
            let from = block_elem(self.kernel.ty(operand))?;
            let place = match run {
                Running::Lanes(Accumulators { done: Some(v), .. }) => Place::Reg(v),
                Running::Lanes(Accumulators { buffer: Some(b), .. }) => {
                    Place::Buffer(Buffer { elem: block_elem(self.kernel.ty(result))?, ..b })
                }
                Running::Memory(_, Some(index)) => self.as_result(index),
                Running::Memory(b, None) => {
                    if b.elem != from {
                        let source = b.clone();
                        self.flat(&b, |s, off| {
                            let x = s.read(source.elem, Store::Scratch, &source.ptr, off, Guard::pinned())?;
                            s.cast(&x, from)
                        })?;
                    }
                    self.as_result(Buffer { elem: from, ..b })
                }
                _ => return Err("a reduction without a result".into()),
            };
            self.place.insert(result, place);
        }
        Ok(())
    }
    /// A buffer of one element for a scalar result is read at once.
    fn as_result(&mut self, b: Buffer) -> Place {
        if !b.shape.is_empty() {
            return Place::Buffer(b);
        }
        let off = Val::int(Elem::I64, 0);
        match self.read(b.elem, Store::Scratch, &b.ptr, &off, Guard::pinned()) {
            Ok(v) => Place::Reg(v),
            Err(_) => Place::Buffer(b),
        }
    }
}
