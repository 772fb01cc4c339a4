//! Control flow: loops, branches, and the registers in which values enter and leave them.
use super::emit::{Fail, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::{Index, Memo, Reg};
use super::words::Words;
use inkwell::IntPredicate;
use inkwell::basic_block::BasicBlock;
use inkwell::values::{IntValue, PhiValue};
use kiln_block::{CmpOp, Effects, Elem, InstData, Op, Region, Value};

impl<'c> Gen<'c, '_> {
    /// A loop over a matmul's K, `step` elements at a time up to `end`, at least once: `body` adds the products of
    /// those from its number on to the sums, which start as `acc`.
    pub fn along_k(
        &mut self,
        (step, end): (usize, IntValue<'c>),
        acc: &[Val<'c>],
        body: impl FnOnce(&mut Self, IntValue<'c>, &mut [Val<'c>]) -> Res<()>,
    ) -> Res<Vec<Val<'c>>> {
        let (before, inside, after) = (self.block()?, self.new_block("k"), self.new_block("k_done"));
        self.e.b.build_unconditional_branch(inside)?;
        self.e.b.position_at_end(inside);
        let at = self.e.b.build_phi(self.e.i32(), "k")?;
        let mut phis = vec![];
        for v in acc {
            let phi = self.e.b.build_phi(v.get_type(), "")?;
            phi.add_incoming(&[(v, before)]);
            phis.push(phi);
        }
        let now = int(at.as_basic_value())?;
        let mut sums: Vec<Val<'c>> = phis.iter().map(|p| p.as_basic_value()).collect();
        body(self, now, &mut sums)?;
        let next = self.e.add(now, self.e.int(step as i64))?;
        let more = self.e.icmp(IntPredicate::ULT, next, end)?;
        let latch = self.block()?;
        self.e.b.build_conditional_branch(more, inside, after)?;
        at.add_incoming(&[(&self.e.int(0), before), (&next, latch)]);
        for (phi, s) in phis.iter().zip(&sums) {
            phi.add_incoming(&[(s, latch)]);
        }
        self.e.b.position_at_end(after);
        Ok(sums)
    }
    pub fn for_loop(&mut self, data: &InstData) -> Res<()> {
        let region = data.regions.first().ok_or_else(|| mistyped("a loop"))?;
        let [lo, hi, step] = [self.scalar(data.args[0])?, self.scalar(data.args[1])?, self.scalar(data.args[2])?];
        let [lo, hi, step] = [lo.index()?, hi.index()?, step.index()?];
        let (first, last) = (lo.value(&self.e, &mut self.memo)?, hi.value(&self.e, &mut self.memo)?);
        let stride = step.value(&self.e, &mut self.memo)?;
        let starts: Vec<Vec<Val<'c>>> = data.args[3..].iter().map(|v| self.carried(*v)).collect::<Res<_>>()?;
        let mut enter = lo.compare(CmpOp::Lt, hi, &self.e, &mut self.memo)?;
        if self.k.has_launch_values() && step.as_constant().is_none() {
            // A step that is not positive would not end.
            let zero = stride.get_type().const_zero();
            enter = self.e.and(enter, self.e.icmp(IntPredicate::SGT, stride, zero)?)?;
        }
        self.blocks.cluster_wait(&self.e)?;
        let pending = self.pending();
        let before = self.block()?;
        let (body, after) = (self.new_block("loop"), self.new_block("done"));
        self.e.b.build_conditional_branch(enter, body, after)?;
        self.e.b.position_at_end(body);
        self.scratch.unknown();
        self.wrote |= self.writes(region);
        self.reads.enter(self.k, region);
        let index = self.e.b.build_phi(first.get_type(), "i")?;
        let i = counted(int(index.as_basic_value())?, [lo, hi, step]);
        self.set(region.params[0], vec![Reg::Int(i)]);
        let mut phis = vec![];
        for (v, start) in region.params[1..].iter().zip(&starts) {
            phis.push(self.phis(*v, start.len())?);
        }
        for (v, phis) in region.params[1..].iter().zip(&phis) {
            self.unpair(*v, phis)?;
            self.know(*v)?;
        }
        let turn = match self.takes_turns(region)? {
            true => Some(self.e.b.build_phi(self.e.i32(), "turn")?),
            false => None,
        };
        let parity = |t: PhiValue<'c>| self.e.and(int(t.as_basic_value())?, self.e.int(1));
        let outer = std::mem::replace(&mut self.blocks.turn, turn.map(parity).transpose()?);
        self.blocks.repeats += 1;
        self.turn = Some(index.as_basic_value()).filter(|_| lo.bits == 32);
        self.region(region)?;
        self.turn = None;
        self.blocks.repeats -= 1;
        self.blocks.turn = outer;
        let next = self.yielded(region, Self::carried)?;
        let latch = self.block()?;
        let now = int(index.as_basic_value())?;
        // With bounds of the launch the sum may be past the largest number: less than a step is left then.
        let (stepped, left) = match self.k.has_launch_values() {
            true => (self.e.add(now, stride)?, Some(self.e.sub(last, now)?)),
            false => (self.e.b.build_int_nsw_add(now, stride, "")?, None),
        };
        if let Some(turn) = turn {
            let next = self.e.add(int(turn.as_basic_value())?, self.e.int(1))?;
            turn.add_incoming(&[(&self.e.int(0), before), (&next, latch)]);
        }
        let more = match left {
            Some(left) => self.e.icmp(IntPredicate::ULT, stride, left)?,
            None => self.e.icmp(IntPredicate::SLT, stepped, last)?,
        };
        self.e.b.build_conditional_branch(more, body, after)?;
        index.add_incoming(&[(&first, before), (&stepped, latch)]);
        for ((phis, start), next) in phis.iter().zip(&starts).zip(&next) {
            join(phis, &[(start, before), (next, latch)]);
        }
        self.e.b.position_at_end(after);
        self.scratch.unknown();
        self.join_pending(&pending);
        let mut results = vec![];
        for ((v, start), next) in data.results.iter().zip(&starts).zip(&next) {
            let phis = self.phis(*v, start.len())?;
            join(&phis, &[(start, before), (next, latch)]);
            results.push(phis);
        }
        for (v, phis) in data.results.iter().zip(&results) {
            self.unpair(*v, phis)?;
            self.know(*v)?;
        }
        Ok(())
    }
    /// A loop whose body ends with a condition.
    pub fn while_loop(&mut self, data: &InstData) -> Res<()> {
        let region = data.regions.first().ok_or_else(|| mistyped("a loop"))?;
        let starts: Vec<Vec<Val<'c>>> = data.args.iter().map(|v| self.carried(*v)).collect::<Res<_>>()?;
        self.blocks.cluster_wait(&self.e)?;
        let before = self.block()?;
        let (body, after) = (self.new_block("loop"), self.new_block("done"));
        self.e.b.build_unconditional_branch(body)?;
        self.e.b.position_at_end(body);
        self.scratch.unknown();
        self.wrote |= self.writes(region);
        self.reads.enter(self.k, region);
        let phis: Vec<Vec<PhiValue<'c>>> =
            region.params.iter().zip(&starts).map(|(v, start)| self.phis(*v, start.len())).collect::<Res<_>>()?;
        self.blocks.repeats += 1;
        self.region(region)?;
        self.blocks.repeats -= 1;
        let last = self.yielded(region, Self::carried)?;
        let [more, next @ ..] = &last[..] else { return Err(mistyped("the end of a loop")) };
        let latch = self.block()?;
        self.e.b.build_conditional_branch(int(more[0])?, body, after)?;
        for ((phis, start), next) in phis.iter().zip(&starts).zip(next) {
            join(phis, &[(start, before), (next, latch)]);
        }
        self.e.b.position_at_end(after);
        self.scratch.unknown();
        // The body comes before, so what it gave last is here.
        for (v, next) in data.results.iter().zip(next) {
            let regs = next.iter().map(|x| self.register(*v, *x)).collect();
            self.set(*v, regs);
        }
        Ok(())
    }
    pub fn branch(&mut self, data: &InstData) -> Res<()> {
        let condition = self.scalar(data.args[0])?.condition()?;
        self.blocks.cluster_wait(&self.e)?;
        let [then, otherwise] = &data.regions[..] else { return Err(mistyped("a branch")) };
        let blocks = [self.new_block("then"), self.new_block("else")];
        let after = self.new_block("join");
        self.e.b.build_conditional_branch(condition, blocks[0], blocks[1])?;
        let (mut ends, pending, mut left) = (vec![], self.pending(), vec![]);
        for (block, region) in blocks.into_iter().zip([then, otherwise]) {
            self.e.b.position_at_end(block);
            self.scratch.unknown();
            self.resume(&pending);
            self.region(region)?;
            left.push(self.pending());
            let values = self.yielded(region, Self::carried)?;
            ends.push((values, self.block()?));
            self.e.b.build_unconditional_branch(after)?;
        }
        self.e.b.position_at_end(after);
        self.scratch.unknown();
        self.wrote |= data.regions.iter().any(|r| self.writes(r));
        left.iter().for_each(|path| self.join_pending(path));
        let mut results = vec![];
        for (n, v) in data.results.iter().enumerate() {
            let phis = self.phis(*v, ends[0].0[n].len())?;
            let incoming: Vec<_> = ends.iter().map(|(values, block)| (&values[n], *block)).collect();
            join(&phis, &incoming);
            results.push(phis);
        }
        data.results.iter().zip(&results).try_for_each(|(v, phis)| self.unpair(*v, phis))
    }
    /// A number that a loop carries, with its divisor.
    fn know(&mut self, v: Value) -> Res<()> {
        let Some(facts) = self.facts.as_ref().filter(|_| self.k.ty(v).is_scalar()) else { return Ok(()) };
        if let [Reg::Int(i)] = self.regs(v)?[..] {
            let div = facts.divisor(v).max(1) as u64;
            self.set(v, vec![Reg::Int(Index { div: i.div.max(div), ..i })]);
        }
        Ok(())
    }
    /// Makes the registers of a block value phis.
    fn phis(&mut self, v: Value, count: usize) -> Res<Vec<PhiValue<'c>>> {
        if self.is_paired(v) {
            return (0..count).map(|_| Ok(self.e.b.build_phi(self.e.i32(), "")?)).collect();
        }
        let ty = self.register_type(v)?;
        let phis: Vec<PhiValue<'c>> = (0..count).map(|_| Ok(self.e.b.build_phi(ty, "")?)).collect::<Res<_>>()?;
        let regs = phis.iter().map(|p| self.register(v, p.as_basic_value())).collect();
        self.set(v, regs);
        Ok(phis)
    }
    /// Whether loops carry a block two elements to a register, as matmuls take left operands.
    fn is_paired(&self, v: Value) -> bool {
        self.left_in_registers && self.k.ty(v).elem().is_some_and(Elem::is_half) && !self.k.ty(v).is_scalar()
    }
    /// The registers in which a loop carries a value.
    fn carried(&mut self, v: Value) -> Res<Vec<Val<'c>>> {
        let values = self.plain(v)?;
        if self.is_paired(v) { self.pairs(v, &values) } else { Ok(values) }
    }
    /// Neighbouring registers of a block of half types, two to a word.
    pub fn pairs(&self, v: Value, values: &[Val<'c>]) -> Res<Vec<Val<'c>>> {
        if !values.len().is_multiple_of(2) {
            return Err(Fail::Unsupported(format!("{v} in pairs of registers")));
        }
        self.pack(values, self.elem(v)?, Words { words: values.len() / 2, bits: 32 })
    }
    /// The elements of what a loop carries in pairs; after all phis.
    fn unpair(&mut self, v: Value, phis: &[PhiValue<'c>]) -> Res<()> {
        if !self.is_paired(v) {
            return Ok(());
        }
        let words: Vec<Val<'c>> = phis.iter().map(|p| p.as_basic_value()).collect();
        let regs = self.unpack(&words, self.elem(v)?)?.into_iter().map(|x| self.register(v, x)).collect();
        self.set(v, regs);
        Ok(())
    }
    /// What a region yields, each value in the registers that `of` gives.
    fn yielded(
        &mut self,
        region: &Region,
        of: impl Fn(&mut Self, Value) -> Res<Vec<Val<'c>>>,
    ) -> Res<Vec<Vec<Val<'c>>>> {
        let k = self.k;
        let Some(last) = region.insts.last().map(|i| k.inst(*i)).filter(|d| d.op == Op::Yield) else {
            return Ok(vec![]);
        };
        self.memo = Memo::default();
        last.args.iter().map(|v| of(self, *v)).collect()
    }
    fn writes(&self, region: &Region) -> bool {
        let mut found = false;
        self.k.walk_region(region, &mut |_, d| {
            found |= matches!(d.op, Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. });
            found |= matches!(&d.op, Op::Asm(assembly) if assembly.effects == Effects::Volatile);
        });
        found
    }
}

/// A loop's index, with what its bounds and its step say of it.
fn counted<'c>(index: IntValue<'c>, [lo, hi, step]: [Index<'c>; 3]) -> Index<'c> {
    let div = |i: &Index<'c>| i.div.min(if i.off == 0 { 1 << 40 } else { 1 << i.off.trailing_zeros() });
    let least = lo.lo.saturating_add(lo.off);
    let most = hi.hi.saturating_add(hi.off).saturating_sub(1).max(least);
    Index { base: Some(index), div: div(&lo).min(div(&step)), lo: least, hi: most, off: 0, bits: lo.bits, of: None }
}

/// Adds to the n-th phi the n-th value of every incoming path.
fn join<'c>(phis: &[PhiValue<'c>], ways: &[(&Vec<Val<'c>>, BasicBlock<'c>)]) {
    for (n, phi) in phis.iter().enumerate() {
        for (values, block) in ways {
            phi.add_incoming(&[(&values[n], *block)]);
        }
    }
}
