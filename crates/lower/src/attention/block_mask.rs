//! Which blocks of keys a mask leaves, where that depends on data: documents in one sequence, padding, masks in memory.
//!
//! A kernel before the attention evaluates the mask once for all heads that share it, and writes for every tile of
//! queries four positions: from where to where keys have to be read, and from where to where no score is masked. The
//! loop over keys runs between the first two. Between the others it needs no mask: [`kiln_block::passes::split`] gives
//! these iterations a loop of their own. All four are multiples of the block of keys.
//!
//! A mask in memory may be a float that is added: a key is masked where it is minus infinity or the least number of its
//! type ([`mask_value`]). With such numbers a query that sees no key attends to all of them alike: its tile reads all
//! keys.
//!
//! Masks that are comparisons of positions need no such kernel: [`crate::scalar::key_range`] finds their ends.
use crate::attention::program::{Coords, bounds, of_block, reduced};
use crate::emit::emitter::Lanes;
use crate::emit::frame::{Frame, loads, looped, open_with};
use crate::error::LowerError;
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene, Store, is_number};
use crate::scalar::expr::{CoordId, Expr, linear};
use crate::scalar::mask_value;
use crate::scalar::scores::Sizes;
use crate::schedule::tile::{Cut, Shape};
use kiln_block::{BinaryOp as B, BlockProgram, Builder, CmpOp, ReduceOp as R, Value};
use kiln_graph::{BinaryOp, CompareOp, DType, Type as Array, UnaryOp};
use kiln_machine::Machine;
use kiln_plan::attention::{self, Tiles};
use kiln_plan::exec::{Slot, Work};

/// Queries of a block, which looks for the keys of a part of a tile, and its warps.
const ROWS: usize = attention::MASK_ROWS;
const WARPS: usize = 8;

/// A mask that depends on data along queries or keys.
pub struct Mask {
    /// Where the positions are.
    slot: Slot,
    /// Where one of these does not have this value, a score is masked. They are those that the score itself reads.
    pub conditions: Vec<(NodeId, bool)>,
    /// Whether a row without a key attends to all of them, as it does where the mask is a number.
    pub attends: bool,
    /// Whether all of them have.
    all: NodeId,
    /// The coordinates of batch and head that it depends on, with their extents.
    outer: Vec<(CoordId, usize)>,
    /// The coordinate of a tile of queries, and how many there are.
    tile: (CoordId, usize),
    /// The coordinate of a part of its rows, and how many there are.
    part: (CoordId, usize),
}

/// The conditions of a mask.
struct Conditions<'a> {
    dag: &'a mut Dag,
    dtype: DType,
    /// Coordinates of the heads.
    heads: [CoordId; 2],
    /// Conditions with the values that they have wherever a score is not masked (or was NaN or infinite before a mask
    /// was added).
    found: Vec<(NodeId, bool)>,
    /// Whether a mask may be another number than minus infinity.
    finite: bool,
}

impl Conditions<'_> {
    fn of(&mut self, score: NodeId) {
        let dag = &*self.dag;
        let low = |n: NodeId| mask_value::masks(dag, n, self.dtype);
        match dag.node(score).op {
            NodeOp::Select(c, a, b) if low(a) != low(b) => {
                let (other, lowest, value) = if low(a) { (b, a, false) } else { (a, b, true) };
                self.finite |= !is_number(dag, lowest, f64::NEG_INFINITY);
                self.found.push((c, value));
                self.of(other);
            }
            NodeOp::Binary(BinaryOp::Add, a, b) => {
                self.of(a);
                self.of(b);
            }
            NodeOp::Cast(a) if dag.node(a).dtype.is_float() => self.of(a),
            _ if self.may_mask(score) => {
                let dag = &mut *self.dag;
                let limit = dag.number(self.dtype, self.dtype.mask_limit());
                let masked = dag.add(NodeOp::Compare(CompareOp::Lt, score, limit), DType::Bool);
                self.found.push((masked, false));
                self.finite = true;
            }
            _ => {}
        }
    }
    /// Is this a float from memory that heads share, and which may therefore be a mask? One of each head is a bias.
    fn may_mask(&self, n: NodeId) -> bool {
        let mut any = false;
        let shared = |n: &NodeId| {
            let node = self.dag.node(*n);
            let mut of_head = false;
            node.exprs(&mut |e| of_head |= self.heads.iter().any(|id| e.uses(*id)));
            any |= match node.op {
                NodeOp::Load { .. } => node.dtype.is_float(),
                NodeOp::Const(_) => mask_value::masks(self.dag, *n, self.dtype),
                _ => false,
            };
            !of_head && !matches!(node.op, NodeOp::Anchor { .. } | NodeOp::Check { .. })
        };
        self.dag.node(n).dtype.is_float() && self.dag.reach(&[n]).iter().all(shared) && any
    }
}

impl Mask {
    /// The mask of a score, for tiles of so many rows; `slot`: where the positions are.
    pub fn of(dag: &mut Dag, score: NodeId, dtype: DType, z: &Sizes, rows: usize, slot: Slot) -> Option<Mask> {
        let Coords { s, t: [t, _], head, group, .. } = Coords::of(z);
        let mut all = Conditions { dag, dtype, heads: [head, group], found: vec![], finite: false };
        all.of(score);
        let Conditions { found, finite, .. } = all;
        let holds: Vec<NodeId> =
            found.iter().map(|(c, yes)| if *yes { *c } else { dag.unary(UnaryOp::Not, *c) }).collect();
        let all = holds.into_iter().reduce(|a, b| dag.binary(BinaryOp::And, a, b))?;
        let nodes = dag.reach(&[all]);
        let by_data = |n: &NodeId| matches!(&dag.node(*n).op, NodeOp::Load { at, .. } if at.uses(s) || at.uses(t));
        // An index that is out of range is reported by the attention, at the place of its score.
        let checked = nodes.iter().any(|n| matches!(dag.node(*n).op, NodeOp::Check { .. } | NodeOp::Anchor { .. }));
        if checked || !nodes.iter().any(by_data) {
            return None;
        }
        let used = &dag.depends(&[])[all as usize];
        let extents = [&z.batch[..], &[z.heads, z.group]].concat();
        let outer = extents.into_iter().enumerate().map(|(i, n)| (i as CoordId, n));
        let outer: Vec<_> = outer.filter(|(id, n)| *n > 1 && used.contains(id)).collect();
        let [tile, part] = [9, 10].map(|i| z.batch.len() as CoordId + i);
        let (tile, part) = ((tile, z.s.div_ceil(rows)), (part, rows / ROWS));
        let nodes = dag.reach(&[score]);
        let conditions = found.into_iter().filter(|(c, _)| nodes.binary_search(c).is_ok()).collect();
        Some(Mask { conditions, attends: finite, all, outer, tile, part, slot })
    }
    /// How many heads have masks of their own.
    pub fn heads(&self) -> usize {
        self.outer.iter().map(|(_, n)| n).product()
    }
    /// What the kernel before the attention writes.
    pub fn scratch(&self) -> Array {
        Array::new(DType::I32, [self.heads() * self.tile.1 * self.part.1 * 4])
    }
    /// The place of the first position.
    fn at(&self, part: Expr) -> Expr {
        let mut at: Vec<Expr> = self.outer.iter().chain([&self.tile]).map(|(id, n)| Expr::coord(*id, *n)).collect();
        let mut shape: Vec<usize> = self.outer.iter().chain([&self.tile, &self.part]).map(|(_, n)| *n).collect();
        at.extend([part, Expr::default()]);
        shape.push(4);
        linear(&at, &shape)
    }
    /// The positions of all parts, as the attention reads them.
    pub fn positions(&self, dag: &mut Dag) -> Vec<[NodeId; 4]> {
        let parts = (0..self.part.1).map(|part| self.at(Expr::constant(part as i64)));
        let load = |at: Expr, i: i64| NodeOp::Load { slot: self.slot, at: at.shift(i), guards: vec![] };
        parts.map(|at| [0, 1, 2, 3].map(|i| dag.add(load(at.clone(), i), DType::I32))).collect()
    }
    /// The positions of a tile of queries.
    pub fn of_tile(&self, f: &mut Frame, tile: Value, keys: usize, positions: &[[NodeId; 4]]) -> [Value; 4] {
        let base = f.b.cast(tile, f.em.index);
        f.em.coords.insert(self.tile.0, Lanes::uniform(base));
        let by = [B::Min, B::Max, B::Max, B::Min];
        let [start, end, from, to] = [0, 1, 2, 3].map(|i| {
            let mut all = positions.iter().map(|part| part[i]);
            let position = all.next().map(|n| f.em.value(&mut f.b, n));
            let position = position.unwrap_or_else(|| f.b.broken("no part of a tile"));
            all.fold(position, |v, n| {
                let next = f.em.value(&mut f.b, n);
                f.b.binary(by[i], v, next)
            })
        });
        // Where no row needs a key: the first block, of which the mask leaves nothing.
        let [zero, step] = [0, keys].map(|n| f.b.i32(n as i64));
        let empty = f.b.cmp(CmpOp::Eq, end, zero);
        let (start, end) = (f.b.select(empty, zero, start), f.b.select(empty, step, end));
        [start, end, f.b.binary(B::Min, from, end), f.b.binary(B::Min, to, end)]
    }
    /// The kernel that writes the positions. `ends`: between which keys comparisons of positions leave any.
    pub fn program(
        &self,
        name: &str,
        dag: &Dag,
        z: &Sizes,
        tiles: &Tiles,
        ends: [Option<NodeId>; 2],
        machine: &Machine,
    ) -> Result<Work<BlockProgram>, LowerError> {
        let scene = self.scene(dag);
        let roots: Vec<NodeId> = ends.into_iter().flatten().chain([self.all]).collect();
        let mut used = loads(&scene.dag, &roots, |_| false);
        used.push((self.slot, DType::I32, false));
        let cuts = self.outer.iter().chain([&self.tile, &self.part]).map(|(id, n)| Cut::uniform(*id, *n)).collect();
        let shape = Shape { cuts, rank: 2, parts: 1, warps: WARPS, blocks: 1, reversed: false };
        let mut f = open_with(name, &scene, &shape, &used, machine);

        let rows = self.rows(&mut f, z);
        let of_part = |(n, by): (Option<NodeId>, R)| Some(of_block(&mut f, n?, by, &rows));
        let ends = [(ends[0], R::Min), (ends[1], R::Max)].map(of_part);
        let range = bounds(&mut f, z, tiles, ends, None);
        let search = self.search(&mut f, z, tiles.keys, &rows);
        let found = search.over_keys(&mut f, range, self.all);
        let [start, end, count] = found[..] else {
            return Err(LowerError::Invariant {
                kernel: name.into(),
                what: "a loop does not give what it carries".into(),
            });
        };
        let found = search.positions(&mut f.b, Found { start, end, count }, range[2]);
        for (store, value) in scene.stores.iter().zip(found) {
            f.em.set(store.value, value);
            f.store(store);
        }
        f.finish()
    }
    /// The stores of the positions of a part of a tile, which the program sets.
    fn scene(&self, dag: &Dag) -> Scene {
        let mut scene = Scene { dag: dag.clone(), stores: vec![] };
        let part = Expr::coord(self.part.0, self.part.1);
        for i in 0..4 {
            let value = scene.dag.add(NodeOp::Anchor { at: vec![Expr::constant(i)] }, DType::I32);
            scene.stores.push(Store::new(self.slot, DType::I32, self.at(part.clone()).shift(i), value));
        }
        scene
    }
    /// Sets the coordinate of the rows of a part of a tile; the cut of these.
    fn rows(&self, f: &mut Frame, z: &Sizes) -> Cut {
        let rows = Cut { id: Coords::of(z).s, extent: z.s, block: ROWS, axis: 0 };
        let part = Expr::coord(self.part.0, self.part.1);
        let place = Expr::coord(self.tile.0, self.tile.1).scale(self.part.1 as i64).plus(&part);
        let place = f.em.expr(&mut f.b, &place);
        let lanes = f.lanes(rows, Some(place));
        f.em.coords.insert(rows.id, lanes);
        rows
    }
    fn search(&self, f: &mut Frame, z: &Sizes, keys: usize, rows: &Cut) -> Search {
        let cut = Cut { id: Coords::of(z).t[0], extent: z.t, block: keys, axis: 1 };
        let lane = f.iota(cut);
        let [zero, one, beyond] = [0, 1, z.t.next_multiple_of(keys)].map(|n| f.b.i32(n as i64));
        let [zeros, ones, beyonds] = [zero, one, beyond].map(|v| f.b.splat(v, &[ROWS, keys]));
        let rows_mask = f.em.coords.get(&rows.id).and_then(|lanes| lanes.mask);
        Search { attends: self.attends, keys: cut, lane, rows_mask, zero, zeros, ones, beyonds }
    }
}

/// The search for blocks of keys, by the rows and columns of a block.
struct Search {
    /// Whether a row without a key attends to all of them.
    attends: bool,
    keys: Cut,
    lane: Option<Value>,
    /// The rows that exist.
    rows_mask: Option<Value>,
    zero: Value,
    /// Zeros, ones, and the block beyond all keys, for each row and column.
    zeros: Value,
    ones: Value,
    beyonds: Value,
}

/// Of a row and a column of the blocks: the first block with a key that counts, the end of the last one, and how many
/// there are.
struct Found {
    start: Value,
    end: Value,
    count: Value,
}

impl Search {
    fn shape(&self) -> [usize; 2] {
        [ROWS, self.keys.block]
    }
    /// The loop over blocks of keys: what is in [`Found`]. `counts`: whether a score is not masked.
    fn over_keys(&self, f: &mut Frame, range: [Value; 3], counts: NodeId) -> Vec<Value> {
        looped(f, range, &[self.beyonds, self.zeros, self.zeros], |f, block, now| {
            let counts = self.counts(f, block, counts);
            let b = &mut f.b;
            let next = b.binary(B::Add, block, range[2]);
            let [block, next] = [block, next].map(|v| b.splat(v, &self.shape()));
            let start = b.select(counts, block, self.beyonds);
            let start = b.binary(B::Min, now[0], start);
            let end = b.select(counts, next, now[1]);
            let one = b.select(counts, self.ones, self.zeros);
            vec![start, end, b.binary(B::Add, now[2], one)]
        })
    }
    /// Which scores of the block of keys that starts at `block` are not masked.
    fn counts(&self, f: &mut Frame, block: Value, counts: NodeId) -> Value {
        let Cut { id, extent, block: keys, .. } = self.keys;
        let base = f.b.cast(block, f.em.index);
        let ragged = !extent.is_multiple_of(keys);
        let there = self.lane.filter(|_| ragged).map(|l| f.below(Some(base), l, extent));
        f.em.coords.insert(id, Lanes { base: Some(base), lane: self.lane, mask: there, block: 0 });
        let counts = f.em.value(&mut f.b, counts);
        let mut counts = f.b.broadcast_to(counts, &self.shape());
        for inside in [self.rows_mask, there].into_iter().flatten() {
            let inside = f.b.broadcast_to(inside, &self.shape());
            counts = f.b.binary(B::And, counts, inside);
        }
        counts
    }
    /// The four positions of a part: from where to where keys have to be read, and from where to where no score is
    /// masked.
    fn positions(&self, b: &mut Builder, found: Found, step: Value) -> [Value; 4] {
        let Search { zeros, beyonds, .. } = *self;
        let Found { mut start, mut end, count } = found;
        // Blocks without a gap are counted in full by a row and a column; all of these are in the range that needs no
        // mask.
        let step = b.splat(step, &self.shape());
        let counted = b.binary(B::Mul, count, step);
        let length = b.binary(B::Sub, end, start);
        let whole = b.cmp(CmpOp::Eq, counted, length);
        let (mut from, mut to) = (start, b.select(whole, end, zeros));
        if self.attends {
            let none = self.rows_without_keys(b, end);
            (start, end) = (b.select(none, zeros, start), b.select(none, beyonds, end));
        }
        if let Some(inside) = self.rows_mask {
            let inside = b.broadcast_to(inside, &self.shape());
            (from, to) = (b.select(inside, from, zeros), b.select(inside, to, beyonds));
        }
        [(start, R::Min), (end, R::Max), (from, R::Max), (to, R::Min)].map(|(v, by)| reduced(b, v, by))
    }
    fn rows_without_keys(&self, b: &mut Builder, end: Value) -> Value {
        let end = b.reduce(R::Max, end, 1);
        let end = b.expand_dims(end, 1);
        let nowhere = b.splat(self.zero, &[ROWS, 1]);
        let mut none = b.cmp(CmpOp::Eq, end, nowhere);
        if let Some(inside) = self.rows_mask {
            none = b.binary(B::And, none, inside);
        }
        b.broadcast_to(none, &self.shape())
    }
}
