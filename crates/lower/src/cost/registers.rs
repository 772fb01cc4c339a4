//! Registers of a thread: what ptxas allocates, and what it keeps in memory.
use crate::cost::features::NestFeatures;
use crate::cost::price::{TileFootprint, WARP};
use crate::schedule::look_back;
use kiln_plan::Hardware;

impl TileFootprint {
    /// Registers of a thread as ptxas allocates them without a limit: fitted to 5,000 programs, half of them within 6, nine in ten within 20.
    fn registers(&self, facts: &NestFeatures) -> f64 {
        let w = self;
        let long = facts.accesses.iter().any(|a| a.store && a.bytes > 4);
        if w.look_back.is_some() {
            // What is scanned stays in registers while others are waited for, in the type of the sums.
            let rows = w.tile / w.chunk;
            // Totals of columns that a thread waits for at once.
            let totals = look_back::at_once(w.warps as usize, rows as usize) as f64 * rows / (WARP * w.warps);
            let waits = if rows > 1.0 { 1.5 * totals - 7.0 } else { 0.0 };
            return 20.0 + waits + if long { 4.1 } else { 1.3 } * w.elements_per_thread;
        }
        if facts.scans > 0 && !w.whole {
            let (base, each) = match (w.tile > w.chunk, w.halves) {
                (true, true) => (46.0, 2.0),
                (true, false) => (46.0, 1.05),
                (false, true) => (20.0, 1.38),
                (false, false) => (20.0, 2.65),
            };
            return base + each * if long { 2.0 } else { 1.0 } * w.elements_per_thread;
        }
        if facts.scans > 0 {
            return if w.halves { 12.5 + 1.25 * w.elements_per_thread } else { 20.7 + 1.23 * w.elements_per_thread };
        }
        if facts.ordered > 0 {
            // In a loop the chunk of an element beside it; elements of a tile are compared as they come. Of 167 programs half within 3, nine
            // in ten within 16.
            return if w.whole { 20.0 + 0.28 * w.elements_per_thread } else { 11.5 + 2.55 * w.elements_per_thread };
        }
        match facts.coords.iter().any(|c| c.1) {
            // Of 929 programs of windows, with all registers that a thread may have: half within 14, nine in ten within 90. All loads come first
            // where elements have places of their own; those of vectors are used as they come.
            false if facts.window => 34.0 + (0.16 + 0.57 * (w.bounded_elements / 4.0).min(1.0)) * w.loaded,
            // Whether the elements are in bounds is computed before they are loaded.
            false => 20.4 + 0.76 * w.words + facts.guards as f64 * w.bounded_elements,
            true if w.persist > 0.0 => 35.8 + 1.4 * w.elements_per_thread + 3.2 * w.results,
            true if w.whole => {
                // Half types are computed with in f32.
                let (wide, peeled) = if w.halves { (0.46 * w.elements_per_thread, 23.0) } else { (0.0, 13.0) };
                let held = w.words_live_across.max(w.elements_per_thread * facts.kept as f64);
                16.5 + held
                    + wide
                    + 1.1 * w.words_after_reduction
                    + 2.2 * w.results
                    + if w.peeled { peeled } else { 0.0 }
            }
            true => 34.0 + 0.41 * w.elements_per_thread + 0.74 * w.words_after_reduction + 0.5 * w.results,
        }
    }

    /// The register file of a multiprocessor, registers of a thread without a limit, and the limit.
    pub(super) fn allocated(&self, facts: &NestFeatures, machine: &Hardware) -> (f64, f64, f64) {
        let (w, limits) = (self, &machine.limits);
        let of_block = (w.warps / w.blocks).max(1.0);
        let threads = WARP * of_block;
        let file = limits.registers_per_multiprocessor as f64;
        let block = if threads > 256.0 { (file / threads / 8.0).floor() * 8.0 } else { f64::INFINITY };
        let most = block.min(limits.registers_per_thread as f64).min(w.limit.unwrap_or(f64::INFINITY));
        (file, w.registers(facts), most)
    }

    /// Registers that a thread keeps in memory: ptxas computes again, or loads again, before it spills. Of 281 programs with limits it
    /// spilled in 72; this tells 258 of them right.
    pub fn spilled(&self, facts: &NestFeatures, machine: &Hardware) -> f64 {
        let (w, (_, registers, most)) = (self, self.allocated(facts, machine));
        let least = if w.whole && facts.coords.iter().any(|c| c.1) {
            let (word, computed) = if w.halves { (0.5, 0.32) } else { (1.0, 1.18) };
            let own = if w.persist > 0.0 { w.elements_per_thread * word } else { w.words_live_across };
            registers.min(10.7 + 1.46 * own + computed * w.elements_per_thread + 2.3 * w.results)
        } else {
            registers
        };
        (least - most).max(0.0)
    }
}
