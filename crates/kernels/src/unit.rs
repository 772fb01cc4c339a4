//! What a caller hands over, and gets: functions as text with what their names are bound to, the types and facts of a
//! launch's arguments, and the program. All of it is data that serde reads and writes.
use crate::syntax::Span;
use crate::types::Number;
use kiln_block::BlockProgram;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A kernel and the helpers that it calls.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Unit {
    pub functions: Vec<Function>,
    /// The kernel, by its place in `functions`.
    pub entry: usize,
}

/// A function as it stands in a file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    pub file: String,
    /// The line of the file that `source` starts at; lines count from 1.
    pub first_line: usize,
    /// Columns by which `source` was moved to the left.
    #[serde(default)]
    pub column_shift: usize,
    /// The text of the `def` with its decorators, dedented.
    pub source: String,
    /// A Python function that is computed while compiling (`constexpr_function`): its variables stay constants.
    #[serde(default)]
    pub compile_time: bool,
    /// What dotted names mean that are no variables of the function ([`crate::free_names`]). The longest prefix of a
    /// name that is bound counts; what follows it are attributes.
    #[serde(default)]
    pub bindings: BTreeMap<String, Binding>,
    /// Values of parameters that are not given, by name.
    #[serde(default)]
    pub defaults: BTreeMap<String, Binding>,
}

/// What a name is bound to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// A name of the language, such as `load`.
    Primitive(String),
    /// An element type, such as `float32`.
    Dtype(Number),
    /// A function of the unit.
    Function(usize),
    Constant(Literal),
    /// A module, by its path; names of `kiln.language` and `triton.language` are those of the language.
    Module(String),
    /// A Python function that is no kernel.
    PythonFunction(String),
    /// Anything else, by the name of its type: an error where it is used.
    Unknown(String),
}

/// A value that is known when a kernel is compiled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Literal {
    None,
    Bool(bool),
    Int(i128),
    Float(#[serde(with = "float_or_name")] f64),
    Str(String),
    Dtype(Number),
    /// The type of pointers to elements.
    Pointer(Number),
    /// A name of the language, such as `maximum`.
    Primitive(String),
    Function(usize),
    Tuple(Vec<Literal>),
    /// A named tuple.
    Record {
        fields: Vec<String>,
        values: Vec<Literal>,
    },
}

/// JSON has no number for infinities and NaN; they are written by name.
mod float_or_name {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Name(String),
    }

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            value if value.is_finite() => serializer.serialize_f64(*value),
            value if value.is_nan() => serializer.serialize_str("nan"),
            value if *value > 0.0 => serializer.serialize_str("inf"),
            _ => serializer.serialize_str("-inf"),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Ok(value),
            Written::Name(name) => match &name[..] {
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                "nan" => Ok(f64::NAN),
                _ => {
                    Err(serde::de::Error::custom(format!("`{name}` is no float; inf, -inf and nan are names of some")))
                }
            },
        }
    }
}

/// Arguments in the order of the kernel's parameters.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Signature {
    pub arguments: Vec<Argument>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// A tensor's address.
    Pointer {
        elem: Number,
        #[serde(default)]
        facts: ArgumentFacts,
    },
    Scalar {
        elem: Number,
        #[serde(default)]
        facts: ArgumentFacts,
    },
    Constant(Literal),
    Tuple(Vec<Argument>),
    Descriptor(DescriptorArgument),
    Array(ArrayArgument),
}

/// An array that is read and written in blocks: a base address, sizes (int32) and strides (int64) of the launch. The
/// last stride is 1 and is no parameter.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct DescriptorArgument {
    pub elem: Number,
    pub block: Vec<usize>,
    /// Outside of the array there is NaN, instead of 0.
    #[serde(default)]
    pub pads_nan: bool,
    #[serde(default)]
    pub facts: ArgumentFacts,
    /// What is known of each size, and of each stride but the last; nothing where they are left out.
    #[serde(default)]
    pub shape: Vec<ArgumentFacts>,
    #[serde(default)]
    pub strides: Vec<ArgumentFacts>,
}

/// A tensor that is indexed: a base address, and sizes and strides (int64) of the launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ArrayArgument {
    pub elem: Number,
    pub rank: usize,
    /// int32, or int64 where a size needs it.
    pub size_type: Number,
    #[serde(default)]
    pub facts: ArgumentFacts,
    /// What is known of each size and of each stride; nothing where they are left out.
    #[serde(default)]
    pub shape: Vec<ArgumentFacts>,
    #[serde(default)]
    pub strides: Vec<ArgumentFacts>,
}

/// What is known of an argument before the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ArgumentFacts {
    /// It is a multiple of this: bytes of an address, otherwise the value.
    #[serde(default)]
    pub div: Option<u64>,
    /// The value of an integer or a bool.
    #[serde(default)]
    pub equals: Option<i64>,
    /// Least and largest value of an integer.
    #[serde(default)]
    pub least: Option<i64>,
    #[serde(default)]
    pub most: Option<i64>,
    /// The tensor has fewer than 2^31 elements.
    #[serde(default)]
    pub span32: bool,
    /// No other argument points to memory of this tensor.
    #[serde(default)]
    pub noalias: bool,
}

/// In one word: launches hash the facts of all their arguments.
impl std::hash::Hash for ArgumentFacts {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let ArgumentFacts { div, equals, least, most, span32, noalias } = *self;
        let number = |n: Option<i64>| n.map_or(0, |n| (n as u64).wrapping_add(1));
        let flags = u64::from(span32) << 62 | u64::from(noalias) << 63;
        let numbers = number(equals).rotate_left(8) ^ number(least).rotate_left(24) ^ number(most).rotate_left(40);
        state.write_u64(div.unwrap_or(0) ^ numbers ^ flags);
    }
}

impl ArgumentFacts {
    /// Forgets what divides the argument and what it is.
    pub fn forget_value(&mut self) {
        (self.div, self.equals) = (None, None);
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// `num_warps`
    pub warps: usize,
    /// Whether `device_assert` and `assert` are checked.
    #[serde(default)]
    pub debug: bool,
    /// For the interpreter: `breakpoint()` stops there.
    #[serde(default)]
    pub interpret: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { warps: 4, debug: false, interpret: false }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    pub program: BlockProgram,
    /// For each parameter of the program the argument that it is, with the place in tuples. Of a descriptor and an array,
    /// place 0 is the base, 1 the sizes and 2 the strides, each with the axis after it.
    pub parameters: Vec<Vec<usize>>,
    /// What `static_print` wrote.
    pub printed: Vec<String>,
    /// Of each instruction of the program, the part of the source that it came from.
    pub sites: Vec<Site>,
    /// What each `print` of a block shows, by its instruction's number.
    pub shown: BTreeMap<u32, Printed>,
    /// Accesses whose mask leaves out pads alone: the kernel gives them none.
    pub unmasked: BTreeSet<u32>,
}

/// A block that is printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Printed {
    /// Its sizes, without pads.
    pub shape: Vec<usize>,
    /// The variable that it is, at a breakpoint.
    pub variable: Option<Variable>,
}

/// A variable at a breakpoint. Variables of one breakpoint are printed one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    pub name: String,
    /// The last one, after which the run stops.
    pub is_last: bool,
}

/// A part of the text of one of the unit's functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Site {
    /// Its place in [`Unit::functions`].
    pub function: u32,
    pub span: Span,
}
