//! Generated PTX, run by an interpreter of PTX, against the interpreter of block programs.
use crate::host_random::program;
use crate::support::*;
use kiln_block::*;
use kiln_codegen::nvptx;
use kiln_interp::{block as interp, ptx};
use kiln_machine::Arch;

/// Random programs, bit for bit: integers, and floats without sums or functions.
#[test]
fn random_programs() {
    let shapes = [[4, 16], [16, 4], [8, 64], [1, 128], [64, 2], [32, 32], [2, 64]];
    let mut refused = 0;
    for seed in 1..=105u64 {
        let shape = shapes[seed as usize % shapes.len()];
        let e = [Elem::I32, Elem::F32, Elem::I64, Elem::Bf16, Elem::F16][seed as usize % 5];
        let arch = [Arch::Sm90a, Arch::Sm80][seed as usize % 2];
        let size = [shape[0] + seed as usize % 3, shape[1] * 2 - seed as usize % 2];
        let k = program(seed * 7919, e, shape, size);
        let about = || format!("seed {seed}, {arch}\n{}", text::print(&k));
        let n = size[0] * size[1];
        let mut r = Random::new(seed + 5);
        let filled = [encode_all(e, &r.values(e, n)), encode_all(e, &r.values(e, n))];
        let inputs: Vec<Vec<u8>> = filled.into_iter().chain([vec![0; n * e.bytes()], vec![0; n * e.bytes()]]).collect();
        let compiled = match nvptx::compile(&k, arch.machine()) {
            Ok(p) => p,
            Err(kiln_codegen::CodegenError::Unsupported { .. }) => {
                refused += 1;
                continue;
            }
            Err(other) => panic!("{other}\n{}", about()),
        };
        let launch =
            ptx::Launch { grid: compiled.grid.constant().unwrap(), threads: compiled.threads, shared: compiled.shared };
        let mut got = inputs.clone();
        ptx::run(&compiled.text, launch, &mut got).unwrap_or_else(|e| panic!("{e}\n{}\n{}", about(), compiled.text));
        let mut want: Vec<interp::Buffer> = inputs.iter().map(|b| interp::Buffer::new(e, &[n], b.clone())).collect();
        interp::run(&k, &mut want).unwrap_or_else(|e| panic!("{e}\n{}", about()));
        for i in 2..4 {
            let (got, want) = (decode_all(e, &got[i]), decode_all(e, &want[i].bytes));
            for (j, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!(near(e, *g, *w, 0.0), "output {i}, element {j}: {g:?}, expected {w:?}\n{}", about());
            }
        }
    }
    assert!(refused < 10, "{refused} programs have no code");
}

/// Sums of what instances publish, by those after them: values of 4 and of 8 bytes.
#[test]
fn published_values() {
    for elem in [Elem::F32, Elem::I32, Elem::F64, Elem::I64] {
        let (n, words) = (40, elem.bytes() as i64 / 4);
        let mut b = Builder::new("k", [n, 1, 1], 2);
        let (from, totals) = (b.param("from", elem, true), b.param("totals", Elem::I64, false));
        let to = b.param("to", elem, false);
        let (own, words) = (b.program_id(0), b.i32(words));
        let at = b.ptr_add(from, own);
        let value = b.load(at, None, None);
        let at = b.binary(BinaryOp::Mul, own, words);
        let at = b.ptr_add(totals, at);
        b.publish(at, value, None);
        let lane = b.iota(256);
        let before = b.cmp(CmpOp::Lt, lane, own);
        let at = b.binary(BinaryOp::Mul, lane, words);
        let at = b.ptr_add(totals, at);
        let values = b.wait(at, elem, Some(before));
        let sum = b.reduce(ReduceOp::Sum, values, 0);
        let at = b.ptr_add(to, own);
        b.store(at, sum, None);
        let k = b.finish();
        let given: Vec<Num> =
            (0..n as i64).map(|i| if elem.is_float() { Num::F(i as f64 - 7.5) } else { Num::I(i - 7) }).collect();
        let inputs = [encode_all(elem, &given), vec![0; n * 16], vec![0; n * elem.bytes()]];
        for arch in [Arch::Sm90a, Arch::Sm80] {
            let compiled = nvptx::compile(&k, arch.machine()).unwrap();
            let launch = ptx::Launch {
                grid: compiled.grid.constant().unwrap(),
                threads: compiled.threads,
                shared: compiled.shared,
            };
            let mut got = inputs.to_vec();
            ptx::run(&compiled.text, launch, &mut got).unwrap_or_else(|e| panic!("{e}\n{}", compiled.text));
            let types = [elem, Elem::I64, elem];
            let buffer =
                |(i, b): (usize, &Vec<u8>)| interp::Buffer::new(types[i], &[b.len() / types[i].bytes()], b.clone());
            let mut want: Vec<interp::Buffer> = inputs.iter().enumerate().map(buffer).collect();
            interp::run(&k, &mut want).unwrap();
            for (i, e) in types.into_iter().enumerate() {
                assert_eq!(got[i], want[i].bytes, "buffer {i} of {e}, {arch}");
            }
            let first = given[0].f();
            let sums = (0..n).map(|i| (0..i).map(|j| first + j as f64).sum::<f64>());
            let found = decode_all(elem, &got[2]).into_iter().map(Num::f);
            assert!(found.eq(sums), "{elem} {arch}");
        }
    }
}

/// Quotients, remainders and comparisons of quotients: a thread's neighbours share divisions, and quotients are
/// compared as their dividends.
#[test]
fn divisions_of_neighbours() {
    const N: usize = 512;
    for elem in [Elem::I32, Elem::I64] {
        let number = |b: &mut Builder, n: i64| b.constant(Type::scalar(elem), Const::Int(n));
        for (by, first) in
            [(3, 0), (5, 7), (7, 1 << 20), (12, 6), (113, 0), (96, 50), (1000, 999), (1 << 20, 3), (16, 5)]
        {
            let near = (first + N as i64) / by;
            for limit in [-3, 0, 1, near, near + 1, i64::from(i32::MAX) / 2] {
                let mut b = Builder::new("k", [2, 1, 1], 2);
                let x: Vec<Value> = (0..4).map(|i| b.param(format!("y{i}"), elem, false)).collect();
                let (own, count) = (b.program_id(0), b.i32(N as i64));
                let (start, lane) = (b.binary(BinaryOp::Mul, own, count), b.iota(N));
                let at = b.binary(BinaryOp::Add, start, lane);
                let (whole, more) = (b.cast(at, elem), number(&mut b, first));
                let whole = b.binary(BinaryOp::Add, whole, more);
                let (divisor, bound) = (number(&mut b, by), number(&mut b, limit));
                let (q, r) = (b.binary(BinaryOp::Div, whole, divisor), b.binary(BinaryOp::Rem, whole, divisor));
                let (one, none) = (number(&mut b, 1), number(&mut b, 0));
                let below = b.cmp(CmpOp::Lt, q, bound);
                let above = b.cmp(CmpOp::Lt, bound, q);
                let (below, above) = (b.select(below, one, none), b.select(above, one, none));
                for (x, v) in x.into_iter().zip([q, r, below, above]) {
                    let to = b.ptr_add(x, at);
                    b.store(to, v, None);
                }
                let compiled = nvptx::compile(&b.finish(), Arch::Sm90a.machine()).unwrap();
                let launch = ptx::Launch {
                    grid: compiled.grid.constant().unwrap(),
                    threads: compiled.threads,
                    shared: compiled.shared,
                };
                let mut got = vec![vec![0; 2 * N * elem.bytes()]; 4];
                ptx::run(&compiled.text, launch, &mut got).unwrap_or_else(|e| panic!("{e}\n{}", compiled.text));
                let got: Vec<Vec<Num>> = got.iter().map(|bytes| decode_all(elem, bytes)).collect();
                for i in 0..2 * N {
                    let (q, r) = ((i as i64 + first) / by, (i as i64 + first) % by);
                    let want = [q, r, i64::from(q < limit), i64::from(limit < q)];
                    let found: Vec<i64> = got.iter().map(|all| all[i].i()).collect();
                    assert_eq!(found, want, "element {i} from {first} by {by}, limit {limit}\n{}", compiled.text);
                }
            }
        }
    }
}

/// A transposition goes through shared memory, and says how banks conflict there.
#[test]
fn bank_conflicts_are_predicted() {
    let mut b = Builder::new("transpose", [1, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (rows, columns) = (b.iota(64), b.iota(64));
    let (rows, columns) = (b.expand_dims(rows, 1), b.expand_dims(columns, 0));
    let pitch = b.i32(64);
    let pitch = b.broadcast_to(pitch, &[64, 1]);
    let starts = b.binary(BinaryOp::Mul, rows, pitch);
    let (starts, columns) = (b.broadcast_to(starts, &[64, 64]), b.broadcast_to(columns, &[64, 64]));
    let at = b.binary(BinaryOp::Add, starts, columns);
    let from = b.ptr_add(x, at);
    let value = b.load(from, None, None);
    let turned = b.permute(value, &[1, 0]);
    let to = b.ptr_add(y, at);
    b.store(to, turned, None);
    let ptx = nvptx::compile(&b.finish(), Arch::Sm90a.machine()).unwrap();
    assert!(ptx.shared > 0 && ptx.bank_ways.values().sum::<usize>() > 0, "{:?}", ptx.bank_ways);
    assert!(ptx.bank_ways.keys().all(|ways| (1..=32).contains(ways)), "{:?}", ptx.bank_ways);
}
