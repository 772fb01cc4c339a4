//! What consumers do with the sums of a tile: compute what is stored, some columns at a time, each slice being stored
//! while the next one is computed. Stores by tensor map, and those of whole rows, go through shared memory.
use super::super::{
    Refusal,
    copy::Copier,
    slice::{self, Part, Slicer},
};
use super::prefetched::{Fetch, Prefetched};
use super::tile::{Outputs, Tile, alloc};
use crate::analysis::{self, APART, Analysis};
use crate::{BinaryOp as B, BlockProgram, Builder, Elem, Inst, Op, Swizzle, Type, Value};
use std::collections::HashMap;

/// Output buffers per consumer.
pub const BUFFERS: usize = 2;

pub struct Epilogue<'k> {
    k: &'k BlockProgram,
    pub part: Part,
    consumers: usize,
    /// Columns of a tile that are used.
    used: usize,
    /// Stores of the tile, in order.
    effects: Vec<Effect>,
    /// Element types whose results have so many rows interleaved in memory, element by element.
    interleaved: HashMap<Elem, usize>,
    /// The tile that it reads through the buffers of its results.
    pub prefetched: Option<Prefetched>,
}

/// A store or a check.
#[derive(Clone, Copy)]
struct Effect {
    inst: Inst,
    /// The element type of what goes through shared memory.
    through: Option<Elem>,
    /// The transpose of the tile is stored.
    transposed: bool,
}
impl Effect {
    /// Size of a slice of it.
    fn slice(&self, part: Part) -> [usize; 2] {
        let Part { rows, columns, .. } = part;
        if self.transposed { [columns, rows] } else { [rows, columns] }
    }
}

/// When an output buffer is free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At once: threads have synchronised since the store before the last, which used the buffer.
    Free,
    /// Once threads have synchronised.
    Met,
    /// Once at most that many stores by tensor map are in flight, and threads have synchronised.
    Sent(usize),
}

impl<'k> Epilogue<'k> {
    /// `rows`: of a tile, that one consumer has. `used`: columns that are used, at most.
    pub fn new(
        k: &'k BlockProgram,
        tile: &Tile,
        rows: usize,
        consumers: usize,
        used: Option<usize>,
    ) -> Result<Epilogue<'k>, Refusal> {
        let facts = analysis::analyse(k);
        let through = |i: Inst| goes_through(k, &facts, tile.size, i).then(|| k.ty(k.inst(i).args[1]).elem()).flatten();
        let effects: Vec<Effect> = (effects(k, tile)?.into_iter())
            .map(|(inst, transposed)| Effect { inst, through: through(inst), transposed })
            .collect();
        let n = tile.size[1];
        let used = used.map_or(n, |used| used.min(n));
        let part = Part { engine: tile.engine, tile: tile.size, rows, columns: n };
        let interleaved = interleaved(k, &facts, &effects);
        let mut epilogue = Epilogue { k, part, consumers, used, effects, interleaved, prefetched: None };
        let bytes: Vec<usize> = epilogue.types().iter().map(|t| t.0.bytes()).collect();
        epilogue.part.columns = slice::columns(tile.engine, &bytes, n);
        Ok(epilogue)
    }
    /// The same, where a tile that it reads by a descriptor comes through so many buffers of its results.
    pub fn prefetching(mut self, tile: &Tile, buffers: Option<usize>) -> Result<Epilogue<'k>, Refusal> {
        let slices = self.used.div_ceil(self.part.columns);
        self.prefetched = Prefetched::of(self.k, tile, self.part, slices, buffers)?;
        let through: Vec<&Effect> = self.effects.iter().filter(|e| e.through.is_some()).collect();
        let alike = |p: &Prefetched| match through[..] {
            [e] => e.through == Some(p.elem) && !e.transposed && self.k.inst(e.inst).op == Op::TileStore,
            _ => false,
        };
        if self.prefetched.as_ref().is_some_and(|p| !alike(p)) {
            let why = "a tile comes through the buffers of one result of its type, stored by a descriptor";
            return Err(Refusal(why.into()));
        }
        Ok(self)
    }
    /// Output buffers of a consumer.
    fn buffers_each(&self) -> usize {
        self.prefetched.as_ref().map_or(BUFFERS, |p| p.buffers)
    }
    /// Element types of what goes through shared memory, and whether it is transposed.
    fn types(&self) -> Vec<(Elem, bool)> {
        let mut all: Vec<(Elem, bool)> = self.effects.iter().filter_map(|e| Some((e.through?, e.transposed))).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    /// Bytes of the output buffers.
    pub fn bytes(&self) -> usize {
        let line: usize = self.types().iter().map(|t| t.0.bytes()).sum();
        self.buffers_each() * self.consumers * self.part.rows * self.part.columns * line
    }
    /// Descriptors that results are stored by, and that a tile is read by, with the size of a slice.
    pub fn descriptors(&self) -> Vec<(Value, [usize; 2], Swizzle)> {
        let stores = self.effects.iter().filter(|e| self.k.inst(e.inst).op == Op::TileStore);
        let slice = stores.filter_map(|e| {
            let (d, slice) = (self.k.inst(e.inst), e.slice(self.part));
            let Type::Block { elem, .. } = self.k.ty(d.args[1]) else { return None };
            Some((d.args[0], slice, Swizzle::widest(*elem, slice[1])))
        });
        slice.chain(self.prefetched.as_ref().map(|p| p.descriptor(self.k))).collect()
    }
    /// Allocates the output buffers.
    pub fn buffers(&self, b: &mut Builder) -> Outputs {
        let mut outputs: Outputs = vec![];
        for (elem, slice) in self.effects.iter().filter_map(|e| Some((e.through?, e.slice(self.part)))) {
            if outputs.iter().all(|o| (o.0, o.1) != (elem, slice)) {
                // Panels of which rows that are read together fill a line of all banks.
                let swizzle = Swizzle::widest(elem, slice[1] / self.interleaved.get(&elem).unwrap_or(&1));
                let stages = self.consumers * self.buffers_each();
                outputs.push((elem, slice, alloc(b, elem, slice, stages, swizzle)));
            }
        }
        outputs
    }
    /// Computes and stores some columns at a time.
    /// `sums`: by the results of the loops. `copy`: the number of the consumer; `first_row`: where its rows of the tile
    /// start, if it does not have all of them. `fetch`: the prefetched tile.
    pub fn finish(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Outputs,
        [copy, first_row]: [Option<Value>; 2],
        sums: HashMap<Value, Value>,
        fetch: Option<&Fetch>,
    ) -> Option<Refusal> {
        let prefetched = self.prefetched.as_ref().zip(fetch);
        let columns = self.part.columns;
        let parts = self.used.div_ceil(columns);
        let way = self.way_out(parts);
        let mut slicer = Slicer::new(c, self.part, sums, first_row);
        let mut turn = 0;
        for part in 0..parts {
            slicer.columns_from(part * columns);
            if let Some([v, block]) = prefetched.and_then(|(p, f)| p.read(b, self.k, s, f, part)) {
                slicer.know_slice(v, block);
            }
            for effect in &self.effects {
                let data = self.k.inst(effect.inst);
                if matches!(data.op, Op::Store(_)) && part > 0 && is_by_row(self.k.ty(data.args[0]).shape()) {
                    // One value per row: stored with the first slice only.
                    continue;
                }
                if matches!(data.op, Op::Check { .. }) {
                    if part > 0 && is_by_row(self.k.ty(data.args[2]).shape()) {
                        continue;
                    }
                    let to = slicer.scalar(b, data.args[0]);
                    let blocks = data.args[1..].iter().map(|v| slicer.block(b, *v));
                    let args: Vec<Value> = std::iter::once(to).chain(blocks).collect();
                    b.inst(data.op.clone(), &args, &[], vec![]);
                    continue;
                }
                if matches!(data.op, Op::Store(_)) {
                    let mut args: Vec<Value> = data.args.iter().map(|v| slicer.block(b, *v)).collect();
                    if effect.through.is_some() {
                        args[1] = self.in_rows(b, s, args[1], copy, (turn % BUFFERS, way));
                        turn += 1;
                    }
                    b.inst(data.op.clone(), &args, &[], vec![]);
                    continue;
                }
                let value = match effect.transposed {
                    true => slicer.transposed(b, data.args[1]),
                    false => slicer.block(b, data.args[1]),
                };
                let mut starts: Vec<Value> = data.args[2..].iter().map(|v| slicer.scalar(b, *v)).collect();
                let inner = starts.len() - 1;
                let [row, column] = if effect.transposed { [inner, inner - 1] } else { [inner - 1, inner] };
                if let Some(first) = first_row {
                    starts[row] = b.binary(B::Add, starts[row], first);
                }
                let first = b.i32((part * columns) as i64);
                starts[column] = b.binary(B::Add, starts[column], first);
                if let (Some(desc), Some((p, f))) = (slicer.param(data.args[0]), prefetched) {
                    p.send(b, s, f, part, [desc, value], &starts);
                } else if let Some(desc) = slicer.param(data.args[0]) {
                    self.send(b, s, [desc, value], copy, (turn % BUFFERS, way), &starts);
                }
                turn += 1;
            }
            if slicer.failed.is_some() {
                break;
            }
        }
        slicer.failed
    }
    /// What stores wait for before they reuse a buffer.
    fn way_out(&self, parts: usize) -> Way {
        let through = self.effects.iter().filter(|e| e.through.is_some());
        let through: Vec<&Op> = through.map(|e| &self.k.inst(e.inst).op).collect();
        let by_map = through.iter().filter(|op| ***op == Op::TileStore).count();
        // With an odd number of stores, the next tile's first store would reuse the buffer of this tile's last one.
        let even = (parts * through.len()).is_multiple_of(BUFFERS);
        match (by_map, even) {
            (0, true) => Way::Free,
            (0, false) => Way::Met,
            (n, true) if n == through.len() => Way::Sent(BUFFERS - 1),
            _ => Way::Sent(0),
        }
    }
    /// The shared tile that results of a value's type go through, and the number of the consumer's buffer in it.
    fn buffer(&self, b: &mut Builder, s: &Outputs, value: Value, copy: Option<Value>, n: usize) -> Option<[Value; 2]> {
        let tile = s.iter().find(|o| Some(o.0) == b.elem(value) && o.1 == *b.shape(value))?.2;
        let mut at = b.i32(n as i64);
        if let Some(copy) = copy {
            let n = b.i32(BUFFERS as i64);
            let mine = b.binary(B::Mul, copy, n);
            at = b.binary(B::Add, mine, at);
        }
        Some([tile, at])
    }
    /// Waits until a buffer is free.
    fn wait_for_buffer(&self, b: &mut Builder, way: Way) {
        if let Way::Sent(pending) = way {
            b.inst(Op::TmaStoreWait { pending: pending as u8 }, &[], &[], vec![]);
        }
        if way != Way::Free {
            b.inst(Op::Sync, &[], &[], vec![]);
        }
    }
    /// Stores by tensor map through a buffer in shared memory, once the store before the last has read that buffer.
    fn send(
        &self,
        b: &mut Builder,
        s: &Outputs,
        [desc, value]: [Value; 2],
        copy: Option<Value>,
        (buffer, way): (usize, Way),
        starts: &[Value],
    ) {
        let Some([tile, at]) = self.buffer(b, s, value, copy, buffer) else { return };
        self.wait_for_buffer(b, way);
        b.inst(Op::SharedStore, &[tile, at, value], &[], vec![]);
        b.inst(Op::FenceAsync, &[], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::TmaStore, &[&[desc, tile, at], starts].concat(), &[], vec![]);
    }
    /// The value, read back row by row from a buffer.
    fn in_rows(
        &self,
        b: &mut Builder,
        s: &Outputs,
        value: Value,
        copy: Option<Value>,
        (buffer, way): (usize, Way),
    ) -> Value {
        let Some([tile, at]) = self.buffer(b, s, value, copy, buffer) else { return value };
        let ty = b.ty(value).clone();
        self.wait_for_buffer(b, way);
        b.inst(Op::SharedStore, &[tile, at, value], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::SharedLoad, &[tile, at], &[ty], vec![])[0]
    }
}

/// The stores and checks of a tile, after its loops, and whether they store its transpose; any other effect is refused.
fn effects(k: &BlockProgram, tile: &Tile) -> Result<Vec<(Inst, bool)>, Refusal> {
    let ([first, last], [m, n]) = (tile.loops, tile.size);
    let looped = |at: usize, i: Inst| (first..=last).contains(&at) && k.inst(i).op == Op::For;
    let rest = tile.body.insts.iter().enumerate().filter(|(at, i)| !looped(*at, **i));
    let outside = k.body.insts.iter().filter(|i| tile.tiles.is_some_and(|t| t != **i));
    let fits = |shape: &[usize]| match shape {
        [a] => *a == m,
        [a, b] => (*a == 1 || *a == m) && (*b == 1 || *b == n),
        _ => false,
    };
    let mut all = vec![];
    for (at, i) in rest.map(|(at, i)| (Some(at), *i)).chain(outside.map(|i| (None, *i))) {
        let data = k.inst(i);
        let after = at > Some(last);
        match &data.op {
            // A single row is stored again by every consumer, with the same values.
            Op::Store(_) if after && fits(k.ty(data.args[0]).shape()) => all.push((i, false)),
            Op::Check { .. } if after && fits(k.ty(data.args[2]).shape()) => all.push((i, false)),
            Op::TileStore if after && *k.ty(data.args[1]).shape() == [n, m] && is_transpose(k, data.args[1]) => {
                all.push((i, true));
            }
            Op::TileStore if after && *k.ty(data.args[1]).shape() == [m, n] => all.push((i, false)),
            // The draw of the next tile is the producer's.
            Op::Load(..) | Op::Yield | Op::TileLoad | Op::AtomicInc => {}
            op if op.is_pure() => {}
            _ => {
                let name = crate::text::print_inst(k, i);
                return Err(Refusal(format!("`{name}` cannot be computed slice by slice on sums of {m}x{n}")));
            }
        }
    }
    if all.is_empty() {
        return Err(Refusal("nothing of the tile is stored".into()));
    }
    Ok(all)
}

/// Whether a block has one value for each row of the tile.
fn is_by_row(shape: &[usize]) -> bool {
    shape.get(1).is_none_or(|columns| *columns == 1)
}

/// Whether a value is the transpose of another.
fn is_transpose(k: &BlockProgram, v: Value) -> bool {
    k.insts.iter().any(|d| d.results[..] == [v] && matches!(&d.op, Op::Permute(perm) if perm[..] == [1, 0]))
}

/// Largest distance of neighbours in a row, in elements, for which the same holds: interleaved rows of a transposed
/// convolution.
pub const MAX_ROW_STEP: i64 = 4;

/// Whether a store goes through shared memory: one by tensor map, or one of rows that no tensor map describes. In the
/// accumulators' layout a thread has a few columns of many rows; from shared memory threads read whole rows.
fn goes_through(k: &BlockProgram, facts: &Analysis, size: [usize; 2], i: Inst) -> bool {
    let data = k.inst(i);
    let floats = |v| matches!(k.ty(v).elem(), Some(Elem::F32 | Elem::F16 | Elem::Bf16));
    // In shorter runs a store through shared memory does not beat one from the accumulators' layout.
    let near = |p| facts.step(k, p, 1, APART).is_some_and(|step| (1..=MAX_ROW_STEP).contains(&step));
    let rows = || *k.ty(data.args[0]).shape() == size && near(data.args[0]);
    data.op == Op::TileStore || floats(data.args[1]) && rows()
}

/// Element types of which all stores take single elements of so many interleaved rows.
fn interleaved(k: &BlockProgram, facts: &Analysis, effects: &[Effect]) -> HashMap<Elem, usize> {
    let mut all: HashMap<Elem, usize> = HashMap::new();
    for (i, elem) in effects.iter().filter_map(|e| Some((e.inst, e.through?))) {
        let ptr = k.inst(i).args[0];
        let found = facts.interleaved(k, ptr).filter(|r| r.along == 1 && r.align <= elem.bytes());
        let count = found.filter(|_| matches!(k.inst(i).op, Op::Store(_))).map_or(1, |r| r.count);
        all.entry(elem).and_modify(|n| *n = (*n).min(count)).or_insert(count);
    }
    all
}
