//! Passes change no result: random programs and norm kernels, interpreted before and after each pass.
use kiln_block::{
    Arithmetic, BinaryOp, BlockProgram, Builder, CmpOp, Const, Elem, Op, ReduceOp, ScanOp, Type, UnaryOp, Value,
    passes, text,
};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, run};
use kiln_machine::Arch;

/// Values available as operands: integers, floats and masks, all of one shape.
#[derive(Clone)]
struct Pool {
    ints: Vec<Value>,
    floats: Vec<Value>,
    masks: Vec<Value>,
}

const N: usize = 8;
const SIZE: usize = 64;

fn grow(b: &mut Builder, r: &mut Random, pool: &mut Pool, x: Value, depth: usize) {
    for _ in 0..2 + r.next_below(6) {
        match r.next_below(11) {
            0 | 1 => {
                let c = r.choose(&[0, 1, 2, 3, 8, -1]);
                pool.ints.push(b.constant(Type::block(Elem::I32, [N]), Const::Int(c)));
            }
            2 | 3 => {
                use BinaryOp::*;
                let op = r.choose(&[Add, Sub, Mul, Div, Rem, Max, Min, And, Or, Xor]);
                let (p, q) = (r.choose(&pool.ints), r.choose(&pool.ints));
                pool.ints.push(b.binary(op, p, q));
            }
            4 => {
                use BinaryOp::*;
                let (p, q) = (r.choose(&pool.floats), r.choose(&pool.floats));
                pool.floats.push(b.binary(r.choose(&[Add, Sub, Mul, Max, Min]), p, q));
            }
            5 => {
                let (p, q) = (r.choose(&pool.ints), r.choose(&pool.ints));
                let op = r.choose(&[CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge]);
                pool.masks.push(b.cmp(op, p, q));
            }
            6 => {
                let (c, p, q) = (r.choose(&pool.masks), r.choose(&pool.floats), r.choose(&pool.floats));
                pool.floats.push(b.select(c, p, q));
                let (p, q) = (r.choose(&pool.masks), r.choose(&pool.masks));
                pool.masks.push(b.binary(r.choose(&[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]), p, q));
            }
            7 => {
                let v = r.choose(&pool.floats);
                let whole = b.reduce(r.choose(&[ReduceOp::Sum, ReduceOp::Max]), v, 0);
                pool.floats.push(b.splat(whole, &[N]));
                pool.ints.push(b.scan(ScanOp::Max, pool.ints[0], 0));
                pool.floats.push(b.cast(pool.ints[pool.ints.len() - 1], Elem::F32));
            }
            8 => {
                // An index inside the buffer: SIZE is a power of two.
                let (i, mask) = (r.choose(&pool.ints), r.choose(&pool.masks));
                let size = b.constant(Type::block(Elem::I32, [N]), Const::Int(SIZE as i64 - 1));
                let at = b.binary(BinaryOp::And, i, size);
                let p = b.ptr_add(x, at);
                let other = r.choose(&pool.floats);
                pool.floats.push(b.load(p, (r.next_below(2) == 0).then_some(mask), None));
                pool.floats.push(b.load(p, Some(mask), Some(other)));
            }
            9 => {
                let v = r.choose(&pool.floats);
                pool.floats.push(b.unary(r.choose(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Floor]), v));
            }
            _ if depth < 2 => {
                let (lo, hi, step) =
                    (b.i32(r.next_below(3) as i64), b.i32(r.next_below(5) as i64), b.i32(1 + r.next_below(2) as i64));
                let carried = [r.choose(&pool.ints), r.choose(&pool.floats), r.choose(&pool.floats)];
                let mut inner = pool.clone();
                let out = b.for_loop([lo, hi, step], &carried, |b, index, c| {
                    inner.ints.extend([b.splat(index, &[N]), c[0]]);
                    inner.floats.extend([c[1], c[2]]);
                    grow(b, r, &mut inner, x, depth + 1);
                    vec![r.choose(&inner.ints), r.choose(&inner.floats), r.choose(&[c[2], inner.floats[0]])]
                });
                pool.ints.push(out[0]);
                pool.floats.extend(&out[1..]);
            }
            _ => {}
        }
    }
}

fn program(seed: u64) -> BlockProgram {
    let mut r = Random::new(seed);
    let mut b = Builder::new("random", [3, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let pid = b.program_id(0);
    let n = b.i32(N as i64);
    let start = b.binary(BinaryOp::Mul, pid, n);
    let i = b.iota(N);
    let at = b.binary(BinaryOp::Add, start, i);
    let end = b.i32(r.choose(&[20, 24]));
    let mask = b.cmp(CmpOp::Lt, at, end);
    let p = b.ptr_add(x, at);
    let v = b.load(p, Some(mask), None);
    let mut pool = Pool { ints: vec![i, at], floats: vec![v], masks: vec![mask] };
    grow(&mut b, &mut r, &mut pool, x, 0);
    let q = b.ptr_add(y, at);
    let out = pool.floats.iter().rev().take(3).fold(v, |a, f| b.binary(BinaryOp::Max, a, *f));
    let last = *pool.ints.last().unwrap_or(&i);
    let last = b.cast(last, Elem::F32);
    let out = b.binary(BinaryOp::Add, out, last);
    b.store(q, out, Some(mask));
    b.finish()
}

fn result(k: &BlockProgram) -> Vec<u8> {
    let x = (0..SIZE).map(|i| (i as f64 * 0.37).sin() * 4.0);
    let mut buffers = [Buffer::from_f64(Elem::F32, &[SIZE], x), Buffer::zeros(Elem::F32, &[24])];
    run(k, &mut buffers).unwrap_or_else(|e| panic!("{e}\n{}", text::print(k)));
    let [_, y] = buffers;
    // All NaNs compare equal.
    y.to_f64().iter().flat_map(|v| if v.is_nan() { f64::NAN } else { *v }.to_le_bytes()).collect()
}

#[test]
fn random_programs() {
    for seed in 0..400 {
        let k = program(seed);
        let wanted = result(&k);
        assert_eq!(text::parse(&text::print(&k)), Ok(k.compacted()));
        let single = passes::CANONICAL.iter().map(std::slice::from_ref);
        for names in
            single.chain([passes::CANONICAL, &["dce", "licm", "fold", "cse", "fold", "dce"], &["fold", "layout"]])
        {
            let mut after = k.clone();
            passes::run(names, &mut after, Arch::Sm90a.machine())
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", text::print(&k)));
            assert!(result(&after) == wanted, "seed {seed}, {names:?}\n{}\n{}", text::print(&k), text::print(&after));
        }
        let mut once = k.clone();
        passes::canonicalise(&mut once).unwrap();
        assert!(once.insts.len() <= k.insts.len());
    }
}

/// A persistent norm kernel that prefetches the next row: one row per block, one row more, several rows each, and a
/// single block.
#[test]
fn persistent_rows() {
    for (rows, blocks) in [(3, 3), (4, 3), (11, 3), (6, 1)] {
        check_persistent([rows, 128], blocks, true);
    }
}

/// Rows that do not fill their lanes, with lengths that are multiples of a vector and others. The shared gain is copied
/// once if all rows of a block have the same alignment.
#[test]
fn persistent_odd_rows() {
    for (rows, wide, blocks, once) in [
        (11, 120, 3, true),
        (9, 101, 4, true),
        (19, 125, 8, true),
        (13, 102, 6, true),
        (9, 101, 3, false),
        (9, 102, 5, false),
    ] {
        check_persistent([rows, wide], blocks, once);
    }
}

/// A norm over unaligned rows: lanes are counted from the vector boundary before the row's start.
fn norm([rows, wide]: [usize; 2]) -> BlockProgram {
    let mut b = Builder::new("norm", [rows, 1, 1], 1);
    let [x, gain, y] = [("x", true), ("gain", true), ("y", false)].map(|(n, ro)| b.param(n, Elem::F32, ro));
    let (row, length, lane, four) = (b.program_id(0), b.i32(wide as i64), b.iota(128), b.i32(4));
    let first = b.binary(BinaryOp::Mul, row, length);
    let (start, vectors) = (b.binary(BinaryOp::Rem, first, four), b.binary(BinaryOp::Div, first, four));
    let (before, end) = (b.binary(BinaryOp::Mul, vectors, four), b.binary(BinaryOp::Add, start, length));
    let (after, ends) = (b.cmp(CmpOp::Ge, lane, start), b.cmp(CmpOp::Lt, lane, end));
    let inside = (wide < 128).then(|| b.binary(BinaryOp::And, after, ends));
    let (at, position) = (b.binary(BinaryOp::Add, before, lane), b.binary(BinaryOp::Sub, lane, start));
    let [px, pg, py] = [(x, at), (gain, position), (y, at)].map(|(p, at)| b.ptr_add(p, at));
    let v = b.load(px, inside, None);
    let most = b.reduce(ReduceOp::Max, v, 0);
    let d = b.binary(BinaryOp::Sub, v, most);
    let zero = b.constant(Type::scalar(Elem::F32), Const::Float(0.0));
    let counted = inside.map_or(d, |m| b.select(m, d, zero));
    let sum = b.reduce(ReduceOp::Sum, counted, 0);
    let n = b.binary(BinaryOp::Div, d, sum);
    let g = b.load(pg, inside, None);
    let out = b.binary(BinaryOp::Mul, n, g);
    b.store(py, out, inside);
    b.finish()
}

fn check_persistent([rows, wide]: [usize; 2], blocks: usize, once: bool) {
    let k = BlockProgram { arithmetic: Arithmetic::Ieee, ..norm([rows, wide]) };
    let looped = passes::persistent_rows::run(&k, blocks).unwrap();
    assert_eq!(looped.arithmetic, k.arithmetic);
    kiln_block::verify::verify(&looped).unwrap_or_else(|e| panic!("{e}\n{}", text::print(&looped)));
    assert_eq!(text::parse(&text::print(&looped)), Ok(looped.compacted()));
    let mut copies = 0;
    looped.walk(&mut |_, d| copies += usize::from(d.op == Op::AsyncCopy));
    assert_eq!(copies, 2 + usize::from(once), "{rows} rows of {wide}\n{}", text::print(&looped));
    let mut clean = looped.clone();
    passes::canonicalise(&mut clean).unwrap();
    let found = [&k, &looped, &clean].map(|k| {
        let value = |i: usize| (i as f64 * 0.37).sin();
        let input = |n: usize| Buffer::from_f64(Elem::F32, &[n], (0..n).map(value));
        let mut buffers = [input(rows * wide), input(wide), Buffer::zeros(Elem::F32, &[rows * wide])];
        run(k, &mut buffers).unwrap_or_else(|e| panic!("{e}\n{}", text::print(k)));
        buffers[2].to_f64()
    });
    assert_eq!(found[0], found[1], "{rows} rows of {wide}, {blocks} instances\n{}", text::print(&looped));
    assert_eq!(found[0], found[2], "{rows} rows of {wide}, {blocks} instances\n{}", text::print(&clean));
    assert_eq!(looped.grid, [blocks, 1, 1].into());
}
