//! Random programs of what hand-written kernels have and lowering does not: branches and loops of the launch, regions,
//! moves, bits, atomics with results, and memory that is written and read again. Three ways, before and after passes.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_codegen::nvptx;
use kiln_machine::Arch;

/// Values of one type and shape, and what they are made from.
struct Maker {
    b: Builder,
    r: Random,
    elem: Elem,
    shape: [usize; 2],
    tiles: Vec<Value>,
    /// Pointers to the instance's tile: of an input, of memory for updates, and of memory for stores and loads.
    places: Vec<Value>,
    mask: Value,
    flag: Value,
    turns: Value,
    step: Value,
}

impl Maker {
    fn pick(&mut self) -> Value {
        let n = self.tiles.len();
        self.tiles[self.r.next_below(n)]
    }
    fn op(&mut self) -> BinaryOp {
        use BinaryOp::*;
        let of_floats = [Add, Sub, Max, Min, MaxNum, MinNum];
        let of_ints = [Add, Sub, Mul, Div, Rem, Max, Min, And, Or, Xor, MulHi];
        match self.elem.is_float() {
            true => of_floats[self.r.next_below(of_floats.len())],
            false => of_ints[self.r.next_below(of_ints.len())],
        }
    }
    /// The larger of two, by a region.
    fn larger(b: &mut Builder, x: &[Value], y: &[Value]) -> Vec<Value> {
        let more = b.cmp(CmpOp::Gt, x[0], y[0]);
        vec![b.select(more, x[0], y[0])]
    }
    fn int(&mut self, elem: Elem, n: i64) -> Value {
        self.b.constant(Type::scalar(elem), Const::Int(n))
    }
    fn make(&mut self) {
        let (x, y, op) = (self.pick(), self.pick(), self.op());
        let v = match self.r.next_below(12) {
            0 | 1 => self.b.binary(op, x, y),
            2 => self.b.if_else(self.flag, |b| vec![b.binary(op, x, y)], |_| vec![y])[0],
            3 => self.repeated(x, op, y),
            4 => self.walked(x, op),
            5 => self.gathered(x, y),
            6 => {
                let both = self.b.join(x, y);
                let [first, second] = self.b.split(both);
                self.b.binary(op, second, first)
            }
            7 => {
                let [m, n] = self.shape;
                let both = self.b.cat(x, y, 0);
                let both = self.b.reshape(both, &[2, m, n]);
                self.b.reduce_by(0, &[both], Self::larger)[0]
            }
            8 => {
                let rows = self.b.reduce_by(1, &[x], Self::larger)[0];
                let rows = self.b.expand_dims(rows, 1);
                let rows = self.b.broadcast_to(rows, &self.shape);
                self.b.binary(op, rows, y)
            }
            9 => {
                let how = (self.r.next_below(2), self.r.next_below(2) == 0);
                self.b.scan_by(how, &[x], Self::larger)[0]
            }
            10 => self.bits(x),
            _ => self.memory(x, y),
        };
        self.tiles.push(v);
    }
    /// As often as the launch says, and once at least.
    fn repeated(&mut self, x: Value, op: BinaryOp, y: Value) -> Value {
        let (zero, one, turns) = (self.b.i32(0), self.b.i32(1), self.turns);
        let last = self.b.repeat_while(&[zero, x], |b, now| {
            let count = b.binary(BinaryOp::Add, now[0], one);
            let more = b.cmp(CmpOp::Lt, count, turns);
            (more, vec![count, b.binary(op, now[1], y)])
        });
        last[1]
    }
    /// Over tiles that are a step of the launch apart.
    fn walked(&mut self, x: Value, op: BinaryOp) -> Value {
        let (from, mask, step) = (self.places[0], self.mask, self.step);
        let turns = self.b.cast(self.turns, Elem::I64);
        let (lo, by) = (self.int(Elem::I64, 1), self.int(Elem::I64, 1));
        let last = self.b.for_loop([lo, turns, by], &[x, from], |b, _, now| {
            let v = b.load(now[1], Some(mask), None);
            vec![b.binary(op, now[0], v), b.ptr_add(now[1], step)]
        });
        last[0]
    }
    fn gathered(&mut self, x: Value, y: Value) -> Value {
        let axis = self.r.next_below(2);
        let positions = match self.elem.is_float() {
            true => {
                let zero = self.b.constant(Type::block(self.elem, self.shape), Const::Float(0.0));
                let positive = self.b.cmp(CmpOp::Gt, y, zero);
                self.b.cast(positive, Elem::I32)
            }
            false => self.b.cast(y, Elem::I32),
        };
        let last = self.b.i32(self.shape[axis] as i64 - 1);
        let positions = self.b.binary(BinaryOp::And, positions, last);
        self.b.gather(x, positions, axis)
    }
    /// Shifted as the unsigned or signed integer of the same bits.
    fn bits(&mut self, x: Value) -> Value {
        let other = match self.elem {
            Elem::I32 | Elem::F32 => Elem::U32,
            Elem::U32 => Elem::I32,
            Elem::I64 => Elem::U64,
            _ => Elem::I64,
        };
        let v = self.b.bitcast(x, &Type::scalar(other));
        let by = self.int(other, 3);
        let down = self.b.binary(BinaryOp::Shr, v, by);
        // A float keeps its bits; others would be NaN.
        let v = if self.elem.is_float() { v } else { down };
        self.b.bitcast(v, &Type::scalar(self.elem))
    }
    /// An update that gives what was there, or a store that is read again by other threads.
    fn memory(&mut self, x: Value, y: Value) -> Value {
        let (updated, stored, mask) = (self.places[1], self.places[2], self.mask);
        if !self.elem.is_float() && self.r.next_below(2) == 0 {
            let op = [AtomicOp::Add, AtomicOp::Max, AtomicOp::Min, AtomicOp::Xor][self.r.next_below(4)];
            let how = Atomicity { order: MemoryOrder::AcquireRelease, scope: Scope::Device };
            return self.b.atomic_old((op, how), updated, x, Some(mask));
        }
        self.b.store(stored, x, Some(mask));
        let [m, n] = self.shape;
        // Of the tile in another order: rows and columns change places.
        let turned = self.b.reshape(stored, &[n, m]);
        let turned = self.b.permute(turned, &[1, 0]);
        let seen = self.b.reshape(mask, &[n, m]);
        let seen = self.b.permute(seen, &[1, 0]);
        let v = self.b.load(turned, Some(seen), Some(y));
        self.b.store(stored, y, Some(mask));
        v
    }
}

/// A program over tiles of an array of `rows` by `columns`, whose rows are `pitch` apart.
pub fn program(seed: u64, elem: Elem, shape: [usize; 2]) -> BlockProgram {
    let mut b = Builder::new("random", Grid::Launch, [1, 4, 2][seed as usize % 3]);
    let params = ["x", "updated", "stored", "out"].map(|name| b.param(name, elem, false));
    let known = Facts { least: Some(0), ..Facts::default() };
    let [rows, columns, pitch] = ["rows", "columns", "pitch"].map(|name| b.scalar(name, Elem::I32, known));
    let (turns, step) = (b.scalar("turns", Elem::I32, known), b.scalar("step", Elem::I32, known));
    let flag = b.scalar("flag", Elem::Bool, Facts::default());
    let (pid, size) = (b.program_id(0), b.i32(shape[0] as i64));
    let (first, i, j) = (b.binary(BinaryOp::Mul, pid, size), b.iota(shape[0]), b.iota(shape[1]));
    let row = b.binary(BinaryOp::Add, first, i);
    let (row, column) = (b.expand_dims(row, 1), b.expand_dims(j, 0));
    let (inside, left) = (b.cmp(CmpOp::Lt, row, rows), b.cmp(CmpOp::Lt, column, columns));
    let mask = b.binary(BinaryOp::And, inside, left);
    let start = b.binary(BinaryOp::Mul, row, pitch);
    let at = b.binary(BinaryOp::Add, start, column);
    let places: Vec<Value> = params.iter().map(|p| b.ptr_add(*p, at)).collect();
    let v = b.load(places[0], Some(mask), None);
    let r = Random::new(seed);
    let mut m = Maker { b, r, elem, shape, tiles: vec![v], places, mask, flag, turns, step };
    for _ in 0..9 {
        m.make();
    }
    let last = *m.tiles.last().unwrap_or(&v);
    let to = m.places[3];
    m.b.store(to, last, Some(mask));
    m.b.finish()
}

#[test]
fn programs_agree() {
    let shapes = [[8, 16], [16, 8], [2, 64], [32, 4], [1, 32], [64, 1]];
    for seed in 1..=60u64 {
        let shape = shapes[seed as usize % shapes.len()];
        let elem = [Elem::I32, Elem::U32, Elem::F32, Elem::I64, Elem::U64][seed as usize % 5];
        let mut k = program(seed * 104_729, elem, shape);
        let mut r = Random::new(seed);
        let (rows, columns) = (shape[0] + r.next_below(3), shape[1] - r.next_below(2));
        let (pitch, turns, step) = (columns + r.next_below(5), r.next_below(4), r.next_below(7));
        let n = 2 * shape[0] * pitch + shape[1] + turns * step;
        let mut data = || encode_all(elem, &r.values(elem, n));
        let mut given = Launch::new([2, 1, 1]).buffer(elem, data()).buffer(elem, data()).buffer(elem, data());
        given = given.buffer(elem, vec![0; n * elem.bytes()]);
        for number in [rows, columns, pitch, turns, step] {
            given = given.scalar(Elem::I32, number as f64);
        }
        given = given.scalar(Elem::Bool, f64::from(u8::from(seed % 2 == 0)));
        let arch = [Arch::Sm90a, Arch::Sm80][seed as usize % 2];
        assert!(given.agrees(&k, arch, &format!("seed {seed}")), "seed {seed}: no PTX");
        passes::canonicalise(&mut k).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(given.agrees(&k, arch, &format!("seed {seed}, after passes")), "seed {seed}: no PTX");
    }
}

/// A fact that does not matter changes no line of the code, whatever else is known.
#[test]
fn facts_that_do_not_matter_change_no_code() {
    let code = |k: &BlockProgram, seed: u64| {
        let mut k = k.clone();
        let relevance = passes::drop_irrelevant_facts(&mut k);
        passes::canonicalise(&mut k).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let ptx = nvptx::compile(&k, Arch::Sm90a.machine()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        (ptx.text, relevance)
    };
    let (mut left_out, mut told) = (0, 0);
    for seed in 1..=12u64 {
        let shape = [[8, 16], [2, 64], [16, 8]][seed as usize % 3];
        let mut k = program(seed * 104_729, [Elem::I32, Elem::F32][seed as usize % 2], shape);
        // Of rows, columns, pitch, turns and step.
        for n in 4..9 {
            let others = Facts { div: [1, 16][(seed as usize + n) % 2], ..Facts::default() };
            k.params[n].facts = others;
        }
        let (_, relevance) = code(&k, seed);
        for (n, matters) in relevance.iter().enumerate().skip(4).take(5) {
            let before = k.params[n].facts;
            let plain = Facts { div: 1, ..before };
            let divided = Facts { div: 16, ..plain };
            let one = Facts { equals: Some(1), ..plain };
            for (facts, matters) in [(divided, matters.div), (one, matters.equals)] {
                k.params[n].facts = plain;
                let (without, _) = code(&k, seed);
                k.params[n].facts = facts;
                let (with, same) = code(&k, seed);
                assert_eq!(same, relevance, "seed {seed}: relevance depends on facts");
                if matters {
                    told += usize::from(with != without);
                } else {
                    left_out += 1;
                    assert_eq!(with, without, "seed {seed}, {}: {facts:?}", k.params[n].name);
                }
            }
            k.params[n].facts = before;
        }
    }
    assert!(left_out >= 12 && told >= 12, "{left_out} facts are left out, {told} change code");
}
