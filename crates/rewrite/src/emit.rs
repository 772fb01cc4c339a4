//! From chosen kernels to a [`Plan`]: buffers, bodies, names, and the reason for each kernel.
use crate::RewriteError;
use crate::body::{forms, kernel};
use crate::checker::Checker;
use crate::cost::{lower_bound, microseconds};
use crate::dag::{Dag, Program};
use crate::impossible::Impossible;
use crate::names::Names;
use crate::planner::{self, Apart, Limits, Region, Regions, best_cut, boundaries};
use crate::why::label;
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, Graph, Op};
use kiln_plan::Hardware;
use kiln_plan::{Alternative, Buffer, BufferId, BufferKind, Form, FormNeeds, Origin, Plan, Reason, Stage, Stop};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// How kernels are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fusion {
    Fused,
    /// One kernel per op, without reasons.
    Unfused,
}
impl Fusion {
    pub fn kernels(self, dag: &Dag, check: &mut Checker) -> Regions {
        match self {
            Fusion::Fused => planner::fused(dag, check),
            Fusion::Unfused => planner::unfused(dag, check),
        }
    }
}

/// A program's nodes in each kernel, by the kernel's name.
pub type Members = Vec<(String, Vec<usize>)>;

struct Emitter<'a> {
    program: &'a Program,
    names: Names,
    limits: Option<&'a Limits>,
    /// Constraints on forms that name a kernel which multiplies.
    forms_met: BTreeSet<usize>,
    plan: Plan,
    /// Buffer of every value that is in memory.
    at: BTreeMap<usize, BufferId>,
    /// Buffers of parameters.
    params: FxHashMap<BufferKind, BufferId>,
    serial: usize,
    fusion: Fusion,
    members: Members,
}

/// The plan of the kernels of `run`, and of the load-time kernels that compute the frozen values they read; and what is
/// in each.
pub fn emit(
    g: &Graph,
    program: &Program,
    run: (&Dag, &Regions),
    (fusion, limits): (Fusion, Option<&Limits>),
    check: &mut Checker,
) -> Result<(Plan, Members), RewriteError> {
    let plan = Plan {
        name: g.name.clone(),
        machine: check.machine.name.clone(),
        contract: check.machine.contract,
        lower_bound_us: microseconds(lower_bound(run.0, check.machine)),
        ..Plan::default()
    };
    let names = Names::new(program);
    let (at, params, members) = (BTreeMap::new(), FxHashMap::default(), vec![]);
    let forms_met = BTreeSet::new();
    let mut e = Emitter { program, names, limits, forms_met, plan, at, params, serial: 0, fusion, members };
    for &i in &g.inputs {
        let Op::Input(n) = *g.op(i) else { continue };
        e.plan.buffers.push(Buffer { ty: g.ty(i).clone(), kind: BufferKind::Input(n) });
    }
    let wanted = e.frozen_wanted(run.0, run.1);
    let load = Dag::load(program, wanted.iter().copied());
    let kernels = fusion.kernels(&load, check);
    e.stage(&load, &kernels, check)?;
    e.stage(run.0, run.1, check)?;
    let unmet = limits.iter().flat_map(|l| &l.forms).enumerate().find(|(n, _)| !e.forms_met.contains(n));
    if let Some((_, (constraint, ..))) = unmet {
        let why = "no kernel that computes it multiplies on a GPU".to_string();
        return Err(Impossible { constraint: constraint.clone(), why }.into());
    }
    e.plan.outputs = program.roots.iter().map(|&r| e.buffer(r, Stage::Run)).collect();
    Ok((e.plan, e.members))
}

impl Emitter<'_> {
    /// Frozen values to compute at load time: those that kernels of the run read, and those that are results.
    fn frozen_wanted(&self, run: &Dag, kernels: &Regions) -> BTreeSet<usize> {
        let read = kernels.by_id.values().flat_map(|k| k.reads.iter().copied());
        let wanted = read.chain(run.roots.iter().copied()).filter(|&v| run.class[v] == Class::Leaf);
        wanted.filter(|&v| !matches!(run.op(v), Op::Input(_) | Op::Param(_))).collect()
    }
    /// The buffer of a value, created on first use.
    fn buffer(&mut self, v: usize, stage: Stage) -> BufferId {
        let value = &self.program.nodes[v].value;
        if let Op::Input(n) = value.op {
            return BufferId(n);
        }
        let kind = match (&value.op, stage) {
            (Op::Param(p), _) => BufferKind::Param(*p),
            (_, Stage::Load) => BufferKind::Frozen,
            _ => BufferKind::Temp,
        };
        let buffers = &mut self.plan.buffers;
        if let BufferKind::Param(_) = kind {
            // Several values may be the same parameter.
            if let Some(&known) = self.params.get(&kind) {
                return known;
            }
            self.params.insert(kind, BufferId(buffers.len() as u32));
        }
        *self.at.entry(v).or_insert_with(|| {
            buffers.push(Buffer { ty: value.ty.clone(), kind });
            BufferId(buffers.len() as u32 - 1)
        })
    }
    fn stage(&mut self, dag: &Dag, kernels: &Regions, check: &mut Checker) -> Result<(), RewriteError> {
        let mut order = kernels.launches().ok_or(RewriteError::Cycle)?;
        // The load stage may have stored a view of a frozen value that the run stage needs in memory too.
        order.retain(|id| !kernels.by_id[id].outs.iter().all(|o| self.at.contains_key(o)));
        let fused = self.fusion == Fusion::Fused;
        let mut apart = Neighbours::default();
        for ((a, b), why) in if fused { boundaries(dag, kernels, check, self.limits) } else { BTreeMap::new() } {
            apart.entry(a).or_default().push(Neighbour { reads: true, id: b, why: text(&why), needs: needs(&why) });
            apart.entry(b).or_default().push(Neighbour { reads: false, id: a, why: text(&why), needs: needs(&why) });
        }
        // By kernel id: the position in the plan, and the name.
        let mut names: BTreeMap<usize, (usize, String)> = BTreeMap::new();
        for &id in &order {
            let name = format!("{}_{}", describe(dag, &kernels.by_id[&id].members), self.serial);
            names.insert(id, (self.serial, name));
            self.serial += 1;
        }
        let kinds = if fused { check.kinds(dag) } else { vec![] };
        // Views of parameters that a kernel needs in memory are stored at load time.
        let frozen = |id: &usize| kernels.by_id[id].members.iter().all(|&m| dag.frozen(m));
        let (early, late): (Vec<usize>, Vec<usize>) = order.into_iter().partition(frozen);
        let order: Vec<usize> = early.into_iter().chain(late).collect();
        let chosen = self.chosen_forms(dag, kernels, &order, check)?;
        for id in order {
            let stage = if frozen(&id) { Stage::Load } else { dag.stage };
            let k = &kernels.by_id[&id];
            let stops = stops(apart.get(&id).map_or(&[][..], Vec::as_slice), &names);
            let alternative = if fused { alternative(dag, &kinds, k, check) } else { None };
            let reason = Reason { rules: rules(dag, k), alternative, stops, origins: vec![], tuning: None };
            self.kernel(dag, k, &names[&id].1, (stage, check.machine), reason);
            if let (Some(form), Some(last)) = (chosen.get(&id), self.plan.kernels.last_mut()) {
                last.form = Some(*form);
            }
        }
        Ok(())
    }
    /// The cheapest form of every kernel that multiplies, by its id; the one that a constraint asks for.
    fn chosen_forms(
        &mut self,
        dag: &Dag,
        kernels: &Regions,
        order: &[usize],
        check: &Checker,
    ) -> Result<BTreeMap<usize, Form>, RewriteError> {
        let multiplies = |id: &usize| !forms(dag, &kernels.by_id[id]).is_empty();
        let ids: Vec<usize> = order.iter().copied().filter(multiplies).collect();
        let regions: Vec<&Region> = ids.iter().map(|id| &kernels.by_id[id]).collect();
        let limits = self.limits.map_or(&[][..], |l| &l.forms);
        let asked = |region: &Region| limits.iter().position(|l| region.members.iter().any(|m| l.1.contains(m)));
        let mut allowed = vec![];
        for region in &regions {
            let mut all = forms(dag, region);
            if let Some(limit) = asked(region) {
                self.forms_met.insert(limit);
                let (constraint, _, form) = &limits[limit];
                if !all.contains(form) {
                    let text: Vec<String> = all.iter().map(|f| format!("`{f}`")).collect();
                    let why = format!("no rule gives it the form `{form}`; its forms are {}", text.join(", "));
                    return Err(Impossible { constraint: constraint.clone(), why }.into());
                }
                all = vec![*form];
            }
            allowed.push(all);
        }
        let chosen = check.chosen_forms(dag, &regions, allowed);
        for (region, form) in regions.iter().zip(&chosen) {
            if let (Some(limit), None, true) = (asked(region), form, check.has_prices()) {
                let (constraint, _, form) = &limits[limit];
                let why = format!("no schedule of the form `{form}` fits the kernel");
                return Err(Impossible { constraint: constraint.clone(), why }.into());
            }
        }
        Ok(ids.into_iter().zip(chosen).filter_map(|(id, form)| Some((id, form?))).collect())
    }
    fn kernel(&mut self, dag: &Dag, k: &Region, name: &str, (stage, machine): (Stage, &Hardware), mut reason: Reason) {
        let (mut planned, b) = kernel(dag, k, name, stage, machine);
        let origin = |&(m, value): &(usize, _)| Origin {
            value,
            names: self.names.all(self.program, m),
            rules: dag.nodes[m].value.rules.iter().map(|r| r.to_string()).collect(),
        };
        reason.origins = b.values.iter().filter(|(m, _)| dag.class[*m] != Class::Generator).map(origin).collect();
        planned.reason = reason;
        planned.inputs = k.reads.iter().map(|&v| self.buffer(v, stage)).collect();
        planned.outputs = b.stores.iter().map(|&v| self.buffer(v, stage)).collect();
        self.plan.kernels.push(planned);
        self.members.push((name.to_string(), k.members.clone()));
    }
}

fn rules(dag: &Dag, k: &Region) -> Vec<String> {
    let names: BTreeSet<&str> = k.members.iter().flat_map(|&m| dag.nodes[m].value.rules.iter().copied()).collect();
    names.into_iter().map(String::from).collect()
}

/// The next best way to compute the same outputs: the kernel cut in two at the cheapest place, or one kernel per op.
fn alternative(dag: &Dag, kinds: &[u32], k: &Region, check: &mut Checker) -> Option<Alternative> {
    let ops: Vec<usize> = k.members.iter().copied().filter(|&m| !dag.class[m].is_free()).collect();
    let seconds: f64 = ops.iter().map(|&v| check.alone(dag, v).seconds).sum();
    let cut = best_cut(dag, kinds, k, check).filter(|c| ops.len() == 2 || c.0 <= seconds);
    let (what, seconds) = match cut {
        Some((cut, v)) => (format!("cut after {} (2 kernels)", label(dag, v)), cut),
        None => (format!("one kernel per op ({} kernels)", ops.len()), seconds),
    };
    (ops.len() > 1).then(|| Alternative { what, us: microseconds(seconds) })
}

/// A neighbour that a kernel was not merged with.
struct Neighbour {
    /// Whether it reads from the kernel; else it is read.
    reads: bool,
    id: usize,
    why: String,
    /// What only some forms of the two as one kernel could fuse.
    needs: FormNeeds,
}
/// By kernel id.
type Neighbours = FxHashMap<usize, Vec<Neighbour>>;

/// Why a kernel was not merged with its neighbours: first those it reads from, then its readers, each in order of
/// position.
fn stops(apart: &[Neighbour], names: &BTreeMap<usize, (usize, String)>) -> Vec<Stop> {
    let known = apart.iter().filter_map(|n| {
        let (place, name) = names.get(&n.id)?;
        Some(((n.reads, *place), Stop { kernel: name.clone(), why: n.why.clone(), needs: n.needs }))
    });
    // By position, which is unique.
    known.collect::<BTreeMap<(bool, usize), Stop>>().into_values().collect()
}
fn text(why: &Apart) -> String {
    match why {
        Apart::Illegal(r) => r.name().to_string(),
        Apart::NoGain { together: Some(together), apart: Some(apart), .. } => {
            format!("no gain: {together:.2} us together, {apart:.2} us apart")
        }
        Apart::NoGain { .. } => "no gain: no schedule of a form that fuses them has a price".to_string(),
        Apart::WouldWaitForItself => "the merged kernel would depend on itself".to_string(),
    }
}
fn needs(why: &Apart) -> FormNeeds {
    if let Apart::NoGain { needs, .. } = why { *needs } else { FormNeeds::default() }
}

/// A kernel's name from its most characteristic ops, at most three, in order.
fn describe(dag: &Dag, members: &[usize]) -> String {
    let telling: Vec<(u8, usize)> = members.iter().map(|&m| (rank(dag.op(m)), m)).collect();
    let best = telling.iter().map(|t| t.0).max().unwrap_or(0);
    let keep = |t: &&(u8, usize)| t.0 == best || (best >= 4 && t.0 >= 2);
    let mut words: Vec<String> = vec![];
    for &(_, m) in telling.iter().filter(keep) {
        let word = word(dag.op(m));
        if !words.contains(&word) && words.len() < 3 {
            words.push(word);
        }
    }
    words.join("_")
}
/// How characteristic an op is of a kernel.
fn rank(op: &Op) -> u8 {
    match Class::of(op) {
        Class::Leaf | Class::Generator => 0,
        Class::View => 0,
        Class::Pointwise => match op {
            Op::Unary(u) if u.is_composite() => 3,
            Op::Unary(_) => 2,
            Op::Binary(BinaryOp::Add | BinaryOp::Mul) => 2,
            _ => 1,
        },
        Class::Movement => 2,
        Class::Reduce | Class::ArgReduce => 3,
        Class::Row => 4,
        Class::Scan | Class::Matmul | Class::Attention | Class::Conv | Class::Pool | Class::Scatter => 5,
        Class::Fallback | Class::Launch | Class::Result => 5,
    }
}
fn identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
fn word(op: &Op) -> String {
    match op {
        Op::Dot | Op::Linear => "gemm".to_string(),
        Op::Fallback(f) => identifier(f.name.rsplit("::").next().unwrap_or("op")),
        Op::Launch(launch) => identifier(&launch.program.name),
        op => op.name().rsplit('.').next().unwrap_or("op").to_string(),
    }
}
