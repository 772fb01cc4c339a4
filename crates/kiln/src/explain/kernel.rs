//! Text of one kernel in detail (`kiln explain --kernel`).
use super::*;
use crate::wrap::{tail, wrapped};
use std::fmt::Write as _;

fn megabytes(bytes: u64) -> String {
    if bytes < 10_000 { format!("{bytes} B") } else { format!("{:.3} MB", bytes as f64 / 1e6) }
}
/// `file.py:12` of a path.
fn short(line: &str) -> &str {
    line.rsplit('/').next().unwrap_or(line)
}
/// The first few of `n`.
fn listed(list: &[String], n: usize) -> String {
    const SHOWN: usize = 8;
    let more = if n > SHOWN { format!(" and {} more", n - SHOWN) } else { String::new() };
    list[..list.len().min(SHOWN)].join(", ") + &more
}

impl Report {
    /// One kernel: ops, buffers, time, rules, alternative, and why it was not fused with its neighbours.
    pub fn in_depth(&self, name: &str, width: usize) -> Result<String, Error> {
        let k = self.kernel(name)?;
        let load = self.load_kernels.iter().any(|l| l.name == k.name);
        let share = |us: f64| match load {
            true => "once, at load time".to_string(),
            false => {
                let share = 100. * us / self.predicted_us.max(1e-12);
                format!("{share:.1} % of the plan{}", left_out(self.unpriced))
            }
        };
        let time = match k.predicted_us {
            Some(us) => format!("{us:.2} us ({}), bound by {}", share(us), k.terms.bound),
            None => "time unknown, since libtorch runs it".to_string(),
        };
        let mut t = wrapped(&format!("{}: ", k.name), &format!("{}, {time}, numerics {}", k.kind, k.numerics), width);
        if !k.loop_ends.is_empty() {
            let text = format!(
                "ends where the mask does, by a number read on the device from {}; what is predicted is for all keys",
                k.loop_ends.join(", ")
            );
            t += &wrapped("loop over keys ", &text, width);
        }
        if let Some(us) = k.invariance_us {
            t += &wrapped("batch invariance ", &format!("costs {us:.2} us (predicted)"), width);
        }
        if let Some(program) = &k.program {
            let others = k.nodes.iter().filter(|op| *op != program && *op != "result").count();
            let with = if others > 0 { "; the other ops are in its loads and stores" } else { "" };
            let launch = k.ops.iter().find(|op| op.op == *program);
            let place = launch.and_then(|op| op.attributes.strip_prefix("defined at "));
            let place = place.map_or(String::new(), |place| format!(" ({})", short(place)));
            let text = format!("program `{program}`{place}, as its text says{with}");
            t += &wrapped("written by hand ", &text, width);
        }
        k.ops_text(&mut t, width);
        k.buffers_text(&mut t, "reads", k.bytes_read, &k.inputs, width);
        k.buffers_text(&mut t, "writes", k.bytes_written, &k.outputs, width);
        k.time_text(&mut t, width);
        k.reasons_text(&mut t, width);
        for f in self.fallback_why.iter().filter(|f| f.kernel == k.name) {
            t += &wrapped("falls back  ", &format!("{}: {}", f.op, f.why), width);
        }
        Ok(t)
    }
}

impl KernelReport {
    fn ops_text(&self, t: &mut String, width: usize) {
        *t += "\nops\n";
        let place = |o: &OpReport| match (o.module.is_empty(), o.line.is_empty()) {
            (_, true) => o.module.clone(),
            (true, false) => short(&o.line).to_string(),
            _ => format!("{} {}", o.module, short(&o.line)),
        };
        for o in &self.ops {
            let what = if o.attributes.is_empty() { o.op.clone() } else { format!("{} {}", o.op, o.attributes) };
            let mut text = format!("{what} : {}", o.ty);
            if o.names.first().is_some_and(|n| !n.starts_with('%')) {
                text += ", made by a rewrite rule";
            }
            if !place(o).is_empty() {
                let _ = write!(text, ", {}", place(o));
            }
            if !o.recomputed_in.is_empty() {
                let _ = write!(text, "; also computed in {}", listed(&o.recomputed_in, o.recomputed));
            }
            let name = o.names.first().filter(|n| n.starts_with('%')).map_or("", String::as_str);
            *t += &wrapped(&format!("  {name:6}"), &text, width);
        }
    }
    fn buffers_text(&self, t: &mut String, title: &str, bytes: u64, list: &[BufferReport], width: usize) {
        let _ = writeln!(t, "\n{title} {}", megabytes(bytes));
        for b in list {
            let mut text = format!("{}, {}", tail(&b.name, width.saturating_sub(30).max(24)), b.ty);
            if title == "reads" && !b.written_by.is_empty() {
                let _ = write!(text, ", written by {}", b.written_by);
            }
            if title == "writes" {
                let read = if b.read_by.is_empty() {
                    String::new()
                } else {
                    format!(", read by {}", listed(&b.read_by, b.readers))
                };
                text += &read;
                text += if b.is_result { ", a result of the model" } else { "" };
            }
            *t += &wrapped(&format!("  {:5} {:>10}  ", b.buffer, megabytes(b.bytes)), &text, width);
        }
    }
    fn time_text(&self, t: &mut String, width: usize) {
        let m = &self.terms;
        let Some(us) = self.roofline_us else { return };
        let sum = format!(
            "{:.2} us = {:.2} memory + {:.2} arithmetic + {:.2} launch - {:.2} overlap; {:.1} Mflop, {}",
            us,
            m.memory_us,
            m.arithmetic_us,
            m.launch_us,
            -m.overlap_us,
            self.flops as f64 / 1e6,
            megabytes(self.bytes_read + self.bytes_written)
        );
        *t += "\n";
        *t += &wrapped("roofline    ", &sum, width);
    }
    fn reasons_text(&self, t: &mut String, width: usize) {
        if let Some(form) = &self.form {
            let operand = |need: &&String| need.ends_with("-operand");
            let computed: Vec<&str> =
                self.form_needs.iter().filter(operand).filter_map(|need| need.split('-').next()).collect();
            let text = match computed[..] {
                [] => form.clone(),
                _ => format!(
                    "{form}, which computes its {} operand; with a form that does not, another kernel stores it \
                     (`--why-not {} FORM`)",
                    computed.join(" and its "),
                    self.name
                ),
            };
            *t += &wrapped("form        ", &text, width);
        }
        if self.forms.len() > 1 {
            let one = |f: &FormReport| {
                let chosen = if Some(&f.form) == self.form.as_ref() { " (chosen)" } else { "" };
                let epilogue = f.epilogue.as_ref().map(|e| format!(", {e}")).unwrap_or_default();
                let others = match f.could_fuse.is_empty() {
                    true => String::new(),
                    false => format!(", could fuse {}", f.could_fuse.join(", ")),
                };
                format!("{:.2} us by {}{chosen}{epilogue}{others}", f.us, f.form)
            };
            let all: Vec<String> = self.forms.iter().map(one).collect();
            *t += &wrapped("forms       ", &format!("predicted: {}", all.join(" | ")), width);
        }
        if let Some(schedule) = &self.schedule {
            *t += &wrapped("schedule    ", schedule, width);
        }
        if self.schedules.len() > 1 {
            let own = |s: &ScheduleReport| Some(&s.schedule) == self.schedule.as_ref();
            let one = |s: &ScheduleReport| match (own(s), s.us) {
                (true, Some(us)) => format!("{us:.2} us (chosen)"),
                (true, None) => "no prediction (chosen)".to_string(),
                (false, _) => s.text(),
            };
            let all: Vec<String> = self.schedules.iter().map(one).collect();
            *t += &wrapped("schedules   ", &format!("predicted: {}", all.join(" | ")), width);
            if let Some(terms) = self.schedules.iter().find(|s| own(s)).and_then(ScheduleReport::terms) {
                *t += &wrapped("price       ", &terms, width);
            }
        }
        match &self.tuning {
            Some(Tuning::Measured { device, us, default_us }) => {
                let text = format!("{us:.2} us measured on {device}; {default_us:.2} us with the default schedule");
                *t += &wrapped("tuned       ", &text, width);
            }
            Some(Tuning::Unused { why }) => *t += &wrapped("not tuned   ", why, width),
            None => {}
        }
        for r in &self.rewrites {
            let text = format!("{} in place of {} ({})", r.made, listed(&r.replaced, r.replaced.len()), r.numerics);
            *t += &wrapped("rule        ", &format!("{}: {text}", r.rule), width);
        }
        if let (Some(a), Some(us)) = (&self.alternative, self.roofline_us) {
            let more = 100. * (a.us - us) / us.max(1e-12);
            let text = format!("{}: {:.2} us by the roofline, {more:+.1} %", a.what, a.us);
            *t += &wrapped("next best   ", &text, width);
        }
        for s in &self.stops {
            let means = if s.means.is_empty() { String::new() } else { format!(" ({})", s.means) };
            *t += &wrapped("not fused   ", &format!("with {}: {}{means}", s.kernel, s.why), width);
        }
    }
}
