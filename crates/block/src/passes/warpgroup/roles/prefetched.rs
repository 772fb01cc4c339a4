//! The tile that an epilogue reads, such as a residual: each consumer copies its slices into the output buffers while
//! the matmuls of the tile run, and each result takes the place of what it was computed from.
//!
//! A consumer fetches its first slices at the start of a tile; where there are fewer buffers than slices, the others
//! follow as buffers become free. The consumers' own threads issue the copies: they know when a buffer is free, and the
//! producer would wait for buffers with the operands of the next tile behind it.
use super::super::Refusal;
use super::super::copy::Copier;
use super::super::slice::{Part, Slicer};
use super::tile::{Outputs, Tile};
use crate::{BinaryOp as B, BlockProgram, Builder, Elem, Inst, Op, Swizzle, Type, Value};
use std::collections::HashMap;

pub struct Prefetched {
    load: Inst,
    pub elem: Elem,
    part: Part,
    /// Slices of the tile that are used.
    slices: usize,
    /// Buffers of a consumer.
    pub buffers: usize,
}

/// The barriers of the buffers, and where a tile's copies come from.
pub struct Fetch {
    full: Value,
    desc: Value,
    starts: Vec<Value>,
    consumer: Option<Value>,
    /// Parity of the first copies of this tile.
    parity: Value,
}

impl Prefetched {
    /// The tile that the epilogue reads by a descriptor, if it does. `buffers`: of each consumer; by default one for
    /// each slice.
    pub fn of(
        k: &BlockProgram,
        tile: &Tile,
        part: Part,
        slices: usize,
        buffers: Option<usize>,
    ) -> Result<Option<Prefetched>, Refusal> {
        let read = |i: &&Inst| k.inst(**i).op == Op::TileLoad;
        let all: Vec<Inst> = tile.body.insts.iter().filter(read).copied().collect();
        let load = match all[..] {
            [] => return Ok(None),
            [load] => load,
            _ => {
                return Err(Refusal(
                    "the epilogue reads several tiles by descriptors; read the others by address".into(),
                ));
            }
        };
        let ty = k.ty(k.inst(load).results[0]);
        let elem = match ty {
            Type::Block { elem, shape } if *shape == tile.size => *elem,
            _ => return Err(Refusal(format!("the epilogue reads a tile of {ty} beside sums of {:?}", tile.size))),
        };
        let buffers = buffers.unwrap_or(slices);
        // Every buffer has as many slices of a tile as the others, so that one parity serves all.
        if buffers != slices && (buffers < 2 || !slices.is_multiple_of(buffers)) {
            return Err(Refusal(format!(
                "{buffers} buffers for {slices} slices; two or more that divide them are needed"
            )));
        }
        Ok(Some(Prefetched { load, elem, part, slices, buffers }))
    }
    /// The descriptor, with the size of a slice.
    pub fn descriptor(&self, k: &BlockProgram) -> (Value, [usize; 2], Swizzle) {
        let Part { rows, columns, .. } = self.part;
        (k.inst(self.load).args[0], [rows, columns], Swizzle::widest(self.elem, columns))
    }
    /// Allocates the barriers of all consumers.
    pub fn barriers(&self, b: &mut Builder, consumers: usize) -> Value {
        let ty = Type::Barrier { count: consumers * self.buffers, arrivals: 1 };
        b.inst(Op::AllocBarriers, &[], &[ty], vec![])[0]
    }
    /// The parity of the next tile's first copies: each copy of a tile into a buffer flips it.
    pub fn next(&self, b: &mut Builder, parity: Value) -> Value {
        let turns = b.i32((self.slices / self.buffers % 2) as i64);
        b.binary(B::Xor, parity, turns)
    }
    /// Where the tile of a consumer is. `first_row`: where its rows start, if it does not have all of them.
    pub fn fetch(
        &self,
        b: &mut Builder,
        c: &mut Copier,
        full: Value,
        [consumer, first_row]: [Option<Value>; 2],
        parity: Value,
    ) -> Result<Fetch, Refusal> {
        let data = c.k.inst(self.load);
        let mut slicer = Slicer::new(c, self.part, HashMap::new(), first_row);
        let mut starts: Vec<Value> = data.args[1..].iter().map(|v| slicer.scalar(b, *v)).collect();
        let desc = slicer.param(data.args[0]);
        let row = starts.len() - 2;
        if let Some(first) = first_row {
            starts[row] = b.binary(B::Add, starts[row], first);
        }
        match (slicer.failed, desc) {
            (None, Some(desc)) => Ok(Fetch { full, desc, starts, consumer, parity }),
            (failed, _) => Err(failed.unwrap_or_else(|| Refusal("a tile of a descriptor that is no parameter".into()))),
        }
    }
    /// Fetches the first slices, once the results of the tile before have left their buffers.
    pub fn start(&self, b: &mut Builder, s: &Outputs, f: &Fetch) {
        b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
        (0..self.buffers).for_each(|slice| self.copy(b, s, f, slice));
    }
    fn buffer(&self, b: &mut Builder, f: &Fetch, slice: usize) -> Value {
        let at = b.i32((slice % self.buffers) as i64);
        let Some(consumer) = f.consumer else { return at };
        let n = b.i32(self.buffers as i64);
        let mine = b.binary(B::Mul, consumer, n);
        b.binary(B::Add, mine, at)
    }
    /// The shared tile of the buffers.
    fn tile(&self, s: &Outputs) -> Option<Value> {
        s.iter().find(|o| o.0 == self.elem).map(|o| o.2)
    }
    fn copy(&self, b: &mut Builder, s: &Outputs, f: &Fetch, slice: usize) {
        let Some(tile) = self.tile(s) else { return };
        let at = self.buffer(b, f, slice);
        let Part { rows, columns, .. } = self.part;
        let bytes = (rows * Swizzle::widest(self.elem, columns).row_bytes(self.elem, columns)) as u32;
        b.inst(Op::BarrierExpect { bytes }, &[f.full, at], &[], vec![]);
        let mut starts = f.starts.clone();
        if let (Some(column), true) = (starts.last_mut(), slice > 0) {
            let first = b.i32((slice * columns) as i64);
            *column = b.binary(B::Add, *column, first);
        }
        b.inst(Op::TmaLoad { multicast: false }, &[&[tile, at, f.desc, f.full, at], &starts[..]].concat(), &[], vec![]);
    }
    /// Waits for a slice: the value that it stands for, and its elements.
    pub fn read(&self, b: &mut Builder, k: &BlockProgram, s: &Outputs, f: &Fetch, slice: usize) -> Option<[Value; 2]> {
        let (tile, at) = (self.tile(s)?, self.buffer(b, f, slice));
        let turn = b.i32((slice / self.buffers % 2) as i64);
        let parity = b.binary(B::Xor, f.parity, turn);
        b.inst(Op::BarrierWait, &[f.full, at, parity], &[], vec![]);
        let ty = Type::block(self.elem, [self.part.rows, self.part.columns]);
        let block = b.inst(Op::SharedLoad, &[tile, at], &[ty], vec![])[0];
        Some([k.inst(self.load).results[0], block])
    }
    /// Stores a slice's result from the buffer of what it was computed from, and fetches the slice that the buffer
    /// before has room for now.
    pub fn send(
        &self,
        b: &mut Builder,
        s: &Outputs,
        f: &Fetch,
        slice: usize,
        [desc, value]: [Value; 2],
        starts: &[Value],
    ) {
        let Some(tile) = self.tile(s) else { return };
        let at = self.buffer(b, f, slice);
        // Threads write where others have read.
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::SharedStore, &[tile, at, value], &[], vec![]);
        b.inst(Op::FenceAsync, &[], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::TmaStore, &[&[desc, tile, at], starts].concat(), &[], vec![]);
        let next = slice + self.buffers - 1;
        if slice > 0 && next < self.slices {
            b.inst(Op::TmaStoreWait { pending: 1 }, &[], &[], vec![]);
            self.copy(b, s, f, next);
        }
    }
}
