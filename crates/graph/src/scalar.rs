//! Compile-time scalars, and their forms in text and JSON.
use crate::DType;
use serde::{Deserialize, Serialize};

/// A compile-time scalar. Equality and hash are bitwise, so a NaN equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// A float of any float dtype.
    #[serde(with = "float_text")]
    Float(f64),
    /// An integer of any integer dtype.
    Int(i64),
    /// A bool.
    Bool(bool),
}

impl Scalar {
    /// The number as f64, rounded for integers beyond 2^53; bool is 0 or 1.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(v) => v,
            Scalar::Int(v) => v as f64,
            Scalar::Bool(v) => f64::from(u8::from(v)),
        }
    }
    /// Converts to the kind of `dtype` if that is exact; otherwise `self` unchanged.
    pub fn for_dtype(self, dtype: DType) -> Scalar {
        let value = self.as_f64();
        match self {
            Scalar::Int(_) | Scalar::Bool(_) if dtype.is_float() => Scalar::Float(value),
            Scalar::Bool(v) if dtype.is_int() => Scalar::Int(i64::from(v)),
            Scalar::Float(v) if dtype.is_int() && v.trunc() == v && v.abs() < 9e15 => Scalar::Int(v as i64),
            Scalar::Int(v @ 0..=1) if dtype == DType::Bool => Scalar::Bool(v == 1),
            Scalar::Float(_) if dtype == DType::Bool && (value == 0.0 || value == 1.0) => Scalar::Bool(value == 1.0),
            _ => self,
        }
    }
    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Float(v) => (0, v.to_bits()),
            Scalar::Int(v) => (1, v as u64),
            Scalar::Bool(v) => (2, u64::from(v)),
        }
    }
}
impl PartialEq for Scalar {
    fn eq(&self, o: &Scalar) -> bool {
        self.key() == o.key()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.key().hash(h)
    }
}

/// A scalar in the text form.
pub(crate) fn text(s: Scalar) -> String {
    match s {
        Scalar::Int(v) => v.to_string(),
        Scalar::Bool(v) => v.to_string(),
        Scalar::Float(v) if v.is_finite() => format!("{v:?}"),
        Scalar::Float(v) => match float_text::special(v).strip_prefix("nan:") {
            Some(bits) => format!("nan({bits})"),
            None => float_text::special(v),
        },
    }
}

/// Floats in JSON: a number, or one of the strings "inf", "-inf", "nan"; NaNs with other bits are
/// "nan:7ff8000000000001".
pub(crate) mod float_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(f64),
        Text(String),
    }
    pub fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        if v.is_finite() { s.serialize_f64(*v) } else { s.serialize_str(&special(*v)) }
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        match Form::deserialize(d)? {
            Form::Number(v) => Ok(v),
            Form::Text(t) => {
                parse_special(&t).ok_or_else(|| D::Error::custom(format!("`{t}` is not a number, inf, -inf or nan")))
            }
        }
    }
    /// Text of an infinity or a NaN.
    pub fn special(v: f64) -> String {
        match v.to_bits() {
            _ if v == f64::INFINITY => "inf".into(),
            _ if v == f64::NEG_INFINITY => "-inf".into(),
            bits if bits == f64::NAN.to_bits() => "nan".into(),
            bits => format!("nan:{bits:016x}"),
        }
    }
    pub fn parse_special(t: &str) -> Option<f64> {
        match t.to_ascii_lowercase().as_str() {
            "inf" | "infinity" => Some(f64::INFINITY),
            "-inf" | "-infinity" => Some(f64::NEG_INFINITY),
            "nan" => Some(f64::NAN),
            t => {
                let bits = u64::from_str_radix(t.strip_prefix("nan:")?, 16).ok()?;
                Some(f64::from_bits(bits)).filter(|v| v.is_nan())
            }
        }
    }
}
