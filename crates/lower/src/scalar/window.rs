//! Convolutions and pools as scalar programs: the window is unrolled into masked loads, or reduced as the row when it
//! is large.
use crate::scalar::dag::{Guard, NodeId, NodeOp};
use crate::scalar::expr::{Expr, delinear};
use crate::scalar::resolve::guards::{Inside, inside, joined};
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver, kept};
use kiln_graph::{BinaryOp, DType, Op, PoolKind, ReduceOp, Scalar, ValueId};
use kiln_plan::Rounding;

/// Windows up to this many elements are unrolled.
pub const MAX_UNROLLED: usize = 64;

/// Elements that one result of a convolution or pool reads; `None` for other ops.
pub fn window_len(op: &Op, arg_shapes: &[&[usize]]) -> Option<usize> {
    match op {
        Op::Pool { window, .. } => Some(window.iter().product()),
        Op::Conv { transposed, groups, .. } => {
            let (x, w) = (arg_shapes.first()?, arg_shapes.get(1)?);
            let per = if *transposed { x.get(1)? / (*groups).max(1) } else { *w.get(1)? };
            Some(per * w.get(2..)?.iter().product::<usize>())
        }
        _ => None,
    }
}

/// A window of a pool: its operand, and the positions that it reads along each axis.
struct Taps<'a> {
    x: ValueId,
    op: ReduceOp,
    axes: &'a [Vec<Expr>],
    /// Guards of the result.
    guards: &'a [Guard],
}

/// The padding value of a pool.
fn nothing(op: ReduceOp) -> f64 {
    if op == ReduceOp::Max { f64::NEG_INFINITY } else { 0.0 }
}

impl Resolver<'_> {
    /// Positions of the window: constants if it is unrolled, else the row's coordinates.
    fn positions(&self, shape: &[usize]) -> Result<Vec<Vec<Expr>>, crate::error::LowerError> {
        let len: usize = shape.iter().product();
        if len > MAX_UNROLLED {
            return Ok(vec![self.row_index(shape)?]);
        }
        Ok((0..len as i64).map(|i| delinear(&Expr::constant(i), shape)).collect())
    }

    pub(crate) fn conv(&mut self, op: &Op, args: &[ValueId], here: &ResolvePoint) -> Resolved {
        let Op::Conv { stride, padding, dilation, groups, transposed, .. } = op else {
            return Err(self.unsupported("not a convolution"));
        };
        let (x, w) = (self.graph.shape(args[0]).to_vec(), self.graph.shape(args[1]).to_vec());
        let out_channels = self.graph.shape(here.v)[1];
        let (cin, cout) = (x[1] / groups, out_channels / groups);
        let window = [&[cin], &w[2..]].concat();
        let dtype = self.graph.dtype(here.v);
        let (group, o) = (here.ix[1].clone().div(cout as i64), here.ix[1].clone().rem(cout as i64));
        let along_row = window.iter().product::<usize>() > MAX_UNROLLED;
        let wanted = kept(here.ix, self.graph.shape(here.v), &[]);
        let mut terms = vec![];
        for at in self.positions(&window)? {
            let channel = group.clone().scale(cin as i64).plus(&at[0]);
            let mut xi = vec![here.ix[0].clone(), channel.clone()];
            let mut bounds = vec![];
            for d in 0..stride.len() {
                let (s, p, dil) = (stride[d] as i64, padding[d] as i64, dilation[d] as i64);
                let (y, k) = (&here.ix[d + 2], at[d + 1].clone().scale(dil));
                let e = if *transposed {
                    let e = y.clone().shift(p).plus(&k.scale(-1));
                    bounds.push((e.clone().rem(s), 0, 1));
                    bounds.push((e.clone(), 0, i64::MAX));
                    e.div(s)
                } else {
                    y.clone().scale(s).plus(&k).shift(-p)
                };
                bounds.push((e.clone(), 0, x[d + 2] as i64));
                xi.push(e);
            }
            let needed = match inside(bounds.into_iter()) {
                Inside::Never => continue,
                Inside::Always => vec![],
                Inside::When(needed) => needed,
            };
            let mut wi = if *transposed { vec![channel, o.clone()] } else { vec![here.ix[1].clone(), at[0].clone()] };
            wi.extend_from_slice(&at[1..]);
            let term = |r: &mut Self, guards: &[Guard]| {
                let a = r.at(args[0], &xi, &joined(guards, &needed))?;
                // The zeros between points of a transposed convolution must not meet a weight: an infinite one would
                // give NaN.
                let also = if *transposed { joined(guards, &needed) } else { guards.to_vec() };
                let a = r.where_inside(needed.clone(), a, 0.0, dtype);
                let b = r.at(args[1], &wi, &also)?;
                let b = if *transposed { r.where_inside(needed, b, 0.0, dtype) } else { b };
                Ok(r.dag.binary(BinaryOp::Mul, a, b))
            };
            terms.push(if along_row { self.body(&wanted, here.guards, term)? } else { term(self, here.guards)? });
        }
        let mut sum = self.summed(terms, &window, dtype)?;
        if let Some(&bias) = args.get(2) {
            let b = self.at(bias, &here.ix[1..2], here.guards)?;
            sum = self.dag.binary(BinaryOp::Add, sum, b);
        }
        Ok(sum)
    }

    /// Reduces a single term over the row, or adds up several.
    fn summed(&mut self, terms: Vec<NodeId>, window: &[usize], dtype: DType) -> Resolved {
        let len: usize = window.iter().product();
        let mut terms = terms.into_iter();
        match terms.next() {
            // The window is all padding.
            None => Ok(self.lowest(0.0, dtype)),
            Some(row) if len > MAX_UNROLLED => self.reduced(ReduceOp::Sum, row, len),
            Some(term) => Ok(terms.fold(term, |sum, t| self.dag.binary(BinaryOp::Add, sum, t))),
        }
    }

    fn where_inside(&mut self, needed: Vec<Guard>, x: NodeId, outside: f64, dtype: DType) -> NodeId {
        if needed.is_empty() {
            return x;
        }
        // A masked load is 0 outside already.
        if outside == 0.0 && matches!(self.dag.node(x).op, NodeOp::Load { .. }) {
            return x;
        }
        let c = self.dag.add(NodeOp::Inside(needed), DType::Bool);
        let other = self.lowest(outside, dtype);
        self.dag.add(NodeOp::Select(c, x, other), dtype)
    }
    /// A constant; minus infinity is the minimum of an integer type.
    fn lowest(&mut self, v: f64, dtype: DType) -> NodeId {
        match dtype.int_range() {
            Some((min, _)) if v == f64::NEG_INFINITY => self.dag.add(NodeOp::Const(Scalar::Int(min)), dtype),
            _ => self.dag.number(dtype, v),
        }
    }

    pub(crate) fn pool(&mut self, op: &Op, args: &[ValueId], here: &ResolvePoint) -> Resolved {
        let Op::Pool { kind, window, stride, padding, dilation, .. } = op else {
            return Err(self.unsupported("not a pool"));
        };
        let shape = self.graph.shape(args[0]).to_vec();
        let dtype = self.graph.dtype(here.v);
        let lead = shape.len() - window.len();
        let start = |d: usize| here.ix[lead + d].clone().scale(stride[d] as i64).shift(-(padding[d] as i64));
        let reduce = if *kind == PoolKind::Max { ReduceOp::Max } else { ReduceOp::Sum };
        let folded = if window.iter().product::<usize>() > MAX_UNROLLED {
            let at = self.row_index(window)?.into_iter().enumerate();
            let along = at.map(|(d, at)| start(d).plus(&at.scale(dilation[d] as i64)));
            let xi: Vec<Expr> = here.ix[..lead].iter().cloned().chain(along).collect();
            self.reduced_window(args[0], reduce, &xi, lead, here)?
        } else {
            let taps = |d: usize| (0..window[d]).map(|k| start(d).shift((k * dilation[d]) as i64)).collect();
            let axes: Vec<Vec<Expr>> = (0..window.len()).map(taps).collect();
            let window = Taps { x: args[0], op: reduce, axes: &axes, guards: here.guards };
            self.fold_window(&window, &here.ix[..lead], &[])?
        };
        // The window is all padding.
        let folded = folded.unwrap_or_else(|| self.lowest(nothing(reduce), dtype));
        let PoolKind::Avg { count_pad } = kind else { return Ok(folded) };
        // Windows that reach past the padding (ceil mode) count only positions up to its end.
        let margin = |d: usize| if *count_pad { padding[d] as i64 } else { 0 };
        let bound = |d: usize, k: usize| (start(d).shift(k as i64), -margin(d), shape[lead + d] as i64 + margin(d));
        let bounds = (0..window.len()).map(|d| (0..window[d]).map(|k| bound(d, k)).collect()).collect();
        let divisor = self.inside_window(bounds, dtype);
        Ok(match self.dag.node(divisor).op {
            NodeOp::Const(Scalar::Float(count)) if self.rounding == Rounding::AtStores => {
                let share = self.dag.number(dtype, count.recip());
                self.dag.binary(BinaryOp::Mul, folded, share)
            }
            _ => self.dag.binary(BinaryOp::Div, folded, divisor),
        })
    }

    /// Reduces a large window, along the axes from `lead` on, as the row; `None` where all of it is padding.
    fn reduced_window(
        &mut self,
        x: ValueId,
        op: ReduceOp,
        xi: &[Expr],
        lead: usize,
        here: &ResolvePoint,
    ) -> Result<Option<NodeId>, crate::error::LowerError> {
        let bounds = xi.iter().zip(self.graph.shape(x)).skip(lead).map(|(e, &n)| (e.clone(), 0, n as i64));
        let needed = match inside(bounds) {
            Inside::Never => return Ok(None),
            Inside::Always => vec![],
            Inside::When(needed) => needed,
        };
        let dtype = self.graph.dtype(x);
        let wanted = kept(here.ix, self.graph.shape(here.v), &[]);
        let element = self.body(&wanted, here.guards, |r, guards| r.at(x, xi, &joined(guards, &needed)))?;
        let element = self.where_inside(needed, element, nothing(op), dtype);
        // A sum: an average is divided by the number of elements inside later.
        let len = self.row.as_ref().map_or(1, |row| row.len);
        self.reduced(op, element, len).map(Some)
    }

    /// How many elements of a window are inside, from the bounds of each position along every axis.
    fn inside_window(&mut self, axes: Vec<Vec<(Expr, i64, i64)>>, dtype: DType) -> NodeId {
        let mut divisor: Option<NodeId> = None;
        let mut constant = 1usize;
        for bounds in axes {
            match inside(bounds.iter().cloned()) {
                Inside::Always => constant *= bounds.len(),
                _ => {
                    let count = self.counted(bounds.into_iter(), dtype);
                    divisor = Some(divisor.map_or(count, |n| self.dag.binary(BinaryOp::Mul, n, count)));
                }
            }
        }
        let fixed = self.dag.number(dtype, constant as f64);
        divisor.map_or(fixed, |n| self.dag.binary(BinaryOp::Mul, n, fixed))
    }

    /// Reduces a window along its innermost axis first, so that windows that share a row share its partial result. `ix`
    /// is the index so far, which is inside where `own` holds; `None` where all is padding.
    fn fold_window(
        &mut self,
        w: &Taps,
        ix: &[Expr],
        needed: &[Guard],
    ) -> Result<Option<NodeId>, crate::error::LowerError> {
        let dtype = self.graph.dtype(w.x);
        let axis = ix.len();
        let rank = self.graph.shape(w.x).len();
        if axis == rank {
            let x = self.at(w.x, ix, &joined(w.guards, needed))?;
            // A sum takes zeros outside of any axis.
            let outside = if w.op == ReduceOp::Sum { needed.to_vec() } else { vec![] };
            return Ok(Some(self.where_inside(outside, x, 0.0, dtype)));
        }
        let n = self.graph.shape(w.x)[axis] as i64;
        let mut folded: Option<NodeId> = None;
        for at in &w.axes[axis + w.axes.len() - rank] {
            let here = match inside(std::iter::once((at.clone(), 0, n))) {
                Inside::Never => continue,
                Inside::Always => vec![],
                Inside::When(here) => here,
            };
            let ix = [ix, std::slice::from_ref(at)].concat();
            let Some(mut x) = self.fold_window(w, &ix, &joined(needed, &here))? else { continue };
            if w.op == ReduceOp::Max {
                x = self.where_inside(here, x, f64::NEG_INFINITY, dtype);
            }
            folded = Some(match (folded, w.op) {
                (None, _) => x,
                (Some(f), ReduceOp::Max) => self.dag.binary(BinaryOp::Max, f, x),
                (Some(f), _) => self.dag.binary(BinaryOp::Add, f, x),
            });
        }
        Ok(folded)
    }

    /// How many of the bounds hold.
    fn counted(&mut self, bounds: impl Iterator<Item = (Expr, i64, i64)>, dtype: DType) -> NodeId {
        let (zero, one) = (self.dag.number(dtype, 0.0), self.dag.number(dtype, 1.0));
        let mut count = zero;
        for b in bounds {
            let term = match inside(std::iter::once(b)) {
                Inside::Never => continue,
                Inside::Always => one,
                Inside::When(needed) => {
                    let c = self.dag.add(NodeOp::Inside(needed), DType::Bool);
                    self.dag.add(NodeOp::Select(c, one, zero), dtype)
                }
            };
            count = self.dag.binary(BinaryOp::Add, count, term);
        }
        count
    }
}

/// A value where an index lies within bounds, zero elsewhere.
pub fn or_zero(r: &mut Resolver, v: ValueId, ix: &[Expr], bounds: Vec<(Expr, i64, i64)>) -> Resolved {
    let zero = |r: &mut Resolver| {
        let dtype = r.graph.dtype(v);
        r.dag.add(NodeOp::Const(Scalar::Float(0.0)), dtype)
    };
    match inside(bounds.into_iter()) {
        Inside::Always => r.at(v, ix, &[]),
        Inside::Never => Ok(zero(r)),
        Inside::When(needed) => {
            let value = r.at(v, ix, &needed)?;
            // A masked load is zero outside already.
            if matches!(r.dag.node(value).op, NodeOp::Load { .. }) {
                return Ok(value);
            }
            let dtype = r.dag.node(value).dtype;
            let c = r.dag.add(NodeOp::Inside(needed), DType::Bool);
            let zero = zero(r);
            Ok(r.dag.add(NodeOp::Select(c, value, zero), dtype))
        }
    }
}
