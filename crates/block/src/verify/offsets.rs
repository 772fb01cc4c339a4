//! Offsets do not wrap: the integers that an address, a mask or a tile's start is computed from stay within their
//! types.
//!
//! Every integer gets a bound over the integers, from the grid, the sizes of blocks and the bounds of loops: lanes
//! outside of a mask and positions in padding count too. A sum, a product or a shift whose bound exceeds its type may
//! wrap, and so may all that is computed from it; no access takes such a value. Offsets are in elements; code
//! generation scales them to bytes in 64 bits.
//!
//! Values of a launch (scalar parameters, a grid that is not a constant) have no bound: with them the integers that
//! reach an address or a mask are meant over the integers, and whoever launches answers for their type. What exceeds
//! its type by constants alone is refused.
//!
//! Nothing is known about integers that are read from memory: whoever emits a program has to choose the type of an
//! offset by their extent. So it is with an index that a program computes as data and casts to the type of offsets. Bit
//! operations may wrap on purpose, as hashes do, and end what is known.
use crate::analysis::bounds::{Bound, arithmetic, union};
use crate::analysis::{Analysis, analyse};
use crate::{BinaryOp, BlockError, BlockProgram, Const, Elem, Inst, InstData, Op, Region, Type, UnaryOp, Value, text};
use std::collections::HashMap;

/// Checks a verified kernel. `Err`: the first access that takes an integer that may have wrapped, and where that is
/// computed.
pub fn offsets(k: &BlockProgram) -> Result<(), BlockError> {
    offsets_within(k, i32::MAX.into())
}

/// [`offsets`], where 32-bit integers are to stay within `-narrow..=narrow`: tests lower it, so that small kernels
/// reach it.
pub fn offsets_within(k: &BlockProgram, narrow: i128) -> Result<(), BlockError> {
    let (analysis, of_launch) = (analyse(k), k.has_launch_values());
    let mut o = Offsets { k, analysis, narrow, of_launch, bounds: HashMap::new(), wrapped: HashMap::new() };
    o.region(&k.body)
}

struct Offsets<'a> {
    k: &'a BlockProgram,
    /// Affine forms: what loops carry is bounded by these.
    analysis: Analysis,
    narrow: i128,
    /// The program has values of the launch.
    of_launch: bool,
    /// Integers without an entry have any value of their type.
    bounds: HashMap<Value, Bound>,
    /// Integers that may have wrapped and what is computed from them, with the instruction that may wrap.
    wrapped: HashMap<Value, Inst>,
}

impl Offsets<'_> {
    fn region(&mut self, r: &Region) -> Result<(), BlockError> {
        for &i in &r.insts {
            let data = self.k.inst(i);
            self.access(i, data)?;
            self.enter(data);
            for inner in &data.regions {
                self.region(inner)?;
            }
            self.results(i, data);
        }
        Ok(())
    }
    /// Refuses an access at an address, or under a mask, that may be computed from an integer that wrapped.
    fn access(&self, i: Inst, data: &InstData) -> Result<(), BlockError> {
        let places: &[Value] = match (&data.op, &data.args[..]) {
            (Op::Load(..), args) => args.get(..2).unwrap_or(args),
            (Op::CompareSwap { .. }, args) => args.get(..1).unwrap_or(args),
            (Op::Store(_) | Op::Atomic { .. }, [pointer, _, mask @ ..]) => {
                self.unwrapped(i, *pointer)?;
                mask
            }
            (Op::TileLoad, [_, starts @ ..]) => starts,
            (Op::TileStore, [_, _, starts @ ..]) => starts,
            (Op::AsyncCopy, [_, _, place @ ..]) => place,
            (Op::TmaLoad { .. }, args) => args.get(5..).unwrap_or_default(),
            (Op::TmaStore, args) => args.get(3..).unwrap_or_default(),
            (Op::For, args) => args.get(..3).unwrap_or(args),
            (Op::If, args) => args,
            _ => &[],
        };
        places.iter().try_for_each(|v| self.unwrapped(i, *v))
    }
    fn unwrapped(&self, access: Inst, v: Value) -> Result<(), BlockError> {
        let Some(&at) = self.wrapped.get(&v) else { return Ok(()) };
        let result = self.k.inst(at).results.first();
        let elem = result.and_then(|v| self.k.ty(*v).elem()).map_or("", Elem::name);
        Err(BlockError::Op {
            op: text::print_inst(self.k, access),
            what: format!(
                "it takes {v}, computed from `{}`, which may exceed {elem}; 64 bits are needed",
                text::print_inst(self.k, at)
            ),
        })
    }
    /// Bounds of what a loop passes to its region.
    fn enter(&mut self, data: &InstData) {
        let Some(region) = data.regions.first().filter(|_| matches!(data.op, Op::For | Op::While)) else { return };
        for (n, &v) in region.params.iter().enumerate() {
            let bound = match (&data.op, n) {
                (Op::For, 0) => self
                    .bound(data.args[0])
                    .zip(self.bound(data.args[1]))
                    .map(|(from, to)| (from.0, (to.1 - 1).max(from.0))),
                _ => self.by_form(v),
            };
            self.learn(v, bound);
            let initial = if data.op == Op::For { data.args.get(n + 2) } else { data.args.get(n) };
            if n > 0 || data.op == Op::While {
                self.taint(v, initial.copied());
            }
        }
    }
    fn results(&mut self, i: Inst, data: &InstData) {
        if !data.regions.is_empty() {
            let yields: Vec<&InstData> =
                data.regions.iter().filter_map(|r| r.insts.last()).map(|i| self.k.inst(*i)).collect();
            for (n, &v) in data.results.iter().enumerate() {
                let last: Vec<Option<Value>> = yields.iter().map(|y| y.args.get(n).copied()).collect();
                let bound = match data.op {
                    Op::If => last.iter().map(|v| self.bound((*v)?)).reduce(|a, b| Some(union(a?, b?))).flatten(),
                    _ => self.by_form(v),
                };
                self.learn(v, bound);
                last.into_iter().for_each(|from| self.taint(v, from));
            }
            return;
        }
        let [v] = data.results[..] else { return };
        let ty = self.k.ty(v);
        let ends = matches!(
            data.op,
            Op::Load(..) | Op::Binary(BinaryOp::And | BinaryOp::Or | BinaryOp::Xor) if ty.elem() != Some(Elem::Bool)
        );
        if !ends {
            data.args.iter().for_each(|a| self.taint(v, Some(*a)));
        }
        let Type::Block { elem, .. } = ty else { return };
        if !elem.is_int() {
            return;
        }
        let bound = self.value(data, ty);
        let limits = self.limits(*elem);
        match bound {
            Some(b) if b.0 < limits.0 || b.1 > limits.1 => {
                let sums = matches!(
                    data.op,
                    Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) | Op::Unary(UnaryOp::Neg)
                );
                if sums {
                    self.wrapped.entry(v).or_insert(i);
                }
            }
            _ => self.learn(v, bound),
        }
    }
    /// Bound of an instruction's result over the integers, if those of its operands are known.
    fn value(&self, data: &InstData, ty: &Type) -> Option<Bound> {
        let arg = |n: usize| self.bound(*data.args.get(n)?);
        let result = *data.results.first()?;
        match &data.op {
            Op::Const(Const::Int(c)) => Some((i128::from(*c), i128::from(*c))),
            Op::ProgramId(axis) => Some((0, (self.k.grid.along(*axis)? as i128 - 1).max(0))),
            Op::NumPrograms(axis) => Some((self.k.grid.along(*axis)? as i128, self.k.grid.along(*axis)? as i128)),
            Op::Iota => Some((0, ty.count() as i128 - 1)),
            Op::Splat
            | Op::Broadcast
            | Op::ExpandDims(_)
            | Op::Reshape
            | Op::Permute(_)
            | Op::Part { .. }
            | Op::MultipleOf(_)
            | Op::ConvertLayout => arg(0),
            Op::Cast(_) if self.k.ty(*data.args.first()?).elem()?.is_int() => arg(0),
            Op::Unary(UnaryOp::Neg) => arg(0).map(|a| (-a.1, -a.0)),
            Op::Select => Some(union(arg(1)?, arg(2)?)),
            Op::Binary(op) => arithmetic(*op, arg(0), arg(1)).or_else(|| self.by_form(result)),
            _ => None,
        }
    }
    /// The bound that follows from the affine form.
    fn by_form(&self, v: Value) -> Option<Bound> {
        let form = self.analysis.affine(v)?;
        if self.of_launch && form.scalars.iter().any(|(v, _)| !self.bounds.contains_key(v)) {
            return None;
        }
        let (lo, hi) = self.analysis.range(form, self.k.ty(v).shape())?;
        Some((lo.into(), hi.into()))
    }
    fn bound(&self, v: Value) -> Option<Bound> {
        self.bounds.get(&v).copied()
    }
    fn learn(&mut self, v: Value, bound: Option<Bound>) {
        if let Some(b) = bound {
            self.bounds.insert(v, b);
        }
    }
    fn taint(&mut self, v: Value, from: Option<Value>) {
        if let Some(at) = from.and_then(|f| self.wrapped.get(&f)).copied() {
            self.wrapped.entry(v).or_insert(at);
        }
    }
    /// What values of an integer type are to stay within.
    fn limits(&self, elem: Elem) -> Bound {
        match elem {
            Elem::I32 => (-self.narrow - 1, self.narrow),
            Elem::I64 => (i64::MIN.into(), i64::MAX.into()),
            _ => {
                let bits = 8 * elem.bytes() as u32;
                if elem.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, CmpOp};

    /// `out[row·2^20 + lane]` of `rows` rows in offsets of type `index`, under a mask that leaves out all rows from 8
    /// on if `masked`.
    fn rows(rows: usize, index: Elem, masked: bool) -> BlockProgram {
        let mut b = Builder::new("rows", [rows, 1, 1], 1);
        let out = b.param("out", Elem::F32, false);
        let row = b.program_id(0);
        let row = b.cast(row, index);
        let pitch = b.constant(Type::scalar(index), Const::Int(1 << 20));
        let start = b.binary(BinaryOp::Mul, row, pitch);
        let limit = b.constant(Type::scalar(index), Const::Int(8));
        let mask = b.cmp(CmpOp::Lt, row, limit);
        let p = b.ptr_add(out, start);
        let one = b.constant(Type::scalar(Elem::F32), Const::Float(1.0));
        b.store(p, one, masked.then_some(mask));
        b.finish()
    }

    #[test]
    fn an_offset_past_32_bits_is_refused_and_64_bits_are_not() {
        for (n, index, fits) in
            [(2048, Elem::I32, true), (2049, Elem::I32, false), (2049, Elem::I64, true), (1 << 20, Elem::I64, true)]
        {
            for masked in [false, true] {
                let k = rows(n, index, masked);
                crate::verify::verify(&k).unwrap();
                assert_eq!(offsets(&k).is_ok(), fits, "{n} rows, {index:?}");
            }
        }
        let why = offsets(&rows(4096, Elem::I32, false)).unwrap_err().to_string();
        assert!(why.contains("may exceed i32; 64 bits are needed"), "{why}");
        assert!(offsets_within(&rows(16, Elem::I32, false), 1 << 23).is_err());
    }

    /// A loop's pointer index and what it carries are bounded by its trips; a wrapped index that only a mask reads is
    /// refused as well.
    #[test]
    fn loops_and_masks_are_bounded() {
        for (trips, fits) in [(1000, true), (3000, false)] {
            let mut b = Builder::new("loop", [1, 1, 1], 1);
            let out = b.param("out", Elem::F32, false);
            let [zero, end, step, pitch] = [0, trips, 1, 1 << 20].map(|n| b.i32(n));
            let one = b.constant(Type::scalar(Elem::F32), Const::Float(1.0));
            b.for_loop([zero, end, step], &[], |b, i, _| {
                let at = b.binary(BinaryOp::Mul, i, pitch);
                let mask = b.cmp(CmpOp::Lt, at, end);
                b.store(out, one, Some(mask));
                vec![]
            });
            let k = b.finish();
            crate::verify::verify(&k).unwrap();
            assert_eq!(offsets(&k).is_ok(), fits, "{trips} trips");
        }
    }

    /// An index that is computed as data may have any bound: what is read by it is guarded by its extent.
    #[test]
    fn indices_of_data_are_cast() {
        let mut b = Builder::new("take", [1, 1, 1], 1);
        let table = b.param("table", Elem::F32, true);
        let out = b.param("out", Elem::F32, false);
        let rows = b.iota(32);
        let rows = b.cast(rows, Elem::I64);
        let far = b.constant(Type::block(Elem::I64, [32]), Const::Int(1 << 40));
        let index = b.binary(BinaryOp::Mul, rows, far);
        let index = b.cast(index, Elem::I32);
        let from = b.ptr_add(table, index);
        let v = b.load(from, None, None);
        let lanes = b.iota(32);
        let to = b.ptr_add(out, lanes);
        b.store(to, v, None);
        let k = b.finish();
        crate::verify::verify(&k).unwrap();
        assert_eq!(offsets(&k), Ok(()));
    }
}
