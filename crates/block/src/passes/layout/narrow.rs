//! Rematerialisation for long rows of half types.
//!
//! Inside a kernel half types are computed in f32, and rounded where they are stored and where the graph casts. Between
//! reductions of a long row a thread keeps what it loaded (two elements per register) instead of the f32 values
//! computed from it, and recomputes these after each reduction.
//! Takes and gives a program with layouts. Recomputation applies the same ops to the same operands, so no bit changes.
//! Only rows shared by several blocks are considered: there the number of registers decides how many rows are in
//! flight.
use crate::{BinaryOp, Elem, Inst, InstData, Kernel, Op, UnaryOp, Value};
use std::collections::{BTreeSet, HashMap};

/// Instances of at least this many warps are shared by several blocks.
const SHARED: usize = 32;
/// Values of at least this many registers per thread are considered.
const WIDE: usize = 64;
/// Limits per element: ops that are recomputed, and how many of these may be slow.
const OPS: usize = 16;
const SLOW: usize = 1;

pub(super) fn run(k: &mut Kernel) {
    if k.warps < SHARED {
        return;
    }
    let insts = std::mem::take(&mut k.body.insts);
    k.body.insts = narrowed(k, insts);
}

/// Rewrites the instructions of one region.
fn narrowed(k: &mut Kernel, insts: Vec<Inst>) -> Vec<Inst> {
    let mut n = Narrow {
        k,
        known: HashMap::new(),
        born: HashMap::new(),
        kept: HashMap::new(),
        made: HashMap::new(),
        phase: 0,
        out: vec![],
    };
    for i in insts {
        n.inst(i);
    }
    n.out
}

/// How a value is computed from loaded ones.
#[derive(Clone, Default)]
struct Origin {
    loaded: BTreeSet<Value>,
    ops: usize,
    slow: usize,
}

struct Narrow<'k> {
    k: &'k mut Kernel,
    /// Wide values that can be recomputed: their origin and the original instruction.
    known: HashMap<Value, (Origin, InstData)>,
    /// For each wide value, the number of reductions before its definition.
    born: HashMap<Value, usize>,
    /// Loaded values: the phase of their latest [`Op::Keep`] and its result.
    kept: HashMap<Value, (usize, Value)>,
    /// What has been recomputed since the last reduction.
    made: HashMap<Value, Value>,
    phase: usize,
    out: Vec<Inst>,
}

impl Narrow<'_> {
    fn inst(&mut self, i: Inst) {
        let mut regions = std::mem::take(&mut self.k.inst_mut(i).regions);
        for r in &mut regions {
            r.insts = narrowed(self.k, std::mem::take(&mut r.insts));
        }
        self.k.inst_mut(i).regions = regions;
        let data = self.k.inst(i).clone();
        let args = data.args.iter().map(|a| self.again(*a)).collect();
        self.k.inst_mut(i).args = args;
        self.out.push(i);
        if let [v] = data.results[..] {
            if self.is_wide(v) {
                self.born.insert(v, self.phase);
            }
            if let Some(origin) = self.origin(&data) {
                self.known.insert(v, (origin, data.clone()));
            }
        }
        let reduces = matches!(data.op, Op::Reduce { .. }) && data.args.first().is_some_and(|a| self.is_wide(*a));
        if reduces {
            self.phase += 1;
            self.made.clear();
        }
    }
    /// Whether the value is an f32 block with many registers per thread.
    fn is_wide(&self, v: Value) -> bool {
        let ty = self.k.ty(v);
        ty.elem() == Some(Elem::F32) && ty.count() / (32 * self.k.warps) >= WIDE
    }
    fn origin(&self, data: &InstData) -> Option<Origin> {
        let v = *data.results.first()?;
        if !self.is_wide(v) {
            return None;
        }
        let arg = *data.args.first()?;
        if let Op::Cast(Elem::F32) = data.op
            && matches!(self.k.ty(arg).elem(), Some(Elem::F16 | Elem::Bf16))
        {
            return Some(Origin { loaded: BTreeSet::from([arg]), ops: 1, slow: 0 });
        }
        // Values that are uniform along the row take no registers; all others must be recomputable.
        let mut origin = match data.op {
            Op::Unary(op) => Origin { ops: 1, slow: usize::from(is_slow(op)), ..Origin::default() },
            Op::Binary(BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::Rem) => return None,
            Op::Binary(_) | Op::Select => Origin { ops: 1, ..Origin::default() },
            _ => return None,
        };
        for a in data.args.iter().filter(|a| self.born.contains_key(a)) {
            match self.known.get(a) {
                Some((o, _)) => {
                    origin.loaded.extend(&o.loaded);
                    (origin.ops, origin.slow) = (origin.ops + o.ops, origin.slow + o.slow);
                }
                None if self.is_uniform(*a) => {}
                None => return None,
            }
        }
        (origin.loaded.len() == 1 && origin.ops <= OPS && origin.slow <= SLOW).then_some(origin)
    }
    /// Whether all registers of a thread hold the same value.
    fn is_uniform(&self, v: Value) -> bool {
        let made = self.out.iter().rev().map(|i| self.k.inst(*i)).find(|d| d.results.first() == Some(&v));
        made.is_some_and(|d| matches!(d.op, Op::Splat | Op::Broadcast | Op::Const(_)))
    }
    /// The value, recomputed if it was defined before the last reduction.
    fn again(&mut self, v: Value) -> Value {
        if self.born.get(&v).is_none_or(|b| *b == self.phase) {
            return v;
        }
        let Some((_, data)) = self.known.get(&v).cloned() else { return v };
        if let Some(made) = self.made.get(&v) {
            return *made;
        }
        let args = match data.op {
            Op::Cast(_) => vec![self.keep(data.args[0])],
            _ => data.args.iter().map(|a| self.again(*a)).collect(),
        };
        let made = self.push(data.op, args, v);
        self.made.insert(v, made);
        made
    }
    /// A loaded value behind an [`Op::Keep`], so that nothing computed from it earlier is reused for what is computed
    /// from it now.
    fn keep(&mut self, v: Value) -> Value {
        let (phase, now) = self.kept.get(&v).copied().unwrap_or((0, v));
        if phase == self.phase {
            return now;
        }
        let next = self.push(Op::Keep, vec![now], v);
        self.kept.insert(v, (self.phase, next));
        next
    }
    /// Appends an op whose result has the type and layout of `like`.
    fn push(&mut self, op: Op, args: Vec<Value>, like: Value) -> Value {
        let made = self.k.new_value(self.k.ty(like).clone());
        self.k.values[made.0 as usize].layout = self.k.value(like).layout.clone();
        let inst = self.k.new_inst(InstData { op, args, results: vec![made], regions: vec![] });
        self.out.push(inst);
        made
    }
}

fn is_slow(op: UnaryOp) -> bool {
    !matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not)
}
