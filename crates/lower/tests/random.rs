//! Random bodies against the graph interpreter, shrunk when they fail.
use crate::common::{TARGETS, compare};
use kiln_graph::{Graph, Op};
use kiln_plan::KernelKind;

/// A body of one family, from its ops.
fn kind_of(g: &Graph) -> KernelKind {
    let any = |f: fn(&Op) -> bool| g.values().any(|v| f(g.op(v)));
    if any(|o| matches!(o, Op::Scan { .. })) {
        KernelKind::Scan
    } else if any(|o| matches!(o, Op::Dot | Op::Linear)) {
        KernelKind::Gemm
    } else {
        KernelKind::Reduction
    }
}

/// Reasons for which bodies that no planner made may be refused.
const REFUSALS: [&str; 7] = [
    "a reduction in a kernel without rows",
    "a reduction of a scan",
    "a scan with outputs of different sizes",
    "scans in different directions or along different axes",
    "elements over rows of",
    "rows of",
    "two matmuls in the body",
];

/// All are lowered and correct, except at most `most_refused` that are refused for one of the reasons above.
fn run(options: &kiln_graphgen::Options, seeds: std::ops::Range<u64>, most_refused: usize) {
    let mut refused = vec![];
    for seed in seeds {
        let g = kiln_graphgen::graph(seed, options);
        for target in TARGETS {
            let attempt = |g: &Graph| compare(kind_of(g), g, &kiln_graphgen::inputs(g, seed), target);
            match attempt(&g) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => {
                    let why = e.to_string();
                    assert!(REFUSALS.iter().any(|r| why.contains(r)), "seed {seed}, {target:?}: {why}\n{g}");
                    refused.push(why);
                }
                Err(e) => {
                    let small = kiln_graphgen::shrink(&g, |g| attempt(g).is_err());
                    let e = attempt(&small).err().unwrap_or(e);
                    panic!("seed {seed}, {target:?}: {e}\n{small}");
                }
            }
        }
    }
    assert!(refused.len() <= most_refused, "{} are refused: {refused:#?}", refused.len());
}

fn options() -> kiln_graphgen::Options {
    kiln_graphgen::Options {
        reductions: false,
        dots: false,
        composites: false,
        movement: false,
        ..kiln_graphgen::Options::default()
    }
}

#[test]
fn pointwise_and_views() {
    run(&kiln_graphgen::Options { ops: 10, ..options() }, 0..150, 0);
}
#[test]
fn movement() {
    run(&kiln_graphgen::Options { ops: 6, movement: true, ..options() }, 1000..1150, 0);
}
#[test]
fn edges() {
    run(&kiln_graphgen::Options { ops: 8, movement: true, edges: true, ..options() }, 6000..6200, 6);
}
#[test]
fn reduced_edges() {
    let edges =
        kiln_graphgen::Options { ops: 5, movement: true, edges: true, reductions: true, composites: true, ..options() };
    run(&edges, 7000..7150, 8);
}
#[test]
fn one_reduction() {
    run(&kiln_graphgen::Options { ops: 4, reductions: true, ..options() }, 2000..2200, 4);
}
#[test]
fn one_composite() {
    run(&kiln_graphgen::Options { ops: 3, composites: true, ..options() }, 3000..3200, 4);
}
#[test]
fn one_matmul() {
    run(&kiln_graphgen::Options { ops: 3, dots: true, ..options() }, 4000..4200, 5);
}
#[test]
fn everything() {
    let all =
        kiln_graphgen::Options { ops: 6, reductions: true, dots: true, composites: true, movement: true, ..options() };
    run(&all, 5000..5200, 27);
}
