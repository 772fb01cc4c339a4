//! Indices that must not be: one word of memory says which, and nothing waits for it.
//!
//! A thread writes at most one of its own, by a store with a condition: no branch, so that loads behind it are asked for as before.
use super::emit::{Res, int, mistyped};
use super::r#gen::Gen;
use kiln_block::{
    Elem, InstData,
    ops::{FAULT_INDEX_BITS, fault_site},
};

impl<'c> Gen<'c, '_> {
    pub fn check(&mut self, data: &InstData, site: u32) -> Res<()> {
        let [to, bad, index, ref mask @ ..] = data.args[..] else { return Err(mistyped("a check")) };
        let to = self.regs(to)?.first().ok_or_else(|| mistyped("a pointer"))?.pointer()?;
        let (index, mask) = (self.plain(index)?, self.masks(mask.first().copied())?);
        let bad = self.regs(bad)?.iter().map(|r| r.condition()).collect::<Res<Vec<_>>>()?;
        let (mut any, mut which) = (None, None);
        for (r, (bad, index)) in bad.into_iter().zip(index).enumerate() {
            let bad = mask.as_ref().map_or(Ok(bad), |m| self.e.and(bad, m[r]))?;
            // What is known of a register here.
            if bad.get_zero_extended_constant() == Some(0) {
                continue;
            }
            let index = int(index)?;
            (any, which) = match (any, which) {
                (Some(any), Some(which)) => (Some(self.e.or(any, bad)?), Some(self.e.iselect(bad, index, which)?)),
                _ => (Some(bad), Some(index)),
            };
        }
        match (any, which) {
            (Some(any), Some(which)) => self.fault(to, any, which, site),
            _ => Ok(()),
        }
    }
    fn fault(
        &mut self,
        to: super::index::Pointer<'c>,
        bad: inkwell::values::IntValue<'c>,
        index: inkwell::values::IntValue<'c>,
        site: u32,
    ) -> Res<()> {
        let (e, i64) = (&self.e, self.e.i64());
        let last = (1i64 << (FAULT_INDEX_BITS - 1)) - 1;
        let at_least = e.call("llvm.smax", &[i64.into()], &[index.into(), e.int_of(i64, -last - 1).into()])?;
        let kept = int(e.call("llvm.smin", &[i64.into()], &[at_least, e.int_of(i64, last).into()])?)?;
        let bits = e.and(kept, e.int_of(i64, (1 << FAULT_INDEX_BITS) - 1))?;
        let word = e.or(bits, e.int_of(i64, fault_site(site)))?;
        let text = format!("@$0 st.global.b64 [$1 + {}], $2;", to.off * Elem::I64.bytes() as i64);
        // Nothing in the program reads it, so it keeps no load from moving.
        e.asm(&text, "b,l,l", None, &[bad.into(), to.base.into(), word.into()], true, false)?;
        Ok(())
    }
}
