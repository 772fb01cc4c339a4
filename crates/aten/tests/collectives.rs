//! Collectives keep the order of the program, and none is lost, whatever becomes of their results.
use kiln_aten::program::Program;
use kiln_graph::{Graph, Op, fallback::collective::is_collective};
use serde_json::{Value, json};

fn reduce(of: usize, out: usize) -> Value {
    let args = json!([{"value": of}, {"str": "sum"}, {"str": "0"}]);
    json!({"name": "_c10d_functional::all_reduce", "overload": "", "args": args, "outs": [out]})
}

fn call(name: &str, of: usize, out: usize) -> Value {
    json!({"name": name, "overload": "", "args": [{"value": of}], "outs": [out]})
}

/// The graph of calls on values `f32[4]`; value 0 is the input, and value 1 a parameter.
fn graph(calls: &[Value], outputs: &[usize]) -> Result<Graph, String> {
    let values: Vec<Value> = (0..8).map(|i| json!({"dtype": "f32", "shape": [4], "name": format!("v{i}")})).collect();
    let outputs: Vec<Value> = outputs.iter().map(|o| json!({"value": o})).collect();
    let text = json!({
        "name": "forward", "values": values, "inputs": [{"name": "x", "value": 0}], "params": [1], "calls": calls,
        "outputs": outputs
    });
    let program = Program::from_json(&text.to_string()).map_err(|e| e.to_string())?;
    Ok(program.specialise(&Default::default()).map_err(|e| e.to_string())?.graph)
}

/// Each collective's operands, as text.
fn collectives(g: &Graph) -> Vec<(String, Vec<String>)> {
    let named = |v: &kiln_graph::ValueId| v.to_string();
    let one = |v| match g.op(v) {
        Op::Fallback(f) if is_collective(&f.name) => Some((named(&v), g.args(v).iter().map(named).collect())),
        _ => None,
    };
    g.values().filter_map(one).collect()
}

#[test]
fn independent_collectives_keep_their_order() {
    let g = graph(&[reduce(0, 2), call("aten::neg", 0, 3), reduce(3, 4)], &[4, 2]).expect("converted");
    let [(first, _), (_, operands)] = &collectives(&g)[..] else { panic!("{g}") };
    assert_eq!(operands.last(), Some(first), "{g}");
    // The last one is an output already.
    assert_eq!(g.outputs.len(), 2, "{g}");
}

#[test]
fn equal_collectives_stay_two() {
    let g = graph(&[reduce(0, 2), reduce(0, 3)], &[2, 3]).expect("converted");
    assert_eq!(collectives(&g).len(), 2, "{g}");
}

#[test]
fn a_collective_that_nothing_reads_still_runs() {
    let wait = |of, out| call("_c10d_functional::wait_tensor", of, out);
    // In the program, and after a conversion that needs the shape alone.
    let unread = graph(&[reduce(0, 2), wait(2, 3), call("aten::neg", 0, 4)], &[4]).expect("converted");
    let shape_only = graph(&[reduce(0, 2), wait(2, 3), call("aten::zeros_like", 3, 4)], &[4]).expect("converted");
    for g in [unread, shape_only] {
        let all = collectives(&g);
        assert_eq!((all.len(), g.outputs.len()), (1, 2), "{g}");
        assert_eq!(g.outputs[1].to_string(), all[0].0, "{g}");
    }
}

#[test]
fn collectives_of_parameters_are_not_folded() {
    let g = graph(&[reduce(1, 2)], &[2]).expect("converted");
    assert_eq!(collectives(&g).len(), 1, "{g}");
}

#[test]
fn waiting_is_the_identity() {
    let g = graph(&[reduce(0, 2), call("_c10d_functional::wait_tensor", 2, 3)], &[3]).expect("converted");
    assert_eq!(g.outputs[0].to_string(), collectives(&g)[0].0, "{g}");
    assert_eq!(g.outputs.len(), 1, "{g}");
}

#[test]
fn forms_that_write_an_operand_are_refused() {
    let mut write = reduce(0, 2);
    write["name"] = json!("_c10d_functional::all_reduce_");
    let e = graph(&[write], &[2]).expect_err("it writes its operand");
    assert!(e.contains("`_c10d_functional::all_reduce_`") && e.contains("write this part with other operators"), "{e}");
}
