//! Programs that lie: the calls of `operators.py` with random edits are converted or refused, and never panic.
//! `KILN_CASES=1000000` runs long.
use crate::{
    mutate::{Words, cases, mutate, recording},
    operators::CALLS,
};
use kiln_aten::{Program, convert::operators, extent::Sizes};
use kiln_graph::{DType, Op, Random};
use serde_json::{Value, json};

/// The program of one call, in the form of traced programs.
fn program(raw: &Value, random: &mut Random) -> Value {
    let mut program = json!({"name": "case", "params": []});
    for field in ["values", "inputs", "calls"] {
        program[field] = raw[field].clone();
    }
    let outputs = raw["outputs"].as_array().into_iter().flatten();
    program["outputs"] = outputs.map(|id| json!({"value": id})).collect();
    // Sometimes the first operand is a parameter, and a run changes it.
    if random.next_below(4) == 0
        && let Some(id) = program["inputs"].get(0).and_then(|i| i["value"].as_u64())
    {
        program["inputs"].as_array_mut().map(|all| all.remove(0));
        program["params"] = json!([id]);
        program["values"][id as usize]["name"] = "w".into();
        if random.next_below(2) == 0 {
            program["writes"] = json!([{"target": id, "value": id}]);
        }
    }
    program
}

/// Another operator in the place of the first one, sometimes in place, with its arguments or with others.
fn rename(program: &mut Value, random: &mut Random, names: &[String], words: &Words) {
    let mut name = random.choose(names);
    if random.next_below(4) == 0 {
        name.push('_');
    }
    program["calls"][0]["name"] = name.into();
    if random.next_below(2) == 0 {
        let values = program["values"].as_array().map_or(0, Vec::len);
        let argument = |random: &mut Random| match random.next_below(4) {
            0 => json!({"value": random.next_below(values)}),
            1 => json!({"int": random.next_below(6) as i64 - 3}),
            2 => {
                json!({"ints": (0..random.next_below(5)).map(|_| random.next_below(6) as i64 - 2).collect::<Vec<_>>()})
            }
            _ => random.choose(&words.objects),
        };
        let rest: Vec<Value> = (0..random.next_below(8)).map(|_| argument(random)).collect();
        program["calls"][0]["args"] = [json!({"value": 0})].into_iter().chain(rest).collect();
    }
}

/// Whether a program has a graph without libtorch's help; if not, whether it could be read.
fn graph(text: &str) -> Result<(), bool> {
    let program = Program::from_json(text).map_err(|_| false)?;
    let sizes = program.sizes(&Sizes::new(), &[]).map_err(|_| false)?;
    let made = program.specialise(&sizes).map_err(|_| true)?;
    let left = made.graph.values().any(|v| matches!(made.graph.op(v), Op::Fallback(_)));
    if left { Err(true) } else { Ok(()) }
}

#[test]
fn programs_that_lie_are_converted_or_refused() {
    let names: Vec<String> = operators().into_iter().map(str::to_string).collect();
    let texts =
        DType::ALL.iter().map(|d| d.name()).chain(["Tensor", "", "Symbol('s0')", "cuda", "reflect", "ij,jk->ik"]);
    let words = Words {
        texts: texts.map(str::to_string).chain(names.iter().cloned()).collect(),
        objects: vec![
            json!("none"),
            json!({"value": 0}),
            json!({"int": -1}),
            json!({"int": i64::MIN}),
            json!({"float": "nan"}),
            json!({"float": 1e300}),
            json!({"bool": true}),
            json!({"str": "reflect"}),
            json!({"ints": []}),
            json!({"ints": [0, 0, -1]}),
            json!({"ints": [i64::MAX, i64::MIN]}),
            json!({"list": []}),
            json!({"list": ["none", {"value": 0}]}),
            json!({"size": "Symbol('s0')"}),
            json!({"opaque": "an object"}),
        ],
    };
    let originals: Vec<Value> = serde_json::from_slice(&CALLS.json).expect("calls");
    let total = cases(40_000);
    let (compiled, refused) = recording(|panics| {
        let (mut compiled, mut refused) = (0, 0);
        for seed in 0..total as u64 {
            let mut random = Random::new(seed);
            let original = &originals[random.next_below(originals.len())];
            let mut program = program(&original["raw"], &mut random);
            if random.next_below(3) == 0 {
                rename(&mut program, &mut random, &names, &words);
            }
            for _ in 0..random.next_below(4) {
                mutate(&mut program, &mut random, &words);
            }
            let text = program.to_string();
            match panics.catch(|| text.clone(), || graph(&text)) {
                Some(Ok(())) => compiled += 1,
                Some(Err(true)) => refused += 1,
                _ => {}
            }
        }
        (compiled, refused)
    });
    // Most edits must leave a program that is read.
    assert!(compiled > total / 6 && refused > total / 6, "{compiled} converted and {refused} refused of {total}");
}
