//! Roles: groups of warps with programs of their own, and the barriers between them.
//!
//! A role that uses only scalars, barriers and tensor-map copies is run by one thread of its group; in other roles the
//! group's first thread does what one thread must do (a copy, its commit).
use super::emit::{Fail, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::{Index, Reg};
use inkwell::IntPredicate;
use inkwell::values::{IntValue, PointerValue};
use kiln_block::{BlockProgram, Elem, InstData, Op, Region, Role, Type, Value};
use kiln_machine::isa;

/// The bits of a thread's number that are its lane.
const LANES: i64 = isa::WARP as i64 - 1;

/// The group of warps whose program is being written.
#[derive(Clone, Copy)]
pub(super) struct Group<'c> {
    /// Number among the groups of the kernel.
    index: IntValue<'c>,
    warps: usize,
    /// One thread runs the whole role.
    single: bool,
}

/// Whether one thread can run the whole region.
pub(super) fn is_single(k: &BlockProgram, r: &Region) -> bool {
    let mut yes = true;
    k.walk_region(r, &mut |_, data| {
        let is_one = |ty: &Type| matches!(ty, Type::Block { shape, .. } | Type::Ptr { shape, .. } if shape.is_empty());
        let scalars = data.results.iter().all(|v| is_one(k.ty(*v)));
        yes &= scalars
            && match data.op {
                Op::SharedStore => k.ty(data.args[2]).is_scalar(),
                Op::Store(_)
                | Op::Atomic { .. }
                | Op::CompareSwap { .. }
                | Op::Check { .. }
                | Op::Print(_)
                | Op::Assert(_)
                | Op::Asm(_)
                | Op::Sync
                | Op::Wgmma { .. }
                | Op::WgmmaWait { .. } => false,
                _ => true,
            };
    });
    yes
}

impl<'c> Gen<'c, '_> {
    /// Runs `f` where the condition holds; always without one.
    pub fn when(&mut self, condition: Option<IntValue<'c>>, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        let Some(condition) = condition else { return f(self) };
        let (then, after) = (self.new_block("if"), self.new_block("endif"));
        self.e.b.build_conditional_branch(condition, then, after)?;
        self.e.b.position_at_end(then);
        f(self)?;
        self.e.b.build_unconditional_branch(after)?;
        self.e.b.position_at_end(after);
        Ok(())
    }
    /// Runs `f` in one thread of the group (of the block, outside of roles).
    pub fn once(&mut self, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        let first = match self.group {
            Some(g) if g.single => None,
            Some(_) => Some(self.threads.first(&self.e, (1 << self.threads.bits) - 1)?),
            None => {
                let thread = int(self.e.call("llvm.nvvm.read.ptx.sreg.tid.x", &[], &[])?)?;
                Some(self.e.icmp(IntPredicate::EQ, thread, self.e.int(0))?)
            }
        };
        self.when(first, f)
    }
    pub fn effect(&self, name: &str, args: &[Val<'c>]) -> Res<()> {
        self.e.invoke(&format!("llvm.nvvm.{name}"), &[], args).map(|_| ())
    }
    /// A barrier of all warps of a group.
    pub fn group_sync(&mut self, g: Group<'c>) -> Res<()> {
        let e = &self.e;
        let id = e.add(g.index, e.int(1))?;
        self.effect("barrier.cta.sync.aligned.count", &[id.into(), e.int(32 * g.warps as i64).into()])
    }
    pub fn cluster_sync(&mut self) -> Res<()> {
        self.effect("barrier.cluster.arrive", &[])?;
        self.effect("barrier.cluster.wait", &[])
    }

    // ---- Roles ----
    pub fn roles(&mut self, data: &InstData, roles: &[Role]) -> Res<()> {
        let warps = roles.first().map_or(1, |r| r.warps);
        if !warps.is_power_of_two() || roles.iter().any(|r| r.warps != warps) {
            return Err(Fail::Unsupported("roles of different numbers of warps".into()));
        }
        let thread = int(self.e.call("llvm.nvvm.read.ptx.sreg.tid.x", &[], &[])?)?;
        let warp = self.e.lshr(thread, self.e.int(5))?;
        // Uniform over the warp, which the shuffle tells the assembler.
        let all = self.e.int(-1);
        let args = [all.into(), warp.into(), self.e.int(0).into(), self.e.int(31).into()];
        let warp = int(self.e.call("llvm.nvvm.shfl.sync.idx.i32", &[], &args)?)?;
        let index = self.e.lshr(warp, self.e.int(warps.ilog2().into()))?;
        let groups: usize = roles.iter().map(|r| r.copies).sum();
        let threads = groups * warps * isa::WARP;
        let limits = &self.m.limits;
        let budget = (limits.registers_per_multiprocessor / threads / isa::REGISTERS * isa::REGISTERS)
            .min(limits.registers_per_thread + 1)
            .min(self.k.registers.unwrap_or(usize::MAX));
        let after = self.new_block("roles_end");
        let mut start = 0;
        for (role, region) in roles.iter().zip(&data.regions) {
            let end = start + role.copies;
            if end < groups {
                let (mine, next) = (self.new_block(&role_label(role)), self.new_block("other"));
                let here = self.e.icmp(IntPredicate::ULT, index, self.e.int(end as i64))?;
                self.e.b.build_conditional_branch(here, mine, next)?;
                self.e.b.position_at_end(mine);
                self.role(
                    role,
                    region,
                    start,
                    Group { index, warps, single: is_single(self.k, region) },
                    budget,
                    warp,
                )?;
                self.e.b.build_unconditional_branch(after)?;
                self.e.b.position_at_end(next);
            } else {
                self.role(
                    role,
                    region,
                    start,
                    Group { index, warps, single: is_single(self.k, region) },
                    budget,
                    warp,
                )?;
                self.e.b.build_unconditional_branch(after)?;
            }
            start = end;
        }
        self.e.b.position_at_end(after);
        Ok(())
    }
    fn role(
        &mut self,
        role: &Role,
        region: &Region,
        start: usize,
        group: Group<'c>,
        budget: usize,
        warp: IntValue<'c>,
    ) -> Res<()> {
        if role.registers > 0 {
            let way = if role.registers < budget { "dec" } else { "inc" };
            let n = self.e.int(role.registers as i64);
            self.effect(&format!("setmaxnreg.{way}.sync.aligned.u32"), &[n.into()])?;
        }
        if let Some(copy) = region.params.first() {
            let n = self.e.sub(group.index, self.e.int(start as i64))?;
            self.set(*copy, vec![Reg::Int(Index { lo: 0, hi: role.copies as i64 - 1, ..Index::opaque(n) })]);
        }
        self.group = Some(group);
        let one = match group.single {
            false => None,
            true => {
                let first = self.e.int((start * group.warps) as i64);
                Some(self.e.icmp(IntPredicate::EQ, warp, first)?)
            }
        };
        self.when(one, |g| {
            let elected = match group.single {
                false => None,
                true => {
                    let pair = g.e.call("llvm.nvvm.elect.sync", &[], &[g.e.int(-1).into()])?;
                    let fields = g.e.fields(pair, 2)?;
                    Some(int(fields[1])?)
                }
            };
            g.when(elected, |g| g.region(region))
        })?;
        self.group = None;
        Ok(())
    }

    // ---- Numbers that roles share ----
    /// The number of a counter, which one thread increments.
    pub fn atomic_inc(&mut self, data: &InstData) -> Res<Reg<'c>> {
        if !self.group.is_some_and(|g| g.single) {
            return Err(Fail::Unsupported("an increment in other roles than those of one thread".into()));
        }
        let at = self.plain(data.args[0])?[0];
        let limit = self.plain(data.args[1])?[0];
        let i32 = Some(self.e.i32().into());
        let old =
            self.e.asm("atom.global.inc.u32 $0, [$1], $2;", "=r,l,r,~{memory}", i32, &[at, limit], true, false)?;
        Ok(Reg::Int(Index::opaque(int(old.ok_or_else(|| mistyped("an increment"))?)?)))
    }
    /// Writes a scalar to a stage of shared memory, by one thread.
    pub fn share_scalar(&mut self, data: &InstData) -> Res<()> {
        let [tile, stage, value] = data.args[..] else { return Err(mistyped("a store to shared memory")) };
        let bytes = self.elem(value)?.bytes();
        let at = self.staged(stage, bytes)?;
        let to = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let value = self.plain(value)?[0];
        self.once(|g| g.e.store(value, to, bytes))
    }
    /// Reads a scalar from a stage of shared memory: by the lane that also arrives for its warp. The shuffle gives it
    /// to the others, and tells the assembler that it is the same in all.
    pub fn shared_scalar(&mut self, data: &InstData) -> Res<Reg<'c>> {
        let (tile, result) = (data.args[0], data.results[0]);
        if self.elem(result)? != Elem::I32 || self.group.is_some_and(|g| g.single) {
            return Err(Fail::Unsupported("a scalar in shared memory that is no i32, or for one thread".into()));
        }
        let at = self.staged(data.args[1], 4)?;
        let from = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let from = self.e.b.build_ptr_to_int(from, self.e.i32(), "")?;
        let first = self.threads.first(&self.e, LANES)?;
        let text = "mov.b32 $0, 0; @$1 ld.shared.b32 $0, [$2];";
        let i32 = Some(self.e.i32().into());
        let read = self.e.asm(text, "=&r,b,r,~{memory}", i32, &[first.into(), from.into()], true, false)?;
        let read = read.ok_or_else(|| mistyped("a scalar in shared memory"))?;
        let args = [self.e.int(-1).into(), read, self.e.int(0).into(), self.e.int(31).into()];
        Ok(Reg::Int(Index::opaque(int(self.e.call("llvm.nvvm.shfl.sync.idx.i32", &[], &args)?)?)))
    }

    // ---- Barriers ----
    pub fn barrier_at(&mut self, barrier: Value, stage: Value) -> Res<PointerValue<'c>> {
        let at = self.staged(stage, 8)?;
        self.tile_byte(self.places.at(barrier)?, Some(at))
    }
    pub fn alloc_barriers(&mut self, data: &InstData) -> Res<()> {
        let v = data.results[0];
        let Type::Barrier { count, arrivals } = self.k.ty(v) else { return Err(mistyped("barriers")) };
        let (count, start) = (*count, self.places.at(v)?);
        let n = arrivals * self.arrivals.get(&v).copied().unwrap_or(1);
        self.once(|g| {
            for i in 0..count {
                let at = g.tile_byte(start + 8 * i, None)?;
                g.effect("mbarrier.init.shared", &[at.into(), g.e.int(n as i64).into()])?;
            }
            g.effect("fence.mbarrier_init.release.cluster", &[])
        })
    }
    pub fn barrier_expect(&mut self, data: &InstData, bytes: u32) -> Res<()> {
        let at = self.barrier_at(data.args[0], data.args[1])?;
        self.once(|g| {
            let args = [at.into(), g.e.int(bytes.into()).into()];
            g.effect("mbarrier.arrive.expect.tx.scope.cta.space.cta", &args)
        })
    }
    /// Every warp arrives once; with `multicast`, at the barrier of every block of the cluster.
    pub fn barrier_arrive(&mut self, data: &InstData, multicast: bool) -> Res<()> {
        let at = self.barrier_at(data.args[0], data.args[1])?;
        let one = self.e.int(1);
        let single = self.group.is_some_and(|g| g.single);
        if std::mem::take(&mut self.fenced) && !single {
            // One lane arrives for all of its warp.
            self.effect("bar.warp.sync", &[self.e.int(-1).into()])?;
        }
        let blocks = if multicast { self.k.cluster } else { 1 };
        if single && multicast {
            return Err(Fail::Unsupported("an arrival in other blocks by one thread".into()));
        }
        let lane = match single {
            true => self.e.int(0),
            false => {
                let weights = [1, 2, 4, 8, 16].into_iter().chain(std::iter::repeat_n(0, self.threads.bits - 5));
                self.threads.sum(&self.e, &weights.collect::<Vec<_>>())?.value(&self.e, &mut self.memo)?
            }
        };
        let mine = (!single).then(|| self.e.icmp(IntPredicate::ULT, lane, self.e.int(blocks as i64))).transpose()?;
        self.when(mine, |g| {
            if !multicast {
                return g.effect("mbarrier.arrive.scope.cta.space.cta", &[at.into(), one.into()]);
            }
            let remote = g.e.call("llvm.nvvm.mapa.shared.cluster", &[], &[at.into(), lane.into()])?;
            g.effect("mbarrier.arrive.scope.cta.space.cluster", &[remote, one.into()])
        })
    }
    /// Spins until the phase of this parity is complete.
    pub fn barrier_wait(&mut self, data: &InstData) -> Res<()> {
        let at = self.barrier_at(data.args[0], data.args[1])?;
        let phase = self.plain(data.args[2])?[0];
        let (spin, done) = (self.new_block("wait"), self.new_block("passed"));
        self.e.b.build_unconditional_branch(spin)?;
        self.e.b.position_at_end(spin);
        let passed = self.e.call("llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta", &[], &[at.into(), phase])?;
        self.e.b.build_conditional_branch(int(passed)?, done, spin)?;
        self.e.b.position_at_end(done);
        Ok(())
    }
}

fn role_label(role: &Role) -> String {
    role.name.chars().filter(char::is_ascii_alphanumeric).collect()
}
