//! Roofline cost model: bytes over bandwidth, flops over rate, plus launches.
//!
//! The time of an op that libtorch runs is unknown: a fallback's kernel has no predicted time, and totals leave it out.
use crate::dag::Dag;
use kiln_graph::ops::Class;
use kiln_graph::{DType, Op, Type};
use kiln_machine::Machine;
use kiln_plan::form::FormNeeds;
use kiln_plan::{Cost, Hardware, Terms, attention};
use rustc_hash::{FxHashMap, FxHashSet};

/// Predicted work and time of one kernel, before rounding to a [`Cost`].
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Price {
    pub read: f64,
    pub written: f64,
    /// Flops on matrix units.
    pub matrix: f64,
    /// Seconds of [`Price::matrix`].
    pub matrix_seconds: f64,
    pub other: f64,
    pub seconds: f64,
    /// What the form of its matmul, convolution or attention has to fuse.
    pub needs: FormNeeds,
}

impl Price {
    /// The slower of memory and arithmetic, plus one launch, plus a tenth of the faster one: overlap is not perfect,
    /// and with a pure maximum all work below the roofline bound would be free, so that ties would be broken by chance.
    pub fn timed(mut self, m: &Machine) -> Price {
        let memory = (self.read + self.written) / m.rates.bandwidth;
        let math = self.matrix_seconds + self.other / m.rates.alu;
        self.seconds = m.rates.launch + memory.max(math) + 0.1 * memory.min(math);
        self
    }
    /// The same with the cheapest launch, which schedules of small kernels are priced with.
    pub fn least_seconds(&self, m: &Machine) -> f64 {
        self.seconds - m.rates.launch + m.cheapest_launch()
    }
    pub fn cost(&self) -> Cost {
        Cost {
            bytes_read: self.read.round() as u64,
            bytes_written: self.written.round() as u64,
            matrix_flops: self.matrix.round() as u64,
            other_flops: self.other.round() as u64,
            us: Some(microseconds(self.seconds)),
            roofline_us: Some(microseconds(self.seconds)),
        }
    }
}

/// A lower bound in seconds of the price of a kernel by any schedule, in constant time: the cheapest launch, and the
/// slower of moving its bytes once (except what may stay in the L2 cache) and its flops on matrix units.
pub fn bound(price: &Price, m: &Machine) -> f64 {
    m.cheapest_launch() + m.least_transfer(price.read + price.written).max(price.matrix_seconds)
}

/// The terms of [`Price::timed`] for a kernel with a matmul of this many flops per second; all zero where the time is
/// unknown.
pub fn terms(c: &Cost, matrix_rate: f64, m: &Machine) -> Terms {
    let Some(us) = c.roofline_us else { return Terms::default() };
    let memory = c.bytes() as f64 / m.rates.bandwidth;
    let arithmetic = c.matrix_flops as f64 / matrix_rate + c.other_flops as f64 / m.rates.alu;
    let (memory_us, arithmetic_us, launch_us) =
        (microseconds(memory), microseconds(arithmetic), microseconds(m.rates.launch));
    let bound = [("memory", memory_us), ("arithmetic", arithmetic_us), ("launch", launch_us)];
    let bound = bound.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |b| b.0).to_string();
    let overlap_us = microseconds((us - memory_us - arithmetic_us - launch_us) / 1e6);
    Terms { memory_us, arithmetic_us, launch_us, overlap_us, bound }
}

/// Seconds as microseconds, rounded to a tenth of a nanosecond so that plans print the same.
pub fn microseconds(seconds: f64) -> f64 {
    (seconds * 1e10).round() / 1e4
}

/// An op with the types of its result and of its operands: all that its work depends on.
pub struct OpTypes<'a> {
    pub op: &'a Op,
    pub ty: &'a Type,
    pub args: Vec<&'a Type>,
}

impl<'a> OpTypes<'a> {
    pub fn of(dag: &'a Dag, v: usize) -> OpTypes<'a> {
        OpTypes { op: dag.op(v), ty: dag.ty(v), args: dag.nodes[v].args.iter().map(|&a| dag.ty(a)).collect() }
    }
    /// Flops on matrix units: of matmuls, convolutions, attention.
    pub fn matrix_flops(&self) -> f64 {
        // Invariant: these ops have operands of the ranks that inference asks for, also where their values are frozen.
        let shape = |i: usize| &self.args[i].shape[..];
        let last = |s: &[usize]| s[s.len() - 1] as f64;
        match self.op {
            Op::Dot | Op::Linear => 2. * count(self.ty) * last(shape(0)),
            Op::Attention { .. } => {
                let (q, k, v) = (shape(0), shape(1), shape(2));
                let keys = k[k.len() - 2] as f64;
                let queries: f64 = q[..q.len() - 1].iter().map(|&d| d as f64).product();
                2. * queries * keys * (last(q) + last(v))
            }
            Op::Conv { transposed, groups, .. } => {
                let (x, w) = (shape(0), shape(1));
                let window: f64 = w[2..].iter().map(|&d| d as f64).product();
                if *transposed {
                    2. * count(self.args[0]) * w[1] as f64 * window
                } else {
                    2. * count(self.ty) * (x[1] as f64 / *groups as f64) * window
                }
            }
            // The work of libtorch in a fallback is unknown and not priced.
            _ => 0.,
        }
    }
    /// Element type of the operands of a matmul or another anchor op, each of which has at least one operand.
    pub fn operands(&self) -> DType {
        self.args[0].dtype
    }
    /// Whether this is a matmul or a convolution of f32, for which a contract may allow tf32.
    pub fn is_f32_matmul(&self) -> bool {
        matches!(self.op, Op::Dot | Op::Linear | Op::Conv { .. }) && self.operands() == DType::F32
    }
    /// Most flops per second on matrix units. Attention of f32 may multiply as other f32 matmuls do.
    pub fn matrix_rate(&self, m: &Hardware) -> f64 {
        let exact = m.matrix_rate(self.operands().name());
        match self.op {
            _ if self.is_f32_matmul() => m.f32_matmul(self.op).1,
            Op::Attention { .. } if self.operands() == DType::F32 => m.f32_matmul(self.op).1.max(exact),
            _ => exact,
        }
    }
    /// Sizes of an attention on a GPU, with the precision in which it multiplies f32.
    pub fn attention_sizes(&self, m: &Hardware) -> Option<attention::Sizes> {
        match (self.op, &self.args[..]) {
            (Op::Attention { causal, .. }, [q, k, w, ..]) if m.arch.is_gpu() => {
                let shapes = [q, k, w].map(|ty| &ty.shape[..]);
                Some(attention::Sizes::of(self.operands(), shapes, *causal).settled(m))
            }
            _ => None,
        }
    }
    /// Seconds on matrix units. Fused attention on a GPU is priced by the tiles that lowering uses, for all keys also
    /// where its mask ends them at a number that only a run knows: a cache that is full is the case that costs most.
    pub fn matrix_seconds(&self, m: &Hardware) -> f64 {
        if let Some(sizes) = self.attention_sizes(m) {
            return if sizes.has_program() { sizes.predicted(m) } else { INTERPRETED };
        }
        if self.op.is_attention_of_steps() {
            return INTERPRETED;
        }
        let flops = self.matrix_flops();
        if flops > 0. { flops / self.matrix_rate(m) } else { 0. }
    }
    /// The same at the full rate of the unit.
    fn least_seconds(&self, m: &Hardware) -> f64 {
        let has_program = self.attention_sizes(m).map_or(!self.op.is_attention_of_steps(), |sizes| sizes.has_program());
        let flops = self.matrix_flops();
        match flops > 0. {
            true if has_program => flops / self.matrix_rate(m),
            true => INTERPRETED,
            false => 0.,
        }
    }
    /// Seconds of the op before kernels are known: its arithmetic; of an anchor op also its launch and its result.
    /// Flops are at the full rate: a composite op starts from what it can reach, and prices decide against it.
    pub fn seconds(&self, m: &Hardware) -> f64 {
        let class = Class::of(self.op);
        let computed = if class == Class::Reduce { count(self.args[0]) } else { self.op.weight() * count(self.ty) };
        let launches = class.is_anchor() && class != Class::Scan || class.is_opaque() || class == Class::Result;
        let written = count(self.ty) * self.ty.dtype.bytes() as f64;
        match class {
            Class::Leaf | Class::View | Class::Generator => 0.,
            _ if launches => m.rates.launch + self.least_seconds(m) + written / m.rates.bandwidth,
            _ => computed / m.rates.alu,
        }
    }
}

fn count(ty: &Type) -> f64 {
    ty.shape.iter().map(|&d| d as f64).product()
}

/// Price of attention without a block program, in seconds: more than any alternative.
pub const INTERPRETED: f64 = 1.0;

/// A lower bound in seconds of the time of every plan of this program, by every schedule that the contract allows, the
/// larger of two: moving inputs, parameters and results once (except lookup tables, and what may stay in the L2 cache);
/// and a launch per matmul, each by the fastest unit that may compute it. Launches are the cheapest of the machine's.
pub fn lower_bound(dag: &Dag, m: &Hardware) -> f64 {
    // The log-sum-exp of an attention may come from the kernel of its result.
    let computes = |v: &&usize| {
        let beside = matches!(dag.op(**v), Op::Attention { lse: true, .. });
        OpTypes::of(dag, **v).matrix_flops() > 0. && !dag.args(**v).is_empty() && !beside
    };
    let matmuls = dag.live.iter().filter(computes);
    // Matmuls that may share a launch (dual GEMM): those that share their left operand.
    let mut siblings: FxHashMap<(&Type, Option<&usize>), usize> = FxHashMap::default();
    for &v in matmuls.clone() {
        *siblings.entry((dag.ty(v), dag.args(v).first())).or_default() += 1;
    }
    let shares_launch = |v: usize| {
        m.dual_gemm(dag.ty(v).dtype.name()) && siblings.get(&(dag.ty(v), dag.args(v).first())).is_some_and(|n| *n > 1)
    };
    let launch = m.cheapest_launch();
    let kernels: f64 = matmuls
        .map(|&v| {
            let launch = if shares_launch(v) { launch / 2. } else { launch };
            let op = OpTypes::of(dag, v);
            let exact = m.matrix_rate(op.operands().name());
            launch + op.matrix_flops() / op.matrix_rate(m).max(exact)
        })
        .sum();
    let tables: FxHashSet<usize> = dag
        .live
        .iter()
        .filter(|&&v| matches!(dag.op(v), Op::Take { .. } | Op::Gather { .. }))
        .filter_map(|&v| dag.args(v).first().copied())
        .collect();
    let leaves = dag.live.iter().filter(|&&v| dag.class[v] == Class::Leaf && !tables.contains(&v));
    let written = dag.roots.iter().filter(|&&r| dag.class[r] != Class::Leaf);
    let moved: f64 = leaves.chain(written.clone()).map(|&v| dag.bytes(v)).sum();
    kernels.max(if written.count() > 0 { launch + m.least_transfer(moved) } else { 0. })
}
