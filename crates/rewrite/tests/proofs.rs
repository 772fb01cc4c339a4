//! Steps from a graph as it was written to the bodies of its kernels.
use crate::common::{fused, graph, h200};
use kiln_rewrite::{Constraints, Options, Proofs, TargetInfo, proofs};
use std::collections::BTreeSet;

fn steps(text: &str) -> Proofs {
    proofs(&graph(text), &h200(), &Options::default(), &Constraints::default(), TargetInfo::default()).expect("a plan")
}

#[test]
fn each_step_matches_what_is_there_before_it() {
    let text = "graph g(%x: f32[64,8]) {
        @w: f32[8,8] = fill(1.0)\n @c: f32[8] = fill(1.0)\n %d = dot %x, @w\n %h = add %d, @c
        %s = sigmoid %h\n %y = mul %h, %s\n return %y\n}";
    let all = steps(text);
    let (name, found) = all.iter().find(|(_, s)| !s.is_empty()).expect("a kernel that rules made");
    let lines: Vec<String> = found.iter().map(|s| format!("{}: {} = {}", s.rule, s.from, s.to)).collect();
    same_lines(
        &lines,
        &[
            "silu: mul(%4, sigmoid(%4)) = silu(%4)",
            "matmul-with-weight: dot(%0, %1) = linear(%0, permute(%1))",
            "bias: add(linear(%0, permute(%1)), %3) = linear(%0, permute(%1), %3)",
        ],
        name,
    );
}
/// Lines in any order, but those of one matmul: the weight's form comes before the bias.
fn same_lines(lines: &[String], want: &[&str], name: &str) {
    let found: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(found, want.iter().copied().collect(), "{name}");
    let at = |rule: &str| lines.iter().position(|l| l.starts_with(rule));
    assert!(at("matmul-with-weight") < at("bias"), "{lines:?}");
}

/// Every rule that a plan names for a kernel is a step to it; and a kernel without rules has no steps.
#[test]
fn steps_are_the_rules_of_the_plan() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    let mut named = 0;
    for path in files {
        let text = std::fs::read_to_string(&path).expect("the file was listed");
        let (plan, all) = (fused(&text), steps(&text));
        assert_eq!(plan.kernels.len(), all.len(), "{}", path.display());
        for k in &plan.kernels {
            let found: BTreeSet<&str> = all[&k.name].iter().map(|s| s.rule).collect();
            // Joined siblings are no rule of the e-graph.
            let rules: BTreeSet<&str> =
                k.reason.rules.iter().map(String::as_str).filter(|r| *r != "join-siblings").collect();
            assert!(rules.is_subset(&found), "{} {}: {rules:?} of the plan, steps {found:?}", path.display(), k.name);
            named += rules.len();
        }
    }
    assert!(named > 20, "{named} rules");
}

/// What a rule makes of several values has the same step in each of their kernels.
#[test]
fn inner_values_of_a_form() {
    let text = "graph g(%x: bf16[8192,32], %w: bf16[1400,32], %i: i64[8192,1]) {
        %d = linear %x, %w\n %p = log_softmax %d axis=1\n %y = gather %p, %i axis=1\n return %y\n}";
    let all = steps(text);
    assert!(all.len() > 3, "{all:?}");
    for (name, found) in &all {
        let rules: Vec<&str> = found.iter().map(|s| s.rule).collect();
        assert_eq!(rules, ["cross-entropy-of-a-matmul"], "{name}");
        assert_eq!(found[0].from, "gather(log_softmax(%3), %2)", "{name}");
    }
}

/// What a checker reads is what the rewriter applies.
#[test]
fn rules_as_text() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../proof-check/rules.txt");
    let text = kiln_rewrite::rules::text();
    if std::env::var_os("KILN_BLESS").is_some() {
        std::fs::write(file, &text).expect("written");
    }
    let stored = std::fs::read_to_string(file).expect("the file of rules");
    assert_eq!(stored, text, "the rules have changed: read them again, then KILN_BLESS=1");
}
