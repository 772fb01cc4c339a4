//! The producer: copies the left operand of each tile, and what the iterations of its loops read into their rings.
use super::super::super::back_to_back_dots::{Operand, Pass};
use super::super::super::copy::Copier;
use super::super::super::ring::Ring;
use super::super::BEFORE;
use super::super::dynamic_scheduler::Side;
use super::score_tiles::{KEYS, Places, Staged, VALUES};
use super::{Shared, Writer};
use crate::{BinaryOp as B, Builder, Value};

pub struct Producer<'s, 'k> {
    pub w: &'s Writer<'k>,
    pub s: &'s Shared,
}

/// An iteration of a loop.
struct Iteration<'p> {
    pass: &'p Pass,
    index: Value,
}

/// What is copied, and where to.
struct Copied<'s> {
    operand: &'s Operand,
    staged: &'s Staged,
}

impl<'s, 'k> Producer<'s, 'k> {
    pub fn run(&self, b: &mut Builder, c: &mut Copier<'k>) {
        let Producer { w, s } = *self;
        w.over_tiles(b, c, (s, Side::Sends), |b, c, at| {
            self.copy_rows(b, c, &Copied { operand: &w.form.left, staged: &s.left }, at.left);
            let left = s.left.rings.next(b, at.left);
            let runs = w.any_runs(b, c);
            let mut each = at.each;
            for pass in &w.form.passes {
                each = self.copy_iterations(b, c, pass, each);
            }
            if let Some(runs) = runs {
                each = self.copy_zeros(b, c, &each, runs);
            }
            Places { left, each }
        });
    }
    /// Copies what the iterations of a loop read: the values of one after the keys of the next, which come first.
    fn copy_iterations(&self, b: &mut Builder, c: &mut Copier<'k>, pass: &Pass, each: Vec<Ring>) -> Vec<Ring> {
        let Some([lo, hi, step]) = self.w.bounds(c, pass) else { return each };
        let at = |index: Value| Iteration { pass, index };
        let runs = self.w.runs(b, pass, [lo, hi]);
        let each = where_it_runs(b, runs, each, |b, each| self.copy_keys(b, c, at(lo), each));
        let second = b.binary(B::Add, lo, step);
        let carried = [Places::of_each(&each), vec![lo]].concat();
        let out = b.for_loop([second, hi, step], &carried, |b, index, now| {
            let (before, each) = now.split_last().map_or((index, now), |(before, each)| (*before, each));
            let each = self.copy_keys(b, c, at(index), &Places::each(each));
            let each = self.copy_values(b, c, at(before), &each);
            [Places::of_each(&each), vec![index]].concat()
        });
        let (last, each) = out.split_last().map_or((lo, &out[..]), |(last, each)| (*last, each));
        where_it_runs(b, runs, Places::each(each), |b, each| self.copy_values(b, c, at(last), each))
    }
    /// Copies the keys of an iteration, and the tiles beside its scores.
    fn copy_keys(&self, b: &mut Builder, c: &mut Copier<'k>, at: Iteration, each: &[Ring]) -> Vec<Ring> {
        self.w.enter(b, c, at.pass, at.index);
        self.copy(b, c, &self.right(at.pass, KEYS), each[KEYS]);
        for (n, operand) in self.w.beside(at.pass) {
            self.copy_rows(b, c, &Copied { operand, staged: &self.s.each[n] }, each[n]);
        }
        c.leave();
        self.w.after(b, self.s, at.pass, each, KEYS..=KEYS)
    }
    fn copy_values(&self, b: &mut Builder, c: &mut Copier<'k>, at: Iteration, each: &[Ring]) -> Vec<Ring> {
        self.w.enter(b, c, at.pass, at.index);
        self.copy(b, c, &self.right(at.pass, VALUES), each[VALUES]);
        c.leave();
        self.after_values(b, each)
    }
    /// Positions in the rings after values.
    fn after_values(&self, b: &mut Builder, each: &[Ring]) -> Vec<Ring> {
        let mut each = each.to_vec();
        each[VALUES] = self.s.each[VALUES].rings.next(b, each[VALUES]);
        each
    }
    /// A right operand of a loop's iterations.
    fn right<'a>(&'a self, pass: &'a Pass, n: usize) -> Copied<'a> {
        Copied { operand: &pass.right[n], staged: &self.s.each[n] }
    }
    /// Copies a right operand of an iteration.
    fn copy(&self, b: &mut Builder, c: &mut Copier<'k>, tile: &Copied, ring: Ring) {
        let starts = c.all(&self.w.k.inst(tile.operand.inst).args[1..]);
        self.copy_from(b, c, tile, ring, &starts);
    }
    fn copy_from(&self, b: &mut Builder, c: &Copier<'k>, tile: &Copied, ring: Ring, starts: &[Value]) {
        let Copied { operand, staged } = tile;
        let Some(desc) = c.get(operand.desc) else { return };
        staged.rings.claim(b, ring, operand.bytes());
        staged.rings.load(b, [staged.tile, ring.stage, desc], ring, starts, false);
    }
    /// Copies each consumer's rows of a tile.
    fn copy_rows(&self, b: &mut Builder, c: &mut Copier<'k>, tile: &Copied, ring: Ring) {
        let Copied { operand, staged } = tile;
        let starts = c.all(&self.w.k.inst(operand.inst).args[1..]);
        let Some(desc) = c.get(operand.desc) else { return };
        staged.rings.claim(b, ring, operand.bytes());
        for copy in 0..self.w.crew.consumers {
            let mut starts = starts.clone();
            if copy > 0 {
                let (axis, rows) = (starts.len() - 2, b.i32((copy * self.w.rows) as i64));
                starts[axis] = b.binary(B::Add, starts[axis], rows);
            }
            let copy = b.i32(copy as i64);
            let stage = self.w.own_stage(b, ring, Some(copy));
            staged.rings.load(b, [staged.tile, stage, desc], ring, &starts, false);
        }
    }
    /// Copies values of zeros unless a loop runs: what the second matmul after the loops then multiplies by zeros.
    fn copy_zeros(&self, b: &mut Builder, c: &Copier<'k>, each: &[Ring], runs: Value) -> Vec<Ring> {
        let values = self.right(&self.w.form.passes[0], VALUES);
        let axes = self.w.k.inst(values.operand.inst).args.len() - 1;
        let out = b.if_else(
            runs,
            |_| Places::of_each(each),
            |b| {
                let starts: Vec<Value> = (0..axes).map(|n| b.i32(if n + 1 == axes { BEFORE } else { 0 })).collect();
                self.copy_from(b, c, &values, each[VALUES], &starts);
                Places::of_each(&self.after_values(b, each))
            },
        );
        Places::each(&out)
    }
}

/// Positions in the rings after what a loop copies, if it has an iteration. `runs`: whether it has; `None`: surely.
fn where_it_runs(
    b: &mut Builder,
    runs: Option<Value>,
    each: Vec<Ring>,
    copies: impl FnOnce(&mut Builder, &[Ring]) -> Vec<Ring>,
) -> Vec<Ring> {
    let Some(runs) = runs else { return copies(b, &each) };
    let copied = |b: &mut Builder| Places::of_each(&copies(b, &each));
    let out = b.if_else(runs, copied, |_| Places::of_each(&each));
    Places::each(&out)
}
