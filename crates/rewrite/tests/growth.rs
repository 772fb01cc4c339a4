//! The work of planning is proportional to the size of the graph, wide or deep: counted, not timed.
use crate::common::{differential, graph, h200};
use kiln_rewrite::{Constraints, Options, Work, plan_counted};
use std::fmt::Write as _;

/// Text of a graph with about `n` values.
type Family = fn(usize) -> String;

const FAMILIES: [(&str, Family); 10] = [
    ("wide_concat", wide_concat),
    ("chain", chain),
    ("dense", dense),
    ("outputs", outputs),
    ("users", users),
    ("shared", shared),
    ("inputs", inputs),
    ("tree", tree),
    ("layers", layers),
    ("scans", scans),
];

/// `[exp(x[i]) for i in range(n)]` side by side.
fn wide_concat(n: usize) -> String {
    let k = n / 3;
    let mut t = format!("graph g(%x: f32[{k},8]) {{\n");
    for i in 0..k {
        let _ = writeln!(t, " %s{i} = slice %x axis=0 start={i} len=1 step=1\n %r{i} = reshape %s{i} shape=[8]");
        let _ = writeln!(t, " %e{i} = exp %r{i}");
    }
    let parts: Vec<String> = (0..k).map(|i| format!("%e{i}")).collect();
    t + &format!(" %y = concat {} axis=0\n return %y\n}}", parts.join(", "))
}
fn chain(n: usize) -> String {
    let mut t = "graph g(%v0: f32[64], %y: f32[64]) {\n".to_string();
    for i in 0..n {
        let _ = match i % 3 {
            0 => writeln!(t, " %v{} = tanh %v{i}", i + 1),
            1 => writeln!(t, " %v{} = add %v{i}, %y", i + 1),
            _ => writeln!(t, " %v{} = mul %v{i}, %y", i + 1),
        };
    }
    t + &format!(" return %v{n}\n}}")
}
/// Every layer reads all layers before it; `n` is about the number of operands.
fn dense(n: usize) -> String {
    let layers = ((2 * n) as f64).sqrt() as usize;
    let mut t = "graph g(%p0: f32[4,8]) {\n".to_string();
    for i in 0..layers {
        let parts: Vec<String> = (0..=i).map(|j| format!("%p{j}")).collect();
        let joined = if i == 0 { "%p0".to_string() } else { format!("%c{i}") };
        if i > 0 {
            let _ = writeln!(t, " {joined} = concat {} axis=1", parts.join(", "));
        }
        let _ = writeln!(t, " @w{i}: f32[8,{}] = random(seed={i}, scale=0.1)", 8 * (i + 1));
        let _ = writeln!(t, " %r{i} = relu {joined}\n %p{} = linear %r{i}, @w{i}", i + 1);
    }
    t + &format!(" return %p{layers}\n}}")
}
fn outputs(n: usize) -> String {
    let k = n / 2;
    let mut t = "graph g(%x: f32[64], %y: f32[64]) {\n".to_string();
    for i in 0..k {
        let _ = writeln!(t, " %m{i} = mul %x, {}\n %e{i} = exp %m{i}", 1. + i as f64 / 1024.);
    }
    let all: Vec<String> = (0..k).map(|i| format!("%e{i}")).collect();
    t + &format!(" return {}\n}}", all.join(", "))
}
/// One value with as many users, which are all results.
fn users(n: usize) -> String {
    let mut t = "graph g(%x: f32[64]) {\n %y = exp %x\n".to_string();
    for i in 0..n {
        let _ = writeln!(t, " %m{i} = add %y, {}", 1. + i as f64 / 1024.);
    }
    let all: Vec<String> = (0..n).map(|i| format!("%m{i}")).collect();
    t + &format!(" return {}\n}}", all.join(", "))
}
/// A binary tree of `op` over `row`.
fn paired(t: &mut String, op: &str, mut row: Vec<String>) -> String {
    let mut next = 0;
    while row.len() > 1 {
        let pairs: Vec<Vec<String>> = row.chunks(2).map(<[String]>::to_vec).collect();
        row.clear();
        for p in pairs {
            if let [a, b] = &p[..] {
                let _ = writeln!(t, " %t{next} = {op} {a}, {b}");
                row.push(format!("%t{next}"));
                next += 1;
            } else {
                row.extend(p);
            }
        }
    }
    row.remove(0)
}
/// One value with many users, whose results are reduced to one.
fn shared(n: usize) -> String {
    let mut t = "graph g(%x: f32[64]) {\n %y = exp %x\n".to_string();
    for i in 0..n / 2 {
        let _ = writeln!(t, " %m{i} = mul %y, {}", 1. + i as f64 / 1024.);
    }
    let y = paired(&mut t, "max", (0..n / 2).map(|i| format!("%m{i}")).collect());
    t + &format!(" return {y}\n}}")
}
fn inputs(n: usize) -> String {
    let k = n / 2;
    let list: Vec<String> = (0..k).map(|i| format!("%x{i}: f32[64]")).collect();
    let mut t = format!("graph g({}) {{\n %v0 = tanh %x0\n", list.join(", "));
    for i in 1..k {
        let _ = writeln!(t, " %t{i} = tanh %x{i}\n %v{i} = add %v{}, %t{i}", i - 1);
    }
    t + &format!(" return %v{}\n}}", k - 1)
}
fn tree(n: usize) -> String {
    let k = n / 2;
    let mut t = format!("graph g(%x: f32[{k},8]) {{\n");
    for i in 0..k {
        let _ = writeln!(t, " %s{i} = slice %x axis=0 start={i} len=1 step=1");
    }
    let y = paired(&mut t, "add", (0..k).map(|i| format!("%s{i}")).collect());
    t + &format!(" return {y}\n}}")
}
/// Equal layers of a transformer, without attention.
fn layers(n: usize) -> String {
    let k = n / 8;
    let mut t = "graph g(%v0: f32[16,32]) {\n @g: f32[32] = fill(1.0)\n @b: f32[32] = fill(0.5)\n".to_string();
    t += " @u: f32[64,32] = random(seed=1, scale=0.1)\n @d: f32[32,64] = random(seed=2, scale=0.1)\n";
    for i in 0..k {
        let _ = writeln!(t, " %n{i} = layer_norm %v{i}, @g, @b axes=1 affine=true eps=1e-5\n %u{i} = linear %n{i}, @u");
        let _ = writeln!(t, " %g{i} = gelu_erf %u{i}\n %d{i} = linear %g{i}, @d\n %v{} = add %v{i}, %d{i}", i + 1);
    }
    t + &format!(" return %v{k}\n}}")
}
fn scans(n: usize) -> String {
    let k = n / 4;
    let mut t = "graph g(%v0: f32[16,32]) {\n".to_string();
    for i in 0..k {
        let _ = writeln!(t, " %m{i} = reduce.max %v{i} axes=[{}]\n %s{i} = sub %v{i}, %m{i}", i % 2);
        let _ = writeln!(t, " %c{i} = scan.sum %s{i} axis={}\n %v{} = tanh %c{i}", 1 - i % 2, i + 1);
    }
    t + &format!(" return %v{k}\n}}")
}

fn work(text: &str, machine: &str) -> Work {
    let machine = kiln_machine::machine(machine).expect("built in");
    plan_counted(&graph(text), machine, &Options::default(), &Constraints::default()).expect("plans").1
}

/// A graph of four times the size may take at most this many times the work: linear growth gives 4, quadratic growth
/// 16. More than 4, as not all kernels of the smaller graph have the largest size.
const MOST: f64 = 6.5;

#[test]
fn four_times_the_graph_is_four_times_the_work() {
    let mut wrong = String::new();
    for (name, family) in FAMILIES {
        let [a, b] = [800, 3200].map(|n| work(&family(n), "h200"));
        println!("{name}: {a:?} {b:?}");
        let grown = [("regions", a.regions, b.regions), ("values", a.values, b.values), ("steps", a.steps, b.steps)];
        for (what, a, b) in grown.into_iter().filter(|(_, a, b)| *b as f64 > MOST * *a as f64) {
            let _ = writeln!(wrong, "{name}: {what} grow from {a} to {b}, {:.1} times", b as f64 / a as f64);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn no_node_takes_thousands_of_questions() {
    for (name, family) in FAMILIES {
        let n = 1000;
        let w = work(&family(n), "h200");
        assert!(w.regions < 200 * n && w.values < 20_000 * n, "{name}: {w:?}");
    }
}

#[test]
fn wide_and_deep_graphs_compute_what_they_say() {
    for (name, family) in FAMILIES {
        println!("{name}");
        differential(&graph(&family(220)));
    }
}

#[test]
fn no_kernel_has_more_parts_or_buffers_than_a_program_takes() {
    for (name, family) in FAMILIES {
        let g = graph(&family(1500));
        for options in [Options::default(), Options { fuse: false, ..Options::default() }] {
            let p = kiln_rewrite::plan(&g, &h200(), &options).expect("plans");
            for k in &p.kernels {
                let buffers = k.inputs.len() + k.outputs.len();
                assert!(buffers <= kiln_rewrite::region::MAX_BUFFERS, "{name}: {} has {buffers} buffers", k.name);
                let widest = k.body.values().filter(|v| matches!(k.body.op(*v), kiln_graph::Op::Concat { .. }));
                let parts = widest.map(|v| k.body.args(v).len()).max().unwrap_or(0);
                assert!(parts <= kiln_rewrite::concat::MOST, "{name}: {} joins {parts} parts", k.name);
            }
        }
    }
}
