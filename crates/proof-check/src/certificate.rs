//! The form of a certificate: JSON, with the graph and the bodies of kernels as text.
use kiln_graph::{Op, Type};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// That a plan computes a graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Certificate {
    /// The graph as it was written.
    pub graph: String,
    /// The numerics class that rules may have: exact, torch or fast.
    pub numerics: String,
    /// The contract that the plan was made under, as plans state it.
    #[serde(default)]
    pub contract: String,
    /// In the order in which they were found.
    pub steps: Vec<Step>,
    /// What each buffer of the plan holds before its kernels run, if anything.
    pub buffers: Vec<Option<Term>>,
    /// In the order in which they run.
    pub kernels: Vec<Kernel>,
    /// Buffers of the outputs.
    pub outputs: Vec<usize>,
}

/// An op on earlier terms, numbered in the order of their steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// With its attributes.
    pub op: Op,
    /// Of its result.
    pub ty: Type,
    /// Earlier terms.
    pub args: Vec<usize>,
}

/// A kernel of the plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name in the plan.
    pub name: String,
    /// Its body as a graph over its buffers.
    pub body: String,
    /// Buffers it reads, one for each input of the body.
    pub inputs: Vec<usize>,
    /// Buffers it writes, one for each output of the body.
    pub outputs: Vec<usize>,
    /// Steps that lead to its body.
    pub steps: Vec<usize>,
    /// By which template a GPU computes what it multiplies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// The rules that lead from its body to that form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub form_steps: Vec<FormStep>,
}

/// A rule of a form was applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FormStep {
    /// Its name.
    pub rule: String,
    /// The form that it gives.
    pub to: String,
}

/// What a step states.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A new term; states nothing.
    Term(Term),
    /// A value of the graph as written is this term.
    Value {
        /// Its number in the graph.
        value: usize,
        /// The term.
        term: usize,
    },
    /// A term is its normal form.
    Same {
        /// The term as it was asked for.
        from: usize,
        /// Its normal form.
        to: usize,
    },
    /// A rule was applied.
    Rule {
        /// Its name.
        rule: String,
        /// Which of its left patterns.
        left: usize,
        /// Terms of the pattern's values.
        vars: BTreeMap<String, usize>,
        /// Terms that the pattern's ops matched, the outermost first, then those of its operands in order.
        matched: Vec<usize>,
        /// Terms that the equal form is made of, if code of the rewriter builds it.
        leaves: Vec<usize>,
        /// What it matched.
        from: usize,
        /// The equal form.
        to: usize,
    },
    /// Two terms are equal for all values of some of their parts.
    Equal {
        /// What states so: `decomposition` or `join-siblings`.
        why: String,
        /// One term.
        from: usize,
        /// The other one.
        to: usize,
        /// The parts.
        leaves: Vec<usize>,
    },
}
