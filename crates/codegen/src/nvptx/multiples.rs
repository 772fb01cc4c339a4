//! What `multiple_of` says, as divisors of registers: accesses become vectors by them.
use super::emit::Res;
use super::r#gen::Gen;
use super::index::{Index, Pointer, Reg, two};
use kiln_block::layout::axis_bits;
use kiln_block::{InstData, Type};

impl<'c> Reg<'c> {
    /// The same, where what lies `behind` elements before it is known to be a multiple: of a pointer, in bytes.
    pub fn with_multiple(self, divisor: u64, behind: i64) -> Reg<'c> {
        match self {
            Reg::Int(i) => Reg::Int(Index { div: i.div.max(divisor.min(two(i.off - behind))), ..i }),
            Reg::Ptr(p) => {
                let align = divisor.min(two((p.off - behind) * p.elem.bytes() as i64));
                Reg::Ptr(Pointer { align: p.align.max(align), ..p })
            }
            Reg::Plain(_) => self,
        }
    }
}

impl<'c> Gen<'c, '_> {
    /// The same registers, with what is known of their bases: that a register, or the first of the run of neighbours in
    /// which it lies, is a multiple.
    pub fn multiple_of(&mut self, data: &InstData, divisors: &[u32]) -> Res<Vec<Reg<'c>>> {
        let from = data.args[0];
        let regs = self.regs(from)?;
        let (shape, flat) = (self.k.ty(from).shape().to_vec(), self.flat(from)?);
        if shape.is_empty() {
            let divisor = two(divisors.first().copied().unwrap_or(1).into());
            return Ok(regs.iter().map(|r| r.with_multiple(divisor, 0)).collect());
        }
        let Some(facts) = &self.facts else { return Ok(regs) };
        // Runs along one axis, as in the analysis, which says what holds of the first of a run.
        let runs: Vec<usize> = facts.axes(from).iter().map(|a| a.contiguous as usize).collect();
        let along: Vec<usize> = (0..runs.len()).filter(|a| runs[*a] > 1).collect();
        let [axis] = along[..] else { return Ok(regs) };
        let bits = axis_bits(&shape, axis);
        let (run, divisor) = (runs[axis], facts.axes(data.results[0]).get(axis).map_or(1, |a| a.divisor as u64));
        // Elements from one thread's to the next one's along the axis, of those in a run.
        let thread_bits =
            flat.threads().flatten().filter(|bit| bits.contains(bit)).map(|bit| 1usize << (bit - bits.start));
        let step = thread_bits.filter(|elements| *elements < run).min().unwrap_or(run);
        let within = |r: usize| (flat.register(r) >> bits.start) & ((1 << bits.len()) - 1) & (run - 1);
        let bytes = match self.k.ty(from) {
            Type::Ptr { elem, .. } => elem.bytes() as u64,
            _ => 1,
        };
        let divisor = if step < run { divisor.min(step as u64 * bytes) } else { divisor };
        Ok(regs.iter().enumerate().map(|(r, reg)| reg.with_multiple(divisor, within(r) as i64)).collect())
    }
}
