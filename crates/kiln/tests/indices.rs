//! An index out of range is an error that names the op, its line, the index and the axis, fused or not; the session
//! stays usable.
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

/// What only selects rows of a table selects all of them; an index that is computed is below 2, since the table may
/// have one more row.
#[test]
fn random_inputs_select_all_rows_of_a_table() {
    let of = |dtype: &str, index: &str| {
        let text =
            format!("graph g(%x: f32[1000,8], %i: {dtype}[4096]) {{ {index}\n %y = take %x, %r axis=0\n return %y }}");
        let model = kiln::Model::from_graph(text.parse().expect("a graph")).expect("a model");
        let indices = &model.example_inputs(1)[1];
        let all: std::collections::BTreeSet<i64> = (0..4096).map(|n| indices.get_i64(n)).collect();
        (all.len(), all.last().copied())
    };
    let (different, last) = of("i64", "%r = reshape %i shape=[4096]");
    assert!(different > 900 && last < Some(1000), "{different}");
    assert_eq!(of("i8", "%r = reshape %i shape=[4096]"), (128, Some(127)), "what the type has");
    assert_eq!(of("i64", "%one = const 1 : i64[]\n %r = add %i, %one"), (2, Some(1)));
}
