//! Test cases for every graph op on every element type that it takes, with inputs that contain special values: zeros of
//! both signs, infinities, NaN, subnormal numbers, the extremes of integers.
//!
//! The interpreter, host code and the block programs that PTX is generated from must give libtorch's bits (computed by
//! [`kiln::eager`]), or stay within a few units in the last place, as each row says; `examples/ops` packs the cases for
//! a GPU.
//!
//! `ROWS` is the table. The types that an op takes come from the graph's inference, not from the table, so a type that
//! is added is tested as well. An op without a row is listed by [`missing`] and fails a test.
use crate::near::{self, Near, round};
use kiln::{DType, Graph, Tensor, Type};
use kiln_graph::{Format, Op};

/// The values of a row's input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    /// Each special value once.
    Special,
    /// As `Special`, without values next to a negative integer: PyTorch's digamma loses all digits there.
    OffPoles,
    /// The left operand of all pairs of special values.
    Left,
    /// The right operand of all pairs of special values.
    Right,
    /// As `Left`, without the least integer, whose quotient by -1 overflows.
    Dividend,
    /// As `Right`, without the integer zero, by which PyTorch refuses to divide.
    Divisor,
    /// As `Divisor`, without pairs of finite floats whose quotient is infinite: their remainder is a number, but
    /// PyTorch's vector code gives NaN.
    Quotient,
    /// Special values that truncate to a number of type E; others are undefined in C.
    Within,
    /// Small whole numbers: sums and products of some dozens are exact in every type.
    Small,
    /// 1, 0 and -1, of unsigned types 1 and 0: products of any number of them are exact.
    Units,
    /// Numbers between -3 and 3.
    Ordinary,
    /// Numbers between 0.5 and 2.
    Positive,
    /// Numbers between -1 and 1, many of them near the ends.
    Inside,
    /// Numbers between -20 and 20.
    Spread,
    /// Indices into this many elements.
    Index(usize),
    /// Indices that do not repeat within a line of this many.
    Distinct(usize),
}
use Holds::*;

/// One op in a graph. In the text `D` stands for the type under test, `E` for each other type, and `N` for the number
/// of values of the first input.
struct Row {
    op: &'static str,
    text: &'static str,
    inputs: &'static [Holds],
    near: Near,
}

const fn row(op: &'static str, inputs: &'static [Holds], near: Near, text: &'static str) -> Row {
    Row { op, text, inputs, near }
}
/// `op` of one operand.
const ONE: &str = "(%x: D[N]) {\n %y = OP %x\n return %y\n}";
/// `op` of two operands.
const TWO: &str = "(%x: D[N], %z: D[N]) {\n %y = OP %x, %z\n return %y\n}";
/// Reductions over one axis, over the other, and over both.
const ROWS_AND_COLUMNS: &str =
    "(%x: D[5,12]) {\n %a = OP %x axes=[1]\n %b = OP %x axes=[0]\n %c = OP %x axes=[0,1]\n return %a, %b, %c\n}";
const EACH_AXIS: &str = "(%x: D[5,12]) {\n %a = OP %x axes=[1]\n %b = OP %x axes=[0]\n return %a, %b\n}";
const SCANS: &str = "(%x: D[5,12]) {\n %a = OP %x axis=1\n %b = OP %x axis=0\n return %a, %b\n}";

/// Tolerance of elementary functions.
const FUNCTION: Near = Near::Ulps { ulps: 4.0, scale: 0.0 };
/// Tolerance of functions whose formula in PyTorch loses digits by cancellation, even in f64.
const WIDE: Near = Near::Wide { terms: 32.0 };
const CANCELS: Near = Near::Ulps { ulps: 4.0, scale: 1.0 };
/// Tolerance of sums of numbers of about one.
const SUMS: Near = Near::Ulps { ulps: 8.0, scale: 1.0 };
use Near::Bits;

const fn function(op: &'static str) -> Row {
    row(op, &[Special], FUNCTION, ONE)
}
const fn exact(op: &'static str) -> Row {
    row(op, &[Special], Bits, ONE)
}
const fn pairs(op: &'static str) -> Row {
    row(op, &[Left, Right], Bits, TWO)
}

const ROWS: &[Row] = &[
    // The larger operand and what the smaller adds cancel near zero.
    row("logaddexp", &[Left, Right], CANCELS, TWO),
    exact("neg"),
    exact("abs"),
    exact("sign"),
    // PyTorch takes square roots in f32 and f64 from Intel's library, which sometimes rounds the other way.
    row("sqrt", &[Special], Near::AlmostBits, ONE),
    exact("reciprocal"),
    exact("floor"),
    exact("ceil"),
    exact("round"),
    exact("trunc"),
    exact("not"),
    exact("is_nan"),
    exact("is_inf"),
    row("relu", &[Special], Near::Numbers, ONE),
    function("exp"),
    function("exp2"),
    function("expm1"),
    function("log"),
    function("log2"),
    function("log10"),
    function("log1p"),
    function("rsqrt"),
    function("sin"),
    function("cos"),
    function("tan"),
    function("asin"),
    function("acos"),
    function("atan"),
    function("sinh"),
    function("cosh"),
    function("tanh"),
    function("erf"),
    function("sigmoid"),
    function("silu"),
    row("gelu_erf", &[Special], CANCELS, ONE),
    row("gelu_tanh", &[Special], CANCELS, ONE),
    function("softplus"),
    function("mish"),
    function("hardswish"),
    function("hardsigmoid"),
    function("log_sigmoid"),
    row("erfinv", &[Inside], FUNCTION, ONE),
    row("erfinv", &[Special], FUNCTION, ONE),
    row("lgamma", &[Special], WIDE, ONE),
    row("lgamma", &[Spread], WIDE, ONE),
    row("digamma", &[OffPoles], WIDE, ONE),
    row("digamma", &[Positive], WIDE, ONE),
    pairs("add"),
    pairs("sub"),
    pairs("mul"),
    row("div", &[Dividend, Divisor], Bits, TWO),
    // PyTorch rounds each step of the computation to the half type, and is sometimes off by one.
    row("floor_div", &[Dividend, Divisor], Near::BitsInF64, TWO),
    row("remainder", &[Dividend, Quotient], Bits, TWO),
    row("fmod", &[Dividend, Quotient], Bits, TWO),
    row("pow", &[Left, Right], FUNCTION, TWO),
    row(
        "pow",
        &[Special],
        FUNCTION,
        "(%x: D[N]) {\n %a = pow %x, 2\n %b = pow %x, 3\n %c = pow %x, 4\n %d = pow %x, 1\n %e = pow %x, 0\n \
         return %a, %b, %c, %d, %e\n}",
    ),
    row(
        "pow",
        &[Special],
        FUNCTION,
        "(%x: D[N]) {\n %a = pow %x, 0.5\n %b = pow %x, -1.0\n %c = pow %x, -2.0\n %d = pow %x, 2.5\n \
         %e = pow %x, -0.5\n return %a, %b, %c, %d, %e\n}",
    ),
    row("max", &[Left, Right], Near::Numbers, TWO),
    row("min", &[Left, Right], Near::Numbers, TWO),
    row("atan2", &[Left, Right], FUNCTION, TWO),
    pairs("and"),
    pairs("or"),
    pairs("xor"),
    pairs("eq"),
    pairs("ne"),
    pairs("lt"),
    pairs("le"),
    pairs("gt"),
    pairs("ge"),
    row(
        "select",
        &[Units, Special, Special],
        Bits,
        "(%c: bool[N], %x: D[N], %z: D[N]) {\n %f = flip %z axes=[0]\n %y = select %c, %x, %f\n return %y\n}",
    ),
    row("cast", &[Within], Bits, "(%x: D[N]) {\n %y = cast %x to=E\n return %y\n}"),
    row("const", &[], Bits, "() {\n %c = const 1 : D[]\n %y = broadcast %c shape=[3,7]\n return %y\n}"),
    row("input", &[Special], Bits, "(%x: D[N]) {\n %y = flip %x axes=[0]\n return %y, %x\n}"),
    row("iota", &[], Bits, "() {\n %y = iota axis=1 : D[3,7]\n %z = iota axis=0 : D[3,7]\n return %y, %z\n}"),
    row(
        "reshape",
        &[Special],
        Bits,
        "(%x: D[3,8]) {\n %y = reshape %x shape=[4,6]\n %z = permute %y perm=[1,0]\n return %z\n}",
    ),
    row("permute", &[Special], Bits, "(%x: D[3,4,5]) {\n %y = permute %x perm=[2,0,1]\n return %y\n}"),
    row("broadcast", &[Special], Bits, "(%x: D[3,1,5]) {\n %y = broadcast %x shape=[2,3,4,5]\n return %y\n}"),
    row(
        "slice",
        &[Special],
        Bits,
        "(%x: D[6,10]) {\n %y = slice %x axis=1 start=1 len=4 step=2\n %z = slice %x axis=0 start=2 len=3\n \
         return %y, %z\n}",
    ),
    row("flip", &[Special], Bits, "(%x: D[6,10]) {\n %y = flip %x axes=[0,1]\n return %y\n}"),
    row("pad", &[Special], Bits, "(%x: D[4,5]) {\n %y = pad %x, 1 lo=[1,-1] hi=[0,3]\n return %y\n}"),
    row(
        "concat",
        &[Special, Special],
        Bits,
        "(%x: D[3,5], %z: D[3,2]) {\n %y = concat %x, %z, %x axis=1\n return %y\n}",
    ),
    row(
        "gather",
        &[Special, Index(7)],
        Bits,
        "(%x: D[5,7], %i: i64[5,9]) {\n %y = gather %x, %i axis=1\n return %y\n}",
    ),
    row(
        "gather",
        &[Special, Index(7)],
        Bits,
        "(%x: D[5,7], %i: i32[5,9]) {\n %y = gather %x, %i axis=1\n return %y\n}",
    ),
    row("take", &[Special, Index(7)], Bits, "(%x: D[7,5], %i: i64[2,3]) {\n %y = take %x, %i axis=0\n return %y\n}"),
    row("take", &[Special, Index(5)], Bits, "(%x: D[7,5], %i: i8[4]) {\n %y = take %x, %i axis=1\n return %y\n}"),
    row(
        "scatter",
        &[Special, Distinct(7), Special],
        Bits,
        "(%x: D[5,7], %i: i64[5,4], %s: D[5,4]) {\n %y = scatter %x, %i, %s axis=1\n return %y\n}",
    ),
    row(
        "scatter",
        &[Small, Index(7), Small],
        Bits,
        "(%x: D[5,7], %i: i64[5,9], %s: D[5,9]) {\n %y = scatter %x, %i, %s axis=1 mode=add\n return %y\n}",
    ),
    row("reduce.sum", &[Small], Bits, ROWS_AND_COLUMNS),
    row("reduce.mean", &[Small], FUNCTION, ROWS_AND_COLUMNS),
    row("reduce.prod", &[Units], Bits, ROWS_AND_COLUMNS),
    row("reduce.max", &[Special], Near::Numbers, ROWS_AND_COLUMNS),
    row("reduce.min", &[Special], Near::Numbers, ROWS_AND_COLUMNS),
    row("reduce.max", &[Ordinary], Bits, ROWS_AND_COLUMNS),
    row("reduce.min", &[Ordinary], Bits, ROWS_AND_COLUMNS),
    row("reduce.any", &[Units], Bits, ROWS_AND_COLUMNS),
    row("reduce.all", &[Units], Bits, ROWS_AND_COLUMNS),
    row("reduce.argmax", &[Special], Bits, EACH_AXIS),
    row("reduce.argmin", &[Special], Bits, EACH_AXIS),
    row("reduce.argmax", &[Small], Bits, EACH_AXIS),
    row("reduce.argmin", &[Small], Bits, EACH_AXIS),
    row("scan.sum", &[Small], Bits, SCANS),
    row("scan.prod", &[Units], Bits, SCANS),
    row("dot", &[Small, Small], Bits, "(%x: D[2,5,7], %z: D[7,6]) {\n %y = dot %x, %z\n return %y\n}"),
    row("linear", &[Small, Small], Bits, "(%x: D[5,7], %w: D[6,7]) {\n %y = linear %x, %w\n return %y\n}"),
    row(
        "linear",
        &[Small, Small, Small],
        Bits,
        "(%x: D[5,7], %w: D[6,7], %b: D[6]) {\n %y = linear %x, %w, %b\n return %y\n}",
    ),
    row(
        "conv",
        &[Small, Small, Small],
        Bits,
        "(%x: D[2,4,9,8], %w: D[6,2,3,3], %b: D[6]) {\n %y = conv %x, %w, %b stride=[2,1] padding=[1,1] dilation=[1,2] \
         groups=2\n return %y\n}",
    ),
    row(
        "conv",
        &[Small, Small],
        Bits,
        "(%x: D[2,4,7], %w: D[4,3,3]) {\n %y = conv %x, %w stride=[2] padding=[1] transposed=true output_padding=[1]\n \
         return %y\n}",
    ),
    row(
        "pool.max",
        &[Ordinary],
        Bits,
        "(%x: D[2,3,9,8]) {\n %y = pool.max %x window=[3,2] stride=[2,1] padding=[1,0]\n return %y\n}",
    ),
    row(
        "pool.avg",
        &[Ordinary],
        SUMS,
        "(%x: D[2,3,9,8]) {\n %y = pool.avg %x window=[3,2] stride=[2,1] padding=[1,0]\n return %y\n}",
    ),
    row(
        "pool.avg",
        &[Ordinary],
        SUMS,
        "(%x: D[2,3,9]) {\n %y = pool.avg %x window=[3] padding=[1] count_pad=false\n return %y\n}",
    ),
    row("softmax", &[Ordinary], SUMS, SCANS),
    row("log_softmax", &[Ordinary], SUMS, SCANS),
    row(
        "layer_norm",
        &[Ordinary, Ordinary, Ordinary],
        SUMS,
        "(%x: D[5,12], %g: D[12], %b: D[12]) {\n %y = layer_norm %x, %g, %b axes=1 eps=1e-5\n \
         %z = layer_norm %x axes=2 eps=1e-5\n return %y, %z\n}",
    ),
    row(
        "rms_norm",
        &[Ordinary, Ordinary],
        SUMS,
        "(%x: D[5,12], %g: D[12]) {\n %y = rms_norm %x, %g eps=1e-5\n return %y\n}",
    ),
    row(
        "group_norm",
        &[Ordinary, Ordinary, Ordinary],
        SUMS,
        "(%x: D[2,6,5], %g: D[6], %b: D[6]) {\n %y = group_norm %x, %g, %b groups=3 eps=1e-5\n return %y\n}",
    ),
    row(
        "batch_norm",
        &[Ordinary, Ordinary, Ordinary, Ordinary, Positive],
        SUMS,
        "(%x: D[2,6,5], %g: D[6], %b: D[6], %m: D[6], %v: D[6]) {\n %y = batch_norm %x, %g, %b, %m, %v eps=1e-5\n \
         return %y\n}",
    ),
    row(
        "attention",
        &[Ordinary, Ordinary, Ordinary],
        SUMS,
        "(%q: D[2,4,6,8], %k: D[2,2,6,8], %v: D[2,2,6,8]) {\n %y = attention %q, %k, %v scale=0.35 causal=true\n \
         return %y\n}",
    ),
    row("attention", &[Ordinary, Ordinary, Ordinary], SUMS, FULLY_MASKED),
    row("attention", &[Ordinary, Ordinary, Ordinary], SUMS, FULLY_MASKED_NAN),
    row("attention", &[Ordinary, Ordinary, Ordinary, Index(20)], SUMS, CACHED),
    row("attention", &[Ordinary, Ordinary, Ordinary, Special], SUMS, SINKS),
];

/// The keys of a query end at its position, which is read from memory, far before the last.
const CACHED: &str = "(%q: D[2,4,6,8], %k: D[2,2,300,8], %v: D[2,2,300,8], %p: i64[2,1,6,1]) {
    %i = iota axis=0 : i64[300]\n %m = le %i, %p\n %y = attention %q, %k, %v, %m scale=0.35\n return %y\n}";

/// A sink for each head; query 2 attends to no key.
const SINKS: &str = "(%q: D[2,4,6,8], %k: D[2,2,6,8], %v: D[2,2,6,8], %s: D[4,1,1]) {
    %i = iota axis=0 : i64[6,6]\n %m = ne %i, 2
    %y = attention %q, %k, %v, %s, %m scale=0.35 sink=true\n return %y\n}";
/// Query 2 attends to no key.
const FULLY_MASKED: &str = "(%q: D[2,4,6,8], %k: D[2,2,6,8], %v: D[2,2,6,8]) {
    %i = iota axis=0 : i64[6,6]\n %m = ne %i, 2
    %y = attention %q, %k, %v, %m scale=0.35\n return %y\n}";
const FULLY_MASKED_NAN: &str = "(%q: D[2,4,6,8], %k: D[2,2,6,8], %v: D[2,2,6,8]) {
    %i = iota axis=0 : i64[6,6]\n %m = ne %i, 2
    %y = attention %q, %k, %v, %m scale=0.35 fully_masked=nan\n return %y\n}";

/// Ops without rows: parameters are tested as inputs, libtorch runs fallbacks, and launches are tested with their
/// programs.
const NO_ROWS: [&str; 4] = ["param", "fallback", "launch", "result"];

/// Ops without a row.
pub fn missing() -> Vec<&'static str> {
    let known = |name: &str| NO_ROWS.contains(&name) || ROWS.iter().any(|r| r.op == name);
    Op::names().filter(|name| !known(name)).collect()
}

/// One op on one type, with its inputs.
pub struct Case {
    /// Such as `add f32`.
    pub name: String,
    pub graph: Graph,
    pub inputs: Vec<Tensor>,
    pub near: Near,
}

/// Every row on every type that its op takes. The error names a row whose op takes no type.
pub fn cases() -> Result<Vec<Case>, String> {
    let mut all = vec![];
    for row in ROWS {
        let before = all.len();
        for d in DType::ALL {
            let others = if row.text.contains("to=E") { &DType::ALL[..] } else { &DType::ALL[..1] };
            all.extend(others.iter().filter_map(|e| row.case(d, *e)));
        }
        // Makes names unique if an op has several rows.
        let (earlier, own): (&mut [Case], &mut [Case]) = all.split_at_mut(before);
        for case in own {
            let same =
                earlier.iter().filter(|c| c.name == case.name || c.name.starts_with(&format!("{}, ", case.name)));
            match same.count() {
                0 => {}
                n => case.name += &format!(", row {}", n + 1),
            }
        }
        if all.len() == before {
            return Err(format!("the row of {} takes no type:\n{}", row.op, row.text));
        }
    }
    Ok(all)
}

impl Row {
    /// The case on type `d` (and `e`); `None` if the op does not take the type.
    fn case(&self, d: DType, e: DType) -> Option<Case> {
        let count = match self.inputs.first() {
            Some(Left | Dividend) => paired(d, self.inputs).0.len(),
            Some(Within) => within(d, e).len(),
            Some(Inside | Spread) => 1000,
            Some(OffPoles) => off_poles(d).len(),
            _ => special(d).len(),
        };
        let text = self.text.replace("OP", self.op).replace("D[", &format!("{d}["));
        let text = text.replace("to=E", &format!("to={e}")).replace("[N]", &format!("[{count}]"));
        let graph: Graph = format!("graph op{text}").parse().ok()?;
        let inputs =
            graph.inputs.iter().zip(self.inputs).map(|(v, holds)| self.input(graph.ty(*v), *holds, e)).collect();
        let name =
            if self.text.contains("to=E") { format!("{} {d} to {e}", self.op) } else { format!("{} {d}", self.op) };
        Some(Case { name, graph, inputs, near: self.near })
    }
    fn input(&self, ty: &Type, holds: Holds, e: DType) -> Tensor {
        let d = ty.dtype;
        let n = ty.count();
        let floats = |f: &dyn Fn(usize) -> f64| (0..n).map(|i| Number::Float(f(i))).collect::<Vec<_>>();
        let ints = |f: &dyn Fn(usize) -> i64| (0..n).map(|i| Number::Int(f(i))).collect::<Vec<_>>();
        // Hash of the index, so that values have no pattern that repeats with the row length.
        let mixed = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let unit = |i: usize| mixed(i) as f64 / f64::from(1 << 24);
        let signed = !matches!(d, DType::U8 | DType::Bool);
        let values = match holds {
            Special => special(d),
            OffPoles => off_poles(d),
            Left | Dividend => paired(d, self.inputs).0,
            Right | Divisor | Quotient => paired(d, self.inputs).1,
            Within => within(d, e),
            Small => ints(&|i| (mixed(i) % 5) as i64 - if signed { 2 } else { 0 }),
            Units => ints(&|i| if signed { (mixed(i) % 3) as i64 - 1 } else { (mixed(i) % 2) as i64 }),
            Ordinary if d.is_float() => floats(&|i| unit(i) * 6.0 - 3.0),
            Ordinary => ints(&|i| (mixed(i) % 100) as i64),
            Positive => floats(&|i| unit(i) * 1.5 + 0.5),
            Spread => floats(&|i| unit(i) * 40.0 - 20.0),
            // 1 - u^k gets as near to 1 as the type allows.
            Inside => floats(&|i| (1.0 - unit(i).powi(i as i32 % 12)) * if i % 2 == 0 { 1.0 } else { -1.0 }),
            Index(len) => ints(&|i| (mixed(i) % len as u64) as i64),
            // A step of 3, which has no common factor with the lengths used.
            Distinct(len) => {
                let line = ty.shape.last().copied().unwrap_or(1);
                ints(&|i| ((i % line * 3 + i / line) % len) as i64)
            }
        };
        let mut t = Tensor::zeros(ty.clone());
        for (i, v) in (0..n).zip(values.iter().cycle()) {
            match *v {
                Number::Float(x) => t.set_f64(i, x),
                Number::Int(x) => t.set_i64(i, x),
            }
        }
        t
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Number {
    Float(f64),
    Int(i64),
}

/// Special values of a type, on which implementations usually go wrong.
fn special(d: DType) -> Vec<Number> {
    if d == DType::Bool {
        return [0, 1].map(Number::Int).to_vec();
    }
    if let Some((least, most)) = d.int_range() {
        let all = [0, 1, -1, 2, -2, 3, 7, -7, 10, 100, -100, least, least + 1, most, most - 1, most / 2];
        let mut inside: Vec<i64> = all.into_iter().filter(|v| (least..=most).contains(v)).collect();
        inside.dedup();
        return inside.into_iter().map(Number::Int).collect();
    }
    // The least number above zero, the least normal number, and the step above 1.
    let largest = near::largest(d);
    let format = d.format().unwrap_or(Format::F32);
    let [tiny, normal, step] = [format.least(), format.least_normal(), format.epsilon()];
    let positive = [
        0.0,
        tiny,
        3.0 * tiny,
        normal,
        largest,
        1.0,
        1.0 + step,
        1.0 - step / 2.0,
        0.5,
        1.5,
        2.0,
        2.5,
        3.0,
        3.5,
        0.1,
        0.001,
        0.75,
        5.0,
        10.5,
        20.25,
        60.0,
        88.5,
        100.0,
        1000.5,
        16777216.0,
        std::f64::consts::PI,
        0.49999997,
    ];
    let mut all: Vec<f64> = vec![];
    for v in positive.into_iter().flat_map(|v| [v, -v]).map(|v| round(d, v)) {
        if v.is_finite() && !all.iter().any(|w| w.to_bits() == v.to_bits()) {
            all.push(v);
        }
    }
    // Not every float has infinities.
    let beyond = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN].into_iter().filter(|v| v.is_nan() || round(d, *v) == *v);
    all.into_iter().chain(beyond).map(Number::Float).collect()
}
/// Special values except those next to a negative integer.
fn off_poles(d: DType) -> Vec<Number> {
    let far = |v: &Number| match *v {
        Number::Float(x) => x >= 0.0 || !(1e-300..1e-6).contains(&(x - x.round()).abs()) || x > -0.5,
        Number::Int(_) => true,
    };
    special(d).into_iter().filter(far).collect()
}
/// Left and right operands: all pairs of special values, except those that the row's inputs exclude.
fn paired(d: DType, inputs: &[Holds]) -> (Vec<Number>, Vec<Number>) {
    let least = d.int_range().map(|r| Number::Int(r.0));
    let lefts = special(d).into_iter().filter(|v| !inputs.contains(&Dividend) || d == DType::U8 || Some(*v) != least);
    let divides = inputs.contains(&Divisor) || inputs.contains(&Quotient);
    let rights: Vec<Number> = special(d).into_iter().filter(|v| !divides || *v != Number::Int(0)).collect();
    let overflows = |l: &Number, r: &Number| match (l, r) {
        (Number::Float(l), Number::Float(r)) => {
            inputs.contains(&Quotient) && l.is_finite() && *r != 0.0 && (l / r).abs() > near::largest(d.compute())
        }
        _ => false,
    };
    let pairs = lefts.flat_map(|l| rights.iter().map(move |r| (l, *r)).collect::<Vec<_>>());
    pairs.filter(|(l, r)| !overflows(l, r)).unzip()
}

/// Additional values for casts of `d` to `e` where one of them is an f8 type: every number of an f8 source, and for an
/// f8 destination values at and next to the midpoints between its numbers.
fn converted(d: DType, e: DType) -> Vec<f64> {
    let mut all = vec![];
    if let Some(format) = d.kind().f8() {
        all.extend(format.table().map(f64::from));
    }
    if let (Some(format), Some(wide)) = (e.kind().f8(), d.format()) {
        let largest = format.beyond() - 1;
        let halfway =
            (0..largest).map(|bits| (f64::from(format.decode(bits)) + f64::from(format.decode(bits + 1))) / 2.0);
        for half in halfway.chain([f64::from(format.last()), f64::from(format.last().next_up())]) {
            let step = (half * wide.epsilon()).max(wide.least());
            all.extend([half - step, half, half + step].into_iter().flat_map(|v| [v, -v]).map(|v| round(d, v)));
        }
    }
    all
}
/// Special values of `d` whose cast to `e` is defined.
fn within(d: DType, e: DType) -> Vec<Number> {
    let all = special(d).into_iter().chain(converted(d, e).into_iter().map(Number::Float));
    let Some((least, most)) = e.int_range() else { return all.collect() };
    let inside = |v: &Number| match *v {
        Number::Float(x) => x.trunc() >= least as f64 && x.trunc() <= most as f64 && x.abs() < 9e18,
        Number::Int(_) => true,
    };
    all.filter(inside).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_op_has_a_row_and_every_row_an_op() {
        assert_eq!(super::missing(), [""; 0], "write rows for these in `ROWS`");
        let stray: Vec<&str> =
            super::ROWS.iter().map(|r| r.op).filter(|op| !kiln_graph::Op::names().any(|name| name == *op)).collect();
        assert_eq!(stray, [""; 0], "there are no such ops");
    }
}
