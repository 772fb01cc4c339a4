//! `print` and `assert`: calls of functions that the driver provides, `vprintf` and `__assertfail` (PTX interoperability
//! guide, "System calls"). The first of the threads that have an element writes it.
use super::emit::{Res, mistyped};
use super::r#gen::Gen;
use inkwell::AddressSpace;
use inkwell::types::BasicTypeEnum;
use inkwell::values::{BasicMetadataValueEnum, BasicValueEnum as Val, IntValue, PointerValue};
use kiln_block::{Elem, InstData, Type, Value};

impl<'c> Gen<'c, '_> {
    pub fn print(&mut self, data: &InstData, text: &str) -> Res<()> {
        if data.args.is_empty() {
            let scalar = kiln_block::layout::Flat::scalar(self.warp_bits());
            let first = self.first_copy(&scalar)?;
            let position = self.position()?;
            let format = format!("pid (%d, %d, %d) {}\n", escaped(text));
            return self.when(first, |g| g.printed(&format, &position));
        }
        let (value, text) = (data.args[0], escaped(text));
        let masks = self.masks(data.args.get(1).copied())?;
        let (flat, shape) = (self.flat(value)?, self.k.ty(value).shape().to_vec());
        let mut at = vec![];
        for axis in 0..shape.len() {
            let along = self.coordinates(&flat, &shape, axis)?;
            let along = along.iter().map(|i| i.value(&self.e, &mut self.memo)).collect::<Res<Vec<_>>>()?;
            at.push(along);
        }
        let holes = vec!["%d"; shape.len()].join(", ");
        let position = self.position()?;
        let shown = self.plain(value)?.into_iter().map(|v| self.shown(value, v)).collect::<Res<Vec<_>>>()?;
        let first = self.first_copy(&flat)?;
        self.when(first, |g| {
            for (r, (hole, v)) in shown.iter().enumerate() {
                let format = format!("pid (%d, %d, %d) idx ({holes}) {text} {hole}\n");
                let coordinates = at.iter().map(|along| Val::from(along[r]));
                let all: Vec<Val> = position.iter().copied().chain(coordinates).chain([*v]).collect();
                g.when(masks.as_ref().map(|m| m[r]), |g| g.printed(&format, &all))?;
            }
            Ok(())
        })
    }
    fn position(&mut self) -> Res<Vec<Val<'c>>> {
        (0..3).map(|axis| self.program_id(axis)?.plain(&self.e, &mut self.memo)).collect()
    }
    /// How `vprintf` takes a number: as a double, or 64 bits.
    fn shown(&self, value: Value, v: Val<'c>) -> Res<(&'static str, Val<'c>)> {
        let e = &self.e;
        Ok(match (self.k.ty(value), v) {
            (_, Val::PointerValue(p)) => ("%llu", e.b.build_ptr_to_int(p, e.i64(), "")?.into()),
            (_, Val::FloatValue(x)) => ("%f", e.b.build_float_cast(x, e.cx.f64_type(), "")?.into()),
            (Type::Block { elem, .. }, Val::IntValue(i)) => {
                let signed = elem.is_signed() && *elem != Elem::Bool;
                let wide = if signed {
                    e.b.build_int_s_extend_or_bit_cast(i, e.i64(), "")?
                } else {
                    e.b.build_int_z_extend_or_bit_cast(i, e.i64(), "")?
                };
                (if signed { "%lld" } else { "%llu" }, wide.into())
            }
            _ => return Err(mistyped("a printed value")),
        })
    }
    /// Calls `vprintf`, whose arguments are the fields of a struct.
    fn printed(&mut self, format: &str, values: &[Val<'c>]) -> Res<()> {
        let e = &self.e;
        let types: Vec<BasicTypeEnum> = values.iter().map(|v| v.get_type()).collect();
        let fields = e.cx.struct_type(&types, false);
        let here = self.block()?;
        if let Some(entry) = self.function.get_first_basic_block() {
            match entry.get_first_instruction() {
                Some(first) => e.b.position_before(&first),
                None => e.b.position_at_end(entry),
            }
        }
        let slot = e.b.build_alloca(fields, "")?;
        e.b.position_at_end(here);
        for (n, v) in values.iter().enumerate() {
            let field = e.b.build_struct_gep(fields, slot, n as u32, "")?;
            e.b.build_store(field, *v)?;
        }
        let format = self.text(format)?;
        self.system("vprintf", true, &[format.into(), slot.into()])
    }

    pub fn assert(&mut self, data: &InstData, text: &str) -> Res<()> {
        let [holds, ref mask @ ..] = data.args[..] else { return Err(mistyped("an assertion")) };
        let mask = self.masks(mask.first().copied())?;
        let holds = self.regs(holds)?.iter().map(|r| r.condition()).collect::<Res<Vec<_>>>()?;
        let mut fails: Option<IntValue<'c>> = None;
        for (r, holds) in holds.into_iter().enumerate() {
            let bad = self.e.not(holds)?;
            let bad = mask.as_ref().map_or(Ok(bad), |m| self.e.and(bad, m[r]))?;
            fails = Some(fails.map_or(Ok(bad), |all| self.e.or(all, bad))?);
        }
        let name = self.k.name.clone();
        self.when(fails, |g| {
            let (message, file) = (g.text(text)?, g.text("")?);
            let function = g.text(&name)?;
            let (line, char_size) = (g.e.int(0), g.e.int_of(g.e.i64(), 1));
            let all: [Val; 5] = [message.into(), file.into(), line.into(), function.into(), char_size.into()];
            g.system("__assertfail", false, &all)
        })
    }

    /// The generic address of a text.
    fn text(&self, text: &str) -> Res<PointerValue<'c>> {
        let e = &self.e;
        let bytes = e.cx.const_string(text.as_bytes(), true);
        let global = e.module.add_global(bytes.get_type(), Some(AddressSpace::from(super::emit::GLOBAL)), "_text");
        global.set_initializer(&bytes);
        global.set_constant(true);
        global.set_linkage(inkwell::module::Linkage::Internal);
        Ok(e.b.build_address_space_cast(global.as_pointer_value(), e.ptr(0), "")?)
    }
    /// Calls a function of the driver.
    fn system(&self, name: &str, gives_int: bool, args: &[Val<'c>]) -> Res<()> {
        let e = &self.e;
        let types: Vec<_> = args.iter().map(|a| a.get_type().into()).collect();
        let ty = if gives_int { e.i32().fn_type(&types, false) } else { e.cx.void_type().fn_type(&types, false) };
        let function = e.module.get_function(name).unwrap_or_else(|| e.module.add_function(name, ty, None));
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|a| (*a).into()).collect();
        e.b.build_call(function, &args, "")?;
        Ok(())
    }
}

/// A text in a format.
fn escaped(text: &str) -> String {
    text.replace('%', "%%")
}
