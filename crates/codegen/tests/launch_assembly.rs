//! Inline assembly: as PTX, and as the ops that mean the same.
use crate::support::{launch::Launch, *};
use kiln_block::passes::portable_assembly::{portable, unknown};
use kiln_block::*;
use kiln_machine::Arch;

const LANES: usize = 64;

/// A program that loads a block of each of the first elements and stores what the text gives in blocks of the others.
fn program(from: &[Elem], to: &[Elem], assembly: Assembly) -> BlockProgram {
    let mut b = Builder::new("assembly", Grid::Launch, 1);
    let lanes = b.iota(LANES);
    let mut args = vec![];
    for (n, elem) in from.iter().enumerate() {
        let p = b.param(format!("x{n}"), *elem, false);
        let p = b.ptr_add(p, lanes);
        args.push(b.load(p, None, None));
    }
    let types: Vec<Type> = to.iter().map(|elem| Type::block(*elem, [LANES])).collect();
    let results = b.inst(Op::Asm(Box::new(assembly)), &args, &types, vec![]);
    for (n, (elem, result)) in to.iter().zip(results).enumerate() {
        let p = b.param(format!("y{n}"), *elem, false);
        let p = b.ptr_add(p, lanes);
        b.store(p, result, None);
    }
    b.finish()
}

fn assembly(text: &str, constraints: &str, pack: u32) -> Assembly {
    Assembly { text: text.into(), constraints: constraints.into(), pack, effects: Effects::Pure }
}

fn given(from: &[Elem], to: &[Elem], seed: u64) -> Launch {
    let mut r = Random::new(seed);
    let mut launch = Launch::new([1, 1, 1]);
    for elem in from {
        let one = |r: &mut Random| match elem.is_float() {
            true => r.value(*elem),
            false => Num::I(elem.wrapped(r.next_u64() as i64)),
        };
        let values: Vec<Num> = (0..LANES).map(|_| one(&mut r)).collect();
        launch = launch.buffer(*elem, encode_all(*elem, &values));
    }
    to.iter().fold(launch, |launch, elem| launch.buffer(*elem, vec![0; LANES * elem.bytes()]))
}

fn by_ptx(k: &BlockProgram, launch: &Launch) -> Vec<Vec<u8>> {
    verify::verify(k).unwrap_or_else(|e| panic!("{e}\n{}", text::print(k)));
    let printed = text::print(k);
    assert_eq!(text::parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}")), k.compacted(), "text form");
    launch.by_ptx(k, Arch::Sm90a).unwrap_or_else(|| panic!("no PTX\n{printed}"))
}

/// Texts of plain instructions mean the same as ops: by the interpreter, as host code, as PTX.
#[test]
fn plain_instructions_have_ops() {
    use Elem::{Bf16, F16, F32, I32, U16, U32};
    let rows: &[(&[Elem], &[Elem], &str, &str)] = &[
        (&[U32, U32, I32], &[I32], "shf.l.wrap.b32 $0, $1, $2, $3;", "=r,r, r, r"),
        (&[U32, U32, U32], &[U32], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r"),
        (&[U32, U32, U32], &[U32], "lop3.b32 $0, $1, $2, $3, 0xE4;", "=r,r,r,r"),
        (&[U32, U32], &[U32, U32], "sub.u32 $0, $2, $3; // a\nsub.u32 $1, $3, $2;", "=r,=r,r,r"),
        (&[I32], &[I32], "{ .reg .b32 t; shl.b32 t, $1, 3; and.b32 $0, t, 0x1F; }", "=r,r"),
        (&[F32, F32], &[F32], "mul.rn.f32 $0, $1, $2;", "=f,f,f"),
        (&[F32, F32], &[F32], "max.NaN.f32 $0, $1, $2;", "=r,r,r"),
        (&[F32], &[F32], "mov.b32 $0, $1;", "=r,r"),
        (&[F32], &[U16], "cvt.rn.f16.f32 $0, $1;", "=h,r"),
        (&[F32], &[U16], "cvt.rn.bf16.f32 $0, $1;", "=h,r"),
        (&[F16], &[F32], "cvt.f32.f16 $0, $1;", "=f,h"),
        (&[Bf16], &[U32], "mov.b32 $0, $1;", "=r,r"),
    ];
    for (n, (from, to, text, constraints)) in rows.iter().enumerate() {
        let k = program(from, to, assembly(text, constraints, 1));
        let ops = portable(&k);
        assert_eq!(unknown(&ops), None, "{text}");
        let launch = given(from, to, n as u64 + 1);
        let found = by_ptx(&k, &launch);
        assert!(launch.agrees(&ops, Arch::Sm80, text), "{text}: no PTX");
        let want = launch.interpreted(&ops).unwrap_or_else(|e| panic!("{text}: {e}"));
        for (elem, (found, want)) in to.iter().zip(found.iter().zip(&want).skip(from.len())) {
            let (found, want) = (decode_all(*elem, found), decode_all(*elem, want));
            let same = found.iter().zip(&want).all(|(a, b)| near(*elem, *a, *b, 0.0));
            assert!(same, "{text}: {found:?}, expected {want:?}\n{}", text::print(&ops));
        }
    }
}

/// Four bytes in a register, and two halves.
#[test]
fn narrow_elements_are_packed() {
    let shifted = assembly("and.b32 $0, $1, 0x1F1F1F1F; shl.b32 $0, $0, 3;", "=r,r", 4);
    let launch = given(&[Elem::U8], &[Elem::I8], 3);
    let found = by_ptx(&program(&[Elem::U8], &[Elem::I8], shifted), &launch);
    let want: Vec<u8> = launch.arguments[0].1.iter().map(|x| x << 3).collect();
    assert_eq!(found[1], want);

    let negated = assembly("xor.b32 $0, $1, 0x80008000;", "=r,r", 2);
    let launch = given(&[Elem::F16], &[Elem::F16], 4);
    let found = by_ptx(&program(&[Elem::F16], &[Elem::F16], negated), &launch);
    let flip = |(at, x): (usize, &u8)| if at % 2 == 1 { x ^ 0x80 } else { *x };
    let want: Vec<u8> = launch.arguments[0].1.iter().enumerate().map(flip).collect();
    assert_eq!(found[1], want);

    // Four bytes become four words, and a sum of them and four others.
    let text = "{ .reg .b8 t<4>; mov.b32 {t0, t1, t2, t3}, $8; cvt.u32.u8 $0, t0; cvt.u32.u8 $1, t1; \
                cvt.u32.u8 $2, t2; cvt.u32.u8 $3, t3; } add.u32 $4, $0, $9; add.u32 $5, $1, $10; \
                add.u32 $6, $2, $11; add.u32 $7, $3, $12;";
    let widened = assembly(text, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r", 4);
    let (from, to) = ([Elem::U8, Elem::U32], [Elem::U32, Elem::U32]);
    let launch = given(&from, &to, 5);
    let found = by_ptx(&program(&from, &to, widened), &launch);
    let words =
        |bytes: &[u8]| -> Vec<u32> { bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect() };
    let bytes: Vec<u32> = launch.arguments[0].1.iter().map(|x| u32::from(*x)).collect();
    let sums: Vec<u32> = bytes.iter().zip(words(&launch.arguments[1].1)).map(|(a, b)| a.wrapping_add(b)).collect();
    assert_eq!((words(&found[2]), words(&found[3])), (bytes, sums));
}

/// Assembly that stores through the pointers it gets, and another one that is kept although nothing uses its result.
#[test]
fn effects_are_kept() {
    let mut b = Builder::new("effects", Grid::Launch, 1);
    let (x, y) = (b.param("x", Elem::U32, false), b.param("y", Elem::U32, false));
    let lanes = b.iota(LANES);
    let (from, to) = (b.ptr_add(x, lanes), b.ptr_add(y, lanes));
    let text = "ld.global.b32 $0, [$1]; add.u32 $0, $0, 7; st.global.b32 [$2], $0;";
    let op = Assembly { effects: Effects::Volatile, ..assembly(text, "=r,l,l", 1) };
    b.inst(Op::Asm(Box::new(op)), &[from, to], &[Type::block(Elem::U32, [LANES])], vec![]);
    let mut k = b.finish();
    passes::canonicalise(&mut k).unwrap();
    let launch = given(&[Elem::U32], &[Elem::U32], 6);
    let found = by_ptx(&k, &launch);
    let words =
        |bytes: &[u8]| -> Vec<u32> { bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect() };
    let want: Vec<u32> = words(&launch.arguments[0].1).iter().map(|x| x.wrapping_add(7)).collect();
    assert_eq!(words(&found[1]), want);
}

/// What is no plain instruction is refused by name.
#[test]
fn other_texts_are_refused() {
    let k = program(&[Elem::U32], &[Elem::U32], assembly("vote.sync.ballot.b32 $0, $1, 0xffffffff;", "=r,r", 1));
    let ops = portable(&k);
    assert!(unknown(&ops).is_some());
    let launch = given(&[Elem::U32], &[Elem::U32], 7);
    let why = launch.interpreted(&ops).unwrap_err().to_string();
    assert!(why.contains("inline assembly is for GPUs"), "{why}");
    let why = kiln_codegen::host::llvm_text(std::slice::from_ref(&ops)).unwrap_err().to_string();
    assert!(why.contains("inline assembly for GPUs, `vote.sync"), "{why}");
}
