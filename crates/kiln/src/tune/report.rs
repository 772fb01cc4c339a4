//! Results of tuning, as text and JSON.
use crate::explain::{count, tail};
use kiln_plan::Kernel;
use kiln_tune::Entry;
use serde::Serialize;
use std::fmt::Write as _;

/// `tune --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// Name of the graph.
    pub model: String,
    /// Name of the GPU.
    pub device: String,
    /// One for each problem.
    pub kernels: Vec<KernelTuning>,
}

/// Result of tuning for one problem.
#[derive(Clone, Debug, Serialize)]
pub struct KernelTuning {
    /// The kernels that have this problem.
    pub names: Vec<String>,
    /// `measured` now, `known` from the store, or `one form` if only one schedule fits.
    pub state: &'static str,
    /// The store's entry.
    pub entry: Option<Entry>,
    /// All schedules that were measured now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
    /// Seconds that tuning took.
    pub seconds: f64,
}

/// A schedule, and the median of its samples.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// In the syntax of constraints.
    pub schedule: String,
    /// Median in microseconds.
    pub us: f64,
    /// Number of samples.
    pub samples: usize,
}
impl From<&kiln_tune::Timed> for Tried {
    fn from(t: &kiln_tune::Timed) -> Tried {
        Tried { schedule: t.schedule.to_string(), us: super::rounded(t.us), samples: t.samples }
    }
}

impl KernelTuning {
    /// The result for the kernels of one problem; `known`: the entry was already in the store.
    pub fn new(
        kernels: &[&Kernel],
        entry: Option<Entry>,
        known: bool,
        tried: Vec<Tried>,
        seconds: f64,
    ) -> KernelTuning {
        let state = match (&entry, known) {
            (None, _) => "one form",
            (Some(_), true) => "known",
            (Some(_), false) => "measured",
        };
        KernelTuning { names: kernels.iter().map(|k| k.name.clone()).collect(), state, entry, tried, seconds }
    }
}

impl Tuned {
    /// For a terminal of `width` columns.
    pub fn text(&self, width: usize) -> String {
        let n = self.kernels.iter().map(|k| k.names.len()).sum();
        let (kernels, problems) = (count(n, "kernel"), count(self.kernels.len(), "problem"));
        let mut t = format!("{} on {}: {kernels}, {problems}\n", self.model, self.device);
        if self.kernels.is_empty() {
            return t;
        }
        let names = self.kernels.iter().filter_map(|k| k.names.first()).map(String::len);
        let name = names.max().unwrap_or(0).clamp(6, width.saturating_sub(64).max(12));
        let _ = writeln!(
            t,
            "\n{:>4} {:name$} {:>11} {:>9} {:>7}  schedule",
            "n", "kernel", "untuned us", "tuned us", "gain"
        );
        for k in &self.kernels {
            let first = k.names.first().map_or("", String::as_str);
            let _ = write!(t, "{:>4} {:name$} ", k.names.len(), tail(first, name));
            let _ = match &k.entry {
                None => writeln!(t, "{:>11} {:>9} {:>7}  only one fits", "", "", ""),
                Some(e) => {
                    let gain = 100. * (e.default_us / e.us - 1.0);
                    let schedule = if e.schedule == e.default { "same as untuned" } else { &e.schedule };
                    let known = if k.state == "known" { " (from the store)" } else { "" };
                    writeln!(t, "{:>11.2} {:>9.2} {gain:>5.1} %  {schedule}{known}", e.default_us, e.us)
                }
            };
        }
        t
    }
}
