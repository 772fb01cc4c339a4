//! `kiln tunings`: times of kernels written by hand, which autotuning keeps on disk.
use crate::{args::TuningsCommand, render};
use kiln::kernels::tunings::{KernelEntry, Measured, Pin, Store, Tunings};
use kiln::{Error, tune};
use std::path::Path;

pub fn run(command: &TuningsCommand) -> Result<(), Error> {
    let tunings = Tunings::standard().ok_or_else(|| {
        Error::usage("there is no cache: KILN_CACHE is `off`, or there is no home", "set KILN_CACHE to a folder")
    })?;
    match command {
        TuningsCommand::List { kernel, json } => list(&tunings, kernel.as_deref(), json.as_deref()),
        TuningsCommand::Export { file } => {
            let mut store = if file.exists() { tune::read(file)? } else { Store::default() };
            let all = tunings.all();
            all.kernels().iter().for_each(|entry| store.put_kernel(entry.clone()));
            tune::write(file, &store)?;
            told(file, all.kernels().len())
        }
        TuningsCommand::Import { file } => told(file, tunings.import(&tune::read(file)?)?),
        TuningsCommand::Pin { kernel, configuration, arguments } => {
            let known = tunings.all();
            let wanted = |entry: &&KernelEntry| entry.key.kernel == *kernel;
            let has = |entry: &KernelEntry| entry.configurations.iter().any(|c| c.configuration == *configuration);
            if known.kernels().iter().any(|entry| wanted(&entry)) && !known.kernels().iter().filter(wanted).any(has) {
                let what = format!("{kernel} has no configuration `{configuration}`");
                return Err(Error::usage(what, "`kiln tunings list` shows those that it has"));
            }
            let pin = Pin { kernel, arguments: arguments.as_deref(), configuration: Some(configuration) };
            pinned(&tunings, &pin)
        }
        TuningsCommand::Unpin { kernel } => pinned(&tunings, &Pin { kernel, arguments: None, configuration: None }),
    }
}

fn told(file: &Path, rows: usize) -> Result<(), Error> {
    render::out(&format!("{}: {rows} kernels with arguments\n", file.display()))
}

fn pinned(tunings: &Tunings, pin: &Pin) -> Result<(), Error> {
    match tunings.pin(pin)? {
        0 => Err(Error::usage(
            format!("there are no times of a kernel `{}` with such arguments", pin.kernel),
            "`kiln tunings list` shows what there is; the names are those of functions, with the arguments after them",
        )),
        rows => render::out(&format!("{}: {rows} kernels with arguments\n", pin.kernel)),
    }
}

fn list(tunings: &Tunings, kernel: Option<&str>, json: Option<&Path>) -> Result<(), Error> {
    let mut shown = Store::default();
    let all = tunings.all();
    let wanted = all.kernels().iter().filter(|entry| kernel.is_none_or(|name| entry.key.kernel == name));
    wanted.for_each(|entry| shown.put_kernel(entry.clone()));
    if let Some(path) = json {
        tune::write(path, &shown)?;
    }
    render::out(&shown.kernels().iter().map(text).collect::<String>())
}

/// A kernel with arguments: the configuration that runs, then the others, the fastest first.
fn text(entry: &KernelEntry) -> String {
    let key = &entry.key;
    let mut text = format!("{}({}) on {}, {}\n", key.kernel, key.arguments, key.machine.device, key.machine.target);
    let us = |measured: &Measured| match measured {
        Measured::Us { median, .. } => *median,
        Measured::Failed(_) => f64::INFINITY,
    };
    let mut rows: Vec<_> = entry.configurations.iter().collect();
    rows.sort_by(|a, b| us(&a.measured).total_cmp(&us(&b.measured)));
    for row in rows {
        let mark = match () {
            () if entry.pinned.as_ref() == Some(&row.configuration) => "pinned",
            () if entry.choice() == Some(&row.configuration) => "runs",
            () => "",
        };
        let found = match &row.measured {
            Measured::Us { median, low, high } => format!("{median:>10.2} us ({low:.2} to {high:.2})"),
            Measured::Failed(why) => format!("failed: {why}"),
        };
        text.push_str(&format!("  {mark:6} {}  {found}\n", row.configuration));
    }
    text
}
