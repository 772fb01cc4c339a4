//! Measurements as text for a terminal.
use super::{BUSY, Bench, KernelTime, ModuleTime, NOISY, Reference, Spread, noisy, table};
use crate::explain::{count, tail, wrapped};
use std::fmt::Write as _;

/// Number of modules that the table lists.
const SHOWN: usize = 16;

/// A row of either table.
struct Row<'a> {
    name: &'a str,
    predicted_us: Option<f64>,
    median_us: f64,
    noisy: bool,
    share: f64,
    gbps: f64,
    tflops: f64,
    gap_us: f64,
}
impl<'a> From<&'a KernelTime> for Row<'a> {
    fn from(k: &'a KernelTime) -> Row<'a> {
        let KernelTime { predicted_us, median_us, share, gbps, tflops, gap_us, .. } = *k;
        let noisy = noisy(k.p10, k.p90);
        Row { name: &k.name, predicted_us, median_us, noisy, share, gbps, tflops, gap_us }
    }
}
impl<'a> From<&'a ModuleTime> for Row<'a> {
    fn from(m: &'a ModuleTime) -> Row<'a> {
        let ModuleTime { predicted_us, median_us, share, gbps, tflops, gap_us, .. } = *m;
        let name = if m.module.is_empty() { "(none)" } else { &m.module };
        Row { name, predicted_us, median_us, noisy: false, share, gbps, tflops, gap_us }
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
            "  {:name$} {:>12} {:>10} {:>5.1} %",
            tail(r.name, name),
            r.predicted_us.map_or("unknown".into(), |us| format!("{us:.2}")),
            marked(r.noisy, format!("{:.2}", r.median_us)),
            100.0 * r.share
        );
        if wide {
            let _ = write!(t, " {:>8.1} {:>8.3} {:>8.2}", r.gbps, r.tflops, r.gap_us);
        }
        t.push('\n');
    }
}

/// A figure, marked with `~` if its runs differed widely.
pub(crate) fn marked(noisy: bool, figure: String) -> String {
    if noisy { format!("~{figure}") } else { figure }
}
/// Explains the mark, for tables that contain one.
pub(crate) fn mark_means() -> String {
    format!("  ~ noisy: p90 is over {NOISY} times p10; measure again on an idle machine, or for longer (--seconds 5)\n")
}

impl Bench {
    /// Sides, kernels and modules, for a terminal of that width.
    pub fn text(&self, width: usize) -> String {
        let mut t =
            wrapped("", &format!("{} on {} ({})", self.model, self.device, count(self.threads, "thread")), width);
        self.side(&mut t, "fused", &self.fused);
        self.unfused.iter().for_each(|s| self.side(&mut t, "unfused", s));
        self.torch.iter().for_each(|s| self.side(&mut t, "torch", s));
        for m in &self.missing {
            t += &wrapped("  no ", m, width);
        }
        let sides = [Some(&self.fused), self.unfused.as_ref(), self.torch.as_ref()];
        if sides.into_iter().flatten().any(Spread::noisy) || self.kernels.iter().any(|k| noisy(k.p10, k.p90)) {
            t += &mark_means();
        }
        if self.others > BUSY {
            let text = format!(
                "other processes took {:.0} % of the processor, so ratios marked with ~ are unreliable",
                100.0 * self.others
            );
            t += &wrapped("  ~ ", &text, width);
        }
        let facts = format!(
            "{} in {}; compiled in {:.3} s; {}; {:.1} us of gaps between kernels",
            count(self.ops, "op"),
            count(self.kernels.len(), "kernel"),
            self.compile_s,
            self.checked(),
            self.gaps_us
        );
        t += &wrapped("  ", &facts, width);
        if !self.predicted_for.is_empty() {
            t += &wrapped("  predicted ", &self.predicted_for, width);
        }
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
    /// What the results were compared with, and how far they are from it.
    fn checked(&self) -> String {
        let (reference, at) = match self.reference {
            Reference::Interpreted => ("interpreter", String::new()),
            Reference::Libtorch => ("libtorch", String::new()),
            Reference::Sampled => ("interpreter", format!(" at {} of {} elements", self.compared, self.elements)),
            Reference::None => return "results not checked, since any reference takes too much work".to_string(),
        };
        format!("error against {reference}{at}: abs {:.2e}, rel {:.2e}", self.max_abs_err, self.max_rel_err)
    }
    fn side(&self, t: &mut String, name: &str, s: &Spread) {
        let ratio = s.median_ms / self.fused.median_ms;
        let spread = format!("(p10 {:.4}, p90 {:.4}, {})", s.p10, s.p90, count(s.runs, "run"));
        // A ratio is marked if either of its two medians is unreliable.
        let ratio = marked(self.doubtful(s), format!("{ratio:.2}x"));
        let _ =
            writeln!(t, "  {name:8} {:>9} ms {ratio:>6} {spread}", marked(s.noisy(), format!("{:.4}", s.median_ms)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(p10: f64, median_ms: f64, p90: f64) -> Spread {
        Spread { median_ms, p10, p90, runs: 9 }
    }
    fn bench(fused: Spread, torch: Spread) -> Bench {
        Bench {
            model: "m".into(),
            device: "cpu".into(),
            threads: 2,
            others: 0.0,
            fused,
            unfused: None,
            torch: Some(torch),
            missing: vec![],
            compile_s: 0.1,
            timings: Default::default(),
            max_abs_err: 0.0,
            max_rel_err: 0.0,
            reference: Reference::Sampled,
            compared: 5,
            elements: 70,
            ops: 1,
            kernels: vec![],
            modules: vec![],
            predicted_for: String::new(),
            gaps_us: 0.0,
            trace: vec![],
        }
    }

    #[test]
    fn the_reference_is_named() {
        let of = |reference| Bench { reference, ..bench(spread(1.0, 1.0, 1.0), spread(1.0, 1.0, 1.0)) }.text(200);
        for (reference, words) in [
            (Reference::Interpreted, "; error against interpreter: abs"),
            (Reference::Libtorch, "; error against libtorch: abs"),
            (Reference::Sampled, "; error against interpreter at 5 of 70 elements: abs"),
            (Reference::None, "; results not checked, since"),
        ] {
            assert!(of(reference).contains(words), "{reference:?}:\n{}", of(reference));
        }
    }

    #[test]
    fn ratios_of_noisy_runs_are_marked() {
        let quiet = bench(spread(0.9, 1.0, 1.1), spread(1.9, 2.0, 2.1)).text(100);
        assert!(quiet.contains(" 2.00x") && !quiet.contains('~'), "{quiet}");
        // Noise in either side marks the ratio.
        let torch = bench(spread(0.9, 1.0, 1.1), spread(1.0, 4534.0, 9000.0)).text(100);
        assert!(torch.contains("~4534.00x") && torch.contains("~ noisy"), "{torch}");
        let fused = bench(spread(0.1, 1.0, 1.1), spread(1.9, 2.0, 2.1)).text(100);
        // So does load from other processes, however similar the runs are.
        let busy = Bench { others: 0.5, ..bench(spread(0.9, 1.0, 1.1), spread(4533.0, 4534.0, 4535.0)) }.text(100);
        assert!(busy.contains("~4534.00x") && busy.contains("took 50 % of the processor"), "{busy}");
        assert!(fused.contains("~2.00x") && fused.contains("~1.0000 ms"), "{fused}");
    }
}
