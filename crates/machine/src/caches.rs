//! How matmuls on the host use caches.

/// Sizes of blocks of a matmul on the host, in bytes unless said. They decide the order of sums, so they are the same on every
/// processor, and small enough for those that servers have: 32 KiB of first-level cache and 1 MiB of second-level cache a core
/// (Intel Xeon Scalable; AMD EPYC from Zen 4 on), or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caches {
    /// Of the right operand's panels over one slice of the depth: they stay in the second-level cache beside [`Caches::rows`].
    pub columns: usize,
    /// Of the left operand's panels over one slice, which are walked for each panel of the right one.
    pub rows: usize,
    /// Elements of the depth in a slice: a panel of the right operand stays in the first-level cache.
    pub depth: usize,
    /// Within which places in the first-level cache are told apart: its sets times a line.
    pub page: usize,
    /// Ways of that cache which the right operand may fill.
    pub ways: usize,
    /// Pages whose addresses the processor has at hand: entries of the first-level TLB.
    pub pages: usize,
    /// That each thread may read for itself, of what another one has just written.
    pub near: usize,
    /// From one instance to the next, within which the next one's lines are asked for: further on they would push out those in use.
    pub reach: usize,
}

impl Caches {
    /// What code and matmuls on the host go by.
    pub const HOST: Caches = Caches {
        columns: 448 << 10,
        rows: 160 << 10,
        depth: 384,
        page: 4096,
        ways: 8,
        pages: 64,
        near: 1 << 20,
        reach: 256 << 10,
    };
}
