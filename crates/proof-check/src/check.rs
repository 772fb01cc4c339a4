//! Goes through a certificate step by step.
use crate::certificate::{Certificate, Kernel, Step};
use crate::evaluate::Evaluated;
use crate::form::{self, Contract};
use crate::normal;
use crate::pattern::{Match, build};
use crate::rules::{RULES, Rules, class};
use crate::terms::Terms;
use kiln_graph::{Graph, Op, ValueId};
use std::collections::BTreeMap;
use std::fmt;

/// What was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Kernels of the plan.
    pub kernels: usize,
    /// Steps that state something.
    pub steps: usize,
    /// Of these, by rules whose equal form is a pattern.
    pub by_pattern: usize,
    /// Of these, by evaluation of both forms.
    pub evaluated: usize,
    /// Steps from bodies to the forms of kernels that multiply.
    pub forms: usize,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |n: usize, what: &str| kiln_graph::count(n, what);
        write!(f, "{} hold for {}: ", n(self.steps, "step"), n(self.kernels, "kernel"))?;
        write!(f, "{} by a rule's patterns, {} by evaluation, ", self.by_pattern, self.evaluated)?;
        write!(f, "{} by congruence and views", self.steps - self.by_pattern - self.evaluated)?;
        if self.forms > 0 { write!(f, "; {} to forms", n(self.forms, "step")) } else { Ok(()) }
    }
}

/// The first thing that fails.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refused {
    /// The text is no certificate.
    #[error("this is no certificate: {0}")]
    Form(String),
    /// A step does not follow.
    #[error("step {step} does not follow: {why}")]
    Step {
        /// Its number.
        step: usize,
        /// What it states, and why it does not follow.
        why: String,
    },
    /// A kernel does not fit the plan's buffers.
    #[error("kernel {kernel}: {why}")]
    Kernel {
        /// Its name.
        kernel: String,
        /// What is wrong.
        why: String,
    },
    /// An output of the plan is not shown to be that of the graph.
    #[error("output {output} of the plan is not shown to equal that of the graph; {why}")]
    Output {
        /// Its number.
        output: usize,
        /// The first kernel that computes something else.
        why: String,
    },
}

/// Checks a certificate.
///
/// # Errors
/// The first thing that fails.
pub fn check(text: &str) -> Result<Checked, Refused> {
    let certificate = serde_json::from_str(text).map_err(|e| Refused::Form(e.to_string()))?;
    check_with(&Rules::parse(RULES).map_err(Refused::Form)?, &certificate)
}

/// Checks a certificate by these rules.
///
/// # Errors
/// The first thing that fails.
pub fn check_with(rules: &Rules, c: &Certificate) -> Result<Checked, Refused> {
    let graph: Graph = c.graph.parse().map_err(|e| Refused::Form(format!("the graph: {e}")))?;
    graph.verify().map_err(|e| Refused::Form(format!("the graph: {e}")))?;
    let allowed = class(&c.numerics).ok_or_else(|| Refused::Form(format!("`{}` is no numerics class", c.numerics)))?;
    let mut checker = Checker {
        rules,
        allowed,
        t: Terms::default(),
        ids: vec![],
        values: vec![],
        evaluated: Evaluated::default(),
        done: Checked::default(),
        graph: &graph,
    };
    for v in graph.values() {
        let args = graph.args(v).iter().map(|a| checker.values[a.0 as usize]).collect();
        let id = normal::add(&mut checker.t, graph.op(v).clone(), graph.ty(v).clone(), args);
        checker.values.push(id);
    }
    for (step, s) in c.steps.iter().enumerate() {
        checker.step(s).map_err(|why| Refused::Step { step, why })?;
    }
    checker.plan(c)
}

struct Checker<'a> {
    rules: &'a Rules,
    allowed: usize,
    graph: &'a Graph,
    t: Terms,
    /// Of the certificate's terms.
    ids: Vec<usize>,
    /// Of the graph's values.
    values: Vec<usize>,
    evaluated: Evaluated,
    done: Checked,
}

impl Checker<'_> {
    fn id(&self, term: usize) -> Result<usize, String> {
        self.ids.get(term).copied().ok_or_else(|| format!("there is no term {term} yet"))
    }
    fn all(&self, terms: &[usize]) -> Result<Vec<usize>, String> {
        terms.iter().map(|t| self.id(*t)).collect()
    }
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Term(term) => {
                let args = self.all(&term.args)?;
                check_type(&self.t, &term.op, &term.ty, &args, self.graph)?;
                let id = normal::add(&mut self.t, term.op.clone(), term.ty.clone(), args);
                self.ids.push(id);
                return Ok(());
            }
            Step::Value { value, term } => {
                let (v, to) = (
                    *self.values.get(*value).ok_or_else(|| format!("the graph has no value %{value}"))?,
                    self.id(*term)?,
                );
                if !self.t.same(v, to) {
                    let leaves: Vec<usize> =
                        self.t.term(v).args.iter().copied().filter(|a| !self.t.term(*a).constant).collect();
                    self.evaluated
                        .equal(&self.t, [v, to], &[], &leaves, false)
                        .map_err(|e| format!("%{value} is not the term: {e}"))?;
                    self.done.evaluated += 1;
                    self.join(v, to)?;
                }
            }
            Step::Same { from, to } => {
                let (from, to) = (self.id(*from)?, self.id(*to)?);
                if !self.t.same(from, to) {
                    return Err(format!("{} is not shown to be {}", self.show(from), self.show(to)));
                }
            }
            Step::Rule { rule, left, vars, matched, leaves, from, to } => {
                let leaves = self.all(leaves)?;
                self.rule(rule, *left, (vars, matched), leaves, [*from, *to])?;
            }
            Step::Equal { why, from, to, leaves } => {
                let (from, to, leaves) = (self.id(*from)?, self.id(*to)?, self.all(leaves)?);
                if !self.t.same(from, to) {
                    self.evaluated
                        .equal(&self.t, [from, to], &[], &leaves, false)
                        .map_err(|e| format!("{why}: {e}"))?;
                    self.done.evaluated += 1;
                    self.join(from, to)?;
                }
            }
        }
        self.done.steps += 1;
        Ok(())
    }
    fn rule(
        &mut self,
        name: &str,
        left: usize,
        (vars, matched): (&BTreeMap<String, usize>, &[usize]),
        leaves: Vec<usize>,
        [from, to]: [usize; 2],
    ) -> Result<(), String> {
        let (from, to, matched) = (self.id(from)?, self.id(to)?, self.all(matched)?);
        let vars =
            vars.iter().map(|(n, t)| Ok((n.clone(), self.id(*t)?))).collect::<Result<BTreeMap<_, _>, String>>()?;
        let rule = self.rules.values.get(name).ok_or_else(|| format!("there is no rule {name}"))?;
        let said = |e: String| format!("rule {name}: {e}");
        let dtype = self.t.ty(from).dtype;
        let half = dtype.is_float() && dtype.bytes() == 2;
        if rule.numerics.max(if half { rule.half } else { 0 }) > self.allowed {
            return Err(said("the plan's contract does not allow it on this type".into()));
        }
        let pattern = rule.left.get(left).ok_or_else(|| said(format!("it has no left pattern {left}")))?;
        let m = Match { terms: &self.t, vars: &vars, matched: &matched };
        let ops = m.ops(pattern, from).map_err(said)?;
        for premise in &rule.when {
            if !premise.holds(&self.t, &vars, &ops).map_err(said)? {
                return Err(said(format!("{premise:?} does not hold")));
            }
        }
        match &rule.right {
            Some(right) => {
                let built = build(right, &mut self.t, &vars, &ops).map_err(said)?;
                if !self.t.same(built, to) {
                    return Err(said(format!("it gives {}, not {}", self.show(built), self.show(to))));
                }
                self.done.by_pattern += 1;
            }
            None if self.t.same(from, to) => {}
            None => {
                self.evaluated.equal(&self.t, [from, to], &matched, &leaves, true).map_err(said)?;
                self.done.evaluated += 1;
            }
        }
        self.join(from, to)
    }
    fn join(&mut self, a: usize, b: usize) -> Result<(), String> {
        if self.t.ty(a) != self.t.ty(b) {
            return Err(format!("the forms have types {} and {}", self.t.ty(a), self.t.ty(b)));
        }
        self.t.join(a, b);
        normal::saturate(&mut self.t);
        Ok(())
    }
    fn show(&self, x: usize) -> String {
        let n = self.t.term(x);
        let args: Vec<String> = n.args.iter().map(|a| format!("t{a} {}", self.t.ty(*a))).collect();
        format!("{}({}): {}", n.op.name(), args.join(", "), n.ty)
    }

    /// Builds the bodies of the kernels over the plan's buffers, and compares the outputs.
    fn plan(mut self, c: &Certificate) -> Result<Checked, Refused> {
        let mut buffers: Vec<Option<usize>> = vec![];
        for term in &c.buffers {
            let Some(b) = term else {
                buffers.push(None);
                continue;
            };
            // Memory holds inputs and parameters before kernels run, and nothing else.
            let is_leaf = matches!(b.op, Op::Input(_) | Op::Param(_));
            if !is_leaf || check_type(&self.t, &b.op, &b.ty, &[], self.graph).is_err() {
                return Err(Refused::Form(format!(
                    "a buffer holds {} {}, which the graph does not have",
                    b.op.name(),
                    b.ty
                )));
            }
            buffers.push(Some(normal::add(&mut self.t, b.op.clone(), b.ty.clone(), vec![])));
        }
        let mut strange = None;
        let known = self.t.len();
        for k in &c.kernels {
            let refused = |why: String| Refused::Kernel { kernel: k.name.clone(), why };
            let outputs = self.body(k, &buffers).map_err(refused)?;
            let body: Graph = k.body.parse().map_err(|e| refused(format!("its body: {e}")))?;
            self.done.forms += form::check(k, &body, self.rules, &Contract(&c.contract)).map_err(refused)?;
            for (o, (b, term)) in k.outputs.iter().zip(outputs).enumerate() {
                if strange.is_none() && self.t.members(term).iter().all(|m| *m >= known) {
                    strange =
                        Some(format!("the first kernel with a result that is in no step is {}, output {o}", k.name));
                }
                *buffers.get_mut(*b).ok_or_else(|| refused(format!("there is no buffer {b}")))? = Some(term);
            }
            self.done.kernels += 1;
        }
        if c.outputs.len() != self.graph.outputs.len() {
            return Err(Refused::Form("the plan has another number of outputs".into()));
        }
        for (output, (b, v)) in c.outputs.iter().zip(&self.graph.outputs).enumerate() {
            let of_graph = self.values[v.0 as usize];
            let of_plan = buffers.get(*b).copied().flatten();
            if !of_plan.is_some_and(|x| self.t.same(x, of_graph)) {
                let why = strange.unwrap_or_else(|| "each kernel computes a term of the steps".into());
                return Err(Refused::Output { output, why });
            }
        }
        Ok(self.done)
    }
    fn body(&mut self, k: &Kernel, buffers: &[Option<usize>]) -> Result<Vec<usize>, String> {
        let body: Graph = k.body.parse().map_err(|e| format!("its body: {e}"))?;
        body.verify().map_err(|e| format!("its body: {e}"))?;
        if body.inputs.len() != k.inputs.len() || body.outputs.len() != k.outputs.len() || !body.params.is_empty() {
            return Err("its body has other inputs, outputs or parameters than the kernel".into());
        }
        let mut at: BTreeMap<ValueId, usize> = BTreeMap::new();
        for v in body.values() {
            let term = match body.op(v) {
                Op::Input(i) => {
                    let b = k.inputs[*i as usize];
                    let held =
                        buffers.get(b).copied().flatten().ok_or_else(|| format!("buffer {b} holds nothing yet"))?;
                    if self.t.ty(held) != body.ty(v) {
                        return Err(format!("buffer {b} is {}, not {}", self.t.ty(held), body.ty(v)));
                    }
                    held
                }
                op => {
                    let args = body.args(v).iter().map(|a| at[a]).collect();
                    normal::add(&mut self.t, op.clone(), body.ty(v).clone(), args)
                }
            };
            at.insert(v, term);
        }
        Ok(body.outputs.iter().map(|v| at[v]).collect())
    }
}

/// An error if an op on these terms does not have this type, or is a leaf that the graph does not have.
fn check_type(t: &Terms, op: &Op, ty: &kiln_graph::Type, args: &[usize], graph: &Graph) -> Result<(), String> {
    let held = |v: Option<&ValueId>| v.is_some_and(|v| graph.ty(*v) == ty);
    let fits = match op {
        Op::Input(i) => held(graph.inputs.get(*i as usize)),
        Op::Param(p) => graph.params.get(p.0 as usize).is_some_and(|p| p.ty == *ty),
        Op::Const(_) => args.is_empty() && ty.shape.is_empty(),
        Op::Iota { axis } => args.is_empty() && *axis < ty.rank(),
        Op::Result(i) => match args {
            [of] => match &t.term(*of).op {
                Op::Fallback(f) => f.results.get(*i as usize) == Some(ty),
                Op::Launch(launch) => launch.results().nth(*i as usize) == Some(ty),
                _ => false,
            },
            _ => false,
        },
        op => {
            let types: Vec<&kiln_graph::Type> = args.iter().map(|a| t.ty(*a)).collect();
            kiln_graph::infer::infer(op, &types).as_ref() == Ok(ty)
        }
    };
    if fits { Ok(()) } else { Err(format!("{} on its operands is not of type {ty}", op.name())) }
}
