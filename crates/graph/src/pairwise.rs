//! Broadcast pairs: operands of an op that each have an axis of their own, so that the result has every pair of their rows.

/// Axes of the result of a pointwise op, and of a reduction along `along` that keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pairwise {
    /// Axes that both operands have.
    pub batch: Vec<usize>,
    /// The axis that only the left operand has, and the one that only the right operand has.
    pub rows: usize,
    pub columns: usize,
    pub along: usize,
}

/// How operands of these shapes are paired where the result is reduced along one axis that both have; `None` unless each has
/// one axis of its own. Axes count from the result's first.
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

/// The shape with axes of size 1 in front, so that it has `rank` of them.
pub fn padded(shape: &[usize], rank: usize) -> Vec<usize> {
    [vec![1; rank.saturating_sub(shape.len())], shape.to_vec()].concat()
}

impl Pairwise {
    /// The axes as those of a batch of matrices: batch, then rows, columns, and the axis that is reduced.
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
