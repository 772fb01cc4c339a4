//! How rules lead from a model's graph to a kernel's body (`kiln explain --proof`): each step says which form was matched and which equal
//! form it gave.
use crate::{CompileOptions, Error, Model, compile, explain::wrapped};
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
    let mut proofs = kiln_rewrite::proofs(&model.graph, options.machine(), &search, &constraints)
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
