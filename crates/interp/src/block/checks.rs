//! Checks of a run: what is wrong with a kernel's accesses to memory, told by instruction, instance and element, while
//! the run goes on.
//!
//! - Accesses outside of a buffer: a load gives 0, a store is left out.
//! - Addresses whose integers wrapped: sums and products on the way to an address are computed again in 64 bits.
//! - Races: two instances access an element, one of them changes it, and neither comes after the other. Atomic accesses
//!   do not race with each other; an instance that acquires what another one has released comes after it.
//! - Two elements of one store with one place and different values.
//! - Reads of memory that still holds the pattern of memory that nothing has written ([`UNWRITTEN`]).
use super::memory::{Buffer, Scalar, bits};
use super::value::{Address, Position};
use kiln_block::{Atomicity, BlockProgram, Elem, Inst, MemoryOrder};
use std::collections::HashMap;

/// The pattern of memory that nothing has written, as 16-bit words: a NaN of every float type of 16, 32 and 64 bits.
pub const UNWRITTEN: u16 = 0x7ff5;

/// What is wrong with an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FindingKind {
    /// Outside of the buffer; whether the access has a mask, which lets the element through.
    OutOfBounds { masked: bool },
    /// At an address that is no multiple of the element's size.
    Misaligned,
    /// The address was computed from integers that wrapped; the element that was meant.
    Overflow { meant: i64 },
    /// Another instance accesses the element too, at this instruction, and one of them changes it.
    Race { other: Inst, other_instance: [usize; 3], other_writes: bool },
    /// The store has another value for the same element.
    Conflict,
    /// Nothing has written the element.
    Unwritten,
}

/// An access that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub kind: FindingKind,
    pub inst: Inst,
    pub instance: [usize; 3],
    /// Number of the buffer; `None`: the address is in none.
    pub buffer: Option<usize>,
    /// The element, in the access's type, from the start of the buffer.
    pub element: i64,
    pub elem: Elem,
    pub writes: bool,
    /// How many accesses of this instruction are wrong in this way.
    pub count: u64,
}

/// An access to one element.
#[derive(Clone, Copy, Default)]
struct Event {
    /// Number of the instance from 1 on; 0: there was none.
    instance: u32,
    epoch: u32,
    inst: u32,
    atomic: bool,
}

/// The last accesses to an element: a write that changed it, and two reads by different instances.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: Event,
    reads: [Event; 2],
    /// An instance has written it, also without a change.
    is_written: bool,
}

/// For each instance (from 1 on) the last of its epochs that came before.
type Clock = HashMap<u32, u32>;

/// What is known of a run, instance by instance.
pub struct Checks {
    findings: Vec<Finding>,
    known: HashMap<(std::mem::Discriminant<FindingKind>, Inst, Option<usize>), usize>,
    /// Of each buffer, by its own elements; made at the first access.
    cells: Vec<Vec<Cell>>,
    released: HashMap<(usize, usize), Clock>,
    clock: Clock,
    epoch: u32,
    position: Position,
    /// Buffers may hold [`UNWRITTEN`].
    finds_unwritten: bool,
    /// The instruction that defines a value.
    defining: Vec<Option<Inst>>,
}

/// A place in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub buffer: usize,
    pub byte: usize,
    pub elem: Elem,
}

impl Checks {
    /// `finds_unwritten`: memory that nothing has written holds [`UNWRITTEN`].
    pub fn new(program: &BlockProgram, buffers: usize, finds_unwritten: bool) -> Checks {
        let mut defining = vec![None; program.values.len()];
        program.walk(&mut |inst, data| {
            for result in &data.results {
                defining[result.0 as usize] = Some(inst);
            }
        });
        Checks {
            findings: vec![],
            known: HashMap::new(),
            cells: vec![vec![]; buffers],
            released: HashMap::new(),
            clock: Clock::new(),
            epoch: 0,
            position: Position { grid: [1; 3], at: [0; 3] },
            finds_unwritten,
            defining,
        }
    }
    /// What was found, in the order of its first appearance.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
    pub(super) fn defining(&self, value: kiln_block::Value) -> Option<Inst> {
        self.defining.get(value.0 as usize).copied().flatten()
    }
    pub(super) fn enter(&mut self, position: Position) {
        self.position = position;
        self.clock.clear();
        self.epoch = 0;
    }
    fn instance(&self) -> u32 {
        let ([x, y, z], [nx, ny, _]) = (self.position.at, self.position.grid);
        (x + nx * (y + ny * z)) as u32 + 1
    }
    fn position_of(&self, instance: u32) -> [usize; 3] {
        let (n, [nx, ny, _]) = (instance as usize - 1, self.position.grid);
        [n % nx, n / nx % ny, n / nx / ny]
    }
    fn report(&mut self, kind: FindingKind, inst: Inst, buffer: Option<usize>, byte: i64, elem: Elem, writes: bool) {
        let key = (std::mem::discriminant(&kind), inst, buffer);
        if let Some(at) = self.known.get(&key) {
            self.findings[*at].count += 1;
            return;
        }
        self.known.insert(key, self.findings.len());
        let element = byte.div_euclid(elem.bytes() as i64);
        self.findings.push(Finding { kind, inst, instance: self.position.at, buffer, element, elem, writes, count: 1 });
    }

    /// An access that no buffer has memory for.
    pub(super) fn outside(&mut self, inst: Inst, address: Address, elem: Elem, masked: bool, writes: bool) {
        let buffer = Some(address.param).filter(|n| *n < self.cells.len());
        self.report(FindingKind::OutOfBounds { masked }, inst, buffer, address.at, elem, writes);
    }
    pub(super) fn misaligned(&mut self, inst: Inst, address: Address, elem: Elem, writes: bool) {
        self.report(FindingKind::Misaligned, inst, Some(address.param), address.at, elem, writes);
    }
    pub(super) fn wrapped(&mut self, inst: Inst, address: Address, meant: i64, elem: Elem, writes: bool) {
        let meant = meant.div_euclid(elem.bytes() as i64);
        self.report(FindingKind::Overflow { meant }, inst, Some(address.param), address.at, elem, writes);
    }
    pub(super) fn conflict(&mut self, inst: Inst, spot: Spot) {
        self.report(FindingKind::Conflict, inst, Some(spot.buffer), spot.byte as i64, spot.elem, true);
    }

    fn cells(&mut self, buffers: &[Buffer], spot: Spot) -> std::ops::Range<usize> {
        let buffer = &buffers[spot.buffer];
        let size = buffer.elem.bytes();
        if self.cells[spot.buffer].is_empty() {
            self.cells[spot.buffer] = vec![Cell::default(); buffer.bytes.len().div_ceil(size)];
        }
        spot.byte / size..(spot.byte + spot.elem.bytes()).div_ceil(size)
    }
    fn event(&self, inst: Inst, atomic: bool) -> Event {
        Event { instance: self.instance(), epoch: self.epoch, inst: inst.0, atomic }
    }
    /// Whether an access of another instance is in no order with one that is made now.
    fn races(&self, before: Event, now: Event) -> bool {
        let ordered = || self.clock.get(&before.instance).is_some_and(|epoch| *epoch >= before.epoch);
        before.instance != 0 && before.instance != now.instance && !(before.atomic && now.atomic) && !ordered()
    }
    fn race(&mut self, inst: Inst, spot: Spot, before: Event, other_writes: bool, writes: bool) {
        let other_instance = self.position_of(before.instance);
        let kind = FindingKind::Race { other: Inst(before.inst), other_instance, other_writes };
        self.report(kind, inst, Some(spot.buffer), spot.byte as i64, spot.elem, writes);
    }
    pub(super) fn read(&mut self, inst: Inst, buffers: &[Buffer], spot: Spot, atomic: bool) {
        let now = self.event(inst, atomic);
        for at in self.cells(buffers, spot) {
            let cell = self.cells[spot.buffer][at];
            if self.races(cell.write, now) {
                self.race(inst, spot, cell.write, true, false);
            }
            let reads = &mut self.cells[spot.buffer][at].reads;
            if reads[0].instance != now.instance {
                reads[1] = reads[0];
            }
            reads[0] = now;
            if self.finds_unwritten && !cell.is_written && is_unwritten(&buffers[spot.buffer].bytes, spot) {
                self.report(FindingKind::Unwritten, inst, Some(spot.buffer), spot.byte as i64, spot.elem, false);
            }
        }
    }
    /// `changes`: the element gets other bits than it has.
    pub(super) fn write(&mut self, inst: Inst, buffers: &[Buffer], spot: Spot, changes: bool, atomic: bool) {
        let now = self.event(inst, atomic);
        for at in self.cells(buffers, spot) {
            let cell = self.cells[spot.buffer][at];
            if changes && self.races(cell.write, now) {
                self.race(inst, spot, cell.write, true, true);
            }
            if let Some(read) = cell.reads.into_iter().find(|read| changes && self.races(*read, now)) {
                self.race(inst, spot, read, false, true);
            }
            let cell = &mut self.cells[spot.buffer][at];
            cell.is_written = true;
            if changes {
                cell.write = now;
            }
        }
    }
    /// What an atomic access orders: the instance comes after those whose releases it sees.
    pub(super) fn synchronise(&mut self, spot: Spot, how: Atomicity) {
        let place = (spot.buffer, spot.byte);
        if matches!(how.order, MemoryOrder::Acquire | MemoryOrder::AcquireRelease)
            && let Some(released) = self.released.get(&place)
        {
            merge(&mut self.clock, released);
        }
        if matches!(how.order, MemoryOrder::Release | MemoryOrder::AcquireRelease) {
            let instance = self.instance();
            let released = self.released.entry(place).or_default();
            merge(released, &self.clock);
            released.insert(instance, self.epoch);
            self.epoch += 1;
        }
    }
}

fn merge(into: &mut Clock, from: &Clock) {
    for (instance, epoch) in from {
        let known = into.entry(*instance).or_insert(*epoch);
        *known = (*known).max(*epoch);
    }
}

/// Whether the element has the pattern; single bytes have it if the word around them does.
fn is_unwritten(bytes: &[u8], spot: Spot) -> bool {
    let pattern = UNWRITTEN.to_le_bytes();
    let size = spot.elem.bytes().max(4);
    let start = if spot.elem.bytes() >= 2 { spot.byte } else { spot.byte / size * size };
    let size = if spot.elem.bytes() >= 2 { spot.elem.bytes() } else { size };
    let word = bytes.get(start..start + size);
    word.is_some_and(|word| word.chunks(2).all(|pair| pair == pattern))
}

/// Whether two numbers of a type have different bits.
pub(super) fn differ(elem: Elem, a: Scalar, b: Scalar) -> bool {
    let low = |v| bits(elem, v) << (64 - 8 * elem.bytes());
    low(a) != low(b)
}
