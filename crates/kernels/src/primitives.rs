//! The functions that the compiler knows itself, as a table: name, parameters, what it emits.
//!
//! A new primitive is a row here and its function in one of the folders' files. What can be said in the language is a
//! function of the library instead.
mod arguments;
mod assembly;
mod blocks;
mod combine;
mod floats;
mod hints;
mod memory;
mod static_values;
mod windows;

pub use arguments::known_int;

use crate::emit::Emitter;
use crate::error::{Eval, type_error};
use crate::library::Library;
use crate::unit::Options;
use crate::value::{Arguments, Callee, Value};

/// What a primitive may ask of who walks the kernel.
pub trait Walk {
    fn emit(&mut self) -> &mut Emitter;
    fn options(&self) -> &Options;
    fn print(&mut self, line: String);
    /// A message with the place of the call.
    fn with_place(&self, message: &str) -> String;
    /// Calls a function with its first parameters bound to values.
    fn call_function(&mut self, function: Callee, arguments: Vec<Value>) -> Eval<Value>;
}

/// Arguments come in the order of the parameters, and all are there.
pub type Run = fn(&mut dyn Walk, &[Value]) -> Eval<Value>;

pub struct Primitive {
    pub name: &'static str,
    /// As Python writes them: `pointer, mask=None`. A last `*rest` takes any number.
    parameters: &'static str,
    pub run: Run,
}

const fn row(name: &'static str, parameters: &'static str, run: Run) -> Primitive {
    Primitive { name, parameters, run }
}

static GROUPS: [&[Primitive]; 9] = [
    assembly::TABLE,
    blocks::TABLE,
    combine::TABLE,
    floats::UNARY,
    floats::OTHERS,
    hints::TABLE,
    memory::TABLE,
    static_values::TABLE,
    windows::TABLE,
];

/// Functions that blocks have as methods.
const METHODS: [&str; 57] = [
    "to",
    "cast",
    "broadcast_to",
    "trans",
    "permute",
    "split",
    "view",
    "reshape",
    "expand_dims",
    "item",
    "store",
    "load",
    "advance",
    "atomic_cas",
    "atomic_xchg",
    "atomic_add",
    "atomic_max",
    "atomic_min",
    "atomic_and",
    "atomic_or",
    "atomic_xor",
    "exp",
    "exp2",
    "log",
    "log2",
    "cos",
    "sin",
    "sqrt",
    "sqrt_rn",
    "rsqrt",
    "abs",
    "erf",
    "floor",
    "ceil",
    "reduce",
    "associative_scan",
    "gather",
    "scatter",
    "histogram",
    "cdiv",
    "sigmoid",
    "softmax",
    "ravel",
    "max",
    "argmax",
    "min",
    "argmin",
    "sum",
    "xor_sum",
    "reduce_or",
    "cumsum",
    "cumprod",
    "sort",
    "flip",
    "logical_and",
    "logical_or",
    "squeeze",
];

pub fn find(name: &str) -> Option<&'static Primitive> {
    GROUPS.iter().flat_map(|group| group.iter()).find(|primitive| primitive.name == name)
}

pub fn is_method(name: &str) -> bool {
    METHODS.contains(&name)
}

/// The function that a method calls with the block as its first argument.
pub fn function_of_method(name: &str) -> &str {
    match name {
        "to" => "cast",
        _ => name,
    }
}

/// The name of the language that is spelled most like one that does not exist.
pub fn near(name: &str) -> Option<String> {
    let library = Library::get().ok().into_iter().flat_map(Library::names);
    let names = GROUPS.iter().flat_map(|group| group.iter()).map(|primitive| primitive.name).chain(library);
    let scored = names.map(|known| (strsim::jaro_winkler(name, known), known));
    let best = scored.filter(|(score, _)| *score > 0.84).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
    best.map(|(_, known)| known.to_string())
}

/// Arguments in the order of the parameters; the last is a tuple if the primitive takes any number.
pub fn bind(primitive: &Primitive, arguments: Arguments) -> Eval<Vec<Value>> {
    let mut positional = arguments.positional.into_iter();
    let mut named = arguments.named;
    // Triton hands these to itself.
    named.retain(|(name, _)| !matches!(&name[..], "_semantic" | "_builder" | "_generator"));
    let mut values = vec![];
    for parameter in primitive.parameters.split(", ").filter(|parameter| !parameter.is_empty()) {
        if parameter.starts_with('*') {
            values.push(Value::tuple(positional.by_ref().collect()));
            continue;
        }
        let (name, default) = match parameter.split_once('=') {
            Some((name, default)) => (name, Some(default)),
            None => (parameter, None),
        };
        let given = named.iter().position(|(given, _)| given == name).map(|at| named.remove(at).1);
        let value = match (positional.next(), given, default) {
            (Some(_), Some(_), _) => {
                return Err(type_error(
                    format!("`{}` gets its argument `{name}` twice", primitive.name),
                    "give it by place or by name",
                ));
            }
            (Some(value), None, _) | (None, Some(value), _) => value,
            (None, None, Some(default)) => default_value(default),
            (None, None, None) => return Err(wrong_call(primitive, &format!("is called without `{name}`"))),
        };
        values.push(value);
    }
    let spread = primitive.parameters.contains('*');
    if let Some((name, _)) = named.first() {
        return Err(wrong_call(primitive, &format!("has no parameter `{name}`")));
    }
    if !spread && positional.next().is_some() {
        return Err(wrong_call(primitive, "is called with too many arguments"));
    }
    Ok(values)
}

fn wrong_call(primitive: &Primitive, what: &str) -> Box<crate::KernelError> {
    type_error(
        format!("`{}` {what}", primitive.name),
        format!("it is called as `{}({})`", primitive.name, primitive.parameters),
    )
}

fn default_value(text: &str) -> Value {
    match text {
        "True" => Value::bool(true),
        "False" => Value::bool(false),
        "''" => Value::str(""),
        "()" => Value::tuple(vec![]),
        number => number.parse().map_or(Value::NONE, |number: i128| Value::int(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names for imports only: kernels that call them are refused by name.
    const REFUSED: [&str; 12] = [
        "add_rn",
        "erfc",
        "erfinv",
        "j0",
        "ldexp",
        "lgamma",
        "logb",
        "mul_rn",
        "nextafter",
        "remainder",
        "slice",
        "tgamma",
    ];
    /// Methods, classes and functions of Python's own that the compiler has as primitives.
    const INNER: [&str; 15] = [
        "Array",
        "block_type",
        "constexpr",
        "dtype",
        "get_int_dtype",
        "item",
        "logical_and",
        "logical_or",
        "next_power_of_2",
        "ones",
        "pointer_type",
        "scatter",
        "sort_impl",
        "tensor",
        "tensor_descriptor",
    ];

    /// The words of `NAME = """ … """` or `NAME = "…"` in a Python file.
    fn listed<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
        let (_, after) = text.split_once(&format!("\n{name} = \"")).unwrap();
        let after = after.trim_start_matches('"');
        after.split('"').next().unwrap().split_whitespace().collect()
    }

    #[test]
    fn the_package_has_the_names_of_the_compiler() {
        let text = include_str!("../../../python/kiln/language/core.py");
        let listed: Vec<&str> =
            ["PRIMITIVES", "LIBDEVICE", "CUDA"].iter().flat_map(|name| listed(text, name)).collect();
        let library: Vec<&str> = Library::get().unwrap().names().collect();
        let known: Vec<&str> = GROUPS.iter().flat_map(|group| group.iter()).map(|p| p.name).chain(library).collect();
        let missing: Vec<&str> = listed.iter().copied().filter(|name| !known.contains(name)).collect();
        let mut refused = missing.clone();
        refused.sort_unstable();
        assert_eq!(refused, REFUSED, "what the compiler lacks");
        let of_users = known.iter().filter(|name| !name.starts_with('_') && !INNER.contains(name));
        // A module's own primitive has its name after the module's.
        let is_listed = |name: &str| name.rsplit('.').next().is_some_and(|last| listed.contains(&last));
        let unlisted: Vec<&&str> = of_users.filter(|name| !is_listed(name)).collect();
        assert!(unlisted.is_empty(), "the package lacks {unlisted:?}");
    }

    #[test]
    fn names_are_unique_and_methods_exist() {
        let library = Library::get().unwrap();
        let mut names: Vec<&str> = GROUPS.iter().flat_map(|group| group.iter()).map(|p| p.name).collect();
        names.extend(library.names());
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name occurs twice");
        for method in METHODS {
            let function = function_of_method(method);
            assert!(names.contains(&function), "{method}");
        }
    }
}
