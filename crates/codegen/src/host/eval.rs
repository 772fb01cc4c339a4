//! Lazy evaluation of block values: the element (or W elements) at given coordinates, computed where it is needed.
//!
//! Coordinates are I64 values, one per axis; at most the vectorised axis varies over lanes. Results are memoised per
//! scope, so a value used twice at the same coordinates is computed once, and are written into the outermost scope
//! possible.
use super::memory::{Guard, Store};
use super::text::Name;
use super::value::{Arith, Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{BinaryOp, Const, Elem, Inst, Op, Type, Value};

/// Scratch memory of a block, row-major.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub ptr: Name,
    pub elem: Elem,
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub memory: Store,
    /// For offsets: a byte for each vector, which says whether its elements are those of neighbours.
    pub neighbours: Option<Name>,
}

/// Where a value is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A scalar.
    Reg(Val),
    Buffer(Buffer),
    /// A block of pointers to such elements, as addresses.
    Addresses(Buffer, Elem),
    /// Computed by its instruction where it is used.
    Virtual(Inst),
    /// A loop-carried value that grows by the same amount per iteration: initial value + iteration * step.
    Induction {
        init: Value,
        step: Value,
        turn: Num,
    },
}

impl Place {
    /// A block in scratch memory; of pointers, if it has a pointee.
    pub fn of_buffer(buffer: Buffer, pointee: Option<Elem>) -> Place {
        match pointee {
            Some(elem) => Place::Addresses(buffer, elem),
            None => Place::Buffer(buffer),
        }
    }
}

/// What a pointer points to.
pub(super) fn pointee(ty: &Type) -> Option<Elem> {
    if let Type::Ptr { elem, .. } = ty { Some(*elem) } else { None }
}

impl Emit<'_> {
    pub fn eval(&mut self, v: Value, at: &[Val]) -> Res<Val> {
        let key = (v, at.to_vec());
        for scope in self.memo.iter().rev() {
            if let Some(x) = scope.get(&key) {
                return Ok(x.clone());
            }
        }
        let x = self.compute(v, at)?;
        // What was computed under an assumption is valid in this loop only.
        let scope = if self.assumed.is_empty() { x.depth.min(self.memo.len() - 1) } else { self.memo.len() - 1 };
        self.memo[scope].insert(key, x.clone());
        Ok(x)
    }
    fn compute(&mut self, v: Value, at: &[Val]) -> Res<Val> {
        if self.assumed.contains(&v) && self.here == at {
            return Ok(Val::truth(true));
        }
        match self.place.get(&v).cloned() {
            Some(Place::Reg(x)) => Ok(x),
            Some(Place::Buffer(b)) => {
                let off = self.linear(&b.shape, at);
                let x = self.read(b.elem, b.memory, &b.ptr, &off, Guard::default())?;
                self.read_run(&b, &off, &x)?;
                Ok(x)
            }
            Some(Place::Addresses(b, elem)) => {
                let off = self.linear(&b.shape, at);
                let address = self.read(Elem::I64, Store::Scratch, &b.ptr, &off, Guard::default())?;
                Ok(self.pointer_to(elem, &address))
            }
            Some(Place::Virtual(i)) => self.compute_inst(i, at),
            Some(Place::Induction { init, step, turn }) => {
                let (x, s) = (self.eval(init, at)?, self.eval(step, at)?);
                let turn = Val::num(s.elem, turn, 0);
                let grown = self.int_op(Arith::Mul, &s, &turn);
                self.advance(&x, &grown)
            }
            None => Err(format!("use of {v} before it is computed")),
        }
    }
    /// Pointer plus offset, or a sum of integers.
    fn advance(&mut self, x: &Val, by: &Val) -> Res<Val> {
        let Form::Ptr(root, off) = &x.form else { return self.binary(BinaryOp::Add, x, by) };
        let by = if by.elem == Elem::I64 { by.clone() } else { self.offset(by) };
        let sum = self.int_op(Arith::Add, off, &by);
        let depth = sum.depth.max(x.depth);
        Ok(Val { elem: x.elem, form: Form::Ptr(root.clone(), Box::new(sum)), depth })
    }
    /// An index as I64: affine forms unchanged (indices do not overflow), others sign-extended.
    fn offset(&mut self, v: &Val) -> Val {
        match &v.form {
            Form::Num(_) | Form::Lanes(..) => Val { elem: Elem::I64, ..v.clone() },
            _ => {
                let x = self.reg(v, self.lanes);
                let n = self.lanes;
                let wide = self.text.emit(v.depth, format!("sext <{n} x i32> {x} to <{n} x i64>"));
                self.same_run(&x, &wide);
                Val { elem: Elem::I64, form: Form::Vec(wide), depth: v.depth }
            }
        }
    }
    /// Row-major position.
    pub fn linear(&mut self, shape: &[usize], at: &[Val]) -> Val {
        let mut sum = Val::int(Elem::I64, 0);
        let mut stride = 1i64;
        for (&n, c) in shape.iter().zip(at).rev() {
            if n > 1 {
                let t = self.int_op(Arith::Mul, c, &Val::int(Elem::I64, stride));
                sum = self.int_op(Arith::Add, &t, &sum);
            }
            stride *= n as i64;
        }
        sum
    }
    /// Coordinates of a row-major position.
    fn coordinates(&mut self, shape: &[usize], position: &Val) -> Res<Vec<Val>> {
        let mut at = vec![Val::int(Elem::I64, 0); shape.len()];
        let mut rest = position.clone();
        for axis in (0..shape.len()).rev() {
            let n = shape[axis];
            if n == 1 {
                continue;
            }
            if shape[..axis].iter().all(|&d| d == 1) {
                at[axis] = rest;
                break;
            }
            let size = Val::int(Elem::I64, n as i64);
            at[axis] = self.binary(BinaryOp::Rem, &rest, &size)?;
            rest = self.binary(BinaryOp::Div, &rest, &size)?;
        }
        Ok(at)
    }
    fn reshape(&mut self, from: &[usize], to: &[usize], at: &[Val]) -> Res<Vec<Val>> {
        // Only unit axes are added or removed: the coordinates stay.
        if from.iter().filter(|&&n| n > 1).eq(to.iter().filter(|&&n| n > 1)) {
            let mut kept = at.iter().zip(to).filter(|(_, n)| **n > 1).map(|(c, _)| c.clone());
            return Ok(from
                .iter()
                .map(|&n| if n > 1 { kept.next() } else { None }.unwrap_or_else(|| Val::int(Elem::I64, 0)))
                .collect());
        }
        let p = self.linear(to, at);
        self.coordinates(from, &p)
    }
    pub fn constant(&self, ty: &Type, c: &Const) -> Res<Val> {
        let e = ty.elem().ok_or("a constant without an element type")?;
        let form = match (e, c) {
            (Elem::I32 | Elem::I64, c) => {
                let v = match c {
                    Const::Int(v) => *v,
                    Const::Float(f) => *f as i64,
                    Const::Bool(b) => *b as i64,
                };
                Form::Num(Num::konst(if e == Elem::I32 { v as i32 as i64 } else { v }))
            }
            (e, c) if e.is_int() => {
                let v = match c {
                    Const::Int(v) => *v,
                    Const::Float(v) => *v as i64,
                    Const::Bool(b) => i64::from(*b),
                };
                Form::Scalar(e.wrapped(v).to_string().into())
            }
            (Elem::Bool, c) => {
                let b = match c {
                    Const::Bool(b) => *b,
                    Const::Int(v) => *v != 0,
                    Const::Float(v) => *v != 0.0,
                };
                Form::Scalar(if b { "true" } else { "false" }.into())
            }
            (_, c) => {
                let v = match c {
                    Const::Float(v) => *v,
                    Const::Int(v) => *v as f64,
                    Const::Bool(b) => *b as u8 as f64,
                };
                let v = super::half::round(e, v).ok_or_else(|| format!("a constant beyond {e}"))?;
                Form::Scalar(super::text::float(super::text::reg(e), v).into())
            }
        };
        Ok(Val { elem: e, form, depth: 0 })
    }

    /// The first result of an instruction, at coordinates of that result.
    pub fn compute_inst(&mut self, i: Inst, at: &[Val]) -> Res<Val> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        let arg = |n: usize| inst.args.get(n).copied().ok_or_else(|| format!("{:?} without operand {n}", inst.op));
        let result = inst.results.first().copied().ok_or("an instruction without a result")?;
        match &inst.op {
            Op::Const(c) => self.constant(kernel.ty(result), c),
            Op::ProgramId(a) => {
                let n = self.pid.get(*a as usize).cloned().ok_or("a fourth grid axis")?;
                Ok(Val::num(Elem::I32, n, 0))
            }
            Op::NumPrograms(a) => {
                let n = self.sizes.get(*a as usize).cloned().ok_or("a fourth grid axis")?;
                Ok(Val::num(Elem::I32, n, 0))
            }
            Op::Iota => self.iota(at),
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) => {
                let from = self.operand_coordinates(i, at)?;
                self.eval(arg(0)?, &from)
            }
            Op::Unary(op) => {
                let x = self.eval(arg(0)?, at)?;
                self.unary(*op, &x)
            }
            Op::Binary(op) => {
                let (x, y) = (self.eval(arg(0)?, at)?, self.eval(arg(1)?, at)?);
                self.binary(*op, &x, &y)
            }
            Op::Cmp(op) => {
                let (x, y) = (self.eval(arg(0)?, at)?, self.eval(arg(1)?, at)?);
                self.cmp(*op, &x, &y)
            }
            Op::Select => {
                let c = self.eval(arg(0)?, at)?;
                let (x, y) = (self.eval(arg(1)?, at)?, self.eval(arg(2)?, at)?);
                self.select(&c, &x, &y)
            }
            Op::Cast(to) => {
                let x = self.eval(arg(0)?, at)?;
                self.cast(&x, *to)
            }
            Op::CastToZero(to) => {
                let x = self.eval(arg(0)?, at)?;
                self.cast_to_zero(&x, *to)
            }
            Op::Fma => {
                let (x, y, z) = (self.eval(arg(0)?, at)?, self.eval(arg(1)?, at)?, self.eval(arg(2)?, at)?);
                self.fma(&x, &y, &z)
            }
            Op::Part { .. } | Op::Join | Op::Split(_) | Op::Cat { .. } | Op::Gather { .. } => self.moved(i, at),
            Op::MultipleOf(_) => self.eval(arg(0)?, at),
            Op::Bitcast => {
                let x = self.eval(arg(0)?, at)?;
                self.bitcast(&x, kernel.ty(result))
            }
            Op::PtrAdd => {
                let (p, o) = (self.eval(arg(0)?, at)?, self.eval(arg(1)?, at)?);
                self.advance(&p, &o)
            }
            Op::Load(..) => self.load(i, at),
            Op::TileLoad | Op::TileStore => Err("tensor-map tiles".into()),
            other => Err(format!("{other:?} inside an expression")),
        }
    }
    /// Positions along the axis of an iota.
    fn iota(&mut self, at: &[Val]) -> Res<Val> {
        let c = at.first().ok_or("iota without an axis")?;
        let mark = |n: &Num| Num { exact: true, ..n.clone() };
        let form = match &c.form {
            Form::Num(n) => Form::Num(mark(n)),
            Form::Lanes(n, s) => Form::Lanes(mark(n), *s),
            _ => {
                let n = self.lanes;
                let x = self.reg(c, n);
                Form::Vec(self.text.emit(c.depth, format!("trunc <{n} x i64> {x} to <{n} x i32>")))
            }
        };
        Ok(Val { elem: Elem::I32, form, depth: c.depth })
    }
    /// The coordinates of the operand's element that an op that only moves elements has at some of its result.
    fn operand_coordinates(&mut self, i: Inst, at: &[Val]) -> Res<Vec<Val>> {
        let kernel = self.kernel;
        let inst = kernel.inst(i);
        let shape = |v: &[kiln_block::Value]| v.first().map(|v| kernel.ty(*v).shape()).unwrap_or_default();
        let (from, to) = (shape(&inst.args), shape(&inst.results));
        Ok(match &inst.op {
            Op::Broadcast => {
                let along = |(c, &n): (&Val, &usize)| if n == 1 { Val::int(Elem::I64, 0) } else { c.clone() };
                at.iter().zip(from).map(along).collect()
            }
            Op::ExpandDims(axis) => {
                let mut at = at.to_vec();
                if (*axis as usize) < at.len() {
                    at.remove(*axis as usize);
                }
                at
            }
            Op::Reshape => self.reshape(from, to, at)?,
            Op::Permute(perm) => {
                let mut operand = vec![Val::int(Elem::I64, 0); at.len()];
                for (c, &p) in at.iter().zip(perm) {
                    if let Some(f) = operand.get_mut(p as usize) {
                        *f = c.clone();
                    }
                }
                operand
            }
            _ => vec![],
        })
    }
    /// An element that is loaded from a tensor.
    fn load(&mut self, i: Inst, at: &[Val]) -> Res<Val> {
        let inst = self.kernel.inst(i);
        let (Some(ptr), Some(result)) = (inst.args.first(), inst.results.first()) else {
            return Err("a load without a pointer or a result".into());
        };
        let p = self.eval(*ptr, at)?;
        let Form::Ptr(root, off) = &p.form else {
            return Err("a load from something other than a pointer".into());
        };
        let mask = inst.args.get(1).map(|m| self.eval(*m, at)).transpose()?;
        let needed = mask.as_ref().is_some_and(|m| !m.is_true());
        let other = if needed { inst.args.get(2).map(|o| self.eval(*o, at)).transpose()? } else { None };
        // Under an assumption a masked load must stay inside the loop that assumes it.
        let pin = !self.assumed.is_empty() && mask.is_some();
        if let Form::Lanes(base, 1) = &off.form {
            self.prefetch(*result, self.text.depth(), p.elem, root, &base.text);
        }
        self.read(p.elem, Store::Tensor, root, off, Guard { mask: mask.as_ref(), other: other.as_ref(), pin })
    }
}
