//! Attention by warpgroups: generated shapes, masks and layouts, interpreted and compared with the graph.
use crate::common::{compare, lowered};
use kiln_graph::{Graph, random};
use kiln_machine::Arch;
use kiln_plan::KernelKind::Attention;

struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// A graph that warpgroups take: rows of multiples of 8, more queries than a packed group has.
fn graph(r: &mut Random) -> String {
    let d = r.pick(&["bf16", "f16"]);
    let [b, hk, group] = [1 + r.below(2), 1 + r.below(2), 1 + r.below(3)];
    let (h, s, t) = (hk * group, 33 + r.below(200), 1 + r.below(300));
    let [w, e] = [8 * (1 + r.below(20)), 8 * (1 + r.below(20))];
    let scale = r.pick(&["0.1", "0.25", "-0.2"]);
    let causal = r.pick(&["false", "true"]);
    let masked = r.pick(&["zero", "nan"]);
    let how = format!("scale={scale} causal={causal} fully_masked={masked}");
    // Masks of positions: causal from an offset on, a window, a position that is read.
    let offset = r.below(300) as i64 - 150;
    let positions =
        format!("%qi = iota axis=0 : i64[{s},1]\n %ki = iota axis=1 : i64[1,{t}]\n %qo = add %qi, {offset}");
    let lines = match r.below(6) {
        0 => format!("{positions}\n %m = le %ki, %qo"),
        1 => format!("{positions}\n %m1 = le %ki, %qo\n %lo = sub %qo, 70\n %m2 = lt %lo, %ki\n %m = and %m1, %m2"),
        2 => format!("{positions}\n %at = add %qi, %p\n %m = le %ki, %at"),
        _ => String::new(),
    };
    let (mask_type, mask) = match r.below(4) {
        _ if lines.contains("%p") => (", %p: i64[1]".into(), ", %m"),
        _ if !lines.is_empty() => (String::new(), ", %m"),
        0 => (format!(", %m: bool[{b},1,1,{t}]"), ", %m"),
        1 => (format!(", %m: {d}[1,{h},{s},{t}]"), ", %m"),
        2 => (format!(", %m: bool[{s},{t}]"), ", %m"),
        _ => (String::new(), ""),
    };
    // Operands as they lie: heads outside, or rows outside; the result transposed back, and added to something.
    match r.below(3) {
        0 => format!(
            "graph k(%q: {d}[{b},{h},{s},{w}], %kk: {d}[{b},{hk},{t},{w}], %v: {d}[{b},{hk},{t},{e}]{mask_type}) {{
              {lines}
 %y = attention %q, %kk, %v{mask} {how}\n return %y\n}}"
        ),
        1 => format!(
            "graph k(%q: {d}[{b},{s},{h},{w}], %kk: {d}[{b},{t},{hk},{w}], %v: {d}[{b},{t},{hk},{e}]{mask_type}) {{
              {lines}
 %a = permute %q perm=[0,2,1,3]\n %c = permute %kk perm=[0,2,1,3]\n %f = permute %v perm=[0,2,1,3]
              %y = attention %a, %c, %f{mask} {how}\n %yp = permute %y perm=[0,2,1,3]
              %o = reshape %yp shape=[{b},{s},{}]\n return %o\n}}",
            h * e
        ),
        _ => format!(
            "graph k(%q: {d}[{b},{h},{s},{w}], %kk: {d}[{b},{hk},{t},{w}], %v: {d}[{b},{hk},{t},{e}], %r: {d}[{b},{h},{s},{e}]{mask_type}) {{
              {lines}
 %y = attention %q, %kk, %v{mask} {how}\n %z = add %y, %r\n return %z\n}}"
        ),
    }
}

#[test]
fn generated_attentions_by_warpgroups() {
    let mut found = 0;
    for seed in 0..80 {
        let source = graph(&mut Random(seed));
        let g: Graph = source.parse().unwrap_or_else(|e| panic!("{e}\n{source}"));
        let inputs = random::inputs(&g, seed);
        found += usize::from(lowered(Attention, &g, Arch::Sm90a).contains("roles producer"));
        match compare(Attention, &g, &inputs, Arch::Sm90a) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => panic!("seed {seed}: {e}\n{source}"),
            Err(e) => panic!("seed {seed}: {e}\n{source}"),
        }
    }
    assert!(found >= 56, "only {found} of 80 programs are by warpgroups");
}
