//! Format strings: of values that are known while compiling.
use super::Evaluator;
use crate::error::{Eval, unsupported};
use crate::syntax::tree::FormatPart;

pub fn text(evaluator: &mut Evaluator, parts: &[FormatPart]) -> Eval<String> {
    let mut text = String::new();
    for part in parts {
        match part {
            FormatPart::Text(piece) => text += piece,
            FormatPart::Value { value, repr, spec } => {
                if !spec.is_empty() {
                    return Err(unsupported(format!("the format `{spec}` is not supported"), "leave it out"));
                }
                let shown = evaluator.expr(value)?;
                text += &if *repr { shown.repr() } else { shown.text() };
            }
        }
    }
    Ok(text)
}
