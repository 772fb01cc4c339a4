//! The score function of attention: what stands between the scaled product of a query and a key and the softmax's mask,
//! as a chain of pointwise steps. Each step takes the score so far; some take an operand of the node too, which
//! broadcasts to the scores.
use crate::{BinaryOp, Scalar, UnaryOp, scalar};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A step of attention's score function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreStep {
    /// A function of the score, as a soft cap's tanh.
    Unary(UnaryOp),
    /// The score and a number.
    Number(BinaryOp, Scalar),
    /// The score and the node's next operand after q, k and v.
    Operand(BinaryOp),
}

impl ScoreStep {
    /// The operations of steps with a second operand.
    pub const BINARY: [BinaryOp; 6] =
        [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Max, BinaryOp::Min];

    /// Whether the step takes an operand of the node.
    pub fn takes_operand(self) -> bool {
        matches!(self, ScoreStep::Operand(_))
    }
    /// As `tanh`, `mul 50.0`, `mul operand`.
    fn parse(text: &str) -> Option<ScoreStep> {
        let mut words = text.split_whitespace();
        let name = words.next()?;
        let step = match words.next() {
            None => ScoreStep::Unary(UnaryOp::from_name(name)?),
            Some("operand") => ScoreStep::Operand(BinaryOp::from_name(name)?),
            Some(number) => ScoreStep::Number(BinaryOp::from_name(name)?, Scalar::Float(number.parse().ok()?)),
        };
        words.next().is_none().then_some(step)
    }
    /// The steps of a text, in order; `None` if it is not one.
    pub fn parse_all(text: &str) -> Option<Vec<ScoreStep>> {
        text.split(',').map(ScoreStep::parse).collect()
    }
    /// The text of steps, as `div 50.0, tanh, mul 50.0`.
    pub fn show_all(steps: &[ScoreStep]) -> String {
        steps.iter().map(ScoreStep::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for ScoreStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScoreStep::Unary(u) => f.write_str(u.name()),
            ScoreStep::Number(b, s) => write!(f, "{} {}", b.name(), scalar::text(*s)),
            ScoreStep::Operand(b) => write!(f, "{} operand", b.name()),
        }
    }
}
