//! A trait over f32 and f64 with the functions of the op set. Implemented by libm, so that results are the same on every machine.

/// A float type in which references compute. Functions have the names and definitions of C's `math.h`, unless stated.
#[allow(missing_docs)]
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
    const ZERO: Self;
    const ONE: Self;
    fn of(v: f64) -> Self;
    fn wide(self) -> f64;
    fn nan(self) -> bool;
    fn infinite(self) -> bool;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn log1p(self) -> Self;
    fn tanh(self) -> Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn copysign(self, sign: Self) -> Self;
    fn pow(self, e: Self) -> Self;
    fn atan2(self, x: Self) -> Self;
    fn erf(self) -> Self;
    fn exp2(self) -> Self;
    fn expm1(self) -> Self;
    fn log2(self) -> Self;
    fn log10(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn ceil(self) -> Self;
    /// Ties to even.
    fn round(self) -> Self;
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
    ($t:ident: $exp:ident $exp2:ident $expm1:ident $ln:ident $log2:ident $log10:ident $log1p:ident $sin:ident $cos:ident $tan:ident
     $asin:ident $acos:ident $atan:ident $sinh:ident $cosh:ident $tanh:ident $erf:ident $pow:ident $atan2:ident) => {
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
real!(f32: expf exp2f expm1f logf log2f log10f log1pf sinf cosf tanf asinf acosf atanf sinhf coshf tanhf erff powf atan2f);
real!(f64: exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh erf pow atan2);
