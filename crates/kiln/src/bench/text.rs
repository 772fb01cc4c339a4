//! What was measured, for a terminal.
use super::{Bench, KernelTime, ModuleTime, Spread, table};
use crate::explain::{tail, wrapped};
use std::fmt::Write as _;

/// Modules that the table lists.
const SHOWN: usize = 16;

/// A row of either table.
struct Row<'a> {
    name: &'a str,
    predicted_us: f64,
    median_us: f64,
    share: f64,
    gbps: f64,
    tflops: f64,
    gap_us: f64,
}
impl<'a> From<&'a KernelTime> for Row<'a> {
    fn from(k: &'a KernelTime) -> Row<'a> {
        let KernelTime { predicted_us, median_us, share, gbps, tflops, gap_us, .. } = *k;
        Row { name: &k.name, predicted_us, median_us, share, gbps, tflops, gap_us }
    }
}
impl<'a> From<&'a ModuleTime> for Row<'a> {
    fn from(m: &'a ModuleTime) -> Row<'a> {
        let ModuleTime { predicted_us, median_us, share, gbps, tflops, gap_us, .. } = *m;
        let name = if m.module.is_empty() { "(none)" } else { &m.module };
        Row { name, predicted_us, median_us, share, gbps, tflops, gap_us }
    }
}

fn rows(t: &mut String, title: &str, list: &[Row], width: usize) {
    // A narrow terminal has no room for rates and gaps.
    let wide = width >= 84;
    let room = width.saturating_sub(if wide { 61 } else { 36 });
    let name = list.iter().map(|r| r.name.chars().count()).chain([title.len()]).max().unwrap_or(0).min(room);
    let _ = write!(t, "\n  {title:name$} {:>12} {:>10} {:>7}", "predicted us", "median us", "share");
    t.push_str(if wide { "     GB/s  TFLOP/s   gap us\n" } else { "\n" });
    for r in list {
        let _ = write!(
            t,
            "  {:name$} {:>12.2} {:>10.2} {:>5.1} %",
            tail(r.name, name),
            r.predicted_us,
            r.median_us,
            100.0 * r.share
        );
        if wide {
            let _ = write!(t, " {:>8.1} {:>8.3} {:>8.2}", r.gbps, r.tflops, r.gap_us);
        }
        t.push('\n');
    }
}

impl Bench {
    /// Sides, kernels and modules, for a terminal of that width.
    pub fn text(&self, width: usize) -> String {
        let mut t = wrapped("", &format!("{} on {} ({} threads)", self.model, self.device, self.threads), width);
        self.side(&mut t, "fused", &self.fused);
        self.unfused.iter().for_each(|s| self.side(&mut t, "unfused", s));
        self.torch.iter().for_each(|s| self.side(&mut t, "torch", s));
        for m in &self.missing {
            t += &wrapped("  no ", m, width);
        }
        let (ops, kernels) = (self.ops, self.kernels.len());
        let facts = format!(
            "{ops} ops in {kernels} kernels; compiled in {:.3} s; error against {}: abs {:.2e}, rel {:.2e}; {:.1} us of gaps between kernels",
            self.compile_s, self.reference, self.max_abs_err, self.max_rel_err, self.gaps_us
        );
        t += &wrapped("  ", &facts, width);
        rows(&mut t, "kernel", &self.kernels.iter().map(Row::from).collect::<Vec<_>>(), width);
        let mut modules = table::folded(&self.kernels);
        // Graphs written by hand have no modules.
        if modules.len() > 1 {
            modules.sort_by(|a, b| b.median_us.total_cmp(&a.median_us));
            let more = modules.len().saturating_sub(SHOWN);
            modules.truncate(SHOWN);
            rows(&mut t, "module", &modules.iter().map(Row::from).collect::<Vec<_>>(), width);
            if more > 0 {
                let _ = writeln!(t, "  and {more} more; --json lists them");
            }
        }
        t
    }
    fn side(&self, t: &mut String, name: &str, s: &Spread) {
        let ratio = s.median_ms / self.fused.median_ms;
        let spread = format!("(p10 {:.4}, p90 {:.4}, {} runs)", s.p10, s.p90, s.runs);
        let _ = writeln!(t, "  {name:8} {:>9.4} ms {ratio:>5.2}x {spread}", s.median_ms);
    }
}
