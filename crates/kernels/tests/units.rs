//! What callers hand over, as data; and the names that they have to resolve.
use crate::harness::{pointer, scalar, unit};
use kiln_kernels::{Argument, Literal, Number, Signature, Unit, free_names};

#[test]
fn units_and_signatures_are_json() {
    let unit = unit("\ndef kernel(x):\n    tl.store(x, LIMIT)\n", &[("LIMIT", Literal::Float(f64::INFINITY))]);
    let text = serde_json::to_string(&unit).unwrap();
    assert_eq!(serde_json::from_str::<Unit>(&text).unwrap(), unit, "{text}");
    let signature = Signature {
        arguments: vec![
            pointer(Number::BFloat16),
            scalar(Number::UInt64),
            Argument::Constant(Literal::Tuple(vec![Literal::None, Literal::Int(-1), Literal::Dtype(Number::Int1)])),
            Argument::Tuple(vec![pointer(Number::Float8E4M3)]),
        ],
    };
    let text = serde_json::to_string(&signature).unwrap();
    assert_eq!(serde_json::from_str::<Signature>(&text).unwrap(), signature, "{text}");
}

#[test]
fn types_are_read_by_all_their_names() {
    for (name, number) in [
        ("float32", Number::Float32),
        ("fp32", Number::Float32),
        ("bf16", Number::BFloat16),
        ("i1", Number::Int1),
        ("bool", Number::Int1),
        ("u8", Number::UInt8),
        ("float8_e4m3fn", Number::Float8E4M3),
    ] {
        let text = format!("{{\"scalar\": {{\"elem\": \"{name}\"}}}}");
        assert_eq!(serde_json::from_str::<Argument>(&text).unwrap(), scalar(number));
    }
}

#[test]
fn free_names_are_those_that_the_function_does_not_define() {
    let source = "
@decorated(with_=anything(lambda x: x))
def kernel(x_ptr, n, BLOCK: tl.constexpr = DEFAULT):
    \"\"\"What it does.\"\"\"
    i = tl.arange(0, BLOCK)
    for k in range(n):
        y = helper(x_ptr + i) * SCALE + triton.language.extra.libdevice.exp(1.0)
    if (z := other.value) is not None:
        tl.store(x_ptr, f'{NAME}' and z.to(tl.float32))
    t = [e for e in (A, B)]
";
    let names = free_names(source).unwrap();
    let expected = [
        "A",
        "B",
        "NAME",
        "SCALE",
        "helper",
        "other.value",
        "range",
        "tl.arange",
        "tl.float32",
        "tl.store",
        "triton.language.extra.libdevice.exp",
    ];
    assert_eq!(names, expected);
}

#[test]
fn tuples_of_arguments_are_parameters() {
    let kernel = "\ndef kernel(pair, n):\n    tl.store(pair[0], pair[1] + n)\n";
    let arguments = vec![Argument::Tuple(vec![pointer(Number::Float32), scalar(Number::Int32)]), scalar(Number::Int32)];
    let compiled = crate::harness::compiled(kernel, arguments).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = compiled.program.params.iter().map(|param| &param.name[..]).collect();
    assert_eq!(names, ["pair_0", "pair_1", "n"]);
    assert_eq!(compiled.parameters, [vec![0, 0], vec![0, 1], vec![1]]);
}

#[test]
fn functions_and_named_tuples_are_constants() {
    let text = "
def twice(x):
    return x * 2

def kernel(out, f: tl.constexpr, shape: tl.constexpr, pair):
    m, n = shape
    tl.static_assert(shape.rows == 3 and shape[1] == 4 and f is not None)
    tl.store(out, f(m) + n + pair[0] + pair[1][0])
";
    use crate::harness::{buffer, executed, zeros};
    use kiln_block::Elem;
    let fields = vec!["rows".to_string(), "columns".to_string()];
    let shape = Literal::Record { fields, values: vec![Literal::Int(3), Literal::Int(4)] };
    let arguments = vec![
        pointer(Number::Int32),
        Argument::Constant(Literal::Function(0)),
        Argument::Constant(shape),
        Argument::Tuple(vec![
            scalar(Number::Int32),
            Argument::Tuple(vec![Argument::Constant(Literal::Int(100)), Argument::Constant(Literal::None)]),
        ]),
    ];
    let out = executed(text, arguments, [1, 1, 1], vec![zeros(Elem::I32, 1), buffer(Elem::I32, [1000.0])]);
    assert_eq!(out[0].to_f64(), [1110.0]);
}

#[test]
fn defaults_are_bound_or_evaluated() {
    let text = "
def scaled(x, by=FACTOR, offset=tl.float32):
    return x * by + offset(1)

def kernel(out):
    tl.store(out, scaled(2))
    tl.store(out + 1, scaled(2, by=5))
";
    use crate::harness::zeros;
    use kiln_block::Elem;
    let mut unit = unit(text, &[]);
    unit.functions[0].defaults.insert("by".into(), kiln_kernels::Binding::Constant(Literal::Int(3)));
    unit.functions[0].bindings.insert("tl".into(), kiln_kernels::Binding::Module("triton.language".into()));
    let signature = Signature { arguments: vec![pointer(Number::Float32)] };
    let compiled = kiln_kernels::compile(&unit, &signature, &Default::default());
    let program = compiled.unwrap_or_else(|error| panic!("{error}")).program;
    let mut buffers = vec![zeros(Elem::F32, 2)];
    kiln_interp::block::run_grid(&program, [1, 1, 1], &mut buffers).unwrap();
    assert_eq!(buffers[0].to_f64(), [7.0, 11.0]);
}

#[test]
fn names_of_the_program_are_plain() {
    let kernel = "\ndef kernel(größe, pair, pair_0):\n    tl.store(pair[0], pair_0 + größe)\n";
    let arguments = vec![scalar(Number::Int32), Argument::Tuple(vec![pointer(Number::Int32)]), scalar(Number::Int32)];
    let mut unit = unit(kernel, &[]);
    unit.functions[0].name = "test_it.<locals>.kernel".into();
    let compiled = kiln_kernels::compile(&unit, &Signature { arguments }, &Default::default());
    let program = compiled.unwrap_or_else(|error| panic!("{error}")).program;
    kiln_block::verify::verify(&program).unwrap();
    let text = kiln_block::text::print(&program);
    assert_eq!(kiln_block::text::parse(&text).map(|parsed| kiln_block::text::print(&parsed)), Ok(text));
    let names: Vec<&str> = program.params.iter().map(|param| &param.name[..]).collect();
    assert_eq!((&program.name[..], &names[..]), ("kernel", &["gr__e", "pair_0", "pair_0_"][..]));
}
