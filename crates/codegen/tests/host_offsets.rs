//! Loads whose offsets are neighbours only sometimes.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

fn pointers(b: &mut Builder, name: &str, elem: Elem, shape: &[usize]) -> Value {
    let p = b.param(name, elem, name == "x");
    let lanes = b.iota(shape.iter().product());
    let at = b.reshape(lanes, shape);
    b.ptr_add(p, at)
}

fn small(elem: Elem, n: usize, seed: i64) -> Vec<u8> {
    let all: Vec<Num> = (0..n as i64).map(|i| Num::I((i * seed) % 7 - 3)).collect();
    encode_all(elem, &all)
}

/// Offsets that wrap, that are chosen, and that are read from memory.
#[test]
fn offsets_that_may_be_neighbours() {
    let count = 64;
    for (start, end) in [(0, 100), (40, 100), (90, 100), (7, 16), (0, 1)] {
        for masked in [false, true] {
            let mut b = Builder::new("wrapped", Grid::Launch, 4);
            let (start_at, end_at) =
                (b.scalar("start", Elem::I32, Facts::default()), b.scalar("end", Elem::I32, Facts::default()));
            let x = b.param("x", Elem::F32, true);
            let table = pointers(&mut b, "table", Elem::I32, &[count]);
            let outputs = ["wrapped", "chosen", "read"].map(|name| pointers(&mut b, name, Elem::F32, &[count]));
            let lanes = b.iota(count);
            let at = b.binary(BinaryOp::Add, lanes, start_at);
            let wrapped = b.binary(BinaryOp::Rem, at, end_at);
            let (inside, zero) = (b.cmp(CmpOp::Lt, at, end_at), b.i32(0));
            let chosen = b.select(inside, at, zero);
            let read = b.load(table, None, None);
            let (three, one) = (b.i32(3), b.i32(1));
            let kept = b.binary(BinaryOp::And, lanes, three);
            let mask = b.cmp(CmpOp::Ge, kept, one);
            for (to, offsets) in outputs.into_iter().zip([wrapped, chosen, read]) {
                let p = b.ptr_add(x, offsets);
                let v = b.load(p, masked.then_some(mask), None);
                b.store(to, v, None);
            }
            let table: Vec<Num> =
                (0..count as i64).map(|i| Num::I(if i < 32 { i + 5 } else { (i * 7) % 100 })).collect();
            let mut given = Launch::new([1, 1, 1]).scalar(Elem::I32, start.into()).scalar(Elem::I32, end.into());
            given = given.buffer(Elem::F32, small(Elem::F32, 200, 37)).buffer(Elem::I32, encode_all(Elem::I32, &table));
            for _ in 0..3 {
                given = given.buffer(Elem::F32, vec![0; 4 * count]);
            }
            let about = format!("from {start} to {end}, masked: {masked}");
            assert!(given.agrees(&b.finish(), Arch::Sm90a, &about), "{about}: no PTX");
        }
    }
}
