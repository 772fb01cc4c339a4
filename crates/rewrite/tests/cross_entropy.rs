//! Cross entropy of a projection: logits are never stored.
use crate::common::{agrees_on, data, graph, kinds, plan_with};
use kiln_graph::{Graph, Tensor};
use kiln_plan::KernelKind::Gemm;
use kiln_plan::{Plan, Stage};
use kiln_rewrite::Options;

/// Rows, columns and depth of the matmul.
const SIZES: [usize; 3] = [8192, 1400, 32];

/// Whether a value as large as the logits is stored.
fn stores_logits(p: &Plan) -> bool {
    let run = p.kernels.iter().filter(|k| k.stage == Stage::Run);
    run.flat_map(|k| &k.outputs).any(|b| p.buffers[b.0 as usize].ty.count() > SIZES[0] * SIZES[1] / 2)
}
fn inputs(g: &Graph) -> Vec<Tensor> {
    let of = |(i, v): (usize, &kiln_graph::ValueId)| {
        let ty = g.ty(*v).clone();
        if ty.dtype.is_float() {
            return data(&ty, i as u64);
        }
        Tensor::from_f64(ty.clone(), (0..ty.count()).map(|i| (i * 37 % SIZES[1]) as f64))
    };
    g.inputs.iter().enumerate().map(of).collect()
}
fn planned(text: &str) -> (Graph, Plan) {
    let g = graph(text);
    let p = plan_with(&g, Options::default());
    (g, p)
}

#[test]
fn logits_are_not_stored() {
    let [m, n, k] = SIZES;
    let linear = "%x: bf16[M,K], %w: bf16[N,K]";
    let cases = [
        (linear, "%d = linear %x, %w\n %l = cast %d to=f32"),
        (linear, "%l = linear %x, %w"),
        ("%x: f16[M,K], %w: f16[N,K], %c: f16[N]", "%d = linear %x, %w, %c\n %l = cast %d to=f32"),
        // A soft-cap, a factor for each row, a bias of the columns.
        (
            "%x: bf16[M,K], %w: bf16[K,N], %r: f32[M,1], %c: f32[1,N]",
            "%e = dot %x, %w\n %d = cast %e to=f32\n %f = div %d, 30.0\n %t = tanh %f\n %s = mul %t, 30.0\n %q = mul %s, %r
            %l = add %q, %c",
        ),
        // Sequences without their last token, and their rows as one axis.
        (
            "%x: bf16[32,257,K], %w: bf16[N,K]",
            "%d = linear %x, %w\n %s = slice %d axis=1 len=256\n %f = cast %s to=f32\n %l = reshape %f shape=[M,N]",
        ),
    ];
    for (args, logits) in cases {
        let text = format!(
            "graph g({args}, %i: i64[M,1]) {{\n {logits}\n %p = log_softmax %l axis=1\n %y = gather %p, %i axis=1\n \
             return %y\n}}"
        );
        let text = text.replace('M', &m.to_string()).replace('N', &n.to_string()).replace('K', &k.to_string());
        let (g, p) = planned(&text);
        assert!(!stores_logits(&p), "{g}\n{p}");
        assert_eq!(kinds(&p).iter().filter(|k| **k == Gemm).count(), 2, "{p}");
        agrees_on(&g, &p, &inputs(&g));
    }
}

/// Columns that are all minus infinity, in a tile or everywhere.
#[test]
fn columns_without_a_class() {
    let [m, n, k] = SIZES;
    let text = format!(
        "graph g(%x: bf16[{m},{k}], %w: bf16[{n},{k}], %c: f32[{n}], %i: i64[{m},1]) {{
            %e = linear %x, %w\n %d = cast %e to=f32\n %l = add %d, %c\n %p = log_softmax %l axis=1\n %y = gather %p, %i axis=1
            return %y\n}}"
    );
    let (g, p) = planned(&text);
    assert!(!stores_logits(&p), "{g}\n{p}");
    for masked in [256..512, 100..1399, 0..n] {
        let mut all = inputs(&g);
        let bias = (0..n).map(|j| if masked.contains(&j) { f64::NEG_INFINITY } else { 0.0 });
        all[2] = Tensor::from_f64(all[2].ty.clone(), bias);
        agrees_on(&g, &p, &all);
    }
}

/// Where logits are wanted too, or the rows are few, they are stored.
#[test]
fn logits_that_are_stored() {
    let text = |m: usize, result: &str| {
        format!(
            "graph g(%x: bf16[{m},32], %w: bf16[1400,32], %i: i64[{m},1]) {{
                %d = linear %x, %w\n %p = log_softmax %d axis=1\n %y = gather %p, %i axis=1\n return %y{result}\n}}"
        )
    };
    let gemms = |text: &str| kinds(&planned(text).1).iter().filter(|k| **k == Gemm).count();
    assert_eq!([gemms(&text(8192, ", %d")), gemms(&text(64, ""))], [1, 1]);
}
