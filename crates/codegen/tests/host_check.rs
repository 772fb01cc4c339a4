//! Host code of checked indices: the record is written where an index is wrong, and nowhere else.
use crate::nvptx_common;
use kiln_block::ops::{FAULT_INDEX_BITS, fault};
use kiln_codegen::host;

fn run(n: usize, extent: usize, index: &[i64]) -> (Vec<f32>, i64) {
    let k = nvptx_common::taken(n, extent);
    let module = host::compile(std::slice::from_ref(&k)).unwrap_or_else(|e| panic!("{e}"));
    let mut table: Vec<f32> = (0..extent).map(|i| i as f32).collect();
    let (mut index, mut out, mut record) = (index.to_vec(), vec![-1f32; n], [0i64; 2]);
    let args: [*mut u8; 4] =
        [table.as_mut_ptr().cast(), index.as_mut_ptr().cast(), out.as_mut_ptr().cast(), record.as_mut_ptr().cast()];
    let f = module.function(0).expect("compiled");
    // SAFETY: buffers of the program's parameters, as long as it says.
    unsafe { f(args.as_ptr(), 0, k.instances().unwrap() as u64) };
    assert_eq!(record[1], 0);
    (out, record[0])
}

/// One index for a row of elements: a number in a register, of which only the low half is an offset.
#[test]
fn a_uniform_index_is_no_address_before_it_is_narrowed() {
    use kiln_block::{BinaryOp, Builder, CmpOp, Elem};
    let mut b = Builder::new("row", [1, 1, 1], 1);
    let (table, index, out) =
        (b.param("table", Elem::F32, true), b.param("index", Elem::I64, true), b.param("out", Elem::F32, false));
    let i = b.load(index, None, None);
    let i = b.cast(i, Elem::I32);
    let [zero, end, width] = [0, 4, 8].map(|n| b.i32(n));
    let (low, high) = (b.cmp(CmpOp::Ge, i, zero), b.cmp(CmpOp::Lt, i, end));
    let inside = b.binary(BinaryOp::And, low, high);
    let (start, lane) = (b.binary(BinaryOp::Mul, i, width), b.iota(8));
    let at = b.binary(BinaryOp::Add, start, lane);
    let (from, to) = (b.ptr_add(table, at), b.ptr_add(out, lane));
    let v = b.load(from, Some(inside), None);
    b.store(to, v, None);
    let k = b.finish();
    let module = host::compile(std::slice::from_ref(&k)).unwrap_or_else(|e| panic!("{e}"));
    for wide in [2i64, (1 << 40) + 2, -(1 << 40) + 2] {
        let mut table: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let (mut index, mut out) = ([wide], [-1f32; 8]);
        let args: [*mut u8; 3] = [table.as_mut_ptr().cast(), index.as_mut_ptr().cast(), out.as_mut_ptr().cast()];
        let f = module.function(0).expect("compiled");
        // SAFETY: buffers of the program's parameters, as long as it says.
        unsafe { f(args.as_ptr(), 0, 1) };
        assert_eq!(out, std::array::from_fn(|i| 16.0 + i as f32), "{wide}");
    }
}

#[test]
fn records_are_written_for_wrong_indices_alone() {
    for n in [1usize, 7, 1000, 1024, 2500] {
        let index: Vec<i64> = (0..n).map(|i| (i * 13 % 50) as i64).collect();
        let (out, record) = run(n, 50, &index);
        assert_eq!(record, 0, "{n}");
        assert!(out.iter().zip(&index).all(|(y, i)| *y == *i as f32), "{n}");
        for at in [0, n / 2, n - 1] {
            for wrong in [50, -1, i64::MAX, i64::MIN, 1 << 32] {
                let mut index = index.clone();
                index[at] = wrong;
                let (out, record) = run(n, 50, &index);
                assert_eq!(record, fault(5, wrong), "{n}, {wrong} at {at}");
                assert_eq!(out[at], 0.0, "what is not there is not read");
            }
        }
    }
    assert_eq!(fault(0, -1) >> FAULT_INDEX_BITS, 1);
}
