//! The program of a tile of queries: where it is, its loop over keys, and what it stores.
use crate::attention::program::{Coords, Sum, TileRows, bounds, log_sum_exp, of_block, part_id, slice, start};
use crate::attention::warpgroups::resolved::{Resolved, group_row_ids};
use crate::attention::warpgroups::tiles::{Arrays, MappedArrays, TileSizes};
use crate::emit::emitter::Lanes;
use crate::emit::frame::{Frame, looped, open_bare};
use crate::emit::math;
use crate::error::LowerError;
use crate::matmul::wgmma::lanes;
use crate::scalar::dag::NodeId;
use crate::scalar::expr::CoordId;
use crate::scalar::types;
use crate::schedule::tile::Cut;
use kiln_block::{BinaryOp as B, BlockProgram, Builder, CmpOp, DotPrecision, Elem, ReduceOp as R, UnaryOp as U, Value};
use kiln_graph::FullyMasked;
use kiln_plan::exec::Work;
use std::f64::consts::LOG2_E;

/// Columns into which weights are summed in the loop, and which are summed after it: those that the lanes of a warp
/// hold next to each other, so that no lane needs another's sum.
const PARTS: usize = 8;

/// The program of one tile per instance.
pub fn emit(a: &Resolved, arrays: Arrays) -> Result<Work<BlockProgram>, LowerError> {
    let sizes = TileSizes::of(a);
    let cuts = [sizes.queries, sizes.columns];
    let mut f = open_bare(a.kernel.name, &a.scene, &arrays.others(a), (&cuts, 0), a.kernel.machine);
    let arrays = MappedArrays::new(&mut f, a, arrays, &sizes);
    let place = Place::of(&mut f, a, &sizes);
    let program = Program { a, arrays, sizes, place };
    let query = program.arrays.queries.load_row(&mut f, &program.place.batch, program.place.row);
    let keys = KeyLoop::of(&mut f, &program);
    let sums = program.over_keys(&mut f, query, &keys);
    program.finish(&mut f, &sums, keys.zero);
    f.finish()
}

/// Where an instance's tile is.
struct Place {
    /// Positions along batch, key head, and query head of its group.
    batch: Vec<Value>,
    /// The number of the tile of queries.
    tile: Value,
    /// Its first row and column.
    row: Value,
    column: Value,
}

impl Place {
    /// Sets the grid, and the coordinates of the instance.
    fn of(f: &mut Frame, a: &Resolved, sizes: &TileSizes) -> Place {
        let (extents, parts) = (a.extents(), a.shape.parts);
        let heads: usize = extents.iter().product();
        let neighbours = heads_in_cache(a, heads);
        let tiles = sizes.queries.count();
        f.b.set_warps(4 * a.shape.consumers);
        let [mut within, tile, outer] = [0, 1, 2].map(|axis| f.b.program_id(axis));
        let (per, last) = (f.b.i32(neighbours as i64), f.b.i32(tiles as i64 - 1));
        f.b.set_grid([neighbours * parts, tiles, heads / neighbours]);
        if parts > 1 {
            // Slices of a head are neighbours.
            let slices = f.b.i32(parts as i64);
            let part = f.b.binary(B::Rem, within, slices);
            within = f.b.binary(B::Div, within, slices);
            let part = f.b.cast(part, f.em.index);
            f.part = Some(part);
            f.em.coords.insert(part_id(a.z), Lanes { base: f.part, ..Lanes::default() });
        }
        // Later queries attend to more keys where a mask is causal: those come first.
        let tile = f.b.binary(B::Sub, last, tile);
        let mut number = f.b.binary(B::Mul, outer, per);
        number = f.b.binary(B::Add, number, within);
        let mut batch = vec![];
        for &n in extents.iter().rev() {
            let n = f.b.i32(n as i64);
            batch.push(f.b.binary(B::Rem, number, n));
            number = f.b.binary(B::Div, number, n);
        }
        batch.reverse();
        let rows = f.b.i32(sizes.rows as i64);
        let row = f.b.binary(B::Mul, tile, rows);
        for (i, position) in batch.iter().enumerate() {
            let base = f.b.cast(*position, f.em.index);
            f.em.coords.insert(i as CoordId, Lanes::uniform(base));
        }
        let column = f.b.i32(0);
        for (cut, start) in [(sizes.queries, row), (sizes.columns, column)] {
            let lanes = lanes(f, cut, start);
            f.em.coords.insert(cut.id, lanes);
        }
        Place { batch, tile, row, column }
    }
}

/// Heads whose keys and values fit the L2 cache together, a divisor of all: query heads that share keys are neighbours.
fn heads_in_cache(a: &Resolved, heads: usize) -> usize {
    let bytes = a.z.t * (a.z.d + a.z.e) * a.dtype.bytes();
    let fit = (a.kernel.machine.units.l2 / 2 / bytes.max(1)).max(1) * a.row_sizes.group;
    (1..=heads.min(fit)).rev().find(|n| heads.is_multiple_of(*n)).unwrap_or(1)
}

/// The program under construction.
struct Program<'a> {
    a: &'a Resolved<'a>,
    arrays: MappedArrays,
    sizes: TileSizes,
    place: Place,
}

/// Blocks of keys between which no condition of a mask need be evaluated.
struct Unmasked<'a> {
    conditions: &'a [(NodeId, bool)],
    from: Value,
    to: Value,
}

/// The loop over blocks of keys.
struct KeyLoop<'a> {
    range: [Value; 3],
    /// What is carried before the first block.
    start: [Value; 3],
    /// The keys of a block.
    lane: Option<Value>,
    /// Blocks may reach beyond the last key.
    ragged: bool,
    unmasked: Option<Unmasked<'a>>,
    /// Scores of zero, and of masked keys.
    zero: Value,
    lowest: Value,
}

impl<'a> KeyLoop<'a> {
    fn of(f: &mut Frame, program: &Program<'a>) -> KeyLoop<'a> {
        let Program { a, sizes, .. } = program;
        let (z, ends) = (a.z, a.operands.ends);
        let lane = f.iota(Cut { id: Coords::of(z).t[0], extent: z.t, block: sizes.keys, axis: 1 });
        let bounded = ends.iter().any(Option::is_some);
        let whole = z.t.is_multiple_of(sizes.keys);
        let ragged = bounded || (a.data_mask.is_some() && a.shape.parts > 1) || !whole;
        let zero = math::float(&mut f.b, Elem::F32, 0.0);
        let lowest = math::float(&mut f.b, Elem::F32, f64::NEG_INFINITY);
        let mut queries = sizes.queries;
        if a.rows == TileRows::OfGroup {
            queries = Cut { id: group_row_ids(z)[0], extent: z.s, block: z.s, axis: 0 };
            f.em.coords.insert(queries.id, Lanes::default());
        }
        let ends = [(ends[0], R::Min), (ends[1], R::Max)].map(|(n, by)| Some(of_block(f, n?, by, &queries)));
        let [maximum, weights] = start(f, a.operands.sink, a.scale, [sizes.rows, PARTS]);
        let start = [maximum, weights, f.b.splat(zero, &[sizes.rows, sizes.width])];
        let [mut lo, mut hi, step] = bounds(f, z, &a.tiles(), ends, None);
        let mut unmasked = None;
        if let Some(data) = &a.data_mask {
            let [start, end, from, to] = data.mask.of_tile(f, program.place.tile, sizes.keys, &data.positions);
            [lo, hi] = slice(f, &a.tiles(), [start, end], [true; 2]);
            unmasked = Some(Unmasked { conditions: &data.mask.conditions, from, to });
        }
        // One iteration at least: where no query attends to a key, of zeros, or of keys that are masked.
        if bounded || a.data_mask.is_some() {
            // A tile without keys takes the block beyond the last one; where blocks are found, the last one, of which
            // no key is left.
            let takes_last = a.data_mask.is_some() && a.shape.parts == 1 && whole;
            let beyond = if takes_last { z.t - sizes.keys } else { z.t.next_multiple_of(sizes.keys) };
            lo = within(f, lo, hi, beyond);
        }
        let one = f.b.i32(1);
        let next = f.b.binary(B::Add, lo, one);
        hi = f.b.binary(B::Max, hi, next);
        KeyLoop { range: [lo, hi, step], start, lane, ragged, unmasked, zero, lowest }
    }
}

/// The start of the range `lo..hi`, or the block `beyond` all keys where it is empty.
fn within(f: &mut Frame, lo: Value, hi: Value, beyond: usize) -> Value {
    let beyond = f.b.i32(beyond as i64);
    let empty = f.b.cmp(CmpOp::Le, hi, lo);
    let lo = f.b.select(empty, beyond, lo);
    // It is between these anyway; index arithmetic in 32 bits relies on it.
    let zero = f.b.i32(0);
    let lo = f.b.binary(B::Min, lo, beyond);
    f.b.binary(B::Max, lo, zero)
}

/// What the loop over keys carries.
struct Sums {
    /// The greatest score of a row, not yet multiplied by the scale.
    maximum: Value,
    /// Sums of the weights, of every [`PARTS`]-th column.
    weights: Value,
    /// Sums of the weighted values.
    values: Value,
}

impl Program<'_> {
    /// The loop over blocks of keys.
    fn over_keys(&self, f: &mut Frame, query: Value, keys: &KeyLoop) -> Sums {
        let out = looped(f, keys.range, &keys.start, |f, index, now| {
            let scores = self.scores(f, query, keys, index);
            let carried = Sums { maximum: now[0], weights: now[1], values: now[2] };
            let Sums { maximum, weights, values } = self.add_block(f, keys, index, scores, &carried);
            vec![maximum, weights, values]
        });
        Sums { maximum: out[0], weights: out[1], values: out[2] }
    }
    /// Scores of the block of keys that starts at `index`, not multiplied by the scale.
    fn scores(&self, f: &mut Frame, query: Value, keys: &KeyLoop, index: Value) -> Value {
        let Program { a, arrays, sizes, place } = self;
        let base = f.b.cast(index, f.em.index);
        let mask = keys.lane.filter(|_| keys.ragged).map(|l| f.below(Some(base), l, a.z.t));
        let lanes = Lanes { base: Some(base), lane: keys.lane, mask, block: 0 };
        f.em.coords.insert(Coords::of(a.z).t[0], lanes);
        let tile = arrays.keys.load_row(f, &place.batch, index);
        let tile = f.b.permute(tile, &[1, 0]);
        let nothing = f.b.splat(keys.zero, &[sizes.rows, sizes.keys]);
        let raw = f.b.dot(query, tile, nothing, DotPrecision::Exact);
        f.em.set(a.operands.raw, raw);
        for score in &arrays.scores {
            let tile = score.array.load(f, &place.batch, place.row, index);
            let tile = f.b.cast(tile, types::held(a.scene.dag.node(score.node).dtype));
            f.em.set(score.node, tile);
        }
        if let Some(unmasked) = &keys.unmasked {
            unmasked.set_conditions(f, index);
        }
        let scores = f.em.value(&mut f.b, a.operands.score);
        mask.map_or(scores, |m| f.b.select(m, scores, keys.lowest))
    }
    /// The sums with a further block of keys.
    fn add_block(&self, f: &mut Frame, keys: &KeyLoop, index: Value, scores: Value, carried: &Sums) -> Sums {
        let (b, a) = (&mut f.b, self.a);
        let unit = math::float(b, Elem::F32, a.scale * LOG2_E);
        let maximum = b.reduce(R::Max, scores, 1);
        let maximum = b.expand_dims(maximum, 1);
        let maximum = b.binary(B::Max, carried.maximum, maximum);
        // Where all keys so far are masked, the maximum is minus infinity, which must not be subtracted from itself.
        let empty = b.cmp(CmpOp::Eq, maximum, keys.lowest);
        let subtracted = b.select(empty, keys.zero, maximum);
        let product = b.binary(B::Mul, subtracted, unit);
        let negated = b.unary(U::Neg, product);
        let power = Power { unit, subtracted, negated, overflows: a.overflows };
        let weights = power.of(b, scores);
        let keep = power.of(b, carried.maximum);
        let sum = parts_summed(b, weights);
        let kept = b.binary(B::Mul, carried.weights, keep);
        let sum = b.binary(B::Add, kept, sum);
        let weights = b.cast(weights, types::stored(a.dtype));
        let acc = b.binary(B::Mul, carried.values, keep);
        let tile = self.arrays.values.load_row(f, &self.place.batch, index);
        let acc = f.b.dot(weights, tile, acc, DotPrecision::Exact);
        Sums { maximum, weights: sum, values: acc }
    }
    /// The epilogue, and the stores of its results.
    fn finish(&self, f: &mut Frame, sums: &Sums, zero: Value) {
        let Program { a, arrays, sizes, place } = self;
        self.set_results(f, sums, zero);
        let cuts = [sizes.queries, sizes.columns];
        let single: Vec<CoordId> = cuts.iter().filter(|c| c.extent == 1).map(|c| c.id).collect();
        for (store, array) in a.scene.stores.iter().zip(&arrays.results) {
            match array {
                Some(array) => {
                    let v = f.em.value(&mut f.b, store.value);
                    array.store(f, v, &place.batch, place.row, place.column);
                }
                None => f.store_within(store, &single),
            }
        }
    }
    /// Sets the anchors that the stores read.
    fn set_results(&self, f: &mut Frame, sums: &Sums, zero: Value) {
        let (a, b) = (self.a, &mut f.b);
        let weights = b.reduce(R::Sum, sums.weights, 1);
        let weights = b.expand_dims(weights, 1);
        let unit = math::float(b, Elem::F32, a.scale);
        let maximum = if a.scale == 1.0 { sums.maximum } else { b.binary(B::Mul, sums.maximum, unit) };
        for (node, sum) in &a.sums {
            let value = match sum {
                Sum::Slice(i) => [sums.values, maximum, weights][*i],
                Sum::LogSumExp => log_sum_exp(&mut f.b, maximum, weights),
                Sum::Mean => mean(&mut f.b, sums.values, weights, zero, a.fully_masked),
            };
            f.em.set(*node, value);
        }
    }
}

impl Unmasked<'_> {
    /// Sets the conditions of the mask where it is known that they hold.
    fn set_conditions(&self, f: &mut Frame, index: Value) {
        let (begun, goes_on) = (f.b.cmp(CmpOp::Ge, index, self.from), f.b.cmp(CmpOp::Lt, index, self.to));
        let all = f.b.binary(B::And, begun, goes_on);
        let some = f.b.unary(U::Not, all);
        for &(condition, value) in self.conditions {
            let c = f.em.value(&mut f.b, condition);
            let (op, known) = if value { (B::Or, all) } else { (B::And, some) };
            let known = f.b.splat(known, &f.b.shape(c));
            let c = f.b.binary(op, known, c);
            f.em.set(condition, c);
        }
    }
}

/// Powers of two relative to a maximum: `2^((x - maximum) · unit)`.
struct Power {
    unit: Value,
    /// The maximum, and its product with `-unit`.
    subtracted: Value,
    negated: Value,
    /// Whether products with the unit may overflow.
    overflows: bool,
}

impl Power {
    /// The argument is computed by one FMA where no product overflows.
    fn of(&self, b: &mut Builder, x: Value) -> Value {
        if self.overflows {
            let x = b.binary(B::Sub, x, self.subtracted);
            let x = b.binary(B::Mul, x, self.unit);
            return b.unary(U::Exp2Approx, x);
        }
        let x = b.binary(B::Mul, x, self.unit);
        let x = b.binary(B::Add, x, self.negated);
        b.unary(U::Exp2Approx, x)
    }
}

/// Weighted sums divided by the sum of their weights; where that is zero, all keys are masked.
fn mean(b: &mut Builder, values: Value, weights: Value, zero: Value, fully_masked: FullyMasked) -> Value {
    let one = math::float(b, Elem::F32, 1.0);
    let mut weights = weights;
    if fully_masked != FullyMasked::Nan {
        let empty = b.cmp(CmpOp::Eq, weights, zero);
        weights = b.select(empty, one, weights);
    }
    let share = b.binary(B::Div, one, weights);
    b.binary(B::Mul, values, share)
}

/// The sums of every [`PARTS`]-th column.
fn parts_summed(b: &mut Builder, x: Value) -> Value {
    let columns = b.shape(x)[1];
    let sum = b.part(x, 1, 0, PARTS);
    (PARTS..columns).step_by(PARTS).fold(sum, |sum, at| {
        let part = b.part(x, 1, at, PARTS);
        b.binary(B::Add, sum, part)
    })
}
