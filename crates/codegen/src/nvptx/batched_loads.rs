//! Loads of a turn of a loop that are all on their way before the first of them is added up.
//!
//! The assembler saves registers where it can: it puts loads between the sums of what came before, so that a thread waits
//! several times a turn, each time for few loads. It moves none of them behind a branch.
use super::emit::Res;
use super::r#gen::Gen;
use kiln_block::{InstData, Kernel, Op, Region, Value};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// Loads of a thread, of words or more, that are worth a branch and whose results do not fill its registers.
const ASKED: RangeInclusive<usize> = 4..=32;

/// The last load of each loop that adds up what it reads and does nothing else.
pub(super) fn last(k: &Kernel) -> HashSet<Value> {
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

fn last_of(k: &Kernel, region: &Region) -> Option<Value> {
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
        ) || matches!(d.op, Op::Reshape | Op::Permute(_) | Op::Load | Op::Unary(_) | Op::Binary(_) | Op::Cmp(_))
            || matches!(d.op, Op::Select | Op::Cast(_) | Op::PtrAdd | Op::Reduce { .. } | Op::Yield)
    };
    let body: Vec<&InstData> = region.insts.iter().map(|i| k.inst(*i)).collect();
    if region.params.len() < 2 || !body.iter().all(|d| adds_up(d)) {
        return None;
    }
    body.iter().rev().find(|d| d.op == Op::Load)?.results.first().copied()
}

impl<'c> Gen<'c, '_> {
    /// Behind the last load of a loop, so many in a thread, a branch that no turn takes: its number is never negative.
    pub fn ask_first(&mut self, load: Value, count: usize) -> Res<()> {
        if let Some(turn) = self.turn.filter(|_| self.asked.contains(&load) && ASKED.contains(&count)) {
            let text = "{ .reg .pred never; setp.eq.s32 never, $0, -1; @never exit; }";
            self.e.asm(text, "r", None, &[turn], true, false)?;
        }
        Ok(())
    }
}
