//! Schedules in which several rows are one wide row.
use crate::cost::features::NestFeatures;
use crate::error::LowerError;
use crate::nest::Nest;
use crate::schedule::widen;
use crate::select::order::Priced;
use crate::select::propose::chunks::reverse;
use crate::select::propose::columns::columns;
use crate::select::propose::fit::priced;
use crate::select::propose::tiles::Proposals;
use kiln_plan::{Axis, Schedule, Step};

/// Schedules of wide rows of a nest with rows of `row` elements, with their prices.
pub fn widened(nest: &Nest, row: usize) -> Result<Vec<Priced>, LowerError> {
    let mut all = vec![];
    for k in 0..nest.kept().count() {
        for count in widen::counts(nest, k) {
            let axis = Axis::Kept(k as u8);
            let Some((wide, _)) = widen::widened(nest, (axis, count))? else { continue };
            let facts = NestFeatures::of(&wide);
            let mut proposals = Proposals::new(&wide, &facts);
            columns(&mut proposals, row.div_ceil(count), k..k + 1);
            let joins = |s: &Step| matches!(s, Step::SplitReduce(_, n) if widen::joins(*n, count));
            let fits = |s: &Schedule| s.steps.iter().any(joins) && !s.steps.contains(&Step::Split(Axis::Row, 1));
            proposals.schedules.retain(fits);
            reverse(&mut proposals);
            let with_widen = |s: Schedule| std::iter::once(Step::Widen(axis, count)).chain(s.steps).collect();
            let schedules = proposals.schedules.into_iter().map(with_widen).collect();
            all.extend(priced(&wide, &facts, schedules));
        }
    }
    Ok(all)
}
