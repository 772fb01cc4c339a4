//! Measured times by kernel and by module: share of the run, achieved rates, gaps, predicted times.
use crate::{Compiled, Error};
use kiln_graph::Tensor;
use kiln_graph::ops::Class;
use kiln_plan::{Kernel, Stage};
use kiln_runtime::{RunTrace, Session, TimeOptions};
use serde::Serialize;
use std::collections::BTreeMap;

/// A kernel's measured and predicted time.
#[derive(Clone, Debug, Serialize)]
pub struct KernelTime {
    /// As in the plan.
    pub name: String,
    /// Its family, such as `gemm`.
    pub kind: String,
    /// Module path that all its ops share; may be empty.
    pub module: String,
    /// `null` for fallbacks, which libtorch runs.
    pub predicted_us: Option<f64>,
    /// Median of its runs, in microseconds.
    pub median_us: f64,
    /// A tenth of its runs took at most this, in microseconds.
    pub p10: f64,
    /// Nine tenths of its runs took at most this, in microseconds.
    pub p90: f64,
    /// Share of the sum over all kernels.
    pub share: f64,
    /// Bytes it reads and writes, according to the plan.
    pub bytes: u64,
    /// Floating-point operations, according to the plan.
    pub flops: u64,
    /// 10^9 bytes per second.
    pub gbps: f64,
    /// 10^12 operations per second.
    pub tflops: f64,
    /// Microseconds the device waited before it, in a traced run.
    pub gap_us: f64,
}

/// Kernels of one module.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct ModuleTime {
    /// Path of the module; may be empty.
    pub module: String,
    /// Kernels that lie in it.
    pub kernels: usize,
    /// `null` if the time of one of its kernels is unknown.
    pub predicted_us: Option<f64>,
    /// Sum of their medians, in microseconds.
    pub median_us: f64,
    /// Share of the sum over all kernels.
    pub share: f64,
    /// Bytes they read and write, according to the plan.
    pub bytes: u64,
    /// Floating-point operations, according to the plan.
    pub flops: u64,
    /// 10^9 bytes per second.
    pub gbps: f64,
    /// 10^12 operations per second.
    pub tflops: f64,
    /// Microseconds the device waited before them, in a traced run.
    pub gap_us: f64,
}

/// Times every kernel of a run by itself; the gaps are those of `trace`.
pub fn kernels(c: &Compiled, s: &Session, inputs: &[Tensor], trace: &[RunTrace]) -> Result<Vec<KernelTime>, Error> {
    let options = TimeOptions { warmup: 1, runs: 1, min_seconds: 0.0, kernel_runs: 20 };
    let profile = s.time(inputs, options)?;
    let by_name = |name: &str| profile.kernels.iter().find(|k| k.name == name);
    let all: f64 = profile.kernels.iter().map(|k| k.spread.median_us).sum();
    let run = c.plan.kernels.iter().filter(|k| k.stage == Stage::Run);
    Ok(run
        .enumerate()
        .map(|(i, k)| {
            let (median_us, p10, p90) = by_name(&k.name)
                .map_or((f64::NAN, f64::NAN, f64::NAN), |k| (k.spread.median_us, k.spread.p10_us, k.spread.p90_us));
            KernelTime {
                name: k.name.clone(),
                kind: k.kind.name().into(),
                module: module(k),
                predicted_us: k.cost.us,
                median_us,
                p10,
                p90,
                share: median_us / all,
                bytes: k.cost.bytes(),
                flops: k.cost.flops(),
                gbps: rate(k.cost.bytes(), median_us, 1e3),
                tflops: rate(k.cost.flops(), median_us, 1e6),
                gap_us: gap(trace, i),
            }
        })
        .collect())
}

/// `amount` over microseconds, in units of `scale` per second.
fn rate(amount: u64, us: f64, scale: f64) -> f64 {
    amount as f64 / us / scale
}

/// The median idle time before the i-th kernel.
fn gap(trace: &[RunTrace], i: usize) -> f64 {
    let Some(before) = i.checked_sub(1) else { return 0.0 };
    let one = |t: &RunTrace| Some((t.kernels.get(i)?.start_us - t.kernels.get(before)?.end_us).max(0.0));
    let mut all: Vec<f64> = trace.iter().filter_map(one).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// The module path that all ops of a kernel lie in.
pub fn module(k: &Kernel) -> String {
    let work = k.body.values().filter(|v| !Class::of(k.body.op(*v)).is_free() || k.body.len() == 1);
    let paths = work.map(|v| k.body.source(v).module.as_str()).filter(|m| !m.is_empty());
    let common = paths.fold(None, |common: Option<Vec<&str>>, path| {
        let parts: Vec<&str> = path.split('.').collect();
        Some(match common {
            None => parts,
            Some(c) => c.into_iter().zip(parts).take_while(|(a, b)| a == b).map(|p| p.0).collect(),
        })
    });
    common.unwrap_or_default().join(".")
}

/// Kernels grouped by module, in the order of each module's first kernel.
pub fn modules(kernels: &[KernelTime]) -> Vec<ModuleTime> {
    by(kernels, |k| k.module.clone())
}
/// The same with repeated layers grouped together: numbers in paths are replaced by `*` (`encoder.layer.*`).
pub fn folded(kernels: &[KernelTime]) -> Vec<ModuleTime> {
    let number = |part: &str| if part.parse::<usize>().is_ok() { "*".to_string() } else { part.to_string() };
    by(kernels, |k| k.module.split('.').map(number).collect::<Vec<_>>().join("."))
}

fn by(kernels: &[KernelTime], name: impl Fn(&KernelTime) -> String) -> Vec<ModuleTime> {
    let mut groups: BTreeMap<String, (usize, Vec<&KernelTime>)> = BTreeMap::new();
    for (i, k) in kernels.iter().enumerate() {
        groups.entry(name(k)).or_insert((i, vec![])).1.push(k);
    }
    let mut list: Vec<(usize, ModuleTime)> =
        groups.into_iter().map(|(m, (first, ks))| (first, total(m, &ks))).collect();
    list.sort_by_key(|m| m.0);
    list.into_iter().map(|m| m.1).collect()
}

fn total(module: String, kernels: &[&KernelTime]) -> ModuleTime {
    let sum = |f: &dyn Fn(&KernelTime) -> f64| kernels.iter().map(|k| f(k)).sum::<f64>();
    let (bytes, flops) = (kernels.iter().map(|k| k.bytes).sum(), kernels.iter().map(|k| k.flops).sum());
    let median_us = sum(&|k| k.median_us);
    ModuleTime {
        module,
        kernels: kernels.len(),
        predicted_us: kernels.iter().map(|k| k.predicted_us).sum(),
        median_us,
        share: sum(&|k| k.share),
        bytes,
        flops,
        gbps: rate(bytes, median_us, 1e3),
        tflops: rate(flops, median_us, 1e6),
        gap_us: sum(&|k| k.gap_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(module: &str, median_us: f64) -> KernelTime {
        KernelTime {
            name: String::new(),
            kind: String::new(),
            module: module.into(),
            predicted_us: Some(1.0),
            median_us,
            p10: 0.0,
            p90: 0.0,
            share: median_us / 10.0,
            bytes: 4000,
            flops: 1_000_000,
            gbps: 0.0,
            tflops: 0.0,
            gap_us: 0.5,
        }
    }

    #[test]
    fn layers_are_joined_and_rates_are_of_the_whole() {
        let list =
            [kernel("layer.0.mlp", 2.0), kernel("embed", 3.0), kernel("layer.1.mlp", 2.0), kernel("layer.1.mlp", 3.0)];
        let names = |l: &[ModuleTime]| l.iter().map(|m| (m.module.clone(), m.kernels)).collect::<Vec<_>>();
        let plain = modules(&list);
        assert_eq!(names(&plain), [("layer.0.mlp".into(), 1), ("embed".into(), 1), ("layer.1.mlp".into(), 2)]);
        let folded = folded(&list);
        assert_eq!(names(&folded), [("layer.*.mlp".into(), 3), ("embed".into(), 1)]);
        let m = &folded[0];
        assert_eq!((m.median_us, m.share, m.gap_us, m.bytes), (7.0, 0.7, 1.5, 12_000));
        assert!((m.gbps - 12_000.0 / 7.0 / 1e3).abs() < 1e-12 && (m.tflops - 3.0 / 7.0).abs() < 1e-12);
    }
}
