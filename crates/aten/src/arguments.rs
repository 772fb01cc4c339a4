//! What the arguments of a call say, for those who read calls without a graph: `None` is an argument of another kind.
use crate::{
    convert::context::normal_axis,
    raw::{Arg, Call},
};

/// An integer argument.
pub fn int(call: &Call, i: usize) -> Option<i64> {
    if let Arg::Int(v) = call.args.get(i)? { Some(*v) } else { None }
}

/// An integer argument, which may be missing.
pub fn int_or(call: &Call, i: usize, default: i64) -> Option<i64> {
    match call.args.get(i) {
        None | Some(Arg::None) => Some(default),
        Some(Arg::Int(v)) => Some(*v),
        _ => None,
    }
}

/// An axis argument among `rank`, normalised.
pub fn axis(call: &Call, i: usize, default: i64, rank: usize) -> Option<usize> {
    normal_axis(int_or(call, i, default)?, rank).ok().filter(|a| *a < rank)
}

/// A list of axes among `rank`, normalised.
pub fn axes(call: &Call, i: usize, rank: usize) -> Option<Vec<usize>> {
    let given = match call.args.get(i)? {
        Arg::Ints(v) => &v[..],
        Arg::Int(v) => std::slice::from_ref(v),
        Arg::List(v) if v.is_empty() => &[],
        _ => return None,
    };
    given.iter().map(|a| normal_axis(*a, rank).ok().filter(|a| *a < rank)).collect()
}

/// Place `v` of an axis with `size` places; negative numbers count from the end.
pub fn place(v: i64, size: usize) -> usize {
    let size = size as i64;
    (if v < 0 { v.saturating_add(size) } else { v }).clamp(0, size) as usize
}
