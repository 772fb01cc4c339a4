//! Matches what comes after a matmul with the library's epilogue: `activation(scale · a × b + residual + bias)`, with
//! one bias per column, and ReLU or the tanh approximation of GELU.
//!
//! GELU is matched in half types alone: the library's error is some 2^-17 of its argument, too much for f32. The
//! library adds the residual before the bias, and so must the graph in f32, where the order shows.
use crate::matmul::dims::{Dims, place};
use crate::matmul::host::{Operand, for_library};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene};
use crate::scalar::epilogue_map::{Positions, accumulators, outputs};
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{Body, MatmulSource};
use crate::scalar::space::Space;
use crate::steps::Emitted;
use kiln_graph::{BinaryOp, DType, UnaryOp, ValueId};
use kiln_plan::exec::{Activation, Epilogue, GemmCall, Work};

/// The whole body as one call of the library; `None` where it has no such epilogue.
pub fn lower(kernel: &Lowering, v: ValueId, d: &Dims) -> Option<Emitted> {
    let (g, dtype) = (kernel.graph, kernel.graph.dtype(v));
    if !matches!(dtype, DType::Bf16 | DType::F16 | DType::F32) {
        return None;
    }
    let body = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body };
    let dims = [&d.batch[..], &[d.m, d.n]].concat();
    let all = outputs(&body, &dims, Positions { place: &|ix| place(g, v, ix), lattice: &[] }, None)?;
    let [only] = &all[..] else { return None };
    let axes = Space::new(&dims, &vec![false; dims.len()]).axes;
    let mut r = body.resolver();
    let store = only.store(&mut r, &axes).ok()?;
    let scene = Scene { dag: r.dag, stores: vec![store] };
    let [anchor] = accumulators(&scene, 1)?[..] else { return None };
    let store = &scene.stores[0];
    let whole = store.guards.is_empty() && store.dtype == dtype && g.ty(g.outputs[0]).count() == g.ty(v).count();
    let c = Operand::at(store.slot, &store.at, &axes).filter(|_| whole)?;
    let sizes = [d.m, d.n];
    // The library rounds when it stores: the graph's own cast is dropped.
    let value = match scene.dag.node(store.value).op {
        NodeOp::Cast(inner) if scene.dag.node(store.value).dtype == dtype => inner,
        _ => store.value,
    };
    let epilogue = Reader { dag: &scene.dag, anchor, dtype, axes: &axes, sizes }.epilogue(value)?;
    let (mut h, [a, b]) = for_library(kernel, v, d).ok()?;
    h.gemm(dtype, dtype, &dims, d.k, [a, b, c.matrix(sizes)]);
    if let Some(Work::Gemm(call)) = h.out.steps.last_mut() {
        *call = GemmCall { epilogue: Box::new(epilogue), ..call.clone() };
        call.strided()?;
    }
    Some(h.out)
}

struct Reader<'a> {
    dag: &'a Dag,
    anchor: NodeId,
    dtype: DType,
    /// Of the matmul's batches, rows and columns.
    axes: &'a [Expr],
    sizes: [usize; 2],
}

impl Reader<'_> {
    fn epilogue(&self, value: NodeId) -> Option<Epilogue> {
        let (activation, sum) = match self.dag.node(value).op {
            NodeOp::Unary(UnaryOp::Relu, x) => (Some(Activation::Relu), x),
            NodeOp::Unary(UnaryOp::GeluTanh, x) if self.dtype != DType::F32 => (Some(Activation::GeluTanh), x),
            _ => (None, value),
        };
        let mut terms = vec![];
        self.terms(sum, &mut terms)?;
        let at = terms.iter().position(|t| t.0 == self.anchor)?;
        let scale = terms.remove(at).1;
        let mut found = Epilogue { scale, activation, ..Epilogue::default() };
        // From the last term, which may be the bias.
        for (n, factor) in terms.into_iter().rev() {
            let operand = self.operand(n)?;
            match self.bias(&operand) {
                true if factor == 1.0 && found.bias.is_none() => found.bias = Some((operand.slot, operand.offset)),
                _ if found.residual.is_none() => found.residual = Some((operand.matrix(self.sizes), factor)),
                _ => return None,
            }
        }
        let both = found.bias.is_some() && found.residual.is_some();
        (!both || self.dtype != DType::F32 || self.adds_bias_last(sum)).then_some(found)
    }
    /// The terms of a sum, each with its factor.
    fn terms(&self, n: NodeId, all: &mut Vec<(NodeId, f64)>) -> Option<()> {
        let number = |n: NodeId| match self.dag.node(n).op {
            NodeOp::Const(s) => Some(s.as_f64()).filter(|f| f.is_finite() && *f != 0.0),
            _ => None,
        };
        match self.dag.node(n).op {
            NodeOp::Binary(BinaryOp::Add, x, y) if all.len() < 3 => {
                self.terms(x, all)?;
                self.terms(y, all)?;
            }
            NodeOp::Binary(BinaryOp::Mul, x, y) => {
                let (of, factor) = number(y).map(|f| (x, f)).or_else(|| Some((y, number(x)?)))?;
                all.push((of, factor));
            }
            _ => all.push((n, 1.0)),
        }
        Some(())
    }
    /// A term that is read from memory in the matmul's type.
    fn operand(&self, n: NodeId) -> Option<Operand> {
        let node = self.dag.node(n);
        let NodeOp::Load { slot, at, guards } = &node.op else { return None };
        let plain = guards.is_empty() && node.dtype == self.dtype;
        Operand::at(*slot, at, self.axes).filter(|_| plain)
    }
    /// Whether an operand has one element per column, contiguous in memory.
    fn bias(&self, o: &Operand) -> bool {
        let Some((column, lead)) = o.strides.split_last() else { return false };
        lead.iter().all(|s| *s == 0) && (*column == 1 || self.sizes[1] == 1)
    }
    fn adds_bias_last(&self, sum: NodeId) -> bool {
        let NodeOp::Binary(BinaryOp::Add, x, y) = self.dag.node(sum).op else { return false };
        [x, y].iter().any(|n| self.operand(*n).is_some_and(|o| self.bias(&o)))
    }
}
