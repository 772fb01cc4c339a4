//! Floats of small integers by arithmetic, after LLVM's optimiser. Conversions of integers have an eighth of the rate of
//! additions; a number of at most 22 bits, put into the lower bits of the float `2^23` (or `1.5 * 2^23`, if it may be
//! negative), is that float plus the number, exactly, and a subtraction gives it. So weights of 4 and 8 bits are
//! dequantised at the rate of arithmetic.
use super::emit::{Fail, Res};
use inkwell::builder::Builder;
use inkwell::context::ContextRef;
use inkwell::module::Module;
use inkwell::values::{BasicValue, BasicValueEnum, FloatValue, InstructionOpcode, IntValue};

/// Bits of `2^23`, of which the lower 23 are 0, and the number.
const NATURAL: (u64, f64) = (0x4b00_0000, 8_388_608.0);
/// Bits of `1.5 * 2^23`, and the number.
const SIGNED: (u64, f64) = (0x4b40_0000, 12_582_912.0);
/// Numbers below this, of either sign, are small.
const BOUND: i64 = 1 << 22;
/// Operations that are looked through.
const DEPTH: usize = 6;

/// Least and largest value.
type Range = (i64, i64);

pub(super) fn run(module: &Module) -> Res<()> {
    let cx = module.get_context();
    let b = cx.create_builder();
    let instructions =
        module.get_functions().flat_map(|f| f.get_basic_blocks()).flat_map(|block| block.get_instructions());
    for i in instructions.collect::<Vec<_>>() {
        let signed = match i.get_opcode() {
            InstructionOpcode::UIToFP => false,
            InstructionOpcode::SIToFP => true,
            _ => continue,
        };
        let half = [cx.f16_type(), cx.bf16_type()].into_iter().find(|ty| i.get_type() == (*ty).into());
        let Some(BasicValueEnum::IntValue(x)) = i.get_operand(0).and_then(|o| o.value()) else { continue };
        if half.is_none() && i.get_type() != cx.f32_type().into() {
            continue;
        }
        let Some(range) = range(x, signed, DEPTH).filter(|(lo, hi)| -BOUND < *lo && *hi < BOUND) else { continue };
        b.position_before(&i);
        let wide = float_of(&b, &cx, x, signed, range)?;
        let made = half.map_or(Ok(wide), |ty| b.build_float_trunc(wide, ty, ""))?;
        let made = made.as_instruction_value();
        i.replace_all_uses_with(&made.ok_or_else(|| Fail::Llvm("the float of an integer is a constant".into()))?);
        i.erase_from_basic_block();
    }
    Ok(())
}

/// A small integer as f32.
fn float_of<'c>(
    b: &Builder<'c>,
    cx: &ContextRef<'c>,
    x: IntValue<'c>,
    signed: bool,
    (lo, _): Range,
) -> Res<FloatValue<'c>> {
    let word = cx.i32_type();
    let x = match x.get_type().get_bit_width() {
        32 => x,
        _ if signed => b.build_int_s_extend(x, word, "")?,
        _ => b.build_int_z_extend(x, word, "")?,
    };
    let (bits, number) = if lo < 0 { SIGNED } else { NATURAL };
    let bits = word.const_int(bits, false);
    let bits = if lo < 0 { b.build_int_add(x, bits, "")? } else { b.build_or(x, bits, "")? };
    let sum = b.build_bit_cast(bits, cx.f32_type(), "")?.into_float_value();
    Ok(b.build_float_sub(sum, cx.f32_type().const_float(number), "")?)
}

/// Of an integer, as far as the operations that give it tell.
fn range(x: IntValue, signed: bool, depth: usize) -> Option<Range> {
    let bits = x.get_type().get_bit_width();
    let whole = match bits {
        2..=16 if signed => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
        2..=16 => Some((0, (1 << bits) - 1)),
        32 => None,
        _ => return None,
    };
    let Some(made) = x.as_instruction().filter(|_| depth > 0) else { return whole };
    let operand = |n: u32| match made.get_operand(n).and_then(|o| o.value()) {
        Some(BasicValueEnum::IntValue(v)) => Some(v),
        _ => None,
    };
    let constant = |n: u32| operand(n)?.get_sign_extended_constant();
    let inner = |n: u32, signed: bool| range(operand(n)?, signed, depth - 1);
    let found = match made.get_opcode() {
        InstructionOpcode::ZExt => inner(0, false),
        InstructionOpcode::SExt => inner(0, true),
        InstructionOpcode::And => constant(1).filter(|c| *c >= 0).map(|c| (0, c)),
        InstructionOpcode::LShr => match (constant(1), inner(0, false)) {
            (Some(by @ 0..32), Some((lo, hi))) if lo >= 0 => Some((lo >> by, hi >> by)),
            (Some(by), None) if bits == 32 && (10..32).contains(&by) => Some((0, u32::MAX as i64 >> by)),
            _ => None,
        },
        InstructionOpcode::Add => constant(1).zip(inner(0, signed)).map(|(c, (lo, hi))| (lo + c, hi + c)),
        _ => None,
    };
    // What does not fit its type has wrapped.
    let (least, most) = whole.unwrap_or(if signed { (i32::MIN.into(), i32::MAX.into()) } else { (0, i32::MAX.into()) });
    found.filter(|(lo, hi)| least <= *lo && *hi <= most).or(whole)
}
