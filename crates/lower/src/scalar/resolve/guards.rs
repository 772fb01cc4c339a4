//! Bounds of index expressions: which need a guard, given the guards that hold.
use crate::scalar::dag::Guard;
use crate::scalar::expr::Expr;

/// Whether an element is within bounds.
pub enum Inside {
    Always,
    Never,
    When(Vec<Guard>),
}

/// Which of the bounds have to be checked, from the ranges of their expressions.
pub fn inside(bounds: impl Iterator<Item = (Expr, i64, i64)>) -> Inside {
    inside_within(&[], bounds)
}
/// The same where `within` holds. So of a concatenation of concatenations, as several assignments to slices are, each
/// region of the result is resolved once, and not once for every part of every concatenation.
pub(super) fn inside_within(within: &[Guard], bounds: impl Iterator<Item = (Expr, i64, i64)>) -> Inside {
    let mut guards = vec![];
    for (expr, lo, hi) in bounds {
        let (min, max) = within.iter().fold(expr.range(), |range, g| narrowed(range, &expr, g));
        if max < lo || min >= hi {
            return Inside::Never;
        }
        if min < lo || max >= hi {
            guards.push(Guard { expr, lo, hi });
        }
    }
    if guards.is_empty() { Inside::Always } else { Inside::When(guards) }
}

/// The range of an expression where a guard holds that bounds the same expression, or one that differs by a constant.
fn narrowed((min, max): (i64, i64), expr: &Expr, guard: &Guard) -> (i64, i64) {
    if guard.expr.terms != expr.terms {
        return (min, max);
    }
    let by = expr.constant.saturating_sub(guard.expr.constant);
    // Unbounded on one side: nothing is known there.
    let lo = if guard.lo == i64::MIN { i64::MIN } else { guard.lo.saturating_add(by) };
    let hi = if guard.hi == i64::MAX { i64::MAX } else { guard.hi.saturating_add(by).saturating_sub(1) };
    (min.max(lo), max.min(hi))
}

pub fn joined(a: &[Guard], b: &[Guard]) -> Vec<Guard> {
    let mut all = [a, b].concat();
    all.sort();
    all.dedup();
    all
}
