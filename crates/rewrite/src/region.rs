//! Can one kernel hold a set of values, and what does it cost? Legality is a fact about a whole region, never about a pair.
//!
//! Walking backward from the outputs, every value gets its access maps (`space`). A reduction fixes the kernel's rows: all
//! reductions must agree on which atoms choose a row and which run along it. An anchor (matrix product, attention, …) is computed
//! whole, once. What lowering can do is written here and nowhere else; every refusal has a name.
use crate::class::{Class, weight};
use crate::cost::{Price, matrix_flops};
use crate::dag::Dag;
use crate::space::{Atom, Map, Space, Walk, align};
use kiln_graph::Op;
use kiln_plan::{KernelKind, Machine};
use std::collections::{BTreeMap, BTreeSet};

/// Why a region is not one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Reject {
    TwoAnchors,
    RowsDiffer,
    RowReductionAfterProduct,
    RowReductionBeforeProduct,
    ArithmeticBeforeProduct,
    ArithmeticAroundAttention,
    OperandNotStrided,
    AnchorRecomputed,
    AnchorNeedsStoredOperands,
    ViewAfterAnchor,
    DataMovementAfterProduct,
    OutputNotCovered,
    OutputPermutedAfterReduction,
    SecondOutputOfAnchor,
    PlaceReductionNotAlone,
    ScanSpaceDiffers,
    RecomputedTooOften,
    TooLarge,
    Empty,
    Fallback,
}

impl Reject {
    pub fn name(self) -> &'static str {
        use Reject::*;
        match self {
            TwoAnchors => "two anchors",
            RowsDiffer => "rows differ",
            RowReductionAfterProduct => "row reduction after a product",
            RowReductionBeforeProduct => "row reduction before a product",
            ArithmeticBeforeProduct => "arithmetic before a product",
            ArithmeticAroundAttention => "arithmetic around attention",
            OperandNotStrided => "operand is not a strided matrix",
            AnchorRecomputed => "product would be computed again",
            AnchorNeedsStoredOperands => "operands must be in memory",
            ViewAfterAnchor => "view after an anchor",
            DataMovementAfterProduct => "data movement after a product",
            OutputNotCovered => "output not covered by the iteration space",
            OutputPermutedAfterReduction => "output permuted after a reduction",
            SecondOutputOfAnchor => "second output of an anchor",
            PlaceReductionNotAlone => "argmax stands alone",
            ScanSpaceDiffers => "scan over another space",
            RecomputedTooOften => "recomputed too often",
            TooLarge => "kernel too large",
            Empty => "empty tensor",
            Fallback => "fallback stands alone",
        }
    }
}

/// Values in one kernel; past this, compile time outweighs any saving.
const MAX_MEMBERS: usize = 160;
/// Different ways to reach one value; each is computed apart.
const MAX_USES: usize = 8;

/// One way a value is reached.
#[derive(Clone, PartialEq)]
struct Use {
    map: Map,
    /// Through an operand of the anchor.
    prologue: bool,
    /// How often each element is computed.
    times: f64,
}

/// Rows of a kernel: the atoms that choose a row, in no order, and those along it, outermost first.
struct Rows {
    across: BTreeSet<Atom>,
    along: Vec<Atom>,
}

struct Region<'a> {
    dag: &'a Dag,
    machine: &'a Machine,
    space: Space,
    /// The output whose shape is the iteration space.
    main: usize,
    root: Map,
    uses: BTreeMap<usize, Vec<Use>>,
    price: Price,
    anchor: Option<usize>,
    /// Groups of atoms that must be one strided range each, per operand of the anchor.
    operands: Vec<(usize, Vec<Map>)>,
    rows: Option<Rows>,
    place: Option<usize>,
    /// Reductions that follow one another at most.
    levels: usize,
}

/// The output whose shape is the kernel's iteration space: the largest, and of those the last.
pub fn main_output(dag: &Dag, outs: &[usize]) -> Option<usize> {
    outs.iter().copied().max_by(|&a, &b| dag.count(a).total_cmp(&dag.count(b)).then(a.cmp(&b)))
}

/// The family `members` are lowered by.
pub fn kind(dag: &Dag, members: &[usize]) -> KernelKind {
    let of = |v: &usize| match dag.class[*v] {
        Class::Product => KernelKind::Gemm,
        Class::Attention => KernelKind::Attention,
        Class::Conv => KernelKind::Conv,
        Class::Pool => KernelKind::Pool,
        Class::Scatter => KernelKind::Scatter,
        Class::Scan => KernelKind::Scan,
        Class::Fallback => KernelKind::Fallback,
        Class::Reduce | Class::ArgReduce | Class::Row => KernelKind::Reduction,
        _ => KernelKind::Pointwise,
    };
    members.iter().map(of).max().unwrap_or(KernelKind::Pointwise)
}

/// Checks one kernel that computes `members` (ascending) and stores `outs`, and prices it.
pub fn check(dag: &Dag, members: &[usize], outs: &[usize], machine: &Machine) -> Result<Price, Reject> {
    if members.iter().any(|&v| dag.class[v] == Class::Fallback) {
        return fallback(dag, members, machine);
    }
    let empty = |v: &usize| dag.count(*v) == 0. || dag.args(*v).iter().any(|&a| dag.count(a) == 0.);
    if members.iter().any(empty) {
        return if members.len() == 1 { Ok(alone(dag, members[0], machine)) } else { Err(Reject::Empty) };
    }
    if members.len() > MAX_MEMBERS {
        return Err(Reject::TooLarge);
    }
    let main = main_output(dag, outs).ok_or(Reject::OutputNotCovered)?;
    let mut space = Space::default();
    let root: Map = dag.shape(main).iter().map(|&n| space.axis(n)).collect();
    let uses = BTreeMap::from([(main, vec![Use { map: root.clone(), prologue: false, times: 1. }])]);
    let mut r = Region {
        dag,
        machine,
        space,
        main,
        root,
        uses,
        price: Price::default(),
        anchor: None,
        operands: vec![],
        rows: None,
        place: None,
        levels: 0,
    };
    for &v in members.iter().rev() {
        r.visit(v, outs)?;
    }
    r.agree(members, outs)?;
    Ok(r.priced(members))
}

/// A fallback stands alone with its further results.
fn fallback(dag: &Dag, members: &[usize], machine: &Machine) -> Result<Price, Reject> {
    let first = members[0];
    let ours = |&v: &usize| v == first || (dag.class[v] == Class::Result && dag.args(v) == [first]);
    if dag.class[first] != Class::Fallback || !members.iter().all(ours) {
        return Err(Reject::Fallback);
    }
    Ok(alone(dag, first, machine))
}

/// Price of one op that reads its operands and writes its result.
pub fn alone(dag: &Dag, v: usize, machine: &Machine) -> Price {
    let matrix = matrix_flops(dag, v);
    let price = Price {
        read: dag.args(v).iter().map(|&a| dag.bytes(a)).sum(),
        written: dag.bytes(v),
        matrix,
        matrix_seconds: matrix / machine.matrix_rate(dag.ty(v).dtype),
        other: weight(dag.op(v)) * dag.count(v),
        seconds: 0.,
    };
    price.timed(machine)
}

impl Region<'_> {
    /// Works out how `v` is reached and reaches its operands.
    fn visit(&mut self, v: usize, outs: &[usize]) -> Result<(), Reject> {
        if outs.contains(&v) {
            self.store(v)?;
        }
        let (class, mut done) = (self.dag.class[v], Vec::<Use>::new());
        for mut u in self.uses.get(&v).cloned().unwrap_or_default() {
            self.space.refresh(&mut u.map);
            if done.iter().any(|o| o.map == u.map && o.prologue == u.prologue) {
                continue;
            }
            if u.prologue && !class.is_free() {
                return Err(match class {
                    c if c.is_anchor() => Reject::TwoAnchors,
                    Class::Reduce | Class::ArgReduce | Class::Row => Reject::RowReductionBeforeProduct,
                    _ => Reject::ArithmeticBeforeProduct,
                });
            }
            if done.len() >= MAX_USES {
                return Err(Reject::RecomputedTooOften);
            }
            let reach = match class {
                Class::Leaf | Class::Fallback | Class::Result => return Err(Reject::Fallback),
                Class::Generator if u.prologue => return Err(Reject::AnchorNeedsStoredOperands),
                Class::Generator => vec![],
                Class::View => vec![(self.dag.args(v)[0], self.view(v, &u.map))],
                Class::Pointwise => self.pointwise(v, &u),
                Class::Movement => self.movement(v, &u),
                Class::Reduce | Class::ArgReduce | Class::Row => self.row(v, &u)?,
                _ if !done.is_empty() => return Err(Reject::AnchorRecomputed),
                _ => self.anchor(v, &u)?,
            };
            let prologue = u.prologue || (class.is_anchor() && class != Class::Scan);
            for (a, map) in reach {
                let again = (self.dag.count(v) / self.dag.count(a).max(1.) / 64.).max(1.);
                let times = u.times * if class == Class::Pointwise { again } else { 1. };
                self.uses.entry(a).or_default().push(Use { map, prologue, times });
            }
            done.push(u);
        }
        self.uses.insert(v, done);
        Ok(())
    }

    /// A stored value must be computed in full, in the order of the iteration space or of its rows. One that no other member reads
    /// is walked along the main output.
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
        // The result of a reduction beside full rows; whether it is one is known at the end (`row_sized`).
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
    /// Outputs that are not full-size have one element per row, in the order of the rows.
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
            Op::Slice { axis, start, step, .. } => {
                let w = &mut out[*axis];
                (w.from, w.step) = (*start as i64 + *step as i64 * w.from, *step as i64 * w.step);
            }
            Op::Flip(axes) => {
                for &axis in axes {
                    let w = &mut out[axis];
                    (w.from, w.step) = (dag.shape(v)[axis] as i64 - 1 - w.from, -w.step);
                }
            }
            Op::Broadcast(_) => out = align(dag.shape(a), m.len(), m),
            _ => {
                let (to, from) = (dag.shape(a), dag.shape(v));
                out = self.space.reshape(m, from, to).unwrap_or_else(|| self.space.unknown(m, to.len()));
            }
        }
        out
    }

    fn pointwise(&mut self, v: usize, u: &Use) -> Vec<(usize, Map)> {
        let (dag, rank) = (self.dag, u.map.len());
        self.price.other += weight(dag.op(v)) * dag.count(v) * u.times;
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
                table[*axis] = Walk::computed(table[*axis].atoms.clone());
                vec![(args[0], table), (args[1], m.clone())]
            }
            // Take, the only other movement: the index's axes stand where the table's axis stood.
            op => {
                let axis = if let Op::Take { axis } = op { *axis } else { 0 };
                let index = m[axis..axis + dag.shape(args[1]).len()].to_vec();
                let mut table = m[..axis].to_vec();
                table.push(Walk::computed(self.space.flat(&index)));
                table.extend_from_slice(&m[axis + index.len()..]);
                vec![(args[0], table), (args[1], index)]
            }
        }
    }

    /// A reduction, or an op that reads and writes whole rows.
    fn row(&mut self, v: usize, u: &Use) -> Result<Vec<(usize, Map)>, Reject> {
        let (dag, rank, class) = (self.dag, u.map.len(), self.dag.class[v]);
        if u.map.iter().any(|w| w.computed) {
            return Err(Reject::RowsDiffer);
        }
        if class == Class::ArgReduce && self.place.replace(v).is_some() {
            return Err(Reject::PlaceReductionNotAlone);
        }
        let args = dag.args(v);
        let x = args[0];
        let mut m = u.map.clone();
        let axes: Vec<usize> = match dag.op(v) {
            Op::Reduce { axes, .. } => axes.clone(),
            Op::Softmax { axis } | Op::LogSoftmax { axis } => vec![*axis],
            Op::LayerNorm { axes, .. } => (rank - axes..rank).collect(),
            Op::GroupNorm { .. } => (2..rank).collect(),
            _ => vec![rank - 1],
        };
        let mut outer: Vec<Walk> = (0..rank).filter(|i| !axes.contains(i)).map(|i| m[i].clone()).collect();
        let mut sizes: Vec<usize> = axes.iter().map(|&a| dag.shape(x)[a]).collect();
        let mut inner: Vec<Atom> = self.space.flat(&axes.iter().map(|&a| m[a].clone()).collect::<Vec<_>>());
        if let Op::GroupNorm { groups, .. } = dag.op(v) {
            let channels = dag.shape(x)[1];
            let dealt =
                self.space.deal(&m[1].atoms, &[*groups, channels / (*groups).max(1)]).ok_or(Reject::RowsDiffer)?;
            outer[1] = dealt[0].clone();
            inner.splice(0..0, dealt[1].atoms.clone());
            sizes.insert(0, channels / (*groups).max(1));
            self.space.refresh(&mut m);
        }
        if outer.iter().any(|w| w.from != 0 || w.step != 1) {
            return Err(Reject::RowsDiffer);
        }
        let along = self.join_rows(&outer, &sizes)?;
        if class == Class::Row {
            let whole = axes.iter().all(|&a| m[a].from == 0 && m[a].step == 1);
            if !whole || self.space.now(&inner) != self.space.now(&along) {
                return Err(Reject::RowsDiffer);
            }
        } else {
            let dealt = self.space.deal(&along, &sizes).ok_or(Reject::RowsDiffer)?;
            for (&a, w) in axes.iter().zip(dealt) {
                m[a] = w;
            }
        }
        self.space.refresh(&mut m);
        self.in_order(&m, &outer)?;
        self.levels += if class == Class::Row { 2 } else { 1 };
        self.price.other += weight(dag.op(v)) * dag.count(x);
        let per_channel = matches!(dag.op(v), Op::GroupNorm { .. });
        let gains = args[1..]
            .iter()
            .map(|&a| (a, if per_channel { vec![m[1].clone()] } else { align(dag.shape(a), rank, &m) }));
        let mut reach: Vec<(usize, Map)> = gains.collect();
        reach.push((x, m));
        Ok(reach)
    }

    /// Makes the kernel's rows, or checks that these are the same; gives the atoms along a row.
    fn join_rows(&mut self, outer: &[Walk], sizes: &[usize]) -> Result<Vec<Atom>, Reject> {
        let across: BTreeSet<Atom> = self.space.flat(outer).into_iter().collect();
        let all = self.space.flat(&self.root);
        let along = match self.rows.take() {
            Some(rows) => {
                let known: Vec<Atom> = rows.across.into_iter().collect();
                if self.space.now(&known).into_iter().collect::<BTreeSet<_>>() != across {
                    return Err(Reject::RowsDiffer);
                }
                self.space.now(&rows.along)
            }
            None => {
                let rest: Vec<Atom> = all.iter().copied().filter(|a| !across.contains(a)).collect();
                if rest.is_empty() { sizes.iter().flat_map(|&s| self.space.axis(s).atoms).collect() } else { rest }
            }
        };
        let extent: i64 = sizes.iter().map(|&s| s as i64).product();
        if self.space.extent(&along) != extent || all.iter().any(|a| !across.contains(a) && !along.contains(a)) {
            return Err(Reject::RowsDiffer);
        }
        self.rows = Some(Rows { across, along: along.clone() });
        Ok(along)
    }

    /// Between a reduction and the output nothing is permuted: rows are stored in the order they are computed in.
    fn in_order(&self, operand: &Map, outer: &[Walk]) -> Result<(), Reject> {
        let root = self.space.flat(&self.root);
        let (full, rows) = (self.space.flat(operand), self.space.flat(outer));
        if root == full || root == rows { Ok(()) } else { Err(Reject::OutputPermutedAfterReduction) }
    }

    /// An op that is computed whole and once, in tiles of its own.
    fn anchor(&mut self, v: usize, u: &Use) -> Result<Vec<(usize, Map)>, Reject> {
        if self.anchor.replace(v).is_some() {
            return Err(Reject::TwoAnchors);
        }
        let (dag, m) = (self.dag, &u.map);
        let walked: BTreeSet<Atom> = self.space.flat(m).into_iter().collect();
        if !self.space.whole(m, dag.shape(v)) || !self.space.flat(&self.root).iter().all(|a| walked.contains(a)) {
            return Err(Reject::AnchorRecomputed);
        }
        let flops = matrix_flops(dag, v);
        self.price.matrix += flops;
        self.price.matrix_seconds += flops / self.machine.matrix_rate(dag.ty(v).dtype);
        let same_space = dag.shape(v) == dag.shape(self.main) && self.space.flat(m) == self.space.flat(&self.root);
        let args = dag.args(v).to_vec();
        match dag.op(v) {
            Op::Dot => Ok(self.dot(&args, m)),
            Op::Linear => Ok(self.linear(&args, m)),
            Op::Attention { .. } => Ok(self.attention(v, &args, m)),
            Op::Scan { .. } => {
                self.price.other += dag.count(v);
                if same_space { Ok(vec![(args[0], m.clone())]) } else { Err(Reject::ScanSpaceDiffers) }
            }
            op => {
                self.price.other += match op {
                    Op::Pool { window, .. } => dag.count(v) * window.iter().map(|&w| w as f64).product::<f64>(),
                    _ => 0.,
                };
                if !same_space {
                    return Err(Reject::ViewAfterAnchor);
                }
                // Operands are walked by windows of their own.
                Ok(args.iter().map(|&a| (a, dag.shape(a).iter().map(|&n| self.space.axis(n)).collect())).collect())
            }
        }
    }
    fn dot(&mut self, args: &[usize], m: &Map) -> Vec<(usize, Map)> {
        let (dag, lead) = (self.dag, m.len() - 2);
        let k = self.space.axis(dag.shape(args[0]).last().copied().unwrap_or(1));
        let mut put = |a: usize, row: &Walk, column: &Walk| {
            let s = dag.shape(a);
            let mut map = align(&s[..s.len() - 2], lead, &m[..lead]);
            map.extend([row.clone(), column.clone()]);
            self.operands.push((a, vec![vec![row.clone()], vec![column.clone()]]));
            (a, map)
        };
        vec![put(args[0], &m[lead], &k), put(args[1], &k, &m[lead + 1])]
    }
    fn linear(&mut self, args: &[usize], m: &Map) -> Vec<(usize, Map)> {
        let lead = m.len() - 1;
        let k = self.space.axis(self.dag.shape(args[1])[1]);
        let x: Map = [&m[..lead], std::slice::from_ref(&k)].concat();
        let w = vec![m[lead].clone(), k.clone()];
        self.operands.push((args[0], vec![m[..lead].to_vec(), vec![k.clone()]]));
        self.operands.push((args[1], vec![vec![m[lead].clone()], vec![k]]));
        let mut reach = vec![(args[0], x), (args[1], w)];
        reach.extend(args.get(2).map(|&b| (b, vec![m[lead].clone()])));
        reach
    }
    fn attention(&mut self, v: usize, args: &[usize], m: &Map) -> Vec<(usize, Map)> {
        let (dag, lead) = (self.dag, m.len() - 2);
        let (q, k) = (dag.shape(args[0]), dag.shape(args[1]));
        let (keys, depth) = (self.space.axis(k[lead]), self.space.axis(q[lead + 1]));
        self.price.other += 12. * dag.count(v) / dag.shape(v)[lead + 1].max(1) as f64 * k[lead] as f64;
        // A key head serves a group of query heads, which are next to one another.
        let mut shared = m[..lead].to_vec();
        if lead > 0 && q[lead - 1] != k[lead - 1] {
            let heads = k[lead - 1].max(1);
            let dealt = self.space.deal(&m[lead - 1].atoms, &[heads, q[lead - 1] / heads]);
            shared[lead - 1] = dealt.map_or(Walk::computed(vec![]), |d| d[0].clone());
        }
        let with = |outer: &[Walk], a: &Walk, b: &Walk| -> Map { [outer, &[a.clone(), b.clone()]].concat() };
        let maps =
            [with(&m[..lead], &m[lead], &depth), with(&shared, &keys, &depth), with(&shared, &keys, &m[lead + 1])];
        let mut reach = vec![];
        for (&a, map) in args.iter().zip(maps) {
            self.operands.push((a, map.iter().map(|w| vec![w.clone()]).collect()));
            reach.push((a, map));
        }
        if let Some(&mask) = args.get(3) {
            let map = align(dag.shape(mask), lead + 2, &with(&m[..lead], &m[lead], &keys));
            reach.push((mask, map));
        }
        reach
    }

    /// What only the whole region can tell, once all maps are known.
    fn agree(&mut self, members: &[usize], outs: &[usize]) -> Result<(), Reject> {
        for &v in outs.iter().filter(|&&v| self.dag.count(v) != self.dag.count(self.main)) {
            self.row_sized(v)?;
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
        if self.rows.is_some() {
            return Err(Reject::RowReductionAfterProduct);
        }
        if outs.len() > 1 {
            return Err(Reject::SecondOutputOfAnchor);
        }
        let dag = self.dag;
        let held = |a: &usize| members.binary_search(a).is_ok();
        let any = |class: Class| members.iter().any(|&v| dag.class[v] == class);
        match dag.class[anchor] {
            Class::Scan => return Ok(()),
            Class::Scatter if members.len() > 1 => return Err(Reject::AnchorNeedsStoredOperands),
            Class::Conv | Class::Pool if dag.args(anchor).iter().any(held) => {
                return Err(Reject::AnchorNeedsStoredOperands);
            }
            Class::Attention if any(Class::Pointwise) || any(Class::Movement) => {
                return Err(Reject::ArithmeticAroundAttention);
            }
            Class::Attention if dag.args(anchor).get(3).is_some_and(held) => {
                return Err(Reject::AnchorNeedsStoredOperands);
            }
            _ => {}
        }
        if any(Class::Movement) {
            return Err(Reject::DataMovementAfterProduct);
        }
        let outside = |v: &usize| members.binary_search(v).is_err();
        let computed = |us: &Vec<Use>| us.iter().any(|u| u.map.iter().any(|w| w.computed));
        if self.uses.iter().any(|(v, us)| outside(v) && computed(us)) {
            return Err(Reject::OperandNotStrided);
        }
        self.strided_operands(anchor, members)
    }

    /// Operands of products and attention are matrices of even strides in memory, and so is attention's result.
    fn strided_operands(&self, anchor: usize, members: &[usize]) -> Result<(), Reject> {
        for (a, groups) in &self.operands {
            let mut leaf = *a;
            while members.binary_search(&leaf).is_ok() {
                leaf = *self.dag.args(leaf).first().ok_or(Reject::OperandNotStrided)?;
            }
            let uses = self.uses.get(&leaf).map_or(&[][..], Vec::as_slice);
            for u in uses.iter().filter(|u| u.prologue) {
                let strides = self.space.strides(&u.map, self.dag.shape(leaf)).ok_or(Reject::OperandNotStrided)?;
                // A leaf that is several operands is checked for each with the use that has its atoms.
                let flat: Vec<Atom> = groups.iter().flat_map(|g| self.space.flat(g)).collect();
                if uses.len() > 1 && !flat.iter().all(|a| strides.iter().any(|s| s.0 == *a)) {
                    continue;
                }
                self.even(groups, &strides)?;
            }
        }
        if self.dag.class[anchor] == Class::Attention {
            let strides = self.space.strides(&self.root, self.dag.shape(self.main)).ok_or(Reject::OperandNotStrided)?;
            let result = self.uses.get(&anchor).and_then(|u| u.first()).ok_or(Reject::OutputNotCovered)?;
            self.even(&result.map.iter().map(|w| vec![w.clone()]).collect::<Vec<_>>(), &strides)?;
        }
        Ok(())
    }
    fn even(&self, groups: &[Map], strides: &[(Atom, i64)]) -> Result<(), Reject> {
        for g in groups {
            let stride = |a: Atom| (a, strides.iter().find(|s| s.0 == a).map_or(0, |s| s.1));
            let group: Vec<(Atom, i64)> = self.space.flat(g).into_iter().map(stride).collect();
            if group.iter().any(|s| s.1 <= 0) || !self.space.strided(&group) {
                return Err(Reject::OperandNotStrided);
            }
        }
        Ok(())
    }

    /// Adds what is read, once all maps are known.
    fn priced(mut self, members: &[usize]) -> Price {
        let row: Vec<Atom> = self.rows.as_ref().map(|r| self.space.now(&r.along)).unwrap_or_default();
        let innermost = |m: &Map| m.iter().rev().find_map(|w| self.space.now(&w.atoms).pop());
        let lane = innermost(&self.root);
        let inputs: Vec<(usize, &Vec<Use>)> =
            self.uses.iter().filter(|(v, _)| members.binary_search(v).is_err()).map(|(&v, us)| (v, us)).collect();
        let on_row =
            |us: &[Use]| !row.is_empty() && us.iter().any(|u| row.iter().all(|a| self.space.flat(&u.map).contains(a)));
        let live = 1. + inputs.iter().filter(|(_, us)| on_row(us)).count() as f64;
        // A row that does not fit on chip is legal: it is read again for every reduction.
        let wide = self.space.extent(&row) as f64 * 4. * live > self.machine.on_chip as f64;
        let passes = if wide { 1. + self.levels as f64 } else { 1. };
        let mut read = 0.;
        for (v, us) in inputs {
            let touched = |u: &Use| -> f64 {
                let axes = u.map.iter().zip(self.dag.shape(v));
                axes.map(|(w, &s)| self.space.extent(&self.space.now(&w.atoms)).min(s as i64) as f64).product()
            };
            let crosses =
                |u: &Use| innermost(&u.map) != lane && lane.is_some_and(|l| self.space.flat(&u.map).contains(&l));
            let transposed = self.anchor.is_none() && us.iter().any(crosses);
            let bytes = us.iter().map(touched).fold(0., f64::max) * self.dag.ty(v).dtype.bytes() as f64;
            read += bytes * if on_row(us) { passes } else { 1. } * if transposed { 1.1 } else { 1. };
        }
        self.price.read = read;
        self.price.timed(self.machine)
    }
}
