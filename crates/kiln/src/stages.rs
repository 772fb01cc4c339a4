//! Any stage as text, and passes on text.
use crate::{CompileOptions, Compiled, Error, Model, compile, model::FileKind};
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Graph,
    Plan,
    Block,
    Ptx,
}
impl Stage {
    pub const NAMES: [(&'static str, Stage); 4] =
        [("graph", Stage::Graph), ("plan", Stage::Plan), ("block", Stage::Block), ("ptx", Stage::Ptx)];
    pub fn parse(name: &str) -> Result<Stage, Error> {
        let known = Stage::NAMES.map(|n| n.0).join(", ");
        let found = Stage::NAMES.iter().find(|n| n.0 == name).map(|n| n.1);
        found.ok_or_else(|| Error::usage(format!("there is no stage `{name}`"), format!("the stages are {known}")))
    }
}

/// A graph as text.
pub fn graph_text(graph: &kiln_graph::Graph) -> String {
    kiln_graph::text::print(graph)
}

/// A stage of a compiled model as text.
pub fn text(c: &Compiled, stage: Stage) -> Result<String, Error> {
    match stage {
        Stage::Graph => Ok(graph_text(&c.graph)),
        Stage::Plan => Ok(kiln_plan::text::print(&c.plan)),
        Stage::Block => Ok(c.programs.iter().map(kiln_block::text::print).collect::<Vec<_>>().join("\n")),
        Stage::Ptx => match &c.code {
            compile::CompiledCode::Ptx(list) => Ok(list.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join("\n")),
            compile::CompiledCode::Host(_) => {
                Err(Error::usage("the target cpu has no PTX", "add --target sm_90a (or sm_80)"))
            }
        },
    }
}

/// The plan in a text file.
pub fn read_plan(path: &Path) -> Result<kiln_plan::Plan, Error> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, &e))?;
    let wrong = |e: kiln_plan::PlanError| Error::failed(format!("{}: {e}", path.display()), "mend the line it names");
    let plan = kiln_plan::text::parse(&text).map_err(wrong)?;
    kiln_plan::verify::verify(&plan).map_err(wrong)?;
    Ok(plan)
}

/// Reads a file of any stage and prints it at `stage` or the first later one it can reach.
pub fn print_file(
    path: &Path,
    inputs: &[kiln_graph::Tensor],
    options: &CompileOptions,
    stage: Stage,
) -> Result<String, Error> {
    let read = || std::fs::read_to_string(path).map_err(|e| Error::reading(path, &e));
    let wrong = |e: String| Error::failed(format!("{}: {e}", path.display()), "mend the line it names");
    match FileKind::of(path)? {
        FileKind::BlockText => {
            let kernel = kiln_block::text::parse(&read()?).map_err(|e| wrong(e.to_string()))?;
            kiln_block::verify::verify(&kernel).map_err(|e| wrong(e.to_string()))?;
            match (stage, options.target.arch()) {
                (Stage::Ptx, Some(arch)) => {
                    kiln_codegen::nvptx::compile(&kernel, arch).map(|p| p.text).map_err(|e| wrong(e.to_string()))
                }
                (Stage::Ptx, None) => Err(Error::usage("the target cpu has no PTX", "add --target sm_90a")),
                _ => Ok(kiln_block::text::print(&kernel)),
            }
        }
        FileKind::PlanText => {
            let plan = read_plan(path)?;
            if matches!(stage, Stage::Graph | Stage::Plan) {
                return Ok(kiln_plan::text::print(&plan));
            }
            let graph = kiln_graph::Graph::new(plan.name.clone());
            let model =
                Model { graph, params: vec![], path: path.into(), archive: None, guards: vec![], import_s: 0.0 };
            text(&compile::from_plan(&model, plan, options)?, stage)
        }
        _ => {
            let model = Model::open(path, inputs)?;
            if stage == Stage::Graph {
                return Ok(graph_text(&model.graph));
            }
            if stage == Stage::Plan {
                return Ok(kiln_plan::text::print(&compile::plan(&model, options)?));
            }
            text(&compile(&model, options)?, stage)
        }
    }
}

/// Runs passes, by name and in order, on a block program; without names, all of them.
pub fn optimise(path: &Path, passes: &[String]) -> Result<String, Error> {
    let names: Vec<&str> = passes.iter().map(String::as_str).collect();
    let known: Vec<&str> = kiln_block::passes::PASSES.iter().map(|p| p.0).collect();
    if let Some(unknown) = names.iter().find(|n| !known.contains(n)) {
        return Err(Error::usage(
            format!("there is no pass `{unknown}`"),
            format!("the passes are {}", known.join(", ")),
        ));
    }
    if FileKind::of(path)? != FileKind::BlockText {
        return Err(Error::usage(
            format!("{} is not a block program", path.display()),
            "passes run on block programs; `kiln print --stage block` writes them, one kernel each",
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, &e))?;
    let wrong = |e: String| Error::failed(format!("{}: {e}", path.display()), "mend the line it names");
    let mut kernel = kiln_block::text::parse(&text).map_err(|e| wrong(e.to_string()))?;
    kiln_block::verify::verify(&kernel).map_err(|e| wrong(e.to_string()))?;
    kiln_block::passes::run(if names.is_empty() { &known } else { &names }, &mut kernel)
        .map_err(|e| wrong(e.to_string()))?;
    Ok(kiln_block::text::print(&kernel))
}
