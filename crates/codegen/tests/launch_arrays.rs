//! Kernels written by hand over arrays: what is known of sizes and strides reaches the code.
use kiln_codegen::nvptx;
use kiln_kernels::{
    Argument, ArgumentFacts, ArrayArgument, Binding, Function, Literal, Number, Options, Signature, Unit, compile,
};
use kiln_machine::Arch;

const COPY: &str = "
def copy(x, out, BLOCK):
    row = tl.program_id(0)
    start = tl.program_id(1) * BLOCK
    out[row, start:start + BLOCK] = x[row, start:start + BLOCK]
";

fn array(last_stride: ArgumentFacts) -> Argument {
    let known = ArgumentFacts { div: Some(16), ..ArgumentFacts::default() };
    Argument::Array(ArrayArgument {
        elem: Number::Float32,
        rank: 2,
        size_type: Number::Int32,
        facts: ArgumentFacts { noalias: true, ..known },
        shape: vec![
            ArgumentFacts { least: Some(0), ..ArgumentFacts::default() },
            ArgumentFacts { least: Some(0), ..known },
        ],
        strides: vec![known, last_stride],
    })
}

fn ptx(last_stride: ArgumentFacts) -> String {
    let function = Function {
        name: "copy".into(),
        source: COPY.trim_start().into(),
        bindings: [("tl".to_string(), Binding::Module("triton.language".into()))].into(),
        ..Function::default()
    };
    let unit = Unit { functions: vec![function], entry: 0 };
    let arguments = vec![array(last_stride), array(last_stride), Argument::Constant(Literal::Int(1024))];
    let compiled = compile(&unit, &Signature { arguments }, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let machine = Arch::Sm90a.machine();
    nvptx::compile(&compiled.program, machine).unwrap_or_else(|e| panic!("{e}")).text
}

/// A last stride of 1 and sizes that are multiples of 16 make accesses of four elements.
#[test]
fn rows_of_arrays_are_accessed_in_vectors() {
    let known = ptx(ArgumentFacts { equals: Some(1), ..ArgumentFacts::default() });
    assert!(known.contains("ld.global.v4") || known.contains("ld.global.nc.v4"), "{known}");
    assert!(known.contains("st.global.v4"), "{known}");
    let unknown = ptx(ArgumentFacts::default());
    assert!(!unknown.contains(".v4"), "{unknown}");
}
