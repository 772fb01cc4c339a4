//! What the results of a benchmark are compared with, chosen by how much work it is, so that no reference takes longer
//! than seconds.
//!
//! The interpreter in f64, where it can run the whole graph; libtorch's eager operators, where the plugin is there;
//! else the interpreter again, for a sample of the outputs and what that depends on; else nothing. Bounds are work and
//! not time: the same graph is compared with the same reference on every machine with the same libtorch.
use crate::{
    Error, Model,
    accuracy::{Difference, differences},
    eager::{self, Floats},
    torch,
};
use kiln_graph::{Op, Tensor};
use kiln_interp::graph::{Demand, part, run_parts};
use kiln_torch_host::Torch;
use serde::Serialize;

/// Most work of the interpreter, in the units of [`Demand::work`]: it does about 10⁹ of them a second.
const INTERPRETED: u64 = 1 << 31;
/// Most work of libtorch's eager operators on the host, in the same units: at least ten times as many a second.
const EAGER: u64 = 1 << 36;

/// What results were compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// The interpreter in f64, all elements.
    Interpreted,
    /// libtorch, all elements: the archive itself with `--against torch`, else the graph's ops by eager operators on
    /// the host, f16 and bf16 in f32.
    Libtorch,
    /// The interpreter in f64, at a sample of the elements.
    Sampled,
    /// Nothing: even a sample takes too much work.
    None,
}
/// A comparison of results with their reference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// What they were compared with.
    pub reference: Reference,
    /// NaN if with nothing.
    pub difference: Difference,
    /// Elements that were compared.
    pub compared: usize,
}
impl Checked {
    /// All `outputs` compared with `all`.
    pub(super) fn with(reference: Reference, outputs: &[Tensor], all: &[Tensor]) -> Checked {
        Checked { reference, difference: differences(outputs, all), compared: count(outputs) }
    }
}

/// Number of elements of all tensors.
pub(super) fn count(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|t| t.ty.count()).sum()
}

/// Compares `outputs` with the best reference that is not too much work. `torch` loads libtorch, if it is there.
pub(super) fn checked(
    model: &Model,
    inputs: &[Tensor],
    outputs: &[Tensor],
    torch: impl FnOnce() -> Option<Torch>,
) -> Result<Checked, Error> {
    let work = Demand::whole(&model.graph).work(&model.graph);
    if work <= INTERPRETED {
        return Ok(Checked::with(Reference::Interpreted, outputs, &interpret(model, inputs)?));
    }
    let eager = |torch: Torch| eager::run_model(&torch, &model.graph, inputs, &model.params, Floats::Wide).ok();
    // An operator that eager libtorch refuses leaves the sample.
    let eager = if work <= EAGER && !sums_integers(model) { torch().and_then(eager) } else { None };
    if let Some(all) = eager {
        return Ok(Checked::with(Reference::Libtorch, outputs, &all));
    }
    match Demand::sampled(&model.graph, INTERPRETED) {
        Some(sample) => sampled(model, inputs, outputs, &sample),
        None => {
            let difference = Difference { max_abs: f64::NAN, max_rel: f64::NAN, norm_rel: f64::NAN };
            Ok(Checked { reference: Reference::None, difference, compared: 0 })
        }
    }
}

/// Whether the graph has matmuls of integers, for which libtorch has no fast code.
fn sums_integers(model: &Model) -> bool {
    let g = &model.graph;
    g.values().any(|v| matches!(g.op(v), Op::Dot) && !g.dtype(v).is_float())
}

/// Compares a sample of the outputs with the interpreter.
fn sampled(model: &Model, inputs: &[Tensor], outputs: &[Tensor], sample: &Demand) -> Result<Checked, Error> {
    let wanted = run_parts(&model.graph, inputs, &model.params, sample, &mut fallback).map_err(stopped)?;
    let parts: Option<Vec<Tensor>> = outputs.iter().zip(sample.outputs()).map(|(t, r)| part(t, r)).collect();
    // Outputs of other shapes are infinitely wrong, as in a comparison of all elements.
    let parts = parts.unwrap_or_default();
    Ok(Checked::with(Reference::Sampled, &parts, &wanted))
}

/// Runs the model with the interpreter, all floats in f64.
pub fn interpret(model: &Model, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let precision = kiln_interp::graph::Precision::F64;
    kiln_interp::graph::run_with(&model.graph, inputs, &model.params, precision, &mut fallback).map_err(stopped)
}

fn fallback(op: &kiln_graph::FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let torch = torch::torch().map_err(|e| e.to_string())?;
    torch.run_fallback(op, args).map_err(|e| e.to_string())
}

fn stopped(e: kiln_interp::graph::InterpError) -> Error {
    Error::failed(format!("the interpreter stopped: {e}"), "check the inputs' values (indices in range?)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::text;

    fn model(source: &str) -> Model {
        let graph = text::parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
        Model::from_graph(graph).expect("a model")
    }
    fn zeros(model: &Model) -> Vec<Tensor> {
        let g = &model.graph;
        g.outputs.iter().map(|v| Tensor::zeros(g.ty(*v).clone())).collect()
    }
    /// Scores of 2048 keys for each query, beyond what is interpreted whole.
    const ATTENTION: &str = "graph g(%q: f32[1,8,2048,64], %k: f32[1,8,2048,64], %v: f32[1,8,2048,64]) {\n  \
                             %y = attention %q, %k, %v scale=0.125 causal=true\n  return %y\n}";

    #[test]
    fn one_large_attention_is_sampled_and_a_wrong_head_is_found() {
        let model = model(ATTENTION);
        let inputs = model.example_inputs(1);
        let compiled = crate::compile(&model, &crate::CompileOptions::default()).expect("compiles");
        let session = compiled.session_on(crate::compile::DeviceKind::Cpu, None).expect("a session");
        let mut outputs = session.run(&inputs).expect("runs");
        let compare = |outputs: &[Tensor]| checked(&model, &inputs, outputs, || None).expect("compares");
        let c = compare(&outputs);
        assert!(c.reference == Reference::Sampled && c.difference.max_abs < 1e-4, "{c:?}");
        assert!((1 << 14..count(&outputs)).contains(&c.compared), "{c:?}");
        let head = 2048 * 64;
        (5 * head..6 * head).for_each(|i| outputs[0].set_f64(i, 0.0));
        assert_eq!(compare(&outputs).difference.max_rel, 1.0);
        // No outputs where one is due are infinitely wrong.
        assert_eq!(compare(&[]).difference.max_abs, f64::INFINITY);
    }

    #[test]
    fn small_graphs_are_interpreted_and_endless_ones_are_not_compared() {
        let small = model("graph g(%x: f32[4,8]) {\n  %y = softmax %x axis=1\n  return %y\n}");
        let c = checked(&small, &small.example_inputs(1), &zeros(&small), || None).expect("compares");
        assert_eq!((c.reference, c.compared), (Reference::Interpreted, 32));
        // Each element depends on all of the operands.
        let mut source = "graph g(%x0: f32[1024,1024]) {\n".to_string();
        (0..4).for_each(|i| source += &format!("  %x{} = dot %x{i}, %x{i}\n", i + 1));
        let large = model(&(source + "  return %x4\n}"));
        let c = checked(&large, &large.example_inputs(1), &zeros(&large), || None).expect("compares");
        assert_eq!((c.reference, c.compared), (Reference::None, 0));
        assert!(c.difference.max_abs.is_nan());
    }
}
