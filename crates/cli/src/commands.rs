//! What each command does: resolves options, calls the `kiln` library, prints or writes the result. Gives an exit
//! status or an error.
mod cache;
mod kernel;
mod measure;
mod plans;
mod stage;
mod steps;
mod tune;
mod tunings;

use crate::{
    args::{self, Command, ConstraintArgs, ContractArgs, DeviceArgs, ModelArgs, Numerics},
    render::{self, Progress},
};
use kiln::{
    CompileOptions, Compiled, Contract, DeviceKind, Error, Machine, Model, Report, Target, Tensor,
    constraints::Constraints, io, model::FileKind, program::Sizes, stages, tune::Measurements,
};
use std::{process::ExitCode, sync::Arc, time::Instant};

/// Runs a command. Commands that compare have exit statuses of their own; all others succeed or fail.
pub fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Diff(a) => return Ok(plans::diff(&a)),
        Command::Snapshot(a) => return Ok(plans::snapshot(&a)),
        other => work(other)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn work(command: Command) -> Result<(), Error> {
    match command {
        Command::Run(a) => run_model(&a),
        Command::Compile(a) => stage::compile(&a),
        Command::Explain(a) => explain(&a),
        Command::Bench(a) => measure::bench(&a),
        Command::Tune(a) => tune::tune(&a),
        Command::Tunings(a) => tunings::run(&a),
        Command::Print(a) => stage::print(&a),
        Command::Ptx(a) => stage::ptx(&a),
        Command::Opt(a) => render::out(&stages::optimise(&a.file, &a.passes)?),
        Command::Kernel(a) => kernel::show(&a),
        Command::Cache(a) => cache::run(&a),
        Command::Doctor(a) => doctor(&a),
        Command::Plan(args::PlanCommand::Pin(a)) => plans::pin(&a),
        Command::Completions { shell } => plans::completions(shell),
        Command::Man { folder } => plans::man(&folder),
        Command::Import => {
            kiln::serve_import().map_err(|e| Error::failed(format!("importing for another process failed: {e}"), ""))
        }
        Command::Diff(_) | Command::Snapshot(_) => Ok(()),
    }
}

/// The contract an artifact was compiled under, overridden by the options given.
fn contract(made: Contract, a: &ContractArgs) -> Contract {
    let numerics = a.numerics.map_or(made.numerics, |n| match n {
        Numerics::Exact => kiln::Numerics::Exact,
        Numerics::Torch => kiln::Numerics::Torch,
        Numerics::Fast => kiln::Numerics::Fast,
    });
    // An explicit numerics class replaces the artifact's whole contract.
    let made = if a.numerics.is_some() { Contract::default() } else { made };
    Contract {
        numerics,
        splits: made.splits || a.splits,
        no_tf32: made.no_tf32 || a.no_tf32,
        batch_invariant: made.batch_invariant || a.batch_invariant,
    }
}

/// The options an artifact was compiled with, or else the defaults, overridden by what is given.
fn options(m: &ModelArgs, target: Option<Target>, fuse: bool) -> Result<CompileOptions, Error> {
    let made = match FileKind::of(&m.model)? {
        FileKind::Artifact => kiln::artifact::options(&m.model)?,
        _ => CompileOptions::default(),
    };
    let target = target.unwrap_or(made.target);
    // A machine description belongs to one target.
    let machine = made.machine.filter(|_| made.target == target);
    let contract = contract(made.contract, &m.contract);
    Ok(CompileOptions { target, fuse, contract, machine, ..CompileOptions::default() })
}
fn constrained(mut o: CompileOptions, c: &ConstraintArgs) -> Result<CompileOptions, Error> {
    if let Some(path) = &c.constraints {
        o.constraints = Constraints::read(path)?;
    }
    if let Some(path) = &c.tuned {
        o.tuned = Some(Measurements { store: Arc::new(kiln::tune::read(path)?), device: None });
    }
    if let Some(path) = &c.machine {
        o.machine = Some(kiln::calibrate::read(path)?);
    }
    Ok(o)
}
/// The same for a run on this device: plans are made for its machine, unless they come from an artifact, and
/// measurements taken on other devices are ignored.
fn options_on(place: &Place, m: &ModelArgs, fuse: bool, c: &ConstraintArgs) -> Result<CompileOptions, Error> {
    let mut o = options(m, Some(place.target), fuse)?;
    if FileKind::of(&m.model)? != FileKind::Artifact {
        o.machine.clone_from(&place.machine);
    }
    let mut o = constrained(o, c)?;
    if let (Some(tuned), DeviceKind::Cuda(i)) = (&mut o.tuned, place.device) {
        tuned.device = Some(kiln::compile::gpu_name(i)?);
    }
    Ok(o)
}

/// A device, its target, and its machine description where that is not the target's default.
struct Place {
    device: DeviceKind,
    target: Target,
    machine: Option<Machine>,
}

/// The device requested, or else the first GPU, or else the CPU.
fn device(a: &DeviceArgs) -> Result<Place, Error> {
    if a.threads == Some(0) {
        return Err(Error::usage("0 threads cannot run anything", "give --threads 1 or more"));
    }
    if let Some(n) = a.threads.filter(|n| *n > kiln::MAX_THREADS) {
        let help = "give as many as the processor has cores, or leave --threads out";
        return Err(Error::usage(format!("{n} threads are more than Kiln's limit of {}", kiln::MAX_THREADS), help));
    }
    let cuda = |i: usize| -> Result<Place, Error> {
        let (target, machine) = kiln::compile::gpu_machine(i)?;
        Ok(Place { device: DeviceKind::Cuda(i), target, machine })
    };
    let cpu = || Place { device: DeviceKind::Cpu, target: Target::Cpu, machine: None };
    match a.device.as_deref() {
        Some(name) => match name.parse()? {
            DeviceKind::Cpu => Ok(cpu()),
            DeviceKind::Cuda(i) => cuda(i),
        },
        None => Ok(cuda(0).unwrap_or_else(|_| cpu())),
    }
}

/// Inputs from a file, or random inputs of the types given; empty if neither is given.
fn inputs(a: &ModelArgs) -> Result<Vec<Tensor>, Error> {
    match &a.inputs {
        Some(path) => io::read_named(path, || kiln::input_names(&a.model)),
        None => a.input.iter().enumerate().map(|(i, t)| io::described(t, i as u64)).collect(),
    }
}

/// The sizes of --dim.
fn sizes(a: &ModelArgs) -> Result<Sizes, Error> {
    let mut all = Sizes::new();
    for (name, size) in &a.dim {
        if all.insert(name.clone(), *size).is_some_and(|other| other != *size) {
            return Err(Error::usage(format!("--dim gives {name} two sizes"), "give it one"));
        }
    }
    Ok(all)
}

/// The model, and the inputs given for it.
fn open(a: &ModelArgs, progress: &Progress) -> Result<(Model, Vec<Tensor>), Error> {
    let given = inputs(a)?;
    progress.say("importing");
    Ok((Model::open_at(&a.model, &given, &sizes(a)?)?, given))
}

/// The inputs to run the model on: those given, or random ones of its input types.
fn given_or_random(given: Vec<Tensor>, model: &Model) -> Result<Vec<Tensor>, Error> {
    if !given.is_empty() {
        return Ok(model.with_states(given));
    }
    model.require_inputs()?;
    Ok(model.example_inputs(0))
}

/// The model, compiled, and the inputs given. An artifact keeps its plan; anything else is compiled.
fn compiled(a: &ModelArgs, o: &CompileOptions, progress: &Progress) -> Result<(Model, Compiled, Vec<Tensor>), Error> {
    if FileKind::of(&a.model)? == FileKind::Artifact {
        let given = inputs(a)?;
        if !a.dim.is_empty() {
            let what = format!("the sizes of an artifact are fixed: {}", a.model.display());
            return Err(Error::usage(what, "leave out --dim, or give the .pt2 program"));
        }
        let (model, compiled) = kiln::artifact::open(&a.model, o)?;
        model.check_inputs(&given)?;
        return Ok((model, compiled, given));
    }
    let (model, given) = open(a, progress)?;
    progress.say("compiling");
    let compiled = kiln::compile(&model, o)?;
    Ok((model, compiled, given))
}

fn run_model(a: &args::Run) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let place = device(&a.device)?;
    let device = place.device;
    let options = options_on(&place, &a.model, !a.unfused, &a.constraints)?;
    let options = CompileOptions { machine_code: a.trust_machine_code, ..options };
    let (model, compiled, given) = compiled(&a.model, &options, &progress)?;
    let inputs = given_or_random(given, &model)?;
    progress.say("running");
    let session = compiled.session_on(device, a.device.threads)?;
    let start = Instant::now();
    let outputs = steps::run(&session, &model, a.steps, &a.feed, inputs)?;
    let run_s = start.elapsed().as_secs_f64();
    io::write(&a.outputs, &outputs)?;
    if let Some(path) = &a.json {
        let report = Report::new(&compiled);
        let json = serde_json::json!({
            "model": report.model, "device": kiln::compile::device_name(device)?,
            "kernels": report.kernels.len(), "nodes": report.nodes,
            "fallback": report.fallback, "run_ms": run_s * 1e3, "timings": compiled.timings,
            "outputs": outputs.iter().map(|t| t.ty.to_string()).collect::<Vec<_>>(),
        });
        render::to(path, &format!("{json:#}\n"))?;
    }
    Ok(())
}

fn explain(a: &args::Explain) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let width = render::width();
    let kind = FileKind::of(&a.model.model)?;
    let asks = a.proof.is_some() || a.why.len() + a.why_not.len() > 0;
    if kind == FileKind::Report && (asks || !a.constraints.is_empty()) {
        return Err(Error::usage("a report cannot be planned again", "give the model or the artifact"));
    }
    if asks {
        return ask(a, &progress, width);
    }
    let (report, compiled) = report(a, kind, &progress)?;
    drop(progress);
    if let (Some(path), Some(compiled)) = (&a.html, &compiled) {
        render::to(path, &kiln::html::page(&report, compiled, None))?;
    }
    if a.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        let text = match &a.kernel {
            Some(name) => report.in_depth(name, width)?,
            None if a.all => report.table(width),
            None => report.summary(width),
        };
        render::out(&text)?;
    }
    match &a.json {
        Some(path) => render::to(path, &report.to_json()?),
        None => Ok(()),
    }
}

fn ask(a: &args::Explain, progress: &Progress, width: usize) -> Result<(), Error> {
    let names = if a.why.is_empty() { &a.why_not } else { &a.why };
    let options = constrained(options(&a.model, a.target, !a.unfused)?, &a.constraints)?;
    let (model, _) = open(&a.model, progress)?;
    progress.say("planning");
    if a.proof.as_ref().is_some_and(String::is_empty) {
        let certificate = json(&kiln::proof::certificate(&model, &options)?)?;
        if let Some(path) = &a.json {
            return render::to(path, &certificate);
        }
        progress.say("checking");
        let checked = kiln::proof::check(&certificate)?;
        return render::out(&format!("the plan computes the graph: {checked}\n"));
    }
    if let Some(kernel) = &a.proof {
        let proof = kiln::proof::ask(&model, &options, kernel)?;
        return match &a.json {
            Some(path) => render::to(path, &json(&proof)?),
            None => render::out(&proof.text(width)),
        };
    }
    if let [kernel, schedule] = &a.why_not[..]
        && let Some(schedule) = kiln::why_schedule::named(schedule)
    {
        let answer = kiln::why_schedule::ask(&model, &options, kernel, &schedule)?;
        return match &a.json {
            Some(path) => render::to(path, &json(&answer)?),
            None => render::out(&answer.text(width)),
        };
    }
    if let [kernel, form] = &a.why_not[..]
        && let Some(form) = kiln::why_form::named(form)
    {
        let answer = kiln::why_form::ask(&model, &options, kernel, form)?;
        return match &a.json {
            Some(path) => render::to(path, &json(&answer)?),
            None => render::out(&answer.text(width)),
        };
    }
    // Invariant: both flags take two names (`num_args`), and one of them was given.
    let answer = kiln::why::ask(&model, &options, &names[0], &names[1])?;
    match &a.json {
        Some(path) => render::to(path, &json(&answer)?),
        None => render::out(&answer.text(width)),
    }
}

/// Reads the report from a report file or an artifact if it has one that fits, else compiles the model. An HTML page
/// needs the compiled model as well.
fn report(a: &args::Explain, kind: FileKind, progress: &Progress) -> Result<(Report, Option<Compiled>), Error> {
    let path = &a.model.model;
    let as_compiled = a.target.is_none() && a.model.contract.is_empty() && !a.unfused && a.constraints.is_empty();
    match kind {
        FileKind::Report if a.html.is_some() => {
            Err(Error::usage("the page shows code, which a report does not contain", "give the model or the artifact"))
        }
        FileKind::Report => {
            let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, e))?;
            Ok((Report::from_json(&text, &path.display().to_string())?, None))
        }
        FileKind::Artifact if as_compiled && a.html.is_none() => Ok((kiln::artifact::report(path)?, None)),
        _ => {
            let options = constrained(options(&a.model, a.target, !a.unfused)?, &a.constraints)?;
            let (_, compiled, _) = compiled(&a.model, &options, progress)?;
            Ok((Report::new(&compiled), Some(compiled)))
        }
    }
}

/// Measures, prints the fitted description next to the one it started from, and writes it.
fn calibrate(path: &std::path::Path, a: &DeviceArgs) -> Result<(), Error> {
    let Place { device, target, machine } = device(a)?;
    let options = CompileOptions { target, machine, ..CompileOptions::default() };
    let progress = Progress::new("calibrating");
    let fitted = kiln::calibrate::calibrate(&options, device, a.threads, |what| progress.say(what))?;
    drop(progress);
    render::out(&kiln::calibrate::table(options.machine(), &fitted))?;
    render::to(path, &json(&fitted)?)
}

fn doctor(a: &args::Doctor) -> Result<(), Error> {
    if let Some(path) = &a.calibrate {
        return calibrate(path, &a.device);
    }
    let findings = kiln::doctor::findings();
    if let Some(path) = &a.json {
        return render::to(path, &json(&findings)?);
    }
    render::out(&kiln::doctor::text(&findings))
}

fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value)
        .map(|s| s + "\n")
        .map_err(|e| Error::failed(format!("cannot write the report as JSON: {e}"), "report this"))
}
