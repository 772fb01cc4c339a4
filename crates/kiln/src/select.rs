//! Selectors, by which users name parts of a model: a value (`%12`), a module path, a source line, an op, a kernel of
//! the plan.
//!
//! A selector is one or more words that must all match: `encoder.layer.*.attention op:linear` is every linear in every
//! attention. A module path selects everything beneath it; `*` stands for any part of a path's segment or of an op's
//! name. An op's bare name is enough where no module has that name, and a path may omit its outer modules (such as a
//! wrapper's `model.`) where nothing else matches.
use crate::{Error, op_names::op_name, parts};
use kiln_graph::{Graph, Op, ValueId};
use kiln_plan::{Kernel, Plan};
use std::collections::BTreeSet;

/// Values that `text` selects. Kernel names are available if a plan of the graph is given.
pub fn select(text: &str, graph: &Graph, plan: Option<&Plan>) -> Result<BTreeSet<ValueId>, Error> {
    let mut found: Option<BTreeSet<ValueId>> = None;
    for word in text.split_whitespace() {
        let one = values(word, graph, plan).ok_or_else(|| unknown(word, graph, plan))?;
        found = Some(found.map_or(one.clone(), |f| f.intersection(&one).copied().collect()));
    }
    match found {
        Some(f) if !f.is_empty() => Ok(f),
        Some(_) => Err(Error::usage(format!("nothing in {} matches all of `{text}`", graph.name), "leave out a word")),
        None => Err(Error::usage("an empty name", give(plan))),
    }
}

fn give(plan: Option<&Plan>) -> &'static str {
    match plan {
        Some(_) => "give a value (%12), a module path, a source line (file.py:12), op:NAME, or a kernel of the plan",
        None => "give a value (%12), a module path, a source line (file.py:12) or op:NAME",
    }
}

/// `None` if nothing has that name.
fn values(word: &str, graph: &Graph, plan: Option<&Plan>) -> Option<BTreeSet<ValueId>> {
    let some = |set: BTreeSet<ValueId>| (!set.is_empty()).then_some(set);
    let all =
        |test: &dyn Fn(ValueId) -> bool| some(graph.values().filter(|v| !is_leaf(graph, *v) && test(*v)).collect());
    if let Some(n) = word.strip_prefix('%') {
        let v = n.parse().ok().map(ValueId).filter(|v| (v.0 as usize) < graph.len());
        return v.map(|v| BTreeSet::from([v]));
    }
    if let Some(pattern) = word.strip_prefix("op:") {
        return all(&|v| spelled(graph, v).iter().any(|name| glob(pattern, name)));
    }
    let kernels: Vec<&Kernel> = plan.iter().flat_map(|p| &p.kernels).collect();
    if let Some(i) = kernels.iter().position(|k| k.name == word) {
        return some(parts::computed(&kernels).swap_remove(i));
    }
    let line = |v| {
        let line = &graph.source(v).line;
        line == word || line.strip_suffix(word).is_some_and(|head| head.ends_with('/'))
    };
    all(&line)
        .or_else(|| all(&|v| within(word, &graph.source(v).module)))
        .or_else(|| all(&|v| spelled(graph, v).iter().any(|name| name == word)))
        .or_else(|| all(&|v| tails(&graph.source(v).module).any(|tail| within(word, tail))))
}
/// A module's path without the first of its segments, without the first two, and so on.
fn tails(module: &str) -> impl Iterator<Item = &str> {
    module.match_indices('.').map(|(at, _)| &module[at + 1..])
}

/// An op's full name and the last part of it: `reduce.mean` and `mean`.
fn spelled(graph: &Graph, v: ValueId) -> Vec<String> {
    let name = op_name(graph.op(v));
    let last = name.rsplit(['.', ':']).next().map(String::from);
    last.into_iter().filter(|l| *l != name).chain([name.clone()]).collect()
}

fn is_leaf(graph: &Graph, v: ValueId) -> bool {
    matches!(graph.op(v), Op::Input(_) | Op::Param(_) | Op::Const(_))
}

/// Whether `module` is the one that `pattern` names, or is beneath it.
fn within(pattern: &str, module: &str) -> bool {
    let (p, m): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), module.split('.').collect());
    p.len() <= m.len() && p.iter().zip(&m).all(|(p, m)| glob(p, m))
}
/// Glob match; `*` is any sequence of characters.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            let ends = text.char_indices().map(|c| c.0).chain([text.len()]);
            ends.into_iter().any(|i| glob(rest, &text[i..]))
        }),
    }
}

fn unknown(word: &str, graph: &Graph, plan: Option<&Plan>) -> Error {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for v in graph.values().filter(|v| !is_leaf(graph, *v)) {
        let source = graph.source(v);
        let parts: Vec<&str> = source.module.split('.').collect();
        names.extend((1..=parts.len()).map(|n| parts[..n].join(".")));
        names.insert(source.line.rsplit('/').next().unwrap_or_default().to_string());
        names.insert(format!("op:{}", op_name(graph.op(v))));
    }
    names.extend(plan.iter().flat_map(|p| &p.kernels).map(|k| k.name.clone()));
    names.remove("");
    let help = suggest(word, names.iter().map(String::as_str)).unwrap_or_else(|| give(plan).to_string());
    let count = match word.strip_prefix('%') {
        Some(_) => format!("; it has {}", kiln_graph::count(graph.len(), "value")),
        None => String::new(),
    };
    Error::usage(format!("nothing in {} is called `{word}`{count}", graph.name), help)
}

/// A question with the most similar names; `None` if no name is similar.
pub fn suggest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = |name: &'a str| {
        (strsim::normalized_damerau_levenshtein(word, name).max(strsim::jaro_winkler(word, name) - 0.2), name)
    };
    let mut list: Vec<(f64, &str)> = names.map(near).filter(|n| n.0 > 0.5).collect();
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let best: Vec<String> = list.iter().take(3).map(|n| format!("`{}`", n.1)).collect();
    (!best.is_empty()).then(|| format!("did you mean {}?", best.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_modules_lines_ops_and_their_combinations() {
        let g: Graph = "graph g(%x: f32[4,8]) {
            %1 = exp %x loc(\"net.layer.0.act\", \"/home/me/net.py:7\")
            %2 = tanh %1 loc(\"net.layer.0\", \"/home/me/net.py:9\")
            %3 = exp %2 loc(\"net.layer.1.act\", \"/home/me/other_net.py:7\")
            return %3
        }"
        .parse()
        .expect("valid");
        let found = |t: &str| select(t, &g, None).map(|s| s.iter().map(|v| v.0).collect::<Vec<_>>());
        for (text, want) in [
            ("%2", vec![2]),
            ("net.layer.0", vec![1, 2]),
            ("net.layer.*.act", vec![1, 3]),
            ("op:e*p", vec![1, 3]),
            ("op:exp net.layer.1", vec![3]),
            ("net.py:7", vec![1]),
            ("/home/me/net.py:9", vec![2]),
            ("tanh", vec![2]),
            ("layer.*.act", vec![1, 3]),
            ("layer.1", vec![3]),
        ] {
            assert_eq!(found(text).ok(), Some(want), "{text}");
        }
        let e = found("net.layr.0").expect_err("a typing mistake");
        assert_eq!((e.to_string().as_str(), e.exit_status()), ("nothing in g is called `net.layr.0`", 2));
        assert!(e.help().starts_with("did you mean `net.layer.0`"), "{}", e.help());
        assert!(found("%9").is_err() && found("op:exp op:tanh").is_err() && found(" ").is_err());
    }
}
