//! Products in microscaling formats.
use crate::harness::{buffer, executed, pointer, zeros};
use kiln_block::Elem;
use kiln_kernels::Number;

const M: usize = 4;
const N: usize = 8;
const K: usize = 64;
const GROUP: usize = 32;

const KERNEL: &str = "
def kernel(a, a_scale, b, b_scale, out):
    m, n, k, g = tl.arange(0, 4), tl.arange(0, 8), tl.arange(0, 64), tl.arange(0, 2)
    left = tl.load(a + m[:, None] * 32 + tl.arange(0, 32))
    left_scale = tl.load(a_scale + m[:, None] * 2 + g)
    right = tl.load(b + k[:, None] * 8 + n)
    right_scale = tl.load(b_scale + n[:, None] * 2 + g)
    c = tl.dot_scaled(left, left_scale, 'e2m1', right, right_scale, 'e5m2')
    tl.store(out + m[:, None] * 8 + n, c)
";

/// Bytes that look random.
fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn float4(nibble: u8) -> f64 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
    if nibble & 8 == 0 { size } else { -size }
}

fn float8_e5m2(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 2 & 31), f64::from(byte & 3) / 4.0);
    let size = if exponent == 0 { mantissa * 2f64.powi(-14) } else { (1.0 + mantissa) * 2f64.powi(exponent - 15) };
    if byte & 128 == 0 { size } else { -size }
}

fn scale(byte: u8) -> f64 {
    2f64.powi(i32::from(byte) - 127)
}

#[test]
fn scaled_products_are_those_of_the_formats() {
    let a = bytes(M * K / 2, 1);
    // Finite ones.
    let b: Vec<u8> = bytes(K * N, 2).into_iter().map(|byte| byte & 0xBF).collect();
    let near_one =
        |seed: u32, count: usize| -> Vec<u8> { bytes(count, seed).into_iter().map(|byte| 120 + byte % 16).collect() };
    let (a_scale, b_scale) = (near_one(3, M * K / GROUP), near_one(4, N * K / GROUP));
    let mut want = vec![];
    for m in 0..M {
        for n in 0..N {
            let term = |k: usize| {
                let byte = a[(m * K + k) / 2];
                let left = float4(if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 });
                let scales = scale(a_scale[m * 2 + k / GROUP]) * scale(b_scale[n * 2 + k / GROUP]);
                left * float8_e5m2(b[k * N + n]) * scales
            };
            want.push((0..K).map(term).sum::<f64>());
        }
    }
    let given = |bytes: &[u8]| buffer(Elem::U8, bytes.iter().map(|byte| f64::from(*byte)));
    let buffers = vec![given(&a), given(&a_scale), given(&b), given(&b_scale), zeros(Elem::F32, M * N)];
    let arguments = [[Number::UInt8; 4].to_vec(), vec![Number::Float32]].concat().into_iter().map(pointer).collect();
    let got = executed(KERNEL, arguments, [1, 1, 1], buffers)[4].to_f64();
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "element {at}: {got}, not {want}");
    }
}
