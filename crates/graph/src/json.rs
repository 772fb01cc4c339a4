//! The JSON form of a graph: its serde form, which is verified when it is read.
use crate::{Graph, GraphError};

impl Graph {
    /// The graph as JSON. Non-finite floats are strings, so this does not fail for any graph.
    pub fn to_json(&self) -> Result<String, GraphError> {
        serde_json::to_string(self).map_err(json_error)
    }
    /// Parses the JSON form and verifies the graph, so untrusted text is safe to parse.
    pub fn from_json(text: &str) -> Result<Graph, GraphError> {
        let g: Graph = serde_json::from_str(text).map_err(json_error)?;
        g.verify()?;
        Ok(g)
    }
}

fn json_error(e: serde_json::Error) -> GraphError {
    GraphError::Parse { line: e.line(), column: e.column(), what: e.to_string() }
}
