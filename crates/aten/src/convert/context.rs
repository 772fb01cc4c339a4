//! State of a conversion: the graph under construction, and typed access to the arguments of a call.
//!
//! Nodes are hash-consed: building the same node twice gives the same value. A conversion that fails half way leaves
//! unused nodes behind, which `prune` drops at the end.
//!
//! A program may lie about its calls: about the types of results, ranks, axes, the lengths of lists. So nothing is
//! indexed but through [`Ctx::size`], [`at`] and their like, which give an error; clippy holds the conversions to it.
//! Shapes of the program are within the limits of [`kiln_graph::infer`] ([`crate::Raw::check`]), so that the elements
//! of one tensor can be counted; numbers among the arguments may be any, so arithmetic on these must not overflow.
use crate::raw::{Arg, Call, Raw, RawInfo};
use kiln_graph::{
    BinaryOp, CompareOp, DType, Graph, Init, Op, ReduceOp, Scalar, Source, Tensor, Type, UnaryOp, ValueId,
};
use std::collections::HashMap;

/// `Err` is the reason why a call is not compiled; the call becomes a fallback with that reason.
pub type Res<T> = Result<T, String>;

/// Source of a parameter's data.
#[derive(Debug, Clone)]
pub enum ParamData {
    /// The contents of this raw value.
    Raw(usize),
    /// A tensor computed by the conversion.
    Made(Tensor),
}

pub struct Ctx<'a> {
    pub raw: &'a Raw,
    pub graph: Graph,
    pub params: Vec<ParamData>,
    /// Raw value id → graph value.
    values: Vec<Option<ValueId>>,
    /// Raw values that the outputs depend on.
    live: Vec<bool>,
    seen: HashMap<(Op, Type, Vec<ValueId>), ValueId>,
    source: Source,
    /// The collective that the next one has to follow.
    pub last_collective: Option<ValueId>,
    /// Raw value id → real and imaginary part of a complex value.
    pub complex: HashMap<usize, [ValueId; 2]>,
    /// Whether complex values count as their parts: a conversion of real values runs on one of these
    /// ([`super::complex`]).
    pub of_parts: bool,
}

impl<'a> Ctx<'a> {
    pub fn new(raw: &'a Raw, name: &str, live: Vec<bool>) -> Ctx<'a> {
        Ctx {
            raw,
            graph: Graph::new(name),
            params: vec![],
            values: vec![None; raw.values.len()],
            live,
            seen: HashMap::new(),
            source: Source::default(),
            last_collective: None,
            complex: HashMap::new(),
            of_parts: false,
        }
    }
    pub fn set_source(&mut self, source: Source) {
        self.source = source;
    }
    pub fn bind(&mut self, id: usize, v: ValueId) {
        self.values[id] = Some(v);
    }

    // Results of the call in the example run.

    pub fn info(&self, id: usize) -> &'a RawInfo {
        &self.raw.values[id]
    }
    pub fn raw_type(&self, id: usize) -> Res<Type> {
        let info = self.info(id);
        let part = if self.of_parts { part_type(&info.dtype) } else { None };
        Ok(Type::new(part.map_or_else(|| info.dtype.parse::<DType>(), Ok)?, info.shape.clone()))
    }
    /// Type of result `i`.
    pub fn out(&self, call: &Call, i: usize) -> Res<Type> {
        self.raw_type(*call.outs.get(i).ok_or("fewer results than expected")?)
    }
    /// An error if any result after the first `n` is used.
    pub fn only_results(&self, call: &Call, n: usize) -> Res<()> {
        match call.outs.iter().skip(n).any(|id| self.live[*id]) {
            true => Err(format!("result {n} or a later one is used")),
            false => Ok(()),
        }
    }

    // Arguments.

    pub fn arg<'c>(&self, call: &'c Call, i: usize) -> &'c Arg {
        call.args.get(i).unwrap_or(&Arg::None)
    }
    /// The graph value of a raw value; a constant becomes a parameter at its first use.
    pub fn value(&mut self, id: usize) -> Res<ValueId> {
        if let Some(v) = self.values[id] {
            return Ok(v);
        }
        if part_type(&self.info(id).dtype).is_some() {
            return Err("an operand is complex".into());
        }
        if !self.info(id).constant {
            return Err("an operand has no compiled form".into());
        }
        let v = self.leaf(id)?;
        self.values[id] = Some(v);
        Ok(v)
    }
    /// Forgets the graph value of a raw value.
    pub fn unbind(&mut self, id: usize) {
        self.values[id] = None;
    }
    /// A parameter of this type with the contents of a raw value.
    pub fn leaf_of(&mut self, id: usize, ty: Type) -> ValueId {
        let kind = if self.info(id).constant { "constant" } else { "folded" };
        let name = self.info(id).name.clone().unwrap_or_else(|| format!("{kind}.{id}"));
        self.param(name, ty, Init::External, ParamData::Raw(id))
    }
    /// A parameter (or constant, for rank 0) with the contents of a raw value.
    pub fn leaf(&mut self, id: usize) -> Res<ValueId> {
        let (info, ty) = (self.info(id), self.raw_type(id)?);
        if let (0, Some(s)) = (ty.rank(), info.scalar.as_ref().and_then(scalar_of)) {
            return Ok(self.constant(ty.dtype, s));
        }
        Ok(self.leaf_of(id, ty))
    }
    fn param(&mut self, name: String, ty: Type, init: Init, data: ParamData) -> ValueId {
        self.params.push(data);
        self.graph.param(name, ty, init)
    }
    /// A parameter whose contents the conversion computed, such as an index table.
    pub fn table(&mut self, name: &str, data: Tensor) -> ValueId {
        let name = format!("{name}.{}", self.params.len());
        self.param(name, data.ty.clone(), Init::External, ParamData::Made(data))
    }
    pub fn tensor(&mut self, call: &Call, i: usize) -> Res<ValueId> {
        match self.arg(call, i) {
            Arg::Value(id) => self.value(*id),
            other => Err(format!("argument {i} is {other:?}, not a tensor")),
        }
    }
    pub fn opt_tensor(&mut self, call: &Call, i: usize) -> Res<Option<ValueId>> {
        match self.arg(call, i) {
            Arg::None => Ok(None),
            _ => self.tensor(call, i).map(Some),
        }
    }
    pub fn tensors(&mut self, call: &Call, i: usize) -> Res<Vec<ValueId>> {
        let Arg::List(items) = self.arg(call, i) else { return Err(format!("argument {i} is not a list of tensors")) };
        let each = |a: &Arg| match a {
            Arg::Value(id) => self.value(*id),
            _ => Err(format!("argument {i} holds an element that is not a tensor")),
        };
        items.iter().map(each).collect()
    }
    pub fn int(&self, call: &Call, i: usize) -> Res<i64> {
        match self.arg(call, i) {
            Arg::Int(v) => Ok(*v),
            Arg::Bool(v) => Ok(i64::from(*v)),
            other => Err(format!("argument {i} is {other:?}, not an integer")),
        }
    }
    pub fn opt_int(&self, call: &Call, i: usize) -> Res<Option<i64>> {
        if *self.arg(call, i) == Arg::None { Ok(None) } else { self.int(call, i).map(Some) }
    }
    pub fn ints(&self, call: &Call, i: usize) -> Res<Vec<i64>> {
        match self.arg(call, i) {
            Arg::Ints(v) => Ok(v.clone()),
            Arg::Int(v) => Ok(vec![*v]),
            Arg::List(v) if v.is_empty() => Ok(vec![]),
            other => Err(format!("argument {i} is {other:?}, not a list of integers")),
        }
    }
    pub fn sizes(&self, call: &Call, i: usize) -> Res<Vec<usize>> {
        let ints = self.ints(call, i)?;
        ints.into_iter().map(|v| usize::try_from(v).map_err(|_| format!("argument {i} holds {v}"))).collect()
    }
    /// A number of things.
    pub fn count(&self, call: &Call, i: usize) -> Res<usize> {
        let n = self.int(call, i)?;
        usize::try_from(n).map_err(|_| format!("argument {i} is {n}, a negative number"))
    }
    /// A number of things, of which there is at least one.
    pub fn positive(&self, call: &Call, i: usize) -> Res<usize> {
        match self.count(call, i)? {
            0 => Err(format!("argument {i} is 0")),
            n => Ok(n),
        }
    }
    pub fn bool(&self, call: &Call, i: usize) -> Res<bool> {
        match self.arg(call, i) {
            Arg::Bool(v) => Ok(*v),
            Arg::Int(v) => Ok(*v != 0),
            other => Err(format!("argument {i} is {other:?}, not a bool")),
        }
    }
    pub fn float(&self, call: &Call, i: usize) -> Res<f64> {
        self.scalar(call, i).map(Scalar::as_f64)
    }
    pub fn str<'c>(&self, call: &'c Call, i: usize) -> Res<&'c str> {
        match self.arg(call, i) {
            Arg::Str(s) => Ok(s),
            other => Err(format!("argument {i} is {other:?}, not a string")),
        }
    }
    pub fn scalar(&self, call: &Call, i: usize) -> Res<Scalar> {
        scalar_of(self.arg(call, i)).ok_or_else(|| format!("argument {i} is {:?}, not a number", self.arg(call, i)))
    }
    pub fn opt_scalar(&self, call: &Call, i: usize) -> Res<Option<Scalar>> {
        if *self.arg(call, i) == Arg::None { Ok(None) } else { self.scalar(call, i).map(Some) }
    }
    /// An axis argument for `rank` axes, normalised to count from 0. Rank 0 counts as 1, as in torch.
    pub fn axis(&self, call: &Call, i: usize, rank: usize) -> Res<usize> {
        normal_axis(self.int(call, i)?, rank)
    }
    /// A list of axes, normalised; none or empty means all.
    pub fn axes(&self, call: &Call, i: usize, rank: usize) -> Res<Vec<usize>> {
        let given = if *self.arg(call, i) == Arg::None { vec![] } else { self.ints(call, i)? };
        if given.is_empty() {
            return Ok((0..rank).collect());
        }
        given.into_iter().filter(|_| rank > 0).map(|a| normal_axis(a, rank)).collect()
    }

    // Building.

    /// The value of `op` on `args`, with inferred type.
    pub fn node(&mut self, op: Op, args: &[ValueId]) -> Res<ValueId> {
        let types: Vec<&Type> = args.iter().map(|a| self.graph.ty(*a)).collect();
        let ty = kiln_graph::infer::infer(&op, &types)?;
        Ok(self.typed(op, ty, args))
    }
    /// The value of `op` with an explicit type, for leaves.
    pub fn typed(&mut self, op: Op, ty: Type, args: &[ValueId]) -> ValueId {
        let key = (op, ty, args.to_vec());
        if let Some(v) = self.seen.get(&key) {
            return *v;
        }
        let v = self.unshared(key.0.clone(), key.1.clone(), args);
        self.seen.insert(key, v);
        v
    }
    /// A new node even if an equal one exists, for calls that may draw random numbers.
    pub fn unshared(&mut self, op: Op, ty: Type, args: &[ValueId]) -> ValueId {
        let v = self.graph.push(op, ty, args);
        self.graph.set_source(v, self.source.clone());
        v
    }
    /// The size of an axis.
    pub fn size(&self, v: ValueId, axis: usize) -> Res<usize> {
        at(self.graph.shape(v), axis)
    }
    /// The last axis.
    pub fn last_axis(&self, v: ValueId) -> Res<usize> {
        self.rank(v).checked_sub(1).ok_or_else(|| "an operand of rank 0".into())
    }
    /// Every element of an axis `times`, along a new axis after it.
    pub fn repeated(&mut self, v: ValueId, axis: usize, times: usize) -> Res<ValueId> {
        let shape = self.shape(v);
        let (before, after) = shape.split_at_checked(axis + 1).ok_or_else(|| no_axis(axis, shape.len()))?;
        let split = self.reshape(v, &[before, &[1], after].concat())?;
        self.broadcast(split, &[before, &[times], after].concat())
    }
    pub fn ty(&self, v: ValueId) -> &Type {
        self.graph.ty(v)
    }
    pub fn dtype(&self, v: ValueId) -> DType {
        self.graph.dtype(v)
    }
    pub fn shape(&self, v: ValueId) -> Vec<usize> {
        self.graph.shape(v).to_vec()
    }
    pub fn rank(&self, v: ValueId) -> usize {
        self.graph.shape(v).len()
    }
    pub fn constant(&mut self, dtype: DType, s: Scalar) -> ValueId {
        self.typed(Op::Const(scalar_for(dtype, s)), Type::new(dtype, []), &[])
    }
    pub fn float_const(&mut self, dtype: DType, v: f64) -> ValueId {
        self.constant(dtype, Scalar::Float(v))
    }
    /// A constant broadcast to a full shape.
    pub fn full(&mut self, ty: &Type, s: Scalar) -> Res<ValueId> {
        let c = self.constant(ty.dtype, s);
        self.broadcast(c, &ty.shape)
    }
    pub fn iota(&mut self, ty: Type, axis: usize) -> ValueId {
        self.typed(Op::Iota { axis }, ty, &[])
    }
    pub fn cast(&mut self, v: ValueId, dtype: DType) -> Res<ValueId> {
        if self.dtype(v) == dtype {
            return Ok(v);
        }
        if let Op::Const(s) = *self.graph.op(v) {
            // Fold only widening casts: narrowing would have to round here.
            if dtype.bytes() >= self.dtype(v).bytes()
                && (dtype.is_float() || !self.dtype(v).is_float())
                && dtype != DType::F16
                && !dtype.is_f8()
            {
                return Ok(self.constant(dtype, s));
            }
        }
        self.node(Op::Cast(dtype), &[v])
    }
    pub fn reshape(&mut self, v: ValueId, shape: &[usize]) -> Res<ValueId> {
        if self.graph.shape(v) == shape { Ok(v) } else { self.node(Op::Reshape(shape.to_vec()), &[v]) }
    }
    pub fn broadcast(&mut self, v: ValueId, shape: &[usize]) -> Res<ValueId> {
        if self.graph.shape(v) == shape { Ok(v) } else { self.node(Op::Broadcast(shape.to_vec()), &[v]) }
    }
    pub fn permute(&mut self, v: ValueId, perm: &[usize]) -> Res<ValueId> {
        if perm.iter().copied().eq(0..perm.len()) { Ok(v) } else { self.node(Op::Permute(perm.to_vec()), &[v]) }
    }
    /// Swaps the last two axes.
    pub fn transpose(&mut self, v: ValueId) -> Res<ValueId> {
        let mut perm: Vec<usize> = (0..self.rank(v)).collect();
        if let [.., a, b] = &mut perm[..] {
            std::mem::swap(a, b);
        }
        self.permute(v, &perm)
    }
    pub fn slice(&mut self, v: ValueId, axis: usize, start: usize, len: usize, step: usize) -> Res<ValueId> {
        let whole = start == 0 && step == 1 && self.graph.shape(v).get(axis) == Some(&len);
        if whole { Ok(v) } else { self.node(Op::Slice { axis, start, len, step }, &[v]) }
    }
    pub fn concat(&mut self, parts: &[ValueId], axis: usize) -> Res<ValueId> {
        if let [one] = parts { Ok(*one) } else { self.node(Op::Concat { axis }, parts) }
    }
    pub fn unary(&mut self, op: UnaryOp, v: ValueId) -> Res<ValueId> {
        self.node(Op::Unary(op), &[v])
    }
    pub fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Res<ValueId> {
        // On bool, torch's addition is OR and its multiplication is AND.
        let op = match (op, self.dtype(a)) {
            (BinaryOp::Add, DType::Bool) => BinaryOp::Or,
            (BinaryOp::Mul, DType::Bool) => BinaryOp::And,
            (op, _) => op,
        };
        self.node(Op::Binary(op), &[a, b])
    }
    pub fn compare(&mut self, op: CompareOp, a: ValueId, b: ValueId) -> Res<ValueId> {
        self.node(Op::Compare(op), &[a, b])
    }
    pub fn select(&mut self, cond: ValueId, yes: ValueId, no: ValueId) -> Res<ValueId> {
        self.node(Op::Select, &[cond, yes, no])
    }
    /// `a op s`, with `s` a constant of `a`'s dtype.
    pub fn with(&mut self, op: BinaryOp, a: ValueId, s: f64) -> Res<ValueId> {
        let s = self.float_const(self.dtype(a), s);
        self.binary(op, a, s)
    }
    pub fn compare_with(&mut self, op: CompareOp, a: ValueId, s: f64) -> Res<ValueId> {
        let s = self.float_const(self.dtype(a), s);
        self.compare(op, a, s)
    }
    /// Reduces `axes`, which keep size 1. No axes: `v` itself.
    pub fn reduce(&mut self, op: ReduceOp, v: ValueId, axes: &[usize]) -> Res<ValueId> {
        if axes.is_empty() && !matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
            return Ok(v);
        }
        self.node(Op::Reduce { op, axes: axes.to_vec() }, &[v])
    }
    /// Runs `body` on `v` in `dtype`'s compute type (f32 for narrower floats), then rounds once to `dtype`.
    pub fn in_compute(
        &mut self,
        v: ValueId,
        dtype: DType,
        body: impl FnOnce(&mut Self, ValueId) -> Res<ValueId>,
    ) -> Res<ValueId> {
        let wide = self.cast(v, dtype.compute())?;
        let result = body(self, wide)?;
        self.cast(result, dtype)
    }
}

/// The type of the parts of a complex dtype, by its name.
pub fn part_type(complex: &str) -> Option<DType> {
    match complex {
        "complex64" => Some(DType::F32),
        "complex128" => Some(DType::F64),
        _ => None,
    }
}

fn no_axis(axis: usize, rank: usize) -> String {
    format!("there is no axis {axis} among {rank}")
}

/// Item `i` of what is listed by axis.
pub fn at<T: Copy>(list: &[T], i: usize) -> Res<T> {
    list.get(i).copied().ok_or_else(|| no_axis(i, list.len()))
}

/// What is listed for axis `first` and those after it.
pub fn from(list: &[usize], first: usize) -> Res<&[usize]> {
    list.get(first..).ok_or_else(|| no_axis(first, list.len()))
}

/// A shape with another size of one axis.
pub fn with_size(shape: &[usize], axis: usize, size: usize) -> Res<Vec<usize>> {
    let mut shape = shape.to_vec();
    let rank = shape.len();
    *shape.get_mut(axis).ok_or_else(|| no_axis(axis, rank))? = size;
    Ok(shape)
}

/// A shape of ones, but for one axis.
pub fn along(rank: usize, axis: usize, size: usize) -> Res<Vec<usize>> {
    with_size(&vec![1; rank], axis, size)
}

/// The most elements of a table that a conversion computes.
const LARGEST_TABLE: usize = 1 << 24;

/// An error if a table of `n` elements is too large to compute when a program is converted.
pub fn table_fits(n: usize) -> Res<()> {
    if n <= LARGEST_TABLE { Ok(()) } else { Err(format!("a table of {n} elements, computed ahead of a run")) }
}

/// `axis`, which may count from the end, normalised to count from 0.
pub fn normal_axis(axis: i64, rank: usize) -> Res<usize> {
    let rank = rank.max(1) as i64;
    let a = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if (0..rank).contains(&a) { Ok(a as usize) } else { Err(format!("there is no axis {axis} among {rank}")) }
}

pub fn scalar_of(arg: &Arg) -> Option<Scalar> {
    match arg {
        Arg::Int(v) => Some(Scalar::Int(*v)),
        Arg::Float(v) => Some(Scalar::Float(*v)),
        Arg::Bool(v) => Some(Scalar::Bool(*v)),
        _ => None,
    }
}

/// `s` as a constant of `dtype`. Integers out of range wrap, as in torch where it accepts such a number; where torch
/// rejects it, the example run has failed already.
pub fn scalar_for(dtype: DType, s: Scalar) -> Scalar {
    let int = |v: i64| dtype.kind().wrapped(v);
    match (dtype, s) {
        (DType::Bool, s) => Scalar::Bool(s.as_f64() != 0.0),
        (d, Scalar::Int(v)) if d.is_int() => Scalar::Int(int(v)),
        (d, s) if d.is_int() => Scalar::Int(int(s.as_f64() as i64)),
        (_, s) => Scalar::Float(s.as_f64()),
    }
}

/// Whether `dtype` can represent `v` exactly (true for NaN).
pub fn holds(dtype: DType, v: f64) -> bool {
    let back = Tensor::from_f64(Type::new(dtype, []), [v]).get_f64(0);
    back == v || (back.is_nan() && v.is_nan())
}
