//! Calibration: fits a machine description to measurements. Times graphs whose work is known, and solves the roofline
//! of the cost model for its rates.
//!
//! Fitted are the bandwidth, the cost of a launch, and the rates of matmuls and of other arithmetic. What follows from
//! the schedules (sizes of tiles and of rows, the price of a prologue) is copied from the description that the fit
//! starts from.
use crate::{CompileOptions, Error, Model, compile, compile::DeviceKind};
use kiln_graph::{Graph, Tensor, Type, random_tensor};
use kiln_machine::{Machine, MachineError};
use kiln_plan::{Cost, Plan};
use kiln_runtime::TimeOptions;

/// Time and work of one graph.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Median of the runs.
    pub seconds: f64,
    /// Bytes moved by all kernels.
    pub bytes: f64,
    /// Floating-point operations of matmuls.
    pub matrix_flops: f64,
    /// All other floating-point operations.
    pub other_flops: f64,
}
impl Seen {
    /// Takes the work from the plan.
    fn new(plan: &Plan, seconds: f64) -> Seen {
        let sum = |of: fn(&Cost) -> u64| plan.kernels.iter().map(|k| of(&k.cost) as f64).sum();
        let (matrix_flops, other_flops) = (sum(|c| c.matrix_flops), sum(|c| c.other_flops));
        Seen { seconds, bytes: sum(|c| c.bytes()), matrix_flops, other_flops }
    }
}

/// The description of the machine that `time` measures on, starting from the description `base` of a similar one.
pub fn fit(base: &Machine, mut time: impl FnMut(&Graph) -> Result<Seen, Error>) -> Result<Machine, Error> {
    let mut m = base.clone();
    m.rates.launch = time(&graph(&chain(1 << 5, 0))?)?.seconds;
    let copy = time(&graph(&chain(if m.arch.is_gpu() { 1 << 27 } else { 1 << 24 }, 0))?)?;
    m.rates.bandwidth = rate(copy.bytes, copy.seconds - m.rates.launch).unwrap_or(m.rates.bandwidth);
    let busy = time(&graph(&chain(if m.arch.is_gpu() { 1 << 24 } else { 1 << 21 }, 48))?)?;
    // The roofline is the slower of memory and arithmetic plus a tenth of the faster: the time of arithmetic where that
    // is the slower.
    let arithmetic = |s: &Seen, m: &Machine| s.seconds - m.rates.launch - 0.1 * s.bytes / m.rates.bandwidth;
    if arithmetic(&busy, &m) > busy.bytes / m.rates.bandwidth {
        m.rates.alu = rate(busy.other_flops, arithmetic(&busy, &m)).unwrap_or(m.rates.alu);
    }
    for (dtype, known) in base.rates.matrix.clone() {
        let matmul = time(&graph(&matmul(&dtype, if m.arch.is_gpu() { 4096 } else { 768 }))?)?;
        let found = rate(matmul.matrix_flops, arithmetic(&matmul, &m)).unwrap_or(known);
        m.rates.matrix.insert(dtype, found);
    }
    let copied = copy.seconds - m.rates.launch - 0.1 * copy.other_flops / m.rates.alu;
    m.rates.bandwidth = rate(copy.bytes, copied).unwrap_or(m.rates.bandwidth);
    Ok(m)
}

/// Work per second to three digits; `None` if work or time is not positive.
fn rate(work: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0 && work > 0.0).then(|| digits(work / seconds))
}
fn digits(v: f64) -> f64 {
    let unit = 10f64.powf(v.log10().floor() - 2.0);
    // Dividing by whole powers keeps the number short in text.
    if unit < 1.0 { (v / unit).round() / (1.0 / unit).round() } else { (v / unit).round() * unit.round() }
}

fn graph(text: &str) -> Result<Graph, Error> {
    text.parse().map_err(|e| Error::failed(format!("a calibration graph does not parse: {e}"), "report this"))
}
/// A pointwise kernel: a relu, then `rounds` times four ops, one of which is an exponential; about the mix of a
/// softmax.
fn chain(n: usize, rounds: usize) -> String {
    let mut t = format!("graph chain(%x: f32[{n}]) {{\n  %y0 = relu %x\n");
    for i in 0..rounds {
        t += &format!("  %a{i} = mul %y{i}, %x\n  %b{i} = add %a{i}, %x\n  %c{i} = min %b{i}, %x\n");
        t += &format!("  %y{} = exp %c{i}\n", i + 1);
    }
    t + &format!("  return %y{rounds}\n}}\n")
}
fn matmul(d: &str, n: usize) -> String {
    format!("graph matmul(%a: {d}[{n},{n}], %b: {d}[{n},{n}]) {{\n  %y = dot %a, %b\n  return %y\n}}\n")
}

/// Measures a device and fits its description.
pub fn calibrate(
    options: &CompileOptions,
    device: DeviceKind,
    threads: Option<usize>,
    mut progress: impl FnMut(&str),
) -> Result<Machine, Error> {
    let base = options.machine();
    let open = compile::open_device(device, threads)?;
    let mut fitted = fit(base, |graph| {
        let shown = graph.inputs.first().map(|v| graph.ty(*v).to_string()).unwrap_or_default();
        progress(&format!("{} of {shown}", graph.name));
        let model = Model::from_graph(graph.clone())?;
        let compiled = crate::compile(&model, options)?;
        let session = compiled.session_in(&open)?;
        let inputs: Vec<Tensor> = model.input_types().into_iter().map(filled).collect();
        let samples = TimeOptions { warmup: 2, runs: 3, min_seconds: 0.1, kernel_runs: 20 };
        let timing = session.time(&inputs, samples)?;
        let us: f64 = timing.kernels.iter().map(|k| k.spread.median_us).sum();
        Ok(Seen::new(&compiled.plan, us * 1e-6))
    })?;
    fitted.rates.launch = (fitted.rates.launch * 1e8).round() / 1e8;
    if let kiln_runtime::Device::Cuda(gpu) = &open {
        fitted = compile::with_facts(&fitted, gpu.info());
        fitted.device.clone_from(&gpu.info().name);
    }
    let rates = format!("measured by `kiln doctor --calibrate` on {}", compile::device_name(device)?);
    fitted.sources.insert("rates".into(), rates);
    fitted.name = format!("{}{CALIBRATED}", base.name);
    Ok(fitted)
}

/// Random numbers, one block repeated: with zeros the arithmetic units would draw less power than with real data.
fn filled(ty: Type) -> Tensor {
    let block = random_tensor(Type::new(ty.dtype, [(1 << 16).min(ty.count())]), 1, 1.0);
    let mut t = Tensor::zeros(ty);
    t.bytes_mut().chunks_mut(block.bytes().len().max(1)).for_each(|c| c.copy_from_slice(&block.bytes()[..c.len()]));
    t
}

/// The rates of both descriptions as a table with a column for each.
pub fn table(base: &Machine, fitted: &Machine) -> String {
    let mut rows = vec![
        ("bandwidth, GB/s".to_string(), base.rates.bandwidth / 1e9, fitted.rates.bandwidth / 1e9),
        ("launch, us".to_string(), base.rates.launch * 1e6, fitted.rates.launch * 1e6),
        ("other arithmetic, Gflop/s".to_string(), base.rates.alu / 1e9, fitted.rates.alu / 1e9),
    ];
    for (dtype, rate) in &fitted.rates.matrix {
        rows.push((format!("{dtype} matmuls, Gflop/s"), base.matrix_rate(dtype) / 1e9, rate / 1e9));
    }
    let mut t = format!("{:28} {:>14} {:>14}\n", "", base.name, "measured");
    rows.iter().for_each(|(what, was, is)| t += &format!("{what:28} {was:14.2} {is:14.2}\n"));
    t
}

/// Suffix of the names of calibrated descriptions.
const CALIBRATED: &str = "-calibrated";

/// What predictions are made for if the description was not measured on this device, with a remedy; `None` if it was.
/// `device`: as [`compile::device_name`] gives it.
pub fn unmeasured(m: &Machine, device: &str) -> Option<String> {
    let general = general_processor(&m.name, device == "cpu");
    let other_gpu = !m.device.is_empty() && !device.contains(&m.device);
    match (general, other_gpu) {
        (Some(text), _) => Some(text),
        (None, true) => Some(format!("for {}, not for this device; {REMEDY}", m.device)),
        (None, false) => None,
    }
}

/// The same for a plan of which only the machine's name is known: the built-in CPU description is of no particular
/// processor.
pub(crate) fn general_processor(machine: &str, cpu: bool) -> Option<String> {
    (cpu && !machine.ends_with(CALIBRATED)).then(|| format!("for a generic processor, not for this one; {REMEDY}"))
}
const REMEDY: &str = "`kiln doctor --calibrate m.json` measures this one, and `--machine m.json` uses the result";

/// The machine description in a file, or the built-in one of that name.
pub fn read(path: &std::path::Path) -> Result<Machine, Error> {
    let known = path.to_str().and_then(kiln_machine::machine).filter(|_| !path.exists());
    if let Some(known) = known {
        return Ok(known.clone());
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, e))?;
    let shown = path.display();
    Machine::parse(&text).map_err(|e| match e {
        MachineError::Json(e) => Error::failed(
            format!("{shown} is not a machine description: {e}"),
            "`kiln doctor --calibrate FILE` writes one",
        ),
        MachineError::NotPositive(_) => {
            Error::failed(format!("{shown}: a rate or a time is not positive"), "correct it, or calibrate again")
        }
        e => Error::failed(format!("{shown}: {e}"), "calibrate again: `kiln doctor --calibrate FILE` writes a new one"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    /// Times are rooflines of another, hidden machine; the fit must find the rates of that machine.
    #[test]
    fn finds_the_machine_that_was_timed() {
        for target in [Target::Cpu, Target::Sm90a] {
            let base = target.machine();
            let mut hidden = base.clone();
            hidden.rates.bandwidth *= 0.6;
            hidden.rates.launch *= 1.7;
            hidden.rates.alu *= 0.4;
            hidden.rates.matrix.values_mut().for_each(|r| *r *= 1.9);
            let options = CompileOptions { target, machine: Some(hidden.clone()), ..CompileOptions::default() };
            let fitted = fit(base, |g| {
                let plan = compile::plan(&Model::from_graph(g.clone())?, &options)?;
                Ok(Seen::new(&plan, plan.roofline_us() * 1e-6))
            })
            .expect("fits");
            let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.03, "{fitted:#?}, hidden {hidden:#?}");
            near(fitted.rates.bandwidth, hidden.rates.bandwidth);
            near(fitted.rates.launch, hidden.rates.launch);
            near(fitted.rates.alu, hidden.rates.alu);
            fitted.rates.matrix.values().zip(hidden.rates.matrix.values()).for_each(|(a, b)| near(*a, *b));
        }
    }

    #[test]
    fn numbers_stay_short() {
        assert_eq!([4.23456e12, 1234.5, 2.3456e-6].map(digits), [4.23e12, 1230.0, 2.35e-6]);
    }
}
