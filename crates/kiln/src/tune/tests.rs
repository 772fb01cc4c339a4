use super::*;
use crate::{Report, constraints::Constraints};
use std::sync::Arc;

fn model() -> Model {
    let text = "graph two(%x: bf16[512,1024], %w: bf16[768,1024], %u: bf16[1024,768]) {
        %a = linear %x, %w loc(\"up\", \"net.py:3\")
        %b = gelu_erf %a loc(\"act\", \"net.py:4\")
        %y = linear %b, %u loc(\"down\", \"net.py:5\")
        return %y }";
    Model::from_graph(text.parse().expect("a graph")).expect("a model")
}
fn options() -> CompileOptions {
    CompileOptions { target: Target::Sm90a, ..CompileOptions::default() }
}
fn planned(store: &Store, device: Option<&str>) -> Plan {
    let tuned = Measurements { store: Arc::new(store.clone()), device: device.map(String::from) };
    compile::plan(&model(), &CompileOptions { tuned: Some(tuned), ..options() }).expect("plans")
}
fn free() -> Plan {
    compile::plan(&model(), &options()).expect("plans")
}
/// A store with one entry for every matmul of the model.
fn store(schedule: &str, device: &str, compiler: &str) -> Store {
    let machine = Machine { device: device.into(), target: "sm_90a".into() };
    let mut store = Store::default();
    let open =
        compile::unscheduled(&model(), &options(), &compile::Schedules::new(options().machine())).expect("plans");
    for k in open.kernels.iter().filter(|k| is_open(k)) {
        let key = Key { compiler: compiler.into(), ..key(k, &machine) };
        let default = "call library".to_string();
        store.put(Entry { key, schedule: schedule.into(), us: 4.5, default, default_us: 5.25, measured: 7 });
    }
    store
}
const CUT: &str = "split-reduce k 2; tensor-core wgmma 64x128x64; stage a,b shared 4; group m 8; persist 64";

#[test]
fn a_plan_takes_its_schedules_from_the_store_and_says_so() {
    let plan = planned(&store(CUT, "NVIDIA H200", &compiler()), None);
    assert_eq!(plan.kernels.len(), 2);
    for k in &plan.kernels {
        let own = k.schedule.as_ref().expect("a schedule");
        assert_eq!(own.main().to_string(), CUT);
        assert_eq!(own.launches().map(|l| l.0).collect::<Vec<_>>(), ["sum"], "chosen, as the entry does not say");
        assert!(matches!(&k.reason.tuning, Some(Tuning::Measured { us, .. }) if *us == 4.5));
    }
    let text = plan.to_string();
    assert_eq!(
        text,
        planned(&store(CUT, "NVIDIA H200", &compiler()), None).to_string(),
        "the same store, the same plan"
    );
    assert_eq!(text.parse::<Plan>().expect("reads back").to_string(), text);

    let store = Arc::new(store(CUT, "NVIDIA H200", &compiler()));
    let tuned = Some(Measurements { store, device: Some("NVIDIA H200".into()) });
    let report = Report::new(&crate::compile(&model(), &CompileOptions { tuned, ..options() }).expect("compiles"));
    assert!(report.summary(100).contains("schedules of 2 kernels measured on NVIDIA H200"), "{}", report.summary(100));
    let deep = report.in_depth(&plan.kernels[0].name, 100).expect("the kernel");
    let flat = deep.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("4.50 us measured on NVIDIA H200; 5.25 us") && flat.contains(CUT), "{deep}");
    assert_eq!(Report::from_json(&report.to_json().expect("serialises"), "it").expect("reads back"), report);
}

#[test]
fn a_tuned_plan_pinned_needs_no_store() {
    let plan = planned(&store(CUT, "NVIDIA H200", &compiler()), None);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), crate::why::pinned_text(&plan)).expect("writes");
    let constraints = Constraints::read(file.path()).expect("reads");
    let pinned = compile::plan(&model(), &CompileOptions { constraints, ..options() }).expect("plans");
    let schedules = |p: &Plan| p.kernels.iter().map(|k| k.schedule.clone()).collect::<Vec<_>>();
    assert_eq!(schedules(&pinned), schedules(&plan));
}

#[test]
fn entries_that_do_not_hold_here_leave_the_plan_as_it_is() {
    let free = free().to_string();
    let here = Some("NVIDIA H200");
    assert_eq!(planned(&store(CUT, "NVIDIA H100", &compiler()), here).to_string(), free, "another machine");
    assert_eq!(planned(&Store::default(), None).to_string(), free, "nothing measured");
    for (schedule, compiler, why) in [
        ("tensor-core wgmma 128x256x64; stage a,b shared 99", compiler(), "`stage a,b shared 99` does not fit"),
        ("tensor-core wgmma 128x0", compiler(), "is not a number"),
        ("tensor-core wgmma 128x128; stage q shared 2; stage k,v shared 2", compiler(), "does not fit the kernel"),
        (CUT, "0.0.1/1".to_string(), "measured with Kiln 0.0.1/1"),
    ] {
        let mut plan = planned(&store(schedule, "NVIDIA H200", &compiler), here);
        for k in &mut plan.kernels {
            let Some(Tuning::Unused { why: found }) = k.reason.tuning.take() else { panic!("{schedule}: {k:?}") };
            assert!(found.contains(why), "{schedule}: {found}");
        }
        assert_eq!(plan.to_string(), free, "{schedule}");
    }
}

#[test]
fn the_problem_is_the_body_without_names() {
    let machine = Machine { device: "it".into(), target: "sm_90a".into() };
    let plan = free();
    let problem = key(&plan.kernels[1], &machine).problem;
    assert!(problem.contains("bf16[1024,768]") && !problem.contains("net.py"), "{problem}");
    assert_ne!(problem, key(&plan.kernels[0], &machine).problem);
}

#[test]
fn a_store_on_disk_is_whole_or_not_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.json");
    let full = store(CUT, "NVIDIA H200", &compiler());
    write(&path, &full).expect("writes");
    assert_eq!(read(&path).expect("reads"), full);
    let nowhere = folder.path().join("none").join("store.json");
    let e = write(&nowhere, &full).expect_err("there is no such folder");
    assert!(e.to_string().starts_with("cannot write") && !e.help().is_empty() && !nowhere.exists());
    for damaged in ["{", "{\"kiln_measurements\": 7, \"entries\": []}", "", "no JSON"] {
        std::fs::write(&path, damaged).expect("writes");
        let e = read(&path).expect_err(damaged);
        assert!(e.to_string().contains("is not a usable store") && e.help().contains("kiln tune"), "{e}");
    }
}
