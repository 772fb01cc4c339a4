//! What the steps of a schedule say of a tile in numbers.
use kiln_plan::{Axis, Schedule, Step};

/// Elements of a tile.
pub fn elements(schedule: &Schedule) -> usize {
    let count = |s: &Step| if let Step::Split(_, n) = s { *n } else { 1 };
    schedule.steps.iter().map(count).product()
}

/// Warps of an instance.
pub fn warps(schedule: &Schedule) -> f64 {
    let count = |s: &Step| if let Step::Warps(n) | Step::Cluster(n) = s { *n } else { 1 };
    schedule.steps.iter().map(count).product::<usize>() as f64
}

/// The axis along which an instance has several columns, each of a row.
pub fn strip(schedule: &Schedule) -> Option<Axis> {
    match schedule.steps.iter().rev().find(|s| matches!(s, Step::Split(..))) {
        Some(Step::Split(axis @ Axis::Kept(_), _)) => Some(*axis),
        _ => None,
    }
}
