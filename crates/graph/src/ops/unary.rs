//! Pointwise functions of one operand: a row each, with its reference and, if it is composed of other functions, its
//! formula.
//!
//! A function with a formula is defined here alone: code for every device is generated from the formula. A function
//! without one is an instruction of the block IR. The interpreter computes the reference, which follows PyTorch's CPU
//! kernels (`aten/src/ATen/native/cpu/Activation.cpp` and `UnaryOpsKernel.cpp`) and shares no code with the formula.
use super::{Built, Class, Operands, Rounding, Row, real::Real, special};
use crate::infer::Domain;
use crate::{BinaryOp, CompareOp, Graph, UnaryOp, ValueId};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// The function on scalars, in each precision.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// In f32.
    pub f32: fn(f32) -> f32,
    /// In f64.
    pub f64: fn(f64) -> f64,
}

/// Adds the function's primitives to a graph, in the dtype of its operand.
pub type Formula = fn(&mut Graph, ValueId) -> Built;

/// A row of a pointwise function: its [`Row`], and the properties that only functions have.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its row as an op.
    pub row: Row,
    /// The dtypes on which it is defined.
    pub domain: Domain,
    /// Names of the PyTorch operators (`aten::NAME`) that compute it from one tensor. It is checked against the first
    /// one.
    pub torch: &'static [&'static str],
    /// JSON list of the arguments that this first operator takes after the tensor.
    pub arguments: &'static str,
    /// The function on floats; `None` if the result is not a float.
    pub reference: Option<Reference>,
    /// The function on integers; `None` if it takes none.
    pub whole: Option<fn(i64) -> i64>,
    /// How it is composed of primitives; `None` if it is a primitive.
    pub formula: Option<Formula>,
    /// Whether the formula is computed in f64 and rounded once, because f32 would lose too many digits.
    pub wide: bool,
}

const fn float(name: &'static str) -> Function {
    let operands = Operands::Count(1, 1);
    let row = Row {
        name,
        operands,
        class: Class::Pointwise,
        weight: 8.,
        rounding: Rounding::Once,
        f8: false,
        infer: None,
        decompose: None,
    };
    let (torch, arguments) = (&[] as &[&str], "[]");
    Function { row, domain: Domain::Floats, torch, arguments, reference: None, whole: None, formula: None, wide: false }
}
/// A function on floats and integers with an exact result.
const fn exact(name: &'static str, whole: fn(i64) -> i64) -> Function {
    let mut f = float(name).weight(1.);
    f.row.rounding = Rounding::Exact;
    (f.domain, f.whole) = (Domain::Numbers, Some(whole));
    f
}
/// A predicate or a bitwise function, with an exact result.
const fn logical(name: &'static str, domain: Domain) -> Function {
    let mut f = float(name).weight(1.);
    f.row.rounding = Rounding::Exact;
    f.domain = domain;
    f
}
impl Function {
    const fn weight(mut self, weight: f64) -> Function {
        self.row.weight = weight;
        self
    }
    const fn torch(mut self, names: &'static [&'static str]) -> Function {
        self.torch = names;
        self
    }
    const fn arguments(mut self, json: &'static str) -> Function {
        self.arguments = json;
        self
    }
    /// Composed of primitives, whose terms may cancel, so it counts as [`Rounding::Sums`].
    const fn formula(mut self, formula: Formula) -> Function {
        self.formula = Some(formula);
        if !matches!(self.row.rounding, Rounding::Exact) {
            self.row.rounding = Rounding::Sums;
        }
        self
    }
    const fn wide(mut self) -> Function {
        self.wide = true;
        self
    }
}

/// The rows of all functions: `ALL` and `function`.
macro_rules! functions {
    ($n:literal: $($variant:ident => $function:expr $(, |$x:ident| $body:expr)?;)*) => {
        impl UnaryOp {
            /// All variants.
            pub const ALL: [UnaryOp; $n] = [$(UnaryOp::$variant),*];
            /// The function's row in the registry.
            pub fn function(self) -> &'static Function {
                match self {
                    $(UnaryOp::$variant => {
                        const FUNCTION: &Function = &{
                            #[allow(unused_mut)]
                            let mut f = $function;
                            $({
                                fn on<R: Real>($x: R) -> R { $body }
                                f.reference = Some(Reference { f32: on::<f32>, f64: on::<f64> });
                            })?
                            f
                        };
                        FUNCTION
                    })*
                }
            }
        }
    };
}

functions! { 43:
    Neg => exact("neg", i64::wrapping_neg).torch(&["neg"]), |x| -x;
    Abs => exact("abs", i64::wrapping_abs).torch(&["abs"]), |x| x.abs();
    Sign => exact("sign", i64::signum).torch(&["sign", "sgn"]), |x| sign(x);
    Exp => float("exp").torch(&["exp"]), |x| x.exp();
    Exp2 => float("exp2").torch(&["exp2"]), |x| x.exp2();
    Expm1 => float("expm1").torch(&["expm1"]), |x| x.expm1();
    Log => float("log").torch(&["log"]), |x| x.ln();
    Log2 => float("log2").torch(&["log2"]), |x| x.log2();
    Log10 => float("log10").torch(&["log10"]), |x| x.log10();
    Log1p => float("log1p").torch(&["log1p"]), |x| x.log1p();
    Sqrt => float("sqrt").torch(&["sqrt"]), |x| x.sqrt();
    Rsqrt => float("rsqrt").torch(&["rsqrt"]), |x| R::ONE / x.sqrt();
    Reciprocal => float("reciprocal").torch(&["reciprocal"]), |x| R::ONE / x;
    Sin => float("sin").torch(&["sin"]), |x| x.sin();
    Cos => float("cos").torch(&["cos"]), |x| x.cos();
    Tan => float("tan").torch(&["tan"]), |x| x.tan();
    Asin => float("asin").torch(&["asin"]), |x| x.asin();
    Acos => float("acos").torch(&["acos"]), |x| x.acos();
    Atan => float("atan").torch(&["atan"]), |x| x.atan();
    Sinh => float("sinh").torch(&["sinh"]), |x| x.sinh();
    Cosh => float("cosh").torch(&["cosh"]), |x| x.cosh();
    Tanh => float("tanh").torch(&["tanh"]), |x| x.tanh();
    Erf => float("erf").torch(&["erf", "special_erf"]), |x| x.erf();
    Floor => exact("floor", |x| x).torch(&["floor"]), |x| x.floor();
    Ceil => exact("ceil", |x| x).torch(&["ceil"]), |x| x.ceil();
    Round => exact("round", |x| x).torch(&["round"]), |x| x.round();
    Trunc => exact("trunc", |x| x).torch(&["trunc", "fix"]), |x| x.trunc();
    Not => logical("not", Domain::Whole).torch(&["bitwise_not"]);
    IsNan => logical("is_nan", Domain::Any).torch(&["isnan"]);
    IsInf => logical("is_inf", Domain::Any).torch(&["isinf"]);
    Relu => exact("relu", |x| x.max(0)).torch(&["relu"]).formula(relu), |x| x.max_nan(R::ZERO);
    Sigmoid => float("sigmoid").torch(&["sigmoid", "special_expit"]).formula(sigmoid),
        |x| R::ONE / (R::ONE + (-x).exp());
    Silu => float("silu").torch(&["silu"]).formula(silu), |x| x / (R::ONE + (-x).exp());
    GeluErf => float("gelu_erf").weight(11.).torch(&["gelu"]).arguments(r#"["none"]"#).formula(gelu_erf),
        |x| x * R::of(0.5) * (R::ONE + (x * R::of(FRAC_1_SQRT_2)).erf());
    GeluTanh => float("gelu_tanh").weight(11.).torch(&["gelu"]).arguments(r#"["tanh"]"#).formula(gelu_tanh),
        |x| R::of(0.5) * x * (R::ONE + (R::of((2.0 / PI).sqrt()) * (x + R::of(0.044715) * x * x * x)).tanh());
    Softplus => float("softplus").weight(16.).torch(&["softplus"]).arguments("[1, 20]").formula(softplus),
        |x| if x > R::of(20.0) { x } else { x.exp().log1p() };
    Mish => float("mish").weight(11.).torch(&["mish"]).formula(mish), |x| x * x.exp().log1p().tanh();
    Hardswish => float("hardswish").weight(4.).torch(&["hardswish"]).formula(hardswish),
        |x| x * (x + R::of(3.0)).max_nan(R::ZERO).min_nan(R::of(6.0)) / R::of(6.0);
    Hardsigmoid => float("hardsigmoid").weight(4.).torch(&["hardsigmoid"]).formula(hardsigmoid),
        |x| (x + R::of(3.0)).max_nan(R::ZERO).min_nan(R::of(6.0)) / R::of(6.0);
    LogSigmoid => float("log_sigmoid").weight(16.).torch(&["log_sigmoid"]).formula(log_sigmoid),
        |x| x.min_nan(R::ZERO) - (-x.abs()).exp().log1p();
    Erfinv => float("erfinv").weight(90.).torch(&["erfinv", "special_erfinv"]).formula(special::erfinv).wide(),
        |x| R::of(special::reference::erfinv(x.wide()));
    Lgamma => float("lgamma").weight(130.).torch(&["lgamma", "special_gammaln"]).formula(special::lgamma).wide(),
        |x| R::of(libm::lgamma(x.wide()));
    Digamma => float("digamma").weight(110.).torch(&["digamma", "special_digamma", "special_psi"])
        .formula(special::digamma).wide(),
        |x| R::of(special::reference::digamma(x.wide()));
}

impl UnaryOp {
    /// The op's name in the text form.
    pub fn name(self) -> &'static str {
        self.function().row.name
    }
    /// The op with this name in the text form.
    pub fn from_name(name: &str) -> Option<UnaryOp> {
        UnaryOp::ALL.into_iter().find(|op| op.name() == name)
    }
    /// The function that PyTorch's operator `aten::NAME` computes from one tensor, without further arguments.
    pub fn of_torch(name: &str) -> Option<UnaryOp> {
        let means = |op: &UnaryOp| op.function().arguments == "[]" && op.function().torch.contains(&name);
        UnaryOp::ALL.into_iter().find(means)
    }
    /// Whether it is composed of other functions, into which [`crate::decompose`] splits it.
    pub fn is_composite(self) -> bool {
        self.function().formula.is_some()
    }
}

fn sign<R: Real>(x: R) -> R {
    if x > R::ZERO {
        R::ONE
    } else if x < R::ZERO {
        -R::ONE
    } else {
        R::ZERO
    }
}

// Formulas.
use BinaryOp::{Add, Div, Max, Min, Mul, Sub};
use UnaryOp::{Abs, Erf, Exp, Log1p, Neg, Tanh};

fn relu(g: &mut Graph, x: ValueId) -> Built {
    g.binary_scalar(Max, x, 0.0)
}

/// `1 + exp(-x)`.
fn one_plus_exp_neg(g: &mut Graph, x: ValueId) -> Built {
    let y = g.unary(Neg, x)?;
    let y = g.unary(Exp, y)?;
    g.binary_scalar(Add, y, 1.0)
}

fn sigmoid(g: &mut Graph, x: ValueId) -> Built {
    let y = one_plus_exp_neg(g, x)?;
    g.unary(UnaryOp::Reciprocal, y)
}

fn silu(g: &mut Graph, x: ValueId) -> Built {
    let y = one_plus_exp_neg(g, x)?;
    g.binary(Div, x, y)
}

fn gelu_erf(g: &mut Graph, x: ValueId) -> Built {
    let y = g.binary_scalar(Mul, x, FRAC_1_SQRT_2)?;
    let y = g.unary(Erf, y)?;
    let y = g.binary_scalar(Add, y, 1.0)?;
    let half = g.binary_scalar(Mul, x, 0.5)?;
    g.binary(Mul, half, y)
}

fn gelu_tanh(g: &mut Graph, x: ValueId) -> Built {
    let square = g.binary(Mul, x, x)?;
    let cube = g.binary(Mul, square, x)?;
    let y = g.binary_scalar(Mul, cube, 0.044715)?;
    let y = g.binary(Add, x, y)?;
    let y = g.binary_scalar(Mul, y, (2.0 / PI).sqrt())?;
    let y = g.unary(Tanh, y)?;
    let y = g.binary_scalar(Add, y, 1.0)?;
    let half = g.binary_scalar(Mul, x, 0.5)?;
    g.binary(Mul, half, y)
}

fn log1p_exp(g: &mut Graph, x: ValueId) -> Built {
    let y = g.unary(Exp, x)?;
    g.unary(Log1p, y)
}

fn softplus(g: &mut Graph, x: ValueId) -> Built {
    let y = log1p_exp(g, x)?;
    let limit = g.constant_like(x, 20.0)?;
    let large = g.compare(CompareOp::Gt, x, limit)?;
    g.select(large, x, y)
}

/// With `e = exp(x)` and `w = e (e + 2)`, `tanh(log(1 + e))` is `w / (w + 2)`: one exponential and no cancellation.
/// From x = 20 on it is 1 in every type.
fn mish(g: &mut Graph, x: ValueId) -> Built {
    let y = g.binary_scalar(Min, x, 20.0)?;
    let e = g.unary(Exp, y)?;
    let y = g.binary_scalar(Add, e, 2.0)?;
    let w = g.binary(Mul, e, y)?;
    let y = g.binary_scalar(Add, w, 2.0)?;
    let y = g.binary(Div, w, y)?;
    g.binary(Mul, x, y)
}

/// `min(max(x + 3, 0), 6)`.
fn hard(g: &mut Graph, x: ValueId) -> Built {
    let y = g.binary_scalar(Add, x, 3.0)?;
    let y = g.binary_scalar(Max, y, 0.0)?;
    g.binary_scalar(Min, y, 6.0)
}

fn hardswish(g: &mut Graph, x: ValueId) -> Built {
    let y = hard(g, x)?;
    let y = g.binary(Mul, x, y)?;
    g.binary_scalar(Div, y, 6.0)
}

fn hardsigmoid(g: &mut Graph, x: ValueId) -> Built {
    let y = hard(g, x)?;
    g.binary_scalar(Div, y, 6.0)
}

fn log_sigmoid(g: &mut Graph, x: ValueId) -> Built {
    let low = g.binary_scalar(Min, x, 0.0)?;
    let y = g.unary(Abs, x)?;
    let y = g.unary(Neg, y)?;
    let y = log1p_exp(g, y)?;
    g.binary(Sub, low, y)
}
