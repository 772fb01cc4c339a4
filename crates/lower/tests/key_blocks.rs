//! Masks that depend on data, with and without the kernel that finds the blocks of keys they leave: the same bits,
//! which are those of the graph within rounding.
use crate::common::{difference, in_parallel, interpreted, kernel, least, run_steps, text};
use kiln_graph::{Graph, Random, Tensor};
use kiln_lower::lower_at;
use kiln_machine::{Arch, Machine};
use kiln_plan::KernelKind::Attention;
use kiln_plan::exec::Work;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of `S` queries and `T` keys: `%dq`, `%dk` are the documents of queries and keys, `%long` says which keys are not
/// padding, `%whole` which keys a query sees, `%back` how far a head looks back, `%flag` which texts are there.
const MASKS: [&str; 22] = [
    "%m = eq %dq, %dk",
    "%a = eq %dq, %dk\n %c = le %t, %r\n %m = and %a, %c",
    "%a = ne %dq, %dk\n %c = gt %t, %r\n %o = or %a, %c\n %m = select %o, -inf, %zero",
    "%l = reshape %long shape=[2,1,1,T]\n %m = broadcast %l shape=[2,2,S,T]",
    "%l = reshape %long shape=[2,1,1,T]\n %c = le %t, %r\n %m = and %l, %c",
    "%m = and %whole, %whole",
    "%c = le %t, %r\n %m = or %whole, %c",
    "%d = sub %r, %t\n %w = lt %d, 300\n %m = and %whole, %w",
    "%n = not %whole\n %a = eq %dq, %dk\n %m = and %n, %a",
    "%a = eq %dq, %dk\n %c = gt %t, %r\n %x = select %c, -inf, %zero\n %y = select %a, %zero, -inf\n %m = add %x, %y",
    "%b = select %whole, %bias, -inf\n %c = le %t, %r\n %m = select %c, %b, -inf",
    "%a = eq %dq, %dk\n %c = le %t, %r\n %p = lt %t, 5\n %o = or %p, %a\n %m = and %o, %c",
    "%a = eq %dq, %dk\n %d = sub %r, %t\n %w = lt %d, %back\n %m = and %a, %w",
    "%a = eq %dq, %dk\n %x = select %a, %bias, -inf\n %m = select %flag, %x, -inf",
    // The least number, also for all keys of a row, which then counts all of them.
    "%a = eq %dq, %dk\n %m = select %a, %zero, LEAST",
    "%a = eq %dq, %dk\n %c = le %t, %r\n %x = select %a, %zero, LEAST\n %m = select %c, %x, LEAST",
    "%a = eq %dq, %dk\n %c = le %t, %r\n %x = select %a, %bias, LEAST\n %m = select %c, %x, -inf",
    "%w = select %whole, %zero, LEAST\n %c = le %t, %r\n %x = select %c, %zero, LEAST\n %m = add %w, %x",
    // Booleans as factors.
    "%l = reshape %long shape=[2,1,1,T]\n %f = cast %l to=D\n %n = sub 1.0, %f\n %m = mul %n, LEAST",
    // Floats in memory.
    "%m = add %floats, %zero",
    "%c = le %t, %r\n %m = select %c, %floats, -inf",
    "%c = le %t, %r\n %x = select %c, %zero, LEAST\n %m = add %floats, %x",
];

fn graph(mask: &str, [s, t, d]: [usize; 3], dtype: &str, call: &str) -> Graph {
    let text =
        "graph k(%q: D[2,2,S,W], %k: D[2,1,T,W], %v: D[2,1,T,W], %doc_q: i64[2,S], %doc_k: i64[2,T], %long: bool[2,T],
        %whole: bool[2,1,S,T], %bias: D[2,1,T], %back: i64[2,1,1], %flag: bool[2,1,1,1],
        %floats: D[2,1,S,T]) {
        %zero = const 0.0 : D[]\n %r = iota axis=0 : i64[S,1]\n %t = iota axis=1 : i64[1,T]
        %dq = reshape %doc_q shape=[2,1,S,1]\n %dk = reshape %doc_k shape=[2,1,1,T]\n MASK
        %out = attention %q, %k, %v, %m CALL\n return %out\n}";
    let text = text.replace("MASK", mask).replace("CALL", call).replace("D[", &format!("{dtype}["));
    let text = text.replace("to=D", &format!("to={dtype}")).replace("LEAST", least(dtype));
    let sizes = [("S", s), ("T", t), ("W", d)];
    let text = sizes.iter().fold(text, |text, (name, n)| text.replace(name, &n.to_string()));
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Texts of uneven lengths one after the other, queries being the last of the keys; padding from some key on; a mask in
/// memory of which most blocks are empty or full.
fn fill(inputs: &mut [Tensor], [s, t]: [usize; 2], r: &mut Random) {
    for text in 0..2 {
        let ends: Vec<usize> = (0..3).map(|_| r.next_below(t + 1)).collect();
        let document = |at: usize| ends.iter().filter(|e| at >= **e).count() as f64;
        (0..s).for_each(|i| inputs[3].set_f64(text * s + i, document((i + t).saturating_sub(s))));
        (0..t).for_each(|i| inputs[4].set_f64(text * t + i, document(i)));
        let length = r.next_below(t + 1);
        (0..t).for_each(|i| inputs[5].set_f64(text * t + i, f64::from(u8::from(i < length))));
        let [from, to] = [r.next_below(t), r.next_below(t)];
        // Tiles of queries that attend to no key.
        let none = 128 * r.next_below(2);
        for i in 0..s {
            let own = if i < s / 2 { from } else { to };
            let alone = r.next_below(8 * t);
            let seen = |j: usize| i >= none && ((own..own + t / 2).contains(&j) || j == alone);
            (0..t).for_each(|j| inputs[6].set_f64((text * s + i) * t + j, f64::from(u8::from(seen(j)))));
        }
        inputs[8].set_f64(text, r.next_below(t) as f64);
        inputs[9].set_f64(text, f64::from(u8::from(text == 0)));
    }
    let low: f64 = least(inputs[0].ty.dtype.name()).parse().unwrap_or(f64::NEG_INFINITY);
    for i in 0..2 * s * t {
        let value =
            if inputs[6].get_f64(i) != 0.0 { inputs[10].get_f64(i) } else { r.choose(&[low, low, f64::NEG_INFINITY]) };
        inputs[10].set_f64(i, value);
    }
}

/// The machine on which looking for keys costs nothing, or more than it can save; and joining slices of them likewise.
fn machine(looks: bool, slices: bool) -> Machine {
    let mut m = Arch::Sm90a.machine().clone();
    let join = if slices { 0.0 } else { 1.0 };
    (m.attention.join, m.attention.warps.beside.join, m.attention.warpgroups.beside.join) = (join, join, join);
    // Programs by warps do not look.
    m.attention.warps.beside.tile = 1.0;
    (m.rates.launch, m.rates.alu) = (0.0, if looks { 1e30 } else { 1e-30 });
    m
}

#[test]
fn blocks_that_data_empties() {
    let sizes = [[300, 600, 16], [256, 256, 64], [70, 700, 24], [20, 500, 16]];
    let cases: Vec<(usize, usize)> = (0..MASKS.len()).flat_map(|i| (0..sizes.len()).map(move |n| (i, n))).collect();
    let skipped = AtomicUsize::new(0);
    in_parallel(&cases, |&(i, n)| {
        let (mask, [s, t, d]) = (MASKS[i], sizes[n]);
        let mut r = Random::new((37 + sizes.len() * i + n) as u64);
        // The sum of a bias and f16's least number is rounded in the graph, and not in the kernel.
        let dtype = if mask.contains("add %floats, %x") { "bf16" } else { ["bf16", "f16"][(i + n) % 2] };
        let masked = ["fully_masked=zero", "fully_masked=nan"][(i / 2 + n) % 2];
        let g = graph(mask, [s, t, d], dtype, &format!("scale=0.3 {masked}"));
        let mut inputs = kiln_graphgen::inputs(&g, r.next_u64() >> 40);
        fill(&mut inputs, [s, t], &mut r);
        let want = interpreted(&g, &inputs).unwrap_or_else(|e| panic!("{e}\n{g}"));
        let k = kernel(Attention, g.clone());
        let got = [[true, false], [false, false], [true, true]].map(|[looks, slices]| {
            let steps = lower_at(&k, &machine(looks, slices)).unwrap_or_else(|e| panic!("{e}\n{g}"));
            let found = matches!(&steps.steps[0], Work::Block { code, .. } if code.name.ends_with("_keys"));
            assert!(looks || !found, "{g}\n{}", text(&steps));
            skipped.fetch_add(usize::from(found), Ordering::Relaxed);
            let joined = steps.steps.len() == 2 + usize::from(found);
            assert_eq!(joined, slices, "{g}\n{}", text(&steps));
            run_steps(&g, &steps, &inputs).unwrap_or_else(|e| panic!("{e}\n{g}\n{}", text(&steps)))
        });
        got.iter().for_each(|got| difference(&g, &want, got).unwrap_or_else(|e| panic!("{e}\n{g}")));
        let bits = |tensors: &[Tensor]| tensors.iter().map(|t| t.bytes().to_vec()).collect::<Vec<_>>();
        assert!(bits(&got[0]) == bits(&got[1]), "other bits without blocks\n{g}");
    });
    let skipped = skipped.into_inner();
    assert!(skipped >= 170, "{skipped} of 176 kernels look for keys");
}
