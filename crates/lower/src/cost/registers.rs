//! Registers of a thread: what ptxas allocates, and what it keeps in memory.
use crate::cost::features::NestFeatures;
use crate::cost::price::{TileFootprint, WARP};
use crate::schedule::look_back;
use kiln_machine::ptxas;
use kiln_plan::Hardware;

impl TileFootprint {
    /// Registers of a thread as ptxas allocates them without a limit.
    fn registers(&self, facts: &NestFeatures) -> f64 {
        let (w, fits) = (self, &ptxas().registers);
        let element = w.elements_per_thread;
        let long = facts.accesses.iter().any(|a| a.store && a.bytes > 4);
        if w.look_back.is_some() {
            let fit = &fits.look_back;
            let rows = w.tile / w.chunk;
            // Totals of columns that a thread waits for at once.
            let totals = look_back::at_once(w.warps as usize, rows as usize) as f64 * rows / (WARP * w.warps);
            let waits = if rows > 1.0 { fit.total * totals - fit.totals_in_place } else { 0.0 };
            return fit.base + waits + if long { fit.wide_element } else { fit.element } * element;
        }
        if facts.scans > 0 && !w.whole {
            let fit = if w.tile > w.chunk { &fits.scanned_tiles } else { &fits.scanned_rows };
            let per_element = if w.halves { fit.half_element } else { fit.element };
            return fit.base + per_element * if long { 2.0 } else { 1.0 } * element;
        }
        if facts.scans > 0 {
            let fit = if w.halves { &fits.scanned_whole_half_rows } else { &fits.scanned_whole_rows };
            return fit.base + fit.element * element;
        }
        if facts.ordered > 0 {
            // In a loop a thread has the chunk of an element besides; elements of a tile are compared as they come.
            let fit = if w.whole { &fits.positions_of_whole_rows } else { &fits.positions };
            return fit.base + fit.element * element;
        }
        match facts.coords.iter().any(|c| c.1) {
            // All loads come first where elements have places of their own; those of vectors are used as they come.
            false if facts.window => {
                let fit = &fits.windows;
                fit.base + (fit.word + fit.bounded_word * (w.bounded_elements / 4.0).min(1.0)) * w.loaded
            }
            // Whether the elements are in bounds is computed before they are loaded.
            false => {
                let fit = &fits.points;
                fit.base + fit.word * w.words + facts.guards as f64 * w.bounded_elements
            }
            true if w.persist > 0.0 => {
                let fit = &fits.persistent;
                fit.base + fit.element * element + fit.result * w.results
            }
            true if w.whole => {
                let fit = &fits.whole_rows;
                // Half types are computed with in f32.
                let (wide, peeled) =
                    if w.halves { (fit.half_element * element, fit.peeled_halves) } else { (0.0, fit.peeled) };
                let across = w.words_live_across.max(element * facts.kept as f64);
                fit.base
                    + across
                    + wide
                    + fit.later_word * w.words_after_reduction
                    + fit.result * w.results
                    + if w.peeled { peeled } else { 0.0 }
            }
            true => {
                let fit = &fits.chunks;
                fit.base + fit.element * element + fit.later_word * w.words_after_reduction + fit.result * w.results
            }
        }
    }

    pub(super) fn allocated(&self, facts: &NestFeatures, machine: &Hardware) -> Allocation {
        let (w, limits) = (self, &machine.limits);
        let of_block = (w.warps / w.blocks).max(1.0);
        let threads = WARP * of_block;
        let file = limits.registers_per_multiprocessor as f64;
        let block = if threads > 256.0 { (file / threads / 8.0).floor() * 8.0 } else { f64::INFINITY };
        let limit = block.min(limits.registers_per_thread as f64).min(w.limit.unwrap_or(f64::INFINITY));
        Allocation { file, registers: w.registers(facts), limit }
    }

    /// Registers that a thread keeps in memory: ptxas computes again, or loads again, before it spills.
    pub fn spilled(&self, facts: &NestFeatures, machine: &Hardware) -> f64 {
        let (w, Allocation { registers, limit, .. }) = (self, self.allocated(facts, machine));
        let needed = if w.whole && facts.coords.iter().any(|c| c.1) {
            let fit = &ptxas().spills;
            let (word, computed) = if w.halves { (0.5, fit.half_element) } else { (1.0, fit.element) };
            let across = if w.persist > 0.0 { w.elements_per_thread * word } else { w.words_live_across };
            registers.min(fit.base + fit.word * across + computed * w.elements_per_thread + fit.result * w.results)
        } else {
            registers
        };
        (needed - limit).max(0.0)
    }
}

/// Registers of a schedule.
pub(super) struct Allocation {
    /// Of a multiprocessor.
    pub file: f64,
    /// Of a thread as ptxas allocates them without a limit, and the limit.
    pub registers: f64,
    pub limit: f64,
}
