//! Large instances: on `sm_90` the blocks of a cluster share an instance (for example one long row), each with its part
//! of the warps.
//!
//! Layouts see one large block: the upper bits of the warp number are the block's rank in its cluster. Unlike warps,
//! blocks write partial results into each other's shared memory, and their barriers are the cluster's. While blocks
//! wait, the row of an instance that starts soon is prefetched to the L2 cache (`crates/lower/src/prefetch.rs`).
use super::emit::{Emit, Fail, Res, Val, int};
use super::r#gen::Gen;
use super::places::Places;
use super::reduce::{Combiner, Part, widest};
use inkwell::values::{IntValue, PointerValue};
use kiln_block::layout::Flat;
use kiln_block::layout::axis_bits;
use kiln_block::passes::persistent_rows;
use kiln_block::{BlockProgram, Elem, InstData, Op, ReduceOp, Region};
use kiln_machine::{Machine, isa};

/// The number of blocks that share an instance.
pub(super) fn of(k: &BlockProgram, m: &Machine) -> Res<usize> {
    let (warps, blocks) = (k.warps, k.blocks);
    let fits = blocks == 1 || m.arch.has_clusters() && blocks <= m.limits.cluster();
    if !fits || !warps.is_power_of_two() || warps / blocks > isa::BLOCK_WARPS {
        return Err(Fail::Unsupported(format!("an instance of {warps} warps in {blocks} blocks")));
    }
    if k.dependent && !m.arch.has_dependent_launch() {
        return Err(Fail::Unsupported("a launch before the kernel ahead has ended".into()));
    }
    Ok(blocks)
}

/// The blocks that share an instance.
pub(super) struct Blocks<'c> {
    pub count: usize,
    /// Other blocks may not have started yet, so their shared memory must not be written.
    apart: bool,
    /// Inside a loop, where shared memory is reused.
    pub repeats: usize,
    /// Barriers in use that count arriving bytes: one per exchange, reused by every iteration of a loop.
    signals: usize,
    /// Inside a loop whose exchanges use such barriers: the parity of the iteration.
    pub turn: Option<IntValue<'c>>,
    /// Bytes given to exchanges so far.
    exchanged: usize,
}

/// The most barriers that count arriving bytes; they are at the start of shared memory.
const SIGNALS: usize = 8;
/// Shared memory for partial results that blocks exchange in every iteration; it follows the barriers.
const EXCHANGES: usize = 5 << 10;

impl<'c> Blocks<'c> {
    /// Signals that this block has started.
    pub fn enter(e: &Emit<'c>, count: usize) -> Res<Blocks<'c>> {
        if count > 1 {
            e.invoke("llvm.nvvm.barrier.cluster.arrive.relaxed.aligned", &[], &[])?;
        }
        Ok(Blocks { count, apart: count > 1, repeats: 0, signals: 0, turn: None, exchanged: 0 })
    }
    /// Shared memory that is not scratch.
    pub fn kept(k: &BlockProgram, count: usize) -> usize {
        let exchanges = if persistent_rows::is_persistent(k) { EXCHANGES } else { 0 };
        if count > 1 { SIGNALS * 8 + exchanges } else { 0 }
    }
    /// Waits until all blocks have started; emitted once, where every thread passes.
    pub fn cluster_wait(&mut self, e: &Emit<'c>) -> Res<()> {
        if std::mem::take(&mut self.apart) {
            e.invoke("llvm.nvvm.barrier.cluster.wait.aligned", &[], &[])?;
        }
        Ok(())
    }
}

impl<'c> Gen<'c, '_> {
    /// A barrier of all threads of the instance, or of the role.
    pub fn sync(&mut self) -> Res<()> {
        self.fenced = false;
        if let Some(group) = self.group {
            return self.group_sync(group);
        }
        if self.blocks.count == 1 {
            return self.e.barrier();
        }
        self.blocks.cluster_wait(&self.e)?;
        self.e.invoke("llvm.nvvm.barrier.cluster.arrive.aligned", &[], &[])?;
        self.e.invoke("llvm.nvvm.barrier.cluster.wait.aligned", &[], &[])?;
        Ok(())
    }
    /// Prefetches bytes to the L2 cache; each of the blocks that share the instance prefetches its part.
    pub fn prefetch(&mut self, data: &InstData, bytes: usize) -> Res<()> {
        let own = 5 + self.own_warp_bits();
        // Whole units of 16 bytes, starting at the one that holds the pointer, none past the last byte.
        let share = bytes / self.blocks.count / 16 * 16;
        let Some(reg) = self.regs(data.args[0])?.first().copied().filter(|_| self.blocks.count > 1 && share > 0) else {
            return Ok(());
        };
        let first = self.threads.first(&self.e, (1 << own) - 1)?;
        let e = &self.e;
        // From the block's own rank, so that the address is seen to be uniform.
        let rank = int(e.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", &[], &[])?)?;
        let part = e.zext(e.mul(rank, e.int(share as i64))?, e.i64())?;
        let ptr = e.gep(e.i8().into(), reg.pointer()?.value(e)?, part)?;
        let text = format!("{{ .reg .b64 a; and.b64 a, $1, -16; @$0 cp.async.bulk.prefetch.L2.global [a], {share}; }}");
        e.asm(&text, "b,l", None, &[first.into(), ptr.into()], true, false)?;
        Ok(())
    }
    /// Warp bits within a block.
    pub fn own_warp_bits(&self) -> usize {
        self.warp_bits() - self.blocks.count.ilog2() as usize
    }
    /// Combines the partial results of blocks: every block writes its own to every block's shared memory, side by side
    /// for each element of the result; each reads and combines them in the order of the blocks. `slice`: the result's
    /// layout, replicated in every block.
    pub fn over_blocks(
        &mut self,
        op: ReduceOp,
        elems: &[Elem],
        slice: &Flat,
        bits: usize,
        parts: &[Part<'c>],
    ) -> Res<Vec<Part<'c>>> {
        let (count, own) = (self.blocks.count, 5 + self.own_warp_bits());
        if slice.warps[self.own_warp_bits()..].iter().any(Option::is_some) || elems.iter().any(|e| e.bytes() < 4) {
            return Err(Fail::Unsupported("this reduction over several blocks".into()));
        }
        let starts = match self.blocks.turn {
            Some(_) => self.exchange(elems, bits),
            None => self.partials(elems, bits, count, slice.per_thread())?,
        };
        self.blocks.cluster_wait(&self.e)?;
        let bytes: usize = elems.iter().map(|e| (count << bits) * e.bytes()).sum();
        let signal = self.signal(bytes)?;
        // Threads that hold replicas of an element write to one block each.
        let copies: Vec<usize> =
            slice.threads().take(own).enumerate().filter(|(_, b)| b.is_none()).map(|t| t.0).collect();
        let (numbered, rest) = copies.split_at(copies.len().min(count.ilog2() as usize));
        let mut to = vec![0i64; own];
        numbered.iter().enumerate().for_each(|(n, bit)| to[*bit] = 1 << n);
        let to = self.threads.sum(&self.e, &to)?.value(&self.e, &mut self.memo)?;
        let when = self.threads.first(&self.e, rest.iter().map(|bit| 1i64 << bit).sum())?;
        let places = Places::of(slice, bits, count, widest(elems));
        let weight = |b: Option<u8>| b.map_or(0, |b| places.element << b);
        let rank = self.threads.rank(own).into_iter().map(|w| w * places.sharer);
        let mine: Vec<i64> = slice.threads().take(own).map(weight).chain(rank).collect();
        for (n, (elem, start)) in elems.iter().zip(&starts).enumerate() {
            let at = self.byte_offset(&mine, *elem)?;
            for (r, p) in parts.iter().enumerate() {
                let ptr = self.shared_at(at, start + places.of_element(slice.register(r)) * elem.bytes())?;
                for first in (0..count).step_by(1 << numbered.len()) {
                    let to = self.e.add(to, self.e.int(first as i64))?;
                    self.store_into(ptr, to, p[n], when, signal)?;
                }
            }
        }
        self.wrote = false;
        match signal {
            Some(signal) => self.await_signal(signal)?,
            None => self.sync()?,
        }
        self.collect(Combiner::Op(op), elems, slice, bits, count, &starts)
    }
    /// Whether the blocks exchange partial results at least twice per iteration of a loop, so that no block is two
    /// exchanges ahead of another: what it sends in the next iteration then arrives after all have read what they were
    /// sent in this one.
    pub fn takes_turns(&self, region: &Region) -> Res<bool> {
        let (k, own) = (self.k, self.own_warp_bits());
        let (mut exchanges, mut bytes, mut inner) = (0, 0, false);
        for data in region.insts.iter().map(|i| k.inst(*i)) {
            inner |= !data.regions.is_empty();
            let Op::Reduce { op, axis } = data.op else { continue };
            let (bits, flat) = (axis_bits(k.ty(data.args[0]).shape(), axis as usize), self.flat(data.args[0])?);
            if flat.warps[own..].iter().flatten().any(|b| bits.contains(b)) {
                exchanges += 1;
                let elems = super::reduce::part_elems(op, self.elem(data.args[0])?);
                bytes += elems.iter().map(|e| self.exchange_bytes(*e, k.ty(data.results[0]).count())).sum::<usize>();
            }
        }
        Ok(self.blocks.count > 1 && !inner && (2..=SIGNALS).contains(&exchanges) && bytes <= EXCHANGES)
    }
    /// Bytes of an exchange of this many results: a partial result of every block, and room for the results.
    fn exchange_bytes(&self, elem: Elem, results: usize) -> usize {
        ((self.blocks.count + 1) * results * elem.bytes()).next_multiple_of(16)
    }
    /// Room for partial results of 2^`bits` elements that no other exchange uses.
    fn exchange(&mut self, elems: &[Elem], bits: usize) -> Vec<usize> {
        let mut starts = vec![];
        for elem in elems {
            starts.push(SIGNALS * 8 + self.blocks.exchanged);
            self.blocks.exchanged += self.exchange_bytes(*elem, 1 << bits);
        }
        starts
    }
    /// A barrier that opens once that many bytes have arrived. `None` in loops whose blocks may be ahead of each other.
    fn signal(&mut self, bytes: usize) -> Res<Option<PointerValue<'c>>> {
        let turns = self.blocks.turn.is_some();
        if self.blocks.repeats > 0 && !turns || self.blocks.signals == SIGNALS {
            return Ok(None);
        }
        let at = self.e.int(8 * self.blocks.signals as i64);
        self.blocks.signals += 1;
        let first = self.threads.first(&self.e, (1 << (5 + self.own_warp_bits())) - 1)?;
        let e = &self.e;
        // At the entry, before this block signals that it has started.
        let here = e.b.get_insert_block();
        if let Some(entry) = self.threads.entry().get_insert_block() {
            e.b.position_at_end(entry);
        }
        let ptr = e.gep(e.i8().into(), self.shared, at)?;
        let address = e.b.build_ptr_to_int(ptr, e.i32(), "")?;
        let init = "@$0 mbarrier.init.shared::cta.b64 [$1], 1; @$0 fence.mbarrier_init.release.cluster;";
        let expect = format!("@$0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {bytes};");
        let once = if turns { init.to_string() } else { format!("{init} {expect}") };
        let args = [first.into(), address.into()];
        e.asm(&once, "b,r,~{memory}", None, &args, true, false)?;
        if let Some(here) = here {
            e.b.position_at_end(here);
        }
        if turns {
            e.asm(&expect, "b,r,~{memory}", None, &args, true, false)?;
        }
        Ok(Some(ptr))
    }
    fn await_signal(&mut self, signal: PointerValue<'c>) -> Res<()> {
        let e = &self.e;
        let at = e.b.build_ptr_to_int(signal, e.i32(), "")?;
        let text = |parity: &str| {
            format!(
                "{{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [$0], {parity}; \
                 @!p bra AGAIN; }}"
            )
        };
        match self.blocks.turn {
            None => e.asm(&text("0"), "r,~{memory}", None, &[at.into()], true, true)?,
            Some(turn) => e.asm(&text("$1"), "r,r,~{memory}", None, &[at.into(), turn.into()], true, true)?,
        };
        Ok(())
    }
    /// Where `when` holds, writes to the address of `ptr` in the shared memory of the cluster's block `to`.
    fn store_into(
        &mut self,
        ptr: PointerValue<'c>,
        to: IntValue<'c>,
        v: Val<'c>,
        when: IntValue<'c>,
        signal: Option<PointerValue<'c>>,
    ) -> Res<()> {
        let e = &self.e;
        let address = |p: PointerValue<'c>| Ok::<_, Fail>(e.b.build_ptr_to_int(p, e.i32(), "")?);
        let wide = match v {
            Val::IntValue(i) => i.get_type().get_bit_width() == 64,
            Val::FloatValue(f) => f.get_type().get_bit_width() == 64,
            _ => false,
        };
        let (ty, letter, word) = if wide { ("b64", 'l', e.i64()) } else { ("b32", 'r', e.i32()) };
        let mut args: Vec<Val<'c>> =
            vec![when.into(), address(ptr)?.into(), to.into(), int(e.bitcast(v, word)?)?.into()];
        let place = "mapa.shared::cluster.u32 a, $1, $2;";
        let (text, more) = match signal {
            None => (format!("{{ .reg .b32 a; {place} @$0 st.shared::cluster.{ty} [a], $3; }}"), ""),
            Some(signal) => {
                args.push(address(signal)?.into());
                let store = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes";
                let there = "mapa.shared::cluster.u32 s, $4, $2;";
                (format!("{{ .reg .b32 a, s; {place} {there} @$0 {store}.{ty} [a], $3, [s]; }}"), ",r")
            }
        };
        e.asm(&text, &format!("b,r,r,{letter}{more},~{{memory}}"), None, &args, true, false)?;
        Ok(())
    }
}
