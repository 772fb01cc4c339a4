//! What a benchmark compares its results with where the graph is too much work for the interpreter.
use kiln::{
    CompileOptions, DType, Model, Torch,
    bench::{Against, BenchOptions, Reference, bench},
    compile::DeviceKind,
};
use std::time::Duration;

fn measured(dtype: DType) -> kiln::bench::Bench {
    let operand = format!("{dtype}[1,8,2048,64]");
    let source = format!(
        "graph g(%q: {operand}, %k: {operand}, %v: {operand}) {{ %y = attention %q, %k, %v scale=0.125 return %y }}"
    );
    let graph = kiln_graph::text::parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let model = Model::from_graph(graph).expect("a model");
    let options = BenchOptions {
        compile: CompileOptions::default(),
        device: DeviceKind::Cpu,
        threads: None,
        against: Against { unfused: false, torch: false },
        min_time: Duration::ZERO,
    };
    bench(&model, &model.example_inputs(1), &options).expect("runs").0
}

#[test]
fn libtorch_is_the_reference_where_it_is_there() {
    Torch::load()
        .unwrap_or_else(|e| panic!("this test compares with libtorch: run scripts/setup and scripts/test\n{e}"));
    for (dtype, near) in [(DType::F32, 1e-5), (DType::Bf16, 1e-2)] {
        let b = measured(dtype);
        assert_eq!((b.reference, b.compared, b.elements), (Reference::Libtorch, 1 << 20, 1 << 20));
        assert!(b.max_abs_err < near, "{dtype}: {}", b.max_abs_err);
        let json = serde_json::to_value(&b).expect("JSON");
        assert_eq!((json["reference"].as_str(), json["compared"].as_u64()), (Some("libtorch"), Some(1 << 20)));
    }
}
