//! The consumer role: matmuls over the ring, then the epilogue on slices of the tile, each being stored while the next
//! is computed.
use super::super::{
    Refusal,
    copy::Copier,
    form::{self, Engine},
    ring::Ring,
    slice::{Part, Slicer},
};
use super::{BUFFERS, Shared, Writer};
use crate::{BinaryOp as B, Builder, CmpOp, Const, Elem, Op, Type, Value};

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

impl<'k> Writer<'k> {
    pub fn consume(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared, copy: Option<Value>) -> Option<Refusal> {
        let mut failed = None;
        let mut tile = |b: &mut Builder, c: &mut Copier<'k>, ring| {
            let (sums, ring) = match self.form.engine {
                Engine::TensorCores if self.form.sums[0].apart => self.multiply_apart(b, s, copy, ring),
                Engine::TensorCores => self.multiply(b, s, copy, ring),
                Engine::Simt => self.multiply_add(b, s, copy, ring),
            };
            failed = self.finish(b, c, s, copy, &sums);
            ring
        };
        match (&s.ping_pong, copy) {
            (Some(ping_pong), Some(consumer)) => self.ping_pong_tiles(b, c, (s, ping_pong, consumer), &mut tile),
            _ => self.over_tiles(b, c, &mut tile),
        }
        if !s.outputs.is_empty() {
            b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
        }
        failed
    }
    /// Operands of a matmul from a stage.
    fn operands(
        &self,
        b: &mut Builder,
        s: &Shared,
        [left, right]: [usize; 2],
        ring: Ring,
        copy: Option<Value>,
    ) -> [Value; 4] {
        let stage = self.left_stage(b, ring, self.share(copy));
        [s.tiles[left], stage, s.tiles[right], ring.stage]
    }
    fn transposed(&self, matmul: [usize; 2]) -> [bool; 2] {
        matmul.map(|n| self.form.loads[n].swapped)
    }
    /// Starts the matmuls of a stage for every sum, accumulating on `from`.
    fn start(&self, b: &mut Builder, s: &Shared, (copy, ring): (Option<Value>, Ring), from: &[Value]) -> Vec<Value> {
        let token = self.token();
        s.rings.wait(b, ring);
        let mut made = vec![];
        for (sum, from) in self.form.sums.iter().zip(from) {
            made.push(sum.matmuls.iter().fold(*from, |from, &matmul| {
                let [transpose_a, transpose_b] = self.transposed(matmul);
                let args = [&self.operands(b, s, matmul, ring, copy)[..], &[from]].concat();
                b.inst(Op::Wgmma { transpose_a, transpose_b }, &args, std::slice::from_ref(&token), vec![])[0]
            }));
        }
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        made
    }
    /// The sums of a token, once all matmuls in flight are done.
    fn done(&self, b: &mut Builder, token: Value) -> Value {
        b.inst(Op::WgmmaWait { pending: 0 }, &[token], &[self.block()], vec![])[0]
    }
    fn block(&self) -> Type {
        Type::block(Elem::F32, [self.part.rows, self.form.n])
    }
    fn token(&self) -> Type {
        Type::Token { elem: Elem::F32, shape: vec![self.part.rows, self.form.n] }
    }
    /// Which part of a tile's rows the consumer has; `None`: all.
    fn share(&self, copy: Option<Value>) -> Option<Value> {
        copy.filter(|_| !self.crew.ping_pong)
    }
    /// All matmuls of a tile are started, so the next consumer may start its own.
    fn pass(&self, b: &mut Builder, s: &Shared, copy: Option<Value>) {
        if let (Some(ping_pong), Some(consumer)) = (&s.ping_pong, copy) {
            ping_pong.pass(b, consumer);
        }
    }
    /// Initial values of the sums, on the consumer's rows.
    fn starts(&self, b: &mut Builder) -> Vec<Value> {
        let args = &self.k.inst(self.form.depth).args;
        let constants = self.form.sums.iter().filter_map(|s| form::constant(self.k, args[3 + s.carried]));
        constants.map(|c| b.constant(self.block(), c)).collect()
    }
    /// The sums over all of K. The first stage is peeled off the loop; one group of matmuls stays in flight across
    /// stages.
    fn multiply(&self, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Vec<Value>, Ring) {
        let none = self.starts(b);
        let started = self.start(b, s, (copy, ring), &none);
        let next = s.rings.next(b, ring);
        let (one, last) = (b.i32(1), b.i32(self.form.trips as i64));
        let carried = [&next.values()[..], &[ring.stage], &started].concat();
        let out = b.for_loop([one, last, one], &carried, |b, _, now| {
            let ring = Ring::of(now);
            let tokens = self.start(b, s, (copy, ring), &now[3..]);
            b.inst(Op::WgmmaWait { pending: 1 }, &[], &[], vec![]);
            s.rings.release(b, now[2]);
            [&s.rings.next(b, ring).values()[..], &[ring.stage], &tokens].concat()
        });
        self.pass(b, s, copy);
        let sums = out[3..].iter().map(|t| self.done(b, *t)).collect();
        s.rings.release(b, out[2]);
        (sums, Ring::of(&out))
    }
    /// The sums over all of K; each stage's sum starts from zero and is added to the others in f32.
    fn multiply_apart(&self, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Vec<Value>, Ring) {
        let none = self.starts(b);
        let zeros = vec![b.constant(self.block(), Const::Float(0.0)); none.len()];
        let (zero, one, last) = (b.i32(0), b.i32(1), b.i32(self.form.trips as i64));
        let out = b.for_loop([zero, last, one], &[&ring.values()[..], &none].concat(), |b, _, now| {
            let ring = Ring::of(now);
            let tokens = self.start(b, s, (copy, ring), &zeros);
            let parts: Vec<Value> = tokens.into_iter().map(|t| self.done(b, t)).collect();
            s.rings.release(b, ring.stage);
            let sums: Vec<Value> = now[2..].iter().zip(parts).map(|(now, part)| b.binary(B::Add, *now, part)).collect();
            [&s.rings.next(b, ring).values()[..], &sums].concat()
        });
        self.pass(b, s, copy);
        (out[2..].to_vec(), Ring::of(&out))
    }
    /// The sums over all of K on the FMA engine, stage by stage.
    fn multiply_add(&self, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Vec<Value>, Ring) {
        let block = self.block();
        let none = self.starts(b);
        let (zero, one, last) = (b.i32(0), b.i32(1), b.i32(self.form.trips as i64));
        let out = b.for_loop([zero, last, one], &[&ring.values()[..], &none].concat(), |b, trip, now| {
            let ring = Ring::of(now);
            s.rings.wait(b, ring);
            let there = self.there(b, trip);
            let mut sums = vec![];
            for (sum, from) in self.form.sums.iter().zip(&now[2..]) {
                sums.push(sum.matmuls.iter().fold(*from, |from, &matmul| {
                    let [transpose_a, transpose_b] = self.transposed(matmul);
                    let args = [&self.operands(b, s, matmul, ring, copy)[..], &[from], there.as_slice()].concat();
                    let op = Op::SharedDot { terms: sum.terms, transpose_a, transpose_b };
                    b.inst(op, &args, std::slice::from_ref(&block), vec![])[0]
                }));
            }
            s.rings.release(b, ring.stage);
            [&s.rings.next(b, ring).values()[..], &sums].concat()
        });
        self.pass(b, s, copy);
        (out[2..].to_vec(), Ring::of(&out))
    }

    /// Valid elements of K in an iteration, where the last one has fewer.
    fn there(&self, b: &mut Builder, trip: Value) -> Option<Value> {
        let last = b.i32(self.crew.last? as i64);
        let load = self.form.loads.first()?;
        let whole = load.shape[usize::from(!load.swapped)];
        let (whole, end) = (b.i32(whole as i64), b.i32(self.form.trips as i64 - 1));
        let ends = b.cmp(CmpOp::Eq, trip, end);
        Some(b.select(ends, last, whole))
    }

    // ---- The epilogue ----
    /// Computes and stores some columns at a time.
    fn finish(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Shared,
        copy: Option<Value>,
        sums: &[Value],
    ) -> Option<Refusal> {
        let loop_results = &self.k.inst(self.form.depth).results;
        let sums = self.form.sums.iter().zip(sums).map(|(d, v)| (loop_results[d.carried], *v)).collect();
        let first_row = self.share(copy).map(|copy| {
            let n = b.i32(self.part.rows as i64);
            b.binary(B::Mul, copy, n)
        });
        let Part { rows: _, columns, .. } = self.part;
        let parts = self.crew.columns.map_or(self.form.n, |n| n.min(self.form.n)).div_ceil(columns);
        let way = self.way_out(parts);
        let mut slicer = Slicer::new(c, self.part, sums, first_row);
        let mut turn = 0;
        for part in 0..parts {
            slicer.columns_from(part * columns);
            for (data, through) in self.effects.iter().map(|e| (self.k.inst(e.0), e.1)) {
                if data.op == Op::Store && part > 0 && self.k.ty(data.args[0]).shape()[1] == 1 {
                    // One value per row: stored with the first slice only.
                    continue;
                }
                if matches!(data.op, Op::Check { .. }) {
                    if part > 0 && self.k.ty(data.args[2]).shape()[1] == 1 {
                        continue;
                    }
                    let to = slicer.scalar(b, data.args[0]);
                    let blocks = data.args[1..].iter().map(|v| slicer.block(b, *v));
                    let args: Vec<Value> = std::iter::once(to).chain(blocks).collect();
                    b.inst(data.op.clone(), &args, &[], vec![]);
                    continue;
                }
                if data.op == Op::Store {
                    let mut args: Vec<Value> = data.args.iter().map(|v| slicer.block(b, *v)).collect();
                    if through.is_some() {
                        args[1] = self.in_rows(b, s, args[1], copy, (turn % BUFFERS, way));
                        turn += 1;
                    }
                    b.inst(Op::Store, &args, &[], vec![]);
                    continue;
                }
                let value = slicer.block(b, data.args[1]);
                let mut starts: Vec<Value> = data.args[2..].iter().map(|v| slicer.scalar(b, *v)).collect();
                let axis = starts.len() - 2;
                if let Some(first) = first_row {
                    starts[axis] = b.binary(B::Add, starts[axis], first);
                }
                let first = b.i32((part * columns) as i64);
                starts[axis + 1] = b.binary(B::Add, starts[axis + 1], first);
                if let Some(desc) = slicer.param(data.args[0]) {
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
        let through: Vec<&Op> = self.effects.iter().filter(|e| e.1.is_some()).map(|e| &self.k.inst(e.0).op).collect();
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
    fn buffer(&self, b: &mut Builder, s: &Shared, value: Value, copy: Option<Value>, n: usize) -> Option<[Value; 2]> {
        let tile = s.outputs.iter().find(|o| Some(o.0) == b.elem(value))?.1;
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
        s: &Shared,
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
        s: &Shared,
        value: Value,
        copy: Option<Value>,
        (buffer, way): (usize, Way),
    ) -> Value {
        let Some([tile, at]) = self.buffer(b, s, value, copy, buffer) else { return value };
        let ty = Type::block(b.elem(value).unwrap_or(Elem::F32), b.shape(value));
        self.wait_for_buffer(b, way);
        b.inst(Op::SharedStore, &[tile, at, value], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::SharedLoad, &[tile, at], &[ty], vec![])[0]
    }
}
