//! What the cost model and the proposer of schedules know of a nest.
use crate::dag::{NodeId, NodeOp};
use crate::expr::Expr;
use crate::nest::Nest;
use kiln_graph::{BinaryOp, Op};
use kiln_plan::exec::Slot;

/// One access to memory.
#[derive(Clone, Debug)]
pub struct Access {
    pub slot: Slot,
    /// Bytes of an element.
    pub bytes: usize,
    pub store: bool,
    /// Elements between neighbours along each coordinate of the nest; `None` along one that a quotient, a remainder or an index that is
    /// read depends on.
    pub strides: Vec<Option<i64>>,
    /// Some points do not access it.
    pub guarded: bool,
    /// Its index is read from memory.
    pub gathered: bool,
}

/// A nest in numbers.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Extent of each coordinate of the nest, and whether it belongs to the row.
    pub coords: Vec<(usize, bool)>,
    pub accesses: Vec<Access>,
    /// Levels of reductions, each of which needs the results of those before it.
    pub levels: usize,
    /// Reductions and scans.
    pub reductions: usize,
    pub scans: usize,
    /// Reductions and scans that combine a row in its order.
    pub ordered: usize,
    /// Weight of the arithmetic for each element of a row (or each point), before and after the reductions.
    pub before: f64,
    pub after: f64,
    /// Quotients and remainders in index expressions.
    pub quotients: usize,
    /// Bytes that are read and written once.
    pub bytes: u64,
}

impl Facts {
    pub fn of(nest: &Nest) -> Facts {
        let (scene, space) = (&nest.scene, &nest.space);
        let dag = &scene.dag;
        let live = scene.live();
        // An index that a node computes has no stride along what the node depends on.
        let deps = dag.depends(&[]);
        let strides = |e: &Expr| -> Vec<Option<i64>> {
            let mut computed = vec![];
            e.nodes(&mut |n| computed.extend(deps[n as usize].iter().copied()));
            space.coords.iter().map(|c| e.stride(c.id).filter(|_| !computed.contains(&c.id))).collect()
        };
        let gathered = |e: &Expr| {
            let mut reads = false;
            e.nodes(&mut |_| reads = true);
            reads
        };
        let mut accesses = vec![];
        for n in &live {
            if let NodeOp::Load { slot, at, guards } = &dag.node(*n).op {
                let bytes = dag.node(*n).dtype.bytes();
                let (strides, gathered) = (strides(at), gathered(at));
                accesses.push(Access {
                    slot: *slot,
                    bytes,
                    store: false,
                    strides,
                    guarded: !guards.is_empty(),
                    gathered,
                });
            }
        }
        for s in &scene.stores {
            let (strides, gathered) = (strides(&s.at), gathered(&s.at));
            let guarded = !s.guards.is_empty();
            accesses.push(Access { slot: s.slot, bytes: s.dtype.bytes(), store: true, strides, guarded, gathered });
        }
        let mut quotients = 0;
        scene.exprs(&mut |e| e.walk(&mut |inner| quotients += usize::from(!std::ptr::eq(inner, e))));
        // Depth of each node in reductions.
        let mut depth = vec![0usize; dag.nodes.len()];
        let (mut levels, mut reductions, mut scans, mut ordered) = (0, 0, 0, 0);
        let mut bodies: Vec<NodeId> = vec![];
        for &n in &live {
            let node = dag.node(n);
            depth[n as usize] = node.operands().iter().map(|o| depth[*o as usize]).max().unwrap_or(0);
            match node.op {
                NodeOp::Reduce { body, .. } => {
                    depth[n as usize] += 1;
                    levels = levels.max(depth[n as usize]);
                    reductions += 1;
                    bodies.push(body);
                }
                NodeOp::Scan { .. } => scans += 1,
                _ => {}
            }
            ordered += usize::from(!node.sums_in_any_order());
        }
        let early = dag.reach(&bodies);
        let row = space.row_ids();
        let deps = dag.depends(&row);
        let along = |n: NodeId| row.is_empty() || row.iter().any(|r| deps[n as usize].contains(r));
        let (mut before, mut after) = (0.0, 0.0);
        for &n in &live {
            let weight = weight(&dag.node(n).op);
            if along(n) || row.is_empty() {
                *if early.contains(&n) { &mut before } else { &mut after } += weight;
            }
        }
        let mut sizes: std::collections::BTreeMap<Slot, u64> = std::collections::BTreeMap::new();
        for a in &accesses {
            let used = space.coords.iter().zip(&a.strides).filter(|(_, s)| **s != Some(0));
            let bytes = used.map(|(c, _)| c.extent as u64).product::<u64>() * a.bytes as u64;
            let most = sizes.entry(a.slot).or_default();
            *most = bytes.max(*most);
        }
        let bytes = if nest.bytes > 0 { nest.bytes } else { sizes.values().sum() };
        let coords = space.coords.iter().map(|c| (c.extent, c.row)).collect();
        Facts { coords, accesses, levels, reductions, scans, ordered, before, after, quotients, bytes }
    }
}

/// Instructions of a node, roughly.
pub fn weight(op: &NodeOp) -> f64 {
    match op {
        NodeOp::Unary(op, _) => Op::Unary(*op).weight(),
        NodeOp::Binary(op @ (BinaryOp::Div | BinaryOp::Pow), ..) => Op::Binary(*op).weight(),
        NodeOp::Binary(..) | NodeOp::Compare(..) | NodeOp::Select(..) | NodeOp::Cast(_) => 1.0,
        NodeOp::TanhApprox(_) => 2.0,
        _ => 0.0,
    }
}
