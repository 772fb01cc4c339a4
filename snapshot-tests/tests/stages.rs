//! Snapshots of every sample graph: graph, plan, and facts about its PTX. Block programs are covered by file tests, one
//! mechanism each.
use kiln::{CompileOptions, Model, Target, compile, compile::CompiledCode, snapshot};
use kiln_snapshot_tests::ptx_facts;
use std::path::Path;

fn each_graph(f: impl Fn(&str, &Model)) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../graphs");
    let mut graphs = snapshot::models(folder.as_ref()).expect("graphs/ exists");
    graphs.retain(|g| g.path.extension().is_some_and(|e| e == "kiln"));
    assert!(graphs.len() >= 20, "only {} sample graphs found", graphs.len());
    for g in graphs {
        f(&g.name, &g.open().unwrap_or_else(|e| panic!("{}: {e}", g.name)));
    }
}

fn check(name: &str, stage: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(format!("../snapshots/{stage}"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn graphs() {
    each_graph(|name, model| check(name, "graph", &kiln::stages::graph_text(&model.graph)));
}

#[test]
fn plans() {
    each_graph(|name, model| {
        check(name, "plan", &snapshot::plan_text_of(model, "h200").expect("plans"));
    });
}

#[test]
fn ptx_facts_of_graphs() {
    let ptxas = kiln::ptxas::find_ptxas();
    assert!(ptxas.is_some(), "ptxas is not here; run scripts/setup");
    each_graph(|name, model| {
        let options = CompileOptions { target: Target::Sm90a, ..CompileOptions::default() };
        let c = compile(model, &options).expect("compiles");
        let CompiledCode::Ptx(list) = &c.code else { panic!("a GPU target gives PTX") };
        let mut facts = String::new();
        for p in list.iter().filter(|p| !p.text.is_empty()) {
            let found = ptx_facts(ptxas.as_deref().unwrap_or(Path::new("ptxas")), &p.text)
                .unwrap_or_else(|e| panic!("{name}: ptxas refuses {}:\n{e}", p.name));
            facts += &format!("{} ({} threads, {} bytes shared)\n{found}", p.name, p.threads, p.shared);
        }
        check(name, "ptx-facts", &facts);
    });
}
