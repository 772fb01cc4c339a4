//! A program at given sizes, as a graph: the way from every door that has symbols.
use crate::{
    ParamData,
    convert::{Refusal, convert, refusals},
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
/// Parameters that a run changes are state: they are inputs of the graph, after the program's tensor inputs. What a run
/// leaves in an input is an output of the graph, after the program's tensor outputs.
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

/// What is converted.
struct Prepared {
    raw: Raw,
    states: Vec<usize>,
    writes: Vec<Written>,
}

impl Program {
    /// The graph for these sizes ([`Program::sizes`]).
    ///
    /// # Errors
    /// All problems of the program: sizes that depend on data, writes that cannot be followed, operators that neither
    /// Kiln nor libtorch runs.
    pub fn specialise(&self, sizes: &Sizes) -> Result<Specialised, ImportErrors> {
        let Prepared { raw, states, writes } = self.prepare(sizes)?;
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

    /// The calls that cannot be in a graph of these sizes. Without them, and with their results as inputs, the program
    /// can be specialised.
    ///
    /// # Errors
    /// Problems that are not of one call: sizes that depend on data, writes that cannot be followed, inputs of other
    /// dtypes.
    pub fn refusals(&self, sizes: &Sizes) -> Result<Vec<Refusal>, ImportErrors> {
        refusals(&self.prepare(sizes)?.raw)
    }

    /// The calls for these sizes without in-place operators.
    fn prepare(&self, sizes: &Sizes) -> Result<Prepared, ImportErrors> {
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
        Ok(Prepared { raw, states, writes })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `x + 1`, an operator of the user, the sum of its result, an operator that draws, and the sum of all.
    const TEXT: &str = r#"{
        "values": [{"dtype": "f32", "shape": [3]}, {"dtype": "f32", "shape": [3]}, {"dtype": "f32", "shape": [3]},
            {"dtype": "f32", "shape": []}, {"dtype": "f32", "shape": [3]}, {"dtype": "f32", "shape": [3]}],
        "inputs": [{"name": "x", "value": 0}],
        "params": [],
        "calls": [{"name": "aten::add", "overload": "Scalar", "args": [{"value": 0}, {"int": 1}, {"int": 1}],
             "outs": [1]},
            {"name": "mine::f", "overload": "", "args": [{"value": 1}], "outs": [2], "vouched": false},
            {"name": "aten::sum", "overload": "", "args": [{"value": 2}, "none"], "outs": [3]},
            {"name": "aten::bernoulli", "overload": "", "args": [{"value": 1}, "none"], "outs": [4]},
            {"name": "aten::add", "overload": "Tensor", "args": [{"value": 4}, {"value": 3}, {"int": 1}], "outs": [5]}],
        "outputs": [{"value": 5}]
    }"#;

    fn refused(text: &str) -> Vec<Vec<usize>> {
        let program = Program::from_json(text).expect("valid");
        let found = program.refusals(&Sizes::new()).expect("all problems are of calls");
        // Each problem once: not again for what reads its results.
        let errors = program.specialise(&Sizes::new()).err().map_or(vec![], |e| e.errors);
        assert_eq!(errors, found.iter().map(|r| r.problem.clone()).collect::<Vec<_>>());
        found.into_iter().map(|r| r.outs).collect()
    }

    #[test]
    fn refusals_are_of_calls() {
        assert_eq!(refused(TEXT), [[2], [4]]);
        // A process that runs the operator may vouch for it, but not for one that draws random numbers.
        let vouched = TEXT.replace("false", "true");
        assert_eq!(refused(&vouched), [[4]]);
        let all = vouched.replace(r#""inputs": ["#, r#""inputs": [{"name": "drawn", "value": 4}, "#);
        let without = all.replace(r#""outs": [4]}"#, r#""outs": [], "vouched": true}"#);
        let made = Program::from_json(&without).expect("valid").specialise(&Sizes::new()).expect("nothing is refused");
        assert!(made.graph.to_string().contains("mine::f"), "{}", made.graph);
    }
}
