//! A specialised model: a flat list of operator calls on typed values, in execution order. The TorchScript plugin
//! writes it as JSON (`crates/torchscript/cpp/dump.cpp`).
use crate::{error::Problem, extent::Extent};
use kiln_graph::{DType, Type, infer::check_type};
use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub struct Raw {
    pub inputs: Vec<RawInput>,
    pub values: Vec<RawInfo>,
    /// In execution order.
    pub calls: Vec<Call>,
    /// Ids of the flattened output tensors.
    pub outputs: Vec<usize>,
    pub structure: serde_json::Value,
}

impl Raw {
    /// Fails if a value is named that does not exist, or if a shape is beyond the limits of a graph's tensors. What
    /// reads a program may then index by the ids in it, and count elements.
    pub fn check(&self) -> Result<(), Problem> {
        let mut used: Vec<usize> = self.inputs.iter().filter_map(|i| i.value).chain(self.outputs.clone()).collect();
        for call in &self.calls {
            used.extend(&call.outs);
            call.args.iter().for_each(|a| a.values(&mut used));
        }
        if let Some(id) = used.iter().find(|id| **id >= self.values.len()) {
            return Err(Problem::new(format!("the program names value {id}, which it does not have")).help(AGAIN));
        }
        // A dtype that Kiln does not have counts as the widest.
        let dtype = |v: &RawInfo| v.dtype.parse().unwrap_or(DType::F64);
        let wrong = self.values.iter().find_map(|v| check_type(&Type::new(dtype(v), v.shape.clone())).err());
        wrong.map_or(Ok(()), |why| Err(Problem::new(format!("a tensor of the program: {why}")).help(AGAIN)))
    }
}

const AGAIN: &str = "export the model again; if it is as PyTorch wrote it, please report it";

/// One tensor or scalar argument of forward.
#[derive(Debug, Clone, Deserialize)]
pub struct RawInput {
    pub name: String,
    /// A tensor's value id.
    #[serde(default)]
    pub value: Option<usize>,
    /// A scalar's example value, which is baked into the graph.
    #[serde(default)]
    pub scalar: Option<Arg>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RawInfo {
    /// Kiln's name of the dtype, or torch's if Kiln does not have it.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// A weight or literal of the model.
    #[serde(default)]
    pub constant: bool,
    /// Computed from constants alone; the shim keeps its contents.
    #[serde(default)]
    pub folded: bool,
    /// The element of a constant or folded value with exactly one element.
    #[serde(default)]
    pub scalar: Option<Arg>,
    /// Name of a parameter or buffer.
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    /// Schema name, as `aten::add`.
    pub name: String,
    pub overload: String,
    pub args: Vec<Arg>,
    /// Value ids; results that are lists are flattened.
    pub outs: Vec<usize>,
    /// All stack frames as the shim gives them; [`crate::source::settle`] replaces them with the one to show.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub module: String,
    /// Whether the process that traced the call runs it itself if it has no conversion, and vouches that it does
    /// nothing but compute its results from its operands ([`kiln_graph::FallbackOp::vouched`]). Archives cannot say so.
    #[serde(default)]
    pub vouched: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arg {
    None,
    Value(usize),
    Int(i64),
    #[serde(deserialize_with = "float")]
    Float(f64),
    /// A complex number: its parts.
    Complex([f64; 2]),
    Bool(bool),
    Str(String),
    Device(String),
    Ints(Vec<i64>),
    List(Vec<Arg>),
    /// A number that follows from sizes; only in a [`crate::Program`].
    Size(Extent),
    /// A value that cannot be serialised (a generator, an object).
    Opaque(String),
}

impl Arg {
    /// Appends the value ids in this argument to `found`, in order.
    pub fn values(&self, found: &mut Vec<usize>) {
        match self {
            Arg::Value(id) => found.push(*id),
            Arg::List(items) => items.iter().for_each(|i| i.values(found)),
            _ => {}
        }
    }
}

/// A number, or "nan", "inf", "-inf".
fn float<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(f64),
        Text(String),
    }
    match Form::deserialize(d)? {
        Form::Number(v) => Ok(v),
        Form::Text(t) => t.parse().map_err(serde::de::Error::custom),
    }
}
