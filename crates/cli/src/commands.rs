//! What each command does.
use crate::{
    args::{self, Command, DeviceArgs, ModelArgs, Numerics, TargetName},
    render::{self, Progress},
};
use kiln::{
    CompileOptions, Compiled, DeviceKind, Error, Model, Report, Target, Tensor,
    bench::{Against, BenchOptions},
    io,
    model::FileKind,
    stages::{self, Stage},
};
use std::time::{Duration, Instant};

pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Run(a) => run_model(&a),
        Command::Compile(a) => compile(&a),
        Command::Explain(a) => explain(&a),
        Command::Bench(a) => bench(&a),
        Command::Print(a) => print(&a),
        Command::Opt(a) => render::out(&stages::optimise(&a.file, &a.passes)?),
        Command::Doctor(a) => doctor(&a),
    }
}

fn target(t: TargetName) -> Target {
    match t {
        TargetName::Cpu => Target::Cpu,
        TargetName::Sm80 => Target::Sm80,
        TargetName::Sm90a => Target::Sm90a,
    }
}

fn options(m: &ModelArgs, target: Target, fuse: bool) -> CompileOptions {
    let numerics = match m.numerics {
        Numerics::Exact => kiln::Numerics::Exact,
        Numerics::Reassociates => kiln::Numerics::Reassociates,
        Numerics::Approximates => kiln::Numerics::Approximates,
    };
    CompileOptions { target, fuse, numerics }
}

/// The device asked for, or the best there is, with the target it takes.
fn device(a: &DeviceArgs) -> Result<(DeviceKind, Target), Error> {
    if a.threads == Some(0) {
        return Err(Error::usage("0 threads cannot run anything", "give --threads 1 or more"));
    }
    let cuda = |i: usize| -> Result<(DeviceKind, Target), Error> {
        let target = match kiln::compile::cuda_capability(i)? {
            c if ((9, 0)..(10, 0)).contains(&c) => Target::Sm90a,
            c if c >= (8, 0) => Target::Sm80,
            (major, minor) => {
                return Err(Error::failed(
                    format!("GPU {i} has compute capability {major}.{minor}"),
                    "Kiln needs 8.0 or later; run with --device cpu",
                ));
            }
        };
        Ok((DeviceKind::Cuda(i), target))
    };
    match a.device.as_deref() {
        Some("cpu") => Ok((DeviceKind::Cpu, Target::Cpu)),
        Some("cuda") => cuda(0),
        Some(name) => match name.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
            Some(i) => cuda(i),
            None => Err(Error::usage(format!("there is no device `{name}`"), "give cpu, cuda or cuda:0")),
        },
        None => Ok(cuda(0).unwrap_or((DeviceKind::Cpu, Target::Cpu))),
    }
}

/// Inputs from a file, or random ones of the types given; empty if neither is given.
fn inputs(a: &ModelArgs) -> Result<Vec<Tensor>, Error> {
    match &a.inputs {
        Some(path) => io::read(path),
        None => a
            .input
            .iter()
            .enumerate()
            .map(|(i, t)| io::parse_input(t).map(|(ty, n)| io::random(&ty, n, i as u64)))
            .collect(),
    }
}

/// The model with inputs for it: those given, or random ones where the file itself tells their types.
fn open(a: &ModelArgs, progress: &Progress) -> Result<(Model, Vec<Tensor>), Error> {
    let given = inputs(a)?;
    progress.say("importing");
    let model = Model::open(&a.model, &given)?;
    let inputs = if given.is_empty() { model.example_inputs(0) } else { given };
    Ok((model, inputs))
}

/// An artifact keeps its plan; anything else is compiled.
fn compiled(a: &ModelArgs, o: &CompileOptions, progress: &Progress) -> Result<(Model, Compiled, Vec<Tensor>), Error> {
    if FileKind::of(&a.model)? == FileKind::Artifact {
        let given = inputs(a)?;
        let (model, compiled) = kiln::artifact::open(&a.model, o)?;
        model.check_inputs(&given)?;
        let inputs = if given.is_empty() { model.example_inputs(0) } else { given };
        return Ok((model, compiled, inputs));
    }
    let (model, inputs) = open(a, progress)?;
    progress.say("compiling");
    let compiled = kiln::compile(&model, o)?;
    Ok((model, compiled, inputs))
}

fn run_model(a: &args::Run) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let (device, target) = device(&a.device)?;
    let (_, compiled, inputs) = compiled(&a.model, &options(&a.model, target, !a.unfused), &progress)?;
    progress.say("running");
    let session = compiled.session_on(device, a.device.threads)?;
    let start = Instant::now();
    let outputs = session.run(&inputs).map_err(|e| Error::failed(e.to_string(), ""))?;
    let run_s = start.elapsed().as_secs_f64();
    io::write(&a.outputs, &outputs)?;
    if let Some(path) = &a.json {
        let report = Report::new(&compiled);
        let json = serde_json::json!({
            "model": report.model, "device": kiln::compile::device_name(device)?, "kernels": report.kernels.len(), "nodes": report.nodes,
            "fallback": report.fallback, "run_ms": run_s * 1e3, "timings": compiled.timings,
            "outputs": outputs.iter().map(|t| t.ty.to_string()).collect::<Vec<_>>(),
        });
        render::to(path, &format!("{json:#}\n"))?;
    }
    Ok(())
}

fn compile(a: &args::Compile) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let emit: Vec<(String, Stage)> =
        a.emit.iter().map(|s| Ok((s.clone(), Stage::parse(s)?))).collect::<Result<_, Error>>()?;
    let options = options(&a.model, target(a.target), true);
    let (model, compiled, _) = compiled(&a.model, &options, &progress)?;
    progress.say("writing");
    for (name, stage) in emit {
        let path = a.output.with_extension(name);
        io::write_whole(&path, stages::text(&compiled, stage)?.as_bytes())?;
    }
    kiln::artifact::write(&a.output, &compiled, &model)?;
    if let Some(path) = &a.json {
        let json = serde_json::json!({ "timings": compiled.timings, "kernels": compiled.plan.kernels.len(), "programs": compiled.programs.len() });
        render::to(path, &format!("{json:#}\n"))?;
    }
    Ok(())
}

fn explain(a: &args::Explain) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let (_, compiled, _) = compiled(&a.model, &options(&a.model, target(a.target), !a.unfused), &progress)?;
    drop(progress);
    let report = Report::new(&compiled);
    if let Some(path) = &a.html {
        render::to(path, &kiln::html::page(&report, &compiled, None))?;
    }
    match &a.json {
        Some(path) => {
            let text = json(&report)?;
            if path.as_os_str() != "-" {
                render::out(&report.text())?;
            }
            render::to(path, &text)
        }
        None => render::out(&report.text()),
    }
}

fn bench(a: &args::Bench) -> Result<(), Error> {
    let mut against = Against { unfused: false, torch: false };
    for name in &a.against {
        match name.as_str() {
            "unfused" => against.unfused = true,
            "torch" => against.torch = true,
            other => {
                return Err(Error::usage(format!("cannot compare with `{other}`"), "give unfused, torch, or both"));
            }
        }
    }
    if !(0.0..=3600.0).contains(&a.seconds) {
        return Err(Error::usage(format!("--seconds {} is out of range", a.seconds), "give 0 to 3600"));
    }
    let progress = Progress::new("loading");
    let (device, target) = device(&a.device)?;
    let (model, inputs) = open(&a.model, &progress)?;
    progress.say("measuring");
    let options = BenchOptions {
        compile: options(&a.model, target, true),
        device,
        threads: a.device.threads,
        against,
        min_time: Duration::from_secs_f64(a.seconds),
    };
    let (result, compiled) = kiln::bench::bench(&model, &inputs, &options)?;
    drop(progress);
    if let Some(path) = &a.html {
        let measured: Vec<f64> = result.kernels.iter().map(|k| k.median_us).collect();
        render::to(path, &kiln::html::page(&Report::new(&compiled), &compiled, Some(&measured)))?;
    }
    match &a.json {
        Some(path) => {
            if path.as_os_str() != "-" {
                render::out(&result.text())?;
            }
            render::to(path, &json(&result)?)
        }
        None => render::out(&result.text()),
    }
}

fn print(a: &args::Print) -> Result<(), Error> {
    let stage = Stage::parse(&a.stage)?;
    let t = if stage == Stage::Ptx && a.target == TargetName::Cpu { TargetName::Sm90a } else { a.target };
    let text =
        stages::print_file(&a.model.model, &inputs(&a.model)?, &options(&a.model, target(t), !a.unfused), stage)?;
    render::out(&text)
}

fn doctor(a: &args::Doctor) -> Result<(), Error> {
    let findings = kiln::doctor::findings();
    if let Some(path) = &a.json {
        return render::to(path, &json(&findings)?);
    }
    let mut text = String::new();
    for f in &findings {
        text += &format!("{} {:12} {}\n", if f.found { "ok     " } else { "missing" }, f.what, f.detail);
        if !f.remedy.is_empty() {
            text += &format!("                     {}\n", f.remedy);
        }
    }
    render::out(&text)
}

fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value)
        .map(|s| s + "\n")
        .map_err(|e| Error::failed(format!("cannot write the report as JSON: {e}"), "report this"))
}
