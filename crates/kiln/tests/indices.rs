//! An index out of range is an error that names the op, its line, the index and the axis, fused or not; the session stays usable.
#[allow(dead_code)]
#[path = "../examples/indices.rs"]
mod example;

#[test]
fn the_host_refuses_indices_out_of_range() {
    assert_eq!(example::check(kiln::DeviceKind::Cpu), Ok(7 * 2 * 3));
}

/// Generated code and runtime agree on the encoding of fault records.
#[test]
fn faults_are_read_as_they_are_written() {
    for (site, index) in [(0, 0), (4, -1), (70, 30522), (1000, i64::from(i32::MAX) + 1)] {
        let found = kiln_plan::index::Fault::of(kiln_block::ops::fault(site, index)).expect("a fault");
        assert_eq!((found.site.0, found.index), (site, index));
    }
}

/// Random inputs that are indices are in range of their table.
#[test]
fn random_inputs_fit_a_table_of_one_row() {
    let text =
        "graph g(%x: f32[1,8], %i: i32[4,5]) { %r = reshape %i shape=[20]\n %y = take %x, %r axis=0\n return %y }";
    let model = kiln::Model::from_graph(text.parse().expect("a graph")).expect("a model");
    let compiled = kiln::compile(&model, &kiln::CompileOptions::default()).expect("compiles");
    for seed in 0..4 {
        assert!(compiled.session().expect("a session").run(&model.example_inputs(seed)).is_ok());
    }
}
