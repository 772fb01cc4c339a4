//! What a kernel is lowered to: steps that a runtime carries out in order. Generic over the code of a step, so that
//! lowering gives steps of block programs and code generation turns them into steps of machine code.
//!
//! A kernel of the plan may take several steps: block programs, matmuls by a library, and on the host attention. So a
//! GEMM with its epilogue is one kernel of the plan, however the device runs it.
mod attention;

pub use attention::{AttentionCall, Mask, Sink};

use kiln_graph::{DType, FallbackOp, Graph, Type};
use serde::{Deserialize, Serialize};

/// A buffer as a kernel sees it: its n-th input or output, or scratch memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// The kernel's n-th input buffer.
    Input(u32),
    /// The kernel's n-th output buffer.
    Output(u32),
    /// Scratch memory of the n-th type in [`Steps::scratch`].
    Scratch(u32),
    /// The kernel's record of an index out of range ([`crate::index::Fault`]): an i64, aligned as other buffers are.
    Faults,
    /// A counter of the kernel's: an i32, aligned as other buffers are. It is 0 before every step, which leaves it at
    /// 0.
    Counter,
}

/// An axis of the rows or columns of a matrix: its size, and its stride in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// Number of positions.
    pub size: usize,
    /// Elements between neighbouring positions.
    pub stride: usize,
}

/// Normalises axes of these sizes and strides, outermost first: leaves out those of size 1, and merges neighbours that
/// form one axis of constant stride.
pub fn axes(all: impl IntoIterator<Item = (usize, usize)>) -> Vec<Axis> {
    let mut out: Vec<Axis> = vec![];
    for (size, stride) in all.into_iter().filter(|a| a.0 != 1) {
        match out.last_mut() {
            Some(outer) if outer.stride == size * stride => *outer = Axis { size: outer.size * size, stride },
            _ => out.push(Axis { size, stride }),
        }
    }
    out
}

/// A strided operand or result of a library's matmul. Rows are enumerated over one or more axes, outermost first, and
/// so are columns: one axis in a plain matrix, several in the windows of a convolution.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Matrix {
    /// The buffer that it is in.
    pub slot: Slot,
    /// Elements before the first one of the matrix.
    pub offset: usize,
    /// Axes of the rows; none for a single row.
    pub rows: Vec<Axis>,
    /// Axes of the columns; none for a single column.
    pub cols: Vec<Axis>,
    /// One per batch axis; 0 where the operand is broadcast.
    pub batch_strides: Vec<usize>,
}

/// `c = a × b` per batch by a library: Kiln's own on the host, cuBLASLt on a GPU, which takes what
/// [`GemmCall::strided`] describes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GemmCall {
    /// Of a and b. Half types are accumulated in f32 and rounded once, unless `c_dtype` is f32.
    pub dtype: DType,
    /// Element type of c.
    pub c_dtype: DType,
    /// f32 operands may be rounded to tf32.
    #[serde(default)]
    pub tf32: bool,
    /// The order of sums must not depend on m, n and the batch.
    #[serde(default)]
    pub batch_invariant: bool,
    /// Rows of a and c.
    pub m: usize,
    /// Columns of b and c.
    pub n: usize,
    /// Columns of a and rows of b.
    pub k: usize,
    /// Sizes of the batch axes, outermost first.
    pub batch: Vec<usize>,
    /// The left operand, m × k.
    pub a: Matrix,
    /// The right operand, k × n.
    pub b: Matrix,
    /// The result, m × n.
    pub c: Matrix,
    /// Memory for the library's intermediate results.
    #[serde(default)]
    pub workspace: Option<Slot>,
    /// Applied to the result before it is stored.
    #[serde(default)]
    pub epilogue: Box<Epilogue>,
}

/// `c = activation(scale · a × b + factor · residual + bias)`, in the accumulation type.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Epilogue {
    /// Factor on the matmul; 1 if there is none.
    pub scale: f64,
    /// A matrix of c's type and batch, and its factor.
    pub residual: Option<(Matrix, f64)>,
    /// A number of c's type per column: a buffer, and the offset in elements from which they are contiguous.
    pub bias: Option<(Slot, usize)>,
    /// Applied last.
    pub activation: Option<Activation>,
}
/// An activation function that libraries can apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// GELU by its approximation with tanh.
    GeluTanh,
}
impl Default for Epilogue {
    fn default() -> Epilogue {
        Epilogue { scale: 1.0, residual: None, bias: None, activation: None }
    }
}
impl Epilogue {
    /// The parts of the epilogue in words, as `scaled`, `residual`, `bias`, `relu`.
    pub fn words(&self) -> Vec<&'static str> {
        let activation = self.activation.map(|a| match a {
            Activation::Relu => "relu",
            Activation::GeluTanh => "gelu by tanh",
        });
        let all = [
            (self.scale != 1.0).then_some("scaled"),
            self.residual.is_some().then_some("residual"),
            self.bias.is_some().then_some("bias"),
            activation,
        ];
        all.into_iter().flatten().collect()
    }
}

/// A batch of matrices in the form that GPU libraries take; offset, pitch and stride in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    /// Elements before the first matrix.
    pub offset: usize,
    /// Leading dimension: the stride between rows, or between columns if `by_columns`.
    pub pitch: usize,
    /// Column-major: the elements of a column are contiguous, not those of a row.
    pub by_columns: bool,
    /// Stride between matrices; 0 if there is only one, or all are the same.
    pub batch_stride: usize,
}

impl GemmCall {
    /// The buffers of a, b and c, then those of the epilogue.
    pub fn slots(&self) -> Vec<Slot> {
        let residual = self.epilogue.residual.iter().map(|r| r.0.slot);
        let more = residual.chain(self.epilogue.bias.iter().map(|b| b.0));
        [self.a.slot, self.b.slot, self.c.slot].into_iter().chain(more).collect()
    }
    /// a, b, c and the residual as plain matrices, the last two row-major; `None` if one is not. Without a residual,
    /// the last is c.
    pub fn strided(&self) -> Option<[Strided; 4]> {
        let added = self.epilogue.residual.as_ref().map_or(&self.c, |r| &r.0);
        let (m, n) = (self.m, self.n);
        let sizes = [(&self.a, m, self.k), (&self.b, self.k, n), (&self.c, m, n), (added, m, n)];
        let [a, b, c, added] = sizes.map(|(x, rows, columns)| x.strided(rows, columns, &self.batch));
        let all = [a?, b?, c?, added?];
        let apart = self.batch.iter().product::<usize>() == 1 || all[2].batch_stride > 0;
        (!all[2].by_columns && !all[3].by_columns && apart).then_some(all)
    }
}

impl Matrix {
    fn strided(&self, rows: usize, columns: usize, batch: &[usize]) -> Option<Strided> {
        // Without an axis (size 1), the stride is arbitrary.
        let stride = |axes: &[Axis]| match axes {
            [] => Some(None),
            [axis] => Some(Some(axis.stride)),
            _ => None,
        };
        let (down, across) = (stride(&self.rows)?, stride(&self.cols)?);
        let (pitch, by_columns) = match (down, across) {
            (down, None | Some(1)) => (down.unwrap_or(columns), false),
            (None | Some(1), Some(across)) => (across, true),
            _ => return None,
        };
        let least = if by_columns {
            rows
        } else if across.is_none() {
            1
        } else {
            columns
        };
        let axes = axes(batch.iter().copied().zip(self.batch_strides.iter().copied()));
        let batch_stride = match axes[..] {
            [] => 0,
            [axis] => axis.stride,
            _ if axes.iter().all(|a| a.stride == 0) => 0,
            _ => return None,
        };
        (pitch >= least).then_some(Strided { offset: self.offset, pitch, by_columns, batch_stride })
    }
}

/// One of libtorch's operators on the kernel's inputs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LibraryCall {
    /// The operator, with its arguments and the types of its results.
    pub op: FallbackOp,
    /// Module and `file:line` of the model's source, as far as known.
    #[serde(default)]
    pub place: String,
    /// For each operand of the operator, the number of the kernel's input that it is.
    pub operands: Vec<usize>,
    /// For each output of the kernel, which of the operator's results it is; none twice.
    pub results: Vec<usize>,
}
impl LibraryCall {
    /// For each of the operator's results, `of` of the kernel's output that it is; `None` for unused results.
    pub fn in_order<T>(&self, of: impl Fn(usize) -> T) -> Vec<Option<T>> {
        let output = |r: usize| self.results.iter().position(|&x| x == r);
        (0..self.op.results.len()).map(|r| output(r).map(&of)).collect()
    }
}

/// A step of a kernel, with code of type `K`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work<K> {
    /// A program.
    Block {
        /// Its code.
        code: K,
        /// Its arguments, in the order of its parameters.
        args: Vec<Slot>,
    },
    /// A matmul by a library.
    Gemm(GemmCall),
    /// Attention by the host's library.
    Attention(Box<AttentionCall>),
    /// The kernel's whole body by libtorch.
    Fallback(LibraryCall),
    /// The kernel's whole body by the graph interpreter on the host: correct but slow, for what cannot be lowered yet.
    Interpret {
        /// The kernel's body.
        body: Box<BodyGraph>,
        /// Why it was not lowered, for reports.
        why: String,
    },
}

/// A kernel's body; two are equal if their debug output is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BodyGraph(pub Graph);
impl PartialEq for BodyGraph {
    fn eq(&self, o: &BodyGraph) -> bool {
        format!("{:?}", self.0) == format!("{:?}", o.0)
    }
}

/// The steps of a kernel, with code of type `K`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Steps<K> {
    /// Types of `Slot::Scratch(i)`.
    pub scratch: Vec<Type>,
    /// In the order in which they run.
    pub steps: Vec<Work<K>>,
    /// Steps without library matmuls that compute the same, for a GPU whose library is missing or has no algorithm for
    /// one of them.
    #[serde(default)]
    pub otherwise: Option<Box<Steps<K>>>,
    /// The first step only copies `Slot::Input` of this number to `Slot::Output(0)`, and no other step reads that
    /// input: where both are one memory the step may be left out.
    #[serde(default)]
    pub copied: Option<u32>,
}
impl<K> From<Vec<Work<K>>> for Steps<K> {
    fn from(steps: Vec<Work<K>>) -> Steps<K> {
        Steps { scratch: vec![], steps, otherwise: None, copied: None }
    }
}
impl<K> Steps<K> {
    /// The same steps, with the code of each block step replaced by what `f` makes of it. The first error of `f` is the
    /// error.
    pub fn map<L, E>(self, mut f: impl FnMut(K) -> Result<L, E>) -> Result<Steps<L>, E> {
        self.map_with(&mut f)
    }
    fn map_with<L, E>(self, f: &mut dyn FnMut(K) -> Result<L, E>) -> Result<Steps<L>, E> {
        let mut one = |w: Work<K>| {
            Ok(match w {
                Work::Block { code, args } => Work::Block { code: f(code)?, args },
                Work::Gemm(g) => Work::Gemm(g),
                Work::Attention(a) => Work::Attention(a),
                Work::Fallback(o) => Work::Fallback(o),
                Work::Interpret { body, why } => Work::Interpret { body, why },
            })
        };
        let steps = self.steps.into_iter().map(&mut one).collect::<Result<_, E>>()?;
        let otherwise = self.otherwise.map(|s| s.map_with(f).map(Box::new)).transpose()?;
        Ok(Steps { scratch: self.scratch, steps, otherwise, copied: self.copied })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: &[(usize, usize)], cols: &[(usize, usize)], batch_strides: &[usize]) -> Matrix {
        let (rows, cols) = (axes(rows.iter().copied()), axes(cols.iter().copied()));
        Matrix { slot: Slot::Input(0), offset: 8, rows, cols, batch_strides: batch_strides.to_vec() }
    }

    #[test]
    fn matrices_of_one_pitch_are_strided() {
        let found = |m: Matrix, rows, columns, batch: &[usize]| {
            m.strided(rows, columns, batch).map(|s| (s.pitch, s.by_columns, s.batch_stride))
        };
        assert_eq!(found(matrix(&[(3, 10)], &[(4, 1)], &[]), 3, 4, &[]), Some((10, false, 0)));
        assert_eq!(found(matrix(&[(3, 1)], &[(4, 7)], &[]), 3, 4, &[]), Some((7, true, 0)));
        assert_eq!(found(matrix(&[(1, 1)], &[(4, 1)], &[]), 1, 4, &[]), Some((4, false, 0)));
        assert_eq!(found(matrix(&[(3, 5)], &[(1, 9)], &[]), 3, 1, &[]), Some((5, false, 0)));
        assert_eq!(found(matrix(&[(1, 9)], &[(4, 5)], &[]), 1, 4, &[]), Some((5, true, 0)));
        assert_eq!(found(matrix(&[(3, 4)], &[(4, 1)], &[24, 12]), 3, 4, &[5, 2]), Some((4, false, 12)));
        assert_eq!(found(matrix(&[(3, 4)], &[(4, 1)], &[0, 0]), 3, 4, &[5, 2]), Some((4, false, 0)));
        for (m, batch) in [
            (matrix(&[(3, 8)], &[(4, 2)], &[]), &[][..]),
            (matrix(&[(3, 2)], &[(4, 1)], &[]), &[]),
            (matrix(&[(3, 4)], &[(2, 100), (2, 1)], &[]), &[]),
            (matrix(&[(3, 4)], &[(4, 1)], &[0, 12]), &[5, 2]),
        ] {
            assert_eq!(found(m, 3, 4, batch), None);
        }
    }
}
