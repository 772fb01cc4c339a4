//! What programs are made of, and kernels that need arguments of their own.
use crate::harness::{buffer, compiled, executed, int, pointer, scalar, zeros};
use kiln_block::Elem;
use kiln_kernels::{Argument, ArgumentFacts, Number};

/// A kernel of `out` and `x`, floats, `n`, an int32, and `C`, the constexpr 3. `i` is `arange(0, 8)`.
fn kernel(body: &str) -> String {
    format!("\ndef kernel(out, x, n, C: tl.constexpr):\n    i = tl.arange(0, 8)\n    {body}\n")
}

fn arguments() -> Vec<Argument> {
    vec![pointer(Number::Float32), pointer(Number::Float32), scalar(Number::Int32), int(3)]
}

/// What a program stores through may change, and what shares memory with another argument.
#[test]
fn stored_and_shared_pointers_are_not_readonly() {
    let body = "p = x\n    for k in range(n):\n        p += 1\n    tl.store(out, tl.load(p))";
    let shared = Argument::Pointer { elem: Number::Float32, facts: ArgumentFacts::default() };
    for (x, read) in [(pointer(Number::Float32), true), (shared, false)] {
        let given = vec![pointer(Number::Float32), x, scalar(Number::Int32), int(3)];
        let program = compiled(&kernel(body), given).unwrap_or_else(|error| panic!("{error}")).program;
        let readonly: Vec<bool> = program.params.iter().map(|param| param.readonly).collect();
        assert_eq!(readonly, [false, read, false]);
    }
}

#[test]
fn a_product_that_is_added_is_a_dot_with_a_sum() {
    let kernel = "
def kernel(out, n):
    a = tl.zeros([16, 16], tl.float16)
    acc = tl.zeros([16, 16], tl.float32)
    for k in range(n):
        acc += tl.dot(a, a)
    i = tl.arange(0, 16)
    tl.store(out + i[:, None] * 16 + i[None, :], acc)
";
    let arguments = vec![pointer(Number::Float32), scalar(Number::Int32)];
    let program = compiled(kernel, arguments).unwrap_or_else(|error| panic!("{error}")).program;
    let mut adds = 0;
    program.walk(&mut |_, inst| {
        adds += usize::from(
            inst.op == kiln_block::Op::Binary(kiln_block::BinaryOp::Add)
                && inst
                    .results
                    .iter()
                    .any(|v| program.ty(*v).count() == 256 && program.ty(*v).elem() == Some(Elem::F32)),
        );
    });
    assert_eq!(adds, 0, "{}", kiln_block::text::print(&program));
}

#[test]
fn dots_of_f32_are_tf32_unless_asked() {
    let precision = |call: &str| {
        let kernel = format!(
            "
def kernel(out):
    a = tl.zeros([16, 16], tl.float32)
    i = tl.arange(0, 16)
    tl.store(out + i[:, None] * 16 + i[None, :], tl.dot(a, a{call}))
"
        );
        let program =
            compiled(&kernel, vec![pointer(Number::Float32)]).unwrap_or_else(|error| panic!("{error}")).program;
        let mut found = None;
        program.walk(&mut |_, inst| {
            if let kiln_block::Op::Dot { precision, .. } = inst.op {
                found = Some(precision);
            }
        });
        found
    };
    use kiln_block::DotPrecision::{Exact, Tf32, Tf32x3};
    assert_eq!(precision(""), Some(Tf32));
    assert_eq!(precision(", allow_tf32=False"), Some(Exact));
    assert_eq!(precision(", allow_tf32=True"), Some(Tf32));
    assert_eq!(precision(", input_precision='ieee'"), Some(Exact));
    assert_eq!(precision(", input_precision='tf32x3'"), Some(Tf32x3));
    assert_eq!(precision(", input_precision='bf16x3'"), Some(Tf32x3));
    assert_eq!(precision(", input_precision='bf16x6'"), Some(Exact));
}

#[test]
fn constexpr_functions_are_computed_while_compiling() {
    let text = "
def bits(n):
    count = 0
    while n > 1:
        n >>= 1
        count += 1
    for k in range(2):
        if k == 1:
            return count + k
    return 0

def kernel(out):
    i = tl.arange(0, bits(8))
    tl.store(out + i, i)
";
    let mut unit = crate::harness::unit(text, &[]);
    unit.functions[0].compile_time = true;
    let signature = kiln_kernels::Signature { arguments: vec![pointer(Number::Float32)] };
    let program = kiln_kernels::compile(&unit, &signature, &Default::default()).map(|compiled| compiled.program);
    let text = program.map_or_else(|error| error.to_string(), |program| kiln_block::text::print(&program));
    assert!(text.contains("i32[4]"), "{text}");
}

#[test]
fn helpers_return_from_branches() {
    let text = "
def sign(x):
    if x > 0:
        return 1
    if x < 0:
        return -1
    return 0

def pair(x, y=2, *rest):
    return x, y + len(rest)

def kernel(out, n):
    tl.store(out, sign(n) * 10 + sign(-n))
    a, b = pair(n)
    tl.store(out + 1, a * 10 + b)
    a, b = pair(*(1, 2, 3), n)
    tl.store(out + 2, a * 10 + b)
    a, b = pair(y=4, x=n)
    tl.store(out + 3, a * 10 + b)
";
    let arguments = vec![pointer(Number::Float32), scalar(Number::Int32)];
    let out = executed(text, arguments, [1, 1, 1], vec![zeros(Elem::F32, 4), buffer(Elem::I32, [5.0])]);
    assert_eq!(out[0].to_f64(), [9.0, 52.0, 14.0, 54.0]);
}

#[test]
fn cache_hints_reach_the_program() {
    let body = "v = tl.load(x + i, eviction_policy='evict_last')\n    tl.store(out + i, v, cache_modifier='.cg')";
    let program = compiled(&kernel(body), arguments()).unwrap_or_else(|error| panic!("{error}")).program;
    let mut hints = vec![];
    program.walk(&mut |_, inst| match inst.op {
        kiln_block::Op::Load(_, cache) | kiln_block::Op::Store(cache) => hints.push(cache),
        _ => {}
    });
    assert_eq!(hints, [kiln_block::CachePolicy::EvictLast, kiln_block::CachePolicy::L2Only]);
}

/// The known answers of the generator's authors for counter 0 and key 0.
#[test]
fn random_bits_are_philox() {
    let text = "
def kernel(out, out64):
    a, b, c, d = tl.randint4x(0, 0)
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)
    z = tl.full([], 0, tl.uint64)
    a, b, c, d = tl.philox(0, z, z, z, z)
    tl.store(out64, a)
    tl.store(out64 + 1, b)
    tl.store(out64 + 2, c)
    tl.store(out64 + 3, d)
";
    let arguments = vec![pointer(Number::UInt32), pointer(Number::UInt64)];
    let out = executed(text, arguments, [1, 1, 1], vec![zeros(Elem::U32, 4), zeros(Elem::U64, 4)]);
    let words: Vec<u32> = out[0].bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(words, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let long = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let words: Vec<u64> = out[1].bytes.chunks(8).map(long).collect();
    let expected = [0x1655_4d9e_ca36_314c, 0xdb20_fe9d_672d_0fdc, 0xd7e7_72ce_e186_176b, 0x7e68_b68a_ec7b_a23b];
    assert_eq!(words, expected);
}

#[test]
fn functions_combine_several_values() {
    let text = "
def linear(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2

def first(a, b):
    return a

def widest(a, b):
    return tl.maximum(a, b) + 0 * a

def kernel(out, last, x):
    i = tl.arange(0, 8)
    v = tl.load(x + i)
    a, b = tl.associative_scan((tl.full([8], 2.0, tl.float32), v), 0, linear)
    tl.store(out + i, b)
    tl.store(last, tl.reduce(v, 0, widest))
    a, b = tl.reduce((tl.full([8], 1.0, tl.float32), v), 0, linear)
    tl.store(last + 1, b)
    r = tl.associative_scan(v, 0, first, reverse=True)
    tl.store(last + 2, tl.sum(tl.where(i == 0, r, 0.0)))
";
    let arguments = vec![pointer(Number::Float32); 3];
    let buffers = vec![zeros(Elem::F32, 8), zeros(Elem::F32, 3), buffer(Elem::F32, (0..8).map(f64::from))];
    let out = executed(text, arguments, [1, 1, 1], buffers);
    assert_eq!(out[0].to_f64(), [0.0, 1.0, 4.0, 11.0, 26.0, 57.0, 120.0, 247.0]);
    assert_eq!(out[1].to_f64(), [7.0, 28.0, 7.0]);
}

#[test]
fn functions_that_combine_may_ask_blocks_for_their_type() {
    let text = "
def is_float(x):
    return (x + tl.zeros((1,), tl.int1)).dtype.is_floating()

def last_largest(a, i, b, j):
    take = a > b
    equal = a == b
    if is_float(a):
        take |= a != a and not b != b
    take |= equal & (i > j)
    return tl.where(take, a, b), tl.where(take, i, j)

def kernel(out, at, x):
    i = tl.arange(0, 8)
    largest, where = tl.associative_scan((tl.load(x + i), i), 0, last_largest)
    tl.store(out + i, largest)
    tl.store(at + i, where)
    largest, where = tl.reduce((tl.load(x + i), i), 0, last_largest)
    tl.store(at + 8, where)
";
    let arguments = vec![pointer(Number::Float32), pointer(Number::Int32), pointer(Number::Float32)];
    let x = buffer(Elem::F32, [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 9.0, 6.0]);
    let out = executed(text, arguments, [1, 1, 1], vec![zeros(Elem::F32, 8), zeros(Elem::I32, 9), x]);
    assert_eq!(out[0].to_f64(), [3.0, 3.0, 4.0, 4.0, 5.0, 9.0, 9.0, 9.0]);
    assert_eq!(out[1].to_f64(), [0.0, 0.0, 2.0, 2.0, 4.0, 5.0, 6.0, 6.0, 6.0]);
}

#[test]
fn dots_take_all_types() {
    let rows = [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("float8e4nv", "float32"),
        ("float8e5", "float32"),
        ("int8", "int32"),
        ("uint8", "int32"),
    ];
    for (operand, result) in rows {
        let kernel = format!(
            "
def kernel(out):
    i = tl.arange(0, 16)
    a = (i[:, None] * 0 + i[None, :] % 2 + 1).to(tl.float32).to(tl.{operand})
    c = tl.dot(a, a)
    tl.static_assert(c.dtype == tl.{result})
    d = tl.dot(a, a, c)
    tl.store(out, tl.sum(tl.sum(d, 0), 0))
"
        );
        let out = executed(&kernel, vec![pointer(Number::Float32)], [1, 1, 1], vec![zeros(Elem::F32, 1)]);
        assert_eq!(out[0].to_f64(), [2.0 * 16.0 * 24.0 * 24.0], "{operand}");
    }
}

#[test]
fn dots_of_batches() {
    let kernel = "
def kernel(out, x):
    i = tl.arange(0, 2)[:, None, None] * 256 + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)
    a = tl.load(x + i)
    tl.store(out + i, tl.dot(a, a, a, input_precision='ieee'))
";
    let x: Vec<f64> = (0..512).map(|i| f64::from(i % 7)).collect();
    let buffers = vec![zeros(Elem::F32, 512), buffer(Elem::F32, x.clone())];
    let out = executed(kernel, vec![pointer(Number::Float32); 2], [1, 1, 1], buffers);
    let expected: Vec<f64> = (0..512)
        .map(|at| {
            let (batch, row, column) = (at / 256 * 256, at % 256 / 16, at % 16);
            x[at] + (0..16).map(|k| x[batch + row * 16 + k] * x[batch + k * 16 + column]).sum::<f64>()
        })
        .collect();
    assert_eq!(out[0].to_f64(), expected);
}

#[test]
fn descriptors_of_the_launch_are_parameters() {
    let kernel = "
def kernel(array, out):
    v = array.load([1, 2])
    i = tl.arange(0, 2)[:, None] * 4 + tl.arange(0, 4)
    tl.store(out + i, v)
    array.store([0, 0], v + 1)
    tl.static_assert(array.block_shape[1] == 4 and array.dtype == tl.float32)
";
    let array = kiln_kernels::DescriptorArgument {
        elem: Number::Float32,
        block: vec![2, 4],
        pads_nan: false,
        facts: Default::default(),
        shape: vec![],
        strides: vec![],
    };
    let arguments = vec![kiln_kernels::Argument::Descriptor(array), pointer(Number::Float32)];
    let parameters = compiled(kernel, arguments.clone()).map(|compiled| compiled.parameters);
    assert_eq!(parameters, Ok(vec![vec![0, 0], vec![0, 1, 0], vec![0, 1, 1], vec![0, 2, 0], vec![1]]));
    let buffers = vec![
        buffer(Elem::F32, (0..12).map(f64::from)),
        buffer(Elem::I32, [2.0]),
        buffer(Elem::I32, [5.0]),
        buffer(Elem::I64, [6.0]),
        zeros(Elem::F32, 8),
    ];
    let out = executed(kernel, arguments, [1, 1, 1], buffers);
    assert_eq!(out[4].to_f64(), [8.0, 9.0, 10.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(out[0].to_f64()[..12], [9.0, 10.0, 11.0, 1.0, 4.0, 5.0, 1.0, 1.0, 1.0, 1.0, 10.0, 11.0]);
}

/// Launches pass float32, and the program rounds.
#[test]
fn half_scalars_are_passed_as_float32() {
    let text = "
def kernel(out, by):
    tl.static_assert(by.dtype == tl.float16)
    tl.store(out, by)
";
    let arguments = vec![pointer(Number::Float32), scalar(Number::Float16)];
    let out = executed(text, arguments, [1, 1, 1], vec![zeros(Elem::F32, 1), buffer(Elem::F32, [1.0004])]);
    assert_eq!(out[0].to_f64(), [1.0]);
}

#[test]
fn inverse_hyperbolic_functions() {
    let text = "
def kernel(out, x):
    i = tl.arange(0, 8)
    v = tl.load(x + i)
    tl.store(out + i, libdevice.asinh(v))
    tl.store(out + 8 + i, libdevice.acosh(tl.abs(v) + 1.0))
    tl.store(out + 16 + i, libdevice.atanh(v / (tl.abs(v) + 1.0)))
    tl.store(out + 24 + i, libdevice.sinpi(v))
";
    let x = [-1e10, -3.5, -0.25, -1e-6, 1e-4, 0.5, 2.0, 1e20].map(|x: f64| f64::from(x as f32));
    let buffers = vec![zeros(Elem::F32, 32), buffer(Elem::F32, x)];
    let out = executed(text, vec![pointer(Number::Float32); 2], [1, 1, 1], buffers)[0].to_f64();
    for (at, x) in x.into_iter().enumerate() {
        let ratio = f64::from(x as f32 / (x.abs() as f32 + 1.0));
        let more = f64::from(x.abs() as f32 + 1.0);
        let mut checks = vec![(out[at], x.asinh()), (out[8 + at], more.acosh())];
        // Close to 1 the quotient itself is rounded to 1.
        if ratio.abs() < 0.9 {
            checks.push((out[16 + at], ratio.atanh()));
            checks.push((out[24 + at], (std::f64::consts::PI * (x - 2.0 * (0.5 * x).round_ties_even())).sin()));
        }
        for (got, want) in checks {
            assert!((got - want).abs() <= 1e-6 * want.abs().max(1e-6), "{x}: {got}, not {want}");
        }
    }
}

/// The language's exponentials of float32 are one instruction; those of `libdevice`, and of float64, are exact.
#[test]
fn exponentials_of_two_accuracies() {
    let text = "
def kernel(out, x, wide):
    i = tl.arange(0, 4)
    v = tl.load(x + i)
    tl.store(out + i, tl.exp(v) + tl.exp2(v) + v.exp())
    tl.store(out + 4 + i, libdevice.exp(v) + libdevice.exp2(v))
    tl.store(wide + i, tl.exp(v.to(tl.float64)))
";
    let arguments = vec![pointer(Number::Float32), pointer(Number::Float32), pointer(Number::Float64)];
    let program = kiln_block::text::print(&compiled(text, arguments.clone()).unwrap().program);
    let count = |name: &str| program.lines().filter(|line| line.contains(&format!("= {name} "))).count();
    assert_eq!([count("exp2_approx"), count("exp"), count("exp2")], [3, 2, 1], "{program}");
    let x = [-3.5, 0.0, 1.25, f64::NEG_INFINITY];
    let buffers = vec![zeros(Elem::F32, 8), buffer(Elem::F32, x), zeros(Elem::F64, 4)];
    let out = executed(text, arguments, [1, 1, 1], buffers);
    let (narrow, wide) = (out[0].to_f64(), out[2].to_f64());
    for (at, x) in x.into_iter().enumerate() {
        let close = |got: f64, want: f64| assert!((got - want).abs() <= 1e-6 * want, "{x}: {got}, not {want}");
        close(narrow[at], 2.0 * x.exp() + x.exp2());
        close(narrow[4 + at], x.exp() + x.exp2());
        close(wide[at], x.exp());
    }
}
