//! What a consumer computes in an iteration: the two matmuls, and what follows from scores and sums.
use super::super::super::back_to_back_dots::Pass;
use super::super::super::copy::Copier;
use super::super::super::form::Engine;
use super::super::super::ring::{Ring, release_read};
use super::super::super::slice::{Part, Slicer};
use super::score_tiles::{Arrived, KEYS, VALUES};
use super::{Consumer, Shared, Writer};
use crate::{Builder, Const, Elem, Op, Type, Value};
use std::collections::{HashMap, HashSet};

/// What an iteration hands to the next one: the carried values, the next left operand of the second matmul, and the
/// sums that it adds to (in place of the carried sums).
pub(super) struct Next {
    pub carried: Vec<Value>,
    pub weights: Value,
}

impl<'k> Writer<'k> {
    /// A slice of whole rows.
    pub(super) fn part(&self) -> Part {
        Part { engine: Engine::TensorCores, tile: [self.form.m, 0], rows: self.rows, columns: 0 }
    }
    /// The type of a matmul in flight.
    pub(super) fn token(&self, columns: usize) -> Type {
        Type::Token { elem: Elem::F32, shape: vec![self.rows, columns] }
    }
    /// Starts the first matmul.
    pub(super) fn scores(&self, b: &mut Builder, s: &Shared, stage: Value, ring: Ring) -> Value {
        let keys = &s.each[KEYS];
        keys.rings.wait(b, ring);
        let zero = b.constant(Type::block(Elem::F32, [self.rows, self.form.scores]), Const::Float(0.0));
        let args = [s.left.tile, stage, keys.tile, ring.stage, zero];
        let op = Op::Wgmma { transpose_a: false, transpose_b: self.right()[0].swapped };
        let token = b.inst(op, &args, &[self.token(self.form.scores)], vec![])[0];
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        token
    }
    /// Starts the second matmul.
    pub(super) fn weigh(&self, b: &mut Builder, s: &Shared, weights: Value, ring: Ring, sum: Value) -> Value {
        let values = &s.each[VALUES];
        values.rings.wait(b, ring);
        let op = Op::Wgmma { transpose_a: false, transpose_b: self.right()[1].swapped };
        let args = [weights, values.tile, ring.stage, sum];
        let token = b.inst(op, &args, &[self.token(self.form.n)], vec![])[0];
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        token
    }
    /// Waits for a matmul, of which `pending` later ones may be in flight.
    pub(super) fn wait(&self, b: &mut Builder, token: Value, columns: usize, pending: u8) -> Value {
        let ty = Type::block(Elem::F32, [self.rows, columns]);
        b.inst(Op::WgmmaWait { pending }, &[token], &[ty], vec![])[0]
    }
    /// Blocks that an iteration reads from memory at addresses that do not depend on its scores or on what it carries.
    pub(super) fn reads(&self, pass: &Pass) -> Vec<Value> {
        let region = &self.k.inst(pass.inst).regions[0];
        let mut late: HashSet<Value> = region.params[1..].iter().copied().chain([pass.scores]).collect();
        let mut reads = vec![];
        for data in region.insts.iter().map(|i| self.k.inst(*i)) {
            if data.args.iter().any(|v| late.contains(v)) {
                late.extend(&data.results);
            } else if matches!(data.op, Op::Load(..)) && !self.k.ty(data.results[0]).is_scalar() {
                reads.extend(&data.results);
            }
        }
        reads
    }
    /// What the iteration computes from its scores. What it reads from memory comes before `scores`, which waits for
    /// them. What does not need the sums comes before `sum`, which waits for those; weights are rounded after it, as
    /// the tensor cores still read the registers of the ones before.
    pub(super) fn next<'s>(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        (pass, consumer): (&Pass, &Consumer),
        carried: &[Value],
        scores: impl FnOnce(&mut Builder) -> Arrived<'s>,
        sum: impl FnOnce(&mut Builder) -> Value,
    ) -> Next {
        let region = &self.k.inst(pass.inst).regions[0];
        let yielded = region.insts.last().map(|i| &self.k.inst(*i).args[..]).unwrap_or_default();
        let own = region.params[1 + self.form.sum];
        let mut known: HashMap<Value, Value> =
            region.params[1..].iter().copied().zip(carried.iter().copied()).collect();
        known.remove(&own);
        let reads = self.reads(pass);
        let definition = |c: &Copier<'k>, v: Value| c.definition(v).map(|d| (d.op.clone(), d.args.clone()));
        let exact = match definition(c, pass.weights) {
            Some((Op::Cast(_), args)) => args[0],
            _ => pass.weights,
        };
        let factors: Vec<Value> = definition(c, pass.from).map(|d| d.1).unwrap_or_default();
        let mut slicer = Slicer::new(c, self.part(), known, consumer.first_row);
        reads.into_iter().for_each(|v| _ = slicer.rows(b, v));
        let Arrived { known, late } = scores(b);
        known.into_iter().for_each(|(v, new)| slicer.know(v, new));
        slicer.rows(b, exact);
        factors.iter().filter(|v| **v != own && **v != pass.from).for_each(|v| _ = slicer.rows(b, *v));
        let mut next: Vec<Value> = vec![];
        for (n, v) in yielded.iter().enumerate() {
            // The sums' place is taken below.
            next.push(if n == self.form.sum { carried[n] } else { slicer.rows(b, *v) });
        }
        release_read(b, &late);
        let sum = sum(b);
        slicer.know(own, sum);
        next[self.form.sum] = slicer.rows(b, pass.from);
        let weights = slicer.rows(b, pass.weights);
        if let Some(failed) = slicer.failed {
            consumer.failed.borrow_mut().get_or_insert(failed);
        }
        Next { carried: next, weights }
    }
}
