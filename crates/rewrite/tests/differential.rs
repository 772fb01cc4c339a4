//! Plans compute what the graph computes: kernel by kernel through the interpreter, on generated graphs and on
//! `graphs/`.
use crate::common::{self, differential, graph};
use kiln_graph::Random;
use kiln_graph::{FallbackOp, Graph, Init, Op, Type, ValueId};
use kiln_graphgen::Scale;
use kiln_plan::Numerics;
use kiln_rewrite::{Constraints, Group, Options, RewriteError, plan_under};

/// A random graph with parameters instead of some inputs, and with values that pass through fallbacks.
fn random_graph(seed: u64) -> Graph {
    let mut r = Random::new(seed);
    let options = kiln_graphgen::Options { ops: 4 + r.next_below(20), ..kiln_graphgen::Options::default() };
    let g = kiln_graphgen::graph(seed, &options);
    let changed = g.rebuild(|new, v, args| {
        Ok(match g.op(v) {
            Op::Input(i) if i % 2 == 1 => Some(new.param(format!("p{i}"), g.ty(v).clone(), Init::External)),
            op if !op.is_leaf() && r.next_below(10) == 0 => {
                let x = new.add(op.clone(), args)?;
                Some(fall_back(new, x, args[0], r.next_below(2)))
            }
            _ => None,
        })
    });
    changed.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"))
}
/// `x` passed through a fallback that returns its operands, of which `x` is the first or the second.
fn fall_back(g: &mut Graph, x: ValueId, other: ValueId, place: usize) -> ValueId {
    let args = if place == 0 { [x, other] } else { [other, x] };
    let results: Vec<Type> = args.iter().map(|a| g.ty(*a).clone()).collect();
    let (name, why) = ("aten::broadcast_tensors".to_string(), "a test".to_string());
    let list = r#"[[{"tensor":0},{"tensor":1}]]"#.to_string();
    let op = FallbackOp { name, overload: String::new(), args: list, results: results.clone(), why, vouched: false };
    let call = g.push(Op::Fallback(Box::new(op)), results[0].clone(), &args);
    if place == 0 { call } else { g.push(Op::Result(1), results[1].clone(), &[call]) }
}

#[test]
fn generated_graphs() {
    let cases = std::env::var("KILN_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    for seed in 0..cases {
        differential(&random_graph(seed));
    }
}

/// Graphs as users write them.
#[test]
fn cases() {
    for seed in 0..100 {
        let g = kiln_graphgen::case(seed, Scale::Small);
        let inputs = kiln_graphgen::case_inputs(&g, seed);
        for options in [Options { contract: Numerics::Exact.into(), fuse: true }, Options::default()] {
            common::agrees_on(&g, &common::plan_with(&g, options), &inputs);
        }
    }
}

/// Random constraints are met, or refused with a reason; plans under constraints compute the same results.
#[test]
fn generated_graphs_under_constraints() {
    let (mut met, mut refused) = (0, 0);
    for seed in 0..200 {
        let g = random_graph(seed);
        let mut r = Random::new(seed + 99);
        let mut live: Vec<ValueId> = g.outputs.clone();
        for i in 0..64 {
            let Some(&v) = live.get(i) else { break };
            let leaf = |a: &ValueId| matches!(g.op(*a), Op::Input(_) | Op::Param(_) | Op::Const(_));
            live.extend(g.args(v).into_iter().filter(|a| !leaf(a)));
        }
        let mut group = || {
            let values = (0..1 + r.next_below(2)).map(|_| live[r.next_below(live.len())]).collect();
            Group { label: format!("{values:?}"), values }
        };
        let mut c = Constraints::default();
        match seed % 4 {
            0 => c.must_fuse.push(group()),
            1 => c.never_fuse.push(vec![group(), group()]),
            2 => c.keep_in_memory.push(group()),
            _ => {
                c.must_fuse.push(group());
                c.never_fuse.push(vec![group()]);
                c.keep_in_memory.push(group());
            }
        }
        match plan_under(&g, &common::h200(), &Options::default(), &c) {
            Ok(p) => {
                kiln_plan::verify::verify(&p).unwrap_or_else(|e| panic!("{e}\n{g}\n{p}"));
                common::agrees(&g, &p);
                met += 1;
            }
            Err(RewriteError::Impossible { constraint, why }) => {
                assert!(!constraint.is_empty() && !why.is_empty(), "seed {seed}");
                refused += 1;
            }
            Err(e) => panic!("seed {seed}: {e}\n{g}"),
        }
    }
    assert!(met > 60 && refused > 10, "{met} met, {refused} refused");
}

#[test]
fn graphs_in_the_repository() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    files.retain(|p| p.extension().is_some_and(|e| e == "kiln"));
    assert!(files.len() >= 20, "only {} graphs in {folder}", files.len());
    let mut compared = 0;
    for path in files {
        let g = graph(&std::fs::read_to_string(&path).expect("the file was listed"));
        let small = g.values().all(|v| g.ty(v).count() <= 1 << 17);
        let ours = g.values().all(|v| !matches!(g.op(v), Op::Fallback(_)));
        if small && ours {
            compared += 1;
            differential(&g);
        } else {
            common::plan_with(&g, kiln_rewrite::Options::default());
        }
    }
    assert!(compared >= 5, "only {compared} graphs are small enough to compare");
}
