//! Proposed schedules of points, rows and scans: each computes what the graph says.
use crate::common::{TARGETS, check_by, difference, in_parallel, kernel, run_steps, text};
use kiln_block::passes::persistent_rows;
use kiln_graph::Graph;
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{lower_at, neighbours, scheduled};
use kiln_machine::Arch;
use kiln_plan::{Kernel, KernelKind, Step, exec::Work};

/// Interprets every `step`-th schedule proposed for a graph that is `of` a kind; gives how many these were.
fn compute(graph: &str, kind: KernelKind, arch: Arch, of: impl Fn(&Step) -> bool, step: usize) -> usize {
    let mut k = kernel(kind, graph.parse::<Graph>().unwrap_or_else(|e| panic!("{e}\n{graph}")));
    let machine = arch.machine();
    let found = scheduled(&k, machine).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let mut schedules = found.unwrap_or_else(|| panic!("no nest\n{graph}")).schedules;
    schedules.retain(|s| s.0.steps.iter().any(&of));
    let inputs = kiln_graphgen::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    for (schedule, _) in schedules.iter().step_by(step) {
        k.schedule = Some(schedule.clone());
        let steps = lower_at(&k, machine).unwrap_or_else(|e| panic!("{schedule}: {e}\n{graph}"));
        let got = run_steps(&k.body, &steps, &inputs).unwrap_or_else(|e| panic!("{schedule}: {e}\n{graph}"));
        difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{schedule}: {e}\n{graph}\n{}", text(&steps)));
    }
    schedules.len()
}

#[test]
fn every_proposed_schedule_computes_the_same() {
    let graphs = [
        (
            KernelKind::Pointwise,
            "graph k(%a: f32[7,3,130], %b: f32[130]) { %s = add %a, %b\n %y = relu %s\n return %y }",
        ),
        (
            KernelKind::Pointwise,
            "graph k(%a: bf16[37,5,66]) { %t = permute %a perm=[2,1,0]\n %y = relu %t\n return %y }",
        ),
        (KernelKind::Pointwise, "graph k(%a: f16[33,29], %b: f16[33,7]) { %y = concat %a, %b axis=1\n return %y }"),
        (KernelKind::Reduction, "graph k(%a: f32[300,17]) { %y = softmax %a axis=1\n return %y }"),
        (
            KernelKind::Reduction,
            "graph k(%a: bf16[9,4099], %g: bf16[4099]) { %y = rms_norm %a, %g eps=1e-6\n return %y }",
        ),
        (KernelKind::Reduction, "graph k(%a: f16[1,70000]) { %y = reduce.max %a axes=[1]\n return %y }"),
        (KernelKind::Reduction, "graph k(%a: f32[3,5000]) { %y = reduce.argmax %a axes=[1]\n return %y }"),
        (KernelKind::Reduction, "graph k(%a: f32[515,70]) { %y = reduce.sum %a axes=[0]\n return %y }"),
        (KernelKind::Reduction, "graph k(%a: bf16[3,65,34]) { %y = softmax %a axis=1\n return %y }"),
        (KernelKind::Reduction, "graph k(%a: f32[6,5,9,8]) { %y = reduce.mean %a axes=[0,2,3]\n return %y }"),
        (KernelKind::Scan, "graph k(%a: f32[4,3000]) { %y = scan.sum %a axis=1\n return %y }"),
        (KernelKind::Scan, "graph k(%a: bf16[3,700,20]) { %y = scan.sum %a axis=1\n return %y }"),
    ];
    for (kind, graph) in graphs {
        let counts = TARGETS.map(|arch| compute(graph, kind, arch, |_| true, 3));
        println!("{counts:?} {graph}");
    }
}

/// What is proposed is lowered: of arrays too large to be interpreted, whose last passes are reversed and whose rows
/// are wide.
#[test]
fn every_schedule_proposed_for_large_arrays_is_lowered() {
    let log_sum_exp = |x: &str, axis: usize, kept: &str| {
        format!(
            "graph k(%x: {x}) {{ %m = reduce.max %x axes=[{axis}]\n %r = reshape %m shape={kept}\n %d = sub %x, %r\n \
             %e = exp %d\n \
             %s = reduce.sum %e axes=[{axis}]\n %l = log %s\n %y = add %l, %m\n return %y }}"
        )
    };
    let softmax = |x: &str, axis: usize| format!("graph k(%x: {x}) {{ %y = softmax %x axis={axis}\n return %y }}");
    let graphs = [
        log_sum_exp("f16[73920,586]", 0, "[1,586]"),
        log_sum_exp("f32[3,40000,33]", 1, "[3,1,33]"),
        log_sum_exp("bf16[100,400000]", 1, "[100,1]"),
        softmax("f32[2,300000,61]", 1),
        softmax("bf16[3000,70000]", 0),
        softmax("f16[77,1000003]", 1),
        "graph k(%x: f32[1000,257,257]) { %y = reduce.argmax %x axes=[1]\n return %y }".into(),
        "graph k(%x: bf16[9,70000,30]) { %q = mul %x, %x\n %m = reduce.mean %q axes=[1]\n return %m }".into(),
    ];
    for graph in graphs {
        let mut k = kernel(KernelKind::Reduction, graph.parse::<Graph>().unwrap_or_else(|e| panic!("{e}\n{graph}")));
        for machine in ["h200", "rtx4090"].map(|name| kiln_machine::machine(name).expect("a machine")) {
            let found = scheduled(&Kernel { schedule: None, ..k.clone() }, machine).expect("proposed").expect("a nest");
            assert!(found.schedules.len() > 20, "{} {graph}", found.schedules.len());
            for (schedule, _) in found.schedules {
                k.schedule = Some(schedule.clone());
                lower_at(&k, machine).unwrap_or_else(|e| panic!("{schedule}: {e}\n{graph}"));
            }
        }
    }
}

/// A schedule that says `persist` gives a persistent program: of aligned and of peeled rows, one or two in a tile.
#[test]
fn persistent_schedules_are_persistent_programs() {
    let norm = |x: &str, n: usize, ty: &str| {
        format!("graph k(%x: {x}, %w: {ty}[{n}], %b: {ty}[{n}]) {{ %y = layer_norm %x, %w, %b eps=1e-5\n return %y }}")
    };
    let machine = kiln_machine::machine("h200").expect("a machine");
    let mut count = 0;
    for graph in [
        norm("f32[16384,16384]", 16384, "f32"),
        norm("f32[4096,16385]", 16385, "f32"),
        norm("bf16[4096,32770]", 32770, "bf16"),
        norm("f32[64,300,12290]", 12290, "f32"),
        "graph k(%x: f16[16384,32768]) { %y = softmax %x axis=1\n return %y }".into(),
    ] {
        let mut k = kernel(KernelKind::Reduction, graph.parse::<Graph>().unwrap_or_else(|e| panic!("{e}\n{graph}")));
        let found = scheduled(&k, machine).expect("proposed").expect("a nest").schedules;
        for (schedule, _) in found.into_iter().filter(|s| s.0.steps.iter().any(|s| matches!(s, Step::Persist(_)))) {
            k.schedule = Some(schedule.clone());
            let steps = lower_at(&k, machine).unwrap_or_else(|e| panic!("{schedule}: {e}\n{graph}"));
            let is_persistent =
                |w: &Work<_>| matches!(w, Work::Block { code, .. } if persistent_rows::is_persistent(code));
            assert!(steps.steps.iter().any(is_persistent), "{schedule}\n{graph}");
            count += 1;
        }
    }
    assert!(count > 4, "{count}");
    let mut k = kernel(KernelKind::Reduction, norm("f32[4096,4097]", 4097, "f32").parse::<Graph>().expect("a graph"));
    let schedule = "split r 8192; bind warp 16; bind cluster 2; tail r 2; persist 66";
    k.schedule = Some(schedule.parse().expect("a schedule"));
    let e = lower_at(&k, machine).expect_err("a tail").to_string();
    assert!(e.contains("`persist 66` does not fit") && e.contains("leave out `tail`"), "{e}");
}

/// Copies of operands are for rows that a tile holds: chunks of a row, and aligned rows, have none.
#[test]
fn operands_of_chunks_are_not_copied() {
    for (n, base, fits) in [
        (4097, "split r 8192; bind warp 8; peel r 4", true),
        (4097, "split r 1024; bind warp 8; peel r 4", false),
        (4096, "split r 4096; bind warp 8", false),
    ] {
        let graph = format!("graph k(%x: f32[300,{n}], %g: f32[{n}]) {{ %y = rms_norm %x, %g eps=1e-6\n return %y }}");
        let mut k = kernel(KernelKind::Reduction, graph.parse::<Graph>().expect("a graph"));
        k.schedule = Some(format!("{base}; stage operands global").parse().expect("a schedule"));
        match lower_at(&k, Arch::Sm90a.machine()) {
            Ok(_) => assert!(fits, "{base}"),
            Err(e) => {
                let e = e.to_string();
                assert!(!fits && e.contains("`stage operands global` does not fit") && e.contains("`peel r`"), "{e}");
            }
        }
    }
}

/// Sums of groups of chunks: whole groups and the start of one, tiles of several columns, values of 4 and of 8 bytes.
#[test]
fn scans_look_back_at_groups() {
    let scan = |ty: &str, axis: usize| format!("graph k(%a: {ty}) {{ %y = scan.sum %a axis={axis}\n return %y }}");
    for (ty, axis, base) in [
        ("f32[9001]", 0, "split r 256; bind warp 2"),
        ("i64[3,5000]", 1, "split r 128; bind warp 1; registers 64"),
        ("f32[700,37]", 0, "split r 16; split i0 32; bind warp 4"),
        ("f64[2,300,9]", 1, "split r 8; split i1 8; bind warp 1"),
        ("bf16[2000,5]", 0, "split r 32; split i0 8; bind warp 2"),
        ("i16[9001]", 0, "split r 256; bind warp 2"),
        ("u8[3,5000]", 1, "split r 128; bind warp 1"),
        ("i8[700,37]", 0, "split r 16; split i0 32; bind warp 4"),
    ] {
        let graph: Graph = scan(ty, axis).parse().expect("a graph");
        let inputs = kiln_graphgen::inputs(&graph, 3);
        let want = run_with(&graph, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
        for group in [1, 2, 8, 32] {
            let mut k = kernel(KernelKind::Scan, graph.clone());
            let schedule = format!("{base}; look-back r {group}");
            k.schedule = Some(schedule.parse().expect("a schedule"));
            let steps = lower_at(&k, Arch::Sm90a.machine()).unwrap_or_else(|e| panic!("{schedule}: {e}"));
            let got = run_steps(&k.body, &steps, &inputs).unwrap_or_else(|e| panic!("{ty} {schedule}: {e}"));
            difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{ty} {schedule}: {e}"));
        }
        for group in [3, 128] {
            let mut k = kernel(KernelKind::Scan, graph.clone());
            k.schedule = Some(format!("{base}; look-back r {group}").parse().expect("a schedule"));
            let e = lower_at(&k, Arch::Sm90a.machine()).expect_err("a wrong group").to_string();
            assert!(e.contains("groups are of 2 to 64 chunks, a power of two"), "{e}");
        }
    }
}

/// Chunks of a row as instances that wait for those before them: rows and columns, sums and products, ends of rows,
/// several scans.
#[test]
fn scans_look_back() {
    let graphs = [
        "graph k(%a: f32[70001]) { %y = scan.sum %a axis=0\n return %y }",
        "graph k(%a: bf16[3,30000]) { %y = scan.sum %a axis=1\n return %y }",
        "graph k(%a: f32[2,1025,33]) { %y = scan.sum %a axis=1\n %z = mul %y, %y\n return %z }",
        "graph k(%a: i64[5,9000]) { %y = scan.sum %a axis=1\n %z = sub %y, %a\n return %z }",
        "graph k(%a: f32[1,6000], %b: f32[1,6000]) { %c = const 0.01 : f32[]\n %d = mul %a, %c\n \
         %o = const 1.0 : f32[]\n %e = add %d, %o\n \
         %y = scan.prod %e axis=1\n %s = scan.sum %b axis=1\n %z = add %y, %s\n return %z }",
    ];
    in_parallel(&graphs, |graph| {
        let count = compute(graph, KernelKind::Scan, Arch::Sm90a, |s| matches!(s, Step::LookBack(..)), 2);
        assert!(count > 2, "{graph}: {count}");
    });
    let mut k = kernel(
        KernelKind::Reduction,
        "graph k(%a: f32[9000]) { %y = reduce.sum %a axes=[0]\n return %y }".parse().expect("a graph"),
    );
    k.schedule = Some("split r 1024; bind warp 4; look-back r".parse().expect("a schedule"));
    let e = lower_at(&k, Arch::Sm90a.machine()).expect_err("a reduction").to_string();
    assert!(e.contains("`look-back r` does not fit") && e.contains("are not scanned"), "{e}");
    k.schedule = Some("split r 1024; bind warp 4; split-reduce i0 4".parse().expect("a schedule"));
    let e = lower_at(&k, Arch::Sm90a.machine()).expect_err("a kept axis").to_string();
    assert!(e.contains("`split-reduce i0 4` does not fit: it is for the row, r"), "{e}");
}

/// Threads that hold a whole row of a window's results: results, ends of rows, and what does not fit.
#[test]
fn threads_hold_rows_of_windows() {
    let conv = |d: &str, dims: &str, how: &str| {
        let c = dims.split(',').nth(1).unwrap_or("1");
        format!(
            "graph k(%a: {d}[{dims}], %w: {d}[{c},1,3,3]) {{ %y = conv %a, %w {how} groups={c}\n %z = relu %y\n \
             return %z }}"
        )
    };
    for (d, dims, how) in [
        ("bf16", "5,3,7,7", "stride=[1,1] padding=[1,1]"),
        ("f16", "9,5,14,14", "stride=[1,1] padding=[1,1]"),
        ("f32", "4,6,9,13", "stride=[1,2] padding=[0,2]"),
    ] {
        let graph = conv(d, dims, how);
        let count = compute(&graph, KernelKind::Conv, Arch::Sm90a, |s| matches!(s, Step::Vector(_)), 5);
        assert!(count > 0, "{graph}");
    }
    let points = "graph k(%a: f32[64,64], %b: f32[64]) { %y = add %a, %b\n return %y }";
    let rows = "graph k(%a: f32[64,64]) { %y = softmax %a axis=1\n return %y }";
    for (graph, kind, arch, schedule, why) in [
        (
            points,
            KernelKind::Pointwise,
            Arch::Sm90a,
            "split i0 64; split i1 8; bind warp 1; bind vector 16",
            "the last axis of the tile has 8",
        ),
        (
            points,
            KernelKind::Pointwise,
            Arch::Sm90a,
            "split i1 64; bind warp 1; bind vector 4",
            "a thread has 2 elements",
        ),
        (
            points,
            KernelKind::Pointwise,
            Arch::Sm90a,
            "split i0 8; split i1 64; bind warp 1; bind vector 6",
            "a power of two",
        ),
        (points, KernelKind::Pointwise, Arch::Cpu, "split i1 64; bind vector 4", "of a GPU"),
        (
            rows,
            KernelKind::Reduction,
            Arch::Sm90a,
            "split i0 8; split r 64; bind warp 1; bind vector 4",
            "a nest with a row",
        ),
    ] {
        let mut k = kernel(kind, graph.parse::<Graph>().expect("a graph"));
        k.schedule = Some(schedule.parse().expect("a schedule"));
        let e = lower_at(&k, arch.machine()).expect_err(schedule).to_string();
        assert!(e.contains("`bind vector ") && e.contains(why), "{schedule}: {e}");
    }
}

/// Fewer lanes along short rows: results of norms, sums and scans, staged or not, and what does not fit.
#[test]
fn lanes_along_short_rows() {
    let softmax = "graph k(%a: f16[77,71]) { %y = log_softmax %a axis=1\n return %y }";
    let norm = "graph k(%a: f32[9,10,140], %g: f32[140]) { %y = rms_norm %a, %g eps=1e-6\n return %y }";
    let scan = "graph k(%a: f32[67,133]) { %y = scan.sum %a axis=1\n return %y }";
    for (graph, kind) in [(softmax, KernelKind::Reduction), (norm, KernelKind::Reduction), (scan, KernelKind::Scan)] {
        let count = compute(graph, kind, Arch::Sm90a, |s| matches!(s, Step::Lanes(_)), 6);
        assert!(count > 0, "{graph}");
    }
    for (arch, schedule, why) in [
        (Arch::Sm90a, "split i0 4; split r 128; bind warp 1; bind lane 4", "are of 8 rows; the tile has 4"),
        (Arch::Sm90a, "split r 128; bind warp 1; bind lane 8", "not one of several rows"),
        (Arch::Sm90a, "split i0 8; split r 128; bind warp 1; bind lane 32", "1 to 16 are along a row"),
        (Arch::Sm90a, "split i0 8; split r 128; bind warp 1; bind lane 6", "a power of two"),
        (Arch::Cpu, "split i0 8; split r 128; bind lane 8", "of a GPU"),
    ] {
        let mut k = kernel(KernelKind::Reduction, softmax.parse::<Graph>().expect("a graph"));
        k.schedule = Some(schedule.parse().expect("a schedule"));
        let e = lower_at(&k, arch.machine()).expect_err(schedule).to_string();
        assert!(e.contains("`bind lane ") && e.contains(why), "{schedule}: {e}");
    }
}

/// Neighbours that share what windows read: results, what is shared, and what does not fit.
#[test]
fn threads_compute_neighbours_of_windows() {
    let conv = "graph k(%a: f16[5,6,14,14], %w: f16[6,1,3,3]) { %y = conv %a, %w stride=[1,1] padding=[1,1] groups=6\n \
                %z = relu %y\n return %z }";
    let pool = "graph k(%a: f32[4,24,15,28]) { %y = pool.avg %a window=[5,5] stride=[1,2] padding=[2,2] \
                count_pad=false\n return %y }";
    // A gather reads an index in each neighbour, and a scatter adds at one.
    let gather = "graph k(%x: f32[40,6,8], %i: i64[12,6,8]) { %g = gather %x, %i axis=0\n %y = relu %g\n return %y }";
    for (graph, kind) in [(conv, KernelKind::Conv), (pool, KernelKind::Pool)] {
        let count = compute(graph, kind, Arch::Sm90a, |s| matches!(s, Step::Unroll(..)), 7);
        assert!(count > 0, "{graph}");
    }
    check_by(KernelKind::Pointwise, gather, Arch::Sm90a, "unroll i0 6; split i0 64; bind warp 1");
    let loads = |schedule: &str| {
        let steps = check_by(KernelKind::Pool, pool, Arch::Sm90a, schedule);
        let [Work::Block { code, .. }] = &steps.steps[..] else { panic!("one step") };
        let mut loads = 0;
        code.walk(&mut |_, d| loads += usize::from(matches!(d.op, kiln_block::Op::Load(..))));
        loads
    };
    let (alone, five) =
        (loads("split i0 2; split i1 64; bind warp 2"), loads("unroll i1 5; split i1 2; split i2 64; bind warp 2"));
    assert_eq!((alone, five), (25, 45), "5 rows of a window, and 9 of five windows");
    let rows = "graph k(%a: f32[64,64]) { %y = softmax %a axis=1\n return %y }";
    for (graph, kind, schedule, why) in [
        (pool, KernelKind::Pool, "unroll i1 4; split i0 64; bind warp 1", "which divide 15"),
        (pool, KernelKind::Pool, "unroll i1 15; split i0 64; bind warp 1", "2 to 8 neighbours"),
        (pool, KernelKind::Pool, "unroll i3 3; split i0 64; bind warp 1", "there is no axis i3"),
        (pool, KernelKind::Pool, "split i0 64; unroll i1 3; bind warp 1", "it comes first"),
        (pool, KernelKind::Pool, "unroll i1 3; unroll i2 2; split i0 64; bind warp 1", "an axis is unrolled already"),
        (rows, KernelKind::Reduction, "unroll i0 2; split r 64; bind warp 1", "the nest has a row"),
    ] {
        let mut k = kernel(kind, graph.parse::<Graph>().expect("a graph"));
        k.schedule = Some(schedule.parse().expect("a schedule"));
        let e = lower_at(&k, Arch::Sm90a.machine()).expect_err(schedule).to_string();
        assert!(e.contains("`unroll i") && e.contains(why), "{schedule}: {e}");
    }
}

/// The same nest with other numbers of registers, which tuning tries.
#[test]
fn neighbours_of_a_nest_have_other_registers() {
    let graph = "graph k(%a: f32[300,17]) { %y = softmax %a axis=1\n return %y }";
    let own = "split i0 32; split r 32; bind warp 4";
    let all = neighbours(&own.parse().expect("a schedule"), Arch::Sm90a.machine());
    let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(texts, [64, 128, 255].map(|n| format!("{own}; registers {n}")));
    for text in &texts {
        check_by(KernelKind::Reduction, graph, Arch::Sm90a, text);
    }
    let of_limited = neighbours(&all[0], Arch::Sm90a.machine());
    assert!(of_limited.iter().any(|s| s.to_string() == own) && !of_limited.contains(&all[0]));
    assert_eq!(neighbours(&all[0], Arch::Cpu.machine()), [], "threads of a CPU have no registers to limit");
}

/// Each part of a concatenation is read once, and an image behind its padding as well.
#[test]
fn bytes_within_bounds() {
    let bytes = |graph: &str| {
        let k = kernel(KernelKind::Pointwise, graph.parse::<Graph>().unwrap_or_else(|e| panic!("{e}\n{graph}")));
        scheduled(&k, Arch::Sm90a.machine()).expect("lowers").expect("a nest").facts
    };
    let facts = bytes(
        "graph k(%a: bf16[512,64], %b: bf16[512,128], %c: bf16[512,64]) { %y = concat %a, %b, %c axis=1\n return %y }",
    );
    assert_eq!(facts.bytes, 2 * 2 * 512 * 256);
    let shares: Vec<(f64, usize)> = facts.accesses.iter().map(|a| (a.share, a.within[1])).collect();
    assert_eq!(shares, [(0.25, 64), (0.5, 128), (0.25, 64), (1.0, usize::MAX)]);
    let facts = bytes("graph k(%a: f32[100,30]) { %y = pad %a, 0.5 lo=[0,10] hi=[0,20]\n return %y }");
    assert_eq!((facts.bytes, facts.accesses[0].share), (4 * 100 * (30 + 60), 0.5));
}

/// A row is reduced in the same order whatever the number of rows: under a batch-invariant contract all have one
/// schedule.
#[test]
fn schedules_do_not_depend_on_the_batch() {
    for (d, n) in [("f32", 1000), ("bf16", 16384), ("f32", 20000), ("bf16", 50257), ("bf16", 65536), ("f32", 131072)] {
        for op in ["softmax %x axis=1", "reduce.sum %x axes=[1]"] {
            let of = |rows: usize| {
                let text = format!("graph k(%x: {d}[{rows},{n}]) {{ %y = {op}\n return %y }}");
                let k = kernel(KernelKind::Reduction, text.parse().expect("a graph"));
                let k = kiln_plan::Kernel { batch_invariant: true, ..k };
                kiln_lower::chosen(&k, Arch::Sm90a.machine()).expect("lowers").schedule.expect("a schedule")
            };
            let many = of(100_000);
            for rows in [2, 7, 640, 4096] {
                assert_eq!(of(rows), many, "{rows} rows of {n} {d}: {op}");
            }
        }
    }
}

/// The same of rows that are shorter than a warp, and of columns of them; tiles of several such rows depend on their
/// number.
#[test]
fn schedules_of_short_rows_do_not_depend_on_the_batch() {
    let ops = ["softmax %x axis=1", "reduce.prod %x axes=[1]", "scan.sum %x axis=1", "reduce.argmax %x axes=[1]"];
    for d in ["f32", "bf16", "f64", "i64"] {
        for (n, columns) in
            [2, 3, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 200].into_iter().flat_map(|n| [(n, ""), (n, ",5")])
        {
            for op in ops.into_iter().filter(|op| d != "i64" || !op.starts_with("softmax")) {
                let of = |rows: usize| {
                    let text = format!("graph k(%x: {d}[{rows},{n}{columns}]) {{ %y = {op}\n return %y }}");
                    let k = kernel(KernelKind::Reduction, text.parse().unwrap_or_else(|e| panic!("{e}: {text}")));
                    let kind = if op.starts_with("scan") { KernelKind::Scan } else { KernelKind::Reduction };
                    let k = kiln_plan::Kernel { batch_invariant: true, kind, ..k };
                    let chosen =
                        kiln_lower::chosen(&k, Arch::Sm90a.machine()).unwrap_or_else(|e| panic!("{e}: {text}"));
                    chosen.schedule.unwrap_or_else(|| panic!("no schedule: {text}"))
                };
                let many = of(100_000);
                for rows in [2, 7, 8, 64, 640] {
                    assert_eq!(of(rows), many, "{rows} rows of {n}{columns} {d}: {op}");
                }
            }
        }
    }
}

/// A thread computes what depends on some coordinates once for elements that differ in others alone; a sum of products
/// takes no more than they do.
#[test]
fn instructions_by_the_coordinates_that_they_depend_on() {
    let graph = "graph k(%a: f32[8,64], %w: f32[64]) { %s = sigmoid %w\n %m = mul %a, %s\n \
                 %y = reduce.sum %m axes=[1]\n return %y }";
    let k = kernel(KernelKind::Reduction, graph.parse::<Graph>().expect("parses"));
    let facts = scheduled(&k, Arch::Sm90a.machine()).expect("lowers").expect("a nest").facts;
    let found: Vec<(Vec<usize>, f64)> = facts.arithmetic.iter().map(|i| (i.of.clone(), i.count)).collect();
    assert_eq!(found, [(vec![0, 1], 1.0), (vec![1], 25.0)]);
    assert!(facts.indices.is_empty());
    let graph = "graph k(%a: bf16[33,29], %b: bf16[33,7]) { %y = concat %a, %b axis=1\n return %y }";
    let k = kernel(KernelKind::Pointwise, graph.parse::<Graph>().expect("parses"));
    let facts = scheduled(&k, Arch::Sm90a.machine()).expect("lowers").expect("a nest").facts;
    assert_eq!(facts.indices.iter().map(|i| i.of.clone()).collect::<Vec<_>>(), [[1]], "bounds of the columns");
}
