//! Runs the steps of a kernel with the block interpreter and compares with the graph interpreter.
use kiln_block::Elem;
use kiln_graph::{DType, FullyMasked, Graph, Tensor, Type};
use kiln_interp::block::{self, Buffer};
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{LowerError, lower, lower_at};
use kiln_machine::{Arch, Machine};
use kiln_plan::exec::{Activation, AttentionCall, Axis, Epilogue, GemmCall, Matrix, Slot, Steps, Work};
use kiln_plan::{BufferId, Cost, Kernel, KernelKind, Reason, Schedule, Stage};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const TARGETS: [Arch; 2] = [Arch::Cpu, Arch::Sm90a];

pub fn kernel(kind: KernelKind, body: Graph) -> Kernel {
    let ids = |n: usize, from: usize| (from..from + n).map(|i| BufferId(i as u32)).collect();
    Kernel {
        name: "k".into(),
        kind,
        stage: Stage::Run,
        inputs: ids(body.inputs.len(), 0),
        outputs: ids(body.outputs.len(), body.inputs.len()),
        body,
        cost: Cost::default(),
        precision: kiln_plan::Precision::Exact,
        rounding: kiln_plan::Rounding::AtStores,
        batch_invariant: false,
        form: None,
        schedule: None,
        reason: Reason::default(),
    }
}

/// Calls `f` for each case, on as many threads as there are cores: for tests that would run alone after all others.
pub fn in_parallel<T: Sync>(cases: &[T], f: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(cases.len());
    let run = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            f(case);
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        run();
        for other in others {
            // Its message is that of the case.
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

fn elem(d: DType) -> Elem {
    Elem::ALL.into_iter().find(|e| e.name() == d.name()).expect("every dtype is an element")
}
fn dtype(e: Elem) -> DType {
    DType::ALL.into_iter().find(|d| d.name() == e.name()).expect("every element is a dtype")
}

/// Uninitialised memory: NaN in floats, garbage elsewhere.
fn poison(ty: &Type) -> Buffer {
    Buffer::new(elem(ty.dtype), &ty.shape, vec![0xff; ty.bytes()])
}

/// Outputs of the steps on these inputs.
pub fn run_steps(
    body: &Graph,
    steps: &Steps<kiln_block::BlockProgram>,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, String> {
    let mut memory: HashMap<Slot, Buffer> = HashMap::new();
    for (i, t) in inputs.iter().enumerate() {
        memory.insert(Slot::Input(i as u32), Buffer::new(elem(t.ty.dtype), &t.ty.shape, t.bytes().to_vec()));
    }
    for (i, &v) in body.outputs.iter().enumerate() {
        memory.insert(Slot::Output(i as u32), poison(body.ty(v)));
    }
    for (i, ty) in steps.scratch.iter().enumerate() {
        memory.insert(Slot::Scratch(i as u32), poison(ty));
    }
    memory.insert(Slot::Faults, Buffer::zeros(Elem::I64, &[1]));
    memory.insert(Slot::Counter, Buffer::zeros(Elem::I32, &[1]));
    for step in &steps.steps {
        match step {
            Work::Block { code, args } => {
                kiln_block::verify::verify(code).map_err(|e| format!("{e}"))?;
                let mut buffers: Vec<Buffer> =
                    args.iter().map(|s| memory.get(s).cloned().ok_or(format!("no {s:?}"))).collect::<Result<_, _>>()?;
                block::run(code, &mut buffers).map_err(|e| format!("{e}"))?;
                for ((slot, p), b) in args.iter().zip(&code.params).zip(buffers) {
                    if !p.readonly {
                        memory.insert(*slot, b);
                    }
                }
                assert!(memory[&Slot::Counter].bytes.iter().all(|b| *b == 0), "a counter is not back at 0");
                let record = i64::from_le_bytes(memory[&Slot::Faults].bytes[..8].try_into().expect("a record"));
                if let Some(fault) = kiln_plan::index::Fault::of(record) {
                    return Err(format!("{}: index {} is out of range", fault.site, fault.index));
                }
            }
            Work::Gemm(call) => gemm(call, &mut memory),
            Work::Attention(call) => attention(call, &mut memory),
            other => return Err(format!("unexpected step {other:?}")),
        }
    }
    let output = |i: usize| {
        let b = &memory[&Slot::Output(i as u32)];
        let ty = Type::new(dtype(b.elem), b.shape.clone());
        Tensor::from_bytes(ty, &b.bytes).ok_or_else(|| "output of the wrong size".to_string())
    };
    (0..body.outputs.len()).map(output).collect()
}

/// Memory offset of a position that is counted through these axes.
fn place(axes: &[Axis], i: usize) -> usize {
    axes.iter().rev().fold((i, 0), |(rest, at), a| (rest / a.size, at + rest % a.size * a.stride)).1
}

/// A library's epilogue, applied to a matmul's element in column `q`. `at`: the element's offset in a matrix.
fn finished(e: &Epilogue, sum: f64, residual: &[f64], bias: &[f64], q: usize, at: impl Fn(&Matrix) -> usize) -> f64 {
    let mut v = e.scale * sum;
    v += e.residual.as_ref().map_or(0.0, |(m, factor)| factor * residual[at(m)]);
    v += e.bias.map_or(0.0, |(_, first)| bias[first + q]);
    match e.activation {
        None => v,
        Some(Activation::Relu) => {
            if v < 0.0 {
                0.0
            } else {
                v
            }
        }
        Some(Activation::GeluTanh) => 0.5 * v * (1.0 + (0.7978845608028654 * (v + 0.044715 * v * v * v)).tanh()),
    }
}

fn gemm(call: &GemmCall, memory: &mut HashMap<Slot, Buffer>) {
    let (a, b) = (memory[&call.a.slot].to_f64(), memory[&call.b.slot].to_f64());
    assert_eq!(memory[&call.a.slot].elem, elem(call.dtype), "a's type");
    assert_eq!(memory[&call.b.slot].elem, elem(call.dtype), "b's type");
    let values = |slot: Slot| {
        assert_eq!(memory[&slot].elem, elem(call.c_dtype), "the type of what is added");
        memory[&slot].to_f64()
    };
    let residual = call.epilogue.residual.as_ref().map(|r| values(r.0.slot)).unwrap_or_default();
    let bias = call.epilogue.bias.map(|b| values(b.0)).unwrap_or_default();
    let c = memory.get_mut(&call.c.slot).expect("c");
    assert_eq!(c.elem, elem(call.c_dtype), "c's type");
    let mut out = c.to_f64();
    let batches: usize = call.batch.iter().product();
    let [n, k] = [call.n, call.k];
    for i in 0..batches {
        let at = |m: &Matrix| {
            let mut rest = i;
            let mut at = m.offset;
            for (n, s) in call.batch.iter().zip(&m.batch_strides).rev() {
                at += rest % n * s;
                rest /= n;
            }
            at
        };
        let (oa, ob, oc) = (at(&call.a), at(&call.b), at(&call.c));
        for r in 0..call.m {
            for q in 0..n {
                let one = |k: usize| {
                    a[oa + place(&call.a.rows, r) + place(&call.a.cols, k)]
                        * b[ob + place(&call.b.rows, k) + place(&call.b.cols, q)]
                };
                let sum: f64 = (0..k).map(one).sum();
                out[oc + place(&call.c.rows, r) + place(&call.c.cols, q)] =
                    finished(&call.epilogue, sum, &residual, &bias, q, |m| {
                        at(m) + place(&m.rows, r) + place(&m.cols, q)
                    });
            }
        }
    }
    *c = Buffer::from_f64(c.elem, &c.shape.clone(), out);
}

/// Offset of a batch, counted over all batch axes.
fn batch_place(batch: &[usize], strides: &[usize], i: usize) -> usize {
    batch.iter().zip(strides).rev().fold((i, 0), |(rest, at), (n, s)| (rest / n, at + rest % n * s)).1
}

/// A library's attention. Keys that a row does not attend to are not read.
fn attention(a: &AttentionCall, memory: &mut HashMap<Slot, Buffer>) {
    for (m, dtype) in [(&a.q, a.dtype), (&a.k, a.dtype), (&a.v, a.dtype), (&a.out, a.out_dtype)] {
        assert_eq!(memory[&m.slot].elem, elem(dtype), "an operand's type");
    }
    let read = |slot: Slot| memory[&slot].to_f64();
    let [q, k, v] = [&a.q, &a.k, &a.v].map(|m| read(m.slot));
    let mask = a.mask.as_ref().map(|m| {
        assert_eq!(memory[&m.matrix.slot].elem, elem(m.dtype), "the mask's type");
        (m, read(m.matrix.slot))
    });
    let ends = a.ends.as_ref().map(|m| (m, read(m.slot)));
    let sinks = a.sink.as_ref().map(|s| {
        assert_eq!(memory[&s.matrix.slot].elem, elem(s.dtype), "the sink's type");
        (&s.matrix, read(s.matrix.slot))
    });
    let mut out = read(a.out.slot);
    for i in 0..a.batch.iter().product() {
        let at = |m: &Matrix, row: usize, col: usize| {
            m.offset + batch_place(&a.batch, &m.batch_strides, i) + place(&m.rows, row) + place(&m.cols, col)
        };
        for row in 0..a.rows() {
            let causal = if a.causal { a.keys.min(row % a.queries + 1) } else { a.keys };
            let end = ends.as_ref().map_or(causal, |(m, e)| causal.min(e[at(m, row, 0)] as usize));
            let score = |key: usize| {
                let x = a.scale * (0..a.depth).map(|d| q[at(&a.q, row, d)] * k[at(&a.k, key, d)]).sum::<f64>();
                match &mask {
                    Some((m, of)) if m.dtype == DType::Bool => {
                        if of[at(&m.matrix, row, key)] != 0.0 {
                            x
                        } else {
                            f64::NEG_INFINITY
                        }
                    }
                    Some((m, of)) => x + of[at(&m.matrix, row, key)],
                    None => x,
                }
            };
            let scores: Vec<f64> = (0..end).map(score).collect();
            let sink = sinks.as_ref().map(|(m, of)| of[at(m, row, 0)]);
            let all = || scores.iter().copied().chain(sink);
            let most = all().fold(f64::NEG_INFINITY, f64::max);
            let none = most == f64::NEG_INFINITY && !all().any(|s| s.is_nan());
            let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = all().map(|s| (s - most).exp()).sum();
            for e in 0..a.width {
                let values = powers.iter().enumerate().map(|(key, p)| p / sum * v[at(&a.v, key, e)]);
                out[at(&a.out, row, e)] = match (none, a.fully_masked) {
                    // The weights of keys that do not count are NaN, too.
                    _ if sink.is_some_and(f64::is_nan) => f64::NAN,
                    (true, FullyMasked::Zero) => 0.0,
                    (true, FullyMasked::Nan) => f64::NAN,
                    (false, _) => values.sum(),
                };
            }
        }
    }
    let buffer = memory.get_mut(&a.out.slot).expect("the result");
    *buffer = Buffer::from_f64(buffer.elem, &buffer.shape.clone(), out);
}

/// Largest error allowed: relative to the greater of 1 and the value.
fn tolerance(d: DType, body: &Graph) -> f64 {
    let half = body.values().any(|v| matches!(body.dtype(v), DType::F16 | DType::Bf16));
    let bf = body.values().any(|v| body.dtype(v) == DType::Bf16);
    match d {
        _ if bf => 4e-2,
        _ if half => 6e-3,
        DType::F32 => 2e-4,
        DType::F64 if body.values().any(|v| body.dtype(v) == DType::F32) => 2e-4,
        DType::F64 => 1e-9,
        _ => 0.0,
    }
}

/// The largest number of a type.
fn largest(d: DType) -> f64 {
    d.format().map_or(f64::MAX, |f| f.largest())
}

pub fn difference(body: &Graph, want: &[Tensor], got: &[Tensor]) -> Result<(), String> {
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        let d = body.dtype(body.outputs[i]);
        let tolerance = tolerance(d, body);
        for j in 0..w.ty.count() {
            let (x, y) = (w.get_f64(j), g.get_f64(j));
            let same = x == y || (x.is_nan() && y.is_nan());
            let near = tolerance * x.abs().max(1.0);
            // Beyond the largest number of a type, infinity of the same sign is right; at its edge rounding decides.
            let overflow = y.is_infinite() && y.signum() == x.signum() && x.abs() + near >= largest(d);
            let close = x.is_finite() && (x - y).abs() <= near;
            if !same && !overflow && !close {
                return Err(format!("output {i} ({}) element {j}: {y}, should be {x}", w.ty));
            }
        }
    }
    Ok(())
}

/// Lowers, runs and compares; the error says what differs.
pub fn compare(
    kind: KernelKind,
    body: &Graph,
    inputs: &[Tensor],
    target: Arch,
) -> Result<Result<(), LowerError>, String> {
    compare_kernel(&kernel(kind, body.clone()), inputs, target)
}
pub fn compare_kernel(k: &Kernel, inputs: &[Tensor], target: Arch) -> Result<Result<(), LowerError>, String> {
    compare_at(k, inputs, target.machine())
}

/// [`compare_kernel`] for a machine.
pub fn compare_at(k: &Kernel, inputs: &[Tensor], machine: &Machine) -> Result<Result<(), LowerError>, String> {
    let body = &k.body;
    let precise = run_with(body, inputs, &[], Precision::F64, &mut no_fallback);
    let native = run_with(body, inputs, &[], Precision::Native, &mut no_fallback);
    // Where rounding to half types decides a comparison or an integer, either result is right.
    let want = precise.map_err(|e| format!("the graph interpreter: {e}"))?;
    let native = native.map_err(|e| format!("the graph interpreter: {e}"))?;
    let steps = match lower_at(k, machine) {
        Ok(steps) => steps,
        Err(refused @ LowerError::Unsupported { .. }) => return Ok(Err(refused)),
        Err(defect @ LowerError::Invariant { .. }) => return Err(defect.to_string()),
    };
    let got = run_steps(body, &steps, inputs).map_err(|e| format!("{e}\n{}", text(&steps)))?;
    match difference(body, &want, &got) {
        Ok(()) => Ok(Ok(())),
        Err(_) if difference(body, &native, &got).is_ok() => Ok(Ok(())),
        Err(e) => Err(format!("{e}\n{}", text(&steps))),
    }
}

pub fn text(steps: &Steps<kiln_block::BlockProgram>) -> String {
    let mut all = String::new();
    for s in &steps.steps {
        match s {
            Work::Block { code, args } => all += &format!("{args:?}\n{}\n", kiln_block::text::print(code)),
            other => all += &format!("{other:?}\n"),
        }
    }
    all.truncate(6000);
    all
}

/// A body in text form on random inputs, on every target; must be lowered.
#[track_caller]
pub fn check(kind: KernelKind, body: &str) {
    for target in TARGETS {
        check_on(kind, body, target);
    }
}
#[track_caller]
pub fn check_on(kind: KernelKind, body: &str, target: Arch) {
    let g: Graph = body.parse().unwrap_or_else(|e| panic!("{e}\n{body}"));
    let inputs = kiln_graphgen::inputs(&g, 7);
    match compare(kind, &g, &inputs, target) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => panic!("{target:?}: {e}\n{body}"),
        Err(e) => panic!("{target:?}: {e}\n{body}"),
    }
}

/// The steps of a kernel by this schedule, which compute what the graph does.
pub fn check_by(kind: KernelKind, body: &str, target: Arch, schedule: &str) -> Steps<kiln_block::BlockProgram> {
    let g: Graph = body.parse().unwrap_or_else(|e| panic!("{e}\n{body}"));
    let schedule = Some(schedule.parse().unwrap_or_else(|e| panic!("{e}: {schedule}")));
    let k = Kernel { schedule, ..kernel(kind, g) };
    let steps = kiln_lower::lower(&k, target).unwrap_or_else(|e| panic!("{target:?}: {e}\n{body}"));
    let inputs = kiln_graphgen::inputs(&k.body, 7);
    compare_kernel(&k, &inputs, target).unwrap().unwrap_or_else(|e| panic!("{target:?}: {e}\n{body}"));
    steps
}

/// The programs of a kernel whose f32 matmuls are of this precision, compared with the graph.
pub fn checked_text(lines: &str, precision: kiln_plan::Precision, arch: Arch) -> String {
    checked_text_by(lines, precision, arch, None)
}
/// The same by a schedule that has this step, where the kernel has one.
pub fn checked_text_by(lines: &str, precision: kiln_plan::Precision, arch: Arch, step: Option<&str>) -> String {
    let body: Graph = format!("graph k{lines}").parse().unwrap_or_else(|e| panic!("{e}\n{lines}"));
    let kind = if lines.contains("conv") { KernelKind::Conv } else { KernelKind::Gemm };
    let k = Kernel { precision, ..kernel(kind, body) };
    let mut inputs = kiln_graphgen::inputs(&k.body, 7);
    if precision == kiln_plan::Precision::Tf32 {
        inputs.iter_mut().for_each(in_tf32);
    }
    compare_kernel(&k, &inputs, arch).unwrap().unwrap_or_else(|e| panic!("{e}\n{lines}"));
    let k = by_step(k, arch, step);
    compare_kernel(&k, &inputs, arch).unwrap().unwrap_or_else(|e| panic!("{e}\n{lines}"));
    let text = |w: &Work<kiln_block::BlockProgram>| match w {
        Work::Block { code, .. } => kiln_block::text::print(code),
        other => panic!("{other:?}"),
    };
    lower(&k, arch).unwrap().steps.iter().map(text).collect::<String>()
}

/// Truncates f32 numbers to tf32, so that rounding to it changes nothing and results must have f32's accuracy.
pub fn in_tf32(t: &mut Tensor) {
    if t.ty.dtype == DType::F32 {
        for x in t.bytes_mut().chunks_exact_mut(4) {
            let bits = u32::from_ne_bytes([x[0], x[1], x[2], x[3]]) & !0x1fff;
            x.copy_from_slice(&bits.to_ne_bytes());
        }
    }
}

/// The graph interpreter's outputs, or its refusal.
pub fn interpreted(body: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    run_with(body, inputs, &[], Precision::Native, &mut no_fallback).map_err(|e| e.to_string())
}
/// Outputs of the lowered kernel, or the refusal of its programs.
pub fn ran(kind: KernelKind, body: &Graph, inputs: &[Tensor], target: Arch) -> Result<Vec<Tensor>, String> {
    let steps = lower(&kernel(kind, body.clone()), target).map_err(|e| e.to_string())?;
    run_steps(body, &steps, inputs)
}
/// The kernel by the cheapest schedule that fits and begins with this step, or has it; else by the one that it gets.
pub fn by_step(k: Kernel, target: Arch, step: Option<&str>) -> Kernel {
    let all: Vec<Schedule> =
        kiln_lower::schedules(&k, target.machine()).expect("lowers").into_iter().map(|s| s.0).collect();
    let fits = |s: &&Schedule| kiln_lower::fits(&k, target.machine(), s).is_ok();
    let first = |step: &str| all.iter().filter(|s| s.to_string().starts_with(step)).find(fits);
    let any = |step: &str| all.iter().filter(|s| s.to_string().contains(step)).find(fits);
    let schedule = step.and_then(|step| first(step).or_else(|| any(step))).cloned();
    Kernel { schedule, ..k }
}
/// The programs of a kernel as text.
pub fn lowered(kind: KernelKind, body: &Graph, target: Arch) -> String {
    lowered_by(kind, body, target, None)
}
/// The same by a schedule that has this step, where the kernel has one.
pub fn lowered_by(kind: KernelKind, body: &Graph, target: Arch, step: Option<&str>) -> String {
    let k = by_step(kernel(kind, body.clone()), target, step);
    lower(&k, target).map_or_else(|e| e.to_string(), |steps| text(&steps))
}

/// The least number of a type, as graphs write it.
pub fn least(dtype: &str) -> &'static str {
    match dtype {
        "f32" => "-3.4028234663852886e38",
        "bf16" => "-3.3895313892515355e38",
        _ => "-65504.0",
    }
}
