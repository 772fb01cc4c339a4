//! What is computed of each value if only parts of the outputs are wanted, and how much work that is.
//!
//! Goes from the outputs to the leaves, once. What is wanted of a value is a region ([`super::region`]), so several
//! uses are widened to the smallest region that contains them; an op that needs whole rows, windows or operands widens
//! too.
use super::region::{Positions, Region, before_reshape, union, whole};
use kiln_graph::{Graph, Op, ValueId, random::mixed};

/// Units of [`Demand::work`] for an element: about what an element takes beside an FMA.
const ELEMENT: u64 = 8;

/// The parts of a graph's values that the wanted parts of its outputs depend on.
#[derive(Clone, Debug)]
pub struct Demand {
    /// By value; `None`: nothing depends on it.
    regions: Vec<Option<Region>>,
    outputs: Vec<Region>,
}

impl Demand {
    /// What `outputs` depend on: a region for each output of the graph.
    pub fn new(g: &Graph, outputs: Vec<Region>) -> Demand {
        let mut regions: Vec<Option<Region>> = vec![None; g.len()];
        let add = |regions: &mut Vec<Option<Region>>, v: ValueId, more: &Region| {
            let of = &mut regions[v.0 as usize];
            *of = Some(of.as_ref().map_or_else(|| more.clone(), |r| union(r, more)));
        };
        g.outputs.iter().zip(&outputs).for_each(|(v, r)| add(&mut regions, *v, r));
        for v in g.values().rev().collect::<Vec<_>>() {
            let Some(wanted) = regions[v.0 as usize].take() else { continue };
            let region = computed(g.op(v), wanted);
            for (a, need) in g.args(v).into_iter().zip(needs(g, v, &region)) {
                add(&mut regions, a, &need);
            }
            regions[v.0 as usize] = Some(region);
        }
        Demand { regions, outputs }
    }

    /// All of every output.
    pub fn whole(g: &Graph) -> Demand {
        Demand::new(g, g.outputs.iter().map(|v| whole(g.shape(*v))).collect())
    }

    /// The largest sample of the outputs that takes at most `limit` units of work: the same number of positions along
    /// every axis, the first, the last, and others at random; or all of the last axis. `None` if even a single element
    /// takes more.
    pub fn sampled(g: &Graph, limit: u64) -> Option<Demand> {
        let counts = (0..=MOST.ilog2()).rev().map(|i| 1 << i);
        let ways = counts.flat_map(|n| [(n, true), (n, false)]);
        let sample = |(n, rows): (usize, bool)| {
            let output = |(o, v): (usize, &ValueId)| {
                let shape = g.shape(*v);
                let axis = |(a, size): (usize, &usize)| match rows && a + 1 == shape.len() {
                    true => Positions::all(*size),
                    false => some(*size, n, (o * shape.len() + a) as u64),
                };
                shape.iter().enumerate().map(axis).collect()
            };
            Demand::new(g, g.outputs.iter().enumerate().map(output).collect())
        };
        ways.map(sample).find(|d| d.work(g) <= limit)
    }

    /// The wanted part of each output.
    pub fn outputs(&self) -> &[Region] {
        &self.outputs
    }
    /// What is computed of a value; `None`: nothing.
    pub(super) fn of(&self, v: ValueId) -> Option<&Region> {
        self.regions[v.0 as usize].as_ref()
    }

    /// Estimate of the interpreter's work: FMAs, and [`ELEMENT`] for each element that is computed.
    pub fn work(&self, g: &Graph) -> u64 {
        let one = |v| {
            let Some(region) = self.of(v) else { return 0 };
            let count = product(region);
            count.saturating_mul(ELEMENT).saturating_add(fmas(g, v, region))
        };
        g.values().map(one).fold(0, u64::saturating_add)
    }
}

/// Most positions along an axis of a sample: a tile of any schedule and its neighbours are hit.
const MOST: usize = 64;

/// `n` positions of an axis: the first, the last, and others at random, the same in every run.
fn some(size: usize, n: usize, seed: u64) -> Positions {
    if n >= size {
        return Positions::all(size);
    }
    let random = |i: usize| (mixed((seed << 32 ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) % size as u64) as usize;
    Positions::of(size, (0..n).map(|i| if n > 1 && i < 2 { i * (size - 1) } else { random(i) }))
}

fn product(region: &[Positions]) -> u64 {
    region.iter().fold(1, |p, n| p.saturating_mul(n.count() as u64))
}

/// FMAs (or reads of a window) beside the work for each element.
fn fmas(g: &Graph, v: ValueId, region: &Region) -> u64 {
    let (needs, count) = (needs(g, v, region), product(region));
    let axis = |operand: usize, back: usize| {
        let r = needs.get(operand);
        r.and_then(|r| r.iter().nth_back(back)).map_or(1, |p| p.count() as u64)
    };
    let each = match g.op(v) {
        Op::Dot | Op::Linear => axis(0, 0),
        Op::Conv { transposed: false, .. } => needs.get(1).map_or(1, |w| product(&w[1..])),
        Op::Conv { .. } => {
            let weights = needs.get(1).map_or(1, |w| product(&w[1..]));
            return needs.first().map_or(1, |x| product(x)).saturating_mul(weights);
        }
        Op::Attention { .. } => {
            let rows = product(&region[..region.len() - 1]);
            // Scores, a row's softmax, and the sum over values.
            return rows.saturating_mul(axis(1, 1)).saturating_mul(axis(1, 0) + axis(2, 0) + ELEMENT);
        }
        Op::Pool { window, .. } => window.iter().map(|n| *n as u64).product(),
        _ => 0,
    };
    count.saturating_mul(each)
}

/// What an op computes if `region` of its result is wanted: a region that contains it.
fn computed(op: &Op, mut region: Region) -> Region {
    let rank = region.len();
    let axes = match op {
        Op::Scan { axis, .. } | Op::Softmax { axis } | Op::LogSoftmax { axis } | Op::Scatter { axis, .. } => {
            *axis..axis + 1
        }
        Op::LayerNorm { axes, .. } => rank - axes..rank,
        Op::RmsNorm { .. } => rank - 1..rank,
        Op::GroupNorm { .. } => 1..rank,
        // Runs along the last axis are computed together.
        Op::Pool { .. } => rank - 1..rank,
        Op::Conv { groups, .. } => {
            if *groups > 1 {
                let each = (region[1].whole().count() / groups).max(1);
                let chosen = Positions::of(*groups, region[1].iter().map(|o| o / each));
                region[1] = channels(&chosen, each);
            }
            rank.saturating_sub(1).max(2)..rank
        }
        Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => 0..rank,
        _ => 0..0,
    };
    region[axes].iter_mut().for_each(|p| *p = p.whole());
    region
}

/// All channels of the chosen groups of `each`.
fn channels(groups: &Positions, each: usize) -> Positions {
    Positions::of(groups.whole().count() * each, groups.iter().flat_map(|g| g * each..(g + 1) * each))
}

/// The groups of a convolution whose results are computed.
pub(super) fn groups_of(outs: &Positions, groups: usize) -> Positions {
    let each = (outs.whole().count() / groups.max(1)).max(1);
    Positions::of(groups, outs.iter().map(|o| o / each))
}

/// An operand of shape `from` that is broadcast to `region`.
fn broadcast(from: &[usize], region: &[Positions]) -> Region {
    let lead = region.len() - from.len();
    let axis = |(i, n): (usize, &usize)| if *n == 1 { Positions::all(1) } else { region[i + lead].clone() };
    from.iter().enumerate().map(axis).collect()
}

/// The parts of the operands that `region` of a value is computed from. An op that is new here starts with whole
/// operands.
pub(super) fn needs(g: &Graph, v: ValueId, region: &Region) -> Vec<Region> {
    let args = g.args(v);
    let size = |operand: usize| g.shape(args[operand]);
    let with = |axis: usize, p: Positions| {
        let mut r = region.clone();
        r[axis] = p;
        r
    };
    let rank = region.len();
    match g.op(v) {
        Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Iota { .. } => vec![],
        Op::Unary(_) | Op::Cast(_) | Op::Softmax { .. } | Op::LogSoftmax { .. } | Op::Scan { .. } => {
            vec![region.clone()]
        }
        Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Logaddexp | Op::Broadcast(_) => {
            args.iter().map(|a| broadcast(g.shape(*a), region)).collect()
        }
        Op::Reshape(_) => vec![before_reshape(size(0), region)],
        Op::Permute(perm) => {
            let mut from = region.clone();
            perm.iter().zip(region).for_each(|(p, r)| from[*p] = r.clone());
            vec![from]
        }
        Op::Slice { axis, start, step, .. } => {
            let at = region[*axis].iter().map(|i| start + i * step);
            vec![with(*axis, Positions::of(size(0)[*axis], at))]
        }
        Op::Flip(axes) => {
            let flipped = |(i, p): (usize, &Positions)| match axes.contains(&i) {
                true => Positions::of(size(0)[i], p.iter().map(|k| size(0)[i] - 1 - k)),
                false => p.clone(),
            };
            vec![region.iter().enumerate().map(flipped).collect()]
        }
        Op::Pad { lo, .. } => {
            let inside = |(i, p): (usize, &Positions)| {
                Positions::of(size(0)[i], p.iter().filter_map(|k| usize::try_from(k as i64 - lo[i]).ok()))
            };
            vec![region.iter().enumerate().map(inside).collect(), vec![]]
        }
        Op::Concat { axis } => {
            let mut start = 0;
            let one = |a: &ValueId| {
                let n = g.shape(*a)[*axis];
                let own = region[*axis].iter().filter_map(|k| k.checked_sub(start));
                let own = Positions::of(n, own);
                start += n;
                with(*axis, own)
            };
            args.iter().map(one).collect()
        }
        Op::Gather { axis } => vec![prefix(size(0), region, *axis), region.clone()],
        Op::Take { axis } => {
            let index = size(1).len();
            let (before, after) = (&region[..*axis], &region[axis + index..]);
            let table = [before, &[Positions::all(size(0)[*axis])], after].concat();
            vec![table, region[*axis..axis + index].to_vec()]
        }
        Op::Scatter { axis, .. } => {
            // The index may be smaller than x along the other axes.
            let index = prefix(size(1), region, *axis);
            vec![region.clone(), index.clone(), index]
        }
        Op::Reduce { axes, .. } => {
            let axis =
                |(i, p): (usize, &Positions)| if axes.contains(&i) { Positions::all(size(0)[i]) } else { p.clone() };
            vec![region.iter().enumerate().map(axis).collect()]
        }
        Op::Dot => {
            let operand = |i: usize| {
                let shape = size(i);
                let batch = broadcast(&shape[..shape.len() - 2], &region[..rank - 2]);
                let k = Positions::all(shape[shape.len() - if i == 0 { 1 } else { 2 }]);
                let last = if i == 0 { [region[rank - 2].clone(), k] } else { [k, region[rank - 1].clone()] };
                [batch, last.to_vec()].concat()
            };
            vec![operand(0), operand(1)]
        }
        Op::Linear => {
            let (outs, k) = (region[rank - 1].clone(), Positions::all(size(1)[1]));
            let all = vec![with(rank - 1, k.clone()), vec![outs.clone(), k], vec![outs]];
            all.into_iter().take(args.len()).collect()
        }
        Op::Conv { .. } => conv(g, v, region),
        Op::Pool { window, stride, padding, dilation, .. } => {
            let lead = rank - window.len();
            let mut from = region[..lead].to_vec();
            for i in 0..window.len() {
                let place = |o, tap| gathered(o, tap, [stride[i], padding[i], dilation[i]]);
                from.push(read(size(0)[lead + i], &region[lead + i], window[i], place));
            }
            vec![last_whole(from)]
        }
        Op::LayerNorm { axes, .. } => {
            let row = region[rank - axes..].to_vec();
            [vec![region.clone()], vec![row; args.len() - 1]].concat()
        }
        Op::RmsNorm { .. } => vec![region.clone(), vec![region[rank - 1].clone()]],
        Op::GroupNorm { .. } | Op::BatchNorm { .. } => {
            [vec![region.clone()], vec![vec![region[1].clone()]; args.len() - 1]].concat()
        }
        Op::Attention { lse, .. } => {
            let (batch, heads, queries) = (&region[..rank - 3], &region[rank - 3], &region[rank - 2]);
            let keys = size(1);
            let (key_heads, t, d) = (keys[rank - 3], Positions::all(keys[rank - 2]), Positions::all(keys[rank - 1]));
            let of = |h: usize| h * key_heads / size(0)[rank - 3];
            let key_heads = Positions::of(key_heads, heads.iter().map(of));
            let join = |last: [Positions; 3]| [batch.to_vec(), last.to_vec()].concat();
            let q = join([heads.clone(), queries.clone(), d.clone()]);
            let k = join([key_heads.clone(), t.clone(), d]);
            // The log-sum-exp reads no values.
            let columns = if *lse { Positions::all(size(2)[rank - 1]) } else { region[rank - 1].clone() };
            let v = join([key_heads, t.clone(), columns]);
            let scores = join([heads.clone(), queries.clone(), t]);
            let of_scores = args[3..].iter().map(|x| broadcast(g.shape(*x), &scores));
            [q, k, v].into_iter().chain(of_scores).collect()
        }
        Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => args.iter().map(|a| whole(g.shape(*a))).collect(),
    }
}

/// `region` within another shape of the same rank: all of `axis`, and the positions of the others that lie inside.
fn prefix(shape: &[usize], region: &[Positions], axis: usize) -> Region {
    let one =
        |(i, n): (usize, &usize)| if i == axis { Positions::all(*n) } else { Positions::of(*n, region[i].iter()) };
    shape.iter().enumerate().map(one).collect()
}

/// The position that tap `tap` of the window for `o` reads, unless it lies before the first.
fn gathered(o: usize, tap: usize, [stride, padding, dilation]: [usize; 3]) -> Option<usize> {
    o.checked_mul(stride)?.checked_add(tap.checked_mul(dilation)?)?.checked_sub(padding)
}

/// Positions that windows of `taps` read for `at`; `place` gives a tap's position, `None` before the first.
fn read(size: usize, at: &Positions, taps: usize, place: impl Fn(usize, usize) -> Option<usize>) -> Positions {
    if at.is_whole() {
        return Positions::all(size);
    }
    let place = &place;
    Positions::of(size, at.iter().flat_map(|o| (0..taps).filter_map(move |tap| place(o, tap))))
}

fn last_whole(mut region: Region) -> Region {
    if let Some(last) = region.last_mut() {
        *last = last.whole();
    }
    region
}

fn conv(g: &Graph, v: ValueId, region: &Region) -> Vec<Region> {
    let Op::Conv { stride, padding, dilation, groups, transposed, .. } = g.op(v) else { return vec![] };
    let args = g.args(v);
    let (x, w) = (g.shape(args[0]), g.shape(args[1]));
    let chosen = groups_of(&region[1], *groups);
    let inputs = channels(&chosen, x[1] / groups);
    let mut from = vec![region[0].clone(), inputs.clone()];
    for i in 0..x.len() - 2 {
        let (o, taps, s, p, d) = (&region[i + 2], w[i + 2], stride[i], padding[i], dilation[i]);
        from.push(match transposed {
            false => read(x[i + 2], o, taps, |o, tap| gathered(o, tap, [s, p, d])),
            // Input i is written to i * stride + tap * dilation - padding.
            true => read(x[i + 2], o, taps, |o, tap| {
                let at = o.checked_add(p)?.checked_sub(tap.checked_mul(d)?)?;
                (at % s == 0).then(|| at / s)
            }),
        });
    }
    let from = if from.len() > 2 { last_whole(from) } else { from };
    let mut weights = whole(w);
    match transposed {
        false => weights[0] = region[1].clone(),
        true => {
            weights[0] = inputs;
            if *groups == 1 {
                weights[1] = region[1].clone();
            }
        }
    }
    [from, weights, vec![region[1].clone()]].into_iter().take(args.len()).collect()
}
