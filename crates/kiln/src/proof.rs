//! How rules lead from a model's graph to a kernel's body (`kiln explain --proof`): each step says which form was
//! matched and which equal form it gave.
use crate::{CompileOptions, Error, Model, compile, explain::wrapped};
use kiln_graph::{Op, text};
use kiln_plan::{BufferId, BufferKind};
pub use kiln_proof_check::Certificate;
use kiln_proof_check::{FormStep, Kernel, Term};
use kiln_rewrite::certificate::Entry;
use kiln_rewrite::forms::derivation;
use serde::Serialize;

/// The steps to a kernel's body.
#[derive(Clone, Debug, Serialize)]
pub struct Proof {
    /// The kernel's name.
    pub kernel: String,
    /// In an order in which each rule matches what is there before it; empty if the body is as it was written.
    pub steps: Vec<Step>,
}

/// One application of a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The rule's name.
    pub rule: String,
    /// The strictest numerics class that allows it for values of this type.
    pub numerics: String,
    /// What it matched. Values are named as in the graph, `%12`.
    pub from: String,
    /// The equal form.
    pub to: String,
}

/// The steps to the kernel of this name, in the plan under these options.
///
/// # Errors
/// The plan has no kernel of that name, or the graph cannot be planned.
pub fn ask(model: &Model, options: &CompileOptions, kernel: &str) -> Result<Proof, Error> {
    options.check()?;
    let constraints = options.constraints.resolve(&model.graph)?;
    let search = kiln_rewrite::Options { contract: options.contract, fuse: options.fuse };
    let schedules = compile::Schedules::new(options.machine());
    let mut proofs = kiln_rewrite::proofs(&model.graph, options.machine(), &search, &constraints, schedules.target())
        .map_err(|e| compile::not_planned(model, e))?;
    let Some(steps) = proofs.remove(kernel) else {
        let all: Vec<&str> = proofs.keys().map(String::as_str).collect();
        return Err(Error::failed(
            format!("the plan has no kernel {kernel}; it has {}", all.join(", ")),
            "`kiln explain MODEL --all` lists the kernels",
        ));
    };
    let step = |s: kiln_rewrite::Step| Step {
        rule: s.rule.to_string(),
        numerics: s.numerics.name().to_string(),
        from: s.from,
        to: s.to,
    };
    Ok(Proof { kernel: kernel.to_string(), steps: steps.into_iter().map(step).collect() })
}

/// That the plan under these options computes the model's graph, as a checker reads it ([`kiln_proof_check::check`]).
///
/// # Errors
/// The graph cannot be planned.
pub fn certificate(model: &Model, options: &CompileOptions) -> Result<Certificate, Error> {
    options.check()?;
    let constraints = options.constraints.resolve(&model.graph)?;
    let search = kiln_rewrite::Options { contract: options.contract, fuse: options.fuse };
    let schedules = compile::Schedules::new(options.machine());
    let found = kiln_rewrite::certified(&model.graph, options.machine(), &search, &constraints, schedules.target())
        .map_err(|e| compile::not_planned(model, e))?;
    // Of each rule, the number of its step.
    let is_rule = |e: &Entry| matches!(e, Entry::Rule { .. });
    let rules: Vec<usize> = (found.entries.iter().enumerate()).filter(|(_, e)| is_rule(e)).map(|(i, _)| i).collect();
    let plan = &found.plan;
    let places = |buffers: &[BufferId]| buffers.iter().map(|b| b.0 as usize).collect();
    let held = |b: &kiln_plan::Buffer| {
        let op = match b.kind {
            BufferKind::Input(n) => Op::Input(n),
            BufferKind::Param(p) => Op::Param(p),
            BufferKind::Frozen | BufferKind::Temp => return None,
        };
        Some(Term { op, ty: b.ty.clone(), args: vec![] })
    };
    let kernel = |k: &kiln_plan::Kernel| Kernel {
        name: k.name.clone(),
        body: text::print(&k.body),
        inputs: places(&k.inputs),
        outputs: places(&k.outputs),
        steps: found.applications.get(&k.name).into_iter().flatten().map(|a| rules[*a]).collect(),
        form: k.form.map(|form| form.to_string()),
        form_steps: k.form.iter().flat_map(derivation).map(form_step).collect(),
    };
    Ok(Certificate {
        graph: text::print(&model.graph),
        numerics: options.contract.rules().name().to_string(),
        contract: options.contract.to_string(),
        buffers: plan.buffers.iter().map(held).collect(),
        kernels: plan.kernels.iter().map(kernel).collect(),
        outputs: places(&plan.outputs),
        steps: found.entries.into_iter().map(stated).collect(),
    })
}

/// Checks a certificate's text.
///
/// # Errors
/// The first step that does not follow.
pub fn check(certificate: &str) -> Result<kiln_proof_check::Checked, Error> {
    kiln_proof_check::check(certificate).map_err(|e| {
        Error::failed(
            format!("the plan is not shown to compute the graph: {e}"),
            "report this with the graph; `kiln run --unfused` runs the graph as it was written",
        )
    })
}

fn form_step((rule, to): (&'static str, kiln_plan::Form)) -> FormStep {
    FormStep { rule: rule.to_string(), to: to.to_string() }
}

fn stated(e: Entry) -> kiln_proof_check::Step {
    use kiln_proof_check::Step;
    match e {
        Entry::Term { op, ty, args } => Step::Term(Term { op, ty, args }),
        Entry::Value { value, term } => Step::Value { value, term },
        Entry::Same { from, to } => Step::Same { from, to },
        Entry::Rule { rule, left, vars, matched, leaves, to } => {
            let from = matched.first().copied().unwrap_or(to);
            Step::Rule { rule: rule.to_string(), left, vars, matched, leaves, from, to }
        }
        Entry::Equal { why, from, to, leaves } => Step::Equal { why: why.to_string(), from, to, leaves },
    }
}

impl Proof {
    /// The steps as text of this width.
    pub fn text(&self, width: usize) -> String {
        let Proof { kernel, steps } = self;
        if steps.is_empty() {
            return format!("{kernel} is as it was written: no rule changed it\n");
        }
        let mut t =
            wrapped("", &format!("{kernel}: steps from the graph as it was written, each between equal forms"), width);
        for (i, s) in steps.iter().enumerate() {
            t += &format!("\n{:>3}  {}, numerics {}\n", i + 1, s.rule, s.numerics);
            t += &wrapped("     from  ", &s.from, width);
            t += &wrapped("     to    ", &s.to, width);
        }
        t
    }
}
