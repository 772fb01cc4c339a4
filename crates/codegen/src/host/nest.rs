//! Loop nests: forced values over one shape, computed by one nest.
//!
//! Sinks are collected in a pending group while they have the same shape and do not need each other's results; then the
//! nest is written: leading axes as loops, the last axis in vectors. Where masks are bounds on the last axis, its loop
//! is split into a part where they hold and a masked tail.
use super::eval::{Buffer, Place, pointee};
use super::group::{Group, Running, Sink};
use super::memory::Store;
use super::sums::CHUNK;
use super::text::Name;
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Arithmetic, BinaryOp, Elem, Inst, Op, Value};
use std::collections::HashSet;

impl Emit<'_> {
    /// Adds a sink to the pending group; if they cannot share a nest, the group is written first.
    pub fn push(&mut self, inst: Inst, shape: &[usize], sink: Sink) -> Res<()> {
        let inputs: Vec<Value> = match &sink {
            Sink::Store { ptr, value, mask } => [Some(*ptr), Some(*value), *mask].into_iter().flatten().collect(),
            Sink::Check { values, mask, .. } => values.iter().chain(mask).copied().collect(),
            Sink::Keep { value, .. } => self.kernel_args(*value),
            Sink::Reduce { operand, .. } | Sink::Scan { operand, .. } => vec![*operand],
        };
        let alone = matches!(sink, Sink::Scan { .. }) || shape.is_empty();
        let mut reads = vec![];
        if let Sink::Keep { value, .. } = &sink
            && let Some(Place::Virtual(i)) = self.place.get(value)
            && let (Op::Load(..), Some(p)) = (&self.kernel.inst(*i).op, self.kernel.inst(*i).args.first())
        {
            reads.push((self.demand.root(*p), *p));
        }
        let mut seen = HashSet::new();
        let free = inputs.iter().all(|v| self.available(*v, true, &mut seen, &mut reads));
        let store = if let Sink::Store { ptr, .. } = &sink { Some(*ptr) } else { None };
        let clash = |g: &Group, d: &super::demand::Demand| {
            store.is_some_and(|p| g.read.iter().any(|(root, q)| *root == d.root(p) && *q != p))
                || reads.iter().any(|(root, _)| g.stored.contains(root))
                || store.is_some_and(|p| g.stored.contains(&d.root(p)))
        };
        if !self.pending.sinks.is_empty()
            && (alone || !free || self.pending.shape != shape || clash(&self.pending, &self.demand))
        {
            self.flush()?;
        }
        if let Some(p) = store {
            let root = self.demand.root(p);
            self.pending.stored.insert(root);
        }
        self.pending.read.append(&mut reads);
        self.pending.shape = shape.to_vec();
        match &sink {
            Sink::Reduce { result, .. } | Sink::Scan { result, .. } => {
                self.pending.late.insert(*result);
            }
            Sink::Keep { value, place: true, .. } => {
                self.pending.same.insert(*value);
            }
            _ => {}
        }
        self.pending.sinks.push((inst, sink));
        if alone { self.flush() } else { Ok(()) }
    }
    fn kernel_args(&self, v: Value) -> Vec<Value> {
        match self.place.get(&v) {
            Some(Place::Virtual(i)) => self.kernel.inst(*i).args.clone(),
            _ => vec![v],
        }
    }
    /// Whether `v` can be computed inside the pending nest. `identity`: at the nest's own coordinates.
    fn available(
        &self,
        v: Value,
        identity: bool,
        seen: &mut HashSet<(Value, bool)>,
        reads: &mut Vec<(Value, Value)>,
    ) -> bool {
        if !seen.insert((v, identity)) {
            return true;
        }
        if self.pending.late.contains(&v) || (self.pending.same.contains(&v) && !identity) {
            return false;
        }
        let args = match self.place.get(&v) {
            Some(Place::Virtual(i)) => {
                let inst = self.kernel.inst(*i);
                if let (Op::Load(..), Some(p)) = (&inst.op, inst.args.first()) {
                    reads.push((self.demand.root(*p), *p));
                }
                let keeps = matches!(
                    inst.op,
                    Op::Unary(_)
                        | Op::Binary(_)
                        | Op::Cmp(_)
                        | Op::Select
                        | Op::Cast(_)
                        | Op::Bitcast
                        | Op::MultipleOf(_)
                        | Op::CastToZero(_)
                        | Op::Fma
                        | Op::PtrAdd
                        | Op::Load(..)
                );
                return inst.args.iter().all(|a| self.available(*a, identity && keeps, seen, reads));
            }
            Some(Place::Induction { init, step, .. }) => [*init, *step],
            _ => return true,
        };
        args.iter().all(|a| self.available(*a, false, seen, reads))
    }
    /// Whether a scalar instruction must wait for the pending nest.
    pub fn waits(&self, inst: Inst) -> bool {
        let i = self.kernel.inst(inst);
        i.args.iter().any(|a| self.pending.late.contains(a))
            || (matches!(i.op, Op::Load(..))
                && i.args.first().is_some_and(|p| self.pending.stored.contains(&self.demand.root(*p))))
    }

    pub fn new_buffer(&mut self, elem: Elem, shape: &[usize]) -> Buffer {
        self.buffer_in(Store::Scratch, elem, shape)
    }
    pub fn buffer_in(&mut self, memory: Store, elem: Elem, shape: &[usize]) -> Buffer {
        let bytes = memory.bytes(elem) * shape.iter().product::<usize>().max(1);
        let at = self.scratch;
        self.scratch += bytes.next_multiple_of(64);
        let ptr = self.text.emit(0, format!("getelementptr i8, ptr %scratch, i64 {at}"));
        Buffer { ptr, elem, shape: shape.to_vec(), memory, neighbours: None }
    }

    /// Writes the pending nest.
    pub fn flush(&mut self) -> Res<()> {
        let mut group = std::mem::take(&mut self.pending);
        if group.sinks.is_empty() {
            return Ok(());
        }
        let members: HashSet<Inst> = group.sinks.iter().map(|(i, _)| *i).collect();
        // Kept values that no other nest reads need no memory.
        group.sinks.retain(|(_, s)| match s {
            Sink::Keep { value, place: true, .. } => match self.demand.keep.get(value) {
                Some(Some(sinks)) => !sinks.iter().all(|i| members.contains(i)),
                _ => true,
            },
            _ => true,
        });
        self.memo = vec![Default::default()];
        let result = self.nest(&group);
        self.prefetch.turn();
        self.memo = vec![Default::default()];
        self.lanes = 1;
        result?;
        for (_, sink) in group.sinks {
            if let Sink::Keep { value, buffer, place: true } = sink {
                let place = Place::of_buffer(buffer, pointee(self.kernel.ty(value)));
                self.place.insert(value, place);
            }
        }
        Ok(())
    }

    fn nest(&mut self, group: &Group) -> Res<()> {
        if group.sinks.is_empty() {
            return Ok(());
        }
        if let Some(block) = self.transposed(group)? {
            return self.transpose(&block);
        }
        let shape = &group.shape;
        let axis = shape.iter().rposition(|&n| n > 1);
        let extent = axis.map_or(1, |a| shape[a]);
        self.lanes = self.machine.lanes.min(extent);
        // Buffers of results, initialised to the identity where a leading axis is reduced.
        let mut running = vec![];
        for (_, s) in &group.sinks {
            running.push(self.prepare(s, axis)?);
        }
        let mut at: Vec<Val> = vec![Val::int(Elem::I64, 0); shape.len()];
        let mut open: Vec<(String, Name, usize)> = vec![];
        for (a, &n) in shape.iter().enumerate().take(axis.unwrap_or(0)) {
            if n > 1 {
                let (label, i) = self.text.open_loop();
                self.memo.push(Default::default());
                at[a] = self.counter(&i, 0, 0);
                open.push((label, i, n));
            }
        }
        self.inner(group, axis, extent, &mut at, &mut running)?;
        while let Some((label, i, n)) = open.pop() {
            self.memo.pop();
            self.text.close_loop(&label, &i, "0", &n.to_string(), 1);
        }
        self.settle(group, running)
    }
    /// A loop counter that is a multiple of 2^tz, plus a constant.
    pub fn counter(&mut self, i: &Name, plus: i64, tz: u32) -> Val {
        let d = self.text.depth();
        let n = Num { text: i.clone(), konst: None, tz, nonneg: true, exact: true };
        if plus == 0 {
            return Val::num(Elem::I64, n, d);
        }
        let text = self.text.emit(d, format!("add nuw nsw i64 {i}, {plus}"));
        let n = Num { text, tz: tz.min(plus.trailing_zeros()), ..n };
        Val::num(Elem::I64, n, d)
    }

    /// The innermost axis: its accumulators, main loop and tail.
    fn inner(
        &mut self,
        group: &Group,
        axis: Option<usize>,
        extent: usize,
        at: &mut [Val],
        running: &mut [Running],
    ) -> Res<()> {
        let lanes = self.lanes;
        let Some(axis) = axis else {
            self.begin(group, running, 1, 1)?;
            self.body(group, at, running, 0)?;
            return self.end(group, at, running);
        };
        let unroll = self.unroll(group, extent / lanes);
        self.begin(group, running, unroll, extent / (lanes * unroll))?;
        let bounds = self.bounds(group, group.masks(self), axis, at)?;
        let extent_text: Name = extent.to_string().into();
        let mut start: Name = "0".into();
        if !bounds.is_empty() || unroll * lanes <= extent {
            let step = (lanes * unroll) as i64;
            let mut stop = extent_text.clone();
            if !bounds.is_empty() {
                stop = self.least(&stop, &bounds);
                stop = self.text.emit(self.text.depth(), format!("and i64 {stop}, {}", -step));
            }
            self.assumed = bounds.iter().map(|b| b.0).collect();
            self.vectors(group, axis, at, running, (&start, &stop), unroll)?;
            self.assumed.clear();
            start = stop;
        }
        if !bounds.is_empty() {
            let stop = self.last_element(group, axis, at, (&start, extent_text))?;
            self.vectors(group, axis, at, running, (&start, &stop), 1)?;
        }
        at[axis] = Val::int(Elem::I64, 0);
        self.end(group, at, running)
    }
    /// How many elements of the innermost axis have an effect, behind those that the main loop has done.
    fn last_element(&mut self, group: &Group, axis: usize, at: &mut [Val], (done, extent): (&Name, Name)) -> Res<Name> {
        let common = group.common_masks(self);
        let last = self.bounds(group, common, axis, at)?;
        if !last.is_empty() {
            return Ok(self.least(&extent, &last));
        }
        let padded = group.padded_masks(self);
        let last = self.bounds(group, padded, axis, at)?;
        at[axis] = Val::int(Elem::I64, 0);
        if last.is_empty() || !self.kernel.has_launch_values() {
            return Ok(extent);
        }
        let before = self.least(&extent, &last);
        self.before_pads(group, at, [done, &before, &extent])
    }
    /// The minimum of a limit and of bounds, at least 0.
    fn least(&mut self, limit: &Name, bounds: &[(Value, Name)]) -> Name {
        let d = self.text.depth();
        let mut stop = limit.clone();
        for (_, n) in bounds {
            stop = self.text.call(d, "i64", "llvm.smin.i64", &[("i64", &stop), ("i64", n)]);
        }
        self.text.call(d, "i64", "llvm.smax.i64", &[("i64", &stop), ("i64", "0")])
    }
    /// A range of the innermost axis; in chunks, where sums are flushed between these.
    fn vectors(
        &mut self,
        group: &Group,
        axis: usize,
        at: &mut [Val],
        running: &mut [Running],
        (start, stop): (&Name, &Name),
        unroll: usize,
    ) -> Res<()> {
        if !running.iter().any(|r| matches!(r, Running::Lanes(acc) if acc.wide.is_some())) {
            return self.vector_loop(group, axis, at, running, (start, stop), unroll);
        }
        let step = (self.lanes * unroll * CHUNK) as i64;
        let (label, i) = self.text.open_loop();
        self.memo.push(Default::default());
        let d = self.text.depth();
        let end = self.text.emit(d, format!("add nuw nsw i64 {i}, {step}"));
        let end = self.text.call(d, "i64", "llvm.smin.i64", &[("i64", &end), ("i64", stop)]);
        self.vector_loop(group, axis, at, running, (&i, &end), unroll)?;
        self.empty_into_wide(group, running)?;
        self.memo.pop();
        self.text.close_loop(&label, &i, start, stop, step);
        Ok(())
    }
    fn vector_loop(
        &mut self,
        group: &Group,
        axis: usize,
        at: &mut [Val],
        running: &mut [Running],
        (start, stop): (&Name, &Name),
        unroll: usize,
    ) -> Res<()> {
        let lanes = self.lanes;
        let step = (lanes * unroll) as i64;
        let (label, i) = self.text.open_loop();
        self.memo.push(Default::default());
        for u in 0..unroll {
            let c = self.counter(&i, (u * lanes) as i64, step.trailing_zeros());
            at[axis] = match c.form {
                Form::Num(n) if lanes > 1 => Val { form: Form::Lanes(n, 1), ..c },
                _ => c,
            };
            self.body(group, at, running, u)?;
        }
        self.memo.pop();
        self.text.close_loop(&label, &i, start, stop, step);
        Ok(())
    }
    fn unroll(&self, group: &Group, vectors: usize) -> usize {
        let cost: u32 = group
            .sinks
            .iter()
            .map(|(_, s)| match s {
                Sink::Store { value, .. } | Sink::Keep { value, .. } => self.demand.cost(*value).saturating_add(1),
                Sink::Reduce { operand, .. } | Sink::Scan { operand, .. } => {
                    self.demand.cost(*operand).saturating_add(1)
                }
                Sink::Check { values: [_, bad, _], .. } => self.demand.cost(*bad).saturating_add(1),
            })
            .fold(0, u32::saturating_add);
        // The number of its accumulators decides the bits of a sum. Under IEEE arithmetic they follow from the row
        // alone, not from what it costs to find the row among others.
        let sums = group.sinks.iter().any(|(_, s)| matches!(s, Sink::Reduce { .. } | Sink::Scan { .. }));
        let want = match cost {
            _ if sums && self.kernel.arithmetic == Arithmetic::Ieee => 2,
            0..=12 => 4,
            13..=40 => 2,
            _ => 1,
        };
        if self.lanes == 1 { 1 } else { want.min(vectors.max(1)) }
    }
    /// Comparisons among `masks` that bound the innermost axis (or do not depend on it), with the number of leading
    /// elements for which they hold.
    fn bounds(&mut self, group: &Group, mut masks: Vec<Value>, axis: usize, at: &mut [Val]) -> Res<Vec<(Value, Name)>> {
        if self.lanes == 1 {
            return Ok(vec![]);
        }
        let mut found: Vec<(Value, Name)> = vec![];
        at[axis] = Val { elem: Elem::I64, form: Form::Lanes(Num::konst(0), 1), depth: 0 };
        let shape = &group.shape;
        // What holds for a vector of lanes need not hold for the whole axis.
        self.span = Some(shape[axis]);
        while let Some(m) = masks.pop() {
            let Some(&i) = self.demand.def.get(&m) else { continue };
            let inst = self.kernel.inst(i);
            match &inst.op {
                Op::Binary(BinaryOp::And) => masks.extend(inst.args.iter().copied()),
                Op::Broadcast | Op::ExpandDims(_) | Op::Splat => {
                    // Followed only where the nest's own coordinates apply; found through the broadcast's value itself.
                    let ty = self.kernel.ty(m);
                    if ty.shape() == shape.as_slice() && !found.iter().any(|f| f.0 == m) {
                        let v = self.eval(m, at)?;
                        self.add_bound(m, v, &mut found);
                    }
                }
                Op::Cmp(_) if self.kernel.ty(m).shape() == shape.as_slice() && !found.iter().any(|f| f.0 == m) => {
                    let v = self.eval(m, at)?;
                    self.add_bound(m, v, &mut found);
                }
                _ => {}
            }
        }
        self.span = None;
        Ok(found)
    }
    fn add_bound(&mut self, m: Value, v: Val, found: &mut Vec<(Value, Name)>) {
        match &v.form {
            Form::Prefix(n) => found.push((m, n.text.clone())),
            Form::Scalar(c) if &**c != "true" => {
                let n = self.text.emit(v.depth, format!("select i1 {c}, i64 {}, i64 0", i64::MAX));
                found.push((m, n));
            }
            _ => {}
        }
    }
    /// Masks of the loads that `v` is computed from at the nest's own coordinates.
    pub fn masks_of(&self, v: Value, masks: &mut Vec<Value>, seen: &mut HashSet<Value>) {
        if !seen.insert(v) {
            return;
        }
        let Some(Place::Virtual(i)) = self.place.get(&v) else { return };
        let inst = self.kernel.inst(*i);
        match &inst.op {
            Op::Load(..) => masks.extend(inst.args.get(1)),
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Cmp(_)
            | Op::Select
            | Op::Cast(_)
            | Op::Bitcast
            | Op::MultipleOf(_)
            | Op::CastToZero(_)
            | Op::Fma => {
                for a in &inst.args {
                    self.masks_of(*a, masks, seen);
                }
            }
            _ => {}
        }
    }

    /// One vector of every sink.
    fn body(&mut self, group: &Group, at: &[Val], running: &mut [Running], turn: usize) -> Res<()> {
        self.here = at.to_vec();
        for ((_, sink), run) in group.sinks.iter().zip(running.iter_mut()) {
            match sink {
                Sink::Store { ptr, value, mask } => {
                    let mask = mask.map(|m| self.eval(m, at)).transpose()?;
                    let v = self.eval(*value, at)?;
                    let p = self.eval(*ptr, at)?;
                    let Form::Ptr(root, off) = &p.form else {
                        return Err("a store to something other than a pointer".into());
                    };
                    self.write(Store::Tensor, root, off, &v, mask.as_ref())?;
                }
                Sink::Check { values: [to, bad, index], mask, site } => {
                    let mask = mask.map(|m| self.eval(m, at)).transpose()?;
                    let (bad, index) = (self.eval(*bad, at)?, self.eval(*index, at)?);
                    let to = self.eval(*to, at)?;
                    self.check(&to, [&bad, &index], mask.as_ref(), *site)?;
                }
                Sink::Keep { value, buffer, .. } => {
                    let v = self.eval(*value, at)?;
                    let v = if let Form::Ptr(..) = v.form { self.address(&v)? } else { v };
                    let off = self.linear(&buffer.shape, at);
                    self.write(buffer.memory, &buffer.ptr, &off, &v, None)?;
                    self.write_run(buffer, &off, &v)?;
                }
                Sink::Reduce { op, axis, operand, .. } => {
                    let v = self.eval(*operand, at)?;
                    self.accumulate(*op, *axis, &v, at, run, turn)?;
                }
                Sink::Scan { op, axis, operand, result } => {
                    let v = self.eval(*operand, at)?;
                    let shape = self.kernel.ty(*result).shape().to_vec();
                    self.scan_step(*op, *axis, &v, at, run, &shape)?;
                }
            }
        }
        Ok(())
    }
}
