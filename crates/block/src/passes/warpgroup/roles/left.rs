//! Matmuls of left operands in registers: consumers read their rows of a stage, round them to tf32, and multiply from
//! there. So tensor cores take f32 tiles that are M-major, or not rounded to tf32 yet.
//!
//! The next stage is read and rounded while the matmuls of this one run. Registers may not change before the matmuls that read
//! them are done, so each stage's are waited for; meanwhile the other consumer's run.
use super::super::form::{Load, Side};
use super::super::ring::Ring;
use super::prefetched::Fetch;
use super::{Shared, Writer};
use crate::{Builder, Op, Type, UnaryOp, Value};

/// A consumer's number, where there are several, and its position in the ring.
type Place = (Option<Value>, Ring);

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
        let none = self.starts(b);
        let lefts = self.read_lefts(b, s, (copy, ring));
        let tokens = self.start_from(b, s, (copy, ring), &lefts, &none);
        self.prefetch(b, s, fetch);
        if self.form.trips == 1 {
            return self.last(b, s, (copy, ring), tokens);
        }
        let (next, carried) = self.read_next(b, s, (copy, ring), tokens);
        let (one, last) = (b.i32(1), b.i32(self.form.trips as i64 - 1));
        let carried = [&next.values()[..], &carried].concat();
        let out = b.for_loop([one, last, one], &carried, |b, _, now| {
            let (ring, [lefts, sums]) = (Ring::of(now), self.carried(&now[2..]));
            let tokens = self.start_from(b, s, (copy, ring), lefts, sums);
            let (next, carried) = self.read_next(b, s, (copy, ring), tokens);
            [&next.values()[..], &carried].concat()
        });
        let (ring, [lefts, sums]) = (Ring::of(&out), self.carried(&out[2..]));
        let tokens = self.start_from(b, s, (copy, ring), lefts, sums);
        self.last(b, s, (copy, ring), tokens)
    }
    /// Left operands and sums among the values that the loop over stages carries.
    fn carried<'v>(&self, values: &'v [Value]) -> [&'v [Value]; 2] {
        values.split_at(self.lefts().count()).into()
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
    /// Reads the left operands of the next stage, waits for the matmuls of this one and releases it. Gives the position of the next, its
    /// left operands and the sums.
    fn read_next(&self, b: &mut Builder, s: &Shared, (copy, ring): Place, tokens: Vec<Value>) -> (Ring, Vec<Value>) {
        let next = s.rings.next(b, ring);
        let mut values = self.read_lefts(b, s, (copy, next));
        values.extend(tokens.into_iter().map(|t| self.done(b, t)));
        s.rings.release(b, ring.stage);
        (next, values)
    }
    /// Waits for the matmuls of the last stage and releases it.
    fn last(&self, b: &mut Builder, s: &Shared, (copy, ring): Place, tokens: Vec<Value>) -> (Vec<Value>, Ring) {
        self.pass(b, s, copy);
        let sums = tokens.into_iter().map(|t| self.done(b, t)).collect();
        s.rings.release(b, ring.stage);
        (sums, s.rings.next(b, ring))
    }
    /// Starts the matmuls of a stage for every sum, accumulating on `from`.
    fn start_from(&self, b: &mut Builder, s: &Shared, (_, ring): Place, lefts: &[Value], from: &[Value]) -> Vec<Value> {
        let token = self.token();
        let numbers: Vec<usize> = self.lefts().map(|l| l.0).collect();
        let mut tokens = vec![];
        for (sum, from) in self.form.sums.iter().zip(from) {
            tokens.push(sum.matmuls.iter().fold(*from, |from, &[left, right]| {
                let left = numbers.iter().position(|n| *n == left).map_or(from, |n| lefts[n]);
                let op = Op::Wgmma { transpose_a: false, transpose_b: self.form.loads[right].swapped };
                b.inst(op, &[left, s.tiles[right], ring.stage, from], std::slice::from_ref(&token), vec![])[0]
            }));
        }
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        tokens
    }
}
