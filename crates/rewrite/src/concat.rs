//! Concatenations of many parts, built as a tree of smaller ones.
//!
//! A kernel selects the part that each element comes from, so its code grows with the number of parts, and so does the
//! work of every check on it. With more than [`MOST`] parts, neighbouring parts are joined in groups first. Groups
//! start at the first part, so that the concatenations of a densely connected network, each of which has the parts of
//! the previous one and one more, share their groups.

use kiln_graph::Type;

/// Most parts of one concatenation.
pub const MOST: usize = 32;

/// Type of the concatenation of parts whose other axes agree.
pub fn ty(axis: usize, parts: &[&Type]) -> Type {
    let mut ty = parts[0].clone();
    ty.shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
    ty
}

/// Reduces `parts` to at most [`MOST`]; `join` concatenates a group.
pub fn grouped<T: Clone>(mut parts: Vec<T>, mut join: impl FnMut(&[T]) -> T) -> Vec<T> {
    while parts.len() > MOST {
        // Joining a group replaces `MOST` parts by one.
        let groups = (parts.len() - MOST).div_ceil(MOST - 1);
        let (first, rest) = parts.split_at((groups * MOST).min(parts.len()));
        let mut next: Vec<T> = first.chunks(MOST).map(|g| if let [one] = g { one.clone() } else { join(g) }).collect();
        next.extend_from_slice(rest);
        parts = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_order_and_no_step_has_too_many() {
        for n in [0, 1, MOST, MOST + 1, 2 * MOST, MOST * MOST, MOST * MOST + 1, 5000] {
            let parts: Vec<Vec<usize>> = (0..n).map(|i| vec![i]).collect();
            let mut joined = 0;
            let got = grouped(parts, |g| {
                assert!((2..=MOST).contains(&g.len()), "{n} parts: a group of {}", g.len());
                joined += g.len();
                g.concat()
            });
            assert!(got.len() <= MOST, "{n} parts: {} are left", got.len());
            assert_eq!(got.concat(), (0..n).collect::<Vec<_>>());
            assert!(joined <= n + n / 8, "{n} parts: {joined} are moved");
        }
    }
    #[test]
    fn concatenations_that_begin_alike_share_their_groups() {
        let groups = |n: usize| {
            let mut all = vec![];
            grouped((0..n).map(|i| vec![i]).collect(), |g| {
                all.push(g.concat());
                g.concat()
            });
            all
        };
        let (a, b) = (groups(100), groups(101));
        assert_eq!(a, b[..a.len()]);
    }
}
