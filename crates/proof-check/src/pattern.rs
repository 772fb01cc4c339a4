//! Patterns over terms: `(mul ?x (sigmoid ?x))`. `?x` is any value, the same wherever it occurs; a number is a value
//! all of whose elements are that number; `(reduce.max:a ?x)` binds the op as `a`, and where `a` occurs again, the
//! axes are equal. On the right `(:a ?x)` is the op bound as `a`. Operands of commutative ops match in both orders.
use crate::{normal, terms::Terms};
use kiln_graph::{DType, Op, Scalar, Type, infer::infer};
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    Var(String),
    Number(f64),
    Node { name: String, bind: Option<String>, args: Vec<Pattern> },
}

/// The axes that an op works along.
pub fn axes(op: &Op) -> Option<Vec<usize>> {
    match op {
        Op::Reduce { axes, .. } => Some(axes.clone()),
        Op::Softmax { axis } | Op::LogSoftmax { axis } | Op::Scan { axis, .. } => Some(vec![*axis]),
        _ => None,
    }
}

impl Pattern {
    /// `None` if the text is no pattern.
    pub fn parse(text: &str) -> Option<Pattern> {
        let mut words: Vec<String> =
            text.replace('(', " ( ").replace(')', " ) ").split_whitespace().rev().map(String::from).collect();
        let found = Pattern::read(&mut words)?;
        words.is_empty().then_some(found)
    }
    /// From words, the next one last.
    fn read(words: &mut Vec<String>) -> Option<Pattern> {
        let word = words.pop()?;
        if word != "(" {
            return match word.strip_prefix('?') {
                Some(name) => Some(Pattern::Var(name.to_string())),
                None => word.parse().ok().map(Pattern::Number),
            };
        }
        let head = words.pop()?;
        let (name, bind) = match head.split_once(':') {
            Some((name, bind)) => (name.to_string(), Some(bind.to_string())),
            None => (head, None),
        };
        let mut args = vec![];
        while words.last()? != ")" {
            args.push(Pattern::read(words)?);
        }
        words.pop();
        Some(Pattern::Node { name, bind, args })
    }
}

/// A match that a certificate states: its values and terms, which have to fit the pattern.
pub struct Match<'a> {
    pub terms: &'a Terms,
    pub vars: &'a BTreeMap<String, usize>,
    pub matched: &'a [usize],
}
impl Match<'_> {
    /// The ops that the pattern binds if the term `from` fits it.
    pub fn ops(&self, p: &Pattern, from: usize) -> Result<HashMap<String, Op>, String> {
        let (used, ops) = self.class(p, from, 0, &HashMap::new())?;
        if used != self.matched.len() {
            return Err(format!("{} terms are said to match, the pattern has {used} ops", self.matched.len()));
        }
        Ok(ops)
    }
    /// Number of matched terms used so far, and ops bound so far.
    fn class(
        &self,
        p: &Pattern,
        x: usize,
        used: usize,
        ops: &HashMap<String, Op>,
    ) -> Result<(usize, HashMap<String, Op>), String> {
        let t = self.terms;
        match p {
            Pattern::Var(name) => match self.vars.get(name) {
                Some(v) if t.same(*v, x) => Ok((used, ops.clone())),
                Some(_) => Err(format!("?{name} is another value")),
                None => Err(format!("?{name} is not given")),
            },
            Pattern::Number(n) => match t.number(x) {
                Some(v) if is_number(v, *n, t.ty(x).dtype) => Ok((used, ops.clone())),
                v => Err(format!("the pattern wants {n}, the value is {v:?}")),
            },
            Pattern::Node { name, bind, args } => {
                let id = *self.matched.get(used).ok_or("fewer terms are said to match than the pattern has ops")?;
                let term = t.term(id);
                if !t.same(id, x) {
                    return Err(format!("the term said to be {name} is not in the class that is matched"));
                }
                if term.op.name() != name || term.args.len() != args.len() {
                    return Err(format!("the pattern wants {name} of {} operands, not {}", args.len(), term.op.name()));
                }
                let mut ops = ops.clone();
                if let Some(bind) = bind {
                    let known = ops.entry(bind.clone()).or_insert_with(|| term.op.clone());
                    if axes(known) != axes(&term.op) {
                        return Err(format!("ops bound as {bind} work along different axes"));
                    }
                }
                let swapped: Vec<usize> = term.args.iter().rev().copied().collect();
                let commutes = matches!(&term.op, Op::Binary(b) if b.commutes());
                let first = self.operands(args, &term.args, used + 1, &ops);
                if first.is_err() && commutes { self.operands(args, &swapped, used + 1, &ops) } else { first }
            }
        }
    }
    fn operands(
        &self,
        patterns: &[Pattern],
        args: &[usize],
        used: usize,
        ops: &HashMap<String, Op>,
    ) -> Result<(usize, HashMap<String, Op>), String> {
        let start = (used, ops.clone());
        patterns.iter().zip(args).try_fold(start, |(used, ops), (p, a)| self.class(p, *a, used, &ops))
    }
}

/// The term that a pattern stands for.
pub fn build(
    p: &Pattern,
    t: &mut Terms,
    vars: &BTreeMap<String, usize>,
    ops: &HashMap<String, Op>,
) -> Result<usize, String> {
    let (name, bind, args) = match p {
        Pattern::Var(name) => return vars.get(name).copied().ok_or_else(|| format!("?{name} is not given")),
        Pattern::Number(_) => return Err("a number has the type of the operand beside it, and there is none".into()),
        Pattern::Node { name, bind, args } => (name, bind, args),
    };
    let mut built = vec![];
    for a in args {
        built.push(if let Pattern::Number(_) = a { None } else { Some(build(a, t, vars, ops)?) });
    }
    let dtype = built.iter().flatten().next().map(|x| t.ty(*x).dtype).ok_or("all operands are numbers")?;
    let mut operands = vec![];
    for (a, built) in args.iter().zip(built) {
        operands.push(match (a, built) {
            (Pattern::Number(n), _) => normal::add(t, Op::Const(Scalar::Float(*n)), Type::new(dtype, []), vec![]),
            (_, Some(x)) => x,
            (_, None) => return Err("an operand is missing".into()),
        });
    }
    let op = match bind {
        Some(bind) => ops.get(bind).cloned().ok_or_else(|| format!("no op is bound as {bind}"))?,
        None => Op::named(name).ok_or_else(|| format!("there is no op {name}"))?,
    };
    let types: Vec<&Type> = operands.iter().map(|x| t.ty(*x)).collect();
    let ty = infer(&op, &types)?;
    Ok(normal::add(t, op, ty, operands))
}

/// Whether a value is the number of a pattern: short numbers exactly, roots and fitted constants within the rounding
/// of the type.
fn is_number(v: f64, n: f64, dtype: DType) -> bool {
    let tolerance = match dtype {
        _ if (n * 1024.).fract() == 0. => 0.,
        DType::Bf16 => 4e-3,
        DType::F16 => 5e-4,
        _ => 2e-6,
    };
    (v - n).abs() <= tolerance * n.abs()
}
