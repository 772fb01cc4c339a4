//! Propagates layouts from anchors to every value.
use super::anchors::{
    access, accumulator, left_operand, staged_rows, takes_any_layout, tensor_matmul, tile, tile_rows,
};
use super::groups::{Groups, Kind, is_private, shares};
use crate::analysis::Analysis;
use crate::layout::choose::heaviest;
use crate::layout::{Flat, Tile, TileAccess, axis_bits, choose};
use crate::{BlockProgram, Elem, InstData, Op, Value};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Layout preferences of a group's ops.
#[derive(Default)]
struct Wishes {
    matmul: Option<Flat>,
    /// That of a matmul's operand, which few threads compute twice.
    operand: Option<Flat>,
    /// In the order of the program.
    accesses: Vec<TileAccess>,
    /// Axes that are reduced or scanned, and one that is scanned.
    reduced: Vec<usize>,
    scanned: Option<usize>,
}

/// The home layouts of heavy values, and the layouts in which views are available without moving elements; `None` for
/// the rest.
pub(super) fn natural(k: &BlockProgram, facts: &Analysis, groups: &Groups) -> Vec<Option<Flat>> {
    let mut s = Spread { k, groups, natural: vec![None; k.values.len()], reduced: carried_reductions(k, groups) };
    let wishes = wishes(k, facts, groups);
    let mut order: Vec<(&Value, &Wishes)> = wishes.iter().collect();
    // Rows and columns that are repeated follow the blocks that they are repeated in.
    let is_vector = |v: Value| k.ty(v).shape().iter().filter(|n| **n > 1).count() < 2;
    let weight = |w: &Wishes| heaviest(&w.accesses).map_or(0, TileAccess::weight);
    order.sort_by_key(|(v, w)| (w.matmul.is_none(), is_vector(**v), std::cmp::Reverse(weight(w)), **v));
    for (&root, wish) in order {
        if s.natural[root.0 as usize].is_some() {
            continue;
        }
        let shape = k.ty(root).shape();
        let home = wish.matmul.clone().or_else(|| wish.computed_operand()).unwrap_or_else(|| {
            let tile = Tile { reduced: &wish.reduced, scanned: wish.scanned, ..tile(k, shape) };
            choose(&tile, &wish.accesses).layout
        });
        s.natural[root.0 as usize] = Some(home);
        while s.sweep() {}
    }
    for v in 0..k.values.len() as u32 {
        let root = groups.root(Value(v));
        if groups.is_heavy(Value(v)) {
            s.natural[v as usize] = s.natural[root.0 as usize].clone();
        }
    }
    s.natural
}

/// The preferences of all groups of heavy blocks, by representative.
fn wishes(k: &BlockProgram, facts: &Analysis, groups: &Groups) -> BTreeMap<Value, Wishes> {
    let mut all: BTreeMap<Value, Wishes> = BTreeMap::new();
    for v in (0..k.values.len() as u32).map(Value) {
        if groups.is_heavy(v) && !k.ty(v).is_scalar() {
            all.entry(groups.root(v)).or_default();
        }
    }
    let (loaded, transposes) = (staged(k), transposes(k));
    let mut stored = vec![];
    k.walk(&mut |_, data| {
        // Those in 16-bit elements are computed from sums, which have their layout.
        if let Some(left) = data.left_in_registers().filter(|v| k.ty(*v).elem() == Some(Elem::F32))
            && let Some(wish) = all.get_mut(&groups.root(left))
        {
            wish.matmul = wish.matmul.take().or_else(|| Some(left_operand(k, left)));
        }
        for (operand, flat) in operands(k, data) {
            if let Some(wish) = all.get_mut(&groups.root(operand)) {
                wish.operand = Some(flat);
            }
        }
        if let (Op::SharedStore, [_, _, value]) = (&data.op, &data.args[..]) {
            let last = k.ty(*value).shape().len().saturating_sub(1);
            stored.push(transposes.get(value).map_or((*value, last), |from| (*from, 0)));
        }
        let (value, pointers) = match (&data.op, &data.args[..]) {
            (Op::AsyncCopy, [tile, _, ptr, ..]) if loaded.contains_key(tile) => (loaded[tile], Some(*ptr)),
            // Addresses that are computed from what is loaded lie as they are copied from.
            (Op::AsyncCopy, [_, _, ptr, ..]) => {
                let computed = transposes.get(ptr).copied().unwrap_or(*ptr);
                (computed, Some(computed))
            }
            (Op::Load(..) | Op::Await, [ptr, ..]) => (data.results[0], Some(*ptr)),
            (Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } | Op::Publish, [ptr, value, ..]) => {
                (*value, Some(*ptr))
            }
            (Op::Reduce { .. } | Op::Scan { .. } | Op::Pack { .. }, [value]) => (*value, None),
            (Op::ReduceBy { .. }, [value, ..]) => (*value, None),
            (Op::Dot { .. } | Op::Wgmma { .. } | Op::SharedDot { .. } | Op::Unpack { .. } | Op::ScanBy { .. }, _) => {
                (data.results[0], None)
            }
            _ => return,
        };
        if let Some(wish) = all.get_mut(&groups.root(value)) {
            wish.add(k, facts, data, pointers);
        }
    });
    // What nothing but a tile asks for.
    for (value, axis) in stored {
        if let Some(wish) = all.get_mut(&groups.root(value)).filter(|w| w.accesses.is_empty()) {
            wish.accesses.push(tile_rows(k, value, axis));
        }
    }
    all
}

/// Operands that a matmul takes from registers, in the layouts that it takes, where each element is in few threads.
fn operands(k: &BlockProgram, data: &InstData) -> Vec<(Value, Flat)> {
    let all = match (tensor_matmul(k, data).filter(|_| !takes_any_layout(data)), &data.args[..]) {
        (Some((t, wide)), [a, b, _]) => vec![(*a, t.left(wide)), (*b, t.right(wide))],
        _ => data.left_in_registers().map(|left| (left, left_operand(k, left))).into_iter().collect(),
    };
    // An exchange through shared memory costs more than to compute each element twice.
    all.into_iter().filter(|(_, flat)| flat.threads().filter(Option::is_none).count() <= 1).collect()
}

/// Groups of blocks that loops carry, with results of reductions among them.
fn carried_reductions(k: &BlockProgram, groups: &Groups) -> HashSet<Value> {
    let (mut reduced, mut carried) = (HashSet::new(), HashSet::new());
    k.walk(&mut |_, d| match d.op {
        Op::Reduce { .. } => reduced.extend(d.results.iter().map(|v| groups.root(*v))),
        Op::For => carried.extend(d.results.iter().map(|v| groups.root(*v))),
        _ => {}
    });
    reduced.retain(|root| carried.contains(root));
    reduced
}

/// Blocks that are transposes of others.
fn transposes(k: &BlockProgram) -> HashMap<Value, Value> {
    let mut all = HashMap::new();
    k.walk(&mut |_, d| {
        if let (Op::Permute(_), [from], [to]) = (&d.op, &d.args[..], &d.results[..]) {
            all.insert(*to, *from);
        }
    });
    all
}

/// For each shared tile that is filled by asynchronous copies from pointers, the value read from it: its threads copy
/// exactly what they read.
pub(super) fn staged(k: &BlockProgram) -> HashMap<Value, Value> {
    let (mut filled, mut loaded) = (HashSet::new(), HashMap::new());
    k.walk(&mut |_, d| match d.op {
        Op::AsyncCopy if is_private(k, d.args[0]) => _ = filled.insert(d.args[0]),
        Op::SharedLoad => _ = loaded.insert(d.args[0], d.results[0]),
        _ => {}
    });
    loaded.retain(|tile, _| filled.contains(tile));
    loaded
}

impl Wishes {
    /// The layout of a matmul's operand, if no memory access or reduction has another wish.
    fn computed_operand(&self) -> Option<Flat> {
        let alone = self.accesses.is_empty() && self.reduced.is_empty();
        self.operand.clone().filter(|_| alone)
    }
    fn add(&mut self, k: &BlockProgram, facts: &Analysis, data: &InstData, pointers: Option<Value>) {
        if let Op::Scan { axis, .. } | Op::ScanBy { axis, .. } = data.op {
            self.scanned = Some(axis as usize);
        }
        match data.op {
            Op::Dot { .. } | Op::Wgmma { .. } | Op::SharedDot { .. } => {
                self.matmul = self.matmul.take().or_else(|| Some(accumulator(k, data)));
            }
            Op::Reduce { axis, .. } | Op::ReduceBy { axis } | Op::Scan { axis, .. } | Op::ScanBy { axis, .. } => {
                self.reduced.push(axis as usize)
            }
            Op::Pack { .. } | Op::Unpack { .. } => {
                let value = if matches!(data.op, Op::Pack { .. }) { data.args[0] } else { data.results[0] };
                self.accesses.push(staged_rows(k, value));
            }
            _ => {}
        }
        self.accesses.extend(pointers.map(|ptr| access(k, facts, ptr)));
    }
}

struct Spread<'k> {
    k: &'k BlockProgram,
    groups: &'k Groups,
    /// By value; a group of heavy values by its representative.
    natural: Vec<Option<Flat>>,
    /// Groups that loops carry and add reductions to, by representative: they lie as what is reduced, since a conversion
    /// would be in the loop, while other uses are mostly behind it.
    reduced: HashSet<Value>,
}

impl Spread<'_> {
    fn slot(&self, v: Value) -> usize {
        if self.groups.is_heavy(v) { self.groups.root(v).0 as usize } else { v.0 as usize }
    }
    fn get(&self, v: Value) -> Option<Flat> {
        self.natural[self.slot(v)].clone()
    }
    /// Sets the layout of a value without one; true if that changed anything.
    fn set(&mut self, v: Value, flat: Option<Flat>) -> bool {
        let slot = self.slot(v);
        let fresh = self.groups.kind(v) != Kind::Pure && !self.k.ty(v).is_scalar();
        let fresh = fresh && self.natural[slot].is_none() && flat.is_some();
        if fresh {
            self.natural[slot] = flat;
        }
        fresh
    }
    /// One pass over the program; true if it found a new layout.
    fn sweep(&mut self) -> bool {
        let k = self.k;
        let mut learnt = false;
        k.walk(&mut |_, data| learnt |= self.step(data));
        learnt
    }
    fn step(&mut self, data: &InstData) -> bool {
        let k = self.k;
        if shares(&data.op) {
            let all: Vec<Value> =
                data.args.iter().chain(&data.results).copied().filter(|v| !k.ty(*v).is_scalar()).collect();
            let known = all.iter().filter(|v| self.groups.is_heavy(**v)).find_map(|v| self.get(*v));
            let known =
                known.or_else(|| all.iter().filter(|v| self.groups.kind(**v) == Kind::View).find_map(|v| self.get(*v)));
            // Counts all, so that every value is set.
            return all.iter().filter(|v| self.set(**v, known.clone())).count() > 0;
        }
        if let Op::ReduceBy { axis } = data.op {
            let lies = data.args.iter().find_map(|v| self.get(*v));
            let bits = axis_bits(k.ty(data.args[0]).shape(), axis as usize);
            let slice = lies.map(|l| l.without(&bits));
            return data.results.iter().filter(|v| self.set(**v, slice.clone())).count() > 0;
        }
        if let (Op::Join, [result]) = (&data.op, &data.results[..]) {
            let down = self.get(*result).and_then(|l| l.halves());
            let up = data.args.iter().find_map(|v| self.get(*v)).map(|l| l.joined());
            let set = data.args.iter().filter(|v| self.set(**v, down.clone())).count() > 0;
            return self.set(*result, up) || set;
        }
        let ([arg], [result]) = (&data.args[..], &data.results[..]) else { return false };
        let (from, to) = (k.ty(*arg).shape(), k.ty(*result).shape());
        match &data.op {
            Op::Reduce { axis, .. } => {
                let slice = self.get(*arg).map(|l| l.without(&axis_bits(from, *axis as usize)));
                self.set(*result, slice)
            }
            Op::ExpandDims(_) | Op::Reshape => {
                let free = !self.reduced.contains(&self.groups.root(*arg));
                let (down, up) = (self.get(*result).filter(|_| free), self.get(*arg));
                self.set(*arg, down) || self.set(*result, up)
            }
            Op::Permute(perm) => {
                let down = self.get(*result).map(|l| l.unpermuted(from, perm));
                let up = self.get(*arg).map(|l| l.permuted(from, perm));
                self.set(*arg, down) || self.set(*result, up)
            }
            Op::Part { axis, .. } => {
                let part = self.get(*arg).map(|l| l.part(from, to, *axis as usize));
                self.set(*result, part)
            }
            Op::Split(_) => {
                let (down, up) = (self.get(*result).map(|l| l.joined()), self.get(*arg).and_then(|l| l.halves()));
                self.set(*arg, down) || self.set(*result, up)
            }
            Op::Broadcast => {
                let down = self.get(*result).map(|l| l.unbroadcast(from, to));
                self.set(*arg, down)
            }
            _ => false,
        }
    }
}
