//! Patterns over values, matched in every order of commutative operands.
//!
//! `(mul ?x (sigmoid ?x))`: an op by its name in the text form, with operands in order; `?x` is any value, the same wherever it occurs;
//! a number is a value all of whose elements are that number; `(reduce.max:a ?x)` binds the op itself as `a`, and where `a` occurs
//! again, the axes must be equal. Operands of commutative ops match in both orders, so there is no rule of commutativity and
//! saturation stays linear.
use crate::language::{Fact, Values, op};
use egg::Id;
use kiln_graph::{DType, Op};

#[derive(Clone, Debug)]
pub enum Pattern {
    Var(String),
    Number(f64),
    Node { name: String, bind: Option<String>, args: Vec<Pattern> },
}

/// What a pattern's names are bound to.
#[derive(Clone, Default, Debug)]
pub struct Bindings {
    pub vars: Vec<(String, Id)>,
    pub ops: Vec<(String, Op)>,
    /// Classes and heads of the e-nodes that the pattern's ops matched.
    pub through: Vec<(Id, u32)>,
}
impl Bindings {
    pub fn var(&self, name: &str) -> Option<Id> {
        self.vars.iter().find(|v| v.0 == name).map(|v| v.1)
    }
    pub fn op(&self, name: &str) -> Option<&Op> {
        self.ops.iter().find(|v| v.0 == name).map(|v| &v.1)
    }
}

impl Pattern {
    /// `None` if the text is no pattern.
    pub fn parse(text: &str) -> Option<Pattern> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace();
        let p = node(&mut words)?;
        words.next().is_none().then_some(p)
    }
    /// Name of the outermost op.
    pub fn root(&self) -> &str {
        if let Pattern::Node { name, .. } = self { name } else { "" }
    }
}
fn node(words: &mut dyn Iterator<Item = &str>) -> Option<Pattern> {
    let word = words.next()?;
    item(word, words)
}
fn item(word: &str, words: &mut dyn Iterator<Item = &str>) -> Option<Pattern> {
    if word != "(" {
        return Some(match word.strip_prefix('?') {
            Some(name) => Pattern::Var(name.to_string()),
            None => Pattern::Number(word.parse().ok()?),
        });
    }
    let head = words.next()?;
    let (name, bind) = head.split_once(':').map_or((head, None), |(n, b)| (n, Some(b.to_string())));
    let mut args = vec![];
    loop {
        match words.next()? {
            ")" => return Some(Pattern::Node { name: name.to_string(), bind, args }),
            word => args.push(item(word, words)?),
        }
    }
}

/// Most matches of one pattern at one class; enough for every operand order.
const MAX_MATCHES: usize = 16;

/// All ways in which class `id` matches.
pub fn matches(g: &Values, p: &Pattern, id: Id) -> Vec<Bindings> {
    let mut out = vec![];
    class(g, p, id, Bindings::default(), &mut |b| out.push(b));
    out.truncate(MAX_MATCHES);
    out
}

fn class(g: &Values, p: &Pattern, id: Id, b: Bindings, found: &mut dyn FnMut(Bindings)) {
    let id = g.find(id);
    match p {
        Pattern::Number(n) => {
            if is_number(&g[id].data, *n) {
                found(b);
            }
        }
        Pattern::Var(name) => match b.var(name) {
            Some(known) if g.find(known) == id => found(b),
            Some(_) => {}
            None => {
                let mut b = b;
                b.vars.push((name.clone(), id));
                found(b);
            }
        },
        Pattern::Node { name, bind, args } => {
            for t in &g[id].nodes {
                let o = op(g, t);
                if o.name() != name || t.args.len() != args.len() {
                    continue;
                }
                let Some(mut b) = bound(&b, bind.as_deref(), o) else { continue };
                b.through.push((id, t.head));
                operands(g, args, &t.args, b.clone(), found);
                if commutes(o) && t.args[0] != t.args[1] {
                    operands(g, args, &[t.args[1], t.args[0]], b, found);
                }
            }
        }
    }
}
fn operands(g: &Values, ps: &[Pattern], ids: &[Id], b: Bindings, found: &mut dyn FnMut(Bindings)) {
    match (ps, ids) {
        ([p, ps @ ..], [id, ids @ ..]) => class(g, p, *id, b, &mut |b| operands(g, ps, ids, b, found)),
        _ => found(b),
    }
}
/// The bindings with `op` bound to the name, or `None` if the name is bound to an op on other axes.
fn bound(b: &Bindings, name: Option<&str>, op: &Op) -> Option<Bindings> {
    let mut b = b.clone();
    if let Some(name) = name {
        match b.op(name) {
            Some(known) if axes(known) != axes(op) => return None,
            Some(_) => {}
            None => b.ops.push((name.to_string(), op.clone())),
        }
    }
    Some(b)
}
/// The axes an op works along.
pub fn axes(op: &Op) -> Option<Vec<usize>> {
    match op {
        Op::Reduce { axes, .. } => Some(axes.clone()),
        Op::Softmax { axis } | Op::LogSoftmax { axis } | Op::Scan { axis, .. } => Some(vec![*axis]),
        _ => None,
    }
}
fn commutes(op: &Op) -> bool {
    matches!(op, Op::Binary(b) if b.commutes())
}

/// Is every element the number `n`, up to the precision of the type? Short numbers like 0.5 must be equal; roots and fitted constants
/// match within the rounding error of the type.
pub fn is_number(f: &Fact, n: f64) -> bool {
    let Some(v) = f.number() else { return false };
    let short = (n * 1024.).fract() == 0.;
    let tolerance = match f.ty.dtype {
        _ if short => 0.,
        DType::Bf16 => 4e-3,
        DType::F16 => 5e-4,
        _ => 2e-6,
    };
    (v - n).abs() <= tolerance * n.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_parse_with_their_names() {
        let p = Pattern::parse("(sub ?x (reduce.max:a (add ?x 1.5)))").expect("a pattern");
        let Pattern::Node { name, args, .. } = &p else { panic!("{p:?}") };
        assert_eq!((name.as_str(), args.len()), ("sub", 2));
        let Pattern::Node { name, bind, args } = &args[1] else { panic!("{p:?}") };
        assert_eq!((name.as_str(), bind.as_deref(), args.len()), ("reduce.max", Some("a"), 1));
        assert!(Pattern::parse("(add ?x").is_none() && Pattern::parse("add )").is_none());
    }
}
