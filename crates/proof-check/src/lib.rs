//! Checks that a plan computes the graph as it was written, from a certificate (`kiln explain MODEL --proof --json
//! FILE`).
//!
//! Takes: a certificate as text. Gives: how many steps were checked, and how; or the first step that fails, and why.
//! Shares no code with the rewriter: it knows graphs (`kiln-graph`), the interpreter (`kiln-interp`) and the rules as
//! text (`rules.txt`).
//!
//! A certificate lists terms (an op, its type, its operands), steps that state that two terms are equal, and the
//! plan's kernels with their bodies. The checker keeps classes of equal terms, closed under congruence, and joins two
//! of them only if it has derived the step itself:
//! - **value**: a value of the graph as written is a term. By congruence and the theory of views (`normal`); where
//!   operands are constants, by evaluation.
//! - **same**: a term is its normal form. By the theory of views, casts and broadcasts alone.
//! - **rule** whose equal form is a pattern: the matched terms fit the left pattern of that rule in `rules.txt`, its
//!   premises hold, its numerics class is one that the plan's contract allows, and the right pattern, built here, is
//!   the term that the step names.
//! - **rule** whose equal form is computed by code of the rewriter: the left pattern, the premises and the class as
//!   above; then both terms are **evaluated** on random inputs, in f64, at a sample of the elements. So is what joins
//!   matmuls of one operand, and what splits a composite op.
//! - **forms**: each step from what a body multiplies to the form that the plan states applies a rule of a form: it is
//!   for that op, its premises on types and contract hold, and it gives the form that the step names (`form`).
//! - **kernels**: bodies are built from the terms of the buffers they read. In the end each output of the plan is in
//!   the class of the graph's output.
//!
//! What remains trusted: that the rules of `rules.txt` are true (the rewriter's tests interpret them all), the
//! inference of types and the interpreter, that two forms which agree on random inputs are equal, and what follows a
//! plan: lowering and code generation. Two calls of one fallback operator on the same operands count as equal.
mod certificate;
mod check;
mod evaluate;
mod form;
mod normal;
mod pattern;
mod rules;
mod terms;

pub use certificate::{Certificate, FormStep, Kernel, Step, Term};
pub use check::{Checked, Refused, check, check_with};
pub use rules::{RULES, Rules};
