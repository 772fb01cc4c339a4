//! How K is split into slices.
use crate::matmul::Matmul;

/// Most slices of a candidate.
pub const SLICES: usize = 16;

/// Split-K slices: `count` of them, each of length `len` except the last, which may end earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    pub count: usize,
    pub len: usize,
}
impl Parts {
    /// As even as whole tiles of `depth` along K allow; `None` if these are not so many slices.
    pub fn of(count: usize, k: usize, depth: usize) -> Option<Parts> {
        if count == 1 {
            return Some(Parts { count, len: k });
        }
        let len = k.div_ceil(count).next_multiple_of(depth);
        ((count - 1) * len < k).then_some(Parts { count, len })
    }
    /// The matmul of slices, which has them as an additional first batch axis.
    pub fn piece<'a>(self, p: &Matmul<'a>) -> Matmul<'a> {
        match self.count {
            1 => Matmul { batch: p.batch.clone(), ..*p },
            n => Matmul { batch: [&[n], &p.batch[..]].concat(), k: self.len, full_k: Some(p.k), ..*p },
        }
    }
}
