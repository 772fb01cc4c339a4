//! Certificates of plans, checked by a checker that shares no code with the rewriter.
use kiln::{CompileOptions, Graph, Model, Target, proof};
use kiln_graph::{BinaryOp, Op, Random, Scalar, UnaryOp, text};
use kiln_proof_check::{Certificate, Checked, RULES, Refused, Rules, Step, check, check_with};

fn checked(graph: &Graph, target: Target) -> Result<Checked, Refused> {
    let model = Model::from_graph(graph.clone()).expect("a model");
    let options = CompileOptions { target, ..CompileOptions::default() };
    check(&serde_json::to_string(&proof::certificate(&model, &options).expect("a plan")).expect("JSON"))
}

#[test]
fn plans_of_the_samples_compute_their_graphs() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs");
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    let (mut failed, mut evaluated, mut by_pattern) = (vec![], 0, 0);
    for path in files {
        let graph: Graph = std::fs::read_to_string(&path).expect("a file").parse().expect("a graph");
        for target in [Target::Sm90a, Target::Sm80, Target::Cpu] {
            let start = std::time::Instant::now();
            match checked(&graph, target) {
                Ok(c) => {
                    evaluated += c.evaluated;
                    by_pattern += c.by_pattern;
                    println!("{} {target:?} {c:?} {:?}", path.display(), start.elapsed());
                }
                Err(e) => failed.push(format!("{} {target:?}: {e}", path.display())),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(evaluated > 20 && by_pattern > 10, "{evaluated} evaluated, {by_pattern} by patterns");
}

/// Random graphs of all families, on both kinds of machines.
#[test]
fn plans_of_random_graphs_compute_them() {
    let (mut failed, mut steps, mut forms) = (vec![], 0, 0);
    for seed in 0..300 {
        let graph = kiln_graphgen::case(seed, kiln_graphgen::Scale::Small);
        match checked(&graph, if seed % 2 == 0 { Target::Sm90a } else { Target::Cpu }) {
            Ok(c) => {
                steps += c.by_pattern + c.evaluated;
                forms += c.forms;
            }
            Err(e) => failed.push(format!("seed {seed}: {e}")),
        }
    }
    assert!(failed.is_empty(), "{} fail\n{}", failed.len(), failed.join("\n"));
    assert!(steps > 100 && forms > 50, "{steps} steps, {forms} to forms");
}

/// Slices of register-loaded tiles are a form that the checker derives, except under a contract that sums in one order.
#[test]
fn slices_of_register_tiles_are_checked() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs/swiglu_bf16.kiln");
    let graph: Graph = std::fs::read_to_string(path).expect("a file").parse().expect("a graph");
    let model = Model::from_graph(graph).expect("a model");
    let options = CompileOptions { target: Target::Sm80, ..CompileOptions::default() };
    let mut c = proof::certificate(&model, &options).expect("a plan");
    let split =
        |k: &kiln_proof_check::Kernel| k.form.as_deref().is_some_and(|form| form.starts_with("gemm{mma, split"));
    assert!(c.kernels.iter().any(split), "{:?}", c.kernels);
    let json = |c: &Certificate| serde_json::to_string(c).expect("JSON");
    check(&json(&c)).expect("it holds");
    c.contract = format!("{}+batch_invariant", c.contract);
    let e = check(&json(&c)).expect_err("sums in one order").to_string();
    assert!(e.contains("its premise `any-order` does not hold"), "{e}");
}

/// Another op of the same type.
fn other_op(op: &Op) -> Option<Op> {
    Some(match op {
        Op::Binary(BinaryOp::Add) => Op::Binary(BinaryOp::Sub),
        Op::Binary(BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div) => Op::Binary(BinaryOp::Add),
        Op::Binary(BinaryOp::Max) => Op::Binary(BinaryOp::Min),
        Op::Unary(UnaryOp::Exp) => Op::Unary(UnaryOp::Tanh),
        Op::Unary(u) if !matches!(u, UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::Exp) => {
            Op::Unary(UnaryOp::Exp)
        }
        Op::Const(Scalar::Float(c)) if c.is_finite() => Op::Const(Scalar::Float(if *c == 0.0 { 1.0 } else { 2.0 * c })),
        _ => return None,
    })
}

/// A change of a kernel's form, of the steps to it, or of a rule that they apply.
fn form_mutated(c: &mut Certificate, rules: &mut String, r: &mut Random) -> Option<String> {
    let with_form: Vec<usize> = (0..c.kernels.len()).filter(|k| c.kernels[*k].form.is_some()).collect();
    let k = *with_form.get(r.next_below(with_form.len().max(1)))?;
    let kernel = &mut c.kernels[k];
    let step = r.next_below(kernel.form_steps.len().max(1));
    let what = match r.next_below(6) {
        0 => {
            kernel.form = Some("gemm{dmma}(a, b)".into());
            "has another form"
        }
        1 => {
            kernel.form_steps.remove(step);
            "lacks a step"
        }
        2 => {
            let is_conv = kernel.form_steps[step].rule == "convolution-of-patches";
            kernel.form_steps[step].rule = if is_conv { "copied-operand" } else { "convolution-of-patches" }.into();
            "applies another rule"
        }
        3 => {
            kernel.form_steps[step].to.push(' ');
            "has a step to another form"
        }
        4 => {
            let rule = format!("\nform {}\n", kernel.form_steps[step].rule);
            let start = rules.find(&rule)? + rule.len();
            let end = start + rules[start..].find("adds ")?;
            rules.replace_range(start..end, "of matmul conv attention\nwhen no-such-premise\n");
            "has a rule with another premise"
        }
        _ => {
            let rule = format!("\nform {}\n", kernel.form_steps[step].rule);
            let start = rules.find(&rule)? + rule.len();
            let adds = start + rules[start..].find("adds ")?;
            let end = adds + rules[adds..].find('\n')?;
            rules.replace_range(adds..end, "adds gemm dmma");
            "has a rule that gives another form"
        }
    };
    Some(format!("kernel {k} {what}"))
}

/// One change of a chain or of a rule that it uses; `None` if that change is not possible here.
fn mutated(c: &Certificate, r: &mut Random) -> Option<(String, String, Certificate)> {
    let (mut c, mut rules) = (c.clone(), RULES.to_string());
    let of_rules: Vec<usize> = (0..c.steps.len()).filter(|i| matches!(c.steps[*i], Step::Rule { .. })).collect();
    // Terms in their order, by their steps.
    let terms: Vec<usize> = (0..c.steps.len()).filter(|i| matches!(c.steps[*i], Step::Term(_))).collect();
    let op = |c: &Certificate, t: usize| match &c.steps[terms[t]] {
        Step::Term(t) => t.op.clone(),
        _ => Op::Select,
    };
    let inputs: Vec<usize> = (0..terms.len()).filter(|t| matches!(op(&c, *t), Op::Input(_))).collect();
    let what = match r.next_below(13) {
        9..13 => form_mutated(&mut c, &mut rules, r)?,
        0 => {
            let k = r.next_below(c.kernels.len());
            let body: Graph = c.kernels[k].body.parse().expect("a body");
            let fits: Vec<_> = body.values().filter(|v| other_op(body.op(*v)).is_some()).collect();
            let at = *fits.get(r.next_below(fits.len()))?;
            let mut new = Graph::new("body");
            for v in body.values() {
                let changed = if v == at { other_op(body.op(v))? } else { body.op(v).clone() };
                match changed {
                    Op::Input(_) => new.input(body.ty(v).clone()),
                    op => new.push(op, body.ty(v).clone(), &body.args(v)),
                };
            }
            new.outputs = body.outputs.clone();
            c.kernels[k].body = text::print(&new);
            format!("{at} of a body is another op")
        }
        1 => {
            let k = r.next_below(c.kernels.len());
            let i = r.next_below(c.kernels[k].inputs.len());
            let old = *c.kernels[k].inputs.get(i)?;
            let held = |b: usize| c.buffers[b].as_ref().map(|t| &t.ty);
            let same: Vec<usize> =
                (0..c.buffers.len()).filter(|b| *b != old && held(*b).is_some() && held(*b) == held(old)).collect();
            c.kernels[k].inputs[i] = *same.get(r.next_below(same.len()))?;
            format!("kernel {k} reads another buffer")
        }
        2 => {
            let o = r.next_below(c.outputs.len());
            let others: Vec<usize> = (0..c.buffers.len()).filter(|b| !c.outputs.contains(b)).collect();
            c.outputs[o] = *others.get(r.next_below(others.len()))?;
            format!("output {o} is another buffer")
        }
        3 => {
            let values: Vec<usize> = c
                .steps
                .iter()
                .filter_map(|s| if let Step::Value { term, .. } = s { Some(*term) } else { None })
                .collect();
            let fits: Vec<usize> = values.into_iter().filter(|t| other_op(&op(&c, *t)).is_some()).collect();
            let t = *fits.get(r.next_below(fits.len()))?;
            let new = other_op(&op(&c, t))?;
            let Step::Term(term) = &mut c.steps[terms[t]] else { return None };
            term.op = new;
            format!("term {t} is another op")
        }
        kind => {
            let step = *of_rules.get(r.next_below(of_rules.len()))?;
            let Step::Rule { rule, left, vars, matched, to, .. } = &mut c.steps[step] else { return None };
            let input = *inputs.get(r.next_below(inputs.len()))?;
            let start = rules.find(&format!("\nrule {rule} "))? + 1;
            let end = rules[start..].find("\n\n").map_or(rules.len(), |n| start + n);
            let block = rules[start..end].to_string();
            let mut lines: Vec<String> = block.lines().map(String::from).collect();
            let line = lines.iter().position(|l| l.starts_with("from "))? + *left;
            let what = match kind {
                4 => {
                    *rule = if rule == "square" { "add-zero".into() } else { "square".into() };
                    "is another rule"
                }
                5 => {
                    let i = r.next_below(matched.len());
                    matched[i] = input;
                    "matches an input"
                }
                6 => {
                    let name = r.choose(&vars.keys().cloned().collect::<Vec<_>>());
                    let bound = vars.get_mut(&name)?;
                    let old = *bound;
                    *bound = input;
                    if old == input {
                        return None;
                    }
                    "binds an input"
                }
                7 => {
                    let root = lines[line].split_once('(')?.1.split([' ', ':']).next()?.to_string();
                    let other = if root == "tanh" { "exp" } else { "tanh" };
                    lines[line] = lines[line].replacen(&format!("({root}"), &format!("({other}"), 1);
                    "has a rule that matches another op"
                }
                _ => {
                    let right = lines.iter().position(|l| l.starts_with("to "))?;
                    lines[right] = match &lines[right][3..] {
                        "computed" => "to (tanh ?x)".into(),
                        _ => "to computed".into(),
                    };
                    if lines[right] == "to computed" {
                        *to = input;
                    }
                    "has a rule that gives something else"
                }
            };
            rules.replace_range(start..end, &lines.join("\n"));
            format!("step {step} {what}")
        }
    };
    Some((what, rules, c))
}

/// A thousand changed chains and rules, by seed: each is refused.
#[test]
fn changed_chains_and_rules_are_refused() {
    let certificates: Vec<Certificate> = (0..120)
        .filter_map(|seed| {
            let model = Model::from_graph(kiln_graphgen::case(seed, kiln_graphgen::Scale::Small)).expect("a model");
            let options = CompileOptions { target: Target::Sm90a, ..CompileOptions::default() };
            let c = proof::certificate(&model, &options).expect("a plan");
            c.steps.iter().any(|s| matches!(s, Step::Rule { .. })).then_some(c)
        })
        .collect();
    assert!(certificates.len() > 20, "{}", certificates.len());
    let (mut count, mut accepted) = (0, vec![]);
    for seed in 0.. {
        let mut r = Random::new(seed);
        let c = &certificates[r.next_below(certificates.len())];
        let Some((what, rules, changed)) = mutated(c, &mut r) else { continue };
        count += 1;
        let rules = Rules::parse(&rules).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if check_with(&rules, &changed).is_ok() {
            accepted.push(format!("seed {seed}: {what} in\n{}", c.graph));
        }
        if count == 1000 {
            break;
        }
    }
    assert!(accepted.is_empty(), "{} are accepted\n{}", accepted.len(), accepted.join("\n"));
}
