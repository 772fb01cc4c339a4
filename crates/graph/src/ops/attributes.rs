//! Attributes of ops, visited one by one. The parser and the printer of the text form share this visit.
use super::*;
use crate::{ScoreStep, scalar};
use std::fmt::Display;

/// The value of an attribute as parsed from text.
#[derive(Clone, Debug)]
pub enum Attr {
    /// An integer.
    Int(i128),
    /// A float or a bool.
    Scalar(Scalar),
    /// An unquoted word.
    Word(String),
    /// A quoted string, with escapes decoded.
    Str(String),
    /// A list of integers.
    List(Vec<i128>),
    /// A list of tensor types.
    Types(Vec<Type>),
}

/// A type that an attribute can have.
pub trait Attribute: Sized {
    /// Description of a valid value, for messages.
    const WANTS: &'static str;
    /// Converts from the parsed text; `None` if it is not a valid value.
    fn read(text: Attr) -> Option<Self>;
    /// The value in the text form.
    fn show(&self) -> String;
}

/// Parses or prints the attributes of an op.
pub trait Visitor {
    /// A required attribute.
    fn needed<T: Attribute>(&mut self, key: &'static str, value: &mut T);
    /// An optional attribute that keeps its present value if it is not given.
    fn optional<T: Attribute>(&mut self, key: &'static str, value: &mut T);
    /// An optional attribute that becomes `default()` if it is not given.
    fn or<T: Attribute>(&mut self, key: &'static str, value: &mut T, default: impl FnOnce() -> T);
    /// An optional attribute that the text leaves out where it is the type's default.
    fn rare<T: Attribute + Default + PartialEq>(&mut self, key: &'static str, value: &mut T);
}

impl Op {
    /// Visits the attributes in the order of the text form. Leaves (other than iota) and launches have their own syntax
    /// and no attributes here.
    pub fn visit<V: Visitor>(&mut self, v: &mut V) {
        match self {
            Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Launch(_) => {}
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Logaddexp | Op::Dot | Op::Linear => {}
            Op::Iota { axis } | Op::Concat { axis } | Op::Gather { axis } | Op::Take { axis } => v.needed("axis", axis),
            Op::Scan { axis, .. } | Op::Softmax { axis } | Op::LogSoftmax { axis } => v.needed("axis", axis),
            Op::Cast(to) => v.needed("to", to),
            Op::Reshape(shape) | Op::Broadcast(shape) => v.needed("shape", shape),
            Op::Permute(perm) => v.needed("perm", perm),
            Op::Slice { axis, start, len, step } => {
                v.needed("axis", axis);
                v.optional("start", start);
                v.needed("len", len);
                v.optional("step", step);
            }
            Op::Flip(axes) | Op::Reduce { axes, .. } => v.needed("axes", axes),
            Op::Pad { lo, hi } => {
                v.optional("lo", lo);
                v.optional("hi", hi);
            }
            Op::Scatter { axis, mode } => {
                v.needed("axis", axis);
                v.optional("mode", mode);
            }
            Op::Conv { stride, padding, dilation, groups, transposed, output_padding } => {
                v.optional("stride", stride);
                v.optional("padding", padding);
                v.optional("dilation", dilation);
                v.optional("groups", groups);
                v.optional("transposed", transposed);
                v.or("output_padding", output_padding, || vec![0; stride.len()]);
            }
            Op::Pool { kind, window, stride, padding, dilation, ceil } => {
                v.needed("window", window);
                v.or("stride", stride, || window.clone());
                v.or("padding", padding, || vec![0; window.len()]);
                v.or("dilation", dilation, || vec![1; window.len()]);
                v.optional("ceil", ceil);
                if let PoolKind::Avg { count_pad } = kind {
                    v.optional("count_pad", count_pad);
                }
            }
            Op::LayerNorm { axes, affine, eps } => {
                v.optional("axes", axes);
                v.optional("affine", affine);
                v.needed("eps", eps);
            }
            Op::RmsNorm { eps } | Op::BatchNorm { eps } => v.needed("eps", eps),
            Op::GroupNorm { groups, affine, eps } => {
                v.needed("groups", groups);
                v.optional("affine", affine);
                v.needed("eps", eps);
            }
            Op::Attention { scale, causal, fully_masked, score, sink, lse } => {
                v.needed("scale", scale);
                v.optional("causal", causal);
                v.rare("fully_masked", fully_masked);
                v.rare("score", score);
                v.rare("sink", sink);
                v.rare("lse", lse);
            }
            Op::Fallback(f) => {
                v.optional("name", &mut f.name);
                v.optional("overload", &mut f.overload);
                v.optional("args", &mut f.args);
                v.needed("results", &mut f.results);
                v.optional("why", &mut f.why);
            }
            Op::Result(index) => v.needed("index", index),
        }
    }
    /// The op with this name, with default attributes for operands of these types.
    pub(crate) fn on(name: &str, args: &[Type]) -> Option<Op> {
        let mut op = Op::named(name)?;
        let rank = args.first().map_or(0, Type::rank);
        match &mut op {
            Op::Pad { lo, hi } => (*lo, *hi) = (vec![0; rank], vec![0; rank]),
            Op::Conv { stride, padding, dilation, .. } => {
                let spatial = rank.saturating_sub(2);
                (*stride, *padding, *dilation) = (vec![1; spatial], vec![0; spatial], vec![1; spatial]);
            }
            Op::LayerNorm { affine, .. } | Op::GroupNorm { affine, .. } => *affine = args.len() > 1,
            _ => {}
        }
        Some(op)
    }
}

fn list<T: Display>(items: &[T]) -> String {
    format!("[{}]", items.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}
/// A string in quotes, with JSON escapes.
pub(crate) fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

macro_rules! number {
    ($($ty:ty),*) => {$(
        impl Attribute for $ty {
            const WANTS: &'static str = "a number";
            fn read(text: Attr) -> Option<$ty> {
                if let Attr::Int(v) = text { v.try_into().ok() } else { None }
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
number!(usize, u32);
macro_rules! numbers {
    ($($ty:ty, $wants:literal);*) => {$(
        impl Attribute for Vec<$ty> {
            const WANTS: &'static str = $wants;
            fn read(text: Attr) -> Option<Vec<$ty>> {
                if let Attr::List(l) = text { l.into_iter().map(|v| v.try_into().ok()).collect() } else { None }
            }
            fn show(&self) -> String {
                list(self)
            }
        }
    )*};
}
numbers!(usize, "a list of numbers, as [1,2]"; i64, "a list of numbers, as [0,-1]");

impl Attribute for Scalar {
    const WANTS: &'static str = "a number";
    fn read(text: Attr) -> Option<Scalar> {
        match text {
            Attr::Int(v) => i64::try_from(v).ok().map(Scalar::Int),
            Attr::Scalar(s) => Some(s),
            _ => None,
        }
    }
    fn show(&self) -> String {
        scalar::text(*self)
    }
}
impl Attribute for bool {
    const WANTS: &'static str = "true or false";
    fn read(text: Attr) -> Option<bool> {
        if let Attr::Scalar(Scalar::Bool(v)) = text { Some(v) } else { None }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}
impl Attribute for String {
    const WANTS: &'static str = "a string in quotes";
    fn read(text: Attr) -> Option<String> {
        if let Attr::Str(s) = text { Some(s) } else { None }
    }
    fn show(&self) -> String {
        quoted(self)
    }
}
impl Attribute for DType {
    const WANTS: &'static str = "an element type, as f32";
    fn read(text: Attr) -> Option<DType> {
        if let Attr::Word(w) = text { w.parse().ok() } else { None }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}
impl Attribute for ScatterMode {
    const WANTS: &'static str = "replace or add";
    fn read(text: Attr) -> Option<ScatterMode> {
        let Attr::Word(w) = text else { return None };
        [ScatterMode::Replace, ScatterMode::Add].into_iter().find(|mode| mode.show() == w)
    }
    fn show(&self) -> String {
        match self {
            ScatterMode::Replace => "replace".into(),
            ScatterMode::Add => "add".into(),
        }
    }
}
impl Attribute for FullyMasked {
    const WANTS: &'static str = "zero or nan";
    fn read(text: Attr) -> Option<FullyMasked> {
        match text {
            Attr::Word(w) => (w == "zero").then_some(FullyMasked::Zero),
            // The text form reads `nan` as a number.
            Attr::Scalar(Scalar::Float(v)) => v.is_nan().then_some(FullyMasked::Nan),
            _ => None,
        }
    }
    fn show(&self) -> String {
        match self {
            FullyMasked::Zero => "zero".into(),
            FullyMasked::Nan => "nan".into(),
        }
    }
}
impl Attribute for Vec<ScoreStep> {
    const WANTS: &'static str = "steps in quotes, as \"div 50.0, tanh, mul 50.0, mul operand\"";
    fn read(text: Attr) -> Option<Vec<ScoreStep>> {
        if let Attr::Str(s) = text { ScoreStep::parse_all(&s) } else { None }
    }
    fn show(&self) -> String {
        quoted(&ScoreStep::show_all(self))
    }
}
impl Attribute for Vec<Type> {
    const WANTS: &'static str = "a list of types, as [f32[8], i64[8]]";
    fn read(text: Attr) -> Option<Vec<Type>> {
        match text {
            Attr::Types(t) => Some(t),
            Attr::List(l) if l.is_empty() => Some(vec![]),
            _ => None,
        }
    }
    fn show(&self) -> String {
        list(self)
    }
}
