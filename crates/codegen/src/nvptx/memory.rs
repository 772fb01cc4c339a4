//! Loads and stores: registers that are adjacent in memory go in one access of up to 16 bytes.
//!
//! Masks are predicates of the accesses themselves, so a thread's loads stay independent. If the mask differs between
//! the elements of one access, a row or the buffer ends there: a load reads all of it, and a store writes by element,
//! behind a branch that few threads take. Buffers can be read up to the next multiple of 16 bytes.
use super::emit::{Res, Val, int, is_zero, mistyped};
use super::gathered::Gathered;
use super::r#gen::Gen;
use super::index::{Pointer, Reg};
use super::words::Words;
use inkwell::types::{BasicType, BasicTypeEnum, IntType};
use inkwell::values::{IntValue, PointerValue};
use kiln_block::{CachePolicy, Elem, InstData, LoadMode, Op};

/// When the elements of one access are inside the mask.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum When<'c> {
    Always,
    Never,
    If(IntValue<'c>),
    /// Each under its own condition.
    Each(Vec<IntValue<'c>>),
}
impl<'c> When<'c> {
    pub fn of(masks: Option<&[IntValue<'c>]>) -> When<'c> {
        let Some(masks) = masks else { return When::Always };
        if masks.iter().any(|m| *m != masks[0]) {
            return When::Each(masks.to_vec());
        }
        match masks[0].get_zero_extended_constant() {
            Some(0) => When::Never,
            Some(_) => When::Always,
            None => When::If(masks[0]),
        }
    }
}

/// Pointers, values and conditions, one of each per register.
type Written<'c> = (Vec<Pointer<'c>>, Vec<Val<'c>>, Option<Vec<IntValue<'c>>>);

/// How the registers of a block are divided into accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Split {
    /// In groups of this many registers that are aligned to their size.
    Groups(usize),
    /// In unaligned groups of 16 bytes.
    Unaligned(usize),
}

impl<'c> Gen<'c, '_> {
    pub fn load(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let Op::Load(mode, cache) = data.op else { return Err(mistyped("a load")) };
        let pointers: Vec<_> = self.pointers(data)?.into_iter().map(|p| Pointer { cache, ..p }).collect();
        let masks = self.masks(data.args.get(1).copied())?;
        let unwritten = pointers.iter().all(|p| p.readonly) || self.reads.is_unwritten(self.k, data.args[0]);
        if self.wrote && !unwritten {
            self.sync()?;
            self.scratch.synced();
            self.wrote = false;
            self.reads.clear();
        }
        self.reads.load(data.args[0], self.flat(data.args[0])?);
        let elem = self.elem(data.results[0])?;
        let others = match data.args.get(2) {
            // Zeros are what is loaded where a mask does not hold.
            Some(o) => Some(self.plain(*o)?).filter(|all| !all.iter().all(is_zero)),
            None => None,
        };
        let values = self.load_all(&pointers, masks.as_deref(), others.as_deref(), elem, mode)?;
        let (Split::Groups(n) | Split::Unaligned(n)) = split(&pointers, masks.as_deref(), Some(mode));
        if n * elem.bytes() >= 4 {
            self.batch_loads(data.results[0], pointers.len() / n)?;
        }
        Ok(values.into_iter().map(|v| Reg::of(v, elem)).collect())
    }
    pub fn store(&mut self, data: &InstData) -> Res<()> {
        let elem = self.elem(data.args[1])?;
        let Op::Store(cache) = data.op else { return Err(mistyped("a store")) };
        self.after_reads(data.args[0])?;
        let (pointers, values, masks) = self.written(data)?;
        let pointers: Vec<_> = pointers.into_iter().map(|p| Pointer { cache, ..p }).collect();
        self.wrote = true;
        self.store_all(&pointers, &values, masks.as_deref(), elem)
    }
    /// Waits for loads of other threads that a write to these pointers may overwrite.
    pub fn after_reads(&mut self, pointer: kiln_block::Value) -> Res<()> {
        let flat = self.flat(pointer)?;
        if self.reads.waits(pointer, &flat) {
            self.sync()?;
            self.scratch.synced();
            self.reads.clear();
        }
        Ok(())
    }
    /// Pointers, values and conditions of what an instruction writes, each element by one thread.
    pub fn written(&mut self, data: &InstData) -> Res<Written<'c>> {
        let pointers = self.pointers(data)?;
        let values = self.plain(data.args[1])?;
        let mut masks = self.masks(data.args.get(2).copied())?;
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
        Ok((pointers, values, masks))
    }
    pub fn pointers(&mut self, data: &InstData) -> Res<Vec<Pointer<'c>>> {
        self.regs(data.args[0])?.iter().map(|r| r.pointer()).collect()
    }
    /// One condition per register; `None` if there is no mask or it is always true.
    pub fn masks(&mut self, v: Option<kiln_block::Value>) -> Res<Option<Vec<IntValue<'c>>>> {
        let Some(v) = v else { return Ok(None) };
        let masks: Vec<IntValue<'c>> = self.regs(v)?.iter().map(|r| r.condition()).collect::<Res<_>>()?;
        let always = masks.iter().all(|m| m.get_zero_extended_constant() == Some(1));
        Ok((!always).then_some(masks))
    }
    pub fn load_all(
        &mut self,
        pointers: &[Pointer<'c>],
        masks: Option<&[IntValue<'c>]>,
        others: Option<&[Val<'c>]>,
        elem: Elem,
        mode: LoadMode,
    ) -> Res<Vec<Val<'c>>> {
        let split = split(pointers, masks, Some(mode));
        let (Split::Groups(n) | Split::Unaligned(n)) = split;
        let count = || accesses(pointers, masks, n);
        if n * elem.bytes() < 16
            && others.is_none()
            && let Some(gathered) = Gathered::fewer(pointers, masks, count(), mode == LoadMode::Window)
        {
            return self.load_gathered(&gathered, elem);
        }
        let mut values: Vec<Vec<Val<'c>>> = vec![];
        let mut done: Vec<(Pointer<'c>, When<'c>)> = vec![];
        for (i, group) in pointers.chunks(n).enumerate() {
            let (ptr, when) = (group[0], When::of(masks.map(|m| &m[i * n..(i + 1) * n])));
            // Registers along a broadcast axis read the same address.
            let known = done.iter().enumerate().rev().take(8).find(|d| others.is_none() && *d.1 == (ptr, when.clone()));
            let loaded = match (known, split) {
                (Some((same, _)), _) => values[same].clone(),
                (None, Split::Unaligned(_)) => self.load_around(ptr, &when, elem, n)?,
                (None, Split::Groups(_)) => self.load_group(ptr, &when, elem, n)?,
            };
            values.push(loaded);
            done.push((ptr, when));
        }
        // All loads are issued before the first result is used.
        let mut out = vec![];
        for (i, (loaded, (ptr, when))) in values.into_iter().zip(done).enumerate() {
            let other = others.map(|o| &o[i * n..(i + 1) * n]);
            let around = matches!(split, Split::Unaligned(_));
            let loaded = if around { self.chosen_around(loaded, (ptr, &when), elem, n)? } else { loaded };
            out.extend(if around && other.is_none() { loaded } else { self.chosen(&when, loaded, other)? });
        }
        Ok(out)
    }
    /// A group in one access: all of it where any element is inside (of 16 aligned bytes all can be read if one can);
    /// zeros elsewhere.
    fn load_group(&mut self, ptr: Pointer<'c>, when: &When<'c>, elem: Elem, n: usize) -> Res<Vec<Val<'c>>> {
        let w = Words::of(n * elem.bytes(), elem);
        let mask = match when {
            When::Always => None,
            When::Never => Some(self.e.bool(false)),
            When::If(m) => Some(*m),
            When::Each(masks) => Some(self.any(masks)?),
        };
        let words = self.load_words(ptr, mask, w)?;
        self.unpack(&words, elem)
    }
    /// The values where the mask holds, otherwise `other`, or zeros.
    fn chosen(&mut self, when: &When<'c>, values: Vec<Val<'c>>, other: Option<&[Val<'c>]>) -> Res<Vec<Val<'c>>> {
        let e = &self.e;
        let pick = |m: IntValue<'c>, (i, v): (usize, &Val<'c>)| {
            e.select(m, *v, other.map_or_else(|| v.get_type().const_zero(), |o| o[i]))
        };
        match (when, other) {
            (When::Always, _) | (When::If(_) | When::Never, None) => Ok(values),
            (When::Never, Some(other)) => Ok(other.to_vec()),
            (When::If(m), Some(_)) => values.iter().enumerate().map(|v| pick(*m, v)).collect(),
            (When::Each(masks), _) if values.len() == 1 => values.iter().map(|v| pick(masks[0], (0, v))).collect(),
            (When::Each(masks), _) => {
                // Few threads are at an end of a row.
                let end = self.e.not(self.all(masks)?)?;
                self.in_part(end, values, |g, values| {
                    let mut chosen = vec![];
                    for (i, v) in values.iter().enumerate() {
                        let zero = v.get_type().const_zero();
                        chosen.push(g.e.select(masks[i], *v, other.map_or(zero, |o| o[i]))?);
                    }
                    Ok(chosen)
                })
            }
        }
    }
    /// The values, or those that `make` gives where `when` holds, which it does in few threads.
    pub fn in_part(
        &mut self,
        when: IntValue<'c>,
        values: Vec<Val<'c>>,
        make: impl FnOnce(&mut Self, &[Val<'c>]) -> Res<Vec<Val<'c>>>,
    ) -> Res<Vec<Val<'c>>> {
        let before = self.block()?;
        let (part, join) = (self.new_block("part"), self.new_block("join"));
        self.e.b.build_conditional_branch(when, part, join)?;
        self.e.b.position_at_end(part);
        let made = make(self, &values)?;
        let part = self.block()?;
        self.e.b.build_unconditional_branch(join)?;
        self.e.b.position_at_end(join);
        let joined = values.iter().zip(&made).map(|(whole, made)| {
            let phi = self.e.b.build_phi(whole.get_type(), "")?;
            phi.add_incoming(&[(whole, before), (made, part)]);
            Ok(phi.as_basic_value())
        });
        joined.collect()
    }
    /// Whether one of the conditions holds.
    pub fn any(&self, all: &[IntValue<'c>]) -> Res<IntValue<'c>> {
        all.iter().try_fold(self.e.bool(false), |any, m| self.e.or(any, *m))
    }
    /// Whether all of them do.
    pub fn all(&self, all: &[IntValue<'c>]) -> Res<IntValue<'c>> {
        all.iter().try_fold(self.e.bool(true), |all, m| self.e.and(all, *m))
    }
    /// The words at `ptr` in one access, zeros where `mask` does not hold.
    pub fn load_words(&mut self, ptr: Pointer<'c>, mask: Option<IntValue<'c>>, w: Words) -> Res<Vec<Val<'c>>> {
        let word = self.word(w);
        let init: Vec<Val<'c>> = vec![word.const_zero().into(); w.words];
        let bytes = w.words * w.bits / 8;
        // Not `ld.global.nc` while an earlier kernel may still write, nor where loads must stay in order: the assembler
        // moves it.
        let constant = ptr.readonly && !self.k.dependent && !self.in_turns;
        let normal = ptr.cache == CachePolicy::Normal;
        let mask = mask.or_else(|| (!normal).then(|| self.e.bool(true)));
        let Some(mask) = mask else {
            let ty: BasicTypeEnum = if w.words > 1 { word.vec_type(w.words as u32).into() } else { word.into() };
            let v = self.e.load(ty, ptr.value(&self.e)?, bytes, constant)?;
            let words = (0..w.words).map(|i| if w.words > 1 { self.e.element(v, i) } else { Ok(v) });
            return words.collect();
        };
        if mask.get_zero_extended_constant() == Some(0) {
            return Ok(init);
        }
        // 8 bits are held in a 32-bit register.
        let wide = |v: Val<'c>| if w.bits == 8 { Ok(self.e.zext(int(v)?, self.e.i32())?.into()) } else { Ok(v) };
        let init: Vec<Val<'c>> = init.into_iter().map(wide).collect::<Res<_>>()?;
        let (letter, ty) = w.asm();
        let names: Vec<String> = (0..w.words).map(|i| format!("${i}")).collect();
        let target = if w.words > 1 { format!("{{{}}}", names.join(", ")) } else { names[0].clone() };
        let cache = if constant { ".nc" } else { "" };
        let offset = ptr.off * ptr.elem.bytes() as i64;
        let [operator, priority] = ptx_policy(ptr.cache);
        let text =
            format!("@${} ld.global{operator}{cache}{priority}{ty} {target}, [${} + {offset}];", w.words, w.words + 1);
        let outs = vec![format!("={letter}"); w.words].join(",");
        let ties: Vec<String> = (0..w.words).map(|i| i.to_string()).collect();
        let memory = if ptr.readonly { "" } else { ",~{memory}" };
        let constraints = format!("{outs},b,l,{}{memory}", ties.join(","));
        let one = init[0].get_type();
        let result: BasicTypeEnum =
            if w.words > 1 { self.e.cx.struct_type(&vec![one; w.words], false).into() } else { one };
        let mut args: Vec<Val<'c>> = vec![mask.into(), ptr.base.into()];
        args.extend(init);
        let v = self.e.asm(&text, &constraints, Some(result.as_basic_type_enum()), &args, !ptr.readonly, false)?;
        let words = self.e.fields(v.ok_or_else(|| mistyped("a load"))?, w.words)?;
        let narrow = |v: Val<'c>| if w.bits == 8 { Ok(self.e.trunc(int(v)?, self.e.i8())?.into()) } else { Ok(v) };
        words.into_iter().map(narrow).collect()
    }
    fn store_all(
        &mut self,
        pointers: &[Pointer<'c>],
        values: &[Val<'c>],
        masks: Option<&[IntValue<'c>]>,
        elem: Elem,
    ) -> Res<()> {
        let (Split::Groups(n) | Split::Unaligned(n)) = split(pointers, masks, None);
        for (i, group) in pointers.chunks(n).enumerate() {
            let (ptr, values) = (group[0], &values[i * n..(i + 1) * n]);
            match When::of(masks.map(|m| &m[i * n..(i + 1) * n])) {
                When::Never => {}
                When::Always => self.store_group(ptr, values, None, elem)?,
                When::If(m) => self.store_group(ptr, values, Some(m), elem)?,
                When::Each(masks) => self.store_part(group, values, &masks, elem)?,
            }
        }
        Ok(())
    }
    /// A group at an end of its row: in one access where all elements are inside, otherwise those that are.
    fn store_part(&mut self, group: &[Pointer<'c>], values: &[Val<'c>], masks: &[IntValue<'c>], elem: Elem) -> Res<()> {
        let all = self.all(masks)?;
        self.store_group(group[0], values, Some(all), elem)?;
        let some = self.e.and(self.any(masks)?, self.e.not(all)?)?;
        let (part, join) = (self.new_block("part"), self.new_block("join"));
        self.e.b.build_conditional_branch(some, part, join)?;
        self.e.b.position_at_end(part);
        for ((ptr, value), mask) in group.iter().zip(values).zip(masks) {
            self.store_group(*ptr, &[*value], Some(*mask), elem)?;
        }
        self.e.b.build_unconditional_branch(join)?;
        self.e.b.position_at_end(join);
        Ok(())
    }
    fn store_group(&mut self, ptr: Pointer<'c>, values: &[Val<'c>], mask: Option<IntValue<'c>>, elem: Elem) -> Res<()> {
        let bytes = values.len() * elem.bytes();
        let w = Words::of(bytes, elem);
        let words = self.pack(values, elem, w)?;
        let normal = ptr.cache == CachePolicy::Normal;
        let mask = mask.or_else(|| (!normal).then(|| self.e.bool(true)));
        let Some(mask) = mask else {
            let v = self.e.vector(&words)?;
            return self.e.store(v, ptr.value(&self.e)?, bytes);
        };
        let (letter, ty) = w.asm();
        let names: Vec<String> = (0..w.words).map(|i| format!("${}", i + 2)).collect();
        let source = if w.words > 1 { format!("{{{}}}", names.join(", ")) } else { names[0].clone() };
        let offset = ptr.off * elem.bytes() as i64;
        let [operator, priority] = ptx_policy(ptr.cache);
        let text = format!("@$0 st.global{operator}{priority}{ty} [$1 + {offset}], {source};");
        let constraints = format!("b,l,{},~{{memory}}", vec![letter.to_string(); w.words].join(","));
        let mut args: Vec<Val<'c>> = vec![mask.into(), ptr.base.into()];
        for v in words {
            args.push(if w.bits == 8 { self.e.zext(int(v)?, self.e.i32())?.into() } else { v });
        }
        self.e.asm(&text, &constraints, None, &args, true, false)?;
        Ok(())
    }
    pub fn word(&self, w: Words) -> IntType<'c> {
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
    pub fn unpack(&self, words: &[Val<'c>], elem: Elem) -> Res<Vec<Val<'c>>> {
        let memory = super::index::memory_type(&self.e, elem);
        let mut out = vec![];
        for w in words {
            let bits = int(*w)?.get_type().get_bit_width() as usize;
            let per = bits / (8 * elem.bytes());
            if per <= 1 {
                out.push(self.e.bitcast(*w, memory)?);
                continue;
            }
            if elem == Elem::Bool {
                // A mask of the word and a test, where each byte by itself would be taken out of it first.
                let word = self.e.zext(int(*w)?, self.e.i32())?;
                for i in 0..per {
                    out.push(self.e.and(word, self.e.int_of(self.e.i32(), 0xff << (8 * i)))?.into());
                }
                continue;
            }
            let ty = vector_of(memory, per)?;
            let v = self.e.bitcast(*w, ty)?;
            for i in 0..per {
                out.push(self.e.element(v, i)?);
            }
        }
        if elem == Elem::Bool {
            for v in &mut out {
                let bits = int(*v)?;
                *v = self.e.icmp(inkwell::IntPredicate::NE, bits, bits.get_type().const_zero())?.into();
            }
        }
        Ok(out)
    }
    /// Words from elements.
    pub fn pack(&self, values: &[Val<'c>], elem: Elem, w: Words) -> Res<Vec<Val<'c>>> {
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

/// How PTX writes a policy: as a cache operator, or as a priority of eviction, which comes after `.nc`.
fn ptx_policy(policy: CachePolicy) -> [&'static str; 2] {
    match policy {
        CachePolicy::Normal => ["", ""],
        CachePolicy::EvictFirst => [".cs", ""],
        CachePolicy::EvictLast => ["", ".L1::evict_last"],
        CachePolicy::L2Only => [".cg", ""],
    }
}

fn vector_of(ty: BasicTypeEnum, n: usize) -> Res<BasicTypeEnum> {
    match ty {
        BasicTypeEnum::IntType(t) => Ok(t.vec_type(n as u32).into()),
        BasicTypeEnum::FloatType(t) => Ok(t.vec_type(n as u32).into()),
        _ => Err(mistyped("a vector")),
    }
}

/// Number of accesses in groups of `n` registers; equal ones count once, those that are masked off not at all.
fn accesses<'c>(pointers: &[Pointer<'c>], masks: Option<&[IntValue<'c>]>, n: usize) -> usize {
    let mut seen = vec![];
    for (i, group) in pointers.chunks(n).enumerate() {
        let access = (group[0], When::of(masks.map(|m| &m[i * n..(i + 1) * n])));
        if access.1 != When::Never && !seen.contains(&access) {
            seen.push(access);
        }
    }
    seen.len()
}

/// Whether registers lie in groups of `per` that are one aligned access each.
pub(super) fn in_vectors(pointers: &[Pointer], per: usize) -> bool {
    pointers.len().is_multiple_of(per) && split(pointers, None, None) == Split::Groups(per)
}

/// The largest groups that are one access each, and whose masks, where they differ, are worth a branch.
pub(super) fn split<'c>(pointers: &[Pointer<'c>], masks: Option<&[IntValue<'c>]>, load: Option<LoadMode>) -> Split {
    let Some(elem) = pointers.first().map(|p| p.elem) else { return Split::Groups(1) };
    let run =
        |c: &[Pointer<'c>]| c.iter().enumerate().all(|(i, p)| p.base == c[0].base && p.off == c[0].off + i as i64);
    let together = |n: usize| {
        let bytes = (n * elem.bytes()) as i64;
        let starts = |p: &Pointer<'c>| p.align as i64 % bytes == 0 && (p.off * elem.bytes() as i64) % bytes == 0;
        pointers.chunks(n).all(|c| run(c) && starts(&c[0]))
    };
    let most = 16 / elem.bytes();
    let mut n = 1;
    while n < most && pointers.len().is_multiple_of(n * 2) && together(n * 2) {
        n *= 2;
    }
    // Two aligned accesses and a shift cost less than one access per element, if most elements are inside.
    if load == Some(LoadMode::Vectors)
        && 2 * n < most
        && pointers.len().is_multiple_of(most)
        && pointers.chunks(most).all(run)
    {
        return Split::Unaligned(most);
    }
    let Some(masks) = masks else { return Split::Groups(n) };
    let alike = |n: usize| masks.chunks(n).all(|c| c.iter().all(|m| *m == c[0]));
    if alike(n) {
        return Split::Groups(n);
    }
    // A load of half a vector, or of a pair, is not worth a branch. A store of half a vector is: it writes half of each
    // sector.
    if load.is_some() && n > 1 && alike(n / 2) && n / 2 * elem.bytes() >= 4 {
        return Split::Groups(n / 2);
    }
    Split::Groups(if n * elem.bytes() <= 4 { 1 } else { n })
}
