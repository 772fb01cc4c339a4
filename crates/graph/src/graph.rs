//! The graph itself: a petgraph DAG whose node weights are ops with their types; edges carry the operand position.
use crate::{DType, GraphError, Op, Scalar, Tensor, Type, infer};
use petgraph::{
    Direction,
    graph::{DiGraph, NodeIndex},
    visit::EdgeRef,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A value, which is a node: every op has one result. `Display` is the text syntax (`%3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ValueId(pub u32);
impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A weight or buffer of the model. `Display` is the text syntax (`@3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ParamId(pub u32);
impl fmt::Display for ParamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

/// Where a parameter's data comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Supplied beside the graph, in the order of the parameters.
    External,
    /// Normal(0, scale²) from a fixed generator seeded by the parameter's index and `seed` (integers: uniform in 0..scale).
    Random { seed: u64, scale: Scalar },
    Fill(Scalar),
    /// Written out, row-major.
    Data(Vec<Scalar>),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParamInfo {
    pub name: String,
    pub ty: Type,
    pub init: Init,
}

/// Where in the user's model a node comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Source {
    /// Module path, as `encoder.layer.3.attention`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// `file:line`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub line: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub ty: Type,
    #[serde(default)]
    pub source: Source,
}

/// A dataflow graph. Nodes are stored in topological order: operands before users.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    pub name: String,
    dag: DiGraph<Node, u32>,
    /// Values of the inputs, in the order of forward's arguments.
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub params: Vec<ParamInfo>,
}

impl Graph {
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Adds an op whose result type follows from its operands.
    pub fn add(&mut self, op: Op, args: &[ValueId]) -> Result<ValueId, GraphError> {
        let types: Vec<&Type> = args.iter().map(|a| self.ty(*a)).collect();
        let ty = infer::infer(&op, &types).map_err(|what| GraphError::Operand {
            value: ValueId(self.len() as u32),
            op: format!("{op:?}"),
            what,
        })?;
        Ok(self.push(op, ty, args))
    }
    /// Adds a node with a stated type (leaves; the parser, which verifies afterwards).
    pub fn push(&mut self, op: Op, ty: Type, args: &[ValueId]) -> ValueId {
        let n = self.dag.add_node(Node { op, ty, source: Source::default() });
        for (i, a) in args.iter().enumerate() {
            self.dag.add_edge(NodeIndex::new(a.0 as usize), n, i as u32);
        }
        ValueId(n.index() as u32)
    }
    pub fn input(&mut self, ty: Type) -> ValueId {
        let v = self.push(Op::Input(self.inputs.len() as u32), ty, &[]);
        self.inputs.push(v);
        v
    }
    pub fn param(&mut self, name: impl Into<String>, ty: Type, init: Init) -> ValueId {
        let id = ParamId(self.params.len() as u32);
        self.params.push(ParamInfo { name: name.into(), ty: ty.clone(), init });
        self.push(Op::Param(id), ty, &[])
    }
    /// A scalar constant of rank 0.
    pub fn constant(&mut self, dtype: DType, value: Scalar) -> ValueId {
        self.push(Op::Const(value), Type::new(dtype, []), &[])
    }
    pub fn set_source(&mut self, v: ValueId, source: Source) {
        self.dag[NodeIndex::new(v.0 as usize)].source = source;
    }

    pub fn len(&self) -> usize {
        self.dag.node_count()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All values, operands before users.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = ValueId> + ExactSizeIterator + use<> {
        (0..self.len() as u32).map(ValueId)
    }
    pub fn node(&self, v: ValueId) -> &Node {
        &self.dag[NodeIndex::new(v.0 as usize)]
    }
    pub fn op(&self, v: ValueId) -> &Op {
        &self.node(v).op
    }
    pub fn ty(&self, v: ValueId) -> &Type {
        &self.node(v).ty
    }
    pub fn shape(&self, v: ValueId) -> &[usize] {
        &self.node(v).ty.shape
    }
    pub fn dtype(&self, v: ValueId) -> DType {
        self.node(v).ty.dtype
    }
    pub fn source(&self, v: ValueId) -> &Source {
        &self.node(v).source
    }
    /// Operands in order.
    pub fn args(&self, v: ValueId) -> Vec<ValueId> {
        let edges = self.dag.edges_directed(NodeIndex::new(v.0 as usize), Direction::Incoming);
        let mut args: Vec<(u32, ValueId)> = edges.map(|e| (*e.weight(), ValueId(e.source().index() as u32))).collect();
        args.sort_unstable();
        args.into_iter().map(|a| a.1).collect()
    }
    /// Values that use `v`, each once, ascending.
    pub fn users(&self, v: ValueId) -> Vec<ValueId> {
        let next = self.dag.neighbors_directed(NodeIndex::new(v.0 as usize), Direction::Outgoing);
        let mut users: Vec<ValueId> = next.map(|n| ValueId(n.index() as u32)).collect();
        users.sort_unstable();
        users.dedup();
        users
    }
    /// The petgraph underneath, for its algorithms.
    pub fn dag(&self) -> &DiGraph<Node, u32> {
        &self.dag
    }
}

/// Parameter data beside a graph, in the order of [`Graph::params`].
pub type ParamData = Vec<Tensor>;

/// Floats in JSON: a number, or the strings "nan", "inf", "-inf".
pub(crate) mod float_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(f64),
        Text(String),
    }
    pub fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        if v.is_finite() { s.serialize_f64(*v) } else { s.serialize_str(&v.to_string().to_lowercase()) }
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        match Form::deserialize(d)? {
            Form::Number(v) => Ok(v),
            Form::Text(t) => t.parse().map_err(D::Error::custom),
        }
    }
}
