//! Matmuls compared with three loops in f64, or in i64 with wrapping: generated sizes, strides, batches and dtypes, on
//! every instruction set of this processor.
use super::*;
use crate::HostDevice;
use crate::shared::Value;
use kiln_graph::{Random, Tensor, Type};
use kiln_plan::exec::{Axis, Slot, axes};

/// Numbers of a type: all bits of integers, floats within half of zero.
fn tensor(random: &mut Random, dtype: DType, count: usize) -> Tensor {
    if dtype.is_int() {
        let bytes: Vec<u8> = (0..count * dtype.bytes()).map(|_| random.next_u64() as u8).collect();
        return Tensor::from_bytes(Type::new(dtype, [count]), &bytes).unwrap();
    }
    let values: Vec<f64> = (0..count).map(|_| random.uniform() - 0.5).collect();
    Tensor::from_f64(Type::new(dtype, [count]), values)
}

/// The memory layout of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    ByRow,
    ByColumn,
    /// Gaps of one element, or of two, between the elements of a row.
    Spread,
    /// Rows and columns of two axes each; none of them overlap.
    Split,
}
const FORMS: [Form; 4] = [Form::ByRow, Form::ByColumn, Form::Spread, Form::Split];

/// An operand, and the number of elements that its buffer needs.
fn matrix(slot: Slot, [rows, cols]: [usize; 2], batch: &[usize], form: Form, broadcast: bool) -> (Matrix, usize) {
    let halves = |n: usize| if n.is_multiple_of(2) && n > 0 { (2, n / 2) } else { (1, n) };
    let offset = 3;
    let (r, c, mut stride) = match form {
        Form::ByRow => (axes([(rows, cols)]), axes([(cols, 1)]), rows * cols + 5),
        Form::ByColumn => (axes([(rows, 1)]), axes([(cols, rows)]), rows * cols + 5),
        Form::Spread => {
            let step = 2 + cols % 2;
            (axes([(rows, step * cols + 1)]), axes([(cols, step)]), rows * (step * cols + 1))
        }
        Form::Split => {
            let ((r, rr), (c, cc)) = (halves(rows), halves(cols));
            let size = rows * (cc + 1) * c + 7;
            (axes([(r, rr * (cc + 1)), (rr, cc + 1)]), axes([(c, rows * (cc + 1)), (cc, 1)]), size)
        }
    };
    let mut batch_strides = vec![0; batch.len()];
    let mut one = stride;
    if !broadcast {
        for (s, n) in batch_strides.iter_mut().zip(batch).rev() {
            *s = stride;
            stride *= n;
        }
        one = stride.max(one);
    }
    (Matrix { slot, offset, rows: r, cols: c, batch_strides }, offset + one)
}

fn element(m: &Matrix, batch: &[usize], i: usize, row: usize, col: usize) -> usize {
    m.offset + offset(&m.batch_strides, batch, i) + Side(&m.rows).at(row) + Side(&m.cols).at(col)
}

/// A test case. Its `Debug` form is enough to reproduce it.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    size: [usize; 3],
    batch: Vec<usize>,
    dtypes: (DType, DType),
    forms: [Form; 3],
    broadcast: [bool; 2],
}

impl Case {
    fn call(&self) -> (GemmCall, [usize; 3]) {
        let [m, n, k] = self.size;
        let (a, na) = matrix(Slot::Input(0), [m, k], &self.batch, self.forms[0], self.broadcast[0]);
        let (b, nb) = matrix(Slot::Input(1), [k, n], &self.batch, self.forms[1], self.broadcast[1]);
        let (c, nc) = matrix(Slot::Output(0), [m, n], &self.batch, self.forms[2], false);
        let (dtype, c_dtype) = self.dtypes;
        (
            GemmCall {
                batch_invariant: false,
                dtype,
                c_dtype,
                tf32: false,
                m,
                n,
                k,
                batch: self.batch.clone(),
                a,
                b,
                c,
                workspace: None,
                epilogue: Default::default(),
            },
            [na, nb, nc],
        )
    }
}

/// How a matmul is computed: the instruction set, and which operands are prepacked.
#[derive(Clone, Copy, Debug)]
struct Way {
    level: Level,
    packed: [bool; 2],
}

/// Every instruction set of this processor, with and without prepacked operands.
fn ways() -> impl Iterator<Item = Way> {
    let packed = [[false, false], [true, false], [false, true], [true, true]];
    Level::here().iter().flat_map(move |&level| packed.map(|packed| Way { level, packed }))
}

fn run(device: &HostDevice, way: Way, g: &GemmCall, a: &Tensor, b: &Tensor, c: &mut Tensor) {
    let x = Operands { a: a.bytes().as_ptr(), b: b.bytes().as_ptr(), c: c.bytes_mut().as_mut_ptr() };
    let p = device.parallel();
    // SAFETY: the tensors were made large enough for the call.
    unsafe {
        let panels = |i: usize, role, at| {
            way.packed[i].then(|| prepack::prepack_by(way.level, p, g, role, at)).flatten().map(|p| Value::new(p, 0))
        };
        let w = Weights { a: panels(0, Role::A, x.a), b: panels(1, Role::B, x.b) };
        gemm_by(way.level, p, g, x, &w);
    }
}

fn check(device: &HostDevice, case: &Case) {
    let (g, sizes) = case.call();
    let [n, k] = [g.n, g.k];
    let mut random = Random::new(case.seed);
    let [a, b, before] = [(g.dtype, 0), (g.dtype, 1), (g.c_dtype, 2)].map(|(d, i)| tensor(&mut random, d, sizes[i]));
    let (fa, fb) = (a.to_f64_vec(), b.to_f64_vec());
    for way in ways() {
        let mut c = before.clone();
        run(device, way, &g, &a, &b, &mut c);
        let mut written = vec![false; sizes[2]];
        for i in 0..g.batch.iter().product() {
            for (row, col) in (0..g.m).flat_map(|r| (0..n).map(move |c| (r, c))) {
                let places = |k| [element(&g.a, &g.batch, i, row, k), element(&g.b, &g.batch, i, k, col)];
                if g.dtype.is_int() {
                    let product = |[i, j]: [usize; 2]| a.get_i64(i).wrapping_mul(b.get_i64(j));
                    let sum = (0..k).map(|k| product(places(k))).fold(0i64, i64::wrapping_add);
                    let at = element(&g.c, &g.batch, i, row, col);
                    let (got, want) = (c.get_i64(at), g.dtype.kind().wrapped(sum));
                    written[at] = true;
                    assert_eq!(got, want, "{way:?}: [{i}][{row},{col}] of {case:?}");
                    continue;
                }
                let term = |k| fa[element(&g.a, &g.batch, i, row, k)] * fb[element(&g.b, &g.batch, i, k, col)];
                let want: f64 = (0..k).map(term).sum();
                let at = element(&g.c, &g.batch, i, row, col);
                let got = c.get_f64(at);
                written[at] = true;
                let eps = match g.c_dtype {
                    DType::F64 => 1e-14,
                    DType::F32 => 1e-6,
                    DType::F16 => 1e-3,
                    _ => 8e-3,
                };
                let sum = (g.k as f64).sqrt() * if g.dtype == DType::F64 { 1e-15 } else { 1e-6 };
                let most = want.abs() * eps / 2.0 + sum + eps * 1e-3;
                let threads = device.threads();
                assert!(
                    (got - want).abs() <= most,
                    "{way:?}, {threads} threads: [{i}][{row},{col}] is {got}, should be {want}: {case:?}"
                );
            }
        }
        for (at, _) in written.iter().enumerate().filter(|w| !w.1) {
            let (now, then) = (c.get_f64(at).to_bits(), before.get_f64(at).to_bits());
            assert_eq!(now, then, "{way:?}: element {at} beyond c was written: {case:?}");
        }
    }
}

const DTYPES: [(DType, DType); 11] = [
    (DType::F64, DType::F64),
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
    (DType::I8, DType::I8),
    (DType::U8, DType::U8),
    (DType::I16, DType::I16),
    (DType::I32, DType::I32),
    (DType::I64, DType::I64),
];

#[test]
fn generated_matmuls() {
    for seed in 0..1000 {
        let mut r = Random::new(seed);
        let mut size = [0; 3].map(|_| r.next_below(41));
        if seed % 50 == 0 {
            // Deeper than a slice of K, or wider than a block.
            size[r.next_below(3)] = 300 + r.next_below(500);
        }
        let batch = (0..r.next_below(3)).map(|_| 1 + r.next_below(3)).collect();
        let forms = [0; 3].map(|_| FORMS[r.next_below(4)]);
        let broadcast = [r.next_below(4) == 0, r.next_below(4) == 0];
        let case = Case { seed, size, batch, dtypes: DTYPES[r.next_below(11)], forms, broadcast };
        check(&HostDevice::new(1).unwrap(), &case);
    }
}

#[test]
fn all_forms_of_all_operands() {
    let device = HostDevice::new(2).unwrap();
    for dtypes in DTYPES {
        for (a, b, c) in FORMS.iter().flat_map(|a| FORMS.iter().flat_map(move |b| FORMS.map(|c| (*a, *b, c)))) {
            for size in [[13, 38, 26], [2, 70, 30]] {
                let broadcast = [a == b, b == c];
                check(&device, &Case { seed: 5, size, batch: vec![2, 2], dtypes, forms: [a, b, c], broadcast });
            }
        }
    }
}

#[test]
fn large_matmuls_on_several_threads() {
    let device = HostDevice::new(3).unwrap();
    for dtypes in DTYPES {
        for (size, batch) in [
            ([1, 700, 300], vec![]),
            ([300, 1, 200], vec![2]),
            ([3, 900, 50], vec![]),
            ([90, 150, 40], vec![]),
            ([270, 70, 15], vec![]),
            ([120, 20, 450], vec![]),
            ([40, 40, 40], vec![9]),
            ([64, 64, 80], vec![2]),
        ] {
            for forms in [[Form::ByRow; 3], [Form::ByRow, Form::ByColumn, Form::ByRow], [Form::ByColumn; 3]] {
                let broadcast = [false; 2];
                check(&device, &Case { seed: 7, size, batch: batch.clone(), dtypes, forms, broadcast });
            }
        }
    }
}

#[test]
fn empty_sizes() {
    let device = HostDevice::new(2).unwrap();
    for dtypes in DTYPES {
        for (size, batch) in [([0, 5, 5], vec![]), ([5, 0, 5], vec![]), ([5, 6, 0], vec![2]), ([5, 5, 5], vec![0, 3])] {
            for form in FORMS {
                let (forms, broadcast) = ([form; 3], [false; 2]);
                check(&device, &Case { seed: 1, size, batch: batch.clone(), dtypes, forms, broadcast });
            }
        }
    }
}

/// A NaN or an infinity in an operand shows in the row or column that reads it, and nowhere else.
#[test]
fn nan_and_infinity_propagate() {
    let device = HostDevice::new(1).unwrap();
    for (way, dtypes) in ways().flat_map(|w| DTYPES.map(|d| (w, d))).filter(|(_, (d, _))| d.is_float()) {
        for size in [[1, 50, 21], [20, 37, 21], [40, 5, 400]] {
            for (form, odd) in [(Form::ByRow, f64::NAN), (Form::ByColumn, f64::INFINITY)] {
                let case = Case { seed: 3, size, batch: vec![], dtypes, forms: [form; 3], broadcast: [false; 2] };
                let (g, sizes) = case.call();
                let mut random = Random::new(case.seed);
                let [mut a, b, mut c] =
                    [0, 1, 2].map(|i| tensor(&mut random, [g.dtype, g.dtype, g.c_dtype][i], sizes[i]));
                let mut values = a.to_f64_vec();
                values[element(&g.a, &[], 0, size[0] / 2, size[2] - 1)] = odd;
                a = Tensor::from_f64(a.ty.clone(), values);
                run(&device, way, &g, &a, &b, &mut c);
                for (row, col) in (0..g.m).flat_map(|r| (0..g.n).map(move |c| (r, c))) {
                    let got = c.get_f64(element(&g.c, &[], 0, row, col));
                    let right = if row == size[0] / 2 { !got.is_finite() } else { got.is_finite() };
                    assert!(right, "{way:?}: [{row},{col}] is {got} with {odd} in row {}: {case:?}", size[0] / 2);
                }
            }
        }
    }
}

#[test]
fn equal_calls_give_equal_bits() {
    let device = HostDevice::new(4).unwrap();
    let forms = [Form::ByRow, Form::ByColumn, Form::ByRow];
    let size = [150, 170, 500];
    let case = Case { seed: 9, size, batch: vec![], dtypes: DTYPES[1], forms, broadcast: [false; 2] };
    let (g, sizes) = case.call();
    let mut random = Random::new(case.seed);
    let [a, b, c] = sizes.map(|n| tensor(&mut random, DType::F32, n));
    let once = || {
        let mut c = c.clone();
        run(&device, Way { level: Level::used(), packed: [false; 2] }, &g, &a, &b, &mut c);
        c.bytes().to_vec()
    };
    let first = once();
    assert!((0..10).all(|_| once() == first), "{case:?}");
}

#[test]
fn axes_join() {
    let axis = |size, stride| Axis { size, stride };
    assert_eq!(axes([(2, 12), (3, 4), (1, 7), (4, 1)]), [axis(24, 1)]);
    assert_eq!(axes([(2, 13), (3, 4), (4, 1)]), [axis(2, 13), axis(12, 1)]);
    assert_eq!(axes([(1, 3)]), []);
}

/// Rounding to bf16 agrees with the `half` crate, for every upper half of an f32 and in all cases of rounding.
#[test]
fn sums_round_to_bf16() {
    let sums: Vec<f32> = (0..=u16::MAX)
        .flat_map(|high| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(u32::from(high) << 16 | low)))
        .collect();
    let mut rounded = vec![bf16::ZERO; sums.len()];
    bf16::narrow(&sums, &mut rounded);
    for (x, got) in sums.iter().zip(&rounded) {
        assert_eq!(got.to_bits(), bf16::from_f32(*x).to_bits(), "{:#x}", x.to_bits());
    }
}
