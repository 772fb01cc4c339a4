//! Cache blocking of host matmuls, and the prefetch distance of host code: constants, the same on every CPU.

/// Block sizes of a host matmul, in bytes unless noted. They determine the order of summation, so they are the same on
/// every CPU, and small enough for server CPUs: 32 KiB of L1 and 1 MiB of L2 per core (Intel Xeon Scalable; AMD EPYC
/// from Zen 4 on), or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caches {
    /// The right operand's panels over one slice of K: they stay in L2 together with [`Caches::rows`].
    pub columns: usize,
    /// The left operand's panels over one slice of K, which are traversed once per panel of the right operand.
    pub rows: usize,
    /// Elements of K in a slice, such that a panel of the right operand stays in L1.
    pub depth: usize,
    /// Addresses this far apart map to the same L1 set: number of sets times the line size.
    pub page: usize,
    /// L1 ways that the right operand may fill.
    pub ways: usize,
    /// Entries of the L1 TLB.
    pub pages: usize,
    /// Up to this size of the right operand, each thread packs it for itself: reading panels that another core has just
    /// written is slow.
    pub near: usize,
    /// Largest distance from a program instance's data to the next one's at which the next one's lines are prefetched:
    /// further away they would evict lines in use.
    pub reach: usize,
}

impl Caches {
    /// The constants that host code and host matmuls use.
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
