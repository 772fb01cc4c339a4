//! Attention with a sink as programs write it: one kernel, which computes what the graph computes, also for queries
//! without a key and for sinks that are not finite.
use crate::common::{agrees, agrees_on, data, graph, kinds, plan_with};
use kiln_graph::{Graph, Op, Tensor};
use kiln_plan::KernelKind::{Attention, Pointwise};
use kiln_plan::Plan;
use kiln_rewrite::Options;

/// Scores `%s` of two batches of four heads, `lines` that make `%y` of them, values `%v` and sinks `%sink`. Query 3 has
/// no key in `masked`.
fn text(masked: bool, lines: &str) -> String {
    let mask = if masked {
        "%i = iota axis=0 : i64[12,9]\n %j = iota axis=1 : i64[12,9]\n %le = le %j, %i\n %ne = ne %i, 3\n %seen = and %le, %ne
        %s = select %seen, %e, -inf"
    } else {
        "%s = reshape %e shape=[2,4,12,9]"
    };
    format!(
        "graph g(%q: T[2,4,12,16], %k: T[2,4,9,16], %v: T[2,4,9,16], %sink: T[4]) {{
        %kt = permute %k perm=[0,1,3,2]\n %d = dot %q, %kt\n %e = div %d, 4.0\n {mask}
        %h = reshape %sink shape=[1,4,1,1]\n %w = broadcast %h shape=[2,4,12,1]\n {lines}\n return %y\n}}"
    )
}

fn planned(text: &str) -> (Graph, Plan) {
    let g = graph(text);
    let p = plan_with(&g, Options::default());
    (g, p)
}

fn sinks_of(p: &Plan) -> usize {
    let bodies = p.kernels.iter().map(|k| &k.body);
    bodies.flat_map(|g| g.values().filter(|v| matches!(g.op(*v), Op::Attention { sink: true, .. }))).count()
}

/// Forms, each with what the mask may be: none, or one that leaves a query no key, too.
const FORMS: [(&str, bool); 11] = [
    ("%c = concat %s, %w axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 len=9\n %y = dot %l, %v", true),
    ("%c = concat %w, %s axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 start=1 len=9\n %y = dot %l, %v", true),
    (
        "%c = concat %s, %w axis=3\n %m = reduce.max %c axes=[3]\n %z = sub %c, %m\n %p = softmax %z axis=3
        %l = slice %p axis=3 len=9\n %y = dot %l, %v",
        true,
    ),
    (
        "%c = concat %s, %w axis=3\n %m = reduce.max %c axes=[3]\n %z = sub %c, %m\n %f = cast %z to=f32\n %p = softmax %f axis=3
        %l = slice %p axis=3 len=9\n %n = cast %l to=T\n %y = dot %n, %v",
        true,
    ),
    (
        "%f = cast %s to=f32\n %b = cast %w to=f32\n %c = concat %f, %b axis=3\n %p = softmax %c axis=3\n %n = cast %p to=T
        %l = slice %n axis=3 len=9\n %y = dot %l, %v",
        true,
    ),
    (
        "%c = pad %s, 0.0 lo=[0,0,0,0] hi=[0,0,0,1]\n %p = softmax %c axis=3\n %l = slice %p axis=3 len=9\n \
         %y = dot %l, %v",
        true,
    ),
    (
        "%m = reduce.max %s axes=[3]\n %z = sub %s, %m\n %x = exp %z\n %n = neg %m\n %o = exp %n\n %t = reduce.sum %x axes=[3]
        %u = add %o, %t\n %p = div %x, %u\n %y = dot %p, %v",
        false,
    ),
    (
        "%m0 = reduce.max %s axes=[3]\n %m = relu %m0\n %z = sub %s, %m\n %x = exp %z\n %n = neg %m\n %o = exp %n
        %t = reduce.sum %x axes=[3]\n %u = add %t, %o\n %p = div %x, %u\n %y = dot %p, %v",
        true,
    ),
    (
        "%m0 = reduce.max %s axes=[3]\n %m = max %m0, 0.0\n %z = sub %s, %m\n %x = exp %z\n %n = neg %m\n %o = exp %n
        %t = reduce.sum %x axes=[3]\n %u = add %t, %o\n %p = div %x, %u\n %y = dot %p, %v",
        true,
    ),
    (
        "%m0 = reduce.max %s axes=[3]\n %m = max %h, %m0\n %z = sub %s, %m\n %x = exp %z\n %n = sub %h, %m\n %o = exp %n
        %t = reduce.sum %x axes=[3]\n %u = add %t, %o\n %p = div %x, %u\n %y = dot %p, %v",
        true,
    ),
    ("%x = exp %s\n %t = reduce.sum %x axes=[3]\n %u = add %t, 1.0\n %p = div %x, %u\n %y = dot %p, %v", true),
];

#[test]
fn sinks_however_they_are_written() {
    for (lines, may_be_masked) in FORMS {
        for masked in [false, true] {
            for dtype in ["f32", "bf16", "f16"] {
                let (g, p) = planned(&text(masked, lines).replace('T', dtype));
                if masked && !may_be_masked {
                    // Queries without a key are NaN as written.
                    assert_eq!(sinks_of(&p), 0, "{p}");
                } else {
                    assert_eq!((kinds(&p), sinks_of(&p)), (vec![Attention], 1), "{lines}\n{p}");
                }
                let mut inputs: Vec<Tensor> =
                    g.inputs.iter().enumerate().map(|(i, v)| data(g.ty(*v), i as u64)).collect();
                agrees_on(&g, &p, &inputs);
                // Beside a power of infinity, NaN is NaN.
                if !lines.contains("%h") {
                    for (head, sink) in [f64::NEG_INFINITY, f64::NAN, 20.0].into_iter().enumerate() {
                        inputs[3].set_f64(head, sink);
                    }
                    agrees_on(&g, &p, &inputs);
                }
            }
        }
    }
}

/// Heads of queries that share keys: nothing is repeated in memory.
#[test]
fn a_sink_beside_shared_heads() {
    let p = plan_with(
        &graph(
            "graph g(%q: f32[2,4,12,16], %k: f32[2,2,9,16], %v: f32[2,2,9,16], %sink: f32[4], %m: f32[2,1,12,9]) {
            %k1 = reshape %k shape=[2,2,1,9,16]\n %k2 = broadcast %k1 shape=[2,2,2,9,16]\n %k3 = reshape %k2 shape=[2,4,9,16]
            %v1 = reshape %v shape=[2,2,1,9,16]\n %v2 = broadcast %v1 shape=[2,2,2,9,16]\n %v3 = reshape %v2 shape=[2,4,9,16]
            %kt = permute %k3 perm=[0,1,3,2]\n %d = dot %q, %kt\n %e = mul %d, 0.25\n %s = add %e, %m
            %h = reshape %sink shape=[1,4,1,1]\n %w = broadcast %h shape=[2,4,12,1]\n %c = concat %s, %w axis=3
            %p = softmax %c axis=3\n %l = slice %p axis=3 len=9\n %y = dot %l, %v3\n return %y\n}",
        ),
        Options::default(),
    );
    assert_eq!(kinds(&p), [Attention], "{p}");
    let body = &p.kernels[0].body;
    let attention = body.values().find(|v| matches!(body.op(*v), Op::Attention { .. })).expect("a kernel of attention");
    assert_eq!(body.shape(body.args(attention)[1]), [2, 2, 9, 16], "{p}");
}

#[test]
fn what_is_no_sink() {
    for lines in [
        // A key's probability is left out, and the sink's has a value.
        "%c = concat %s, %w axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 start=1 len=9\n %y = dot %l, %v",
        "%c = concat %w, %s axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 len=9\n %y = dot %l, %v",
        // Two keys are left out.
        "%c = concat %s, %w axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 len=8\n %v8 = slice %v axis=2 len=8
        %y = dot %l, %v8",
        // Two sinks.
        "%c = concat %s, %w, %w axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 len=9\n %y = dot %l, %v",
        // Every other probability.
        "%c = concat %s, %w axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 len=5 step=2\n %v5 = slice %v axis=2 len=5
        %y = dot %l, %v5",
        // A softmax along the queries.
        "%c = concat %s, %w axis=3\n %p = softmax %c axis=2\n %l = slice %p axis=3 len=9\n %y = dot %l, %v",
        // A sink that is made of the scores.
        "%b = reduce.max %s axes=[3]\n %c = concat %s, %b axis=3\n %p = softmax %c axis=3\n \
         %l = slice %p axis=3 len=9\n %y = dot %l, %v",
        // One more power than the sum has, of the greatest score.
        "%m = reduce.max %s axes=[3]\n %z = sub %s, %m\n %x = exp %z\n %t = reduce.sum %x axes=[3]\n %u = add %t, 1.0
        %p = div %x, %u\n %y = dot %p, %v",
        // Powers relative to another maximum.
        "%m = reduce.max %s axes=[3]\n %m2 = reduce.max %s axes=[2]\n %z = sub %s, %m2\n %x = exp %z\n %n = neg %m\n %o = exp %n
        %t = reduce.sum %x axes=[3]\n %u = add %t, %o\n %p = div %x, %u\n %y = dot %p, %v",
    ] {
        let (g, p) = planned(&text(false, lines).replace('T', "f32"));
        assert_eq!(sinks_of(&p), 0, "{lines}\n{p}");
        agrees(&g, &p);
    }
}

/// A sink that the program computes is computed by its kernel or before it.
#[test]
fn computed_sinks() {
    let (g, p) = planned(
        "graph g(%q: f32[2,4,12,16], %k: f32[2,4,9,16], %v: f32[2,4,9,16], %x: f32[2,4,12,1]) {
        %sink = tanh %x\n %y = attention %q, %k, %v, %sink scale=0.25 sink=true\n return %y\n}",
    );
    let others = kinds(&p).into_iter().filter(|k| *k != Pointwise).count();
    assert_eq!((others, sinks_of(&p)), (1, 1), "{p}");
    agrees(&g, &p);
}
