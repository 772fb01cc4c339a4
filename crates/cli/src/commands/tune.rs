//! `kiln tune`: measures schedules of a model's kernels; a progress bar shows the best so far.
use super::{Place, device, json, open, options_on};
use crate::{
    args::{self, ConstraintArgs, DeviceArgs},
    render::{self, Progress},
};
use kiln::{
    DeviceKind, Error,
    tune::{self, Budget, Step, Store, TuneOptions},
};

pub fn tune(a: &args::Tune) -> Result<(), Error> {
    let (gpu, place) = gpu(a)?;
    if a.candidates < 2 {
        let what = format!("--candidates {} leaves nothing to choose from", a.candidates);
        return Err(Error::usage(what, "give 2 or more"));
    }
    let mut store = if a.store.exists() { tune::read(&a.store)? } else { Store::default() };
    // Fails before anything is measured if the store cannot be written.
    tune::write(&a.store, &store)?;
    let constraints = ConstraintArgs { constraints: a.constraints.clone(), tuned: None, machine: None };
    let options = TuneOptions {
        compile: options_on(&place, &a.model, true, &constraints)?,
        gpu,
        kernel: a.kernel.clone(),
        again: a.again,
        budget: Budget { most: a.candidates, ..Budget::default() },
    };
    let progress = Progress::new("loading");
    let (model, _) = open(&a.model, &progress)?;
    progress.say("compiling candidates");
    let mut save = |store: &Store| tune::write(&a.store, store);
    let tuned = tune::tune(&model, &options, &mut store, &mut save, &mut |step| show(&progress, step))?;
    drop(progress);
    if a.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        render::out(&tuned.text(render::width()))?;
    }
    match &a.json {
        Some(path) => render::to(path, &json(&tuned)?),
        None => Ok(()),
    }
}

fn show(progress: &Progress, step: &Step) {
    let s = &step.search;
    let best = s.best.as_ref().map_or(String::new(), |(choice, us)| format!(": {us:.2} us by {choice}"));
    progress.count(step.at * s.of + s.done, step.of * s.of, &format!("{}{best}", step.kernel));
}

/// The GPU requested, or the first one. On the host each matmul has only one implementation.
fn gpu(a: &args::Tune) -> Result<(usize, Place), Error> {
    let args = DeviceArgs { device: Some(a.device.clone().unwrap_or_else(|| "cuda:0".into())), threads: None };
    let remedy = "run `kiln tune` on a machine with an NVIDIA GPU; on the cpu each matmul has only one implementation";
    match device(&args) {
        Ok(place) => match place.device {
            DeviceKind::Cuda(i) => Ok((i, place)),
            DeviceKind::Cpu => Err(Error::usage("there is nothing to tune on the cpu", remedy)),
        },
        Err(e) if a.device.is_none() => Err(Error::failed(format!("there is nothing to tune here: {e}"), remedy)),
        Err(e) => Err(e),
    }
}
