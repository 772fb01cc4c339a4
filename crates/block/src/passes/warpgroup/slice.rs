//! The epilogue on a slice of the tile: repeats what is computed from the sums for a consumer's rows and some of the
//! columns.
//!
//! A row reduction needs whole rows: their slices are computed once, kept in registers, combined column by column, and
//! the result is reduced like a single slice. Tensor cores leave a row in four lanes of one warp, so nothing goes
//! through shared memory.
use super::Refusal;
use super::{copy::Copier, form::Engine};
use crate::{BinaryOp, BlockProgram, Builder, Const, Elem, InstData, Op, ReduceOp, Type, Value};
use std::collections::{HashMap, HashSet};

/// Which part of an axis is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Axis {
    /// All of it.
    Whole,
    /// The consumer's rows.
    Rows,
    /// The columns of the slice.
    Columns,
}
use Axis::{Columns, Rows, Whole};

/// Sizes of the tile and of a slice.
#[derive(Clone, Copy)]
pub struct Part {
    pub engine: Engine,
    pub tile: [usize; 2],
    pub rows: usize,
    pub columns: usize,
}

pub struct Slicer<'a, 'k> {
    copier: &'a mut Copier<'k>,
    part: Part,
    /// What is known on the consumer's rows: sums by the results of the loop over K.
    sums: HashMap<Value, Value>,
    /// The consumer's first row; `None`: it has all rows.
    first_row: Option<Value>,
    first_column: usize,
    /// Values made so far, keyed by first column where they depend on columns.
    made: HashMap<(Value, Vec<Axis>, usize), Value>,
    pub failed: Option<Refusal>,
}

impl<'a, 'k> Slicer<'a, 'k> {
    pub fn new(
        copier: &'a mut Copier<'k>,
        part: Part,
        sums: HashMap<Value, Value>,
        first_row: Option<Value>,
    ) -> Slicer<'a, 'k> {
        Slicer { copier, part, sums, first_row, first_column: 0, made: HashMap::new(), failed: None }
    }
    /// Moves to the columns from `first` on.
    pub fn columns_from(&mut self, first: usize) {
        self.first_column = first;
    }
    /// The new name of a parameter.
    pub fn param(&self, v: Value) -> Option<Value> {
        self.copier.get(v)
    }
    /// The new value of a scalar.
    pub fn scalar(&mut self, b: &mut Builder, v: Value) -> Value {
        self.value(b, v, &[])
    }
    /// All columns of a block over the tile's rows, or of one that is the same for all rows.
    pub fn rows(&mut self, b: &mut Builder, v: Value) -> Value {
        let mut axes = vec![Whole; self.kernel().ty(v).shape().len()];
        if let Some(first) = axes.first_mut().filter(|_| self.kernel().ty(v).shape()[0] == self.part.tile[0]) {
            *first = Rows;
        }
        self.value(b, v, &axes)
    }
    /// From now on, `v` is known as `new` on the consumer's rows.
    pub fn know(&mut self, v: Value, new: Value) {
        self.sums.insert(v, new);
    }
    /// A value's part on the consumer's rows and the columns of the slice.
    pub fn know_slice(&mut self, v: Value, part: Value) {
        self.made.insert((v, vec![Rows, Columns], self.first_column), part);
    }
    /// A block over the tile's rows and columns, or over one of these, restricted to the slice.
    pub fn block(&mut self, b: &mut Builder, v: Value) -> Value {
        let shape = self.kernel().ty(v).shape();
        let axes: Vec<Axis> = shape.iter().zip([Rows, Columns]).map(|(n, a)| if *n == 1 { Whole } else { a }).collect();
        self.value(b, v, &axes)
    }
    /// The same of the transpose of such a block.
    pub fn transposed(&mut self, b: &mut Builder, v: Value) -> Value {
        self.value(b, v, &[Columns, Rows])
    }
    fn kernel(&self) -> &'k BlockProgram {
        self.copier.k
    }
    fn refuse(&mut self, v: Value, what: impl Into<String>) -> Value {
        self.failed.get_or_insert(Refusal(what.into()));
        v
    }
    fn shape(&mut self, v: Value, axes: &[Axis]) -> Vec<usize> {
        let k = self.kernel();
        let Part { tile, rows, columns, .. } = self.part;
        let mut shape = k.ty(v).shape().to_vec();
        for (n, axis) in shape.iter_mut().zip(axes) {
            let (whole, part) = match axis {
                Whole => continue,
                Rows => (tile[0], rows),
                Columns => (tile[1], columns),
            };
            if *n != whole {
                self.refuse(v, format!("{} does not fit sums of {}x{}", k.ty(v), tile[0], tile[1]));
            }
            *n = part;
        }
        shape
    }
    fn value(&mut self, b: &mut Builder, v: Value, axes: &[Axis]) -> Value {
        let k = self.kernel();
        if let Some(sums) = self.sums.get(&v).copied() {
            return match axes {
                [Rows, Columns] => b.part(sums, 1, self.first_column, self.part.columns),
                [Rows, Whole] | [Rows] => sums,
                _ => self.refuse(v, "the sums are not used row by row and column by column"),
            };
        }
        if k.ty(v).is_scalar()
            && let Some(known) = self.copier.get(v)
        {
            return known;
        }
        let key = (v, axes.to_vec(), if axes.contains(&Columns) { self.first_column } else { 0 });
        if let Some(known) = self.made.get(&key) {
            return *known;
        }
        let made = self.make(b, v, axes);
        self.made.insert(key, made);
        made
    }
    fn make(&mut self, b: &mut Builder, v: Value, axes: &[Axis]) -> Value {
        let k = self.kernel();
        let Some(data) = self.copier.definition(v) else {
            return self.refuse(v, format!("{v} is the result of a loop or branch, which the epilogue cannot repeat"));
        };
        let shape = self.shape(v, axes);
        if self.failed.is_some() {
            return v;
        }
        let ty = k.ty(v).with_shape(shape);
        let of = |arg: Value| k.ty(arg).shape();
        let wanted: Vec<Vec<Axis>> = match &data.op {
            Op::Iota => return self.iota(b, ty, axes),
            Op::Const(_) | Op::Splat | Op::ProgramId(_) => vec![vec![]; data.args.len()],
            Op::Broadcast => {
                vec![of(data.args[0]).iter().zip(axes).map(|(n, a)| if *n == 1 { Whole } else { *a }).collect()]
            }
            Op::ExpandDims(at) => {
                let mut axes = axes.to_vec();
                axes.remove(*at as usize);
                vec![axes]
            }
            Op::Part { axis: 1, .. } if axes[1] == Whole => vec![axes.to_vec()],
            Op::Permute(perm) => {
                let mut to = vec![Whole; axes.len()];
                perm.iter().zip(axes).for_each(|(p, a)| to[*p as usize] = *a);
                vec![to]
            }
            Op::Load(..) if !self.copier.is_readonly(data.args[0]) => {
                return self.refuse(v, "what the epilogue reads may be written, too; mark it readonly");
            }
            Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Select | Op::Cast(_) | Op::PtrAdd | Op::Load(..) => {
                vec![axes.to_vec(); data.args.len()]
            }
            Op::Reduce { op, axis: 1 } if axes == [Rows] && of(data.args[0]) == self.part.tile => {
                return self.reduce(b, data, *op, ty);
            }
            Op::Reduce { axis, .. } => {
                let mut axes = axes.to_vec();
                axes.insert(*axis as usize, Whole);
                vec![axes]
            }
            op => return self.refuse(v, format!("{op:?} on the sums cannot be computed slice by slice")),
        };
        let args: Vec<Value> = data.args.iter().zip(&wanted).map(|(a, axes)| self.value(b, *a, axes)).collect();
        b.inst(data.op.clone(), &args, &[ty], vec![])[0]
    }
    /// A reduction of whole rows: combines the slices, then reduces the combination.
    fn reduce(&mut self, b: &mut Builder, data: &InstData, op: ReduceOp, ty: Type) -> Value {
        let (arg, own) = (data.args[0], self.first_column);
        let Part { engine, tile, columns, .. } = self.part;
        if engine != Engine::TensorCores || !self.follows_sums(arg) {
            return self.refuse(arg, "rows that are not computed from a tensor core's sums lie in several warps");
        }
        let mut whole: Option<Value> = None;
        for first in (0..tile[1]).step_by(columns) {
            self.first_column = first;
            let part = self.value(b, arg, &[Rows, Columns]);
            whole = match (whole, combiner(op, b.elem(part))) {
                (None, _) => Some(part),
                (Some(before), Some(op)) => Some(b.binary(op, before, part)),
                (Some(_), None) => {
                    return self.refuse(arg, format!("{op:?} of a row cannot be combined from its slices"));
                }
            };
        }
        self.first_column = own;
        let whole = whole.unwrap_or(arg);
        b.inst(data.op.clone(), &[whole], &[ty], vec![])[0]
    }
    /// Whether a block is computed from the sums element by element, so that it has their layout.
    fn follows_sums(&self, v: Value) -> bool {
        let elementwise = |op: &Op| matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Select | Op::Cast(_));
        let (mut open, mut seen) = (vec![v], HashSet::new());
        while let Some(v) = open.pop() {
            if self.sums.contains_key(&v) {
                return true;
            }
            let made = self.copier.definition(v).filter(|d| elementwise(&d.op) && seen.insert(v));
            open.extend(made.iter().flat_map(|d| &d.args));
        }
        false
    }
    fn iota(&mut self, b: &mut Builder, ty: Type, axes: &[Axis]) -> Value {
        let lane = b.inst(Op::Iota, &[], std::slice::from_ref(&ty), vec![])[0];
        let first = match (axes, self.first_row) {
            ([Rows], Some(first)) => b.splat(first, ty.shape()),
            ([Columns], _) if self.first_column > 0 => b.constant(ty, Const::Int(self.first_column as i64)),
            _ => return lane,
        };
        b.binary(BinaryOp::Add, lane, first)
    }
}

/// The op that combines two partial results.
fn combiner(op: ReduceOp, elem: Option<Elem>) -> Option<BinaryOp> {
    Some(match (op, elem) {
        (ReduceOp::Sum, Some(Elem::Bool)) => BinaryOp::Or,
        (ReduceOp::Prod, Some(Elem::Bool)) => BinaryOp::And,
        (ReduceOp::Sum, _) => BinaryOp::Add,
        (ReduceOp::Prod, _) => BinaryOp::Mul,
        (ReduceOp::Max, _) => BinaryOp::Max,
        (ReduceOp::Min, _) => BinaryOp::Min,
        (ReduceOp::MaxNum, _) => BinaryOp::MaxNum,
        (ReduceOp::MinNum, _) => BinaryOp::MinNum,
        (ReduceOp::And, _) => BinaryOp::And,
        (ReduceOp::Or, _) => BinaryOp::Or,
        (ReduceOp::ArgMax | ReduceOp::ArgMin, _) => return None,
    })
}

/// Columns of a slice, for outputs of these element sizes: 128 bytes of the widest (counted as two to four bytes). On
/// the FMA engine, whose threads hold columns far apart, a slice is the columns that lie in the same registers.
pub fn columns(engine: Engine, outputs: &[usize], n: usize) -> usize {
    match engine {
        Engine::TensorCores => 128 / outputs.iter().max().copied().unwrap_or(2).clamp(2, 4),
        Engine::Simt => 64,
    }
    .min(n)
}
