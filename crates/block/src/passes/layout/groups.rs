//! Which values are rematerialised where they are needed, and which of the others must share a layout.
use super::anchors::roles;
use crate::{BlockProgram, InstData, Op, Region, Swizzle, Type, Value};

/// How a block value is produced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// From thread numbers and scalars alone: rematerialised in any layout.
    Pure,
    /// Moves or repeats elements of another value: passes a requested layout on to its operand.
    View,
    /// Read from a shared tile in whatever layout a use needs.
    Shared,
    /// Computed once, in its home layout.
    Heavy,
}

pub(super) struct Groups {
    kinds: Vec<Kind>,
    /// Whether what is read from shared tiles may be read again.
    rereads: bool,
    parent: Vec<u32>,
}

impl Groups {
    pub fn of(k: &BlockProgram) -> Groups {
        let (kinds, parent) = (vec![Kind::Heavy; k.values.len()], (0..k.values.len() as u32).collect());
        let mut g = Groups { kinds, rereads: roles(k).is_none(), parent };
        k.walk(&mut |_, data| {
            let kind = g.kind_of(k, data);
            data.results.iter().for_each(|r| g.kinds[r.0 as usize] = kind);
        });
        k.walk(&mut |_, data| g.join(k, data));
        g
    }
    pub fn kind(&self, v: Value) -> Kind {
        self.kinds[v.0 as usize]
    }
    pub fn is_heavy(&self, v: Value) -> bool {
        self.kind(v) == Kind::Heavy
    }
    /// The group's representative.
    pub fn root(&self, v: Value) -> Value {
        let mut at = v.0;
        while self.parent[at as usize] != at {
            at = self.parent[at as usize];
        }
        Value(at)
    }
    fn union(&mut self, a: Value, b: Value) {
        let (a, b) = (self.root(a).0, self.root(b).0);
        self.parent[a.max(b) as usize] = a.min(b);
    }
    fn kind_of(&self, k: &BlockProgram, data: &InstData) -> Kind {
        let pure = |v: &Value| k.ty(*v).is_scalar() || self.kind(*v) == Kind::Pure;
        let all = data.args.iter().all(pure);
        let light = |v: &Value| match k.ty(*v) {
            Type::Ptr { .. } => true,
            ty => ty.elem().is_some_and(|e| !e.is_float()),
        };
        match &data.op {
            Op::Const(_) | Op::Iota | Op::Splat => Kind::Pure,
            // Programs with roles fence their reads where they stand.
            Op::SharedLoad if self.rereads && !is_private(k, data.args[0]) => Kind::Shared,
            Op::ExpandDims(_) | Op::Broadcast | Op::Reshape | Op::Permute(_) if all => Kind::Pure,
            Op::ExpandDims(_) | Op::Broadcast | Op::Reshape | Op::Permute(_) => Kind::View,
            Op::Select | Op::PtrAdd | Op::Cast(_) | Op::Bitcast | Op::MultipleOf(_) if all => Kind::Pure,
            Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) if all && data.args.iter().all(light) => Kind::Pure,
            _ => Kind::Heavy,
        }
    }
    fn join(&mut self, k: &BlockProgram, data: &InstData) {
        match &data.op {
            op if shares(op) => self.join_all(k, data.args.iter().chain(&data.results).copied()),
            Op::Dot { .. } | Op::Wgmma { .. } | Op::SharedDot { .. } => {
                self.join_all(k, data.accumulator().into_iter().chain(data.results.iter().copied()));
            }
            // Pairs are in one thread.
            Op::Join => self.join_all(k, data.args.iter().copied()),
            // Threads exchange what they combine, element by element.
            Op::ReduceBy { .. } => self.join_all(k, data.args.iter().copied()),
            Op::ScanBy { .. } => self.join_all(k, data.args.iter().chain(&data.results).copied()),
            Op::WgmmaToken | Op::WgmmaWait { .. } => self.join_all(k, data.args.iter().chain(&data.results).copied()),
            Op::For => {
                let Some(region) = data.regions.first() else { return };
                for (i, r) in data.results.iter().enumerate() {
                    let carried = [data.args.get(i + 3), region.params.get(i + 1), yielded(k, region).get(i), Some(r)];
                    self.join_all(k, carried.into_iter().flatten().copied());
                }
            }
            Op::While if !data.results.is_empty() => {
                let Some(region) = data.regions.first() else { return };
                for (i, r) in data.results.iter().enumerate() {
                    let next = yielded(k, region).get(i + 1);
                    let carried = [data.args.get(i), region.params.get(i), next, Some(r)];
                    self.join_all(k, carried.into_iter().flatten().copied());
                }
            }
            Op::If => {
                for (i, r) in data.results.iter().enumerate() {
                    let branches = data.regions.iter().filter_map(|b| yielded(k, b).get(i));
                    self.join_all(k, branches.chain([r]).copied());
                }
            }
            _ => {}
        }
    }
    fn join_all(&mut self, k: &BlockProgram, values: impl Iterator<Item = Value>) {
        let heavy: Vec<Value> = values.filter(|v| !k.ty(*v).is_scalar() && self.is_heavy(*v)).collect();
        heavy.windows(2).for_each(|w| self.union(w[0], w[1]));
    }
}

/// Whether threads read only what they copied to a tile themselves: matmuls read swizzled tiles.
pub(super) fn is_private(k: &BlockProgram, tile: Value) -> bool {
    k.ty(tile).shape().is_empty() || matches!(k.ty(tile), Type::Shared { swizzle: Swizzle::None, .. })
}

/// Ops whose block operands and results all have one layout.
pub(super) fn shares(op: &Op) -> bool {
    matches!(
        op,
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
            | Op::Store(_)
            | Op::Atomic { .. }
            | Op::CompareSwap { .. }
            | Op::Publish
            | Op::Await
            | Op::Check { .. }
            | Op::Print(_)
            | Op::Assert(_)
            | Op::Scan { .. }
            | Op::Asm(_)
    )
}

/// Operands of the region's `yield`.
pub(super) fn yielded<'k>(k: &'k BlockProgram, region: &Region) -> &'k [Value] {
    match region.insts.last().map(|i| k.inst(*i)) {
        Some(InstData { op: Op::Yield, args, .. }) => args,
        _ => &[],
    }
}
