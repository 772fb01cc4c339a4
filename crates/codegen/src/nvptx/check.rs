//! Checks of indices: an index out of range is an error.
//!
//! Where an index is read from memory and nothing known about it (lowering's `Dag::range`) keeps it in range, a program
//! has a `check`: a conditional store of the index and its node of the body to the kernel's record of 16 bytes. Reads
//! and writes are masked as well, so nothing outside of a buffer is touched. The host looks at the records after each
//! kernel on the CPU, and after a run on a GPU. A negative index is out of range: the importer resolves indices from
//! the end (`x[-1]`).
//!
//! A thread writes at most one of its bad indices, by a predicated store instead of a branch, so that loads after it
//! are issued as early as without it. Nothing waits for the store.
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
            // A register whose index is known to be in range.
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
        // Nothing in the program reads it, so loads may move across it.
        e.asm(&text, "b,l,l", None, &[bad.into(), to.base.into(), word.into()], true, false)?;
        Ok(())
    }
}
