//! What multiplies the blocks of an attention: vectors in the type of sums ([`super::vectors`]), or the matrix unit
//! ([`super::matrix`]).
//!
//! Panels are those of matmuls: of queries as of the rows of a, of keys and values as of the columns of b.
use super::softmax::{Score, Seen};
use crate::host::gemm::pack::{Element, Source};
use kiln_cpu::Level;

/// With at most this many rows, keys and values are read once, as they lie in memory.
pub const FEW: usize = 3;

/// Keys or values of a block: in panels of lanes (keys, or columns of values) over a depth, or as they lie in memory.
pub struct Panels<P> {
    pub at: *const P,
    /// Elements from one panel to the next.
    pub step: usize,
    /// Elements from one depth to the next.
    pub pitch: usize,
    /// Not in panels: keys, or values of keys, in memory, each contiguous and `pitch` elements from the one before.
    /// Panels of queries then have one row.
    pub by_key: bool,
}
impl<P> Clone for Panels<P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Panels<P> {}

/// A block of rows of scores: panels of at most `height` rows, and for each how many keys of the block it has.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub count: usize,
    pub height: usize,
    pub keys: &'a [usize],
}
impl Rows<'_> {
    /// For each panel with keys: its first row, its rows and its keys.
    pub fn panels(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (count, height) = (self.count, self.height);
        let all = self.keys.iter().enumerate().map(move |(i, n)| (i * height, height.min(count - i * height), *n));
        all.filter(|p| p.2 > 0)
    }
    /// The most keys of a panel.
    pub fn most(&self) -> usize {
        self.keys.iter().copied().max().unwrap_or(0)
    }
}

/// A unit, ready on a thread. Addresses hold what the sizes say, in whole panels.
pub trait Unit: Sized {
    /// Element of q, k and v.
    type Source: Element<Acc = Self::Sum>;
    /// Type of scores and sums.
    type Sum: Score;
    /// Element of panels.
    type Panel: Copy;
    /// Most panels of a block of rows.
    const HIGH: usize;
    /// Keys of a block: whole panels.
    const KEYS: usize;

    /// # Safety
    /// The processor has the level.
    unsafe fn ready(level: Level) -> Self;
    /// Rows of a panel of queries, of which there are `rows` in all.
    fn height(&self, rows: usize) -> usize;
    /// Lanes of a panel of keys or values.
    fn lanes(&self) -> usize;
    /// The depth of panels that hold this one.
    fn padded(&self, depth: usize) -> usize;
    /// Elements of the probabilities of so many rows, if they are not in place of scores.
    fn apart(&self, rows: usize) -> usize;

    /// Packs `n` rows from `row` on into one panel.
    ///
    /// # Safety
    /// The rows exist, and there is room for a panel.
    unsafe fn queries(
        &self,
        from: Source<Self::Source>,
        row: [usize; 2],
        depth: usize,
        height: usize,
        to: *mut Self::Panel,
    );
    /// Packs `n` lanes from `lane` on into panels.
    ///
    /// # Safety
    /// The lanes exist, and there is room for the panels.
    unsafe fn pack(&self, from: Source<Self::Source>, lane: [usize; 2], depth: usize, to: *mut Self::Panel);
    /// Keys as they lie in memory, where packing them is not profitable for this many rows.
    fn keys(&self, _from: Source<Self::Source>, _rows: usize) -> Option<Panels<Self::Panel>> {
        None
    }
    /// Values as they lie in memory, where packing these columns is not profitable for this many rows.
    fn values(&self, _from: Source<Self::Source>, _rows: usize, _width: usize) -> Option<Panels<Self::Panel>> {
        None
    }

    /// Dot products of queries and keys, to rows that are `pitch` apart.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn scores(
        &self,
        depth: usize,
        queries: *const Self::Panel,
        rows: Rows,
        keys: Panels<Self::Panel>,
        to: *mut Self::Sum,
        pitch: usize,
    );
    /// Turns scores of a row into powers, and sets those after them to zero. `row`: its place in the block, how many
    /// scores it has, and where the zeros end.
    ///
    /// # Safety
    /// `x` holds the scores of the row, `apart` the probabilities of the block.
    unsafe fn powers(
        &self,
        x: *mut Self::Sum,
        row: [usize; 3],
        old: Self::Sum,
        c: Self::Sum,
        apart: *mut Self::Panel,
    ) -> Seen<Self::Sum>;
    /// Adds the products of probabilities and values to sums, whose rows are `wide` apart. `from`: the scores, the
    /// elements from one row to the next, and the probabilities apart.
    ///
    /// # Safety
    /// The probabilities are where `powers` has left them.
    unsafe fn add(
        &self,
        from: (*const Self::Sum, usize, *const Self::Panel),
        rows: Rows,
        values: Panels<Self::Panel>,
        width: usize,
        sums: *mut Self::Sum,
        wide: usize,
    );
}
