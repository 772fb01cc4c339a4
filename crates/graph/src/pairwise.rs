//! Recognises pairwise ops, such as pairwise distances: each operand has one axis that the other lacks, so that
//! broadcasting combines every row of the left operand with every row of the right one.

/// Roles of the axes of a pairwise pointwise op, which is then reduced over `along`. Axes count from the result's first
/// axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pairwise {
    /// Axes that both operands have, except `along`.
    pub batch: Vec<usize>,
    /// The axis that only the left operand has.
    pub rows: usize,
    /// The axis that only the right operand has.
    pub columns: usize,
    /// The reduced axis, which both operands have.
    pub along: usize,
}

/// The axis roles of operands with these shapes, whose result is reduced over the axis `along`; `None` unless each
/// operand has exactly one axis of its own and all other axes are equal.
pub fn pairs(left: &[usize], right: &[usize], along: usize) -> Option<Pairwise> {
    let rank = left.len().max(right.len());
    let (left, right) = (padded(left, rank), padded(right, rank));
    let own = |of: &[usize], other: &[usize]| {
        let mut all = (0..rank).filter(|&i| of[i] != 1 && other[i] == 1);
        all.next().filter(|_| all.next().is_none())
    };
    let (rows, columns) = (own(&left, &right)?, own(&right, &left)?);
    let batch: Vec<usize> = (0..rank).filter(|i| ![rows, columns, along].contains(i)).collect();
    let shared = batch.iter().chain([&along]).all(|&i| left.get(i) == right.get(i));
    (along < rank && along != rows && along != columns && shared).then_some(Pairwise { batch, rows, columns, along })
}

/// The shape with leading axes of size 1 added up to `rank` axes.
pub fn padded(shape: &[usize], rank: usize) -> Vec<usize> {
    [vec![1; rank.saturating_sub(shape.len())], shape.to_vec()].concat()
}

impl Pairwise {
    /// The axes in the order of a batched GEMM: batch, M (rows), N (columns), K (the reduced axis).
    pub fn order(&self) -> Vec<usize> {
        [&self.batch[..], &[self.rows, self.columns, self.along]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_pair_up_where_each_has_one_axis_of_its_own() {
        let found = pairs(&[2, 8, 1, 5], &[9, 5], 3);
        assert_eq!(found, None, "the right operand lacks the batch");
        let found = pairs(&[8, 1, 5], &[9, 5], 2).map(|p| p.order());
        assert_eq!(found, Some(vec![0, 1, 2]));
        let found = pairs(&[2, 1, 5, 8], &[2, 9, 5, 1], 2).map(|p| (p.batch, p.rows, p.columns));
        assert_eq!(found, Some((vec![0], 3, 1)));
        for (left, right) in [([8, 1, 1], [1, 9, 5]), ([8, 3, 5], [1, 3, 5]), ([8, 9, 5], [8, 9, 5])] {
            assert_eq!(pairs(&left, &right, 2), None);
        }
    }
}
