//! Random programs of views and in-place operators. The oracle runs them on strided memory, where a view is a view: an
//! offset and strides into a flat buffer. The functional program runs on separate dense arrays. Results, and what is
//! left in inputs and constants, must be equal for every layout of memory that the inputs may have.
mod dense;
mod oracle;

use super::{change, functionalise, tests::Builder, tests::text};
use crate::raw::{Arg, Call, Raw};
use kiln_graph::Random;
use std::collections::HashMap;

/// The numbers below `n`, in any order.
fn shuffled(random: &mut Random, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    (1..n).rev().for_each(|i| order.swap(i, random.next_below(i + 1)));
    order
}

/// All coordinates of a shape in row-major order.
fn coordinates(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, n| {
        all.iter().flat_map(|c: &Vec<usize>| (0..*n).map(move |i| [&c[..], &[i]].concat())).collect()
    })
}

fn value(call: &Call, i: usize) -> usize {
    if let Arg::Value(id) = call.args[i] { id } else { panic!("{call:?}") }
}
fn int(call: &Call, i: usize) -> i64 {
    if let Arg::Int(v) = call.args[i] { v } else { panic!("{call:?}") }
}
fn size(call: &Call, i: usize) -> usize {
    usize::try_from(int(call, i)).unwrap()
}
fn float(call: &Call, i: usize) -> f64 {
    if let Arg::Float(v) = call.args[i] { v } else { panic!("{call:?}") }
}
fn sizes(call: &Call, i: usize) -> Vec<usize> {
    if let Arg::Ints(v) = &call.args[i] { v.iter().map(|n| *n as usize).collect() } else { panic!("{call:?}") }
}

/// The contents that input or constant `id` has at first.
fn initial(id: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| (id * 100 + i) as f64 + 0.5).collect()
}

/// Which programs are made.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Every view is certain, and no write goes through a view that shows elements several times: nothing may be
    /// refused.
    Certain,
    /// Also `reshape`, `contiguous` and `to`, and writes through any view.
    Any,
}

/// Adds a random call, if there is one for the operand that was drawn. `wide`: tensors made through `expand` or
/// `unfold`.
fn extend(b: &mut Builder, r: &mut Random, style: Style, wide: &mut Vec<usize>) {
    let count = b.raw.values.len();
    // Later tensors more often.
    let id = r.next_below(count).max(r.next_below(count));
    let shape = b.raw.values[id].shape.clone();
    let (v, rank) = (Arg::Value(id), shape.len());
    let axis = r.next_below(rank);
    let arg = |n: usize| Arg::Int(n as i64);
    let ints = |s: &[usize]| Arg::Ints(s.iter().map(|n| *n as i64).collect());
    let mut through_wide = wide.contains(&id);
    let before = count;
    // Half of the calls write.
    let choice = if r.next_below(2) == 0 { 100 + r.next_below(9) } else { r.next_below(18) };
    if choice >= 100 && through_wide && style == Style::Certain {
        return;
    }
    match choice {
        0 | 1 if rank > 0 && shape[axis] > 0 => {
            let at = r.next_below(shape[axis]);
            let mut s = shape;
            s.remove(axis);
            b.call("select", "int", vec![v, arg(axis), arg(at)], &s);
        }
        2..=4 if rank > 0 => {
            let (start, step) = (r.next_below(shape[axis] + 1), 1 + r.next_below(2));
            let end = start + r.next_below(shape[axis] - start + 1);
            let mut s = shape;
            s[axis] = (end - start).div_ceil(step);
            b.call("slice", "Tensor", vec![v, arg(axis), arg(start), arg(end), arg(step)], &s);
        }
        5 if rank > 1 => {
            let other = r.next_below(rank);
            let mut s = shape;
            s.swap(axis, other);
            b.call("transpose", "int", vec![v, arg(axis), arg(other)], &s);
        }
        6 if rank > 1 => {
            let perm = shuffled(r, rank);
            let s: Vec<usize> = perm.iter().map(|a| shape[*a]).collect();
            b.call("permute", "", vec![v, ints(&perm)], &s);
        }
        7 if rank < 4 => {
            let at = r.next_below(rank + 1);
            let mut s = shape;
            s.insert(at, 1);
            b.call("unsqueeze", "", vec![v, arg(at)], &s);
        }
        8 => {
            let s: Vec<usize> = shape.into_iter().filter(|n| *n != 1).collect();
            b.call("squeeze", "", vec![v], &s);
        }
        9 | 10 => {
            // Merges two axes, or splits one.
            let mut s = shape;
            if rank > 1 && r.next_below(2) == 0 {
                let a = r.next_below(rank - 1);
                s[a] *= s.remove(a + 1);
            } else if rank > 0 && s[axis].is_multiple_of(2) && s[axis] > 0 {
                s[axis] /= 2;
                s.insert(axis, 2);
            }
            let name = if style == Style::Any && r.next_below(2) == 0 { "reshape" } else { "view" };
            b.call(name, "", vec![v, ints(&s)], &s);
        }
        11 if rank < 3 => {
            let mut s = shape;
            through_wide = true;
            if rank > 0 && s[axis] == 1 {
                s[axis] = 2;
            } else {
                s.insert(0, 1 + r.next_below(2));
            }
            b.call("expand", "", vec![v, ints(&s), Arg::Bool(false)], &s);
        }
        12 if rank > 1 => {
            let other = (axis + 1 + r.next_below(rank - 1)) % rank;
            let offset = r.next_below(3) as i64 - 1;
            let (rows, columns) = (shape[axis] as i64, shape[other] as i64);
            let len = if offset < 0 { (rows + offset).min(columns) } else { rows.min(columns - offset) };
            if len > 0 {
                let mut s: Vec<usize> = (0..rank).filter(|d| *d != axis && *d != other).map(|d| shape[d]).collect();
                s.push(len as usize);
                b.call("diagonal", "", vec![v, Arg::Int(offset), arg(axis), arg(other)], &s);
            }
        }
        13 if rank > 0 && shape[axis] > 1 => {
            let mut first = shape;
            let size = first[axis].div_ceil(2);
            let mut second = first.clone();
            (first[axis], second[axis]) = (size, second[axis] - size);
            b.several("split", "Tensor", vec![v, arg(size), arg(axis)], &[&first, &second]);
        }
        14 if rank > 0 && (1..4).contains(&shape[axis]) => {
            let n = shape[axis];
            let mut s = shape;
            s.remove(axis);
            b.several("unbind", "int", vec![v, arg(axis)], &vec![&s[..]; n]);
        }
        15 if rank > 0 && rank < 3 && shape[axis] > 1 => {
            let mut s = shape;
            through_wide = true;
            s[axis] -= 1;
            s.push(2);
            b.call("unfold", "", vec![v, arg(axis), arg(2), arg(1)], &s);
        }
        16 if style == Style::Any && r.next_below(2) == 0 => {
            _ = b.call("contiguous", "", vec![v, Arg::None], &shape);
        }
        16 if style == Style::Any => {
            let args = vec![v, Arg::Int(7), Arg::Bool(false), Arg::Bool(false), Arg::None];
            b.call("to", "dtype", args, &shape);
        }
        16 => _ = b.call("dropout", "", vec![v, Arg::Float(0.5), Arg::Bool(false)], &shape),
        17 if r.next_below(2) == 0 => _ = b.call("detach", "", vec![v], &shape),
        17 => {
            through_wide = false;
            let other = r.next_below(count);
            match b.raw.values[other].shape == shape {
                true => b.call("add", "Tensor", vec![v, Arg::Value(other), Arg::Int(1)], &shape),
                false => b.call("clone", "", vec![v, Arg::None], &shape),
            };
        }
        100 => _ = b.call("mul_", "Scalar", vec![v, Arg::Float(1.25)], &shape),
        101 => _ = b.call("fill_", "Scalar", vec![v, Arg::Float(r.next_below(50) as f64)], &shape),
        102 => _ = b.call("zero_", "", vec![v], &shape),
        103 => _ = b.call("neg_", "", vec![v], &shape),
        104 => _ = b.call("clamp_", "", vec![v, Arg::Float(3.0), Arg::Float(120.0)], &shape),
        105.. => {
            let fits =
                |s: &[usize]| s.len() <= rank && s.iter().rev().zip(shape.iter().rev()).all(|(a, b)| a == b || *a == 1);
            let all: Vec<usize> = (0..count).filter(|o| fits(&b.raw.values[*o].shape)).collect();
            let other = Arg::Value(all[r.next_below(all.len())]);
            match choice {
                105 | 106 => b.call("add_", "Tensor", vec![v, other, Arg::Int(1)], &shape),
                _ => b.call("copy_", "", vec![v, other, Arg::Bool(false)], &shape),
            };
        }
        _ => {}
    }
    if through_wide {
        wide.extend(before..b.raw.values.len());
    }
}

fn program(seed: u64, style: Style) -> Raw {
    let mut r = Random::new(seed);
    let mut b = Builder::default();
    let shape = |r: &mut Random| (0..1 + r.next_below(3)).map(|_| 1 + r.next_below(4)).collect::<Vec<_>>();
    b.input("f64", &shape(&mut r));
    b.input("f64", &shape(&mut r));
    b.buffer("f64", &shape(&mut r), "buffer");
    let (length, mut wide) = (3 + r.next_below(14), vec![]);
    while b.raw.calls.len() < length {
        let (calls, values, wide_before) = (b.raw.calls.len(), b.raw.values.len(), wide.len());
        extend(&mut b, &mut r, style, &mut wide);
        let too_large = b.raw.values.iter().any(|v| v.shape.iter().product::<usize>() > 200);
        if too_large || oracle::run(&b.raw, None).is_none() {
            b.raw.calls.truncate(calls);
            b.raw.values.truncate(values);
            wide.truncate(wide_before);
        }
    }
    let count = b.raw.values.len();
    b.raw.outputs = match style {
        Style::Certain => (0..count).collect(),
        Style::Any => (0..1 + r.next_below(3)).map(|_| r.next_below(count)).collect(),
    };
    b.raw
}

/// The first `calls` calls of a program.
fn prefix(raw: &Raw, calls: usize) -> Raw {
    let mut short = raw.clone();
    short.calls.truncate(calls);
    let end = raw.calls.get(calls).map_or(raw.values.len(), |c| c.outs[0]);
    short.values.truncate(end);
    short.outputs.retain(|o| *o < end);
    if short.outputs.is_empty() {
        short.outputs.push(end - 1);
    }
    short
}

/// `Ok(false)` if the program was refused; `Err` says what is wrong with its functional form.
fn check(raw: &Raw, style: Style, seed: u64) -> Result<bool, String> {
    let (functional, writes) = match functionalise(raw.clone()) {
        Ok(done) => done,
        Err(e) if style == Style::Any => {
            return if e.errors.iter().all(|p| !p.help.is_empty()) {
                Ok(false)
            } else {
                Err(format!("no help in {e}"))
            };
        }
        Err(e) => return Err(format!("refused: {e}")),
    };
    let shown = || format!("{}\nwrites {writes:?}", text(&functional));
    if functional.calls.iter().any(|c| change(c).is_some()) {
        return Err(format!("in-place operators are left:\n{}", shown()));
    }
    let arrays = dense::run(&functional);
    for layout in [None, Some(seed), Some(!seed)] {
        let Some(memory) = oracle::run(raw, layout) else { continue };
        for (before, after) in raw.outputs.iter().zip(&functional.outputs) {
            let (want, got) = (memory.read(*before), &arrays[after].data);
            if want != *got {
                return Err(format!("output %{before}, layout {layout:?}: {want:?}, got {got:?}\n{}", shown()));
            }
        }
        let kept = (0..raw.values.len()).filter(|id| !raw.calls.iter().any(|c| c.outs.contains(id)));
        for id in kept {
            let left = memory.read(id);
            let write = writes.iter().find(|w| w.target == id);
            let want = write.map_or_else(|| initial(id, left.len()), |w| arrays[&w.value].data.clone());
            if want != left {
                return Err(format!("left in %{id}, layout {layout:?}: {left:?}, said to be {want:?}\n{}", shown()));
            }
        }
    }
    Ok(true)
}

/// Checks programs; returns the share that is not refused. A failure shows the shortest prefix that fails.
fn sweep(style: Style, programs: u64) -> f64 {
    let mut accepted = 0;
    for seed in 0..programs {
        let raw = program(seed, style);
        match check(&raw, style, seed) {
            Ok(taken) => accepted += u64::from(taken),
            Err(_) => {
                let fails = |n| check(&prefix(&raw, n), style, seed).err().map(|why| (n, why));
                let (n, why) = (1..=raw.calls.len()).find_map(fails).unwrap();
                panic!("seed {seed}:\n{}\n{why}", text(&prefix(&raw, n)));
            }
        }
    }
    accepted as f64 / programs as f64
}

#[test]
fn programs_of_certain_views_give_what_strided_memory_gives() {
    assert_eq!(sweep(Style::Certain, 4000), 1.0);
}

#[test]
fn programs_of_any_views_give_what_every_layout_of_memory_gives_or_are_refused() {
    let accepted = sweep(Style::Any, 8000);
    assert!((0.3..0.95).contains(&accepted), "{accepted} of the programs are followed");
}
