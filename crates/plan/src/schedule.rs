//! Schedules: how the loop nest of a kernel is mapped onto a machine, as a list of small named steps.
//!
//! A schedule prints as `fuse i0,i1; split i0 8; split r 1024; bind warp 8; peel r 8`, parses back to the same value, and is part of the
//! plan's text. Axes are those of the nest: `i0`, `i1`, … select a row (or a point, where nothing is reduced), `r` runs along it.
//! An axis without a `split` has one position per program instance. A split axis is an axis of the instance's tile, in the order of the
//! splits, outermost first; where it is longer than its block, a kept axis is spread over the grid, and a loop runs over the row.
//! Never: whether a schedule fits a nest or a machine (`kiln_lower::schedule` checks each step and refuses by name), or how long it takes.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// An axis of a nest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Axis {
    /// The n-th axis that is not reduced: `i0`, `i1`, …
    Kept(u8),
    /// The axis along which rows are reduced or scanned: `r`.
    Row,
}
impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Axis::Kept(n) => write!(f, "i{n}"),
            Axis::Row => f.write_str("r"),
        }
    }
}
impl FromStr for Axis {
    type Err = String;
    fn from_str(text: &str) -> Result<Axis, String> {
        let kept = || text.strip_prefix('i')?.parse().ok().map(Axis::Kept);
        let axis = if text == "r" { Some(Axis::Row) } else { kept() };
        axis.ok_or_else(|| format!("`{text}` is not an axis; axes are i0, i1, … and r"))
    }
}

/// One step of a schedule.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Step {
    /// `fuse i0,i1`: the axes are one axis from here on, which has the name of the first.
    Fuse(Vec<Axis>),
    /// `widen i0 32`: along the axis, 32 neighbouring rows of a matrix whose columns are reduced are one wide row, so that rows fill vectors; a second
    /// launch combines the columns that belong together.
    Widen(Axis, usize),
    /// `split i0 8`: blocks of 8 positions, which are the tile's next axis.
    Split(Axis, usize),
    /// `bind warp 8`: warps of a block.
    Warps(usize),
    /// `bind cluster 4`: blocks that share an instance.
    Cluster(usize),
    /// `split-reduce r 16`: so many instances share a row; a second launch combines their partial results.
    SplitReduce(Axis, usize),
    /// `look-back r`: each chunk of a scanned row is an instance, which waits for the totals of those before it; the row is read once.
    LookBack(Axis),
    /// `peel r 8`: lanes are counted from the multiple of 8 before an unaligned row, so that vectors of 8 elements are aligned.
    Peel(Axis, usize),
    /// `tail r 32`: the last elements of a row, a little longer than a power of two, are a tile of 32 lanes of their own.
    Tail(Axis, usize),
    /// `stage rows shared`: the rows of a tile, contiguous in memory, are loaded and stored as one run through shared memory.
    StageRows,
    /// `stage operands global`: an operand that unaligned rows share is copied once for each alignment before the kernel runs.
    StageOperands,
    /// `persist 66`: so many instances stay resident and loop over the rows; the next row is loaded while one is computed.
    Persist(usize),
    /// `prefetch 12`: an instance prefetches the rows of the one that is 12 after it to the L2 cache.
    Prefetch(usize),
}
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Fuse(axes) => {
                let names: Vec<String> = axes.iter().map(Axis::to_string).collect();
                write!(f, "fuse {}", names.join(","))
            }
            Step::Widen(axis, n) => write!(f, "widen {axis} {n}"),
            Step::Split(axis, n) => write!(f, "split {axis} {n}"),
            Step::Warps(n) => write!(f, "bind warp {n}"),
            Step::Cluster(n) => write!(f, "bind cluster {n}"),
            Step::SplitReduce(axis, n) => write!(f, "split-reduce {axis} {n}"),
            Step::LookBack(axis) => write!(f, "look-back {axis}"),
            Step::Peel(axis, n) => write!(f, "peel {axis} {n}"),
            Step::Tail(axis, n) => write!(f, "tail {axis} {n}"),
            Step::StageRows => f.write_str("stage rows shared"),
            Step::StageOperands => f.write_str("stage operands global"),
            Step::Persist(n) => write!(f, "persist {n}"),
            Step::Prefetch(n) => write!(f, "prefetch {n}"),
        }
    }
}

/// The forms of all steps, for messages.
const STEPS: &str = "fuse i0,i1; widen i0 N; split AXIS N; bind warp N; bind cluster N; split-reduce r N; look-back r; peel r N; tail r N; \
                     stage rows shared; stage operands global; persist N; prefetch N";
/// Largest number in a step.
const MOST: usize = 1 << 30;

impl FromStr for Step {
    type Err = String;
    fn from_str(text: &str) -> Result<Step, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |word: &str| {
            let n = word.parse().ok().filter(|n| (1..=MOST).contains(n));
            n.ok_or_else(|| format!("`{word}` in the step `{text}` is not a number from 1 to {MOST}"))
        };
        let on = |step: fn(Axis, usize) -> Step, axis: &str, n: &str| Ok(step(axis.parse()?, number(n)?));
        match words[..] {
            ["fuse", axes] => {
                let axes = axes.split(',').map(str::parse).collect::<Result<Vec<Axis>, _>>()?;
                if axes.len() < 2 { Err(format!("`{text}` names fewer than two axes")) } else { Ok(Step::Fuse(axes)) }
            }
            ["widen", axis, n] => on(Step::Widen, axis, n),
            ["split", axis, n] => on(Step::Split, axis, n),
            ["bind", "warp", n] => Ok(Step::Warps(number(n)?)),
            ["bind", "cluster", n] => Ok(Step::Cluster(number(n)?)),
            ["split-reduce", axis, n] => on(Step::SplitReduce, axis, n),
            ["look-back", axis] => Ok(Step::LookBack(axis.parse()?)),
            ["peel", axis, n] => on(Step::Peel, axis, n),
            ["tail", axis, n] => on(Step::Tail, axis, n),
            ["stage", "rows", "shared"] => Ok(Step::StageRows),
            ["stage", "operands", "global"] => Ok(Step::StageOperands),
            ["persist", n] => Ok(Step::Persist(number(n)?)),
            ["prefetch", n] => Ok(Step::Prefetch(number(n)?)),
            _ => Err(format!("`{text}` is not a step of a schedule; steps are {STEPS}")),
        }
    }
}

/// The steps of a schedule, in order. The empty one computes one point per program instance.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Schedule {
    /// In the order of the text form.
    pub steps: Vec<Step>,
}
impl Schedule {
    /// This schedule and one more step.
    #[must_use]
    pub fn then(mut self, step: Step) -> Schedule {
        self.steps.push(step);
        self
    }
}
impl FromIterator<Step> for Schedule {
    fn from_iter<I: IntoIterator<Item = Step>>(steps: I) -> Schedule {
        Schedule { steps: steps.into_iter().collect() }
    }
}
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        f.write_str(&steps.join("; "))
    }
}
impl FromStr for Schedule {
    type Err = String;
    fn from_str(text: &str) -> Result<Schedule, String> {
        if text.trim().is_empty() {
            return Ok(Schedule::default());
        }
        text.split(';').map(|step| step.trim().parse()).collect::<Result<Vec<Step>, _>>().map(Schedule::from_iter)
    }
}
impl TryFrom<String> for Schedule {
    type Error = String;
    fn try_from(text: String) -> Result<Schedule, String> {
        text.parse()
    }
}
impl From<Schedule> for String {
    fn from(schedule: Schedule) -> String {
        schedule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_read_as_they_print() {
        for text in [
            "",
            "fuse i0,i1; split i0 8; split r 1024; bind warp 8; peel r 8; tail r 32",
            "widen i0 32; split r 64; split i0 128; bind warp 4; split-reduce r 20",
            "split r 131072; bind warp 16; bind cluster 16; stage operands global; persist 7; prefetch 12",
            "stage rows shared",
            "split r 8192; bind warp 8; look-back r",
        ] {
            assert_eq!(text.parse::<Schedule>().map(|s| s.to_string()).as_deref(), Ok(text));
        }
        for (wrong, why) in [
            ("split", "`split` is not a step"),
            ("split j0 8", "`j0` is not an axis"),
            ("split i0 0", "`0` in the step"),
            ("split i0 8,", "`8,` in the step"),
            ("fuse i0", "fewer than two axes"),
            ("split i0 8;", "`` is not a step"),
            ("bind lane 32", "`bind lane 32` is not a step"),
        ] {
            let e = wrong.parse::<Schedule>().expect_err(wrong);
            assert!(e.contains(why), "{wrong}: {e}");
        }
    }
}
