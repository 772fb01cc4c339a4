//! The consumer role: matmuls over the ring, then the epilogue on slices of the tile, each being stored while the next
//! is computed.
use super::super::{
    Refusal,
    copy::Copier,
    form::{self, Engine},
    ring::Ring,
};
use super::prefetched::Fetch;
use super::{Shared, Writer};
use crate::{BinaryOp as B, Builder, CmpOp, Const, Elem, Op, Type, Value};

impl<'k> Writer<'k> {
    pub fn consume(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared, copy: Option<Value>) -> Option<Refusal> {
        let mut failed = None;
        let mut tile = |b: &mut Builder, c: &mut Copier<'k>, now: &[Value]| {
            let s = &self.at_tile(b, c, s);
            let fetch = self.fetch(b, c, s, copy, now.get(2).copied()).unwrap_or_else(|why| {
                failed = Some(why);
                None
            });
            let place = (copy, Ring::of(now));
            let (sums, ring) = match self.form.engine {
                Engine::TensorCores if self.form.sums[0].apart => self.multiply_apart(b, s, place, fetch.as_ref()),
                Engine::TensorCores if self.is_left_in_registers() => {
                    self.multiply_from_registers(b, s, place, fetch.as_ref())
                }
                Engine::TensorCores => self.multiply(b, s, place, fetch.as_ref()),
                Engine::Simt => self.multiply_add(b, s, place, fetch.as_ref()),
            };
            let refused = self.finish(b, c, s, copy, &sums, fetch.as_ref());
            failed = failed.take().or(refused);
            let parity = self.epilogue.prefetched.as_ref().zip(now.get(2)).map(|(p, parity)| p.next(b, *parity));
            ring.values().into_iter().chain(parity).collect()
        };
        // The parity of the copies that the epilogue reads.
        let more = usize::from(s.prefetched.is_some());
        match (&s.ping_pong, copy) {
            (Some(ping_pong), Some(consumer)) => self.ping_pong_tiles(b, c, (s, ping_pong, consumer), more, &mut tile),
            _ => self.over_tiles(b, c, more, &mut tile),
        }
        if !s.outputs.is_empty() {
            b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
        }
        failed
    }
    /// Where the tile is that the epilogue reads.
    fn fetch(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Shared,
        copy: Option<Value>,
        parity: Option<Value>,
    ) -> Result<Option<Fetch>, Refusal> {
        let (Some(p), Some(full), Some(parity)) = (&self.epilogue.prefetched, s.prefetched, parity) else {
            return Ok(None);
        };
        let first_row = self.first_row(b, copy);
        p.fetch(b, c, full, [copy, first_row], parity).map(Some)
    }
    /// Fetches what the epilogue reads.
    pub(super) fn prefetch(&self, b: &mut Builder, s: &Shared, fetch: Option<&Fetch>) {
        if let (Some(p), Some(f)) = (&self.epilogue.prefetched, fetch) {
            p.start(b, &s.outputs, f);
        }
    }
    /// The first row of a consumer's part of a tile.
    fn first_row(&self, b: &mut Builder, copy: Option<Value>) -> Option<Value> {
        self.share(copy).map(|copy| {
            let n = b.i32(self.rows() as i64);
            b.binary(B::Mul, copy, n)
        })
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
    pub(super) fn done(&self, b: &mut Builder, token: Value) -> Value {
        b.inst(Op::WgmmaWait { pending: 0 }, &[token], &[self.block()], vec![])[0]
    }
    fn block(&self) -> Type {
        Type::block(Elem::F32, [self.rows(), self.form.n])
    }
    pub(super) fn token(&self) -> Type {
        Type::Token { elem: Elem::F32, shape: vec![self.rows(), self.form.n] }
    }
    /// Which part of a tile's rows the consumer has; `None`: all.
    pub(super) fn share(&self, copy: Option<Value>) -> Option<Value> {
        copy.filter(|_| !self.crew.ping_pong)
    }
    /// All matmuls of a tile are started, so the next consumer may start its own.
    pub(super) fn pass(&self, b: &mut Builder, s: &Shared, copy: Option<Value>) {
        if let (Some(ping_pong), Some(consumer)) = (&s.ping_pong, copy) {
            ping_pong.pass(b, consumer);
        }
    }
    /// Initial values of the sums, on the consumer's rows.
    pub(super) fn starts(&self, b: &mut Builder) -> Vec<Value> {
        let args = &self.k.inst(self.form.depth).args;
        let constants = self.form.sums.iter().filter_map(|s| form::constant(self.k, args[3 + s.carried]));
        constants.map(|c| b.constant(self.block(), c)).collect()
    }
    /// The sums over all of K. The first stage is peeled off the loop; one group of matmuls stays in flight across
    /// stages.
    fn multiply(
        &self,
        b: &mut Builder,
        s: &Shared,
        (copy, ring): (Option<Value>, Ring),
        fetch: Option<&Fetch>,
    ) -> (Vec<Value>, Ring) {
        let none = self.starts(b);
        let started = self.start(b, s, (copy, ring), &none);
        self.prefetch(b, s, fetch);
        let next = s.rings.next(b, ring);
        let (one, last) = (b.i32(1), self.trips(b, s));
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
    fn multiply_apart(
        &self,
        b: &mut Builder,
        s: &Shared,
        (copy, ring): (Option<Value>, Ring),
        fetch: Option<&Fetch>,
    ) -> (Vec<Value>, Ring) {
        self.prefetch(b, s, fetch);
        let none = self.starts(b);
        let zeros = vec![b.constant(self.block(), Const::Float(0.0)); none.len()];
        let (zero, one, last) = (b.i32(0), b.i32(1), self.trips(b, s));
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
    fn multiply_add(
        &self,
        b: &mut Builder,
        s: &Shared,
        (copy, ring): (Option<Value>, Ring),
        fetch: Option<&Fetch>,
    ) -> (Vec<Value>, Ring) {
        self.prefetch(b, s, fetch);
        let block = self.block();
        let none = self.starts(b);
        let (zero, one, last) = (b.i32(0), b.i32(1), self.trips(b, s));
        let out = b.for_loop([zero, last, one], &[&ring.values()[..], &none].concat(), |b, trip, now| {
            let ring = Ring::of(now);
            s.rings.wait(b, ring);
            let there = self.there(b, s, trip);
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
    fn there(&self, b: &mut Builder, s: &Shared, trip: Value) -> Option<Value> {
        let last = b.i32(self.crew.last? as i64);
        let load = self.form.loads.first()?;
        let whole = load.shape[usize::from(!load.swapped)];
        let whole = b.i32(whole as i64);
        let end = match self.form.trips {
            Some(trips) => b.i32(trips as i64 - 1),
            None => {
                let (trips, one) = (self.trips(b, s), b.i32(1));
                b.binary(B::Sub, trips, one)
            }
        };
        let ends = b.cmp(CmpOp::Eq, trip, end);
        Some(b.select(ends, last, whole))
    }
    fn finish(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Shared,
        copy: Option<Value>,
        sums: &[Value],
        fetch: Option<&Fetch>,
    ) -> Option<Refusal> {
        let loop_results = &self.k.inst(self.form.depth).results;
        let sums = self.form.sums.iter().zip(sums).map(|(d, v)| (loop_results[d.carried], *v)).collect();
        let first_row = self.first_row(b, copy);
        self.epilogue.finish(b, c, &s.outputs, [copy, first_row], sums, fetch)
    }
}
