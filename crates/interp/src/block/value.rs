//! Values at run time, and rounding to element types.
use half::{bf16, f16};
use kiln_block::{Elem, Type};
use std::{rc::Rc, sync::OnceLock};

/// Element `at` of the buffer of parameter `param`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Address {
    pub param: usize,
    pub at: i64,
}

/// Elements in row-major order. Floats of any type as f64, integers and bool as i64.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    Float(Vec<f64>),
    Int(Vec<i64>),
    Ptr(Vec<Address>),
}

/// A scalar, a block, or a block of pointers (then `elem` is what they point to).
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    pub elem: Elem,
    pub shape: Vec<usize>,
    pub data: Data,
}

#[derive(Clone, Debug)]
pub enum Val {
    Block(Rc<Block>),
    /// Number of a shared tile.
    Shared(usize),
    /// Number of a group of barriers.
    Barrier(usize),
    /// Parameter of a descriptor.
    Desc(usize),
}

impl Block {
    pub fn int(elem: Elem, v: i64) -> Block {
        Block { elem, shape: vec![], data: Data::Int(vec![v]) }
    }
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
    /// The same value in every element; NaN or all bits set for what nobody wrote.
    pub fn unwritten(elem: Elem, shape: &[usize]) -> Block {
        let n = shape.iter().product();
        let data = match elem {
            e if e.is_float() => Data::Float(vec![f64::NAN; n]),
            Elem::U8 => Data::Int(vec![255; n]),
            Elem::Bool => Data::Int(vec![1; n]),
            _ => Data::Int(vec![-1; n]),
        };
        Block { elem, shape: shape.to_vec(), data }
    }
    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            _ => &[],
        }
    }
    pub fn ints(&self) -> &[i64] {
        match &self.data {
            Data::Int(v) => v,
            _ => &[],
        }
    }
    pub fn pointers(&self) -> &[Address] {
        match &self.data {
            Data::Ptr(v) => v,
            _ => &[],
        }
    }
    /// Element `of[i]` at place i.
    pub fn gathered(&self, shape: &[usize], of: impl Iterator<Item = usize>) -> Block {
        let data = match &self.data {
            Data::Float(v) => Data::Float(of.map(|i| v[i]).collect()),
            Data::Int(v) => Data::Int(of.map(|i| v[i]).collect()),
            Data::Ptr(v) => Data::Ptr(of.map(|i| v[i]).collect()),
        };
        Block { elem: self.elem, shape: shape.to_vec(), data }
    }
}

/// A block type's element and shape; others have none.
pub fn block_type(ty: &Type) -> (Elem, Vec<usize>) {
    (ty.elem().unwrap_or(Elem::I32), ty.shape().to_vec())
}

/// Nearest value of a float type, ties to even, directly from f64.
pub fn nearest(elem: Elem, x: f64) -> f64 {
    match elem {
        Elem::F32 => f64::from(x as f32),
        Elem::F16 => f16::from_f64(x).to_f64(),
        Elem::Bf16 => bf16::from_f64(x).to_f64(),
        Elem::F8e4m3 => f8_value(f8_bits(x)),
        _ => x,
    }
}
/// What an op's exact result becomes: f32 first, but for f64.
pub fn rounded(elem: Elem, x: f64) -> f64 {
    if elem == Elem::F64 { x } else { nearest(elem, f64::from(x as f32)) }
}
/// Wraps to the type's width.
pub fn wrapped(elem: Elem, x: i64) -> i64 {
    match elem {
        Elem::I32 => i64::from(x as i32),
        Elem::U8 => i64::from(x as u8),
        Elem::Bool => i64::from(x != 0),
        _ => x,
    }
}

/// The non-negative finite values of f8e4m3 by their bits: exponent bias 7, no infinities, 0x7f is NaN (OCP FP8 E4M3).
fn f8_table() -> &'static [f64; 127] {
    static TABLE: OnceLock<[f64; 127]> = OnceLock::new();
    TABLE.get_or_init(|| {
        std::array::from_fn(|bits| {
            let (exponent, mantissa) = ((bits >> 3) as i32, (bits & 7) as f64);
            if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * f64::from(exponent - 7).exp2() }
        })
    })
}
/// Nearest, ties to even; beyond 448 and its rounding: NaN.
pub fn f8_bits(x: f64) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let (a, table) = (x.abs(), f8_table());
    if a.is_nan() || a > 464.0 {
        return sign | 0x7f;
    }
    let above = table.partition_point(|v| *v < a).min(126);
    let below = above.saturating_sub(1);
    let bits = match (a - table[below], table[above] - a) {
        (lo, hi) if hi < lo || (hi == lo && above % 2 == 0) || table[above] <= a => above,
        _ => below,
    };
    sign | bits as u8
}
pub fn f8_value(bits: u8) -> f64 {
    let v = f8_table().get(usize::from(bits & 0x7f)).copied().unwrap_or(f64::NAN);
    if bits & 0x80 == 0 { v } else { -v }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8_goes_round() {
        for bits in 0..=255u8 {
            let v = f8_value(bits);
            assert!(v.is_nan() || f8_bits(v) == bits, "{bits:#x} {v}");
        }
        for (x, y) in [(448.0, 448.0), (460.0, 448.0), (464.0, 448.0), (17.0, 16.0), (19.0, 20.0), (0.001, 1.0 / 512.0)]
        {
            assert_eq!(nearest(Elem::F8e4m3, x), y, "{x}");
        }
        assert!(nearest(Elem::F8e4m3, 465.0).is_nan());
        assert!(nearest(Elem::F8e4m3, f64::INFINITY).is_nan());
    }
}
