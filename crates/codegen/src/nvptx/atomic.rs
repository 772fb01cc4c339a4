//! What instances do to each other in global memory: atomic updates (`red`), by vectors where the target has them, and
//! values that others wait for (`st.relaxed`, `ld.relaxed`).
use super::emit::{Fail, Res, Val, mistyped};
use super::fetch::Access;
use super::r#gen::Gen;
use super::index::{Pointer, Reg};
use super::memory::{Split, When, split};
use inkwell::values::IntValue;
use kiln_block::{AtomicOp, Atomicity, Elem, InstData, MemoryOrder, Scope};

/// Elements that a thread polls at once.
const AT_ONCE: usize = 8;

impl<'c> Gen<'c, '_> {
    /// What the elements were, if the op has a result.
    pub fn atomic(&mut self, op: AtomicOp, how: Atomicity, data: &InstData) -> Res<Option<Vec<Reg<'c>>>> {
        match data.results[..] {
            [] if how.scope == Scope::Device && is_reduction(op, self.elem(data.args[1])?) => {
                self.reduction(op, how.order, data)?;
                Ok(None)
            }
            _ => {
                let before = self.fetched(Access::Update(op), how, data)?;
                Ok((!data.results.is_empty()).then_some(before))
            }
        }
    }
    pub fn compare_swap(&mut self, how: Atomicity, data: &InstData) -> Res<Vec<Reg<'c>>> {
        self.fetched(Access::CompareSwap, how, data)
    }
    /// Updates without results. Those that release or acquire are relaxed ones between fences: an instruction that has
    /// an order itself is one an element.
    fn reduction(&mut self, op: AtomicOp, order: MemoryOrder, data: &InstData) -> Res<()> {
        let elem = self.elem(data.args[1])?;
        // Integers wrap around, so signed sums are unsigned ones.
        let ty = match (op, elem) {
            (AtomicOp::Add, Elem::F32) => ("add", "f32"),
            (AtomicOp::Add, Elem::F64) => ("add", "f64"),
            (AtomicOp::Add, Elem::I32) => ("add", "u32"),
            (AtomicOp::Add, Elem::I64) => ("add", "u64"),
            (AtomicOp::Max, Elem::I32) => ("max", "s32"),
            (op, elem) => return Err(Fail::Unsupported(format!("an atomic {op:?} of {}", elem.name()))),
        };
        let (pointers, values, masks) = self.written(data)?;
        match order.releases() {
            true => {
                self.sync()?;
                self.fence()?;
            }
            false => self.after_reads(data.args[0])?,
        }
        let masks = masks.as_deref();
        let (Split::Groups(n) | Split::Unaligned(n)) = split(&pointers, masks, None);
        let n = if self.m.arch.has_vector_atomics() && ty == ("add", "f32") { n } else { 1 };
        for (i, group) in pointers.chunks(n).enumerate() {
            let values = &values[i * n..(i + 1) * n];
            match When::of(masks.map(|m| &m[i * n..(i + 1) * n])) {
                When::Never => {}
                When::Always => self.update(ty, group[0], values, None)?,
                When::If(m) => self.update(ty, group[0], values, Some(m))?,
                When::Each(masks) => {
                    for ((p, v), m) in group.iter().zip(values).zip(masks) {
                        self.update(ty, *p, &[*v], Some(m))?;
                    }
                }
            }
        }
        self.wrote = true;
        if order.acquires() {
            self.fence()?;
            self.sync()?;
        }
        Ok(())
    }
    /// Orders what a thread has accessed before what it accesses after, for the whole device.
    fn fence(&self) -> Res<()> {
        self.e.asm("fence.acq_rel.gpu;", "~{memory}", None, &[], true, false)?;
        Ok(())
    }
    /// Each word of a value is one store, which others see whole.
    pub fn publish(&mut self, data: &InstData) -> Res<()> {
        let elem = self.elem(data.args[1])?;
        let (pointers, values, masks) = self.written(data)?;
        for (i, (p, v)) in pointers.iter().zip(values).enumerate() {
            let (guard, first) = if masks.is_some() { ("@$0 ", 1) } else { ("", 0) };
            let ([to, from], at) = ([first, first + 1], 8 * p.off);
            let store = |half: &str, at| {
                format!("mov.b64 %word, {{{half}, %mark}}; {guard}st.relaxed.gpu.global.b64 [${to} + {at}], %word;")
            };
            let text = match elem.bytes() {
                4 => store(&format!("${from}"), at),
                _ => format!("mov.b64 {{%low, %high}}, ${from}; {} {}", store("%low", at), store("%high", at + 8)),
            };
            let text = format!("{{ .reg .b32 %low, %high, %mark; .reg .b64 %word; mov.b32 %mark, 1; {text} }}");
            let constraints = [if masks.is_some() { "b,l," } else { "l," }, letter(elem), ",~{memory}"].concat();
            let mask = masks.as_ref().map(|m| m[i].into());
            let args: Vec<Val<'c>> = mask.into_iter().chain([p.base.into(), v]).collect();
            self.e.asm(&text, &constraints, None, &args, true, false)?;
        }
        self.wrote = true;
        Ok(())
    }
    /// Each thread polls the words of its elements, some at once, until all have their marks.
    pub fn wait_for(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let elem = self.elem(data.results[0])?;
        let masks = self.masks(data.args.get(1).copied())?;
        let pointers = self.pointers(data)?;
        let mut found = vec![];
        for (i, group) in pointers.chunks(AT_ONCE).enumerate() {
            let masks = masks.as_ref().map(|m| &m[i * AT_ONCE..i * AT_ONCE + group.len()]);
            found.extend(self.poll(group, masks, elem)?);
        }
        Ok(found.into_iter().map(|v| Reg::of(v, elem)).collect())
    }
    fn poll(&self, pointers: &[Pointer<'c>], masks: Option<&[IntValue<'c>]>, elem: Elem) -> Res<Vec<Val<'c>>> {
        let (n, halves) = (pointers.len(), elem.bytes() / 4);
        let words: Vec<(usize, usize)> = (0..n).flat_map(|i| (0..halves).map(move |half| (i, half))).collect();
        let list =
            |name: &str| words.iter().map(|(i, half)| format!("%{name}{i}_{half}")).collect::<Vec<_>>().join(", ");
        let mut text = format!("{{ .reg .pred %none; .reg .b32 %all, {}, {};", list("value"), list("mark"));
        text += &format!(" .reg .b64 {};", list("word"));
        // What is not waited for has its mark, and the value 0.
        text += &words.iter().map(|(i, half)| format!(" mov.b64 %word{i}_{half}, 0x100000000;")).collect::<String>();
        text += " WAIT:";
        for (i, half) in &words {
            let guard = if masks.is_some() { format!("@${} ", 2 * n + i) } else { String::new() };
            let at = 8 * (pointers[*i].off + *half as i64);
            text += &format!(" {guard}ld.relaxed.gpu.global.b64 %word{i}_{half}, [${} + {at}];", n + i);
        }
        text += " mov.b32 %all, 1;";
        for (i, half) in &words {
            text += &format!(" mov.b64 {{%value{i}_{half}, %mark{i}_{half}}}, %word{i}_{half};");
            text += &format!(" and.b32 %all, %all, %mark{i}_{half};");
        }
        text += " setp.eq.u32 %none, %all, 0; @%none bra WAIT;";
        for i in 0..n {
            text += &match halves {
                1 => format!(" mov.b32 ${i}, %value{i}_0;"),
                _ => format!(" mov.b64 ${i}, {{%value{i}_0, %value{i}_1}};"),
            };
        }
        text += " }";
        let out = format!("=&{}", letter(elem));
        let inputs = [vec!["l"; n], vec!["b"; masks.map_or(0, <[_]>::len)], vec!["~{memory}"]].concat();
        let constraints = [vec![&out[..]; n], inputs].concat().join(",");
        let mut args: Vec<Val<'c>> = pointers.iter().map(|p| p.base.into()).collect();
        args.extend(masks.into_iter().flatten().map(|m| Val::from(*m)));
        let one = self.e.elem(elem);
        let ty = if n == 1 { one } else { self.e.cx.struct_type(&vec![one; n], false).into() };
        let values = self.e.asm(&text, &constraints, Some(ty), &args, true, false)?;
        self.e.fields(values.ok_or_else(|| mistyped("a wait"))?, n)
    }
    /// A value that is computed here. LLVM would move what is needed after a loop that waits behind it.
    pub fn here(&self, v: Val<'c>, elem: Elem) -> Res<Val<'c>> {
        let constraints = format!("={},0", letter(elem));
        let same = self.e.asm("", &constraints, Some(v.get_type()), &[v], true, false)?;
        same.ok_or_else(|| mistyped("a value"))
    }
    /// One instruction for the values at a pointer and after it.
    fn update(
        &mut self,
        (op, ty): (&str, &str),
        ptr: Pointer<'c>,
        values: &[Val<'c>],
        mask: Option<IntValue<'c>>,
    ) -> Res<()> {
        let (letter, offset) = (letter(ptr.elem), ptr.elem.bytes() as i64 * ptr.off);
        let first = usize::from(mask.is_some());
        let names: Vec<String> = (0..values.len()).map(|i| format!("${}", first + 1 + i)).collect();
        let (vector, source) = match names.len() {
            1 => (String::new(), names[0].clone()),
            n => (format!(".v{n}"), format!("{{{}}}", names.join(", "))),
        };
        let guard = if mask.is_some() { "@$0 " } else { "" };
        let text = format!("{guard}red.global.{op}{vector}.{ty} [${first} + {offset}], {source};");
        let letters = std::iter::repeat_n(letter.to_string(), values.len());
        let before = mask.map(|_| "b".to_string()).into_iter().chain(["l".to_string()]);
        let constraints: Vec<String> = before.chain(letters).chain(["~{memory}".into()]).collect();
        let mut args: Vec<Val<'c>> = mask.map(Into::into).into_iter().chain([ptr.base.into()]).collect();
        args.extend(values);
        self.e.asm(&text, &constraints.join(","), None, &args, true, false)?;
        Ok(())
    }
}

/// Whether an update without a result is a `red` by vectors or of the types that these have.
fn is_reduction(op: AtomicOp, elem: Elem) -> bool {
    match op {
        AtomicOp::Add => matches!(elem, Elem::F32 | Elem::F64 | Elem::I32 | Elem::I64),
        AtomicOp::Max => elem == Elem::I32,
        _ => false,
    }
}

/// The constraint of a register that holds such an element.
fn letter(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "f",
        Elem::F64 => "d",
        Elem::I64 => "l",
        _ => "r",
    }
}
