//! Differential testing of a graph on a device against the interpreter; shared by tests on random graphs and
//! `examples/random`.
//!
//! The reference is the interpreter in f64, compared element by element. The tolerance is measured, not fixed: the
//! interpreter runs the graph as a framework does, op by op in the graph's dtypes, and several times more with its
//! roundings perturbed at random. Where these runs disagree on whether a value is NaN or infinite, or on an integer,
//! the result depends on rounding, and any result is accepted.
//!
//! The random graphs come from `kiln-graphgen`, a crate of its own: it depends on graphs alone, so the tests of interp,
//! rewrite and lower, which this crate depends on, use it without a cycle and without building the compiler. This crate
//! compiles and runs, and so depends on all stages; the tests that need it are here, in `tests`, and no crate that
//! ships depends on it. Tests run a thousand graphs on the host; `examples/random` runs any number on a GPU.
pub mod chains;
pub mod invariance;
pub mod near;
pub mod ops;
pub mod pack;
pub mod programs;

use kiln::{CompileOptions, Compiled, Device, Error, Model, Target, Tensor, compile};
use kiln_graph::{DType, FallbackOp, Format, Graph, Random};
use kiln_interp::graph::{Precision, run_with};
use kiln_plan::exec::Work;
use std::ops::Range;

/// Runs of the interpreter with perturbed roundings.
const SAMPLES: u64 = 3;
/// Additional runs before a graph is reported as wrong: where one rounding decides between two sets of values, few
/// samples may all give the same one.
const MORE_SAMPLES: u64 = 29;
/// Factor by which an error may exceed the spread of the samples, since these are few.
const SLACK: f64 = 8.0;

/// The reference results of a graph, and their tolerances.
pub struct Expected {
    values: Vec<Tensor>,
    /// Allowed distance per output and element; infinite where any result is accepted.
    allowed: Vec<Vec<f64>>,
}

/// Statistics of a graph whose results are right.
#[derive(Clone, Default, Debug)]
pub struct Tried {
    pub kernels: usize,
    /// For each kernel that was interpreted, the reason why it has no code.
    pub interpreted: Vec<String>,
}

/// Why a graph failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The interpreter refuses the graph or its inputs; not a fault of the compiler.
    #[error("no reference: {0}")]
    Reference(Error),
    #[error("{0}")]
    Refused(Error),
    #[error("{0}")]
    Wrong(String),
}
impl Fault {
    /// Whether it is a fault of the compiler.
    pub fn counts(&self) -> bool {
        !matches!(self, Fault::Reference(_))
    }
}

impl Expected {
    /// The results expected of a compilation with any of these `ways`.
    pub fn new(model: &Model, inputs: &[Tensor], ways: &[CompileOptions]) -> Result<Expected, Error> {
        Expected::sampled(model, inputs, ways, SAMPLES)
    }
    fn sampled(model: &Model, inputs: &[Tensor], ways: &[CompileOptions], count: u64) -> Result<Expected, Error> {
        let tf32_convs =
            ways.iter().any(|o| o.target != Target::Cpu && o.contract.conv() == kiln_plan::Precision::Tf32);
        let values = interpreted(model, inputs, Precision::F64)?;
        let mut samples = vec![interpreted(model, inputs, Precision::Native)?];
        for seed in 1..=count {
            samples.push(interpreted(model, inputs, Precision::Sampled { seed: seed << 32, tf32_convs })?);
        }
        let of = |o: usize| {
            let dtype = model.graph.dtype(model.graph.outputs[o]);
            let samples: Vec<&Tensor> = samples.iter().map(|s| &s[o]).collect();
            allowed(dtype, &values[o], &samples)
        };
        let allowed = (0..values.len()).map(of).collect();
        Ok(Expected { values, allowed })
    }

    /// Fails with the first element that is farther from the reference than allowed.
    pub fn check(&self, outputs: &[Tensor]) -> Result<(), String> {
        if outputs.len() != self.values.len() {
            return Err(format!("{} outputs, should be {}", outputs.len(), self.values.len()));
        }
        for (o, (got, want)) in outputs.iter().zip(&self.values).enumerate() {
            if got.ty.shape != want.ty.shape {
                return Err(format!("output {o} is {}, should be {}", got.ty, want.ty));
            }
            let wrong = |i: &usize| {
                let (g, w, allowed) = (got.get_f64(*i), want.get_f64(*i), self.allowed[o][*i]);
                let fits = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= allowed;
                let overflows = g.is_infinite() && g.signum() == w.signum() && w.abs() + allowed >= range(got.ty.dtype);
                !fits && !overflows && allowed != f64::INFINITY
            };
            let n = want.ty.count();
            if let Some(i) = (0..n).find(wrong) {
                let count = (0..n).filter(wrong).count();
                let (g, w, allowed) = (got.get_f64(i), want.get_f64(i), self.allowed[o][i]);
                return Err(format!(
                    "output {o} ({}): {count} of {n} elements are wrong, the first at {i}: {g}, should be {w} within \
                     {allowed:.1e}",
                    got.ty
                ));
            }
        }
        Ok(())
    }
}

/// The largest number of a type.
fn range(dtype: DType) -> f64 {
    dtype.format().unwrap_or(Format::F64).largest()
}

fn interpreted(model: &Model, inputs: &[Tensor], precision: Precision) -> Result<Vec<Tensor>, Error> {
    let mut none = |op: &FallbackOp, _: &[Tensor]| Err(format!("{} needs libtorch", op.name));
    run_with(&model.graph, inputs, &model.params, precision, &mut none)
        .map_err(|e| Error::failed(format!("the interpreter stopped: {e}"), "check the inputs' values"))
}

/// Allowed distance from `want`, element by element.
fn allowed(dtype: DType, want: &Tensor, samples: &[&Tensor]) -> Vec<f64> {
    let n = want.ty.count();
    let unsure = |w: f64, s: f64| {
        let differs = w.is_nan() != s.is_nan() || w.is_infinite() != s.is_infinite() || (w.is_infinite() && w != s);
        differs || (!dtype.is_float() && w != s)
    };
    let spread = |i: usize| {
        let w = want.get_f64(i);
        samples.iter().map(|s| s.get_f64(i)).fold(0.0, |most: f64, s| match () {
            _ if unsure(w, s) => f64::INFINITY,
            _ if w == s || w.is_nan() => most,
            _ => most.max((w - s).abs()),
        })
    };
    let spreads: Vec<f64> = (0..n).map(spread).collect();
    if !dtype.is_float() {
        return spreads;
    }
    let size = |i: usize| Some(want.get_f64(i).abs()).filter(|w| w.is_finite()).unwrap_or(0.0);
    // Samples are few, so some elements hardly move by chance; they are allowed the median spread of all elements.
    let usual = median(spreads.iter().copied());
    // A clamp to zero hides the spread of the elements below it, which may be most: zeros are allowed the median of the
    // nonzero spreads.
    let of_zeros = usual.max(median(spreads.iter().copied().filter(|s| *s > 0.0)));
    let usual = |i: usize| if want.get_f64(i) == 0.0 { of_zeros } else { usual };
    let share = median((0..n).filter(|i| size(*i) > 0.0).map(|i| spreads[i] / size(i)));
    let epsilon = |d: DType| d.format().unwrap_or(Format::F32).epsilon();
    let (last, compute) = (epsilon(dtype), epsilon(dtype.compute()));
    // If all results are zero, they are assumed to be sums of numbers of about one that cancel.
    let largest = Some((0..n).map(size).fold(0.0, f64::max).min(1.0)).filter(|l| *l > 0.0).unwrap_or(1.0);
    let floor = |i: usize| last * size(i) + 8.0 * compute * size(i).max(largest);
    (0..n).map(|i| SLACK * (spreads[i] + usual(i).max(share * size(i)) / 2.0) + floor(i)).collect()
}

/// The median of the finite numbers; 0 if there are none.
fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = of.filter(|s| s.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Compiles the model in each of these ways, runs each twice on the device, and compares with the expected results. The
/// second run, which may replay a recorded graph, must give the same bytes, unless it sums floats by index on a GPU, in
/// any order.
pub fn attempt(
    model: &Model,
    inputs: &[Tensor],
    expected: &Expected,
    ways: &[CompileOptions],
    device: &Device,
) -> Result<Tried, Fault> {
    let mut tried = Tried::default();
    for options in ways {
        let way = if options.fuse { "fused" } else { "unfused" };
        let compiled = compile(model, options).map_err(Fault::Refused)?;
        run(&compiled, inputs, expected, device, way, &mut tried)?;
    }
    Ok(tried)
}

/// Runs a compiled model twice and compares.
fn run(
    compiled: &Compiled,
    inputs: &[Tensor],
    expected: &Expected,
    device: &Device,
    way: &str,
    tried: &mut Tried,
) -> Result<(), Fault> {
    tried.kernels += compiled.plan.kernels.len();
    for work in compiled.steps.iter().flat_map(|s| &s.steps) {
        if let Work::Interpret { why, .. } = work {
            tried.interpreted.push(why.clone());
        }
    }
    let session = compiled.session_in(device).map_err(Fault::Refused)?;
    let first = session.run(inputs).map_err(|e| Fault::Refused(e.into()))?;
    expected.check(&first).map_err(|e| Fault::Wrong(format!("{way}: {e}")))?;
    let again = session.run(inputs).map_err(|e| Fault::Refused(e.into()))?;
    if compiled.programs.iter().any(kiln_block::BlockProgram::adds_in_any_order) {
        return expected.check(&again).map_err(|e| Fault::Wrong(format!("{way}, again: {e}")));
    }
    if let Some(o) = (0..first.len()).find(|o| first[*o].bytes() != again[*o].bytes()) {
        let exact = expected.check(&again).err().unwrap_or_else(|| "within the tolerance".into());
        return Err(Fault::Wrong(format!("{way}: output {o} of a second run differs: {exact}")));
    }
    Ok(())
}

/// Tests schedules of a graph's kernels: each of `draws` gives every kernel one of its proposed schedules at random.
pub fn schedules(
    graph: &Graph,
    inputs: &[Tensor],
    options: &CompileOptions,
    draws: Range<u64>,
    device: &Device,
) -> Result<Tried, Fault> {
    let model = Model::from_graph(graph.clone()).map_err(Fault::Refused)?;
    let ways = std::slice::from_ref(options);
    let expected = Expected::sampled(&model, inputs, ways, SAMPLES + MORE_SAMPLES).map_err(Fault::Reference)?;
    let mut tried = Tried::default();
    for seed in draws {
        let compiled = scheduled(&model, options, seed).map_err(Fault::Refused)?;
        run(&compiled, inputs, &expected, device, &schedules_of(&compiled), &mut tried)?;
    }
    Ok(tried)
}

/// A model whose kernels have schedules drawn at random from those proposed.
pub fn scheduled(model: &Model, options: &CompileOptions, seed: u64) -> Result<Compiled, Error> {
    let mut plan = compile::plan(model, options)?;
    let mut random = Random::new(seed);
    for k in plan.kernels.iter_mut().filter(|k| k.schedule.is_some()) {
        let mut proposed = kiln_lower::schedules(k, options.machine())
            .map_err(|e| Error::failed(format!("cannot list the schedules of {}: {e}", k.name), "report this"))?;
        // Of kernels that multiply, not all of them fit.
        while !proposed.is_empty() {
            let schedule = proposed.swap_remove(random.next_below(proposed.len())).0;
            if !schedule.multiplies() || kiln_lower::fits(k, options.machine(), &schedule).is_ok() {
                k.schedule = Some(schedule);
                break;
            }
        }
    }
    compile::from_plan(model, plan, options)
}

/// The kernels' schedules, by name.
pub fn schedules_of(compiled: &Compiled) -> String {
    let kernels = compiled.plan.kernels.iter();
    let names = kernels.filter_map(|k| Some(format!("{}: {}", k.name, k.schedule.as_ref()?)));
    names.collect::<Vec<_>>().join("; ")
}

/// Tests a graph: computes the reference, compiles it in each way, runs and compares.
pub fn whole(graph: &Graph, inputs: &[Tensor], ways: &[CompileOptions], device: &Device) -> Result<Tried, Fault> {
    let model = Model::from_graph(graph.clone()).map_err(Fault::Refused)?;
    let expected = Expected::new(&model, inputs, ways).map_err(Fault::Reference)?;
    match attempt(&model, inputs, &expected, ways, device) {
        Err(Fault::Wrong(_)) => {
            let expected = Expected::sampled(&model, inputs, ways, SAMPLES + MORE_SAMPLES).map_err(Fault::Reference)?;
            attempt(&model, inputs, &expected, ways, device)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::Type;

    /// Values that a clamp holds at zero get the tolerance of those it lets through; where no sample moves, zero has to
    /// be zero.
    #[test]
    fn clamps_hide_how_far_a_value_moves() {
        let of = |v: &[f64]| Tensor::from_f64(Type::new(DType::Bf16, [v.len()]), v.iter().copied());
        let want = of(&[0.0, 0.0, 0.0, 0.5, 0.25]);
        let moved = of(&[0.0, 0.0, 0.0, 0.50390625, 0.24609375]);
        let allowed = |samples: &[&Tensor]| super::allowed(DType::Bf16, &want, samples);
        let clamped = allowed(&[&want, &moved]);
        assert!((0.0039..0.02).contains(&clamped[0]) && clamped[3] >= 8.0 * 0.00390625, "{clamped:?}");
        assert!(allowed(&[&want, &want])[0] < 1e-5);
    }
}
