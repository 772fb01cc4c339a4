//! Which elements of its base a view shows: how they are taken from a new base, and how new ones are put back.
use crate::raw::Arg;

/// Which elements of its base a view shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// All, in row-major order, in another shape.
    Reshape,
    /// All: axis i is axis `perm[i]` of the base.
    Permute(Vec<usize>),
    /// `len` places of an axis.
    Slice { axis: usize, start: usize, len: usize, step: usize },
    /// One place of an axis, which it lacks.
    Select { axis: usize, at: usize },
    /// Those of axes `a` and `b` where `b - a` is the offset, along a new last axis.
    Diagonal { offset: i64, a: usize, b: usize },
    /// Some of them several times (`expand`).
    Expand,
    /// Known to torch alone.
    Opaque,
}

/// A call in the making: name, overload, arguments.
pub type Form = (&'static str, &'static str, Vec<Arg>);

impl Step {
    /// Whether a write into the view can be put back into its base.
    pub fn writable(&self) -> bool {
        !matches!(self, Step::Expand | Step::Opaque)
    }
    /// Whether the view shows all elements of its base.
    pub fn covers(&self, base: &[usize]) -> bool {
        match self {
            Step::Reshape | Step::Permute(_) => true,
            Step::Slice { axis, len, .. } => base.get(*axis) == Some(len),
            _ => false,
        }
    }
    /// The view of value `of`, which has the base's shape, as a call; `None` if it is the value itself or
    /// [`Step::Opaque`].
    pub fn view(&self, of: usize, base: &[usize], shape: &[usize]) -> Option<Form> {
        let of = Arg::Value(of);
        Some(match self {
            Step::Reshape if base == shape => return None,
            Step::Reshape => ("aten::reshape", "", vec![of, ints(shape)]),
            Step::Permute(perm) => ("aten::permute", "", vec![of, ints(perm)]),
            Step::Slice { axis, start, len, step } => {
                let [start, end, step] = bounds(*start, *len, *step);
                ("aten::slice", "Tensor", vec![of, at(*axis), start, end, step])
            }
            Step::Select { axis, at: place } => ("aten::select", "int", vec![of, at(*axis), at(*place)]),
            Step::Diagonal { offset, a, b } => ("aten::diagonal", "", vec![of, Arg::Int(*offset), at(*a), at(*b)]),
            Step::Expand => ("aten::expand", "", vec![of, ints(shape), Arg::Bool(false)]),
            Step::Opaque => return None,
        })
    }
    /// `base` with the elements that the view shows replaced by `part`, as a call; `None` if that is `part` itself. The
    /// step is writable; a step that covers its base does not read it.
    pub fn scatter(&self, base: usize, part: usize, base_shape: &[usize], shape: &[usize]) -> Option<Form> {
        let (base, part) = (Arg::Value(base), Arg::Value(part));
        Some(match self {
            Step::Slice { axis, len, .. } if base_shape.get(*axis) == Some(len) => return None,
            Step::Slice { axis, start, len, step } => {
                let [start, end, step] = bounds(*start, *len, *step);
                ("aten::slice_scatter", "", vec![base, part, at(*axis), start, end, step])
            }
            Step::Select { axis, at: place } => ("aten::select_scatter", "", vec![base, part, at(*axis), at(*place)]),
            Step::Diagonal { offset, a, b } => {
                ("aten::diagonal_scatter", "", vec![base, part, Arg::Int(*offset), at(*a), at(*b)])
            }
            Step::Permute(perm) => {
                let mut inverse = vec![0; perm.len()];
                perm.iter().enumerate().for_each(|(i, p)| inverse[*p] = i);
                ("aten::permute", "", vec![part, ints(&inverse)])
            }
            Step::Reshape if base_shape != shape => ("aten::reshape", "", vec![part, ints(base_shape)]),
            Step::Reshape | Step::Expand | Step::Opaque => return None,
        })
    }
    /// Whether two views of one base share no element.
    pub fn disjoint(&self, other: &Step) -> bool {
        let span = |s: &Step| match *s {
            Step::Slice { axis, start, len, step } => Some((axis, start, len, step)),
            Step::Select { axis, at } => Some((axis, at, 1, 1)),
            _ => None,
        };
        let (Some((axis, start, len, step)), Some((axis2, start2, len2, step2))) = (span(self), span(other)) else {
            return false;
        };
        if axis != axis2 {
            return false;
        }
        if len == 0 || len2 == 0 {
            return true;
        }
        let (last, last2) = (start + (len - 1) * step, start2 + (len2 - 1) * step2);
        // All places of a slice have one remainder by the steps' common divisor; a single place has no step.
        let single = |len, step| if len == 1 { 0 } else { step };
        let divisor = gcd(single(len, step), single(len2, step2));
        last < start2 || last2 < start || (divisor > 0 && !start.abs_diff(start2).is_multiple_of(divisor))
    }
}

fn ints(v: &[usize]) -> Arg {
    Arg::Ints(v.iter().map(|n| *n as i64).collect())
}

fn at(v: usize) -> Arg {
    Arg::Int(v as i64)
}

/// Start, end and step of a slice as arguments.
fn bounds(start: usize, len: usize, step: usize) -> [Arg; 3] {
    let end = if len == 0 { start } else { start + (len - 1) * step + 1 };
    [at(start), at(end), at(step)]
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_share_no_element() {
        let slice = |start, len, step| Step::Slice { axis: 0, start, len, step };
        let at = |at| Step::Select { axis: 0, at };
        for (a, b) in [
            (slice(0, 2, 1), slice(2, 2, 1)),
            (slice(0, 4, 2), slice(1, 4, 2)),
            (slice(0, 4, 2), slice(1, 2, 4)),
            (slice(0, 4, 2), at(3)),
            (slice(0, 0, 1), slice(0, 4, 1)),
            (at(0), at(1)),
        ] {
            assert!(a.disjoint(&b) && b.disjoint(&a), "{a:?} {b:?}");
        }
        for (a, b) in [
            (slice(0, 2, 1), slice(1, 2, 1)),
            (slice(0, 4, 2), slice(1, 4, 3)),
            (slice(0, 4, 2), at(4)),
            (at(1), at(1)),
            (at(0), Step::Select { axis: 1, at: 1 }),
            (at(0), Step::Reshape),
        ] {
            assert!(!a.disjoint(&b) && !b.disjoint(&a), "{a:?} {b:?}");
        }
    }
}
