//! Runs of elements along an axis that follow each other, or are equal.

/// What holds along one axis, for every position on the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Elements of a run follow each other: x, x + 1, ….
    pub contiguous: i64,
    /// Elements of a run are equal.
    pub constant: i64,
    /// Divides the first element of every contiguous run (pointers: the address in bytes).
    pub divisor: i64,
}

/// The bottom of the lattice.
pub(super) const UNKNOWN: Axis = Axis { contiguous: 1, constant: 1, divisor: 1 };

impl Axis {
    /// Divides every `run`-th element.
    pub(super) fn at(self, run: i64) -> i64 {
        if run >= self.contiguous { self.divisor } else { self.divisor.min(run) }
    }
}
