//! Text of the summary that fits a screen (`kiln explain`), and of the table of all kernels (`--all`).
use super::*;
use crate::wrap::{tail, wrapped};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Number of kinds of kernels that the summary lists.
const SHOWN: usize = 12;

/// Kernels with the same name (but for its number) and the same work: those of repeated layers.
struct Kind<'a> {
    first: &'a KernelReport,
    count: usize,
    /// Predicted time of all of them; `None` if libtorch runs one.
    us: Option<f64>,
}

fn percent(part: f64, of: f64) -> f64 {
    100. * part / of.max(1e-12)
}

impl Report {
    /// The summary: ops and kernels, predicted time and lower bound, what the search did, fallbacks, and where the time
    /// goes.
    pub fn summary(&self, width: usize) -> String {
        let mut t = String::new();
        let s = &self.search;
        let mut row = |name: &str, text: String| t += &wrapped(&format!("{name:12}"), &text, width);
        row(
            "model",
            format!(
                "{}: {} in {} on {}",
                self.model,
                count(self.nodes, "op"),
                count(self.kernels.len(), "kernel"),
                self.target
            ),
        );
        let gap = percent(self.roofline_us - self.lower_bound_us, self.lower_bound_us);
        let bound = match self.unpriced {
            0 => format!("; lower bound {:.1} us ({gap:.0} % above it)", self.lower_bound_us),
            _ => String::new(),
        };
        let predicted = format!("{:.1} us{}", self.predicted_us, left_out(self.unpriced));
        if self.predicted_us == self.roofline_us {
            row("predicted", predicted + &bound);
        } else {
            row("predicted", predicted);
            row("roofline", format!("{:.1} us, by which kernels are chosen{bound}", self.roofline_us));
        }
        if let Some(text) = crate::calibrate::general_processor(&self.machine, self.target == crate::Target::Cpu.name())
        {
            row("", text);
        }
        if s.tried > 0 {
            let grown = format!(
                "{} to {} in {}, {}",
                s.enodes_before,
                count(s.enodes_after, "e-node"),
                count(s.iterations, "iteration"),
                s.stopped
            );
            row("e-graph", grown);
            let found = format!(
                "greedy {:.1} us, extracted {:.1} us; {} planned, {} priced",
                s.greedy_us,
                self.roofline_us,
                count(s.tried, "program"),
                count(s.candidates, "region")
            );
            row("search", found);
        }
        row("numerics", self.numerics.clone());
        if let Some(text) = self.invariance() {
            row("invariance", text);
        }
        if !self.load_kernels.is_empty() {
            let n = count(self.load_kernels.len(), "additional kernel");
            row("load", format!("{n}, run once when weights are loaded"));
        }
        if let Some(text) = self.tuned() {
            row("tuned", text);
        }
        let mut why: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        self.fallback_why.iter().for_each(|f| *why.entry((&f.op, &f.why)).or_default() += 1);
        if why.is_empty() {
            row("falls back", "nothing".into());
        }
        for (i, ((op, why), n)) in why.iter().take(4).enumerate() {
            row(if i == 0 { "falls back" } else { "" }, format!("{n} x {op}: {why}"));
        }
        if why.len() > 4 {
            row("", format!("and {}; --json lists them", count(why.len() - 4, "other op")));
        }
        t + &self.kinds_table(width)
    }

    /// The predicted cost of batch invariance, with the kernels that it slows down most.
    fn invariance(&self) -> Option<String> {
        let mut lost: Vec<(&str, f64)> =
            self.kernels.iter().filter_map(|k| Some((&*k.name, k.invariance_us?))).collect();
        if lost.is_empty() {
            return None;
        }
        lost.retain(|(_, us)| *us > 0.0);
        lost.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        let all = lost.iter().fold(0.0, |all, l| all + l.1);
        let named: Vec<String> = lost.iter().take(3).map(|(name, us)| format!("{name} {us:.2} us")).collect();
        let listed = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        Some(format!("costs {all:.2} us in matmuls and attention{listed}; in addition, every op rounds to its type"))
    }

    /// How many kernels have measured schedules, and on which device; `None` without measurements.
    fn tuned(&self) -> Option<String> {
        let all = || self.kernels.iter().chain(&self.load_kernels).filter_map(|k| k.tuning.as_ref());
        let devices = all().filter_map(|t| match t {
            Tuning::Measured { device, .. } => Some(device.as_str()),
            Tuning::Unused { .. } => None,
        });
        let (n, device) = (devices.clone().count(), devices.clone().next());
        let unused = all().count() - n;
        let mut parts = vec![];
        parts.extend(device.map(|d| format!("schedules of {} measured on {d}", count(n, "kernel"))));
        if unused > 0 {
            parts.push(format!("measurements of {} are not used; --kernel NAME says why", count(unused, "kernel")));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn kinds(&self) -> Vec<Kind<'_>> {
        let mut kinds: BTreeMap<(&str, u64, u64, u64), Kind> = BTreeMap::new();
        for k in &self.kernels {
            let key = (base(&k.name), k.bytes_read, k.bytes_written, k.flops);
            let kind = kinds.entry(key).or_insert(Kind { first: k, count: 0, us: Some(0.) });
            kind.count += 1;
            kind.us = kind.us.zip(k.predicted_us).map(|(all, us)| all + us);
        }
        // Kinds of unknown time come last.
        let known = |k: &Kind| k.us.unwrap_or(f64::NEG_INFINITY);
        let mut list: Vec<Kind> = kinds.into_values().collect();
        list.sort_by(|a, b| known(b).total_cmp(&known(a)).then(a.first.name.cmp(&b.first.name)));
        list
    }
    fn kinds_table(&self, width: usize) -> String {
        let kinds = self.kinds();
        if kinds.is_empty() {
            return String::new();
        }
        let name = width.saturating_sub(42).clamp(16, 34);
        let share = |us: f64| format!("{:.1} %", percent(us, self.predicted_us));
        let mut t = format!("\n{:>4} {:name$} {:>8} {:>7} {:>8} {}\n", "n", "kernel", "us", "share", "MB", "bound");
        for k in kinds.iter().take(SHOWN) {
            let mb = (k.first.bytes_read + k.first.bytes_written) as f64 / 1e6;
            let _ = writeln!(
                t,
                "{:>4} {:name$} {:>8} {:>7} {:>8.3} {}",
                k.count,
                tail(&k.first.name, name),
                predicted(k.first.predicted_us),
                k.us.map_or("unknown".to_string(), share),
                mb,
                k.first.terms.bound
            );
        }
        if kinds.len() > SHOWN {
            let rest = &kinds[SHOWN..];
            let n: usize = rest.iter().map(|k| k.count).sum();
            let us: f64 = rest.iter().filter_map(|k| k.us).sum();
            let unknown: usize = rest.iter().filter(|k| k.us.is_none()).map(|k| k.count).sum();
            let _ = writeln!(t, "{n:>4} {:name$} {:>8} {:>7}{}", "others", "", share(us), left_out(unknown));
        }
        t += "\n";
        let more = "--kernel NAME: one kernel in detail; --all: every kernel; --why A B, --why-not A B: why they are \
                    fused or not";
        t + &wrapped("", more, width)
    }

    /// Every kernel of a run in launch order, one line each.
    pub fn table(&self, width: usize) -> String {
        let name =
            self.kernels.iter().map(|k| k.name.len()).max().unwrap_or(0).clamp(6, if width < 90 { 24 } else { 36 });
        let mut t = format!("{:name$} {:>4} {:>9} {:>9} {:>8}", "kernel", "ops", "MB", "Mflop", "us");
        let room = width.saturating_sub(name + 36);
        t += if room >= 20 { "  why\n" } else { "\n" };
        for k in &self.kernels {
            let mb = (k.bytes_read + k.bytes_written) as f64 / 1e6;
            let (name_text, mflop) = (tail(&k.name, name), k.flops as f64 / 1e6);
            let line = format!(
                "{name_text:name$} {:>4} {mb:>9.3} {mflop:>9.2} {:>8}  ",
                k.nodes.len(),
                predicted(k.predicted_us)
            );
            t += &if room >= 20 { wrapped(&line, &k.reason, width) } else { format!("{}\n", line.trim_end()) };
        }
        t
    }
}

/// A kernel's time in a table.
fn predicted(us: Option<f64>) -> String {
    us.map_or("unknown".into(), |us| format!("{us:.2}"))
}

/// A kernel's name without its number.
fn base(name: &str) -> &str {
    name.rsplit_once('_').map_or(name, |n| n.0)
}
