//! An attention as scalar programs over the coordinates of [`Coords`]: what a tile of queries reads, which keys its
//! masks leave, what it stores.
use crate::attention::block_mask::Mask;
use crate::attention::program::{Coords, Operands, Sum, TileRows, indices, operands, results, sums, trend};
use crate::attention::warpgroups::Request;
use crate::error::LowerError;
use crate::matmul;
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene};
use crate::scalar::expr::{CoordId, Expr};
use crate::scalar::key_range::{key_range, masked_range};
use crate::scalar::resolve::{Body, MatmulSource, Resolver};
use crate::scalar::scores::{Causal, Sizes, mask_dtype, masked_score};
use crate::steps::Emitted;
use kiln_graph::{BinaryOp, DType, FullyMasked, Op, Scalar, ValueId};
use kiln_plan::Step;
use kiln_plan::attention::{Tiles, Warpgroups};
use kiln_plan::exec::Slot;

/// Scratch buffers of the sums of slices, which are the first ones: as [`results`] stores them.
const SLICE_SUMS: u32 = 3;

/// A mask that depends on data, and where a launch ahead has written the positions of the keys that it leaves.
pub struct DataMask {
    pub mask: Mask,
    pub positions: Vec<[NodeId; 4]>,
}

/// The scalar programs of an attention, and the launch that goes ahead of it.
pub struct Resolved<'a> {
    pub kernel: &'a Lowering<'a>,
    pub z: &'a Sizes,
    pub shape: Warpgroups,
    pub rows: TileRows,
    /// Sizes where a row of a tile is a query.
    pub row_sizes: Sizes,
    /// Of queries, keys and values.
    pub dtype: DType,
    pub fully_masked: FullyMasked,
    pub scene: Scene,
    /// The anchors of the scene's stores.
    pub sums: Vec<(NodeId, Sum)>,
    /// What it reads; the score is to be multiplied by [`Resolved::scale`].
    pub operands: Operands,
    pub scale: f64,
    /// Whether finite scores may be so large that their product with log2 e overflows.
    pub overflows: bool,
    pub data_mask: Option<DataMask>,
    /// The launch that finds the keys which the mask leaves.
    pub before: Emitted,
}

impl<'a> Resolved<'a> {
    /// The programs of an attention; an error where a block mask is asked for and does not fit.
    pub fn new(kernel: &'a Lowering<'a>, request: &Request<'a>) -> Result<Resolved<'a>, LowerError> {
        let Request { v, z, shape, rows, asked } = *request;
        let Op::Attention { fully_masked, .. } = *kernel.graph.op(v) else {
            return Err(kernel.unsupported("not attention"));
        };
        let at = indices(z, rows);
        let mut r = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body }.resolver();
        let stores = results(kernel, v, z, &at, shape.parts, &mut r)?;
        let scene = Scene { dag: r.dag.clone(), stores };
        let sums = sums(kernel, &scene, shape.parts)?;
        let operands = operands(&mut r, v, z, &at, Causal::Comparison)?;
        let (score, scale) = without_scale(&mut r.dag, operands.score, operands.raw);
        let mut resolved = Resolved {
            kernel,
            z,
            shape,
            rows,
            row_sizes: rows.sizes(z),
            dtype: matmul::operand_dtype(kernel, v),
            fully_masked,
            scene,
            sums,
            operands: Operands { score, ..operands },
            scale,
            overflows: overflows(&r.dag, score, Coords::of(z).t[0]),
            data_mask: None,
            before: Emitted::default(),
        };
        if asked.block_mask {
            resolved.find_keys(&mut r.dag, v)?;
        } else if rows == TileRows::OfGroup {
            resolved.operands.ends = group_row_ends(&mut r, v, z, resolved.operands.raw)?;
        }
        resolved.scene.dag = r.dag;
        Ok(resolved)
    }
    /// The launch ahead that finds the blocks of keys which the mask leaves, and the positions that it writes.
    fn find_keys(&mut self, dag: &mut Dag, v: ValueId) -> Result<(), LowerError> {
        let (kernel, dtype) = (self.kernel, mask_dtype(self.kernel.graph, v));
        let slot = Slot::Scratch(if self.shape.parts > 1 { SLICE_SUMS } else { 0 });
        let mask = Mask::of(dag, self.operands.score, dtype, &self.row_sizes, self.shape.rows(), slot);
        let Some(mask) = mask else {
            let step = Step::BlockMask;
            return Err(kernel.unsupported(format!(
                "`{step}` does not fit: no mask of the scores depends on data, or none that can be skipped"
            )));
        };
        let mut ends = self.operands.ends;
        if mask.attends {
            // Rows without a key between these are found.
            ends = masked_range(dag, self.operands.score, Coords::of(self.z).t[0], self.z.t, dtype.mask_limit());
        }
        let name = format!("{}_keys", kernel.name);
        self.before.steps.push(mask.program(&name, dag, &self.row_sizes, &self.tiles(), ends, kernel.machine)?);
        self.before.scratch.push(mask.scratch());
        self.operands.ends = [None; 2];
        let positions = mask.positions(dag);
        self.data_mask = Some(DataMask { mask, positions });
        Ok(())
    }
    /// Tiles and slices of the keys.
    pub fn tiles(&self) -> Tiles {
        let Warpgroups { keys, consumers, part, parts, .. } = self.shape;
        Tiles { queries: self.shape.rows(), keys, warps: 4 * consumers, part, parts }
    }
    /// Extents of batch, key head, and query head of its group.
    pub fn extents(&self) -> Vec<usize> {
        [&self.z.batch[..], &[self.z.heads, self.row_sizes.group]].concat()
    }
}

/// The mask of the scores, if it depends on data and a launch ahead may find the keys that it leaves.
pub fn data_mask(kernel: &Lowering, v: ValueId, z: &Sizes, rows: TileRows) -> Result<Option<Mask>, LowerError> {
    let mut r = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body }.resolver();
    let Operands { raw, score, .. } = operands(&mut r, v, z, &indices(z, rows), Causal::Comparison)?;
    let (score, _) = without_scale(&mut r.dag, score, raw);
    let (dtype, row_sizes) = (mask_dtype(kernel.graph, v), rows.sizes(z));
    Ok(Mask::of(&mut r.dag, score, dtype, &row_sizes, Warpgroups::ROWS, Slot::Scratch(0)))
}

/// Coordinates of a row of a group: its query, and its head within the group.
pub fn group_row_ids(z: &Sizes) -> [CoordId; 2] {
    [11, 12].map(|i| z.batch.len() as CoordId + i)
}

/// Between which keys the mask leaves any, by the query of a row of a group. A tile has the rows of all heads of a
/// group, and a producer does not look through them: bounds that differ by head, or do not rise or fall along the
/// queries, are not used.
fn group_row_ends(r: &mut Resolver, v: ValueId, z: &Sizes, raw: NodeId) -> Result<[Option<NodeId>; 2], LowerError> {
    let [query, head] = group_row_ids(z);
    let key = Coords::of(z).t[0];
    let (all, nb) = (indices(z, TileRows::OfHead), z.batch.len());
    let heads = all[nb].clone().scale(z.group as i64).plus(&Expr::coord(head, z.group));
    let at = [&all[..nb], &[heads, Expr::coord(query, z.s), Expr::coord(key, z.t)]].concat();
    let score = masked_score(r, raw, v, &at, Causal::Comparison)?;
    let ends = key_range(&mut r.dag, score, key, z.t);
    let depends = r.dag.depends(&[]);
    Ok(ends.map(|n| {
        let used = |n: &NodeId, id| depends[*n as usize].contains(&id);
        n.filter(|n| !used(n, head) && (!used(n, query) || trend(&r.dag, *n, query).is_some()))
    }))
}

/// Whether finite scores may be so large that their product with log2 e overflows: where a tensor over the keys takes
/// part, or a large number, as in masks of the least number of a type.
fn overflows(dag: &Dag, score: NodeId, key: CoordId) -> bool {
    const LARGE: f64 = 1e37;
    dag.reach_until(&[score], |_| false).into_iter().any(|n| match &dag.node(n).op {
        NodeOp::Load { at, .. } => dag.node(n).dtype.is_float() && at.uses(key),
        NodeOp::Const(Scalar::Float(x)) => x.is_finite() && x.abs() > LARGE,
        _ => false,
    })
}

/// The score and a positive number by which it is to be multiplied: a scale that is applied to all scores moves into
/// the exponent, past masks.
fn without_scale(dag: &mut Dag, score: NodeId, raw: NodeId) -> (NodeId, f64) {
    let number = |dag: &Dag, n: NodeId| match dag.node(n).op {
        NodeOp::Const(Scalar::Float(x)) => Some(x),
        _ => None,
    };
    match dag.node(score).op.clone() {
        NodeOp::Binary(BinaryOp::Mul, x, by) if x == raw => match number(dag, by).filter(|c| *c > 0.0 && c.is_finite())
        {
            Some(c) => (x, c),
            None => (score, 1.0),
        },
        NodeOp::Select(mask, x, other) if number(dag, other) == Some(f64::NEG_INFINITY) => {
            let (inner, scale) = without_scale(dag, x, raw);
            let dtype = dag.node(score).dtype;
            (dag.add(NodeOp::Select(mask, inner, other), dtype), scale)
        }
        _ => (score, 1.0),
    }
}
