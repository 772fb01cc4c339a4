//! Inline assembly, and the registers of a GPU that it reads.
use super::arguments::{known_flag, known_int, known_text, sequence, tensors, type_of};
use super::{Primitive, Walk, row};
use crate::emit::block_type;
use crate::error::{Eval, unsupported, value_error};
use crate::ops::convert::{broadcast, broadcast_to};
use crate::types::{Number, TensorType};
use crate::value::{Tensor, Value};
use kiln_block::{Assembly, Effects};

pub const TABLE: &[Primitive] = &[
    row("inline_asm_elementwise", "asm, constraints, args, dtype, is_pure, pack", inline_assembly),
    row("globaltimer", "", |e, _| read_register(e, "mov.u64 $0, %globaltimer;", Number::Int64, Effects::Volatile)),
    row("smid", "", |e, _| read_register(e, "mov.u32 $0, %smid;", Number::Int32, Effects::Pure)),
    row("num_threads", "", |e, _| Ok(Value::int(32 * e.options().warps as i128))),
    row("num_warps", "", |e, _| Ok(Value::int(e.options().warps as i128))),
];

/// One result for each dtype.
fn inline_assembly(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let [text, constraints, operands, dtypes, is_pure, pack] = arguments else { return Ok(Value::NONE) };
    let effects = if known_flag("is_pure", is_pure)? { Effects::Pure } else { Effects::Volatile };
    let pack = known_int("pack", pack)?;
    let assembly = Assembly {
        text: known_text("asm", text)?,
        constraints: known_text("constraints", constraints)?,
        pack: u32::try_from(pack).unwrap_or(0),
        effects,
    };
    if !assembly.has_valid_pack() {
        return Err(value_error(format!("pack is {pack}"), "it is 1, 2, 4, 8, 16 or 32"));
    }
    let operands = tensors(walk, operands)?;
    let (operands, shape) = in_one_shape(walk, operands)?;
    let several = matches!(dtypes, Value::Tuple(_));
    let dtypes = if several { sequence(dtypes)? } else { vec![dtypes.clone()] };
    let mut results = vec![];
    for dtype in &dtypes {
        results.push(type_of(dtype)?.with_shape(&shape[..]));
    }
    check_registers(&assembly, &operands, &results)?;
    if effects == Effects::Volatile && operands.iter().any(|x| x.ty.has_pads()) {
        return Err(unsupported(
            format!("assembly with effects gets a block of shape {shape:?}"),
            "sizes are powers of two here",
        ));
    }
    let found = walk.emit().assembly(assembly, &operands, &results)?;
    let mut found = found.into_iter().map(Value::Tensor);
    match found.next() {
        Some(one) if !several => Ok(one),
        first => Ok(Value::tuple(first.into_iter().chain(found).collect())),
    }
}

/// The blocks in the shape that all broadcast to.
fn in_one_shape(walk: &mut dyn Walk, operands: Vec<Tensor>) -> Eval<(Vec<Tensor>, Vec<usize>)> {
    let mut widest: Option<Tensor> = None;
    for operand in &operands {
        widest = Some(match widest {
            None => operand.clone(),
            Some(wide) => broadcast(walk.emit(), &wide, operand)?.0,
        });
    }
    let shape = widest.map_or(vec![], |wide| wide.ty.shape);
    let all: Eval<Vec<Tensor>> = operands.iter().map(|x| broadcast_to(walk.emit(), x, &shape)).collect();
    Ok((all?, shape))
}

/// Whether the constraints name as many registers as the blocks take.
fn check_registers(assembly: &Assembly, operands: &[Tensor], results: &[TensorType]) -> Eval<()> {
    let wrong = |what: String| {
        value_error(
            format!("the constraints '{}' do not fit: {what}", assembly.constraints),
            "write one for each register: results with `=` first, then operands; narrow elements share registers by \
             `pack`",
        )
    };
    let registers = assembly.registers().map_err(wrong)?;
    let results = results.iter().map(block_type).collect::<Eval<Vec<_>>>()?;
    let operands = operands.iter().map(|x| block_type(&x.ty)).collect::<Eval<Vec<_>>>()?;
    for (what, named, types) in [("results", &registers.results, results), ("operands", &registers.operands, operands)]
    {
        let taken = assembly.register_count(types.iter());
        if taken != named.len() {
            return Err(wrong(format!("the {what} take {taken} registers, and {} are named", named.len())));
        }
    }
    Ok(())
}

fn read_register(walk: &mut dyn Walk, text: &str, number: Number, effects: Effects) -> Eval<Value> {
    let constraints = if number.bits() == 64 { "=l" } else { "=r" };
    let assembly = Assembly { text: text.into(), constraints: constraints.into(), pack: 1, effects };
    let found = walk.emit().assembly(assembly, &[], &[TensorType::scalar(number)])?;
    Ok(found.into_iter().next().map_or(Value::NONE, Value::Tensor))
}
