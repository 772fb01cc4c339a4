//! The iterations of all loops of a tile, as a consumer runs them.
//!
//! The first iteration of all is peeled off: it has no second matmul before it. It is that of the first loop that has
//! one, which only the launch may know; where none has, the weights are zeros, and so are the values that the producer
//! copies for them.
use super::super::super::back_to_back_dots::Pass;
use super::super::super::copy::Copier;
use super::super::super::slice::Slicer;
use super::score_tiles::{KEYS, Places, VALUES};
use super::{Consumer, Shared, Writer};
use crate::passes::runs;
use crate::{BinaryOp as B, Builder, CmpOp, Const, Op, Type, Value};
use std::collections::HashMap;

/// Columns of sums up to which weights are computed while the tensor cores sum: half of a thread's registers.
const WIDEST_OVERLAPPED: usize = 128;

/// What a consumer has from the begin of a tile on.
struct Begun<'s> {
    s: &'s Shared,
    consumer: &'s Consumer,
    at: &'s Places,
    /// Stage of its rows of the left operand.
    stage: Value,
    /// What the loops carry at first.
    init: Vec<Value>,
}

impl<'k> Writer<'k> {
    /// Bounds and step of a loop.
    pub(super) fn bounds(&self, c: &mut Copier<'k>, pass: &Pass) -> Option<[Value; 3]> {
        c.all(&self.k.inst(pass.inst).args[..3]).try_into().ok()
    }
    /// Enters an iteration: with its index, and the scalars that follow from it.
    pub(super) fn enter(&self, b: &mut Builder, c: &mut Copier<'k>, pass: &Pass, index: Value) {
        let region = &self.k.inst(pass.inst).regions[0];
        c.enter();
        c.set(region.params[0], index);
        c.scalars(b, &region.insts);
    }
    /// Whether a loop is known to have an iteration.
    fn surely_runs(&self, pass: &Pass) -> bool {
        runs(self.k, &self.facts, self.k.inst(pass.inst))
    }
    /// Whether a loop with these bounds has an iteration; `None`: surely.
    pub(super) fn runs(&self, b: &mut Builder, pass: &Pass, [lo, hi]: [Value; 2]) -> Option<Value> {
        (!self.surely_runs(pass)).then(|| b.cmp(CmpOp::Lt, lo, hi))
    }
    /// Whether one of the loops has an iteration; `None`: it is known that one has.
    pub(super) fn any_runs(&self, b: &mut Builder, c: &mut Copier<'k>) -> Option<Value> {
        self.one_runs(b, c, &self.form.passes)
    }
    fn one_runs(&self, b: &mut Builder, c: &mut Copier<'k>, passes: &[Pass]) -> Option<Value> {
        let mut any: Option<Value> = None;
        for pass in passes {
            let [lo, hi, _] = self.bounds(c, pass)?;
            let runs = self.runs(b, pass, [lo, hi])?;
            any = Some(any.map_or(runs, |any| b.binary(B::Or, any, runs)));
        }
        any
    }
    /// The results of the last loop, by name.
    pub(super) fn multiply(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Shared,
        consumer: &Consumer,
        at: Places,
    ) -> (HashMap<Value, Value>, Places) {
        let stage = self.own_stage(b, at.left, consumer.copy);
        s.left.rings.wait(b, at.left);
        self.compute_left(b, c, s, consumer, stage);
        let init = self.initial(b, c, consumer);
        let (count, rings) = (init.len(), 2 * s.each.len());
        let begun = Begun { s, consumer, at: &at, stage, init };
        if let Some((turns, copy)) = s.turns.as_ref().zip(consumer.copy) {
            let (first, tiles) = (turns.first(b, copy), s.left.rings.passed(b, at.left));
            let parity = b.binary(B::Xor, first, tiles);
            turns.wait(b, copy, parity);
        }
        let mut now = self.first(b, c, &begun, &self.form.passes);
        for (n, pass) in self.form.passes.iter().enumerate() {
            now = self.others(b, c, &begun, n, pass, now);
        }
        let mut each = Places::each(&now[..rings]);
        let (carried, weights) = (&now[rings..rings + count], now[rings + count]);
        s.left.rings.release(b, at.left.stage);
        let sum = self.weigh(b, s, weights, each[VALUES], carried[self.form.sum]);
        let sum = self.wait(b, sum, self.form.n, 0);
        s.each[VALUES].rings.release(b, each[VALUES].stage);
        let mut results = carried.to_vec();
        results[self.form.sum] = sum;
        let names = &self.k.inst(self.form.passes[self.form.passes.len() - 1].inst).results;
        let left = s.left.rings.next(b, at.left);
        each[VALUES] = s.each[VALUES].rings.next(b, each[VALUES]);
        (names.iter().copied().zip(results).collect(), Places { left, each })
    }
    /// Puts what is computed from the consumer's rows of the left operand in their place.
    fn compute_left(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared, consumer: &Consumer, stage: Value) {
        let Some(computed) = self.form.computed_left else { return };
        let ty = Type::block(self.form.left.elem, self.own_part(&self.form.left));
        let stored = b.inst(Op::SharedLoad, &[s.left.tile, stage], &[ty], vec![])[0];
        let loaded = self.k.inst(self.form.left.inst).results[0];
        let mut slicer = Slicer::new(c, self.part(), HashMap::from([(loaded, stored)]), consumer.first_row);
        let computed = slicer.rows(b, computed);
        if let Some(failed) = slicer.failed {
            consumer.failed.borrow_mut().get_or_insert(failed);
        }
        b.inst(Op::SharedStore, &[s.left.tile, stage, computed], &[], vec![]);
        b.inst(Op::FenceAsync, &[], &[], vec![]);
        b.inst(Op::Sync, &[], &[], vec![]);
    }
    /// What the first loop starts from, on the consumer's rows.
    fn initial(&self, b: &mut Builder, c: &mut Copier<'k>, consumer: &Consumer) -> Vec<Value> {
        let init = &self.k.inst(self.form.passes[0].inst).args[3..];
        let mut slicer = Slicer::new(c, self.part(), HashMap::new(), consumer.first_row);
        let init = init.iter().map(|v| slicer.rows(b, *v)).collect();
        if let Some(failed) = slicer.failed {
            consumer.failed.borrow_mut().get_or_insert(failed);
        }
        init
    }
    /// The first iteration of these loops: rings, what is carried, and weights.
    fn first(&self, b: &mut Builder, c: &mut Copier<'k>, begun: &Begun, passes: &[Pass]) -> Vec<Value> {
        let Some((pass, rest)) = passes.split_first() else { return self.no_iteration(b, begun) };
        let Some([lo, hi, _]) = self.bounds(c, pass) else { return vec![] };
        let Some(runs) = self.runs(b, pass, [lo, hi]) else {
            return self.first_iteration(b, c, begun, pass, lo);
        };
        let mut inside = c.clone();
        let now = b.if_else(
            runs,
            |b| self.first_iteration(b, &mut inside, begun, pass, lo),
            |b| self.first(b, c, begun, rest),
        );
        c.missing = c.missing.or(inside.missing);
        now
    }
    fn first_iteration(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        begun: &Begun,
        pass: &Pass,
        index: Value,
    ) -> Vec<Value> {
        let Begun { s, consumer, at, stage, init } = begun;
        self.enter(b, c, pass, index);
        let each = &at.each;
        let turn = s.turns.as_ref().zip(consumer.copy);
        let token = self.scores(b, s, *stage, each[KEYS]);
        let sum = init[self.form.sum];
        let scores = |b: &mut Builder| self.arrived(b, s, (pass, consumer), each, (token, 0), turn);
        let next = self.next(b, c, (pass, consumer), init, scores, |_| sum);
        let after = self.after(b, s, pass, each, KEYS..=KEYS);
        c.leave();
        [Places::of_each(&after), next.carried, vec![next.weights]].concat()
    }
    /// In place of the first iteration, where no loop has one.
    fn no_iteration(&self, b: &mut Builder, begun: &Begun) -> Vec<Value> {
        if let Some((turns, copy)) = begun.s.turns.as_ref().zip(begun.consumer.copy) {
            turns.pass(b, copy);
        }
        let ty = self.k.ty(self.form.passes[0].weights).with_shape([self.rows, self.form.scores]);
        let weights = b.constant(ty, Const::Float(0.0));
        [Places::of_each(&begun.at.each), begun.init.clone(), vec![weights]].concat()
    }
    /// The iterations of a loop that follow the first of all.
    fn others(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        begun: &Begun,
        n: usize,
        pass: &Pass,
        now: Vec<Value>,
    ) -> Vec<Value> {
        let Some([lo, hi, step]) = self.bounds(c, pass) else { return now };
        let before = &self.form.passes[..n];
        let second = b.binary(B::Add, lo, step);
        let lo = match self.one_runs(b, c, before) {
            _ if before.is_empty() && self.is_single(pass) => return now,
            _ if before.is_empty() => second,
            Some(earlier) => b.select(earlier, lo, second),
            None => lo,
        };
        b.for_loop([lo, hi, step], &now, |b, index, now| self.iteration(b, c, begun, pass, index, now))
    }
    fn iteration(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        begun: &Begun,
        pass: &Pass,
        index: Value,
        now: &[Value],
    ) -> Vec<Value> {
        let Begun { s, consumer, stage, init, .. } = begun;
        let rings = 2 * s.each.len();
        self.enter(b, c, pass, index);
        let each = Places::each(&now[..rings]);
        let (carried, weights) = (&now[rings..rings + init.len()], now[rings + init.len()]);
        let token = self.scores(b, s, *stage, each[KEYS]);
        let sum = self.weigh(b, s, weights, each[VALUES], carried[self.form.sum]);
        let scores = |b: &mut Builder| self.arrived(b, s, (pass, consumer), &each, (token, 1), None);
        let sum = |b: &mut Builder| {
            // Returns at once, but is a branch: assemblers move the wait for the sums across arithmetic, not across
            // this, and weights are to be computed while the tensor cores sum. Wider sums leave no registers for that.
            if self.form.n <= WIDEST_OVERLAPPED {
                s.each[VALUES].rings.wait(b, each[VALUES]);
            }
            let sum = self.wait(b, sum, self.form.n, 0);
            s.each[VALUES].rings.release(b, each[VALUES].stage);
            sum
        };
        let next = self.next(b, c, (pass, consumer), carried, scores, sum);
        let after = self.after(b, s, pass, &each, KEYS..=VALUES);
        c.leave();
        [Places::of_each(&after), next.carried, vec![next.weights]].concat()
    }
    /// Whether a loop has one iteration.
    fn is_single(&self, pass: &Pass) -> bool {
        let form = |v: &Value| self.facts.affine(*v);
        let [Some(lo), Some(hi), Some(step)] = [0, 1, 2].map(|n| form(&self.k.inst(pass.inst).args[n])) else {
            return false;
        };
        let length = hi.add_scaled(lo, -1).and_then(|f| f.as_constant());
        length.is_some_and(|n| n > 0 && step.as_constant() == Some(n))
    }
}
