//! Text form of a plan.
