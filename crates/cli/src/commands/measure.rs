//! `kiln bench`: one measurement with its page, trace and plot, or a sweep over batch sizes.
use super::{device, given_or_random, inputs, json, open, options_on};
use crate::{
    args,
    render::{self, Progress},
};
use kiln::{
    Error, Report,
    bench::{Against, BenchOptions},
    plot,
    sweep::{self, Axis},
    trace,
};
use std::time::Duration;

pub fn bench(a: &args::Bench) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let place = device(&a.device)?;
    let options = BenchOptions {
        against: against(&a.against)?,
        min_time: seconds(a.seconds)?,
        compile: options_on(&place, &a.model, true, &a.constraints)?,
        device: place.device,
        threads: a.device.threads,
    };
    match &a.sweep {
        Some(sizes) => over_sizes(a, &Axis::parse(sizes)?, &options, progress),
        None => once(a, &options, progress),
    }
}

fn against(names: &[String]) -> Result<Against, Error> {
    let mut against = Against { unfused: false, torch: false };
    for name in names {
        match name.as_str() {
            "unfused" => against.unfused = true,
            "torch" => against.torch = true,
            other => {
                return Err(Error::usage(format!("cannot compare with `{other}`"), "give unfused, torch, or both"));
            }
        }
    }
    Ok(against)
}

fn seconds(s: f64) -> Result<Duration, Error> {
    match (0.0..=3600.0).contains(&s) {
        true => Ok(Duration::from_secs_f64(s)),
        false => Err(Error::usage(format!("--seconds {s} is out of range"), "give 0 to 3600")),
    }
}

fn once(a: &args::Bench, options: &BenchOptions, progress: Progress) -> Result<(), Error> {
    let (mut model, given) = open(&a.model, &progress)?;
    model.archive = a.archive.clone().or(model.archive);
    let inputs = given_or_random(given, &model)?;
    progress.say("measuring");
    let (result, compiled) = kiln::bench::bench(&model, &inputs, options)?;
    drop(progress);
    if let Some(path) = &a.html {
        let measured: Vec<f64> = result.kernels.iter().map(|k| k.median_us).collect();
        render::to(path, &kiln::html::page(&Report::new(&compiled), &compiled, Some(&measured)))?;
    }
    if let Some(path) = &a.trace {
        render::to(path, &json(&trace::json(&result))?)?;
    }
    if let Some(path) = &a.roofline {
        render::to(path, &plot::roofline(&result, &compiled)?)?;
    }
    written(a, &result.text(render::width()), &result)
}

fn over_sizes(a: &args::Bench, axis: &Axis, options: &BenchOptions, progress: Progress) -> Result<(), Error> {
    if !a.model.dim.is_empty() {
        return Err(Error::usage("--sweep and --dim both choose sizes", "leave out --dim"));
    }
    let result = sweep::sweep(&a.model.model, &inputs(&a.model)?, axis, options, |what| progress.say(what))?;
    drop(progress);
    if let Some(path) = &a.plot {
        render::to(path, &plot::sweep(&result)?)?;
    }
    written(a, &result.text(render::width()), &result)
}

/// Prints the text, unless the JSON goes to standard output.
fn written(a: &args::Bench, text: &str, result: &impl serde::Serialize) -> Result<(), Error> {
    if a.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        render::out(text)?;
    }
    match &a.json {
        Some(path) => render::to(path, &json(result)?),
        None => Ok(()),
    }
}
