//! Accesses to the buffers of a run: through pointers, and in tiles through descriptors. None is out of bounds.
use super::{Flow, Machine, Said, shape};
use crate::block::{
    checks::{Spot, differ},
    memory::*,
    value::*,
};
use kiln_block::{Array, AtomicOp, Atomicity, Elem, Extent, Swizzle, Type, Value, ops::fault};
use std::{collections::HashMap, rc::Rc};

/// Marks a word that is published.
const MARK: u64 = 1 << 32;

/// A byte of a parameter's buffer.
#[derive(Clone, Copy)]
struct Place {
    param: usize,
    at: usize,
}
impl Place {
    fn spot(self, elem: Elem) -> Spot {
        Spot { buffer: self.param, byte: self.at, elem }
    }
}

/// A block of accesses.
struct Lanes {
    pointers: Rc<Block>,
    mask: Option<Rc<Block>>,
    /// The addresses that were meant, if integers may have wrapped.
    meant: Option<Rc<Vec<i64>>>,
    elem: Elem,
}
impl Lanes {
    fn count(&self) -> usize {
        self.pointers.count()
    }
    fn has(&self, i: usize) -> bool {
        self.mask.as_ref().is_none_or(|m| m.ints()[i] != 0)
    }
}

fn zero(elem: Elem) -> Scalar {
    if elem.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) }
}

impl Machine<'_, '_> {
    /// The buffer behind an address, and the element's first byte in it, bounds-checked.
    fn place(&self, a: Address, elem: Elem) -> Said<Place> {
        let (Some(buffer), Some(param)) = (self.buffers.get(a.param), self.k.params.get(a.param)) else {
            return Err("an address that is in no buffer".into());
        };
        let bytes = elem.bytes();
        let inside = usize::try_from(a.at).ok().filter(|at| at + bytes <= buffer.bytes.len());
        let at = inside.ok_or_else(|| {
            let (n, at) = (buffer.bytes.len() / bytes, a.at.div_euclid(bytes as i64));
            format!("element {at} of `{}`, which has {n}; mask the access or give a larger buffer", param.name)
        })?;
        if at % bytes != 0 {
            return Err(format!("{elem} at byte {at} of `{}`, which is not aligned", param.name));
        }
        Ok(Place { param: a.param, at })
    }
    /// The place of an element of a block of accesses; `None` where a checked run leaves it out.
    fn place_of(&mut self, lanes: &Lanes, i: usize, writes: bool) -> Said<Option<Place>> {
        let (address, elem, inst) = (lanes.pointers.pointers()[i], lanes.elem, self.at);
        let placed = self.place(address, elem);
        let Some(checks) = &mut self.checks else { return placed.map(Some) };
        if let Some(meant) = lanes.meant.as_ref().map(|meant| meant[i]).filter(|meant| *meant != address.at) {
            checks.wrapped(inst, address, meant, elem, writes);
        }
        let buffer = self.buffers.get(address.param);
        match placed {
            Ok(place) => return Ok(Some(place)),
            Err(_)
                if buffer.is_some_and(|b| {
                    usize::try_from(address.at).is_ok_and(|at| at + elem.bytes() <= b.bytes.len())
                }) =>
            {
                checks.misaligned(inst, address, elem, writes);
            }
            Err(_) => checks.outside(inst, address, elem, lanes.mask.is_some(), writes),
        }
        Ok(None)
    }
    fn lanes(&self, flow: &Flow, pointer: Value, mask: Option<&Value>, elem: Elem) -> Said<Lanes> {
        let mask = mask.map(|v| flow.block(*v)).transpose()?;
        Ok(Lanes { pointers: flow.block(pointer)?, mask, meant: self.meant(flow, pointer)?, elem })
    }
    /// Reads an element.
    fn read_lane(&mut self, lanes: &Lanes, i: usize, how: Option<Atomicity>) -> Said<Option<(Place, Scalar)>> {
        let Some(place) = self.place_of(lanes, i, how.is_some())? else { return Ok(None) };
        if let Some(checks) = &mut self.checks {
            let spot = place.spot(lanes.elem);
            if let Some(how) = how {
                checks.synchronise(spot, how);
            }
            checks.read(self.at, self.buffers, spot, how.is_some());
        }
        let found = self.buffers[place.param].read_at(lanes.elem, place.at);
        Ok(Some((place, found)))
    }
    fn write_place(&mut self, place: Place, elem: Elem, v: Scalar, atomic: bool) {
        if let Some(checks) = &mut self.checks {
            let before = self.buffers[place.param].read_at(elem, place.at);
            checks.write(self.at, self.buffers, place.spot(elem), differ(elem, before, v), atomic);
        }
        self.buffers[place.param].write_at(elem, place.at, v);
    }
    fn read(&self, a: Address, elem: Elem) -> Said<Scalar> {
        let place = self.place(a, elem)?;
        Ok(self.buffers[place.param].read_at(elem, place.at))
    }
    fn write(&mut self, a: Address, elem: Elem, v: Scalar) -> Said<()> {
        let place = self.place(a, elem)?;
        self.buffers[place.param].write_at(elem, place.at, v);
        Ok(())
    }
    /// `args`: pointers, optional mask, optional value for masked-out elements (default 0).
    pub(super) fn load(&mut self, flow: &Flow, args: &[Value], elem: Elem, shape: &[usize]) -> Said<Block> {
        let other = args.get(2).map(|v| flow.block(*v)).transpose()?;
        let lanes = self.lanes(flow, args[0], args.get(1), elem)?;
        let mut all = Vec::with_capacity(lanes.count());
        for i in 0..lanes.count() {
            let read = if lanes.has(i) { self.read_lane(&lanes, i, None)? } else { None };
            all.push(match (read, &other) {
                (Some((_, found)), _) => found,
                (None, Some(other)) => element(other, i),
                (None, None) => zero(elem),
            });
        }
        Ok(collected(elem, shape, all.into_iter()))
    }
    pub(super) fn store(&mut self, flow: &Flow, args: &[Value]) -> Said<()> {
        let v = flow.block(args[1])?;
        let lanes = self.lanes(flow, args[0], args.get(2), v.elem)?;
        let mut stored: HashMap<Address, usize> = HashMap::new();
        for i in (0..lanes.count()).filter(|i| lanes.has(*i)) {
            let Some(place) = self.place_of(&lanes, i, true)? else { continue };
            if let Some(checks) = &mut self.checks {
                let twice = stored.insert(lanes.pointers.pointers()[i], i);
                if twice.is_some_and(|before| differ(v.elem, element(&v, before), element(&v, i))) {
                    checks.conflict(self.at, place.spot(v.elem));
                }
            }
            self.write_place(place, v.elem, element(&v, i), false);
        }
        Ok(())
    }
    /// Updates elements one after the other, and gives what they were.
    pub(super) fn atomic(&mut self, flow: &Flow, args: &[Value], op: AtomicOp, how: Atomicity) -> Said<Block> {
        let v = flow.block(args[1])?;
        let lanes = self.lanes(flow, args[0], args.get(2), v.elem)?;
        let mut before = vec![];
        for i in 0..lanes.count() {
            let read = if lanes.has(i) { self.read_lane(&lanes, i, Some(how))? } else { None };
            before.push(match read {
                Some((place, old)) => {
                    self.write_place(place, v.elem, updated(op, v.elem, old, element(&v, i))?, true);
                    old
                }
                None => of_bits(v.elem, 0),
            });
        }
        Ok(collected(v.elem, &v.shape, before.into_iter()))
    }
    pub(super) fn compare_swap(&mut self, flow: &Flow, args: &[Value], how: Atomicity) -> Said<Block> {
        let (expected, new) = (flow.block(args[1])?, flow.block(args[2])?);
        let lanes = self.lanes(flow, args[0], None, new.elem)?;
        let mut before = vec![];
        for i in 0..lanes.count() {
            let read = self.read_lane(&lanes, i, Some(how))?;
            if let Some((place, old)) = read
                && !differ(new.elem, old, element(&expected, i))
            {
                self.write_place(place, new.elem, element(&new, i), true);
            }
            before.push(read.map_or_else(|| of_bits(new.elem, 0), |(_, old)| old));
        }
        Ok(collected(new.elem, &new.shape, before.into_iter()))
    }
    /// Writes the words of values, each with its mark.
    pub(super) fn publish(&mut self, flow: &Flow, args: &[Value]) -> Said<()> {
        let (p, v) = (flow.block(args[0])?, flow.block(args[1])?);
        let mask = args.get(2).map(|v| flow.block(*v)).transpose()?;
        for (i, a) in p.pointers().iter().enumerate() {
            if mask.as_ref().is_some_and(|m| m.ints()[i] == 0) {
                continue;
            }
            let bits = match (v.elem, element(&v, i)) {
                (Elem::F32, Scalar::Float(x)) => u64::from((x as f32).to_bits()),
                (_, Scalar::Float(x)) => x.to_bits(),
                (_, Scalar::Int(n)) => n as u64,
            };
            for word in 0..v.elem.bytes() / 4 {
                let half = bits >> (32 * word) & 0xffff_ffff;
                self.write(a.plus(8 * word as i64), Elem::I64, Scalar::Int((half | MARK) as i64))?;
            }
        }
        Ok(())
    }
    /// Instances run one after the other, so what is awaited is there.
    pub(super) fn wait(&mut self, flow: &Flow, args: &[Value], elem: Elem, shape: &[usize]) -> Said<Block> {
        let p = flow.block(args[0])?;
        let mask = args.get(1).map(|v| flow.block(*v)).transpose()?;
        let mut found = vec![];
        for (i, a) in p.pointers().iter().enumerate() {
            let mut bits = 0;
            if mask.as_ref().is_none_or(|m| m.ints()[i] != 0) {
                for word in 0..elem.bytes() / 4 {
                    match self.read(a.plus(8 * word as i64), Elem::I64)? {
                        Scalar::Int(n) if n as u64 & MARK != 0 => bits |= (n as u64 & 0xffff_ffff) << (32 * word),
                        _ => return Err("an instance waits for one that comes after it".into()),
                    }
                }
            }
            found.push(match elem {
                Elem::F32 => Scalar::Float(f64::from(f32::from_bits(bits as u32))),
                Elem::F64 => Scalar::Float(f64::from_bits(bits)),
                Elem::I32 => Scalar::Int(i64::from(bits as u32 as i32)),
                _ => Scalar::Int(bits as i64),
            });
        }
        Ok(collected(elem, shape, found.into_iter()))
    }
    pub(super) fn atomic_inc(&mut self, flow: &Flow, args: &[Value]) -> Said<Block> {
        let Some(to) = flow.block(args[0])?.pointers().first().copied() else { return Err("no pointer".into()) };
        let limit = flow.int(args[1])?;
        let Scalar::Int(now) = self.read(to, Elem::I32)? else {
            return Err("a counter that is no integer".into());
        };
        let next = if now >= limit { 0 } else { now + 1 };
        self.write(to, Elem::I32, Scalar::Int(next))?;
        Ok(Block::int(Elem::I32, now))
    }
    /// Records the first bad index in the fault buffer, unless a fault is already recorded there.
    pub(super) fn check(&mut self, flow: &Flow, args: &[Value], site: u32) -> Said<()> {
        let (p, bad, index) = (flow.block(args[0])?, flow.block(args[1])?, flow.block(args[2])?);
        let Some(to) = p.pointers().first().copied() else { return Ok(()) };
        let mask = args.get(3).map(|v| flow.block(*v)).transpose()?;
        let inside = |i: usize| mask.as_ref().is_none_or(|m| m.ints()[i] != 0);
        let found = (0..bad.count()).find(|i| bad.ints()[*i] != 0 && inside(*i));
        match found {
            Some(i) if self.read(to, Elem::I64)? == Scalar::Int(0) => {
                self.write(to, Elem::I64, Scalar::Int(fault(site, index.ints()[i])))?;
            }
            _ => {}
        }
        Ok(())
    }
    /// The array of a descriptor, with the buffer that it lies in.
    fn array(&self, param: usize) -> Said<(usize, Array)> {
        let p = &self.k.params[param];
        let Some(array) = &p.launch_array else { return Ok((param, self.buffers[param].array(p))) };
        let number = |n: usize| match self.buffers[n].read(0) {
            Scalar::Int(n) => Some(n),
            Scalar::Float(_) => None,
        };
        let values = |all: &[Extent]| {
            let value = |e: &Extent| usize::try_from(e.value(number)?).ok();
            all.iter().map(value).collect::<Option<Vec<usize>>>()
        };
        match (values(&array.sizes), values(&array.strides)) {
            (Some(sizes), Some(strides)) => Ok((array.base, Array { offset: 0, sizes, strides })),
            _ => Err(format!("the array of {} has a negative size or stride", p.name)),
        }
    }
    /// Buffer of a descriptor, and for each element of a tile of `shape` its position in the array; `None` out of
    /// bounds.
    fn tile(&self, flow: &Flow, desc: Value, starts: &[Value], shape: &[usize]) -> Said<(usize, Vec<Option<usize>>)> {
        let Some(Val::Desc(param)) = flow.values[desc.0 as usize] else {
            return Err(format!("{desc} is not a descriptor"));
        };
        let starts = starts.iter().map(|v| flow.int(*v)).collect::<Said<Vec<_>>>()?;
        let (param, array) = self.array(param)?;
        // Leading axes of the array that the tile lacks have size 1 in the tile.
        let lead = starts.len() - shape.len();
        let place = |i: usize| {
            let at = [vec![0; lead], shape::coordinates(i, shape)].concat();
            let axes = array.sizes.iter().zip(&array.strides);
            at.iter().zip(&starts).zip(axes).try_fold(array.offset, |p, ((c, s), (n, stride))| {
                let c = usize::try_from(*c as i64 + s).ok().filter(|c| c < n)?;
                Some(p + c * stride)
            })
        };
        Ok((param, (0..shape.iter().product()).map(place).collect()))
    }
    /// How a descriptor's tiles are swizzled.
    pub(super) fn swizzle(&self, desc: Value) -> Swizzle {
        match self.k.ty(desc) {
            Type::Desc { swizzle, .. } => *swizzle,
            _ => Swizzle::None,
        }
    }
    /// TMA traps if a tile does not start at a multiple of 16 bytes along the contiguous axis.
    pub(super) fn starts_aligned(&self, flow: &Flow, elem: Elem, starts: &[Value]) -> Said<()> {
        let first = starts.last().map_or(Ok(0), |v| flow.int(*v))?;
        match first * elem.bytes() as i64 % 16 {
            0 => Ok(()),
            _ => Err(format!(
                "a tile of {elem} starts at element {first} of a row: TMA copies must start at multiples of 16 bytes"
            )),
        }
    }
    pub(super) fn tile_load(
        &self,
        flow: &Flow,
        desc: Value,
        starts: &[Value],
        elem: Elem,
        shape: &[usize],
    ) -> Said<Block> {
        let (param, places) = self.tile(flow, desc, starts, shape)?;
        let read = |p: Option<usize>| p.map_or(zero(elem), |p| self.buffers[param].read(p));
        Ok(collected(elem, shape, places.into_iter().map(read)))
    }
    pub(super) fn tile_store(&mut self, flow: &Flow, desc: Value, value: &Block, starts: &[Value]) -> Said<()> {
        let (param, places) = self.tile(flow, desc, starts, &value.shape)?;
        for (i, p) in places.into_iter().enumerate() {
            if let Some(p) = p {
                self.buffers[param].write(p, element(value, i));
            }
        }
        Ok(())
    }
}

/// What an element becomes.
fn updated(op: AtomicOp, elem: Elem, old: Scalar, by: Scalar) -> Said<Scalar> {
    Ok(match (old, by) {
        _ if op == AtomicOp::Exchange => by,
        (Scalar::Float(a), Scalar::Float(b)) if op == AtomicOp::Add => Scalar::Float(rounded(elem, a + b)),
        (Scalar::Float(a), Scalar::Float(b)) if op == AtomicOp::Max => Scalar::Float(a.max(b)),
        (Scalar::Float(a), Scalar::Float(b)) if op == AtomicOp::Min => Scalar::Float(a.min(b)),
        (Scalar::Int(a), Scalar::Int(b)) => {
            let larger = elem.ordered(b) > elem.ordered(a);
            Scalar::Int(match op {
                AtomicOp::Add => elem.wrapped(a.wrapping_add(b)),
                AtomicOp::Max => {
                    if larger {
                        b
                    } else {
                        a
                    }
                }
                AtomicOp::Min => {
                    if larger {
                        a
                    } else {
                        b
                    }
                }
                AtomicOp::And => a & b,
                AtomicOp::Or => a | b,
                AtomicOp::Xor => elem.wrapped(a ^ b),
                AtomicOp::Exchange => b,
            })
        }
        _ => return Err("an update of a value by one of another kind".into()),
    })
}
