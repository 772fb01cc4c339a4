//! Fits the figures of points, rows and scans in a machine's description ([`kiln_machine::Nests`]) to measured
//! schedules.
//!
//!     cargo run --release -p kiln --example fit -- MACHINE OUT.json [--moves N] [--listed N]
//!         [--only FIGURE,…] MEASURED…
//!
//! MACHINE is a built-in description or a file; MEASURED is what `--example schedules` wrote on that machine. A few
//! figures at a time, drawn at random, are made larger or smaller where the loss falls: the relative errors of prices,
//! and how much longer the cheapest schedule of a nest takes than the best measured one. `--only`: those of a memory,
//! say, where another description has those of the chip. Every fourth nest is kept out of the fit. Writes the figures;
//! prints the errors before and after.
use kiln_graph::Random;
use kiln_lower::facts::NestFeatures;
use kiln_lower::price::TileFootprint;
use kiln_machine::Machine;
use kiln_plan::{Contract, Hardware, Schedule, Step};
use serde_json::Value;
use std::collections::BTreeMap;

/// A measured schedule.
struct Sample {
    text: String,
    work: TileFootprint,
    us: f64,
}

/// The schedules of a nest.
struct Measured {
    graph: String,
    facts: NestFeatures,
    /// The schedule that the build of the measurement gave it.
    default: String,
    samples: Vec<Sample>,
}

/// How much the time of a chosen schedule counts, relative to errors of prices; prices that are closer than that are as
/// good as equal.
const CHOICE: f64 = 4.0;
const CLOSE: f64 = 0.015;
/// Short kernels are measured with outliers: none counts as so many times as slow as the best.
const SHORT: f64 = 4.0;
const WORST: f64 = 1.5;
/// Their weight.
const OF_SHORT: f64 = 0.3;
/// Kernels from which on a choice matters most, in microseconds, and their weight.
const LONG: f64 = 100.0;
const OF_LONG: f64 = 2.0;
/// How much worse figures may become in a move of the fit, at first.
const HEAT: f64 = 0.002;
/// Errors from which on larger ones count linearly.
const LARGE: f64 = 0.2;

fn read(path: &str) -> Result<Vec<Measured>, Box<dyn std::error::Error>> {
    let mut all = vec![];
    for (n, line) in std::fs::read_to_string(path)?.lines().enumerate() {
        let broken = |e: serde_json::Error| format!("{path}, line {}: {e}", n + 1);
        let mut of: Value = serde_json::from_str(line).map_err(broken)?;
        let kernel = &mut of["kernel"];
        // Kernels that are no nests: matmuls, attention.
        let Some(facts) = serde_json::from_value::<Option<NestFeatures>>(kernel["nest"].take()).map_err(broken)? else {
            continue;
        };
        // A schedule that did not run has no time.
        let measured: Vec<(String, Option<f64>)> = serde_json::from_value(kernel["measured"].take()).map_err(broken)?;
        let mut samples: Vec<Sample> = vec![];
        for (text, us) in measured.into_iter().filter_map(|(text, us)| Some((text, us?))) {
            let schedule: Schedule = text.parse()?;
            // The nest of widened rows is another one, and that of unrolled axes.
            let another = matches!(schedule.steps.first(), Some(Step::Widen(..) | Step::Unroll(..)));
            if !another && us.is_finite() && us > 0.0 {
                samples.push(Sample { text, work: TileFootprint::of(&facts, &schedule), us });
            }
        }
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        let (graph, default) = (text(&of["graph"]), text(&of["kernel"]["default"]));
        if samples.len() > 1 {
            all.push(Measured { graph, facts, default, samples });
        }
    }
    Ok(all)
}

/// Predictions of a nest's schedules.
fn prices(of: &Measured, machine: &Hardware) -> Vec<f64> {
    of.samples.iter().map(|s| s.work.price(&of.facts, machine).us).collect()
}

fn best(of: &Measured) -> f64 {
    of.samples.iter().map(|s| s.us).fold(f64::INFINITY, f64::min)
}

/// The time of the schedule with the least price.
fn chosen(of: &Measured, prices: &[f64]) -> f64 {
    let least = prices.iter().zip(&of.samples).min_by(|a, b| a.0.total_cmp(b.0));
    least.map_or(f64::INFINITY, |s| s.1.us)
}

fn loss(nests: &[&Measured], machine: &Hardware) -> f64 {
    let part = |n: &&Measured| match best(n) {
        us if us < SHORT => OF_SHORT,
        us if us > LONG => OF_LONG,
        _ => 1.0,
    };
    let of = |n: &&Measured| {
        let (prices, best) = (prices(n, machine), best(n));
        let (mut sum, mut weights) = (0.0, 0.0);
        for (p, s) in prices.iter().zip(&n.samples) {
            let error = (p / s.us).ln().abs();
            let cost = if error < LARGE { error * error / LARGE } else { 2.0 * error - LARGE };
            // What is far from the best need not be priced well.
            let weight = 1.0 / (1.0 + 4.0 * (s.us / best - 1.0));
            sum += weight * cost;
            weights += weight;
        }
        let least = prices.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut times, mut shares) = (0.0, 0.0);
        for (p, s) in prices.iter().zip(&n.samples) {
            let share = (-(p / least).ln() / CLOSE).exp();
            times += share * (s.us / best).min(if best < SHORT { WORST } else { f64::INFINITY }).ln();
            shares += share;
        }
        part(n) * (sum / weights + CHOICE * times / shares)
    };
    nests.iter().map(of).sum::<f64>() / nests.iter().map(part).sum::<f64>()
}

/// The names of the figures.
fn figures(of: &Value) -> Vec<String> {
    of.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect()
}

fn quantile(all: &mut [f64], q: f64) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(((all.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(f64::NAN)
}

fn mean(all: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = all.map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// Errors by family, which is the name of a graph up to its first digit.
fn report(nests: &[&Measured], machine: &Hardware, listed: usize) {
    let mut families: BTreeMap<String, Vec<&Measured>> = BTreeMap::new();
    for n in nests {
        let file = n.graph.rsplit('/').next().unwrap_or_default();
        let family = file.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
        families.entry(family.trim_end_matches(['_', 'x']).to_string()).or_default().push(n);
    }
    families.insert("all".into(), nests.to_vec());
    println!("| family | nests | default / best | model / best, worst | error: median, p90 | of the fastest |");
    println!("|---|---|---|---|---|---|");
    for (family, nests) in families {
        let (mut errors, mut of_best) = (vec![], vec![]);
        for n in &nests {
            let best = best(n);
            for (p, s) in prices(n, machine).iter().zip(&n.samples) {
                let error = (p / s.us - 1.0).abs();
                errors.push(error);
                of_best.extend((s.us < 1.05 * best).then_some(error));
            }
        }
        let regret = |n: &&Measured| chosen(n, &prices(n, machine)) / best(n);
        let default =
            nests.iter().filter_map(|n| n.samples.iter().find(|s| s.text == n.default).map(|s| s.us / best(n)));
        println!(
            "| {family} | {} | {:.3} | {:.3}, {:.2} | {:.3}, {:.2} | {:.3}, {:.2} |",
            nests.len(),
            mean(default),
            mean(nests.iter().map(regret)),
            nests.iter().map(regret).fold(1.0, f64::max),
            quantile(&mut errors, 0.5),
            quantile(&mut errors, 0.9),
            quantile(&mut of_best, 0.5),
            quantile(&mut of_best, 0.9),
        );
    }
    let mut worst: Vec<&&Measured> = nests.iter().collect();
    let regret = |n: &&&Measured| chosen(n, &prices(n, machine)) / best(n);
    worst.sort_by(|a, b| regret(b).total_cmp(&regret(a)));
    for n in worst.into_iter().take(listed) {
        let prices = prices(n, machine);
        println!("\n{} {:?} {} bytes", n.graph, n.facts.coords, n.facts.bytes);
        let mut all: Vec<(f64, &Sample)> = prices.into_iter().zip(&n.samples).collect();
        all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        let first = all.iter().map(|s| s.0).fold(f64::INFINITY, f64::min);
        for (i, (p, s)) in all.iter().enumerate() {
            if i < 2 || *p == first || s.text == n.default {
                let mark = if s.text == n.default { " (default)" } else { "" };
                println!("  {:8.2} predicted {:8.2}  {}{mark}", s.us, p, s.text);
                println!("           {:?}", s.work.price(&n.facts, machine));
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: fit MACHINE OUT.json [--moves N] [--listed N] [--only FIGURE,…] MEASURED…";
    let (name, out) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let mut machine: Machine = match kiln_machine::machine(&name) {
        Some(built_in) => built_in.clone(),
        None => Machine::parse(&std::fs::read_to_string(&name)?)?,
    };
    let (mut moves, mut listed, mut nests, mut only) = (20000usize, 0usize, vec![], None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--moves" => moves = args.next().ok_or(usage)?.parse()?,
            "--only" => only = Some(args.next().ok_or(usage)?),
            "--listed" => listed = args.next().ok_or(usage)?.parse()?,
            _ => nests.extend(read(&arg)?),
        }
    }
    if nests.is_empty() {
        return Err("no nest with two measured schedules in the files: measure with `--example schedules`".into());
    }
    let out_of: Vec<&Measured> = nests.iter().skip(3).step_by(4).collect();
    let fitted: Vec<&Measured> = nests.iter().enumerate().filter(|n| n.0 % 4 != 3).map(|n| n.1).collect();
    let under =
        |machine: &Machine, nests: &[&Measured]| loss(nests, &Hardware { machine, contract: Contract::default() });
    let mut least = under(&machine, &fitted);
    println!("loss {least:.4}, kept out {:.4}", under(&machine, &out_of));
    let mut names = figures(&serde_json::to_value(&machine.nests)?);
    if let Some(only) = &only {
        let wanted: Vec<&str> = only.split(',').collect();
        if let Some(other) = wanted.iter().find(|w| !names.iter().any(|n| n == *w)) {
            return Err(format!("no figure is called `{other}`; they are {}", names.join(", ")).into());
        }
        names.retain(|n| wanted.contains(&n.as_str()));
    }
    let mut random = Random::new(1);
    let mut best = (least, machine.clone());
    for n in 0..moves {
        let done = n as f64 / moves as f64;
        let width = 0.4 * (0.05f64).powf(done);
        let mut values = serde_json::to_value(&machine.nests)?;
        for _ in 0..1 + random.next_below(3) {
            let value = &mut values[&names[random.next_below(names.len())]];
            // From 0 on, not only from what it is.
            let least = 0.003 * random.uniform();
            let next =
                value.as_f64().unwrap_or(0.0).max(least) * (width * (random.uniform() + random.uniform() - 1.0)).exp();
            *value = serde_json::json!(format!("{next:.3e}").parse::<f64>()?);
        }
        let tried = Machine { nests: serde_json::from_value(values)?, ..machine.clone() };
        let found = under(&tried, &fitted);
        // Simulated annealing: what is a little worse is left behind less and less.
        if found < least - HEAT * (1.0 - done).powi(3) * random.uniform().max(1e-9).ln() {
            (least, machine) = (found, tried);
        }
        if least < best.0 {
            best = (least, machine.clone());
        }
        if (n + 1) % (moves / 8).max(1) == 0 {
            println!("{} moves: loss {least:.4}, kept out {:.4}", n + 1, under(&machine, &out_of));
        }
    }
    machine = best.1;
    let hardware = Hardware { machine: &machine, contract: Contract::default() };
    println!("\nfitted:\n");
    report(&fitted, &hardware, listed);
    println!("\nkept out:\n");
    report(&out_of, &hardware, 0);
    std::fs::write(&out, serde_json::to_string_pretty(&machine.nests)?)?;
    Ok(())
}
