//! Library matmuls, on the host and on GPUs: calls on strided operands, with block steps that prepare operands and
//! compute the epilogue.
use crate::emit::launch;
use crate::error::{LowerError, unsupported_as_none};
use crate::matmul::dims::{Dims, operand_index};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{NodeOp, Scene, Store};
use crate::scalar::expr::{Expr, linear};
use crate::scalar::resolve::{Body, MatmulSource, Resolved, Resolver};
use crate::scalar::space::Space;
use crate::scalar::window::or_zero;
use crate::steps::Emitted;
use kiln_graph::{DType, Type, ValueId};
use kiln_plan::exec::{GemmCall, Matrix, Slot, Work, axes};
use kiln_plan::matmul_schedule::MatmulSchedule;

/// The steps of a kernel under construction.
pub struct Host<'a> {
    pub of: Lowering<'a>,
    pub out: Emitted,
}

/// An operand in memory: slot, offset, and a stride per axis of the requested shape.
#[derive(Clone, Debug)]
pub struct Operand {
    pub slot: Slot,
    pub offset: usize,
    pub strides: Vec<usize>,
}

impl Operand {
    /// The operand at `at`, if that is an offset and a stride for each of the axes.
    pub fn at(slot: Slot, at: &Expr, axes: &[Expr]) -> Option<Operand> {
        let mut rest = Expr::constant(at.constant);
        let mut strides = vec![];
        for axis in axes {
            let stride = axis.as_coord().map_or(Some(0), |c| at.stride(c)).filter(|&s| s >= 0)?;
            rest = rest.plus(&axis.clone().scale(stride));
            strides.push(stride as usize);
        }
        let offset = usize::try_from(at.constant).ok()?;
        (rest == *at).then_some(Operand { slot, offset, strides })
    }
    /// As a matrix: the last two axes are rows and columns, of these sizes, those before are the batch.
    pub fn matrix(&self, [rows, cols]: [usize; 2]) -> Matrix {
        let n = self.strides.len();
        Matrix {
            slot: self.slot,
            offset: self.offset,
            rows: axes([(rows, self.strides[n - 2])]),
            cols: axes([(cols, self.strides[n - 1])]),
            batch_strides: self.strides[..n - 2].to_vec(),
        }
    }
}

impl<'a> Host<'a> {
    pub fn new(of: Lowering<'a>) -> Host<'a> {
        Host { of, out: Emitted::default() }
    }
    pub fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Slot {
        self.out.scratch.push(Type::new(dtype, shape));
        Slot::Scratch(self.out.scratch.len() as u32 - 1)
    }

    /// The value at `index(coordinates of shape)`: in place, or copied to scratch by a step.
    pub fn operand<F>(&mut self, v: ValueId, shape: &[usize], what: &str, index: F) -> Result<Operand, LowerError>
    where
        F: Fn(&[Expr]) -> Vec<Expr>,
    {
        self.padded(v, shape, what, |at| (index(at), vec![]))
    }

    /// As `operand`, with zeros where the index leaves its bounds.
    pub fn padded<F>(&mut self, v: ValueId, shape: &[usize], what: &str, index: F) -> Result<Operand, LowerError>
    where
        F: Fn(&[Expr]) -> (Vec<Expr>, Vec<(Expr, i64, i64)>),
    {
        // The host has no f8 matmuls: operands are widened.
        let dtype = self.of.graph.dtype(v).matmul();
        let read = |r: &mut Resolver, axes: &[Expr]| {
            let (ix, bounds) = index(axes);
            or_zero(r, v, &ix, bounds)
        };
        if let Some(found) = self.in_place(v, shape, &read)? {
            return Ok(found);
        }
        let slot = self.scratch(dtype, shape);
        let of = self.of;
        let scene = |axes: &[Expr]| {
            let mut r = of.resolver();
            let value = read(&mut r, axes)?;
            let store = Store::new(slot, dtype, linear(axes, shape), value);
            Ok(Scene { dag: r.dag, stores: vec![store] })
        };
        self.out = std::mem::take(&mut self.out).then(launch::points(&of, what, shape, &scene)?);
        Ok(Operand { slot, offset: 0, strides: Type::new(dtype, shape).strides() })
    }
    fn in_place<F>(&self, v: ValueId, shape: &[usize], read: &F) -> Result<Option<Operand>, LowerError>
    where
        F: Fn(&mut Resolver, &[Expr]) -> Resolved,
    {
        let space = Space::new(shape, &vec![false; shape.len()]);
        let mut r = self.of.resolver();
        let n = read(&mut r, &space.axes)?;
        let node = r.dag.node(n);
        let NodeOp::Load { slot, at, guards } = &node.op else { return Ok(None) };
        if !guards.is_empty() || node.dtype != self.of.graph.dtype(v).matmul() {
            return Ok(None);
        }
        Ok(Operand::at(*slot, at, &space.axes))
    }

    pub fn gemm(&mut self, dtype: DType, c_dtype: DType, shape: &[usize], k: usize, [a, b, c]: [Matrix; 3]) {
        let (batch, mn) = shape.split_at(shape.len() - 2);
        let call = GemmCall {
            batch_invariant: self.of.machine.contract.batch_invariant,
            dtype,
            c_dtype,
            tf32: false,
            m: mn[0],
            n: mn[1],
            k,
            batch: batch.to_vec(),
            a,
            b,
            c,
            workspace: None,
            epilogue: Default::default(),
        };
        self.out.steps.push(Work::Gemm(call));
    }

    /// Where the matmul is stored: in the output if nothing comes after it, else in scratch in its accumulator type.
    pub fn destination(&mut self, v: ValueId) -> Result<(Slot, DType), LowerError> {
        let g = self.of.graph;
        let (shape, dtype) = (g.shape(v).to_vec(), g.dtype(v));
        if let [only] = g.outputs[..]
            && g.ty(only).count() == g.ty(v).count()
        {
            let of = Body { matmul: Some((v, MatmulSource::Node)), ..self.of.body };
            let space = Space::new(g.shape(only), &vec![false; g.shape(only).len()]);
            let mut r = of.resolver();
            // An epilogue with reductions does not resolve without a row: it is more than the matmul.
            if let Some(n) = unsupported_as_none(r.at(only, &space.axes, &[]))?
                && let NodeOp::Anchor { at } = &r.dag.node(n).op
                && linear(at, &shape) == linear(&space.axes, g.shape(only))
                && g.dtype(only) == dtype
            {
                return Ok((Slot::Output(0), dtype));
            }
        }
        let acc = dtype.compute();
        Ok((self.scratch(acc, &[g.ty(v).count()]), acc))
    }
    /// Adds the rest of the body, which reads its matmul from memory.
    pub fn finish(mut self, v: ValueId, place: (Slot, DType)) -> Result<Emitted, LowerError> {
        self.out.matmul_schedule = Some(MatmulSchedule::Library);
        if place.0 == Slot::Output(0) {
            return Ok(self.out);
        }
        let name = format!("{}_epilogue", self.of.name);
        let rest = Body { matmul: Some((v, MatmulSource::At(place.0, place.1))), name: &name, ..self.of.body };
        let of = self.of.with_body(rest);
        let rest = launch::body(&of, self.out.scratch.len() as u32)?;
        Ok(self.out.then(rest))
    }
}

/// The one value of a body that `is` a matmul.
pub fn only_matmul(kernel: &Lowering, is: impl Fn(ValueId) -> bool) -> Result<ValueId, LowerError> {
    let mut found = kernel.graph.values().filter(|&v| is(v));
    match (found.next(), found.next()) {
        (Some(v), None) => Ok(v),
        (None, _) => Err(kernel.unsupported("no matmul in the body")),
        _ => Err(kernel.unsupported("two matmuls in the body")),
    }
}

/// Why a schedule of a GPU is refused on the host.
pub const ON_HOST: &str = "the host multiplies by its library: `call library`";

/// The matmul by the target's library, with programs that prepare its operands and compute its epilogue.
pub fn by_library(kernel: &Lowering, v: ValueId, d: &Dims) -> Result<Emitted, LowerError> {
    let (mut h, [a, b]) = for_library(kernel, v, d)?;
    let place = h.destination(v)?;
    let shape = [&d.batch[..], &[d.m, d.n]].concat();
    let strides = kiln_graph::Type::new(place.1, shape.clone()).strides();
    let c = Operand { slot: place.0, offset: 0, strides };
    h.gemm(kernel.graph.dtype(v), place.1, &shape, d.k, [a, b, c.matrix([d.m, d.n])]);
    h.finish(v, place)
}

/// Operands as matrices, with the steps that copy them where they cannot be read in place.
pub fn for_library<'a>(kernel: &Lowering<'a>, v: ValueId, d: &Dims) -> Result<(Host<'a>, [Matrix; 2]), LowerError> {
    let (g, mut h) = (kernel.graph, Host::new(*kernel));
    let args = g.args(v);
    let shape = |r: usize, c: usize| [&d.batch[..], &[r, c]].concat();
    let a = h.operand(args[0], &shape(d.m, d.k), "a", |at| operand_index(g, v, 0, at))?;
    let b = h.operand(args[1], &shape(d.k, d.n), "b", |at| operand_index(g, v, 1, at))?;
    Ok((h, [a.matrix([d.m, d.k]), b.matrix([d.k, d.n])]))
}
