//! Models as they are compiled: a graph, its weights, and where they came from.
use crate::{Error, io, launches};
use kiln_graph::{DType, Graph, Op, Scalar, Tensor, Type, ValueId};
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, path::PathBuf};

pub use crate::open::FileKind;

/// A graph with its weights, ready to compile.
pub struct Model {
    /// Ops and types.
    pub graph: Graph,
    /// Weights, in the order of the graph's parameters.
    pub params: Vec<Tensor>,
    /// The file it came from.
    pub path: PathBuf,
    /// The TorchScript archive that the user gave, which libtorch can run for comparison.
    pub archive: Option<PathBuf>,
    /// The archive that an artifact says it was compiled from: for messages only, never opened.
    pub compiled_from: Option<String>,
    /// Scalar arguments that the graph was specialised on: index of the input, and the only value the graph is valid
    /// for.
    pub guards: Vec<(usize, Scalar)>,
    /// State: the graph's last inputs, which its runs change.
    pub states: Vec<State>,
    /// What a run leaves in inputs; these are the graph's last outputs.
    pub writes: Vec<Written>,
    /// Seconds spent importing.
    pub import_s: f64,
}

/// A buffer of a model that runs change, as a cache.
#[derive(Clone, Debug)]
pub struct State {
    /// As the model names it.
    pub name: String,
    /// What it holds before the first run.
    pub initial: Tensor,
}

/// After a run, the graph's input `input` holds output `output`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Written {
    /// Index of the graph's inputs.
    pub input: usize,
    /// Index of the graph's outputs.
    pub output: usize,
}

impl Model {
    /// A model from a graph. Parameters come from their initialisers, or are random (seeded) where the graph names
    /// external data.
    pub fn from_graph(graph: Graph) -> Result<Model, Error> {
        kiln_graph::verify::verify(&graph).map_err(|e| {
            Error::caused(
                format!("the graph {} is invalid: {e}", graph.name),
                "correct the line that the message names",
                e,
            )
        })?;
        launches::check(&graph)?;
        kiln_graph::params::require(&graph).map_err(Error::memory)?;
        let params = kiln_graph::params::random_params(&graph);
        Ok(Model { params, ..Model::of(graph) })
    }
    /// A model of a graph without parameters.
    pub(crate) fn of(graph: Graph) -> Model {
        Model {
            graph,
            params: vec![],
            path: PathBuf::new(),
            archive: None,
            compiled_from: None,
            guards: vec![],
            states: vec![],
            writes: vec![],
            import_s: 0.0,
        }
    }
    /// Element types and shapes of what a caller passes, in order.
    pub fn input_types(&self) -> Vec<Type> {
        let given = self.graph.inputs.len() - self.states.len();
        self.graph.inputs[..given].iter().map(|v| self.graph.ty(*v).clone()).collect()
    }
    /// The graph's inputs: those that a caller passes, and the state before the first run.
    pub fn with_states(&self, mut inputs: Vec<Tensor>) -> Vec<Tensor> {
        inputs.extend(self.states.iter().map(|s| s.initial.clone()));
        inputs
    }
    /// The number of the graph's outputs that a caller gets; what runs leave in inputs follows.
    pub fn results(&self) -> usize {
        self.graph.outputs.len() - self.writes.len()
    }
    /// Seeded random inputs of the graph's types, and the state before the first run. Integers that only select
    /// positions of an axis are below its extent, so that what is measured reads a whole table; others are below 2.
    ///
    /// If they may be large, call [`Model::require_inputs`] first, which fails if there is not enough memory for them.
    pub fn example_inputs(&self, seed: u64) -> Vec<Tensor> {
        let guard = |i: usize| self.guards.iter().find(|g| g.0 == i).map(|g| g.1.as_f64());
        let one = |(i, ty): (usize, &Type)| match guard(i) {
            Some(v) => Tensor::from_f64(ty.clone(), [v]),
            None => io::random(ty, self.below(i), seed * 1000 + i as u64),
        };
        self.with_states(self.input_types().iter().enumerate().map(one).collect())
    }
    /// Exclusive bound of an input's random integers: the extent of the shortest axis whose positions they select,
    /// directly or through casts and views, or that of the type. At most 2 where anything is computed from them, since
    /// that may select too.
    fn below(&self, input: usize) -> i64 {
        const OTHERS: i64 = 2;
        let g = &self.graph;
        let (mut least, mut computed) = (None::<i64>, false);
        let mut todo: Vec<ValueId> = g.inputs.get(input).copied().into_iter().collect();
        let mut seen = HashSet::new();
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            for user in g.users(v) {
                let args = g.args(user);
                match g.op(user) {
                    Op::Take { axis } | Op::Gather { axis } | Op::Scatter { axis, .. } if args[1] == v => {
                        let extent = g.shape(args[0])[*axis] as i64;
                        least = Some(least.map_or(extent, |n| n.min(extent)));
                    }
                    // Narrower integers are others.
                    Op::Cast(to) if !matches!(to, DType::I64 | DType::I32) => {
                        computed = true;
                        todo.push(user);
                    }
                    Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) => todo.push(user),
                    Op::Slice { .. } | Op::Flip(_) | Op::Concat { .. } => todo.push(user),
                    Op::Compare(_) => {}
                    _ => computed = true,
                }
            }
        }
        // Of a narrow type those that it has.
        let largest = g.inputs.get(input).and_then(|v| g.ty(*v).dtype.int_range()).map_or(i64::MAX, |r| r.1);
        match least {
            Some(n) if !computed => n.min(largest.saturating_add(1)),
            of => of.map_or(OTHERS, |n| n.min(OTHERS)),
        }
    }
    /// Fails if there is not enough memory for inputs of the graph's types.
    pub fn require_inputs(&self) -> Result<(), Error> {
        let bytes = self.input_types().iter().fold(0usize, |sum, ty| sum.saturating_add(ty.bytes()));
        kiln_graph::memory::require(bytes, &format!("random inputs of {}", self.graph.name)).map_err(Error::memory)
    }
    /// Fails if inputs are given that differ from the graph's in number or type, or from a value the graph was
    /// specialised on.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<(), Error> {
        let want = self.input_types();
        if inputs.is_empty() {
            return Ok(());
        }
        if inputs.iter().map(|t| &t.ty).eq(want.iter()) {
            return match self.guards.iter().find(|(i, v)| inputs.get(*i).is_some_and(|t| t.get_f64(0) != v.as_f64())) {
                None => Ok(()),
                Some((i, v)) => Err(Error::inputs(
                    format!(
                        "input {i} must be {}, the value that {} is specialised on",
                        v.as_f64(),
                        self.path.display()
                    ),
                    "give that value, or compile the model again with the one you want",
                )),
            };
        }
        let list = |t: &[Type]| t.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
        let have: Vec<Type> = inputs.iter().map(|t| t.ty.clone()).collect();
        Err(Error::inputs(
            format!(
                "the inputs do not fit {}: it takes ({}), but ({}) were given",
                self.path.display(),
                list(&want),
                list(&have)
            ),
            "give inputs of these types, in this order",
        ))
    }
}
