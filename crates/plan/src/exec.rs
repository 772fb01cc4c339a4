//! What a kernel becomes: steps that a runtime carries out in order. Generic over the code of a step, so that lowering gives
//! steps of block programs and code generation turns them into steps of machine code.
use kiln_graph::{DType, FallbackOp, Graph, Type};
use serde::{Deserialize, Serialize};

/// A buffer as a kernel sees it: its n-th input or output, or scratch memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    Input(u32),
    Output(u32),
    Scratch(u32),
}

/// An axis of the rows or columns of a matrix: positions, and how far apart they lie in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    pub size: usize,
    pub stride: usize,
}

/// Axes, outermost first, with those of one position left out and those that continue each other joined.
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

/// A strided operand of a host matrix product; the offset in elements. Rows and columns are numbers whose digits are their
/// axes: one axis in a plain matrix, several in what is read through windows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Matrix {
    pub slot: Slot,
    pub offset: usize,
    pub rows: Vec<Axis>,
    pub cols: Vec<Axis>,
    /// One per batch axis; 0 where the operand is broadcast.
    pub batch_strides: Vec<usize>,
}

/// `c = a × b` per batch on the host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GemmCall {
    /// Of a and b. Half types are accumulated in f32 and rounded once, unless `c_dtype` is f32.
    pub dtype: DType,
    pub c_dtype: DType,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: Vec<usize>,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
}

/// One of libtorch's operators on the kernel's inputs, in their order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LibraryCall {
    pub op: FallbackOp,
    /// For each output of the kernel, which of the operator's results it is; none twice.
    pub results: Vec<usize>,
}
impl LibraryCall {
    /// One entry for each of the operator's results: what `of` gives for the kernel's output that it is.
    pub fn in_order<T>(&self, of: impl Fn(usize) -> T) -> Vec<Option<T>> {
        let output = |r: usize| self.results.iter().position(|&x| x == r);
        (0..self.op.results.len()).map(|r| output(r).map(&of)).collect()
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work<K> {
    /// Code with its arguments, in the order of its parameters.
    Block {
        code: K,
        args: Vec<Slot>,
    },
    Gemm(GemmCall),
    /// The kernel's whole body by libtorch.
    Fallback(LibraryCall),
    /// The kernel's whole body by the graph interpreter on the host: right but slow; what cannot be lowered yet.
    Interpret {
        body: Box<BodyGraph>,
        why: String,
    },
}

/// A kernel's body; equality by its JSON is never needed, so two are equal if they print the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BodyGraph(pub Graph);
impl PartialEq for BodyGraph {
    fn eq(&self, o: &BodyGraph) -> bool {
        format!("{:?}", self.0) == format!("{:?}", o.0)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Steps<K> {
    /// Types of `Slot::Scratch(i)`.
    pub scratch: Vec<Type>,
    pub steps: Vec<Work<K>>,
}
impl<K> Steps<K> {
    /// The same steps with the code of each block step replaced.
    pub fn map<L, E>(self, mut f: impl FnMut(K) -> Result<L, E>) -> Result<Steps<L>, E> {
        let one = |w: Work<K>| {
            Ok(match w {
                Work::Block { code, args } => Work::Block { code: f(code)?, args },
                Work::Gemm(g) => Work::Gemm(g),
                Work::Fallback(o) => Work::Fallback(o),
                Work::Interpret { body, why } => Work::Interpret { body, why },
            })
        };
        Ok(Steps { scratch: self.scratch, steps: self.steps.into_iter().map(one).collect::<Result<_, E>>()? })
    }
}
