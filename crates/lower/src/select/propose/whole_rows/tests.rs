//! [`persist::fits`] against the pass that makes kernels persistent: random row kernels, tiles and numbers of clusters.
use crate::dispatch::{lowering, visit_nests, with_contract};
use crate::emit::row_program::RowLoop;
use crate::emit::staged_operands;
use crate::nest::Nest;
use crate::scalar::composite::Decomposed;
use crate::scalar::dag::NodeOp;
use crate::schedule::persist;
use crate::schedule::row_plan::RowPlan;
use crate::select::propose::fit::{FittedRows, fitted, peeled};
use crate::select::propose::schedules_of;
use kiln_block::passes::persistent_rows;
use kiln_graph::{BinaryOp, CompareOp, DType, Graph, GraphError, Op, Random, ReduceOp, Scalar, Type, UnaryOp, ValueId};
use kiln_graphgen::Scale;
use kiln_machine::Arch;
use kiln_plan::exec::Work;
use kiln_plan::{Axis, BufferId, Cost, Kernel, KernelKind, Precision, Reason, Rounding, Schedule, Stage, Step};
use std::collections::{BTreeMap, BTreeSet};

fn kernel(body: Graph) -> Kernel {
    let ids = |n: usize, from: usize| (from..from + n).map(|i| BufferId(i as u32)).collect();
    Kernel {
        name: "k".into(),
        kind: KernelKind::Reduction,
        stage: Stage::Run,
        inputs: ids(body.inputs.len(), 0),
        outputs: ids(body.outputs.len(), body.inputs.len()),
        body,
        cost: Cost::default(),
        precision: Precision::Exact,
        rounding: Rounding::AtStores,
        batch_invariant: false,
        form: None,
        schedule: None,
        reason: Reason::default(),
    }
}

/// Whether the pass makes a persistent program of a plan that does not ask for one, or why not.
fn becomes_persistent(nest: &Nest, rows: &FittedRows, clusters: usize) -> Result<(), String> {
    let plan = RowPlan { persistent: Some(clusters), ..rows.plan.clone() };
    let mut scene = (*rows.scene).clone();
    let copied = staged_operands::copied(nest.name, &plan, &mut scene, 0);
    let emitted = RowLoop::new(nest.name, &scene, plan, copied.scratch.len() as u32).emit();
    let steps = emitted.map_err(|e| e.to_string())?.emitted.steps;
    let looped = |w: &Work<_>| matches!(w, Work::Block { code, .. } if persistent_rows::is_persistent(code));
    if steps.iter().any(looped) { Ok(()) } else { Err("no program is persistent".into()) }
}

/// A kernel over rows that is being built.
struct RowKernel {
    g: Graph,
    r: Random,
    dtype: DType,
    shape: Vec<usize>,
}

impl RowKernel {
    /// A tensor of the kernel's shape: an input, or a part, a permutation or a padded part of one.
    fn operand(&mut self) -> Result<ValueId, GraphError> {
        let (shape, last) = (self.shape.clone(), self.shape.len() - 1);
        let dtype = if self.r.next_below(4) == 0 {
            self.r.choose(&[DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I32, DType::U8])
        } else {
            self.dtype
        };
        let axis = self.r.next_below(shape.len());
        let x = match self.r.next_below(10) {
            // A part of a larger tensor.
            0 | 1 => {
                let start = self.r.choose(&[0, 1, 4, 8, 24]);
                let stride = self.r.choose(&[1, 1, 1, 2]);
                let mut wide = shape.clone();
                wide[axis] = start + wide[axis] * stride + self.r.choose(&[0, 1, 8, 64]);
                let x = self.g.input(Type::new(dtype, wide));
                self.g.slice(x, axis, start, shape[axis], stride)?
            }
            2 => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                perm.swap(axis, last);
                let from: Vec<usize> = perm.iter().map(|p| shape[*p]).collect();
                let x = self.g.input(Type::new(dtype, from));
                self.g.permute(x, perm)?
            }
            3 if shape[axis] > 40 => {
                let [mut lo, mut hi] = [0; 2].map(|_| vec![0; shape.len()]);
                (lo[axis], hi[axis]) = (self.r.choose(&[0, 1, 8, 16]), self.r.choose(&[0, 3, 8]));
                let mut inner = shape.clone();
                inner[axis] -= (lo[axis] + hi[axis]) as usize;
                let x = self.g.input(Type::new(dtype, inner));
                let value = if dtype == DType::U8 { 0.0 } else { 1.0 };
                self.g.pad(x, value, lo, hi)?
            }
            4 => {
                let x = self.g.input(Type::new(dtype, shape.clone()));
                self.g.add(Op::Flip(vec![axis]), &[x])?
            }
            // Halves of rows, swapped.
            5 if shape[last] > 16 => {
                let cut = self.r.choose(&[8, 1, shape[last] / 2]);
                let x = self.g.input(Type::new(dtype, shape.clone()));
                let head = self.g.slice(x, last, 0, cut, 1)?;
                let tail = self.g.slice(x, last, cut, shape[last] - cut, 1)?;
                self.g.concat(&[tail, head], last)?
            }
            // Rows gathered from a table.
            6 if shape.len() == 2 => {
                let table = self.g.input(Type::new(dtype, [100, shape[1]]));
                let rows = self.g.input(Type::new(DType::I64, [shape[0]]));
                self.g.add(Op::Take { axis: 0 }, &[table, rows])?
            }
            _ => self.g.input(Type::new(dtype, shape)),
        };
        self.g.cast(x, self.dtype)
    }
    /// A tensor that broadcasts to the kernel's shape: along the row, the rows, or both.
    fn shared(&mut self) -> Result<ValueId, GraphError> {
        let (shape, last) = (self.shape.clone(), self.shape.len() - 1);
        let mut to: Vec<usize> = shape.iter().map(|&n| if self.r.next_below(2) == 0 { n } else { 1 }).collect();
        if self.r.next_below(2) == 0 {
            to = vec![shape[last]];
        }
        Ok(self.g.input(Type::new(self.dtype, to)))
    }
    /// One more value of the kernel's shape; `axes` are those of a row.
    fn step(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId, GraphError> {
        let last = self.shape.len() - 1;
        match self.r.next_below(9) {
            0 => {
                let mean = self.g.reduce(ReduceOp::Mean, x, axes.to_vec())?;
                self.g.binary(BinaryOp::Sub, x, mean)
            }
            1 => {
                let largest = self.g.reduce(ReduceOp::Max, x, axes.to_vec())?;
                let d = self.g.binary(BinaryOp::Sub, x, largest)?;
                self.g.unary(UnaryOp::Exp, d)
            }
            2 => {
                let square = self.g.binary(BinaryOp::Mul, x, x)?;
                let sum = self.g.reduce(ReduceOp::Sum, square, axes.to_vec())?;
                self.g.binary(BinaryOp::Div, x, sum)
            }
            3 if axes == [last] => self.g.add(Op::Softmax { axis: last }, &[x]),
            4 if axes == [last] => self.g.add(Op::LayerNorm { axes: 1, affine: false, eps: Scalar::Float(1e-5) }, &[x]),
            5 => {
                let y = self.shared()?;
                self.g.binary(BinaryOp::Mul, x, y)
            }
            6 => {
                let y = self.operand()?;
                self.g.binary(BinaryOp::Add, x, y)
            }
            7 => {
                let shape = self.shape.clone();
                let place = self.g.iota(DType::I64, shape, last);
                let cut = self.g.constant_like(place, self.shape[last] as f64 / 2.0)?;
                let inside = self.g.compare(CompareOp::Lt, place, cut)?;
                let other = self.operand()?;
                self.g.select(inside, x, other)
            }
            _ => self.g.unary(UnaryOp::Relu, x),
        }
    }
}

/// A random kernel over rows, most of them long.
fn row_kernel(seed: u64) -> Result<Graph, GraphError> {
    let mut r = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x70e5);
    let row = match r.next_below(4) {
        0 => 1 + r.next_below(40_000),
        1 => 8 * (1 + r.next_below(4000)),
        _ => r.choose(&[256, 1000, 1024, 4096, 4097, 8192, 12288, 12290, 16384, 16385, 32768, 32770, 50257, 65536]),
    };
    let mut shape = vec![r.choose(&[3, 64, 132, 300, 4096, 16384]), row];
    if r.next_below(3) == 0 {
        shape.insert(0, r.choose(&[2, 5, 32, 66]));
    }
    let dtype = r.choose(&[DType::F32, DType::F32, DType::Bf16, DType::F16, DType::F64]);
    let mut k = RowKernel { g: Graph::new(format!("rows_{seed}")), r, dtype, shape };
    let last = k.shape.len() - 1;
    let axes: Vec<usize> = match k.r.next_below(6) {
        0 if last > 1 => vec![1, last],
        1 => vec![0],
        _ => vec![last],
    };
    let mut x = k.operand()?;
    let mut values = vec![];
    for _ in 0..1 + k.r.next_below(5) {
        x = k.step(x, &axes)?;
        values.push(x);
    }
    if k.r.next_below(3) == 0 {
        let sum = k.g.reduce(ReduceOp::Sum, x, axes.clone())?;
        values.push(sum);
    }
    let mut outputs = vec![*values.last().unwrap_or(&x)];
    if k.r.next_below(3) == 0 {
        let more = k.r.choose(&values);
        outputs.extend(Some(more).filter(|v| !outputs.contains(v)));
    }
    if k.r.next_below(4) == 0 {
        let narrow = k.r.choose(&[DType::Bf16, DType::F32, DType::F64, DType::U8]);
        outputs[0] = k.g.cast(outputs[0], narrow)?;
    }
    k.g.outputs = outputs;
    Ok(k.g.without_dead())
}

/// A tile of whole rows, or of half a row, that a cluster or a block has.
fn tile(nest: &Nest, r: &mut Random) -> Schedule {
    let row = nest.row().map_or(1, usize::next_power_of_two);
    let kept = nest.kept().count();
    let fuses = kept > 1 && r.next_below(2) == 0;
    let mut steps: Vec<Step> =
        fuses.then(|| Step::Fuse((0..kept).map(|k| Axis::Kept(k as u8)).collect())).into_iter().collect();
    let mut splits = vec![Step::Split(Axis::Row, if r.next_below(12) == 0 { (row / 2).max(1) } else { row })];
    let high = r.choose(&[1, 1, 1, 2, 2, 4, 8]);
    if kept > 0 && high > 1 {
        let axis = if fuses { 0 } else { r.next_below(kept) };
        let across = r.next_below(8) == 0;
        splits.insert(usize::from(across), Step::Split(Axis::Kept(axis as u8), high));
    }
    steps.extend(splits);
    steps.push(Step::Warps(r.choose(&[1, 2, 4, 8, 16])));
    if r.next_below(10) != 0 {
        steps.push(Step::Cluster(r.choose(&[2, 4, 8])));
    }
    Schedule { steps }
}

/// Schedules of rows without `persist`: random tiles and some of those proposed, also peeled, staged, prefetched, and
/// with a tail.
fn bases(nest: &Nest, r: &mut Random) -> Vec<Schedule> {
    let mut all: Vec<Schedule> = (0..6).map(|_| tile(nest, r)).collect();
    let mut proposed = schedules_of(nest).unwrap_or_default();
    proposed.iter_mut().for_each(|s| s.steps.retain(|step| !matches!(step, Step::Persist(_))));
    let has_cluster = |s: &Schedule| s.steps.iter().any(|step| matches!(step, Step::Cluster(_)));
    let clusters: Vec<Schedule> = proposed.iter().filter(|s| has_cluster(s)).cloned().collect();
    for some in [proposed, clusters].iter().filter(|some| !some.is_empty()) {
        all.extend((0..4).map(|_| r.choose(some)));
    }
    for base in all.clone() {
        if let Some(FittedRows { schedule, .. }) = peeled(nest, &base) {
            all.push(schedule.clone().then(Step::StageOperands));
            all.push(schedule);
        }
        all.push(base.clone().then(Step::StageRows));
        all.push(base.clone().then(Step::Tail(Axis::Row, r.choose(&[2, 4, 8, 32]))));
        all.push(base.then(Step::Prefetch(132)));
    }
    all
}

/// What a compared plan has.
fn features(nest: &Nest, rows: &FittedRows) -> Vec<String> {
    let (plan, scene) = (&rows.plan, &rows.scene);
    let live = scene.live();
    let loaded = live.iter().filter(|n| matches!(scene.dag.node(**n).op, NodeOp::Load { .. }));
    let mut all: Vec<String> = loaded.map(|n| scene.dag.node(*n).dtype.name().to_string()).collect();
    let reductions = live.iter().filter(|n| matches!(scene.dag.node(**n).op, NodeOp::Reduce { .. })).count();
    let sizes: BTreeSet<Option<u64>> = scene.stores.iter().map(|s| nest.size(s.slot)).collect();
    let known = [
        ("several reductions", reductions > 1),
        ("outputs of several sizes", sizes.len() > 1),
        ("ragged rows", !plan.row.extent.is_power_of_two()),
        ("several rows", plan.kept.iter().any(|c| c.block > 1)),
        ("columns", plan.rank == 2 && plan.row.axis == 0),
        ("peeled rows", plan.unaligned.is_some()),
        ("copies of operands", plan.copies),
        ("staged rows", plan.multi_row),
        ("prefetch", plan.prefetch.is_some()),
    ];
    all.extend(known.iter().filter(|(_, there)| *there).map(|(what, _)| what.to_string()));
    all
}

/// How many plans the pass takes and refuses, by what these have.
#[derive(Default)]
struct Tally {
    taken: BTreeMap<String, usize>,
    refused: BTreeMap<String, usize>,
}

/// Compares the predicate with the pass for every base schedule of each nest of a graph, with some numbers of clusters.
fn compare(seed: u64, graph: Graph, tally: &mut Tally) {
    let k = kernel(graph);
    let hardware = with_contract(Arch::Sm90a.machine(), &k);
    let Ok(decomposed) = Decomposed::of(&k.name, &k.body) else { return };
    let lowering = lowering(&k, &decomposed, &hardware, schedules_of).expect("a kernel without a schedule");
    let mut r = Random::new(seed ^ 0xba5e);
    // Bodies that no planner made may be refused.
    let _ = visit_nests(&k, &lowering, &hardware, &mut |nest| {
        let bases = if nest.row().is_some() { bases(nest, &mut r) } else { vec![] };
        for base in bases {
            let Some(rows) = fitted(nest, &base) else { continue };
            let instances = rows.plan.shape(1).instances();
            let inner = rows.plan.kept.iter().map(|c| c.count()).rfind(|n| *n > 1).unwrap_or(1);
            let clusters = r.choose(&[1, 2, 7, 16, 64, 66, inner, 2 * inner, instances / 2, instances, instances + 1]);
            let said = persist::fits(&rows.plan, &rows.scene, clusters);
            // The pass knows neither clusters nor tails.
            let asks_pass = rows.plan.blocks > 1 && rows.plan.tail.is_none();
            let does = if asks_pass { becomes_persistent(nest, &rows, clusters) } else { Err("not asked".into()) };
            assert_eq!(
                said.is_ok(),
                does.is_ok(),
                "seed {seed}: {base}; persist {clusters}: the plan says {said:?}, the pass {does:?}\n{}",
                k.body
            );
            let whole = asks_pass && rows.plan.whole() && (1..=instances).contains(&clusters);
            let counts = if does.is_ok() { &mut tally.taken } else { &mut tally.refused };
            for what in features(nest, &rows).into_iter().filter(|_| whole) {
                *counts.entry(what).or_default() += 1;
            }
        }
        Ok(())
    });
}

#[test]
fn a_plan_fits_if_the_pass_makes_it_persistent() {
    let mut tally = Tally::default();
    for seed in 0..500 {
        compare(seed, row_kernel(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}")), &mut tally);
        for scale in [Scale::Small, Scale::Large] {
            let g = kiln_graphgen::case(seed, scale);
            let multiplies = |op: &Op| matches!(op, Op::Dot | Op::Linear | Op::Attention { .. } | Op::Conv { .. });
            if !g.values().any(|v| multiplies(g.op(v))) {
                compare(seed, g, &mut tally);
            }
        }
    }
    println!("taken: {:?}\nrefused: {:?}", tally.taken, tally.refused);
    let float = ["f32", "f64", "f16", "bf16"];
    let shapes = ["several reductions", "outputs of several sizes", "ragged rows", "several rows", "columns"];
    let steps = ["peeled rows", "copies of operands", "staged rows", "prefetch"];
    for what in float.iter().chain(&shapes).chain(&steps) {
        let [taken, refused] = [&tally.taken, &tally.refused].map(|counts| counts.get(*what).copied().unwrap_or(0));
        assert!(taken >= 10 && refused >= 10, "{what}: {taken} are taken, {refused} refused");
    }
}
