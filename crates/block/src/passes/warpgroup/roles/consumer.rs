//! The consumers: products over the ring, then the epilogue on parts of the tile, each sent out while the next is computed.
use super::super::{
    Refusal,
    copy::Copier,
    form::{self, Engine},
    ring::Ring,
    slice::{Part, Slicer},
};
use super::{BUFFERS, Shared, Writer};
use crate::{BinaryOp as B, Builder, Elem, Op, Type, Value};

impl<'k> Writer<'k> {
    pub fn consume(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared, copy: Option<Value>) -> Option<Refusal> {
        let mut failed = None;
        self.over_tiles(b, c, |b, c, ring| {
            let (sums, ring) = match self.form.engine {
                Engine::TensorCores => self.multiply(b, s, copy, ring),
                Engine::MultiplyAdds => self.multiply_add(b, s, copy, ring),
            };
            failed = self.finish(b, c, s, copy, &sums);
            ring
        });
        if !s.outputs.is_empty() {
            b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
        }
        failed
    }
    /// Operands of product `n` from a stage.
    fn operands(&self, b: &mut Builder, s: &Shared, n: usize, ring: Ring, copy: Option<Value>) -> [Value; 4] {
        let dot = &self.form.dots[n];
        let stage = self.left_stage(b, ring, copy);
        [s.tiles[dot.left], stage, s.tiles[dot.right], ring.stage]
    }
    fn transposed(&self, n: usize) -> [bool; 2] {
        let dot = &self.form.dots[n];
        [self.form.loads[dot.left].swapped, self.form.loads[dot.right].swapped]
    }
    /// What the sums start from, on the consumer's rows.
    fn starts(&self, b: &mut Builder) -> Vec<Value> {
        let block = Type::block(Elem::F32, [self.part.rows, self.form.n]);
        let args = &self.k.inst(self.form.depth).args;
        let constants = self.form.dots.iter().filter_map(|d| form::constant(self.k, args[3 + d.carried]));
        constants.map(|c| b.constant(block.clone(), c)).collect()
    }
    /// The sums over all of K. The first products start the sums; one group stays in flight over a stage's end.
    fn multiply(&self, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Vec<Value>, Ring) {
        let sums = [self.part.rows, self.form.n];
        let token = Type::Token { elem: Elem::F32, shape: sums.to_vec() };
        let products = |b: &mut Builder, ring: Ring, from: &[Value]| -> Vec<Value> {
            s.rings.wait(b, ring);
            let made = from.iter().enumerate().map(|(n, from)| {
                let [transpose_a, transpose_b] = self.transposed(n);
                let args = [&self.operands(b, s, n, ring, copy)[..], &[*from]].concat();
                b.inst(Op::Wgmma { transpose_a, transpose_b }, &args, std::slice::from_ref(&token), vec![])[0]
            });
            let made = made.collect();
            b.inst(Op::WgmmaCommit, &[], &[], vec![]);
            made
        };
        let none = self.starts(b);
        let started = products(b, ring, &none);
        let next = s.rings.next(b, ring);
        let (one, last) = (b.i32(1), b.i32(self.form.trips as i64));
        let carried = [&next.values()[..], &[ring.stage], &started].concat();
        let out = b.for_loop([one, last, one], &carried, |b, _, now| {
            let ring = Ring::of(now);
            let tokens = products(b, ring, &now[3..]);
            b.inst(Op::WgmmaWait { pending: 1 }, &[], &[], vec![]);
            s.rings.release(b, now[2]);
            [&s.rings.next(b, ring).values()[..], &[ring.stage], &tokens].concat()
        });
        let block = Type::block(Elem::F32, sums);
        let done = |b: &mut Builder, token: &Value| {
            b.inst(Op::WgmmaWait { pending: 0 }, &[*token], std::slice::from_ref(&block), vec![])[0]
        };
        let sums = out[3..].iter().map(|t| done(b, t)).collect();
        s.rings.release(b, out[2]);
        (sums, Ring::of(&out))
    }
    /// The sums over all of K in f32, stage by stage.
    fn multiply_add(&self, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Vec<Value>, Ring) {
        let block = Type::block(Elem::F32, [self.part.rows, self.form.n]);
        let none = self.starts(b);
        let (zero, one, last) = (b.i32(0), b.i32(1), b.i32(self.form.trips as i64));
        let out = b.for_loop([zero, last, one], &[&ring.values()[..], &none].concat(), |b, _, now| {
            let ring = Ring::of(now);
            s.rings.wait(b, ring);
            let mut sums = vec![];
            for (n, from) in now[2..].iter().enumerate() {
                let [transpose_a, transpose_b] = self.transposed(n);
                let args = [&self.operands(b, s, n, ring, copy)[..], &[*from]].concat();
                let terms = self.form.dots[n].terms;
                let op = Op::SharedDot { terms, transpose_a, transpose_b };
                sums.push(b.inst(op, &args, std::slice::from_ref(&block), vec![])[0]);
            }
            s.rings.release(b, ring.stage);
            [&s.rings.next(b, ring).values()[..], &sums].concat()
        });
        (out[2..].to_vec(), Ring::of(&out))
    }

    // ---- The epilogue ----
    /// Some columns at a time.
    fn finish(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Shared,
        copy: Option<Value>,
        sums: &[Value],
    ) -> Option<Refusal> {
        let loop_results = &self.k.inst(self.form.depth).results;
        let sums = self.form.dots.iter().zip(sums).map(|(d, v)| (loop_results[d.carried], *v)).collect();
        let first_row = copy.map(|copy| {
            let n = b.i32(self.part.rows as i64);
            b.binary(B::Mul, copy, n)
        });
        let Part { rows: _, columns, .. } = self.part;
        let parts = self.form.n / columns;
        let sent = parts * self.effects.iter().filter(|i| self.k.inst(**i).op == Op::TileStore).count();
        // An odd number of stores would meet the last tile's buffer again at once.
        let pending = if sent.is_multiple_of(BUFFERS) { BUFFERS - 1 } else { 0 };
        let mut slicer = Slicer::new(c, self.part, sums, first_row);
        let mut turn = 0;
        for part in 0..parts {
            slicer.columns_from(part * columns);
            for data in self.effects.iter().map(|i| self.k.inst(*i)) {
                if data.op == Op::Store {
                    let args: Vec<Value> = data.args.iter().map(|v| slicer.block(b, *v)).collect();
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
                    self.send(b, s, [desc, value], copy, (turn % BUFFERS, pending), &starts);
                }
                turn += 1;
            }
            if slicer.failed.is_some() {
                break;
            }
        }
        slicer.failed
    }
    /// Through a buffer in shared memory, when the store before the last has read its own.
    fn send(
        &self,
        b: &mut Builder,
        s: &Shared,
        [desc, value]: [Value; 2],
        copy: Option<Value>,
        (buffer, pending): (usize, usize),
        starts: &[Value],
    ) {
        let Some(tile) = s.outputs.iter().find(|o| Some(o.0) == b.elem(value)).map(|o| o.1) else { return };
        let mut at = b.i32(buffer as i64);
        if let Some(copy) = copy {
            let n = b.i32(BUFFERS as i64);
            let mine = b.binary(B::Mul, copy, n);
            at = b.binary(B::Add, mine, at);
        }
        b.inst(Op::TmaStoreWait { pending: pending as u8 }, &[], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::SharedStore, &[tile, at, value], &[], vec![]);
        b.inst(Op::FenceAsync, &[], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
        b.inst(Op::TmaStore, &[&[desc, tile, at], starts].concat(), &[], vec![]);
    }
}
