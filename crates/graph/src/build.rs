//! Builder methods of [`Graph`], one per op, for tests, decompositions and importers.
//!
//! Each method infers and checks the result type, as [`Graph::add`] does. Methods that take numbers create constants of
//! the operand's dtype.
use crate::{
    BinaryOp, CompareOp, DType, Graph, GraphError, Op, ReduceOp, Scalar, ScanOp, Type, UnaryOp, ValueId, infer, verify,
};

type Built = Result<ValueId, GraphError>;

impl Graph {
    /// Adds an op with its inferred result type. An error if an operand does not exist or the operand types do not fit
    /// the op.
    pub fn add(&mut self, op: Op, args: &[ValueId]) -> Result<ValueId, GraphError> {
        match self.result_type(&op, args) {
            Ok(ty) => Ok(self.push(op, ty, args)),
            Err(what) => {
                Err(GraphError::Operand { value: ValueId(self.len() as u32), op: op.name().to_string(), what })
            }
        }
    }
    fn result_type(&self, op: &Op, args: &[ValueId]) -> Result<Type, String> {
        if let Some(v) = args.iter().find(|v| v.0 as usize >= self.len()) {
            return Err(format!("operand {v} does not exist"));
        }
        if let (Op::Result(i), [of]) = (op, args) {
            return verify::further_result(self, *of, *i);
        }
        let types: Vec<&Type> = args.iter().map(|a| self.ty(*a)).collect();
        infer::infer(op, &types)
    }
    /// `op(x)`, elementwise; the shape of `x`.
    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> Built {
        self.add(Op::Unary(op), &[x])
    }
    /// `a op b`, elementwise over broadcast operands of one dtype.
    pub fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Built {
        self.add(Op::Binary(op), &[a, b])
    }
    /// `x op number`, where the number becomes a constant of `x`'s dtype.
    pub fn binary_scalar(&mut self, op: BinaryOp, x: ValueId, number: f64) -> Built {
        let c = self.constant_like(x, number)?;
        self.binary(op, x, c)
    }
    /// `a op b` as bool, elementwise over broadcast operands of one dtype.
    pub fn compare(&mut self, op: CompareOp, a: ValueId, b: ValueId) -> Built {
        self.add(Op::Compare(op), &[a, b])
    }
    /// `yes` if `cond` (bool) is true, else `no`, elementwise over broadcast operands.
    pub fn select(&mut self, cond: ValueId, yes: ValueId, no: ValueId) -> Built {
        self.add(Op::Select, &[cond, yes, no])
    }
    /// Casts to a dtype; `x` itself if it already has the dtype.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Built {
        if self.contains(x) && self.dtype(x) == to { Ok(x) } else { self.add(Op::Cast(to), &[x]) }
    }
    /// Reshapes to `shape`; `x` itself if it already has the shape.
    pub fn reshape(&mut self, x: ValueId, shape: impl Into<Vec<usize>>) -> Built {
        let shape = shape.into();
        if self.contains(x) && self.shape(x) == shape { Ok(x) } else { self.add(Op::Reshape(shape), &[x]) }
    }
    /// Result axis i is axis `perm[i]` of `x`; `x` itself if `perm` is the identity.
    pub fn permute(&mut self, x: ValueId, perm: impl Into<Vec<usize>>) -> Built {
        let perm = perm.into();
        let same = self.contains(x) && perm.iter().copied().eq(0..self.shape(x).len());
        if same { Ok(x) } else { self.add(Op::Permute(perm), &[x]) }
    }
    /// Swaps the last two axes.
    pub fn transpose(&mut self, x: ValueId) -> Built {
        let rank = if self.contains(x) { self.shape(x).len() } else { 0 };
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            perm.swap(rank - 2, rank - 1);
        }
        self.permute(x, perm)
    }
    /// Broadcasts to `shape`; `x` itself if it already has the shape.
    pub fn broadcast_to(&mut self, x: ValueId, shape: impl Into<Vec<usize>>) -> Built {
        let shape = shape.into();
        if self.contains(x) && self.shape(x) == shape { Ok(x) } else { self.add(Op::Broadcast(shape), &[x]) }
    }
    /// Every `step`-th element along `axis`, `len` of them, from `start`; `x` itself if that is the whole axis.
    pub fn slice(&mut self, x: ValueId, axis: usize, start: usize, len: usize, step: usize) -> Built {
        let whole = self.contains(x) && self.shape(x).get(axis) == Some(&len) && start == 0 && (step == 1 || len <= 1);
        if whole { Ok(x) } else { self.add(Op::Slice { axis, start, len, step }, &[x]) }
    }
    /// Pads each axis with a number, `lo` elements before and `hi` after (negative crops); `x` itself if all are 0.
    pub fn pad(&mut self, x: ValueId, value: f64, lo: Vec<i64>, hi: Vec<i64>) -> Built {
        if lo.iter().chain(&hi).all(|p| *p == 0) {
            return Ok(x);
        }
        let c = self.constant_like(x, value)?;
        self.add(Op::Pad { lo, hi }, &[x, c])
    }
    /// Concatenates along `axis`; the operand itself if there is only one.
    pub fn concat(&mut self, parts: &[ValueId], axis: usize) -> Built {
        if let [one] = parts { Ok(*one) } else { self.add(Op::Concat { axis }, parts) }
    }
    /// Reduces `axes`, which keep size 1 in the result.
    pub fn reduce(&mut self, op: ReduceOp, x: ValueId, axes: impl Into<Vec<usize>>) -> Built {
        self.add(Op::Reduce { op, axes: axes.into() }, &[x])
    }
    /// Inclusive scan along `axis`; the shape of `x`.
    pub fn scan(&mut self, op: ScanOp, x: ValueId, axis: usize) -> Built {
        self.add(Op::Scan { op, axis }, &[x])
    }
    /// Matmul `[…, M, K] × […, K, N]` with broadcast leading axes.
    pub fn dot(&mut self, a: ValueId, b: ValueId) -> Built {
        self.add(Op::Dot, &[a, b])
    }
    /// A leaf of this shape with the values `0, 1, 2, …` along `axis`. Unchecked: the verifier rejects an axis out of
    /// range.
    pub fn iota(&mut self, dtype: DType, shape: impl Into<Vec<usize>>, axis: usize) -> ValueId {
        self.push(Op::Iota { axis }, Type::new(dtype, shape), &[])
    }
    /// A rank-0 constant of `x`'s dtype. An error if `x` does not exist.
    pub fn constant_like(&mut self, x: ValueId, number: f64) -> Built {
        if !self.contains(x) {
            let what = format!("operand {x} does not exist");
            return Err(GraphError::Operand { value: ValueId(self.len() as u32), op: "const".into(), what });
        }
        let dtype = self.dtype(x);
        Ok(self.constant(dtype, Scalar::Float(number)))
    }
    /// Appends `v` to the outputs.
    pub fn output(&mut self, v: ValueId) {
        self.outputs.push(v);
    }
    fn contains(&self, v: ValueId) -> bool {
        (v.0 as usize) < self.len()
    }
}
