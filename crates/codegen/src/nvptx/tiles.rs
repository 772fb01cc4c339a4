//! Shared tiles and barriers: their addresses, and stores and loads of blocks.
//!
//! A stage of a swizzled tile whose rows are longer than the swizzle's span is stored as panels of that width one after
//! the other; within a panel the 16-byte chunks of a row are permuted by the row's number, as tensor-map copies and
//! `wgmma` have it.
use super::emit::{Fail, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::{Index, Reg};
use inkwell::values::{IntValue, PointerValue};
use kiln_block::layout::fragment::warpgroup_accumulator;
use kiln_block::layout::{Flat, axis_bits};
use kiln_block::{BlockProgram, Elem, InstData, Op, Swizzle, Type, Value};
use std::collections::HashMap;

/// Where the tiles and barriers of a kernel lie, in bytes from the start of shared memory.
#[derive(Default)]
pub(super) struct Places {
    offsets: HashMap<Value, usize>,
    pub bytes: usize,
}
impl Places {
    /// From byte `first` on; each of `blocks` has its part of a tile.
    pub fn of(k: &BlockProgram, first: usize, blocks: usize) -> Places {
        let mut p = Places { bytes: first, ..Places::default() };
        for data in k.body.insts.iter().map(|i| k.inst(*i)) {
            let (align, bytes) = match (&data.op, data.results.first().map(|v| k.ty(*v))) {
                (Op::AllocShared, Some(Type::Shared { elem, shape, stages, swizzle })) => {
                    let align = if swizzle.span().is_some() { 1024 } else { 128 };
                    let (rows, columns) = shape.split_last().map_or((1, 1), |(n, rest)| (rest.iter().product(), *n));
                    let tile = Tile { elem: *elem, rows, columns, swizzle: *swizzle };
                    (align, tile.stage_bytes() * stages / blocks)
                }
                (Op::AllocBarriers, Some(Type::Barrier { count, .. })) => (8, count * 8),
                _ => continue,
            };
            let at = p.bytes.next_multiple_of(align);
            p.offsets.insert(data.results[0], at);
            p.bytes = at + bytes;
        }
        p
    }
    pub fn at(&self, v: Value) -> Res<usize> {
        self.offsets.get(&v).copied().ok_or_else(|| Fail::Unsupported(format!("{v} in shared memory here")))
    }
}

/// A shared tile's type in parts.
pub(super) struct Tile {
    pub elem: Elem,
    pub rows: usize,
    pub columns: usize,
    pub swizzle: Swizzle,
}
impl Tile {
    pub fn of(k: &BlockProgram, v: Value) -> Res<Tile> {
        match k.ty(v) {
            Type::Shared { elem, shape, swizzle, .. } if shape.len() == 2 => {
                Ok(Tile { elem: *elem, rows: shape[0], columns: shape[1], swizzle: *swizzle })
            }
            other => Err(Fail::Unsupported(format!("a tile of type {other}"))),
        }
    }
    /// Neighbours of a row that a thread has in registers next to each other, as many as one access takes.
    fn run(&self, flat: &Flat) -> usize {
        let together = flat.registers.iter().enumerate().take_while(|(i, b)| **b as usize == *i).count();
        (1usize << together).min(16 / self.elem.bytes()).min(self.columns)
    }
    pub fn stage_bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }
    /// Bytes of a row of one panel.
    pub fn row_bytes(&self) -> usize {
        self.swizzle.span().unwrap_or(self.columns * self.elem.bytes())
    }
    /// The last panel may be wider than what is left of a row.
    pub fn panels(&self) -> usize {
        (self.columns * self.elem.bytes()).div_ceil(self.row_bytes())
    }
    pub fn panel_bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }
}

/// Hardware arrivals per arrival of the program, by barrier: warps arrive one by one.
pub(super) fn arrivals(k: &BlockProgram) -> Res<HashMap<Value, usize>> {
    let mut all: HashMap<Value, usize> = HashMap::new();
    let mut uneven = false;
    let mut arrive = |barrier: Value, n: usize| uneven |= all.insert(barrier, n).is_some_and(|before| before != n);
    for data in k.body.insts.iter().map(|i| k.inst(*i)) {
        let Op::Roles(roles) = &data.op else { continue };
        for (role, r) in roles.iter().zip(&data.regions) {
            let warps = if super::roles::is_single(k, r) { 1 } else { role.warps };
            k.walk_region(r, &mut |_, d| match &d.op {
                Op::BarrierExpect { .. } => arrive(d.args[0], 1),
                Op::BarrierArrive { .. } => arrive(d.args[0], warps),
                _ => {}
            });
        }
    }
    if uneven {
        return Err(Fail::Unsupported("a barrier where groups of different size arrive".into()));
    }
    Ok(all)
}

impl<'c> Gen<'c, '_> {
    /// Address of a byte of shared memory: a constant plus a number.
    pub fn tile_byte(&self, constant: usize, more: Option<IntValue<'c>>) -> Res<PointerValue<'c>> {
        let base = self.e.gep(self.e.i8().into(), self.shared, self.e.int(constant as i64))?;
        more.map_or(Ok(base), |m| self.e.gep(self.e.i8().into(), base, m))
    }
    /// A stage's number times `bytes`.
    pub fn staged(&mut self, stage: Value, bytes: usize) -> Res<IntValue<'c>> {
        let n = int(self.plain(stage)?.first().copied().ok_or_else(|| mistyped("a stage"))?)?;
        self.e.mul(n, self.e.int(bytes as i64))
    }
    /// Writes a block into a stage of a tile.
    pub fn tile_store(&mut self, data: &InstData) -> Res<()> {
        let [tile, stage, value] = data.args[..] else { return Err(mistyped("a store to shared memory")) };
        let t = Tile::of(self.k, tile)?;
        let at = self.staged(stage, t.stage_bytes())?;
        let base = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let (flat, values) = (self.flat(value)?, self.plain(value)?);
        if self.in_matrices(&t, &flat) {
            return self.store_matrices(&t, base, &values);
        }
        self.store_runs(&t, base, &flat, &values)
    }
    /// Whether `stmatrix` and `ldmatrix` move a block in this layout: 16-bit elements in an accumulator's layout, rows
    /// in swizzled panels.
    pub fn in_matrices(&self, t: &Tile, flat: &Flat) -> bool {
        let matrix = t.elem.bytes() == 2 && t.swizzle.span().is_some() && t.rows.is_multiple_of(64);
        matrix && t.columns.is_multiple_of(16) && *flat == warpgroup_accumulator(t.rows, t.columns, 2)
    }
    /// Addresses of the thread's row of each four 8x8 matrices: 16 rows of a warp by 16 columns, in the order of an
    /// accumulator's registers.
    fn matrices(&mut self, t: &Tile, base: PointerValue<'c>) -> Res<Vec<PointerValue<'c>>> {
        let thread = self.threads.sum(&self.e, &[1, 2, 4, 8, 16, 32, 64])?.value(&self.e, &mut self.memo)?;
        let e = &self.e;
        let lane = e.and(thread, e.int(31))?;
        let row = e.add(e.mul(e.lshr(thread, e.int(5))?, e.int(16))?, e.and(lane, e.int(15))?)?;
        let row = e.mul(row, e.int(t.row_bytes() as i64))?;
        // Chunks of a row of a panel, and which of them a row has first.
        let chunks = t.row_bytes() / 16;
        let (high, turn) = (e.lshr(lane, e.int(4))?, e.lshr(lane, e.int((8 / chunks).ilog2().into()))?);
        let turn = e.and(turn, e.int(chunks as i64 - 1))?;
        let places = (0..t.rows / 64).flat_map(|block| (0..t.columns).step_by(16).map(move |column| (block, column)));
        let address = |(block, column): (usize, usize)| {
            let chunk = e.xor(e.or(high, e.int((column / 8 % chunks) as i64))?, turn)?;
            let at = e.add(row, e.mul(chunk, e.int(16))?)?;
            let fixed = column / 8 / chunks * t.panel_bytes() + block * 64 * t.row_bytes();
            e.gep(e.i8().into(), base, e.add(at, e.int(fixed as i64))?)
        };
        places.map(address).collect()
    }
    /// Stores an accumulator's layout by `stmatrix`.
    fn store_matrices(&mut self, t: &Tile, base: PointerValue<'c>, values: &[Val<'c>]) -> Res<()> {
        let places = self.matrices(t, base)?;
        let e = &self.e;
        for (at, quad) in places.into_iter().zip(values.chunks(8)) {
            let mut args: Vec<Val<'c>> = vec![at.into()];
            for pair in quad.chunks(2) {
                args.push(e.bitcast(e.vector(pair)?, e.i32())?);
            }
            e.invoke("llvm.nvvm.stmatrix.sync.aligned.m8n8.x4.b16", &[e.ptr(super::emit::SHARED).into()], &args)?;
        }
        Ok(())
    }
    /// Loads an accumulator's layout by `ldmatrix`.
    fn load_matrices(&mut self, t: &Tile, base: PointerValue<'c>) -> Res<Vec<Val<'c>>> {
        let mut out = vec![];
        for at in self.matrices(t, base)? {
            let over = [self.e.ptr(super::emit::SHARED).into()];
            let quad = self.e.call("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16", &over, &[at.into()])?;
            out.extend(self.unpack(&self.e.fields(quad, 4)?, t.elem)?);
        }
        Ok(out)
    }
    /// Stores any layout, neighbouring registers of a row together. 32-bit sums of FMAs go one by one, those of even
    /// registers first: pairs would tie each sum to the register bank of its operands.
    fn store_runs(&mut self, t: &Tile, base: PointerValue<'c>, flat: &Flat, values: &[Val<'c>]) -> Res<()> {
        let shape = [t.rows, t.columns];
        let bytes = t.elem.bytes();
        let by_tensor_cores = *flat == warpgroup_accumulator(t.rows, t.columns, 2);
        let n = if bytes < 4 || by_tensor_cores { t.run(flat) } else { 1 };
        let (rows, columns) = (self.coordinates(flat, &shape, 0)?, self.coordinates(flat, &shape, 1)?);
        let first = self.first_copy(flat)?;
        let order: Vec<usize> = match n {
            1 => (0..values.len()).step_by(2).chain((1..values.len()).step_by(2)).collect(),
            _ => (0..values.len()).step_by(n).collect(),
        };
        for r in order {
            let at = self.tile_element(t, base, [rows[r], columns[r]])?;
            let v = self.in_memory(&values[r..r + n], t.elem)?;
            self.when(first, |g| g.e.store(v, at, bytes * n))?;
        }
        Ok(())
    }
    /// Address of an element of a stage.
    fn tile_element(
        &mut self,
        t: &Tile,
        base: PointerValue<'c>,
        [row, column]: [Index<'c>; 2],
    ) -> Res<PointerValue<'c>> {
        let (row, column) = (row.value(&self.e, &mut self.memo)?, column.value(&self.e, &mut self.memo)?);
        let (e, per_row) = (&self.e, (t.row_bytes() / 16) as i64);
        let byte = e.mul(column, e.int(t.elem.bytes() as i64))?;
        let (panel, within) =
            (e.lshr(byte, e.int(t.row_bytes().ilog2().into()))?, e.and(byte, e.int(t.row_bytes() as i64 - 1))?);
        let mut chunk = e.lshr(within, e.int(4))?;
        if t.swizzle.span().is_some() {
            // The pattern repeats after 128 bytes times eight: shorter rows share a line.
            let turn = e.lshr(row, e.int((8 / per_row).ilog2().into()))?;
            chunk = e.xor(chunk, e.and(turn, e.int(per_row - 1))?)?;
        }
        let at = e.add(e.mul(row, e.int(t.row_bytes() as i64))?, e.mul(panel, e.int(t.panel_bytes() as i64))?)?;
        let at = e.add(at, e.add(e.mul(chunk, e.int(16))?, e.and(within, e.int(15))?)?)?;
        e.gep(e.i8().into(), base, at)
    }
    /// Reads a block from a stage of a tile: neighbours of a row that lie in one chunk together, or matrices.
    pub fn tile_load(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let ([tile, stage], [result]) = (&data.args[..], &data.results[..]) else {
            return Err(mistyped("a load from shared memory"));
        };
        let t = Tile::of(self.k, *tile)?;
        let at = self.staged(*stage, t.stage_bytes())?;
        let base = self.tile_byte(self.places.at(*tile)?, Some(at))?;
        let (flat, shape) = (self.flat(*result)?, [t.rows, t.columns]);
        if self.in_matrices(&t, &flat) {
            let values = self.load_matrices(&t, base)?;
            return Ok(values.into_iter().map(|v| Reg::of(v, t.elem)).collect());
        }
        if self.is_left_wide(&t, &flat) {
            return self.load_left_wide(&t, base);
        }
        let (rows, columns) = (self.coordinates(&flat, &shape, 0)?, self.coordinates(&flat, &shape, 1)?);
        let n = t.run(&flat);
        let mut out = vec![];
        for r in (0..rows.len()).step_by(n) {
            let at = self.tile_element(&t, base, [rows[r], columns[r]])?;
            out.extend(self.shared_load(at, n, t.elem)?.into_iter().map(|v| Reg::of(v, t.elem)));
        }
        Ok(out)
    }
    /// Registers as memory holds them.
    fn in_memory(&self, values: &[Val<'c>], elem: Elem) -> Res<Val<'c>> {
        if elem != Elem::Bool {
            return self.e.vector(values);
        }
        let wide = values.iter().map(|v| Ok(self.e.zext(int(*v)?, self.e.i8())?.into())).collect::<Res<Vec<_>>>()?;
        self.e.vector(&wide)
    }
}

/// Element number in the operand, for an element of a slice of it along `axis`.
pub(super) fn whole_of(element: usize, from: &[usize], to: &[usize], axis: usize, at: usize) -> usize {
    let mut whole = 0;
    for a in 0..to.len() {
        let (bits, wide) = (axis_bits(to, a), axis_bits(from, a));
        let x = (element >> bits.start) & ((1 << bits.len()) - 1);
        whole += (x + if a == axis { at } else { 0 }) << wide.start;
    }
    whole
}
