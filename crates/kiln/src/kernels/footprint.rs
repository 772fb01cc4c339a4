//! What an instance of a block program occupies and does, in numbers: what the price of a launch is computed from.
//!
//! Takes: the program after the canonical passes, the program that code is generated from, and the launch. Registers
//! and shared memory are estimates from block sizes until the code is assembled.
use super::work::{self, DotWork};
use crate::bounds::LaunchValues;
use kiln_block::{BlockProgram, InstData, Op, Region, Role, Type};
use kiln_machine::{Limits, isa};
use serde::Serialize;

/// Registers of a thread for addresses, indices and masks.
const OTHER_REGISTERS: f64 = 40.0;
/// Bytes of a register.
const REGISTER: f64 = 4.0;

/// An instance, and how many there are.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Footprint {
    /// Instances of the grid.
    pub instances: f64,
    /// Warps, those of all roles included.
    pub warps: usize,
    /// Registers of an average thread.
    pub registers: f64,
    /// Registers of a thread that do not fit, and are kept in memory.
    pub spilled: f64,
    /// Bytes of shared memory.
    pub shared: usize,
    /// Instances that fit a multiprocessor; 0: it does not fit one.
    pub resident: usize,
    /// Stages of the ring that operands are copied ahead into; 0 without one.
    pub stages: usize,
    /// Matmuls of blocks.
    pub dots: Vec<DotWork>,
    /// Bytes of tensors that all instances read or write, each once.
    pub bytes: f64,
    /// Bytes of the sectors that an instance's accesses touch.
    pub sectors: f64,
    /// Instructions of an instance's warps.
    pub instructions: f64,
    /// Times that loads are waited for, one after the other.
    pub waits: f64,
    /// Reductions and scans.
    pub exchanges: f64,
    /// A loop or branch depends on memory: it was counted once.
    pub is_lower_bound: bool,
}

/// Registers and spilled bytes of a thread, where the code has been assembled.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Assembled {
    pub registers: u64,
    pub spilled_bytes: u64,
}

/// What code a launch runs.
pub struct Code<'a> {
    /// After the canonical passes.
    pub program: &'a BlockProgram,
    /// What code is generated from.
    pub placed: &'a BlockProgram,
    pub assembled: Option<Assembled>,
}

impl Footprint {
    /// Of a launch on a machine with these limits.
    pub fn of(code: &Code, launch: &LaunchValues, limits: &Limits) -> Footprint {
        let work = work::count(code.program, launch);
        let occupied = Occupied::of(code, limits);
        Footprint {
            instances: launch.grid.iter().product::<usize>() as f64,
            warps: occupied.warps,
            registers: occupied.registers,
            spilled: occupied.spilled,
            shared: occupied.shared,
            resident: occupied.resident(limits),
            stages: occupied.stages,
            bytes: work.bytes(launch),
            sectors: work.sectors,
            // Where roles copy tiles, no thread computes addresses.
            instructions: if occupied.stages > 0 { work.flops } else { work.instructions } / isa::WARP as f64,
            waits: work.waits,
            exchanges: work.exchanges,
            is_lower_bound: work.is_lower_bound,
            dots: work.dots,
        }
    }
}

/// What an instance occupies of a multiprocessor.
struct Occupied {
    warps: usize,
    registers: f64,
    spilled: f64,
    shared: usize,
    stages: usize,
}

impl Occupied {
    fn of(code: &Code, limits: &Limits) -> Occupied {
        let placed = code.placed;
        let shared = shared_tiles(placed);
        if let Some(roles) = roles(placed) {
            let threads = |role: &Role| (role.warps * role.copies * isa::WARP) as f64;
            let all: f64 = roles.iter().map(threads).sum();
            let registers: f64 = roles.iter().map(|role| threads(role) * role.registers as f64).sum();
            let warps = roles.iter().map(|role| role.warps * role.copies).sum();
            let registers = registers / all.max(1.0);
            return Occupied { warps, registers, spilled: 0.0, shared: shared.bytes, stages: shared.stages };
        }
        let threads = (placed.warps * isa::WARP) as f64;
        let estimated = (words(placed, &placed.body) / threads).max(1.0) + OTHER_REGISTERS;
        let file = limits.registers_per_multiprocessor as f64;
        let most = (limits.registers_per_thread as f64).min(file / threads);
        let most = placed.registers.map_or(most, |asked| most.min(asked as f64));
        let (registers, spilled) = match code.assembled {
            Some(known) => (known.registers as f64, known.spilled_bytes as f64 / REGISTER),
            None => (estimated.min(most), (estimated - most).max(0.0)),
        };
        let shared_bytes = shared.bytes.max(exchanged(placed));
        Occupied { warps: placed.warps, registers, spilled, shared: shared_bytes, stages: 0 }
    }
    fn resident(&self, limits: &Limits) -> usize {
        if self.shared > limits.shared_per_block {
            return 0;
        }
        let warps = self.warps.max(1);
        let registers = (self.registers * (warps * isa::WARP) as f64).max(1.0);
        let fits = [
            (limits.registers_per_multiprocessor as f64 / registers) as usize,
            limits.shared_per_multiprocessor / (self.shared + isa::SHARED_RESERVED),
            limits.warps_per_multiprocessor / warps,
            limits.blocks_per_multiprocessor,
        ];
        fits.into_iter().min().unwrap_or(0)
    }
}

/// The roles of a program that has some.
fn roles(program: &BlockProgram) -> Option<Vec<Role>> {
    let mut found = None;
    program.walk(&mut |_, data| {
        if let Op::Roles(roles) = &data.op {
            found = Some(roles.clone());
        }
    });
    found
}

struct SharedTiles {
    bytes: usize,
    stages: usize,
}

/// Tiles in shared memory that a program names. Those that a ring has are the first to be allocated; its stages are
/// those of the barriers.
fn shared_tiles(program: &BlockProgram) -> SharedTiles {
    let mut tiles = SharedTiles { bytes: 0, stages: 0 };
    program.walk(&mut |_, data| {
        let ty = data.results.first().map(|v| program.ty(*v));
        match (&data.op, ty) {
            (Op::AllocShared, Some(Type::Shared { elem, shape, stages, .. })) => {
                tiles.bytes += elem.bytes() * shape.iter().product::<usize>() * stages;
            }
            (Op::AllocBarriers, Some(Type::Barrier { count, .. })) => tiles.stages = tiles.stages.max(*count),
            _ => {}
        }
    });
    tiles
}

/// Bytes of shared memory through which operands and results of matmuls pass between threads.
fn exchanged(program: &BlockProgram) -> usize {
    let mut most = 0;
    program.walk(&mut |_, data| {
        if matches!(data.op, Op::Dot { .. }) {
            let bytes = |v| program.ty(v).count() * program.ty(v).elem().map_or(0, |elem| elem.bytes());
            let operands = bytes(data.args[0]) + bytes(data.args[1]);
            // Results are stored as the operands' type.
            let width = program.ty(data.args[0]).elem().map_or(0, |elem| elem.bytes());
            most = most.max(operands).max(program.ty(data.args[2]).count() * width);
        }
    });
    most
}

/// 32-bit words that a region's blocks occupy at once, at least: what its loops carry, and what it loads and
/// multiplies.
fn words(program: &BlockProgram, region: &Region) -> f64 {
    let of_value = |v: &kiln_block::Value| match program.ty(*v) {
        Type::Block { elem, .. } => program.ty(*v).count() as f64 * (elem.bytes() as f64 / REGISTER),
        _ => 0.0,
    };
    let kept = |data: &InstData| matches!(data.op, Op::Load(..) | Op::TileLoad | Op::Reduce { .. } | Op::Scan { .. });
    let mut loaded = 0.0;
    let mut inner: f64 = 0.0;
    for inst in &region.insts {
        let data = program.inst(*inst);
        if kept(data) {
            loaded += data.results.iter().map(of_value).sum::<f64>();
        }
        for region in &data.regions {
            let carried: f64 = region.params.iter().map(of_value).sum();
            inner = inner.max(carried + words(program, region));
        }
    }
    loaded + inner
}
