//! Reductions and whole-row ops (softmax, norms): they fix the kernel's rows, and all of them must agree on these.
use super::{CheckedRegion, Reject, Rows, Use, sides};
use crate::cost::OpTypes;
use crate::space::{Atom, AxisMap, Map, align};
use kiln_graph::ops::Class;
use kiln_graph::{DType, Op};
use kiln_plan::Precision;
use kiln_plan::form::MAX_ROWS_BY_SUMS;
use std::collections::BTreeSet;

/// Least number of elements of a matmul whose heads are reduced in tiles as wide as a head.
const MANY: usize = 1 << 22;
/// Largest K of a matmul with a fused reduction of heads that are half as wide as a tile: with K = 1024 it took 0.83 of
/// the time of two kernels on an H200, with 2048 0.95, with 4096 1.04.
const DEEP: usize = 2048;

impl CheckedRegion<'_> {
    /// A reduction, or an op that reads and writes whole rows.
    pub(super) fn row(&mut self, v: usize, u: &Use) -> Result<Vec<(usize, Map)>, Reject> {
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
        let axes = dag.op(v).row_axes(rank);
        let mut outer: Vec<AxisMap> = (0..rank).filter(|i| !axes.contains(i)).map(|i| m[i].clone()).collect();
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
        self.levels += self.levels_of(dag.op(v));
        self.price.other += dag.op(v).weight() * dag.count(x);
        let per_channel = matches!(dag.op(v), Op::GroupNorm { .. });
        let gains = args[1..]
            .iter()
            .map(|&a| (a, if per_channel { vec![m[1].clone()] } else { align(dag.shape(a), rank, &m) }));
        let mut reach: Vec<(usize, Map)> = gains.collect();
        reach.push((x, m));
        Ok(reach)
    }

    /// How often a row that does not fit on chip is read for an op's reductions. On a GPU mean and variance take one
    /// pass.
    fn levels_of(&self, op: &Op) -> usize {
        match op {
            Op::Softmax { .. } | Op::LogSoftmax { .. } => 2,
            Op::LayerNorm { .. } | Op::GroupNorm { .. } if !self.machine.arch.is_gpu() => 2,
            _ => 1,
        }
    }

    /// Sets the kernel's rows, or checks that these are the same; gives the atoms along a row.
    fn join_rows(&mut self, outer: &[AxisMap], sizes: &[usize]) -> Result<Vec<Atom>, Reject> {
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

    /// Does a tile of this matmul on a GPU hold whole rows, so that its epilogue can reduce them? Matmuls of few rows
    /// or columns have no tiles, and in SIMT tiles (FMAs) a row is spread over several warps.
    pub(super) fn fits_tile(&self, anchor: usize) -> bool {
        let (dag, m) = (self.dag, self.machine);
        let along = self.rows.as_ref().map(|r| self.space.now(&r.along)).unwrap_or_default();
        let Some([u]) = self.uses.get(&anchor).map(Vec::as_slice) else { return false };
        let (rows, columns) = sides(dag, anchor);
        // Accumulators that are zero-initialised in each stage need a second set of accumulators, which halves a tile's
        // columns.
        let half = 2 * columns.min(self.space.extent(&along) as usize) <= m.templates.tile;
        let tensor_cores = match (OpTypes::of(dag, anchor).operands(), m.f32_matmul(dag.op(anchor)).0) {
            (DType::Bf16 | DType::F16, _) => true,
            (f8, _) if f8.is_f8() => half,
            (_, Precision::Tf32) => OpTypes::of(dag, anchor).is_f32_matmul(),
            _ => false,
        };
        let across = u.map.last().map(|w| self.space.now(&w.atoms)).unwrap_or_default();
        let matmul = dag.class[anchor] == Class::Matmul && self.dual.is_none() && self.place.is_none();
        let whole =
            rows > MAX_ROWS_BY_SUMS && columns > MAX_ROWS_BY_SUMS && columns <= m.templates.tile && across == along;
        // A tile sums a row in another order than a reduction kernel does, and it is only used for more than a few
        // rows: not batch-invariant.
        !m.contract.batch_invariant
            && m.arch.is_gpu()
            && matmul
            && tensor_cores
            && (whole || across.ends_with(&along) && self.has_wide_heads(anchor, rows, &along))
    }
    /// Are the rows heads, and are tiles as wide as a head profitable? Narrow tiles make a matmul slower, which is
    /// outweighed for a small K by the result not going through memory; a small matmul would leave multiprocessors
    /// idle.
    fn has_wide_heads(&self, anchor: usize, rows: usize, along: &[Atom]) -> bool {
        let (dag, head) = (self.dag, self.space.extent(along) as usize);
        let columns = dag.shape(anchor).last().copied().unwrap_or(1);
        let depth = dag.nodes[anchor].args.first().and_then(|&a| dag.shape(a).last().copied()).unwrap_or(1);
        let wide = head == self.machine.templates.tile || 2 * head == self.machine.templates.tile && depth <= DEEP;
        // Machines with dual GEMMs have warpgroup matmuls, whose programs these are.
        let half = self.machine.dual_gemm(OpTypes::of(dag, anchor).operands().name());
        half && wide && head < columns && rows.saturating_mul(columns) >= MANY
    }

    /// Checks that nothing is permuted between a reduction and the output: rows are stored in the order in which they
    /// are computed.
    fn in_order(&self, operand: &Map, outer: &[AxisMap]) -> Result<(), Reject> {
        let root = self.space.flat(&self.root);
        let (full, rows) = (self.space.flat(operand), self.space.flat(outer));
        if root == full || root == rows { Ok(()) } else { Err(Reject::OutputPermutedAfterReduction) }
    }
}
