//! Shapes, reductions and scans by name, and products of matrices.
use super::{Block, Built, Writer, wrong};
use crate::{DotPrecision, Elem, ReduceOp, ScanOp, Value};

impl Writer {
    /// `a · b + sums`, of blocks of two axes. Products of f32 are exact.
    #[track_caller]
    pub fn dot<'k>(&'k self, a: Block<'k>, b: Block<'k>, sums: Block<'k>) -> Block<'k> {
        self.dot_by(DotPrecision::Exact, a, b, sums)
    }
    /// The same, with products of f32 by this precision.
    #[track_caller]
    pub fn dot_by<'k>(&'k self, precision: DotPrecision, a: Block<'k>, b: Block<'k>, sums: Block<'k>) -> Block<'k> {
        self.told(self.product(precision, [&a, &b, &sums]))
    }
    fn product(&self, precision: DotPrecision, [a, b, sums]: [&Block; 3]) -> Built<Value> {
        let [left, right, out] = [a.ty()?, b.ty()?, sums.ty()?];
        match (left.shape(), right.shape(), out.shape()) {
            ([m, k], [k2, n], [rows, columns]) if k == k2 && m == rows && n == columns => {}
            (x, y, z) => {
                return wrong(format!("{x:?} times {y:?} is not added to {z:?}; shapes are [m, k], [k, n] and [m, n]"));
            }
        }
        if self.number(a)? != self.number(b)? {
            return wrong(format!("{left} and {right} are not multiplied; cast one to the other's type"));
        }
        let [a, b, sums] = [a.get()?, b.get()?, sums.get()?];
        Ok(self.with(|builder| builder.dot(a, b, sums, precision)))
    }
    fn axis(&self, block: &Block, axis: usize, past: usize) -> Built<Value> {
        let (value, shape) = (block.get()?, block.shape());
        if axis >= shape.len() + past {
            return wrong(format!("there is no axis {axis} in shape {shape:?}; axes count from 0"));
        }
        Ok(value)
    }
    fn reduced(&self, op: ReduceOp, block: &Block, axis: usize) -> Built<Value> {
        self.arithmetic(block)?;
        let value = self.axis(block, axis, 0)?;
        Ok(self.with(|b| b.reduce(op, value, axis)))
    }
    fn scanned(&self, op: ScanOp, block: &Block, axis: usize) -> Built<Value> {
        self.arithmetic(block)?;
        let value = self.axis(block, axis, 0)?;
        Ok(self.with(|b| b.scan(op, value, axis)))
    }
    fn arithmetic(&self, block: &Block) -> Built<()> {
        match self.number(block)? {
            Elem::Bool => wrong("bools are not combined along an axis; cast with `.to(Elem::I32)`"),
            elem if elem.is_f8() => wrong("there is no arithmetic on 8-bit floats; cast with `.to(Elem::F32)`"),
            _ => Ok(()),
        }
    }
    fn reshaped(&self, block: &Block, shape: &[usize]) -> Built<Value> {
        let (value, given) = (block.get()?, block.shape());
        if given.iter().product::<usize>() != shape.iter().product::<usize>() {
            return wrong(format!(
                "a block of shape {given:?} has not as many elements as {shape:?}; give one that has"
            ));
        }
        Ok(self.with(|b| b.reshape(value, shape)))
    }
    fn permuted(&self, block: &Block, axes: &[u8]) -> Built<Value> {
        let (value, given) = (block.get()?, block.shape());
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().map(|axis| usize::from(*axis)).eq(0..given.len()) {
            return wrong(format!("{axes:?} are not the axes of shape {given:?}; name each once"));
        }
        Ok(self.with(|b| b.permute(value, axes)))
    }
}

macro_rules! along {
    ($way:ident: $($(#[$doc:meta])* $method:ident $op:expr;)*) => {
        impl<'k> Block<'k> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, axis: usize) -> Block<'k> {
                self.writer.told(self.writer.$way($op, &self, axis))
            }
        )*}
    };
}
along! { reduced:
    /// The sum along an axis, which is gone then.
    sum ReduceOp::Sum;
    /// The product along an axis.
    prod ReduceOp::Prod;
    /// The largest along an axis; NaN if any is.
    max ReduceOp::Max;
    /// The smallest along an axis; NaN if any is.
    min ReduceOp::Min;
    /// The position of the first of the largest along an axis.
    argmax ReduceOp::ArgMax;
    /// The position of the first of the smallest along an axis.
    argmin ReduceOp::ArgMin;
}
along! { scanned:
    /// Sums of all up to each one along an axis.
    cumsum ScanOp::Sum;
    /// Products of all up to each one along an axis.
    cumprod ScanOp::Prod;
}

impl<'k> Block<'k> {
    /// With a new axis of size 1: `i.expand(0)` is a row of a matrix, `i.expand(1)` a column.
    #[track_caller]
    pub fn expand(self, axis: usize) -> Block<'k> {
        let built = self.writer.axis(&self, axis, 1);
        self.writer.told(built.map(|value| self.writer.with(|b| b.expand_dims(value, axis))))
    }
    /// The same elements in row-major order with another shape.
    #[track_caller]
    pub fn reshape(self, shape: &[usize]) -> Block<'k> {
        self.writer.told(self.writer.reshaped(&self, shape))
    }
    /// Result axis i is axis `axes[i]`.
    #[track_caller]
    pub fn permute(self, axes: &[u8]) -> Block<'k> {
        self.writer.told(self.writer.permuted(&self, axes))
    }
    /// Repeated along axes of size 1, and along new leading axes.
    #[track_caller]
    pub fn broadcast(self, shape: &[usize]) -> Block<'k> {
        let built = self.get();
        self.writer.told(built.and_then(|value| self.writer.shaped(value, shape)))
    }
}
