//! Attention whose mask is computed in its kernel, from indices and small vectors: programs and host steps must give
//! what the graph gives, also for queries that no key counts for.
use crate::common::{TARGETS, difference, interpreted, least, lowered, ran};
use kiln_graph::{Graph, Random};
use kiln_machine::Arch;
use kiln_plan::KernelKind::Attention;

/// Masks of `S` queries over `T` keys, with `%dq`, `%dk`: documents of queries and keys; `%prefix`: a length; `%slope`:
/// of a head; `%bias`.
const MASKS: [&str; 12] = [
    "%m = le %t, %r",
    "%c = le %t, %r\n %d = sub %r, %t\n %w = lt %d, 7\n %m = and %c, %w",
    "%c = le %t, %r\n %e = lt %t, %prefix\n %m = or %c, %e",
    "%m = eq %dq, %dk",
    "%a = eq %dq, %dk\n %c = le %t, %r\n %b = and %a, %c\n %m = select %b, %zero, -inf",
    "%d = sub %t, %r\n %f = cast %d to=D\n %m = mul %slope, %f",
    "%d = sub %t, %r\n %f = cast %d to=D\n %a = mul %slope, %f\n %c = le %t, %r\n %m = select %c, %a, -inf",
    "%d = sub %r, %t\n %a = abs %d\n %w = gt %a, 9\n %m = select %w, -inf, %zero",
    "%c = le %t, %r\n %a = add %bias, %slope\n %m = select %c, %a, -inf",
    "%c = lt %t, %prefix\n %d = broadcast %c shape=[2,4,S,T]\n %m = not %d",
    // Rows whose scores are all the least number of the type: the mean of all values.
    "%a = eq %dq, %dk\n %m = select %a, %zero, LEAST",
    "%l = const LEAST : D[]\n %m = add %bias, %l",
];

fn text(mask: &str, [s, t, d]: [usize; 3], dtype: &str, attention: &str) -> String {
    let text = "graph k(%q: D[2,4,S,W], %k: D[2,2,T,W], %v: D[2,2,T,W], %doc_q: i64[2,S], %doc_k: i64[2,T], %prefix: i64[2,1,1,1],
        %slope: D[4,1,1], %bias: D[1,4,S,T]) {
        %zero = const 0.0 : D[]\n %r = iota axis=0 : i64[S,1]\n %t = iota axis=1 : i64[1,T]
        %dq = reshape %doc_q shape=[2,1,S,1]\n %dk = reshape %doc_k shape=[2,1,1,T]\n MASK
        %cap = exp %slope\n %y = attention %q, %k, %v, CALL\n return %y\n}";
    let text = text.replace("MASK", mask).replace("CALL", attention).replace("D[", &format!("{dtype}["));
    let text = text.replace("to=D", &format!("to={dtype}")).replace("LEAST", least(dtype));
    [("S", s), ("T", t), ("W", d)].iter().fold(text, |text, (name, n)| text.replace(name, &n.to_string()))
}

/// Compares programs on random inputs with the interpreter of graphs.
fn compare(text: &str, targets: &[Arch], r: &mut Random) {
    let g: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut inputs = kiln_graphgen::inputs(&g, r.next_below(1 << 20) as u64);
    // As models have them: multiples of these by distances are exact in every type.
    (0..4).for_each(|h| inputs[6].set_f64(h, 0.5f64.powi(h as i32 + 1)));
    if let Some(sinks) = inputs.get_mut(8) {
        let special = [f64::NEG_INFINITY, f64::NAN, 30.0, -30.0];
        sinks.set_f64(r.next_below(4), special[r.next_below(4)]);
    }
    let want = interpreted(&g, &inputs).unwrap();
    for &target in targets {
        let got = ran(Attention, &g, &inputs, target).unwrap_or_else(|e| panic!("{e}\n{g}"));
        difference(&g, &want, &got)
            .unwrap_or_else(|e| panic!("{target:?}: {e}\n{g}\n{}", lowered(Attention, &g, target)));
    }
}

#[test]
fn computed_masks() {
    let mut r = Random::new(23);
    for (i, mask) in MASKS.iter().enumerate() {
        for (n, shape) in [[20, 20, 16], [37, 70, 24], [1, 33, 16], [130, 5, 8], [9, 1, 16]].into_iter().enumerate() {
            for how in ["", "fully_masked=nan"] {
                // The sum of a bias and f16's least number is rounded in the graph, and not in the kernel.
                let types: &[&str] = if mask.contains("%l") { &["f32", "bf16"] } else { &["f32", "bf16", "f16"] };
                let dtype = types[(i + n) % types.len()];
                compare(&text(mask, shape, dtype, &format!("%m scale=0.3 {how}")), &TARGETS, &mut r);
            }
        }
    }
}

/// Where every query sees a key, whatever tensors hold, the least number masks as minus infinity does: keys are
/// skipped. Elsewhere a query may count all keys.
#[test]
fn the_least_number_bounds_keys_if_every_query_sees_one() {
    let mut r = Random::new(41);
    let causal = "%c = le %t, %r\n %m = select %c, %zero, LEAST";
    let from_the_end = "%p = add %r, SHIFT\n %c = gt %t, %p\n %m = select %c, LEAST, %zero";
    let seen = [
        (causal, [150, 150, 16]),
        (causal, [20, 150, 16]),
        (causal, [1, 150, 16]),
        (from_the_end, [20, 150, 16]),
        (from_the_end, [1, 2000, 16]),
        ("%d = sub %r, %t\n %a = abs %d\n %w = lt %a, 70\n %m = select %w, %zero, LEAST", [300, 300, 16]),
        (
            "%c = le %t, %r\n %e = lt %t, %prefix\n %o = or %c, %e\n %n = not %o\n %m = select %n, LEAST, %zero",
            [300, 300, 16],
        ),
        ("%c = le %t, %r\n %x = select %c, %zero, LEAST\n %m = add %bias, %x", [70, 150, 24]),
        ("%c = le %t, %r\n %b = add %bias, %slope\n %m = select %c, %b, LEAST", [70, 150, 24]),
        (
            "%c = le %t, %r\n %d = sub %r, %t\n %w = lt %d, 9\n %x = select %c, %zero, LEAST\n \
             %b = select %w, %zero, LEAST\n %m = add %x, %b",
            [70, 70, 16],
        ),
        (
            "%w = cast %dq to=i32\n %dx = reshape %w shape=[2,1,1,S]\n %e = eq %w, %dx\n %c = le %t, %r\n \
             %o = and %e, %c\n %m = select %o, %zero, LEAST",
            [150, 150, 16],
        ),
    ];
    let not_seen = [
        ("%e = lt %t, %prefix\n %m = select %e, %zero, LEAST", [70, 70, 16]),
        ("%c = lt %t, %r\n %m = select %c, %zero, LEAST", [150, 150, 16]),
        ("%c = le %t, %r\n %a = eq %dq, %dk\n %o = and %a, %c\n %m = select %o, %zero, LEAST", [150, 150, 16]),
        ("%p = add %r, %prefix\n %c = le %t, %p\n %m = select %c, %zero, LEAST", [20, 150, 16]),
        ("%c = ge %t, %r\n %m = select %c, %zero, LEAST", [150, 70, 16]),
        // The logarithm may be minus infinity.
        (
            "%c = le %t, %r\n %f = cast %dq to=D\n %l = log %f\n %x = select %c, %zero, LEAST\n %m = add %l, %x",
            [70, 70, 16],
        ),
    ];
    let all = seen.iter().map(|m| (m, true)).chain(not_seen.iter().map(|m| (m, false)));
    for (i, ((mask, shape), sees)) in all.enumerate() {
        let mask = mask.replace("SHIFT", &(shape[1] - shape[0].min(shape[1])).to_string());
        let dtype = if mask.contains("%bias") { "bf16" } else { ["f32", "bf16", "f16"][i % 3] };
        let [least, infinite] =
            [&mask, &mask.replace("LEAST", "-inf")].map(|mask| text(mask, *shape, dtype, "%m scale=0.3"));
        for target in TARGETS {
            let [least, infinite] = [&least, &infinite].map(|text| lowered(Attention, &text.parse().unwrap(), target));
            // The host reads the mask, and ends the keys.
            assert_eq!(least == infinite, sees && target.is_gpu(), "{target:?}\n{mask}\n{least}\n{infinite}");
        }
        compare(&least, &TARGETS, &mut r);
    }
}

/// Score functions and their operands, in the order in which the node takes them; a mask follows or not.
const FUNCTIONS: [(&str, &str); 7] = [
    ("div 2.0, tanh, mul 2.0", ""),
    ("mul operand", "%slope, "),
    ("mul operand, tanh, sub operand", "%slope, %bias, "),
    ("div operand, div 3.0, tanh, mul 3.0", "%slope, "),
    ("max -0.5, min operand, add operand", "%cap, %slope, "),
    ("silu, add operand", "%bias, "),
    ("abs, neg", ""),
];

/// A score function before a mask that is computed, in the kernel or read, or before none. The host has none: its plans
/// compute attention of these in steps.
#[test]
fn score_functions() {
    let mut r = Random::new(29);
    for (i, (steps, operands)) in FUNCTIONS.iter().enumerate() {
        for (n, shape) in [[20, 20, 16], [37, 70, 24], [1, 300, 16], [130, 5, 8]].into_iter().enumerate() {
            for (mask, has_mask) in
                [("%m = le %t, %r", true), ("%m = le %t, %r", false), ("%m = add %bias, %zero", true)]
            {
                let dtype = ["f32", "bf16", "f16"][(i + n) % 3];
                let operands = format!("{operands}{}", if has_mask { "%m" } else { "" });
                let call = format!("{} scale=0.3 score=\"{steps}\"", operands.trim_end_matches(", "));
                compare(&text(mask, shape, dtype, &call).replace("%v,  scale", "%v scale"), &[Arch::Sm90a], &mut r);
            }
        }
    }
}

/// A sink for each head, beside masks that leave some queries no key, with one key and with so many that they are
/// split.
#[test]
fn sinks() {
    let mut r = Random::new(31);
    let masks = [MASKS[0], MASKS[3], MASKS[4], MASKS[6], MASKS[7]];
    for (i, mask) in masks.iter().enumerate() {
        let shapes = [[20, 20, 16], [37, 70, 24], [1, 2000, 16], [2, 700, 32], [130, 5, 8], [9, 1, 16], [70, 150, 64]];
        for (n, shape) in shapes.into_iter().enumerate() {
            for (how, masked) in [("", true), ("fully_masked=nan", true), ("causal=true", false), ("", false)] {
                let dtype = ["f32", "bf16", "f16"][(i + n) % 3];
                let sink = if r.next_below(2) == 0 { dtype } else { "f32" };
                let call = format!("%sink{} scale=0.3 sink=true {how}", if masked { ", %m" } else { "" });
                let text = text(mask, shape, dtype, &call);
                let text = text.replacen(") {", &format!(", %sink: {sink}[{}]) {{", r.choose(&["4,1,1", "4,S,1"])), 1);
                let text = text.replace("4,S,1", &format!("4,{},1", shape[0]));
                compare(&text, &TARGETS, &mut r);
            }
        }
    }
}
