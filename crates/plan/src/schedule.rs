//! Schedules: how the loop nest of a kernel is mapped onto a machine, as a list of small named steps.
//!
//! A schedule prints as `fuse i0,i1; split i0 8; split r 1024; bind warp 8; peel r 8`, parses back to the same value,
//! and is part of the plan's text. Axes are those of the nest: `i0`, `i1`, … select a row (or a point, where nothing is
//! reduced), `r` runs along it. An axis without a `split` has one position per program instance. A split axis is an
//! axis of the instance's tile, in the order of the splits, outermost first; where it is longer than its block, a kept
//! axis is spread over the grid, and a loop runs over the row.
//!
//! A matmul of `a` (m x k) and `b` (k x n) prints as `split-reduce k 3; tensor-core wgmma 128x256x64; stage a,b shared
//! 4; persist 132`: what multiplies, in which tiles, how operands get there, and the forms that it is computed in
//! (`swap a,b`, `dual-gemm`, `implicit-gemm`). Convolutions are matmuls of the weight with patches of the input.
//! Attention has tiles of queries and keys (`tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2`). `call
//! library` leaves it all to a library. Never: whether a schedule fits a nest or a machine (`kiln_lower::schedule`
//! checks each step and refuses by name), or how long it takes.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// An axis of a nest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Axis {
    /// The n-th axis that is not reduced: `i0`, `i1`, …
    Kept(u8),
    /// The axis along which rows are reduced or scanned: `r`.
    Row,
    /// The axis that a matmul sums over: `k`.
    K,
    /// The keys of attention: `keys`.
    Keys,
}
impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Axis::Kept(n) => write!(f, "i{n}"),
            Axis::Row => f.write_str("r"),
            Axis::K => f.write_str("k"),
            Axis::Keys => f.write_str("keys"),
        }
    }
}
impl FromStr for Axis {
    type Err = String;
    fn from_str(text: &str) -> Result<Axis, String> {
        let kept = || text.strip_prefix('i')?.parse().ok().map(Axis::Kept);
        let axis = match text {
            "r" => Some(Axis::Row),
            "k" => Some(Axis::K),
            "keys" => Some(Axis::Keys),
            _ => kept(),
        };
        axis.ok_or_else(|| {
            format!("`{text}` is not an axis; axes are i0, i1, … and r, k of a matmul, and keys of attention")
        })
    }
}

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Engine {
    /// Tensor cores, by instructions of four warps whose operands are in shared memory.
    Wgmma,
    /// The same for f32, as the sum of three matmuls in tf32.
    Wgmma3xTf32,
    /// Tensor cores, by instructions of a warp.
    Mma,
    /// The same for f32, as the sum of three matmuls in tf32.
    Mma3xTf32,
    /// FMAs of single elements.
    Fma,
}
impl Engine {
    /// Every engine.
    pub const ALL: [Engine; 5] = [Engine::Wgmma, Engine::Wgmma3xTf32, Engine::Mma, Engine::Mma3xTf32, Engine::Fma];
    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Wgmma => "tensor-core wgmma",
            Engine::Wgmma3xTf32 => "tensor-core wgmma-3xtf32",
            Engine::Mma => "tensor-core mma",
            Engine::Mma3xTf32 => "tensor-core mma-3xtf32",
            Engine::Fma => "fma",
        }
    }
}

/// An operand of a matmul or of attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Operand {
    /// Left operand of a matmul.
    A,
    /// Right operand of a matmul.
    B,
    /// Result of a matmul.
    C,
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
}
impl Operand {
    const ALL: [(Operand, &'static str); 6] = [
        (Operand::A, "a"),
        (Operand::B, "b"),
        (Operand::C, "c"),
        (Operand::Q, "q"),
        (Operand::K, "k"),
        (Operand::V, "v"),
    ];
    fn list(all: &[Operand]) -> String {
        let names = all.iter().flat_map(|o| Operand::ALL.iter().find(|n| n.0 == *o)).map(|n| n.1);
        names.collect::<Vec<_>>().join(",")
    }
    fn read(text: &str) -> Option<Vec<Operand>> {
        text.split(',').map(|name| Operand::ALL.iter().find(|n| n.1 == name).map(|n| n.0)).collect()
    }
}

/// One step of a schedule.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Step {
    /// `fuse i0,i1`: the axes are one axis from here on, which has the name of the first.
    Fuse(Vec<Axis>),
    /// `widen i0 32`: along the axis, 32 neighbouring rows of a matrix whose columns are reduced or normalized are one
    /// wide row, so that rows fill vectors; a second launch combines the columns that belong together, and a third one
    /// of a norm stores.
    Widen(Axis, usize),
    /// `unroll i1 4`: a thread computes 4 neighbours along the axis for each element of its tile, and what they have in
    /// common once: elements that windows share, and partial results.
    Unroll(Axis, usize),
    /// `split i0 8`: blocks of 8 positions, which are the tile's next axis.
    Split(Axis, usize),
    /// `bind warp 8`: warps of a block.
    Warps(usize),
    /// `bind cluster 4`: blocks that share an instance.
    Cluster(usize),
    /// `bind vector 8`: a thread holds 8 neighbours along the axis that is contiguous in memory, where alignment alone
    /// would give it fewer.
    Vector(usize),
    /// `bind lane 8`: 8 lanes of a warp are along the axis that is contiguous in memory, the row of short rows, and the
    /// others have other rows of the tile.
    Lanes(usize),
    /// `registers 64`: most registers of a thread, so that blocks of several instances are resident; what does not fit
    /// is kept in memory.
    Registers(usize),
    /// `split-reduce r 16`: so many instances share a row; a second launch combines their partial results.
    SplitReduce(Axis, usize),
    /// `look-back r`: each chunk of a scanned row is an instance, which waits for the totals of those before it; the
    /// row is read once. `look-back r 32`: sums of 32 chunks are published too, so that an instance waits for fewer; 1
    /// is without them.
    LookBack(Axis, usize),
    /// `peel r 8`: lanes are counted from the multiple of 8 before an unaligned row, so that vectors of 8 elements are
    /// aligned.
    Peel(Axis, usize),
    /// `tail r 32`: the last elements of a row, a little longer than a power of two, are a tile of 32 lanes of their
    /// own.
    Tail(Axis, usize),
    /// `stage rows shared`: the rows of a tile, contiguous in memory, are loaded and stored as one run through shared
    /// memory.
    StageRows,
    /// `stage operands global`: an operand that unaligned rows share is copied once for each alignment before the
    /// kernel runs.
    StageOperands,
    /// `persist 66`: so many instances stay resident and loop over the rows, or over the tiles of a matmul; what the
    /// next one needs is loaded while one is computed.
    Persist(usize),
    /// `prefetch 12`: an instance prefetches the rows of the one that is 12 after it to the L2 cache.
    Prefetch(usize),
    /// `reverse r`: the pass that stores along rows goes from their ends to their starts, and begins with what is still
    /// in the L2 cache.
    Reverse(Axis),
    /// `swap a,b`: a matmul with its operands swapped and transposed, which gives the transpose of its result.
    Swap,
    /// `dual-gemm`: one left operand with the two halves of the right one, each with an accumulator of its own.
    DualGemm,
    /// `implicit-gemm`: a convolution reads its patches as shifted rows of a padded copy of its input.
    ImplicitGemm,
    /// `fold-window 3`: a row of an implicit GEMM's copy holds the channels of so many neighbouring points of the
    /// window's innermost axis.
    FoldWindow(usize),
    /// `join-residues 1`: a transposed convolution computes all residues of so many of its innermost axes by one
    /// launch, with weights of zero for points that the window lacks.
    JoinResidues(usize),
    /// `tensor-core wgmma 128x256x64`: what multiplies, and the tile of the result and of the axis that is summed over.
    /// Attention has two sizes: queries and keys.
    Multiply(Engine, Vec<usize>),
    /// `stage a,b shared 4`: tiles of the operands are copied into a ring of 4 stages in shared memory while earlier
    /// ones are multiplied. `stage c shared 2`: the epilogue reads an array of the size and type of its only result
    /// through 2 buffers that are filled while the matmul runs, and stores the result from them.
    Stage(Vec<Operand>, usize),
    /// `stage a global`: the operand is copied to rows that tiles can be copied from, by a launch before; `stage c
    /// global`: the result is stored, and a launch of its own computes the epilogue.
    Copy(Vec<Operand>),
    /// `group m 16`: tiles are taken in groups of 16 rows of tiles, column by column.
    Group(usize),
    /// `ping-pong`: two tiles of a block are in flight; one is multiplied while the epilogue of the other runs.
    PingPong,
    /// `block-mask`: a launch before finds the blocks of keys that a mask leaves, and the others are skipped.
    BlockMask,
    /// `call library`: cuBLASLt on a GPU, Kiln's packed matmuls on the host.
    Call,
    /// `launch left (split i0 512; bind warp 4)`: the schedule of a launch beside the matmul, by the end of its
    /// program's name: a copy of an operand, the sum of slices, an epilogue of its own.
    Launch(String, Schedule),
}
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Fuse(axes) => {
                let names: Vec<String> = axes.iter().map(Axis::to_string).collect();
                write!(f, "fuse {}", names.join(","))
            }
            Step::Widen(axis, n) => write!(f, "widen {axis} {n}"),
            Step::Unroll(axis, n) => write!(f, "unroll {axis} {n}"),
            Step::Split(axis, n) => write!(f, "split {axis} {n}"),
            Step::Warps(n) => write!(f, "bind warp {n}"),
            Step::Cluster(n) => write!(f, "bind cluster {n}"),
            Step::Vector(n) => write!(f, "bind vector {n}"),
            Step::Lanes(n) => write!(f, "bind lane {n}"),
            Step::Registers(n) => write!(f, "registers {n}"),
            Step::SplitReduce(axis, n) => write!(f, "split-reduce {axis} {n}"),
            Step::LookBack(axis, 1) => write!(f, "look-back {axis}"),
            Step::LookBack(axis, n) => write!(f, "look-back {axis} {n}"),
            Step::Peel(axis, n) => write!(f, "peel {axis} {n}"),
            Step::Tail(axis, n) => write!(f, "tail {axis} {n}"),
            Step::StageRows => f.write_str("stage rows shared"),
            Step::StageOperands => f.write_str("stage operands global"),
            Step::Persist(n) => write!(f, "persist {n}"),
            Step::Prefetch(n) => write!(f, "prefetch {n}"),
            Step::Reverse(axis) => write!(f, "reverse {axis}"),
            Step::Swap => f.write_str("swap a,b"),
            Step::DualGemm => f.write_str("dual-gemm"),
            Step::ImplicitGemm => f.write_str("implicit-gemm"),
            Step::FoldWindow(n) => write!(f, "fold-window {n}"),
            Step::JoinResidues(n) => write!(f, "join-residues {n}"),
            Step::Multiply(engine, tile) => {
                let sizes: Vec<String> = tile.iter().map(usize::to_string).collect();
                write!(f, "{} {}", engine.name(), sizes.join("x"))
            }
            Step::Stage(of, n) => write!(f, "stage {} shared {n}", Operand::list(of)),
            Step::Copy(of) => write!(f, "stage {} global", Operand::list(of)),
            Step::Group(n) => write!(f, "group m {n}"),
            Step::PingPong => f.write_str("ping-pong"),
            Step::BlockMask => f.write_str("block-mask"),
            Step::Call => f.write_str("call library"),
            Step::Launch(name, schedule) => write!(f, "launch {name} ({schedule})"),
        }
    }
}

/// The forms of all steps, for messages.
const STEPS: &str = "fuse i0,i1; widen i0 N; unroll AXIS N; split AXIS N; bind warp N; bind cluster N; bind vector N; \
                     bind lane N; registers N; split-reduce AXIS N; look-back r; look-back r N; peel r N; tail r N; \
                     stage rows shared; stage operands global; persist N; prefetch N; reverse r; of matmuls also swap \
                     a,b; dual-gemm; implicit-gemm; fold-window N; join-residues N; tensor-core wgmma MxNxK; \
                     tensor-core mma MxNxK; fma MxNxK; stage OPERANDS shared N; stage OPERANDS global; group m N; \
                     ping-pong; block-mask; call library; launch NAME (STEPS)";
/// Largest number in a step.
const MOST: usize = 1 << 30;

impl FromStr for Step {
    type Err = String;
    fn from_str(text: &str) -> Result<Step, String> {
        if let Some(rest) = text.strip_prefix("launch ") {
            let parts =
                rest.split_once('(').and_then(|(name, steps)| Some((name.trim(), steps.trim_end().strip_suffix(')')?)));
            let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let Some((name, steps)) = parts.filter(|p| is_name(&p.0)) else {
                return Err(format!("`{text}` is not `launch NAME (STEPS)`"));
            };
            let schedule: Schedule = steps.parse()?;
            if let Some(step) = schedule.steps.iter().find(|s| matches!(s, Step::Launch(..))) {
                return Err(format!("`{step}` is inside of another launch"));
            }
            return Ok(Step::Launch(name.into(), schedule));
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |word: &str| {
            let n = word.parse().ok().filter(|n| (1..=MOST).contains(n));
            n.ok_or_else(|| format!("`{word}` in the step `{text}` is not a number from 1 to {MOST}"))
        };
        let sizes = |word: &str| word.split('x').map(number).collect::<Result<Vec<usize>, _>>();
        let operands = |word: &str| {
            Operand::read(word).ok_or_else(|| {
                format!(
                    "`{word}` in the step `{text}` is not a list of operands: a, b, c of a matmul, q, k, v of attention"
                )
            })
        };
        let engine = |words: &[&str]| Engine::ALL.into_iter().find(|e| e.name() == words.join(" "));
        if let Some((tile, Some(engine))) = words.split_last().map(|(tile, name)| (tile, engine(name))) {
            return Ok(Step::Multiply(engine, sizes(tile)?));
        }
        let on = |step: fn(Axis, usize) -> Step, axis: &str, n: &str| Ok(step(axis.parse()?, number(n)?));
        match words[..] {
            ["fuse", axes] => {
                let axes = axes.split(',').map(str::parse).collect::<Result<Vec<Axis>, _>>()?;
                if axes.len() < 2 { Err(format!("`{text}` names fewer than two axes")) } else { Ok(Step::Fuse(axes)) }
            }
            ["widen", axis, n] => on(Step::Widen, axis, n),
            ["unroll", axis, n] => on(Step::Unroll, axis, n),
            ["split", axis, n] => on(Step::Split, axis, n),
            ["bind", "warp", n] => Ok(Step::Warps(number(n)?)),
            ["bind", "cluster", n] => Ok(Step::Cluster(number(n)?)),
            ["bind", "vector", n] => Ok(Step::Vector(number(n)?)),
            ["bind", "lane", n] => Ok(Step::Lanes(number(n)?)),
            ["registers", n] => Ok(Step::Registers(number(n)?)),
            ["split-reduce", axis, n] => on(Step::SplitReduce, axis, n),
            ["look-back", axis] => Ok(Step::LookBack(axis.parse()?, 1)),
            ["look-back", axis, n] => on(Step::LookBack, axis, n),
            ["peel", axis, n] => on(Step::Peel, axis, n),
            ["tail", axis, n] => on(Step::Tail, axis, n),
            ["stage", "rows", "shared"] => Ok(Step::StageRows),
            ["stage", "operands", "global"] => Ok(Step::StageOperands),
            ["persist", n] => Ok(Step::Persist(number(n)?)),
            ["prefetch", n] => Ok(Step::Prefetch(number(n)?)),
            ["reverse", axis] => Ok(Step::Reverse(axis.parse()?)),
            ["swap", "a,b"] => Ok(Step::Swap),
            ["dual-gemm"] => Ok(Step::DualGemm),
            ["implicit-gemm"] => Ok(Step::ImplicitGemm),
            ["fold-window", n] => Ok(Step::FoldWindow(number(n)?)),
            ["join-residues", n] => Ok(Step::JoinResidues(number(n)?)),
            ["stage", of, "shared", n] => Ok(Step::Stage(operands(of)?, number(n)?)),
            ["stage", of, "global"] => Ok(Step::Copy(operands(of)?)),
            ["group", "m", n] => Ok(Step::Group(number(n)?)),
            ["ping-pong"] => Ok(Step::PingPong),
            ["block-mask"] => Ok(Step::BlockMask),
            ["call", "library"] => Ok(Step::Call),
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
    /// Without the schedules of other launches.
    #[must_use]
    pub fn main(&self) -> Schedule {
        self.steps.iter().filter(|s| !matches!(s, Step::Launch(..))).cloned().collect()
    }
    /// The schedules of other launches, by name.
    pub fn launches(&self) -> impl Iterator<Item = (&str, &Schedule)> {
        self.steps.iter().filter_map(|s| match s {
            Step::Launch(name, schedule) => Some((name.as_str(), schedule)),
            _ => None,
        })
    }
    /// Whether it is that of a kernel of several launches, none of which is what the kernel is about.
    pub fn only_launches(&self) -> bool {
        !self.steps.is_empty() && self.steps.iter().all(|s| matches!(s, Step::Launch(..)))
    }
    /// Whether a matmul or attention has this schedule, and not the nest of another kernel.
    pub fn multiplies(&self) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::Multiply(..) | Step::Call))
    }
    /// The step that multiplies tiles.
    pub fn tile(&self) -> Option<&Step> {
        self.steps.iter().find(|s| matches!(s, Step::Multiply(..)))
    }
    /// Whether it has tiles of queries and keys.
    pub fn is_attention(&self) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::Multiply(_, tile) if tile.len() == 2))
    }
    /// Whether a library is called.
    pub fn is_call(&self) -> bool {
        self.steps.contains(&Step::Call)
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
        // Steps of a launch are in parentheses.
        let mut depth = 0i32;
        let ends = |c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ';' && depth == 0
        };
        text.split(ends).map(|step| step.trim().parse()).collect::<Result<Vec<Step>, _>>().map(Schedule::from_iter)
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
            "widen i0 32; split r 64; split i0 128; bind warp 4; split-reduce r 20; reverse r",
            "split r 131072; bind warp 16; bind cluster 16; stage operands global; persist 7; prefetch 12",
            "stage rows shared",
            "fuse i0,i1; split i0 64; split i2 8; bind warp 2; bind vector 8",
            "unroll i1 4; fuse i0,i1,i2; split i0 512; bind warp 4; bind vector 4",
            "split r 8192; bind warp 8; bind cluster 4; registers 64",
            "split i0 16; split r 128; bind warp 4; bind lane 8; stage rows shared",
            "split r 8192; bind warp 8; look-back r",
            "split r 512; split i0 32; bind warp 16; registers 64; look-back r 32",
            "swap a,b; split-reduce k 3; tensor-core wgmma 128x256x64; stage a,b shared 4; bind cluster 2; group m 16; \
             persist 132; ping-pong",
            "implicit-gemm; join-residues 2; tensor-core wgmma-3xtf32 64x64x32; stage a global; stage c global",
            "dual-gemm; fma 64x64x32; bind warp 4",
            "tensor-core wgmma 128x128x64; stage a,b shared 6; stage c shared 2; group m 16; persist 132",
            "split-reduce keys 4; tensor-core mma 16x64; block-mask",
            "tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2; persist 132",
            "call library",
            "call library; launch epilogue (split i0 64; bind warp 2)",
            "stage a global; tensor-core wgmma 64x64x64; stage a,b shared 5; launch left (fuse i0,i1; split i0 512; \
             bind warp 4)",
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
            ("bind thread 32", "`bind thread 32` is not a step"),
            ("fma 64x0x32", "`0` in the step"),
            ("fma", "`fma` is not a step"),
            ("tensor-core dmma 64x64x32", "is not a step"),
            ("stage a,w shared 4", "`a,w` in the step"),
            ("launch left", "is not `launch NAME (STEPS)`"),
            ("launch left (split i0 8", "is not `launch NAME (STEPS)`"),
            ("launch a-b (split i0 8)", "is not `launch NAME (STEPS)`"),
            ("launch left (split i0)", "`split i0` is not a step"),
            ("launch left (launch right (bind warp 1))", "is inside of another launch"),
        ] {
            let e = wrong.parse::<Schedule>().expect_err(wrong);
            assert!(e.contains(why), "{wrong}: {e}");
        }
    }
}
