//! A graph tried on a device against the interpreter: what tests on random graphs and `examples/random` share.
//!
//! The reference is the interpreter in f64. How far a result may be from it is measured, not fixed: the interpreter runs the
//! graph as a framework does, an op at a time in the graph's dtypes, and again with its roundings moved at random. Where
//! those runs disagree on what is NaN, infinite or an integer, rounding decides, and any result will do.
pub mod aten;
pub mod chains;
pub mod invariance;
pub mod near;
pub mod ops;
pub mod pack;
pub mod programs;

use crate::{CompileOptions, Error, Model, Target, Tensor, compile};
use kiln_graph::{DType, FallbackOp, Format};
use kiln_interp::graph::{Precision, run_with};
use kiln_plan::exec::Work;
use kiln_runtime::Device;

/// Runs of the interpreter with roundings moved.
const SAMPLES: u64 = 3;
/// As many more before a graph is called wrong: where one rounding decides between two rows of values, few samples may all
/// fall to one side.
const MORE_SAMPLES: u64 = 29;
/// By how much an error may exceed the largest of the samples, which are few.
const SLACK: f64 = 8.0;

/// What a graph computes, and how exactly that is known.
pub struct Expected {
    values: Vec<Tensor>,
    /// Allowed distance per output and element; infinite where anything will do.
    allowed: Vec<Vec<f64>>,
}

/// What became of a graph that is right.
#[derive(Clone, Default, Debug)]
pub struct Tried {
    pub kernels: usize,
    /// Why each of the kernels without code, which the interpreter ran, has none.
    pub interpreted: Vec<String>,
}

/// Why a graph failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The interpreter refuses the graph or its inputs; that says nothing of the compiler.
    #[error("no reference: {0}")]
    Reference(Error),
    #[error("{0}")]
    Refused(Error),
    #[error("{0}")]
    Wrong(String),
}
impl Fault {
    /// Whether it is the compiler's.
    pub fn counts(&self) -> bool {
        !matches!(self, Fault::Reference(_))
    }
}

impl Expected {
    /// What any of these `ways` may give.
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

    /// The first element that is farther from the reference than it may be.
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
                    "output {o} ({}): {count} of {n} elements are wrong, the first at {i}: {g}, should be {w} within {allowed:.1e}",
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
    // Samples are few, so that some elements hardly move by chance: they may as far as most others do.
    let usual = median(spreads.iter().copied());
    // A clamp hides how far what is below it moves, and most may be below.
    let beside = usual.max(median(spreads.iter().copied().filter(|s| *s > 0.0)));
    let usual = |i: usize| if want.get_f64(i) == 0.0 { beside } else { usual };
    let share = median((0..n).filter(|i| size(*i) > 0.0).map(|i| spreads[i] / size(i)));
    let epsilon = |d: DType| d.format().unwrap_or(Format::F32).epsilon();
    let (last, compute) = (epsilon(dtype), epsilon(dtype.compute()));
    // Zeros alone come of numbers that cancel, which are taken to be about one.
    let largest = Some((0..n).map(size).fold(0.0, f64::max).min(1.0)).filter(|l| *l > 0.0).unwrap_or(1.0);
    let floor = |i: usize| last * size(i) + 8.0 * compute * size(i).max(largest);
    (0..n).map(|i| SLACK * (spreads[i] + usual(i).max(share * size(i)) / 2.0) + floor(i)).collect()
}

/// The middle one of the finite numbers; 0 if there are none.
fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = of.filter(|s| s.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Compiles the model in each of these ways, runs each twice on the device, and compares with what is expected. The second
/// run, which may be a replay, must give the same bytes.
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
        if let Some(o) = (0..first.len()).find(|o| first[*o].bytes() != again[*o].bytes()) {
            let exact = expected.check(&again).err().unwrap_or_else(|| "within what is allowed".into());
            return Err(Fault::Wrong(format!("{way}: a second run gives another output {o}: {exact}")));
        }
    }
    Ok(tried)
}

/// All of it for a graph: reference, ways, comparison.
pub fn whole(
    graph: &kiln_graph::Graph,
    inputs: &[Tensor],
    ways: &[CompileOptions],
    device: &Device,
) -> Result<Tried, Fault> {
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

    /// What a clamp holds at zero may move as far as what it lets through, and no farther; where nothing moves, zero is zero.
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
