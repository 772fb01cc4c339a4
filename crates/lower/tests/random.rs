//! Random bodies against the graph interpreter, shrunk when they fail.
use crate::common::{TARGETS, compare};
use kiln_graph::{Graph, Op, random};
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

fn run(options: &random::Options, seeds: std::ops::Range<u64>, least: usize) {
    let mut lowered = 0;
    let total = (seeds.end - seeds.start) as usize * TARGETS.len();
    for seed in seeds {
        let g = random::graph(seed, options);
        for target in TARGETS {
            let attempt = |g: &Graph| compare(kind_of(g), g, &random::inputs(g, seed), target);
            match attempt(&g) {
                Ok(Ok(())) => lowered += 1,
                Ok(Err(_)) => {}
                Err(e) => {
                    let small = random::shrink(&g, |g| attempt(g).is_err());
                    let e = attempt(&small).err().unwrap_or(e);
                    panic!("seed {seed}, {target:?}: {e}\n{small}");
                }
            }
        }
    }
    assert!(lowered >= least, "only {lowered} of {total} were lowered");
}

fn options() -> random::Options {
    random::Options { reductions: false, dots: false, composites: false, movement: false, ..random::Options::default() }
}

#[test]
fn pointwise_and_views() {
    run(&random::Options { ops: 10, ..options() }, 0..150, 290);
}
#[test]
fn movement() {
    run(&random::Options { ops: 6, movement: true, ..options() }, 1000..1150, 200);
}
#[test]
fn edges() {
    run(&random::Options { ops: 8, movement: true, edges: true, ..options() }, 6000..6200, 250);
}
#[test]
fn reduced_edges() {
    let edges =
        random::Options { ops: 5, movement: true, edges: true, reductions: true, composites: true, ..options() };
    run(&edges, 7000..7150, 100);
}
#[test]
fn one_reduction() {
    run(&random::Options { ops: 4, reductions: true, ..options() }, 2000..2200, 150);
}
#[test]
fn one_composite() {
    run(&random::Options { ops: 3, composites: true, ..options() }, 3000..3200, 150);
}
#[test]
fn one_product() {
    run(&random::Options { ops: 3, dots: true, ..options() }, 4000..4200, 150);
}
#[test]
fn everything() {
    let all = random::Options { ops: 6, reductions: true, dots: true, composites: true, movement: true, ..options() };
    run(&all, 5000..5200, 50);
}
