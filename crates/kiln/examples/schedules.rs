//! Measures schedules of the kernels of graphs on the GPU, and writes them beside the nests in numbers: what the cost
//! model is fitted to.
//!
//!     cargo run --release -p kiln --example schedules -- OUT.json [--first N] [--random N]
//!         [--seconds S] [--seed S] [--dry MACHINE] [--also FILE] GRAPH…
//!
//! Of each kernel the schedule of the plan, the first N by price, and N others drawn at random are measured. Stops
//! after S seconds. FILE has further schedules to measure, lines of `graph<tab>kernel<tab>schedule`. `--dry` writes
//! predictions for a built-in description (h100, h200) and measures nothing.
use kiln::tune::{Budget, Sampling, TuneOptions};
use kiln::{CompileOptions, DeviceKind, Model, Target};
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let out = args.next().ok_or(
        "usage: schedules OUT.json [--first N] [--random N] [--seconds S] [--seed S] [--dry MACHINE] [--also \
         FILE] GRAPH…",
    )?;
    let mut how = Sampling { first: 6, random: 12, seed: 1, dry: false };
    let (mut seconds, mut graphs, mut dry) = (400u64, vec![], None);
    let mut also: Vec<(String, String, kiln_plan::Schedule)> = vec![];
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--first" => how.first = args.next().ok_or("--first N")?.parse()?,
            "--random" => how.random = args.next().ok_or("--random N")?.parse()?,
            "--dry" => {
                let name = args.next().ok_or("--dry MACHINE")?;
                dry = Some(kiln_machine::machine(&name).ok_or(format!("there is no machine `{name}`"))?);
                how.dry = true;
            }
            "--also" => {
                for line in std::fs::read_to_string(args.next().ok_or("--also FILE")?)?.lines() {
                    let [graph, kernel, schedule] = line.split('\t').collect::<Vec<_>>()[..] else {
                        return Err(format!("not a graph, a kernel and a schedule: {line}").into());
                    };
                    also.push((graph.to_string(), kernel.to_string(), schedule.parse::<kiln_plan::Schedule>()?));
                }
            }
            "--seconds" => seconds = args.next().ok_or("--seconds S")?.parse()?,
            "--seed" => how.seed = args.next().ok_or("--seed S")?.parse()?,
            _ => graphs.push(arg),
        }
    }
    let mut file = std::io::BufWriter::new(std::fs::File::create(&out)?);
    let start = Instant::now();
    let options = match dry {
        None => CompileOptions::default().on(DeviceKind::Cuda(0))?,
        Some(machine) => {
            CompileOptions { target: Target::Sm90a, machine: Some(machine.clone()), ..CompileOptions::default() }
        }
    };
    for path in graphs {
        if start.elapsed().as_secs() > seconds {
            eprintln!("out of time before {path}");
            break;
        }
        let run = || -> Result<Vec<serde_json::Value>, kiln::Error> {
            let model = Model::open(std::path::Path::new(&path), &[])?;
            let tune = TuneOptions {
                compile: options.clone(),
                gpu: 0,
                kernel: None,
                again: true,
                budget: Budget { rounds: 5, slower: 1e9, most: usize::MAX, factor: f64::INFINITY, ..Budget::default() },
            };
            let further = |kernel: &str| {
                let here = also.iter().filter(|a| a.0 == model.graph.name && a.1 == kernel);
                here.map(|a| a.2.clone()).collect()
            };
            kiln::tune::sample(&model, &tune, how, &further)
        };
        match run() {
            Ok(kernels) => {
                for k in kernels {
                    writeln!(file, "{}", serde_json::json!({"graph": path, "kernel": k}))?;
                }
                file.flush()?;
            }
            Err(e) => eprintln!("{path}: {e}"),
        }
    }
    Ok(())
}
