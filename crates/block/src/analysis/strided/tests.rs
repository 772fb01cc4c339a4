use super::*;
use crate::{Builder, Facts, Grid};

fn scalar(v: Value) -> Polynomial {
    Polynomial::scalar(v)
}

fn constant(n: i64) -> Polynomial {
    Polynomial::constant(n)
}

/// Rows `(pid * 64 + i) % m` of a pitch of the launch, columns that a loop moves: what a matmul reads.
#[test]
fn a_tile_of_rows_with_a_pitch_of_the_launch() {
    let mut b = Builder::new("k", Grid::Launch, 4);
    let x = b.param("x", Elem::F16, true);
    let [m, pitch, trips] = ["m", "pitch", "trips"].map(|name| b.scalar(name, Elem::I32, Facts::default()));
    let (pid, size, i) = (b.program_id(0), b.i32(64), b.iota(64));
    let start = b.binary(BinaryOp::Mul, pid, size);
    let start = b.splat(start, &[64]);
    let rows = b.binary(BinaryOp::Add, start, i);
    let all = b.splat(m, &[64]);
    let rows = b.binary(BinaryOp::Rem, rows, all);
    let rows = b.expand_dims(rows, 1);
    let pitches = b.splat(pitch, &[64, 1]);
    let at = b.binary(BinaryOp::Mul, rows, pitches);
    let at = b.broadcast_to(at, &[64, 64]);
    let columns = b.expand_dims(i, 0);
    let columns = b.broadcast_to(columns, &[64, 64]);
    let at = b.binary(BinaryOp::Add, at, columns);
    let x_block = b.splat(x, &[64, 64]);
    let tile = b.ptr_add(x_block, at);
    let (zero, one) = (b.i32(0), b.i32(1));
    let mut inside = None;
    b.for_loop([zero, trips, one], &[tile], |b, index, now| {
        inside = Some((index, now[0]));
        let by = b.splat(size, &[64, 64]);
        vec![b.ptr_add(now[0], by)]
    });
    let k = b.finish();
    let (index, now) = inside.unwrap();
    let form = StridedForms::of(&k).form(now).unwrap();
    assert_eq!(form.root, Some(x));
    assert_eq!(form.strides, [scalar(pitch), constant(1)]);
    let first = scalar(pid).times(&constant(64)).unwrap();
    let base = first.times(&scalar(pitch)).unwrap().add_scaled(&scalar(index), 64).unwrap();
    assert_eq!(form.base, base);
    assert_eq!(form.wraps, [Wrap { axis: 0, start: first, size: scalar(m) }]);
}

/// The mask `i < n - 32 * index` of a loop, seen from a block of two axes.
#[test]
fn bounds_that_a_loop_moves() {
    let mut b = Builder::new("k", Grid::Launch, 4);
    let n = b.scalar("n", Elem::I32, Facts::default());
    let (zero, one, size, i) = (b.i32(0), b.i32(1), b.i32(32), b.iota(32));
    let mut made = None;
    b.for_loop([zero, n, one], &[], |b, index, _| {
        let done = b.binary(BinaryOp::Mul, index, size);
        let left = b.binary(BinaryOp::Sub, n, done);
        let left = b.splat(left, &[32]);
        let mask = b.cmp(CmpOp::Lt, i, left);
        let mask = b.expand_dims(mask, 0);
        made = Some((index, b.broadcast_to(mask, &[8, 32])));
        vec![]
    });
    let k = b.finish();
    let (index, mask) = made.unwrap();
    let bounds = StridedForms::of(&k).bounds(mask).unwrap();
    let [(form, CmpOp::Lt)] = &bounds[..] else { panic!("{bounds:?}") };
    assert_eq!(form.strides, [constant(0), constant(1)]);
    assert_eq!(form.base, scalar(index).times(&constant(32)).unwrap().add_scaled(&scalar(n), -1).unwrap());
}

/// What is carried has no form if it does not grow by the same amount, and hashes have none.
#[test]
fn no_forms() {
    let mut b = Builder::new("k", Grid::Launch, 4);
    let [n, seed] = [("n", Elem::I32), ("seed", Elem::U32)].map(|(name, e)| b.scalar(name, e, Facts::default()));
    let (zero, one) = (b.i32(0), b.i32(1));
    let mut now_inside = None;
    b.for_loop([zero, n, one], &[one], |b, index, now| {
        now_inside = Some(now[0]);
        vec![b.binary(BinaryOp::Add, now[0], index)]
    });
    let hash = b.binary(BinaryOp::Mul, seed, seed);
    let k = b.finish();
    let mut forms = StridedForms::of(&k);
    // A scalar without a form is a term of its own.
    let carried = now_inside.unwrap();
    assert_eq!(forms.form(carried).map(|f| f.base), Some(scalar(carried)));
    assert_eq!(forms.form(hash), None);
}
