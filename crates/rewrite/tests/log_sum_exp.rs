//! Attention whose log-sum-exp is wanted too: one kernel stores both.
use crate::common::{agrees, graph, kinds, plan_with};
use kiln_graph::Op;
use kiln_plan::KernelKind::{Attention, Pointwise};
use kiln_plan::Plan;
use kiln_rewrite::Options;

/// How scores are written, and their softmax and log-sum-exp.
const LOG_SUM_EXP: &str =
    "%t0 = reduce.max %s axes=[3]\n %abs = abs %t0\n %inf = eq %abs, inf\n %m = select %inf, 0.0, %t0
    %z = sub %s, %m\n %e = exp %z\n %t = reduce.sum %e axes=[3]\n %log = log %t\n %l = add %log, %m";
const SHORT: &str = "%m = reduce.max %s axes=[3]\n %z = sub %s, %m\n %e = exp %z\n %t = reduce.sum %e axes=[3]
    %log = log %t\n %l = add %m, %log";

/// In the attentions of a plan: how many give a log-sum-exp, and how many values.
fn results(p: &Plan) -> [usize; 2] {
    let count = |sums: bool| {
        let bodies = p.kernels.iter().map(|k| &k.body);
        bodies
            .flat_map(|g| g.values().filter(|v| matches!(g.op(*v), Op::Attention { lse, .. } if *lse == sums)))
            .count()
    };
    [count(true), count(false)]
}

#[test]
fn one_kernel_stores_both() {
    let mask =
        "%i = iota axis=0 : i64[12,16]\n %j = iota axis=1 : i64[12,16]\n %c = le %j, %i\n %s = select %c, %x, -inf";
    let half = ("T", "%x = cast %d to=f32\n %s = div %x, 4.0", "%p0 = softmax %s axis=3\n %p = cast %p0 to=T");
    let wide = "%w = cast %d to=f32\n %x = mul %w, 0.25";
    let safe = "%p0 = softmax %s axis=3\n %low = eq %s, -inf\n %all = reduce.all %low axes=[3]";
    let cases = [
        ("f32", "%s = div %d, 4.0", LOG_SUM_EXP, "%p = softmax %s axis=3"),
        ("f32", "%s = div %d, 4.0", SHORT, "%p = softmax %s axis=3"),
        // The softmax by the log-sum-exp.
        ("f32", "%s = div %d, 4.0", LOG_SUM_EXP, "%b = sub %s, %l\n %p = exp %b"),
        ("f32", &format!("%x = div %d, 4.0\n {mask}"), LOG_SUM_EXP, "%p = softmax %s axis=3"),
        ("bf16", half.1, LOG_SUM_EXP, half.2),
        // As FlexAttention.
        ("f32", &format!("%x = mul %d, 0.25\n {mask}"), LOG_SUM_EXP, &format!("{safe}\n %p = select %all, 0.0, %p0")),
        (
            "bf16",
            &format!("{wide}\n {mask}"),
            LOG_SUM_EXP,
            &format!("{safe}\n %p1 = select %all, 0.0, %p0\n %p = cast %p1 to=T"),
        ),
        ("f16", half.1, SHORT, half.2),
    ];
    for (dtype, scores, sums, weights) in cases {
        let lines = format!("{scores}\n {sums}\n {weights}\n %y = dot %p, %v\n return %y, %l");
        let (g, p) = planned(dtype, &lines);
        assert_eq!(kinds(&p), [Attention], "{dtype} {lines}");
        assert_eq!(results(&p), [1, 1], "{dtype} {lines}");
        agrees(&g, &p);
    }
}

fn planned(dtype: &str, lines: &str) -> (kiln_graph::Graph, Plan) {
    let text = format!(
        "graph g(%q: T[2,4,12,16], %k: T[2,4,16,16], %v: T[2,4,16,16]) {{
        %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n {lines}\n}}"
    );
    let g = graph(&text.replace("T[", &format!("{dtype}[")).replace("to=T", &format!("to={dtype}")));
    let p = plan_with(&g, Options::default());
    (g, p)
}

/// Slopes of f32 beside scores of half types, as type promotion makes them.
#[test]
fn wide_biases_of_half_types() {
    let places = "%i = iota axis=0 : i64[12,1]\n %j = iota axis=1 : i64[1,16]\n %o = sub %j, %i\n %of = cast %o to=f32";
    let slopes = "%h = iota axis=0 : f32[4,1,1]\n %m = mul %h, 0.3\n %b = mul %m, %of";
    let end = "%p0 = softmax %s axis=3\n %p = cast %p0 to=T\n %y = dot %p, %v\n return %y";
    for dtype in ["bf16", "f16"] {
        for scores in [
            "%s = add %x, %b",
            "%c = tanh %x\n %s = mul %c, %b",
            "%c = le %o, 2\n %z = add %x, %b\n %s = select %c, %z, -inf",
        ] {
            let lines = format!("%x = cast %d to=f32\n {places}\n {slopes}\n {scores}\n {end}");
            let (g, p) = planned(dtype, &lines);
            assert_eq!((kinds(&p), results(&p)), (vec![Attention], [0, 1]), "{p}");
            agrees(&g, &p);
        }
    }
}

/// Without the result, or beside that of other scores, it has a kernel of its own.
#[test]
fn a_log_sum_exp_alone() {
    let (g, p) = planned("f32", &format!("%s = div %d, 4.0\n {LOG_SUM_EXP}\n return %l"));
    assert_eq!((kinds(&p), results(&p)), (vec![Attention], [1, 0]), "{p}");
    agrees(&g, &p);
    let other = "%o = mul %d, 0.5\n %p = softmax %o axis=3\n %y = dot %p, %v";
    let (g, p) = planned("f32", &format!("%s = div %d, 4.0\n {LOG_SUM_EXP}\n {other}\n return %y, %l"));
    assert_eq!((kinds(&p), results(&p)), (vec![Attention, Attention], [1, 1]), "{p}");
    agrees(&g, &p);
}

/// A result that both depend on is another kernel's.
#[test]
fn what_reads_both_is_apart() {
    let lines =
        format!("%s = div %d, 4.0\n {LOG_SUM_EXP}\n %p = softmax %s axis=3\n %y = dot %p, %v\n %w = mul %y, %l");
    let (g, p) = planned("f32", &format!("{lines}\n return %w"));
    assert_eq!((kinds(&p), results(&p)), (vec![Attention, Pointwise], [1, 1]), "{p}");
    agrees(&g, &p);
}
