//! Unsigned integers, maxima that ignore NaN, products in full, and named roundings, three ways.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

/// Numbers at which integers wrap, change sign or end, and some at random.
fn integers(elem: Elem, n: usize, seed: u64) -> Vec<u8> {
    let mut r = Random::new(seed);
    let bits = 8 * elem.bytes() as u32;
    let ends = [0, 1, 2, 3, -1, -2, 1 << (bits - 1), (1i64 << (bits - 1)).wrapping_sub(1), 7, 100];
    let one = |_| if r.next_below(2) == 0 { ends[r.next_below(ends.len())] } else { r.next_u64() as i64 };
    let all: Vec<Num> = (0..n).map(one).map(|x| Num::I(elem.wrapped(x))).collect();
    encode_all(elem, &all)
}

/// A program of 64 lanes that reads `x` and `y` and stores each of the values that `make` gives to memory of its own.
fn stored(elem: Elem, make: impl Fn(&mut Builder, Value, Value) -> Vec<Value>) -> (BlockProgram, Vec<Elem>) {
    let mut b = Builder::new("ops", Grid::Launch, 1);
    let lanes = b.iota(64);
    let read = |b: &mut Builder, name: &str| {
        let p = b.param(name, elem, false);
        let p = b.ptr_add(p, lanes);
        b.load(p, None, None)
    };
    let (x, y) = (read(&mut b, "x"), read(&mut b, "y"));
    let values = make(&mut b, x, y);
    let types: Vec<Elem> = values.iter().map(|v| b.elem(*v).unwrap()).collect();
    for (i, v) in values.into_iter().enumerate() {
        let e = b.elem(v).unwrap();
        let p = b.param(format!("out{i}"), e, false);
        let p = b.ptr_add(p, lanes);
        b.store(p, v, None);
    }
    (b.finish(), types)
}

fn agree(elem: Elem, data: [Vec<u8>; 2], make: impl Fn(&mut Builder, Value, Value) -> Vec<Value>, about: &str) {
    let (mut k, types) = stored(elem, make);
    let [x, y] = data;
    let mut given = Launch::new([1, 1, 1]).buffer(elem, x).buffer(elem, y);
    for e in types {
        given = given.buffer(e, vec![0; 64 * e.bytes()]);
    }
    assert!(given.agrees(&k, Arch::Sm90a, about), "{about}: no PTX");
    passes::canonicalise(&mut k).unwrap();
    assert!(given.agrees(&k, Arch::Sm80, about), "{about}: no PTX");
}

#[test]
fn integers_by_sign_and_width() {
    use BinaryOp::*;
    for (n, elem) in
        [Elem::U16, Elem::U32, Elem::U64, Elem::U8, Elem::I16, Elem::I32, Elem::I64].into_iter().enumerate()
    {
        let data = [integers(elem, 64, n as u64 + 1), integers(elem, 64, n as u64 + 50)];
        let make = |b: &mut Builder, x: Value, y: Value| {
            let mut all = vec![];
            for op in [Add, Sub, Mul, Div, Rem, Max, Min, And, Or, Xor] {
                all.push(b.binary(op, x, y));
            }
            let bits = b.constant(Type::scalar(elem), Const::Int(8 * elem.bytes() as i64 - 1));
            let by = b.binary(And, y, bits);
            all.extend([b.binary(Shl, x, by), b.binary(Shr, x, by)]);
            if elem.bytes() >= 4 {
                all.push(b.binary(MulHi, x, y));
            }
            for op in [CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge, CmpOp::Eq, CmpOp::Ne] {
                all.push(b.cmp(op, x, y));
            }
            all.extend([b.unary(UnaryOp::Neg, x), b.unary(UnaryOp::Not, x), b.unary(UnaryOp::Abs, x)]);
            for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum, ReduceOp::ArgMax, ReduceOp::ArgMin] {
                let r = b.reduce(op, x, 0);
                all.push(b.splat(r, &[64]));
            }
            all.push(b.scan(ScanOp::Max, x, 0));
            all.push(b.scan(ScanOp::Sum, x, 0));
            all
        };
        agree(elem, data, make, elem.name());
    }
}

#[test]
fn casts_of_integers() {
    let all = [Elem::U16, Elem::U32, Elem::U64, Elem::U8, Elem::I16, Elem::I32, Elem::I64, Elem::I8, Elem::Bool];
    for (n, from) in all.into_iter().enumerate().filter(|(_, e)| *e != Elem::Bool) {
        let data = [integers(from, 64, n as u64 + 7), integers(from, 64, n as u64 + 9)];
        let make = |b: &mut Builder, x: Value, _: Value| {
            let mut out: Vec<Value> = all.into_iter().map(|to| b.cast(x, to)).collect();
            out.extend([Elem::F32, Elem::F64].map(|to| b.cast(x, to)));
            out
        };
        agree(from, data, make, &format!("casts of {from}"));
    }
    // Of floats: toward zero, and to the nearest number of the type.
    let numbers: Vec<Num> = (0..64)
        .map(|i| Num::F([-1.5, 0.75, 3e5, -7e9, 5e18, 1.9e19, 3e38, 254.9][i % 8] * (1 + i / 8) as f64))
        .collect();
    let make = |b: &mut Builder, x: Value, _: Value| all.into_iter().map(|to| b.cast(x, to)).collect::<Vec<_>>();
    let data = || encode_all(Elem::F32, &numbers);
    agree(Elem::F32, [data(), data()], make, "casts of f32");
}

#[test]
fn numbers_before_nan_and_named_roundings() {
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::Bf16] {
        let mut r = Random::new(3);
        let special = [f64::NAN, 1.0, -2.5, f64::INFINITY, f64::NEG_INFINITY, 0.1, 3e4, -7e-5];
        let mut number = || if r.next_below(3) == 0 { special[r.next_below(8)] } else { r.value(Elem::F32).f() };
        let mut data = || {
            let all: Vec<Num> = (0..64).map(|_| Num::F(number())).collect();
            let bytes: Vec<u8> =
                all.iter().flat_map(|v| kiln_interp::block::Buffer::scalar(elem, v.f()).bytes).collect();
            bytes
        };
        let make = |b: &mut Builder, x: Value, y: Value| {
            let mut all = vec![b.binary(BinaryOp::MaxNum, x, y), b.binary(BinaryOp::MinNum, x, y), b.fma(x, y, x)];
            all.extend([b.binary(BinaryOp::Max, x, y), b.binary(BinaryOp::Min, x, y)]);
            if matches!(elem, Elem::F32 | Elem::F64) {
                all.extend([b.binary(BinaryOp::DivRn, x, y), b.unary(UnaryOp::SqrtRn, x)]);
                all.extend([Elem::F16, Elem::Bf16].map(|to| b.cast_to_zero(x, to)));
            }
            if elem == Elem::F64 {
                all.push(b.cast_to_zero(x, Elem::F32));
            }
            let nan = b.constant(Type::scalar(elem), Const::Float(f64::NAN));
            let nothing = b.splat(nan, &[64]);
            for op in [ReduceOp::MaxNum, ReduceOp::MinNum] {
                for of in [x, y, nothing] {
                    let picked = b.reduce(op, of, 0);
                    all.push(b.splat(picked, &[64]));
                }
                // Halves that are compared as f32, two at once, in columns of a thread.
                if matches!(elem, Elem::F16 | Elem::Bf16) {
                    let wide = b.cast(x, Elem::F32);
                    let rows = b.reshape(wide, &[2, 32]);
                    let picked = b.reduce(op, rows, 1);
                    let both = b.expand_dims(picked, 1);
                    let both = b.broadcast_to(both, &[2, 32]);
                    all.push(b.reshape(both, &[64]));
                }
            }
            all
        };
        agree(elem, [data(), data()], make, elem.name());
    }
}
