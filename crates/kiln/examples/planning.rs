//! Times planning: the kernels of a graph, then their schedules; and lowering of all kernels to block programs. Import
//! is left out.
//!
//!     cargo run --release -p kiln --example planning -- MACHINE [--times N] GRAPH…
//!
//! MACHINE is a built-in description (h100, h200). Prints the least seconds of N runs (5 by default).
use kiln::{CompileOptions, Model, Target};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("usage: planning MACHINE [--times N] GRAPH…")?;
    let machine = kiln_machine::machine(&name).ok_or(format!("there is no machine `{name}`"))?;
    let options = CompileOptions { target: Target::Sm90a, machine: Some(machine.clone()), ..CompileOptions::default() };
    let (mut times, mut graphs) = (5, vec![]);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--times" => times = args.next().ok_or("--times N")?.parse()?,
            _ => graphs.push(arg),
        }
    }
    println!("{:24} {:>8} {:>8} {:>8} {:>8}", "graph", "kernels", "fusing s", "plan s", "lower s");
    for path in graphs {
        let model = Model::open(path.as_ref(), &[])?;
        let search = kiln_rewrite::Options { contract: options.contract, fuse: options.fuse };
        let (mut best, mut kernels) = ([f64::INFINITY; 3], 0);
        for _ in 0..times {
            let start = Instant::now();
            kiln_rewrite::plan(&model.graph, options.machine(), &search)?;
            let fused = start.elapsed().as_secs_f64();
            let start = Instant::now();
            let plan = kiln::compile::plan(&model, &options)?;
            let planned = start.elapsed().as_secs_f64();
            let start = Instant::now();
            for k in &plan.kernels {
                std::hint::black_box(kiln_lower::lower_at(k, options.machine()).is_ok());
            }
            let lowered = start.elapsed().as_secs_f64();
            kernels = plan.kernels.len();
            [fused, planned, lowered].into_iter().zip(&mut best).for_each(|(new, best)| *best = best.min(new));
        }
        let name = std::path::Path::new(&path).file_stem().and_then(|s| s.to_str()).unwrap_or(&path);
        println!("{name:24} {kernels:8} {:8.3} {:8.3} {:8.3}", best[0], best[1], best[2]);
    }
    Ok(())
}
