//! Matmuls of operands that are computed in the kernel, drawn at random, in every form that fits them.
use crate::common::{compare_kernel, in_parallel, kernel};
use kiln_graph::Graph;
use kiln_lower::forms;
use kiln_machine::Arch;
use kiln_number::Random;
use kiln_plan::{Form, FormNeeds, KernelKind, Rounding};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The lines of a graph and the names of its inputs.
struct Lines {
    random: Random,
    /// The type of operands, and the one that they are computed in.
    dtype: &'static str,
    wide: &'static str,
    inputs: Vec<String>,
    lines: Vec<String>,
}

impl Lines {
    fn input(&mut self, dtype: &str, shape: &str) -> String {
        let name = format!("%i{}", self.inputs.len());
        self.inputs.push(format!("{name}: {dtype}[{shape}]"));
        name
    }
    fn op(&mut self, text: String) -> String {
        let name = format!("%v{}", self.lines.len());
        self.lines.push(format!("{name} = {text}"));
        name
    }
    fn choose<T: Clone>(&mut self, items: &[T]) -> T {
        self.random.choose(items)
    }
    /// A matrix that is computed.
    fn computed(&mut self, rows: usize, columns: usize) -> String {
        let (shape, dtype) = (format!("{rows},{columns}"), self.wide);
        let mut x = match self.choose(&["plain", "cast", "groups", "transposed"]) {
            "cast" => {
                let stored = self.choose(&["i8", "u8", if dtype == "i32" { "i16" } else { "f32" }]);
                let x = self.input(stored, &shape);
                self.op(format!("cast {x} to={dtype}"))
            }
            "groups" if columns.is_multiple_of(8) => {
                let groups = format!("{rows},{},8", columns / 8);
                let (x, scale) = (self.input("i8", &shape), self.input(dtype, &format!("{rows},{},1", columns / 8)));
                let x = self.op(format!("cast {x} to={dtype}"));
                let x = self.op(format!("reshape {x} shape=[{groups}]"));
                let x = self.op(format!("mul {x}, {scale}"));
                self.op(format!("reshape {x} shape=[{shape}]"))
            }
            "transposed" => {
                let x = self.input(dtype, &format!("{columns},{rows}"));
                let x = self.op(format!("{} {x}", if dtype == "i32" { "abs" } else { "tanh" }));
                self.op(format!("permute {x} perm=[1,0]"))
            }
            _ => self.input(dtype, &shape),
        };
        for _ in 0..1 + self.random.next_below(3) {
            let float = ["silu", "sigmoid", "neg", "mul", "add", "sub"];
            let op = self.choose(if dtype == "i32" { &float[2..] } else { &float });
            x = match op {
                "mul" | "add" | "sub" => {
                    let other = self.choose(&[shape.clone(), format!("{columns}"), format!("{rows},1")]);
                    let other = self.input(dtype, &other);
                    self.op(format!("{op} {x}, {other}"))
                }
                _ => self.op(format!("{op} {x}")),
            };
        }
        if self.dtype == dtype { x } else { self.op(format!("cast {x} to={}", self.dtype)) }
    }
}

/// A matmul of few rows, of whose operands at least one is computed.
fn case(seed: u64) -> String {
    let mut random = Random::new(seed);
    let dtype = random.choose(&["f32", "bf16", "bf16", "f16", "f16", "f64", "i32", "f8e4m3"]);
    let wide = if dtype == "f8e4m3" { "bf16" } else { dtype };
    let mut g = Lines { random, dtype, wide, inputs: vec![], lines: vec![] };
    let [m, n, k] = [g.choose(&[1, 2, 3, 7, 16]), g.choose(&[1, 8, 24, 40, 72]), g.choose(&[5, 8, 32, 64, 72, 136])];
    let op = if dtype == "i32" { "dot" } else { g.choose(&["dot", "linear"]) };
    let weight = if op == "dot" { (k, n) } else { (n, k) };
    let [left, right] = g.choose(&[[true, false], [false, true], [true, true]]);
    let a = if left { g.computed(m, k) } else { g.input(dtype, &format!("{m},{k}")) };
    let b = if right { g.computed(weight.0, weight.1) } else { g.input(dtype, &format!("{},{}", weight.0, weight.1)) };
    let mut y = g.op(format!("{op} {a}, {b}"));
    let after: &[&str] = if ["i32", "f8e4m3"].contains(&dtype) { &["bias"] } else { &["bias", "gated", "none"] };
    match g.choose(&[&["none"], after].concat()) {
        "bias" => {
            let bias = g.input(if dtype == "f8e4m3" { "f32" } else { dtype }, &format!("{n}"));
            y = g.op(format!("add {y}, {bias}"));
        }
        "gated" => {
            let c = g.input(dtype, &format!("{},{}", weight.0, weight.1));
            let c = g.op(format!("neg {c}"));
            let z = g.op(format!("{op} {a}, {c}"));
            let y_silu = g.op(format!("silu {y}"));
            y = g.op(format!("mul {y_silu}, {z}"));
        }
        _ => {}
    }
    format!("graph k({}) {{\n {}\n return {y}\n}}", g.inputs.join(", "), g.lines.join("\n "))
}

#[test]
fn every_form_computes_its_operands() {
    let seen: Mutex<BTreeSet<Form>> = Mutex::default();
    let seeds: Vec<u64> = (0..200).collect();
    in_parallel(&seeds, |&seed| {
        let text = case(seed);
        let body: Graph = text.parse().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        let inputs = kiln_graphgen::inputs(&body, seed);
        // Where each op rounds, results do not depend on what is fused.
        let k = kiln_plan::Kernel { rounding: Rounding::PerOp, ..kernel(KernelKind::Gemm, body) };
        let needs = FormNeeds::of(&k.body);
        assert!(needs.computes_operands(), "seed {seed}\n{text}");
        for target in [Arch::Sm90a, Arch::Sm80] {
            let all = forms(&k, target.machine()).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            assert!(!all.is_empty(), "seed {seed}, {target}: no form\n{text}");
            for priced in all {
                assert!(priced.form.can_fuse(needs), "seed {seed}, {target}: {} fits\n{text}", priced.form);
                let scheduled = kiln_plan::Kernel { schedule: Some(priced.schedule.clone()), ..k.clone() };
                match compare_kernel(&scheduled, &inputs, target) {
                    Ok(Ok(())) => seen.lock().expect("no panic").insert(priced.form),
                    Ok(Err(e)) => panic!("seed {seed}, {target}, `{}`: {e}\n{text}", priced.schedule),
                    Err(e) => panic!("seed {seed}, {target}, `{}`: {e}\n{text}", priced.schedule),
                };
            }
        }
    });
    let seen = seen.into_inner().expect("no panic");
    let rows = |form: &Form| form.to_string().starts_with("gemm{rows");
    assert!(seen.len() >= 10 && seen.iter().filter(|f| rows(f)).count() == 2, "{seen:?}");
}
