//! The parts of torch.export's schema (major version 8, `torch/_export/serde/schema.py`) that are read. Unions are
//! objects with one key, as serde writes enums; unknown fields are ignored, since minor versions add some.
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A value that is not read.
fn ignored<'de, D: serde::Deserializer<'de>>(d: D) -> Result<(), D::Error> {
    serde::de::IgnoredAny::deserialize(d).map(|_| ())
}

#[derive(Deserialize, Debug)]
pub struct ExportedProgram {
    pub graph_module: GraphModule,
    pub schema_version: Version,
    /// Conditions on the inputs, as Python: `(L['x'].size()[0] % 2) == 0`. Early minor versions do not have them.
    pub guards_code: Option<Vec<String>>,
    #[serde(default)]
    pub range_constraints: BTreeMap<String, Range>,
}
#[derive(Deserialize, Debug)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}
#[derive(Deserialize, Debug)]
pub struct Range {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}
#[derive(Deserialize, Debug)]
pub struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
}
#[derive(Deserialize, Debug)]
pub struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}
#[derive(Deserialize, Debug)]
pub struct Graph {
    /// Of a region: what it is called with, and its results. The program's own are in its signature.
    #[serde(default)]
    pub inputs: Vec<Argument>,
    #[serde(default)]
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    pub tensor_values: BTreeMap<String, TensorMeta>,
    #[serde(default)]
    pub sym_int_values: BTreeMap<String, SymInt>,
}
#[derive(Deserialize, Debug)]
pub struct Node {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}
#[derive(Deserialize, Debug)]
pub struct NamedArgument {
    pub name: String,
    pub arg: Argument,
}
#[derive(Deserialize, Debug)]
pub struct TensorMeta {
    pub dtype: u32,
    pub sizes: Vec<SymInt>,
    pub strides: Vec<SymInt>,
    pub storage_offset: SymInt,
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum SymInt {
    AsInt(i64),
    AsExpr(SymExpr),
}
#[derive(Deserialize, Debug)]
pub struct SymExpr {
    pub expr_str: String,
    #[serde(default)]
    pub hint: Option<Hint>,
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the schema's names")]
pub enum Hint {
    AsInt(i64),
    AsBool(#[serde(deserialize_with = "ignored")] ()),
    AsFloat(#[serde(deserialize_with = "ignored")] ()),
}
#[derive(Deserialize, Debug)]
pub struct ComplexValue {
    pub real: Float,
    pub imag: Float,
}
/// A part of a program that a node calls.
#[derive(Deserialize, Debug)]
pub struct Region {
    pub graph: Graph,
}
#[derive(Deserialize, Debug)]
pub struct Named {
    pub name: String,
}
#[derive(Deserialize, Debug)]
pub struct Device {
    #[serde(rename = "type")]
    pub kind: String,
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the schema's names")]
pub enum SymArg {
    AsName(String),
    AsInt(i64),
    AsFloat(#[serde(deserialize_with = "ignored")] ()),
    AsBool(#[serde(deserialize_with = "ignored")] ()),
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensor {
    AsTensor(Named),
    AsNone(#[serde(deserialize_with = "ignored")] ()),
}
/// A number, or `"Infinity"`, `"-Infinity"`, `"NaN"`.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub enum Float {
    Number(f64),
    Text(String),
}
impl Float {
    pub fn value(&self) -> f64 {
        match self {
            Float::Number(x) => *x,
            Float::Text(t) if t == "Infinity" => f64::INFINITY,
            Float::Text(t) if t == "-Infinity" => f64::NEG_INFINITY,
            Float::Text(_) => f64::NAN,
        }
    }
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    AsNone(#[serde(deserialize_with = "ignored")] ()),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsOptionalTensor(OptionalTensor),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsComplex(ComplexValue),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsString(String),
    AsSymInt(SymArg),
    AsSymInts(Vec<SymArg>),
    AsScalarType(u32),
    AsMemoryFormat(#[serde(deserialize_with = "ignored")] ()),
    AsLayout(#[serde(deserialize_with = "ignored")] ()),
    AsDevice(Device),
    AsGraph(Box<Region>),
    #[serde(untagged)]
    Other(Value),
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    UserInput {
        arg: Argument,
    },
    Parameter {
        arg: Named,
        parameter_name: String,
    },
    Buffer {
        arg: Named,
        buffer_name: String,
    },
    TensorConstant {
        arg: Named,
        tensor_constant_name: String,
    },
    /// A number or None, for whose value the program was specialised.
    ConstantInput {
        name: String,
        value: Argument,
    },
    #[serde(untagged)]
    Other(Value),
}
#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput {
        arg: Argument,
    },
    BufferMutation {
        arg: Named,
        buffer_name: String,
    },
    UserInputMutation {
        arg: Named,
        user_input_name: String,
    },
    #[serde(untagged)]
    Other(Value),
}
/// Where the tensors of a folder are.
#[derive(Deserialize, Debug)]
pub struct PayloadConfig {
    pub config: BTreeMap<String, Payload>,
}
#[derive(Deserialize, Debug)]
pub struct Payload {
    pub path_name: String,
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}
