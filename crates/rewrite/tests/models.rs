//! Whole networks: how many kernels, how long planning takes in release, and that plans repeat byte for byte.
use crate::common::{self, agrees, graph, kinds, plan_with};
use kiln_graph::Graph;
use kiln_plan::{KernelKind, Plan, Stage};
use kiln_rewrite::Options;
use std::fmt::Write;

/// Writes graphs as text, with fresh names.
struct Writer {
    head: String,
    params: String,
    body: String,
    next: usize,
    dtype: &'static str,
}
impl Writer {
    fn new(dtype: &'static str, inputs: &str) -> Writer {
        Writer { head: inputs.into(), params: String::new(), body: String::new(), next: 0, dtype }
    }
    fn op(&mut self, text: &str) -> String {
        self.next += 1;
        let _ = writeln!(self.body, "  %v{} = {text}", self.next);
        format!("%v{}", self.next)
    }
    fn weight(&mut self, shape: &[usize]) -> String {
        self.next += 1;
        let shape = format!("{shape:?}").replace(' ', "");
        let _ =
            writeln!(self.params, "  @w{}: {}{shape} = random(seed={}, scale=0.1)", self.next, self.dtype, self.next);
        format!("@w{}", self.next)
    }
    fn linear(&mut self, x: &str, k: usize, n: usize) -> String {
        let (w, b) = (self.weight(&[n, k]), self.weight(&[n]));
        self.op(&format!("linear {x}, {w}, {b}"))
    }
    fn norm(&mut self, x: &str, n: usize, axis: usize) -> String {
        let _ = axis;
        let (g, b) = (self.weight(&[n]), self.weight(&[n]));
        self.op(&format!("layer_norm {x}, {g}, {b} axes=1 affine=true eps=1e-5"))
    }
    fn heads(&mut self, x: &str, [b, s, h, d]: [usize; 4]) -> String {
        let r = self.op(&format!("reshape {x} shape=[{b},{s},{h},{d}]"));
        self.op(&format!("permute {r} perm=[0,2,1,3]"))
    }
    fn merged(&mut self, x: &str, [b, s, h, d]: [usize; 4]) -> String {
        let r = self.op(&format!("permute {x} perm=[0,2,1,3]"));
        self.op(&format!("reshape {r} shape=[{b},{s},{}]", h * d))
    }
    fn graph(&self, outputs: &str) -> Graph {
        graph(&format!("graph model({}) {{\n{}{}  return {outputs}\n}}", self.head, self.params, self.body))
    }
}

/// Embeddings, then post-norm layers with attention in primitives and erf-GELU.
fn bert(layers: usize, dtype: &'static str, [b, s, h, d]: [usize; 4], vocabulary: usize) -> Graph {
    let w = h * d;
    let mut g = Writer::new(dtype, &format!("%ids: i64[{b},{s}], %mask: {dtype}[{b},1,1,{s}]"));
    let (table, positions) = (g.weight(&[vocabulary, w]), g.weight(&[s, w]));
    let e = g.op(&format!("take {table}, %ids axis=0"));
    let e = g.op(&format!("add {e}, {positions}"));
    let mut x = g.norm(&e, w, 2);
    let off = g.op("sub 1.0, %mask");
    let mask = g.op(&format!("mul {off}, -10000.0"));
    for _ in 0..layers {
        let q = g.linear(&x, w, w);
        let k = g.linear(&x, w, w);
        let v = g.linear(&x, w, w);
        let [q, k, v] = [q, k, v].map(|y| g.heads(&y, [b, s, h, d]));
        let kt = g.op(&format!("permute {k} perm=[0,1,3,2]"));
        let scores = g.op(&format!("dot {q}, {kt}"));
        let scores = g.op(&format!("div {scores}, 8.0"));
        let scores = g.op(&format!("add {scores}, {mask}"));
        let p = g.op(&format!("softmax {scores} axis=3"));
        let a = g.op(&format!("dot {p}, {v}"));
        let a = g.merged(&a, [b, s, h, d]);
        let o = g.linear(&a, w, w);
        let r = g.op(&format!("add {o}, {x}"));
        x = g.norm(&r, w, 2);
        let u = g.linear(&x, w, 4 * w);
        let u = g.op(&format!("gelu_erf {u}"));
        let u = g.linear(&u, 4 * w, w);
        let r = g.op(&format!("add {u}, {x}"));
        x = g.norm(&r, w, 2);
    }
    g.graph(&x)
}

/// Pre-norm layers: RMS norm, rotary positions, shared key heads, SwiGLU.
fn llama(layers: usize, dtype: &'static str, [b, s, h, d]: [usize; 4], shared: usize) -> Graph {
    let (w, group) = (h * d, h / shared);
    let mut g = Writer::new(
        dtype,
        &format!("%x: {dtype}[{b},{s},{w}], %cos: {dtype}[1,1,{s},{d}], %sin: {dtype}[1,1,{s},{d}]"),
    );
    let mut x = "%x".to_string();
    let rms = |g: &mut Writer, x: &str| {
        let gain = g.weight(&[w]);
        g.op(&format!("rms_norm {x}, {gain} eps=1e-5"))
    };
    let matmul = |g: &mut Writer, x: &str, k: usize, n: usize| {
        let w = g.weight(&[n, k]);
        g.op(&format!("linear {x}, {w}"))
    };
    let rope = |g: &mut Writer, q: &str| {
        let half = d / 2;
        let a = g.op(&format!("slice {q} axis=3 start=0 len={half} step=1"));
        let c = g.op(&format!("slice {q} axis=3 start={half} len={half} step=1"));
        let n = g.op(&format!("neg {c}"));
        let r = g.op(&format!("concat {n}, {a} axis=3"));
        let y = g.op(&format!("mul {q}, %cos"));
        let z = g.op(&format!("mul {r}, %sin"));
        g.op(&format!("add {y}, {z}"))
    };
    for _ in 0..layers {
        let n = rms(&mut g, &x);
        let (q, k, v) =
            (matmul(&mut g, &n, w, w), matmul(&mut g, &n, w, shared * d), matmul(&mut g, &n, w, shared * d));
        let q = g.heads(&q, [b, s, h, d]);
        let (k, v) = (g.heads(&k, [b, s, shared, d]), g.heads(&v, [b, s, shared, d]));
        let (q, k) = (rope(&mut g, &q), rope(&mut g, &k));
        let [k, v] = [k, v].map(|y| {
            let y = g.op(&format!("reshape {y} shape=[{b},{shared},1,{s},{d}]"));
            let y = g.op(&format!("broadcast {y} shape=[{b},{shared},{group},{s},{d}]"));
            g.op(&format!("reshape {y} shape=[{b},{h},{s},{d}]"))
        });
        let a = g.op(&format!("attention {q}, {k}, {v} scale=0.125 causal=true"));
        let a = g.merged(&a, [b, s, h, d]);
        let o = matmul(&mut g, &a, w, w);
        x = g.op(&format!("add {x}, {o}"));
        let n = rms(&mut g, &x);
        let (gate, up) = (matmul(&mut g, &n, w, 3 * w), matmul(&mut g, &n, w, 3 * w));
        let gate = g.op(&format!("silu {gate}"));
        let m = g.op(&format!("mul {gate}, {up}"));
        let o = matmul(&mut g, &m, 3 * w, w);
        x = g.op(&format!("add {x}, {o}"));
    }
    g.graph(&x)
}

/// Residual blocks: convolution, batch norm, relu.
fn resnet(blocks: usize, c: usize, size: usize) -> Graph {
    let mut g = Writer::new("f32", &format!("%x: f32[1,{c},{size},{size}]"));
    let mut x = "%x".to_string();
    let conv_norm = |g: &mut Writer, x: &str| {
        let w = g.weight(&[c, c, 3, 3]);
        let y = g.op(&format!(
            "conv {x}, {w} stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]"
        ));
        let (a, b, m) = (g.weight(&[c]), g.weight(&[c]), g.weight(&[c]));
        g.next += 1;
        let _ = writeln!(g.params, "  @w{}: f32[{c}] = fill(1.0)", g.next);
        let v = format!("@w{}", g.next);
        g.op(&format!("batch_norm {y}, {a}, {b}, {m}, {v} eps=1e-5"))
    };
    for _ in 0..blocks {
        let y = conv_norm(&mut g, &x);
        let y = g.op(&format!("relu {y}"));
        let y = conv_norm(&mut g, &y);
        let y = g.op(&format!("add {y}, {x}"));
        x = g.op(&format!("relu {y}"));
    }
    let p = g.op(&format!("reduce.mean {x} axes=[2,3]"));
    let p = g.op(&format!("reshape {p} shape=[1,{c}]"));
    let y = g.linear(&p, c, 10);
    g.graph(&y)
}

fn summary(p: &Plan) -> String {
    let run: Vec<_> = p.kernels.iter().filter(|k| k.stage == Stage::Run).collect();
    let of = |kind| run.iter().filter(|k| k.kind == kind).count();
    format!(
        "{} kernels ({} gemm, {} attention, {} reduction, {} pointwise), {} at load; {:.1} us, bound {:.1} us; e-nodes \
         {} -> {}, {} iterations, {} regions",
        run.len(),
        of(KernelKind::Gemm),
        of(KernelKind::Attention),
        of(KernelKind::Reduction),
        of(KernelKind::Pointwise),
        p.kernels.len() - run.len(),
        p.predicted_us(),
        p.lower_bound_us,
        p.search.enodes_before,
        p.search.enodes_after,
        p.search.iterations,
        p.search.candidates
    )
}
/// Kernels of a run, unfused and fused; plans twice and checks that the plan repeats.
fn counts(name: &str, g: &Graph) -> (usize, usize) {
    let unfused = plan_with(g, Options { fuse: false, ..Options::default() });
    let start = std::time::Instant::now();
    let fused = kiln_rewrite::plan(g, &common::h200(), &Options::default()).expect("plans");
    let took = start.elapsed();
    println!(
        "{name}: {:.1} us unfused in {}; {}; planned in {took:.0?}",
        unfused.predicted_us(),
        kinds(&unfused).len(),
        summary(&fused)
    );
    assert_eq!(plan_with(g, Options::default()).to_string(), fused.to_string());
    (kinds(&unfused).len(), kinds(&fused).len())
}

#[test]
fn twelve_layers_of_bert() {
    // A layer: QKV, attention with its mask, projection + residual, norm, up + GELU, down + residual, norm.
    assert_eq!(counts("BERT-base b1 s128", &bert(12, "bf16", [1, 128, 12, 64], 30522)).1, 12 * 7 + 1);
}
#[test]
fn four_layers_of_llama() {
    let (unfused, fused) = counts("Llama 4 layers", &llama(4, "bf16", [1, 128, 16, 64], 4));
    // The rotary embeddings of queries and keys take two kernels, as they differ in size.
    assert!(fused <= 4 * 10 && unfused > 4 * 20, "{fused} of {unfused}");
}
#[test]
fn residual_blocks() {
    let (_, fused) = counts("ResNet 8 blocks", &resnet(8, 64, 56));
    assert_eq!(fused, 16 + 2);
}
#[test]
fn small_networks_compute_what_they_should() {
    for g in [bert(2, "f32", [2, 8, 2, 8], 11), llama(1, "f32", [1, 8, 4, 8], 2), resnet(2, 4, 6)] {
        agrees(&g, &plan_with(&g, Options::default()));
        agrees(&g, &plan_with(&g, Options { contract: kiln_plan::Numerics::Exact.into(), fuse: true }));
        agrees(&g, &plan_with(&g, Options { fuse: false, ..Options::default() }));
    }
}
