//! Runs that follow each other: state goes on, and inputs take outputs of the run before.
use crate::args::Feed;
use kiln::{Error, Model, Session, Tensor};

/// Runs so often. `inputs` are those of the graph, state at their end. Gives the results of the last run.
pub fn run(
    session: &Session,
    model: &Model,
    steps: usize,
    feeds: &[Feed],
    mut inputs: Vec<Tensor>,
) -> Result<Vec<Tensor>, Error> {
    feeds.iter().try_for_each(|f| check(f, model))?;
    let mut outputs = session.run(&inputs)?;
    for _ in 1..steps {
        for w in &model.writes {
            inputs[w.input] = outputs[w.output].clone();
        }
        for f in feeds {
            inputs[f.input] = outputs[f.output].clone();
        }
        outputs = session.run(&inputs)?;
    }
    // What the run leaves in buffers and inputs is no result.
    outputs.truncate(model.results());
    Ok(outputs)
}

fn check(f: &Feed, model: &Model) -> Result<(), Error> {
    let (inputs, graph) = (model.input_types(), &model.graph);
    let to = inputs.get(f.input);
    let from = graph.outputs[..model.results()].get(f.output).map(|v| graph.ty(*v));
    let shown = |ty: Option<&kiln::Type>| ty.map_or("which it does not have".into(), |ty| format!("which is {ty}"));
    match (to, from) {
        (Some(to), Some(from)) if to == from => Ok(()),
        _ => Err(Error::usage(
            format!(
                "--feed gives input {} of {}, {}, the output {}, {}",
                f.input,
                graph.name,
                shown(to),
                f.output,
                shown(from)
            ),
            "feed an input from an output of its type; `kiln print` shows them",
        )),
    }
}
