//! Pinned plans, reports, and the stability of both, over the sample graphs.
use kiln::{CompileOptions, Model, Plan, Report, Target, compile::plan, constraints::Constraints};
use std::path::PathBuf;

fn graphs() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut paths: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "kiln"));
    paths.sort();
    assert!(paths.len() >= 20);
    paths
}
fn options() -> CompileOptions {
    CompileOptions { target: Target::Sm90a, ..CompileOptions::default() }
}

#[test]
fn planning_with_a_plans_own_kernels_gives_the_plan() {
    for path in graphs() {
        let model = Model::open(&path, &[]).expect("opens");
        let free = plan(&model, &options()).expect("plans");
        let text = kiln::why::pinned_text(&free);
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), &text).expect("writes");
        let constraints = Constraints::read(file.path()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let pinned = plan(&model, &CompileOptions { constraints, ..options() })
            .unwrap_or_else(|e| panic!("{}: {e}\n{text}", path.display()));
        assert_eq!(pinned.to_string(), free.to_string(), "{}", path.display());
        assert!(kiln::diff::diff(&free, &pinned).is_same());
    }
}

#[test]
fn plan_texts_are_the_same_over_twenty_runs_and_parse_back() {
    for path in graphs() {
        let model = Model::open(&path, &[]).expect("opens");
        let first = plan(&model, &options()).expect("plans").to_string();
        for i in 1..20 {
            assert!(plan(&model, &options()).expect("plans").to_string() == first, "{}, run {i}", path.display());
        }
        let again: Plan = first.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(again.to_string(), first);
    }
}

#[test]
fn a_report_reads_back_and_its_terms_add_up() {
    for name in ["bert_layer", "softmax", "resnet_basic_block", "attention_bf16"] {
        let path = format!("{}/../../graphs/{name}.kiln", env!("CARGO_MANIFEST_DIR"));
        let model = Model::open(path.as_ref(), &[]).expect("opens");
        let report = Report::new(&kiln::compile(&model, &options()).expect("compiles"));
        let json = report.to_json().expect("serialises");
        assert_eq!(Report::from_json(&json, name).expect("reads back"), report);
        for k in report.kernels.iter().chain(&report.load_kernels) {
            let t = &k.terms;
            let sum = t.memory_us + t.arithmetic_us + t.launch_us + t.overlap_us;
            let us = k.roofline_us.expect("only fallbacks have none");
            assert!((sum - us).abs() < 1e-3, "{name} {}: {sum} is not {us}", k.name);
            assert!(t.overlap_us <= 1e-3, "{name} {}: {t:?}", k.name);
            assert_eq!(k.nodes.len(), k.ops.len());
        }
    }
}

#[test]
fn what_no_kernel_computes_is_said_as_it_is() {
    let text = "graph g(%x: f32[1,8,16,16]) {
        @w: f32[8,8,3,3] = random(seed=1, scale=0.1)
        @s: f32[8] = random(seed=2, scale=1.0)
        @b: f32[8] = random(seed=3, scale=1.0)
        @m: f32[8] = random(seed=4, scale=1.0)
        @v: f32[8] = fill(1.0)
        %h = mul @w, 0.5
        %c = conv %x, %h stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]
        %n = batch_norm %c, @s, @b, @m, @v eps=1e-5
        %y = relu %n
        return %y
    }";
    let model = Model::from_graph(text.parse().expect("valid")).expect("opens");
    let ask = |a: &str, b: &str| {
        let answer = kiln::why::ask(&model, &CompileOptions::default(), a, b).expect("answers");
        answer.text(400)
    };
    let values: Vec<String> = model.graph.values().map(|v| format!("{} {v}", model.graph.op(v).name())).collect();
    let name = |op: &str| values.iter().find_map(|v| v.strip_prefix(op)?.strip_prefix(' ')).expect("it is there");
    let folded = ask("op:mul", "op:relu");
    assert!(folded.contains("no kernel of a run computes it: it depends on weights alone"), "{folded}");
    let conv = ask("op:conv", "op:relu");
    assert!(conv.contains("by batch-norm-into-convolution: it is folded into weights that are made once"), "{conv}");
    let input = ask(name("input"), "op:relu");
    assert!(input.contains("no kernel of a run computes it: it is an input"), "{input}");
}
