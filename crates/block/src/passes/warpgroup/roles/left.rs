//! Matmuls of left operands in registers: consumers read their rows of a stage, round them to tf32, and multiply from
//! there. So tensor cores take f32 tiles that are M-major, or not rounded to tf32 yet.
//!
//! The matmuls of two stages are in flight, and the next stage is read while they run. Registers may not change before
//! the matmuls that read them are done, so the loop has two stages in an iteration, each with registers of its own.
use super::super::form::{Load, Side};
use super::super::ring::Ring;
use super::prefetched::Fetch;
use super::{Shared, Writer};
use crate::{Builder, Op, Type, UnaryOp, Value};
use std::collections::HashMap;

/// A consumer's number, where there are several, and its position in the ring.
type Place = (Option<Value>, Ring);

/// The matmuls of a stage in flight: the stage, what they read from registers, and a token for each sum.
struct Flight {
    stage: Value,
    lefts: Vec<Value>,
    tokens: Vec<Value>,
}
impl Flight {
    fn values(&self) -> Vec<Value> {
        [&[self.stage], &self.lefts[..], &self.tokens].concat()
    }
    /// Waits for the matmuls, with those of one later stage left in flight, and releases the stage.
    fn finish(&self, b: &mut Builder, s: &Shared) {
        b.inst(Op::WgmmaWait { pending: 1 }, &self.lefts, &[], vec![]);
        s.rings.release(b, self.stage);
    }
}

/// The position of a stage, the matmuls in flight before it, and its left operands.
type Turn = (Ring, Flight, Vec<Value>);

impl Writer<'_> {
    /// Whether left operands go through registers.
    pub fn is_left_in_registers(&self) -> bool {
        self.form.loads.iter().any(|l| l.in_registers(self.form.engine))
    }
    /// The sums over all of K.
    pub fn multiply_from_registers(
        &self,
        b: &mut Builder,
        s: &Shared,
        (copy, ring): Place,
        fetch: Option<&Fetch>,
    ) -> (Vec<Value>, Ring) {
        // Two iterations a turn: how many there are decides the code.
        let trips = self.form.trips.unwrap_or(1);
        let none = self.starts(b);
        let lefts = self.read_lefts(b, s, (copy, ring));
        let tokens = self.start_from(b, s, ring, &lefts, &none);
        self.prefetch(b, s, fetch);
        let mut now = Flight { stage: ring.stage, lefts, tokens };
        if trips == 1 {
            self.pass(b, s, copy);
            return self.last(b, s, ring, now);
        }
        let mut ring = s.rings.next(b, ring);
        let mut next = self.read_lefts(b, s, (copy, ring));
        // Stages after which another one is read.
        let steps = trips - 2;
        if !steps.is_multiple_of(2) {
            (now, ring, next) = self.step(b, s, (copy, ring), now, next);
        }
        if steps >= 2 {
            (ring, now, next) = self.pairs(b, s, copy, steps / 2, (ring, now, next));
        }
        let tokens = self.start_from(b, s, ring, &next, &now.tokens);
        self.pass(b, s, copy);
        now.finish(b, s);
        self.last(b, s, ring, Flight { stage: ring.stage, lefts: next, tokens })
    }
    /// The loop over pairs of stages.
    fn pairs(&self, b: &mut Builder, s: &Shared, copy: Option<Value>, count: usize, first: Turn) -> Turn {
        let (zero, one, end) = (b.i32(0), b.i32(1), b.i32(count as i64));
        let (ring, now, next) = first;
        let carried = [&ring.values()[..], &now.values(), &next].concat();
        let out = b.for_loop([zero, end, one], &carried, |b, _, values| {
            let (mut ring, mut now, mut next) = self.carried(values);
            for _ in 0..2 {
                (now, ring, next) = self.step(b, s, (copy, ring), now, next);
            }
            [&ring.values()[..], &now.values(), &next].concat()
        });
        self.carried(&out)
    }
    /// What the loop carries: the position of a stage, the matmuls in flight before it, and its left operands.
    fn carried(&self, values: &[Value]) -> Turn {
        let count = self.lefts().count();
        let (now, next) = values[2..].split_at(values.len() - 2 - count);
        let (lefts, tokens) = now[1..].split_at(count);
        let now = Flight { stage: now[0], lefts: lefts.to_vec(), tokens: tokens.to_vec() };
        (Ring::of(values), now, next.to_vec())
    }
    /// Numbers of the loads of left operands.
    fn lefts(&self) -> impl Iterator<Item = (usize, &Load)> {
        self.form.loads.iter().enumerate().filter(|(_, l)| l.side == Side::Left)
    }
    /// Waits for a stage, and reads the left operands from it.
    fn read_lefts(&self, b: &mut Builder, s: &Shared, (copy, ring): Place) -> Vec<Value> {
        s.rings.wait(b, ring);
        let lefts = self.lefts().map(|(n, load)| {
            let stage = self.left_stage(b, ring, self.share(copy));
            let ty = Type::block(load.elem, self.shape(load));
            let tile = b.inst(Op::SharedLoad, &[s.tiles[n], stage], &[ty], vec![])[0];
            let tile = if load.swapped { b.permute(tile, &[1, 0]) } else { tile };
            // Else tensor cores would truncate.
            b.unary(UnaryOp::Tf32, tile)
        });
        let lefts = lefts.collect();
        b.inst(Op::FenceAsync, &[], &[], vec![]);
        lefts
    }
    /// Starts the matmuls of a stage, finishes those before, and reads the left operands of the next stage. Gives what
    /// is in flight then, and the next stage.
    fn step(
        &self,
        b: &mut Builder,
        s: &Shared,
        (copy, ring): Place,
        before: Flight,
        lefts: Vec<Value>,
    ) -> (Flight, Ring, Vec<Value>) {
        let tokens = self.start_from(b, s, ring, &lefts, &before.tokens);
        before.finish(b, s);
        let next = s.rings.next(b, ring);
        let read = self.read_lefts(b, s, (copy, next));
        (Flight { stage: ring.stage, lefts, tokens }, next, read)
    }
    /// Waits for the matmuls of the last stage and releases it.
    fn last(&self, b: &mut Builder, s: &Shared, ring: Ring, now: Flight) -> (Vec<Value>, Ring) {
        let sums = now.tokens.into_iter().map(|t| self.done(b, t)).collect();
        s.rings.release(b, ring.stage);
        (sums, s.rings.next(b, ring))
    }
    /// Starts the matmuls of a stage for every sum, accumulating on `from`.
    fn start_from(&self, b: &mut Builder, s: &Shared, ring: Ring, lefts: &[Value], from: &[Value]) -> Vec<Value> {
        let token = self.token();
        let lefts: HashMap<usize, Value> = self.lefts().map(|l| l.0).zip(lefts.iter().copied()).collect();
        let mut tokens = vec![];
        for (sum, from) in self.form.sums.iter().zip(from) {
            tokens.push(sum.matmuls.iter().fold(*from, |from, &[left, right]| {
                let op = Op::Wgmma { transpose_a: false, transpose_b: self.form.loads[right].swapped };
                b.inst(op, &[lefts[&left], s.tiles[right], ring.stage, from], std::slice::from_ref(&token), vec![])[0]
            }));
        }
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        tokens
    }
}
