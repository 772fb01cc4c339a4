//! Targets and machines: PTX compiled for each assembles there, and has no instruction that the target lacks.
use kiln::{
    CompileOptions, Contract, Machine, Model, Target, calibrate, compile::CompiledCode, facts, ptxas, snapshot,
};
use kiln_graph::Graph;
use kiln_graphgen::{Scale, case};
use kiln_plan::KernelKind;
use std::path::{Path, PathBuf};

fn graphs() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs"));
    let entries = std::fs::read_dir(folder).expect("the folder of graphs");
    let mut all: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "kiln"));
    all.sort();
    assert!(all.len() > 20, "{all:?}");
    all
}

/// Instructions that exist only from `sm_90` on.
const HOPPER: [&str; 11] = [
    "wgmma",
    "setmaxnreg",
    "griddepcontrol",
    "cluster",
    "cp.async.bulk",
    "mapa.",
    "st.async",
    "stmatrix",
    "elect.sync",
    "fence.proxy",
    "mbarrier.try_wait",
];

/// Compiles every graph for every built-in GPU description except the H200, which the snapshots cover.
#[test]
fn every_graph_assembles_for_every_machine() {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    for path in graphs() {
        let model = Model::open(&path, &[]).expect("opens");
        for name in ["a100", "rtx4090", "l40s", "h100"] {
            let options = snapshot::options(name).expect("is known");
            let machine = options.machine().clone();
            let compiled = kiln::compile(&model, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            let plan = &compiled.plan;
            let bounded = plan.unpriced() > 0 || plan.lower_bound_us <= plan.predicted_us();
            let (bound, predicted) = (plan.lower_bound_us, plan.predicted_us());
            assert!(bounded, "{name}, {}: bound {bound} us, predicted {predicted} us", path.display());
            let CompiledCode::Ptx(all) = &compiled.code else { panic!("no PTX") };
            for p in all {
                let about = format!("{} of {} for {name}", p.name, path.display());
                assert!(!p.text.is_empty(), "{about}: no PTX");
                assert!(p.shared <= machine.limits.shared_per_block, "{about}: {} bytes", p.shared);
                assert!(p.threads <= 32 * machine.limits.warps_per_multiprocessor, "{about}: {} threads", p.threads);
                assert!(p.text.contains(&format!(".target {}", machine.arch)), "{about}\n{}", p.text);
                if !machine.arch.has_wgmma() {
                    let found = HOPPER.iter().find(|i| p.text.contains(**i));
                    assert!(found.is_none() && p.cluster == 1, "{about}: {found:?}, clusters of {}", p.cluster);
                }
                let assembled = facts::assemble(&ptxas, &p.text, machine.arch.name());
                let assembled = assembled.unwrap_or_else(|e| panic!("{about}: {e}\n{}", p.text));
                assert!(assembled.warnings.is_empty(), "{about}: {assembled:?}");
            }
        }
    }
}

/// A description of another target's machine is refused before anything is planned.
#[test]
fn a_machine_is_of_its_target() {
    let model = Model::open(&graphs()[0], &[]).expect("opens");
    let machine = Some(Target::Sm89.machine().clone());
    let options = CompileOptions { target: Target::Sm90a, machine, ..CompileOptions::default() };
    let wrong = kiln::compile(&model, &options).map(|_| ()).expect_err("is refused").to_string();
    assert_eq!(wrong, "the machine description rtx4090 is for sm_89, but the target is sm_90a");
}

/// Machine descriptions are read from files or by their built-in names; files of earlier versions are refused.
#[test]
fn descriptions_are_files_or_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("m.json");
    let mine = Machine { name: "mine".into(), ..Target::Sm90a.machine().clone() };
    std::fs::write(&file, serde_json::to_string_pretty(&mine).expect("writes")).expect("written");
    assert_eq!(calibrate::read(&file).expect("reads"), mine);
    assert_eq!(calibrate::read(Path::new("l40s")).expect("is known").device, "NVIDIA L40S");
    assert!(calibrate::read(Path::new("l40")).is_err());
    std::fs::write(&file, r#"{"name": "m", "bandwidth": 1e12, "alu": 1e12, "launch": 1e-6, "gpu": true}"#)
        .expect("written");
    let old = calibrate::read(&file).expect_err("is refused");
    assert!(old.to_string().contains("was written by an earlier version of Kiln"), "{old}");
}

/// Masks that bound the keys by what is read: positions in a cache, padding, documents, masks in memory. Programs by
/// warpgroups draw their tiles; nothing is interpreted, and hardly a register is spilled.
#[test]
fn attention_between_keys_that_are_read() {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    let options = snapshot::options("h200").expect("is known");
    let masks = [
        ("%p = add %r, %pos\n %m = le %t, %p", false),
        ("%p = add %r, %pos\n %c = le %t, %p\n %d = sub %p, %t\n %w = lt %d, 512\n %m = and %c, %w", false),
        ("%m = eq %dq, %dk", true),
        ("%a = eq %dq, %dk\n %c = le %t, %r\n %m = and %a, %c", true),
        ("%p = add %r, %pos\n %a = le %t, %p\n %m = and %a, %long", true),
        ("%m = and %whole, %long", true),
    ];
    for (mask, looks) in masks {
        for (width, dtype) in [(64, "f16"), (96, "bf16"), (128, "bf16"), (256, "f16")] {
            let text = format!(
                "graph g(%q: {dtype}[2,32,2000,{width}], %k: {dtype}[2,8,4096,{width}], %v: {dtype}[2,8,4096,{width}], \
                 %pos: i64[2,1,1,1], \
                 %dq: i64[2,1,2000,1], %dk: i64[2,1,1,4096], %long: bool[2,1,1,4096], %whole: bool[2,1,2000,4096]) \
                 {{\n \
                 %r = iota axis=0 : i64[2000,1]\n %t = iota axis=1 : i64[1,4096]\n {mask}\n \
                 %y = attention %q, %k, %v, %m scale=0.1\n return %y\n}}"
            );
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("g.kiln");
            std::fs::write(&path, &text).expect("written");
            let model = Model::open(&path, &[]).expect("opens");
            let compiled = kiln::compile(&model, &options).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let CompiledCode::Ptx(all) = &compiled.code else { panic!("no PTX") };
            assert!(all.iter().all(|p| !p.text.is_empty()), "a program has no PTX\n{text}");
            assert_eq!(all.iter().any(|p| p.name.ends_with("_keys")), looks, "{text}");
            let drawn = |p: &str| p.contains("wgmma") && p.contains("atom.global.inc");
            assert!(all.iter().any(|p| drawn(&p.text)), "{text}\n{}", all[0].text);
            for p in all {
                let assembled = facts::assemble(&ptxas, &p.text, options.target.name()).expect("assembles");
                // A column of the widest sums leaves few registers for a mask over queries and keys.
                let most = if width > 128 { 136 } else { 16 };
                assert!(assembled.spill_stores <= most && assembled.warnings.is_empty(), "{assembled:?}\n{text}");
            }
        }
    }
}

/// Attention of f32 at any width, exactly and by 3xTF32, with masks and score functions: no registers are spilled, and
/// the plan says how it multiplies.
#[test]
fn f32_attention_of_any_width_has_no_spills() {
    let ptxas = ptxas::find_ptxas().expect("this test assembles PTX: run scripts/setup, which installs ptxas");
    let machine = snapshot::options("h200").expect("is known").machine().clone();
    let mut attention = machine.attention.clone();
    attention.tf32x3 = 2.0 * attention.single;
    let fast = Machine { attention, ..machine };
    for (width, queries) in [16, 32, 64, 72, 96, 128, 152, 160, 192, 200, 256].map(|w| [(w, 1024), (w, 24)]).concat() {
        for (splits, how) in [(false, ""), (true, ""), (false, SOFT_CAP), (true, SOFT_CAP)] {
            let text = format!(
                "graph g(%q: f32[4,16,{queries},{width}], %k: f32[4,16,1024,{width}], %v: f32[4,16,1024,{width}], \
                 %m: f32[1,1,{queries},1024]) {{\n  %y = attention %q, %k, %v, %m scale=0.1 causal=true \
                 fully_masked=nan{how}\n  return %y\n}}"
            );
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("g.kiln");
            std::fs::write(&path, &text).expect("written");
            let model = Model::open(&path, &[]).expect("opens");
            let contract = Contract { splits, ..Contract::default() };
            let options = CompileOptions {
                target: fast.arch,
                machine: Some(fast.clone()),
                contract,
                ..CompileOptions::default()
            };
            let compiled = kiln::compile(&model, &options).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let plan = snapshot::text(&compiled.plan);
            let CompiledCode::Ptx(all) = &compiled.code else { panic!("no PTX") };
            let program = &all[0];
            let split = program.text.contains("mma.sync");
            assert_eq!(split, plan.contains("precision tf32x3"), "{plan}");
            assert!(splits || !split, "{plan}");
            assert!(split || !splits || queries < 1024, "{plan}");
            let assembled = facts::assemble(&ptxas, &program.text, fast.arch.name()).expect("assembles");
            assert_eq!((assembled.spill_stores, assembled.spill_loads), (0, 0), "{assembled:?}\n{text}");
            assert!(program.shared <= fast.limits.shared_per_block, "{} bytes\n{text}", program.shared);
        }
    }
}
const SOFT_CAP: &str = " score=\"div 30.0, tanh, mul 30.0\"";

/// Code generation does not convert layouts across the blocks of a cluster, as the cheapest schedule of these columns,
/// of which one operand is transposed, would need: another schedule has code, and one that is asked for is an error.
#[test]
fn a_schedule_without_code_is_replaced() {
    let text = "graph g(%x: f32[264,16384], %w: f32[16384,264]) {
        %t = permute %w perm=[1,0]\n %s = add %x, %t\n %y = softmax %s axis=1\n return %y\n}";
    let model = Model::from_graph(text.parse().expect("parses")).expect("a model");
    let options = CompileOptions { target: Target::Sm90a, ..CompileOptions::default() };
    let planned =
        kiln::compile::plan(&model, &options).expect("plans").kernels[0].schedule.clone().expect("a schedule");
    let compiled = kiln::compile(&model, &options).expect("compiles");
    let interpreted = |w: &kiln_plan::exec::Work<_>| matches!(w, kiln_plan::exec::Work::Interpret { .. });
    assert!(!compiled.steps.iter().flat_map(|s| &s.steps).any(interpreted));
    let used = compiled.plan.kernels[0].schedule.clone().expect("a schedule");
    assert_ne!(used, planned, "code generation supports it now: this test needs another kernel");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    for (schedule, fits) in [(&used, true), (&planned, false)] {
        let name = &compiled.plan.kernels[0].name;
        std::fs::write(file.path(), format!("[[use_schedule]]\nat = \"{name}\"\nschedule = \"{schedule}\"\n"))
            .expect("writes");
        let constraints = kiln::constraints::Constraints::read(file.path()).expect("reads");
        let options = CompileOptions { constraints, ..options.clone() };
        let result = kiln::compile(&model, &options);
        assert_eq!(result.is_ok(), fits, "{schedule}: {:?}", result.err());
    }
}

/// `use_schedule` takes a kernel's name, and means no other kernel that computes the same value.
#[test]
fn a_schedule_for_a_kernel_by_its_name() {
    // Batch norm goes into the weight when weights are loaded: kernels of values that rules made, which no name of the
    // graph means.
    let text = "graph g(%x: f32[512,768], %i: f32[2,16,9,9]) {
        @0 \"w\": f32[16,16,3,3] = random(seed=1, scale=0.02)
        @1 \"s\": f32[16] = random(seed=2, scale=0.5)
        @2 \"v\": f32[16] = random(seed=3, scale=0.5)
        %b = softmax %x axis=1
        %c = permute %x perm=[1,0]
        %d = softmax %c axis=1
        %e = conv %i, @0 stride=[1,1] padding=[1,1] dilation=[1,1] groups=1
        %f = batch_norm %e, @1, @1, @1, @2 eps=1e-5
        return %b, %d, %f
    }";
    let model = Model::from_graph(text.parse().expect("parses")).expect("a model");
    let options = CompileOptions { target: Target::Sm90a, ..CompileOptions::default() };
    let plan = kiln::compile::plan(&model, &options).expect("a plan");
    assert!(plan.kernels.len() > 1, "{plan}");
    let wanted = "split i0 2; split r 1024; bind warp 8";
    let named =
        plan.kernels.iter().find(|k| kiln_lower::fits(k, options.machine(), &wanted.parse().expect("parses")).is_ok());
    let name = &named.expect("a kernel of rows").name;
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let write = |at: &str, schedule: &str| {
        std::fs::write(file.path(), format!("[[use_schedule]]\nat = \"{at}\"\nschedule = \"{schedule}\"\n"))
            .expect("writes");
        let constraints = kiln::constraints::Constraints::read(file.path()).expect("reads");
        kiln::compile::plan(&model, &CompileOptions { constraints, ..options.clone() })
    };
    let follows = |plan: &kiln::Plan| -> Vec<String> {
        let of = |k: &&kiln_plan::Kernel| k.schedule.as_ref().is_some_and(|s| s.to_string() == wanted);
        plan.kernels.iter().filter(of).map(|k| k.name.clone()).collect()
    };
    assert_eq!(follows(&write(name, wanted).expect("a plan")), std::slice::from_ref(name));
    for k in plan.kernels.iter().filter(|k| k.stage == kiln_plan::Stage::Load) {
        let own = k.schedule.as_ref().expect("a schedule").to_string();
        write(&k.name, &own).unwrap_or_else(|e| panic!("{}: {e}", k.name));
    }
    assert!(plan.kernels.iter().any(|k| k.stage == kiln_plan::Stage::Load), "{plan}");
    let missing = write("softmax_99", wanted).expect_err("no such kernel").to_string();
    assert!(missing.contains("softmax_99"), "{missing}");
}

/// A plan's schedule is followed to the letter: its steps are those that lowering chooses without one.
#[test]
fn recorded_schedules_are_what_lowering_chooses() {
    let texts = graphs().into_iter().map(|p| std::fs::read_to_string(p).expect("reads"));
    let graphs: Vec<Graph> = texts.map(|t| t.parse().expect("parses")).collect();
    // Operands whose rows are contiguous along either axis, in f32 that may be tf32.
    let conv = |[n, c, o, h]: [usize; 4]| {
        let text = format!(
            "graph g(%x: f32[{n},{c},{h},{h}], %w: f32[{o},{c},1,1], %r: f32[{n},{o},{h},{h}]) {{ %y = conv %x, %w \
             stride=[1,1] \
             padding=[0,0] dilation=[1,1] groups=1\n %z = add %y, %r\n return %z }}"
        );
        text.parse().expect("parses")
    };
    let convs =
        [[16, 72, 40, 28], [16, 120, 40, 28], [16, 40, 120, 28], [16, 64, 24, 56], [16, 16, 16, 112], [2, 33, 70, 14]];
    let graphs: Vec<Graph> = graphs.into_iter().chain(convs.map(conv)).collect();
    let drawn = |seed| if seed % 4 == 0 { case(seed, Scale::Large) } else { case(seed, Scale::Small) };
    let (mut multiply, mut others) = (0, 0);
    for (i, graph) in graphs.into_iter().chain((0..120).map(drawn)).enumerate() {
        let model = Model::from_graph(graph).expect("a model");
        let contract = ["torch", "fast", "torch+splits", "exact+batch_invariant"][i % 4].parse().expect("a contract");
        for target in [Target::Sm90a, Target::Sm80, Target::Cpu] {
            let options = CompileOptions { target, contract, ..CompileOptions::default() };
            let Ok(plan) = kiln::compile::plan(&model, &options) else { continue };
            // Kernels of several programs without a matmul have none.
            let lone =
                |k: &kiln_plan::Kernel| kiln_lower::lower_at(k, options.machine()).is_ok_and(|s| s.steps.len() == 1);
            let lacks = plan.kernels.iter().find(|k| k.kind == KernelKind::Conv && k.schedule.is_none() && lone(k));
            assert!(lacks.is_none(), "case {i} {target:?}: {lacks:?}");
            for k in plan.kernels.iter().filter(|k| k.schedule.is_some()) {
                let free = kiln_plan::Kernel { schedule: None, ..k.clone() };
                let steps = |k| kiln_lower::lower_at(k, options.machine()).map_err(|e| e.to_string());
                let same = steps(k) == steps(&free) && steps(k).is_ok();
                assert!(same, "case {i} {target:?}: {} by {:?}", k.name, k.schedule.as_ref().map(|s| s.to_string()));
                *if k.schedule.as_ref().is_some_and(|s| s.multiplies()) { &mut multiply } else { &mut others } += 1;
            }
        }
    }
    assert!(multiply > 200 && others > 400, "{multiply} {others}");
}
