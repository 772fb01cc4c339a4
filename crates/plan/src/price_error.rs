//! How far predicted times err, which every choice by price has to leave room for. As fractions and factors of times;
//! measured on an H200 (`benches/results/plans.md`, `benches/results/schedules.md`).

/// Prices of programs of one family that are closer than this are as often in the wrong order.
pub const SAME_PRICE: f64 = 0.98;
/// How much cheaper a program of another family must be to be taken by price alone: their prices err differently.
pub const ADVANTAGE_OF_OTHER_FAMILY: f64 = 1.5;
