//! Programs with values of the launch: scalar parameters, what is known of them, and grids.
use crate::host_random::{Sizes, program_of};
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_codegen::nvptx;
use kiln_machine::Arch;

const KNOWN: Facts = Facts { div: 1, equals: None, least: None, most: None, span32: false, noalias: false };

/// `z = x + y` on `n` elements.
fn vector_add(facts: Facts, wide: bool) -> BlockProgram {
    let mut b = Builder::new("add", Grid::Launch, 4);
    let ptrs = [("x", true), ("y", true), ("z", false)].map(|(name, readonly)| b.param(name, Elem::F32, readonly));
    let n = b.scalar("n", if wide { Elem::I64 } else { Elem::I32 }, facts);
    let (pid, size, i) = (b.program_id(0), b.i32(1024), b.iota(1024));
    let start = b.binary(BinaryOp::Mul, pid, size);
    let mut at = b.binary(BinaryOp::Add, start, i);
    if wide {
        at = b.cast(at, Elem::I64);
    }
    let mask = b.cmp(CmpOp::Lt, at, n);
    let [x, y, z] = ptrs.map(|p| b.ptr_add(p, at));
    let (x, y) = (b.load(x, Some(mask), None), b.load(y, Some(mask), None));
    let sum = b.binary(BinaryOp::Add, x, y);
    b.store(z, sum, Some(mask));
    b.finish()
}

/// Where 16 divides the size, an access is a vector under one predicate, as if the size were a constant.
#[test]
fn vectors_survive_a_size_of_the_launch() {
    for (wide, least) in [(false, Some(0)), (true, Some(0)), (false, None), (true, None)] {
        let k = vector_add(Facts { div: 16, least, ..KNOWN }, wide);
        verify::verify(&k).unwrap();
        verify::offsets(&k).unwrap();
        let ptx = nvptx::compile(&k, Arch::Sm90a.machine()).unwrap();
        let count = |what: &str| ptx.text.lines().filter(|l| l.contains(what)).count();
        assert_eq!([count("ld.global.nc.v4"), count("st.global.v4")], [4, 2], "{}", ptx.text);
        assert!(count("setp.") <= 2, "{}", ptx.text);
        assert_eq!(ptx.grid, Grid::Launch);
        assert_eq!(ptx.args[3], nvptx::Argument::Scalar(if wide { Elem::I64 } else { Elem::I32 }));
        for n in [16, 1024, 1040, 4096] {
            let mut r = Random::new(n as u64);
            let mut data = || encode_all(Elem::F32, &r.values(Elem::F32, n));
            let given = Launch::new([n.div_ceil(1024), 1, 1])
                .buffer(Elem::F32, data())
                .buffer(Elem::F32, data())
                .buffer(Elem::F32, vec![0; 4 * n])
                .scalar(if wide { Elem::I64 } else { Elem::I32 }, n as f64);
            assert!(given.agrees(&k, Arch::Sm90a, &format!("{n} elements")));
        }
    }
}

/// `y[i] = x[i] + table[i / width]` for `i < n`, or `table[(i - width) / width + 1]`, a quotient of negative numbers
/// too.
fn rows_of_places(negative: bool) -> BlockProgram {
    let mut b = Builder::new("rows", Grid::Launch, 4);
    let [table, x, y] = [("table", true), ("x", true), ("y", false)].map(|(name, r)| b.param(name, Elem::I32, r));
    let [n, width] = ["n", "width"].map(|name| b.scalar(name, Elem::I32, Facts { div: 16, least: Some(0), ..KNOWN }));
    let (pid, size, i) = (b.program_id(0), b.i32(1024), b.iota(1024));
    let start = b.binary(BinaryOp::Mul, pid, size);
    let at = b.binary(BinaryOp::Add, start, i);
    let mask = b.cmp(CmpOp::Lt, at, n);
    let places = if negative { b.binary(BinaryOp::Sub, at, width) } else { at };
    let mut row = b.binary(BinaryOp::Div, places, width);
    if negative {
        let one = b.i32(1);
        row = b.binary(BinaryOp::Add, row, one);
    }
    let [from, x, y] = [b.ptr_add(table, row), b.ptr_add(x, at), b.ptr_add(y, at)];
    let (row, x) = (b.load(from, Some(mask), None), b.load(x, Some(mask), None));
    let sum = b.binary(BinaryOp::Add, row, x);
    b.store(y, sum, Some(mask));
    b.finish()
}

/// Neighbours between two multiples of what divides the divisor have one quotient, and one load through it, unless they
/// may be negative: quotients are rounded toward zero.
#[test]
fn neighbours_share_a_quotient_by_a_size_of_the_launch() {
    for (negative, quotients) in [(false, 2), (true, 8)] {
        let k = rows_of_places(negative);
        verify::verify(&k).unwrap();
        let ptx = nvptx::compile(&k, Arch::Sm90a.machine()).unwrap().text;
        assert_eq!(ptx.matches("div.s32").count(), quotients, "{ptx}");
        for (n, width) in [(16, 16), (1024, 48), (1040, 32), (4096, 1024)] {
            let mut r = Random::new(n as u64);
            let mut data = || encode_all(Elem::I32, &r.values(Elem::I32, n));
            let given = Launch::new([n.div_ceil(1024), 1, 1])
                .buffer(Elem::I32, data())
                .buffer(Elem::I32, data())
                .buffer(Elem::I32, vec![0; 4 * n])
                .scalar(Elem::I32, n as f64)
                .scalar(Elem::I32, width as f64);
            assert!(given.agrees(&k, Arch::Sm90a, &format!("{n} elements in rows of {width}")));
        }
    }
}

/// All lanes get the same bits of a sum of products: contracted to an FMA, each lane would round the other's product.
#[test]
fn lanes_agree_on_sums_of_products() {
    for elem in [Elem::F32, Elem::F64] {
        let mut b = Builder::new("squares", Grid::Launch, 1);
        let (x, y) = (b.param("x", elem, true), b.param("y", elem, false));
        let at = b.iota(32);
        let from = b.ptr_add(x, at);
        let v = b.load(from, None, None);
        let square = b.binary(BinaryOp::Mul, v, v);
        let sum = b.reduce(ReduceOp::Sum, square, 0);
        b.store(y, sum, None);
        let ptx = nvptx::compile(&b.finish(), Arch::Sm90a.machine()).unwrap().text;
        let sums: Vec<&str> = ptx.lines().filter(|l| l.contains("add.") && l.contains(".f")).collect();
        assert_eq!(sums.len(), 5, "{ptx}");
        assert!(sums.iter().all(|l| l.contains("add.rn.f")) && !ptx.contains("fma."), "{ptx}");
    }
}

/// A load gives zeros where its mask does not hold, so zeros that are asked for cost nothing.
#[test]
fn zeros_elsewhere_need_no_select() {
    let loaded = |other: f64| {
        let mut b = Builder::new("masked", Grid::Launch, 4);
        let (x, y) = (b.param("x", Elem::F16, true), b.param("y", Elem::F16, false));
        let n = b.scalar("n", Elem::I32, KNOWN);
        let at = b.iota(128);
        let mask = b.cmp(CmpOp::Lt, at, n);
        let other = b.constant(Type::block(Elem::F16, [128]), Const::Float(other));
        let [from, to] = [x, y].map(|p| b.ptr_add(p, at));
        let v = b.load(from, Some(mask), Some(other));
        b.store(to, v, None);
        let k = b.finish();
        let ptx = nvptx::compile(&k, Arch::Sm90a.machine()).unwrap().text;
        let given = Launch::new([1, 1, 1])
            .buffer(Elem::F16, encode_all(Elem::F16, &Random::new(3).values(Elem::F16, 128)))
            .buffer(Elem::F16, vec![0; 256])
            .scalar(Elem::I32, 77.0);
        assert!(given.agrees(&k, Arch::Sm90a, &format!("{other:?} elsewhere")));
        ptx.contains("selp")
    };
    assert_eq!([0.0, -0.0, 1.0].map(loaded), [false, true, true]);
}

/// All numbers of 8 and of 4 bits, which become floats without conversions.
#[test]
fn small_integers_become_floats_by_arithmetic() {
    for (elem, to) in [Elem::I8, Elem::U8].into_iter().flat_map(|e| [(e, Elem::F32), (e, Elem::F16), (e, Elem::Bf16)]) {
        let mut b = Builder::new("floats", Grid::Launch, 4);
        let (from, [whole, part]) = (b.param("x", elem, true), ["y", "z"].map(|name| b.param(name, to, false)));
        let at = b.iota(256);
        let [from, whole, part] = [from, whole, part].map(|p| b.ptr_add(p, at));
        let x = b.load(from, None, None);
        let y = b.cast(x, to);
        b.store(whole, y, None);
        let wide = b.cast(x, Elem::I32);
        let (bits, middle) = (b.i32(15), b.i32(8));
        let few = b.binary(BinaryOp::And, wide, bits);
        let few = b.binary(BinaryOp::Sub, few, middle);
        let few = b.cast(few, to);
        b.store(part, few, None);
        let k = b.finish();
        let ptx = nvptx::compile(&k, Arch::Sm90a.machine()).unwrap();
        assert!(
            !["cvt.rn.f32.", "cvt.rn.f16.s", "cvt.rn.f16.u", "cvt.rn.bf16.s", "cvt.rn.bf16.u"]
                .iter()
                .any(|name| ptx.text.contains(name)),
            "{}",
            ptx.text
        );
        let empty = || vec![0; 256 * to.bytes()];
        let given = Launch::new([1, 1, 1]).buffer(elem, (0..=255).collect()).buffer(to, empty()).buffer(to, empty());
        assert!(given.agrees(&k, Arch::Sm90a, &format!("{elem} as {to}")));
    }
}

/// Without facts any size is right.
#[test]
fn any_size() {
    for (n, wide) in [(1, false), (777, false), (2049, true)] {
        let given = Launch::new([n / 1024 + 2, 1, 1])
            .buffer(Elem::F32, vec![1; 4 * n])
            .buffer(Elem::F32, vec![2; 4 * n])
            .buffer(Elem::F32, vec![0; 4 * n])
            .scalar(if wide { Elem::I64 } else { Elem::I32 }, n as f64);
        assert!(given.agrees(&vector_add(KNOWN, wide), Arch::Sm80, &format!("{n} elements")));
    }
}

/// Each type of a scalar, stored to memory of its type; the sizes of the grid and the position in it.
#[test]
fn scalars_of_every_type_and_positions() {
    let types = [Elem::Bool, Elem::I8, Elem::I32, Elem::I64, Elem::F16, Elem::F32, Elem::F64];
    let mut b = Builder::new("scalars", Grid::Launch, 1);
    let numbers = b.param("numbers", Elem::I32, false);
    let to: Vec<Value> = types.iter().map(|e| b.param(format!("to_{e}"), *e, false)).collect();
    let from: Vec<Value> = types.iter().map(|e| b.scalar(format!("from_{e}"), *e, KNOWN)).collect();
    let mut number = b.i32(0);
    for axis in [2, 1, 0] {
        let (size, at) = (b.num_programs(axis), b.program_id(axis));
        number = b.binary(BinaryOp::Mul, number, size);
        number = b.binary(BinaryOp::Add, number, at);
    }
    for (to, from) in to.into_iter().zip(from) {
        let p = b.ptr_add(to, number);
        b.store(p, from, None);
    }
    let p = b.ptr_add(numbers, number);
    b.store(p, number, None);
    let k = b.finish();
    let grid = [3, 4, 2];
    let mut given = Launch::new(grid).buffer(Elem::I32, vec![0; 24 * 4]);
    for e in types {
        given = given.buffer(e, vec![0; 24 * e.bytes()]);
    }
    for (e, value) in types.into_iter().zip([1.0, -3.0, -70000.0, 5e9, 0.5, 1.25, -1e100]) {
        given = given.scalar(e, value);
    }
    assert!(given.agrees(&k, Arch::Sm90a, "scalars"));
    let numbers = decode_all(Elem::I32, &given.on_host(&k)[0]);
    assert!(numbers.into_iter().map(Num::i).eq(0..24));
}

/// A value that is known is a constant to the passes, for the same results.
#[test]
fn what_is_known_folds() {
    let k = vector_add(Facts { equals: Some(2048), ..KNOWN }, false);
    let mut folded = k.clone();
    passes::canonicalise(&mut folded).unwrap();
    assert!(!text::print(&folded).contains("splat %n"), "{}", text::print(&folded));
    let given = Launch::new([2, 1, 1])
        .buffer(Elem::F32, vec![1; 8192])
        .buffer(Elem::F32, vec![2; 8192])
        .buffer(Elem::F32, vec![0; 8192])
        .scalar(Elem::I32, 2048.0);
    assert!(given.agrees(&k, Arch::Sm90a, "as written"));
    assert!(given.agrees(&folded, Arch::Sm90a, "folded"));
    // The interpreter refuses what the facts exclude.
    let mut other = given.clone();
    other.arguments[3].1 = 2047i32.to_le_bytes().to_vec();
    let why = other.interpreted(&k).unwrap_err().to_string();
    assert!(why.contains("the scalar n is 2047, which its facts exclude"), "{why}");
}

/// Random programs on arrays whose sizes and pitch are of the launch, with facts that hold, before and after passes.
#[test]
fn random_programs() {
    let shapes = [[4, 16], [16, 4], [8, 64], [1, 128], [64, 2], [32, 32], [2, 64]];
    let mut refused = 0;
    for seed in 1..=70u64 {
        let mut r = Random::new(seed * 31);
        let shape = shapes[seed as usize % shapes.len()];
        let e = [Elem::I32, Elem::F32, Elem::I64, Elem::Bf16, Elem::I32][seed as usize % 5];
        let step = [1, 4, 16][r.next_below(3)];
        let size = [shape[0] + r.next_below(3), (shape[1] + r.next_below(40)).next_multiple_of(step)];
        let pitch = size[1] + step * r.next_below(3);
        let known = |n: usize| match seed % 4 {
            0 => KNOWN,
            1 => Facts { equals: Some(n as i64), ..KNOWN },
            2 => Facts { least: Some(0), most: Some(1 << 20), ..KNOWN },
            _ => Facts { least: Some(1), ..KNOWN },
        };
        let by_step = |n: usize| Facts { div: step as i64, ..known(n) };
        let facts = [known(size[0]), by_step(size[1]), by_step(pitch)];
        let mut k = program_of(seed * 7919, e, shape, Sizes::Launch(facts));
        let n = size[0] * pitch;
        let mut data = || encode_all(e, &r.values(e, n));
        let given = Launch::new([size[1].div_ceil(shape[1]), size[0].div_ceil(shape[0]), 1])
            .buffer(e, data())
            .buffer(e, data())
            .buffer(e, vec![0; n * e.bytes()])
            .buffer(e, vec![0; n * e.bytes()])
            .scalar(Elem::I32, size[0] as f64)
            .scalar(Elem::I32, size[1] as f64)
            .scalar(Elem::I32, pitch as f64);
        let arch = [Arch::Sm90a, Arch::Sm80][seed as usize % 2];
        refused += usize::from(!given.agrees(&k, arch, &format!("seed {seed}")));
        passes::canonicalise(&mut k).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        verify::offsets(&k).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        given.agrees(&k, arch, &format!("seed {seed}, after passes"));
    }
    assert!(refused < 10, "{refused} programs have no code");
}
