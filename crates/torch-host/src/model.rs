//! Imports a model through the plugin and copies its graph and parameters out of the plugin's memory.
use crate::{
    abi::{Dense, RawModel, Str, Symbols, Text, parse},
    error::{TorchError, utf8},
};
use kiln_graph::{Graph, Scalar, Tensor};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A scalar argument of `forward` whose example value is baked into the graph: the graph is valid for this value only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Index among the graph's inputs.
    pub input: usize,
    /// Name of the argument.
    pub name: String,
    /// The only value for which the graph is valid.
    pub value: Scalar,
}

/// An argument of `forward`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Argument {
    /// Name of the argument.
    pub name: String,
    /// TorchScript's spelling of the type: `Tensor`, `int`, `Optional[Tensor]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Whether a call may omit it, if it omits all later arguments too.
    pub optional: bool,
}

/// An imported model.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The verified graph.
    pub graph: Graph,
    /// Parameter data, in the order of `graph.params`.
    pub params: Vec<Tensor>,
    /// Scalar arguments that the graph depends on.
    pub guards: Vec<Guard>,
    /// How the flat outputs nest: `{"tensor": i}`, `{"tuple": […]}`, `{"list": […]}`, `{"dict": [[key, …]]}`,
    /// `{"constant": …}`.
    pub structure: serde_json::Value,
}

/// The plugin's model, freed when dropped.
struct Owned<'a>(*mut RawModel, &'a Symbols);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: not null, freed once.
        unsafe { (self.1.imported_free)(self.0) }
    }
}

pub fn import(symbols: &Symbols, path: &Path, inputs: &[Tensor]) -> Result<Imported, TorchError> {
    let dense: Vec<Dense> = inputs.iter().map(Dense::host).collect();
    let path = utf8(path)?;
    let mut error = Text::EMPTY;
    // SAFETY: host tensors that live through the call.
    let raw = unsafe { (symbols.import)(Str::new(path), dense.as_ptr(), dense.len(), &mut error) };
    symbols.checked(!raw.is_null(), error)?;
    let model = Owned(raw, symbols);

    #[derive(Deserialize)]
    struct Reply {
        graph: serde_json::Value,
        guards: Vec<Guard>,
        structure: serde_json::Value,
    }
    // SAFETY: the text lives as long as `model`.
    let json = unsafe { (symbols.imported_json)(model.0).bytes() };
    let text = std::str::from_utf8(json).map_err(|e| TorchError::Plugin(e.to_string()))?;
    let Reply { graph, guards, structure } = parse(text)?;
    let graph = Graph::from_json(&graph.to_string()).map_err(|e| TorchError::Plugin(e.to_string()))?;

    let mut params = vec![];
    for (i, info) in graph.params.iter().enumerate() {
        let mut bytes = Str::EMPTY;
        // SAFETY: as above; the bytes are copied before `model` is freed.
        let data = unsafe {
            (symbols.imported_param)(model.0, i, &mut bytes);
            bytes.bytes()
        };
        let tensor = Tensor::from_bytes(info.ty.clone(), data);
        params.push(tensor.ok_or_else(|| {
            TorchError::Plugin(format!("parameter {} has {} bytes, not those of {}", info.name, data.len(), info.ty))
        })?);
    }
    Ok(Imported { graph, params, guards, structure })
}
