//! Forms of matmuls, convolutions and attention in the e-graph: by which templates a GPU can compute them.
//!
//! Takes: a saturated e-graph and a machine. Adds to the class of each such value one e-node for each template
//! ([`Template`](crate::language::Template)) that computes it. Operands of a template are arrays: a class that holds
//! the operand as it is stored and, where a rule says so, as a copy in the layout that the template reads
//! (`layout(a)`); so n templates and two arrays for each of two operands are n e-nodes and four more, not 4 n. A GEMM
//! of operands in the other order is in a class of its own, and the value is its transpose. Sizes of tiles, stages and
//! slices are no part of a form: the price of a form is that of its cheapest schedule.
//!
//! [`RULES`] are data, as all rules are: a name, premises on the machine, the contract and the types, an example and a
//! near miss. They match ops alone and give nothing that another rule matches, so one pass after saturation finds all.
mod add;
mod read;

pub use add::add;
pub use read::of;

use kiln_graph::ops::Class;
use kiln_plan::Engine;
use kiln_plan::form::{AttentionForm, Form, GemmForm, GemmTemplate, Patches, Storage};
use std::fmt;

/// A premise of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Premise {
    /// A machine with instructions of warpgroups.
    Warpgroups,
    /// Operands of bf16, f16 or 8-bit floats.
    Half,
    /// Operands of f32.
    Single,
    /// Operands of f64.
    Double,
    /// Operands of types that GPU libraries multiply: bf16, f16, f32 and f64.
    LibraryTypes,
    /// The contract computes f32 in tf32.
    Tf32,
    /// The contract computes f32 as three matmuls in tf32.
    Tf32x3,
    /// The order of a sum may depend on the number of rows.
    AnyOrder,
    /// The machine has dual GEMMs of this type.
    DualGemm,
    /// One of these holds.
    Any(&'static [Premise]),
}
use Premise::*;

/// What a rule adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adds {
    /// A GEMM by this template.
    Gemm(GemmTemplate),
    /// The same in slices of K.
    Split(GemmTemplate),
    /// An operand as a copy.
    Layout,
    /// The transpose of a GEMM of operands in the other order.
    Transpose,
    /// A launch for two matmuls, or for the halves of one.
    Dual,
    /// A convolution's patches.
    Patches(Patches),
    /// Attention by this engine.
    Attention(Engine),
    /// The same in slices of the keys.
    AttentionSplit,
    /// The same of the blocks of keys that a mask leaves.
    BlockMask,
}

/// A rule that adds forms.
pub struct Rule {
    pub name: &'static str,
    /// The ops it applies to.
    pub of: &'static [Class],
    /// All must hold.
    pub when: &'static [Premise],
    pub adds: Adds,
    /// A target, a contract, and a graph on which it applies.
    pub example: Case,
    /// The same, on which it does not.
    pub near_miss: Case,
}

/// A target, a contract as in a plan's text, and a graph from the parenthesis of its inputs on.
pub struct Case(pub &'static str, pub &'static str, pub &'static str);

const MATMUL: &[Class] = &[Class::Matmul];
const GEMM: &[Class] = &[Class::Matmul, Class::Conv];
const CONV: &[Class] = &[Class::Conv];
const ATTENTION: &[Class] = &[Class::Attention];

const HALF: &str = "(%x: bf16[64,64], %z: bf16[64,64]) {\n %y = dot %x, %z\n return %y\n}";
const HALVES: &str = "(%x: bf16[64,64], %z: bf16[64,64]) {
 %d = dot %x, %z\n %a = slice %d axis=1 start=0 len=32 step=1\n %b = slice %d axis=1 start=32 len=32 step=1
 %y = mul %a, %b\n return %y\n}";
const SINGLE: &str = "(%x: f32[64,64], %z: f32[64,64]) {\n %y = dot %x, %z\n return %y\n}";
const DOUBLE: &str = "(%x: f64[64,64], %z: f64[64,64]) {\n %y = dot %x, %z\n return %y\n}";
const INTEGER: &str = "(%x: i32[64,64], %z: i32[64,64]) {\n %y = dot %x, %z\n return %y\n}";
const CONVOLUTION: &str = "(%x: bf16[2,16,8,8], %w: bf16[16,16,3,3]) {
 %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]\n return %y\n}";
const SINGLE_ATTENTION: &str = "(%q: f32[2,64,64], %k: f32[2,64,64], %v: f32[2,64,64]) {\n %y = attention %q, %k, %v causal=false scale=0.125\n return %y\n}";
const HALF_ATTENTION: &str = "(%q: bf16[2,64,64], %k: bf16[2,64,64], %v: bf16[2,64,64]) {\n %y = attention %q, %k, %v causal=false scale=0.125\n return %y\n}";
const HOPPER: &str = "sm_90a";
const AMPERE: &str = "sm_80";
const TORCH: &str = "torch";

/// Every rule. Rules that change a form come after those that give one.
pub const RULES: &[Rule] = &[
    Rule {
        name: "gemm-by-warpgroups",
        of: GEMM,
        when: &[Warpgroups, Any(&[Half, Tf32])],
        adds: Adds::Gemm(GemmTemplate::Tiles(Engine::Wgmma)),
        example: Case(HOPPER, TORCH, HALF),
        near_miss: Case(AMPERE, TORCH, HALF),
    },
    Rule {
        name: "gemm-by-warpgroups-3xtf32",
        of: GEMM,
        when: &[Warpgroups, Tf32x3],
        adds: Adds::Gemm(GemmTemplate::Tiles(Engine::Wgmma3xTf32)),
        example: Case(HOPPER, "torch+splits", SINGLE),
        near_miss: Case(HOPPER, TORCH, SINGLE),
    },
    Rule {
        name: "gemm-by-warps",
        of: GEMM,
        when: &[Any(&[Half, Tf32])],
        adds: Adds::Gemm(GemmTemplate::Tiles(Engine::Mma)),
        example: Case(AMPERE, TORCH, HALF),
        near_miss: Case(AMPERE, TORCH, SINGLE),
    },
    Rule {
        name: "gemm-by-fmas",
        of: GEMM,
        when: &[Any(&[Single, Double])],
        adds: Adds::Gemm(GemmTemplate::Tiles(Engine::Fma)),
        example: Case(HOPPER, TORCH, SINGLE),
        near_miss: Case(HOPPER, TORCH, INTEGER),
    },
    Rule {
        name: "gemm-by-rows",
        of: GEMM,
        when: &[],
        adds: Adds::Gemm(GemmTemplate::Rows),
        example: Case(HOPPER, TORCH, INTEGER),
        near_miss: Case(HOPPER, TORCH, HALF_ATTENTION),
    },
    Rule {
        name: "gemm-by-library",
        of: MATMUL,
        when: &[LibraryTypes],
        adds: Adds::Gemm(GemmTemplate::Library),
        example: Case(HOPPER, TORCH, DOUBLE),
        near_miss: Case(HOPPER, TORCH, INTEGER),
    },
    Rule {
        name: "gemm-in-slices",
        of: GEMM,
        when: &[Warpgroups, AnyOrder, Any(&[Half, Tf32])],
        adds: Adds::Split(GemmTemplate::Tiles(Engine::Wgmma)),
        example: Case(HOPPER, TORCH, HALF),
        near_miss: Case(HOPPER, "torch+batch_invariant", HALF),
    },
    Rule {
        name: "gemm-in-slices-3xtf32",
        of: GEMM,
        when: &[Warpgroups, AnyOrder, Tf32x3],
        adds: Adds::Split(GemmTemplate::Tiles(Engine::Wgmma3xTf32)),
        example: Case(HOPPER, "torch+splits", SINGLE),
        near_miss: Case(HOPPER, "fast", SINGLE),
    },
    Rule {
        name: "gemm-in-slices-by-warps",
        of: GEMM,
        when: &[AnyOrder, Any(&[Half, Tf32])],
        adds: Adds::Split(GemmTemplate::Tiles(Engine::Mma)),
        example: Case(AMPERE, TORCH, HALF),
        near_miss: Case(AMPERE, "torch+batch_invariant", HALF),
    },
    Rule {
        name: "gemm-in-slices-of-fmas",
        of: GEMM,
        when: &[Warpgroups, AnyOrder, Single],
        adds: Adds::Split(GemmTemplate::Tiles(Engine::Fma)),
        example: Case(HOPPER, TORCH, SINGLE),
        near_miss: Case(HOPPER, TORCH, HALF),
    },
    Rule {
        name: "copied-operand",
        of: GEMM,
        when: &[Warpgroups, Any(&[Half, Single])],
        adds: Adds::Layout,
        example: Case(HOPPER, TORCH, HALF),
        near_miss: Case(AMPERE, TORCH, HALF),
    },
    Rule {
        name: "operands-swapped",
        of: GEMM,
        when: &[Warpgroups, AnyOrder, Any(&[Half, Tf32])],
        adds: Adds::Transpose,
        example: Case(HOPPER, "fast", SINGLE),
        near_miss: Case(HOPPER, TORCH, SINGLE),
    },
    Rule {
        name: "dual-gemm",
        of: MATMUL,
        when: &[DualGemm],
        adds: Adds::Dual,
        example: Case(HOPPER, TORCH, HALVES),
        near_miss: Case(HOPPER, TORCH, HALF),
    },
    Rule {
        name: "convolution-of-patches",
        of: CONV,
        when: &[],
        adds: Adds::Patches(Patches::Im2col),
        example: Case(AMPERE, TORCH, CONVOLUTION),
        near_miss: Case(AMPERE, TORCH, HALF),
    },
    Rule {
        name: "convolution-of-windows",
        of: CONV,
        when: &[Warpgroups],
        adds: Adds::Patches(Patches::Windows),
        example: Case(HOPPER, TORCH, CONVOLUTION),
        near_miss: Case(AMPERE, TORCH, CONVOLUTION),
    },
    Rule {
        name: "attention-by-warpgroups",
        of: ATTENTION,
        when: &[Warpgroups, Half],
        adds: Adds::Attention(Engine::Wgmma),
        example: Case(HOPPER, TORCH, HALF_ATTENTION),
        near_miss: Case(AMPERE, TORCH, HALF_ATTENTION),
    },
    Rule {
        name: "attention-by-warps",
        of: ATTENTION,
        when: &[Half],
        adds: Adds::Attention(Engine::Mma),
        example: Case(AMPERE, TORCH, HALF_ATTENTION),
        near_miss: Case(AMPERE, TORCH, SINGLE_ATTENTION),
    },
    Rule {
        name: "attention-by-warps-3xtf32",
        of: ATTENTION,
        when: &[Single, Tf32x3],
        adds: Adds::Attention(Engine::Mma3xTf32),
        example: Case(HOPPER, "torch+splits", SINGLE_ATTENTION),
        near_miss: Case(HOPPER, TORCH, HALF_ATTENTION),
    },
    Rule {
        name: "attention-by-fmas",
        of: ATTENTION,
        when: &[Single],
        adds: Adds::Attention(Engine::Fma),
        example: Case(HOPPER, TORCH, SINGLE_ATTENTION),
        near_miss: Case(HOPPER, TORCH, HALF_ATTENTION),
    },
    Rule {
        name: "attention-in-slices",
        of: ATTENTION,
        when: &[],
        adds: Adds::AttentionSplit,
        example: Case(HOPPER, TORCH, HALF_ATTENTION),
        near_miss: Case(HOPPER, TORCH, HALF),
    },
    Rule {
        name: "attention-by-block-mask",
        of: ATTENTION,
        when: &[Warpgroups, Half],
        adds: Adds::BlockMask,
        example: Case(HOPPER, TORCH, HALF_ATTENTION),
        near_miss: Case(AMPERE, TORCH, HALF_ATTENTION),
    },
];

/// The rules as text, for checkers that share no code with them.
pub fn text() -> String {
    let mut t = String::new();
    for r in RULES {
        let of: Vec<&str> = r.of.iter().map(|class| class_name(*class)).collect();
        t += &format!("\nform {}\nof {}\n", r.name, of.join(" "));
        r.when.iter().for_each(|p| t += &format!("when {p}\n"));
        t += &format!("adds {}\n", r.adds);
    }
    t
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Conv => "conv",
        Class::Attention => "attention",
        _ => "matmul",
    }
}

impl fmt::Display for Premise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warpgroups => f.write_str("warpgroups"),
            Half => f.write_str("half"),
            Single => f.write_str("single"),
            Double => f.write_str("double"),
            LibraryTypes => f.write_str("library-types"),
            Tf32 => f.write_str("tf32"),
            Tf32x3 => f.write_str("tf32x3"),
            AnyOrder => f.write_str("any-order"),
            DualGemm => f.write_str("dual-gemm"),
            Any(all) => f.write_str(&all.iter().map(Premise::to_string).collect::<Vec<_>>().join("|")),
        }
    }
}
impl fmt::Display for Adds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Adds::Gemm(template) => write!(f, "gemm {template}"),
            Adds::Split(template) => write!(f, "split {template}"),
            Adds::Layout => f.write_str("layout"),
            Adds::Transpose => f.write_str("transpose"),
            Adds::Dual => f.write_str("dual"),
            Adds::Patches(Patches::Im2col) => f.write_str("patches im2col"),
            Adds::Patches(Patches::Windows) => f.write_str("patches windows"),
            Adds::Attention(engine) => write!(f, "attention {}", GemmTemplate::Tiles(*engine)),
            Adds::AttentionSplit => f.write_str("attention-split"),
            Adds::BlockMask => f.write_str("block-mask"),
        }
    }
}

/// The rules that lead to a form, in order, each with the form that it gives.
pub fn derivation(form: &Form) -> Vec<(&'static str, Form)> {
    let named = |adds: Adds| RULES.iter().find(|r| r.adds == adds).map(|r| r.name);
    let mut steps = vec![];
    match *form {
        Form::Attention(a) => {
            let mut now = AttentionForm { split: false, block_mask: false, ..a };
            steps.push((named(Adds::Attention(a.engine)), Form::Attention(now)));
            if a.split {
                now.split = true;
                steps.push((named(Adds::AttentionSplit), Form::Attention(now)));
            }
            if a.block_mask {
                now.block_mask = true;
                steps.push((named(Adds::BlockMask), Form::Attention(now)));
            }
        }
        Form::Gemm(f) => {
            let mut now = GemmForm::new(f.template);
            steps.push((named(Adds::Gemm(f.template)), Form::Gemm(now)));
            if let Some(patches) = f.patches {
                now.patches = Some(patches);
                steps.push((named(Adds::Patches(patches)), Form::Gemm(now)));
            }
            for (at, storage) in f.operands.into_iter().enumerate().filter(|o| o.1 == Storage::Copied) {
                now.operands[at] = storage;
                steps.push((named(Adds::Layout), Form::Gemm(now)));
            }
            if f.dual {
                now.dual = true;
                steps.push((named(Adds::Dual), Form::Gemm(now)));
            }
            if f.swap {
                now.swap = true;
                steps.push((named(Adds::Transpose), Form::Gemm(now)));
            }
            if f.split {
                now.split = true;
                steps.push((named(Adds::Split(f.template)), Form::Gemm(now)));
            }
        }
    }
    steps.into_iter().filter_map(|(name, form)| Some((name?, form))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::language::{ENode, template};
    use crate::rules::saturate;
    use egg::Id;
    use kiln_graph::Graph;
    use kiln_machine::Arch;
    use kiln_plan::Hardware;
    use std::collections::BTreeSet;

    /// The rules that lead to the forms of a case.
    fn applied(case: &Case) -> BTreeSet<&'static str> {
        let Case(target, contract, text) = case;
        let g: Graph = format!("graph g{text}").parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let arch = Arch::ALL.into_iter().find(|a| a.name() == *target).expect("a target");
        let m = Hardware { machine: arch.machine(), contract: contract.parse().expect("a contract") };
        let mut s = saturate(Builder::import(&g).0, m.contract.rules());
        add(&mut s, &m);
        let classes: Vec<(Id, ENode)> = (s.builder.g.classes())
            .flat_map(|c| c.nodes.iter().filter(|t| template(&s.builder.g, t).is_none()).map(|t| (c.id, t.clone())))
            .collect();
        let forms = classes.iter().flat_map(|(class, t)| of(&s, *class, t));
        forms.flat_map(|f| derivation(&f)).map(|step| step.0).collect()
    }

    #[test]
    fn every_rule_applies_to_its_example_and_not_to_its_near_miss() {
        for r in RULES {
            assert!(applied(&r.example).contains(r.name), "{} does not apply to its example", r.name);
            assert!(!applied(&r.near_miss).contains(r.name), "{} applies to its near miss", r.name);
        }
    }

    #[test]
    fn a_derivation_ends_in_its_form() {
        for text in [
            "gemm{wgmma, split}(layout(a), b)",
            "permute(gemm{wgmma, split}(b, layout(a)))",
            "gemm{rows, dual}(a, b)",
            "gemm{wgmma}(w, windows(x))",
            "gemm{mma}(w, im2col(x))",
            "gemm{mma, split}(w, im2col(x))",
            "attention{wgmma, split, block-mask}(q, k, v)",
        ] {
            let form: Form = text.parse().expect("a form");
            let steps = derivation(&form);
            assert_eq!(steps.last().map(|s| s.1), Some(form), "{text}");
            assert!(steps.len() > usize::from(text.contains(',')), "{text}: {steps:?}");
        }
    }

    #[test]
    fn the_host_has_no_forms() {
        assert!(applied(&Case("cpu", TORCH, HALF)).is_empty());
    }
}
