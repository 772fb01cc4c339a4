//! Prints any stage of a model or of a text file, and runs passes on block programs in text form.
pub mod kernel;

use crate::{CompileOptions, Compiled, Error, Model, compile, error::Cause, model::FileKind, program::Sizes};
use std::path::Path;

/// A form of a model or of one of its kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The imported graph, or a kernel's body.
    Graph,
    /// Kernels and buffers.
    Plan,
    /// Block programs.
    Block,
    /// LLVM IR, before LLVM's own passes.
    Llvm,
    /// PTX, for GPU targets.
    Ptx,
    /// Assembly of the host's processor.
    Asm,
}
impl Stage {
    /// All stages in order, by their names.
    pub const NAMES: [(&'static str, Stage); 6] = [
        ("graph", Stage::Graph),
        ("plan", Stage::Plan),
        ("block", Stage::Block),
        ("llvm", Stage::Llvm),
        ("ptx", Stage::Ptx),
        ("asm", Stage::Asm),
    ];
    /// The stage of that name; the error lists all names.
    pub fn parse(name: &str) -> Result<Stage, Error> {
        let known = Stage::NAMES.map(|n| n.0).join(", ");
        let found = Stage::NAMES.iter().find(|n| n.0 == name).map(|n| n.1);
        found.ok_or_else(|| Error::usage(format!("there is no stage `{name}`"), format!("the stages are {known}")))
    }
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Stage::NAMES.iter().find(|n| n.1 == self).map_or("", |n| n.0)
    }
    /// All stages that a target has, in order.
    pub fn of(target: crate::Target) -> Vec<Stage> {
        let last = if target.is_gpu() { Stage::Ptx } else { Stage::Asm };
        vec![Stage::Graph, Stage::Plan, Stage::Block, Stage::Llvm, last]
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
        _ => {
            let programs = (0..c.programs.len()).map(|i| kernel::program(c, i, stage));
            Ok(programs.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
    }
}

/// The error for a file whose text is invalid.
fn wrong<E: Into<Cause> + std::fmt::Display>(path: &Path, e: E) -> Error {
    Error::caused(format!("{}: {e}", path.display()), "correct the line that the message names", e)
}

/// The plan in a text file.
pub fn read_plan(path: &Path) -> Result<kiln_plan::Plan, Error> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, e))?;
    let plan = kiln_plan::text::parse(&text).map_err(|e| wrong(path, e))?;
    kiln_plan::verify::verify(&plan).map_err(|e| wrong(path, e))?;
    Ok(plan)
}

/// Reads a file of any stage and prints it at `stage`, or as it is if the file is of a later stage. `kernel`: only this
/// kernel of a model or plan. `inputs` and `sizes`: as [`Model::open_at`] takes them.
pub fn print_file(
    path: &Path,
    inputs: &[kiln_graph::Tensor],
    sizes: &Sizes,
    options: &CompileOptions,
    stage: Stage,
    kernel: Option<&str>,
) -> Result<String, Error> {
    let whole_or_one = |c: &Compiled| match kernel {
        Some(name) => kernel::text(c, kernel::find(c, name)?, stage),
        None => text(c, stage),
    };
    let read = || std::fs::read_to_string(path).map_err(|e| Error::reading(path, e));
    match FileKind::of(path)? {
        FileKind::BlockText => {
            let block = kiln_block::text::parse(&read()?).map_err(|e| wrong(path, e))?;
            kiln_block::verify::verify(&block).map_err(|e| wrong(path, e))?;
            kiln_block::verify::offsets(&block).map_err(|e| wrong(path, e))?;
            let done = |r: Result<String, kiln_codegen::CodegenError>| r.map_err(|e| wrong(path, e));
            let alone = std::slice::from_ref(&block);
            options.check()?;
            let gpu = Some(options.machine()).filter(|m| m.arch.is_gpu());
            match (stage, gpu) {
                (Stage::Ptx, Some(m)) => done(kiln_codegen::nvptx::compile(&suited(&block, m), m).map(|p| p.text)),
                (Stage::Ptx, None) => Err(Error::usage("the target cpu has no PTX", "add --target sm_90a")),
                (Stage::Llvm, Some(m)) => done(kiln_codegen::nvptx::llvm_text(&suited(&block, m), m)),
                (Stage::Llvm, None) => done(kiln_codegen::host::llvm_text(alone)),
                (Stage::Asm, _) => done(kiln_codegen::host::assembly(alone)),
                _ => Ok(kiln_block::text::print(&block)),
            }
        }
        FileKind::PlanText => {
            let plan = read_plan(path)?;
            if matches!(stage, Stage::Graph | Stage::Plan) && kernel.is_none() {
                return Ok(kiln_plan::text::print(&plan));
            }
            let graph = kiln_graph::Graph::new(plan.name.clone());
            let model = Model { path: path.into(), ..Model::of(graph) };
            whole_or_one(&compile::from_plan(&model, plan, options)?)
        }
        _ => {
            let model = Model::open_at(path, inputs, sizes)?;
            if stage == Stage::Graph && kernel.is_none() {
                return Ok(graph_text(&model.graph));
            }
            if stage == Stage::Plan && kernel.is_none() {
                return Ok(kiln_plan::text::print(&compile::plan(&model, options)?));
            }
            whole_or_one(&compile(&model, options)?)
        }
    }
}

/// The program in the form that suits the GPU: matmuls use warpgroups (wgmma) where that is possible.
fn suited(block: &kiln_block::BlockProgram, m: &kiln_machine::Machine) -> kiln_block::BlockProgram {
    let by_warpgroups = if m.arch.has_wgmma() { kiln_block::passes::warpgroup::run(block, m).ok() } else { None };
    by_warpgroups.unwrap_or_else(|| block.clone())
}

/// Runs passes, by name and in order, on a block program; without names, all passes that apply to every program.
pub fn optimise(path: &Path, passes: &[String]) -> Result<String, Error> {
    let names: Vec<&str> = passes.iter().map(String::as_str).collect();
    let known: Vec<&str> = kiln_block::passes::known().collect();
    if let Some(unknown) = names.iter().find(|n| !known.contains(n)) {
        return Err(Error::usage(
            format!("there is no pass `{unknown}`"),
            format!("the passes are {}", known.join(", ")),
        ));
    }
    let every: Vec<&str> = kiln_block::passes::PASSES.iter().map(|p| p.0).collect();
    if FileKind::of(path)? != FileKind::BlockText {
        return Err(Error::usage(
            format!("{} is not a block program", path.display()),
            "passes run on block programs; `kiln print MODEL --stage block --kernel NAME` prints those of a kernel",
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, e))?;
    let mut kernel = kiln_block::text::parse(&text).map_err(|e| wrong(path, e))?;
    kiln_block::verify::verify(&kernel).map_err(|e| wrong(path, e))?;
    // The passes that depend on a machine are those for warpgroups, which only sm_90a has.
    let machine = kiln_machine::Arch::Sm90a.machine();
    kiln_block::passes::run(if names.is_empty() { &every } else { &names }, &mut kernel, machine)
        .map_err(|e| wrong(path, e))?;
    Ok(kiln_block::text::print(&kernel))
}
