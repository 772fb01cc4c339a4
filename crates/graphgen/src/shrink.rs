//! Shrinks a failing graph to a smaller one that still fails.
use kiln_graph::{Graph, Op, ValueId};

/// A smaller graph that still fails, found greedily: drops outputs, and replaces nodes by an operand or a new input.
/// `fails` gets only verified graphs and is called at most 400 times.
pub fn shrink(g: &Graph, mut fails: impl FnMut(&Graph) -> bool) -> Graph {
    let mut best = g.clone();
    let mut budget = 400;
    loop {
        let smaller = candidates(&best).into_iter().find(|c| {
            budget -= 1;
            budget > 0 && c.verify().is_ok() && fails(c)
        });
        match smaller {
            Some(c) => best = c,
            None => return best,
        }
    }
}

fn candidates(g: &Graph) -> Vec<Graph> {
    let mut all = Vec::new();
    if g.outputs.len() > 1 {
        for o in &g.outputs {
            let mut one = g.clone();
            one.outputs = vec![*o];
            all.push(trimmed(&one));
        }
    }
    // Replace an output by one of its operands.
    for (i, o) in g.outputs.iter().enumerate() {
        for a in g.args(*o) {
            let mut earlier = g.clone();
            earlier.outputs[i] = a;
            all.push(trimmed(&earlier));
        }
    }
    for v in g.values().rev().filter(|v| !g.op(*v).is_leaf()) {
        let alike = g.args(v).iter().position(|a| g.ty(*a) == g.ty(v));
        if let Some(i) = alike
            && let Ok(without) = g.rebuild(|_, u, args| Ok((u == v).then(|| args[i])))
        {
            all.push(trimmed(&without));
        }
    }
    for v in g.values().rev().filter(|v| !g.op(*v).is_leaf()) {
        let mut cut = Graph::new(g.name.clone());
        cut.params = g.params.clone();
        for u in g.values() {
            match g.op(u) {
                Op::Input(_) => {
                    cut.input(g.ty(u).clone());
                }
                _ if u == v => {
                    cut.input(g.ty(u).clone());
                }
                op => {
                    cut.push(op.clone(), g.ty(u).clone(), &g.args(u));
                }
            }
        }
        cut.outputs = g.outputs.clone();
        all.push(trimmed(&cut));
    }
    all.retain(|c| weight(c) < weight(g));
    all
}

/// Size of a graph, compared lexicographically: ops, then nodes, then outputs.
fn weight(g: &Graph) -> (usize, usize, usize) {
    (g.values().filter(|v| !g.op(*v).is_leaf()).count(), g.len(), g.outputs.len())
}

/// A copy without dead nodes and unused inputs.
fn trimmed(g: &Graph) -> Graph {
    let live = g.live();
    let mut new = Graph::new(g.name.clone());
    new.params = g.params.clone();
    let mut map = vec![ValueId(0); g.len()];
    for v in g.values().filter(|v| live[v.0 as usize]) {
        let args: Vec<ValueId> = g.args(v).iter().map(|a| map[a.0 as usize]).collect();
        map[v.0 as usize] = match g.op(v) {
            Op::Input(_) => new.input(g.ty(v).clone()),
            op => new.push(op.clone(), g.ty(v).clone(), &args),
        };
    }
    new.outputs = g.outputs.iter().map(|o| map[o.0 as usize]).collect();
    new
}
