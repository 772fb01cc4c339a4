//! What a launch of a block program does, counted: elements moved, flops, and the time that the machine's rates give.
//!
//! Counts are of one instance in the middle of the grid, times the number of instances. Loops run as often as the
//! launch's numbers say; where these depend on memory, a loop counts once and the result is a lower bound.
use crate::bounds::LaunchValues;
use kiln_block::analysis::{Analysis, analyse};
use kiln_block::passes::layout::anchors::tensor_matmul;
use kiln_block::{
    BinaryOp, BlockProgram, CmpOp, Const, DotPrecision, Elem, InstData, Op, Region, Type, UnaryOp, Value,
};
use kiln_machine::{Machine, isa};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What a launch takes by the machine's rates.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// Microseconds: the largest of the terms, and the launch itself on a GPU.
    pub us: f64,
    /// The term that decides: `memory`, `cache`, `arithmetic` or `matmul`.
    pub bound: String,
    /// Microseconds of each term.
    pub terms: BTreeMap<String, f64>,
    /// Bytes of tensors that are read or written, each once.
    pub bytes: f64,
    /// Bytes of all accesses.
    pub accessed: f64,
    /// Flops, those of matmuls included.
    pub flops: f64,
    /// A loop or branch depends on memory: it was counted once.
    pub is_lower_bound: bool,
}

/// Flops that an elementary function counts as.
const FUNCTION_FLOPS: f64 = 8.0;
/// Instructions of an access: the address, the predicate, and itself.
const ACCESS_INSTRUCTIONS: f64 = 3.0;
/// Instructions of an operation on indices, masks or types: code generation computes many of them once.
const INDEX_SHARE: f64 = 0.3;

/// How the elements of a pointer block lie in memory: different ones, neighbours in a row, and how many a thread
/// accesses at once.
struct Run {
    elements: f64,
    length: f64,
    vector: f64,
}

/// What an instance in the middle of the grid does.
#[derive(Default)]
pub(super) struct Work {
    /// Bytes by the pointer parameter they are reached by, if that is known.
    pub accessed: HashMap<Option<usize>, f64>,
    pub flops: f64,
    pub dots: Vec<DotWork>,
    pub is_lower_bound: bool,
    /// Bytes of the sectors that accesses touch.
    pub sectors: f64,
    /// Instructions of all threads.
    pub instructions: f64,
    /// Times that loads are waited for, one after the other.
    pub waits: f64,
    /// Reductions and scans.
    pub exchanges: f64,
}

/// A matmul of blocks, and how often an instance computes it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DotWork {
    /// The name of its rate, such as `tf32`.
    pub rate: &'static str,
    /// Rows, columns and depth.
    pub shape: [usize; 3],
    /// Bytes of an operand's element.
    pub bytes: usize,
    /// By instructions of tensor cores; otherwise by FMAs.
    pub by_tensor_cores: bool,
    pub times: f64,
}

impl DotWork {
    /// Flops of one of it.
    pub fn flops(&self) -> f64 {
        2.0 * self.shape.iter().product::<usize>() as f64
    }
}

/// Counts what an instance does.
pub(super) fn count(program: &BlockProgram, launch: &LaunchValues) -> Work {
    let mut counter = Counter::new(program, launch);
    counter.region(&program.body, 1.0);
    counter.work
}

impl Work {
    /// Bytes of tensors that all instances read or write, each once.
    pub fn bytes(&self, launch: &LaunchValues) -> f64 {
        let instances = launch.grid.iter().product::<usize>() as f64;
        let moved = self.accessed.iter().map(|(parameter, bytes)| {
            let tensor = parameter.and_then(|n| launch.parameters.get(n).copied().flatten());
            tensor.map_or(bytes * instances, |tensor| (bytes * instances).min(tensor as f64))
        });
        moved.sum()
    }
    /// Bytes of all accesses of an instance.
    pub fn all_accessed(&self) -> f64 {
        self.accessed.values().sum()
    }
}

/// The time of a launch, if its numbers are known.
pub fn predict(program: &BlockProgram, launch: &LaunchValues, machine: &Machine) -> Prediction {
    let work = count(program, launch);
    let instances = launch.grid.iter().product::<usize>() as f64;
    let accessed = work.all_accessed() * instances;
    let bytes = work.bytes(launch);
    let is_gpu = machine.arch.is_gpu();
    let mut terms = BTreeMap::from([
        ("memory".to_string(), 1e6 * bytes / machine.rates.bandwidth),
        ("arithmetic".to_string(), 1e6 * work.flops * instances / machine.rates.alu),
    ]);
    if is_gpu && machine.nests.cache > 0.0 {
        terms.insert("cache".into(), 1e6 * accessed / (machine.rates.bandwidth * machine.nests.cache));
    }
    let matmul: f64 = work.dots.iter().map(|dot| dot.times * dot.flops() / matrix_rate(machine, dot.rate)).sum();
    if matmul > 0.0 {
        terms.insert("matmul".into(), 1e6 * matmul * instances);
    }
    let most = terms.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(name, us)| (name.clone(), *us));
    let (bound, us) = most.unwrap_or_default();
    let flops = (work.flops + work.dots.iter().map(|dot| dot.times * dot.flops()).sum::<f64>()) * instances;
    let launch_us = if is_gpu { 1e6 * machine.rates.launch } else { 0.0 };
    Prediction { us: us + launch_us, bound, terms, bytes, accessed, flops, is_lower_bound: work.is_lower_bound }
}

pub(super) fn matrix_rate(machine: &Machine, name: &str) -> f64 {
    match name {
        "tf32" => machine.rates.tf32.unwrap_or_else(|| machine.matrix_rate("f32")),
        "tf32x3" => machine.rates.tf32x3.unwrap_or_else(|| machine.matrix_rate("f32")),
        name => machine.matrix_rate(name),
    }
}

/// The operands of a dot and how they are multiplied, such as `f32 by tf32`.
pub fn dots(program: &BlockProgram) -> Vec<String> {
    let mut found = vec![];
    program.walk(&mut |_, data| {
        if let (Op::Dot { .. }, Some(elem)) = (&data.op, data.args.first().and_then(|v| program.ty(*v).elem())) {
            let by = rate_name(data, elem);
            let text = if by == elem.to_string() { by.to_string() } else { format!("{elem} by {by}") };
            if !found.contains(&text) {
                found.push(text);
            }
        }
    });
    found
}

fn rate_name(data: &InstData, elem: Elem) -> &'static str {
    match (&data.op, elem) {
        (Op::Dot { precision: DotPrecision::Tf32, .. }, Elem::F32) => "tf32",
        (Op::Dot { precision: DotPrecision::Tf32x3, .. }, Elem::F32) => "tf32x3",
        (_, Elem::F16) => "f16",
        (_, Elem::Bf16) => "bf16",
        (_, Elem::F64) => "f64",
        (_, Elem::F8e4m3 | Elem::F8e5m2) => "f8e4m3",
        (_, Elem::I8) => "i8",
        (_, Elem::U8) => "u8",
        _ => "f32",
    }
}

struct Counter<'a> {
    program: &'a BlockProgram,
    launch: &'a LaunchValues,
    /// Integers that are known.
    known: HashMap<Value, i64>,
    /// The parameter that a pointer was made from.
    bases: HashMap<Value, usize>,
    analysis: Analysis,
    /// Threads of an instance.
    threads: f64,
    work: Work,
}

impl<'a> Counter<'a> {
    fn new(program: &'a BlockProgram, launch: &'a LaunchValues) -> Counter<'a> {
        let mut counter = Counter {
            program,
            launch,
            known: HashMap::new(),
            bases: HashMap::new(),
            analysis: analyse(program),
            threads: (program.warps * isa::WARP) as f64,
            work: Work::default(),
        };
        for (n, p) in program.params.iter().enumerate() {
            match program.ty(p.value) {
                Type::Ptr { .. } | Type::Desc { .. } => {
                    counter.bases.insert(p.value, p.launch_array.as_ref().map_or(n, |array| array.base));
                }
                _ => {
                    let number = launch.parameters.get(n).copied().flatten().or(p.facts.equals);
                    counter.known.extend(number.map(|number| (p.value, number)));
                }
            }
        }
        counter
    }
    fn get(&self, v: Value) -> Option<i64> {
        self.known.get(&v).copied()
    }
    fn region(&mut self, region: &Region, times: f64) {
        let mut loads = false;
        for inst in &region.insts {
            let data = self.program.inst(*inst);
            loads |= matches!(data.op, Op::Load(..) | Op::TileLoad | Op::Gather { .. });
            self.inst(data, times);
        }
        // Loads of a region are in flight together.
        self.work.waits += if loads { times } else { 0.0 };
    }
    fn inst(&mut self, data: &InstData, times: f64) {
        match &data.op {
            Op::For => self.for_loop(data, times),
            Op::While => {
                self.work.is_lower_bound = true;
                self.bind(&data.args, &data.regions[0].params);
                self.region(&data.regions[0], times);
            }
            Op::If => {
                let taken = self.get(data.args[0]);
                self.work.is_lower_bound |= taken.is_none();
                self.region(&data.regions[usize::from(taken == Some(0))], times);
            }
            Op::ReduceBy { .. } | Op::ScanBy { .. } => {
                let elements = self.elements(data.args.first());
                self.work.exchanges += times;
                self.region(&data.regions[0], times * elements);
            }
            _ => self.count(data, times),
        }
        if let [result] = data.results[..] {
            let value = self.evaluate(data);
            self.known.extend(value.map(|value| (result, value)));
            let base = data.args.first().filter(|_| matches!(self.program.ty(result), Type::Ptr { .. }));
            let base = base.and_then(|v| self.bases.get(v).copied());
            self.bases.extend(base.map(|base| (result, base)));
        }
    }
    fn bind(&mut self, from: &[Value], to: &[Value]) {
        for (from, to) in from.iter().zip(to) {
            let base = self.bases.get(from).copied();
            self.bases.extend(base.map(|base| (*to, base)));
        }
    }
    fn for_loop(&mut self, data: &InstData, times: f64) {
        let [lo, hi, step] = [0, 1, 2].map(|n| self.get(data.args[n]));
        let trips = match (lo, hi, step) {
            (Some(lo), Some(hi), Some(step)) if step > 0 => {
                let span = i128::from(hi) - i128::from(lo);
                ((span + i128::from(step) - 1) / i128::from(step)).max(0) as f64
            }
            _ => {
                self.work.is_lower_bound = true;
                1.0
            }
        };
        let body = &data.regions[0];
        self.bind(&data.args[3..], &body.params[1..]);
        // The index in the middle stands for all.
        let middle = lo.zip(step).map(|(lo, step)| lo.saturating_add(step.saturating_mul(trips as i64 / 2)));
        self.known.extend(middle.map(|middle| (body.params[0], middle)));
        self.region(body, times * trips);
        self.bind(&data.args[3..], &data.results);
    }
    fn elements(&self, value: Option<&Value>) -> f64 {
        value.map_or(1.0, |v| self.program.ty(*v).count() as f64)
    }
    /// Instructions of all threads for so many elements: each thread executes those of replicas, too.
    fn execute(&mut self, elements: f64, instructions: f64, times: f64) {
        self.work.instructions += times * instructions * elements.max(self.threads);
    }
    fn count(&mut self, data: &InstData, times: f64) {
        let first = self.elements(data.args.first());
        let weight = match &data.op {
            Op::Load(..) | Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } => {
                return self.access(data, times);
            }
            Op::TileLoad | Op::TileStore => return self.tile(data, times),
            Op::Dot { .. } => return self.dot(data, times),
            Op::Reduce { .. } | Op::Scan { .. } => {
                self.work.exchanges += times;
                1.0
            }
            Op::Unary(op) if is_elementary(*op) => FUNCTION_FLOPS,
            Op::Unary(_) | Op::Binary(_) | Op::Fma => 1.0,
            Op::Cmp(_) | Op::Select | Op::Cast(_) => return self.execute(first, INDEX_SHARE, times),
            _ => return,
        };
        let is_float = data.args.first().and_then(|v| self.program.ty(*v).elem()).is_some_and(Elem::is_float);
        if is_float {
            self.work.flops += times * weight * first;
        }
        self.execute(first, if is_float { weight } else { INDEX_SHARE }, times);
    }
    /// An access by pointers.
    fn access(&mut self, data: &InstData, times: f64) {
        let pointer = data.args[0];
        let ty = self.program.ty(pointer);
        let bytes = ty.elem().map_or(0.0, |elem| elem.bytes() as f64);
        let both = if matches!(data.op, Op::Load(..) | Op::Store(_)) { 1.0 } else { 2.0 };
        let base = self.bases.get(&pointer).copied();
        *self.work.accessed.entry(base).or_default() += times * both * bytes * ty.count() as f64;
        let Run { elements, length, vector } = self.run(pointer);
        let sector = isa::SECTOR as f64;
        let sectors = (length * bytes / sector).ceil() * sector;
        self.work.sectors += times * both * elements / length * sectors;
        self.execute(elements / vector, ACCESS_INSTRUCTIONS, times);
    }
    /// An access of a tile of a descriptor.
    fn tile(&mut self, data: &InstData, times: f64) {
        let block = data.results.first().or(data.args.get(1));
        let bytes = block.and_then(|v| self.program.ty(*v).elem()).map_or(0.0, |elem| elem.bytes() as f64);
        let moved = times * bytes * self.elements(block);
        let base = self.bases.get(&data.args[0]).copied();
        *self.work.accessed.entry(base).or_default() += moved;
        self.work.sectors += moved;
    }
    /// How the elements of a pointer block lie in memory.
    fn run(&self, pointer: Value) -> Run {
        let (program, analysis) = (self.program, &self.analysis);
        let ty = program.ty(pointer);
        let bytes = ty.elem().map_or(1, Elem::bytes);
        let mut run = Run { elements: ty.count() as f64, length: 1.0, vector: 1.0 };
        for (axis, (known, size)) in analysis.axes(pointer).iter().zip(ty.shape()).enumerate() {
            // Elements with one address are accessed once.
            run.elements /= (known.constant.max(1) as f64).min(*size as f64);
            // Neighbours are neighbours in memory too, but where a remainder wraps.
            let adjoining = analysis.step(program, pointer, axis, isa::VECTOR as i64) == Some(1);
            let length = if adjoining { *size } else { known.contiguous.max(1) as usize };
            let (contiguous, align) = analysis.alignment(pointer, axis);
            let vector = (contiguous * bytes).min(align).clamp(bytes, isa::VECTOR.max(bytes)) / bytes;
            if length as f64 > run.length {
                run.length = length as f64;
                run.vector = vector as f64;
            }
        }
        run.elements = run.elements.max(1.0);
        run.length = run.length.min(run.elements);
        run
    }
    fn dot(&mut self, data: &InstData, times: f64) {
        let [left, right] = [0, 1].map(|n| self.program.ty(data.args[n]));
        let (Some(elem), [.., m, k], Some(n)) = (left.elem(), left.shape(), right.shape().last()) else { return };
        let batches: usize = left.shape().iter().rev().skip(2).product();
        let rate = rate_name(data, elem);
        let by_tensor_cores = matches!(rate, "f8e4m3" | "i8" | "u8") || tensor_matmul(self.program, data).is_some();
        let times = times * batches as f64;
        self.work.dots.push(DotWork { rate, shape: [*m, *n, *k], bytes: elem.bytes(), by_tensor_cores, times });
    }
    /// The value of an integer scalar.
    fn evaluate(&self, data: &InstData) -> Option<i64> {
        let arg = |n: usize| data.args.get(n).and_then(|v| self.get(*v));
        match &data.op {
            Op::Const(Const::Int(n)) => Some(*n),
            Op::Const(Const::Bool(b)) => Some(i64::from(*b)),
            Op::ProgramId(axis) => self.launch.grid.get(usize::from(*axis)).map(|n| *n as i64 / 2),
            Op::NumPrograms(axis) => self.launch.grid.get(usize::from(*axis)).map(|n| *n as i64),
            Op::Cast(elem) if !elem.is_float() => arg(0),
            Op::Select => arg(if arg(0)? != 0 { 1 } else { 2 }),
            Op::Binary(op) => binary(*op, arg(0)?, arg(1)?),
            Op::Cmp(op) => {
                let (a, b) = (arg(0)?, arg(1)?);
                Some(i64::from(match op {
                    CmpOp::Eq => a == b,
                    CmpOp::Ne => a != b,
                    CmpOp::Lt => a < b,
                    CmpOp::Le => a <= b,
                    CmpOp::Gt => a > b,
                    CmpOp::Ge => a >= b,
                }))
            }
            _ => None,
        }
    }
}

/// Whether it takes many instructions.
fn is_elementary(op: UnaryOp) -> bool {
    use UnaryOp::{Abs, Ceil, Floor, IsInf, IsNan, Neg, Not, Round, Tf32, Trunc};
    !matches!(op, Abs | Ceil | Floor | IsInf | IsNan | Neg | Not | Round | Tf32 | Trunc)
}

fn binary(op: BinaryOp, a: i64, b: i64) -> Option<i64> {
    match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div => a.checked_div(b),
        BinaryOp::Rem => a.checked_rem(b),
        BinaryOp::Max | BinaryOp::MaxNum => Some(a.max(b)),
        BinaryOp::Min | BinaryOp::MinNum => Some(a.min(b)),
        BinaryOp::And => Some(a & b),
        BinaryOp::Or => Some(a | b),
        BinaryOp::Shl => u32::try_from(b).ok().and_then(|b| a.checked_shl(b)),
        BinaryOp::Shr => u32::try_from(b).ok().and_then(|b| a.checked_shr(b)),
        _ => None,
    }
}
