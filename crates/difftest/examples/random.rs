//! Tests random graphs on a device against the interpreter, fused and unfused; prints failing seeds with their graphs,
//! shrunk.
//!
//!     cargo run --release -p kiln-difftest --example random -- [--device cpu|cuda:0] [--seeds FROM..TO] [--large]
//!         [--threads N] [--shrink N] [--seconds S] [--unfused N] [--family NAME] [--schedules N] [--print]
//!
//! Cases are compiled and checked on N threads. `--shrink N` shrinks the first N failures (default 3). `--unfused N`
//! also runs one case in N without fusion (default: every case). `--family NAME` skips seeds of other families.
//! `--schedules N` runs each graph N times with schedules drawn at random instead. `--print` writes the graphs and runs
//! nothing. A fault that leaves the GPU unusable ends the process with status 3 and prints the seeds that were running:
//! try each of them alone.
use kiln::{CompileOptions, Device, Target, compile::DeviceKind, compile::open_device};
use kiln_graphgen::{Scale, case, case_inputs, shrink};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::Mutex,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

struct Options {
    device: DeviceKind,
    seeds: Range<u64>,
    scale: Scale,
    threads: usize,
    shrink: usize,
    /// After this many seconds no new seed is started.
    seconds: f64,
    /// One case in this many is also run without fusion.
    unfused: u64,
    /// Skip cases of other families.
    family: Option<String>,
    /// Runs with schedules drawn at random.
    schedules: u64,
    /// Only write the graphs.
    print: bool,
}

fn options() -> Result<Options, String> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut o = Options {
        device: DeviceKind::Cpu,
        seeds: 0..1000,
        scale: Scale::Small,
        threads: cores,
        shrink: 3,
        seconds: f64::INFINITY,
        unfused: 1,
        family: None,
        schedules: 0,
        print: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        if flag == "--print" {
            o.print = true;
            continue;
        }
        let mut value = || args.next().ok_or(format!("{flag} wants a value"));
        let number = |v: &str| v.parse::<u64>().map_err(|_| format!("`{v}` is not a number"));
        match flag.as_str() {
            "--large" => o.scale = Scale::Large,
            "--device" => match value()?.as_str() {
                "cpu" => o.device = DeviceKind::Cpu,
                "cuda:0" | "cuda" => o.device = DeviceKind::Cuda(0),
                other => return Err(format!("there is no device `{other}`; write cpu or cuda:0")),
            },
            "--seeds" => {
                let v = value()?;
                let (from, to) = v.split_once("..").ok_or("--seeds wants FROM..TO")?;
                o.seeds = number(from)?..number(to)?;
            }
            "--threads" => o.threads = number(&value()?)?.max(1) as usize,
            "--shrink" => o.shrink = number(&value()?)? as usize,
            "--unfused" => o.unfused = number(&value()?)?.max(1),
            "--schedules" => o.schedules = number(&value()?)?,
            "--family" => o.family = Some(value()?),
            "--seconds" => o.seconds = number(&value()?)? as f64,
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    Ok(o)
}

fn main() {
    let o = options().unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(2)
    });
    if o.print {
        o.seeds.for_each(|seed| println!("# seed {seed}\n{}", case(seed, o.scale)));
        return;
    }
    let all = Totals::default();
    let next = AtomicU64::new(o.seeds.start);
    let (start, printing) = (Instant::now(), &Mutex::new(()));
    std::thread::scope(|s| {
        for _ in 0..o.threads {
            s.spawn(|| {
                let device = open_device(o.device, Some(1)).unwrap_or_else(|e| {
                    eprintln!("{e}");
                    std::process::exit(1)
                });
                while start.elapsed() < Duration::try_from_secs_f64(o.seconds).unwrap_or(Duration::MAX) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= o.seeds.end {
                        break;
                    }
                    let running = |f: &dyn Fn(&mut Vec<u64>)| all.running.lock().map(|mut r| f(&mut r)).unwrap_or(());
                    running(&|r| r.push(seed));
                    one(seed, &o, &device, &all, printing);
                    running(&|r| r.retain(|s| *s != seed));
                }
            });
        }
    });
    let [tried, kernels, skipped, failed] =
        [&all.tried, &all.kernels, &all.skipped, &all.failed].map(|n| n.load(Ordering::Relaxed));
    let reasons = all.interpreted.lock().map(|r| r.clone()).unwrap_or_default();
    let interpreted: usize = reasons.values().sum();
    reasons.iter().for_each(|(why, n)| println!("interpreted {n} times: {why}"));
    println!(
        "{tried} graphs ({:?}), {kernels} kernels, {interpreted} of them interpreted; {skipped} graphs without a \
         reference; {failed} failed; {:.1} s",
        o.scale,
        start.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(failed > 0));
}

#[derive(Default)]
struct Totals {
    tried: AtomicUsize,
    kernels: AtomicUsize,
    /// Reasons why kernels have no code.
    interpreted: Mutex<BTreeMap<String, usize>>,
    skipped: AtomicUsize,
    failed: AtomicUsize,
    running: Mutex<Vec<u64>>,
}

fn one(seed: u64, o: &Options, device: &Device, all: &Totals, printing: &Mutex<()>) {
    let count = |n: &AtomicUsize, by: usize| n.fetch_add(by, Ordering::Relaxed);
    let graph = case(seed, o.scale);
    let family = graph.name.rsplit_once('_').map_or("", |n| n.0);
    if o.family.as_ref().is_some_and(|f| f != family) {
        return;
    }
    let inputs = case_inputs(&graph, seed);
    let ways = &ways(o.device)[..if seed.is_multiple_of(o.unfused) { 2 } else { 1 }];
    let attempt = |g: &kiln_graph::Graph, inputs: &[kiln::Tensor]| match o.schedules {
        0 => kiln_difftest::whole(g, inputs, ways, device),
        n => kiln_difftest::schedules(g, inputs, &ways[0], seed..seed + n, device),
    };
    let fault = match attempt(&graph, &inputs) {
        Ok(t) => {
            count(&all.tried, 1);
            count(&all.kernels, t.kernels);
            if let Ok(mut reasons) = all.interpreted.lock() {
                t.interpreted.into_iter().for_each(|why| *reasons.entry(why).or_default() += 1);
            }
            return;
        }
        Err(fault) if !fault.counts() => {
            count(&all.skipped, 1);
            return;
        }
        Err(fault) => fault,
    };
    let nth = count(&all.failed, 1);
    let unusable = |what: &str| what.contains("ILLEGAL") || what.contains("illegal") || what.contains("launch failed");
    let text = fault.to_string();
    let mut small = graph.clone();
    if nth < o.shrink && !unusable(&text) {
        let begun = Instant::now();
        let fails = |g: &kiln_graph::Graph| {
            begun.elapsed() < Duration::from_secs(10) && attempt(g, &case_inputs(g, seed)).is_err_and(|f| f.counts())
        };
        small = shrink(&graph, fails);
    }
    let now = attempt(&small, &case_inputs(&small, seed)).err().map(|f| f.to_string());
    let _held = printing.lock();
    println!("seed {seed} ({:?}): {text}\n  shrunk: {}\n{small}", o.scale, now.unwrap_or_default());
    if unusable(&text) {
        let running = all.running.lock().map(|r| r.clone()).unwrap_or_default();
        println!("the GPU is unusable from here on; seeds that were running: {running:?}");
        std::process::exit(3);
    }
}

/// Fused and unfused.
fn ways(device: DeviceKind) -> [CompileOptions; 2] {
    let target = match device {
        DeviceKind::Cpu => Target::Cpu,
        DeviceKind::Cuda(_) => Target::Sm90a,
    };
    [true, false].map(|fuse| CompileOptions { target, fuse, ..CompileOptions::default() })
}
