//! The allowlist of operators that may fall back to libtorch, and the check of a call against its schema. Works without
//! libtorch.
//!
//! Graphs come from files that anyone may have written, so a fallback operator must do nothing but compute its results
//! from its operands. `fallback/operators.txt` lists the operators for which this holds, with their schemas, and says
//! what is excluded and why; `scripts/fallback_operators.py` writes it. Collectives have a list and rules of their own
//! ([`collective`]). Other operators are taken only from a process that runs them itself and vouches for them
//! ([`FallbackOp::vouched`]); no file can.
pub mod collective;

use crate::{DType, FallbackOp, Type};
use collective::{COLLECTIVES, is_collective};
use serde_json::Value;
use std::{collections::HashMap, sync::LazyLock};

const LIST: &str = include_str!("fallback/operators.txt");

/// Upper bound on the layers of a recurrent network, well above any real one.
const MOST_LAYERS: u64 = 1 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tensor,
    Int,
    Float,
    Bool,
    /// Any number.
    Scalar,
    Str,
    Device,
    /// Only null is accepted.
    Generator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Any,
    /// Exactly `n` elements; also none, if the default is an empty list.
    Fixed(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Argument {
    name: &'static str,
    kind: Kind,
    /// An element may be null.
    optional: bool,
    list: Option<Length>,
    /// The whole list may be null.
    optional_list: bool,
    default: Option<&'static str>,
}

/// A precondition beyond the schema's types: libtorch crashes if it is violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    None,
    /// No operand has zero elements.
    Filled,
    /// The states and weights have the shapes that the layers and directions require.
    Recurrent,
}

/// The parameters of an operator in order: names, and defaults as its schema writes them (`[1, 1]`, `None`, `1e-05`).
/// `None` if the operator is not on the list. `name`: with its namespace, `aten::add`.
pub fn parameters(name: &str, overload: &str) -> Option<Vec<(&'static str, Option<&'static str>)>> {
    Some(listed(name, overload)?.arguments.iter().map(|a| (a.name, a.default)).collect())
}

/// The operator, if it is on one of the lists.
fn listed(name: &str, overload: &str) -> Option<&'static Operator> {
    match (name.strip_prefix("aten::"), overload) {
        (Some(name), "") => OPERATORS.get(name),
        (Some(name), overload) => OPERATORS.get(format!("{name}.{overload}").as_str()),
        (None, "") => COLLECTIVES.get(name),
        (None, _) => None,
    }
}

#[derive(Debug)]
struct Operator {
    arguments: Vec<Argument>,
    /// Number of results; `None` if the operator returns a list.
    results: Option<usize>,
    condition: Condition,
}

static OPERATORS: LazyLock<HashMap<&'static str, Operator>> = LazyLock::new(|| lines(LIST));

/// The operators of a list by what stands before their arguments.
fn lines(list: &'static str) -> HashMap<&'static str, Operator> {
    let lines = list.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    // An invalid line would only disable its operator; tests check that there are none.
    lines.filter_map(|l| Some((l.split_once('(')?.0, operator(l)?))).collect()
}

/// Parses `topk(Tensor self, int k, int dim=-1) -> (Tensor values, Tensor indices)  # filled`.
fn operator(line: &'static str) -> Option<Operator> {
    let (schema, condition) = match line.split_once("  # ") {
        Some((schema, "filled")) => (schema, Condition::Filled),
        Some((schema, "recurrent")) => (schema, Condition::Recurrent),
        Some(_) => return None,
        None => (line, Condition::None),
    };
    let (head, results) = schema.rsplit_once(" -> ")?;
    let inner = head.split_once('(')?.1.strip_suffix(')')?;
    let arguments = split(inner).into_iter().map(argument).collect::<Option<_>>()?;
    let results = match results {
        list if list.contains("[]") => None,
        several => Some(several.split(", ").count()),
    };
    Some(Operator { arguments, results, condition })
}

/// Splits at commas outside of brackets.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut depth, mut start, mut parts) = (0, 0, vec![]);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

fn argument(text: &'static str) -> Option<Argument> {
    let (ty, rest) = text.split_once(' ')?;
    let (name, default) = match rest.split_once('=') {
        Some((name, default)) => (name, Some(default)),
        None => (rest, None),
    };
    let (element, list, optional_list) = match ty.split_once('[') {
        None => (ty, None, false),
        Some((element, rest)) => {
            let (n, optional) = rest.split_once(']')?;
            let length = match n {
                // libtorch accepts a list of any length for `[1]`.
                "" | "1" => Length::Any,
                n => Length::Fixed(n.parse().ok()?),
            };
            (element, Some(length), optional == "?")
        }
    };
    let optional = element.ends_with('?');
    let kind = match element.trim_end_matches('?') {
        "Tensor" => Kind::Tensor,
        "int" => Kind::Int,
        "float" => Kind::Float,
        "bool" => Kind::Bool,
        "Scalar" => Kind::Scalar,
        "str" => Kind::Str,
        "Device" => Kind::Device,
        "Generator" => Kind::Generator,
        _ => return None,
    };
    Some(Argument { name, kind, optional, list, optional_list, default })
}

impl Argument {
    fn wanted(&self) -> String {
        let (article, one) = match self.kind {
            Kind::Tensor => ("a ", "tensor"),
            Kind::Int => ("an ", "integer"),
            Kind::Float | Kind::Scalar => ("a ", "number"),
            Kind::Bool => ("a ", "bool"),
            Kind::Str => ("a ", "string"),
            Kind::Device => ("a ", "device"),
            Kind::Generator => ("", "null"),
        };
        match self.list {
            None => format!("{article}{one}"),
            Some(Length::Any) => format!("a list of {one}s"),
            Some(Length::Fixed(n)) => format!("a list of {n} {one}s"),
        }
    }
    fn takes(&self, v: &Value, operands: &[&Type]) -> bool {
        match (self.list, v) {
            (None, _) => self.takes_one(v, operands),
            (Some(_), Value::Null) => self.optional_list,
            (Some(length), Value::Array(items)) => {
                let fits = match length {
                    Length::Any => true,
                    Length::Fixed(n) => items.len() == n || (items.is_empty() && self.default == Some("[]")),
                };
                fits && items.iter().all(|i| self.takes_one(i, operands))
            }
            // A single number stands for a list of equal numbers.
            (Some(_), _) => {
                matches!(self.kind, Kind::Int | Kind::Float) && v.is_number() && self.takes_one(v, operands)
            }
        }
    }
    fn takes_one(&self, v: &Value, operands: &[&Type]) -> bool {
        let tagged = |key: &str| v.as_object().filter(|o| o.len() == 1).and_then(|o| o.get(key));
        if v.is_null() {
            return self.optional || self.kind == Kind::Generator;
        }
        match self.kind {
            Kind::Tensor => tagged("tensor").and_then(Value::as_u64).is_some_and(|i| (i as usize) < operands.len()),
            Kind::Int => v.as_i64().is_some_and(|i| match self.name {
                "dtype" => DType::of_torch_number(i).is_some(),
                "layout" => i == 0,
                "memory_format" => (0..4).contains(&i),
                _ => true,
            }),
            Kind::Float | Kind::Scalar => {
                let text = tagged("float").and_then(Value::as_str);
                v.as_i64().is_some()
                    || v.is_f64()
                    || text.is_some_and(|t| t.parse::<f64>().is_ok())
                    || (self.kind == Kind::Scalar && v.is_boolean())
            }
            Kind::Bool => v.as_bool().is_some_and(|b| !b || self.name != "pin_memory"),
            Kind::Str => v.is_string(),
            Kind::Device => tagged("device").is_some(),
            Kind::Generator => false,
        }
    }
}

/// Checks that a graph may leave this call to libtorch: [`check_arguments`], and the number of declared results. The
/// error is a sentence that says why not.
pub fn check(op: &FallbackOp, operands: &[&Type]) -> Result<(), String> {
    if op.vouched && listed(&op.name, &op.overload).is_none() {
        return check_vouched(op, operands);
    }
    let listed = check_call(&op.name, &op.overload, &op.args, operands)?;
    match listed.results {
        Some(n) if n != op.results.len() => {
            Err(format!("{} gives {n} result(s), {} are declared", spelled(&op.name, &op.overload), op.results.len()))
        }
        _ => Ok(()),
    }
}

/// Checks a call by its parts: the operator is on the allowlist, and its arguments (JSON, as in [`FallbackOp::args`])
/// fit its schema.
pub fn check_arguments(name: &str, overload: &str, args: &str, operands: &[&Type]) -> Result<(), String> {
    check_call(name, overload, args, operands).map(|_| ())
}

/// Checks all that is known of an operator that is on no list: its arguments name the operands that there are.
fn check_vouched(op: &FallbackOp, operands: &[&Type]) -> Result<(), String> {
    let said = spelled(&op.name, &op.overload);
    let given: Vec<Value> =
        serde_json::from_str(&op.args).map_err(|e| format!("the arguments of {said} do not parse: {e}"))?;
    let mut named = vec![];
    given.iter().for_each(|v| positions(v, &mut named));
    match named.iter().find(|i| **i >= operands.len() as u64) {
        Some(i) => Err(format!("an argument of {said} is operand {i}, and there are {}", operands.len())),
        None => Ok(()),
    }
}

/// Appends the operands that an argument names.
fn positions(v: &Value, found: &mut Vec<u64>) {
    match v {
        Value::Array(items) => items.iter().for_each(|i| positions(i, found)),
        Value::Object(o) => found.extend(o.get("tensor").map(|i| i.as_u64().unwrap_or(u64::MAX))),
        _ => {}
    }
}

fn spelled(name: &str, overload: &str) -> String {
    if overload.is_empty() { format!("`{name}`") } else { format!("`{name}.{overload}`") }
}

fn check_call(name: &str, overload: &str, args: &str, operands: &[&Type]) -> Result<&'static Operator, String> {
    let said = spelled(name, overload);
    let Some(op) = listed(name, overload) else {
        return Err(format!(
            "{said} is not among the operators that a graph may leave to libtorch: those of `aten` that do nothing but \
             compute their results from their operands, and functional collectives"
        ));
    };
    let given: Vec<Value> =
        serde_json::from_str(args).map_err(|e| format!("the arguments of {said} do not parse: {e}"))?;
    if given.len() > op.arguments.len() {
        return Err(format!("{said} takes {} argument(s), {} are given", op.arguments.len(), given.len()));
    }
    for (i, a) in op.arguments.iter().enumerate() {
        match given.get(i) {
            Some(v) if !a.takes(v, operands) => {
                return Err(format!("argument `{}` of {said} is {v}, not {}", a.name, a.wanted()));
            }
            None if a.default.is_none() => return Err(format!("argument `{}` of {said} is missing", a.name)),
            _ => {}
        }
    }
    let tensors: usize = given.iter().map(tensors).sum();
    // A collective may have one operand that only orders it.
    if tensors + usize::from(is_collective(name)) < operands.len() {
        return Err(format!("{said} has {} operands, its arguments name {tensors}", operands.len()));
    }
    match op.condition {
        Condition::None => Ok(op),
        Condition::Filled if operands.iter().all(|ty| ty.count() > 0) => Ok(op),
        Condition::Filled => Err(format!("{said} cannot run in libtorch, because an operand is empty")),
        Condition::Recurrent if recurrent(name, op, &given, operands) => Ok(op),
        Condition::Recurrent => {
            Err(format!("{said} does not have the states and weights that its layers and directions require"))
        }
    }
}

/// Number of tensors that an argument refers to.
fn tensors(v: &Value) -> usize {
    match v {
        Value::Array(items) => items.iter().map(tensors).sum(),
        Value::Object(o) => usize::from(o.contains_key("tensor")),
        _ => 0,
    }
}

/// Whether states and weights have the shapes that layers and directions require, and the input's float dtype: libtorch
/// reads them unchecked. Per layer and direction the weights are `[gates·hidden, in]`, `[gates·hidden, hidden]`, two
/// biases if `has_biases`, and `[projected, hidden]` if an LSTM projects its states; states are `[layers·directions,
/// batch, hidden]`.
fn recurrent(name: &str, op: &Operator, given: &[Value], operands: &[&Type]) -> bool {
    let get = |name: &str| op.arguments.iter().position(|a| a.name == name).and_then(|i| given.get(i));
    let flag = |name: &str| get(name).and_then(Value::as_bool);
    let ty = |v: &Value| operands.get(v.get("tensor")?.as_u64()? as usize).copied();
    let types = |v: &Value| match v {
        Value::Array(items) => items.iter().map(ty).collect::<Option<Vec<&Type>>>(),
        one => Some(vec![ty(one)?]),
    };
    let all = || {
        let layers = get("num_layers")?.as_u64().filter(|n| (1..=MOST_LAYERS).contains(n))? as usize;
        let directions = 1 + usize::from(flag("bidirectional")?);
        let (biases, batch_first) = (flag("has_biases")?, flag("batch_first")?);
        let (input, states, weights) = (ty(get("input")?)?, types(get("hx")?)?, types(get("params")?)?);
        let gates = match name {
            "aten::lstm" => 4,
            "aten::gru" => 3,
            _ => 1,
        };
        let [first, second, features] = input.shape[..] else { return None };
        let (batch, cells) = (if batch_first { first } else { second }, layers * directions);
        let each = if biases { 4 } else { 2 };
        let projected = gates == 4 && weights.len() == cells * (each + 1);
        let each = each + usize::from(projected);
        if weights.len() != cells * each || states.len() != if gates == 4 { 2 } else { 1 } || !input.dtype.is_float() {
            return None;
        }
        let hidden = weights[0].shape.first()? / gates;
        let out = if projected { *weights.get(each - 1)?.shape.first()? } else { hidden };
        let is = |t: &Type, shape: &[usize]| t.dtype == input.dtype && t.shape == shape && t.count() > 0;
        let cell = |i: usize| {
            let inputs = if i < directions { features } else { out * directions };
            let w = &weights[i * each..(i + 1) * each];
            let rows = gates * hidden;
            is(w[0], &[rows, inputs])
                && is(w[1], &[rows, out])
                && (!biases || (is(w[2], &[rows]) && is(w[3], &[rows])))
                && (!projected || is(w[each - 1], &[out, hidden]))
        };
        let state = |(i, t): (usize, &&Type)| is(t, &[cells, batch, if i == 0 { out } else { hidden }]);
        Some(input.count() > 0 && (0..cells).all(cell) && states.iter().enumerate().all(state))
    };
    all().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_parses() {
        for line in LIST.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            assert!(operator(line).is_some(), "{line}");
        }
        assert!(OPERATORS.len() > 700, "{}", OPERATORS.len());
    }

    fn said(name: &str, overload: &str, args: &str) -> String {
        let ty = Type::new(DType::F32, [2, 3]);
        let op = FallbackOp {
            name: name.into(),
            overload: overload.into(),
            args: args.into(),
            results: vec![ty.clone()],
            ..FallbackOp::default()
        };
        check(&op, &[&ty]).err().unwrap_or_default()
    }

    #[test]
    fn a_process_may_vouch_for_operators_and_a_file_may_not() {
        let ty = Type::new(DType::F32, [4]);
        let call = |args: &str| FallbackOp {
            name: "mine::double".into(),
            args: args.into(),
            results: vec![ty.clone()],
            vouched: true,
            ..FallbackOp::default()
        };
        let said = |args: &str| check(&call(args), &[&ty]).err().unwrap_or_default();
        assert_eq!(said(r#"[{"tensor": 0}, [1, null], "x"]"#), "");
        assert!(
            said(r#"[[{"tensor": 1}]]"#).contains("operand 1, and there are 1"),
            "{}",
            said(r#"[[{"tensor": 1}]]"#)
        );
        assert!(said("[").contains("do not parse"));
        // What is on a list is checked by its schema all the same.
        let listed = FallbackOp { name: "aten::topk".into(), ..call(r#"[{"tensor": 0}]"#) };
        assert!(check(&listed, &[&ty]).is_err_and(|e| e.contains("argument `k` of `aten::topk` is missing")));

        let mut g = crate::Graph::new("g");
        let x = g.input(ty.clone());
        let y = g.push(crate::Op::Fallback(Box::new(call(r#"[{"tensor": 0}]"#))), ty.clone(), &[x]);
        g.outputs.push(y);
        assert!(g.verify().is_ok());
        let from_text = g.to_string().parse::<crate::Graph>().unwrap_err().to_string();
        let from_json = crate::Graph::from_json(&g.to_json().unwrap()).unwrap_err().to_string();
        for e in [from_text, from_json] {
            assert!(e.contains("`mine::double` is not among the operators"), "{e}");
        }
    }

    #[test]
    fn only_operators_that_compute_are_taken() {
        for (name, overload, args) in [
            ("aten::from_file", "", r#"["/etc/passwd", false, 6]"#),
            ("aten::save", "", r#"[{"tensor": 0}, "/tmp/x"]"#),
            ("aten::_reshape_alias", "", r#"[{"tensor": 0}, [99999], [1]]"#),
            ("aten::as_strided", "", r#"[{"tensor": 0}, [99999], [1]]"#),
            ("aten::empty", "memory_format", "[[6]]"),
            ("aten::add_", "Tensor", r#"[{"tensor": 0}, {"tensor": 0}]"#),
            ("prim::ConstantChunk", "", "[]"),
            ("torchvision::nms", "", r#"[{"tensor": 0}, {"tensor": 0}, 0.5]"#),
        ] {
            assert!(
                said(name, overload, args).contains("not among the operators"),
                "{name}: {}",
                said(name, overload, args)
            );
        }
        assert_eq!(said("aten::erfc", "", r#"[{"tensor": 0}]"#), "");
    }

    #[test]
    fn text_and_json_reject_other_operators() {
        let text = r#"graph g(%x: f32[4]) {
            %1 = fallback %x name="aten::NAME" overload="" args="[{\"tensor\":0}]" results=[f32[4]] why=""
            return %1
        }"#;
        let good: crate::Graph = text.replace("NAME", "erfc").parse().unwrap();
        let e = text.replace("NAME", "from_file").parse::<crate::Graph>().unwrap_err().to_string();
        assert!(e.contains("`aten::from_file` is not among the operators"), "{e}");
        let json = good.to_json().unwrap();
        assert!(crate::Graph::from_json(&json).is_ok());
        let e = crate::Graph::from_json(&json.replace("aten::erfc", "aten::_reshape_alias")).unwrap_err().to_string();
        assert!(e.contains("`aten::_reshape_alias` is not among the operators"), "{e}");
    }

    #[test]
    fn arguments_are_those_of_the_schema() {
        for (args, want) in [
            ("[", "do not parse"),
            (r#"[{"tensor": 0}]"#, "argument `k` of `aten::topk` is missing"),
            (r#"[{"tensor": 1}, 1]"#, r#"argument `self` of `aten::topk` is {"tensor":1}, not a tensor"#),
            (r#"[1, 1]"#, "`self`"),
            (r#"[{"tensor": 0}, "x"]"#, "argument `k` of `aten::topk` is \"x\", not an integer"),
            (r#"[{"tensor": 0}, 1, -1, 1]"#, "`largest`"),
            (r#"[{"tensor": 0}, 1, null]"#, "`dim`"),
            (r#"[{"tensor": 0}, 1, -1, true, true, 1]"#, "takes 5 argument(s), 6 are given"),
            (r#"[{"tensor": 0}, 1]"#, "gives 2 result(s), 1 are declared"),
        ] {
            let found = said("aten::topk", "", args);
            assert!(found.contains(want), "{args}: {found}");
        }
        assert!(said("aten::reflection_pad1d", "", r#"[{"tensor": 0}, [1]]"#).contains("list of 2 integers"));
        assert!(said("aten::_to_copy", "", r#"[{"tensor": 0}, 99]"#).contains("`dtype`"));
    }

    #[test]
    fn recurrent_networks_have_all_their_weights() {
        // Input and state, then weights and biases of a layer with four hidden states.
        let shapes: [&[usize]; 6] = [&[2, 5, 3], &[1, 2, 4], &[12, 3], &[12, 4], &[12], &[12]];
        let call = |shapes: &[&[usize]], layers: i64, gates: &str| {
            let types: Vec<Type> = shapes.iter().map(|s| Type::new(DType::F32, *s)).collect();
            let t = |i: usize| format!(r#"{{"tensor":{i}}}"#);
            let params: Vec<String> = (2..shapes.len()).map(t).collect();
            let args = format!("[{},{},[{}],true,{layers},0.0,false,false,true]", t(0), t(1), params.join(","));
            check_arguments(gates, "input", &args, &types.iter().collect::<Vec<_>>()).err().unwrap_or_default()
        };
        assert_eq!(call(&shapes, 1, "aten::gru"), "");
        for (shapes, layers) in [
            (&shapes[..], 2),
            (&shapes[..], 1 << 40),
            (&shapes[..2], 1),
            (&[&[2, 5, 3], &[1, 2, 4], &[12, 2], &[12, 4], &[12], &[12]], 1),
            (&[&[2, 5, 3], &[1, 2, 4], &[12, 3], &[12, 4], &[12], &[11]], 1),
            (&[&[2, 5, 3], &[1, 1, 4], &[12, 3], &[12, 4], &[12], &[12]], 1),
        ] {
            assert!(call(shapes, layers, "aten::gru").contains("states and weights that its layers"), "{shapes:?}");
        }
        assert!(call(&shapes, 1, "aten::lstm").contains("argument `hx`"), "{}", call(&shapes, 1, "aten::lstm"));
    }
}
