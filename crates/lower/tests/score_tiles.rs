//! Operands of attention's scores by warpgroups: biases and masks of every broadcast, type and place in the score.
//! Those that tensor maps describe come as tiles, others by address; results are what the graph gives.
use crate::common::{by_step, compare_kernel, kernel, lowered_by};
use kiln_graph::Graph;
use kiln_graph::Random;
use kiln_machine::Arch;
use kiln_plan::KernelKind::Attention;

/// Shapes of an operand over batch, heads, queries and keys.
const SHAPES: [&str; 9] =
    ["1,1,S,T", "B,1,S,T", "1,H,S,T", "B,H,S,T", "S,T", "B,1,1,T", "1,1,S,1", "1,H,1,1", "B,H,1,T"];

/// Operands `%x` and `%y` of types X and Y, what is computed of them, and the rest of the call. D: the type of the
/// attention.
const USES: [(&str, &str, &str, &str); 10] = [
    ("D", "", "", "%x"),
    ("bool", "", "", "%x"),
    ("D", "", "", "%x causal=true"),
    ("D", "", "", "%x score=\"div 2.0, tanh, mul 2.0, add operand\""),
    ("D", "D", "", "%x, %y score=\"mul operand, tanh, add operand\""),
    ("D", "bool", "", "%x, %y score=\"div 3.0, tanh, mul 3.0, add operand\""),
    ("f32", "", "%m = cast %x to=D", "%m"),
    ("bool", "", "%c = le %t, %r\n %m = and %c, %x", "%m"),
    ("D", "", "%c = le %t, %r\n %m = select %c, %x, -inf", "%m"),
    ("D", "f32", "%z = cast %y to=D\n %m = add %x, %z", "%m"),
];

struct Sizes {
    batch: usize,
    heads: [usize; 2],
    s: usize,
    t: usize,
    width: usize,
}

/// The graph, and how many operands a tensor map describes: rows of whole 16 bytes that differ from query to query.
fn graph(z: &Sizes, dtype: &str, use_of: (&str, &str, &str, &str), shapes: [&str; 2]) -> (String, usize) {
    let (x, y, lines, call) = use_of;
    let heads = z.heads[0] * z.heads[1];
    let operands = [("x", x, shapes[0]), ("y", y, shapes[1])].into_iter().filter(|o| !o.1.is_empty());
    let mut mapped = 0;
    let declared: Vec<String> = operands
        .map(|(name, ty, shape)| {
            let ty = if ty == "D" { dtype } else { ty };
            let bytes = if ty == "bool" {
                1
            } else if ty == "f32" {
                4
            } else {
                2
            };
            mapped += usize::from(shape.ends_with("S,T") && (z.t * bytes).is_multiple_of(16));
            format!(", %{name}: {ty}[{shape}]")
        })
        .collect();
    let text = format!(
        "graph k(%q: D[B,H,S,W], %k: D[B,K,T,W], %v: D[B,K,T,W]{}) {{
        %r = iota axis=0 : i64[S,1]\n %t = iota axis=1 : i64[1,T]\n {lines}
        %o = attention %q, %k, %v, {call} scale=0.25\n return %o\n}}",
        declared.concat()
    );
    let sizes = [("B", z.batch), ("H", heads), ("K", z.heads[0]), ("S", z.s), ("T", z.t), ("W", z.width)];
    let mut text = text.replace("D[", &format!("{dtype}[")).replace("to=D", &format!("to={dtype}"));
    for (name, n) in sizes {
        for (before, after) in [("[", ","), ("[", "]"), (",", ","), (",", "]")] {
            let to = format!("{before}{n}{after}");
            text = text.replace(&format!("{before}{name}{after}"), &to);
        }
    }
    (text, mapped)
}

/// Compares the program with the graph; gives its text.
fn check(source: &str, seed: u64) -> String {
    let g: Graph = source.parse().unwrap_or_else(|e| panic!("{e}\n{source}"));
    let inputs = kiln_graphgen::inputs(&g, seed);
    let wgmma = Some("tensor-core wgmma 128x");
    match compare_kernel(&by_step(kernel(Attention, g.clone()), Arch::Sm90a, wgmma), &inputs, Arch::Sm90a) {
        Ok(Ok(())) => lowered_by(Attention, &g, Arch::Sm90a, wgmma),
        Ok(Err(e)) => panic!("seed {seed}: {e}\n{source}"),
        Err(e) => panic!("seed {seed}: {e}\n{source}\n{}", lowered_by(Attention, &g, Arch::Sm90a, wgmma)),
    }
}

/// Descriptors of operands beside those of queries, keys and values.
fn tiles(program: &str) -> usize {
    program.matches("> readonly of [").count() - 3
}

#[test]
fn operands_of_every_broadcast() {
    let (mut found, mut all) = (0, 0);
    for seed in 0..90 {
        let mut r = Random::new(seed);
        let use_of = USES[seed as usize % USES.len()];
        let shapes = [SHAPES[seed as usize / USES.len()], SHAPES[r.next_below(SHAPES.len())]];
        // Keys in multiples of 16, of 8, or of neither.
        let t = [16 * (5 + r.next_below(16)), 8 * (9 + r.next_below(32)), 65 + r.next_below(240)][r.next_below(3)];
        let (batch, heads) = (1 + r.next_below(2), [1 + r.next_below(2), 1 + r.next_below(2)]);
        let z = Sizes { batch, heads, s: 65 + r.next_below(200), t, width: 8 * (1 + r.next_below(8)) };
        let dtype = ["bf16", "f16"][r.next_below(2)];
        let (source, mapped) = graph(&z, dtype, use_of, shapes);
        let program = check(&source, seed);
        if program.contains("roles producer") {
            assert_eq!(tiles(&program), mapped, "seed {seed}\n{source}\n{program}");
            (found, all) = (found + 1, all + mapped);
        }
    }
    assert!(found > 70 && all > 30, "{found} of 90 programs are by warpgroups, with {all} tiles");
}

/// Where shared memory has no room for all tiles, as many as fit are taken, narrow ones first.
#[test]
fn tiles_that_do_not_fit_are_read_by_address() {
    let z = |width| Sizes { batch: 1, heads: [1, 1], s: 140, t: 144, width };
    let shapes = ["1,1,S,T"; 2];
    for (width, n, taken, loaded) in [
        (64, 4, 2, false),
        (128, 4, 1, true),
        (128, 6, 0, true),
        (128, 5, 1, true),
        (128, 1, 1, false),
        (256, 0, 0, true),
        (64, 9, 2, false),
        (128, 9, 1, true),
    ] {
        let (source, _) = graph(&z(width), "bf16", USES[n], shapes);
        let program = check(&source, 7);
        assert!(program.contains("roles producer"), "{source}\n{program}");
        assert_eq!((tiles(&program), program.contains(": ptr<")), (taken, loaded), "{source}\n{program}");
    }
}

/// Iterations whose mask is known for all elements need no tile that only the others read.
#[test]
fn iterations_without_a_tile() {
    let source = "graph k(%q: bf16[1,2,256,64], %k: bf16[1,2,512,64], %v: bf16[1,2,512,64], %x: bf16[256,512]) {
        %r = iota axis=0 : i64[256,1]\n %t = iota axis=1 : i64[1,512]\n %zero = const 0.0 : bf16[]
        %c = le %t, %r\n %b = select %c, %zero, %x\n %o = attention %q, %k, %v, %b scale=0.25\n return %o\n}";
    let program = check(source, 3);
    assert_eq!(tiles(&program), 1, "{program}");
}
