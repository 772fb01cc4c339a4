//! The scalar program of a kernel: how one element of each output is computed, with every view already folded into
//! index expressions.
//!
//! Nodes are hash-consed, operands before users. Half-precision values are held in f32: they are rounded where the
//! graph says `cast` and where they are stored. Under per-op rounding every op is followed by a `cast`.
use crate::scalar::expr::{Atom, CoordId, Expr};
use kiln_block::AtomicOp;
use kiln_graph::{BinaryOp, CompareOp, DType, ReduceOp, Scalar, ScanOp, UnaryOp, ValueId};
use kiln_plan::exec::Slot;
use rustc_hash::FxHashMap;

pub type NodeId = u32;

/// `lo ≤ expr < hi`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Guard {
    pub expr: Expr,
    pub lo: i64,
    pub hi: i64,
}

impl Guard {
    /// The term that moves the expression most, with least and greatest value of the others together.
    fn widest_term(&self) -> Option<(&Atom, i64, (i64, i64))> {
        let moves = |(a, c): &(Atom, i64)| {
            let (lo, hi) = a.range();
            (hi - lo).saturating_mul(c.abs())
        };
        let widest = (0..self.expr.terms.len()).max_by_key(|n| moves(&self.expr.terms[*n]))?;
        let mut others = self.expr.clone();
        let (atom, c) = others.terms.remove(widest);
        Some((&self.expr.terms[widest].0, c, others.range())).filter(|_| moves(&(atom, c)) > 0)
    }
    /// Share of the points that are within it, if terms are independent and take each value in their range as often. Of
    /// all but the term that moves the expression most, the mean counts.
    pub fn share(&self) -> f64 {
        let (lo, hi) = (self.lo as f64, self.hi as f64 - 1.0);
        let Some((atom, c, others)) = self.widest_term() else {
            return f64::from(u8::from(self.expr.constant >= self.lo && self.expr.constant < self.hi));
        };
        let (c, mean) = (c as f64, (others.0 as f64 + others.1 as f64) / 2.0);
        let (min, max) = atom.range();
        let (a, b) = ((lo - mean) / c, (hi - mean) / c);
        let within = a.max(b).floor().min(max as f64) - a.min(b).ceil().max(min as f64) + 1.0;
        (within / (max - min + 1) as f64).clamp(0.0, 1.0)
    }
    /// The coordinate that moves the expression most, and how many of its values may be within.
    pub fn bounds(&self) -> Option<(CoordId, usize)> {
        let (Atom::Coord { id, extent }, c, others) = self.widest_term()? else { return None };
        let width = (self.hi - self.lo).saturating_add(others.1 - others.0) as usize;
        Some((*id, width.div_ceil(c.unsigned_abs() as usize).clamp(1, *extent)))
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NodeOp {
    Const(Scalar),
    /// An index expression as a number.
    Index(Expr),
    /// Element `at` of a dense buffer; nothing is read where a guard fails (the value is then 0).
    Load {
        slot: Slot,
        at: Expr,
        guards: Vec<Guard>,
    },
    Unary(UnaryOp, NodeId),
    Binary(BinaryOp, NodeId, NodeId),
    Compare(CompareOp, NodeId, NodeId),
    Select(NodeId, NodeId, NodeId),
    /// Rounds to the node's dtype.
    Cast(NodeId),
    /// The hyperbolic tangent of an f32 number, to the accuracy of half types.
    TanhApprox(NodeId),
    /// An f32 number rounded to tf32, or one of its two tf32 parts (3xTF32).
    Tf32 {
        of: NodeId,
        part: Tf32,
    },
    /// An index as read (emitted as i64, whatever the node's type). Where the guards hold, an index outside of
    /// `0..extent` is an error at node `site` of the body. `at` is the position among all indices: lanes outside of its
    /// coordinates are not checked.
    Check {
        index: NodeId,
        extent: usize,
        site: ValueId,
        at: Expr,
        guards: Vec<Guard>,
    },
    /// Whether all guards hold.
    Inside(Vec<Guard>),
    /// Reduction over the row, the reduction space of the kernel.
    Reduce {
        op: ReduceOp,
        body: NodeId,
    },
    /// Inclusive scan along the row.
    Scan {
        op: ScanOp,
        body: NodeId,
    },
    /// An element of the result of the matmul (or attention) that the kernel is built around.
    Anchor {
        at: Vec<Expr>,
    },
}

/// How an f32 number is represented in tf32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tf32 {
    /// Rounded to nearest; tensor cores by themselves truncate.
    Nearest,
    /// The high part of a 3xTF32 split: high + low = the number.
    Large,
    /// The low part.
    Rest,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub op: NodeOp,
    pub dtype: DType,
}

/// New numbers of nodes.
struct Renumbered<'a>(&'a [NodeId]);

impl Renumbered<'_> {
    fn node(&self, n: NodeId) -> NodeId {
        self.0[n as usize]
    }
    fn expr(&self, e: &Expr) -> Expr {
        e.renamed(&|a| match a {
            Atom::Value { node, extent } => Some(Atom::Value { node: self.node(*node), extent: *extent }),
            _ => None,
        })
    }
    fn guards(&self, all: &[Guard]) -> Vec<Guard> {
        all.iter().map(|g| Guard { expr: self.expr(&g.expr), lo: g.lo, hi: g.hi }).collect()
    }
    fn op(&self, op: &NodeOp) -> NodeOp {
        let n = |n: &NodeId| self.node(*n);
        match op {
            NodeOp::Const(v) => NodeOp::Const(*v),
            NodeOp::Index(e) => NodeOp::Index(self.expr(e)),
            NodeOp::Load { slot, at, guards } => {
                NodeOp::Load { slot: *slot, at: self.expr(at), guards: self.guards(guards) }
            }
            NodeOp::Unary(op, a) => NodeOp::Unary(*op, n(a)),
            NodeOp::Binary(op, a, b) => NodeOp::Binary(*op, n(a), n(b)),
            NodeOp::Compare(op, a, b) => NodeOp::Compare(*op, n(a), n(b)),
            NodeOp::Select(c, a, b) => NodeOp::Select(n(c), n(a), n(b)),
            NodeOp::Cast(a) => NodeOp::Cast(n(a)),
            NodeOp::TanhApprox(a) => NodeOp::TanhApprox(n(a)),
            NodeOp::Tf32 { of, part } => NodeOp::Tf32 { of: n(of), part: *part },
            NodeOp::Check { index, extent, site, at, guards } => NodeOp::Check {
                index: n(index),
                extent: *extent,
                site: *site,
                at: self.expr(at),
                guards: self.guards(guards),
            },
            NodeOp::Inside(guards) => NodeOp::Inside(self.guards(guards)),
            NodeOp::Reduce { op, body } => NodeOp::Reduce { op: *op, body: n(body) },
            NodeOp::Scan { op, body } => NodeOp::Scan { op: *op, body: n(body) },
            NodeOp::Anchor { at } => NodeOp::Anchor { at: at.iter().map(|e| self.expr(e)).collect() },
        }
    }
}

impl Node {
    pub fn operands(&self) -> Vec<NodeId> {
        let mut ids = match &self.op {
            NodeOp::Unary(_, a) | NodeOp::TanhApprox(a) | NodeOp::Cast(a) | NodeOp::Tf32 { of: a, .. } => vec![*a],
            NodeOp::Reduce { body, .. } | NodeOp::Scan { body, .. } => vec![*body],
            NodeOp::Check { index, .. } => vec![*index],
            NodeOp::Binary(_, a, b) | NodeOp::Compare(_, a, b) => vec![*a, *b],
            NodeOp::Select(c, a, b) => vec![*c, *a, *b],
            _ => vec![],
        };
        self.exprs(&mut |e| e.nodes(&mut |n| ids.push(n)));
        ids
    }
    /// Whether the row may be combined in any order: scans and arg-reductions depend on it.
    pub fn sums_in_any_order(&self) -> bool {
        let arg = matches!(self.op, NodeOp::Reduce { op: ReduceOp::ArgMax | ReduceOp::ArgMin, .. });
        !arg && !matches!(self.op, NodeOp::Scan { .. })
    }
    /// Calls `f` with the index expressions of this node itself.
    pub fn exprs<'a>(&'a self, f: &mut impl FnMut(&'a Expr)) {
        match &self.op {
            NodeOp::Index(e) => f(e),
            NodeOp::Load { at, guards, .. } | NodeOp::Check { at, guards, .. } => {
                f(at);
                guards.iter().for_each(|g| f(&g.expr));
            }
            NodeOp::Inside(guards) => guards.iter().for_each(|g| f(&g.expr)),
            NodeOp::Anchor { at } => at.iter().for_each(f),
            _ => {}
        }
    }
}

/// Recursion limit of what looks at operands: shared nodes are visited once per path.
const DEEP: usize = 8;

#[derive(Clone, Default, Debug)]
pub struct Dag {
    pub nodes: Vec<Node>,
    ids: FxHashMap<Node, NodeId>,
}

impl Dag {
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }
    pub fn add(&mut self, op: NodeOp, dtype: DType) -> NodeId {
        let node = Node { op, dtype };
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let id = self.nodes.len() as NodeId;
        self.ids.insert(node.clone(), id);
        self.nodes.push(node);
        id
    }
    /// A constant in the compute type of `dtype`.
    pub fn number(&mut self, dtype: DType, v: f64) -> NodeId {
        let value = if dtype.is_float() { Scalar::Float(v) } else { Scalar::Int(v as i64) };
        self.add(NodeOp::Const(value), dtype.compute())
    }
    pub fn unary(&mut self, op: UnaryOp, a: NodeId) -> NodeId {
        let dtype = self.node(a).dtype;
        self.add(NodeOp::Unary(op, a), dtype)
    }
    /// Result dtype is the first operand's.
    pub fn binary(&mut self, op: BinaryOp, a: NodeId, b: NodeId) -> NodeId {
        let dtype = self.node(a).dtype;
        self.add(NodeOp::Binary(op, a, b), dtype)
    }
    pub fn reduce(&mut self, op: ReduceOp, body: NodeId) -> NodeId {
        let dtype = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
            _ => self.node(body).dtype,
        };
        self.add(NodeOp::Reduce { op, body }, dtype)
    }
    /// Least and greatest value of an integer node, as far as known from constants, coordinates and the node's type.
    pub fn range(&self, n: NodeId) -> (i64, i64) {
        self.range_within(n, DEEP, true)
    }
    /// The same at any coordinates, also in lanes of a tile beyond an axis.
    pub fn range_anywhere(&self, n: NodeId) -> (i64, i64) {
        self.range_within(n, DEEP, false)
    }
    fn range_within(&self, n: NodeId, deep: usize, inside: bool) -> (i64, i64) {
        let node = self.node(n);
        let all = node.dtype.int_range().unwrap_or((i64::MIN, i64::MAX));
        let Some(deep) = deep.checked_sub(1) else { return all };
        let (lo, hi) = match &node.op {
            NodeOp::Const(Scalar::Int(v)) => (*v, *v),
            NodeOp::Index(e) if inside => e.range(),
            NodeOp::Check { index, .. } => self.range_within(*index, deep, inside),
            NodeOp::Cast(a) if self.node(*a).dtype == DType::Bool => (0, 1),
            NodeOp::Cast(a) if self.node(*a).dtype.is_int() => self.range_within(*a, deep, inside),
            NodeOp::Unary(UnaryOp::Relu, a) => {
                let (lo, hi) = self.range_within(*a, deep, inside);
                (lo.max(0), hi.max(0))
            }
            NodeOp::Select(_, a, b) => {
                let (a, b) = (self.range_within(*a, deep, inside), self.range_within(*b, deep, inside));
                (a.0.min(b.0), a.1.max(b.1))
            }
            NodeOp::Binary(op, a, b) => {
                let (a, b) = (self.range_within(*a, deep, inside), self.range_within(*b, deep, inside));
                match op {
                    BinaryOp::Max => (a.0.max(b.0), a.1.max(b.1)),
                    BinaryOp::Min => (a.0.min(b.0), a.1.min(b.1)),
                    BinaryOp::Add => match (a.0.checked_add(b.0), a.1.checked_add(b.1)) {
                        (Some(lo), Some(hi)) => (lo, hi),
                        _ => all,
                    },
                    BinaryOp::Sub => match (a.0.checked_sub(b.1), a.1.checked_sub(b.0)) {
                        (Some(lo), Some(hi)) => (lo, hi),
                        _ => all,
                    },
                    BinaryOp::Remainder if b.0 == b.1 && b.0 > 0 => (0, b.0 - 1),
                    _ => all,
                }
            }
            _ => all,
        };
        // Values outside of the type wrap around.
        if lo < all.0 || hi > all.1 { all } else { (lo, hi) }
    }
    /// The index that an integer node computes from coordinates and constants: sums, multiples and quotients of what is
    /// not negative. `None` where it is anything else, or leaves the node's type.
    fn expr(&self, n: NodeId, deep: usize) -> Option<Expr> {
        let (node, deep) = (self.node(n), deep.checked_sub(1)?);
        // Products of two such numbers are no overflow.
        let small = |v: i64| v.unsigned_abs() <= 1 << 31;
        let constant = |n: NodeId| match self.node(n).op {
            NodeOp::Const(Scalar::Int(v)) => Some(v).filter(|v| small(*v)),
            _ => None,
        };
        let e = match node.op {
            NodeOp::Index(ref e) => e.clone(),
            NodeOp::Cast(a) if self.node(a).dtype.is_int() => self.expr(a, deep)?,
            NodeOp::Binary(op, a, b) => {
                let a = self.expr(a, deep)?;
                match (op, constant(b)) {
                    (BinaryOp::Add, Some(k)) => a.shift(k),
                    (BinaryOp::Sub, Some(k)) => a.shift(-k),
                    (BinaryOp::Mul, Some(k)) if small(a.range().0) && small(a.range().1) => a.scale(k),
                    (BinaryOp::FloorDiv, Some(k)) if k > 0 && a.range().0 >= 0 => a.div(k),
                    (BinaryOp::Remainder, Some(k)) if k > 0 && a.range().0 >= 0 => a.rem(k),
                    (BinaryOp::Add, None) => a.plus(&self.expr(b, deep)?),
                    _ => return None,
                }
            }
            _ => return None,
        };
        const LARGEST: i64 = 1 << 61;
        let ((lo, hi), (min, max)) = (e.range(), node.dtype.int_range()?);
        (lo >= min.max(-LARGEST) && hi <= max.min(LARGEST)).then_some(e)
    }
    /// The same integer with what it computes from coordinates as index expressions.
    pub fn as_index(&mut self, n: NodeId) -> NodeId {
        if let Some(e) = self.expr(n, DEEP) {
            return self.add(NodeOp::Index(e), self.node(n).dtype);
        }
        match self.node(n).op {
            NodeOp::Binary(op @ (BinaryOp::Max | BinaryOp::Min | BinaryOp::Add | BinaryOp::Sub), a, b) => {
                let (a, b) = (self.as_index(a), self.as_index(b));
                self.add(NodeOp::Binary(op, a, b), self.node(n).dtype)
            }
            NodeOp::Unary(UnaryOp::Relu, a) => {
                let a = self.as_index(a);
                self.add(NodeOp::Unary(UnaryOp::Relu, a), self.node(n).dtype)
            }
            _ => n,
        }
    }
    /// Nodes reachable from `roots`, ascending (operands first).
    pub fn reach(&self, roots: &[NodeId]) -> Vec<NodeId> {
        self.reach_until(roots, |_| false)
    }
    /// As [`Dag::reach`], but not below nodes where `stop` holds (which are included).
    pub fn reach_until(&self, roots: &[NodeId], stop: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        let mut open: Vec<NodeId> = roots.to_vec();
        while let Some(n) = open.pop() {
            if std::mem::replace(&mut seen[n as usize], true) || stop(n) {
                continue;
            }
            open.extend(self.node(n).operands());
        }
        (0..self.nodes.len() as NodeId).filter(|n| seen[*n as usize]).collect()
    }
    /// For every node, the coordinates its value depends on (for a reduction without those of the row), as sorted
    /// lists.
    pub fn depends(&self, row: &[CoordId]) -> Vec<Vec<CoordId>> {
        let mut deps: Vec<Vec<CoordId>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut d = vec![];
            node.exprs(&mut |e| e.coords(&mut |c| d.push(c)));
            for o in node.operands() {
                d.extend_from_slice(&deps[o as usize]);
            }
            match node.op {
                NodeOp::Reduce { .. } => d.retain(|c| !row.contains(c)),
                NodeOp::Scan { .. } => d.extend(row),
                _ => {}
            }
            d.sort_unstable();
            d.dedup();
            deps.push(d);
        }
        deps
    }
}

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Write {
    Set,
    /// Combined with the element that is there, at any time.
    Atomic(AtomicOp),
}

/// A value to be written: element `at` of a dense buffer of `dtype`.
#[derive(Clone, Debug)]
pub struct Store {
    pub slot: Slot,
    pub dtype: DType,
    pub at: Expr,
    pub guards: Vec<Guard>,
    pub value: NodeId,
    pub how: Write,
}
impl Store {
    /// Sets an element.
    pub fn new(slot: Slot, dtype: DType, at: Expr, value: NodeId) -> Store {
        Store { slot, dtype, at, guards: vec![], value, how: Write::Set }
    }
    /// The same where the guards hold.
    #[must_use]
    pub fn within(self, guards: Vec<Guard>) -> Store {
        Store { guards, ..self }
    }
    #[must_use]
    pub fn how(self, how: Write) -> Store {
        Store { how, ..self }
    }
}

/// A scalar program with its results.
#[derive(Clone, Default, Debug)]
pub struct Scene {
    pub dag: Dag,
    pub stores: Vec<Store>,
}

impl Scene {
    pub fn roots(&self) -> Vec<NodeId> {
        let mut roots: Vec<NodeId> = self.stores.iter().map(|s| s.value).collect();
        for s in &self.stores {
            s.at.nodes(&mut |n| roots.push(n));
            s.guards.iter().for_each(|g| g.expr.nodes(&mut |n| roots.push(n)));
        }
        roots
    }
    /// Every index expression of the live part.
    pub fn exprs<'a>(&'a self, f: &mut impl FnMut(&'a Expr)) {
        for n in self.dag.reach(&self.roots()) {
            self.dag.node(n).exprs(f);
        }
        for s in &self.stores {
            f(&s.at);
            s.guards.iter().for_each(|g| f(&g.expr));
        }
    }
    /// Computes what another scene does too. What both have in common is there once.
    pub fn append(&mut self, other: &Scene) {
        let mut to: Vec<NodeId> = vec![0; other.dag.nodes.len()];
        for n in other.live() {
            let node = other.dag.node(n);
            to[n as usize] = self.dag.add(Renumbered(&to).op(&node.op), node.dtype);
        }
        let to = Renumbered(&to);
        let store = |s: &Store| {
            let (at, guards, value) = (to.expr(&s.at), to.guards(&s.guards), to.node(s.value));
            Store { at, guards, value, ..*s }
        };
        self.stores.extend(other.stores.iter().map(store));
    }
    pub fn live(&self) -> Vec<NodeId> {
        self.dag.reach(&self.roots())
    }
    /// Levels of reductions, which depend on those of earlier levels alone.
    pub fn levels(&self) -> Vec<Vec<NodeId>> {
        let mut depth = vec![0usize; self.dag.nodes.len()];
        let mut levels: Vec<Vec<NodeId>> = vec![];
        for n in self.live() {
            let node = self.dag.node(n);
            let below = node.operands().into_iter().map(|o| depth[o as usize]).max().unwrap_or(0);
            depth[n as usize] = below;
            if matches!(node.op, NodeOp::Reduce { .. }) {
                depth[n as usize] = below + 1;
                levels.resize_with(levels.len().max(below + 1), Vec::new);
                levels[below].push(n);
            }
        }
        levels
    }
}

/// Whether a node is this constant.
pub fn is_number(dag: &Dag, n: NodeId, value: f64) -> bool {
    matches!(dag.node(n).op, NodeOp::Const(x) if x.as_f64() == value)
}
