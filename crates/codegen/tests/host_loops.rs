//! Loops whose carried blocks are replaced in place, or read each other; matmuls whose sum a loop carries.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

const SIDE: usize = 16;

/// What a turn makes of the two blocks that a loop carries and of a third.
type Body = fn(&mut Builder, [Value; 3]) -> Vec<Value>;

fn pointers(b: &mut Builder, name: &str, elem: Elem, shape: &[usize]) -> Value {
    let p = b.param(name, elem, name == "x");
    let lanes = b.iota(shape.iter().product());
    let at = b.reshape(lanes, shape);
    b.ptr_add(p, at)
}

/// A loop with as many turns as the launch says.
fn looped(elem: Elem, body: Body) -> BlockProgram {
    let mut b = Builder::new("looped", Grid::Launch, 4);
    let shape = [SIDE, SIDE];
    let turns = b.scalar("turns", Elem::I32, Facts::default());
    let [x, p, q] = ["x", "p", "q"].map(|name| pointers(&mut b, name, elem, &shape));
    let [x, first, second] = [x, p, q].map(|at| b.load(at, None, None));
    let (zero, one) = (b.i32(0), b.i32(1));
    let last = b.for_loop([zero, turns, one], &[first, second], |b, _, now| body(b, [now[0], now[1], x]));
    b.store(p, last[0], None);
    b.store(q, last[1], None);
    b.finish()
}

fn small(elem: Elem, n: usize, seed: i64) -> Vec<u8> {
    let all: Vec<Num> = (0..n as i64).map(|i| Num::I((i * seed) % 7 - 3)).collect();
    encode_all(elem, &all)
}

fn agree(k: &BlockProgram, elem: Elem, about: &str) {
    for turns in 0..4 {
        let mut given = Launch::new([1, 1, 1]).scalar(Elem::I32, f64::from(turns));
        for seed in [37, 11, 5] {
            given = given.buffer(elem, small(elem, SIDE * SIDE, seed));
        }
        given.agrees(k, Arch::Sm90a, &format!("{about}, {turns} turns"));
    }
}

#[test]
fn carried_blocks_that_read_each_other() {
    let bodies: [(&str, Body); 8] = [
        ("exchanged", |_, [p, q, _]| vec![q, p]),
        ("one reads both", |b, [p, q, _]| vec![b.binary(BinaryOp::Add, p, q), q]),
        ("each reads both", |b, [p, q, _]| vec![b.binary(BinaryOp::Add, p, q), b.binary(BinaryOp::Sub, q, p)]),
        ("each reads itself", |b, [p, q, x]| vec![b.binary(BinaryOp::Add, p, x), b.binary(BinaryOp::Sub, q, x)]),
        ("turned", |b, [p, q, x]| {
            let turned = b.permute(p, &[1, 0]);
            vec![b.binary(BinaryOp::Add, turned, x), b.binary(BinaryOp::Add, q, x)]
        }),
        ("and its sums", |b, [p, q, x]| {
            let rows = b.reduce(ReduceOp::Sum, p, 1);
            let rows = b.expand_dims(rows, 1);
            let rows = b.broadcast_to(rows, &[SIDE, SIDE]);
            vec![b.binary(BinaryOp::Xor, p, x), b.binary(BinaryOp::Add, q, rows)]
        }),
        ("its next is read", |b, [p, q, x]| {
            let mut next = b.binary(BinaryOp::Add, p, x);
            for _ in 0..9 {
                next = b.binary(BinaryOp::Xor, next, x);
            }
            let rows = b.reduce(ReduceOp::Max, next, 0);
            let rows = b.expand_dims(rows, 0);
            let rows = b.broadcast_to(rows, &[SIDE, SIDE]);
            vec![next, b.binary(BinaryOp::Add, q, rows)]
        }),
        ("in a branch", |b, [p, q, x]| {
            let (zero, one) = (b.i32(0), b.i32(1));
            let never = b.cmp(CmpOp::Lt, one, zero);
            let next = b.if_else(never, |b| vec![b.binary(BinaryOp::Add, p, x)], |_| vec![q]);
            vec![next[0], p]
        }),
    ];
    for (about, body) in bodies {
        agree(&looped(Elem::I32, body), Elem::I32, about);
    }
}

#[test]
fn matmuls_into_what_a_loop_carries() {
    let bodies: [(&str, Body); 4] = [
        ("a sum", |b, [p, q, x]| vec![b.dot(x, x, p, DotPrecision::Exact), q]),
        ("a scaled sum", |b, [p, q, x]| {
            let twice = b.binary(BinaryOp::Add, p, p);
            vec![b.dot(x, x, twice, DotPrecision::Exact), b.dot(x, x, q, DotPrecision::Exact)]
        }),
        ("a sum that another reads", |b, [p, q, x]| {
            let other = b.binary(BinaryOp::Sub, q, p);
            vec![b.dot(x, x, p, DotPrecision::Exact), other]
        }),
        ("a factor that is carried", |b, [p, q, x]| {
            let half = b.cast(p, Elem::Bf16);
            let other = b.cast(x, Elem::Bf16);
            let next = b.dot(half, other, q, DotPrecision::Exact);
            vec![b.binary(BinaryOp::Sub, x, p), next]
        }),
    ];
    for (about, body) in bodies {
        agree(&looped(Elem::F32, body), Elem::F32, about);
    }
}

/// Matrices of halves, whose pairs may be multiplied together, and of others.
#[test]
fn matmuls_of_halves() {
    for elem in [Elem::F32, Elem::F16, Elem::Bf16, Elem::I8].into_iter() {
        for [m, n, k] in [[16, 32, 16], [32, 16, 64], [64, 64, 32]] {
            let sum = if elem == Elem::I8 { Elem::I32 } else { Elem::F32 };
            let mut b = Builder::new("matmul", Grid::Launch, 4);
            let shapes = [[m, k], [k, n], [m, n]];
            let x = pointers(&mut b, "x", elem, &shapes[0]);
            let y = pointers(&mut b, "y", elem, &shapes[1]);
            let to = pointers(&mut b, "to", sum, &shapes[2]);
            let [x, y, start] = [x, y, to].map(|at| b.load(at, None, None));
            let product = b.dot(x, y, start, DotPrecision::Exact);
            b.store(to, product, None);
            let mut given = Launch::new([1, 1, 1]);
            for (shape, (elem, seed)) in shapes.iter().zip([(elem, 37), (elem, 11), (sum, 5)]) {
                given = given.buffer(elem, small(elem, shape.iter().product(), seed));
            }
            given.agrees(&b.finish(), Arch::Sm90a, &format!("{elem}, {m}x{n}x{k}"));
        }
    }
}
