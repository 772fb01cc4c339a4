//! Maxima and minima of half types, two elements at once as they were loaded, where a program first casts them to f32.
//! A cast keeps the order of numbers, and the selected number is exact.
use super::emit::{Res, int, mistyped};
use super::r#gen::Gen;
use super::reduce::Part;
use super::words::Words;
use inkwell::values::IntValue;
use kiln_block::layout::Flat;
use kiln_block::{BlockProgram, Const, Elem, Op, ReduceOp, Type, Value};
use std::collections::HashMap;

/// Registers per thread from which on this is profitable.
const LEAST: usize = 8;

/// The half block that an f32 block was cast from; `outside`: its mask, and the infinity that a select puts outside of
/// it.
#[derive(Clone, Copy)]
pub(super) struct Half {
    of: Value,
    outside: Option<(Value, f64)>,
}

/// The blocks of a kernel that are casts of half types.
pub(super) fn of(k: &BlockProgram) -> HashMap<Value, Half> {
    let (mut halves, mut infinities): (HashMap<Value, Half>, HashMap<Value, f64>) = Default::default();
    k.walk(&mut |_, d| {
        let Some(&v) = d.results.first() else { return };
        match (&d.op, &d.args[..]) {
            (Op::Const(Const::Float(x)), _) if x.is_infinite() => {
                infinities.insert(v, *x);
            }
            (Op::Splat | Op::Broadcast, [a]) => {
                if let Some(x) = infinities.get(a).copied() {
                    infinities.insert(v, x);
                }
            }
            (Op::Cast(Elem::F32), [a]) => {
                if let Type::Block { elem: Elem::F16 | Elem::Bf16, .. } = k.ty(*a) {
                    halves.insert(v, Half { of: *a, outside: None });
                }
            }
            (Op::Select, [mask, a, other]) => {
                if let (Some(Half { of, outside: None }), Some(x)) = (halves.get(a).copied(), infinities.get(other)) {
                    halves.insert(v, Half { of, outside: Some((*mask, *x)) });
                }
            }
            _ => {}
        }
    });
    halves
}

/// The instruction of two elements that a reduction consists of, if it is a maximum or a minimum.
fn pick_name(op: ReduceOp) -> Option<&'static str> {
    Some(match op {
        ReduceOp::Max => "max.NaN",
        ReduceOp::Min => "min.NaN",
        ReduceOp::MaxNum => "max",
        ReduceOp::MinNum => "min",
        _ => return None,
    })
}

impl<'c> Gen<'c, '_> {
    /// Combines a thread's registers of `arg` that differ in axis bits, in pairs of half types; `None` if the block or
    /// the reduction is not of this kind.
    pub fn over_halves(
        &mut self,
        op: ReduceOp,
        arg: Value,
        flat: &Flat,
        on_axis: impl Fn(u8) -> bool,
    ) -> Res<Option<Vec<Part<'c>>>> {
        let Some(picks) = pick_name(op) else { return Ok(None) };
        let Some(half) = self.halves.get(&arg).copied() else { return Ok(None) };
        if flat.per_thread() < LEAST || self.flat(half.of)? != *flat {
            return Ok(None);
        }
        let elem = self.elem(half.of)?;
        let Some(mut words) = self.words_there(half, elem)? else { return Ok(None) };
        for i in (1..flat.registers.len()).rev().filter(|i| on_axis(flat.registers[*i])) {
            let low = (0..words.len()).filter(|r| r >> (i - 1) & 1 == 0);
            words = low.map(|r| self.picked(picks, elem, words[r], words[r | 1 << (i - 1)])).collect::<Res<_>>()?;
        }
        let words: Vec<_> = words.into_iter().map(Into::into).collect();
        let mut parts: Vec<Part<'c>> = vec![];
        for v in self.unpack(&words, elem)? {
            parts.push(vec![self.wide(v, elem)?.into()]);
        }
        if on_axis(flat.registers[0]) {
            parts = parts.chunks(2).map(|c| self.combine(op, &[Elem::F32], &c[0], &c[1])).collect::<Res<_>>()?;
        }
        Ok(Some(parts))
    }
    /// Two elements per word, infinities outside of the mask; `None` if the mask differs within a pair.
    fn words_there(&mut self, half: Half, elem: Elem) -> Res<Option<Vec<IntValue<'c>>>> {
        let values = self.plain(half.of)?;
        let words = self.pack(&values, elem, Words { words: values.len() / 2, bits: 32 })?;
        let words: Vec<IntValue<'c>> = words.into_iter().map(int).collect::<Res<_>>()?;
        let Some((mask, infinity)) = half.outside else { return Ok(Some(words)) };
        let masks: Vec<IntValue<'c>> = self.regs(mask)?.iter().map(|r| r.condition()).collect::<Res<_>>()?;
        if masks.len() != values.len() || masks.chunks(2).any(|m| m[0] != m[1]) {
            return Ok(None);
        }
        let bits = if elem == Elem::F16 { 0x7c00 } else { 0x7f80 } | if infinity < 0.0 { 0x8000 } else { 0 };
        let outside = self.e.int(bits << 16 | bits);
        let there = words.iter().zip(masks.chunks(2)).map(|(w, m)| self.e.iselect(m[0], *w, outside));
        Ok(Some(there.collect::<Res<_>>()?))
    }
    /// The larger or smaller of each of two pairs.
    fn picked(&self, picks: &str, elem: Elem, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        let text = format!("{picks}.{elem}x2 $0, $1, $2;");
        let v = self.e.asm(&text, "=r,r,r", Some(self.e.i32().into()), &[a.into(), b.into()], false, false)?;
        int(v.ok_or_else(|| mistyped("a maximum"))?)
    }
}
