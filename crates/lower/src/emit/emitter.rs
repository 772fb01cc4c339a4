//! Emits scalar programs as block instructions: every node once, at the smallest shape its coordinates need.
//!
//! A coordinate is a uniform scalar, lanes along one axis of the tile, or both (`base + lane`). Addresses keep the two
//! apart, so a contiguous access is a scalar pointer plus an iota.
use crate::emit::math;
use crate::emit::row_run::Run;
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp};
use crate::scalar::expr::{Atom, CoordId, Expr};
use crate::scalar::types;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Const, Elem, LoadMode, Type, Value};
use kiln_graph::{DType, ReduceOp, Scalar, ScanOp, ValueId};
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

/// An index expression as a uniform and a varying part.
#[derive(Clone, Copy, Debug, Default)]
struct Split {
    uniform: Option<Value>,
    constant: i64,
    varying: Option<Value>,
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
    fn known(&self, e: &Expr) -> Option<Split> {
        self.scopes.iter().rev().find_map(|s| s.exprs.get(e).copied())
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

    /// Reduces a value along the row's axis of the tile; keeps the axis with size 1 in tiles of rank 2.
    fn reduce_in_tile(&mut self, b: &mut Builder, op: ReduceOp, v: Value) -> Value {
        let Some(row) = self.row else { return b.broken("a reduction in a tile without a row") };
        let Some(lanes) = self.coords.get(&row.coord).copied() else {
            return b.broken("a reduction over a row that is not in the tile");
        };
        let v = self.fill_outside(b, op, v, lanes);
        let r = self.reduce_axis(b, op, v, row);
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) { b.cast(r, Elem::I64) } else { r }
    }
    /// The value broadcast over the row's lanes, with the reduction's identity outside the row.
    pub fn fill_outside(&mut self, b: &mut Builder, op: ReduceOp, v: Value, lanes: Lanes) -> Value {
        let elem = math::elem(b, v);
        let v = match lanes.lane {
            Some(lane) => {
                let shape = joint(&b.shape(v), &b.shape(lane));
                b.broadcast_to(v, &shape)
            }
            None => v,
        };
        match lanes.mask {
            Some(mask) => {
                let shape = joint(&b.shape(v), &b.shape(mask));
                let v = b.broadcast_to(v, &shape);
                let id = math::identity(b, op, elem);
                b.select(mask, v, id)
            }
            None => v,
        }
    }
    pub fn reduce_axis(&mut self, b: &mut Builder, op: ReduceOp, v: Value, row: TileRow) -> Value {
        let elem = math::elem(b, v);
        let r = b.reduce(math::reduce_op(op, elem), v, row.axis);
        if row.rank > 1 { b.expand_dims(r, row.axis) } else { r }
    }

    /// Inclusive scan along the row's lanes; lanes outside the row come after all others.
    pub fn scan_lanes(&mut self, b: &mut Builder, op: ScanOp, v: Value) -> Value {
        let Some(row) = self.row else { return b.broken("a scan in a tile without a row") };
        let Some(lane) = self.coords.get(&row.coord).and_then(|l| l.lane) else { return v };
        let shape = joint(&b.shape(v), &b.shape(lane));
        let v = b.broadcast_to(v, &shape);
        let op = match op {
            ScanOp::Sum => kiln_block::ScanOp::Sum,
            ScanOp::Prod => kiln_block::ScanOp::Prod,
        };
        b.scan(op, v, row.axis)
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
    pub fn address(&mut self, b: &mut Builder, slot: Slot, at: &Expr) -> Value {
        // Every slot of the program has a parameter before emission.
        let p = self.params.get(&slot).copied();
        let p = p.unwrap_or_else(|| b.broken(format!("buffer {slot:?} is not a parameter")));
        let split = self.split(b, at);
        let p = match self.uniform(b, split) {
            Some(u) => b.ptr_add(p, u),
            None => p,
        };
        match split.varying {
            Some(v) => b.ptr_add(p, v),
            None => p,
        }
    }
    fn uniform(&mut self, b: &mut Builder, s: Split) -> Option<Value> {
        match (s.uniform, s.constant) {
            (u, 0) => u,
            (None, c) => Some(self.int(b, c)),
            (Some(u), c) => {
                let c = self.int(b, c);
                Some(b.binary(B::Add, u, c))
            }
        }
    }
    pub fn int(&self, b: &mut Builder, v: i64) -> Value {
        b.constant(Type::scalar(self.index), Const::Int(v))
    }

    /// The conjunction of `mask` and all guards.
    pub fn guard(&mut self, b: &mut Builder, guards: &[Guard], mut mask: Option<Value>) -> Option<Value> {
        for g in guards {
            let (least, most) = g.expr.range();
            // The range of an index read from memory is what its guard enforces, so it must not be used to drop the
            // guard.
            let mut read = false;
            g.expr.nodes(&mut |_| read = true);
            let v = self.expr(b, &g.expr);
            for (op, bound, needed) in
                [(CmpOp::Ge, g.lo, least < g.lo || read), (CmpOp::Lt, g.hi, most >= g.hi || read)]
            {
                if !needed || bound == i64::MIN || bound == i64::MAX {
                    continue;
                }
                let bound = self.int(b, bound);
                let c = b.cmp(op, v, bound);
                mask = Some(match mask {
                    Some(m) => b.binary(B::And, m, c),
                    None => c,
                });
            }
        }
        mask
    }

    /// An index expression as one value of the index type.
    pub fn expr(&mut self, b: &mut Builder, e: &Expr) -> Value {
        let s = self.split(b, e);
        match (self.uniform(b, s), s.varying) {
            (Some(u), Some(v)) => b.binary(B::Add, u, v),
            (Some(u), None) => u,
            (None, Some(v)) => v,
            (None, None) => self.int(b, 0),
        }
    }
    fn split(&mut self, b: &mut Builder, e: &Expr) -> Split {
        if let Some(s) = self.known(e) {
            return s;
        }
        if let Some((id, by)) = self.skew.as_ref().filter(|s| e.uses(s.0)) {
            let straight = e.substitute(&|c| (c == *id).then(|| by.clone()));
            return self.split(b, &straight);
        }
        let in_lanes = |id| self.coords.get(&id).is_some_and(|l| l.lane.is_some());
        // Not for unaligned rows: their quotients say where they are aligned.
        if let Some(by_remainder) = e.rounded_down(in_lanes).filter(|_| self.skew.is_none()) {
            let s = self.split(b, &by_remainder);
            return self.keep(e, s);
        }
        let mut uniform: Vec<(Value, i64)> = vec![];
        let mut varying: Vec<(Value, i64)> = vec![];
        for (a, c) in &e.terms {
            match a {
                Atom::Coord { id, .. } => {
                    let Some(lanes) = self.coords.get(id).copied() else {
                        b.broken(format!("coordinate {id} is neither in the tile nor in the grid"));
                        continue;
                    };
                    uniform.extend(lanes.base.map(|v| (v, *c)));
                    varying.extend(lanes.lane.map(|v| (v, *c)));
                }
                Atom::Div(x, k) | Atom::Mod(x, k) => {
                    let quotient = matches!(a, Atom::Div(..));
                    if let Some(lanes) = self.in_block(x, *k) {
                        let base = lanes.base.filter(|_| quotient || *k != lanes.block as i64);
                        let k = self.int(b, *k);
                        uniform.extend(base.map(|v| (b.binary(if quotient { B::Div } else { B::Rem }, v, k), *c)));
                        varying.extend(lanes.lane.filter(|_| !quotient).map(|lane| (lane, *c)));
                        continue;
                    }
                    // Quotients of expressions round down, those of block programs toward zero: a dividend that may be
                    // negative is first made positive by adding a multiple of the divisor.
                    let lift = match x.range().0 {
                        lo if lo < 0 && lo > -(1 << 40) => -lo.div_euclid(*k),
                        _ => 0,
                    };
                    let x = self.expr(b, &x.as_ref().clone().shift(lift * k));
                    let k = self.int(b, *k);
                    let mut v = b.binary(if quotient { B::Div } else { B::Rem }, x, k);
                    if quotient && lift > 0 {
                        let lift = self.int(b, lift);
                        v = b.binary(B::Sub, v, lift);
                    }
                    if b.ty(v).is_scalar() { uniform.push((v, *c)) } else { varying.push((v, *c)) }
                }
                Atom::Value { node, .. } => {
                    let v = self.value(b, *node);
                    let v = b.cast(v, self.index);
                    if b.ty(v).is_scalar() { uniform.push((v, *c)) } else { varying.push((v, *c)) }
                }
            }
        }
        varying.sort_by_key(|t| b.ty(t.0).count());
        let s = Split { uniform: self.sum(b, uniform), constant: e.constant, varying: self.sum(b, varying) };
        self.keep(e, s)
    }
    /// The lanes of a coordinate whose blocks lie within multiples of `k`: quotients by `k` are the same for all lanes.
    fn in_block(&self, x: &Expr, k: i64) -> Option<Lanes> {
        let lanes = *self.coords.get(&x.as_coord()?)?;
        (lanes.block > 0 && k % lanes.block as i64 == 0).then_some(lanes)
    }
    fn keep(&mut self, e: &Expr, s: Split) -> Split {
        if let Some(scope) = self.scopes.last_mut() {
            scope.exprs.insert(e.clone(), s);
        }
        s
    }
    fn sum(&mut self, b: &mut Builder, terms: Vec<(Value, i64)>) -> Option<Value> {
        let mut total: Option<Value> = None;
        for (v, c) in terms {
            let v = if c == 1 {
                v
            } else {
                let c = self.int(b, c);
                b.binary(B::Mul, v, c)
            };
            total = Some(match total {
                Some(t) => b.binary(B::Add, t, v),
                None => v,
            });
        }
        total
    }

    /// Addresses of a run, at an offset of `more` elements.
    pub fn run_address(&mut self, b: &mut Builder, p: Value, run: &Run, more: i64) -> Value {
        let mut p = p;
        if let Some(base) = run.base {
            p = b.ptr_add(p, base);
        }
        if more != 0 {
            let more = self.int(b, more);
            p = b.ptr_add(p, more);
        }
        b.ptr_add(p, run.lane)
    }
}

/// The shape that two shapes broadcast to.
pub fn joint(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n = a.len().max(b.len());
    let at = |s: &[usize], i: usize| if i + s.len() >= n { s[i + s.len() - n] } else { 1 };
    (0..n).map(|i| at(a, i).max(at(b, i))).collect()
}
