//! Runs of consecutive or equal elements along an axis.

/// Properties along one axis that hold at every position on the other axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Length of runs of consecutive values: x, x + 1, ….
    pub contiguous: i64,
    /// Length of runs of equal values.
    pub constant: i64,
    /// Divides the first element of every contiguous run (pointers: the address in bytes).
    pub divisor: i64,
}

/// The bottom of the lattice.
pub(super) const UNKNOWN: Axis = Axis { contiguous: 1, constant: 1, divisor: 1 };

impl Axis {
    /// A divisor of every `run`-th element.
    pub(super) fn at(self, run: i64) -> i64 {
        if run >= self.contiguous { self.divisor } else { self.divisor.min(run) }
    }
}
