//! What type an operator gives: one row for each rule.
use crate::harness::{compiled, refused, scalar};
use kiln_kernels::{ErrorKind, Number};

/// Variables that the rows use: a block of four elements of each type, `n` an int32 and `s` a float32 of the launch.
const VARIABLES: &str = "
def rules(n, s):
    b1 = tl.full([4], 1, tl.int1)
    i8 = tl.full([4], 1, tl.int8)
    i16 = tl.full([4], 1, tl.int16)
    i32 = tl.full([4], 1, tl.int32)
    i64 = tl.full([4], 1, tl.int64)
    u8 = tl.full([4], 1, tl.uint8)
    u16 = tl.full([4], 1, tl.uint16)
    u32 = tl.full([4], 1, tl.uint32)
    u64 = tl.full([4], 1, tl.uint64)
    f16 = tl.full([4], 1, tl.float16)
    bf16 = tl.full([4], 1, tl.bfloat16)
    f32 = tl.full([4], 1, tl.float32)
    f64 = tl.full([4], 1, tl.float64)
    e4 = tl.full([4], 1, tl.float32).to(tl.float8e4nv)
    e5 = tl.full([4], 1, tl.float32).to(tl.float8e5)
";

/// Expressions and the types that they have.
const ROWS: &[(&str, &str)] = &[
    // A literal takes part only if its kind is above the other operand's: bool < int < float.
    ("f16 * 2.0", "float16"),
    ("f16 * 2", "float16"),
    ("bf16 + 1.5", "bfloat16"),
    ("i8 + 1", "int8"),
    ("u8 * 3", "uint8"),
    ("i8 + True", "int8"),
    ("b1 + 1", "int32"),
    ("i32 * 2.0", "float32"),
    ("i8 * 0.5", "float32"),
    ("2 - i64", "int64"),
    ("1.0 / f64", "float64"),
    ("e4.to(tl.float16) + e5", "float16"),
    // Scalars of the launch, and variables that were literals, promote fully.
    ("f16 * s", "float32"),
    ("bf16 * s", "float32"),
    ("f16 * n", "float16"),
    ("i64 + n", "int64"),
    ("i8 + n", "int32"),
    ("n * 2", "int32"),
    ("s * 2", "float32"),
    // f64 > f32 > the rest.
    ("f64 + f32", "float64"),
    ("f32 + f16", "float32"),
    ("f32 + bf16", "float32"),
    ("f32 + i64", "float32"),
    ("i32 + f64", "float64"),
    // f16 with f16, bf16 and any integer; bf16 with an integer is f32.
    ("f16 + f16", "float16"),
    ("f16 + bf16", "float16"),
    ("bf16 + f16", "float16"),
    ("f16 + i32", "float16"),
    ("f16 + i64", "float16"),
    ("bf16 + bf16", "bfloat16"),
    ("bf16 + i32", "float32"),
    ("bf16 + i8", "float32"),
    // `/` and `%` of halves are computed in f32.
    ("f16 / f16", "float32"),
    ("f16 / 2.0", "float32"),
    ("bf16 / bf16", "float32"),
    ("bf16 % bf16", "float32"),
    ("f16 % 2.0", "float32"),
    // Integers by rank and sign.
    ("i8 + i16", "int16"),
    ("i32 + i64", "int64"),
    ("u8 + i8", "uint8"),
    ("i8 + u8", "uint8"),
    ("u8 + i16", "int16"),
    ("u32 + i32", "uint32"),
    ("i32 + u32", "uint32"),
    ("u32 + i64", "int64"),
    ("u64 + i64", "uint64"),
    ("u16 + i32", "int32"),
    ("u16 + u32", "uint32"),
    ("u32 + n", "uint32"),
    ("u32 * 2", "uint32"),
    ("u32 + f16", "float16"),
    ("u64 + bf16", "float32"),
    ("u32 // u16", "uint32"),
    ("u32 % 7", "uint32"),
    ("u32 / u32", "float32"),
    ("u64 >> 3", "uint64"),
    ("-u32", "uint32"),
    ("~u16", "uint16"),
    ("b1 + i8", "int8"),
    ("b1 & b1", "int1"),
    ("b1 | i32", "int32"),
    ("i8 << i32", "int32"),
    // Integers are divided as f32 by `/`, and stay integers by `//` and `%`.
    ("i32 / i32", "float32"),
    ("i64 / i64", "float32"),
    ("i32 // i32", "int32"),
    ("i64 % 7", "int64"),
    ("n // 2", "int32"),
    // Comparisons give bools.
    ("f16 < 2.0", "int1"),
    ("i64 == i8", "int1"),
    ("n >= 3", "int1"),
    // Unary operators.
    ("-f16", "float16"),
    ("-i8", "int8"),
    ("~b1", "int1"),
    ("~i32", "int32"),
    ("not (n > 0)", "int1"),
    // `where` promotes both sides.
    ("tl.where(b1, f16, f32)", "float32"),
    ("tl.where(b1, f16, 0.0)", "float16"),
    ("tl.where(b1, i32, 1.0)", "float32"),
    ("tl.where(b1, 1, 2)", "int32"),
    // maximum and minimum compare bf16 as f32, and take literals in full.
    ("tl.maximum(f16, f16)", "float16"),
    ("tl.maximum(bf16, bf16)", "float32"),
    ("tl.maximum(f16, 0.0)", "float32"),
    ("tl.minimum(i8, 5)", "int32"),
    ("max(n, 4)", "int32"),
    // Sums of small integers are int32; of halves they stay; `dtype=` changes it.
    ("tl.sum(i8, 0)", "int32"),
    ("tl.sum(i16, 0)", "int32"),
    ("tl.sum(u8, 0)", "uint32"),
    ("tl.sum(u16, 0)", "uint32"),
    ("tl.sum(u64, 0)", "uint64"),
    ("tl.sum(b1, 0)", "int32"),
    ("tl.sum(i32, 0)", "int32"),
    ("tl.sum(i64, 0)", "int64"),
    ("tl.sum(f16, 0)", "float16"),
    ("tl.sum(bf16, 0)", "bfloat16"),
    ("tl.sum(f16, 0, dtype=tl.float32)", "float32"),
    // max and min of halves and small integers have 32 bits.
    ("tl.max(f16, 0)", "float32"),
    ("tl.max(bf16, 0)", "float32"),
    ("tl.min(i8, 0)", "int32"),
    ("tl.max(i64, 0)", "int64"),
    ("tl.argmax(f16, 0)", "int32"),
    // cumsum of bf16 is f32.
    ("tl.cumsum(bf16, 0)", "float32"),
    ("tl.cumsum(f16, 0)", "float16"),
    ("tl.cumsum(i8, 0)", "int32"),
    // Elementary functions keep f32 and f64.
    ("tl.exp(f32)", "float32"),
    ("tl.sqrt(f64)", "float64"),
    ("tl.exp(1.0)", "float32"),
    ("tl.abs(f16)", "float16"),
    ("tl.sigmoid(f32)", "float32"),
    ("tl.cdiv(n, 4)", "int32"),
    ("tl.fma(f16, f16, f32)", "float32"),
    // Casts.
    ("f32.to(tl.float16)", "float16"),
    ("tl.cast(f32, tl.int8)", "int8"),
    ("tl.float32(i32)", "float32"),
    ("tl.full([4], 1.5, tl.float8e5).to(tl.float32)", "float32"),
    ("tl.zeros([4], tl.float8e4nv)", "float8e4nv"),
    ("f32.to(tl.int32)", "int32"),
    ("i8.to(tl.uint8, bitcast=True)", "uint8"),
    // Literals that stand alone.
    ("tl.full([4], 1, tl.int32) + 0", "int32"),
    ("tl.to_tensor(2147483647)", "int32"),
    ("tl.to_tensor(2147483648)", "uint32"),
    ("tl.to_tensor(4294967296)", "int64"),
    ("tl.to_tensor(9223372036854775808)", "uint64"),
    ("tl.to_tensor(-2147483649)", "int64"),
    ("tl.umulhi(u32, u32)", "uint32"),
    ("f32.to(tl.uint32, bitcast=True)", "uint32"),
    ("f16.to(tl.int16, bitcast=True)", "int16"),
    ("f32.to(tl.bfloat16, fp_downcast_rounding='rtz')", "bfloat16"),
    ("tl.randint(n, i32)", "uint32"),
    ("tl.rand(n, i32)", "float32"),
    ("tl.to_tensor(1.0)", "float32"),
    ("tl.to_tensor(1e-40)", "float64"),
    ("tl.to_tensor(True)", "int1"),
];

#[test]
fn operators_give_these_types() {
    let mut wrong = vec![];
    for (expression, expected) in ROWS {
        let kernel = format!("{VARIABLES}    tl.static_print(({expression}).dtype)\n");
        match compiled(&kernel, vec![scalar(Number::Int32), scalar(Number::Float32)]) {
            Ok(compiled) => {
                let name = Number::named(&compiled.printed[0]).map_or("no number", Number::name);
                if name != *expected {
                    wrong.push(format!("{expression} is {name}, not {expected}"));
                }
            }
            Err(error) => wrong.push(format!("{expression}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Expressions that are errors, the kind, and a part of the message.
const REFUSED: &[(&str, ErrorKind, &str)] = &[
    ("i32 // u8", ErrorKind::Type, "because they have different signedness"),
    ("i32 % u8", ErrorKind::Type, "because they have different signedness"),
    ("i32 / u8", ErrorKind::Type, "because they have different signedness"),
    ("u8 + -1", ErrorKind::Value, "negative number -1"),
    ("u8 + 300", ErrorKind::Value, "out of range for uint8"),
    ("i8 * 1000", ErrorKind::Value, "out of range for int8"),
    ("f32 // f32", ErrorKind::Type, "`//` is not defined on float32"),
    ("f32 & i32", ErrorKind::Type, "invalid operands of type float32 and int32"),
    ("~f32", ErrorKind::Type, "`~` is not defined"),
    ("f32 ** 2", ErrorKind::Unsupported, "`**`"),
    ("e4 + e4", ErrorKind::Unsupported, "no arithmetic on float8e4nv"),
    ("e4 == e4", ErrorKind::Unsupported, "no arithmetic on float8e4nv"),
    ("e4 + i32", ErrorKind::Type, "no common type"),
    ("tl.exp(f16)", ErrorKind::Type, "exp takes float32 or float64; this is float16[4]"),
    ("tl.sqrt(i32)", ErrorKind::Type, "sqrt takes float32"),
    ("i8.to(tl.int32, bitcast=True)", ErrorKind::Value, "int8 has 8 bits and int32 has 32"),
    ("i32.to(tl.float32, fp_downcast_rounding='rtz')", ErrorKind::Value, "rounding mode"),
    ("i32 + None", ErrorKind::Type, "None has no run-time value"),
    ("i32 @ i32", ErrorKind::Unsupported, "`@`"),
    ("0 < n < 4", ErrorKind::Unsupported, "chained comparisons"),
    ("tl.to_tensor(1 << 70)", ErrorKind::Type, "fits no integer type"),
    ("(lambda x: x)(n)", ErrorKind::Unsupported, "lambda"),
    ("n + undefined", ErrorKind::Name, "`undefined` is not defined"),
    ("tl.laod(n)", ErrorKind::Unsupported, "the language has no `"),
];

#[test]
fn operators_refuse_these() {
    for (expression, kind, part) in REFUSED {
        let kernel = format!("{VARIABLES}    r = {expression}\n");
        let error = refused(&kernel, vec![scalar(Number::Int32), scalar(Number::Float32)]);
        let place = error.place.clone().unwrap_or_default();
        assert!(error.message.contains(part) && error.kind == *kind, "{expression}: {error}");
        assert_eq!(place.line, 18, "{expression}: {error}");
        assert!(error.hint.is_some(), "{expression} has no hint: {error}");
    }
}
