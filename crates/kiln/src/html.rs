//! The report as one self-contained HTML page that loads nothing from a network: the kernels drawn in launch order with
//! their data flow (repeated layers folded), a timeline, a sortable table, and for each kernel its reason, source
//! lines, block program and PTX.
use crate::{
    Compiled,
    compile::CompiledCode,
    explain::{KernelReport, Report, count, left_out, plural},
};
use kiln_plan::{BufferId, BufferKind, Kernel, Stage, exec::Work};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The page's data, which its script draws.
#[derive(Serialize)]
struct Data<'a> {
    report: Report,
    /// One for each kernel of the report.
    kernels: Vec<Detail>,
    programs: Vec<ProgramText>,
    /// Data flow between kernels: writer, reader.
    edges: BTreeSet<(usize, usize)>,
    repeats: Vec<Repeat>,
    /// Measured microseconds of each kernel.
    measured: Option<&'a [f64]>,
}

#[derive(Serialize)]
struct Detail {
    /// Distinct block programs, in order.
    programs: Vec<usize>,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

#[derive(Serialize)]
struct ProgramText {
    block: String,
    ptx: Option<String>,
}

/// The same `period` kernels `count` times in a row, beginning with kernel `start`.
#[derive(Serialize, PartialEq, Eq, Debug)]
struct Repeat {
    start: usize,
    period: usize,
    count: usize,
}

/// The page. `measured`: measured microseconds of each kernel of the run, if known.
pub fn page(report: &Report, c: &Compiled, measured: Option<&[f64]>) -> String {
    let run: Vec<(usize, &Kernel)> = c.plan.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Run).collect();
    let kernels: Vec<Detail> = run.iter().map(|(i, k)| detail(c, *i, k)).collect();
    let alike: Vec<(&str, &[String], &[usize])> =
        report.kernels.iter().zip(&kernels).map(|(r, d)| (r.kind.as_str(), &r.nodes[..], &d.programs[..])).collect();
    let data = Data {
        report: shown(report),
        repeats: repeats(&alike),
        edges: edges(run.iter().map(|r| r.1)),
        programs: programs(c),
        kernels,
        measured,
    };
    fill(&data)
}

/// The report without the fields that the page does not show.
fn shown(report: &Report) -> Report {
    let mut report = report.clone();
    for k in report.kernels.iter_mut().chain(&mut report.load_kernels) {
        (k.ops, k.inputs, k.outputs, k.rewrites) = (vec![], vec![], vec![], vec![]);
    }
    report
}

fn detail(c: &Compiled, i: usize, k: &Kernel) -> Detail {
    let programs = c.steps[i].steps.iter().filter_map(|w| match w {
        Work::Block { code, .. } => Some(*code),
        _ => None,
    });
    let name = |b: &BufferId| {
        let buffer = c.plan.buffer(*b);
        let kind = match buffer.kind {
            BufferKind::Input(n) => format!("input {n}"),
            BufferKind::Param(p) => c.graph.params.get(p.0 as usize).map_or(String::new(), |p| p.name.clone()),
            BufferKind::Frozen => "frozen".into(),
            BufferKind::Temp => String::new(),
        };
        format!("{b} {} {kind}", buffer.ty).trim_end().to_string()
    };
    Detail {
        programs: programs.collect(),
        inputs: k.inputs.iter().map(name).collect(),
        outputs: k.outputs.iter().map(name).collect(),
    }
}

fn programs(c: &Compiled) -> Vec<ProgramText> {
    let ptx = |i: usize| match &c.code {
        CompiledCode::Ptx(list) => list.get(i).map(|p| p.text.clone()),
        CompiledCode::Host(_) => None,
    };
    c.programs.iter().enumerate().map(|(i, p)| ProgramText { block: kiln_block::text::print(p), ptx: ptx(i) }).collect()
}

fn edges<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> BTreeSet<(usize, usize)> {
    let (mut writer, mut edges) = (BTreeMap::new(), BTreeSet::new());
    for (i, k) in kernels.enumerate() {
        edges.extend(k.inputs.iter().filter_map(|b| writer.get(b)).map(|w| (*w, i)));
        writer.extend(k.outputs.iter().map(|b| (*b, i)));
    }
    edges
}

/// Longest period that is searched for: the kernels of one layer.
const PERIOD: usize = 64;

/// Repeating sequences of kernels, first to last: at each position the period that covers the most kernels, and among
/// equals the shortest.
fn repeats<T: PartialEq>(kernels: &[T]) -> Vec<Repeat> {
    let (mut found, mut start) = (vec![], 0);
    while start < kernels.len() {
        let rest = &kernels[start..];
        let times = |period: usize| 1 + rest.windows(period + 1).take_while(|w| w[0] == w[period]).count() / period;
        let longest = PERIOD.min(rest.len() / 2);
        let best = (1..=longest).rev().map(|p| (p * times(p), p)).filter(|(all, p)| all / p > 1).max_by_key(|b| b.0);
        match best {
            // Two equal kernels in a row do not count as repeated layers.
            Some((all, period)) if all > 2 => {
                found.push(Repeat { start, period, count: all / period });
                start += all;
            }
            _ => start += 1,
        }
    }
    found
}

/// Escapes text for use between tags and in quoted attributes.
pub(crate) fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn summary(r: &Report) -> String {
    let mut lines = vec![
        format!(
            "<b>{}</b> {} became <b>{}</b> {}. Predicted <b>{:.1} µs</b>{}; by the roofline {:.1} µs, lower bound \
             {:.1} µs. Numerics: {}.",
            r.nodes,
            plural(r.nodes, "op"),
            r.kernels.len(),
            plural(r.kernels.len(), "kernel"),
            r.predicted_us,
            left_out(r.unpriced),
            r.roofline_us,
            r.lower_bound_us,
            escape(&r.numerics)
        ),
        format!(
            "E-graph: {} nodes to {} in {} ({}). Greedy {:.1} µs, extracted {:.1} µs; {} planned, {} priced.",
            r.search.enodes_before,
            r.search.enodes_after,
            count(r.search.iterations, "iteration"),
            escape(&r.search.stopped),
            r.search.greedy_us,
            r.roofline_us,
            count(r.search.tried, "program"),
            count(r.search.candidates, "region")
        ),
    ];
    match r.fallback_why.is_empty() {
        true => lines.push("No op falls back.".into()),
        false => lines.extend(
            r.fallback_why
                .iter()
                .map(|f| format!("Falls back: <b>{}</b>, {} {}", escape(&f.op), escape(&f.why), escape(&f.line))),
        ),
    }
    lines.iter().map(|l| format!("<p class=\"numbers\">{l}</p>\n")).collect()
}

fn key(kernels: &[KernelReport]) -> String {
    let kinds: BTreeSet<&str> = kernels.iter().map(|k| k.kind.as_str()).collect();
    let one = |k: &&str| {
        format!(
            "<span><svg viewBox=\"0 0 10 10\"><rect class=\"{0}\" width=\"10\" height=\"10\" \
             rx=\"2\"/></svg>{0}</span>",
            escape(k)
        )
    };
    kinds.iter().map(one).collect()
}

fn fill(data: &Data) -> String {
    let r = &data.report;
    let columns =
        [("kernel", ""), ("kind", ""), ("ops", "n"), ("bytes", "n"), ("Mflop", "n"), ("µs", "n"), ("share", "n")];
    let measured = data.measured.map(|_| ("measured µs", "n"));
    let head = |(name, class): (&str, &str)| {
        format!("<th class=\"{class}\" scope=\"col\"><button type=\"button\">{name}</button></th>")
    };
    // In a script element only `<` could end the data.
    let json = serde_json::to_string(data).unwrap_or_default().replace('<', "\\u003c");
    let bars = match data.measured {
        Some(_) => {
            "<p class=\"label\">measured time (in the drawing: predicted → measured; the two bars under each name show \
             both on one scale)</p>\n<svg class=\"timeline\" id=\"measured\" role=\"img\" aria-label=\"measured time \
             of each kernel\"></svg>"
        }
        None => "",
    };
    // The data is filled in last, since it may contain anything, even the names of other placeholders.
    [
        ("{title}", format!("{} on {}", escape(&r.model), escape(&r.target))),
        ("{style}", include_str!("html/page.css").into()),
        ("{summary}", summary(r)),
        ("{measured}", bars.into()),
        ("{key}", key(&r.kernels)),
        ("{head}", columns.into_iter().chain(measured).map(head).collect()),
        ("{script}", include_str!("html/page.js").into()),
        ("{data}", json),
    ]
    .iter()
    .fold(include_str!("html/page.html").to_string(), |page, (hole, text)| page.replace(hole, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_repeat_are_found() {
        let found = |text: &str| repeats(text.as_bytes());
        let one = |start, period, count| Repeat { start, period, count };
        assert_eq!(found("xabcabcabcy"), [one(1, 3, 3)]);
        assert_eq!(found("aaaab"), [one(0, 1, 4)]);
        assert_eq!(found("ababcdcd"), [one(0, 2, 2), one(4, 2, 2)]);
        assert_eq!(found("abcdaa"), []);
        assert_eq!(found(""), []);
    }

    #[test]
    fn text_from_a_model_cannot_end_an_element() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
