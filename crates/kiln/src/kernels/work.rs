//! What a launch of a block program does, counted: elements moved, flops, and the time that the machine's rates give.
//!
//! Counts are of one instance in the middle of the grid, times the number of instances. Loops run as often as the
//! launch's numbers say; where these depend on memory, a loop counts once and the result is a lower bound.
use crate::bounds::LaunchValues;
use kiln_block::{
    BinaryOp, BlockProgram, CmpOp, Const, DotPrecision, Elem, InstData, Op, Region, Type, UnaryOp, Value,
};
use kiln_machine::Machine;
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

#[derive(Default)]
struct Work {
    /// Bytes by the pointer parameter they are reached by, if that is known.
    accessed: HashMap<Option<usize>, f64>,
    flops: f64,
    /// Flops of matmuls by the name of the rate.
    matmuls: BTreeMap<&'static str, f64>,
    is_lower_bound: bool,
}

/// The time of a launch, if its numbers are known.
pub fn predict(program: &BlockProgram, launch: &LaunchValues, machine: &Machine) -> Prediction {
    let mut counter = Counter::new(program, launch);
    counter.region(&program.body, 1.0);
    let instances = launch.grid.iter().product::<usize>() as f64;
    let work = counter.work;
    let accessed: f64 = work.accessed.values().sum::<f64>() * instances;
    let bytes: f64 = work
        .accessed
        .iter()
        .map(|(parameter, bytes)| {
            let tensor = parameter.and_then(|n| launch.parameters.get(n).copied().flatten());
            tensor.map_or(bytes * instances, |tensor| (bytes * instances).min(tensor as f64))
        })
        .sum();
    let is_gpu = machine.arch.is_gpu();
    let mut terms = BTreeMap::from([
        ("memory".to_string(), 1e6 * bytes / machine.rates.bandwidth),
        ("arithmetic".to_string(), 1e6 * work.flops * instances / machine.rates.alu),
    ]);
    if is_gpu && machine.nests.cache > 0.0 {
        terms.insert("cache".into(), 1e6 * accessed / (machine.rates.bandwidth * machine.nests.cache));
    }
    let matmul: f64 = work.matmuls.iter().map(|(name, flops)| flops / matrix_rate(machine, name)).sum();
    if matmul > 0.0 {
        terms.insert("matmul".into(), 1e6 * matmul * instances);
    }
    let most = terms.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(name, us)| (name.clone(), *us));
    let (bound, us) = most.unwrap_or_default();
    let flops = (work.flops + work.matmuls.values().sum::<f64>()) * instances;
    let launch_us = if is_gpu { 1e6 * machine.rates.launch } else { 0.0 };
    Prediction { us: us + launch_us, bound, terms, bytes, accessed, flops, is_lower_bound: work.is_lower_bound }
}

fn matrix_rate(machine: &Machine, name: &str) -> f64 {
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
    work: Work,
}

impl<'a> Counter<'a> {
    fn new(program: &'a BlockProgram, launch: &'a LaunchValues) -> Counter<'a> {
        let mut counter =
            Counter { program, launch, known: HashMap::new(), bases: HashMap::new(), work: Work::default() };
        for (n, p) in program.params.iter().enumerate() {
            match program.ty(p.value) {
                Type::Ptr { .. } => {
                    counter.bases.insert(p.value, n);
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
        for inst in &region.insts {
            self.inst(self.program.inst(*inst), times);
        }
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
    fn count(&mut self, data: &InstData, times: f64) {
        let bytes = |elem: Elem| elem.bytes() as f64;
        let work = match &data.op {
            Op::Load(..) | Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } => {
                let pointer = data.args[0];
                let elem = self.program.ty(pointer).elem().map_or(0.0, bytes);
                let both = if matches!(data.op, Op::Load(..) | Op::Store(_)) { 1.0 } else { 2.0 };
                let base = self.bases.get(&pointer).copied();
                let moved = times * both * elem * self.elements(Some(&pointer));
                *self.work.accessed.entry(base).or_default() += moved;
                return;
            }
            Op::Dot { .. } => {
                let depth = self.program.ty(data.args[0]).shape().last().copied().unwrap_or(1) as f64;
                let flops = 2.0 * depth * self.elements(data.results.first()) * times;
                let elem = self.program.ty(data.args[0]).elem().unwrap_or(Elem::F32);
                *self.work.matmuls.entry(rate_name(data, elem)).or_default() += flops;
                return;
            }
            Op::Unary(op) if is_elementary(*op) => FUNCTION_FLOPS,
            Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Reduce { .. } | Op::Scan { .. } => 1.0,
            _ => return,
        };
        let is_float = data.args.first().and_then(|v| self.program.ty(*v).elem()).is_some_and(Elem::is_float);
        if is_float {
            self.work.flops += times * work * self.elements(data.args.first());
        }
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
