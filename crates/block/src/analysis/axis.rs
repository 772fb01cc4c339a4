//! Contiguity, constancy and divisibility along each axis of integer and pointer blocks. They survive where affine
//! forms do not: gathers, remainders, quotients.
//!
//! All runs start at coordinates that are multiples of their length, and all lengths and divisors are powers of two.
//! The lattice is that of Triton's axis analysis; the bottom ("nothing known") is 1 everywhere.
use super::{
    affine::Affine,
    run::{Axis, UNKNOWN},
    values::{Analysis, Def, power_of_two_in},
};
use crate::{BinaryOp, BlockProgram, CmpOp, Elem, InstData, Op, Type, Value};

impl Analysis {
    /// One entry per axis, for integers and pointers; unknown properties are 1.
    pub fn axes(&self, v: Value) -> Vec<Axis> {
        let Some(ty) = self.types.get(&v) else { return vec![] };
        match (self.affine(v), self.axes.get(&v)) {
            (Some(f), _) => self.axes_of_form(f, ty),
            (None, Some(a)) => a.clone(),
            (None, None) => vec![Axis { divisor: unit(ty), ..UNKNOWN }; ty.shape().len()],
        }
    }
    /// Length of the contiguous runs along `axis` of a pointer block (runs start at multiples of their length), and the
    /// alignment in bytes of the address at the start of every run.
    pub fn alignment(&self, ptr: Value, axis: usize) -> (usize, usize) {
        self.axes(ptr).get(axis).map_or((1, 1), |a| (a.contiguous as usize, a.divisor as usize))
    }
    /// Difference from one element along `axis` to the next, except at breaks that are at least `apart` elements from
    /// each other: where a quotient of the position changes or a remainder wraps.
    pub fn step(&self, k: &BlockProgram, v: Value, axis: usize, apart: i64) -> Option<i64> {
        self.difference(k, v, axis, &|_, by| by >= apart)
    }
    /// Difference from one element along `axis` to the next among some neighbours, for which quotients of values with a
    /// step of 1 by the constants that `whole` takes are equal.
    pub(super) fn difference(
        &self,
        k: &BlockProgram,
        v: Value,
        axis: usize,
        whole: &dyn Fn(Value, i64) -> bool,
    ) -> Option<i64> {
        if let Some(form) = self.affine(v) {
            return Some(form.coeffs.get(axis).copied().unwrap_or(0));
        }
        let Some(Def::Result(i, _)) = self.def(v) else { return None };
        let data = k.inst(i);
        let step = |n: usize| self.difference(k, *data.args.get(n)?, axis, whole);
        let number = |n: usize| self.affine(*data.args.get(n)?)?.as_constant();
        match &data.op {
            Op::Broadcast if k.ty(data.args[0]).shape().get(axis) == Some(&1) => Some(0),
            Op::Broadcast | Op::Cast(_) => step(0),
            Op::ExpandDims(at) if *at as usize > axis => step(0),
            Op::ExpandDims(at) => {
                self.difference(k, data.args[0], axis.checked_sub(1).filter(|_| *at as usize != axis)?, whole)
            }
            Op::PtrAdd | Op::Binary(BinaryOp::Add) => step(0)?.checked_add(step(1)?),
            Op::Binary(BinaryOp::Sub) => step(0)?.checked_sub(step(1)?),
            Op::Binary(BinaryOp::Mul) => step(0)?.checked_mul(number(1)?),
            Op::Binary(op @ (BinaryOp::Div | BinaryOp::Rem)) => match (step(0)?, number(1)?) {
                (0, _) => Some(0),
                (1, by) if whole(data.args[0], by) => Some(i64::from(*op == BinaryOp::Rem)),
                _ => None,
            },
            _ => None,
        }
    }
    /// Length of the runs along `axis` in which a condition is the same, which start at multiples of their length.
    pub fn same_along(&self, k: &BlockProgram, condition: Value, axis: usize) -> usize {
        let all = k.ty(condition).shape().get(axis).copied().unwrap_or(1);
        let Some(Def::Result(i, _)) = self.def(condition) else { return 1 };
        let data = k.inst(i);
        let of = |n: usize, axis: usize| data.args.get(n).map_or(1, |v| self.same_along(k, *v, axis));
        match &data.op {
            Op::Const(_) | Op::Splat => all,
            Op::Broadcast if k.ty(data.args[0]).shape().get(axis) == Some(&1) => all,
            Op::Broadcast | Op::Unary(_) => of(0, axis),
            Op::ExpandDims(at) if *at as usize == axis => 1,
            Op::ExpandDims(at) => of(0, axis - usize::from((*at as usize) < axis)),
            Op::Permute(perm) => perm.get(axis).map_or(1, |from| of(0, *from as usize)),
            Op::Binary(_) => of(0, axis).min(of(1, axis)),
            Op::Cmp(op) => {
                let at = |n: usize| self.axes(data.args[n]).get(axis).copied().unwrap_or(UNKNOWN);
                let (a, b) = (at(0), at(1));
                // A run from a multiple of its length on is wholly below such a multiple, or not at all.
                let below = |run: Axis, limit: Axis| {
                    run.contiguous.min(run.divisor).min(limit.constant).min(limit.divisor).max(1)
                };
                let run = match op {
                    CmpOp::Lt | CmpOp::Ge => below(a, b),
                    CmpOp::Gt | CmpOp::Le => below(b, a),
                    _ => 1,
                };
                run.max(a.constant.min(b.constant)).min(all as i64) as usize
            }
            _ => 1,
        }
    }
    fn axes_of_form(&self, f: &Affine, ty: &Type) -> Vec<Axis> {
        let uniform = self.form_divisor(f);
        let bytes = f.root.map(|r| (self.aligns.get(&r).copied().unwrap_or(1) as i64, unit(ty)));
        let one = |(a, n): (usize, &usize)| {
            let c = f.coeffs[a];
            let others = f.coeffs.iter().enumerate().filter(|(o, _)| *o != a || c != 1);
            let divisor = others.fold(uniform, |d, (_, c)| d.min(power_of_two_in(*c)));
            Axis {
                contiguous: if c == 1 { *n as i64 } else { 1 },
                constant: if c == 0 { *n as i64 } else { 1 },
                divisor: bytes.map_or(divisor, |(align, size)| align.min(divisor.saturating_mul(size))),
            }
        };
        ty.shape().iter().enumerate().take(f.coeffs.len()).map(one).collect()
    }
    /// Axes of a block without an affine form, derived from those of the op's operands.
    pub(super) fn derive_axes(&self, k: &BlockProgram, data: &InstData, v: Value) -> Option<Vec<Axis>> {
        let ty = k.ty(v);
        let arg = |n: usize| data.args.get(n).map(|v| self.axes(*v));
        match &data.op {
            Op::ConvertLayout => arg(0),
            Op::Cast(to) if to.is_int() && to.is_signed() && k.ty(data.args[0]).elem().is_some_and(Elem::is_signed) => {
                k.ty(data.args[0]).elem().is_some_and(Elem::is_int).then(|| arg(0))?
            }
            Op::Broadcast => {
                let from = k.ty(data.args[0]).shape();
                let wide =
                    |((a, f), t): ((Axis, &usize), &usize)| if f == t { a } else { Axis { constant: *t as i64, ..a } };
                Some(arg(0)?.into_iter().zip(from).zip(ty.shape()).map(wide).collect())
            }
            Op::ExpandDims(axis) => {
                let mut axes = arg(0)?;
                let every = axes.iter().map(|a| a.at(1)).max().unwrap_or(1);
                axes.insert((*axis as usize).min(axes.len()), Axis { divisor: every, ..UNKNOWN });
                Some(axes)
            }
            Op::Permute(perm) => {
                let axes = arg(0)?;
                perm.iter().map(|p| axes.get(*p as usize).copied()).collect()
            }
            Op::PtrAdd => Some(sums(&arg(0)?, &arg(1)?, unit(ty))),
            Op::Binary(BinaryOp::Add) => Some(sums(&arg(0)?, &arg(1)?, 1)),
            Op::Binary(BinaryOp::Sub) => {
                let keep = |(a, b): (Axis, Axis)| sum(a, Axis { contiguous: 1, divisor: b.at(1), ..b }, 1);
                Some(arg(0)?.into_iter().zip(arg(1)?).map(keep).collect())
            }
            Op::Binary(BinaryOp::Mul) => {
                let product = |(a, b): (Axis, Axis)| Axis {
                    contiguous: 1,
                    constant: a.constant.min(b.constant),
                    divisor: a.at(1).saturating_mul(b.at(1)).min(1 << 40),
                };
                Some(arg(0)?.into_iter().zip(arg(1)?).map(product).collect())
            }
            Op::Binary(op @ (BinaryOp::Div | BinaryOp::Rem)) => {
                let by = self.affine(data.args[1])?.as_constant().filter(|c| *c > 0)?;
                // Truncating division breaks the runs of negative numbers.
                let positive = self.range(self.affine(data.args[0])?, ty.shape())?.0 >= 0;
                let by = power_of_two_in(by);
                let one = |a: Axis| {
                    let run = a.contiguous.min(a.divisor).min(by);
                    match op {
                        BinaryOp::Rem => Axis { contiguous: run, constant: a.constant, divisor: a.at(run).min(by) },
                        _ => Axis { constant: a.constant.max(run), ..UNKNOWN },
                    }
                };
                positive.then(|| arg(0).map(|axes| axes.into_iter().map(one).collect()))?
            }
            // Equal addresses hold equal values.
            Op::Load(..) if data.args.len() == 1 => {
                Some(arg(0)?.into_iter().map(|a| Axis { constant: a.constant, ..UNKNOWN }).collect())
            }
            _ => None,
        }
    }
    /// Axes of a carried block all of whose elements grow alike per iteration, by a multiple.
    pub(super) fn carried_axes(&self, init: Value, multiple: i64) -> Vec<Axis> {
        let by = self.types.get(&init).map_or(1, unit).saturating_mul(multiple).min(1 << 40);
        self.axes(init).into_iter().map(|a| Axis { divisor: a.divisor.min(by), ..a }).collect()
    }
}

/// Bytes of a pointer's element; 1 for integers.
pub(super) fn unit(ty: &Type) -> i64 {
    match ty {
        Type::Ptr { elem, .. } => elem.bytes() as i64,
        _ => 1,
    }
}

fn sums(a: &[Axis], b: &[Axis], unit: i64) -> Vec<Axis> {
    a.iter().zip(b).map(|(a, b)| sum(*a, *b, unit)).collect()
}
/// `a + unit·b`; runs of both are counted in units.
fn sum(a: Axis, b: Axis, unit: i64) -> Axis {
    let contiguous = a.contiguous.min(b.constant).max(a.constant.min(b.contiguous));
    let first = if contiguous >= a.contiguous { a.divisor } else { a.divisor.min(contiguous.saturating_mul(unit)) };
    Axis { contiguous, constant: a.constant.min(b.constant), divisor: first.min(b.at(contiguous).saturating_mul(unit)) }
}

#[cfg(test)]
mod tests {
    use crate::{BinaryOp, Builder, Elem, analysis::analyse};

    /// Rows gathered by an index from memory are still contiguous along the columns.
    #[test]
    fn gathered_rows() {
        let mut b = Builder::new("k", [4, 1, 1], 4);
        let (ids, table) = (b.param("ids", Elem::I64, true), b.param("table", Elem::F32, true));
        let rows = b.iota(8);
        let at = b.ptr_add(ids, rows);
        let row = b.load(at, None, None);
        let row = b.expand_dims(row, 1);
        let pitch = b.constant(crate::Type::scalar(Elem::I64), crate::Const::Int(768));
        let start = b.binary(BinaryOp::Mul, row, pitch);
        let columns = b.iota(256);
        let columns = b.cast(columns, Elem::I64);
        let at = b.binary(BinaryOp::Add, start, columns);
        let p = b.ptr_add(table, at);
        let a = analyse(&b.finish());
        assert_eq!(a.affine(p), None);
        assert_eq!(a.alignment(p, 1), (256, 16));
        assert_eq!(a.alignment(p, 0), (1, 4));
    }

    /// Index `i / 57 * 56 + i % 57` is contiguous except at one element in 57; twice that index, and `i % 4`, are not.
    #[test]
    fn lines_with_gaps() {
        let mut b = Builder::new("k", [4, 1, 1], 4);
        let x = b.param("x", Elem::F32, true);
        let (i, line, short, two) = (b.iota(256), b.i32(57), b.i32(4), b.i32(2));
        let (q, r, near) =
            (b.binary(BinaryOp::Div, i, line), b.binary(BinaryOp::Rem, i, line), b.binary(BinaryOp::Rem, i, short));
        let pitch = b.i32(56);
        let start = b.binary(BinaryOp::Mul, q, pitch);
        let at = b.binary(BinaryOp::Add, start, r);
        let apart = b.binary(BinaryOp::Mul, at, two);
        let [p, apart, near] = [at, apart, near].map(|at| b.ptr_add(x, at));
        let k = b.finish();
        let a = analyse(&k);
        assert_eq!([p, apart, near].map(|v| a.step(&k, v, 0, 8) == Some(1)), [true, false, false]);
    }

    /// `i % 768` on 1024 elements is contiguous in runs of 256, `i / 768` constant.
    #[test]
    fn remainders() {
        let mut b = Builder::new("k", [4, 1, 1], 4);
        let x = b.param("x", Elem::F32, true);
        let (pid, n, c) = (b.program_id(0), b.i32(1024), b.i32(768));
        let start = b.binary(BinaryOp::Mul, pid, n);
        let i = b.iota(1024);
        let i = b.binary(BinaryOp::Add, start, i);
        let (q, r) = (b.binary(BinaryOp::Div, i, c), b.binary(BinaryOp::Rem, i, c));
        let p = b.ptr_add(x, r);
        let a = analyse(&b.finish());
        assert_eq!(a.alignment(p, 0), (256, 16));
        assert_eq!(a.axes(q)[0].constant, 256);
    }
}
