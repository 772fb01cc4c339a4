//! Commands that compile and write stages: the artifact, any stage as text, PTX and facts about it.
use super::{compiled, constrained, inputs, json, options, sizes};
use crate::{
    args,
    render::{self, Progress},
};
use kiln::{
    Error, Report, Target, io, ptxas,
    stages::{self, Stage, kernel},
};
use std::time::Instant;

pub fn compile(a: &args::Compile) -> Result<(), Error> {
    let progress = Progress::new("loading");
    // Machine code is a part of the artifact, not a stage that can be printed.
    let (machine_code, emit): (Vec<&String>, Vec<&String>) = a.emit.iter().partition(|s| *s == "cubin");
    let emit: Vec<(String, Stage)> =
        emit.into_iter().map(|s| Ok((s.clone(), Stage::parse(s)?))).collect::<Result<_, Error>>()?;
    if let Some((name, _)) =
        emit.iter().find(|(name, _)| a.emit_dir.is_none() && a.output.with_extension(name) == a.output)
    {
        let out = a.output.display();
        return Err(Error::usage(
            format!("the stage {name} and the artifact would both be written to {out}"),
            "give the artifact another name, such as -o model.kiln",
        ));
    }
    let options = constrained(options(&a.model, Some(a.target), true)?, &a.constraints)?;
    let (model, mut compiled, _) = compiled(&a.model, &options, &progress)?;
    let start = Instant::now();
    if !machine_code.is_empty() {
        progress.say("assembling");
        compiled.assemble()?;
    }
    let assemble_s = start.elapsed().as_secs_f64();
    progress.say("writing");
    // The artifact is written first: it stays if a stage does not exist for the target.
    kiln::artifact::write(&a.output, &compiled, &model)?;
    match &a.emit_dir {
        Some(folder) => {
            let named: Vec<Stage> = emit.iter().map(|e| e.1).collect();
            let stages = if a.emit.is_empty() { Stage::of(compiled.options.target) } else { named };
            stages::kernel::write_folder(&compiled, &stages, folder)?;
        }
        None => {
            for (name, stage) in emit {
                let path = a.output.with_extension(name);
                io::write_whole(&path, stages::text(&compiled, stage)?.as_bytes())?;
            }
        }
    }
    if let Some(path) = &a.json {
        let start = Instant::now();
        let _ = Report::new(&compiled);
        let explain_s = start.elapsed().as_secs_f64();
        let json = serde_json::json!({
            "timings": compiled.timings,
            "explain_s": explain_s,
            "assemble_s": assemble_s,
            "kernels": compiled.plan.kernels.len(),
            "programs": compiled.programs.len(),
        });
        render::to(path, &format!("{json:#}\n"))?;
    }
    Ok(())
}

pub fn print(a: &args::Print) -> Result<(), Error> {
    let stage = Stage::parse(&a.stage)?;
    let t = if stage == Stage::Ptx && a.target == Target::Cpu { Target::Sm90a } else { a.target };
    let options = constrained(options(&a.model, Some(t), !a.unfused)?, &a.constraints)?;
    let text = stages::print_file(
        &a.model.model,
        &inputs(&a.model)?,
        &sizes(&a.model)?,
        &options,
        stage,
        a.kernel.as_deref(),
    )?;
    render::out(&text)
}

pub fn ptx(a: &args::PtxArgs) -> Result<(), Error> {
    if a.target == Target::Cpu {
        return Err(Error::usage("the target cpu has no PTX", "give --target sm_90a, sm_89 or sm_80"));
    }
    let progress = Progress::new("loading");
    let options = constrained(options(&a.model, Some(a.target), true)?, &a.constraints)?;
    let (_, compiled, _) = compiled(&a.model, &options, &progress)?;
    drop(progress);
    let kernels = match &a.kernel {
        Some(name) => vec![kernel::find(&compiled, name)?],
        None => (0..compiled.plan.kernels.len()).collect(),
    };
    if !a.facts {
        let texts = kernels.iter().map(|k| kernel::text(&compiled, *k, Stage::Ptx));
        return render::out(&texts.collect::<Result<Vec<_>, _>>()?.join("\n"));
    }
    let ptxas = ptxas::find_ptxas();
    let facts = kernels.iter().map(|k| kernel::facts(&compiled, *k, ptxas.as_deref()));
    let facts: Vec<kernel::Facts> = facts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    match &a.json {
        Some(path) => render::to(path, &json(&facts)?),
        None if facts.is_empty() => render::out("no block programs: a library or the interpreter runs these kernels\n"),
        None => render::out(&facts.iter().map(kernel::Facts::text).collect::<Vec<_>>().join("\n")),
    }
}
