//! The tiles of an attention by warpgroups: operands and results as strided arrays, which tensor maps describe.
use crate::attention::program::Coords;
use crate::attention::score_tiles;
use crate::attention::warpgroups::resolved::Resolved;
use crate::emit::frame::{Frame, Used, loads};
use crate::matmul::wgmma::strided::Strided;
use crate::scalar::dag::{NodeId, NodeOp};
use crate::scalar::expr::CoordId;
use crate::scalar::types;
use crate::schedule::tile::Cut;
use kiln_block::{Elem, Op as BlockOp, Type, Value};

/// Least bytes of a row of a tile.
const MIN_ROW: usize = 128;

/// An operand of the scores that comes as tiles: its node, and what it reads.
pub struct ScoreArray {
    pub node: NodeId,
    pub array: Strided,
}

/// What the program reads and stores as strided arrays.
pub struct Arrays {
    pub queries: Strided,
    pub keys: Strided,
    pub values: Strided,
    pub scores: Vec<ScoreArray>,
    /// One for each store, where a tensor map describes it.
    pub results: Vec<Option<Strided>>,
}

impl Arrays {
    /// `None` if queries, keys or values are computed, or lie so that no tensor map describes them. At most so many
    /// operands of the scores are among them.
    pub fn of(a: &Resolved, max_score_tiles: usize) -> Option<Arrays> {
        let Coords { s, e, t: [t1, t2], d: [d1, d2], .. } = Coords::of(a.z);
        let (extents, queries) = (a.extents(), a.row_sizes.s);
        let array = |node: NodeId, rows: (CoordId, usize), columns: (CoordId, usize)| match &a.scene.dag.node(node) {
            n if n.dtype != a.dtype => None,
            n => match &n.op {
                NodeOp::Load { slot, at, guards } if guards.is_empty() => {
                    Strided::array(*slot, at, &extents, [rows, columns], a.dtype.bytes())
                }
                _ => None,
            },
        };
        let mut scores = score_tiles::of(&a.scene.dag, a.operands.score, &extents, [(s, queries), (t1, a.z.t)]);
        scores.truncate(max_score_tiles);
        let stores = a.scene.stores.iter();
        Some(Arrays {
            queries: array(a.operands.q, (s, queries), (d1, a.z.d))?,
            keys: array(a.operands.k, (t1, a.z.t), (d2, a.z.d))?,
            values: array(a.operands.v, (t2, a.z.t), (e, a.z.e))?,
            scores: scores.into_iter().map(|(node, array)| ScoreArray { node, array }).collect(),
            results: stores.map(|st| Strided::store(st, &extents, (s, queries), (e, a.z.e))).collect(),
        })
    }
    /// Buffers that the program accesses by address.
    pub fn others(&self, a: &Resolved) -> Vec<Used> {
        let (scene, ends) = (&a.scene, a.operands.ends);
        let mut read = [scene.roots(), ends.into_iter().chain([a.operands.sink]).flatten().collect()].concat();
        read.extend(a.data_mask.iter().flat_map(|mask| mask.positions.concat()));
        let mut used = loads(&scene.dag, &read, |_| false);
        let tiles: Vec<NodeId> = self.scores.iter().map(|s| s.node).collect();
        used.extend(score_tiles::others(&scene.dag, a.operands.score, &tiles));
        let stores = scene.stores.iter().zip(&self.results).filter(|(_, array)| array.is_none());
        used.extend(stores.map(|(st, _)| (st.slot, st.dtype, false)));
        used
    }
}

/// Sizes of the tiles, powers of two.
#[derive(Clone, Copy)]
pub struct TileSizes {
    pub rows: usize,
    pub keys: usize,
    /// Columns of queries and keys, and of values.
    pub depth: usize,
    pub width: usize,
    /// The queries of the kernel and the columns of the values, cut into tiles.
    pub queries: Cut,
    pub columns: Cut,
}

impl TileSizes {
    pub fn of(a: &Resolved) -> TileSizes {
        let Coords { s, e, .. } = Coords::of(a.z);
        let [depth, width] = [a.z.d, a.z.e].map(|n| n.next_power_of_two().max(MIN_ROW / a.dtype.bytes()));
        let rows = a.shape.rows();
        TileSizes {
            rows,
            keys: a.shape.keys,
            depth,
            width,
            queries: Cut { id: s, extent: a.row_sizes.s, block: rows, axis: 0 },
            columns: Cut { id: e, extent: a.z.e, block: width, axis: 1 },
        }
    }
}

/// An array in memory with the tensor map of its tiles.
pub struct MappedArray {
    array: Strided,
    map: Value,
    elem: Elem,
    tile: [usize; 2],
}

impl MappedArray {
    fn read(f: &mut Frame, name: &str, array: Strided, elem: Elem, tile: [usize; 2]) -> MappedArray {
        let map = f.descriptor(name, array.slot, array.map(elem, tile), true);
        MappedArray { array, map, elem, tile }
    }
    /// The tile that starts at this row and column.
    pub fn load(&self, f: &mut Frame, batch: &[Value], row: Value, column: Value) -> Value {
        let args = [&[self.map], &self.array.starts(&mut f.b, batch, row, [column; 2])[..]].concat();
        f.b.inst(BlockOp::TileLoad, &args, &[Type::block(self.elem, self.tile)], vec![])[0]
    }
    /// The tile that starts at this row.
    pub fn load_row(&self, f: &mut Frame, batch: &[Value], row: Value) -> Value {
        let zero = f.b.i32(0);
        self.load(f, batch, row, zero)
    }
    /// Stores a tile that starts at this row and column.
    pub fn store(&self, f: &mut Frame, v: Value, batch: &[Value], row: Value, column: Value) {
        let v = f.b.cast(v, self.elem);
        let v = f.b.broadcast_to(v, &self.tile);
        let args = [&[self.map, v], &self.array.starts(&mut f.b, batch, row, [column; 2])[..]].concat();
        f.b.inst(BlockOp::TileStore, &args, &[], vec![]);
    }
}

/// An operand of the scores with its tensor map.
pub struct ScoreTile {
    pub node: NodeId,
    pub array: MappedArray,
}

/// All arrays with their tensor maps.
pub struct MappedArrays {
    pub queries: MappedArray,
    pub keys: MappedArray,
    pub values: MappedArray,
    pub scores: Vec<ScoreTile>,
    /// One for each store, where a tensor map describes it.
    pub results: Vec<Option<MappedArray>>,
}

impl MappedArrays {
    /// Describes the arrays to the program.
    pub fn new(f: &mut Frame, a: &Resolved, arrays: Arrays, sizes: &TileSizes) -> MappedArrays {
        let (elem, TileSizes { rows, keys, depth, width, .. }) = (types::stored(a.dtype), *sizes);
        let score = |f: &mut Frame, (i, s): (usize, ScoreArray)| {
            let elem = types::stored(a.scene.dag.node(s.node).dtype);
            ScoreTile { node: s.node, array: MappedArray::read(f, &format!("s{i}"), s.array, elem, [rows, keys]) }
        };
        let result = |f: &mut Frame, i: usize, array: Strided| {
            let elem = types::stored(a.scene.stores[i].dtype);
            let map = f.descriptor(&format!("o{i}"), array.slot, array.map(elem, [rows, width]), false);
            MappedArray { array, map, elem, tile: [rows, width] }
        };
        MappedArrays {
            queries: MappedArray::read(f, "q", arrays.queries, elem, [rows, depth]),
            keys: MappedArray::read(f, "k", arrays.keys, elem, [keys, depth]),
            values: MappedArray::read(f, "v", arrays.values, elem, [keys, width]),
            scores: arrays.scores.into_iter().enumerate().map(|s| score(f, s)).collect(),
            results: arrays.results.into_iter().enumerate().map(|(i, array)| Some(result(f, i, array?))).collect(),
        }
    }
}
