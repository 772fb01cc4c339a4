//! Snapshot of the kernels of the memory-bound benches: numbers of kernels and launches, launch shapes, and widths of
//! loads and stores.
use kiln::{CompileOptions, Model, Target, compile, compile::CompiledCode, facts};
use std::fmt::Write as _;

/// Counts of accesses to global memory by width, the widest first: `loads 16 bytes ×4, 4 bytes ×1`.
fn accesses(what: &str, ptx: &str, prefix: &str) -> String {
    let list: Vec<String> = facts::widths(ptx, prefix).iter().rev().map(|(b, n)| format!("{b} bytes ×{n}")).collect();
    if list.is_empty() { format!("no {what}") } else { format!("{what} {}", list.join(", ")) }
}

fn row(text: &str) -> String {
    let graph: kiln::Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let name = graph.name.clone();
    let model = Model::from_graph(graph).unwrap_or_else(|e| panic!("{name}: {e}"));
    let options = CompileOptions { target: Target::Sm90a, ..CompileOptions::default() };
    let compiled = compile(&model, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let CompiledCode::Ptx(programs) = &compiled.code else { panic!("a GPU target gives PTX") };
    let steps: usize = compiled.steps.iter().map(|s| s.steps.len()).sum();
    let mut out = format!("{name}: {} kernels, {steps} launches\n", compiled.plan.kernels.len());
    for p in programs {
        let blocks: usize = p.grid.constant().map_or(0, |sizes| sizes.iter().product());
        let cluster = if p.cluster > 1 { format!(" in clusters of {}", p.cluster) } else { String::new() };
        // Asynchronous copies to shared memory, which prefetch while the program computes.
        let prefetch = match p.text.matches("cp.async.cg.").count() {
            0 => String::new(),
            n => format!("; copies ahead 16 bytes ×{n}"),
        };
        let (loads, stores) = (accesses("loads", &p.text, "ld.global"), accesses("stores", &p.text, "st.global"));
        let _ = writeln!(
            out,
            "  {blocks} blocks{cluster} of {} threads, {} bytes shared: {loads}; {stores}{prefetch}",
            p.threads, p.shared
        );
    }
    out
}

#[test]
fn rows_of_the_memory_bound_table() {
    let file = include_str!("../memory_bound.kiln");
    let graphs: Vec<&str> = file.split("graph ").skip(1).collect();
    assert!(graphs.len() >= 84, "only {} graphs", graphs.len());
    let half = graphs.len().div_ceil(2);
    // Compiles on two threads; results stay in the order of the file.
    let texts: Vec<String> = std::thread::scope(|s| {
        let parts: Vec<_> = graphs
            .chunks(half)
            .map(|part| s.spawn(|| part.iter().map(|g| row(&format!("graph {g}"))).collect::<String>()))
            .collect();
        parts.into_iter().map(|p| p.join().expect("compiles")).collect()
    });
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("memory-bound", texts.concat()));
}
