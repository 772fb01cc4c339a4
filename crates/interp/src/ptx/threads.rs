//! The threads of a block.
use super::number::{apply, bits, compare, converted, float, int, is_float, is_signed, low, rounded};
use super::parse::{Arg, Inst, Program};
use super::{Launch, PtxError, VECTOR};

/// Threads of a warp.
const WARP: usize = 32;
/// Instructions after which a block is taken not to end.
const MOST: usize = 2_000_000;

/// Global memory: each buffer far from the others.
pub struct Memory {
    buffers: Vec<(Vec<u8>, usize)>,
}

/// Address of the first buffer, and from one to the next.
const APART: u64 = 1 << 40;

impl Memory {
    pub fn of(buffers: &[Vec<u8>]) -> Memory {
        let padded = |b: &Vec<u8>| {
            let mut all = b.clone();
            all.resize(b.len().next_multiple_of(VECTOR), 0xff);
            (all, b.len())
        };
        Memory { buffers: buffers.iter().map(padded).collect() }
    }
    pub fn into(self, buffers: &mut [Vec<u8>]) {
        for (to, (from, len)) in buffers.iter_mut().zip(self.buffers) {
            to.copy_from_slice(&from[..len]);
        }
    }
    fn address(n: usize) -> u64 {
        APART * (n as u64 + 1)
    }
    /// So many bytes from an address on, to read or to write.
    fn at(&mut self, address: u64, count: usize, write: bool) -> Result<&mut [u8], String> {
        let (n, at) = ((address / APART) as usize, (address % APART) as usize);
        let unknown = || format!("{address:#x} is in no buffer");
        let (bytes, len) = n.checked_sub(1).and_then(|n| self.buffers.get_mut(n)).ok_or_else(unknown)?;
        let end = if write { *len } else { bytes.len() };
        if at + count > end {
            return Err(format!(
                "{count} bytes at {at} are {} bytes behind the end of buffer {}",
                at + count - end,
                n - 1
            ));
        }
        Ok(&mut bytes[at..at + count])
    }
}

/// Where a thread is.
#[derive(Clone, Copy, PartialEq)]
enum State {
    At(usize),
    /// It waits at a barrier for the others, and goes on there.
    Waits(usize),
    /// It waits for its warp at an instruction of all its threads.
    Meets(usize),
    Done,
}

struct Block<'p> {
    launch: Launch,
    block: [usize; 3],
    memory: &'p mut Memory,
    shared: Vec<u8>,
    /// By register, then by thread.
    registers: Vec<Vec<u64>>,
    states: Vec<State>,
}

pub fn run_block(p: &Program, launch: Launch, block: [usize; 3], memory: &mut Memory) -> Result<(), PtxError> {
    let mut b = Block {
        launch,
        block,
        memory,
        shared: vec![0xff; launch.shared],
        registers: vec![vec![0; launch.threads]; p.registers],
        states: vec![State::At(0); launch.threads],
    };
    for _ in 0..MOST {
        let here = |s: &State| if let State::At(n) = s { Some(*n) } else { None };
        let Some(at) = b.states.iter().filter_map(here).min() else {
            if b.states.iter().all(|s| *s == State::Done) {
                return Ok(());
            }
            if b.states.iter().any(|s| matches!(s, State::Meets(_))) {
                break;
            }
            for s in &mut b.states {
                if let State::Waits(n) = s {
                    *s = State::At(*n);
                }
            }
            continue;
        };
        let Some(inst) = p.insts.get(at) else {
            b.states.iter_mut().filter(|s| **s == State::At(at)).for_each(|s| *s = State::Done);
            continue;
        };
        let there: Vec<usize> = (0..launch.threads).filter(|t| b.states[*t] == State::At(at)).collect();
        if matches!(inst.op[0].as_str(), "shfl" | "mma" | "ldmatrix") {
            there.iter().for_each(|t| b.states[*t] = State::Meets(at));
            for warp in b.whole_warps(at) {
                warp.iter().for_each(|t| b.states[*t] = State::At(at + 1));
                b.execute(inst, &warp, at)?;
            }
            continue;
        }
        let runs = |t: &usize| inst.guard.is_none_or(|(r, negated)| (b.registers[r][*t] != 0) != negated);
        let active: Vec<usize> = there.iter().copied().filter(runs).collect();
        there.iter().for_each(|t| b.states[*t] = State::At(at + 1));
        b.execute(inst, &active, at)?;
    }
    Err(PtxError::Endless { block })
}

impl Block<'_> {
    /// The threads of each warp that are all at an instruction, but for those that have ended.
    fn whole_warps(&self, at: usize) -> Vec<Vec<usize>> {
        let warps = (0..self.launch.threads).step_by(WARP).map(|w| w..(w + WARP).min(self.launch.threads));
        let there = |t: &usize| self.states[*t] != State::Done;
        let all = warps.map(|w| w.filter(there).collect::<Vec<usize>>());
        all.filter(|w| !w.is_empty() && w.iter().all(|t| self.states[*t] == State::Meets(at))).collect()
    }
    fn execute(&mut self, i: &Inst, active: &[usize], at: usize) -> Result<(), PtxError> {
        let op: Vec<&str> = i.op.iter().map(String::as_str).collect();
        match (op[0], &i.args[..]) {
            ("bra", [Arg::Label(to)]) => active.iter().for_each(|t| self.states[*t] = State::At(*to)),
            ("ret" | "exit", []) => active.iter().for_each(|t| self.states[*t] = State::Done),
            ("bar", _) if op[1] == "warp" => {}
            ("bar" | "barrier", _) => active.iter().for_each(|t| self.states[*t] = State::Waits(at + 1)),
            // What one block alone need not wait for, and hints.
            ("griddepcontrol" | "membar" | "fence" | "prefetch", _) => {}
            // Copies are there at once; commits and waits do nothing.
            ("cp", [to, from, Arg::Imm(count), rest @ ..]) if op[1] == "async" => {
                for &t in active {
                    // Fewer bytes may be read than written; the others are zero.
                    let read = rest.first().map_or(*count, |a| self.value(a, t)) as usize;
                    let mut bytes = vec![0; *count as usize];
                    let source = self.place(from, t);
                    let found = self.memory.at(source, read, false).map(|b| b.to_vec());
                    bytes[..read].copy_from_slice(&found.map_err(|what| self.failed(i, t, what))?);
                    let target = self.place(to, t);
                    self.bytes("shared", target, bytes.len(), true, i, t)?.copy_from_slice(&bytes);
                }
            }
            ("cp", _) if op[1] == "async" => {}
            ("atom", [to, place, expected, by]) if op.contains(&"cas") => {
                let size = self.size(i)?;
                for &t in active {
                    let (place, expected, by) = (self.place(place, t), self.value(expected, t), self.value(by, t));
                    let bytes = self.bytes(space(&op), place, size, true, i, t)?;
                    let mut all = [0; 8];
                    all[..size].copy_from_slice(bytes);
                    let old = u64::from_le_bytes(all);
                    if old == low(expected, 8 * size as u32) {
                        bytes.copy_from_slice(&by.to_le_bytes()[..size]);
                    }
                    self.set(to, t, old);
                }
            }
            ("atom", [to, place, by]) => self.update(i, active, Some(to), place, by)?,
            ("red", [place, by]) => self.update(i, active, None, place, by)?,
            ("shfl", [to, value, lane, ..]) => self.shuffle(i, active, (op[2], to, value, lane))?,
            ("mma", [d, a, b, c]) => self.matmul(i, active, [d, a, b, c])?,
            ("ldmatrix", [to, from]) => self.matrices(i, active, to, from)?,
            ("ld", [to, Arg::Param(n)]) => active.iter().for_each(|t| self.set(to, *t, Memory::address(*n))),
            ("ld", [to, Arg::Scalar(n)]) => {
                let size = self.size(i)?;
                for &t in active {
                    let found = self.memory.at(Memory::address(*n), size, false).map(|b| b.to_vec());
                    let mut all = [0; 8];
                    all[..size].copy_from_slice(&found.map_err(|what| self.failed(i, t, what))?);
                    self.set(to, t, loaded(u64::from_le_bytes(all), &op));
                }
            }
            ("ld", [to, from]) => {
                let (space, size) = (space(&op), self.size(i)?);
                for &t in active {
                    let place = self.place(from, t);
                    let names = elements(to);
                    let bytes = self.bytes(space, place, size * names.len(), false, i, t)?.to_vec();
                    for (name, b) in names.iter().zip(bytes.chunks(size)) {
                        let mut all = [0; 8];
                        all[..size].copy_from_slice(b);
                        self.set(name, t, loaded(u64::from_le_bytes(all), &op));
                    }
                }
            }
            ("st", [to, from]) => {
                let (space, size) = (space(&op), self.size(i)?);
                for &t in active {
                    let place = self.place(to, t);
                    let values: Vec<u8> =
                        elements(from).iter().flat_map(|a| self.value(a, t).to_le_bytes()[..size].to_vec()).collect();
                    self.bytes(space, place, values.len(), true, i, t)?.copy_from_slice(&values);
                }
            }
            (_, [_, args @ ..])
                if args.iter().any(|a| !matches!(a, Arg::Reg(_) | Arg::Imm(_) | Arg::Special(_) | Arg::Vector(_))) =>
            {
                return Err(unknown(i));
            }
            (_, [to, args @ ..]) => {
                for &t in active {
                    let x: Vec<u64> = args.iter().map(|a| self.whole(a, t, i)).collect();
                    let y = computed(&op, &x).ok_or_else(|| unknown(i))?;
                    match to {
                        Arg::Vector(parts) => {
                            let n = bits(op[op.len() - 1]).unwrap_or(32) / parts.len() as u32;
                            for (k, part) in parts.iter().enumerate() {
                                self.set(part, t, low(y >> (n * k as u32), n));
                            }
                        }
                        to => self.set(to, t, y),
                    }
                }
            }
            _ => return Err(unknown(i)),
        }
        Ok(())
    }
    /// Updates of elements, thread after thread.
    fn update(&mut self, i: &Inst, active: &[usize], to: Option<&Arg>, place: &Arg, by: &Arg) -> Result<(), PtxError> {
        let op: Vec<&str> = i.op.iter().map(String::as_str).collect();
        let (size, ty) = (self.size(i)?, op[op.len() - 1]);
        let Some(name) = op.iter().find(|o| UPDATES.contains(o)) else { return Err(unknown(i)) };
        for &t in active {
            let first = self.place(place, t);
            for (n, by) in elements(by).iter().enumerate() {
                let by = self.value(by, t);
                let bytes = self.bytes(space(&op), first + (n * size) as u64, size, true, i, t)?;
                let mut all = [0; 8];
                all[..size].copy_from_slice(bytes);
                let old = u64::from_le_bytes(all);
                let new = match *name {
                    "exch" => Some(by),
                    "inc" => Some(if low(old, 32) >= low(by, 32) { 0 } else { old + 1 }),
                    name => apply(&[name], ty, &[old, by]),
                };
                bytes.copy_from_slice(&new.ok_or_else(|| unknown(i))?.to_le_bytes()[..size]);
                if let Some(to) = to {
                    self.set(to, t, old);
                }
            }
        }
        Ok(())
    }
    /// Numbers of other lanes.
    fn shuffle(
        &mut self,
        i: &Inst,
        active: &[usize],
        (mode, to, value, lane): (&str, &Arg, &Arg, &Arg),
    ) -> Result<(), PtxError> {
        let mut there = vec![false; self.launch.threads];
        active.iter().for_each(|t| there[*t] = true);
        let read: Vec<u64> = active
            .iter()
            .map(|&t| {
                let (own, by) = (t % WARP, self.value(lane, t) as usize);
                let from = match mode {
                    "bfly" => own ^ by,
                    "idx" => by % WARP,
                    "up" => own.checked_sub(by).unwrap_or(own),
                    _ => Some(own + by).filter(|l| *l < WARP).unwrap_or(own),
                };
                let from = t - own + from;
                match there[from] {
                    true => Ok(self.value(value, from)),
                    false => Err(self.failed(i, t, format!("thread {from} is not there"))),
                }
            })
            .collect::<Result<_, _>>()?;
        active.iter().zip(read).for_each(|(t, v)| self.set(to, *t, v));
        Ok(())
    }
    /// A warp's matmul of tiles that its lanes hold as PTX lays them out ("Matrix fragments for mma"): 16 x K by K x 8.
    fn matmul(&mut self, i: &Inst, active: &[usize], [d, a, b, c]: [&Arg; 4]) -> Result<(), PtxError> {
        let shape = i.op.iter().find_map(|o| o.strip_prefix("m16n8k")).and_then(|k| k.parse::<usize>().ok());
        let types: Vec<&str> = i.op.iter().rev().take(4).map(String::as_str).collect();
        let (Some(k), ["f32", _, ty, "f32"], WARP) = (shape, &types[..], active.len()) else { return Err(unknown(i)) };
        let (ty, per) = match *ty {
            "f16" | "bf16" => (*ty, 2),
            "tf32" => ("f32", 1),
            _ => return Err(unknown(i)),
        };
        let registers = [d, a, b, c].map(|of| elements(of).len());
        if registers != [4, k / (2 * per), k / (4 * per), 4] {
            return Err(unknown(i));
        }
        let bits = 32 / per as u32;
        let read = |b: &Self, of: &Arg, t: usize, element: usize| -> f64 {
            let word = elements(of).get(element / per).map_or(0, |r| b.value(r, t));
            float(low(word >> (bits * (element % per) as u32), bits), ty)
        };
        // Along K a lane holds `per` neighbours, and the same again half of a tile later.
        let (mut left, mut right) = (vec![[0.0; 32]; 16], vec![[0.0; 32]; 8]);
        for (lane, &t) in active.iter().enumerate() {
            let (group, inner) = (lane / 4, lane % 4);
            for at in 0..k / (4 * per) {
                for n in 0..per {
                    let depth = at * 4 * per + inner * per + n;
                    left[group][depth] = read(self, a, t, (2 * at) * per + n);
                    left[group + 8][depth] = read(self, a, t, (2 * at + 1) * per + n);
                    right[group][depth] = read(self, b, t, at * per + n);
                }
            }
        }
        for (lane, &t) in active.iter().enumerate() {
            let (c, d) = (elements(c), elements(d));
            for n in 0..4 {
                let (row, column) = (lane / 4 + 8 * (n / 2), lane % 4 * 2 + n % 2);
                let before = float(self.value(&c[n], t), "f32");
                let sum: f64 = (0..k).map(|x| left[row][x] * right[column][x]).sum();
                self.set(&d[n], t, rounded(before + sum, "f32"));
            }
        }
        Ok(())
    }
    /// 8 x 8 tiles of 16 bits from shared memory, whose rows lanes name in turn.
    fn matrices(&mut self, i: &Inst, active: &[usize], to: &Arg, from: &Arg) -> Result<(), PtxError> {
        let (names, transposed) = (elements(to), i.op.iter().any(|o| o == "trans"));
        if active.len() != WARP {
            return Err(unknown(i));
        }
        for (n, name) in names.iter().enumerate() {
            let mut rows = vec![];
            for &t in &active[8 * n..8 * n + 8] {
                let place = self.place(from, t);
                rows.push(self.bytes("shared", place, 16, false, i, t)?.to_vec());
            }
            let element = |row: usize, column: usize| {
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                u64::from(u16::from_le_bytes([rows[row][2 * column], rows[row][2 * column + 1]]))
            };
            for (lane, &t) in active.iter().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                self.set(name, t, element(row, column) | element(row, column + 1) << 16);
            }
        }
        Ok(())
    }
    fn failed(&self, i: &Inst, thread: usize, what: String) -> PtxError {
        PtxError::Failed { block: self.block, thread, line: i.line.clone(), what }
    }
    /// Bytes of an element of a load or a store.
    fn size(&self, i: &Inst) -> Result<usize, PtxError> {
        let ty = i.op.last().map(String::as_str).unwrap_or_default();
        bits(ty).map(|n| n as usize / 8).filter(|n| *n > 0).ok_or_else(|| unknown(i))
    }
    fn bytes(
        &mut self,
        space: &str,
        place: u64,
        count: usize,
        write: bool,
        i: &Inst,
        t: usize,
    ) -> Result<&mut [u8], PtxError> {
        let wrong = |b: &Self, what: String| Err(b.failed(i, t, what));
        if !place.is_multiple_of(count as u64) {
            return wrong(self, format!("{count} bytes at {place:#x} are not aligned"));
        }
        match space {
            "shared" if place as usize + count <= self.shared.len() => Ok(&mut self.shared[place as usize..][..count]),
            "shared" => {
                wrong(self, format!("{count} bytes at {place} of {} bytes of shared memory", self.shared.len()))
            }
            "global" => match self.memory.at(place, count, write).map(|_| ()) {
                Ok(()) => self.memory.at(place, count, write).map_err(|_| unknown(i)),
                Err(what) => wrong(self, what),
            },
            _ => Err(unknown(i)),
        }
    }
    fn place(&self, a: &Arg, t: usize) -> u64 {
        match a {
            Arg::Address(base, offset) => base.map_or(0, |r| self.registers[r][t]).wrapping_add(*offset as u64),
            other => self.value(other, t),
        }
    }
    fn value(&self, a: &Arg, t: usize) -> u64 {
        match a {
            Arg::Reg(r) => self.registers[*r][t],
            Arg::Imm(v) => *v,
            Arg::Special(name) => self.special(name, t),
            _ => 0,
        }
    }
    /// A value, a vector in one number.
    fn whole(&self, a: &Arg, t: usize, i: &Inst) -> u64 {
        let Arg::Vector(parts) = a else { return self.value(a, t) };
        let n = i.op.last().and_then(|ty| bits(ty)).unwrap_or(32) / parts.len() as u32;
        parts.iter().enumerate().fold(0, |v, (k, p)| v | low(self.value(p, t), n) << (n * k as u32))
    }
    fn special(&self, name: &str, t: usize) -> u64 {
        let axis = |of: &[usize; 3]| of[["x", "y", "z"].iter().position(|a| name.ends_with(a)).unwrap_or(0)];
        match name.split('.').next() {
            Some("%tid") if name.ends_with('x') => t as u64,
            Some("%ntid") if name.ends_with('x') => self.launch.threads as u64,
            Some("%ntid") => 1,
            Some("%ctaid") => axis(&self.block) as u64,
            Some("%nctaid") => axis(&self.launch.grid) as u64,
            Some("%laneid") => (t % WARP) as u64,
            _ => 0,
        }
    }
    fn set(&mut self, to: &Arg, t: usize, v: u64) {
        if let Arg::Reg(r) = to {
            self.registers[*r][t] = v;
        }
    }
}

/// What an atomic update may do.
const UPDATES: [&str; 8] = ["add", "inc", "exch", "min", "max", "and", "or", "xor"];

/// The memory of an access; `generic` where it does not say.
fn space<'o>(op: &[&'o str]) -> &'o str {
    op.iter().copied().find(|o| matches!(*o, "global" | "shared" | "local")).unwrap_or("generic")
}

/// What a load puts into a register, which it fills by the sign of its type.
fn loaded(bits: u64, op: &[&str]) -> u64 {
    match op.last() {
        Some(ty) if is_signed(ty) => int(bits, ty) as u64,
        _ => bits,
    }
}
fn unknown(i: &Inst) -> PtxError {
    PtxError::Unknown { line: i.line.clone(), what: "the interpreter has no such instruction".into() }
}

fn elements(a: &Arg) -> Vec<Arg> {
    if let Arg::Vector(all) = a { all.clone() } else { vec![a.clone()] }
}

/// The result of an instruction without effects.
fn computed(op: &[&str], x: &[u64]) -> Option<u64> {
    let ty = *op.last()?;
    match (op[0], x) {
        ("mov" | "cvta", [v]) => Some(low(*v, bits(ty)?)),
        ("selp", [a, b, c]) => Some(if *c != 0 { *a } else { *b }),
        ("setp", [a, b]) => Some(compare(op[1], ty, *a, *b)?.into()),
        ("cvt", [v]) => converted(op, op[op.len() - 2], ty, *v),
        // Two numbers of f32 as a pair, the first in the high half.
        ("cvt", [high, low]) => {
            let to = op[op.len() - 2].strip_suffix("x2").filter(|to| is_float(to))?;
            let half = |v: u64| rounded(float(v, ty), to);
            Some(half(*high) << 16 | half(*low))
        }
        ("mul" | "mad", [a, b, c @ ..]) if op[1] == "wide" => {
            let product = int(*a, ty) * int(*b, ty);
            Some(low(product as u64, 64).wrapping_add(c.first().copied().unwrap_or(0)))
        }
        ("shf", [a, b, c]) => {
            let (both, by) = (b << 32 | low(*a, 32), low(*c, 32));
            let by = if op.contains(&"clamp") { by.min(32) } else { by % 32 };
            Some(if op[1] == "r" { low(both >> by, 32) } else { low(both << by >> 32, 32) })
        }
        // A function of three bits, by its table: the first source has the weight 4.
        ("lop3", [a, b, c, table]) => {
            let row = |bit: u32| (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
            Some((0..32).fold(0, |v, bit| v | (table >> row(bit) & 1) << bit))
        }
        ("prmt", [a, b, c]) => {
            let both = b << 32 | low(*a, 32);
            let byte = |n: u64| low(both >> (8 * (n & 7)), 8);
            match ty {
                "f4e" => Some((0..4).fold(0, |v, k| v | byte((c & 3) + k) << (8 * k))),
                "b32" => Some((0..4).fold(0, |v, k| {
                    let (by, sign) = (c >> (4 * k), c >> (4 * k + 3) & 1 == 1);
                    let b = byte(by);
                    v | if sign { if b >> 7 == 1 { 0xff } else { 0 } } else { b } << (8 * k)
                })),
                _ => None,
            }
        }
        _ => apply(op, ty, x),
    }
}
