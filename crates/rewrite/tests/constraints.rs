//! Effects of constraints on plans, and errors for constraints that cannot be met.
use crate::common::{agrees, graph, h200, kinds};
use kiln_graph::{Graph, ValueId};
use kiln_plan::{KernelKind::*, Plan};
use kiln_rewrite::{Constraints, Group, Options, RewriteError, plan_under};

/// exp of a sum, then a row reduction: %2 add, %3 exp, %4 reduce, %5 sub.
const ROWS: &str = "graph g(%x: f32[64,96], %y: f32[64,96]) {
    %a = add %x, %y
    %e = exp %a
    %s = reduce.sum %e axes=[1]
    %d = sub %e, %s
    return %d
}";
/// Two matmuls with an activation between: %2 linear, %3 relu, %5 linear.
const MATMULS: &str = "graph g(%x: f32[64,96]) {
    @w: f32[128,96] = external
    @v: f32[32,128] = external
    %h = linear %x, @w
    %r = relu %h
    %y = linear %r, @v
    return %y
}";

fn group(values: &[u32]) -> Group {
    Group { label: format!("{values:?}"), values: values.iter().map(|v| ValueId(*v)).collect() }
}
fn under(g: &Graph, c: &Constraints) -> Result<Plan, RewriteError> {
    let p = plan_under(g, &h200(), &Options::default(), c)?;
    kiln_plan::verify::verify(&p).unwrap_or_else(|e| panic!("{e}\n{p}"));
    agrees(g, &p);
    Ok(p)
}
fn never(groups: &[&[u32]]) -> Constraints {
    Constraints { never_fuse: vec![groups.iter().map(|g| group(g)).collect()], ..Constraints::default() }
}
fn must(values: &[u32]) -> Constraints {
    Constraints { must_fuse: vec![group(values)], ..Constraints::default() }
}
/// The constraint and the reason.
fn refused(g: &Graph, c: &Constraints) -> String {
    under(g, c).expect_err("cannot be met").to_string()
}

#[test]
fn never_fuse_keeps_two_apart_and_one_alone() {
    let g = graph(ROWS);
    assert_eq!(kinds(&under(&g, &Constraints::default()).expect("plans")), [Reduction]);
    let apart = under(&g, &never(&[&[3], &[4]])).expect("can be met");
    assert_eq!(kinds(&apart), [Pointwise, Reduction]);
    assert_eq!(apart.kernels[0].reason.stops[0].why, "a constraint keeps them apart");
    assert_eq!(kinds(&under(&g, &never(&[&[2, 3, 4, 5]])).expect("can be met")).len(), 4);
}

#[test]
fn keep_in_memory_stores_what_would_stay_on_chip() {
    let g = graph(ROWS);
    let kept = Constraints { keep_in_memory: vec![group(&[3])], ..Constraints::default() };
    let p = under(&g, &kept).expect("can be met");
    let stored: usize = p.kernels.iter().map(|k| k.outputs.len()).sum();
    assert!(stored > 1 && p.kernels.iter().any(|k| k.outputs.iter().any(|o| !p.outputs.contains(o))), "{p}");
}

#[test]
fn must_fuse_overrules_the_price_but_not_legality() {
    let g = graph(MATMULS);
    let relu = |p: &Plan| p.kernels.iter().position(|k| k.body.to_string().contains("relu"));
    assert_eq!(relu(&under(&g, &Constraints::default()).expect("plans")), Some(0));
    assert!(under(&g, &must(&[2, 4])).is_ok() || under(&g, &must(&[2, 3])).is_ok());
    let both = (0..g.len() as u32).filter(|v| g.op(ValueId(*v)).name() == "linear").collect::<Vec<_>>();
    let why = refused(&g, &must(&both));
    assert!(why.contains("cannot be met") && why.contains("arithmetic before a matmul (relu"), "{why}");
    assert!(why.contains("the values in between (relu"), "{why}");
}

#[test]
fn constraints_that_contradict_or_touch_nothing_say_so() {
    let g = graph(ROWS);
    let c = Constraints { must_fuse: vec![group(&[2, 3])], ..never(&[&[2], &[3]]) };
    assert!(refused(&g, &c).contains("forbids it"), "{}", refused(&g, &c));
    assert!(refused(&g, &must(&[0])).contains("a run computes none of its values"));
    assert!(refused(&g, &never(&[&[2, 3], &[3]])).contains("name the same value"));
}
