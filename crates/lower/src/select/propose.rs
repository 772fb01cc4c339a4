//! Proposes schedules for a nest: some tens, by rules that read the machine.
//!
//! Takes: a nest. Gives: schedules that fit it, with their prices ([`crate::cost::price`]). Rows: [`rows`], [`columns`]
//! and [`widened`]; points: [`points`] and [`unrolled`]. What fits, and what it costs: [`fit`].
pub mod chunks;
pub mod columns;
pub mod fit;
pub mod points;
pub mod rows;
pub mod tiles;
pub mod unrolled;
pub mod whole_rows;
pub mod widened;

use crate::cost::features::NestFeatures;
use crate::cost::price::Price;
use crate::error::LowerError;
use crate::nest::Nest;
use crate::scalar::dag::{NodeId, NodeOp};
use crate::schedule::tile;
use crate::select::host;
use crate::select::invariant::is_invariant;
use crate::select::order;
use crate::select::propose::chunks::reverse;
pub use crate::select::propose::fit::price_of;
use crate::select::propose::fit::priced;
use crate::select::propose::tiles::Proposals;
use kiln_plan::Schedule;

/// Schedules of a nest with their prices, the cheapest first, without repetition. Under a batch-invariant contract
/// those whose rows do not depend on the number of others.
pub fn propose(nest: &Nest, facts: &NestFeatures) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let mut proposals = Proposals::new(nest, facts);
    match nest.row() {
        Some(row) => rows::rows(&mut proposals, row),
        None => points::points(&mut proposals),
    }
    reverse(&mut proposals);
    let mut schedules = proposals.schedules;
    let invariant_row = nest.row().filter(|_| nest.machine.contract.batch_invariant);
    if let Some(row) = invariant_row {
        schedules.retain(|s| is_invariant(nest, s));
        if schedules.is_empty() {
            // Rows shorter than a warp: several of them would share an instance.
            schedules.push(rows::one_row(row));
        }
    }
    let mut priced = priced(nest, facts, schedules);
    if let Some(row) = nest.row().filter(|_| invariant_row.is_none()) {
        priced.extend(widened::widened(nest, row)?);
    }
    priced.extend(unrolled::unrolled(nest, facts)?);
    order::sort(nest, facts, &mut priced);
    Ok(priced.into_iter().map(|p| (p.schedule, p.price)).collect())
}

/// Schedules of a nest with their prices, the cheapest first. On the host there is one, without a price.
pub fn schedules(nest: &Nest) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let reduces = |n: &NodeId| matches!(nest.scene.dag.node(*n).op, NodeOp::Reduce { .. });
    if nest.row().is_none() && nest.scene.live().iter().any(reduces) {
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why: "a reduction without a row".into() });
    }
    match nest.machine.arch.is_gpu() {
        true => propose(nest, &NestFeatures::of(nest)),
        false => Ok(vec![(host::of(nest)?, Price::default())]),
    }
}

/// The same without prices ([`crate::nest::lowering::ProposeSchedules`]).
pub fn schedules_of(nest: &Nest) -> Result<Vec<Schedule>, LowerError> {
    Ok(schedules(nest)?.into_iter().map(|(schedule, _)| schedule).collect())
}

/// One schedule that fits, without pricing any ([`crate::nest::lowering::ProposeSchedules`]): to see which steps a
/// kernel is lowered to, whatever their schedules.
pub fn any_schedule_of(nest: &Nest) -> Result<Vec<Schedule>, LowerError> {
    if !nest.machine.arch.is_gpu() || nest.machine.contract.batch_invariant {
        return schedules_of(nest);
    }
    let facts = NestFeatures::of(nest);
    let mut proposals = Proposals::new(nest, &facts);
    match nest.row() {
        Some(row) => rows::rows(&mut proposals, row),
        None => points::points(&mut proposals),
    }
    let found = proposals.schedules.into_iter().find(|s| nest.row().is_some() || tile::tiles(nest, s));
    match found {
        Some(schedule) => Ok(vec![schedule]),
        None => schedules_of(nest),
    }
}

/// The schedule that a nest gets, with its price.
pub fn cheapest(nest: &Nest) -> Result<(Schedule, Price), LowerError> {
    let none = || LowerError::Unsupported { kernel: nest.name.to_string(), why: "no schedule fits it".into() };
    schedules(nest)?.into_iter().next().ok_or_else(none)
}
