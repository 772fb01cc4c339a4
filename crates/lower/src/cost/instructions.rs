//! Instructions of an instance, as `ptxas` 13.0 assembles them for sm_90a.
//!
//! Fitted to 1,870 programs without loops: half of the counts within 16 %, three quarters within 29 %.
use crate::cost::features::NestFeatures;
use crate::cost::price::TileFootprint;

/// Of a warp: what starts and ends a program.
const PROGRAM: f64 = 20.0;
/// Of a thread's access: itself, its part of an address; another part where each element of a vector has its own, and what is within bounds.
const ACCESS: f64 = 2.3;
const CROSSING: f64 = 0.5;
const GUARDED: f64 = 0.9;
/// Of an element of a vector with bounds of its own: by count in the programs of three concatenations.
const MASKED: f64 = 4.0;
/// For a loaded word of half types: its elements are taken apart.
const HALVES: f64 = 0.8;
/// For what is counted in [`NestFeatures::indices`]: most of it is shared between accesses, or known before.
const INDEX: f64 = 0.13;
/// For an element that is moved between threads; where several rows a tile are staged, one side moves whole vectors.
const MOVED: f64 = 2.2;
const PACKED: f64 = 1.2;
/// For a number that a thread has of a row: a step between lanes, one between warps and each warp that it comes from, one between blocks.
const SHUFFLE: f64 = 0.7;
const EXCHANGE: f64 = 13.4;
const OTHER: f64 = 0.5;
const REMOTE: f64 = 52.0;
/// Of peeled rows, and each element of a reduction; each that is stored by a warp which has an end of a row; of a tile with several rows, which are
/// aligned differently, each element, and more for each that is stored so.
const PEELED: [f64; 5] = [43.0, 0.7, 5.4, 2.2, 5.3];
/// Elements of a row from which on most warps have none.
const ENDS: f64 = 512.0;
/// Of a scan, and each element.
const SCAN: [f64; 2] = [12.4, 4.5];

impl TileFootprint {
    /// Of all warps of an instance.
    pub(super) fn instructions(&self, facts: &NestFeatures) -> f64 {
        let w = self;
        let steps = w.passes * w.trips;
        let mut access = ACCESS + if w.crosses { CROSSING } else { 0.0 };
        access += if facts.guards > 0 { GUARDED } else { 0.0 };
        let mut own =
            PROGRAM + w.arithmetic + INDEX * w.indices + MOVED * w.moved + PACKED * w.packed + MASKED * w.masked;
        own += if w.halves { HALVES * w.words } else { 0.0 };
        let scans = facts.scans as f64;
        let reductions = facts.reductions as f64 + scans * w.trips;
        let lanes = f64::from(w.lanes);
        let crosses = w.across_warps + w.across_blocks > 0;
        let shuffles =
            if crosses && w.results > 1.0 { w.results * (1.0 - 0.5f64.powf(lanes)) } else { lanes * w.results };
        own += reductions * SHUFFLE * shuffles;
        if w.across_warps > 0 {
            let left = (w.results / 2f64.powf(lanes)).max(1.0);
            own += reductions * left * (EXCHANGE + OTHER * 2f64.powi(w.across_warps as i32));
        }
        own += if w.across_blocks > 0 { reductions * REMOTE } else { 0.0 };
        if w.peeled {
            let stored = w.stores * (ENDS / w.chunk).min(1.0);
            let mut each = PEELED[1] * facts.reductions as f64 + PEELED[2] * stored;
            each += if w.tile > w.chunk { PEELED[3] + PEELED[4] * stored } else { 0.0 };
            // Of a loop's chunks the first and the last have masks.
            own += PEELED[0] + w.elements_per_thread * steps.min(2.0 * w.passes) * each;
        }
        own += scans * steps * (SCAN[0] + SCAN[1] * w.elements_per_thread);
        own * w.warps + access * w.accesses
    }
}
