//! The cost model of nests: predicts the microseconds of a schedule, term by term.
//!
//! Takes: a schedule in numbers. Gives: its time. Rates and latencies are those of the machine
//! ([`kiln_machine::Nests`]). Never: chooses, or looks at a program.
use crate::cost::features::NestFeatures;
use crate::cost::price::{Price, TileFootprint, WARP};
use crate::cost::registers::Allocation;
use crate::schedule::{look_back, widen};
use kiln_machine::Nests;
use kiln_machine::isa::SECTOR;
use kiln_plan::Hardware;

impl TileFootprint {
    /// The price, term by term.
    pub fn price(&self, facts: &NestFeatures, machine: &Hardware) -> Price {
        let (waves, instructions) = (Waves::of(self, facts, machine), self.instructions(facts));
        let terms = Terms { w: self, facts, machine, m: &machine.nests, waves, instructions };
        let (w, m, waves) = (self, &machine.nests, &terms.waves);
        let instance = terms.instance();
        let latency = waves.counted() * instance * waves.turns(w);
        let (memory, cache, l1, issue) = (terms.memory(), terms.cache(), terms.l1(), terms.issue());
        let dispatch = m.dispatch * w.instances * w.blocks;
        let stream = memory.max(cache) + terms.further_traffic();
        let together = terms.overlapped([stream, l1, issue, dispatch, terms.remote(), terms.chain()]);
        let busy = together * (1.0 + terms.ramp()) + latency / waves.neighbours(w);
        let exposed = m.exposed * instance;
        let mut extra_launches = if w.copies { m.second } else { 0.0 };
        // The launch that clears what is waited for overlaps the one before it.
        if w.look_back.is_none() && w.parts > 1.0 {
            extra_launches += terms.joins();
        }
        let us = busy + exposed + m.launch + extra_launches;
        Price { us, launch: m.launch, memory, cache, l1, issue, latency, exposed, extra_launches }
    }
}

/// How the instances of a schedule fill the machine.
struct Waves {
    /// Blocks of a multiprocessor.
    resident: f64,
    /// Instances of the grid, and how many of them are resident.
    launched: f64,
    at_once: f64,
    /// Launched instances for each resident one.
    rounds: f64,
    /// Multiprocessors that have work.
    used: f64,
}

impl Waves {
    fn of(w: &TileFootprint, facts: &NestFeatures, machine: &Hardware) -> Waves {
        let limits = &machine.limits;
        let multiprocessors = machine.units.multiprocessors as f64;
        let of_block = (w.warps / w.blocks).max(1.0);
        let threads = WARP * of_block;
        let Allocation { file, registers, limit } = w.allocated(facts, machine);
        let by_threads = (limits.warps_per_multiprocessor as f64 / of_block).floor();
        let mut resident = (file / (registers.min(limit) * threads)).floor();
        resident = resident.min(by_threads).min(limits.blocks_per_multiprocessor as f64).max(1.0);
        if w.persist > 0.0 {
            resident = 1.0;
        }
        let clusters = limits.clusters_of(w.blocks as usize) as f64;
        let at_once = if w.blocks > 1.0 { clusters * resident } else { multiprocessors * resident };
        let launched = if w.persist > 0.0 { w.persist } else { w.instances };
        let reached = if w.blocks > 1.0 { clusters * w.blocks } else { multiprocessors };
        let used = multiprocessors.min(launched * w.blocks).min(reached);
        Waves { resident, launched, at_once, rounds: launched / at_once, used }
    }
    /// Tiles that a persistent instance computes in turn.
    fn turns(&self, w: &TileFootprint) -> f64 {
        if w.persist > 0.0 { w.instances / self.launched } else { 1.0 }
    }
    /// Rounds whose latency counts: few end together, many do not.
    fn counted(&self) -> f64 {
        if self.rounds < 4.0 { (self.rounds - 1e-9).ceil() } else { self.rounds + 0.5 }.max(1.0)
    }
    /// Blocks of a multiprocessor that hide each other's latency.
    fn neighbours(&self, w: &TileFootprint) -> f64 {
        self.resident.min((self.launched * w.blocks / self.used).max(1.0)).max(1.0)
    }
}

/// The terms of a price.
struct Terms<'a> {
    w: &'a TileFootprint,
    facts: &'a NestFeatures,
    machine: &'a Hardware<'a>,
    m: &'a Nests,
    waves: Waves,
    /// Of all warps of an instance.
    instructions: f64,
}

impl Terms<'_> {
    /// Clock cycles of a microsecond.
    fn cycles(&self) -> f64 {
        self.machine.units.clock / 1e6
    }
    /// Steps of the loops over a row.
    fn steps(&self) -> f64 {
        self.w.passes * self.w.trips
    }
    /// Rows are copied ahead of what is computed.
    fn copies_ahead(&self) -> bool {
        self.w.prefetch || self.w.persist > 0.0
    }
    /// One instance, without the time that it shares with others.
    fn instance(&self) -> f64 {
        let (w, m) = (self.w, self.m);
        let waits = self.waits();
        let computed = self.instructions / w.warps / self.cycles() * m.warp;
        if w.persist > 0.0 {
            m.latency / (w.instances / self.waves.launched) + waits + computed
        } else {
            m.latency * if w.prefetch { 0.0 } else { self.steps() } + waits + computed
        }
    }
    /// What an instance waits for others that share its row.
    fn waits(&self) -> f64 {
        let (w, m, facts) = (self.w, self.m, self.facts);
        if w.across_blocks > 0 {
            let barriers = facts.levels as f64 + facts.scans as f64 * w.trips;
            barriers * m.cluster
        } else if let Some(group) = w.look_back {
            // For the chunks just before, and for the reads of all others' totals.
            let at_once = look_back::at_once(w.warps as usize, (w.tile / w.chunk) as usize) as f64;
            let groups = f64::from(u8::from(group > 1.0));
            m.look_back * (1.0 + groups) + m.totals * (groups + self.looked_back(group) / at_once)
        } else {
            0.0
        }
    }
    /// Totals of a row that an instance reads on average, where sums of so many chunks are published too.
    fn looked_back(&self, group: f64) -> f64 {
        let parts = self.w.parts;
        if group > 1.0 { group / 2.0 + parts / (2.0 * group) } else { parts / 2.0 }
    }
    fn issue(&self) -> f64 {
        self.instructions * self.m.issue * self.w.instances / (self.waves.used * 4.0 * self.cycles())
    }
    fn memory(&self) -> f64 {
        let (m, l2, rounds) = (self.m, self.machine.units.l2 as f64, self.waves.rounds);
        let bytes = self.facts.bytes as f64;
        let warm = 1.0 + m.l2_speedup / (1.0 + (bytes / (m.l2_usable_share * l2)).powi(6));
        // In a last wave that is not full, memory is not either.
        let wave = if rounds > 1.0 { 1.0 + m.wave * (rounds.ceil() / rounds - 1.0) } else { 1.0 };
        self.moved() / (m.bandwidth * self.machine.rates.bandwidth / 1e6) / warm * wave
    }
    /// Bytes from and to memory.
    fn moved(&self) -> f64 {
        let (w, m, l2) = (self.w, self.m, self.machine.units.l2 as f64);
        let bytes = self.facts.bytes as f64;
        let mut moved = bytes + m.page * w.spans * w.instances;
        // What is needed again is in the L2 cache if not too much else was meanwhile.
        let of_instance = bytes / w.instances.max(1.0);
        let lost = |instances: f64| 1.0 / (1.0 + (m.reread_l2_share * l2 / (instances * of_instance).max(1.0)).powi(2));
        if w.passes > 1.0 {
            let read = 0.5 * moved;
            let kept = if w.reversed { (m.l2_usable_share * l2 / read).min(1.0) } else { 0.0 };
            moved += (w.passes - 1.0 - kept) * read * lost(self.waves.at_once.min(self.waves.launched));
        }
        let twice = |next: f64| m.edges + (1.0 - m.edges) * lost(next);
        moved += w.shared.iter().map(|(bytes, next)| bytes * twice(*next)).sum::<f64>() * w.instances;
        moved
    }
    fn cache(&self) -> f64 {
        let (w, m) = (self.w, self.m);
        // A store takes as long for a part of a cache line as for all of it. What a window loads for each of its
        // results takes longer.
        let written = if self.facts.window { 0.0 } else { w.written / m.stores };
        (w.sectors / m.cache).max(written) * w.instances / (self.machine.rates.bandwidth / 1e6)
    }
    /// Spills and totals of chunks, which go through the L2 cache on top.
    fn further_traffic(&self) -> f64 {
        let (w, m, levels) = (self.w, self.m, self.facts.levels as f64);
        let spilled = w.spilled(self.facts, self.machine);
        // Words that do not fit registers go to the L2 cache and back.
        let spills = spilled * m.spilled * WARP * w.warps * w.instances * (1.0 + levels) * self.steps();
        // An instance that looks back reads the totals of half its row's chunks, or groups, each a word.
        let totals = w.look_back.map_or(0.0, |group| w.instances * self.looked_back(group) * (w.tile / w.chunk) * 8.0);
        (spills + totals) / (m.cache * self.machine.rates.bandwidth / 1e6)
    }
    fn l1(&self) -> f64 {
        self.w.lines * self.w.instances * self.m.line / (self.waves.used * self.cycles())
    }
    /// Each block of a cluster sends its partial results to all.
    fn remote(&self) -> f64 {
        let (w, facts) = (self.w, self.facts);
        let reductions = facts.reductions as f64 + facts.scans as f64 * w.trips;
        let sent = if w.across_blocks > 0 { reductions * w.tile / w.chunk * w.blocks * w.blocks } else { 0.0 };
        sent * w.instances * self.m.remote / (self.waves.used * self.cycles())
    }
    /// Loads of a step of a loop follow those of the step before; rows that are copied ahead do not.
    fn chain(&self) -> f64 {
        let steps = self.steps();
        if steps > 1.0 && !self.copies_ahead() { self.m.chain * self.waves.rounds.max(1.0) * steps } else { 0.0 }
    }
    /// What takes longest hides most of the rest, the more so the more blocks there are.
    fn overlapped(&self, kinds: [f64; 6]) -> f64 {
        let (w, neighbours) = (self.w, self.waves.neighbours(self.w));
        // Blocks that share a row wait for each other; cluster exchange is priced in `remote`. Rows that are copied
        // ahead arrive meanwhile, as those of another block do.
        let independent = if w.along { (neighbours / w.blocks).max(1.0) } else { neighbours };
        let independent = independent + f64::from(u8::from(self.copies_ahead()));
        let power = 2.0 - self.m.lone_block_penalty / independent;
        kinds.iter().map(|t| t.powf(power)).sum::<f64>().powf(1.0 / power)
    }
    /// A part of the first round, or step of a loop, and of the last one overlaps nothing, the less the fewer blocks
    /// there are.
    fn ramp(&self) -> f64 {
        let rounds = self.waves.rounds;
        self.m.ramp * rounds.min(1.0) / (rounds.max(1.0) * self.waves.turns(self.w) * self.steps()).max(1.0)
    }
    /// The launches that combine partial results.
    fn joins(&self) -> f64 {
        let (w, facts, m, machine) = (self.w, self.facts, self.m, self.machine);
        let rows = w.tile / w.chunk;
        let bytes = w.parts * w.unshared_instances * rows * 4.0;
        let rate = m.cache * machine.rates.bandwidth / 1e6;
        if let Some(count) = w.wide {
            let columns = widen::together(w.parts as usize, count) as f64;
            let blocks = w.unshared_instances * rows / count as f64 / columns;
            let share = (blocks / machine.units.multiprocessors as f64).min(1.0);
            let values = 1.0 + f64::from(u8::from(w.stored_along));
            let sectors = (SECTOR as f64 / (4.0 * columns)).max(1.0);
            return values * (m.second + bytes * sectors / (rate * share));
        }
        let launches = facts.passes.max(1) as f64;
        let reads = if w.stored_along || facts.passes > 1 { w.parts } else { 1.0 };
        launches * (m.second + bytes * reads / rate)
    }
}
