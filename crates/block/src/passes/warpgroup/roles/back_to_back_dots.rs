//! Roles for two chained matmuls ([`super::super::back_to_back_dots`]), as in attention.
//!
//! The producer copies the left operand of a tile, and the right operands of each iteration into rings of their own.
//! Consumers share a tile by rows. A consumer starts the first matmul of an iteration and then the second one of the
//! iteration before it, and computes the next weights while the tensor cores are at work:
//! ```text
//! scores = wgmma q, k[j];  sum = wgmma weights, v[j-1], sum
//! wait scores;  release k[j];  compute from scores what row operations give
//! wait sum;     release v[j-1];  sum = g(sum);  weights = f(scores)
//! ```
//! Where the bounds of a loop are numbers of the launch it may have no iteration ([`iterations`]).
//!
//! Tiles beside the scores have rings of their own, as deep as memory has room for. A consumer reads its rows of them
//! into registers while the first matmul runs.
//!
//! The first iteration is peeled off, the last second matmul comes after the loops. Scores and weights stay in
//! registers: a warpgroup's sums have the layout of a left operand. Consumers begin a tile one after the other, so that
//! one has the tensor cores while the other computes weights. The algorithm is that of FlashAttention-3 (Shah et
//! al., 2024).
mod iteration;
mod iterations;
mod producer;
mod score_tiles;

use super::super::back_to_back_dots::{self, Form, Operand};
use super::super::copy::Copier;
use super::super::form::Engine;
use super::super::ring::{Numbers, PingPong, Rings};
use super::super::{Refusal, memory, memory_of_two};
use super::dynamic_scheduler::{self, Side};
use super::epilogue::Epilogue;
use super::tile::{Outputs, Tile, alloc};
use super::{THREADS, descriptors, over_tiles, params, registers};
use crate::analysis::{self, Analysis};
use crate::passes::dce;
use crate::{BinaryOp as B, BlockProgram, Builder, Inst, Op, Role, Value};
use kiln_machine::Machine;
use producer::Producer;
use score_tiles::{Places, Staged};
use std::cell::RefCell;

/// How the warps of a block share its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WarpRoles {
    /// Consumers, each with its rows of a tile.
    pub consumers: usize,
    /// Stages of the left operand, and of each right one.
    pub left: usize,
    pub right: usize,
    /// Columns of the sums that are used, at most, and elements of the first matmul's depth that are not zero.
    pub columns: Option<usize>,
    pub depth: Option<usize>,
}

/// Stages beyond which more copies ahead gain nothing: an iteration takes longer than a copy.
const MAX_RIGHT_STAGES: usize = 4;
/// Registers of a thread that addresses and arithmetic need beside those that hold scores, weights and sums.
const ARITHMETIC: usize = 56;
/// As many, where consumers begin a tile one after the other.
const TURNS: usize = 80;

/// The same program in roles; without a crew, with one that suits the tile.
pub fn run(kernel: &BlockProgram, crew: Option<WarpRoles>, m: &Machine) -> Result<BlockProgram, Refusal> {
    let mut k = kernel.clone();
    dce::run(&mut k);
    let mut form = back_to_back_dots::recognise(&k)?;
    let consumers = (form.m / 64).clamp(1, 3);
    let is_given = crew.is_some();
    let suits = WarpRoles { consumers, left: 1, right: 0, columns: None, depth: None };
    let mut crew = crew.unwrap_or(suits);
    form.narrow(crew.columns, crew.depth);
    let rows = form.m / crew.consumers.max(1);
    let size = [form.m, form.n];
    let tile = Tile { engine: Engine::TensorCores, tiles: form.tiles, body: &form.tile, loops: form.at, size };
    let epilogue = Epilogue::new(&k, &tile, rows, crew.consumers, crew.columns)?;
    let stages = |memory: usize| right_stages(&form, &epilogue, memory);
    let share = match crew.consumers {
        1 if !is_given && stages(memory_of_two(m)) > 1 => Share::half(m),
        consumers => Share::whole(m, consumers),
    };
    if !is_given {
        crew.right = stages(share.memory).max(2);
    }
    let mut w =
        Writer { k: &k, facts: analysis::analyse(&k), crew, epilogue, rows, form: &form, beside: vec![], share };
    w.beside = w.depths(w.share.memory);
    w.check(w.share.memory)?;
    w.check_scalars()?;
    w.write()
}

/// What a block has of a multiprocessor.
struct Share {
    /// Bytes of shared memory.
    memory: usize,
    /// Registers of a thread of the producer and of a consumer; 0 where they keep those that they start with.
    roles: [usize; 2],
    /// Registers of a thread that a consumer's program is made for.
    budget: usize,
    /// Registers that a thread starts with, at most.
    start: Option<usize>,
}

impl Share {
    fn whole(m: &Machine, consumers: usize) -> Share {
        let few = if consumers > 2 { 32 } else { 24 };
        // A single consumer is not given more than one of two.
        let [_, budget] = registers(m, consumers.max(2), few);
        Share { memory: memory(m), roles: registers(m, consumers, few), budget, start: None }
    }
    /// Of two blocks that have a consumer each: one has the tensor cores while the other computes weights.
    fn half(m: &Machine) -> Share {
        const FEW: usize = 24;
        // A block has as many warps of the producer as of its consumer.
        let start = m.limits.registers_per_multiprocessor / (4 * THREADS);
        let budget = 2 * start - FEW;
        Share { memory: memory_of_two(m), roles: [FEW, budget], budget, start: Some(start) }
    }
}

/// Stages of each right operand that memory has room for.
fn right_stages(form: &Form, epilogue: &Epilogue, memory: usize) -> usize {
    let stage: usize = form.passes[0].right.iter().map(Operand::bytes).sum();
    let room = memory.saturating_sub(form.left.bytes() + epilogue.bytes());
    (room / stage.max(1)).min(MAX_RIGHT_STAGES)
}

/// What both roles use.
struct Shared {
    left: Staged,
    /// The right operands of the two matmuls, then the tiles beside the scores.
    each: Vec<Staged>,
    outputs: Outputs,
    /// Where tiles are drawn.
    numbers: Option<Numbers>,
    /// Where consumers begin a tile one after the other.
    turns: Option<PingPong>,
}

/// The consumer that is written: its number and the first of its rows, if it is not the only one; and why it could not
/// be written.
struct Consumer {
    copy: Option<Value>,
    first_row: Option<Value>,
    failed: RefCell<Option<Refusal>>,
}

struct Writer<'k> {
    k: &'k BlockProgram,
    form: &'k Form,
    facts: Analysis,
    crew: WarpRoles,
    epilogue: Epilogue<'k>,
    /// Rows of a consumer.
    rows: usize,
    /// Stages of each tile beside the scores.
    beside: Vec<usize>,
    share: Share,
}

impl<'k> Writer<'k> {
    /// Bytes of shared memory of all but the tiles beside the scores.
    fn bytes(&self) -> usize {
        let (f, c, [keys, values]) = (self.form, self.crew, self.right());
        c.left * f.left.bytes() + c.right * (keys.bytes() + values.bytes()) + self.epilogue.bytes()
    }
    /// Registers of a thread that hold scores, weights and sums.
    fn held(&self) -> usize {
        let f = self.form;
        (f.scores + f.n) * self.rows / 128 + f.scores * self.rows / 256
    }
    fn check(&self, memory: usize) -> Result<(), Refusal> {
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(Refusal(what)) };
        let (f, c) = (self.form, self.crew);
        ensure(c.consumers > 0 && self.rows * c.consumers == f.m && self.rows.is_multiple_of(64), {
            format!("{} rows for {} consumers; each needs a multiple of 64", f.m, c.consumers)
        })?;
        ensure((8..=256).contains(&f.n) && (16..=256).contains(&f.scores), {
            format!("scores of {} and sums of {} columns; wgmma has up to 256", f.scores, f.n)
        })?;
        let held = self.held();
        ensure(
            held + ARITHMETIC <= self.share.budget,
            format!("a thread would hold {held} registers of scores and sums; make tiles smaller"),
        )?;
        ensure(c.left > 0 && c.right > 1, "the rings need one stage on the left and two on the right".into())?;
        let bytes = self.bytes() + f.beside.iter().zip(&self.beside).map(|(o, n)| n * o.bytes()).sum::<usize>();
        ensure(bytes <= memory, format!("the tiles take {bytes} bytes of shared memory, and there are {memory}"))?;
        ensure(self.k.cluster == 1, "chained matmuls are not shared by clusters".into())
    }
    /// Checks that bounds of loops and starts of tiles are arithmetic on scalars, which both roles can do.
    fn check_scalars(&self) -> Result<(), Refusal> {
        let k = self.k;
        let c = Copier::new(k);
        let args = |i: Inst, from: usize| k.inst(i).args[from..].to_vec();
        let mut params: Vec<Value> = vec![];
        let mut insts = k.body.insts.clone();
        let mut wanted = args(self.form.left.inst, 1);
        if let Some(tiles) = self.form.tiles {
            params.extend(&k.inst(tiles).regions[0].params);
            insts.extend(&self.form.tile.insts);
            wanted.extend(args(tiles, 0));
        }
        for pass in &self.form.passes {
            let region = &k.inst(pass.inst).regions[0];
            params.push(region.params[0]);
            insts.extend(&region.insts);
            wanted.extend(&k.inst(pass.inst).args[..3]);
            pass.right.iter().chain(&pass.beside).for_each(|o| wanted.extend(args(o.inst, 1)));
        }
        match c.underivable(&params, &insts, &wanted) {
            Some(v) => Err(Refusal(format!("a tile or a loop depends on {v}, which is not arithmetic on scalars"))),
            None => Ok(()),
        }
    }
    fn right(&self) -> [&Operand; 2] {
        let [keys, values] = &self.form.passes[0].right;
        [keys, values]
    }
    fn write(&self) -> Result<BlockProgram, Refusal> {
        let mut b = Builder::new(self.k.name.clone(), self.k.grid, 1);
        b.set_arithmetic(self.k.arithmetic);
        let mut c = Copier::new(self.k);
        let [keys, values] = self.right();
        let by_rows = std::iter::once(&self.form.left).chain(&self.form.beside).map(|o| (o, self.own_part(o)));
        let right = self.form.passes.iter().flat_map(|p| &p.right).map(|o| (o, o.shape));
        let copied = by_rows.chain(right).map(|(o, shape)| (o.desc, shape, o.swizzle));
        let types = descriptors(self.k, copied.chain(self.epilogue.descriptors()))?;
        params(self.k, &types, &mut b, &mut c);
        let WarpRoles { consumers, left, right, .. } = self.crew;
        let own = |o, stages| (o, self.own_part(o), stages, consumers);
        let each = [keys, values].map(|o| (o, o.shape, right, 1)).into_iter();
        let beside = self.form.beside.iter().zip(&self.beside).map(|(o, stages)| own(o, *stages));
        let all: Vec<_> = std::iter::once(own(&self.form.left, left)).chain(each).chain(beside).collect();
        let tiles: Vec<(Value, usize)> = (all.into_iter())
            .map(|(o, shape, stages, copies)| (alloc(&mut b, o.elem, shape, stages * copies, o.swizzle), stages))
            .collect();
        let outputs = self.epilogue.buffers(&mut b);
        let mut staged = |&(tile, stages)| Staged { rings: Rings::new(&mut b, stages, consumers, 1), tile };
        let (left, each) = (staged(&tiles[0]), tiles[1..].iter().map(staged).collect());
        let numbers = self.form.draw.is_some().then(|| Numbers::new(&mut b, consumers));
        let turns =
            (consumers > 1 && self.held() + TURNS <= self.share.budget).then(|| PingPong::new(&mut b, consumers));
        let shared = Shared { left, each, outputs, numbers, turns };
        let outermost = self.form.tiles.unwrap_or(self.form.passes[0].inst);
        let last = self.form.tiles.unwrap_or(self.form.passes[self.form.passes.len() - 1].inst);
        let before: Vec<Inst> = self.k.body.insts.iter().copied().take_while(|i| *i != last).collect();
        let before = if self.form.tiles.is_some() {
            before.into_iter().take_while(|i| *i != outermost).collect()
        } else {
            before
        };
        c.scalars(&mut b, &before);
        b.inst(Op::Sync, &[], &[], vec![]);
        let [few, many] = self.share.roles;
        let role =
            |name: &str, copies: usize, registers: usize| Role { name: name.into(), warps: 4, copies, registers };
        let mut failed = None;
        let (mut mine, mut theirs) = (c.clone(), c);
        b.roles(vec![
            (
                role("producer", 1, few),
                Box::new(|b: &mut Builder, _| Producer { w: self, s: &shared }.run(b, &mut mine)),
            ),
            (
                role("consumer", consumers, many),
                Box::new(|b: &mut Builder, copy| failed = self.consume(b, &mut theirs, &shared, copy)),
            ),
        ]);
        let missing = mine.missing.or(theirs.missing);
        let missing = missing.map(|v| Refusal(format!("{v} is not arithmetic on scalars, and a tile depends on it")));
        failed.or(missing).map_or_else(|| Ok(BlockProgram { registers: self.share.start, ..b.finish() }), Err)
    }
    /// Runs `body` for every tile of this block, with the places in the rings.
    fn over_tiles(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        (s, side): (&Shared, Side),
        body: impl FnOnce(&mut Builder, &mut Copier<'k>, Places) -> Places,
    ) {
        let start = vec![b.i32(0); Places::count(self.beside.len())];
        let before = &self.form.tile.insts[..self.form.at[1]];
        let body = |b: &mut Builder, c: &mut Copier<'k>, at: &[Value]| body(b, c, Places::of(at)).values();
        match (self.form.tiles, &self.form.draw, &s.numbers) {
            (Some(tiles), Some(draw), Some(numbers)) => {
                dynamic_scheduler::over_tiles(b, c, (tiles, draw, before), (numbers, side), &start, body)
            }
            (tiles, ..) => over_tiles(b, c, (tiles, before), &start, body),
        }
    }
    // ---- The consumers ----
    fn consume(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared, copy: Option<Value>) -> Option<Refusal> {
        let mut failed = None;
        self.over_tiles(b, c, (s, Side::Receives), |b, c, at| {
            let first_row = copy.map(|copy| {
                let n = b.i32(self.rows as i64);
                b.binary(B::Mul, copy, n)
            });
            let consumer = Consumer { copy, first_row, failed: RefCell::new(None) };
            let (sums, places) = self.multiply(b, c, s, &consumer, at);
            failed = consumer.failed.into_inner();
            if failed.is_none() {
                failed = self.epilogue.finish(b, c, &s.outputs, [copy, first_row], sums, None);
            }
            places
        });
        if !s.outputs.is_empty() {
            b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
        }
        failed
    }
}
