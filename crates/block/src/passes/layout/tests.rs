use super::*;
use crate::layout::Flat;
use crate::{BinaryOp, Builder, Elem, Op, ReduceOp};

fn layout_of(k: &BlockProgram, op: impl Fn(&Op) -> bool) -> Vec<Flat> {
    let mut found = vec![];
    k.walk(&mut |_, d| {
        if op(&d.op) {
            let v = d.results.first().or(d.args.first()).copied();
            found.extend(v.and_then(|v| k.value(v).layout.as_ref()?.flat(k.ty(v).shape())));
        }
    });
    found
}
fn count(k: &BlockProgram, op: impl Fn(&Op) -> bool) -> usize {
    let mut n = 0;
    k.walk(&mut |_, d| n += usize::from(op(&d.op)));
    n
}

#[test]
fn vector_add_takes_sixteen_bytes_a_thread() {
    let mut b = Builder::new("add", [8, 1, 1], 4);
    let ptrs = [b.param("x", Elem::F32, true), b.param("y", Elem::F32, true), b.param("z", Elem::F32, false)];
    let (pid, size) = (b.program_id(0), b.i32(1024));
    let start = b.binary(BinaryOp::Mul, pid, size);
    let i = b.iota(1024);
    let at = b.binary(BinaryOp::Add, start, i);
    let [x, y, z] = ptrs.map(|p| b.ptr_add(p, at));
    let (x, y) = (b.load(x, None, None), b.load(y, None, None));
    let sum = b.binary(BinaryOp::Add, x, y);
    b.store(z, sum, None);
    let k = assign(&b.finish());
    let expected = Flat::blocked(&[1024], &[0], 4, 2, &[]);
    assert_eq!(layout_of(&k, |op| matches!(op, Op::Load(..))), vec![expected.clone(), expected]);
    assert_eq!(count(&k, |op| *op == Op::ConvertLayout), 0);
    // Every used value has a layout that covers it.
    k.walk(&mut |_, d| {
        for v in d.args.iter().chain(&d.results) {
            let data = k.value(*v);
            assert!(data.layout.as_ref().is_some_and(|l| l.flat(data.ty.shape()).is_some()), "{v} in {d:?}");
        }
    });
}

#[test]
fn loads_of_windows_are_marked() {
    let loads = |near: i64| {
        let mut b = Builder::new("window", [1, 1, 1], 1);
        let (x, y, far) =
            (b.param("x", Elem::F16, true), b.param("y", Elem::F16, false), b.param("f", Elem::F16, true));
        let i = b.iota(256);
        let mut sum = None;
        for n in 0..near {
            let n = b.i32(n);
            let at = b.binary(BinaryOp::Add, i, n);
            let p = b.ptr_add(x, at);
            let v = b.load(p, None, None);
            sum = Some(sum.map_or(v, |s| b.binary(BinaryOp::Add, s, v)));
        }
        let (p, at) = (b.ptr_add(far, i), b.ptr_add(y, i));
        let v = b.load(p, None, None);
        let sum = sum.map_or(v, |s| b.binary(BinaryOp::Add, s, v));
        b.store(at, sum, None);
        let text = crate::text::print(&assign(&b.finish()));
        [" = load ", " = load_window "].map(|op| text.matches(op).count())
    };
    assert_eq!(loads(2), [3, 0], "two neighbours and another buffer");
    assert_eq!(loads(3), [1, 3], "three neighbours are a window");
}

#[test]
fn a_row_statistic_comes_back_without_conversion() {
    let mut b = Builder::new("center", [1, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (i, j, width) = (b.iota(4), b.iota(256), b.i32(256));
    let rows = b.binary(BinaryOp::Mul, i, width);
    let rows = b.expand_dims(rows, 1);
    let at = {
        let rows = b.inst(Op::Broadcast, &[rows], &[crate::Type::block(Elem::I32, [4, 256])], vec![])[0];
        b.binary(BinaryOp::Add, rows, j)
    };
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, at));
    let x = b.load(xs, None, None);
    let sum = b.reduce(ReduceOp::Sum, x, 1);
    let sum = b.expand_dims(sum, 1);
    let sum = b.inst(Op::Broadcast, &[sum], &[crate::Type::block(Elem::F32, [4, 256])], vec![])[0];
    let centred = b.binary(BinaryOp::Sub, x, sum);
    b.store(ys, centred, None);
    let k = assign(&b.finish());
    assert_eq!(count(&k, |op| *op == Op::ConvertLayout), 0);
    let load = layout_of(&k, |op| matches!(op, Op::Load(..)));
    assert_eq!(load[0].warps, vec![Some(8), Some(9)], "one row a warp");
}

#[test]
fn short_columns_stay_with_their_thread() {
    let mut b = Builder::new("columns", [1, 1, 1], 1);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (i, j, width) = (b.iota(8), b.iota(64), b.i32(64));
    let rows = b.binary(BinaryOp::Mul, i, width);
    let rows = b.expand_dims(rows, 1);
    let rows = b.broadcast_to(rows, &[8, 64]);
    let at = b.binary(BinaryOp::Add, rows, j);
    let xs = b.ptr_add(x, at);
    let x = b.load(xs, None, None);
    let sum = b.reduce(ReduceOp::Sum, x, 0);
    let ys = b.ptr_add(y, j);
    b.store(ys, sum, None);
    let k = assign(&b.finish());
    let load = layout_of(&k, |op| matches!(op, Op::Load(..)));
    assert_eq!(load, vec![Flat::blocked(&[8, 64], &[1, 0], 2, 0, &[0])], "two columns a thread, all of their rows");
}

/// With 8 lanes along a row, the others of a warp have three more rows.
#[test]
fn lanes_along_a_row() {
    let flat = Flat::blocked_by(&[16, 128], &[1, 0], (1, 3), 2, &[1]);
    let expected =
        Flat { registers: vec![3, 4, 5, 6], lanes: [0, 1, 2, 7, 8].map(Some).into(), warps: [9, 10].map(Some).into() };
    assert_eq!(flat, expected);
    // A tile without more rows has all lanes along them.
    assert_eq!(Flat::blocked_by(&[128], &[0], (1, 3), 1, &[0]), Flat::blocked(&[128], &[0], 1, 1, &[0]));
    let scanned = Flat::scanned(&[16, 128], &[1, 0], (4, 3), 2, 1);
    assert_eq!((scanned.registers, scanned.lanes), (vec![0, 1, 5, 6], [2, 3, 4, 7, 8].map(Some).into()));
}

/// Loads of aligned rows take 16 bytes a thread; rows of an odd length are stored element by element, by neighbouring
/// lanes.
#[test]
fn scattered_stores_are_converted() {
    let copy = |stored: i32| {
        let mut b = Builder::new("copy", [1, 1, 1], 2);
        let (x, y) = (b.param("x", Elem::Bf16, true), b.param("y", Elem::Bf16, false));
        let (i, j) = (b.iota(8), b.iota(128));
        let mut at = |width: i32| {
            let width = b.i32(width.into());
            let rows = b.binary(BinaryOp::Mul, i, width);
            let rows = b.expand_dims(rows, 1);
            let rows = b.broadcast_to(rows, &[8, 128]);
            b.binary(BinaryOp::Add, rows, j)
        };
        let (from, to) = (at(128), at(stored));
        let (xs, ys) = (b.ptr_add(x, from), b.ptr_add(y, to));
        let x = b.load(xs, None, None);
        b.store(ys, x, None);
        assign(&b.finish())
    };
    assert_eq!(count(&copy(256), |op| *op == Op::ConvertLayout), 0);
    let odd = copy(129);
    assert_eq!(layout_of(&odd, |op| matches!(op, Op::Load(..))), vec![Flat::blocked(&[8, 128], &[1, 0], 8, 1, &[])]);
    assert_eq!(layout_of(&odd, |op| matches!(op, Op::Store(_))), vec![Flat::blocked(&[8, 128], &[1, 0], 1, 1, &[])]);
    assert_eq!(count(&odd, |op| *op == Op::ConvertLayout), 1);
}

/// Of arrays of several types a thread takes vectors of the widest, so that none is converted. What is loaded for a
/// group of rows that take longer vectors is loaded as these lie.
#[test]
fn types_of_several_widths() {
    let narrowed = |rows: usize| {
        let mut b = Builder::new("narrowed", [1, 1, 1], 4);
        let params = [("x", Elem::Bf16, true), ("g", Elem::F32, true), ("y", Elem::F8e4m3, false)];
        let [x, g, y] = params.map(|(name, elem, readonly)| b.param(name, elem, readonly));
        let j = b.iota(4096);
        let mut at = j;
        if rows > 1 {
            let (i, n) = (b.iota(rows), b.i32(4096));
            let i = b.binary(BinaryOp::Mul, i, n);
            let i = b.expand_dims(i, 1);
            let i = b.broadcast_to(i, &[rows, 4096]);
            at = b.binary(BinaryOp::Add, i, j);
        }
        let (xs, gs, ys) = (b.ptr_add(x, at), b.ptr_add(g, j), b.ptr_add(y, at));
        let (x, g) = (b.load(xs, None, None), b.load(gs, None, None));
        let x = b.cast(x, Elem::F32);
        let v = b.binary(BinaryOp::Mul, x, g);
        let v = b.cast(v, Elem::F8e4m3);
        b.store(ys, v, None);
        assign(&b.finish())
    };
    let one = narrowed(1);
    assert_eq!(count(&one, |op| *op == Op::ConvertLayout), 0);
    assert_eq!(layout_of(&one, |op| matches!(op, Op::Store(_))), vec![Flat::blocked(&[4096], &[0], 4, 2, &[])]);
    let rows = narrowed(2);
    assert_eq!(count(&rows, |op| *op == Op::ConvertLayout), 0);
    assert_eq!(layout_of(&rows, |op| matches!(op, Op::Store(_))), vec![Flat::blocked(&[2, 4096], &[1, 0], 8, 2, &[])]);
}

/// Two rows are interleaved in memory: element (m, n) of a tile is stored at m / 2 · 8192 + m % 2 + 2 · n. Lanes take
/// both rows, then the columns, so that a warp's store is contiguous; where pairs are aligned, a thread takes both
/// elements of one.
#[test]
fn interleaved_rows_are_stored_by_neighbouring_lanes() {
    let of = |elem: Elem, rows: i64, start: i64| {
        let mut b = Builder::new("interleave", [64, 1, 1], 4);
        let y = b.param("y", elem, false);
        let tile = crate::Type::Shared { elem, shape: vec![64, 64], stages: 1, swizzle: crate::Swizzle::B64 };
        let tile = b.inst(Op::AllocShared, &[], &[tile], vec![])[0];
        let (pid, size, every, pitch) = (b.program_id(0), b.i32(64), b.i32(rows), b.i32(8192));
        let first = b.binary(BinaryOp::Mul, pid, size);
        let (m, n) = (b.iota(64), b.iota(64));
        let m = b.binary(BinaryOp::Add, first, m);
        let (channel, row) = (b.binary(BinaryOp::Div, m, every), b.binary(BinaryOp::Rem, m, every));
        let channel = b.binary(BinaryOp::Mul, channel, pitch);
        let row = b.binary(BinaryOp::Add, channel, row);
        let (row, column) = (b.expand_dims(row, 1), b.expand_dims(n, 0));
        let column = b.binary(BinaryOp::Mul, column, every);
        let (row, column) = (b.broadcast_to(row, &[64, 64]), b.broadcast_to(column, &[64, 64]));
        let at = b.binary(BinaryOp::Add, row, column);
        let start = b.i32(start);
        let at = b.binary(BinaryOp::Add, start, at);
        let p = b.ptr_add(y, at);
        let zero = b.i32(0);
        let v = b.inst(Op::SharedLoad, &[tile, zero], &[crate::Type::block(elem, [64, 64])], vec![])[0];
        b.store(p, v, None);
        let k = assign(&b.finish());
        assert_eq!(count(&k, |op| *op == Op::ConvertLayout), 0);
        let (load, store) = (layout_of(&k, |op| *op == Op::SharedLoad), layout_of(&k, |op| matches!(op, Op::Store(_))));
        assert_eq!(load, store);
        store[0].clone()
    };
    let some = |bits: &[u8]| bits.iter().copied().map(Some).collect::<Vec<_>>();
    let elements = Flat { registers: (7..12).collect(), lanes: some(&[6, 0, 1, 2, 3]), warps: some(&[4, 5]) };
    let pairs = Flat { registers: vec![6, 8, 9, 10, 11], lanes: some(&[0, 1, 2, 3, 4]), warps: some(&[5, 7]) };
    let halves = Flat { registers: vec![6, 8, 9, 10, 11], lanes: some(&[7, 0, 1, 2, 3]), warps: some(&[4, 5]) };
    for elem in [Elem::Bf16, Elem::F32] {
        assert_eq!(of(elem, 2, 1), elements, "{elem}: at an odd element");
        assert_eq!(of(elem, 2, 2), pairs, "{elem}: at an even element");
        assert_eq!(of(elem, 4, 2), halves, "{elem}: four at an even element");
    }
}
