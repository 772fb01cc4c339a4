//! Operands of attention that are dequantised on the way to it.
use crate::common::{agrees, graph, kinds, plan_with};
use kiln_plan::KernelKind::{self, Attention, Pointwise};
use kiln_rewrite::Options;

/// The kernels of an attention of so many queries, over keys of the type `stored`; `how`: what is made of keys and
/// values.
fn kernels(queries: usize, stored: &str, how: &str) -> Vec<KernelKind> {
    let made = |x: &str| how.replace("%y", &format!("%{x}1")).replace("%x", &format!("%{x}"));
    let text = format!(
        "graph g(%q: bf16[1,4,{queries},32], %k: {stored}[1,2,300,32], %v: {stored}[1,2,300,32], %c: bf16[2,1,1]) {{
            {}\n {}\n %y = attention %q, %k1, %v1 scale=0.2\n return %y\n}}",
        made("k"),
        made("v")
    );
    let g = graph(&text);
    let p = plan_with(&g, Options::default());
    agrees(&g, &p);
    kinds(&p)
}

#[test]
fn few_queries_read_quantised_keys() {
    for stored in ["f8e4m3", "f8e5m2", "i8"] {
        for how in [
            "%y = cast %x to=bf16",
            "%xh = cast %x to=bf16\n %y = mul %xh, %c",
            "%xh = cast %x to=bf16\n %y = mul %c, %xh",
            "%xh = cast %x to=bf16\n %xs = sub %xh, 3.0\n %y = mul %xs, %c",
        ] {
            assert_eq!(kernels(1, stored, how), [Attention], "{stored} {how}");
        }
    }
}

/// Many queries would dequantise keys again for each of their tiles, and other arithmetic may make infinities of zeros.
#[test]
fn others_are_dequantised_first() {
    let cast = "%y = cast %x to=bf16";
    for (queries, how) in [(512, cast), (1, "%xh = cast %x to=bf16\n %y = exp %xh")] {
        assert_eq!(kernels(queries, "f8e4m3", how), [Pointwise, Pointwise, Attention], "{queries} {how}");
    }
}
