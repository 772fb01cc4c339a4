//! Schedules of launches beside a matmul: copies of operands, sums of slices, epilogues of their own. They are part of
//! the kernel's schedule, and followed.
use crate::common::{difference, kernel, run_steps};
use kiln_graph::Graph;
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{LowerError, chosen, fits, lower, lower_at, priced, relaunched, schedules};
use kiln_machine::{Arch, machine};
use kiln_plan::exec::{Steps, Work};
use kiln_plan::{Kernel, KernelKind, Schedule};

const ODD: &str = "graph k(%a: bf16[67,203], %b: bf16[203,130]) { %y = dot %a, %b\n %z = relu %y\n return %z }";

fn by(graph: &str, schedule: &str) -> Kernel {
    let mut k = kernel(KernelKind::Gemm, graph.parse::<Graph>().expect("a graph"));
    k.schedule = (!schedule.is_empty()).then(|| schedule.parse().expect("a schedule"));
    k
}
/// The block programs of all launches.
fn text(steps: &Steps<kiln_block::BlockProgram>) -> String {
    let program = |w: &Work<kiln_block::BlockProgram>| match w {
        Work::Block { code, .. } => kiln_block::text::print(code) + "\n",
        other => format!("{other:?}\n"),
    };
    steps.steps.iter().map(program).collect()
}
/// Interprets, compares, and gives the block programs.
fn computes(k: &Kernel) -> String {
    let steps = lower(k, Arch::Sm90a).unwrap_or_else(|e| panic!("{e}"));
    let inputs = kiln_graphgen::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    let got = run_steps(&k.body, &steps, &inputs).expect("runs");
    difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{e}\n{}", text(&steps)));
    text(&steps)
}

#[test]
fn each_launch_follows_its_schedule() {
    let main = "split-reduce k 2; tensor-core wgmma 64x64x64; stage a,b shared 3; stage a,b global";
    let left = |warps: usize| format!("launch left (split i0 2; split i1 256; bind warp {warps})");
    let right = "launch right (split i0 64; split i1 8; bind warp 2)";
    let sum = "launch sum (split i0 64; bind warp 1)";
    for warps in [2, 8] {
        let programs = computes(&by(ODD, &format!("{main}; {}; {right}", left(warps))));
        let copy = programs.lines().find(|l| l.starts_with("kernel @k_left")).expect("a copy of the left operand");
        assert!(copy.contains(&format!("warps {warps} ")), "{copy}");
    }
    // A launch that the schedule does not name has its cheapest schedule.
    let one = "split-reduce k 2; tensor-core wgmma 64x64x64; stage a,b global; stage a,b shared 3";
    let (named, free) = (computes(&by(ODD, &format!("{one}; {sum}"))), computes(&by(ODD, one)));
    let programs = |all: &str| all.lines().filter(|l| l.starts_with("kernel @")).count();
    assert_eq!((programs(&named), programs(&free)), (4, 4), "two copies, slices, their sum: {free}");
}

#[test]
fn what_is_chosen_names_all_launches() {
    let copied = "graph k(%a: bf16[4096,4097], %b: bf16[4097,4096]) { %y = dot %a, %b\n return %y }";
    for name in ["h200", "a100"] {
        let machine = &machine(name).expect("a machine");
        let free = by(copied, "");
        let all = chosen(&free, machine).expect("chosen").schedule.expect("a schedule");
        let pinned = Kernel { schedule: Some(all.clone()), ..free.clone() };
        let programs = |k: &Kernel| text(&lower_at(k, machine).expect("lowers"));
        assert_eq!(programs(&pinned), programs(&free), "{name}: {all}");
        let price = |s: &Schedule| priced(&free, machine, s).expect("fits").map(|p| p.us);
        assert_eq!(price(&all), price(&all.main()), "{name}: {all}");
        assert_eq!(all.to_string().parse().as_ref(), Ok(&all));
        if name == "h200" {
            let names: Vec<&str> = all.launches().map(|l| l.0).collect();
            assert!(names.contains(&"left"), "rows of 4097 elements are copied: {all}");
        }
    }
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let machine = Arch::Sm90a.machine();
    for (graph, schedule, why) in [
        (
            ODD,
            "stage a,b global; tensor-core wgmma 64x64x64; stage a,b shared 3; launch sum (bind warp 1)",
            "`launch sum` names no launch of the kernel; there are: left, right",
        ),
        (ODD, "tensor-core mma 64x64x32; bind warp 4; launch left (bind warp 1)", "there are: none"),
        (
            ODD,
            "stage a,b global; tensor-core wgmma 64x64x64; stage a,b shared 3; launch left (split i7 8)",
            "`split i7 8` does not fit: there is no axis i7",
        ),
        (ODD, "split r 256; bind warp 4; launch left (bind warp 1)", "`launch left` names no launch of the kernel"),
    ] {
        let k = by(graph, "");
        let e = fits(&k, machine, &schedule.parse().expect("a schedule")).map_err(LowerError::why).expect_err(schedule);
        assert!(e.contains(why), "{schedule}: {e}");
    }
}

/// Results of two sizes; a scatter that finds the last of several rows for one place; one whose sums are of a wider
/// type.
const SEVERAL: [(KernelKind, &str, &[&str]); 3] = [
    (
        KernelKind::Pointwise,
        "graph k(%a: f32[70,33], %b: f32[33]) { %y = add %a, %b\n %z = exp %b\n return %y, %z }",
        &["main", "1"],
    ),
    (
        KernelKind::Scatter,
        "graph k(%x: f32[40,7], %i: i64[19,7], %s: f32[19,7]) { %y = scatter %x, %i, %s axis=0 mode=replace\n \
         return %y }",
        &["copy", "none", "last", "write"],
    ),
    (
        KernelKind::Scatter,
        "graph k(%x: bf16[40,7], %i: i64[19,7], %s: bf16[19,7]) { %y = scatter %x, %i, %s axis=0 mode=add\n \
         return %y }",
        &["copy", "write", "round"],
    ),
];

#[test]
fn kernels_of_several_nests_have_a_schedule_of_launches() {
    for (kind, graph, names) in SEVERAL {
        let free = kernel(kind, graph.parse::<Graph>().expect("a graph"));
        for machine in ["h200", "a100"].map(|name| machine(name).expect("a machine")) {
            let with = |schedule: &Schedule| Kernel { schedule: Some(schedule.clone()), ..free.clone() };
            let own = chosen(&free, machine).expect("chosen");
            let all = own.schedule.expect("a schedule");
            assert_eq!(all.launches().map(|l| l.0).collect::<Vec<_>>(), names, "{all}");
            assert_eq!(all.to_string().parse().as_ref(), Ok(&all));
            let programs = |k: &Kernel| text(&lower_at(k, machine).expect("lowers"));
            assert_eq!(programs(&with(&all)), programs(&free), "{all}");
            let price = |s: &Schedule| priced(&free, machine, s).expect("fits").expect("has a price").us;
            assert_eq!(Some(price(&all)), own.us, "{all}");
            // What a schedule does not name gets its cheapest one, and is part of the plan.
            let one: Schedule = all.steps[1..].iter().cloned().collect();
            let completed = chosen(&with(&one), machine).expect("chosen").schedule.expect("a schedule");
            assert_eq!(completed.launches().collect::<std::collections::BTreeSet<_>>(), all.launches().collect());
            // Others differ in one launch, and are dearer by what that one is.
            let proposed = schedules(&free, machine).expect("proposed");
            assert_eq!(proposed[0].0, all);
            for (other, us) in proposed[1..].iter().step_by(37).map(|(s, p)| (s, p.us)) {
                let differ = other.steps.iter().zip(&all.steps).filter(|(a, b)| a != b).count();
                assert!(differ == 1 && (price(other) - us).abs() < 1e-9, "{other}: {us}, {}", price(other));
                computes(&with(other));
            }
        }
    }
}

#[test]
fn one_schedule_is_that_of_the_writes() {
    let (kind, graph, _) = SEVERAL[2];
    let mut k = kernel(kind, graph.parse::<Graph>().expect("a graph"));
    k.schedule = Some("fuse i0,i1; split i0 256; bind warp 2".parse().expect("a schedule"));
    let programs = computes(&k);
    let warps = |name: &str| {
        let line = programs.lines().find(|l| l.starts_with(&format!("kernel @k_{name}"))).expect("a launch");
        line.contains("warps 2 ")
    };
    assert!(warps("write"), "{programs}");
    let all = chosen(&k, Arch::Sm90a.machine()).expect("chosen").schedule.expect("a schedule").to_string();
    assert!(all.starts_with("fuse i0,i1; split i0 256; bind warp 2; launch copy ("), "{all}");
}

#[test]
fn other_schedules_of_launches_are_neighbours() {
    let machine = Arch::Sm90a.machine();
    let k = by(ODD, "");
    let own: Schedule = "stage a,b global; tensor-core wgmma 64x64x64; stage a,b shared 3".parse().expect("a schedule");
    let near = relaunched(&k, machine, &own).expect("lowers");
    assert!(near.len() > 6, "two copies, several schedules of each: {}", near.len());
    for other in near {
        assert_eq!(other.main(), own);
        assert_eq!(other.launches().map(|l| l.0).collect::<Vec<_>>(), ["left", "right"]);
        fits(&k, machine, &other).unwrap_or_else(|e| panic!("{other}: {e}"));
    }
    let alone =
        kernel(KernelKind::Pointwise, "graph k(%a: f32[70]) { %y = exp %a\n return %y }".parse().expect("a graph"));
    let only = chosen(&alone, machine).expect("chosen").schedule.expect("a schedule");
    assert_eq!(relaunched(&alone, machine, &only).expect("lowers"), []);
}
