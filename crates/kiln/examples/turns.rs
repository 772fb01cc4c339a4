//! Text graphs on the host, timed when another process asks for it: for benches that take turns with other libraries.
//!
//!     cargo run --release -p kiln --example turns
//!
//! Reads lines and answers each with one: `load GRAPH.kiln THREADS` with `ready`, in the place of what was loaded before, and
//! `time SECONDS` with the microseconds of the fastest of the runs that fit into that time, three at least.
use kiln::{CompileOptions, Model, compile::DeviceKind};
use kiln_graph::Tensor;
use kiln_runtime::{Device, Session};
use std::{
    collections::HashMap,
    error::Error,
    io::BufRead,
    time::{Duration, Instant},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut devices: HashMap<usize, Device> = HashMap::new();
    let mut loaded: Option<(Session, Vec<Tensor>)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["load", path, threads] => {
                let model = Model::open(path.as_ref(), &[])?;
                let compiled = kiln::compile(&model, &CompileOptions::default())?;
                let threads = threads.parse()?;
                if !devices.contains_key(&threads) {
                    devices.insert(threads, kiln::compile::open_device(DeviceKind::Cpu, Some(threads))?);
                }
                loaded = Some((compiled.session_in(&devices[&threads])?, model.example_inputs(1)));
                println!("ready");
            }
            ["time", seconds] => {
                let (session, inputs) = loaded.as_ref().ok_or("nothing is loaded")?;
                println!("{:.3}", fastest(session, inputs, Duration::from_secs_f64(seconds.parse()?))?);
            }
            _ => return Err(format!("`{line}` is neither `load GRAPH THREADS` nor `time SECONDS`").into()),
        }
    }
    Ok(())
}

/// Microseconds of the fastest run.
fn fastest(session: &Session, inputs: &[Tensor], total: Duration) -> Result<f64, Box<dyn Error>> {
    for _ in 0..3 {
        session.run(inputs)?;
    }
    let (begin, mut best, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < 3 || begin.elapsed() < total {
        let start = Instant::now();
        let outputs = session.run(inputs)?;
        best = best.min(start.elapsed().as_secs_f64());
        drop(outputs);
        runs += 1;
    }
    Ok(best * 1e6)
}
