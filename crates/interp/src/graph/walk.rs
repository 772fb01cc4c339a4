//! Iteration over strided positions without per-element allocation.

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut s = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = s[i] * shape[i].max(1) as isize;
    }
    s
}

/// Strides of an operand of shape `from` broadcast to `to`: 0 along repeated axes.
pub(super) fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<isize> {
    let own = strides(from);
    let lead = to.len() - from.len();
    (0..to.len()).map(|i| if i < lead || from[i - lead] == 1 { 0 } else { own[i - lead] }).collect()
}

/// Calls `f` with the offsets of N operands at every position of `shape`, row-major.
pub(super) fn walk<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    start: [isize; N],
    mut f: impl FnMut([usize; N]),
) {
    if shape.contains(&0) {
        return;
    }
    let Some((&inner, outer)) = shape.split_last() else {
        f(start.map(|o| o as usize));
        return;
    };
    let steps: [isize; N] = std::array::from_fn(|k| strides[k][outer.len()]);
    let mut at = vec![0usize; outer.len()];
    let mut base = start;
    loop {
        let mut offsets = base;
        for _ in 0..inner {
            f(offsets.map(|o| o as usize));
            for k in 0..N {
                offsets[k] += steps[k];
            }
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            for k in 0..N {
                base[k] += strides[k][axis];
            }
            if at[axis] < outer[axis] {
                break;
            }
            for k in 0..N {
                base[k] -= strides[k][axis] * outer[axis] as isize;
            }
            at[axis] = 0;
        }
    }
}

/// The elements at strided positions, as a dense vector.
pub(super) fn collect<T: Copy>(x: &[T], shape: &[usize], strides: &[isize], start: isize) -> Vec<T> {
    let mut out = Vec::with_capacity(shape.iter().product());
    walk(shape, [strides], [start], |[i]| out.push(x[i]));
    out
}
