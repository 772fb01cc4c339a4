//! Arrays that are accessed in blocks.
use crate::harness::{buffer, executed, pointer, zeros};
use kiln_block::Elem;
use kiln_kernels::Number;

fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|n| n as f64).collect()
}

#[test]
fn descriptors_are_updated_atomically_within_the_array() {
    let kernel = "
def kernel(out):
    array = tl.make_tensor_descriptor(out, [3, 3], [4, 1], [2, 4])
    array.atomic_add([2, 0], tl.full([2, 4], 10, tl.int32))
    array.atomic_max([0, 1], tl.full([2, 4], 5, tl.int32))
";
    let out = executed(kernel, vec![pointer(Number::Int32)], [1, 1, 1], vec![buffer(Elem::I32, numbers(16))]);
    let want = [0, 5, 5, 3, 4, 5, 6, 7, 18, 19, 20, 11, 12, 13, 14, 15].map(f64::from);
    assert_eq!(out[0].to_f64(), want);
}

/// Rows outside of the array read as 0 and are not written.
#[test]
fn descriptors_gather_and_scatter_rows() {
    let kernel = "
def kernel(x, out):
    i = tl.arange(0, 4)
    array = tl.make_tensor_descriptor(x, [4, 4], [4, 1], [1, 2])
    rows = array.gather(3 - i * 2, 1)
    tl.store(out + i[:, None] * 2 + tl.arange(0, 2), rows)
    array.scatter(rows + 100, i + 2, 0)
";
    let arguments = vec![pointer(Number::Float32), pointer(Number::Float32)];
    let out = executed(kernel, arguments, [1, 1, 1], vec![buffer(Elem::F32, numbers(16)), zeros(Elem::F32, 8)]);
    assert_eq!(out[1].to_f64(), [13.0, 14.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0]);
    let want = [0, 1, 2, 3, 4, 5, 6, 7, 113, 114, 10, 11, 105, 106, 14, 15].map(f64::from);
    assert_eq!(out[0].to_f64(), want);
}
