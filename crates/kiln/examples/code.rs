//! Writes what a corpus of graphs compiles to, so that two builds can be compared: a change that should leave code as
//! it is leaves the folders equal.
//!
//!     cargo run --release -p kiln --example code -- OUT [--seeds FROM..TO] [--targets cpu,sm_80,sm_89,sm_90a] FOLDER…
//!     diff -rq OUT BEFORE
//!
//! Takes every text graph below the folders, and one random graph for each seed (default: 0..200). Writes
//! OUT/TARGET/NAME with the plan and the PTX or the assembly of its kernels, or why there is none.
use kiln::{CompileOptions, Error, Model, Target, stages};
use kiln_graphgen::{Scale, case};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Options {
    out: PathBuf,
    seeds: Range<u64>,
    targets: Vec<Target>,
    folders: Vec<PathBuf>,
}

const USAGE: &str = "usage: code OUT [--seeds FROM..TO] [--targets cpu,sm_80,sm_89,sm_90a] FOLDER…";

fn options() -> Result<Options, String> {
    let all = vec![Target::Cpu, Target::Sm80, Target::Sm89, Target::Sm90a];
    let mut args = std::env::args().skip(1);
    let out = args.next().filter(|out| !out.starts_with('-')).ok_or(USAGE)?.into();
    let mut o = Options { out, seeds: 0..200, targets: all, folders: vec![] };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => {
                let value = args.next().ok_or(USAGE)?;
                let (from, to) = value.split_once("..").ok_or(USAGE)?;
                let number = |s: &str| s.parse::<u64>().map_err(|e| format!("--seeds {value}: {e}"));
                o.seeds = number(from)?..number(to)?;
            }
            "--targets" => {
                let names = args.next().ok_or(USAGE)?;
                o.targets =
                    names.split(',').map(|n| n.parse().map_err(|e| format!("{n}: {e}"))).collect::<Result<_, _>>()?;
            }
            flag if flag.starts_with('-') => return Err(USAGE.into()),
            folder => o.folders.push(folder.into()),
        }
    }
    Ok(o)
}

/// Text graphs below a folder.
fn graphs(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => graphs(&path, found)?,
            false if path.extension().is_some_and(|e| e == "kiln") => found.push(path),
            false => {}
        }
    }
    Ok(())
}

fn code(model: &Model, target: Target) -> Result<String, Error> {
    let compiled = kiln::compile(model, &CompileOptions { target, ..CompileOptions::default() })?;
    let last = if target == Target::Cpu { stages::Stage::Asm } else { stages::Stage::Ptx };
    Ok(stages::text(&compiled, stages::Stage::Plan)? + &stages::text(&compiled, last)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let o = options()?;
    let mut files = vec![];
    for folder in &o.folders {
        graphs(folder, &mut files).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    files.sort();
    let mut models = vec![];
    for path in files {
        let name = path.to_string_lossy().trim_start_matches("./").replace('/', "-");
        models.push((name, Model::open(&path, &[])?));
    }
    for seed in o.seeds {
        let graph = case(seed, Scale::Small);
        models.push((format!("random-{seed}-{}", graph.name), Model::from_graph(graph)?));
    }
    let next = AtomicUsize::new(0);
    let jobs: Vec<_> = models.iter().flat_map(|m| o.targets.iter().map(move |t| (m, *t))).collect();
    for target in &o.targets {
        std::fs::create_dir_all(o.out.join(target.to_string()))?;
    }
    let work = || -> std::io::Result<()> {
        while let Some(((name, model), target)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let text = code(model, *target).unwrap_or_else(|e| format!("{e}\n"));
            std::fs::write(o.out.join(target.to_string()).join(name), text)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        all.into_iter().try_for_each(|t| t.join().map_err(|_| std::io::Error::other("a thread panicked"))?)
    })?;
    println!("{} graphs for {} targets", models.len(), o.targets.len());
    Ok(())
}
