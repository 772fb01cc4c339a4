//! A trait over f32 and f64 with the functions of the op set. Implemented by libm, so that results are the same on
//! every machine.

/// A float type in which references compute. Functions have the names and definitions of C's `math.h`, unless stated.
pub trait Real:
    Copy
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Rem<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest number of this type.
    fn of(v: f64) -> Self;
    /// The number as f64, exactly.
    fn wide(self) -> f64;
    /// Whether it is NaN.
    fn nan(self) -> bool;
    /// Whether it is an infinity.
    fn infinite(self) -> bool;
    /// e to the power of `self`.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + self)`.
    fn log1p(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Rounds down.
    fn floor(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// `self` to the power of `e`.
    fn pow(self, e: Self) -> Self;
    /// The angle of the point (`x`, `self`), in radians.
    fn atan2(self, x: Self) -> Self;
    /// Error function.
    fn erf(self) -> Self;
    /// 2 to the power of `self`.
    fn exp2(self) -> Self;
    /// `exp(self) - 1`.
    fn expm1(self) -> Self;
    /// Logarithm to base 2.
    fn log2(self) -> Self;
    /// Logarithm to base 10.
    fn log10(self) -> Self;
    /// Sine of an angle in radians.
    fn sin(self) -> Self;
    /// Cosine of an angle in radians.
    fn cos(self) -> Self;
    /// Tangent of an angle in radians.
    fn tan(self) -> Self;
    /// Inverse sine, in radians.
    fn asin(self) -> Self;
    /// Inverse cosine, in radians.
    fn acos(self) -> Self;
    /// Inverse tangent, in radians.
    fn atan(self) -> Self;
    /// Hyperbolic sine.
    fn sinh(self) -> Self;
    /// Hyperbolic cosine.
    fn cosh(self) -> Self;
    /// Rounds up.
    fn ceil(self) -> Self;
    /// Rounds to the nearest integer, ties to even (unlike C's `round`).
    fn round(self) -> Self;
    /// Rounds toward zero.
    fn trunc(self) -> Self;

    /// The larger operand; NaN if either is NaN.
    fn max_nan(self, o: Self) -> Self {
        if self.nan() || self > o { self } else { o }
    }
    /// The smaller operand; NaN if either is NaN.
    fn min_nan(self, o: Self) -> Self {
        if self.nan() || self < o { self } else { o }
    }
}

macro_rules! real {
    ($t:ident: $exp:ident $exp2:ident $expm1:ident $ln:ident $log2:ident $log10:ident $log1p:ident
     $sin:ident $cos:ident $tan:ident $asin:ident $acos:ident $atan:ident
     $sinh:ident $cosh:ident $tanh:ident $erf:ident $pow:ident $atan2:ident) => {
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            fn of(v: f64) -> $t {
                v as $t
            }
            fn wide(self) -> f64 {
                self as f64
            }
            fn nan(self) -> bool {
                self.is_nan()
            }
            fn infinite(self) -> bool {
                self.is_infinite()
            }
            fn exp(self) -> $t {
                libm::$exp(self)
            }
            fn ln(self) -> $t {
                libm::$ln(self)
            }
            fn log1p(self) -> $t {
                libm::$log1p(self)
            }
            fn tanh(self) -> $t {
                libm::$tanh(self)
            }
            fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }
            fn abs(self) -> $t {
                <$t>::abs(self)
            }
            fn floor(self) -> $t {
                <$t>::floor(self)
            }
            fn copysign(self, sign: $t) -> $t {
                <$t>::copysign(self, sign)
            }
            fn pow(self, e: $t) -> $t {
                libm::$pow(self, e)
            }
            fn atan2(self, x: $t) -> $t {
                libm::$atan2(self, x)
            }
            fn erf(self) -> $t {
                libm::$erf(self)
            }
            fn exp2(self) -> $t {
                libm::$exp2(self)
            }
            fn expm1(self) -> $t {
                libm::$expm1(self)
            }
            fn log2(self) -> $t {
                libm::$log2(self)
            }
            fn log10(self) -> $t {
                libm::$log10(self)
            }
            fn sin(self) -> $t {
                libm::$sin(self)
            }
            fn cos(self) -> $t {
                libm::$cos(self)
            }
            fn tan(self) -> $t {
                libm::$tan(self)
            }
            fn asin(self) -> $t {
                libm::$asin(self)
            }
            fn acos(self) -> $t {
                libm::$acos(self)
            }
            fn atan(self) -> $t {
                libm::$atan(self)
            }
            fn sinh(self) -> $t {
                libm::$sinh(self)
            }
            fn cosh(self) -> $t {
                libm::$cosh(self)
            }
            fn ceil(self) -> $t {
                <$t>::ceil(self)
            }
            fn round(self) -> $t {
                self.round_ties_even()
            }
            fn trunc(self) -> $t {
                <$t>::trunc(self)
            }
        }
    };
}
real!(f32: expf exp2f expm1f logf log2f log10f log1pf sinf cosf tanf asinf acosf atanf sinhf coshf tanhf erff powf
    atan2f);
real!(f64: exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh erf pow atan2);
