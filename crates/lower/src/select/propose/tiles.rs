//! Sizes of tiles that are tried, and the schedules that are collected for a nest.
use crate::cost::features::NestFeatures;
use crate::nest::Nest;
use kiln_machine::Machine;
use kiln_plan::{Axis, Schedule, Step};

/// Warps of a block.
pub const WARPS: [usize; 5] = [1, 2, 4, 8, 16];
/// Warps of a block that has long rows, or a part of one.
pub const WARPS_OF_LONG_ROWS: [usize; 3] = [4, 8, 16];
/// Bytes of a row that a thread has, where a block does not have all of it.
pub const CHUNK_BYTES: [usize; 5] = [16, 32, 64, 128, 256];
/// Longest fused axis, whose positions are 32-bit integers.
pub const MAX_FUSED_EXTENT: usize = 1 << 30;
/// Elements from which on an axis is a side of a tile by itself.
pub const MIN_SIDE: usize = 64;
/// Bytes of a tile that a thread holds of the widest element.
const THREAD_BYTES: std::ops::RangeInclusive<usize> = 8..=256;
/// Share of the warps of a multiprocessor that are resident where registers are limited.
const RESIDENT_WARPS: f64 = 0.5;

/// The schedules that are proposed for a nest.
pub struct Proposals<'p> {
    pub nest: &'p Nest<'p>,
    pub facts: &'p NestFeatures,
    pub schedules: Vec<Schedule>,
}

impl<'p> Proposals<'p> {
    pub fn new(nest: &'p Nest<'p>, facts: &'p NestFeatures) -> Self {
        Proposals { nest, facts, schedules: vec![] }
    }
    /// Extents of the kept axes.
    pub fn kept(&self) -> Vec<usize> {
        self.nest.kept().map(|c| c.extent).collect()
    }
    pub fn push(&mut self, schedule: Schedule) {
        self.schedules.push(schedule);
    }
}

/// The powers of two in a range, from the first that is not less than `from`.
pub fn powers(from: usize, to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from.next_power_of_two()), |n| n.checked_mul(2)).take_while(move |n| *n <= to)
}

/// Whether warps divide a tile evenly, and a thread has a fair number of its bytes.
pub fn fills_threads(elements: usize, warps: usize, bytes: usize) -> bool {
    elements.is_multiple_of(32 * warps) && THREAD_BYTES.contains(&(elements / (32 * warps) * bytes))
}

/// The steps that bind a tile to warps and to blocks of a cluster.
pub fn bind(warps: usize, cluster: usize) -> impl Iterator<Item = Step> {
    [Step::Warps(warps)].into_iter().chain((cluster > 1).then_some(Step::Cluster(cluster)))
}

/// The step that fuses these kept axes, if they are several.
pub fn fuse(axes: std::ops::Range<usize>) -> Option<Step> {
    (axes.len() > 1).then(|| Step::Fuse(axes.map(|k| Axis::Kept(k as u8)).collect()))
}

/// Registers of a thread with which a share of a multiprocessor's warps is resident.
pub fn resident_registers(machine: &Machine) -> usize {
    let warps = (machine.limits.warps_per_multiprocessor as f64 * RESIDENT_WARPS) as usize;
    machine.limits.registers_per_multiprocessor / (32 * warps.max(1))
}
