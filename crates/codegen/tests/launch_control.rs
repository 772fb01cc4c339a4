//! Loops and branches with bounds and conditions of the launch, and pointers as values, three ways.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

const KNOWN: Facts = Facts { div: 1, equals: None, least: None, most: None, span32: false, noalias: false };

/// `text` with these sizes, all three ways, before and after passes.
fn agree(text: &str, launch: &Launch, about: &str) {
    let mut k = text::parse(text).unwrap_or_else(|e| panic!("{about}: {e}\n{text}"));
    assert!(launch.agrees(&k, Arch::Sm90a, about), "{about}: no PTX");
    passes::canonicalise(&mut k).unwrap_or_else(|e| panic!("{about}: {e}"));
    assert!(launch.agrees(&k, Arch::Sm80, &format!("{about}, after passes")), "{about}: no PTX");
}

fn numbers(elem: Elem, n: usize) -> Vec<u8> {
    let all: Vec<Num> = (0..n as i64).map(|i| Num::I(i * 37 % 101 - 20)).collect();
    encode_all(elem, &all)
}

/// Sums of rows by a loop of 16 columns a turn: any number of columns, also none, in indices of both widths.
#[test]
fn bounds_of_the_launch() {
    for index in ["i32", "i64"] {
        let text = format!(
            "kernel @rows(%x: ptr<i32>, %y: ptr<i32>, %n: {index}, %step: {index}) grid launch warps 1 {{
  %row = program_id 0 : i32
  %row_at = cast {index} %row : {index}
  %start = mul %row_at, %n : {index}
  %zero = const 0 : {index}
  %lanes = iota : i32[16]
  %lanes_at = cast {index} %lanes : {index}[16]
  %none = const 0 : i32[16]
  %last, %turns = for %i : {index} in %zero..%n step %step with (%so_far = %none : i32[16], %t = %zero : {index}) {{
    %all = splat %i : {index}[16]
    %column = add %all, %lanes_at : {index}[16]
    %end = splat %n : {index}[16]
    %mask = cmp lt %column, %end : bool[16]
    %first = splat %start : {index}[16]
    %at = add %first, %column : {index}[16]
    %p = splat %x : ptr<i32>[16]
    %q = ptr_add %p, %at : ptr<i32>[16]
    %v = load %q, %mask : i32[16]
    %next = add %so_far, %v : i32[16]
    %one = const 1 : {index}
    %t2 = add %t, %one : {index}
    yield %next, %t2
  }}
  %sum = reduce sum %last axis 0 : i32
  %turns32 = cast i32 %turns : i32
  %thousand = const 1000 : i32
  %scaled = mul %turns32, %thousand : i32
  %both = add %sum, %scaled : i32
  %to = ptr_add %y, %row : ptr<i32>
  store %to, %both
}}"
        );
        let elem = if index == "i32" { Elem::I32 } else { Elem::I64 };
        for (n, step) in [(0, 16), (5, 16), (16, 16), (100, 16), (100, 7)] {
            let given = Launch::new([3, 1, 1])
                .buffer(Elem::I32, numbers(Elem::I32, 3 * n + 16))
                .buffer(Elem::I32, vec![0; 12])
                .scalar(elem, n as f64)
                .scalar(elem, f64::from(step));
            agree(&text, &given, &format!("{n} columns by {step}, {index}"));
        }
    }
}

/// A loop up to the largest number of its index: the sum of index and step is past it.
#[test]
fn loops_to_the_last_number() {
    for (index, elem, last) in [("i32", Elem::I32, i64::from(i32::MAX)), ("i64", Elem::I64, i64::MAX)] {
        let text = format!(
            "kernel @count(%y: ptr<i32>, %from: {index}, %to: {index}, %step: {index}) grid launch warps 1 {{
  %zero = const 0 : i32
  %turns = for %i : {index} in %from..%to step %step with (%n = %zero : i32) {{
    %one = const 1 : i32
    %next = add %n, %one : i32
    yield %next
  }}
  store %y, %turns
}}"
        );
        for (from, step, turns) in [(last - 10, 3, 4), (last - 9, 3, 3), (last, 1, 0), (last - 1, 1 << 20, 1)] {
            let bytes = |n: i64| n.to_le_bytes()[..elem.bytes()].to_vec();
            let given = Launch::new([1, 1, 1])
                .buffer(Elem::I32, vec![0; 4])
                .buffer(elem, bytes(from))
                .buffer(elem, bytes(last))
                .buffer(elem, bytes(step));
            agree(&text, &given, &format!("from {from} by {step}"));
            let k = text::parse(&text).unwrap();
            assert_eq!(decode_all(Elem::I32, &given.on_host(&k)[0])[0].i(), turns, "from {from} by {step}");
            // A step that is not positive: refused, or skipped.
            for step in [0, -3] {
                let mut given = given.clone();
                given.arguments[3].1 = bytes(step);
                let why = given.interpreted(&k).unwrap_err().to_string();
                assert!(why.contains("it must be positive"), "{why}");
                let skipped = [given.on_host(&k), given.by_ptx(&k, Arch::Sm80).unwrap()];
                assert!(skipped.iter().all(|b| decode_all(Elem::I32, &b[0])[0].i() == 0), "step {step}");
            }
        }
    }
}

/// A `while` that carries a block, a block of pointers, a pointer and a scalar; the steps are read from memory.
#[test]
fn loops_with_a_condition() {
    let text = "kernel @walk(%x: ptr<i32>, %y: ptr<i32>, %n: i32) grid launch warps 2 {
  %zero = const 0 : i32
  %lanes = iota : i32[64]
  %p = splat %x : ptr<i32>[64]
  %q = ptr_add %p, %lanes : ptr<i32>[64]
  %none = const 0 : i32[64]
  %sum, %ps, %r, %c = while with (%s = %none : i32[64], %ps2 = %q : ptr<i32>[64], %r2 = %x : ptr<i32>,
    %i = %zero : i32) {
    %v = load %ps2 : i32[64]
    %by = load %r2 : i32
    %three = const 3 : i32
    %step = and %by, %three : i32
    %s3 = add %s, %v : i32[64]
    %steps = splat %step : i32[64]
    %ps3 = ptr_add %ps2, %steps : ptr<i32>[64]
    %one = const 1 : i32
    %r3 = ptr_add %r2, %one : ptr<i32>
    %i3 = add %i, %one : i32
    %more = cmp lt %i3, %n : bool
    yield %more, %s3, %ps3, %r3, %i3
  }
  %behind = load %r : i32
  %after = splat %behind : i32[64]
  %count = splat %c : i32[64]
  %ends = load %ps : i32[64]
  %a = add %sum, %after : i32[64]
  %b = add %a, %count : i32[64]
  %d = xor %b, %ends : i32[64]
  %to = splat %y : ptr<i32>[64]
  %at = ptr_add %to, %lanes : ptr<i32>[64]
  store %at, %d
}";
    for n in [0, 1, 2, 9] {
        let given = Launch::new([1, 1, 1])
            .buffer(Elem::I32, numbers(Elem::I32, 128))
            .buffer(Elem::I32, vec![0; 256])
            .scalar(Elem::I32, f64::from(n));
        agree(text, &given, &format!("{n} turns"));
    }
}

/// Branches that give pointers, blocks of pointers and blocks; a choice of pointers by element; loops of pointers that
/// move by a number of the launch.
#[test]
fn pointers_are_values() {
    let text = "kernel @choose(%x: ptr<i32>, %z: ptr<i32>, %y: ptr<i32>, %n: i32, %first: bool) grid launch warps 1 {
  %lanes = iota : i32[32]
  %px = splat %x : ptr<i32>[32]
  %pz = splat %z : ptr<i32>[32]
  %from, %all, %w = if %first : ptr<i32>, ptr<i32>[32], i32[32] {
    %q = ptr_add %px, %lanes : ptr<i32>[32]
    %v = load %q : i32[32]
    yield %x, %q, %v
  } else {
    %qz = ptr_add %pz, %lanes : ptr<i32>[32]
    yield %z, %qz, %lanes
  }
  %one = const 1 : i32[32]
  %odd = and %lanes, %one : i32[32]
  %is_odd = cmp eq %odd, %one : bool[32]
  %back = ptr_add %pz, %lanes : ptr<i32>[32]
  %mixed = select %is_odd, %all, %back : ptr<i32>[32]
  %m = load %mixed : i32[32]
  %zero = const 0 : i32
  %four = const 4 : i32
  %step = const 1 : i32
  %none = const 0 : i32[32]
  %sum, %end = for %i in %zero..%four step %step with (%s = %none : i32[32], %p = %all : ptr<i32>[32]) {
    %u = load %p : i32[32]
    %s2 = add %s, %u : i32[32]
    %by = splat %n : i32[32]
    %p2 = ptr_add %p, %by : ptr<i32>[32]
    yield %s2, %p2
  }
  %e = load %end : i32[32]
  %one_more = load %from : i32
  %more = splat %one_more : i32[32]
  %a = add %m, %sum : i32[32]
  %b = add %a, %more : i32[32]
  %c = add %b, %w : i32[32]
  %d = sub %c, %e : i32[32]
  %to = splat %y : ptr<i32>[32]
  %at = ptr_add %to, %lanes : ptr<i32>[32]
  store %at, %d
}";
    for (n, first) in [(0, true), (3, true), (8, false)] {
        let given = Launch::new([1, 1, 1])
            .buffer(Elem::I32, numbers(Elem::I32, 100))
            .buffer(Elem::I32, numbers(Elem::I32, 90))
            .buffer(Elem::I32, vec![0; 128])
            .scalar(Elem::I32, f64::from(n))
            .scalar(Elem::Bool, f64::from(u8::from(first)));
        agree(text, &given, &format!("by {n}, {first}"));
    }
}

/// Addresses as integers and back, pointers to other elements, and the bits of numbers.
#[test]
fn bits_and_addresses() {
    let text = "kernel @bits(%x: ptr<i32>, %y: ptr<i64>, %f: ptr<f32>, %h: ptr<f16>, %n: i64) grid launch warps 1 {
  %lanes = iota : i32[16]
  %wide = cast i64 %lanes : i64[16]
  %address = bitcast %x : i64
  %eight = const 8 : i64
  %by = mul %n, %eight : i64
  %moved = add %address, %by : i64
  %p = bitcast %moved : ptr<i64>
  %ps = splat %p : ptr<i64>[16]
  %q = ptr_add %ps, %lanes : ptr<i64>[16]
  %v = load %q : i64[16]
  %halves = bitcast %q : ptr<i16>[16]
  %low = load %halves : i16[16]
  %low_wide = cast i64 %low : i64[16]
  %numbers = bitcast %q : i64[16]
  %first = splat %address : i64[16]
  %offsets = sub %numbers, %first : i64[16]
  %seven = const 7 : i64[16]
  %mixed = xor %v, %offsets : i64[16]
  %scaled = mul %low_wide, %seven : i64[16]
  %sum = add %mixed, %scaled : i64[16]
  %yp = splat %y : ptr<i64>[16]
  %yq = ptr_add %yp, %lanes : ptr<i64>[16]
  store %yq, %sum
  %fp = splat %f : ptr<f32>[16]
  %fq = ptr_add %fp, %lanes : ptr<f32>[16]
  %g = load %fq : f32[16]
  %gb = bitcast %g : i32[16]
  %mask = const 2147418112 : i32[16]
  %gm = and %gb, %mask : i32[16]
  %g2 = bitcast %gm : f32[16]
  store %fq, %g2
  %hp = splat %h : ptr<f16>[16]
  %hq = ptr_add %hp, %lanes : ptr<f16>[16]
  %k = load %hq : f16[16]
  %kb = bitcast %k : i16[16]
  %one = const 1 : i16[16]
  %kn = add %kb, %one : i16[16]
  %k2 = bitcast %kn : f16[16]
  store %hq, %k2
}";
    for n in [0, 2, 8] {
        let given = Launch::new([1, 1, 1])
            .buffer(Elem::I32, numbers(Elem::I32, 64))
            .buffer(Elem::I64, vec![0; 128])
            .buffer(Elem::F32, numbers(Elem::F32, 16))
            .buffer(Elem::F16, numbers(Elem::F16, 16))
            .scalar(Elem::I64, f64::from(n));
        agree(text, &given, &format!("from {n}"));
    }
}

/// Multiples: of a number and an address in memory, and of rows of pointers; loads and stores are vectors then.
#[test]
fn known_multiples() {
    let text = "kernel @rows(%x: ptr<i32>, %at: ptr<i32>, %y: ptr<i32>) grid launch warps 1 {
  %some = load %at : i32
  %row = multiple_of %some [4] : i32
  %from = multiple_of %x [16] : ptr<i32>
  %lanes = iota : i32[32]
  %rows = expand_dims %lanes axis 1 : i32[32,1]
  %columns = expand_dims %lanes axis 0 : i32[1,32]
  %sizes = splat %row : i32[32,1]
  %starts = mul %rows, %sizes : i32[32,1]
  %all_starts = broadcast %starts : i32[32,32]
  %all_columns = broadcast %columns : i32[32,32]
  %places = add %all_starts, %all_columns : i32[32,32]
  %base = splat %from : ptr<i32>[32,32]
  %p = ptr_add %base, %places : ptr<i32>[32,32]
  %v = load %p : i32[32,32]
  %out = splat %y : ptr<i32>[32,32]
  %to = ptr_add %out, %places : ptr<i32>[32,32]
  %known = multiple_of %to [16,16] : ptr<i32>[32,32]
  store %known, %v
}";
    for row in [32, 36] {
        let given = Launch::new([1, 1, 1])
            .buffer(Elem::I32, numbers(Elem::I32, 36 * 32))
            .buffer(Elem::I32, encode_all(Elem::I32, &[Num::I(row)]))
            .buffer(Elem::I32, vec![0; 4 * 36 * 32]);
        agree(text, &given, &format!("rows of {row}"));
    }
    let mut program = text::parse(text).unwrap();
    passes::canonicalise(&mut program).unwrap();
    passes::run(&["layout"], &mut program, Arch::Sm90a.machine()).unwrap();
    let ptx = kiln_codegen::nvptx::compile(&program, Arch::Sm90a.machine()).unwrap().text;
    assert!(ptx.contains("ld.global") && ptx.contains(".v4.b32") && ptx.contains("st.global.v4.b32"), "{ptx}");
}

/// One tensor behind two parameters: a load after a store, and a store after a load, in the order of the program.
#[test]
fn a_tensor_twice() {
    let mut b = Builder::new("shift", Grid::Launch, 4);
    let (x, y) = (b.param("x", Elem::I32, false), b.param("y", Elem::I32, false));
    let (n, offset) = (b.scalar("n", Elem::I32, KNOWN), b.scalar("offset", Elem::I32, KNOWN));
    let lanes = b.iota(512);
    let mask = b.cmp(CmpOp::Lt, lanes, n);
    let (from, to) = (b.ptr_add(x, lanes), b.binary(BinaryOp::Add, lanes, offset));
    let to = b.ptr_add(y, to);
    let v = b.load(from, Some(mask), None);
    b.store(to, v, Some(mask));
    let w = b.load(from, Some(mask), None);
    let both = b.binary(BinaryOp::Add, v, w);
    b.store(to, both, Some(mask));
    let k = b.finish();
    // On the host both parameters may have the same address.
    let data: Vec<i32> = (0..600).map(|i| i * 7 % 311).collect();
    for (n, offset) in [(500, 1), (500, 0), (400, 37)] {
        let mut want = data.clone();
        let v = want[..n].to_vec();
        want[offset..offset + n].copy_from_slice(&v);
        let both: Vec<i32> = v.iter().zip(&want[..n]).map(|(a, b)| a + b).collect();
        want[offset..offset + n].copy_from_slice(&both);
        let mut found = data.clone();
        let module = kiln_codegen::host::compile(std::slice::from_ref(&k)).unwrap();
        let (at, sizes) = (found.as_mut_ptr().cast::<u8>(), [1u64, 1, 1]);
        let (n, offset) = (n as i32, offset as i32);
        let number = |v: &i32| std::ptr::from_ref(v).cast_mut().cast::<u8>();
        let args = [at, at, number(&n), number(&offset), sizes.as_ptr().cast_mut().cast()];
        // SAFETY: the tensor is as long as the program reaches.
        unsafe { module.function(0).unwrap()(args.as_ptr(), 0, 1) };
        assert_eq!(found, want, "{n} by {offset}");
    }
}

/// Pointers that a loop moves by a stride of the launch: vectors stay vectors where the stride is a multiple of 16.
#[test]
fn moving_pointers_keep_their_vectors() {
    let known = Facts { div: 16, least: Some(0), ..KNOWN };
    let mut b = Builder::new("columns", Grid::Launch, 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (rows, pitch) = (b.scalar("rows", Elem::I32, KNOWN), b.scalar("pitch", Elem::I32, known));
    let lanes = b.iota(512);
    let from = b.ptr_add(x, lanes);
    let zero = b.constant(Type::block(Elem::F32, [512]), Const::Float(0.0));
    let (lo, step) = (b.i32(0), b.i32(1));
    let sums = b.for_loop([lo, rows, step], &[zero, from], |b, _, c| {
        let v = b.load(c[1], None, None);
        vec![b.binary(BinaryOp::Add, c[0], v), b.ptr_add(c[1], pitch)]
    });
    let end = b.load(sums[1], None, None);
    let sums = b.binary(BinaryOp::Sub, sums[0], end);
    let to = b.ptr_add(y, lanes);
    b.store(to, sums, None);
    let mut k = b.finish();
    let given = |rows: usize, pitch: usize| {
        Launch::new([1, 1, 1])
            .buffer(Elem::F32, numbers(Elem::F32, rows * pitch + 512))
            .buffer(Elem::F32, vec![0; 2048])
            .scalar(Elem::I32, rows as f64)
            .scalar(Elem::I32, pitch as f64)
    };
    assert!(given(5, 528).agrees(&k, Arch::Sm90a, "as written"));
    passes::canonicalise(&mut k).unwrap();
    for (rows, pitch) in [(0, 512), (1, 16), (7, 512), (9, 1040)] {
        assert!(given(rows, pitch).agrees(&k, Arch::Sm90a, &format!("{rows} rows of {pitch}")));
    }
    let ptx = kiln_codegen::nvptx::compile(&k, Arch::Sm90a.machine()).unwrap();
    let count = |what: &str| ptx.text.lines().filter(|l| l.contains(what)).count();
    assert_eq!([count("ld.global.nc.v4"), count("ld.global.nc.b32")], [2, 0], "{}", ptx.text);
}

/// Threads wait where one may read what another writes, or write what another has yet to read, on every path there.
#[test]
fn barriers_between_accesses() {
    let of = |facts: &str, body: &str| {
        let text = format!(
            "kernel @k(%x: ptr<f32>{facts}, %y: ptr<f32>{facts}, %n: i32, %b: bool) grid launch warps 4 {{
  %i = iota : i32[512]
  %px = splat %x : ptr<f32>[512]
  %p = ptr_add %px, %i : ptr<f32>[512]
  %py = splat %y : ptr<f32>[512]
  %q = ptr_add %py, %i : ptr<f32>[512]
  %one = const 1 : i32
  %zero = const 0 : i32
  %v = load %p : f32[512]
{body}
}}"
        );
        let k = text::parse(&text).unwrap();
        let ptx = kiln_codegen::nvptx::compile(&k, Arch::Sm90a.machine()).unwrap();
        ptx.text.lines().filter(|l| l.contains("bar.sync")).count()
    };
    let facts = " {noalias}";
    // The elements that a thread has loaded itself; those of another pointer, unless it is stated that they differ.
    assert_eq!(of("", "  store %p, %v"), 0);
    assert_eq!(of("", "  store %q, %v"), 1);
    assert_eq!(of(facts, "  store %q, %v"), 0);
    assert_eq!(of("", "  store %p, %v\n  %w = load %q : f32[512]\n  store %q, %w"), 1);
    // A path without the barrier of the other one.
    let branch = "  if %b {\n    %u = load %q : f32[512]\n    store %q, %u\n    yield\n  } else {\n    yield\n  }";
    assert_eq!(of("", &format!("  store %p, %v\n{branch}\n  %w = load %q : f32[512]\n  store %q, %w")), 2);
    let walk = "  for %t in %zero..%n step %one {\n    %u = load %q : f32[512]\n    store %q, %u\n    yield\n  }";
    assert_eq!(of("", &format!("  store %p, %v\n{walk}\n  %w = load %q : f32[512]\n  store %q, %w")), 2);
    // What an iteration loads is what another stores, unless they are known to differ; by a pointer that moves, too.
    let copy = |x: &str, y: &str, from: &str| {
        let text = format!(
            "kernel @k(%x: ptr<f32>{x}, %y: ptr<f32>{y}, %n: i32) grid launch warps 4 {{
  %i = iota : i32[512]
  %px = splat %x : ptr<f32>[512]
  %p = ptr_add %px, %i : ptr<f32>[512]
  %py = splat %y : ptr<f32>[512]
  %q = ptr_add %py, %i : ptr<f32>[512]
  %one = const 1 : i32
  %zero = const 0 : i32
  %e = for %t in %zero..%n step %one with (%m = {from} : ptr<f32>[512]) {{
    %v = load %m : f32[512]
    %l = ptr_add %m, %i : ptr<f32>[512]
    store %p, %v
    yield %l
  }}
}}"
        );
        let k = text::parse(&text).unwrap();
        let ptx = kiln_codegen::nvptx::compile(&k, Arch::Sm90a.machine()).unwrap();
        ptx.text.lines().filter(|l| l.contains("bar.sync")).count()
    };
    assert_eq!(copy("", " readonly", "%q"), 0);
    assert_eq!(copy("", "", "%q"), 2);
    assert_eq!(copy(facts, facts, "%p"), 2);
}
