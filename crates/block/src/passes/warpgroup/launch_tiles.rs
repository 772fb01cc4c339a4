//! Persistent programs of any grid, that of the launch included: as many instances as fit the multiprocessors loop over
//! the instances of the grid, which become tiles. Roles then copy ahead of a tile's end, and no tile waits for a block
//! to start.
//!
//! Takes a program of one tile per instance. Tiles are taken with the number of running instances as stride: those of
//! different lengths, longest first, in turns that go back and forth, so that all instances have about as much.
use crate::{BinaryOp as B, BlockProgram, CmpOp, Const, Elem, Grid, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

/// In which order tiles are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As instances are numbered, axis 0 fastest.
    Numbered,
    /// From the end of axis 0, along which tiles get longer. Tiles of the same length along the other axes follow each
    /// other, in groups of so many that the running instances have two turns in a group: what tiles of a group read
    /// stays in the cache.
    LongestFirst,
}

/// Turns of the running instances in a group of tiles.
const TURNS: usize = 2;

/// Whether the instances of a constant grid are few enough for numbers of 32 bits; launchers refuse larger ones of
/// their own.
pub fn counts(k: &BlockProgram) -> bool {
    k.instances().is_none_or(|all| all < 1 << 30)
}

/// The same program, of which at most `blocks` instances run.
pub fn run(kernel: &BlockProgram, blocks: usize, order: Order) -> BlockProgram {
    let mut w = Writer { k: kernel.clone(), out: vec![] };
    let old = std::mem::take(&mut w.k.body.insts);
    let number = w.one(Op::ProgramId(0), &[]);
    let sizes = [0, 1, 2].map(|axis| match kernel.grid.along(axis) {
        Some(size) => w.int(size),
        None => w.one(Op::NumPrograms(axis), &[]),
    });
    let others = w.binary(B::Mul, sizes[1], sizes[2]);
    let tiles = w.binary(B::Mul, sizes[0], others);
    let most = w.int(blocks);
    let running = w.binary(B::Min, tiles, most);
    let (zero, one) = (w.int(0), w.int(1));
    let bounds = match order {
        Order::Numbered => [number, tiles, running],
        Order::LongestFirst => [zero, w.turns(number, [tiles, running]), one],
    };
    let outside = std::mem::take(&mut w.out);
    let index = w.k.new_value(Type::scalar(Elem::I32));
    let place = match order {
        Order::Numbered => {
            let [first, rest] = w.split(index, sizes[0]);
            let [second, third] = w.split(rest, sizes[1]);
            [first, second, third]
        }
        Order::LongestFirst => {
            let tile = w.in_turn(number, [index, running]);
            w.longest_first(tile, sizes, others, blocks)
        }
    };
    rename(&mut w.k, &old, place, sizes);
    w.out.extend(old);
    let end = w.k.new_inst(InstData { op: Op::Yield, args: vec![], results: vec![], regions: vec![] });
    w.out.push(end);
    let region = Region { params: vec![index], insts: std::mem::take(&mut w.out) };
    let args = bounds.to_vec();
    let tile_loop = w.k.new_inst(InstData { op: Op::For, args, results: vec![], regions: vec![region] });
    w.k.body.insts = [outside, vec![tile_loop]].concat();
    w.k.grid = match kernel.instances() {
        Some(all) => [all.min(blocks), 1, 1].into(),
        None => Grid::Persistent(blocks),
    };
    w.k
}

/// Replaces positions in the grid by those of a tile. What only computed the old ones is dead.
fn rename(k: &mut BlockProgram, insts: &[Inst], place: [Value; 3], sizes: [Value; 3]) {
    let mut to: HashMap<Value, Value> = HashMap::new();
    let region = Region { params: vec![], insts: insts.to_vec() };
    k.walk_region(&region, &mut |_, d| match d.op {
        Op::ProgramId(axis) => _ = to.insert(d.results[0], place[axis as usize]),
        Op::NumPrograms(axis) => _ = to.insert(d.results[0], sizes[axis as usize]),
        _ => {}
    });
    for data in &mut k.insts {
        data.args.iter_mut().for_each(|v| *v = to.get(v).copied().unwrap_or(*v));
    }
}

/// Appends scalar instructions to a list.
struct Writer {
    k: BlockProgram,
    out: Vec<Inst>,
}

impl Writer {
    fn typed(&mut self, elem: Elem, op: Op, args: &[Value]) -> Value {
        let v = self.k.new_value(Type::scalar(elem));
        let inst = self.k.new_inst(InstData { op, args: args.to_vec(), results: vec![v], regions: vec![] });
        self.out.push(inst);
        v
    }
    fn one(&mut self, op: Op, args: &[Value]) -> Value {
        self.typed(Elem::I32, op, args)
    }
    fn int(&mut self, n: usize) -> Value {
        self.one(Op::Const(Const::Int(n as i64)), &[])
    }
    fn binary(&mut self, op: B, a: Value, b: Value) -> Value {
        self.one(Op::Binary(op), &[a, b])
    }
    /// Remainder and quotient.
    fn split(&mut self, number: Value, size: Value) -> [Value; 2] {
        [self.binary(B::Rem, number, size), self.binary(B::Div, number, size)]
    }
    /// A position that is no less than 0, so that analysis sees it.
    fn position(&mut self, v: Value) -> Value {
        let zero = self.int(0);
        self.binary(B::Max, v, zero)
    }
    /// The place of an instance in a turn: every second one goes back.
    fn place(&mut self, number: Value, [turn, running]: [Value; 2]) -> Value {
        let (zero, one) = (self.int(0), self.int(1));
        let odd = self.binary(B::And, turn, one);
        let goes_on = self.typed(Elem::Bool, Op::Cmp(CmpOp::Eq), &[odd, zero]);
        let last = self.binary(B::Sub, running, one);
        let back = self.binary(B::Sub, last, number);
        self.one(Op::Select, &[goes_on, number, back])
    }
    /// Turns of an instance: the last one may not have a tile for all.
    fn turns(&mut self, number: Value, [tiles, running]: [Value; 2]) -> Value {
        let [left, whole] = self.split(tiles, running);
        let place = self.place(number, [whole, running]);
        let has_more = self.typed(Elem::Bool, Op::Cmp(CmpOp::Lt), &[place, left]);
        let more = self.one(Op::Cast(Elem::I32), &[has_more]);
        self.binary(B::Add, whole, more)
    }
    /// The tile of an instance in a turn.
    fn in_turn(&mut self, number: Value, [turn, running]: [Value; 2]) -> Value {
        let place = self.place(number, [turn, running]);
        let before = self.binary(B::Mul, turn, running);
        self.binary(B::Add, before, place)
    }
    /// Where a tile is along the axes.
    fn longest_first(&mut self, tile: Value, sizes: [Value; 3], others: Value, blocks: usize) -> [Value; 3] {
        let [wanted, one] = [TURNS * blocks, 1].map(|n| self.int(n));
        let lines = self.binary(B::Div, wanted, sizes[0]);
        let lines = self.binary(B::Max, lines, one);
        let lines = self.binary(B::Min, lines, others);
        let group_tiles = self.binary(B::Mul, lines, sizes[0]);
        let [within, group] = self.split(tile, group_tiles);
        let first = self.binary(B::Mul, group, lines);
        let left = self.binary(B::Sub, others, first);
        let lines = self.binary(B::Min, lines, left);
        let [line, from_end] = self.split(within, lines);
        let line = self.binary(B::Add, first, line);
        let last = self.binary(B::Sub, sizes[0], one);
        let along = self.binary(B::Sub, last, from_end);
        let [second, third] = self.split(line, sizes[1]);
        [along, second, third].map(|v| self.position(v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    #[test]
    fn grids_of_launches_stay_theirs() {
        let mut b = Builder::new("k", Grid::Launch, 4);
        let (id, count) = (b.program_id(1), b.inst(Op::NumPrograms(2), &[], &[Type::scalar(Elem::I32)], vec![])[0]);
        b.binary(B::Add, id, count);
        let k = run(&b.finish(), 132, Order::Numbered);
        crate::verify::verify(&k).unwrap();
        assert_eq!(k.grid, Grid::Persistent(132));
        let text = crate::text::print(&k);
        assert!(text.contains("grid launch persistent 132"), "{text}");
        assert_eq!(crate::text::parse(&text), Ok(k.compacted()));
    }
}
