//! Legality and price of a kernel: can one kernel compute a set of values (a region), and how long does it take?
//!
//! Legality is a property of the whole region, never of a pair. Going backward from the outputs, every value gets its
//! access maps (`space`). A reduction fixes the kernel's rows: all reductions must agree on which atoms select a row
//! and which run along it. An anchor op (matmul, attention, convolution, pooling, scatter, scan) is computed whole and
//! once. What it can fuse is a matter of its forms: a region notes what it asks of them ([`FormNeeds`]), and is legal
//! if one of them can. This module alone knows what lowering can fuse; every refusal has a name ([`Reject`]).
use crate::cost::Price;
use crate::dag::Dag;
use crate::space::{Atom, AxisMap, Map, Space, align};
use kiln_graph::Op;
use kiln_graph::ops::Class;
use kiln_plan::form::FormNeeds;
use kiln_plan::{Hardware, KernelKind, LaunchAccess};
use std::collections::{BTreeMap, BTreeSet};

mod anchor;
mod key_end;
mod launch;
mod log_sum_exp;
mod mask;
mod operands;
mod price;
mod reject;
mod rows;

use anchor::Anchor;
use mask::Scores;
use operands::{dequantises, sides};
pub use price::alone;
pub use reject::Reject;

/// Most values of one kernel; beyond this, compile time outweighs any saving.
pub const MAX_MEMBERS: usize = 160;
/// Most buffers of one kernel: each is an argument of its programs, and GPU programs take up to 512.
pub const MAX_BUFFERS: usize = 256;
/// The first operand of attention that belongs to its scores: those of its score function, and its mask.
const OF_SCORES: usize = 3;
/// Most different access maps of one value; it is computed separately for each.
pub const MAX_USES: usize = 8;

/// One access to a value.
#[derive(Clone, PartialEq)]
struct Use {
    map: Map,
    /// Through an operand of the anchor.
    prologue: bool,
    /// How often each element is computed.
    times: f64,
}

/// Rows of a kernel: the atoms that select a row, unordered, and those along it, outermost first.
struct Rows {
    across: BTreeSet<Atom>,
    along: Vec<Atom>,
}

struct CheckedRegion<'a> {
    dag: &'a Dag,
    /// Ascending.
    members: &'a [usize],
    machine: &'a Hardware<'a>,
    space: Space,
    /// The output whose shape is the iteration space.
    main: usize,
    root: Map,
    uses: BTreeMap<usize, Vec<Use>>,
    price: Price,
    anchor: Option<usize>,
    /// The scores of attention.
    scores: Option<Scores>,
    /// Does the anchor read its operands itself, each element once? They may be dequantised on the way then.
    reads_once: bool,
    /// The second matmul of a dual GEMM, or the anchor itself if the second one is the other half of its columns.
    dual: Option<usize>,
    /// Groups of atoms that must be one strided range each, per operand of the anchor.
    operands: Vec<(usize, Vec<Map>)>,
    rows: Option<Rows>,
    /// The argmax or argmin.
    place: Option<usize>,
    /// How often the reductions read a row that does not fit on chip.
    levels: usize,
}

/// The output whose shape is the kernel's iteration space: among the largest, the last that depends on a reduction, or
/// else the last.
pub fn main_output(dag: &Dag, members: &[usize], outs: &[usize]) -> Option<usize> {
    let largest = outs.iter().map(|&o| dag.count(o)).fold(0., f64::max);
    let large = || outs.iter().copied().filter(|&o| dag.count(o) == largest);
    if large().count() == 1 || !members.iter().any(|&m| reduces(dag.class[m])) {
        return large().max();
    }
    large().filter(|&o| reads_rows(dag, members, o)).max().or(large().max())
}
fn reduces(c: Class) -> bool {
    matches!(c, Class::Reduce | Class::ArgReduce | Class::Row)
}
/// Does `v` depend on a reduction among the members?
fn reads_rows(dag: &Dag, members: &[usize], v: usize) -> bool {
    let (mut seen, mut todo) = (BTreeSet::new(), vec![v]);
    while let Some(x) = todo.pop() {
        if members.binary_search(&x).is_err() || !seen.insert(x) {
            continue;
        }
        if reduces(dag.class[x]) {
            return true;
        }
        todo.extend(dag.args(x));
    }
    false
}

/// The kind of kernel that `members` are lowered as.
pub fn kind(dag: &Dag, members: &[usize]) -> KernelKind {
    let of = |v: &usize| match dag.class[*v] {
        Class::Matmul => KernelKind::Gemm,
        Class::Attention => KernelKind::Attention,
        Class::Conv => KernelKind::Conv,
        Class::Pool => KernelKind::Pool,
        Class::Scatter => KernelKind::Scatter,
        Class::Scan => KernelKind::Scan,
        Class::Launch => KernelKind::Launch,
        Class::Fallback => KernelKind::Fallback,
        Class::Reduce | Class::ArgReduce | Class::Row => KernelKind::Reduction,
        Class::Leaf | Class::Generator | Class::View | Class::Pointwise | Class::Movement | Class::Result => {
            KernelKind::Pointwise
        }
    };
    members.iter().map(of).max().unwrap_or(KernelKind::Pointwise)
}

/// Checks one kernel that computes `members` (ascending) and stores `outs`, and prices it.
///
/// `access`: what is known of its launch, if it has one.
pub fn check(
    dag: &Dag,
    members: &[usize],
    outs: &[usize],
    machine: &Hardware,
    access: Option<&LaunchAccess>,
) -> Result<Price, Reject> {
    if members.iter().any(|&v| dag.class[v] == Class::Launch) {
        return launch::check(dag, members, outs, machine, access);
    }
    if members.iter().any(|&v| dag.class[v].is_opaque()) {
        return fallback(dag, members, machine);
    }
    let empty = |v: &usize| dag.count(*v) == 0. || dag.args(*v).iter().any(|&a| dag.count(a) == 0.);
    if members.iter().any(empty) {
        return if members.len() == 1 { Ok(alone(dag, members[0], machine, None)) } else { Err(Reject::Empty) };
    }
    if members.len() > MAX_MEMBERS {
        return Err(Reject::TooLarge);
    }
    if let Some(parts) = log_sum_exp::parts(dag, members, outs) {
        return log_sum_exp::check(dag, parts?, outs, machine);
    }
    let main = main_output(dag, members, outs).ok_or(Reject::OutputNotCovered)?;
    let mut space = Space::default();
    let root: Map = dag.shape(main).iter().map(|&n| space.axis(n)).collect();
    let uses = BTreeMap::from([(main, vec![Use { map: root.clone(), prologue: false, times: 1. }])]);
    let mut r = CheckedRegion {
        dag,
        members,
        machine,
        space,
        main,
        root,
        uses,
        price: Price::default(),
        anchor: None,
        scores: None,
        reads_once: false,
        dual: None,
        operands: vec![],
        rows: None,
        place: None,
        levels: 0,
    };
    for &v in members.iter().rev() {
        r.visit(v, outs)?;
    }
    // Values with uses that are not members are read from memory.
    if r.uses.len() + outs.len() > members.len() + MAX_BUFFERS {
        return Err(Reject::TooLarge);
    }
    r.agree(members, outs)?;
    Ok(r.priced(members))
}

/// A fallback shares a kernel only with its further results.
fn fallback(dag: &Dag, members: &[usize], machine: &Hardware) -> Result<Price, Reject> {
    let first = members[0];
    let ours = |&v: &usize| v == first || (dag.class[v] == Class::Result && dag.args(v) == [first]);
    if !dag.class[first].is_opaque() || !members.iter().all(ours) {
        return Err(Reject::Fallback);
    }
    Ok(alone(dag, first, machine, None))
}

impl CheckedRegion<'_> {
    /// Deduplicates and checks the uses of `v`, and adds those of its operands.
    fn visit(&mut self, v: usize, outs: &[usize]) -> Result<(), Reject> {
        if outs.binary_search(&v).is_ok() {
            self.store(v)?;
        }
        let (class, mut done) = (self.dag.class[v], Vec::<Use>::new());
        for mut u in self.uses.get(&v).cloned().unwrap_or_default() {
            self.space.refresh(&mut u.map);
            if done.iter().any(|o| o.map == u.map && o.prologue == u.prologue) {
                continue;
            }
            if u.prologue && !matches!(class, Class::Leaf | Class::View) {
                self.prologue(v)?;
            }
            if done.len() >= MAX_USES {
                return Err(Reject::RecomputedTooOften);
            }
            let reach = match class {
                Class::Leaf | Class::Fallback | Class::Launch | Class::Result => return Err(Reject::Fallback),
                Class::Generator => vec![],
                Class::View => vec![(self.dag.args(v)[0], self.view(v, &u.map))],
                Class::Pointwise => self.pointwise(v, &u),
                Class::Movement => self.movement(v, &u),
                Class::Reduce | Class::ArgReduce | Class::Row => self.row(v, &u)?,
                Class::Matmul => self.anchor(v, &u, done.first(), Anchor::Matmul)?,
                Class::Attention => self.anchor(v, &u, done.first(), Anchor::Attention)?,
                Class::Scan => self.anchor(v, &u, done.first(), Anchor::Scan)?,
                Class::Conv => self.anchor(v, &u, done.first(), Anchor::Conv)?,
                Class::Pool => self.anchor(v, &u, done.first(), Anchor::Pool)?,
                Class::Scatter => self.anchor(v, &u, done.first(), Anchor::Scatter)?,
            };
            for (i, (a, map)) in reach.into_iter().enumerate() {
                let of_score = class == Class::Attention && i >= OF_SCORES;
                let prologue = u.prologue || (class.is_anchor() && !class.computes_operands() && !of_score);
                let again = (self.dag.count(v) / self.dag.count(a).max(1.) / 64.).max(1.);
                let times = u.times * if class == Class::Pointwise { again } else { 1. };
                self.uses.entry(a).or_default().push(Use { map, prologue, times });
            }
            done.push(u);
        }
        self.uses.insert(v, done);
        Ok(())
    }

    /// A stored value must be computed in full, in the order of the iteration space or of its rows. One that no other
    /// member reads gets its map from the main output.
    fn store(&mut self, v: usize) -> Result<(), Reject> {
        self.price.written += self.dag.bytes(v);
        if v == self.main {
            return Ok(());
        }
        let (shape, dag) = (self.dag.shape(v), self.dag);
        if dag.count(v) == dag.count(self.main) {
            let map = self.space.reshape(&self.root.clone(), dag.shape(self.main), shape);
            let map = map.ok_or(Reject::OutputNotCovered)?;
            let uses = self.uses.entry(v).or_default();
            uses.insert(0, Use { map, prologue: false, times: 1. });
            return Ok(());
        }
        // Probably the result of a reduction, stored next to full rows; `row_sized` checks that at the end.
        if !self.uses.contains_key(&v) {
            let main = dag.shape(self.main);
            let fits = shape.len() == main.len() && shape.iter().zip(main).all(|(&a, &b)| a == 1 || a == b);
            if !fits {
                return Err(Reject::OutputNotCovered);
            }
            let map = align(shape, main.len(), &self.root);
            self.uses.insert(v, vec![Use { map, prologue: false, times: 1. }]);
        }
        Ok(())
    }
    /// Outputs that are not full-size must have one element per row, in the order of the rows.
    fn row_sized(&self, v: usize) -> Result<(), Reject> {
        let Some(rows) = &self.rows else { return Err(Reject::OutputNotCovered) };
        let across: Vec<Atom> = self.space.now(&rows.across.iter().copied().collect::<Vec<_>>());
        let in_order: Vec<Atom> = self.space.flat(&self.root).into_iter().filter(|a| across.contains(a)).collect();
        let covers =
            |u: &Use| !u.prologue && self.space.whole(&u.map, self.dag.shape(v)) && self.space.flat(&u.map) == in_order;
        let covered = self.uses.get(&v).is_some_and(|us| us.iter().any(covers));
        if covered { Ok(()) } else { Err(Reject::OutputNotCovered) }
    }

    /// Map of a view's operand.
    fn view(&mut self, v: usize, m: &Map) -> Map {
        let (dag, a) = (self.dag, self.dag.args(v)[0]);
        let mut out = m.clone();
        match dag.op(v) {
            Op::Permute(p) => {
                for (i, &p) in p.iter().enumerate() {
                    out[p] = m[i].clone();
                }
            }
            Op::Slice { axis, start, len, step } => {
                // A slice of one element ignores its step, which may be any number.
                let (w, step) = (&mut out[*axis], if *len > 1 { *step as i64 } else { 1 });
                (w.from, w.step) = (*start as i64 + step * w.from, step * w.step);
            }
            Op::Flip(axes) => {
                for &axis in axes {
                    let w = &mut out[axis];
                    (w.from, w.step) = (dag.shape(v)[axis] as i64 - 1 - w.from, -w.step);
                }
            }
            Op::Broadcast(_) => out = align(dag.shape(a), m.len(), m),
            Op::Reshape(_) => {
                let (to, from) = (dag.shape(a), dag.shape(v));
                out = self.space.reshape(m, from, to).unwrap_or_else(|| self.space.unknown(m, to.len()));
            }
            // Other views are not followed.
            _ => out = self.space.unknown(m, dag.shape(a).len()),
        }
        out
    }

    fn pointwise(&mut self, v: usize, u: &Use) -> Vec<(usize, Map)> {
        let (dag, rank) = (self.dag, u.map.len());
        let count = self.computed(&u.map).unwrap_or(dag.count(v) * u.times);
        self.price.other += dag.op(v).weight() * count;
        let per_channel = matches!(dag.op(v), Op::BatchNorm { .. });
        let args = dag.args(v).iter().enumerate();
        args.map(|(i, &a)| {
            let map = if per_channel && i > 0 { vec![u.map[1].clone()] } else { align(dag.shape(a), rank, &u.map) };
            (a, map)
        })
        .collect()
    }

    fn movement(&mut self, v: usize, u: &Use) -> Vec<(usize, Map)> {
        let (dag, m, args) = (self.dag, &u.map, self.dag.args(v));
        self.price.other += dag.count(v) * u.times;
        match dag.op(v) {
            Op::Pad { lo, .. } => {
                let mut map = m.clone();
                for (w, lo) in map.iter_mut().zip(lo) {
                    w.from -= lo;
                }
                vec![(args[0], map), (args[1], vec![])]
            }
            Op::Concat { axis } => {
                let mut at = 0;
                let part = |&a: &usize| {
                    let mut map = m.clone();
                    map[*axis].from -= at;
                    at += dag.shape(a)[*axis] as i64;
                    (a, map)
                };
                args.iter().map(part).collect()
            }
            Op::Gather { axis } => {
                let mut table = m.clone();
                table[*axis] = AxisMap::computed(table[*axis].atoms.clone());
                vec![(args[0], table), (args[1], m.clone())]
            }
            // The axes of the index replace the table's axis.
            Op::Take { axis } => {
                let index = m[*axis..axis + dag.shape(args[1]).len()].to_vec();
                let mut table = m[..*axis].to_vec();
                table.push(AxisMap::computed(self.space.flat(&index)));
                table.extend_from_slice(&m[axis + index.len()..]);
                vec![(args[0], table), (args[1], index)]
            }
            // Other ops are not followed.
            _ => args.iter().map(|&a| (a, self.space.unknown(m, dag.shape(a).len()))).collect(),
        }
    }

    /// Checks that need the whole region, once all maps are known.
    fn agree(&mut self, members: &[usize], outs: &[usize]) -> Result<(), Reject> {
        let small: Vec<usize> =
            outs.iter().copied().filter(|&v| self.dag.count(v) != self.dag.count(self.main)).collect();
        for &v in &small {
            self.row_sized(v)?;
        }
        if !small.is_empty() && !reads_rows(self.dag, members, self.main) {
            return Err(Reject::RowsOfOtherOutput);
        }
        if let Some(place) = self.place {
            let mut end = self.main;
            while matches!(self.dag.op(end), Op::Reshape(_)) && members.binary_search(&end).is_ok() {
                end = self.dag.args(end)[0];
            }
            let reduces = |v: &usize| matches!(self.dag.class[*v], Class::Reduce | Class::Row);
            if end != place || outs.len() > 1 || members.iter().any(reduces) {
                return Err(Reject::PlaceReductionNotAlone);
            }
        }
        let Some(anchor) = self.anchor else { return Ok(()) };
        self.price.needs.computed = self.computed_operands();
        self.price.needs.row_reduction = self.rows.is_some();
        if self.rows.is_some() && !self.fits_tile(anchor) {
            return Err(Reject::RowReductionAfterMatmul);
        }
        let needs = self.price.needs;
        let has_form = |v: &usize| {
            let forms = &self.dag.nodes[*v].value.forms;
            forms.is_empty() || forms.iter().any(|form| form.can_fuse(needs))
        };
        if !members.iter().all(has_form) {
            return Err(match needs {
                FormNeeds { row_reduction: true, .. } => Reject::RowReductionAfterMatmul,
                FormNeeds { dual: true, .. } => Reject::TwoAnchors,
                FormNeeds { .. } => Reject::ArithmeticBeforeMatmul,
            });
        }
        if outs.len() > 1 {
            return Err(Reject::SecondOutputOfAnchor);
        }
        let dag = self.dag;
        let held = |a: &usize| members.binary_search(a).is_ok();
        let any = |class: Class| members.iter().any(|&v| dag.class[v] == class);
        match dag.class[anchor] {
            Class::Scan => return Ok(()),
            Class::Scatter if anchor != self.main => return Err(Reject::ViewAfterAnchor),
            Class::Scatter if [Class::Reduce, Class::ArgReduce, Class::Row].into_iter().any(any) => {
                return Err(Reject::AnchorNeedsStoredOperands);
            }
            Class::Scatter => return Ok(()),
            Class::Conv | Class::Pool if dag.args(anchor).iter().any(held) => {
                return Err(Reject::AnchorNeedsStoredOperands);
            }
            Class::Attention if !self.computes_scores_alone(anchor) => return Err(Reject::ArithmeticAroundAttention),
            _ => {}
        }
        if any(Class::Movement) {
            return Err(Reject::DataMovementAfterMatmul);
        }
        let outside = |v: &usize| members.binary_search(v).is_err();
        // Masks are read element by element.
        let copied = |u: &&Use| u.prologue || dag.class[anchor] != Class::Attention;
        let computed = |us: &Vec<Use>| us.iter().filter(copied).any(|u| u.map.iter().any(|w| w.computed));
        if self.uses.iter().any(|(v, us)| outside(v) && computed(us)) {
            return Err(Reject::OperandNotStrided);
        }
        self.strided_operands(anchor, members)
    }
}
