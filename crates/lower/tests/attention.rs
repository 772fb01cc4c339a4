//! Attention by warpgroups and by warps: generated shapes, masks and layouts, interpreted and compared with the graph.
use crate::common::{compare_at, kernel, run_steps};
use kiln_graph::{Graph, Random};
use kiln_interp::graph::{Precision as As, no_fallback, run_with};
use kiln_lower::{lower, lower_at};
use kiln_machine::{Arch, Machine};
use kiln_plan::KernelKind::Attention;
use kiln_plan::Precision;
use kiln_plan::exec::Work;

/// Sizes of an attention: type, batch, heads of keys, query heads of each, queries, keys, widths.
struct Case<'a> {
    d: &'a str,
    heads: [usize; 3],
    rows: [usize; 2],
    widths: [usize; 2],
    /// A score function.
    score: &'a str,
}

/// What warpgroups take: rows of multiples of 8, more queries than a packed group has.
fn for_warpgroups(r: &mut Random) -> String {
    let d = r.choose(&["bf16", "f16"]);
    let heads = [1 + r.next_below(2), 1 + r.next_below(2), 1 + r.next_below(3)];
    let rows = [33 + r.next_below(200), 1 + r.next_below(300)];
    let widths = [8 * (1 + r.next_below(20)), 8 * (1 + r.next_below(20))];
    graph(r, Case { d, heads, rows, widths, score: "" })
}

/// Few rows of queries in tiles of their own or packed, and keys that are worth splitting.
fn for_slices(r: &mut Random) -> String {
    let d = r.choose(&["bf16", "f16"]);
    let group = [1, 2, 4, 8][r.next_below(4)];
    let heads = [1 + r.next_below(2), 1 + r.next_below(2), group];
    // Those that are packed have 33 to 64 rows.
    let queries =
        if group == 1 { 33 + r.next_below(200) } else { (33 + r.next_below(32)).div_ceil(group).min(64 / group) };
    let widths = [8 * (1 + r.next_below(20)), 8 * (1 + r.next_below(20))];
    let rows = [queries, 100 + r.next_below(900)];
    graph(r, Case { d, heads, rows, widths, score: "" })
}

/// Any widths, few or many queries, many heads or keys enough to be split.
fn for_warps(r: &mut Random) -> String {
    const WIDTHS: [usize; 15] = [1, 3, 16, 17, 24, 40, 64, 72, 80, 96, 136, 160, 200, 255, 256];
    let d = r.choose(&["f32", "f32", "f32", "bf16", "f16"]);
    let (heads, rows) = match r.next_below(4) {
        // Enough blocks that tiles are large.
        0 => ([2, 20 + r.next_below(21), 2], [64 + r.next_below(70), 1 + r.next_below(40)]),
        1 => ([1, 1, 1 + r.next_below(3)], [1 + r.next_below(20), 500 + r.next_below(1500)]),
        2 => ([1 + r.next_below(2), 2, 1], [1, 1 + r.next_below(300)]),
        _ => (
            [1 + r.next_below(2), 1 + r.next_below(2), 1 + r.next_below(3)],
            [2 + r.next_below(130), 1 + r.next_below(200)],
        ),
    };
    let w = WIDTHS[r.next_below(WIDTHS.len())];
    let e = if r.next_below(2) == 0 { w } else { WIDTHS[r.next_below(WIDTHS.len())] };
    let score = r.choose(&["", "", " score=\"div 2.0, tanh, mul 2.0\"", " score=\"abs, neg\""]);
    graph(r, Case { d, heads, rows, widths: [w, e], score })
}

/// An attention, with its log-sum-exp beside it, or its log-sum-exp alone.
fn graph(r: &mut Random, case: Case) -> String {
    let Case { heads: [b, hk, group], rows: [s, _], .. } = case;
    let rows = b * hk * group * s;
    let text = attention(r, case);
    let Some(call) = text.split("%y = ").nth(1).and_then(|rest| rest.lines().next()) else { return text };
    let sums = format!("%y = {call}\n %l = {call} lse=true\n %flat = reshape %l shape=[{rows}]");
    let with_sums = |results: &str| {
        let (body, last) = text.rsplit_once("return ").unwrap_or((&text, ""));
        let result = last.trim_end_matches(['\n', '}']);
        body.replace(&format!("%y = {call}"), &sums) + &format!("return {}\n}}", results.replace("ALL", result))
    };
    match r.next_below(6) {
        0 => with_sums("ALL, %l"),
        1 => with_sums("ALL, %flat"),
        2 => with_sums("%l"),
        _ => text,
    }
}

fn attention(r: &mut Random, case: Case) -> String {
    let Case { d, heads: [b, hk, group], rows: [s, t], widths: [w, e], score } = case;
    let h = hk * group;
    let scale = r.choose(&["0.1", "0.25", "-0.2"]);
    let causal = r.choose(&["false", "true"]);
    let masked = r.choose(&["zero", "nan"]);
    let how = format!("scale={scale} causal={causal} fully_masked={masked}{score}");
    // Masks of positions: causal from an offset on, a window, a position that is read.
    let offset = r.next_below(300) as i64 - 150;
    let positions =
        format!("%qi = iota axis=0 : i64[{s},1]\n %ki = iota axis=1 : i64[1,{t}]\n %qo = add %qi, {offset}");
    let lines = match r.next_below(6) {
        0 => format!("{positions}\n %m = le %ki, %qo"),
        1 => format!("{positions}\n %m1 = le %ki, %qo\n %lo = sub %qo, 70\n %m2 = lt %lo, %ki\n %m = and %m1, %m2"),
        2 => format!("{positions}\n %at = add %qi, %p\n %m = le %ki, %at"),
        _ => String::new(),
    };
    let (mask_type, mask) = match r.next_below(4) {
        _ if lines.contains("%p") => (", %p: i64[1]".into(), ", %m"),
        _ if !lines.is_empty() => (String::new(), ", %m"),
        0 => (format!(", %m: bool[{b},1,1,{t}]"), ", %m"),
        1 => (format!(", %m: {}[1,{h},{s},{t}]", r.choose(&[d, "f32"])), ", %m"),
        2 => (format!(", %m: bool[{s},{t}]"), ", %m"),
        _ => (String::new(), ""),
    };
    let sink_type = match r.next_below(4) {
        0 => format!(", %s: {d}[{h},1,1]"),
        1 => format!(", %s: f32[{b},1,{s},1]"),
        _ => String::new(),
    };
    let (mask_type, mask) =
        (format!("{sink_type}{mask_type}"), format!("{}{mask}", if sink_type.is_empty() { "" } else { ", %s" }));
    let how = format!("{how}{}", if sink_type.is_empty() { "" } else { " sink=true" });
    // Operands as they lie: heads outside, or rows outside; the result transposed back, and added to something.
    match r.next_below(3) {
        0 => format!(
            "graph k(%q: {d}[{b},{h},{s},{w}], %kk: {d}[{b},{hk},{t},{w}], %v: {d}[{b},{hk},{t},{e}]{mask_type}) {{
              {lines}
 %y = attention %q, %kk, %v{mask} {how}\n return %y\n}}"
        ),
        1 => format!(
            "graph k(%q: {d}[{b},{s},{h},{w}], %kk: {d}[{b},{t},{hk},{w}], %v: {d}[{b},{t},{hk},{e}]{mask_type}) {{
              {lines}
 %a = permute %q perm=[0,2,1,3]\n %c = permute %kk perm=[0,2,1,3]\n %f = permute %v perm=[0,2,1,3]
              %y = attention %a, %c, %f{mask} {how}\n %yp = permute %y perm=[0,2,1,3]
              %o = reshape %yp shape=[{b},{s},{}]\n return %o\n}}",
            h * e
        ),
        _ => format!(
            "graph k(%q: {d}[{b},{h},{s},{w}], %kk: {d}[{b},{hk},{t},{w}], %v: {d}[{b},{hk},{t},{e}], %r: {d}[{b},{h},{s},{e}]{mask_type}) {{
              {lines}
 %y = attention %q, %kk, %v{mask} {how}\n %z = add %y, %r\n return %z\n}}"
        ),
    }
}

/// The programs of a kernel in full.
fn programs(k: &kiln_plan::Kernel, machine: &Machine) -> String {
    let text = |w: &Work<kiln_block::BlockProgram>| match w {
        Work::Block { code, .. } => kiln_block::text::print(code),
        other => panic!("{other:?}"),
    };
    lower_at(k, machine).unwrap_or_else(|e| panic!("{e}")).steps.iter().map(text).collect()
}

/// Compares generated programs with the graph; gives the text of each.
fn generated(
    seeds: std::ops::Range<u64>,
    of: fn(&mut Random) -> String,
    precision: fn(u64) -> Precision,
    machine: &Machine,
) -> Vec<String> {
    let one = |seed: u64| {
        let source = of(&mut Random::new(seed));
        let g: Graph = source.parse().unwrap_or_else(|e| panic!("{e}\n{source}"));
        let g = g.without_dead();
        let inputs = kiln_graphgen::inputs(&g, seed);
        let k = kiln_plan::Kernel { precision: precision(seed), ..kernel(Attention, g) };
        match compare_at(&k, &inputs, machine) {
            Ok(Ok(())) => programs(&k, machine),
            Ok(Err(e)) => panic!("seed {seed}: {e}\n{source}"),
            Err(e) => panic!("seed {seed}: {e}\n{source}"),
        }
    };
    seeds.map(one).collect()
}

#[test]
fn generated_attentions_by_warpgroups() {
    let all = generated(0..80, for_warpgroups, |_| Precision::Exact, Arch::Sm90a.machine());
    let found = all.iter().filter(|text| text.contains("roles producer")).count();
    assert!(found >= 56, "only {found} of 80 programs are by warpgroups");
    let sums = all.iter().filter(|text| text.contains("roles producer") && text.contains("= log ")).count();
    assert!(sums >= 15, "only {sums} of 80 programs are by warpgroups and store a log-sum-exp");
}

/// Where slices are joined at no cost, and warps are slow.
#[test]
fn generated_attentions_by_warpgroups_in_slices() {
    let mut machine = Arch::Sm90a.machine().clone();
    let a = &mut machine.attention;
    (a.warpgroups.beside.join, a.warps.rate, a.warps.narrow) = (0.0, 1.0, 1.0);
    let all = generated(100..160, for_slices, |_| Precision::Exact, &machine);
    let count = |what: &dyn Fn(&str) -> bool| all.iter().filter(|t| t.contains("roles producer") && what(t)).count();
    let found = [count(&|t| t.contains("_join")), count(&|t| t.contains("_join") && t.contains("warps 8"))];
    assert!(found[0] >= 22 && found[1] >= 12, "{found:?} of 60 programs are in slices, and of one consumer");
}

#[test]
fn generated_attentions_by_warps() {
    let all = generated(
        0..80,
        for_warps,
        |seed| if seed % 2 == 0 { Precision::Exact } else { Precision::Tf32x3 },
        Arch::Sm90a.machine(),
    );
    let count = |what: &dyn Fn(&String) -> bool| all.iter().filter(|t| what(t)).count();
    let found = [
        count(&|t| t.contains("dot tf32x3")),
        count(&|t| t.contains("= dot v")),
        count(&|t| t.contains("scratch0") && t.contains("dot")),
        // More than one part of the queries or of the values.
        count(&|t| t.matches("= dot ").count() > 2),
        count(&|t| t.contains("warps 8")),
    ];
    let least = [15, 30, 10, 20, 10];
    assert!(found.iter().zip(least).all(|(n, least)| *n >= least), "{found:?} of 80 programs, not {least:?}");
}

/// Large and small scores, weights that add up: the error of 3xTF32 is that of f32, and not of tf32, which is a
/// thousand times as large.
#[test]
fn attention_by_3xtf32_is_as_accurate_as_f32() {
    for (width, keys, scale) in [(64, 200, 0.2), (160, 300, 1.0), (96, 2000, 0.05)] {
        let g = format!(
            "graph k(%q: f32[2,2,70,{width}], %kk: f32[2,2,{keys},{width}], %v: f32[2,2,{keys},{width}]) {{
 %y = attention %q, %kk, %v scale={scale} causal=false fully_masked=nan\n return %y\n}}"
        );
        let g: Graph = g.parse().unwrap_or_else(|e| panic!("{e}\n{g}"));
        let inputs = kiln_graphgen::inputs(&g, width as u64);
        let want = run_with(&g, &inputs, &[], As::F64, &mut no_fallback).unwrap();
        let error = |precision: Precision| {
            let k = kiln_plan::Kernel { precision, ..kernel(Attention, g.clone()) };
            let steps = lower(&k, Arch::Sm90a).unwrap();
            assert_eq!(programs(&k, Arch::Sm90a.machine()).contains("dot tf32x3"), precision == Precision::Tf32x3);
            let got = run_steps(&g, &steps, &inputs).unwrap();
            let each = (0..want[0].ty.count()).map(|i| (want[0].get_f64(i) - got[0].get_f64(i)).abs());
            each.fold(0.0, f64::max)
        };
        let (exact, split) = (error(Precision::Exact), error(Precision::Tf32x3));
        assert!(split <= 4.0 * exact, "{width}: {split:e}, with f32 {exact:e}");
    }
}
