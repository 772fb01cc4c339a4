//! The graph itself: a petgraph DAG. Node weights are ops with their types; edge weights are operand positions.
//!
//! Data alone. What adds ops with inferred types is in `build`, what checks them in [`crate::verify`].
use crate::{DType, Op, ParamId, Scalar, Tensor, Type, ValueId};
use petgraph::{
    Direction,
    graph::{DiGraph, NodeIndex},
    visit::EdgeRef,
};
use serde::{Deserialize, Serialize};

/// Source of a parameter's data.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Supplied alongside the graph, in the order of the parameters.
    External,
    /// Normal(0, scale²) from a fixed generator seeded by the parameter's index and `seed` (integers: uniform in
    /// 0..scale).
    Random {
        /// Combined with the parameter's index.
        seed: u64,
        /// Standard deviation of floats, exclusive upper bound of integers.
        scale: Scalar,
    },
    /// Every element has this value.
    Fill(Scalar),
    /// Literal elements, row-major.
    Data(Vec<Scalar>),
}

/// Declaration of a parameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParamInfo {
    /// Name in the model, such as `encoder.layer.3.weight`. Need not be unique.
    pub name: String,
    /// Element type and shape.
    pub ty: Type,
    /// Source of the data.
    pub init: Init,
}

/// A node's source location in the user's model.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Source {
    /// Module path, such as `encoder.layer.3.attention`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// `file:line`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub line: String,
}

impl Source {
    /// Module and line as text, as far as known: `encoder.embed, model.py:12`.
    pub fn place(&self) -> String {
        let known = [&self.module, &self.line].into_iter().filter(|s| !s.is_empty());
        known.map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// A node: an op, the type of its result, and its source location.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// The op with its attributes.
    pub op: Op,
    /// Type of the result.
    pub ty: Type,
    /// Source location in the user's model.
    #[serde(default)]
    pub source: Source,
}

/// A dataflow graph. Nodes are stored in topological order: operands come before their users.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    /// Name of the model.
    pub name: String,
    dag: DiGraph<Node, u32>,
    /// Values of the inputs, in the order of forward's arguments.
    pub inputs: Vec<ValueId>,
    /// Values of the results, in order. May repeat values and contain inputs.
    pub outputs: Vec<ValueId>,
    /// Declarations of the parameters; a [`ParamId`] is an index into them.
    pub params: Vec<ParamInfo>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Adds a node with an explicit type, unchecked: for leaves, and for callers that verify the graph afterwards.
    pub fn push(&mut self, op: Op, ty: Type, args: &[ValueId]) -> ValueId {
        let n = self.dag.add_node(Node { op, ty, source: Source::default() });
        for (i, a) in args.iter().enumerate() {
            self.dag.add_edge(NodeIndex::new(a.0 as usize), n, i as u32);
        }
        ValueId(n.index() as u32)
    }
    /// Appends an input.
    pub fn input(&mut self, ty: Type) -> ValueId {
        let v = self.push(Op::Input(self.inputs.len() as u32), ty, &[]);
        self.inputs.push(v);
        v
    }
    /// Declares a parameter, and adds a node that reads it.
    pub fn param(&mut self, name: impl Into<String>, ty: Type, init: Init) -> ValueId {
        let id = ParamId(self.params.len() as u32);
        self.params.push(ParamInfo { name: name.into(), ty: ty.clone(), init });
        self.push(Op::Param(id), ty, &[])
    }
    /// Adds a scalar constant of rank 0. A value of another kind is converted if that is exact (`2` to a float, `2.0`
    /// to an integer, a bool to either); otherwise it stays unconverted, and the verifier rejects it.
    pub fn constant(&mut self, dtype: DType, value: Scalar) -> ValueId {
        self.push(Op::Const(value.for_dtype(dtype)), Type::new(dtype, []), &[])
    }
    /// Sets the source location of `v`. Panics if `v` does not exist.
    pub fn set_source(&mut self, v: ValueId, source: Source) {
        self.dag[NodeIndex::new(v.0 as usize)].source = source;
    }

    /// Number of nodes, including inputs, parameters and dead nodes.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }
    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All values, operands before users.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = ValueId> + ExactSizeIterator + use<> {
        (0..self.len() as u32).map(ValueId)
    }
    /// The node of `v`. This and the following accessors panic if `v` does not exist.
    pub fn node(&self, v: ValueId) -> &Node {
        &self.dag[NodeIndex::new(v.0 as usize)]
    }
    /// The op that computes `v`.
    pub fn op(&self, v: ValueId) -> &Op {
        &self.node(v).op
    }
    /// The type of `v`.
    pub fn ty(&self, v: ValueId) -> &Type {
        &self.node(v).ty
    }
    /// The shape of `v`.
    pub fn shape(&self, v: ValueId) -> &[usize] {
        &self.node(v).ty.shape
    }
    /// The element type of `v`.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.node(v).ty.dtype
    }
    /// The source location of `v`.
    pub fn source(&self, v: ValueId) -> &Source {
        &self.node(v).source
    }
    /// The operands of `v`, in order; empty if `v` does not exist.
    pub fn args(&self, v: ValueId) -> Vec<ValueId> {
        let edges = self.dag.edges_directed(NodeIndex::new(v.0 as usize), Direction::Incoming);
        let mut args: Vec<(u32, ValueId)> = edges.map(|e| (*e.weight(), ValueId(e.source().index() as u32))).collect();
        args.sort_unstable();
        args.into_iter().map(|a| a.1).collect()
    }
    /// The values that have `v` as an operand, each once, ascending.
    pub fn users(&self, v: ValueId) -> Vec<ValueId> {
        let next = self.dag.neighbors_directed(NodeIndex::new(v.0 as usize), Direction::Outgoing);
        let mut users: Vec<ValueId> = next.map(|n| ValueId(n.index() as u32)).collect();
        users.sort_unstable();
        users.dedup();
        users
    }
    /// The underlying petgraph, for its algorithms.
    pub fn dag(&self) -> &DiGraph<Node, u32> {
        &self.dag
    }
}

/// Structural equality, node by node: ops, types, operands, sources, name, inputs, outputs and parameters.
impl PartialEq for Graph {
    fn eq(&self, o: &Graph) -> bool {
        (&self.name, &self.inputs, &self.outputs, &self.params) == (&o.name, &o.inputs, &o.outputs, &o.params)
            && self.len() == o.len()
            && self.values().all(|v| self.node(v) == o.node(v) && self.args(v) == o.args(v))
    }
}

/// Parameter data that accompanies a graph, in the order of [`Graph::params`].
pub type ParamData = Vec<Tensor>;
