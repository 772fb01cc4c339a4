//! Models as they are compiled: a graph, its weights, and where they came from.
use crate::{Error, io};
use kiln_graph::{Graph, Op, Scalar, Tensor, Type, ValueId};
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
    /// The TorchScript archive that the user named, when libtorch can run the original.
    pub archive: Option<PathBuf>,
    /// What an artifact says that it was compiled from: for messages, never opened.
    pub compiled_from: Option<String>,
    /// Scalar arguments that the graph was specialised on: index of the input, and the one value it holds for.
    pub guards: Vec<(usize, Scalar)>,
    /// Seconds spent importing.
    pub import_s: f64,
}

impl Model {
    /// A graph made by hand, with its seeded parameters.
    pub fn from_graph(graph: Graph) -> Result<Model, Error> {
        kiln_graph::verify::verify(&graph).map_err(|e| {
            Error::caused(format!("the graph {} is wrong: {e}", graph.name), "mend the line it names", e)
        })?;
        kiln_graph::params::require(&graph).map_err(Error::memory)?;
        let params = kiln_graph::params::random_params(&graph);
        Ok(Model {
            graph,
            params,
            path: PathBuf::new(),
            archive: None,
            compiled_from: None,
            guards: vec![],
            import_s: 0.0,
        })
    }
    /// Element types and shapes, in the order of the inputs.
    pub fn input_types(&self) -> Vec<Type> {
        self.graph.inputs.iter().map(|v| self.graph.ty(*v).clone()).collect()
    }
    /// Seeded random inputs of the graph's types; integers are below 2, and 0 where they index a table of one row.
    ///
    /// Where they may be large, [`Model::require_inputs`] says first whether there is memory for them.
    pub fn example_inputs(&self, seed: u64) -> Vec<Tensor> {
        let guard = |i: usize| self.guards.iter().find(|g| g.0 == i).map(|g| g.1.as_f64());
        let one = |(i, ty): (usize, &Type)| match guard(i) {
            Some(v) => Tensor::from_f64(ty.clone(), [v]),
            None => io::random(ty, self.below(i), seed * 1000 + i as u64),
        };
        self.input_types().iter().enumerate().map(one).collect()
    }
    /// What random integers of an input stay below: 2, or the axis that it indexes, as it is or moved about.
    fn below(&self, input: usize) -> i64 {
        let (g, mut below) = (&self.graph, 2);
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
                        below = below.min(g.shape(args[0])[*axis] as i64);
                    }
                    Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) => todo.push(user),
                    Op::Slice { .. } | Op::Flip(_) | Op::Concat { .. } => todo.push(user),
                    _ => {}
                }
            }
        }
        below
    }
    /// Whether there is memory for inputs of these types.
    pub fn require_inputs(&self) -> Result<(), Error> {
        let bytes = self.input_types().iter().fold(0usize, |sum, ty| sum.saturating_add(ty.bytes()));
        kiln_graph::memory::require(bytes, &format!("random inputs of {}", self.graph.name)).map_err(Error::memory)
    }
    /// Inputs given must be those of the graph; none given is fine.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<(), Error> {
        let want = self.input_types();
        if inputs.is_empty() {
            return Ok(());
        }
        if inputs.iter().map(|t| &t.ty).eq(want.iter()) {
            return match self.guards.iter().find(|(i, v)| inputs.get(*i).is_some_and(|t| t.get_f64(0) != v.as_f64())) {
                None => Ok(()),
                Some((i, v)) => Err(Error::failed(
                    format!("input {i} is a number that {} was compiled for: {}", self.path.display(), v.as_f64()),
                    "compile the model again with the value you want",
                )),
            };
        }
        let list = |t: &[Type]| t.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
        let have: Vec<Type> = inputs.iter().map(|t| t.ty.clone()).collect();
        Err(Error::failed(
            format!(
                "the inputs do not fit {}: it takes ({}), given are ({})",
                self.path.display(),
                list(&want),
                list(&have)
            ),
            "give inputs of these types, in this order",
        ))
    }
}
