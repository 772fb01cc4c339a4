//! Launches of programs that people wrote, with elementwise neighbours: what takes the place of a load or follows a
//! store, and what that costs.
//!
//! The program itself computes what it computes. Its accesses ([`LaunchAccess`]) say whether the value of a store is
//! the element that a reader gets, and whether a load may be computed where it is.
use super::{MAX_MEMBERS, Reject};
use crate::cost::{OpTypes, Price};
use crate::dag::Dag;
use kiln_graph::Op;
use kiln_graph::ops::Class;
use kiln_plan::{Hardware, LaunchAccess, Unfusable};
use std::collections::BTreeSet;

/// Shares of the ops in a region around a launch.
#[derive(Default)]
struct Parts {
    /// Computed where the launch loads: operands that are members, each with all that it is computed from.
    prologues: Vec<Prologue>,
    /// Computed where the launch stores.
    epilogue: BTreeSet<usize>,
    /// The result that the epilogue follows.
    result: Option<usize>,
}

struct Prologue {
    /// Position among the operands of the launch.
    operand: usize,
    members: BTreeSet<usize>,
}

/// Checks a region with a launch, and prices it.
pub fn check(
    dag: &Dag,
    members: &[usize],
    outs: &[usize],
    machine: &Hardware,
    access: Option<&LaunchAccess>,
) -> Result<Price, Reject> {
    let launch = only_launch(dag, members)?;
    let is_result = |v: usize| v == launch || dag.class[v] == Class::Result;
    if members.iter().all(|v| is_result(*v)) {
        return Ok(alone(dag, launch, machine, access));
    }
    if members.iter().any(|v| dag.count(*v) == 0.) {
        return Err(Reject::Empty);
    }
    if members.len() > MAX_MEMBERS {
        return Err(Reject::TooLarge);
    }
    let access = access.ok_or(Reject::Launch)?;
    let parts = parts(dag, members, launch)?;
    if outs.iter().any(|o| !is_result(*o) && !parts.epilogue.contains(o)) {
        return Err(Reject::Launch);
    }
    if let Some(result) = parts.result {
        fusable(&access.results.get(result).ok_or(Reject::Launch)?.fusable)?;
    }
    for prologue in &parts.prologues {
        let operand = access.operands.get(prologue.operand).ok_or(Reject::Launch)?;
        fusable(&operand.fusable)?;
        let computes = |v: &usize| dag.class[*v] == Class::Pointwise;
        // Copies to shared memory, tensor maps and the host's kernels of products read what is in memory.
        if operand.is_multiplied && prologue.members.iter().any(computes) {
            return Err(Reject::ArithmeticBeforeMatmul);
        }
    }
    Ok(price(dag, launch, &parts, Region { members, outs, machine, access }))
}

fn fusable(access: &Result<(), Unfusable>) -> Result<(), Reject> {
    access.map_err(|why| match why {
        Unfusable::Updated => Reject::LaunchUpdates,
        Unfusable::ReadBack => Reject::LaunchReadsBack,
        Unfusable::NotAffine => Reject::LaunchOffsets,
        Unfusable::PartlyStored => Reject::LaunchStoresPart,
        Unfusable::TooMany => Reject::LaunchTooLarge,
    })
}

/// The launch of a region that has nothing but it, its results and elementwise ops.
fn only_launch(dag: &Dag, members: &[usize]) -> Result<usize, Reject> {
    let mut launches = members.iter().copied().filter(|v| dag.class[*v] == Class::Launch);
    let (Some(launch), None) = (launches.next(), launches.next()) else { return Err(Reject::Launch) };
    for &v in members {
        match dag.class[v] {
            Class::Launch | Class::Pointwise | Class::View | Class::Generator => {}
            Class::Result if dag.args(v) == [launch] => {}
            Class::Fallback => return Err(Reject::Fallback),
            _ => return Err(Reject::Launch),
        }
    }
    Ok(launch)
}

fn parts(dag: &Dag, members: &[usize], launch: usize) -> Result<Parts, Reject> {
    let is_member = |v: &usize| members.binary_search(v).is_ok();
    let mut parts = Parts::default();
    for (operand, &v) in dag.args(launch).iter().enumerate().filter(|(_, v)| is_member(v)) {
        let (mut cone, mut todo) = (BTreeSet::new(), vec![v]);
        while let Some(v) = todo.pop() {
            if is_member(&v) && cone.insert(v) {
                todo.extend(dag.args(v));
            }
        }
        parts.prologues.push(Prologue { operand, members: cone });
    }
    let mut results = BTreeSet::new();
    let result_of = |v: usize| result_of(dag, launch, v);
    // Users come after what they use.
    for &v in members.iter().filter(|v| result_of(**v).is_none()) {
        let from: Vec<usize> = dag.args(v).iter().filter_map(|a| result_of(*a)).collect();
        let follows = !from.is_empty() || dag.args(v).iter().any(|a| parts.epilogue.contains(a));
        results.extend(from);
        if !follows {
            continue;
        }
        let keeps_elements = dag.class[v] == Class::Pointwise || matches!(dag.op(v), Op::Reshape(_));
        if !keeps_elements {
            return Err(Reject::ViewAfterAnchor);
        }
        parts.epilogue.insert(v);
    }
    // What follows two results would need elements of both in one place.
    if results.len() > 1 {
        return Err(Reject::SecondOutputOfAnchor);
    }
    parts.result = results.first().copied();
    let stored = members.iter().copied().find(|v| result_of(*v) == parts.result);
    let count = stored.map_or(0., |v| dag.count(v));
    match parts.epilogue.iter().all(|v| dag.count(*v) == count) {
        true if stored.is_some() || parts.result.is_none() => Ok(parts),
        _ => Err(Reject::OutputNotCovered),
    }
}

/// Which result of the launch this is, if it is one.
fn result_of(dag: &Dag, launch: usize, v: usize) -> Option<usize> {
    match dag.op(v) {
        Op::Result(n) => Some(*n as usize),
        _ => (v == launch).then_some(0),
    }
}

/// A region as its price needs it.
struct Region<'a> {
    members: &'a [usize],
    outs: &'a [usize],
    machine: &'a Hardware<'a>,
    access: &'a LaunchAccess,
}

fn price(dag: &Dag, launch: usize, parts: &Parts, region: Region) -> Price {
    let Region { members, outs, machine, access } = region;
    let before: BTreeSet<usize> = parts.prologues.iter().flat_map(|p| p.members.iter().copied()).collect();
    let mut price = program(dag, launch, machine, Some(access));
    let is_stored = |o: &&usize| parts.epilogue.contains(o) || result_of(dag, launch, **o) == parts.result;
    price.written = results(dag, launch, parts.result);
    if parts.result.is_some() {
        price.written += outs.iter().filter(is_stored).map(|o| dag.bytes(*o)).sum::<f64>();
    }
    let mut read = BTreeSet::new();
    for &v in members.iter().filter(|v| **v != launch) {
        read.extend(dag.args(v).iter().copied().filter(|a| members.binary_search(a).is_err()));
        if dag.class[v] == Class::Pointwise && !before.contains(&v) {
            let stored = parts.epilogue.last().map_or(0., |last| dag.count(*last));
            price.other += dag.op(v).weight() * stored;
        }
    }
    for prologue in &parts.prologues {
        let operand = dag.args(launch)[prologue.operand];
        let loads = access.operands.get(prologue.operand).map_or(0., |a| a.elements);
        price.read -= loaded(dag, operand, loads);
        let weight: f64 = prologue.members.iter().map(|v| computed(dag, *v)).sum();
        price.other += weight * loads;
    }
    let operands = dag.args(launch);
    price.read += read.iter().filter(|v| !operands.contains(v)).map(|v| dag.bytes(*v)).sum::<f64>();
    price.timed(machine)
}

/// Arithmetic per element of a member.
fn computed(dag: &Dag, v: usize) -> f64 {
    match dag.class[v] {
        Class::Pointwise => dag.op(v).weight() + dag.args(v).len() as f64,
        _ => 0.,
    }
}

/// Bytes of an operand that are read from memory, if this many elements are loaded: what is loaded again is in caches.
fn loaded(dag: &Dag, operand: usize, elements: f64) -> f64 {
    elements.min(dag.count(operand)) * dag.ty(operand).dtype.bytes() as f64
}

/// Bytes of the results of a launch but one.
fn results(dag: &Dag, launch: usize, but: Option<usize>) -> f64 {
    let Op::Launch(op) = dag.op(launch) else { return 0. };
    op.results().enumerate().filter(|(n, _)| Some(*n) != but).map(|(_, ty)| ty.bytes() as f64).sum()
}

/// Price of a launch and its results.
pub fn alone(dag: &Dag, launch: usize, machine: &Hardware, access: Option<&LaunchAccess>) -> Price {
    Price { written: results(dag, launch, None), ..program(dag, launch, machine, access) }.timed(machine)
}

/// What a program reads and computes; where its accesses are unknown, all that it is given.
fn program(dag: &Dag, launch: usize, machine: &Hardware, access: Option<&LaunchAccess>) -> Price {
    let operands = dag.args(launch);
    let Some(access) = access else {
        let op = OpTypes::of(dag, launch);
        let other = op.op.weight() * dag.count(launch);
        return Price { read: operands.iter().map(|a| dag.bytes(*a)).sum(), other, ..Price::default() };
    };
    let read = operands.iter().zip(&access.operands).map(|(v, a)| loaded(dag, *v, a.elements)).sum();
    let matrix_seconds =
        if access.dot_flops > 0. { access.dot_flops / machine.matrix_rate(access.dot_type) } else { 0. };
    Price { read, matrix: access.dot_flops, matrix_seconds, other: access.other_flops, ..Price::default() }
}
