//! Patterns over values, matched in every order of commutative operands.
//!
//! `(mul ?x (sigmoid ?x))`: an op by its name in the text form, with operands in order; `?x` is any value, the same
//! wherever it occurs; a number is a value all of whose elements are that number; `(reduce.max:a ?x)` binds the op
//! itself as `a`, and where `a` occurs again, the axes must be equal. On the right side of a rule a pattern is built:
//! `(:a ?x)` is the op bound as `a`, with its attributes. Operands of commutative ops match in both orders, so there is
//! no rule of commutativity and saturation stays linear.
use crate::build::Builder;
use crate::language::{ClassData, ENode, Values, op};
use egg::Id;
use kiln_graph::{DType, Op};
use std::collections::BTreeSet;

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
    /// These e-nodes.
    pub nodes: Vec<ENode>,
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
    /// The value that the pattern stands for, where its names are bound; `None` if an op is not defined on its
    /// operands.
    pub fn build(&self, b: &mut Builder, m: &Bindings) -> Option<Id> {
        let (name, bind, args) = match self {
            Pattern::Var(name) => return m.var(name),
            // A number has the type of the operand beside it.
            Pattern::Number(_) => return None,
            Pattern::Node { name, bind, args } => (name, bind, args),
        };
        let mut built = args.iter().map(|a| a.build(b, m)).collect::<Vec<Option<Id>>>();
        let dtype = built.iter().flatten().next().map(|x| b.ty(*x).dtype)?;
        for (arg, id) in args.iter().zip(&mut built) {
            if let Pattern::Number(n) = arg {
                *id = Some(b.constant(dtype, *n));
            }
        }
        let op = match bind {
            Some(bind) => m.op(bind)?.clone(),
            None => Op::named(name)?,
        };
        b.add(op, &built.into_iter().collect::<Option<Vec<Id>>>()?)
    }
    /// Names of values and of ops that occur, those of ops after a colon; and ops by name that have attributes, of
    /// which a pattern says nothing.
    pub fn names(&self, found: &mut BTreeSet<String>) {
        match self {
            Pattern::Var(name) => {
                found.insert(name.clone());
            }
            Pattern::Number(_) => {}
            Pattern::Node { name, bind, args } => {
                found.extend(bind.iter().map(|bind| format!(":{bind}")));
                let plain = |op: &Op| {
                    matches!(
                        op,
                        Op::Unary(_)
                            | Op::Binary(_)
                            | Op::Compare(_)
                            | Op::Select
                            | Op::Logaddexp
                            | Op::Dot
                            | Op::Linear
                    )
                };
                if bind.is_none() && !Op::named(name).is_some_and(|op| plain(&op)) {
                    found.insert(format!("{name} with attributes"));
                }
                args.iter().for_each(|a| a.names(found));
            }
        }
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
                b.through.push((id, t.key));
                b.nodes.push(t.clone());
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

/// Is every element the number `n`, up to the precision of the type? Short numbers like 0.5 must be equal; roots and
/// fitted constants match within the rounding error of the type.
pub fn is_number(f: &ClassData, n: f64) -> bool {
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
