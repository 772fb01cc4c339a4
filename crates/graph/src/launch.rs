//! Launches of block programs: which program, over which grid, with which arguments.
//!
//! A launch is a value like any other: it reads its operands and gives new tensors. A parameter that the program reads
//! and writes starts as a copy of an operand, which itself stays as it is. The program is a text with a name; this
//! crate never looks into it. Whoever compiles or interprets the graph parses it, and checks parameters against
//! arguments.
use crate::{Scalar, Type};
use serde::{Deserialize, Serialize};

/// A launch of a block program.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct LaunchOp {
    /// What is launched.
    pub program: ProgramText,
    /// Instances along each axis, up to three; none: the grid is the program's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grid: Vec<usize>,
    /// One for each parameter of the program, in any order.
    pub arguments: Vec<LaunchArgument>,
}

/// A block program as text, without indentation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ProgramText {
    /// The program's name in its text.
    pub name: String,
    /// `kernel @name(…) … { … }`.
    pub text: String,
}

/// A parameter of a program with what it is given.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LaunchArgument {
    /// The parameter's name in the program.
    pub parameter: String,
    /// What it is given.
    pub value: ArgumentValue,
}

/// What a parameter of a program is given.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentValue {
    /// The next operand, which the program only reads.
    Operand,
    /// A result of this type, which starts as a copy of the next operand.
    Copy(Type),
    /// A result of this type. Elements that the program does not write are unspecified.
    New(Type),
    /// A number.
    Number(Scalar),
}

impl ArgumentValue {
    /// Whether it takes the next operand of the node.
    pub fn takes_operand(&self) -> bool {
        matches!(self, ArgumentValue::Operand | ArgumentValue::Copy(_))
    }
    /// Type of the result that it gives, if it gives one.
    pub fn result(&self) -> Option<&Type> {
        match self {
            ArgumentValue::Copy(ty) | ArgumentValue::New(ty) => Some(ty),
            ArgumentValue::Operand | ArgumentValue::Number(_) => None,
        }
    }
}

impl LaunchOp {
    /// Types of the results, in the order of the arguments.
    pub fn results(&self) -> impl Iterator<Item = &Type> {
        self.arguments.iter().filter_map(|a| a.value.result())
    }
    /// Number of the node's operands.
    pub fn operands(&self) -> usize {
        self.arguments.iter().filter(|a| a.value.takes_operand()).count()
    }
}
