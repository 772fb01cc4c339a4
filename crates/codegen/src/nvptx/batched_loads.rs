//! Batches the loads of a summing loop: all loads of an iteration are in flight before the first of them is added.
//!
//! To save registers, the assembler would put loads between the sums of earlier ones, so that a thread waits several
//! times per iteration, each time for few loads. It moves no load across a branch, so this module puts a branch that is
//! never taken behind the last load of an iteration. Never changes a value.
use super::emit::Res;
use super::r#gen::Gen;
use kiln_block::{BlockProgram, InstData, Op, Region, Value};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// Numbers of accesses per thread, each of 4 bytes or more, for which the branch is profitable and the results leave
/// registers free.
const BATCH: RangeInclusive<usize> = 4..=32;

/// The last load of each loop that only sums what it reads.
pub(super) fn last(k: &BlockProgram) -> HashSet<Value> {
    let mut found = HashSet::new();
    k.walk(&mut |_, d| {
        if d.op == Op::For
            && let Some(region) = d.regions.first()
        {
            found.extend(last_of(k, region));
        }
    });
    found
}

fn last_of(k: &BlockProgram, region: &Region) -> Option<Value> {
    let adds_up = |d: &InstData| {
        matches!(
            d.op,
            Op::Const(_)
                | Op::Iota
                | Op::ProgramId(_)
                | Op::NumPrograms(_)
                | Op::Splat
                | Op::Broadcast
                | Op::ExpandDims(_)
        ) || matches!(d.op, Op::Reshape | Op::Permute(_) | Op::Load(..) | Op::Unary(_) | Op::Binary(_) | Op::Cmp(_))
            || matches!(d.op, Op::Select | Op::Cast(_) | Op::PtrAdd | Op::Reduce { .. } | Op::Yield)
    };
    let body: Vec<&InstData> = region.insts.iter().map(|i| k.inst(*i)).collect();
    if region.params.len() < 2 || !body.iter().all(|d| adds_up(d)) {
        return None;
    }
    body.iter().rev().find(|d| matches!(d.op, Op::Load(..)))?.results.first().copied()
}

impl<'c> Gen<'c, '_> {
    /// Behind the last load of a loop, of which a thread has `count` accesses: a branch that no iteration takes, as the
    /// loop index is never negative.
    pub fn batch_loads(&mut self, load: Value, count: usize) -> Res<()> {
        if let Some(turn) = self.turn.filter(|_| self.batched.contains(&load) && BATCH.contains(&count)) {
            let text = "{ .reg .pred never; setp.eq.s32 never, $0, -1; @never exit; }";
            self.e.asm(text, "r", None, &[turn], true, false)?;
        }
        Ok(())
    }
}
