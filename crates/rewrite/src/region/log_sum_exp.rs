//! An attention that stores its log-sum-exp beside its result: two anchor ops of the same operands in one kernel.
use super::Reject;
use crate::cost::Price;
use crate::dag::Dag;
use kiln_graph::Op;
use kiln_graph::ops::Class;
use kiln_plan::Hardware;
use std::collections::BTreeSet;

/// Where the members have an attention and its log-sum-exp: the members of the kernels of either, ascending.
pub(super) fn parts(dag: &Dag, members: &[usize], outs: &[usize]) -> Option<Result<[Vec<usize>; 2], Reject>> {
    let of_sums = |v: usize| matches!(dag.op(v), Op::Attention { lse: true, .. });
    let sums = members.iter().copied().find(|&v| of_sums(v))?;
    let values = members.iter().copied().find(|&v| dag.class[v] == Class::Attention && v != sums)?;
    let alike = dag.args(values) == dag.args(sums) && dag.op(values).attention_beside().as_ref() == Some(dag.op(sums));
    if !alike {
        return Some(Err(Reject::TwoAnchors));
    }
    let parts = [values, sums].map(|anchor| {
        // What depends on it, and what these outputs are made of.
        let mut after = BTreeSet::from([anchor]);
        for &v in members {
            if dag.args(v).iter().any(|a| after.contains(a)) {
                after.insert(v);
            }
        }
        let mut todo: Vec<usize> = outs.iter().copied().filter(|o| after.contains(o)).collect();
        let mut part = BTreeSet::new();
        while let Some(v) = todo.pop() {
            if members.binary_search(&v).is_ok() && part.insert(v) {
                todo.extend(dag.args(v));
            }
        }
        part
    });
    let apart = !parts[0].contains(&sums) && !parts[1].contains(&values);
    let all = members.iter().all(|v| parts.iter().any(|p| p.contains(v)));
    Some(if apart && all { Ok(parts.map(|p| p.into_iter().collect())) } else { Err(Reject::TwoAnchors) })
}
/// Each of the two has to be a kernel, and nothing but views follows them. The host's library has no log-sum-exp.
pub(super) fn check(
    dag: &Dag,
    [values, sums]: [Vec<usize>; 2],
    outs: &[usize],
    machine: &Hardware,
) -> Result<Price, Reject> {
    if !machine.arch.is_gpu() {
        return Err(Reject::TwoAnchors);
    }
    let of = |part: &[usize]| outs.iter().copied().filter(|o| part.contains(o)).collect::<Vec<usize>>();
    let price = super::check(dag, &values, &of(&values), machine, None)?;
    let rows = of(&sums);
    super::check(dag, &sums, &rows, machine, None)?;
    let written: f64 = rows.iter().map(|&o| dag.bytes(o)).sum();
    Ok(Price { written: price.written + written, seconds: price.seconds + written / machine.rates.bandwidth, ..price })
}
