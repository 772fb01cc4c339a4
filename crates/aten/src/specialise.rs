//! A program at given sizes, as a graph: the way from every door that has symbols.
use crate::{
    ParamData,
    convert::convert,
    error::{ImportErrors, Problem},
    extent::Sizes,
    mutation::functionalise,
    program::Program,
    raw::{Raw, RawInput},
    source,
};
use kiln_graph::Graph;

/// A program for given sizes.
///
/// Parameters that a run changes are state: they are inputs of the graph, after the program's tensor inputs. What a run leaves in an input
/// is an output of the graph, after the program's tensor outputs.
#[derive(Debug)]
pub struct Specialised {
    /// The verified graph.
    pub graph: Graph,
    /// Where the data of the graph's parameters is; a [`ParamData::Raw`] is an index of the program's parameters.
    pub params: Vec<ParamData>,
    /// The parameters that are state, as indices of the program's parameters, in the order of the graph's inputs.
    pub states: Vec<usize>,
    /// What a run leaves in inputs: indices of the graph's inputs and outputs.
    pub writes: Vec<Written>,
}

/// After a run, the graph's input `input` holds output `output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Index of the graph's inputs.
    pub input: usize,
    /// Index of the graph's outputs.
    pub output: usize,
}

impl Program {
    /// The graph for these sizes ([`Program::sizes`]).
    ///
    /// # Errors
    /// All problems of the program: sizes that depend on data, writes that cannot be followed, operators that neither Kiln nor libtorch runs.
    pub fn specialise(&self, sizes: &Sizes) -> Result<Specialised, ImportErrors> {
        let raw = self.at(sizes)?;
        let results = raw.outputs.len() - self.writes.len();
        let (mut raw, found) = functionalise(raw).map_err(source::settle_problems)?;
        raw.outputs.extend(found.iter().map(|w| w.value));
        let mut states = vec![];
        let mut writes = vec![];
        for (output, write) in (results..).zip(self.writes.iter().chain(&found)) {
            let known = raw.inputs.iter().position(|i| i.value == Some(write.target));
            let input = match known {
                Some(input) => input,
                None => {
                    let param = self.params.iter().position(|p| *p == write.target);
                    let missing = || Problem::new("the program writes a tensor that is neither input nor parameter");
                    states.push(param.ok_or_else(missing)?);
                    state(&mut raw, write.target)
                }
            };
            writes.push(Written { input, output });
        }
        source::settle(&mut raw);
        let mut converted = convert(&raw, &self.name)?;
        converted.graph.verify().map_err(defect)?;
        for p in &mut converted.params {
            if let ParamData::Raw(id) = p {
                let of_program = self.params.iter().position(|p| p == id);
                *id =
                    of_program.ok_or_else(|| defect("it reads a constant that is none of the program's parameters"))?;
            }
        }
        Ok(Specialised { graph: converted.graph, params: converted.params, states, writes })
    }
}

fn defect(e: impl std::fmt::Display) -> Problem {
    Problem::new(format!("the imported graph is invalid (a defect of Kiln; please report it): {e}"))
}

/// Makes a parameter an input; gives the input's index.
fn state(raw: &mut Raw, id: usize) -> usize {
    let info = &mut raw.values[id];
    info.constant = false;
    raw.inputs.push(RawInput { name: info.name.clone().unwrap_or_default(), value: Some(id), scalar: None });
    raw.inputs.len() - 1
}
