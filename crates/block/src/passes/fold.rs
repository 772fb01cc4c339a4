//! Constant folding and identities on integers and masks; inlines branches with a known condition and loops of at most
//! one iteration.
//!
//! Bounds that hold for every element of every instance become `true`, so whole blocks lose their masks. Replaced
//! instructions stay behind without uses; `dce` removes them. Floats are converted and moved, never computed. Integers,
//! addresses and loads that are the same for all elements become scalars, which are repeated.
use super::numbers;
use crate::builder::rewrite::{Names, renamed};
use crate::{
    BinaryOp, BlockProgram, Builder, CmpOp, Const, Elem, Inst, InstData, Op, Region, Type, UnaryOp, Value, analysis,
};
use std::collections::HashMap;

pub fn run(k: &mut BlockProgram) {
    let facts = analysis::analyse(k);
    let old = std::mem::take(k);
    let insts = old.body.insts.clone();
    let b = Builder::of(old);
    let mut f = Folder { b, facts, consts: HashMap::new(), splats: HashMap::new(), same: Names::new() };
    f.known_params();
    insts.into_iter().for_each(|i| f.inst(i));
    *k = f.b.finish();
}

struct Folder {
    b: Builder,
    facts: analysis::Analysis,
    consts: HashMap<Value, Const>,
    /// Blocks whose elements are one scalar.
    splats: HashMap<Value, Value>,
    /// Values, each with the value that replaces it.
    same: Names,
}

/// What replaces an instruction.
enum To {
    Const(Const),
    Value(Value),
    /// The same results from another op.
    Op(Op, Vec<Value>),
    Nothing,
}

impl Folder {
    fn now(&self, v: Value) -> Value {
        renamed(&self.same, v)
    }
    fn replace(&mut self, old: Value, new: Value) {
        let new = self.now(new);
        self.same.insert(old, new);
        if let Some(c) = self.consts.get(&new).copied() {
            self.consts.insert(old, c);
        }
    }
    fn k(&self) -> &BlockProgram {
        self.b.program()
    }
    /// Parameters whose value is known become constants.
    fn known_params(&mut self) {
        let known: Vec<(Value, i64)> =
            self.k().params.iter().filter_map(|p| Some((p.value, p.facts.equals?))).collect();
        for (param, equals) in known {
            let ty = self.k().ty(param).clone();
            let value = if ty.elem() == Some(Elem::Bool) { Const::Bool(equals != 0) } else { Const::Int(equals) };
            let constant = self.b.constant(ty, value);
            self.consts.insert(constant, value);
            self.replace(param, constant);
        }
    }
    fn inst(&mut self, i: Inst) {
        let mut data = self.k().inst(i).clone();
        data.args.iter_mut().for_each(|v| *v = self.now(*v));
        self.set(i, data.clone());
        if !data.regions.is_empty() {
            return self.structured(i, data);
        }
        if let Some(scalar) = self.uniform(&data).or_else(|| self.by_scalars(&data)) {
            data = InstData { op: Op::Splat, args: vec![scalar], ..data };
            self.set(i, data.clone());
        }
        match self.simplify(&data) {
            Some(To::Nothing) => return,
            Some(To::Value(v)) if self.k().value(v).layout == self.k().value(data.results[0]).layout => {
                self.replace(data.results[0], v);
            }
            Some(To::Const(c)) => self.set(i, InstData { op: Op::Const(c), args: vec![], ..data }),
            Some(To::Op(op, args)) => self.set(i, InstData { op, args, ..data }),
            Some(To::Value(_)) | None => {}
        }
        let InstData { op, args, results, .. } = self.b.program().inst(i);
        match (op, &args[..], &results[..]) {
            (Op::Const(c), _, [v]) => _ = self.consts.insert(*v, *c),
            (Op::Splat, [scalar], [v]) => _ = self.splats.insert(*v, *scalar),
            _ => {}
        }
        self.b.keep(i);
    }
    fn set(&mut self, i: Inst, data: InstData) {
        *self.b.program_mut().inst_mut(i) = data;
    }
    /// Appends a new instruction, folded as those of the program.
    fn emit(&mut self, op: Op, args: Vec<Value>, ty: Type) -> Value {
        let result = self.b.new_value(ty);
        let made = self.b.program_mut().new_inst(InstData { op, args, results: vec![result], regions: vec![] });
        self.inst(made);
        result
    }
    /// The scalar that all elements of a quotient or remainder are, as the quotient of the columns of a tile by its
    /// width.
    fn uniform(&self, data: &InstData) -> Option<Value> {
        let (Op::Binary(BinaryOp::Div | BinaryOp::Rem), [v]) = (&data.op, &data.results[..]) else { return None };
        let form = self.facts.affine(*v)?;
        let [(scalar, 1)] = form.scalars[..] else { return None };
        let alone = form.root.is_none() && form.constant == 0 && form.coeffs.iter().all(|c| *c == 0);
        let (ty, scalar) = (self.k().ty(*v), self.now(scalar));
        let typed = *self.k().ty(scalar) == ty.with_shape([]) && !ty.is_scalar() && self.k().value(*v).layout.is_none();
        (alone && typed).then_some(scalar)
    }
    /// What an op gives for scalars, if its operands are these, repeated.
    fn by_scalars(&mut self, data: &InstData) -> Option<Value> {
        let (ty, taken) = match (&data.op, &data.results[..]) {
            (Op::Binary(_) | Op::Cast(_) | Op::PtrAdd, [v]) => (self.k().ty(*v).clone(), true),
            (Op::Load(..), [v]) => (self.k().ty(*v).clone(), data.args.len() == 1),
            _ => return None,
        };
        let whole = |v: &Value| match self.k().ty(*v) {
            Type::Ptr { .. } => true,
            ty => ty.elem().is_some_and(Elem::is_int),
        };
        let repeated = |v: &Value| self.splats.contains_key(v);
        let known = |v: &Value| repeated(v) || self.consts.contains_key(v);
        let fits = taken && !ty.is_scalar() && self.k().value(data.results[0]).layout.is_none();
        if !fits || !data.args.iter().all(|v| whole(v) && known(v)) || !data.args.iter().any(repeated) {
            return None;
        }
        if !matches!(data.op, Op::Load(..)) && !whole(&data.results[0]) {
            return None;
        }
        let args: Vec<Value> = data.args.iter().map(|v| self.scalar(*v)).collect();
        let result = self.emit(data.op.clone(), args, ty.with_shape([]));
        Some(self.now(result))
    }
    /// The scalar that all elements of a block are.
    fn scalar(&mut self, v: Value) -> Value {
        match (self.splats.get(&v), self.consts.get(&v)) {
            (Some(scalar), _) => *scalar,
            (None, Some(c)) => self.emit(Op::Const(*c), vec![], self.k().ty(v).with_shape([])),
            (None, None) => v,
        }
    }
    /// Inlines a loop of at most one iteration, or a branch with a known condition.
    fn structured(&mut self, i: Inst, mut data: InstData) {
        let same_layouts = |k: &BlockProgram, from: &[Value], to: &[Value]| {
            from.iter().zip(to).all(|(a, b)| k.value(*a).layout == k.value(*b).layout)
        };
        match data.op {
            Op::For => {
                let init = &data.args[3..];
                if same_layouts(self.k(), init, &data.results) {
                    match self.trips(&data) {
                        Some(0) => {
                            data.results.iter().zip(init).for_each(|(r, v)| self.replace(*r, *v));
                            return;
                        }
                        Some(1) => {
                            let region = data.regions.remove(0);
                            self.replace(region.params[0], data.args[0]);
                            region.params[1..].iter().zip(init).for_each(|(p, v)| self.replace(*p, *v));
                            return self.splice(region, &data.results);
                        }
                        _ => {}
                    }
                }
            }
            Op::If => {
                if let Some(Const::Bool(c)) = self.consts.get(&data.args[0]) {
                    let region = data.regions.remove(usize::from(!*c));
                    let fits = region.insts.last().is_some_and(|y| {
                        let yielded: Vec<Value> = self.k().inst(*y).args.iter().map(|v| self.now(*v)).collect();
                        same_layouts(self.k(), &yielded, &data.results)
                    });
                    if fits {
                        return self.splice(region, &data.results);
                    }
                    data = self.k().inst(i).clone();
                }
            }
            _ => {}
        }
        for r in &mut data.regions {
            self.b.open_list();
            std::mem::take(&mut r.insts).into_iter().for_each(|i| self.inst(i));
            r.insts = self.b.close_list();
        }
        self.set(i, data);
        self.b.keep(i);
    }
    /// Puts the region's instructions in place of its op, and what it yields in place of the results.
    fn splice(&mut self, mut region: Region, results: &[Value]) {
        let last = region.insts.pop();
        region.insts.into_iter().for_each(|i| self.inst(i));
        if let Some(y) = last {
            let yielded = self.k().inst(y).args.clone();
            results.iter().zip(yielded).for_each(|(r, v)| self.replace(*r, v));
        }
    }
    fn trips(&self, data: &InstData) -> Option<u64> {
        let number = |v: Value| match self.consts.get(&v) {
            Some(Const::Int(c)) => Some(*c),
            _ => None,
        };
        let (lo, hi, step) = (number(data.args[0])?, number(data.args[1])?, number(data.args[2])?);
        (step > 0).then(|| (hi.saturating_sub(lo).max(0) as u64).div_ceil(step as u64))
    }
    fn simplify(&self, data: &InstData) -> Option<To> {
        let constant = |n: usize| data.args.get(n).and_then(|v| self.consts.get(v)).copied();
        let arg = |n: usize| data.args[n];
        let ty = |v: Value| self.k().ty(v);
        match &data.op {
            Op::Splat | Op::Broadcast | Op::Reshape | Op::Permute(_) | Op::ExpandDims(_) => {
                if let Some(c) = constant(0) {
                    return Some(To::Const(c));
                }
                let identity = match &data.op {
                    Op::Permute(perm) => perm.iter().enumerate().all(|(i, p)| i == *p as usize),
                    _ => true,
                };
                (identity && ty(arg(0)) == ty(data.results[0])).then(|| To::Value(arg(0)))
            }
            Op::ProgramId(axis) if self.k().grid.along(*axis) == Some(1) => Some(To::Const(Const::Int(0))),
            Op::NumPrograms(axis) => self.k().grid.along(*axis).map(|n| To::Const(Const::Int(n as i64))),
            Op::Cast(to) => match constant(0) {
                _ if ty(arg(0)).elem() == Some(*to) => Some(To::Value(arg(0))),
                Some(c) => cast(c, ty(arg(0)).elem()?, *to).map(To::Const),
                None => None,
            },
            Op::MultipleOf(divisors) => match constant(0) {
                Some(c) => Some(To::Const(c)),
                None => divisors.iter().all(|d| *d == 1).then(|| To::Value(arg(0))),
            },
            Op::Bitcast => (ty(arg(0)) == ty(data.results[0])).then(|| To::Value(arg(0))),
            Op::Unary(op) => match (constant(0)?, op) {
                (Const::Int(x), _) => Some(To::Const(Const::Int(numbers::unary(*op, ty(arg(0)).elem()?, x)?))),
                (Const::Bool(x), UnaryOp::Not) => Some(To::Const(Const::Bool(!x))),
                _ => None,
            },
            Op::Binary(op) => self.binary(*op, data),
            Op::Cmp(op) => self.cmp(*op, data),
            Op::Select => match constant(0) {
                Some(Const::Bool(c)) => Some(To::Value(arg(if c { 1 } else { 2 }))),
                _ => (arg(1) == arg(2)).then(|| To::Value(arg(1))),
            },
            Op::PtrAdd => matches!(constant(1), Some(Const::Int(0))).then(|| To::Value(arg(0))),
            Op::Load(..) => match constant(1) {
                Some(Const::Bool(true)) => Some(To::Op(data.op.clone(), vec![arg(0)])),
                Some(Const::Bool(false)) => Some(match data.args.get(2) {
                    Some(other) => To::Value(*other),
                    None => To::Const(zero(ty(arg(0)).elem()?)),
                }),
                _ => None,
            },
            Op::Store(_) | Op::Atomic { .. } => match constant(2) {
                Some(Const::Bool(true)) => Some(To::Op(data.op.clone(), vec![arg(0), arg(1)])),
                Some(Const::Bool(false)) if data.results.is_empty() => Some(To::Nothing),
                Some(Const::Bool(false)) => Some(To::Const(zero(ty(arg(1)).elem()?))),
                _ => None,
            },
            Op::Check { .. } if [1, 3].iter().any(|n| constant(*n) == Some(Const::Bool(false))) => Some(To::Nothing),
            Op::Check { .. } if constant(3) == Some(Const::Bool(true)) => {
                Some(To::Op(data.op.clone(), vec![arg(0), arg(1), arg(2)]))
            }
            _ => None,
        }
    }
    fn binary(&self, op: BinaryOp, data: &InstData) -> Option<To> {
        let [a, b] = data.args[..] else { return None };
        let elem = self.k().ty(a).elem()?;
        let (ca, cb) = (self.consts.get(&a).copied(), self.consts.get(&b).copied());
        match (ca, cb) {
            (Some(Const::Int(x)), Some(Const::Int(y))) => {
                return Some(To::Const(Const::Int(numbers::binary(op, elem, x, y)?)));
            }
            (Some(Const::Bool(x)), Some(Const::Bool(y))) => {
                let v = match op {
                    BinaryOp::And => x && y,
                    BinaryOp::Or => x || y,
                    BinaryOp::Xor => x != y,
                    _ => return None,
                };
                return Some(To::Const(Const::Bool(v)));
            }
            _ => {}
        }
        if elem.is_float() {
            return None;
        }
        use BinaryOp::*;
        if a == b {
            match op {
                And | Or | Max | Min => return Some(To::Value(a)),
                Sub | Xor => return Some(To::Const(zero(elem))),
                _ => {}
            }
        }
        let bit = |c: Option<Const>| match c {
            Some(Const::Int(x)) => Some(x),
            Some(Const::Bool(x)) => Some(if x { -1 } else { 0 }),
            _ => None,
        };
        match (op, bit(ca), bit(cb)) {
            (Add | Sub | Or | Xor | Shl | Shr, _, Some(0)) => Some(To::Value(a)),
            (Add | Or | Xor, Some(0), _) => Some(To::Value(b)),
            (Mul | Div, _, Some(1)) => Some(To::Value(a)),
            (Mul, Some(1), _) => Some(To::Value(b)),
            (Mul | And, _, Some(0)) | (Mul | And, Some(0), _) | (Rem, _, Some(1)) => Some(To::Const(zero(elem))),
            (And, _, Some(-1)) => Some(To::Value(a)),
            (And, Some(-1), _) => Some(To::Value(b)),
            (Or, _, Some(-1)) if elem == Elem::Bool => Some(To::Const(Const::Bool(true))),
            (Or, Some(-1), _) if elem == Elem::Bool => Some(To::Const(Const::Bool(true))),
            _ => None,
        }
    }
    fn cmp(&self, op: CmpOp, data: &InstData) -> Option<To> {
        let [a, b] = data.args[..] else { return None };
        let Type::Block { elem, shape } = self.k().ty(a) else { return None };
        if !elem.is_int() {
            return None;
        }
        if let (Some(Const::Int(x)), Some(Const::Int(y))) = (self.consts.get(&a), self.consts.get(&b)) {
            return Some(To::Const(Const::Bool(numbers::compare(op, *elem, *x, *y))));
        }
        if a == b {
            return numbers::decided(op, (0, 0)).map(|c| To::Const(Const::Bool(c)));
        }
        let (fa, fb) = (self.facts.affine(a)?, self.facts.affine(b)?);
        // Forms do not wrap, so both sides must fit their type.
        let fits = |r: (i64, i64)| *elem == Elem::I64 || (wrapped_ok(*elem, r.0) && wrapped_ok(*elem, r.1));
        if !fits(self.facts.range(fa, shape)?) || !fits(self.facts.range(fb, shape)?) {
            return None;
        }
        let range = self.facts.range(&fa.add_scaled(fb, -1)?, shape)?;
        numbers::decided(op, range).map(|c| To::Const(Const::Bool(c)))
    }
}

fn wrapped_ok(elem: Elem, x: i64) -> bool {
    elem.wrapped(x) == x
}

fn zero(elem: Elem) -> Const {
    match elem {
        Elem::Bool => Const::Bool(false),
        e if e.is_float() => Const::Float(0.0),
        _ => Const::Int(0),
    }
}

/// A converted constant, where the conversion is exact.
fn cast(c: Const, from: Elem, to: Elem) -> Option<Const> {
    let x = match c {
        Const::Int(x) => x,
        Const::Bool(x) => i64::from(x),
        // Small integers are numbers of every type. Other floats round, which depends on the target.
        Const::Float(x) if x.fract() == 0.0 && x.abs() <= 8.0 && (x > 0.0 || x.is_sign_positive()) => x as i64,
        Const::Float(_) => return None,
    };
    match to {
        // Larger numbers are negative here.
        e if from == Elem::U64 && x < 0 && e.is_float() => None,
        Elem::Bool => Some(Const::Bool(x != 0)),
        Elem::F64 => (x.unsigned_abs() <= 1 << 53).then_some(Const::Float(x as f64)),
        Elem::F32 => (x.unsigned_abs() <= 1 << 24).then_some(Const::Float(x as f64)),
        // There is no code for constants of f8.
        e if e.is_f8() => None,
        e if e.is_float() => (x.unsigned_abs() <= 8).then_some(Const::Float(x as f64)),
        e => Some(Const::Int(e.wrapped(x))),
    }
}
