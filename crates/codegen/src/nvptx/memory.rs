//! Loads and stores: registers that lie together in memory go in one access of up to 16 bytes.
//!
//! Masks are predicates of the accesses themselves, so a thread's loads stay independent. Where the mask may differ between
//! neighbours (a tail that no vector divides), one branch decides for the whole block: wide where all its elements are in,
//! element by element otherwise.
use super::emit::{Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::{Pointer, Reg};
use inkwell::types::{BasicType, BasicTypeEnum, IntType};
use inkwell::values::{IntValue, PointerValue};
use kiln_block::{Elem, InstData};

/// Registers `first .. first + n` in one access, all under the same condition.
struct Access<'c> {
    first: usize,
    n: usize,
    ptr: Pointer<'c>,
    mask: Option<IntValue<'c>>,
}

/// How bytes of one access travel: `words` registers of `bits`.
#[derive(Clone, Copy)]
struct Words {
    words: usize,
    bits: usize,
}
impl Words {
    fn of(bytes: usize, elem: Elem) -> Words {
        let bits = match bytes {
            1 | 2 => bytes * 8,
            _ if elem.bytes() == 8 => 64,
            _ => 32,
        };
        Words { words: bytes * 8 / bits, bits }
    }
    /// Constraint of a register, and the PTX type.
    fn asm(self) -> (char, String) {
        let letter = match self.bits {
            64 => 'l',
            16 => 'h',
            _ => 'r',
        };
        let vector = if self.words > 1 { format!(".v{}", self.words) } else { String::new() };
        let ty = if self.bits == 8 { "u8".into() } else { format!("b{}", self.bits) };
        (letter, format!("{vector}.{ty}"))
    }
}

impl<'c> Gen<'c, '_> {
    pub fn load(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let pointers = self.pointers(data)?;
        let masks = self.masks(data.args.get(1).copied())?;
        if self.wrote && !pointers.iter().all(|p| p.readonly) {
            self.sync()?;
            self.scratch.synced();
            self.wrote = false;
        }
        let elem = self.elem(data.results[0])?;
        let others = match data.args.get(2) {
            Some(o) => Some(self.plain(*o)?),
            None => None,
        };
        let (width, split) = width(&pointers, masks.as_deref());
        let values = match (split, &masks) {
            (true, Some(masks)) => self.either(masks, |g, masks| {
                let n = if masks.is_none() { width } else { 1 };
                g.load_all(&pointers, masks, others.as_deref(), elem, n)
            })?,
            _ => self.load_all(&pointers, masks.as_deref(), others.as_deref(), elem, width)?,
        };
        Ok(values.into_iter().map(|v| Reg::of(v, elem)).collect())
    }
    pub fn store(&mut self, data: &InstData) -> Res<()> {
        let pointers = self.pointers(data)?;
        let values = self.plain(data.args[1])?;
        let mut masks = self.masks(data.args.get(2).copied())?;
        let elem = self.elem(data.args[1])?;
        let flat = self.flat(data.args[0])?;
        if let Some(first) = self.first_copy(&flat)? {
            let mut both = vec![];
            let mut last: Option<(IntValue<'c>, IntValue<'c>)> = None;
            for m in masks.unwrap_or_else(|| vec![self.e.bool(true); pointers.len()]) {
                let v = match last {
                    Some((of, v)) if of == m => v,
                    _ => self.e.and(m, first)?,
                };
                last = Some((m, v));
                both.push(v);
            }
            masks = Some(both);
        }
        self.wrote = true;
        let (width, split) = width(&pointers, masks.as_deref());
        match (split, &masks) {
            (true, Some(masks)) => {
                self.either(masks, |g, masks| {
                    let n = if masks.is_none() { width } else { 1 };
                    g.store_all(&pointers, &values, masks, elem, n)?;
                    Ok(vec![])
                })?;
                Ok(())
            }
            _ => self.store_all(&pointers, &values, masks.as_deref(), elem, width),
        }
    }
    fn pointers(&mut self, data: &InstData) -> Res<Vec<Pointer<'c>>> {
        self.regs(data.args[0])?.iter().map(|r| r.pointer()).collect()
    }
    /// One condition per register; `None` if there is no mask or it is always true.
    fn masks(&mut self, v: Option<kiln_block::Value>) -> Res<Option<Vec<IntValue<'c>>>> {
        let Some(v) = v else { return Ok(None) };
        let masks: Vec<IntValue<'c>> = self.regs(v)?.iter().map(|r| r.condition()).collect::<Res<_>>()?;
        let always = masks.iter().all(|m| m.get_zero_extended_constant() == Some(1));
        Ok((!always).then_some(masks))
    }
    /// Two ways, joined by phis: without masks where all hold, else with them.
    fn either(
        &mut self,
        masks: &[IntValue<'c>],
        mut way: impl FnMut(&mut Self, Option<&[IntValue<'c>]>) -> Res<Vec<Val<'c>>>,
    ) -> Res<Vec<Val<'c>>> {
        let mut all: Option<IntValue<'c>> = None;
        let mut seen: Vec<IntValue<'c>> = vec![];
        for m in masks {
            if !seen.contains(m) {
                seen.push(*m);
                all = Some(all.map_or(Ok(*m), |a| self.e.and(a, *m))?);
            }
        }
        let all = all.ok_or_else(|| mistyped("a mask"))?;
        let (wide, narrow, join) = (self.new_block("wide"), self.new_block("narrow"), self.new_block("join"));
        self.e.b.build_conditional_branch(all, wide, narrow)?;
        let mut ends = vec![];
        for (block, masks) in [(wide, None), (narrow, Some(masks))] {
            self.e.b.position_at_end(block);
            let values = way(self, masks)?;
            ends.push((values, self.block()?));
            self.e.b.build_unconditional_branch(join)?;
        }
        self.e.b.position_at_end(join);
        let (a, b) = (&ends[0], &ends[1]);
        a.0.iter()
            .zip(&b.0)
            .map(|(x, y)| {
                let phi = self.e.b.build_phi(x.get_type(), "")?;
                phi.add_incoming(&[(x, a.1), (y, b.1)]);
                Ok(phi.as_basic_value())
            })
            .collect()
    }
    fn load_all(
        &mut self,
        pointers: &[Pointer<'c>],
        masks: Option<&[IntValue<'c>]>,
        others: Option<&[Val<'c>]>,
        elem: Elem,
        width: usize,
    ) -> Res<Vec<Val<'c>>> {
        let mut values = vec![];
        let mut done: Vec<(Pointer<'c>, Option<IntValue<'c>>, Vec<Val<'c>>)> = vec![];
        for a in accesses(pointers, masks, width) {
            // Registers along a broadcast axis read the same address.
            let known = done.iter().rev().take(8).find(|d| others.is_none() && d.0 == a.ptr && d.1 == a.mask);
            if let Some((_, _, same)) = known {
                values.extend_from_slice(&same.clone());
                continue;
            }
            let other = others.map(|o| &o[a.first..a.first + a.n]);
            let loaded = self.load_one(&a, other, elem)?;
            values.extend_from_slice(&loaded);
            done.push((a.ptr, a.mask, loaded));
        }
        Ok(values)
    }
    fn load_one(&mut self, a: &Access<'c>, other: Option<&[Val<'c>]>, elem: Elem) -> Res<Vec<Val<'c>>> {
        let bytes = a.n * elem.bytes();
        let w = Words::of(bytes, elem);
        let word = self.word(w);
        let Some(mask) = a.mask else {
            let ty: BasicTypeEnum = if w.words > 1 { word.vec_type(w.words as u32).into() } else { word.into() };
            let v = self.e.load(ty, a.ptr.value(&self.e)?, bytes, a.ptr.readonly)?;
            let words = (0..w.words).map(|i| if w.words > 1 { self.e.element(v, i) } else { Ok(v) });
            let words = words.collect::<Res<Vec<_>>>()?;
            return self.unpack(&words, elem);
        };
        let init = match other {
            Some(o) => self.pack(o, elem, w)?,
            None => vec![word.const_zero().into(); w.words],
        };
        // Eight bits travel in a register of 32.
        let wide = |v: Val<'c>| if w.bits == 8 { Ok(self.e.zext(int(v)?, self.e.i32())?.into()) } else { Ok(v) };
        let init: Vec<Val<'c>> = init.into_iter().map(wide).collect::<Res<_>>()?;
        let (letter, ty) = w.asm();
        let names: Vec<String> = (0..w.words).map(|i| format!("${i}")).collect();
        let target = if w.words > 1 { format!("{{{}}}", names.join(", ")) } else { names[0].clone() };
        let cache = if a.ptr.readonly { ".nc" } else { "" };
        let offset = a.ptr.off * elem.bytes() as i64;
        let text = format!("@${} ld.global{cache}{ty} {target}, [${} + {offset}];", w.words, w.words + 1);
        let outs = vec![format!("={letter}"); w.words].join(",");
        let ties: Vec<String> = (0..w.words).map(|i| i.to_string()).collect();
        let memory = if a.ptr.readonly { "" } else { ",~{memory}" };
        let constraints = format!("{outs},b,l,{}{memory}", ties.join(","));
        let one = init[0].get_type();
        let result: BasicTypeEnum =
            if w.words > 1 { self.e.cx.struct_type(&vec![one; w.words], false).into() } else { one };
        let mut args: Vec<Val<'c>> = vec![mask.into(), a.ptr.base.into()];
        args.extend(init);
        let v = self.e.asm(&text, &constraints, Some(result.as_basic_type_enum()), &args, !a.ptr.readonly, false)?;
        let words = self.e.fields(v.ok_or_else(|| mistyped("a load"))?, w.words)?;
        let narrow = |v: Val<'c>| if w.bits == 8 { Ok(self.e.trunc(int(v)?, self.e.i8())?.into()) } else { Ok(v) };
        let words: Vec<Val<'c>> = words.into_iter().map(narrow).collect::<Res<_>>()?;
        self.unpack(&words, elem)
    }
    fn store_all(
        &mut self,
        pointers: &[Pointer<'c>],
        values: &[Val<'c>],
        masks: Option<&[IntValue<'c>]>,
        elem: Elem,
        width: usize,
    ) -> Res<()> {
        for a in accesses(pointers, masks, width) {
            let bytes = a.n * elem.bytes();
            let w = Words::of(bytes, elem);
            let words = self.pack(&values[a.first..a.first + a.n], elem, w)?;
            let Some(mask) = a.mask else {
                let v = self.e.vector(&words)?;
                self.e.store(v, a.ptr.value(&self.e)?, bytes)?;
                continue;
            };
            let (letter, ty) = w.asm();
            let names: Vec<String> = (0..w.words).map(|i| format!("${}", i + 2)).collect();
            let source = if w.words > 1 { format!("{{{}}}", names.join(", ")) } else { names[0].clone() };
            let offset = a.ptr.off * elem.bytes() as i64;
            let text = format!("@$0 st.global{ty} [$1 + {offset}], {source};");
            let constraints = format!("b,l,{},~{{memory}}", vec![letter.to_string(); w.words].join(","));
            let mut args: Vec<Val<'c>> = vec![mask.into(), a.ptr.base.into()];
            for v in words {
                args.push(if w.bits == 8 { self.e.zext(int(v)?, self.e.i32())?.into() } else { v });
            }
            self.e.asm(&text, &constraints, None, &args, true, false)?;
        }
        Ok(())
    }
    fn word(&self, w: Words) -> IntType<'c> {
        match w.bits {
            8 => self.e.i8(),
            16 => self.e.cx.i16_type(),
            64 => self.e.i64(),
            _ => self.e.i32(),
        }
    }
    /// `values.len()` elements to or from `ptr` in shared memory (`bytes` of them in one access).
    pub fn shared_store(&mut self, ptr: PointerValue<'c>, values: &[Val<'c>], elem: Elem) -> Res<()> {
        let bytes = values.len() * elem.bytes();
        let words = self.pack(values, elem, Words::of(bytes, elem))?;
        let v = self.e.vector(&words)?;
        self.e.store(v, ptr, bytes)
    }
    pub fn shared_load(&mut self, ptr: PointerValue<'c>, n: usize, elem: Elem) -> Res<Vec<Val<'c>>> {
        let bytes = n * elem.bytes();
        let w = Words::of(bytes, elem);
        let word = self.word(w);
        let ty: BasicTypeEnum = if w.words > 1 { word.vec_type(w.words as u32).into() } else { word.into() };
        let v = self.e.load(ty, ptr, bytes, false)?;
        let words = (0..w.words).map(|i| if w.words > 1 { self.e.element(v, i) } else { Ok(v) });
        let words = words.collect::<Res<Vec<_>>>()?;
        self.unpack(&words, elem)
    }
    /// Elements from words.
    fn unpack(&self, words: &[Val<'c>], elem: Elem) -> Res<Vec<Val<'c>>> {
        let memory = super::index::memory_type(&self.e, elem);
        let mut out = vec![];
        for w in words {
            let bits = int(*w)?.get_type().get_bit_width() as usize;
            let per = bits / (8 * elem.bytes());
            if per <= 1 {
                out.push(self.e.bitcast(*w, memory)?);
                continue;
            }
            let ty = vector_of(memory, per)?;
            let v = self.e.bitcast(*w, ty)?;
            for i in 0..per {
                out.push(self.e.element(v, i)?);
            }
        }
        if elem == Elem::Bool {
            let zero = self.e.i8().const_zero();
            for v in &mut out {
                *v = self.e.icmp(inkwell::IntPredicate::NE, int(*v)?, zero)?.into();
            }
        }
        Ok(out)
    }
    /// Words from elements.
    fn pack(&self, values: &[Val<'c>], elem: Elem, w: Words) -> Res<Vec<Val<'c>>> {
        let mut bytes = values.to_vec();
        if elem == Elem::Bool {
            for v in &mut bytes {
                *v = self.e.zext(int(*v)?, self.e.i8())?.into();
            }
        }
        let word = self.word(w);
        bytes.chunks(values.len() / w.words).map(|part| self.e.bitcast(self.e.vector(part)?, word)).collect()
    }
}

fn vector_of(ty: BasicTypeEnum, n: usize) -> Res<BasicTypeEnum> {
    match ty {
        BasicTypeEnum::IntType(t) => Ok(t.vec_type(n as u32).into()),
        BasicTypeEnum::FloatType(t) => Ok(t.vec_type(n as u32).into()),
        _ => Err(mistyped("a vector")),
    }
}

/// The most registers that one access can take throughout, and whether masks differ within such groups.
fn width<'c>(pointers: &[Pointer<'c>], masks: Option<&[IntValue<'c>]>) -> (usize, bool) {
    let Some(elem) = pointers.first().map(|p| p.elem) else { return (1, false) };
    let together = |n: usize| {
        pointers.chunks(n).all(|c| {
            let bytes = (n * elem.bytes()) as i64;
            let run = c.iter().enumerate().all(|(i, p)| p.base == c[0].base && p.off == c[0].off + i as i64);
            run && c[0].align as i64 % bytes == 0 && (c[0].off * elem.bytes() as i64) % bytes == 0
        })
    };
    let mut n = 1;
    while n * 2 * elem.bytes() <= 16 && pointers.len().is_multiple_of(n * 2) && together(n * 2) {
        n *= 2;
    }
    let alike = |masks: &[IntValue<'c>], n: usize| masks.chunks(n).all(|c| c.iter().all(|m| *m == c[0]));
    match masks {
        None => (n, false),
        Some(masks) if alike(masks, n) => (n, false),
        // Half a vector, or pairs, are worth no branch.
        Some(masks) if n > 1 && alike(masks, n / 2) && n / 2 * elem.bytes() >= 4 => (n / 2, false),
        Some(_) if n * elem.bytes() <= 4 => (1, false),
        Some(_) => (n, true),
    }
}

fn accesses<'c, 'a>(
    pointers: &'a [Pointer<'c>],
    masks: Option<&'a [IntValue<'c>]>,
    n: usize,
) -> impl Iterator<Item = Access<'c>> + 'a {
    pointers.chunks(n).enumerate().map(move |(i, c)| Access {
        first: i * n,
        n,
        ptr: c[0],
        mask: masks.map(|m| m[i * n]).filter(|m| m.get_zero_extended_constant() != Some(1)),
    })
}
