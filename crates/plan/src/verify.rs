//! Checks a plan.
