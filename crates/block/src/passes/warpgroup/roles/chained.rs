//! Roles for two chained matmuls ([`super::super::chained`]), as in attention.
//!
//! The producer copies the left operand of a tile, and the right operands of each iteration into rings of their own.
//! Consumers share a tile by rows. A consumer starts the first matmul of an iteration and then the second one of the
//! iteration before it, and computes the next weights while the tensor cores are at work:
//! ```text
//! scores = wgmma q, k[j];  sum = wgmma weights, v[j-1], sum
//! wait scores;  release k[j];  compute from scores what row operations give
//! wait sum;     release v[j-1];  sum = g(sum);  weights = f(scores)
//! ```
//! The first iteration is peeled off, the last second matmul comes after the loops. Scores and weights stay in
//! registers: a warpgroup's sums have the layout of a left operand. Consumers begin a tile one after the other, so that
//! one has the tensor cores while the other computes weights. The algorithm is that of FlashAttention-3 (Shah et
//! al., 2024).
use super::super::chained::{self, Form, Operand, Pass};
use super::super::copy::Copier;
use super::super::form::Engine;
use super::super::ring::{Numbers, PingPong, Ring, Rings};
use super::super::slice::{Part, Slicer};
use super::super::{Refusal, memory};
use super::drawn::{self, Side};
use super::epilogue::{Epilogue, Outputs, Tile, alloc};
use super::{descriptors, over_tiles, params};
use crate::analysis::{self, Analysis};
use crate::passes::dce;
use crate::{BinaryOp as B, Builder, Const, Elem, Inst, Kernel, Op, Role, Swizzle, Type, Value};
use kiln_machine::Machine;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// How the warps of a block share its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crew {
    /// Consumers, each with its rows of a tile.
    pub consumers: usize,
    /// Stages of the left operand, and of each right one.
    pub left: usize,
    pub right: usize,
    /// Columns of the sums that are used, at most, and elements of the first matmul's depth that are not zero.
    pub columns: Option<usize>,
    pub depth: Option<usize>,
}

/// Registers of a thread that hold scores, weights and sums, at most: the others are for addresses and arithmetic.
const HELD: usize = 184;

/// The same program in roles; without a crew, with one that suits the tile.
pub fn run(kernel: &Kernel, crew: Option<Crew>, m: &Machine) -> Result<Kernel, Refusal> {
    let mut k = kernel.clone();
    dce::run(&mut k);
    let mut form = chained::recognise(&k)?;
    let crew =
        crew.unwrap_or(Crew { consumers: (form.m / 64).clamp(1, 3), left: 1, right: 2, columns: None, depth: None });
    form.narrow(crew.columns, crew.depth);
    let rows = form.m / crew.consumers.max(1);
    let size = [form.m, form.n];
    let tile = Tile { engine: Engine::TensorCores, tiles: form.tiles, body: &form.tile, loops: form.at, size };
    let epilogue = Epilogue::new(&k, &tile, rows, crew.consumers, crew.columns)?;
    let w = Writer { k: &k, facts: analysis::analyse(&k), crew, epilogue, rows, form: &form };
    w.check(memory(m))?;
    w.check_scalars()?;
    w.write()
}

/// What both roles use.
struct Shared {
    left: Rings,
    right: [Rings; 2],
    tiles: [Value; 3],
    outputs: Outputs,
    /// Where tiles are drawn.
    numbers: Option<Numbers>,
    /// Where consumers begin a tile one after the other.
    turns: Option<PingPong>,
}

/// Positions in the three rings, as carried by loops.
#[derive(Clone, Copy)]
struct Places {
    left: Ring,
    right: [Ring; 2],
}
impl Places {
    const COUNT: usize = 6;
    fn of(v: &[Value]) -> Places {
        Places { left: Ring::of(&v[..2]), right: [Ring::of(&v[2..4]), Ring::of(&v[4..6])] }
    }
    fn values(self) -> Vec<Value> {
        [self.left, self.right[0], self.right[1]].iter().flat_map(|r| r.values()).collect()
    }
}

/// What an iteration hands to the next one: the carried values, the next left operand of the second matmul, and the
/// sums that it adds to (in place of the carried sums).
struct Next {
    carried: Vec<Value>,
    weights: Value,
}

/// The consumer that is written: its number and the first of its rows, if it is not the only one; and why it could not
/// be written.
struct Consumer {
    copy: Option<Value>,
    first_row: Option<Value>,
    failed: RefCell<Option<Refusal>>,
}

struct Writer<'k> {
    k: &'k Kernel,
    form: &'k Form,
    facts: Analysis,
    crew: Crew,
    epilogue: Epilogue<'k>,
    /// Rows of a consumer.
    rows: usize,
}

impl<'k> Writer<'k> {
    fn check(&self, memory: usize) -> Result<(), Refusal> {
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(Refusal(what)) };
        let (f, c) = (self.form, self.crew);
        ensure(c.consumers > 0 && self.rows * c.consumers == f.m && self.rows.is_multiple_of(64), {
            format!("{} rows for {} consumers; each needs a multiple of 64", f.m, c.consumers)
        })?;
        ensure((8..=256).contains(&f.n) && (16..=256).contains(&f.scores), {
            format!("scores of {} and sums of {} columns; wgmma has up to 256", f.scores, f.n)
        })?;
        let held = (f.scores + f.n) * self.rows / 128 + f.scores * self.rows / 256;
        ensure(held <= HELD, format!("a thread would hold {held} registers of scores and sums; make tiles smaller"))?;
        let [keys, values] = self.right();
        ensure(c.left > 0 && c.right > 1, "the rings need one stage on the left and two on the right".into())?;
        let bytes = c.left * bytes_of(&f.left) + c.right * (bytes_of(keys) + bytes_of(values)) + self.epilogue.bytes();
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
            pass.right.iter().for_each(|o| wanted.extend(args(o.inst, 1)));
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
    /// A consumer's part of the left tile.
    fn left_shape(&self) -> [usize; 2] {
        [self.rows, self.form.left.shape[1]]
    }
    fn write(&self) -> Result<Kernel, Refusal> {
        let mut b = Builder::new(self.k.name.clone(), self.k.grid, 1);
        b.set_arithmetic(self.k.arithmetic);
        let mut c = Copier::new(self.k);
        let [keys, values] = self.right();
        let copied = [
            (self.form.left.desc, self.left_shape(), Swizzle::B128),
            (keys.desc, keys.shape, Swizzle::B128),
            (values.desc, values.shape, Swizzle::B128),
        ];
        let types = descriptors(self.k, copied.into_iter().chain(self.epilogue.stored()))?;
        params(self.k, &types, &mut b, &mut c);
        let elem = self.form.left.elem;
        let Crew { consumers, left, right, .. } = self.crew;
        let shared = Shared {
            tiles: [
                alloc(&mut b, elem, self.left_shape(), left * consumers, Swizzle::B128),
                alloc(&mut b, elem, keys.shape, right, Swizzle::B128),
                alloc(&mut b, elem, values.shape, right, Swizzle::B128),
            ],
            outputs: self.epilogue.buffers(&mut b),
            left: Rings::new(&mut b, left, consumers, 1),
            right: [right; 2].map(|stages| Rings::new(&mut b, stages, consumers, 1)),
            numbers: self.form.draw.is_some().then(|| Numbers::new(&mut b, consumers)),
            turns: (consumers > 1).then(|| PingPong::new(&mut b, consumers)),
        };
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
        let [few, many] = match consumers {
            1 => [0, 0],
            2 => [24, 240],
            _ => [32, 160],
        };
        let role =
            |name: &str, copies: usize, registers: usize| Role { name: name.into(), warps: 4, copies, registers };
        let mut failed = None;
        let (mut mine, mut theirs) = (c.clone(), c);
        b.roles(vec![
            (role("producer", 1, few), Box::new(|b: &mut Builder, _| self.produce(b, &mut mine, &shared))),
            (
                role("consumer", consumers, many),
                Box::new(|b: &mut Builder, copy| failed = self.consume(b, &mut theirs, &shared, copy)),
            ),
        ]);
        let missing = mine.missing.or(theirs.missing);
        let missing = missing.map(|v| Refusal(format!("{v} is not arithmetic on scalars, and a tile depends on it")));
        failed.or(missing).map_or_else(|| Ok(b.finish()), Err)
    }
    /// Runs `body` for every tile of this block, with the places in the rings.
    fn over_tiles(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        (s, side): (&Shared, Side),
        body: impl FnOnce(&mut Builder, &mut Copier<'k>, Places) -> Places,
    ) {
        let start = vec![b.i32(0); Places::COUNT];
        let before = &self.form.tile.insts[..self.form.at[1]];
        let body = |b: &mut Builder, c: &mut Copier<'k>, at: &[Value]| body(b, c, Places::of(at)).values();
        match (self.form.tiles, &self.form.draw, &s.numbers) {
            (Some(tiles), Some(draw), Some(numbers)) => {
                drawn::over_tiles(b, c, (tiles, draw, before), (numbers, side), &start, body)
            }
            (tiles, ..) => over_tiles(b, c, (tiles, before), &start, body),
        }
    }
    /// Runs `first` for the first iteration of all loops and `body` for each of the others, with the loop and its
    /// index; both have what scalars of the iteration depend on.
    fn over_iterations(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        first: impl FnOnce(&mut Builder, &mut Copier<'k>, &'k Pass) -> Vec<Value>,
        mut body: impl FnMut(&mut Builder, &mut Copier<'k>, &'k Pass, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let within = |b: &mut Builder, c: &mut Copier<'k>, pass: &'k Pass, index: Value| {
            let region = &self.k.inst(pass.inst).regions[0];
            c.enter();
            c.set(region.params[0], index);
            c.scalars(b, &region.insts);
        };
        let mut carried = vec![];
        let mut first = Some(first);
        for pass in &self.form.passes {
            let bounds = c.all(&self.k.inst(pass.inst).args[..3]);
            let [mut lo, hi, step] = bounds[..] else { return carried };
            if let Some(first) = first.take() {
                within(b, c, pass, lo);
                carried = first(b, c, pass);
                c.leave();
                if self.is_single(pass) {
                    continue;
                }
                lo = b.binary(B::Add, lo, step);
            }
            carried = b.for_loop([lo, hi, step], &carried, |b, index, now| {
                within(b, c, pass, index);
                let next = body(b, c, pass, now);
                c.leave();
                next
            });
        }
        carried
    }

    // ---- The producer ----
    fn produce(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared) {
        let right = self.right();
        let copy = |b: &mut Builder, c: &Copier<'k>, n: usize, ring: Ring, starts: &[Value]| {
            let Some(desc) = c.get(right[n].desc) else { return };
            s.right[n].claim(b, ring, bytes_of(right[n]));
            s.right[n].load(b, [s.tiles[n + 1], ring.stage, desc], ring, starts, false);
        };
        let starts = |c: &mut Copier<'k>, pass: &Pass, n: usize| c.all(&self.k.inst(pass.right[n].inst).args[1..]);
        self.over_tiles(b, c, (s, Side::Sends), |b, c, at| {
            self.copy_left(b, c, s, at.left);
            let left = s.left.next(b, at.left);
            // The second operand of an iteration is copied after the first one of the next.
            let out = self.over_iterations(
                b,
                c,
                |b, c, pass| {
                    let first = starts(c, pass, 0);
                    copy(b, c, 0, at.right[0], &first);
                    let ring = s.right[0].next(b, at.right[0]);
                    [&ring.values()[..], &at.right[1].values(), &starts(c, pass, 1)].concat()
                },
                |b, c, pass, now| {
                    let rings = [Ring::of(now), Ring::of(&now[2..])];
                    let first = starts(c, pass, 0);
                    copy(b, c, 0, rings[0], &first);
                    copy(b, c, 1, rings[1], &now[4..]);
                    let next = [0, 1].map(|n| s.right[n].next(b, rings[n]).values()).concat();
                    [next, starts(c, pass, 1)].concat()
                },
            );
            let rings = [Ring::of(&out), Ring::of(&out[2..])];
            copy(b, c, 1, rings[1], &out[4..]);
            Places { left, right: [rings[0], s.right[1].next(b, rings[1])] }
        });
    }
    /// Copies each consumer's rows of the left operand.
    fn copy_left(&self, b: &mut Builder, c: &mut Copier, s: &Shared, ring: Ring) {
        let left = &self.form.left;
        let starts = c.all(&self.k.inst(left.inst).args[1..]);
        let Some(desc) = c.get(left.desc) else { return };
        s.left.claim(b, ring, bytes_of(left));
        for copy in 0..self.crew.consumers {
            let mut starts = starts.clone();
            if copy > 0 {
                let (axis, rows) = (starts.len() - 2, b.i32((copy * self.rows) as i64));
                starts[axis] = b.binary(B::Add, starts[axis], rows);
            }
            let copy = b.i32(copy as i64);
            let stage = self.left_stage(b, ring, Some(copy));
            s.left.load(b, [s.tiles[0], stage, desc], ring, &starts, false);
        }
    }
    fn left_stage(&self, b: &mut Builder, ring: Ring, copy: Option<Value>) -> Value {
        let Some(copy) = copy.filter(|_| self.crew.consumers > 1) else { return ring.stage };
        let n = b.i32(self.crew.consumers as i64);
        let at = b.binary(B::Mul, ring.stage, n);
        b.binary(B::Add, at, copy)
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
                failed = self.epilogue.finish(b, c, &s.outputs, [copy, first_row], sums);
            }
            places
        });
        if !s.outputs.is_empty() {
            b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
        }
        failed
    }
    /// The results of the last loop, by name.
    fn multiply(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        s: &Shared,
        consumer: &Consumer,
        at: Places,
    ) -> (HashMap<Value, Value>, Places) {
        let stage = self.left_stage(b, at.left, consumer.copy);
        s.left.wait(b, at.left);
        let count = self.k.inst(self.form.passes[0].inst).results.len();
        let out = self.over_iterations(
            b,
            c,
            |b, c, pass| {
                let keys = at.right[0];
                let turns = s.turns.as_ref().zip(consumer.copy);
                if let Some((turns, copy)) = turns {
                    let (first, tiles) = (turns.first(b, copy), s.left.passed(b, at.left));
                    let parity = b.binary(B::Xor, first, tiles);
                    turns.wait(b, copy, parity);
                }
                let token = self.scores(b, s, stage, keys);
                let init = &self.k.inst(pass.inst).args[3..];
                let mut slicer = Slicer::new(c, self.part(), HashMap::new(), consumer.first_row);
                let init: Vec<Value> = init.iter().map(|v| slicer.rows(b, *v)).collect();
                if let Some(failed) = slicer.failed {
                    consumer.failed.borrow_mut().get_or_insert(failed);
                }
                let sum = init[self.form.sum];
                let scores = |b: &mut Builder| {
                    let scores = self.wait(b, token, self.form.scores, 0);
                    s.right[0].release(b, keys.stage);
                    if let Some((turns, copy)) = turns {
                        turns.pass(b, copy);
                    }
                    scores
                };
                let next = self.next(b, c, (pass, consumer), &init, scores, |_| sum);
                let rings = [s.right[0].next(b, keys).values(), at.right[1].values()].concat();
                [rings, next.carried, vec![next.weights]].concat()
            },
            |b, c, pass, now| {
                let [keys, values] = [Ring::of(now), Ring::of(&now[2..])];
                let (carried, weights) = (&now[4..4 + count], now[4 + count]);
                let token = self.scores(b, s, stage, keys);
                let sum = self.weigh(b, s, weights, values, carried[self.form.sum]);
                let scores = |b: &mut Builder| {
                    let scores = self.wait(b, token, self.form.scores, 1);
                    s.right[0].release(b, keys.stage);
                    scores
                };
                let sum = |b: &mut Builder| {
                    let sum = self.wait(b, sum, self.form.n, 0);
                    s.right[1].release(b, values.stage);
                    sum
                };
                let next = self.next(b, c, (pass, consumer), carried, scores, sum);
                let rings = [s.right[0].next(b, keys).values(), s.right[1].next(b, values).values()].concat();
                [rings, next.carried, vec![next.weights]].concat()
            },
        );
        let [keys, values] = [Ring::of(&out), Ring::of(&out[2..])];
        let (carried, weights) = (&out[4..4 + count], out[4 + count]);
        s.left.release(b, at.left.stage);
        let sum = self.weigh(b, s, weights, values, carried[self.form.sum]);
        let sum = self.wait(b, sum, self.form.n, 0);
        s.right[1].release(b, values.stage);
        let mut results = carried.to_vec();
        results[self.form.sum] = sum;
        let names = &self.k.inst(self.form.passes[self.form.passes.len() - 1].inst).results;
        let places = Places { left: s.left.next(b, at.left), right: [keys, s.right[1].next(b, values)] };
        (names.iter().copied().zip(results).collect(), places)
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
    /// A slice of whole rows.
    fn part(&self) -> Part {
        Part { engine: Engine::TensorCores, tile: [self.form.m, 0], rows: self.rows, columns: 0 }
    }
    fn token(&self, columns: usize) -> Type {
        Type::Token { elem: Elem::F32, shape: vec![self.rows, columns] }
    }
    /// Starts the first matmul.
    fn scores(&self, b: &mut Builder, s: &Shared, stage: Value, ring: Ring) -> Value {
        s.right[0].wait(b, ring);
        let zero = b.constant(Type::block(Elem::F32, [self.rows, self.form.scores]), Const::Float(0.0));
        let args = [s.tiles[0], stage, s.tiles[1], ring.stage, zero];
        let op = Op::Wgmma { transpose_a: false, transpose_b: self.right()[0].swapped };
        let token = b.inst(op, &args, &[self.token(self.form.scores)], vec![])[0];
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        token
    }
    /// Starts the second matmul.
    fn weigh(&self, b: &mut Builder, s: &Shared, weights: Value, ring: Ring, sum: Value) -> Value {
        s.right[1].wait(b, ring);
        let op = Op::Wgmma { transpose_a: false, transpose_b: self.right()[1].swapped };
        let args = [weights, s.tiles[2], ring.stage, sum];
        let token = b.inst(op, &args, &[self.token(self.form.n)], vec![])[0];
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        token
    }
    fn wait(&self, b: &mut Builder, token: Value, columns: usize, pending: u8) -> Value {
        let ty = Type::block(Elem::F32, [self.rows, columns]);
        b.inst(Op::WgmmaWait { pending }, &[token], &[ty], vec![])[0]
    }
    /// Blocks that an iteration reads from memory at addresses that do not depend on its scores or on what it carries.
    fn reads(&self, pass: &Pass) -> Vec<Value> {
        let region = &self.k.inst(pass.inst).regions[0];
        let mut late: HashSet<Value> = region.params[1..].iter().copied().chain([pass.scores]).collect();
        let mut reads = vec![];
        for data in region.insts.iter().map(|i| self.k.inst(*i)) {
            if data.args.iter().any(|v| late.contains(v)) {
                late.extend(&data.results);
            } else if data.op == Op::Load && !self.k.ty(data.results[0]).is_scalar() {
                reads.extend(&data.results);
            }
        }
        reads
    }
    /// What the iteration computes from its scores. What it reads from memory comes before `scores`, which waits for
    /// them. What does not need the sums comes before `sum`, which waits for those; weights are rounded after it, as the
    /// tensor cores still read the registers of the ones before.
    fn next(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        (pass, consumer): (&Pass, &Consumer),
        carried: &[Value],
        scores: impl FnOnce(&mut Builder) -> Value,
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
        let scores = scores(b);
        slicer.know(pass.scores, scores);
        slicer.rows(b, exact);
        factors.iter().filter(|v| **v != own && **v != pass.from).for_each(|v| _ = slicer.rows(b, *v));
        let mut next: Vec<Value> = vec![];
        for (n, v) in yielded.iter().enumerate() {
            // The sums' place is taken below.
            next.push(if n == self.form.sum { scores } else { slicer.rows(b, *v) });
        }
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

/// Bytes of a tile, whose rows are whole panels.
fn bytes_of(o: &Operand) -> usize {
    o.shape[0] * Swizzle::B128.row_bytes(o.elem, o.shape[1])
}
