//! bf16 to f32 in one instruction, after LLVM's optimiser: an f32's upper bits are a bf16, so a shift or a mask of a
//! word of two halves widens one of them, where going through the half takes two instructions. Before the optimiser
//! this would hide from it that a number is narrowed again.
use super::emit::{Fail, Res};
use inkwell::module::Module;
use inkwell::values::{BasicValue, BasicValueEnum, InstructionOpcode, InstructionValue, IntValue};

pub(super) fn run(module: &Module) -> Res<()> {
    let cx = module.get_context();
    let (b, word_type) = (cx.create_builder(), cx.i32_type());
    let instructions =
        module.get_functions().flat_map(|f| f.get_basic_blocks()).flat_map(|block| block.get_instructions());
    for i in instructions.collect::<Vec<_>>() {
        let Some((word, high)) = half_of_word(i).filter(|_| i.get_type() == cx.f32_type().into()) else { continue };
        b.position_before(&i);
        let bits = match high {
            true => b.build_and(word, word_type.const_int(0xffff_0000, false), "")?,
            false => b.build_left_shift(word, word_type.const_int(16, false), "")?,
        };
        let wide = b.build_bit_cast(bits, cx.f32_type(), "")?.as_instruction_value();
        i.replace_all_uses_with(&wide.ok_or_else(|| Fail::Llvm("the cast of a word is a constant".into()))?);
        i.erase_from_basic_block();
    }
    Ok(())
}

/// The word from which this instruction widens a bf16, and whether it is the high half.
fn half_of_word<'c>(widens: InstructionValue<'c>) -> Option<(IntValue<'c>, bool)> {
    let operand = |of: InstructionValue<'c>, n, op| {
        (of.get_opcode() == op).then(|| of.get_operand(n)).flatten().and_then(|o| o.value())
    };
    let half = match operand(widens, 0, InstructionOpcode::FPExt)? {
        BasicValueEnum::FloatValue(half) if half.get_type() == half.get_type().get_context().bf16_type() => half,
        _ => return None,
    };
    let taken = half.as_instruction_value()?;
    let high =
        operand(taken, 1, InstructionOpcode::ExtractElement)?.into_int_value().get_zero_extended_constant()? == 1;
    let pair = operand(taken, 0, InstructionOpcode::ExtractElement)?.as_instruction_value()?;
    match operand(pair, 0, InstructionOpcode::BitCast)? {
        BasicValueEnum::IntValue(word) if word.get_type().get_bit_width() == 32 => Some((word, high)),
        _ => None,
    }
}
