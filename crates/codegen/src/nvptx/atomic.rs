//! What instances do to each other in global memory: atomic updates (`red`), by vectors where the target has them, and flags that say what
//! is there (`st.release`, `fence.acq_rel`).
use super::emit::{Fail, Res, Val};
use super::r#gen::Gen;
use super::index::Pointer;
use super::memory::{Split, When, split};
use inkwell::values::IntValue;
use kiln_block::{AtomicOp, Elem, InstData};

impl<'c> Gen<'c, '_> {
    pub fn atomic(&mut self, op: AtomicOp, data: &InstData) -> Res<()> {
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
        Ok(())
    }
    /// One thread sets a flag after the stores of all.
    pub fn publish(&mut self, data: &InstData) -> Res<()> {
        if self.blocks.count > 1 || self.group.is_some() {
            return Err(Fail::Unsupported("a flag of an instance that several blocks or roles share".into()));
        }
        let at = self.plain(data.args[0])?[0];
        self.sync()?;
        self.scratch.synced();
        self.wrote = false;
        self.once(|g| {
            g.e.asm("st.release.gpu.global.u32 [$0], 1;", "l,~{memory}", None, &[at], true, false).map(|_| ())
        })
    }
    /// Each thread polls flags of its own until all are set, then waits for all other threads.
    pub fn wait_for(&mut self, data: &InstData) -> Res<()> {
        let masks = self.masks(data.args.get(1).copied())?;
        let pointers = self.pointers(data)?;
        let n = pointers.len();
        let flags: Vec<String> = (0..n).map(|i| format!("%f{i}")).collect();
        let mut text = format!("{{ .reg .pred %some; .reg .b32 %all, {};", flags.join(", "));
        text += &flags.iter().map(|f| format!(" mov.b32 {f}, 1;")).collect::<String>();
        text += " WAIT:";
        // All are in flight at once.
        for (i, ptr) in pointers.iter().enumerate() {
            let guard = if masks.is_some() { format!("@${} ", n + i) } else { String::new() };
            text += &format!(" {guard}ld.relaxed.gpu.global.u32 %f{i}, [${i} + {}];", 4 * ptr.off);
        }
        // Flags that are not waited for stay 1.
        text += " mov.b32 %all, 1;";
        text += &flags.iter().map(|f| format!(" min.u32 %all, %all, {f};")).collect::<String>();
        text += " setp.eq.u32 %some, %all, 0; @%some bra WAIT; fence.acq_rel.gpu; }";
        let constraints = [vec!["l"; n], vec!["b"; masks.as_ref().map_or(0, Vec::len)], vec!["~{memory}"]].concat();
        let mut args: Vec<Val<'c>> = pointers.iter().map(|p| p.base.into()).collect();
        args.extend(masks.into_iter().flatten().map(Val::from));
        self.e.asm(&text, &constraints.join(","), None, &args, true, false)?;
        self.sync()?;
        self.scratch.synced();
        self.wrote = false;
        Ok(())
    }
    /// One instruction for the values at a pointer and after it.
    fn update(
        &mut self,
        (op, ty): (&str, &str),
        ptr: Pointer<'c>,
        values: &[Val<'c>],
        mask: Option<IntValue<'c>>,
    ) -> Res<()> {
        let (letter, offset) = match ptr.elem {
            Elem::F32 => ('f', 4 * ptr.off),
            Elem::F64 => ('d', 8 * ptr.off),
            Elem::I64 => ('l', 8 * ptr.off),
            _ => ('r', 4 * ptr.off),
        };
        let first = usize::from(mask.is_some());
        let names: Vec<String> = (0..values.len()).map(|i| format!("${}", first + 1 + i)).collect();
        let (vector, source) = match names.len() {
            1 => (String::new(), names[0].clone()),
            n => (format!(".v{n}"), format!("{{{}}}", names.join(", "))),
        };
        let guard = if mask.is_some() { "@$0 " } else { "" };
        let text = format!("{guard}red.global.{op}{vector}.{ty} [${first} + {offset}], {source};");
        let letters = std::iter::repeat_n(letter, values.len()).map(String::from);
        let before = mask.map(|_| "b".to_string()).into_iter().chain(["l".to_string()]);
        let constraints: Vec<String> = before.chain(letters).chain(["~{memory}".into()]).collect();
        let mut args: Vec<Val<'c>> = mask.map(Into::into).into_iter().chain([ptr.base.into()]).collect();
        args.extend(values);
        self.e.asm(&text, &constraints.join(","), None, &args, true, false)?;
        Ok(())
    }
}
