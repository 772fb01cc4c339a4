//! Values of the interpreter: dense row-major data in one of four carrier types.
use super::{Precision, scalar_int};
use half::{bf16, f16};
use kiln_graph::{DType, Format, Scalar, Tensor, Type};
use std::sync::Arc;

/// Elements in a carrier type. Floats narrower than f32 are carried in f32 and rounded after every op, integers in i64
/// and wrapped after every op. In [`Precision::F64`] all floats are carried in f64.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(Arc<Vec<f32>>),
    F64(Arc<Vec<f64>>),
    Int(Arc<Vec<i64>>),
    Bool(Arc<Vec<bool>>),
}

#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The type in the graph, even if floats are carried in f64.
    pub ty: Type,
    pub data: Data,
}

/// Runs a body on the elements of any carrier; the body gives a vector of the same type.
macro_rules! on_any {
    ($data:expr, $xs:ident => $body:expr) => {
        match $data {
            Data::F32($xs) => Data::F32(std::sync::Arc::new($body)),
            Data::F64($xs) => Data::F64(std::sync::Arc::new($body)),
            Data::Int($xs) => Data::Int(std::sync::Arc::new($body)),
            Data::Bool($xs) => Data::Bool(std::sync::Arc::new($body)),
        }
    };
}
/// The same for two operands of one carrier; on a mismatch the enclosing function returns an error.
macro_rules! on_both {
    ($a:expr, $b:expr, ($xs:ident, $ys:ident) => $body:expr) => {
        match ($a, $b) {
            (Data::F32($xs), Data::F32($ys)) => Data::F32(std::sync::Arc::new($body)),
            (Data::F64($xs), Data::F64($ys)) => Data::F64(std::sync::Arc::new($body)),
            (Data::Int($xs), Data::Int($ys)) => Data::Int(std::sync::Arc::new($body)),
            (Data::Bool($xs), Data::Bool($ys)) => Data::Bool(std::sync::Arc::new($body)),
            _ => return Err("operands are of different types".into()),
        }
    };
}
/// The same for float carriers only; otherwise the enclosing function returns an error.
macro_rules! on_floats {
    ($data:expr, $xs:ident => $body:expr) => {
        match $data {
            Data::F32($xs) => Data::F32(std::sync::Arc::new($body)),
            Data::F64($xs) => Data::F64(std::sync::Arc::new($body)),
            _ => return Err("expected floats".into()),
        }
    };
}
pub(super) use {on_any, on_both, on_floats};

impl Data {
    pub fn ints(&self) -> Result<&[i64], String> {
        if let Data::Int(v) = self { Ok(v) } else { Err("expected integers".into()) }
    }
    pub fn bools(&self) -> Result<&[bool], String> {
        if let Data::Bool(v) = self { Ok(v) } else { Err("expected bools".into()) }
    }
    /// `n` copies of a scalar.
    pub fn full(dtype: DType, s: Scalar, n: usize, precision: Precision) -> Data {
        match dtype {
            DType::Bool => Data::Bool(Arc::new(vec![s.as_f64() != 0.0; n])),
            dtype if dtype.is_int() => Data::Int(Arc::new(vec![scalar_int(s); n])),
            DType::F64 => Data::F64(Arc::new(vec![s.as_f64(); n])),
            _ if precision == Precision::F64 => Data::F64(Arc::new(vec![s.as_f64(); n])),
            _ => Data::F32(Arc::new(vec![s.as_f64() as f32; n])).rounded(dtype, precision),
        }
    }
    /// The elements as `dtype` can hold them: narrow floats rounded, narrow integers wrapped.
    pub fn rounded(mut self, dtype: DType, precision: Precision) -> Data {
        match (&mut self, dtype) {
            // f8 is rounded in every precision: without that rounding a cast to f8 would be a different op.
            (Data::F32(v), d) if d.is_f8() || precision == Precision::Native => {
                if let Some(format) = d.format().filter(|f| f.bits() < 32) {
                    Arc::make_mut(v).iter_mut().for_each(|x| *x = format.round_f32(*x));
                }
            }
            (Data::F64(v), d) if d.is_f8() => Arc::make_mut(v).iter_mut().for_each(|x| *x = d.round(*x)),
            (Data::Int(v), d) if d != DType::I64 => {
                Arc::make_mut(v).iter_mut().for_each(|x| *x = d.kind().wrapped(*x));
            }
            _ => {}
        }
        self
    }
    /// Conversion between dtypes. Floats truncate to integers; out of range, i64 and i32 saturate, narrower types
    /// convert through i32 and wrap. Nonzero is true.
    pub fn cast(&self, from: DType, to: DType, precision: Precision) -> Data {
        if from == to {
            return self.clone();
        }
        let wide = to == DType::F64 || precision == Precision::F64;
        let data = match to {
            DType::Bool => Data::Bool(Arc::new(match self {
                Data::F32(v) => v.iter().map(|x| *x != 0.0).collect(),
                Data::F64(v) => v.iter().map(|x| *x != 0.0).collect(),
                Data::Int(v) => v.iter().map(|x| *x != 0).collect(),
                Data::Bool(v) => v.to_vec(),
            })),
            DType::I32 | DType::I16 | DType::I8 | DType::U8 => Data::Int(Arc::new(match self {
                Data::F32(v) => v.iter().map(|x| i64::from(*x as i32)).collect(),
                Data::F64(v) => v.iter().map(|x| i64::from(*x as i32)).collect(),
                Data::Int(v) => v.to_vec(),
                Data::Bool(v) => v.iter().map(|x| i64::from(*x)).collect(),
            })),
            DType::I64 => Data::Int(Arc::new(match self {
                Data::F32(v) => v.iter().map(|x| *x as i64).collect(),
                Data::F64(v) => v.iter().map(|x| *x as i64).collect(),
                Data::Int(v) => v.to_vec(),
                Data::Bool(v) => v.iter().map(|x| i64::from(*x)).collect(),
            })),
            _ if wide => match self {
                Data::F64(_) => self.clone(),
                Data::F32(v) => Data::F64(Arc::new(v.iter().map(|x| f64::from(*x)).collect())),
                Data::Int(v) => Data::F64(Arc::new(v.iter().map(|x| *x as f64).collect())),
                Data::Bool(v) => Data::F64(Arc::new(v.iter().map(|x| f64::from(u8::from(*x))).collect())),
            },
            _ => match self {
                Data::F32(_) => self.clone(),
                Data::F64(v) => Data::F32(Arc::new(v.iter().map(|x| *x as f32).collect())),
                Data::Int(v) => Data::F32(Arc::new(v.iter().map(|x| *x as f32).collect())),
                Data::Bool(v) => Data::F32(Arc::new(v.iter().map(|x| f32::from(u8::from(*x))).collect())),
            },
        };
        data.rounded(to, precision)
    }
}

impl Value {
    /// Reads a tensor as a value of `dtype`. The tensor has that dtype, or is f64 in place of another float.
    pub fn from_tensor(t: &Tensor, dtype: DType, precision: Precision) -> Value {
        fn read<T: Copy + Plain, U>(t: &Tensor, get: impl Fn(T) -> U) -> Arc<Vec<U>> {
            Arc::new(T::of(t).iter().map(|x| get(*x)).collect())
        }
        let data = match t.ty.dtype {
            DType::F64 => Data::F64(read::<f64, _>(t, |x| x)),
            DType::F32 => Data::F32(read::<f32, _>(t, |x| x)),
            DType::F16 => Data::F32(read::<u16, _>(t, |x| f16::from_bits(x).to_f32())),
            DType::Bf16 => Data::F32(read::<u16, _>(t, |x| bf16::from_bits(x).to_f32())),
            DType::I64 => Data::Int(read::<i64, _>(t, |x| x)),
            DType::I32 => Data::Int(read::<i32, _>(t, i64::from)),
            DType::I16 => Data::Int(read::<i16, _>(t, i64::from)),
            DType::I8 => Data::Int(read::<i8, _>(t, i64::from)),
            DType::U8 => Data::Int(read::<u8, _>(t, i64::from)),
            DType::Bool => Data::Bool(read::<u8, _>(t, |x| x != 0)),
            f8 => {
                let table = f8.kind().f8().map_or([f32::NAN; 256], Format::table);
                Data::F32(read::<u8, _>(t, |x| table[usize::from(x)]))
            }
        };
        let data = match data {
            Data::F32(v) if precision == Precision::F64 => {
                Data::F64(Arc::new(v.iter().map(|x| f64::from(*x)).collect()))
            }
            data => data,
        };
        Value { ty: Type { dtype, shape: t.ty.shape.clone() }, data }
    }
    /// A tensor in the carrier's precision: floats carried in f64 become f64 tensors.
    pub fn to_tensor(&self) -> Tensor {
        let dtype = if matches!(self.data, Data::F64(_)) { DType::F64 } else { self.ty.dtype };
        self.write(dtype)
    }
    /// A tensor in the graph's dtype.
    pub fn to_own_tensor(&self) -> Tensor {
        self.write(self.ty.dtype)
    }
    fn write(&self, dtype: DType) -> Tensor {
        let mut t = Tensor::zeros(Type { dtype, shape: self.ty.shape.clone() });
        let rounded;
        let data = match (&self.data, dtype) {
            (Data::F64(v), d) if d.is_float() && d != DType::F64 => {
                rounded = Data::F32(Arc::new(v.iter().map(|x| *x as f32).collect()));
                &rounded
            }
            (data, _) => data,
        };
        match data {
            Data::F64(v) => fill(&mut t, v, |x: f64| x),
            Data::F32(v) => match dtype {
                DType::F16 => fill(&mut t, v, |x: f32| f16::from_f32(x).to_bits()),
                DType::Bf16 => fill(&mut t, v, |x: f32| bf16::from_f32(x).to_bits()),
                DType::F32 => fill(&mut t, v, |x: f32| x),
                f8 => fill(&mut t, v, |x: f32| f8.format().map_or(0, |f| f.encode(x) as u8)),
            },
            Data::Int(v) => match dtype {
                DType::I64 => fill(&mut t, v, |x: i64| x),
                DType::I32 => fill(&mut t, v, |x: i64| x as i32),
                DType::I16 => fill(&mut t, v, |x: i64| x as i16),
                DType::I8 => fill(&mut t, v, |x: i64| x as i8),
                _ => fill(&mut t, v, |x: i64| x as u8),
            },
            Data::Bool(v) => fill(&mut t, v, u8::from),
        }
        t
    }
}

/// Element types for which a tensor gives a typed slice.
trait Plain: Sized {
    fn of(t: &Tensor) -> &[Self];
    fn of_mut(t: &mut Tensor) -> &mut [Self];
}
macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Plain for $t {
            fn of(t: &Tensor) -> &[$t] {
                t.as_slice().unwrap_or(&[])
            }
            fn of_mut(t: &mut Tensor) -> &mut [$t] {
                t.as_mut_slice().unwrap_or(&mut [])
            }
        }
    )*};
}
plain!(f64, f32, u16, i64, i32, i16, i8, u8);

fn fill<T: Copy, U: Plain>(t: &mut Tensor, from: &[T], convert: impl Fn(T) -> U) {
    for (to, x) in U::of_mut(t).iter_mut().zip(from) {
        *to = convert(*x);
    }
}
