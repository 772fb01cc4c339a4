//! The rings of a tile's operands, and the tiles beside the scores: biases and masks, of which each consumer has its
//! rows.
use super::super::super::back_to_back_dots::{Operand, Pass};
use super::super::super::ring::{PingPong, Ring, Rings, release_read};
use super::{Consumer, Shared, Writer};
use crate::{BinaryOp as B, Builder, Op, Type, Value};
use std::ops::RangeInclusive;

/// Numbers of the keys' and the values' rings, and of the first one beside the scores.
pub const KEYS: usize = 0;
pub const VALUES: usize = 1;
const FIRST: usize = 2;

/// Stages of a tile beside the scores, where there is room: one in use, one on its way.
const STAGES: usize = 2;

/// Registers of a thread that addresses and arithmetic need beside those that hold scores, weights, sums and what is
/// read ahead of the scores. And those for the place in a ring.
const AHEAD: usize = 42;
const PLACE: usize = 4;

/// What is known once the scores are there: new values by old ones; and stages that are read, not yet released.
pub struct Arrived<'s> {
    pub known: Vec<(Value, Value)>,
    pub late: Vec<(&'s Rings, Value)>,
}

/// Tiles beside the scores with the numbers of their rings.
type Numbered<'p> = Vec<(usize, &'p Operand)>;

/// A shared tile and its ring.
pub struct Staged {
    pub rings: Rings,
    pub tile: Value,
}

/// Positions in the rings, as carried by loops.
pub struct Places {
    pub left: Ring,
    /// Of what iterations read: right operands, then tiles beside the scores.
    pub each: Vec<Ring>,
}
impl Places {
    /// Number of carried values, with so many tiles beside the scores.
    pub fn count(beside: usize) -> usize {
        2 * (1 + FIRST + beside)
    }
    pub fn of(v: &[Value]) -> Places {
        let (left, each) = v.split_at(2);
        Places { left: Ring::of(left), each: Places::each(each) }
    }
    pub fn each(v: &[Value]) -> Vec<Ring> {
        v.chunks(2).map(Ring::of).collect()
    }
    pub fn of_each(rings: &[Ring]) -> Vec<Value> {
        rings.iter().flat_map(|r| r.values()).collect()
    }
    pub fn values(&self) -> Vec<Value> {
        [&self.left.values()[..], &Places::of_each(&self.each)].concat()
    }
}

impl<'k> Writer<'k> {
    /// Stages of each tile beside the scores: one, and more from the first on as memory has room.
    pub fn depths(&self, memory: usize) -> Vec<usize> {
        let beside = &self.form.beside;
        let once = beside.iter().map(Operand::bytes).sum::<usize>();
        let mut room = memory.saturating_sub(self.bytes() + once);
        let more = beside.iter().map(|o| {
            let more = (room / o.bytes().max(1)).min(STAGES - 1);
            room -= more * o.bytes();
            1 + more
        });
        more.collect()
    }
    /// A consumer's part of a tile with the rows of the scores: of the left one, or of one beside the scores.
    pub fn own_part(&self, o: &Operand) -> [usize; 2] {
        [self.rows, o.shape[1]]
    }
    /// Stage of a consumer's rows of a tile.
    pub fn own_stage(&self, b: &mut Builder, ring: Ring, copy: Option<Value>) -> Value {
        let Some(copy) = copy.filter(|_| self.crew.consumers > 1) else { return ring.stage };
        let n = b.i32(self.crew.consumers as i64);
        let at = b.binary(B::Mul, ring.stage, n);
        b.binary(B::Add, at, copy)
    }
    /// The tiles beside the scores of a loop, with the numbers of their rings.
    pub fn beside<'p>(&self, pass: &'p Pass) -> impl Iterator<Item = (usize, &'p Operand)> {
        pass.beside.iter().filter_map(|o| Some((FIRST + self.form.number(o)?, o)))
    }
    /// Positions after an iteration that has read these right operands, and the tiles beside its scores.
    pub fn after(
        &self,
        b: &mut Builder,
        s: &Shared,
        pass: &Pass,
        each: &[Ring],
        right: RangeInclusive<usize>,
    ) -> Vec<Ring> {
        let mut next = each.to_vec();
        for n in right.chain(self.beside(pass).map(|(n, _)| n)) {
            next[n] = s.each[n].rings.next(b, each[n]);
        }
        next
    }
    /// Waits for the scores. Tiles beside them are read before, and released; those that registers have no room for yet
    /// are read after, close to their uses, and released once what needs no sums is computed. `turn`: of the consumer,
    /// which then is the next one's.
    pub fn arrived<'s>(
        &self,
        b: &mut Builder,
        s: &'s Shared,
        (pass, consumer): (&Pass, &Consumer),
        each: &[Ring],
        (token, pending): (Value, u8),
        turn: Option<(&PingPong, Value)>,
    ) -> Arrived<'s> {
        let (ahead, rest) = self.ahead(pass);
        let Arrived { mut known, late: stages } = self.read(b, s, &ahead, each, consumer);
        release_read(b, &stages);
        let scores = self.wait(b, token, self.form.scores, pending);
        s.each[KEYS].rings.release(b, each[KEYS].stage);
        if let Some((turns, copy)) = turn {
            turns.pass(b, copy);
        }
        known.push((pass.scores, scores));
        let rest = self.read(b, s, &rest, each, consumer);
        known.extend(rest.known);
        Arrived { known, late: rest.late }
    }
    /// Waits for tiles and reads a consumer's rows of them.
    fn read<'s>(
        &self,
        b: &mut Builder,
        s: &'s Shared,
        tiles: &Numbered,
        each: &[Ring],
        consumer: &Consumer,
    ) -> Arrived<'s> {
        tiles.iter().for_each(|(n, _)| s.each[*n].rings.wait(b, each[*n]));
        let read = |(n, o): &(usize, &Operand)| {
            let stage = self.own_stage(b, each[*n], consumer.copy);
            let ty = Type::block(o.elem, self.own_part(o));
            let block = b.inst(Op::SharedLoad, &[s.each[*n].tile, stage], &[ty], vec![])[0];
            ((self.k.inst(o.inst).results[0], block), (&s.each[*n].rings, each[*n].stage))
        };
        let (known, late) = tiles.iter().map(read).unzip();
        Arrived { known, late }
    }
    /// The tiles of a loop that are read ahead of its scores, and the others.
    fn ahead<'p>(&self, pass: &'p Pass) -> (Numbered<'p>, Numbered<'p>) {
        let reads: usize = self.reads(pass).iter().map(|v| self.registers(self.k.ty(*v))).sum();
        let mut room = self.share.budget.saturating_sub(AHEAD + self.held() + reads);
        self.beside(pass).partition(|(_, o)| {
            let n = PLACE + self.registers(&Type::block(o.elem, o.shape));
            let fits = n <= room;
            room -= if fits { n } else { 0 };
            fits
        })
    }
    /// Registers of a thread for a consumer's part of a block over the tile's rows and the scores' columns, or over one
    /// of these: a thread has two rows for every 64, and a quarter of the columns, bytes in pairs.
    fn registers(&self, ty: &Type) -> usize {
        let bytes = ty.elem().map_or(4, |e| e.bytes().max(2));
        let (rows, columns) = ty.shape().split_at(ty.shape().len().min(1));
        let rows: usize = rows.iter().map(|n| if *n == self.form.m { self.rows / 32 } else { 1 }).product();
        rows * columns.iter().map(|n| n.div_ceil(4)).product::<usize>() * bytes / 4
    }
}
