//! What an expression evaluates to: a constant of compile time, a run-time value of the program, or something that only
//! exists while compiling (types, functions, modules, tuples).
use crate::error::{Eval, name_error, type_error};
use crate::types::{Number, TensorType};
use std::rc::Rc;

#[derive(Clone, Debug)]
pub enum Value {
    Constant(Constant),
    Tensor(Tensor),
    Tuple(Tuple),
    /// A dtype, a pointer's type, or the type of a block.
    Type(TensorType),
    Callee(Callee),
    /// A method that is not called yet.
    Method {
        receiver: Box<Value>,
        name: String,
    },
    /// A module, by its path.
    Module(String),
    /// `lower:upper`; an end that is not given is the axis's own.
    Slice {
        lower: Option<Box<Value>>,
        upper: Option<Box<Value>>,
    },
    Ellipsis,
    BlockPointer(Rc<BlockPointer>),
    Descriptor(Rc<Descriptor>),
    Array(Rc<Array>),
    /// A name that has no usable value here, and why.
    Missing(Rc<Missing>),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Constant {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Rc<str>),
}

/// A run-time value: its type in the language, and its name in the program.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub ty: TensorType,
    pub value: kiln_block::Value,
}

/// A tuple, or a named tuple with names of its fields.
#[derive(Clone, Debug)]
pub struct Tuple {
    pub values: Rc<Vec<Value>>,
    pub fields: Option<Rc<Vec<String>>>,
}

/// Arguments of a call.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// A primitive, by its name.
    Primitive(&'static str),
    Function(FunctionId),
    Builtin(Builtin),
}

/// A function of the unit, or of the library written in the language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionId {
    User(usize),
    Library(usize),
}

/// Python's own functions that exist while compiling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Builtin {
    Range,
    Len,
    Min,
    Max,
    Int,
    Float,
    Bool,
    Str,
    Print,
    Breakpoint,
    IsInstance,
    HasAttr,
    GetAttr,
    Tuple,
    Zip,
    Enumerate,
    Abs,
    Repr,
}

/// A window into a strided array, that `advance` moves.
#[derive(Clone, Debug)]
pub struct BlockPointer {
    pub base: Tensor,
    /// i64 scalars, outermost axis first.
    pub shape: Vec<Tensor>,
    pub strides: Vec<Tensor>,
    pub offsets: Vec<Tensor>,
    pub block: Vec<usize>,
}

/// An array that is read and written in blocks; elements outside read as padding, and are not written.
#[derive(Clone, Debug)]
pub struct Descriptor {
    pub base: Tensor,
    pub shape: Vec<Tensor>,
    pub strides: Vec<Tensor>,
    pub block: Vec<usize>,
    pub pads_nan: bool,
}

/// A tensor with its sizes and strides, which is indexed.
#[derive(Clone, Debug)]
pub struct Array {
    pub base: Tensor,
    pub shape: Vec<Tensor>,
    /// i64 scalars.
    pub strides: Vec<Tensor>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    pub why: String,
    pub hint: String,
}

impl Value {
    pub const NONE: Value = Value::Constant(Constant::None);

    pub fn int(value: impl TryInto<i128>) -> Value {
        Value::Constant(Constant::Int(value.try_into().unwrap_or(i128::MAX)))
    }
    pub fn bool(value: bool) -> Value {
        Value::Constant(Constant::Bool(value))
    }
    pub fn str(value: impl Into<Rc<str>>) -> Value {
        Value::Constant(Constant::Str(value.into()))
    }
    pub fn number(number: Number) -> Value {
        Value::Type(TensorType::scalar(number))
    }
    pub fn tuple(values: Vec<Value>) -> Value {
        Value::Tuple(Tuple { values: Rc::new(values), fields: None })
    }
    pub fn is_none(&self) -> bool {
        matches!(self, Value::Constant(Constant::None))
    }
    pub fn constant(&self) -> Option<&Constant> {
        match self {
            Value::Constant(constant) => Some(constant),
            _ => None,
        }
    }
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
    /// Whether it counts as true, if that is known while compiling.
    pub fn truth(&self) -> Eval<Option<bool>> {
        match self {
            Value::Constant(constant) => Ok(Some(constant.truth())),
            Value::Tuple(tuple) => Ok(Some(!tuple.values.is_empty())),
            Value::Tensor(_) => Ok(None),
            Value::Missing(missing) => Err(name_error(missing.why.clone(), missing.hint.clone())),
            _ => Ok(Some(true)),
        }
    }
    /// As Python's `str`; run-time values are shown by their type.
    pub fn text(&self) -> String {
        match self {
            Value::Constant(constant) => constant.text(),
            other => other.repr(),
        }
    }
    /// As Python's `repr`.
    pub fn repr(&self) -> String {
        match self {
            Value::Constant(constant) => constant.repr(),
            Value::Tuple(tuple) => {
                let items: Vec<String> = tuple.values.iter().map(Value::repr).collect();
                match &items[..] {
                    [only] => format!("({only},)"),
                    _ => format!("({})", items.join(", ")),
                }
            }
            Value::Type(ty) if !ty.is_block() && !ty.scalar.is_pointer() => {
                ty.scalar.number().map_or(String::new(), |number| number.short_name().into())
            }
            Value::Type(ty) => ty.to_string(),
            other => other.describe(),
        }
    }
    /// What it is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Value::Constant(Constant::None) => "None".into(),
            Value::Constant(constant) => format!("the constant {}", constant.repr()),
            Value::Tensor(tensor) => format!("{}", tensor.ty),
            Value::Tuple(tuple) => format!("a tuple of {} values", tuple.values.len()),
            Value::Type(ty) => format!("the type {ty}"),
            Value::Callee(_) => "a function".into(),
            Value::Method { name, .. } => format!("the method `{name}`"),
            Value::Module(path) => format!("the module `{path}`"),
            Value::Slice { .. } => "a slice".into(),
            Value::Ellipsis => "`...`".into(),
            Value::BlockPointer(_) => "a block pointer".into(),
            Value::Descriptor(_) => "a tensor descriptor".into(),
            Value::Array(array) => format!("an array of {} axes", array.shape.len()),
            Value::Missing(missing) => missing.why.clone(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}

impl Constant {
    /// As Python's `repr`.
    pub fn repr(&self) -> String {
        match self {
            Constant::Str(text) => format!("'{text}'"),
            _ => self.text(),
        }
    }
    /// As Python's `str`.
    pub fn text(&self) -> String {
        match self {
            Constant::None => "None".into(),
            Constant::Bool(true) => "True".into(),
            Constant::Bool(false) => "False".into(),
            Constant::Int(value) => value.to_string(),
            Constant::Float(value) if value.is_infinite() => if *value > 0.0 { "inf" } else { "-inf" }.into(),
            Constant::Float(value) if value.is_nan() => "nan".into(),
            Constant::Float(value) => format!("{value:?}"),
            Constant::Str(text) => text.to_string(),
        }
    }
    pub fn truth(&self) -> bool {
        match self {
            Constant::None => false,
            Constant::Bool(value) => *value,
            Constant::Int(value) => *value != 0,
            Constant::Float(value) => *value != 0.0,
            Constant::Str(text) => !text.is_empty(),
        }
    }
    /// Bools are integers in Python.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Constant::Int(value) => Some(*value),
            Constant::Bool(value) => Some(i128::from(*value)),
            Constant::None | Constant::Float(_) | Constant::Str(_) => None,
        }
    }
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Constant::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }
    /// The type of a run-time value made of it.
    pub fn number(&self) -> Eval<Number> {
        match self {
            Constant::Bool(_) => Ok(Number::Int1),
            Constant::Int(value) => Number::of_int(*value)
                .ok_or_else(|| type_error(format!("{value} fits no integer type"), "integers have at most 64 bits")),
            Constant::Float(value) => Ok(Number::of_float(*value)),
            Constant::None | Constant::Str(_) => Err(type_error(
                format!("{} has no run-time value", self.repr()),
                "a number or a block is needed here; handle it with a compile-time `if`",
            )),
        }
    }
}

impl Tensor {
    pub fn number(&self) -> Eval<Number> {
        self.ty.scalar.number().ok_or_else(|| {
            type_error(format!("this is {}, not a number", self.ty), "load what it points to with `load`")
        })
    }
    pub fn is_pointer(&self) -> bool {
        self.ty.scalar.is_pointer()
    }
    pub fn pointee(&self) -> Option<Number> {
        self.ty.scalar.pointee()
    }
}
