//! The search. It drops candidates whose predicted time is far above the best before anything is compiled, compiles the
//! others in parallel, and samples them round-robin, so that a change of the GPU's clock affects all of them;
//! candidates that are clearly slower are dropped early. Then it does the same for the neighbours of the best.
use kiln_plan::Schedule;
use rayon::prelude::*;

/// A schedule with the time that the cost model predicts, in microseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    pub schedule: Schedule,
    pub us: f64,
}

/// Compiles and times candidates.
pub trait Bench: Sync {
    /// A compiled candidate; candidates with equal code are measured once.
    type Code: Send + PartialEq;
    /// Loaded candidates, ready to run.
    type Ready;
    /// Compiles one; called from several threads. The error says why it does not apply to the kernel.
    fn compile(&self, schedule: &Schedule) -> Result<Self::Code, String>;
    /// Loads candidates, in their order.
    fn load(&mut self, codes: Vec<Self::Code>) -> Result<Self::Ready, String>;
    /// One sample of the n-th loaded candidate, in microseconds.
    fn sample(&mut self, ready: &mut Self::Ready, n: usize) -> Result<f64, String>;
}

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Budget {
    /// Most candidates compiled in the first pass, and again in the pass over the neighbours of the best.
    pub most: usize,
    /// Candidates predicted to take more than this many times the least prediction are left out.
    pub factor: f64,
    /// Samples of each candidate that is not dropped.
    pub rounds: usize,
    /// A candidate is dropped when its fastest sample is slower than the best median by this factor.
    pub slower: f64,
    /// Speedup over the untuned default that the best needs to replace it.
    pub gain: f64,
}
impl Default for Budget {
    fn default() -> Budget {
        Budget { most: 20, factor: 1.6, rounds: 9, slower: 1.03, gain: 1.005 }
    }
}

/// The result of a search.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    pub best: Schedule,
    /// Median of its samples.
    pub us: f64,
    /// The schedule without tuning, and its median in the same rounds.
    pub default: Schedule,
    pub default_us: f64,
    /// Number of candidates given.
    pub candidates: usize,
    /// What was measured, in both passes.
    pub measured: Vec<Timed>,
}

/// A schedule and the median of its samples.
#[derive(Clone, PartialEq, Debug)]
pub struct Timed {
    pub schedule: Schedule,
    pub us: f64,
    pub samples: usize,
}

/// Progress of a search.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// Samples taken, of those expected.
    pub done: usize,
    pub of: usize,
    pub best: Option<(Schedule, f64)>,
}

/// The fastest of `candidates`, the first of which is the untuned default, and of the `neighbours` of the best of them.
pub fn search<B: Bench>(
    bench: &mut B,
    candidates: &[Candidate],
    neighbours: impl Fn(&Schedule) -> Result<Vec<Schedule>, String>,
    budget: &Budget,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, String> {
    let default = candidates.first().ok_or("there is no candidate")?.schedule.clone();
    let first = measure(bench, promising(candidates, budget), budget, progress)?;
    let near: Vec<Schedule> =
        neighbours(&first.best.schedule)?.into_iter().filter(|t| !first.tried.contains(t)).collect();
    let Measured { mut best, mut medians, .. } = first;
    // Invariant: `measure` gives a median for the first of its list, or fails.
    let mut default_us = medians[0].us;
    if !near.is_empty() {
        // The best so far goes first and is measured again together with its neighbours.
        let list = [vec![best.schedule, default.clone()], near].concat();
        let second = measure(bench, list[..list.len().min(budget.most)].to_vec(), budget, progress)?;
        best = second.best;
        default_us = second.medians.iter().find(|m| m.schedule == default).map_or(default_us, |m| m.us);
        medians.extend(second.medians);
    }
    let wins = best.us * budget.gain < default_us;
    let (schedule, us) = if wins { (best.schedule, best.us) } else { (default.clone(), default_us) };
    Ok(Outcome { best: schedule, us, default, default_us, candidates: candidates.len(), measured: medians })
}

/// The default and the candidates predicted to be close to the best; those of the library, which the model predicts
/// least reliably, come first.
fn promising(candidates: &[Candidate], budget: &Budget) -> Vec<Schedule> {
    let least = candidates.iter().map(|c| c.us).fold(f64::INFINITY, f64::min);
    // Invariant: `search` checked that there is a first candidate.
    let (default, rest) = candidates.split_at(1);
    let mut rest: Vec<&Candidate> = rest.iter().filter(|c| c.us <= least * budget.factor).collect();
    let own = |c: &Candidate| !c.schedule.is_call();
    rest.sort_by(|a, b| own(a).cmp(&own(b)).then(a.us.total_cmp(&b.us)));
    let rest = rest.into_iter().map(|c| &c.schedule).filter(|c| **c != default[0].schedule);
    default.iter().map(|c| &c.schedule).chain(rest).take(budget.most).cloned().collect()
}

struct Measured {
    best: Timed,
    tried: Vec<Schedule>,
    /// In the order of the list.
    medians: Vec<Timed>,
}

/// Compiles and measures a list. The first must compile; others that do not are left out.
fn measure<B: Bench>(
    bench: &mut B,
    list: Vec<Schedule>,
    budget: &Budget,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, String> {
    let compiled: Vec<_> = list.par_iter().map(|t| bench.compile(t)).collect();
    let (mut schedules, mut codes) = (vec![], vec![]);
    for (schedule, code) in list.iter().zip(compiled) {
        match code {
            Ok(code) if !codes.contains(&code) => {
                schedules.push(schedule.clone());
                codes.push(code);
            }
            Err(why) if schedules.is_empty() => return Err(why),
            _ => {}
        }
    }
    let mut ready = bench.load(codes)?;
    let mut samples: Vec<Vec<f64>> = vec![vec![]; schedules.len()];
    // One discarded sample each as warm-up.
    for n in 0..schedules.len() {
        bench.sample(&mut ready, n)?;
    }
    let mut remaining: Vec<usize> = (0..schedules.len()).collect();
    for round in 0..budget.rounds {
        for &n in &remaining {
            samples[n].push(bench.sample(&mut ready, n)?);
        }
        let best = best(&samples, &remaining);
        progress(Progress {
            done: round + 1,
            of: budget.rounds,
            best: best.map(|n| (schedules[n].clone(), median(&samples[n]))),
        });
        if let Some(best) = best.filter(|_| round >= 1) {
            let limit = median(&samples[best]) * budget.slower;
            let fastest = |n: usize| samples[n].iter().copied().fold(f64::INFINITY, f64::min);
            // The first is never dropped: the others are compared with it.
            remaining.retain(|&n| n == 0 || fastest(n) <= limit);
        }
    }
    let n = best(&samples, &remaining).ok_or("nothing was measured")?;
    let timed = |(t, s): (&Schedule, &Vec<f64>)| Timed { schedule: t.clone(), us: median(s), samples: s.len() };
    let medians: Vec<Timed> = schedules.iter().zip(&samples).map(timed).collect();
    Ok(Measured { best: medians[n].clone(), tried: list, medians })
}

/// The candidate with the least median; the first of equals.
fn best(samples: &[Vec<f64>], among: &[usize]) -> Option<usize> {
    among.iter().copied().min_by(|a, b| median(&samples[*a]).total_cmp(&median(&samples[*b])))
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::INFINITY,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, sync::Mutex};

    /// A bench with fixed times: one per schedule, and a periodic slowdown by `wave` of all of them.
    #[derive(Default)]
    struct Fake {
        us: BTreeMap<String, f64>,
        wave: f64,
        clock: usize,
        compiled: Mutex<Vec<String>>,
        sampled: BTreeMap<String, usize>,
        unloadable: bool,
    }
    impl Fake {
        fn new(times: &[(&str, f64)]) -> Fake {
            Fake { us: times.iter().map(|(t, us)| (t.to_string(), *us)).collect(), ..Fake::default() }
        }
    }
    impl Bench for Fake {
        type Code = String;
        type Ready = Vec<String>;
        fn compile(&self, schedule: &Schedule) -> Result<String, String> {
            let name = schedule.to_string();
            self.compiled.lock().expect("no thread panicked").push(name.clone());
            if self.us.contains_key(&name) { Ok(name) } else { Err(format!("{name} does not fit")) }
        }
        fn load(&mut self, codes: Vec<String>) -> Result<Vec<String>, String> {
            if self.unloadable { Err("out of memory".into()) } else { Ok(codes) }
        }
        fn sample(&mut self, ready: &mut Vec<String>, n: usize) -> Result<f64, String> {
            self.clock += 1;
            *self.sampled.entry(ready[n].clone()).or_default() += 1;
            let slow = if (self.clock / 7).is_multiple_of(3) { self.wave } else { 0.0 };
            Ok(self.us[&ready[n]] * (1.0 + slow))
        }
    }
    fn schedule(text: &str) -> Schedule {
        text.parse().expect("a schedule")
    }
    fn list(times: &[(&str, f64)]) -> Vec<Candidate> {
        times.iter().map(|(t, us)| Candidate { schedule: schedule(t), us: *us }).collect()
    }
    fn found(bench: &mut Fake, predicted: &[(&str, f64)], near: &[&str]) -> Outcome {
        let near: Vec<Schedule> = near.iter().map(|t| schedule(t)).collect();
        search(bench, &list(predicted), |_| Ok(near.clone()), &Budget::default(), &mut |_| {}).expect("an outcome")
    }

    #[test]
    fn the_fastest_wins_whatever_was_predicted_and_those_without_a_chance_are_not_compiled() {
        let times = [
            ("tensor-core mma 64x64x64", 10.0),
            ("tensor-core wgmma 64x64x64", 7.0),
            ("tensor-core wgmma 128x256x64", 8.0),
            ("split r 64", 1.0),
        ];
        let mut bench = Fake { wave: 0.4, ..Fake::new(&times) };
        let predicted = [
            ("tensor-core mma 64x64x64", 9.0),
            ("tensor-core wgmma 128x256x64", 5.0),
            ("tensor-core wgmma 64x64x64", 6.0),
            ("split r 64", 99.0),
        ];
        let o = found(&mut bench, &predicted, &[]);
        assert_eq!(
            (o.best.clone(), o.default.clone()),
            (schedule("tensor-core wgmma 64x64x64"), schedule("tensor-core mma 64x64x64"))
        );
        assert!(o.us < o.default_us && o.measured.len() == 3 && o.candidates == 4, "{o:?}");
        assert!(!bench.compiled.lock().expect("no thread panicked").contains(&"split r 64".to_string()));
    }
    #[test]
    fn slow_ones_leave_early_and_the_default_stays() {
        let times = [
            ("tensor-core mma 64x64x64", 30.0),
            ("tensor-core wgmma 64x64x64", 7.0),
            ("tensor-core wgmma 64x128x64", 12.0),
        ];
        let mut bench = Fake::new(&times);
        let o = found(&mut bench, &times.map(|t| (t.0, 1.0)), &[]);
        let n = |name: &str| bench.sampled[name];
        assert_eq!(
            (n("tensor-core mma 64x64x64"), n("tensor-core wgmma 64x64x64")),
            (10, 10),
            "the warm-up and nine rounds"
        );
        assert_eq!(n("tensor-core wgmma 64x128x64"), 3, "the warm-up and two rounds");
        let samples: Vec<usize> = o.measured.iter().map(|m| m.samples).collect();
        assert_eq!((samples, o.us, o.default_us), (vec![9, 9, 2], 7.0, 30.0));
    }
    #[test]
    fn a_gain_within_the_noise_leaves_the_default() {
        let o = found(
            &mut Fake::new(&[("tensor-core mma 64x64x64", 10.0), ("split r 64", 9.99)]),
            &[("tensor-core mma 64x64x64", 1.0), ("split r 64", 1.0)],
            &[],
        );
        assert_eq!((o.best, o.us), (schedule("tensor-core mma 64x64x64"), 10.0));
    }
    #[test]
    fn neighbours_of_the_best_are_measured_beside_it() {
        let times = [
            ("tensor-core mma 64x64x64", 10.0),
            ("tensor-core wgmma 64x64x64", 7.0),
            ("tensor-core wgmma 64x64x64; group m 4", 6.0),
            ("tensor-core wgmma 64x64x64; group m 8", 6.5),
        ];
        let near = [
            "tensor-core wgmma 64x64x64; group m 8",
            "tensor-core wgmma 64x64x64; group m 4",
            "tensor-core wgmma 64x64x64; stage a,b shared 99",
        ];
        let o = found(
            &mut Fake::new(&times),
            &[("tensor-core mma 64x64x64", 1.0), ("tensor-core wgmma 64x64x64", 1.0)],
            &near,
        );
        assert_eq!((o.best, o.us, o.default_us), (schedule("tensor-core wgmma 64x64x64; group m 4"), 6.0, 10.0));
    }
    #[test]
    fn a_search_repeats_itself() {
        let names: Vec<String> = (1..=40).map(|n| format!("tensor-core wgmma 64x64x64; group m {n}")).collect();
        let times: Vec<(&str, f64)> =
            names.iter().enumerate().map(|(i, n)| (n.as_str(), 5.0 + (i * 7 % 40) as f64 / 10.0)).collect();
        let run = || {
            let mut seen = vec![];
            let mut bench = Fake { wave: 0.3, ..Fake::new(&times) };
            let o = search(&mut bench, &list(&times), |_| Ok(vec![]), &Budget::default(), &mut |p| seen.push(p));
            (o, seen, bench.sampled)
        };
        let (o, seen, sampled) = run();
        assert_eq!((o.clone(), seen.clone(), sampled), run());
        assert_eq!(o.expect("an outcome").measured.len(), Budget::default().most);
        assert!(seen.iter().all(|p| p.done <= p.of && p.best.is_some()));
    }
    #[test]
    fn what_does_not_compile_is_left_out_unless_it_is_the_default() {
        let mut bench = Fake::new(&[("tensor-core mma 64x64x64", 10.0), ("split r 64", 5.0)]);
        let o = found(
            &mut bench,
            &[("tensor-core mma 64x64x64", 1.0), ("tensor-core wgmma 64x64x64", 1.0), ("split r 64", 1.0)],
            &[],
        );
        assert_eq!((o.best, o.measured.len()), (schedule("split r 64"), 2));
        let none = |c: &[Candidate], bench: &mut Fake| {
            search(bench, c, |_| Ok(vec![]), &Budget::default(), &mut |_| {}).expect_err("no outcome")
        };
        assert_eq!(none(&list(&[("fma 64x64", 1.0)]), &mut bench), "fma 64x64 does not fit");
        assert_eq!(none(&[], &mut bench), "there is no candidate");
        bench.unloadable = true;
        assert_eq!(none(&list(&[("split r 64", 1.0)]), &mut bench), "out of memory");
    }
}
