//! What a kernel tells while it runs: printed blocks, and assertions.
use super::arithmetic::to_truth;
use super::convert::{broadcast, to_tensor};
use super::memory::mask;
use crate::emit::{Emitter, Shown};
use crate::error::Eval;
use crate::value::{Tensor, Value};

/// Ends the launch with the text where the condition is 0 and the mask, if there is one, is not.
pub fn assert(emit: &mut Emitter, text: &str, condition: &Value, mask_value: &Value) -> Eval<()> {
    let condition = to_tensor(emit, condition)?;
    let condition = to_truth(emit, &condition)?;
    match mask(emit, mask_value)? {
        Some(mask) => {
            let (condition, mask) = broadcast(emit, &condition, &mask)?;
            emit.assert(text, &condition, Some(&mask))
        }
        None => emit.assert(text, &condition, None),
    }
}

/// Writes blocks to standard output; constants are part of the text.
pub fn print(emit: &mut Emitter, values: &[Value]) -> Eval<()> {
    let texts: Vec<String> = values.iter().filter_map(Value::constant).map(|constant| constant.text()).collect();
    let tensors: Vec<Tensor> = values.iter().filter_map(|value| value.tensor().cloned()).collect();
    let (text, many) = (texts.join(" "), tensors.len() > 1);
    if tensors.is_empty() {
        return emit.print(&text, None);
    }
    for (n, value) in tensors.into_iter().enumerate() {
        let text = if many { format!("{text} (operand {n})") } else { text.clone() };
        emit.print(&text, Some(Shown { value, variable: None }))?;
    }
    Ok(())
}
