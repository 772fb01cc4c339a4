//! Random graphs on the host: the results of fused and unfused plans agree with the interpreter in f64.
use kiln::{CompileOptions, compile::DeviceKind, compile::open_device};
use kiln_difftest::{self as difftest, Fault};
use kiln_graphgen::{Scale, case, case_inputs, shrink};
use std::ops::Range;

/// Reports all failing seeds, the first three with a shrunk graph.
fn run(seeds: Range<u64>, scale: Scale) {
    let device = open_device(DeviceKind::Cpu, Some(2)).unwrap();
    let ways = [true, false].map(|fuse| CompileOptions { fuse, ..CompileOptions::default() });
    let mut failures = vec![];
    for seed in seeds.clone() {
        // Unfused plans take most of the time, so only every other case is run with one.
        let ways = &ways[..if seed.is_multiple_of(2) { 2 } else { 1 }];
        let attempt = |g: &kiln::Graph| difftest::whole(g, &case_inputs(g, seed), ways, &device);
        let graph = case(seed, scale);
        let fault = match attempt(&graph) {
            Ok(tried) if tried.interpreted.is_empty() => continue,
            Ok(tried) => Fault::Wrong(format!("kernels without code: {}", tried.interpreted.join("; "))),
            Err(fault) => fault,
        };
        let mut text = format!("seed {seed}, {scale:?}: {fault}");
        if failures.len() < 3 {
            let small = shrink(&graph, |g| attempt(g).is_err_and(|f| f.counts()));
            let now = attempt(&small).err().map(|f| f.to_string()).unwrap_or_default();
            text += &format!("\nshrunk: {now}\n{small}");
        }
        failures.push(text);
    }
    println!("{} of seeds {seeds:?} fail", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// A thousand cases, in parts that run in parallel.
#[test]
fn first_cases() {
    run(0..250, Scale::Small);
}
#[test]
fn second_cases() {
    run(250..500, Scale::Small);
}
#[test]
fn third_cases() {
    run(500..750, Scale::Small);
}
#[test]
fn fourth_cases() {
    run(750..1000, Scale::Small);
}
#[test]
fn large_cases() {
    run(0..32, Scale::Large);
}
