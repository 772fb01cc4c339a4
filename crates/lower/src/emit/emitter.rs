//! Emits scalar programs as block instructions: every node once, at the smallest shape its coordinates need.
//!
//! A coordinate is a uniform scalar, lanes along one axis of the tile, or both (`base + lane`). Addresses keep the two
//! apart, so a contiguous access is a scalar pointer plus an iota.
mod index;
mod rows;

use crate::emit::emitter::index::Split;
use crate::emit::math;
use crate::emit::row_run::Run;
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp};
use crate::scalar::expr::{CoordId, Expr};
use crate::scalar::types;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Const, Elem, LoadMode, Type, Value};
use kiln_graph::{DType, Scalar, ValueId};
use kiln_plan::exec::Slot;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

/// Share of the points within bounds from which on what they guard is loaded by vectors: below it, as for the parts of
/// a concatenation, most threads would shift vectors that they did not read.
const MIN_SHARE_INSIDE: f64 = 0.75;

/// The values of a coordinate in a program instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lanes {
    pub base: Option<Value>,
    pub lane: Option<Value>,
    /// Where the coordinate is inside its extent; absent if it always is.
    pub mask: Option<Value>,
    /// The base is a multiple of this and lanes are below it; 0 if that is not known.
    pub block: usize,
}
impl Lanes {
    /// A coordinate that is the same for all lanes.
    pub fn uniform(base: Value) -> Lanes {
        Lanes { base: Some(base), ..Lanes::default() }
    }
}

/// Where the row is for a reduction inside the tile: as a whole along one axis.
#[derive(Clone, Copy, Debug)]
pub struct TileRow {
    pub coord: CoordId,
    pub axis: usize,
    pub rank: usize,
}

/// What has been emitted inside a region.
#[derive(Default)]
pub struct Scope {
    values: HashMap<NodeId, Value>,
    exprs: FxHashMap<Expr, Split>,
    /// Index checks, which are emitted at the end of the region, after all of its loads.
    checks: Vec<Checked>,
}

/// A pending index check: whether indices are out of range, and the indices.
struct Checked {
    values: [Value; 2],
    mask: Option<Value>,
    site: ValueId,
}

pub struct Emitter<'a> {
    pub dag: &'a Dag,
    pub params: HashMap<Slot, Value>,
    pub coords: HashMap<CoordId, Lanes>,
    /// i32, or i64 where offsets need it.
    pub index: Elem,
    pub row: Option<TileRow>,
    /// Set if the tile's rows are loaded and stored as one contiguous run.
    pub run: Option<Run>,
    /// The record of indices out of range, once something is checked.
    faults: Option<Value>,
    /// The row's coordinate, where rows are unaligned and it is computed from lanes.
    pub skew: Option<(CoordId, Expr)>,
    /// Accumulator type of f32 scans.
    pub scan_in: Elem,
    scopes: Vec<Scope>,
}

impl<'a> Emitter<'a> {
    pub fn new(dag: &'a Dag, index: Elem) -> Emitter<'a> {
        Emitter {
            dag,
            params: HashMap::new(),
            coords: HashMap::new(),
            index,
            row: None,
            run: None,
            faults: None,
            skew: None,
            scan_in: Elem::F32,
            scopes: vec![Scope::default()],
        }
    }
    /// Enters a region: values emitted until `leave` are out of scope after it.
    pub fn enter(&mut self) {
        self.scopes.push(Scope::default());
    }
    pub fn leave(&mut self, b: &mut Builder) -> Scope {
        self.checks(b);
        self.scopes.pop().unwrap_or_default()
    }
    /// Emits the pending index checks of the region.
    fn checks(&mut self, b: &mut Builder) {
        let checks = self.scopes.last_mut().map(|s| std::mem::take(&mut s.checks)).unwrap_or_default();
        for c in checks {
            let to = *self.faults.get_or_insert_with(|| b.param("faults", Elem::I64, false));
            b.check(to, c.values, c.mask, c.site.0);
        }
    }
    /// Ends the program; returns the parameter for its record of indices out of range, if it has one. It is the last
    /// parameter.
    pub fn end(&mut self, b: &mut Builder) -> Option<Value> {
        self.checks(b);
        self.faults
    }
    /// Enters a scope again that was left.
    pub fn resume(&mut self, scope: Scope) {
        self.scopes.push(scope);
    }
    /// Sets the value of a node.
    pub fn set(&mut self, node: NodeId, v: Value) {
        if let Some(s) = self.scopes.last_mut() {
            s.values.insert(node, v);
        }
    }
    pub fn get(&self, node: NodeId) -> Option<Value> {
        self.scopes.iter().rev().find_map(|s| s.values.get(&node).copied())
    }

    /// The node's value, emitting what is missing.
    pub fn value(&mut self, b: &mut Builder, node: NodeId) -> Value {
        if let Some(v) = self.get(node) {
            return v;
        }
        let missing: Vec<NodeId> = self
            .dag
            .reach_until(&[node], |n| self.get(n).is_some())
            .into_iter()
            .filter(|n| self.get(*n).is_none())
            .collect();
        for n in missing {
            let v = self.emit(b, n);
            self.set(n, v);
        }
        self.operand(b, node)
    }
    /// A node that has been emitted: `value` emits in ascending order, operands before their users.
    fn operand(&self, b: &mut Builder, n: NodeId) -> Value {
        self.get(n).unwrap_or_else(|| b.broken(format!("node {n} is used before it is emitted")))
    }

    fn emit(&mut self, b: &mut Builder, id: NodeId) -> Value {
        let dag = self.dag;
        let node = dag.node(id);
        match &node.op {
            NodeOp::Const(s) => math::constant(b, node.dtype, *s),
            NodeOp::Index(e) => {
                let v = self.expr(b, e);
                math::cast(b, v, node.dtype)
            }
            NodeOp::Load { slot, at, guards } => self.load(b, *slot, at, guards, node.dtype),
            NodeOp::Unary(op, a) => {
                let a = self.operand(b, *a);
                math::unary(b, *op, a)
            }
            NodeOp::TanhApprox(a) => {
                let a = self.operand(b, *a);
                b.unary(kiln_block::UnaryOp::TanhApprox, a)
            }
            NodeOp::Binary(op, x, y) => {
                let power = match (&dag.node(*y).op, op) {
                    (NodeOp::Const(s), kiln_graph::BinaryOp::Pow) => Some(match s {
                        Scalar::Bool(v) => f64::from(u8::from(*v)),
                        s => s.as_f64(),
                    }),
                    _ => None,
                };
                let [x, y] = [x, y].map(|n| self.operand(b, *n));
                math::binary(b, *op, x, y, power)
            }
            NodeOp::Compare(op, x, y) => {
                let [x, y] = [x, y].map(|n| self.operand(b, *n));
                math::compare(b, *op, x, y)
            }
            NodeOp::Select(c, x, y) => {
                let [c, x, y] = [c, x, y].map(|n| self.operand(b, *n));
                b.select(c, x, y)
            }
            NodeOp::Tf32 { of, part } => {
                let of = self.operand(b, *of);
                math::tf32(b, of, *part)
            }
            NodeOp::Cast(a) => {
                let a = self.operand(b, *a);
                math::cast(b, a, node.dtype)
            }
            NodeOp::Check { index, extent, site, at, guards } => {
                let index = self.operand(b, *index);
                let v = b.cast(index, Elem::I64);
                self.check(b, v, *extent, *site, (at, &guards[..]));
                v
            }
            NodeOp::Inside(guards) => {
                let mask = self.guard(b, guards, None);
                mask.unwrap_or_else(|| b.constant(Type::scalar(Elem::Bool), Const::Bool(true)))
            }
            NodeOp::Reduce { op, body } => {
                let body = self.operand(b, *body);
                self.reduce_in_tile(b, *op, body)
            }
            NodeOp::Scan { op, body } => {
                let v = self.operand(b, *body);
                let held = types::held(node.dtype);
                let v = b.cast(v, if held == Elem::F32 { self.scan_in } else { held });
                let sums = self.scan_lanes(b, *op, v);
                b.cast(sums, held)
            }
            NodeOp::Anchor { .. } => b.broken("a matmul is read before its schedule has set its value"),
        }
    }

    /// A tile of a matmul operand: the node's value in its own dtype, zero where a load is masked.
    pub fn operand_tile(&mut self, b: &mut Builder, node: NodeId, dtype: DType, shape: &[usize]) -> Value {
        let dag = self.dag;
        if let NodeOp::Load { slot, at, guards } = &dag.node(node).op
            && dag.node(node).dtype == dtype
        {
            let v = self.load_stored(b, *slot, at, guards);
            return b.broadcast_to(v, shape);
        }
        let v = self.value(b, node);
        let v = b.cast(v, types::stored(dtype));
        b.broadcast_to(v, shape)
    }

    fn load(&mut self, b: &mut Builder, slot: Slot, at: &Expr, guards: &[Guard], dtype: DType) -> Value {
        let v = match self.load_run(b, slot, at, guards, dtype) {
            Some(v) => v,
            None => self.load_stored(b, slot, at, guards),
        };
        b.cast(v, types::held(dtype))
    }
    fn load_run(&mut self, b: &mut Builder, slot: Slot, at: &Expr, guards: &[Guard], dtype: DType) -> Option<Value> {
        let run = self.run.clone().filter(|_| guards.is_empty())?;
        let more = run.at(at, dtype)?;
        let p = self.params.get(&slot).copied()?;
        let p = self.run_address(b, p, &run, more);
        let v = b.load(p, run.mask, None);
        Some(b.unpack(v, run.len, run.shape))
    }
    /// Mask of the lanes where the guards hold and the coordinates of `at` are in range.
    fn inside(&mut self, b: &mut Builder, at: &Expr, guards: &[Guard]) -> Option<Value> {
        let mut mask = self.guard(b, guards, None);
        let mut used = vec![];
        at.coords(&mut |c| used.push(c));
        used.sort_unstable();
        used.dedup();
        for m in used.iter().filter_map(|c| self.coords.get(c)?.mask).collect::<Vec<_>>() {
            mask = Some(match mask {
                Some(old) => b.binary(B::And, old, m),
                None => m,
            });
        }
        mask
    }
    /// Checks that an index (i64) is in `0..extent`. It is checked as it was read: an offset's type may be narrower.
    fn check(&mut self, b: &mut Builder, index: Value, extent: usize, site: ValueId, (at, guards): (&Expr, &[Guard])) {
        let mask = self.inside(b, at, guards);
        let [zero, end] = [0, extent as i64].map(|n| b.constant(Type::scalar(Elem::I64), Const::Int(n)));
        let (below, beyond) = (b.cmp(CmpOp::Lt, index, zero), b.cmp(CmpOp::Ge, index, end));
        let bad = b.binary(B::Or, below, beyond);
        if let Some(scope) = self.scopes.last_mut() {
            scope.checks.push(Checked { values: [bad, index], mask, site });
        }
    }
    fn load_stored(&mut self, b: &mut Builder, slot: Slot, at: &Expr, guards: &[Guard]) -> Value {
        let mask = self.inside(b, at, guards);
        let p = self.address(b, slot, at);
        let p = match mask {
            Some(m) => {
                let shape = joint(&b.shape(p), &b.shape(m));
                b.broadcast_to(p, &shape)
            }
            None => p,
        };
        let within: f64 = guards.iter().map(Guard::share).product();
        let mode = if within < MIN_SHARE_INSIDE { LoadMode::Apart } else { LoadMode::Vectors };
        b.load_by(mode, p, mask, None)
    }
}

/// The shape that two shapes broadcast to.
pub fn joint(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n = a.len().max(b.len());
    let at = |s: &[usize], i: usize| if i + s.len() >= n { s[i + s.len() - n] } else { 1 };
    (0..n).map(|i| at(a, i).max(at(b, i))).collect()
}
