//! Offsets and masks are meant over the integers where tensors may have 2^31 elements or more: random programs whose
//! 32-bit arithmetic wraps, after passes, by the interpreter, as host code and as PTX, against an evaluation in i128.
//!
//! A program stores the distance of a pointer from its base, a number under a mask, and the offset as data, whose type
//! still counts.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

const LANES: usize = 8;
const INSTANCES: usize = 2;

/// An integer of 32 or 64 bits.
#[derive(Clone, Debug)]
enum Expr {
    Instance,
    Lane,
    /// A parameter of the launch: 32 bits, or 64 for the last.
    Param(usize),
    Table,
    Constant(i64),
    /// The index, or the carried number, of the innermost loop.
    Index,
    Carried,
    Arithmetic(BinaryOp, Box<[Expr; 2]>),
    Unary(UnaryOp, Box<Expr>),
    /// A quotient and other ops by a constant, before which the rule ends.
    Typed(BinaryOp, Box<Expr>, i64),
    Extend(Box<Expr>),
    /// `if a < b { x } else { y }`, as a choice or a branch.
    Choose(Box<[Expr; 4]>),
    Branch(Box<[Expr; 4]>),
    /// Sums up: `from`, number of steps, initial value, next value.
    For {
        from: Box<Expr>,
        steps: i64,
        init: Box<Expr>,
        next: Box<Expr>,
    },
    /// As long as the carried number is less, three times at most.
    While {
        limit: Box<Expr>,
        init: Box<Expr>,
        next: Box<Expr>,
    },
}
use Expr::*;

const STEP: i64 = 3;

impl Expr {
    fn parts(&self) -> Vec<&Expr> {
        match self {
            Instance | Lane | Param(_) | Table | Constant(_) | Index | Carried => vec![],
            Arithmetic(_, parts) => parts.iter().collect(),
            Unary(_, part) | Typed(_, part, _) | Extend(part) => vec![part],
            Choose(parts) | Branch(parts) => parts.iter().collect(),
            For { from, init, next, .. } => vec![from, init, next],
            While { limit, init, next } => vec![limit, init, next],
        }
    }
    fn is_block(&self) -> bool {
        matches!(self, Lane | Table) || self.parts().iter().any(|part| part.is_block())
    }
    /// Its type in a loop with these.
    fn elem(&self, around: Types) -> Elem {
        let widest = |parts: &[&Expr]| match parts.iter().any(|p| p.elem(around) == Elem::I64) {
            true => Elem::I64,
            false => Elem::I32,
        };
        match self {
            Param(3) | Extend(_) => Elem::I64,
            Index => around.index,
            Carried => around.carried,
            Choose(parts) | Branch(parts) => widest(&[&parts[2], &parts[3]]),
            For { init, .. } | While { init, .. } => init.elem(around),
            _ => widest(&self.parts()),
        }
    }
}

/// Types of a loop's index and of the number that it carries.
#[derive(Clone, Copy)]
struct Types {
    index: Elem,
    carried: Elem,
}
const NARROW: Types = Types { index: Elem::I32, carried: Elem::I32 };

struct Maker<'a>(&'a mut Random);

impl Maker<'_> {
    fn leaf(&mut self, inside: bool, scalar: bool) -> Expr {
        match self.0.next_below(if inside { 9 } else { 7 }) {
            0 => Instance,
            1 if !scalar => Lane,
            2 if !scalar => Table,
            3 => Constant([1, 3, 1 << 20, 1_000_000_007, -5][self.0.next_below(5)]),
            7 => Index,
            8 if !scalar => Carried,
            n => Param(n % 4),
        }
    }
    fn expr(&mut self, depth: usize, inside: bool, scalar: bool) -> Expr {
        if depth == 0 {
            return self.leaf(inside, scalar);
        }
        let kind = self.0.next_below(16);
        let mut part = |scalar: bool| self.expr(depth - 1, inside, scalar);
        match kind {
            0..=6 => {
                use BinaryOp::*;
                let parts = Box::new([part(scalar), part(scalar)]);
                Arithmetic([Add, Sub, Mul, Add, Mul, Max, Min][kind], parts)
            }
            7 => Unary([UnaryOp::Neg, UnaryOp::Abs][depth % 2], Box::new(part(scalar))),
            8 => Typed([BinaryOp::Div, BinaryOp::Rem, BinaryOp::Xor][depth % 3], Box::new(part(scalar)), 7),
            9 => Typed(BinaryOp::Shl, Box::new(part(scalar)), 3),
            10 => Extend(Box::new(part(scalar))),
            11 | 12 => Choose(Box::new([part(scalar), part(scalar), part(scalar), part(scalar)])),
            13 => Branch(Box::new([part(true), part(true), part(scalar), part(scalar)])),
            _ if inside => part(scalar),
            14 => {
                let (from, init) = (Box::new(part(true)), Box::new(part(scalar)));
                let steps = self.0.next_below(4) as i64;
                For { from, steps, init, next: Box::new(self.next(depth, scalar)) }
            }
            _ => {
                let (limit, init) = (Box::new(part(true)), Box::new(part(true)));
                While { limit, init, next: Box::new(self.next(depth, true)) }
            }
        }
    }
    /// The next carried number.
    fn next(&mut self, depth: usize, scalar: bool) -> Expr {
        let op = [BinaryOp::Add, BinaryOp::Add, BinaryOp::Mul][self.0.next_below(3)];
        Arithmetic(op, Box::new([Carried, self.expr(depth - 1, true, scalar)]))
    }
}

/// A number as its type computes it, and over the integers.
#[derive(Clone, Copy, Debug)]
struct Number {
    typed: i64,
    meant: i128,
}

#[derive(Clone)]
struct State<'a> {
    instance: usize,
    lane: usize,
    params: [i64; 4],
    table: &'a [i64],
    index: Option<Number>,
    carried: Option<Number>,
    types: Types,
    /// What branches and loops decide is meant over the integers.
    meant: bool,
}

impl State<'_> {
    /// `None`: numbers are too large for a test.
    fn value(&self, e: &Expr) -> Option<Number> {
        let elem = e.elem(self.types);
        let exact = |n: i64| Some(Number { typed: n, meant: n.into() });
        let found = match e {
            Instance => exact(self.instance as i64)?,
            Lane => exact(self.lane as i64)?,
            Param(n) => exact(self.params[*n])?,
            Table => exact(self.table[self.lane])?,
            Constant(n) => exact(*n)?,
            Index => self.index?,
            Carried => self.carried?,
            Arithmetic(op, parts) => {
                let (a, b) = (self.value(&parts[0])?, self.value(&parts[1])?);
                let typed = applied(*op, a.typed.into(), b.typed.into())?;
                Number { typed: elem.wrapped(typed as i64), meant: applied(*op, a.meant, b.meant)? }
            }
            Unary(op, part) => {
                let a = self.value(part)?;
                let apply = |x: i128| if *op == UnaryOp::Neg { -x } else { x.abs() };
                Number { typed: elem.wrapped(apply(a.typed.into()) as i64), meant: apply(a.meant) }
            }
            Typed(op, part, by) => {
                let x = State { meant: false, ..self.clone() }.value(part)?.typed;
                let n = match op {
                    BinaryOp::Div => x / by,
                    BinaryOp::Rem => x % by,
                    BinaryOp::Xor => x ^ by,
                    _ => x.wrapping_shl(*by as u32),
                };
                exact(elem.wrapped(n))?
            }
            Extend(part) => self.value(part)?,
            Choose(parts) => {
                let [a, b, x, y] = [0, 1, 2, 3].map(|n| self.value(&parts[n]));
                let (a, b, x, y) = (a?, b?, x?, y?);
                let typed = if a.typed < b.typed { x.typed } else { y.typed };
                Number { typed, meant: if a.meant < b.meant { x.meant } else { y.meant } }
            }
            Branch(parts) => {
                let less = self.less(self.value(&parts[0])?, self.value(&parts[1])?);
                self.value(&parts[if less { 2 } else { 3 }])?
            }
            For { .. } | While { .. } => self.repeated(e, elem)?,
        };
        (found.meant.unsigned_abs() < 1 << 50).then_some(found)
    }
    /// Cast to the carried number's type, where casts to fewer bits end the rule.
    fn cast(&self, e: &Expr, to: Elem) -> Option<Number> {
        let from = e.elem(self.types);
        let narrows = from.bytes() > to.bytes();
        let found = State { meant: self.meant && !narrows, ..self.clone() }.value(e)?;
        let typed = to.wrapped(found.typed);
        Some(Number { typed, meant: if narrows { typed.into() } else { found.meant } })
    }
    fn less(&self, a: Number, b: Number) -> bool {
        if self.meant { a.meant < b.meant } else { a.typed < b.typed }
    }
    fn repeated(&self, e: &Expr, elem: Elem) -> Option<Number> {
        let mut state = self.clone();
        match e {
            For { from, steps, init, next } => {
                let (from, index) = (self.value(from)?, from.elem(self.types));
                state.types = Types { index, carried: elem };
                let moved = |by: i64| Number {
                    typed: index.wrapped(from.typed.wrapping_add(by)),
                    meant: from.meant + i128::from(by),
                };
                let (mut now, mut at) = (self.value(init)?, 0);
                while self.less(moved(at), moved(steps * STEP)) {
                    (state.index, state.carried) = (Some(moved(at)), Some(now));
                    now = state.cast(next, elem)?;
                    at += STEP;
                }
                Some(now)
            }
            While { limit, init, next } => {
                let (limit, mut now) = (self.value(limit)?, self.value(init)?);
                state.types = Types { index: Elem::I32, carried: elem };
                for count in 0..3 {
                    (state.index, state.carried) = (Some(Number { typed: count, meant: count.into() }), Some(now));
                    now = state.cast(next, elem)?;
                    if !self.less(now, limit) {
                        break;
                    }
                }
                Some(now)
            }
            _ => None,
        }
    }
}

fn applied(op: BinaryOp, a: i128, b: i128) -> Option<i128> {
    match op {
        BinaryOp::Add => Some(a + b),
        BinaryOp::Sub => Some(a - b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Max => Some(a.max(b)),
        _ => Some(a.min(b)),
    }
}

/// Emits expressions as a front end does: with casts to the wider type, and splats.
struct Emission {
    params: Vec<Value>,
    table: Value,
    index: Option<Value>,
    carried: Option<Value>,
}

impl Emission {
    fn emit(&self, b: &mut Builder, e: &Expr) -> Value {
        match e {
            Instance => b.program_id(0),
            Lane => b.iota(LANES),
            Param(n) => self.params[*n],
            Table => self.table,
            Constant(n) => b.i32(*n),
            Index => self.index.unwrap_or(self.table),
            Carried => self.carried.unwrap_or(self.table),
            Arithmetic(op, parts) => {
                let (x, y) = self.pair(b, &parts[0], &parts[1]);
                b.binary(*op, x, y)
            }
            Unary(op, part) => {
                let v = self.emit(b, part);
                b.unary(*op, v)
            }
            Typed(op, part, by) => {
                let v = self.emit(b, part);
                let by = b.constant(b.ty(v).clone(), Const::Int(*by));
                b.binary(*op, v, by)
            }
            Extend(part) => {
                let v = self.emit(b, part);
                b.cast(v, Elem::I64)
            }
            Choose(parts) => {
                let (x, y) = self.pair(b, &parts[0], &parts[1]);
                let (yes, no) = self.pair(b, &parts[2], &parts[3]);
                let less = b.cmp(CmpOp::Lt, x, y);
                let shape = [less, yes, no].map(|v| b.shape(v)).into_iter().max().unwrap_or_default();
                let [less, yes, no] = [less, yes, no].map(|v| b.broadcast_to(v, &shape));
                b.select(less, yes, no)
            }
            Branch(parts) => {
                let (x, y) = self.pair(b, &parts[0], &parts[1]);
                let less = b.cmp(CmpOp::Lt, x, y);
                let (yes, no) = self.pair(b, &parts[2], &parts[3]);
                b.if_else(less, |_| vec![yes], |_| vec![no])[0]
            }
            For { .. } | While { .. } => self.repeated(b, e),
        }
    }
    /// Two numbers of one type and shape.
    fn pair(&self, b: &mut Builder, x: &Expr, y: &Expr) -> (Value, Value) {
        let (mut x, mut y) = (self.emit(b, x), self.emit(b, y));
        if [x, y].iter().any(|v| b.elem(*v) == Some(Elem::I64)) {
            (x, y) = (b.cast(x, Elem::I64), b.cast(y, Elem::I64));
        }
        let shape = [b.shape(x), b.shape(y)].into_iter().max().unwrap_or_default();
        (b.broadcast_to(x, &shape), b.broadcast_to(y, &shape))
    }
    fn repeated(&self, b: &mut Builder, e: &Expr) -> Value {
        let (For { init, .. } | While { init, .. }) = e else { return self.table };
        let (mut init, shape) = (self.emit(b, init), if e.is_block() { vec![LANES] } else { vec![] });
        init = b.broadcast_to(init, &shape);
        let elem = b.elem(init).unwrap();
        let inside = |b: &mut Builder, index: Value, carried: Value, next: &Expr| {
            let (params, table) = (self.params.clone(), self.table);
            let next = Emission { params, table, index: Some(index), carried: Some(carried) }.emit(b, next);
            let next = b.cast(next, elem);
            b.broadcast_to(next, &shape)
        };
        match e {
            For { from, steps, next, .. } => {
                let from = self.emit(b, from);
                let [more, step] = [steps * STEP, STEP].map(|n| b.constant(b.ty(from).clone(), Const::Int(n)));
                let to = b.binary(BinaryOp::Add, from, more);
                b.for_loop([from, to, step], &[init], |b, i, now| vec![inside(b, i, now[0], next)])[0]
            }
            While { limit, next, .. } => {
                let (limit, zero) = (self.emit(b, limit), b.i32(0));
                let last = b.repeat_while(&[zero, init], |b, now| {
                    let (one, most) = (b.i32(1), b.i32(3));
                    let next = inside(b, now[0], now[1], next);
                    let count = b.binary(BinaryOp::Add, now[0], one);
                    let (wide, limit) = (b.cast(next, Elem::I64), b.cast(limit, Elem::I64));
                    let (more, less) = (b.cmp(CmpOp::Lt, count, most), b.cmp(CmpOp::Lt, wide, limit));
                    (b.binary(BinaryOp::And, more, less), vec![count, next])
                });
                last[1]
            }
            _ => self.table,
        }
    }
}

/// Stores how far `at` is, 1 where `a < b`, and `at` as data.
fn program(at: &Expr, [x, y]: &[Expr; 2]) -> BlockProgram {
    let mut b = Builder::new("offsets", Grid::Launch, 1);
    let far = b.param("far", Elem::I8, false);
    let [apart, masked, data, numbers] =
        ["apart", "masked", "data", "numbers"].map(|name| b.param(name, Elem::I64, false));
    let table = b.param("table", Elem::I32, false);
    let params =
        [0, 1, 2, 3].map(|n| b.scalar(format!("n{n}"), if n == 3 { Elem::I64 } else { Elem::I32 }, Facts::default()));
    let (pid, lanes, i) = (b.program_id(0), b.i32(LANES as i64), b.iota(LANES));
    let start = b.binary(BinaryOp::Mul, pid, lanes);
    let place = b.binary(BinaryOp::Add, start, i);
    let place = b.cast(place, Elem::I64);
    let [apart, masked, data, numbers] = [apart, masked, data, numbers].map(|p| b.ptr_add(p, place));
    let number = b.load(numbers, None, None);
    let table = b.ptr_add(table, i);
    let table = b.load(table, None, None);
    let emission = Emission { params: params.to_vec(), table, index: None, carried: None };

    let at = emission.emit(&mut b, at);
    let at = b.broadcast_to(at, &[LANES]);
    let pointer = b.ptr_add(far, at);
    let [address, base] = [pointer, far].map(|p| b.bitcast(p, &Type::scalar(Elem::I64)));
    let distance = b.binary(BinaryOp::Sub, address, base);
    b.store(apart, distance, None);

    let (x, y) = emission.pair(&mut b, x, y);
    let mask = b.cmp(CmpOp::Lt, x, y);
    let mask = b.broadcast_to(mask, &[LANES]);
    b.store(masked, number, Some(mask));
    let typed = b.cast(at, Elem::I64);
    b.store(data, typed, None);
    b.finish()
}

/// Programs before passes compute what their types say, which is another number for many of these.
#[test]
fn offsets_are_integers() {
    let (mut tried, mut wrapped) = (0, 0);
    for seed in 1..=800u64 {
        let mut r = Random::new(seed * 7919);
        let (at, mask) = {
            let mut make = Maker(&mut r);
            (make.expr(4, false, false), [make.expr(3, false, false), make.expr(2, false, false)])
        };
        let large = |r: &mut Random| [i64::from(i32::MAX), 1 << 30, 1_234_567_891, -2_000_000_000][r.next_below(4)];
        let params = [large(&mut r), r.next_below(70_000) as i64, 1 + r.next_below(5) as i64, large(&mut r) * 3];
        let table: Vec<i64> = (0..LANES).map(|_| r.next_below(1 << 31) as i64).collect();
        let value = |e: &Expr, n: usize| {
            let (instance, lane, table) = (n / LANES, n % LANES, &table[..]);
            State { instance, lane, params, table, index: None, carried: None, types: NARROW, meant: true }.value(e)
        };
        let all = |e: &Expr| (0..INSTANCES * LANES).map(|n| value(e, n)).collect::<Option<Vec<_>>>();
        let (Some(want), Some(x), Some(y)) = (all(&at), all(&mask[0]), all(&mask[1])) else { continue };
        tried += 1;
        wrapped += usize::from(want.iter().any(|n| i128::from(n.typed) != n.meant));

        let mut k = program(&at, &mask);
        verify::verify(&k).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", text::print(&k)));
        passes::canonicalise(&mut k).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let bytes = |n: &[i64]| n.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let n = INSTANCES * LANES;
        let mut given = Launch::new([INSTANCES, 1, 1]).buffer(Elem::I8, vec![0; 8]);
        for buffer in [vec![0; n], vec![0; n], vec![0; n], vec![1; n]] {
            given = given.buffer(Elem::I64, bytes(&buffer));
        }
        given = given.buffer(Elem::I32, table.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect());
        for (n, v) in params.iter().enumerate() {
            given = given.scalar(if n == 3 { Elem::I64 } else { Elem::I32 }, *v as f64);
        }
        let found = given.interpreted(&k).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", text::print(&k)));
        let distances: Vec<i64> = want.iter().map(|n| n.meant as i64).collect();
        let masked: Vec<i64> = x.iter().zip(&y).map(|(x, y)| i64::from(x.meant < y.meant)).collect();
        let data: Vec<i64> = want.iter().map(|n| n.typed).collect();
        for (n, want, what) in [(1, distances, "distance"), (2, masked, "mask"), (3, data, "data")] {
            let about = || format!("seed {seed}, {what}: {at:?} {mask:?} {params:?}\n{}", text::print(&k));
            assert_eq!(found[n], bytes(&want), "{}", about());
        }
        if seed % 5 == 0 {
            assert!(given.agrees(&k, Arch::Sm90a, &format!("seed {seed}")), "seed {seed}: no PTX");
        }
    }
    assert!(tried > 200 && wrapped > 60, "{tried} programs, of which {wrapped} wrap");
}
