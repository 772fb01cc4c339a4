//! Kernels from text, compiled and run by the interpreter of block programs.
use kiln_block::Elem;
use kiln_interp::block::{Buffer, run_grid};
use kiln_kernels::{
    Argument, ArgumentFacts, Binding, Compiled, Function, KernelError, Literal, Number, Options, Signature, Unit,
    compile, free_names,
};

/// The functions of a text; the last one is the kernel. `tl` is the language, other names are the functions, and
/// upper-case ones constants that `constants` gives.
pub fn unit(text: &str, constants: &[(&str, Literal)]) -> Unit {
    let mut sources: Vec<(usize, String)> = vec![];
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("def ") {
            sources.push((at + 1, String::new()));
        }
        if let Some((_, source)) = sources.last_mut() {
            source.push_str(line);
            source.push('\n');
        }
    }
    let name = |source: &str| source.trim_start_matches("def ").split('(').next().unwrap_or_default().to_string();
    let names: Vec<String> = sources.iter().map(|(_, source)| name(source)).collect();
    let functions: Vec<Function> = sources
        .into_iter()
        .map(|(first_line, source)| {
            let bind = |path: String| {
                let root = path.split('.').next().unwrap_or_default().to_string();
                let binding = match &root[..] {
                    "tl" => Some(Binding::Module("triton.language".into())),
                    "libdevice" => Some(Binding::Module("triton.language.extra.libdevice".into())),
                    _ => None,
                };
                let function = || names.iter().position(|name| *name == root).map(Binding::Function);
                let constant =
                    || constants.iter().find(|(name, _)| *name == root).map(|(_, l)| Binding::Constant(l.clone()));
                binding.or_else(function).or_else(constant).map(|binding| (root, binding))
            };
            let free = free_names(&source).unwrap_or_default();
            let bindings = free.into_iter().filter_map(bind).collect();
            Function {
                name: name(&source),
                file: "kernels.py".into(),
                first_line,
                source,
                bindings,
                ..Function::default()
            }
        })
        .collect();
    let entry = functions.len().saturating_sub(1);
    Unit { functions, entry }
}

/// A tensor that no other argument shares memory with.
pub fn pointer(elem: Number) -> Argument {
    Argument::Pointer { elem, facts: ArgumentFacts { div: Some(16), noalias: true, ..ArgumentFacts::default() } }
}
pub fn scalar(elem: Number) -> Argument {
    Argument::Scalar { elem, facts: ArgumentFacts::default() }
}
pub fn int(value: i128) -> Argument {
    Argument::Constant(Literal::Int(value))
}

pub fn compiled(text: &str, arguments: Vec<Argument>) -> Result<Compiled, Box<KernelError>> {
    let compiled = compile(&unit(text, &[]), &Signature { arguments }, &Options::default())?;
    if let Err(error) = kiln_block::verify::verify(&compiled.program) {
        panic!("{error}\n{}", kiln_block::text::print(&compiled.program));
    }
    Ok(compiled)
}

/// Compiles and runs; gives the buffers afterwards. Fails with the error, and the program's text where it was run.
#[track_caller]
pub fn executed(text: &str, arguments: Vec<Argument>, grid: [usize; 3], mut buffers: Vec<Buffer>) -> Vec<Buffer> {
    let compiled = match compiled(text, arguments) {
        Ok(compiled) => compiled,
        Err(error) => panic!("{error}"),
    };
    let shown = kiln_block::text::print(&compiled.program);
    let parsed = kiln_block::text::parse(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(kiln_block::text::print(&parsed), shown, "the text form does not parse back");
    if let Err(error) = run_grid(&compiled.program, grid, &mut buffers) {
        panic!("{error}\n{shown}");
    }
    buffers
}

/// The error that a kernel gives.
#[track_caller]
pub fn refused(text: &str, arguments: Vec<Argument>) -> Box<KernelError> {
    match compiled(text, arguments) {
        Ok(compiled) => panic!("the kernel compiles:\n{}", kiln_block::text::print(&compiled.program)),
        Err(error) => error,
    }
}

pub fn buffer(elem: Elem, values: impl IntoIterator<Item = f64>) -> Buffer {
    let values: Vec<f64> = values.into_iter().collect();
    Buffer::from_f64(elem, &[values.len()], values)
}
pub fn zeros(elem: Elem, count: usize) -> Buffer {
    Buffer::zeros(elem, &[count])
}
