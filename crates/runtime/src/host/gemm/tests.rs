//! Products against three loops, over dtypes, strides, batches and empty sizes.
use super::*;
use crate::HostDevice;
use kiln_graph::{Tensor, Type};
use kiln_plan::exec::Slot;

fn random(ty: Type, seed: &mut u64) -> Tensor {
    let n = ty.count();
    let mut next = || {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 40) as f64 / (1u64 << 24) as f64 - 0.5
    };
    Tensor::from_f64(ty, (0..n).map(|_| next()).collect::<Vec<_>>())
}

/// A dense operand; `transposed` swaps the storage order, `broadcast` leaves out the batch axes.
fn matrix(slot: Slot, [rows, cols]: [usize; 2], batch: &[usize], transposed: bool, broadcast: bool) -> (Matrix, usize) {
    let (row_stride, col_stride) = if transposed { (1, rows) } else { (cols, 1) };
    let offset = 3;
    let mut stride = rows * cols + 5;
    let mut batch_strides = vec![0; batch.len()];
    if !broadcast {
        for (s, n) in batch_strides.iter_mut().zip(batch).rev() {
            *s = stride;
            stride *= n;
        }
    }
    (Matrix { slot, offset, row_stride, col_stride, batch_strides }, offset + stride)
}

fn element(m: &Matrix, batch: &[usize], i: usize, row: usize, col: usize) -> usize {
    let (mut rest, mut at) = (i, m.offset + row * m.row_stride + col * m.col_stride);
    for (n, s) in batch.iter().zip(&m.batch_strides).rev() {
        at += rest % n * s;
        rest /= n;
    }
    at
}

fn check(device: &HostDevice, g: &GemmCall, sizes: [usize; 3]) {
    let mut seed = 11;
    let a = random(Type::new(g.dtype, [sizes[0]]), &mut seed);
    let b = random(Type::new(g.dtype, [sizes[1]]), &mut seed);
    let mut c = random(Type::new(g.c_dtype, [sizes[2]]), &mut seed);
    let before = c.clone();
    let x = Shared(Operands { a: a.bytes().as_ptr(), b: b.bytes().as_ptr(), c: c.bytes_mut().as_mut_ptr() });
    // SAFETY: the tensors were made large enough for the call.
    device.install(|p| unsafe { gemm(p, g, x.get()) });
    let (fa, fb) = (a.to_f64_vec(), b.to_f64_vec());
    let mut written = vec![false; sizes[2]];
    for i in 0..g.batch.iter().product() {
        for (row, col) in (0..g.m).flat_map(|r| (0..g.n).map(move |c| (r, c))) {
            let term = |k| fa[element(&g.a, &g.batch, i, row, k)] * fb[element(&g.b, &g.batch, i, k, col)];
            let want: f64 = (0..g.k).map(term).sum();
            let at = element(&g.c, &g.batch, i, row, col);
            let got = c.get_f64(at);
            written[at] = true;
            let eps = match g.c_dtype {
                DType::F64 => 1e-14,
                DType::F32 => 1e-6,
                DType::F16 => 1e-3,
                _ => 8e-3,
            };
            let scale = want.abs() * eps / 2.0 + (g.k as f64).sqrt() * if g.dtype == DType::F64 { 1e-15 } else { 1e-6 };
            assert!((got - want).abs() <= scale + eps * 1e-3, "[{i}][{row},{col}] is {got}, should be {want}: {g:?}");
        }
    }
    for (at, _) in written.iter().enumerate().filter(|w| !w.1) {
        assert_eq!(c.get_f64(at).to_bits(), before.get_f64(at).to_bits(), "element {at} beyond c was written: {g:?}");
    }
}

fn run(device: &HostDevice, [m, n, k]: [usize; 3], batch: &[usize], dtypes: (DType, DType), form: usize) {
    let bit = |b: usize| form >> b & 1 == 1;
    let (a, na) = matrix(Slot::Input(0), [m, k], batch, bit(0), bit(3));
    let (b, nb) = matrix(Slot::Input(1), [k, n], batch, bit(1), bit(4));
    let (c, nc) = matrix(Slot::Output(0), [m, n], batch, bit(2), false);
    let g = GemmCall { dtype: dtypes.0, c_dtype: dtypes.1, m, n, k, batch: batch.to_vec(), a, b, c };
    check(device, &g, [na, nb, nc]);
}

const DTYPES: [(DType, DType); 6] = [
    (DType::F64, DType::F64),
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
];

#[test]
fn all_orders_of_all_operands() {
    for threads in [1, 3] {
        let device = HostDevice::new(threads).unwrap();
        for dtypes in DTYPES {
            for form in 0..32 {
                run(&device, [13, 37, 29], &[2, 3], dtypes, form);
            }
        }
    }
}

#[test]
fn sizes_that_take_every_path() {
    let device = HostDevice::new(4).unwrap();
    for dtypes in DTYPES {
        for (size, batch) in [
            ([1, 1, 1], vec![]),
            ([1, 700, 300], vec![]),
            ([500, 1, 200], vec![2]),
            ([70, 90, 40], vec![]),
            ([270, 140, 11], vec![]),
            ([40, 40, 40], vec![9]),
            ([64, 64, 8], vec![2]),
            // Deeper than one slice of the half types.
            ([40, 20, 1100], vec![]),
        ] {
            for form in [0, 3, 4] {
                run(&device, size, &batch, dtypes, form);
            }
        }
    }
}

#[test]
fn empty_sizes() {
    let device = HostDevice::new(2).unwrap();
    for dtypes in DTYPES {
        for (size, batch) in [([0, 5, 5], vec![]), ([5, 0, 5], vec![]), ([5, 6, 0], vec![2]), ([5, 5, 5], vec![0, 3])] {
            run(&device, size, &batch, dtypes, 0);
        }
    }
}

#[test]
fn strided_in_both_axes() {
    let device = HostDevice::new(2).unwrap();
    for dtypes in DTYPES {
        let m = |slot, cols: usize| {
            let (offset, row_stride, col_stride) = (1, 2 * cols + 1, 2);
            Matrix { slot, offset, row_stride, col_stride, batch_strides: vec![] }
        };
        let (a, b, c) = (m(Slot::Input(0), 7), m(Slot::Input(1), 9), m(Slot::Output(0), 9));
        let g = GemmCall { dtype: dtypes.0, c_dtype: dtypes.1, m: 5, n: 9, k: 7, batch: vec![], a, b, c };
        check(&device, &g, [100, 200, 200]);
    }
}
