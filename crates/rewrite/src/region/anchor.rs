//! Anchor ops: computed whole and once, in tiles of their own, from operands with constant strides in memory.
use super::{CheckedRegion, OF_SCORES, Reject, Scores, Use};
use crate::cost::OpTypes;
use crate::space::{Atom, AxisMap, Map, align};
use kiln_graph::ops::Class;
use kiln_graph::{Op, ScoreStep};
use kiln_plan::attention::Way;
use std::collections::BTreeSet;

/// The classes of [`Class::is_anchor`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Matmul,
    Attention,
    Scan,
    Conv,
    Pool,
    Scatter,
}

impl CheckedRegion<'_> {
    /// Adds the anchor op `v`. A kernel has one, or two matmuls that share their left operand (dual GEMM).
    /// `before`: the first use of the same op, if this is the second.
    pub(super) fn anchor(
        &mut self,
        v: usize,
        u: &Use,
        before: Option<&Use>,
        kind: Anchor,
    ) -> Result<Vec<(usize, Map)>, Reject> {
        let (dag, m) = (self.dag, &u.map);
        if let Some(first) = before {
            if self.dual.is_some() || !self.are_halves(v, first, u) {
                return Err(Reject::AnchorRecomputed);
            }
            self.dual = Some(v);
            return Ok(self.operands_of(v, m));
        }
        match self.anchor {
            None => self.anchor = Some(v),
            Some(first) if self.dual.is_none() && self.are_siblings(first, v, u) => {
                self.dual = Some(v);
                self.price.needs.dual = true;
            }
            _ => return Err(Reject::TwoAnchors),
        }
        let walked: BTreeSet<Atom> = self.space.flat(m).into_iter().collect();
        let whole = self.space.whole(m, dag.shape(v)) || self.has_halves(v);
        if !whole || !self.space.flat(&self.root).iter().all(|a| walked.contains(a)) {
            return Err(Reject::AnchorRecomputed);
        }
        let op = OpTypes::of(dag, v);
        self.price.matrix += op.matrix_flops();
        self.price.matrix_seconds += op.matrix_seconds(self.machine);
        let same_space = dag.shape(v) == dag.shape(self.main) && self.space.flat(m) == self.space.flat(&self.root);
        let args = dag.args(v).to_vec();
        match kind {
            Anchor::Matmul => Ok(self.operands_of(v, m)),
            Anchor::Attention => Ok(self.attention(v, &args, m)),
            Anchor::Scan => {
                self.price.other += dag.count(v);
                if same_space { Ok(vec![(args[0], m.clone())]) } else { Err(Reject::ScanSpaceDiffers) }
            }
            // A convolution is priced by its flops on matrix units, a pool by one operation per element of its windows,
            // a scatter as a copy.
            Anchor::Conv | Anchor::Pool | Anchor::Scatter if !same_space => Err(Reject::ViewAfterAnchor),
            Anchor::Conv | Anchor::Pool | Anchor::Scatter => {
                if let Op::Pool { window, .. } = dag.op(v) {
                    self.price.other += dag.count(v) * window.iter().map(|&w| w as f64).product::<f64>();
                }
                // Operands are indexed by windows, not by the iteration space.
                Ok(args.iter().map(|&a| (a, dag.shape(a).iter().map(|&n| self.space.axis(n)).collect())).collect())
            }
        }
    }
    /// Can this matmul be half of a dual GEMM? Rows of its operands must be multiples of 16 bytes.
    fn fits_dual_gemm(&self, v: usize) -> bool {
        let (dag, dtype) = (self.dag, self.dag.ty(v).dtype);
        let rows = |a: usize| dag.shape(a).last().is_some_and(|n| (n * dtype.bytes()).is_multiple_of(16));
        let matmul = matches!(dag.op(v), Op::Dot | Op::Linear);
        matmul && self.machine.dual_gemm(dtype.name()) && dag.args(v).iter().take(2).all(|&a| rows(a))
    }
    /// Are these matmuls of the same left operand, read with the same map?
    fn are_siblings(&self, first: usize, v: usize, u: &Use) -> bool {
        let dag = self.dag;
        let alike = dag.op(first) == dag.op(v) && dag.ty(first) == dag.ty(v) && dag.args(first)[0] == dag.args(v)[0];
        let known = self.uses.get(&first).map_or(&[][..], Vec::as_slice);
        let same = |k: &Use| {
            let mut map = k.map.clone();
            self.space.refresh(&mut map);
            map == u.map
        };
        alike && self.fits_dual_gemm(v) && known.len() == 1 && same(&known[0])
    }
    /// Is `v` read only as the two halves of its columns?
    fn has_halves(&self, v: usize) -> bool {
        let mut uses: Vec<Use> = vec![];
        for mut u in self.uses.get(&v).cloned().unwrap_or_default() {
            self.space.refresh(&mut u.map);
            if uses.iter().all(|known| known.map != u.map) {
                uses.push(u);
            }
        }
        matches!(&uses[..], [a, b] if self.are_halves(v, a, b))
    }
    /// Do the two uses read the first and the second half of the columns, with equal maps otherwise?
    fn are_halves(&self, v: usize, a: &Use, b: &Use) -> bool {
        let shape = self.dag.shape(v);
        let (Some((c, rows)), Some((d, others)), Some((n, lead))) =
            (a.map.split_last(), b.map.split_last(), shape.split_last())
        else {
            return false;
        };
        let half = (*n / 2) as i64;
        let plain = |w: &AxisMap| !w.computed && w.step == 1 && self.space.extent(&w.atoms) == half;
        let both = c.from.min(d.from) == 0 && c.from.max(d.from) == half;
        let alike = rows == others && c.atoms == d.atoms && self.space.whole(rows, lead);
        self.fits_dual_gemm(v) && n % 2 == 0 && plain(c) && plain(d) && both && alike
    }
    /// Maps of a matmul's operands.
    fn operands_of(&mut self, v: usize, m: &Map) -> Vec<(usize, Map)> {
        let args = self.dag.args(v).to_vec();
        if *self.dag.op(v) == Op::Dot { self.dot(&args, m) } else { self.linear(&args, m) }
    }
    fn dot(&mut self, args: &[usize], m: &Map) -> Vec<(usize, Map)> {
        let (dag, lead) = (self.dag, m.len() - 2);
        let k = self.space.axis(dag.shape(args[0]).last().copied().unwrap_or(1));
        let mut put = |a: usize, row: &AxisMap, column: &AxisMap| {
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
        self.reads_once = OpTypes::of(dag, v).attention_sizes(self.machine).is_some_and(|z| {
            let one_block = matches!(z.way(self.machine), Way::Warps(t) if z.queries <= t.queries);
            one_block && z.heads == k[..lead].iter().product::<usize>()
        });
        let (keys, depth) = (self.space.axis(k[lead]), self.space.axis(q[lead + 1]));
        self.price.other += 12. * dag.count(v) / dag.shape(v)[lead + 1].max(1) as f64 * k[lead] as f64;
        // A key head is shared by a group of consecutive query heads.
        let mut shared = m[..lead].to_vec();
        if lead > 0 && q[lead - 1] != k[lead - 1] {
            let heads = k[lead - 1].max(1);
            let dealt = self.space.deal(&m[lead - 1].atoms, &[heads, q[lead - 1] / heads]);
            shared[lead - 1] = dealt.map_or(AxisMap::computed(vec![]), |d| d[0].clone());
        }
        let with = |outer: &[AxisMap], a: &AxisMap, b: &AxisMap| -> Map { [outer, &[a.clone(), b.clone()]].concat() };
        // The log-sum-exp has no axis of the values' columns.
        let columns = match dag.op(v) {
            Op::Attention { lse: true, .. } => self.space.axis(dag.shape(args[2])[lead + 1]),
            _ => m[lead + 1].clone(),
        };
        let maps = [with(&m[..lead], &m[lead], &depth), with(&shared, &keys, &depth), with(&shared, &keys, &columns)];
        let mut reach = vec![];
        for (&a, map) in args.iter().zip(maps) {
            self.operands.push((a, map.iter().map(|w| vec![w.clone()]).collect()));
            reach.push((a, map));
        }
        let (queries, count) =
            (m[lead].atoms.clone(), dag.count(v) / dag.shape(v)[lead + 1].max(1) as f64 * k[lead] as f64);
        if let Op::Attention { score, .. } = dag.op(v) {
            self.price.other += count * score.iter().map(step_weight).sum::<f64>();
        }
        let of_scores = args.get(OF_SCORES..).unwrap_or_default();
        let at = with(&m[..lead], &m[lead], &keys);
        let maps: Vec<(usize, Map)> = of_scores.iter().map(|&a| (a, align(dag.shape(a), lead + 2, &at))).collect();
        let mask = maps.get(dag.op(v).mask_place() - OF_SCORES).cloned();
        let skips = mask.is_some_and(|(mask, map)| self.bounds_keys(mask, &map, &keys));
        self.scores = Some(Scores { operands: of_scores.to_vec(), queries, keys: keys.atoms, count, skips });
        reach.extend(maps);
        reach
    }

    /// Checks that operands of matmuls and attention are matrices of constant strides in memory, and attention's result
    /// too.
    pub(super) fn strided_operands(&self, anchor: usize, members: &[usize]) -> Result<(), Reject> {
        for (a, groups) in &self.operands {
            let mut leaf = *a;
            while members.binary_search(&leaf).is_ok() {
                // Beside the factors that dequantise it.
                let largest = |a: &&usize, b: &&usize| self.dag.count(**a).total_cmp(&self.dag.count(**b));
                leaf = *self.dag.args(leaf).iter().rev().max_by(largest).ok_or(Reject::OperandNotStrided)?;
            }
            let uses = self.uses.get(&leaf).map_or(&[][..], Vec::as_slice);
            for u in uses.iter().filter(|u| u.prologue) {
                let strides = self.space.strides(&u.map, self.dag.shape(leaf)).ok_or(Reject::OperandNotStrided)?;
                // A leaf that is several operands is checked for each of them, with the use that has the operand's
                // atoms.
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
}

/// Operations of a step of a score function.
fn step_weight(step: &ScoreStep) -> f64 {
    match *step {
        ScoreStep::Unary(u) => Op::Unary(u).weight(),
        ScoreStep::Number(b, _) | ScoreStep::Operand(b) => Op::Binary(b).weight(),
    }
}
