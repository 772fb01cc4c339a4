//! Launches of kernels written by hand become nodes with their program, in which unwritten memory is new.
use kiln_aten::program::Program;
use kiln_graph::Graph;
use serde_json::{Value, json};

const SCALE: &str = "kernel @scale(%x: ptr<f32>, %out: ptr<f32>, %n: i32, %by: f32) grid launch warps 4 {\n}";

/// A launch that reads one value and writes another.
struct Launch<'a> {
    program: &'a str,
    tensors: [usize; 2],
    updated: &'a [usize],
    out: usize,
}

impl Launch<'_> {
    fn call(&self) -> Value {
        let tensors: Vec<Value> = self.tensors.iter().map(|id| json!({"value": id})).collect();
        let args = json!([
            {"str": "scale"}, {"str": self.program}, {"str": "x,out,n,by"}, {"list": tensors}, {"ints": [1]},
            {"ints": self.updated}, {"list": [{"size": "Symbol('s0')"}]}, {"list": [{"float": 2.0}]},
            {"list": [{"size": "Symbol('s0')"}, {"int": 1}, {"int": 1}]}
        ]);
        json!({"name": "kiln::launch", "overload": "", "args": args, "outs": [self.out]})
    }
}

fn empty(out: usize) -> Value {
    json!({"name": "aten::empty_like", "overload": "", "args": [{"value": 0}], "outs": [out]})
}

/// The graph of calls on values `f32[s0]`, at size 4; value 0 is the input.
fn graph(calls: &[Value], outputs: &[usize]) -> Result<Graph, String> {
    let value = |i| json!({"dtype": "f32", "shape": ["Symbol('s0')"], "name": format!("v{i}")});
    let values: Vec<Value> = (0..8).map(value).collect();
    let outputs: Vec<Value> = outputs.iter().map(|o| json!({"value": o})).collect();
    let text = json!({
        "name": "forward", "symbols": {"s0": {"min": 0, "max": 100, "hint": 4}}, "values": values,
        "inputs": [{"name": "x", "value": 0}], "params": [], "calls": calls, "outputs": outputs
    });
    let program = Program::from_json(&text.to_string()).map_err(|e| e.to_string())?;
    Ok(program.specialise(&program.traced_sizes()).map_err(|e| e.to_string())?.graph)
}

#[test]
fn sizes_become_numbers_and_unwritten_memory_new() {
    let launch = Launch { program: SCALE, tensors: [0, 1], updated: &[], out: 2 };
    let g = graph(&[empty(1), launch.call()], &[2]).expect("converted").to_string();
    assert!(g.contains("launch scale(x=%0, out=new f32[4], n=4, by=2.0) grid=[4, 1, 1]"), "{g}");
}

#[test]
fn memory_that_was_written_is_copied() {
    let zeros = json!({"name": "aten::zeros_like", "overload": "", "args": [{"value": 0}], "outs": [1]});
    let launch = Launch { program: SCALE, tensors: [0, 1], updated: &[], out: 2 };
    let g = graph(&[zeros, launch.call()], &[2]).expect("converted").to_string();
    assert!(g.contains("out=copy %"), "{g}");
    // What a kernel adds to starts as it is, even if nobody has written it.
    let adds = Launch { updated: &[1], ..launch };
    let g = graph(&[empty(1), adds.call()], &[2]).expect("converted").to_string();
    assert!(g.contains("out=copy %"), "{g}");
}

#[test]
fn programs_of_one_name_are_told_apart() {
    let other = SCALE.replace("warps 4", "warps 8");
    let calls = [
        empty(1),
        Launch { program: SCALE, tensors: [0, 1], updated: &[], out: 2 }.call(),
        Launch { program: &other, tensors: [2, 1], updated: &[], out: 3 }.call(),
        Launch { program: &other, tensors: [3, 1], updated: &[], out: 4 }.call(),
    ];
    let g = graph(&calls, &[4]).expect("converted").to_string();
    assert_eq!(g.matches("kernel @scale(").count(), 1, "{g}");
    assert_eq!(g.matches("kernel @scale_2(").count(), 1, "{g}");
    assert_eq!(g.matches("= launch scale_2(").count(), 2, "{g}");
    assert!(kiln_graph::text::parse(&g).is_ok(), "{g}");
}

#[test]
fn what_does_not_fit_is_a_problem() {
    let mut call = Launch { program: SCALE, tensors: [0, 1], updated: &[], out: 2 }.call();
    call["args"][2] = json!({"str": "x,out"});
    let e = graph(&[empty(1), call], &[2]).expect_err("too few names");
    assert!(e.contains("2 names are given for 4 arguments"), "{e}");
}
