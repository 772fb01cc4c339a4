//! A kernel written by hand, compiled for a target and shown at any stage.
use super::json;
use crate::{args::KernelArgs, render};
use kiln::{
    CompileOptions, Error,
    kernels::{self, Failure, LaunchValues, Options, Stages, file::Described},
    stages::Stage,
};
use std::path::Path;

pub fn show(a: &KernelArgs) -> Result<(), Error> {
    let (stages, launch) = compiled(a).map_err(|failure| match failure {
        Failure::Kiln(error) => error,
        Failure::Source(error) => Error::usage(error.to_string(), ""),
        Failure::NoCode(why) => Error::failed(why, ""),
    })?;
    if let Some(path) = &a.html {
        render::to(path, &stages.html(launch.as_ref(), None)?)?;
    }
    match &a.json {
        Some(path) if path == Path::new("-") => return render::out(&json(&stages.facts(launch.as_ref())?)?),
        Some(path) => render::to(path, &json(&stages.facts(launch.as_ref())?)?)?,
        None => {}
    }
    render::out(&match &a.stage[..] {
        "facts" => stages.facts(launch.as_ref())?.text(),
        "passes" => passes(&stages)?,
        stage => stages.text(Stage::parse(stage)?)?,
    })
}

fn compiled(a: &KernelArgs) -> Result<(Stages, Option<LaunchValues>), Failure> {
    let unit = kernels::file::open(&a.kernel)?;
    let described = Described::parse(&unit, &a.args)?;
    let target = CompileOptions { target: a.target, ..CompileOptions::default() };
    let options = Options { warps: a.num_warps, ..Options::default() };
    let stages = kernels::stages(&unit, &described.signature, &options, &target)?;
    let mut grid = [1; 3];
    a.grid.iter().zip(&mut grid).for_each(|(given, size)| *size = *given);
    let launch = (!a.grid.is_empty()).then(|| described.launch(stages.parameters(), grid));
    Ok((stages, launch))
}

/// The program as it was written, then the lines that each pass changed.
fn passes(stages: &Stages) -> Result<String, Error> {
    let one = |pass: kernels::PassResult| match &pass.diff[..] {
        "" if pass.name == "written" => format!("== {}\n{}", pass.name, pass.text),
        "" => format!("== {}: no change\n", pass.name),
        diff => format!("== {}\n{diff}", pass.name),
    };
    Ok(stages.passes()?.into_iter().map(one).collect())
}
