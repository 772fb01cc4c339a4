//! The report: what was fused, why, at what predicted cost. Takes a compiled model, gives one struct, [`Report`], from
//! which text, JSON and HTML page are made. It is stored in the artifact, so that explaining an artifact needs no
//! compilation.
//!
//! What it says of a kernel comes from the plan: each value of a kernel's body keeps the names it has in the imported
//! graph, or, where a rule made it, what it is computed from, and the rules.
//!
//! The JSON form is versioned: `schema` is [`SCHEMA`], and a report of another schema is refused. It holds no measured
//! times and depends on the graph, the machine description and the options alone. The fields are described in
//! `docs/src/explain-json.md`.
mod build;
mod kernel;
mod summary;

use crate::Error;
use kiln_plan::{Alternative, Search, Terms, Tuning};
use serde::{Deserialize, Serialize};

pub use crate::op_names::op_name;
pub use crate::wrap::{tail, wrapped};
pub use build::ops;
pub use kiln_graph::{count, plural};

/// Says what a sum of predicted times leaves out: empty, or `, without 2 fallbacks, whose time is unknown`.
pub fn left_out(unpriced: usize) -> String {
    if unpriced == 0 {
        return String::new();
    }
    format!(", without {}, whose time is unknown", count(unpriced, "fallback"))
}

/// Version of the JSON form.
pub const SCHEMA: u32 = 3;

/// Most kernels listed for a value or a buffer, since the lists of n kernels that read one value would have n² entries.
pub const LISTED: usize = 16;

/// `explain --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the graph.
    pub model: String,
    /// Name of the target.
    pub target: String,
    /// Name of the machine description that the plan is made for.
    pub machine: String,
    /// How far results may differ from the graph as written.
    pub numerics: String,
    /// Number of ops of the imported graph, without inputs, parameters and constants.
    pub nodes: usize,
    /// The kernels of a run, in order.
    pub kernels: Vec<KernelReport>,
    /// Kernels that run once, when weights are loaded.
    pub load_kernels: Vec<KernelReport>,
    /// Ops that libtorch or the interpreter runs.
    pub fallback: Vec<String>,
    /// The same with reasons.
    pub fallback_why: Vec<Fallback>,
    /// Microseconds that no plan can beat by the roofline: the time to move inputs, weights and results once, or of
    /// matmuls at peak rate.
    pub lower_bound_us: f64,
    /// Sum over all kernels except those whose time is unknown.
    pub predicted_us: f64,
    /// The same by the roofline, which chooses kernels.
    pub roofline_us: f64,
    /// Number of kernels of a run whose time is unknown, because libtorch runs them.
    #[serde(default)]
    pub unpriced: usize,
    /// What the search did (saturation, extraction, planning).
    pub search: Search,
}

/// An op that is not compiled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fallback {
    /// Its name.
    pub op: String,
    /// The kernel that calls it.
    pub kernel: String,
    /// Why it is not compiled.
    pub why: String,
    /// Where it is in the model's source; may be empty.
    pub line: String,
}

/// A kernel of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// As in the plan.
    pub name: String,
    /// Its family, such as `gemm`.
    pub kind: String,
    /// Names of the ops in order, without inputs and constants.
    pub nodes: Vec<String>,
    /// Bytes read from memory, predicted.
    pub bytes_read: u64,
    /// Bytes written to memory, predicted.
    pub bytes_written: u64,
    /// Floating-point operations, predicted.
    pub flops: u64,
    /// By the kernel's schedule; `null` for fallbacks, which libtorch runs.
    pub predicted_us: Option<f64>,
    /// By the roofline, with which the alternative and the stops compare.
    pub roofline_us: Option<f64>,
    /// Why the kernel is as it is, in one line.
    pub reason: String,
    /// The terms of the roofline.
    pub terms: Terms,
    /// The ops in order, with where they come from.
    pub ops: Vec<OpReport>,
    /// The program written by hand that it launches, with the other ops in its loads and stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// What it reads.
    pub inputs: Vec<BufferReport>,
    /// What it writes.
    pub outputs: Vec<BufferReport>,
    /// How far its results may differ from the graph as written.
    pub numerics: String,
    /// Names of the rules whose results it computes.
    pub rules: Vec<String>,
    /// The same, with the results of each.
    pub rewrites: Vec<Rewrite>,
    /// The next best choice, if there was one.
    pub alternative: Option<Alternative>,
    /// Neighbours that it was not fused with.
    pub stops: Vec<StopReport>,
    /// Module paths that the ops come from.
    pub modules: Vec<String>,
    /// Source lines that the ops come from.
    pub lines: Vec<String>,
    /// Number of block programs and library calls that run it.
    pub launches: usize,
    /// Buffers from which its programs read where a loop ends, as the length of a cache up to which attention goes over
    /// the keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loop_ends: Vec<String>,
    /// How it is mapped onto the machine; absent for what libtorch runs, pools in strips, scatters in order, and empty
    /// results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// On a GPU: by which template it multiplies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// What only some forms can fuse, and it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub form_needs: Vec<String>,
    /// On a GPU: its form and others that fit it, each by its cheapest schedule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forms: Vec<FormReport>,
    /// On a GPU: its schedule and others that fit it, with predicted times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleReport>,
    /// Predicted cost of batch invariance in microseconds, for matmuls and attentions on a GPU, whose schedules
    /// otherwise depend on the batch. Absent if the plan is not batch-invariant or the cost model has no time for the
    /// kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invariance_us: Option<f64>,
    /// What a store of measurements says of it, if the plan was made with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
}

/// A form that fits a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FormReport {
    /// As constraints name it.
    pub form: String,
    /// Its cheapest schedule that fits.
    pub schedule: String,
    /// Predicted microseconds.
    pub us: f64,
    /// Where it computes the ops after what it multiplies, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<String>,
    /// Neighbours that this form could compute too, and others could not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub could_fuse: Vec<String>,
}

/// A schedule that fits a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScheduleReport {
    /// As constraints name it.
    pub schedule: String,
    /// Predicted microseconds; absent where the cost model has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Where they go, for a nest.
    #[serde(flatten)]
    pub terms: Option<PriceReport>,
}

/// The terms of a predicted time. Those of memory, cache, issue and latency overlap; the others add up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PriceReport {
    /// Bytes from and to memory.
    pub memory_us: f64,
    /// Sectors from and to the L2 cache.
    pub cache_us: f64,
    /// Lines of the L1 caches.
    pub l1_us: f64,
    /// Instructions of all warps.
    pub issue_us: f64,
    /// Rounds of resident instances, one after the other.
    pub latency_us: f64,
    /// What no other instance overlaps.
    pub exposed_us: f64,
    /// Launches.
    pub launch_us: f64,
}

impl ScheduleReport {
    /// A schedule and its price, rounded to a hundredth: more digits would be meaningless.
    pub fn new(schedule: &kiln_plan::Schedule, price: Option<&kiln_lower::price::Price>) -> ScheduleReport {
        let rounded = |us: f64| (us * 100.0).round() / 100.0;
        let price = price.filter(|p| p.us.is_finite() && p.us > 0.0);
        let terms = price.filter(|_| !schedule.multiplies()).map(|price| PriceReport {
            memory_us: rounded(price.memory),
            cache_us: rounded(price.cache),
            l1_us: rounded(price.l1),
            issue_us: rounded(price.issue),
            latency_us: rounded(price.latency),
            exposed_us: rounded(price.exposed),
            launch_us: rounded(price.launch + price.extra_launches),
        });
        ScheduleReport { schedule: schedule.to_string(), us: price.map(|p| rounded(p.us)), terms }
    }
    /// The time and the schedule.
    pub fn text(&self) -> String {
        self.us.map_or(String::new(), |us| format!("{us:.2} us ")) + &self.schedule
    }
    /// The terms of the time.
    pub fn terms(&self) -> Option<String> {
        let PriceReport { memory_us, cache_us, l1_us, issue_us, latency_us, exposed_us, launch_us } =
            self.terms.as_ref()?;
        Some(format!(
            "memory {memory_us:.2}, L2 {cache_us:.2}, L1 {l1_us:.2}, issue {issue_us:.2}, which overlap; latency \
             {latency_us:.2}, exposed {exposed_us:.2}, launches {launch_us:.2}"
        ))
    }
}

/// An op of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpReport {
    /// Name of its value in the kernel's body.
    pub value: String,
    /// Its name.
    pub op: String,
    /// Its attributes, as in the text form.
    pub attributes: String,
    /// Type of its result.
    #[serde(rename = "type")]
    pub ty: String,
    /// Values of the imported graph that it equals, or, if a rule made it, what it is computed from.
    pub names: Vec<String>,
    /// Module path; may be empty.
    pub module: String,
    /// Where it is in the model's source; may be empty.
    pub line: String,
    /// Whether it is a view, which moves no data and costs nothing.
    pub view: bool,
    /// Other kernels that also compute it instead of reading it from memory: the first [`LISTED`].
    pub recomputed_in: Vec<String>,
    /// Number of such kernels.
    #[serde(default)]
    pub recomputed: usize,
}

/// A buffer that a kernel reads or writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferReport {
    /// As in the plan.
    pub buffer: String,
    /// `input 0`, the parameter's name, or the name of the value.
    pub name: String,
    /// Element type and shape.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its size.
    pub bytes: u64,
    /// The kernel that writes it; empty for inputs and parameters.
    pub written_by: String,
    /// Kernels that read it: the first [`LISTED`].
    pub read_by: Vec<String>,
    /// Number of kernels that read it.
    #[serde(default)]
    pub readers: usize,
    /// Whether it is a result of the model.
    pub is_result: bool,
}

/// A rule whose result is part of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewrite {
    /// Name of the rule.
    pub rule: String,
    /// How far its two sides may differ.
    pub numerics: String,
    /// The result, such as `softmax %15`.
    pub made: String,
    /// Ops of the imported graph that it replaces, such as `exp %12`.
    pub replaced: Vec<String>,
}

/// Why the kernel was not fused with a neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopReport {
    /// The neighbour.
    pub kernel: String,
    /// The name of the legality rule, or the two costs.
    pub why: String,
    /// What that legality rule says.
    pub means: String,
    /// What the form of the two as one kernel would have to fuse, where only some forms can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

impl Report {
    /// Reads the JSON form.
    pub fn from_json(text: &str, file: &str) -> Result<Report, Error> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<u32>,
        }
        let remedy = "make it again with `kiln explain MODEL --json FILE`, or compile the model again";
        let wrong = |e: serde_json::Error| Error::failed(format!("{file} is not a Kiln report: {e}"), remedy);
        match serde_json::from_str::<Head>(text).map_err(wrong)?.schema {
            Some(SCHEMA) => serde_json::from_str(text).map_err(wrong),
            Some(other) => Err(Error::failed(
                format!("{file} holds a report of schema {other}, but this Kiln reads schema {SCHEMA}"),
                remedy,
            )),
            None => Err(Error::failed(format!("{file} is JSON, but not a Kiln report"), remedy)),
        }
    }
    /// The JSON form.
    pub fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string_pretty(self)
            .map(|s| s + "\n")
            .map_err(|e| Error::failed(format!("cannot write the report as JSON: {e}"), "report this"))
    }
    /// The kernel of that name, of a run or of loading.
    pub fn kernel(&self, name: &str) -> Result<&KernelReport, Error> {
        let mut all = self.kernels.iter().chain(&self.load_kernels);
        all.find(|k| k.name == name).ok_or_else(|| {
            let names = self.kernels.iter().chain(&self.load_kernels).map(|k| k.name.as_str());
            Error::usage(
                format!("{} has no kernel `{name}`", self.model),
                crate::select::suggest(name, names).unwrap_or_else(|| "`kiln explain MODEL --all` lists them".into()),
            )
        })
    }
}
