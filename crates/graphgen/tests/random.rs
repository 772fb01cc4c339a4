//! Properties of random graphs: they verify, round-trip through text and JSON, and rebuild to equal graphs; shrinking
//! shrinks them.
use kiln_graph::{Graph, Op, UnaryOp, ValueId, decompose, text};

#[test]
fn round_trips_and_copies() {
    let options = kiln_graphgen::Options::default();
    let mut ops = 0;
    for seed in 0..400 {
        let g = kiln_graphgen::graph(seed, &options);
        g.verify().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
        let printed = text::print(&g);
        assert_eq!(text::parse(&printed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{printed}")), g, "seed {seed}");
        assert_eq!(Graph::from_json(&g.to_json().unwrap()).unwrap(), g, "seed {seed}");
        let copy = g.rebuild(|_, _, _| Ok(None)).unwrap();
        assert_eq!(copy, g, "seed {seed}");
        let mut renamed = g.clone();
        renamed.name = "other".into();
        assert_eq!(renamed.bare(), g.bare(), "seed {seed}");
        assert_ne!(kiln_graphgen::graph(seed + 1, &options).bare(), g.bare(), "seed {seed}");
        assert_eq!(kiln_graphgen::graph(seed, &options), g, "seed {seed}");
        let apart = decompose::decompose_all(&g, |_| true).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
        apart.verify().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{apart}"));
        ops += g.len();
    }
    assert!(ops > 4000, "{ops} nodes in all");
}

#[test]
fn shrinks_to_the_cause() {
    let tanh = |g: &Graph| g.values().any(|v: ValueId| *g.op(v) == Op::Unary(UnaryOp::Tanh));
    let mut found = 0;
    for seed in 0..200 {
        let g = kiln_graphgen::graph(seed, &kiln_graphgen::Options { ops: 25, ..kiln_graphgen::Options::default() });
        if tanh(&g) {
            found += 1;
            let small = kiln_graphgen::shrink(&g, tanh);
            assert!(small.len() == 2, "seed {seed}: still\n{small}");
        }
    }
    assert!(found > 10, "{found}");
}
