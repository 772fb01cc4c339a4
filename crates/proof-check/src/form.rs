//! The forms of kernels that multiply: each step from the op of a body to its form applies a rule of `rules.txt`.
//!
//! A form computes the value of its op by definition: a copy of an operand holds the same elements, slices of K are
//! summed, and the transpose of a product is the product of the transposes in the other order. What is checked is that
//! the plan's form is one of the op in the kernel's body, on operands of the types that its rules ask for, under a
//! contract that allows them. Whether the machine has an instruction is not: lowering for it fails otherwise.
use crate::certificate::{FormStep, Kernel};
use crate::rules::Rules;
use kiln_graph::{DType, Graph, Op, ValueId};

/// A form in the making.
#[derive(Clone, Default)]
struct State {
    name: &'static str,
    template: String,
    split: bool,
    dual: bool,
    block_mask: bool,
    swap: bool,
    copied: [bool; 2],
    patches: Option<String>,
}

impl State {
    fn text(&self) -> String {
        let words = [("split", self.split), ("dual", self.dual), ("block-mask", self.block_mask)];
        let words: String = words.iter().filter(|w| w.1).map(|w| format!(", {}", w.0)).collect();
        let head = format!("{}{{{}{words}}}", self.name, self.template);
        if self.name == "attention" {
            return format!("{head}(q, k, v)");
        }
        let right = self.patches.as_ref().map_or("b".to_string(), |p| format!("{p}(x)"));
        let mut operands = [if self.patches.is_some() { "w".to_string() } else { "a".to_string() }, right];
        for (operand, copied) in operands.iter_mut().zip(self.copied) {
            *operand = if copied { format!("layout({operand})") } else { operand.clone() };
        }
        if self.swap {
            operands.reverse();
        }
        let term = format!("{head}({})", operands.join(", "));
        if self.swap { format!("permute({term})") } else { term }
    }
    /// The forms that a rule gives.
    fn after(&self, adds: &[String]) -> Vec<State> {
        let words: Vec<&str> = adds.iter().map(String::as_str).collect();
        let gemm = self.name == "gemm" && !self.template.is_empty();
        let tiles = gemm && !matches!(self.template.as_str(), "rows" | "library");
        let s = self.clone();
        let one = |s: State| vec![s];
        match words[..] {
            ["gemm", t] if self.name.is_empty() => one(State { name: "gemm", template: t.into(), ..s }),
            ["patches", p] if gemm && self.patches.is_none() => one(State { patches: Some(p.into()), ..s }),
            ["attention", t] if self.name.is_empty() => one(State { name: "attention", template: t.into(), ..s }),
            ["split", t] if gemm && self.template == t && !self.split => one(State { split: true, ..s }),
            ["attention-split"] if self.name == "attention" && !self.split => one(State { split: true, ..s }),
            ["block-mask"] if self.name == "attention" => one(State { block_mask: true, ..s }),
            ["dual"] if gemm && !self.dual => one(State { dual: true, ..s }),
            ["transpose"] if tiles && !self.swap => one(State { swap: true, ..s }),
            ["layout"] if tiles => {
                let copy =
                    |i: usize| State { copied: [self.copied[0] || i == 0, self.copied[1] || i == 1], ..s.clone() };
                (0..2).filter(|i| !self.copied[*i]).map(copy).collect()
            }
            _ => vec![],
        }
    }
}

/// What a contract says of sums and of f32.
pub(crate) struct Contract<'a>(pub &'a str);

impl Contract<'_> {
    fn has(&self, word: &str) -> bool {
        self.0.split('+').any(|w| w == word)
    }
    /// Whether f32 is multiplied in tf32.
    fn tf32(&self, class: &str) -> bool {
        let loose = self.has("fast") || class == "conv" && self.has("torch");
        loose && !self.has("no_tf32")
    }
}

/// Checks the steps to a kernel's form.
pub(crate) fn check(k: &Kernel, body: &Graph, rules: &Rules, contract: &Contract) -> Result<usize, String> {
    let class = |v: &ValueId| match body.op(*v) {
        Op::Dot | Op::Linear => Some("matmul"),
        Op::Conv { .. } => Some("conv"),
        Op::Attention { .. } => Some("attention"),
        _ => None,
    };
    let Some(form) = &k.form else {
        return if k.form_steps.is_empty() { Ok(0) } else { Err("it has steps to a form, and none".into()) };
    };
    let anchors: Vec<ValueId> = body.values().filter(|v| class(v).is_some()).collect();
    let Some(anchor) = anchors.first() else { return Err(format!("it has the form `{form}`, and does not multiply")) };
    let name = class(anchor).unwrap_or_default();
    let dtype = body.args(*anchor).first().map_or(DType::F32, |a| body.dtype(*a));
    let half = matches!(dtype, DType::Bf16 | DType::F16) || dtype.is_f8();
    let single = dtype == DType::F32;
    let mut state = State::default();
    for FormStep { rule, to } in &k.form_steps {
        let wrong = |why: &str| format!("its form `{to}` by {rule}: {why}");
        let found = rules.forms.get(rule).ok_or_else(|| wrong("there is no such rule"))?;
        if !found.of.iter().any(|of| of == name) {
            return Err(wrong("the rule is for other ops"));
        }
        let holds = |premise: &String| match premise.as_str() {
            "half" => half,
            "single" => single,
            "double" => dtype == DType::F64,
            "library-types" => matches!(dtype, DType::Bf16 | DType::F16 | DType::F32 | DType::F64),
            "tf32" => single && contract.tf32(name),
            "tf32x3" => single && contract.has("splits") && !contract.has("batch_invariant"),
            "any-order" => !contract.has("batch_invariant"),
            // Facts of the machine.
            "warpgroups" | "dual-gemm" => true,
            _ => false,
        };
        if let Some(line) = found.when.iter().find(|line| !line.iter().any(holds)) {
            return Err(wrong(&format!("its premise `{}` does not hold", line.join("|"))));
        }
        state = (state.after(&found.adds).into_iter().find(|s| s.text() == *to))
            .ok_or_else(|| wrong("the rule does not give it"))?;
    }
    if state.text() != *form {
        return Err(format!("its steps lead to `{}`, not to `{form}`", state.text()));
    }
    let fits = match name {
        "matmul" => state.name == "gemm" && state.patches.is_none() && (anchors.len() == 1 || state.dual),
        "conv" => state.name == "gemm" && state.patches.is_some() && anchors.len() == 1,
        _ => state.name == "attention",
    };
    if fits { Ok(k.form_steps.len()) } else { Err(format!("`{form}` is no form of what its body multiplies")) }
}
