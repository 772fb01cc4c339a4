//! Host code grows with a program's length, however its steps read each other: lines of LLVM text are counted for chains
//! of steps. Short chains are run.
use crate::support::launch::Launch;
use crate::support::{Num, encode_all};
use kiln_block::*;
use kiln_codegen::host;
use kiln_machine::Arch;

/// One step of a chain of blocks of 64 numbers.
type Step = fn(&mut Builder, Value, usize) -> Value;

const COUNT: usize = 64;

/// Orders the elements whose positions differ in one bit, as a sort does.
fn exchange(b: &mut Builder, v: Value, step: usize) -> Value {
    let near = 1 << (step % 6);
    let pairs = b.reshape(v, &[COUNT / 2 / near, 2, near]);
    let pairs = b.permute(pairs, &[0, 2, 1]);
    let [x, y] = b.split(pairs);
    let turned = b.cmp(CmpOp::Gt, x, y);
    let (low, high) = (b.select(turned, y, x), b.select(turned, x, y));
    let both = b.join(low, high);
    let both = b.permute(both, &[0, 2, 1]);
    b.reshape(both, &[COUNT])
}
/// Adds the block turned around.
fn flip(b: &mut Builder, v: Value, _: usize) -> Value {
    let (last, at) = (b.i32(COUNT as i64 - 1), b.iota(COUNT));
    let back = b.binary(BinaryOp::Sub, last, at);
    let turned = b.gather(v, back, 0);
    b.binary(BinaryOp::Add, v, turned)
}
/// Sums and differences of the halves.
fn halves(b: &mut Builder, v: Value, _: usize) -> Value {
    let [low, high] = [0, COUNT / 2].map(|at| b.part(v, 0, at, COUNT / 2));
    let (sum, difference) = (b.binary(BinaryOp::Add, low, high), b.binary(BinaryOp::Sub, high, low));
    b.cat(sum, difference, 0)
}
/// Adds the block as a matrix of which rows are columns.
fn transpose(b: &mut Builder, v: Value, step: usize) -> Value {
    let rows = [4, 8, 16][step % 3];
    let matrix = b.reshape(v, &[rows, COUNT / rows]);
    let turned = b.permute(matrix, &[1, 0]);
    let turned = b.reshape(turned, &[COUNT]);
    b.binary(BinaryOp::Xor, v, turned)
}
/// Products of sums of rows with each other.
fn against_itself(b: &mut Builder, v: Value, _: usize) -> Value {
    let halves = b.reshape(v, &[8, 8]);
    let rows = b.reduce_by(1, &[halves], |b, x, y| vec![b.binary(BinaryOp::Add, x[0], y[0])])[0];
    let shape = [8, 8];
    let (down, along) = (b.expand_dims(rows, 1), b.expand_dims(rows, 0));
    let (down, along) = (b.broadcast_to(down, &shape), b.broadcast_to(along, &shape));
    let all = b.binary(BinaryOp::Mul, down, along);
    b.reshape(all, &[COUNT])
}
/// Scans by a region.
fn scan(b: &mut Builder, v: Value, step: usize) -> Value {
    b.scan_by((0, step.is_multiple_of(2)), &[v], |b, x, y| vec![b.binary(BinaryOp::Xor, x[0], y[0])])[0]
}
/// Subtracts the mean.
fn centre(b: &mut Builder, v: Value, _: usize) -> Value {
    let sum = b.reduce(ReduceOp::Sum, v, 0);
    let count = b.i32(COUNT as i64);
    let mean = b.binary(BinaryOp::Div, sum, count);
    b.binary(BinaryOp::Sub, v, mean)
}

fn chain(step: Step, steps: usize) -> BlockProgram {
    let mut b = Builder::new("chain", Grid::Launch, 4);
    let (x, y) = (b.param("x", Elem::I32, true), b.param("y", Elem::I32, false));
    let i = b.iota(COUNT);
    let (x, y) = (b.ptr_add(x, i), b.ptr_add(y, i));
    let mut v = b.load(x, None, None);
    for n in 0..steps {
        v = step(&mut b, v, n);
    }
    b.store(y, v, None);
    b.finish()
}

fn lines(step: Step, steps: usize) -> usize {
    host::llvm_text(&[chain(step, steps)]).unwrap().lines().count()
}

#[test]
fn code_grows_with_the_length_of_a_chain() {
    let steps: [(&str, Step); 7] = [
        ("exchange", exchange),
        ("flip", flip),
        ("halves", halves),
        ("transpose", transpose),
        ("against itself", against_itself),
        ("scan", scan),
        ("centre", centre),
    ];
    for (name, step) in steps {
        let (short, middle, long) = (lines(step, 12), lines(step, 24), lines(step, 48));
        let (first, second) = (middle - short, long - middle);
        assert!(second <= 2 * first + first / 4, "{name}: {short}, {middle} and {long} lines");
        let numbers: Vec<Num> = (0..COUNT).map(|n| Num::I((n as i64 * 37) % 101 - 50)).collect();
        let given = Launch::new([1, 1, 1]).buffer(Elem::I32, encode_all(Elem::I32, &numbers));
        let given = given.buffer(Elem::I32, vec![0; 4 * COUNT]);
        given.agrees(&chain(step, 7), Arch::Sm90a, name);
    }
}
