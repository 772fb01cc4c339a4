//! Schedules of matmuls, convolutions and attention, in numbers.
//!
//! Takes: the steps of a schedule. Gives: the form, tile and stages that they state, and the steps again. Lowering
//! follows such a schedule to the letter or refuses it.
use crate::schedule::{Axis, Engine, Operand, Schedule, Step};

/// The schedule of a kernel that multiplies: a matmul, a convolution or attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MatmulSchedule {
    /// A call of the library.
    Library,
    /// Tiles of a matmul or a convolution.
    Matmul(TiledMatmul),
    /// Tiles of attention.
    Attention(TiledAttention),
}

/// The schedule of a matmul.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TiledMatmul {
    /// Which matmul is computed, and with which launches.
    pub form: MatmulForm,
    /// How its tiles are computed.
    pub tile: MatmulTile,
}

/// The form in which a matmul is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatmulForm {
    /// The operands are swapped: the transpose of the result is computed.
    pub swap: bool,
    /// The halves of the right operand have accumulators of their own.
    pub dual: bool,
    /// A convolution by shifted rows of a padded copy of its input.
    pub implicit: bool,
    /// Points of the window whose channels are in one row of that copy.
    pub folded: usize,
    /// Innermost axes of which a transposed convolution computes all residues together.
    pub joined: usize,
    /// Slices of K that are summed by a launch of their own.
    pub slices: usize,
    /// Operands that are copied first.
    pub copies: [bool; 2],
    /// A launch of its own computes the epilogue, from the result in memory.
    pub separate_epilogue: bool,
}
impl Default for MatmulForm {
    fn default() -> MatmulForm {
        MatmulForm {
            swap: false,
            dual: false,
            implicit: false,
            folded: 1,
            joined: 0,
            slices: 1,
            copies: [false; 2],
            separate_epilogue: false,
        }
    }
}

/// How tiles of the result are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatmulTile {
    /// What multiplies.
    pub engine: Engine,
    /// Rows and columns of a tile, and the part of K that is multiplied at a time.
    pub size: [usize; 3],
    /// Stages of the ring of operand tiles in shared memory; without one, operands are loaded to registers.
    pub stages: Option<usize>,
    /// Buffers in shared memory through which the epilogue reads a tile that is copied while the matmul runs, and
    /// stores its result.
    pub buffers: Option<usize>,
    /// Warps of a block; with stages they follow from the tile.
    pub warps: Option<usize>,
    /// Blocks of a cluster, which share the right operand.
    pub cluster: usize,
    /// Rows of tiles in a group.
    pub group: usize,
    /// Resident blocks of the persistent kernel.
    pub persist: Option<usize>,
    /// Two tiles of a block are in flight: the epilogue of one while the other is multiplied.
    pub ping_pong: bool,
}

/// The schedule of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TiledAttention {
    /// What multiplies.
    pub engine: Engine,
    /// Queries of a tile, and keys of an iteration.
    pub size: [usize; 2],
    /// Slices of the keys, whose results a launch of its own joins.
    pub slices: usize,
    /// Tiles of queries, and of keys and values, in shared memory; without, operands are loaded to registers.
    pub stages: Option<[usize; 2]>,
    /// Warps of a block; with stages they follow from the tile.
    pub warps: Option<usize>,
    /// Resident blocks of the persistent kernel.
    pub persist: Option<usize>,
    /// A launch before finds the blocks of keys that a mask leaves.
    pub block_mask: bool,
}

/// What the steps of a schedule say, of a matmul or of attention.
struct StatedSteps {
    form: MatmulForm,
    tile: MatmulTile,
    /// Queries and keys of attention's tile.
    attention_size: Option<[usize; 2]>,
    /// Stages of queries, and of keys and values.
    query_stages: Option<usize>,
    key_stages: Option<usize>,
    /// Parts of the keys that instances share.
    key_slices: usize,
    block_mask: bool,
}

impl Default for StatedSteps {
    fn default() -> StatedSteps {
        StatedSteps {
            form: MatmulForm::default(),
            tile: MatmulTile::new(Engine::Fma),
            attention_size: None,
            query_stages: None,
            key_stages: None,
            key_slices: 1,
            block_mask: false,
        }
    }
}

impl StatedSteps {
    fn read(&mut self, step: &Step) -> Result<(), String> {
        let StatedSteps { form, tile, .. } = self;
        match step {
            Step::Swap => form.swap = true,
            Step::DualGemm => form.dual = true,
            Step::ImplicitGemm => form.implicit = true,
            Step::FoldWindow(n) => form.folded = *n,
            Step::JoinResidues(n) => form.joined = *n,
            Step::SplitReduce(Axis::K, n) => form.slices = *n,
            Step::SplitReduce(Axis::Keys, n) => self.key_slices = *n,
            Step::Multiply(engine, size) => {
                tile.engine = *engine;
                match size[..] {
                    [m, n, k] => tile.size = [m, n, k],
                    [q, k] => self.attention_size = Some([q, k]),
                    _ => return Err(format!("`{step}` does not have three sizes, or two of attention")),
                }
            }
            Step::Stage(operands, n) => match operands[..] {
                [Operand::A, Operand::B] => tile.stages = Some(*n),
                [Operand::C] => tile.buffers = Some(*n),
                [Operand::Q] => self.query_stages = Some(*n),
                [Operand::K, Operand::V] => self.key_stages = Some(*n),
                _ => return Err(format!("`{step}` is not for a,b or c of a matmul, or q or k,v of attention")),
            },
            Step::Copy(operands) => {
                for operand in operands {
                    match operand {
                        Operand::A => form.copies[0] = true,
                        Operand::B => form.copies[1] = true,
                        Operand::C => form.separate_epilogue = true,
                        _ => return Err(format!("`{step}` is for a, b and c of a matmul")),
                    }
                }
            }
            Step::Warps(n) => tile.warps = Some(*n),
            Step::Cluster(n) => tile.cluster = *n,
            Step::Group(n) => tile.group = *n,
            Step::Persist(n) => tile.persist = Some(*n),
            Step::PingPong => tile.ping_pong = true,
            Step::BlockMask => self.block_mask = true,
            _ => return Err(format!("`{step}` is not a step of a kernel that multiplies")),
        }
        Ok(())
    }
    /// The schedule of a matmul, if no step is attention's.
    fn matmul(self) -> Result<TiledMatmul, String> {
        let staged = self.query_stages.is_some() || self.key_stages.is_some();
        if staged || self.key_slices > 1 || self.block_mask {
            return Err("it has steps of attention, and the tile of a matmul".into());
        }
        Ok(TiledMatmul { form: self.form, tile: self.tile })
    }
    /// The schedule of attention with a tile of that many queries and keys, if no step is a matmul's.
    fn attention(self, size: [usize; 2]) -> Result<TiledAttention, String> {
        let MatmulTile { engine, warps, persist, .. } = self.tile;
        let plain = MatmulTile { engine, warps, persist, ..MatmulTile::new(engine) };
        if self.form != MatmulForm::default() || self.tile != plain {
            return Err("it has steps of a matmul, and the tile of attention".into());
        }
        let stages = match (self.query_stages, self.key_stages) {
            (Some(q), Some(kv)) => Some([q, kv]),
            (None, None) => None,
            _ => {
                return Err(
                    "queries, keys and values are staged together: `stage q shared N; stage k,v shared N`".into()
                );
            }
        };
        let (slices, block_mask) = (self.key_slices, self.block_mask);
        Ok(TiledAttention { engine, size, slices, stages, warps, persist, block_mask })
    }
}

impl MatmulSchedule {
    /// Reads a schedule; `None` for that of a nest.
    pub fn of(schedule: &Schedule) -> Result<Option<MatmulSchedule>, String> {
        let schedule = &schedule.main();
        if !schedule.multiplies() {
            return Ok(None);
        }
        if schedule.is_call() {
            return match schedule.steps.len() {
                1 => Ok(Some(MatmulSchedule::Library)),
                _ => Err(format!("`{}` leaves nothing to other steps", Step::Call)),
            };
        }
        let mut steps = StatedSteps::default();
        for (at, step) in schedule.steps.iter().enumerate() {
            let same = |other: &Step| std::mem::discriminant(other) == std::mem::discriminant(step);
            let repeats = !matches!(step, Step::Stage(..) | Step::Copy(_));
            if repeats && schedule.steps[..at].iter().any(same) || schedule.steps[..at].contains(step) {
                return Err(format!("`{step}` comes after another such step"));
            }
            steps.read(step)?;
        }
        match steps.attention_size {
            Some(size) => steps.attention(size).map(|a| Some(MatmulSchedule::Attention(a))),
            None => steps.matmul().map(|m| Some(MatmulSchedule::Matmul(m))),
        }
    }

    /// Whether it sums in an order that does not depend on the number of rows.
    pub fn is_invariant(&self) -> bool {
        match self {
            MatmulSchedule::Library => false,
            MatmulSchedule::Matmul(p) => p.form.slices == 1 && !p.form.swap && !p.form.implicit,
            MatmulSchedule::Attention(_) => true,
        }
    }
    /// Multiprocessors, of so many, that a persistent kernel has no blocks for. What a library does is not known.
    pub fn idle(&self, multiprocessors: usize) -> usize {
        let blocks = match self {
            MatmulSchedule::Library => Some(0),
            MatmulSchedule::Matmul(p) => p.tile.persist,
            MatmulSchedule::Attention(a) => a.persist,
        };
        blocks.map_or(0, |blocks| multiprocessors.saturating_sub(blocks))
    }
    /// In which order form are preferred where the number of rows may not choose one: sums in another order come later.
    pub fn form(&self) -> [bool; 2] {
        match self {
            MatmulSchedule::Library => [false; 2],
            MatmulSchedule::Matmul(p) => [p.tile.stages.is_none(), p.form.separate_epilogue],
            MatmulSchedule::Attention(a) => [a.stages.is_none(), false],
        }
    }
    /// Why this is not the schedule that was followed, where that is another one.
    pub fn differs(&self, made: &MatmulSchedule) -> Option<String> {
        let (asked, made) = (self.schedule().steps, made.schedule().steps);
        // The number of resident blocks is that of the machine where it is not given.
        let more = |s: &&Step| !asked.contains(s) && !matches!(s, Step::Persist(_));
        let lacks = asked.iter().find(|s| !made.contains(s)).map(|s| format!("`{s}` does not apply to the kernel"));
        lacks.or_else(|| made.iter().find(more).map(|s| format!("the kernel needs `{s}`")))
    }
    /// The steps.
    pub fn schedule(&self) -> Schedule {
        match self {
            MatmulSchedule::Library => Schedule::default().then(Step::Call),
            MatmulSchedule::Matmul(p) => p.steps().collect(),
            MatmulSchedule::Attention(a) => a.steps().collect(),
        }
    }
}

impl MatmulTile {
    /// A tile without steps of its own.
    pub fn new(engine: Engine) -> MatmulTile {
        let size = [0; 3];
        MatmulTile {
            engine,
            size,
            stages: None,
            buffers: None,
            warps: None,
            cluster: 1,
            group: 1,
            persist: None,
            ping_pong: false,
        }
    }
}

impl TiledMatmul {
    fn steps(&self) -> impl Iterator<Item = Step> {
        let TiledMatmul { form, tile } = *self;
        let copied = [(form.copies[0], Operand::A), (form.copies[1], Operand::B), (form.separate_epilogue, Operand::C)];
        let copied: Vec<Operand> = copied.into_iter().filter(|c| c.0).map(|c| c.1).collect();
        let more = |n: usize, step: fn(usize) -> Step| (n > 1).then(|| step(n));
        [
            form.swap.then_some(Step::Swap),
            form.dual.then_some(Step::DualGemm),
            form.implicit.then_some(Step::ImplicitGemm),
            more(form.folded, Step::FoldWindow),
            (form.joined > 0).then_some(Step::JoinResidues(form.joined)),
            (!copied.is_empty()).then_some(Step::Copy(copied)),
            more(form.slices, |n| Step::SplitReduce(Axis::K, n)),
            Some(Step::Multiply(tile.engine, tile.size.to_vec())),
            tile.stages.map(|n| Step::Stage(vec![Operand::A, Operand::B], n)),
            tile.buffers.map(|n| Step::Stage(vec![Operand::C], n)),
            tile.warps.map(Step::Warps),
            more(tile.cluster, Step::Cluster),
            more(tile.group, Step::Group),
            tile.persist.map(Step::Persist),
            tile.ping_pong.then_some(Step::PingPong),
        ]
        .into_iter()
        .flatten()
    }
}

impl TiledAttention {
    fn steps(&self) -> impl Iterator<Item = Step> {
        let [queries, keys] = self.stages.map_or([None; 2], |s| s.map(Some));
        [
            (self.slices > 1).then_some(Step::SplitReduce(Axis::Keys, self.slices)),
            Some(Step::Multiply(self.engine, self.size.to_vec())),
            queries.map(|n| Step::Stage(vec![Operand::Q], n)),
            keys.map(|n| Step::Stage(vec![Operand::K, Operand::V], n)),
            self.warps.map(Step::Warps),
            self.persist.map(Step::Persist),
            self.block_mask.then_some(Step::BlockMask),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<MatmulSchedule>, String> {
        MatmulSchedule::of(&text.parse().expect("a schedule"))
    }

    #[test]
    fn schedules_that_multiply_are_read_as_they_print() {
        for text in [
            "call library",
            "tensor-core mma 64x64x64; bind warp 4",
            "tensor-core wgmma 128x128x64; stage a,b shared 5; stage c shared 2; group m 16; persist 132; ping-pong",
            "swap a,b; dual-gemm; implicit-gemm; fold-window 3; join-residues 1; stage a,b,c global; split-reduce k 3; \
             tensor-core wgmma 128x256x64; stage a,b shared 4; bind cluster 2; group m 16; persist 132; ping-pong",
            "split-reduce keys 4; tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2; persist 132; \
             block-mask",
            "fma 16x64; bind warp 4",
        ] {
            let found = read(text).expect(text).expect("it multiplies");
            assert_eq!(found.schedule().to_string(), text);
        }
        assert_eq!(read("split r 64; bind warp 4"), Ok(None));
        for (text, why) in [
            ("call library; ping-pong", "leaves nothing"),
            ("fma 64x64x32; fma 64x64x32", "after another"),
            ("fma 64x64x32; bind warp 4; bind warp 8", "after another"),
            ("fma 64", "three sizes"),
            ("fma 64x64x32; split r 4", "`split r 4` is not a step"),
            ("fma 64x64x32; stage a shared 2", "is not for a,b or c"),
            ("fma 64x64x32; stage q global", "is for a, b and c"),
            ("fma 64x64x32; split-reduce keys 2", "steps of attention"),
            ("fma 16x64; stage a global", "steps of a matmul"),
            ("fma 16x64; stage q shared 1", "staged together"),
        ] {
            let e = read(text).expect_err(text);
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
