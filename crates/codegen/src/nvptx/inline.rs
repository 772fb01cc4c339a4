//! Inline assembly of a program, as LLVM's: elements go to registers by the constraints, packed where they are narrower
//! than 32 bits, and the text is repeated for each `pack` of a thread's elements.
//!
//! A thread executes the text for the elements that its layout gives it, copies too. LLVM sees no more of the text than
//! its constraints.
use super::emit::{Emit, Fail, GLOBAL, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::{Memo, Reg};
use inkwell::types::{BasicTypeEnum, IntType};
use inkwell::values::IntValue;
use kiln_block::{Assembly, Effects, Elem, InstData, Register, Registers, Type, Value};

/// Elements that share a register.
struct Packed {
    count: usize,
    /// Bits of each.
    bits: u32,
}

impl Packed {
    fn of(assembly: &Assembly, ty: &Type) -> Packed {
        let bits = match ty {
            Type::Block { elem, .. } => 8 * elem.bytes() as u32,
            _ => 64,
        };
        Packed { count: assembly.elements_per_register(ty) as usize, bits }
    }
}

impl<'c> Gen<'c, '_> {
    pub fn inline(&mut self, data: &InstData, assembly: &Assembly) -> Res<()> {
        let registers = assembly.registers().map_err(Fail::Defect)?;
        let volatile = assembly.effects == Effects::Volatile;
        let on_blocks = data.args.iter().any(|v| !self.k.ty(*v).is_scalar());
        if volatile && on_blocks {
            // The text may access what other threads have written, or have yet to read.
            self.sync()?;
            self.scratch.synced();
            self.reads.clear();
            self.wrote = false;
        }
        let operands: Vec<Vec<Reg<'c>>> = data.args.iter().map(|v| self.regs(*v)).collect::<Res<_>>()?;
        let count = self.flat(data.results[0])?.per_thread();
        let types: Vec<BasicTypeEnum<'c>> = registers.results.iter().map(|r| self.type_of(*r)).collect::<Res<_>>()?;
        let result = match types[..] {
            [one] => one,
            _ => self.e.cx.struct_type(&types, false).into(),
        };
        let constraints = assembly.llvm_constraints();
        let mut found: Vec<Vec<Reg<'c>>> = vec![vec![]; data.results.len()];
        for first in (0..count).step_by(assembly.pack as usize) {
            self.memo = Memo::default();
            // A group that is not full repeats its first element.
            let group: Vec<usize> =
                (first..first + assembly.pack as usize).map(|at| if at < count { at } else { first }).collect();
            let mut inputs = vec![];
            for (v, elements) in data.args.iter().zip(&operands) {
                let elements: Vec<Reg<'c>> = group.iter().map(|at| elements[*at]).collect();
                self.pack_operand((assembly, &registers), *v, &elements, &mut inputs)?;
            }
            let output = self.e.asm(&assembly.text, &constraints, Some(result), &inputs, volatile, volatile)?;
            let output = output.ok_or_else(|| mistyped("inline assembly"))?;
            let mut fields = self.e.fields(output, types.len())?.into_iter();
            for (v, found) in data.results.iter().zip(&mut found) {
                let all = self.unpack_result(assembly, *v, &mut fields)?;
                found.extend(all.into_iter().take(count - first));
            }
        }
        for (v, regs) in data.results.iter().zip(found) {
            self.set(*v, regs);
        }
        self.wrote |= volatile;
        Ok(())
    }
    /// Appends the registers of a group of elements.
    fn pack_operand(
        &mut self,
        (assembly, registers): (&Assembly, &Registers),
        v: Value,
        elements: &[Reg<'c>],
        inputs: &mut Vec<Val<'c>>,
    ) -> Res<()> {
        let ty = self.k.ty(v);
        let packed = Packed::of(assembly, ty);
        let signed = matches!(ty, Type::Block { elem, .. } if elem.is_int() && elem.is_signed());
        for together in elements.chunks(packed.count) {
            let wide = bits_type(&self.e, packed.bits * packed.count as u32);
            let mut bits = self.element_bits(&together[0], packed.bits)?;
            if packed.count > 1 {
                bits = self.e.zext(bits, wide)?;
            }
            for (n, element) in together.iter().enumerate().skip(1) {
                let element = self.element_bits(element, packed.bits)?;
                let element = self.e.zext(element, wide)?;
                let place = self.e.int_of(wide, i64::from(packed.bits) * n as i64);
                bits = self.e.or(bits, self.e.shl(element, place)?)?;
            }
            let missing = || mistyped("an operand of assembly");
            let register = match registers.operands.get(inputs.len()).copied().ok_or_else(missing)? {
                Register::Same(n) => registers.results.get(n).copied().ok_or_else(missing)?,
                other => other,
            };
            let input = self.in_register(bits, register, signed && packed.count == 1)?;
            inputs.push(input);
        }
        Ok(())
    }
    /// Bits as a register's type: extended, or cut.
    fn in_register(&self, bits: IntValue<'c>, register: Register, signed: bool) -> Res<Val<'c>> {
        let e = &self.e;
        if register == Register::Immediate {
            if !bits.is_const() {
                let what = "inline assembly with a constraint `n` for a value that is not constant";
                return Err(Fail::Unsupported(what.into()));
            }
            return Ok(bits.into());
        }
        let ty = self.type_of(register)?;
        let word = int_type(e, register);
        let (from, to) = (bits.get_type().get_bit_width(), word.get_bit_width());
        let word = match (from < to, signed) {
            (true, true) => e.sext(bits, word)?,
            (true, false) => e.zext(bits, word)?,
            (false, _) => e.trunc(bits, word)?,
        };
        e.bitcast(word.into(), ty)
    }
    /// The elements of a group from the next fields of a text's result.
    fn unpack_result(
        &mut self,
        assembly: &Assembly,
        v: Value,
        fields: &mut impl Iterator<Item = Val<'c>>,
    ) -> Res<Vec<Reg<'c>>> {
        let packed = Packed::of(assembly, self.k.ty(v));
        let mut all = vec![];
        for _ in 0..assembly.pack as usize / packed.count {
            let field = fields.next().ok_or_else(|| mistyped("a result of assembly"))?;
            let bits = self.value_bits(field)?;
            for n in 0..packed.count {
                let width = bits.get_type();
                let place = self.e.int_of(width, i64::from(packed.bits) * n as i64);
                let moved = if n == 0 { bits } else { self.e.lshr(bits, place)? };
                all.push(self.of_bits(v, moved, packed.bits)?);
            }
        }
        Ok(all)
    }
    /// An element as so many bits.
    fn element_bits(&mut self, element: &Reg<'c>, bits: u32) -> Res<IntValue<'c>> {
        let value = element.plain(&self.e, &mut self.memo)?;
        let found = self.value_bits(value)?;
        self.e.zext(found, bits_type(&self.e, bits))
    }
    fn value_bits(&self, value: Val<'c>) -> Res<IntValue<'c>> {
        let e = &self.e;
        match value {
            Val::IntValue(bits) => Ok(bits),
            Val::PointerValue(p) => Ok(e.b.build_ptr_to_int(p, e.i64(), "")?),
            Val::FloatValue(f) => int(e.bitcast(f.into(), bits_type(e, f.get_type().get_bit_width()))?),
            other => Err(mistyped(&format!("inline assembly on {}", other.get_type()))),
        }
    }
    /// The lowest bits as an element of a block.
    fn of_bits(&self, v: Value, bits: IntValue<'c>, width: u32) -> Res<Reg<'c>> {
        let e = &self.e;
        let word = bits_type(e, width);
        let bits = if bits.get_type().get_bit_width() < width { e.zext(bits, word)? } else { e.trunc(bits, word)? };
        let value: Val<'c> = match self.k.ty(v) {
            Type::Ptr { .. } => e.b.build_int_to_ptr(bits, e.ptr(GLOBAL), "")?.into(),
            Type::Block { elem: Elem::Bool, .. } => e.trunc(bits, e.i1())?.into(),
            Type::Block { elem, .. } => e.bitcast(bits.into(), e.elem(*elem))?,
            other => return Err(mistyped(&format!("inline assembly that gives {other}"))),
        };
        Ok(self.register(v, value))
    }
    /// LLVM's type of a register.
    fn type_of(&self, register: Register) -> Res<BasicTypeEnum<'c>> {
        Ok(match register {
            Register::Float32 => self.e.f32().into(),
            Register::Float64 => self.e.cx.f64_type().into(),
            Register::Immediate | Register::Same(_) => return Err(mistyped("a register of assembly")),
            bits => int_type(&self.e, bits).into(),
        })
    }
}

/// The integer with a register's bits.
fn int_type<'c>(e: &Emit<'c>, register: Register) -> IntType<'c> {
    match register {
        Register::Predicate => e.i1(),
        Register::Bits16 => e.cx.i16_type(),
        Register::Bits64 | Register::Float64 => e.i64(),
        Register::Bits32 | Register::Float32 | Register::Immediate | Register::Same(_) => e.i32(),
    }
}

/// An integer of 8, 16, 32 or 64 bits.
fn bits_type<'c>(e: &Emit<'c>, bits: u32) -> IntType<'c> {
    match bits {
        8 => e.i8(),
        16 => e.cx.i16_type(),
        64 => e.i64(),
        _ => e.i32(),
    }
}
