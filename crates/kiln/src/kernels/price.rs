//! The price of a launch of a block program: its predicted time, before anything is compiled for the device.
//!
//! Tuning orders configurations by it, and launches with it where nothing has been measured. It is a roofline with what
//! a roofline lacks to tell tiles apart: how many instances a multiprocessor holds, the rounds that follow, what an
//! instance waits for by itself, and the rate of the instructions that its matmuls take. Figures are the machine's:
//! those of nests ([`kiln_machine::Nests`]), of matmuls ([`kiln_machine::Gemm`], [`kiln_machine::Warpgroups`]), and
//! [`kiln_machine::Handwritten`]. Caches are cold, as where launches are measured.
use super::footprint::{Code, Footprint};
use super::work::{DotWork, matrix_rate};
use crate::bounds::LaunchValues;
use kiln_machine::{Machine, Tiles, Warpgroups, isa};
use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes of elements that tensor cores multiply at their full rate.
const HALF_BYTES: f64 = 2.0;
/// Bytes of elements that FMAs multiply at their full rate.
const REGISTER_BYTES: f64 = 4.0;
/// Elements of the largest tile of warpgroups, for which the machine's figures are.
const WIDE_TILE: f64 = 32768.0;

/// The predicted time of a launch.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LaunchPrice {
    /// Microseconds; infinite where an instance does not fit the machine.
    pub us: f64,
    /// The term that decides: `memory`, `cache` or `instances`.
    pub bound: &'static str,
    /// Microseconds of each term, which overlap, and of the launch.
    pub terms: BTreeMap<&'static str, f64>,
    /// What the terms are computed from.
    pub footprint: Footprint,
}

/// Prices a launch.
pub fn price(code: &Code, launch: &LaunchValues, machine: &Machine) -> LaunchPrice {
    let footprint = Footprint::of(code, launch, &machine.limits);
    let terms = if machine.arch.is_gpu() { gpu(&footprint, machine) } else { host(code, &footprint, machine) };
    let Terms { launch, overlapping, power } = terms;
    let us = launch + overlapping.iter().map(|(_, us)| us.powf(power)).sum::<f64>().powf(1.0 / power);
    let bound = overlapping.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("instances", |(name, _)| *name);
    let fits = !machine.arch.is_gpu() || footprint.resident > 0;
    let terms = overlapping.into_iter().chain([("launch", launch)]).collect();
    LaunchPrice { us: if fits { us } else { f64::INFINITY }, bound, terms, footprint }
}

/// Microseconds, and the exponent by which those that overlap add up.
struct Terms {
    launch: f64,
    overlapping: [(&'static str, f64); 3],
    power: f64,
}

fn gpu(footprint: &Footprint, machine: &Machine) -> Terms {
    let nests = &machine.nests;
    let bandwidth = machine.rates.bandwidth / 1e6;
    let cycles = machine.units.clock / 1e6;
    let memory = footprint.bytes / (nests.bandwidth * bandwidth);
    // Copies of roles reach the cache at another rate, which is priced with the instance.
    let sectors = if footprint.stages > 0 { 0.0 } else { footprint.sectors * footprint.instances };
    let cache = sectors / (nests.cache * bandwidth);
    let instances = rounds(footprint, &Instance::of(footprint, machine), machine) / cycles;
    let dispatch = nests.dispatch * footprint.instances;
    let launch = nests.launch + dispatch.min(instances);
    let overlapping = [("memory", memory), ("cache", cache), ("instances", instances)];
    Terms { launch, overlapping, power: machine.handwritten.overlap }
}

/// Cycles until all instances have run: multiprocessors hold several at once, and each round takes what one needs by
/// itself, or what all of it need together.
fn rounds(footprint: &Footprint, instance: &Instance, machine: &Machine) -> f64 {
    let multiprocessors = machine.units.multiprocessors as f64;
    let share = footprint.instances / multiprocessors;
    let most = share.ceil().max(1.0);
    let at_once = most.min(footprint.resident.max(1) as f64);
    let round = |resident: f64| instance.alone.max(resident * instance.together);
    let full = (most / at_once).floor();
    // Of many small instances, multiprocessors that are done early start others.
    if full >= 4.0 && at_once > 1.0 {
        return (share / at_once + 0.5) * round(at_once);
    }
    let rest = most - full * at_once;
    full * round(at_once) + if rest > 0.0 { round(rest) } else { 0.0 }
}

/// Cycles of an instance.
struct Instance {
    /// With a multiprocessor to itself.
    alone: f64,
    /// Its part of the time of many that share one: what its instructions occupy.
    together: f64,
}

impl Instance {
    fn of(footprint: &Footprint, machine: &Machine) -> Instance {
        let (figures, nests) = (&machine.handwritten, &machine.nests);
        let warps = footprint.warps.max(1) as f64;
        let issued = footprint.instructions * nests.issue / warps.min(isa::ISSUED as f64);
        let issue = footprint.instructions * nests.issue / isa::ISSUED as f64;
        let spills = footprint.spilled * nests.spilled * footprint.waits.max(1.0) * warps / isa::ISSUED as f64;
        let exchanges = footprint.exchanges * figures.exchange;
        let mut instance = Instance { alone: figures.instance + issued + spills + exchanges, together: issue + spills };
        for dot in &footprint.dots {
            let tile = Tile::of(dot, footprint, machine);
            instance.alone += dot.times * tile.alone;
            instance.together += dot.times * tile.together;
        }
        if footprint.stages > 0 {
            instance.add_ring(footprint, &machine.warpgroups, machine);
        } else {
            // A step of a loop that multiplies waits for its operands, as the figures of its tiles say.
            let steps: f64 = footprint.dots.iter().map(|dot| dot.times).fold(0.0, f64::max);
            instance.alone += (footprint.waits - steps).max(0.0) * figures.load;
        }
        instance
    }
    /// What a ring of stages takes before the first one is filled, and after the last one is multiplied.
    fn add_ring(&mut self, footprint: &Footprint, figures: &Warpgroups, machine: &Machine) {
        let area: f64 = footprint.dots.iter().map(|dot| (dot.shape[0] * dot.shape[1]) as f64).fold(0.0, f64::max);
        let finish = figures.finish + figures.finish_wide * area / WIDE_TILE;
        let launch = machine.nests.launch * 1e-6 * machine.units.clock;
        self.alone += (figures.fill - launch).max(0.0) + finish;
    }
}

/// Cycles of one matmul of blocks.
struct Tile {
    alone: f64,
    together: f64,
}

impl Tile {
    fn of(dot: &DotWork, footprint: &Footprint, machine: &Machine) -> Tile {
        match (footprint.stages, dot.by_tensor_cores) {
            (0, true) => Tile::in_registers(dot, footprint, &machine.gemm.mma, HALF_BYTES),
            (0, false) => Tile::in_registers(dot, footprint, &machine.gemm.fma, REGISTER_BYTES),
            _ => Tile::by_warpgroups(dot, footprint, machine),
        }
    }
    /// Operands are loaded, pass through shared memory to registers, and are multiplied: the figures of such tiles of
    /// Kiln's own matmuls.
    fn in_registers(dot: &DotWork, footprint: &Footprint, figures: &Tiles, full_rate_bytes: f64) -> Tile {
        let [m, n, k] = dot.shape.map(|size| size as f64);
        let threads = (footprint.warps * isa::WARP) as f64;
        let bytes = (m + n) * k * dot.bytes as f64;
        let rate = figures.rate / (1.0 + figures.narrow * (1.0 / m + 1.0 / n));
        let multiplied = m * n * k / rate * (dot.bytes as f64 / full_rate_bytes).max(1.0);
        let busy = (footprint.warps.min(isa::ISSUED) as f64) / isa::ISSUED as f64;
        let waits = figures.step + figures.loading * bytes / threads;
        Tile { alone: waits + figures.exposed * multiplied / busy, together: multiplied.max(bytes / figures.cache) }
    }
    /// Operands are copied ahead by tensor maps, and multiplied by instructions of warpgroups.
    fn by_warpgroups(dot: &DotWork, footprint: &Footprint, machine: &Machine) -> Tile {
        let figures = &machine.warpgroups;
        let [m, n, k] = dot.shape.map(|size| size as f64);
        let engines = &figures.engines;
        let rate = match dot.rate {
            "tf32" => engines.tf32,
            "tf32x3" => engines.tf32x3,
            "f8e4m3" => engines.f8,
            "f16" | "bf16" => engines.half,
            rate => matrix_rate(machine, rate) / (2.0 * machine.units.clock * machine.units.multiprocessors as f64),
        };
        let bytes = (m + n) * k * dot.bytes as f64;
        let copied = bytes / figures.cache;
        // Shared memory is written by copies, and read once for each group of rows.
        let group = isa::GROUP_ROWS as f64;
        let read = (m / group).ceil() * (group + n) * k * dot.bytes as f64;
        let shared = (bytes + read) / figures.shared;
        let arrives = figures.latency / footprint.stages.max(1) as f64;
        let multiplied = m * n * k / rate;
        let together = multiplied.max(copied).max(shared);
        Tile { alone: together.max(arrives), together }
    }
}

/// On a host instances are taken by threads in turn.
fn host(code: &Code, footprint: &Footprint, machine: &Machine) -> Terms {
    let figures = &machine.handwritten;
    let threads = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    // The last round of instances may not occupy all threads.
    let turns = (footprint.instances / threads).ceil() * threads / footprint.instances.max(1.0);
    let flops = footprint.instructions * isa::WARP as f64;
    let narrow = 1.0 + figures.host_block / widest_block(code).max(1.0);
    let matmuls: f64 = footprint.dots.iter().map(|dot| dot.times * dot.flops() / matrix_rate(machine, dot.rate)).sum();
    let computed = flops / machine.rates.alu * narrow + matmuls * narrow_dots(footprint, figures.host_block);
    let starts = figures.host_instance * footprint.instances / threads;
    let memory = 1e6 * footprint.bytes / machine.rates.bandwidth;
    let cache = 1e6 * footprint.sectors * footprint.instances / machine.rates.bandwidth * figures.staged;
    let instances = 1e6 * (computed * footprint.instances * turns + starts);
    let overlapping = [("memory", memory), ("cache", cache), ("instances", instances)];
    Terms { launch: 0.0, overlapping, power: figures.overlap }
}

/// Elements of the largest block that is loaded or stored.
fn widest_block(code: &Code) -> f64 {
    let mut widest = 1;
    code.program.walk(&mut |_, data| {
        if matches!(data.op, kiln_block::Op::Load(..) | kiln_block::Op::Store(_)) {
            widest = widest.max(code.program.ty(data.args[0]).count());
        }
    });
    widest as f64
}

/// How much longer matmuls of small tiles take, which pass their operands more often.
fn narrow_dots(footprint: &Footprint, block: f64) -> f64 {
    let narrow = |dot: &DotWork| {
        let [m, n, k] = dot.shape.map(|size| size as f64);
        1.0 + block / m.min(n).min(k).max(1.0) / 4.0
    };
    footprint.dots.iter().map(narrow).fold(1.0, f64::max)
}
