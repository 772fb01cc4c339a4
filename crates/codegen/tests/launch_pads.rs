//! Reductions of rows that loads pad: the pads count, unless they leave the result as it is.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

const BLOCK: usize = 128;

/// Of one row of `n` elements: the largest, and the sum and product of what `part` makes of each and the largest.
fn program(pad: f64, part: impl Fn(&mut Builder, Value, Value) -> Value) -> BlockProgram {
    let mut b = Builder::new("row", Grid::Launch, 1);
    let [x, out, sums] = [("x", true), ("out", false), ("sums", false)].map(|(n, r)| b.param(n, Elem::F32, r));
    let n = b.scalar("n", Elem::I32, Facts::default());
    let i = b.iota(BLOCK);
    let mask = b.cmp(CmpOp::Lt, i, n);
    let other = b.constant(Type::block(Elem::F32, [BLOCK]), Const::Float(pad));
    let p = b.ptr_add(x, i);
    let x = b.load(p, Some(mask), Some(other));
    let largest = b.reduce(ReduceOp::Max, x, 0);
    let all = b.splat(largest, &[BLOCK]);
    let parts = part(&mut b, x, all);
    let p = b.ptr_add(out, i);
    b.store(p, parts, Some(mask));
    for (at, op) in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min].into_iter().enumerate() {
        let result = b.reduce(op, parts, 0);
        let at = b.i32(at as i64);
        let p = b.ptr_add(sums, at);
        b.store(p, result, None);
    }
    b.finish()
}

#[test]
fn pads_count_where_they_are_not_neutral() {
    let infinity = f64::INFINITY;
    // 0 for pads of minus infinity, unless the whole row is; dear enough to be kept.
    let falls = |b: &mut Builder, x: Value, largest: Value| {
        let [least, one] = [-1.0, 1.0].map(|v| b.constant(Type::block(Elem::F32, [BLOCK]), Const::Float(v)));
        let x = b.binary(BinaryOp::Sub, x, largest);
        let x = b.binary(BinaryOp::Max, x, least);
        let x = b.binary(BinaryOp::Add, x, one);
        let root = b.unary(UnaryOp::Sqrt, x);
        b.binary(BinaryOp::Mul, root, root)
    };
    let rows: [(usize, &[f64]); 8] = [
        (0, &[]),
        (1, &[3.0]),
        (37, &[2.0, -1.0, 1.0]),
        (64, &[-infinity]),
        (64, &[-infinity, 1.0]),
        (100, &[infinity, 2.0]),
        (127, &[f64::NAN, 2.0, 1.0, 0.0, 1.0]),
        (128, &[1.0, 0.0]),
    ];
    for pad in [-infinity, infinity, 0.0, 1.0, f64::NAN] {
        for (n, values) in &rows {
            let row: Vec<Num> = (0..*n).map(|i| Num::F(values[i % values.len()])).collect();
            let mut bytes = encode_all(Elem::F32, &row);
            bytes.resize(BLOCK * 4, 0x55);
            let given = Launch::new([1, 1, 1])
                .buffer(Elem::F32, bytes)
                .buffer(Elem::F32, vec![0; BLOCK * 4])
                .buffer(Elem::F32, vec![0; 12])
                .scalar(Elem::I32, *n as f64);
            given.agrees(&program(pad, falls), Arch::Sm80, &format!("{n} of {values:?}, then {pad}"));
            given.agrees(&program(pad, |_, x, _| x), Arch::Sm80, &format!("{n} of {values:?} as loaded, then {pad}"));
        }
    }
}
