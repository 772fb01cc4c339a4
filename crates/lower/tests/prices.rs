//! Prices of schedules: what a term of the cost model says of one schedule and another.
use crate::common::kernel;
use kiln_lower::price::Price;
use kiln_machine::Arch;
use kiln_plan::KernelKind;

/// The price on an H200 of a schedule for a graph.
fn price(kind: KernelKind, graph: &str, schedule: &str) -> Price {
    let k = kernel(kind, format!("graph k{graph}").parse().expect("a graph"));
    let machine = Arch::Sm90a.machine();
    let schedule = schedule.parse().expect("a schedule");
    kiln_lower::priced(&k, machine, &schedule).unwrap_or_else(|e| panic!("{e}\n{graph}")).expect("has a price")
}

/// A reversed pass reads from memory what does not fit the L2 cache alone.
#[test]
fn a_reversed_pass_reads_less() {
    let norm = "(%x: f32[64,1000000]) { %y = softmax %x axis=1\n return %y }";
    let steps = "split r 4096; bind warp 8; split-reduce r 32";
    let plain = price(KernelKind::Reduction, norm, steps);
    let reversed = price(KernelKind::Reduction, norm, &format!("{steps}; reverse r"));
    let machine = Arch::Sm90a.machine();
    let saved = (plain.memory - reversed.memory) * 1e-6 * machine.rates.bandwidth / machine.units.l2 as f64;
    assert!((0.3..0.8).contains(&saved), "{saved} of the L2 cache");
}

/// The last wave of instances: an instance that has it for itself costs more than one that fills it.
#[test]
fn a_wave_that_is_not_full_costs_more() {
    let memory = |instances: usize| {
        let graph = format!("(%x: f32[{}]) {{ %y = relu %x\n return %y }}", instances * 16384);
        price(KernelKind::Pointwise, &graph, "split i0 16384; bind warp 16").memory
    };
    let of_wave: Vec<f64> = (12..40).map(|n| memory(132 * n + 1) / memory(132 * n)).collect();
    let (most, least) = of_wave.iter().fold((0.0f64, 9.0f64), |(a, b), r| (a.max(*r), b.min(*r)));
    assert!(most > 1.01 && least < 1.001, "{most} {least}");
}

/// Tiles of rows that are not multiples of a sector share sectors at their edges, which memory transfers twice in part.
#[test]
fn shared_edges_cost_memory() {
    let memory = |columns: usize| {
        let graph = format!("(%x: f32[8192,{columns}]) {{ %y = permute %x perm=[1,0]\n return %y }}");
        price(KernelKind::Pointwise, &graph, "split i0 64; split i1 64; bind warp 8").memory / columns as f64
    };
    let more = memory(8193) / memory(8192);
    assert!((1.02..1.3).contains(&more), "{more}");
}
