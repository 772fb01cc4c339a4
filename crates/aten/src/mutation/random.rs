//! Random programs of views and in-place operators. The oracle runs them on strided memory, where a view is a view: an offset and strides
//! into a flat buffer. The functional program runs on separate dense arrays. Results, and what is left in inputs and constants, must be
//! equal for every layout of memory that the inputs may have.
use super::{change, functionalise, tests::Builder, tests::text};
use crate::raw::{Arg, Call, Raw};
use std::collections::HashMap;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
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

mod oracle {
    //! Tensors as PyTorch has them.
    use super::*;

    #[derive(Clone, PartialEq)]
    struct Strided {
        storage: usize,
        offset: usize,
        sizes: Vec<usize>,
        strides: Vec<usize>,
    }

    #[derive(Default)]
    pub struct Memory {
        storages: Vec<Vec<f64>>,
        tensors: HashMap<usize, Strided>,
    }

    impl Strided {
        fn places(&self) -> Vec<usize> {
            let place = |c: Vec<usize>| self.offset + c.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>();
            coordinates(&self.sizes).into_iter().map(place).collect()
        }
        fn overlaps(&self) -> bool {
            let mut places = self.places();
            places.sort_unstable();
            places.windows(2).any(|w| w[0] == w[1])
        }
        fn contiguous(&self) -> bool {
            let places = self.places();
            places.windows(2).all(|w| w[1] == w[0] + 1)
        }
        /// The same places in another shape, if strides can say so.
        fn reshaped(&self, shape: &[usize]) -> Option<Strided> {
            let places = self.places();
            let mut strides = vec![0; shape.len()];
            for axis in 0..shape.len() {
                // The step from the first element to the next one along the axis.
                let inner: usize = shape[axis + 1..].iter().product();
                if shape[axis] > 1 && !places.is_empty() {
                    strides[axis] = places[inner].checked_sub(places[0])?;
                }
            }
            let view = Strided { sizes: shape.to_vec(), strides, ..self.clone() };
            (view.places() == places).then_some(view)
        }
    }

    impl Memory {
        pub fn read(&self, id: usize) -> Vec<f64> {
            let t = &self.tensors[&id];
            t.places().into_iter().map(|p| self.storages[t.storage][p]).collect()
        }
        /// A tensor with its own memory: row-major, or with axes in any order and unused space between elements.
        fn fresh(&mut self, id: usize, shape: &[usize], data: Vec<f64>, layout: &mut Option<Random>) {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            let (mut gap, mut offset) = (1, 0);
            if let Some(r) = layout {
                order = r.shuffled(shape.len());
                (gap, offset) = (1 + r.below(2), r.below(3));
            }
            let mut strides = vec![0; shape.len()];
            let mut stride = gap;
            for axis in order.into_iter().rev() {
                strides[axis] = stride;
                stride *= shape[axis].max(1);
            }
            let t = Strided { storage: self.storages.len(), offset, sizes: shape.to_vec(), strides };
            let mut storage = vec![f64::NAN; offset + stride + gap];
            t.places().into_iter().zip(data).for_each(|(p, v)| storage[p] = v);
            self.storages.push(storage);
            self.tensors.insert(id, t);
        }
        /// Operand `id`'s elements, broadcast to a shape.
        fn broadcast(&self, id: usize, shape: &[usize]) -> Vec<f64> {
            let t = &self.tensors[&id];
            let lead = shape.len() - t.sizes.len();
            let strides = t.strides.iter().zip(&t.sizes).map(|(s, n)| if *n == 1 { 0 } else { *s });
            let strides = std::iter::repeat_n(0, lead).chain(strides).collect();
            let wide = Strided { sizes: shape.to_vec(), strides, ..t.clone() };
            wide.places().into_iter().map(|p| self.storages[t.storage][p]).collect()
        }
    }

    /// Runs a program; `None` if PyTorch would refuse it for this layout of memory.
    pub fn run(raw: &Raw, layout: Option<u64>) -> Option<Memory> {
        let mut layout = layout.map(Random);
        let mut m = Memory::default();
        for id in 0..raw.values.len() {
            if !raw.calls.iter().any(|c| c.outs.contains(&id)) {
                let shape = &raw.values[id].shape;
                m.fresh(id, shape, initial(id, shape.iter().product()), &mut layout);
            }
        }
        for call in &raw.calls {
            step(&mut m, raw, call, &mut layout)?;
        }
        Some(m)
    }

    fn step(m: &mut Memory, raw: &Raw, call: &Call, layout: &mut Option<Random>) -> Option<()> {
        let id = value(call, 0);
        let x = m.tensors[&id].clone();
        let out = call.outs[0];
        let shape = raw.values[out].shape.clone();
        let op = &call.name["aten::".len()..];
        let mut view = x.clone();
        match op {
            "add_" | "mul_" | "fill_" | "zero_" | "copy_" | "neg_" | "clamp_" => {
                if x.overlaps() {
                    return None;
                }
                let old = m.read(id);
                let other = if let Some(Arg::Value(b)) = call.args.get(1) { m.broadcast(*b, &x.sizes) } else { vec![] };
                let new = |(i, v): (usize, f64)| match op {
                    "add_" => v + other[i],
                    "mul_" => v * float(call, 1),
                    "fill_" => float(call, 1),
                    "zero_" => 0.0,
                    "copy_" => other[i],
                    "neg_" => -v,
                    _ => v.clamp(float(call, 1), float(call, 2)),
                };
                let new: Vec<f64> = old.into_iter().enumerate().map(new).collect();
                let places = x.places();
                places.into_iter().zip(new).for_each(|(p, v)| m.storages[x.storage][p] = v);
            }
            "add" | "clone" => {
                let mut data = m.broadcast(id, &shape);
                if op == "add" {
                    let b = m.broadcast(value(call, 1), &shape);
                    data.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                }
                m.fresh(out, &shape, data, layout);
                return Some(());
            }
            "select" => {
                view.offset += size(call, 2) * view.strides.remove(size(call, 1));
                view.sizes.remove(size(call, 1));
            }
            "slice" => {
                let axis = size(call, 1);
                view.offset += size(call, 2) * x.strides[axis];
                (view.sizes[axis], view.strides[axis]) = (shape[axis], x.strides[axis] * size(call, 4));
            }
            "transpose" => {
                view.sizes.swap(size(call, 1), size(call, 2));
                view.strides.swap(size(call, 1), size(call, 2));
            }
            "permute" => {
                let perm = sizes(call, 1);
                view.sizes = perm.iter().map(|a| x.sizes[*a]).collect();
                view.strides = perm.iter().map(|a| x.strides[*a]).collect();
            }
            "unsqueeze" => {
                view.sizes.insert(size(call, 1), 1);
                view.strides.insert(size(call, 1), 1);
            }
            "squeeze" => {
                let keep: Vec<usize> = (0..x.sizes.len()).filter(|a| x.sizes[*a] != 1).collect();
                view.sizes = keep.iter().map(|a| x.sizes[*a]).collect();
                view.strides = keep.iter().map(|a| x.strides[*a]).collect();
            }
            "expand" => {
                let lead = shape.len() - x.sizes.len();
                let strides = (0..x.sizes.len()).map(|a| if x.sizes[a] == shape[lead + a] { x.strides[a] } else { 0 });
                view.strides = std::iter::repeat_n(0, lead).chain(strides).collect();
                view.sizes = shape;
            }
            "diagonal" => {
                let (offset, a, b) = (int(call, 1), size(call, 2), size(call, 3));
                let from = if offset < 0 { x.strides[a] } else { x.strides[b] };
                view.offset += offset.unsigned_abs() as usize * from;
                let keep: Vec<usize> = (0..x.sizes.len()).filter(|d| *d != a && *d != b).collect();
                view.strides = keep.iter().map(|d| x.strides[*d]).chain([x.strides[a] + x.strides[b]]).collect();
                view.sizes = shape;
            }
            "unfold" => {
                let axis = size(call, 1);
                view.strides[axis] *= size(call, 3);
                view.strides.push(x.strides[axis]);
                view.sizes = shape;
            }
            "split" => {
                let axis = size(call, 2);
                for o in &call.outs {
                    view.sizes[axis] = raw.values[*o].shape[axis];
                    m.tensors.insert(*o, view.clone());
                    view.offset += view.sizes[axis] * x.strides[axis];
                }
                return Some(());
            }
            "unbind" => {
                let axis = size(call, 1);
                view.sizes.remove(axis);
                view.strides.remove(axis);
                for o in &call.outs {
                    m.tensors.insert(*o, view.clone());
                    view.offset += x.strides[axis];
                }
                return Some(());
            }
            "detach" | "to" | "dropout" => {}
            "view" => view = x.reshaped(&shape)?,
            "reshape" | "contiguous" => match x.reshaped(&shape).filter(|_| op == "reshape" || x.contiguous()) {
                Some(v) => view = v,
                None => {
                    let data = m.read(id);
                    m.fresh(out, &shape, data, &mut None);
                    return Some(());
                }
            },
            other => panic!("the oracle lacks {other}"),
        }
        m.tensors.insert(out, view);
        Some(())
    }
}

mod dense {
    //! Functional calls on separate row-major arrays.
    use super::*;

    #[derive(Clone)]
    pub struct Array {
        shape: Vec<usize>,
        pub data: Vec<f64>,
    }

    impl Array {
        fn at(&self, c: &[usize]) -> usize {
            assert!(
                c.iter().zip(&self.shape).all(|(i, n)| i < n) && c.len() == self.shape.len(),
                "{c:?} {:?}",
                self.shape
            );
            c.iter().zip(&self.shape).fold(0, |at, (i, n)| at * n + i)
        }
        fn gather(&self, shape: &[usize], from: impl Fn(&[usize]) -> Vec<usize>) -> Array {
            let data = coordinates(shape).iter().map(|c| self.data[self.at(&from(c))]).collect();
            Array { shape: shape.to_vec(), data }
        }
        fn broadcast(&self, shape: &[usize]) -> Array {
            let lead = shape.len() - self.shape.len();
            self.gather(shape, |c| {
                c[lead..].iter().zip(&self.shape).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect()
            })
        }
        fn scatter(&self, part: &Array, to: impl Fn(&[usize]) -> Vec<usize>) -> Array {
            let mut whole = self.clone();
            for (c, v) in coordinates(&part.shape).iter().zip(&part.data) {
                let at = whole.at(&to(c));
                whole.data[at] = *v;
            }
            whole
        }
    }

    fn with(c: &[usize], axis: usize, i: usize) -> Vec<usize> {
        [&c[..axis], &[i], &c[axis..]].concat()
    }
    fn replaced(c: &[usize], axis: usize, i: usize) -> Vec<usize> {
        [&c[..axis], &[i], &c[axis + 1..]].concat()
    }
    fn on_diagonal(c: &[usize], offset: i64, a: usize, b: usize) -> Vec<usize> {
        let (rest, k) = (&c[..c.len() - 1], c[c.len() - 1]);
        let distance = offset.unsigned_abs() as usize;
        let (row, column) = if offset < 0 { (k + distance, k) } else { (k, k + distance) };
        let mut rest = rest.iter();
        (0..c.len() + 1)
            .map(|d| {
                if d == a {
                    row
                } else if d == b {
                    column
                } else {
                    *rest.next().unwrap()
                }
            })
            .collect()
    }

    pub fn run(raw: &Raw) -> HashMap<usize, Array> {
        let mut all = HashMap::new();
        for id in 0..raw.values.len() {
            if !raw.calls.iter().any(|c| c.outs.contains(&id)) {
                let shape = raw.values[id].shape.clone();
                all.insert(id, Array { data: initial(id, shape.iter().product()), shape });
            }
        }
        for call in &raw.calls {
            let x = &all[&value(call, 0)];
            let (op, shape) = (&call.name["aten::".len()..], &raw.values[call.outs[0]].shape);
            let operand = |i| &all[&value(call, i)];
            let each =
                |f: &dyn Fn(f64) -> f64| Array { shape: shape.clone(), data: x.data.iter().map(|v| f(*v)).collect() };
            let results = match op {
                "add" => {
                    let (a, b) = (x.broadcast(shape), operand(1).broadcast(shape));
                    vec![Array { shape: shape.clone(), data: a.data.iter().zip(&b.data).map(|(a, b)| a + b).collect() }]
                }
                "mul" => vec![each(&|v| v * float(call, 1))],
                "fill" => vec![each(&|_| float(call, 1))],
                "zero" => vec![each(&|_| 0.0)],
                "neg" => vec![each(&|v| -v)],
                "clamp" => vec![each(&|v| v.clamp(float(call, 1), float(call, 2)))],
                "copy" => vec![operand(1).broadcast(shape)],
                "expand" => vec![x.broadcast(shape)],
                "clone" | "detach" | "to" | "dropout" | "contiguous" | "view" | "reshape" | "unsqueeze" | "squeeze" => {
                    vec![Array { shape: shape.clone(), data: x.data.clone() }]
                }
                "select" => vec![x.gather(shape, |c| with(c, size(call, 1), size(call, 2)))],
                "slice" => {
                    vec![x.gather(shape, |c| {
                        replaced(c, size(call, 1), size(call, 2) + c[size(call, 1)] * size(call, 4))
                    })]
                }
                "transpose" => vec![x.gather(shape, |c| {
                    let mut c = c.to_vec();
                    c.swap(size(call, 1), size(call, 2));
                    c
                })],
                "permute" => {
                    let perm = sizes(call, 1);
                    let place = |a| perm.iter().position(|p| *p == a).unwrap();
                    vec![x.gather(shape, |c| (0..perm.len()).map(|a| c[place(a)]).collect())]
                }
                "diagonal" => vec![x.gather(shape, |c| on_diagonal(c, int(call, 1), size(call, 2), size(call, 3)))],
                "unfold" => vec![x.gather(shape, |c| {
                    let (axis, last) = (size(call, 1), c[c.len() - 1]);
                    replaced(&c[..c.len() - 1], axis, c[axis] * size(call, 3) + last)
                })],
                "split" => {
                    let (axis, mut start) = (size(call, 2), 0);
                    let mut piece = |o: &usize| {
                        let shape = &raw.values[*o].shape;
                        start += shape[axis];
                        x.gather(shape, |c| replaced(c, axis, start - shape[axis] + c[axis]))
                    };
                    call.outs.iter().map(&mut piece).collect()
                }
                "unbind" => (0..call.outs.len()).map(|i| x.gather(shape, |c| with(c, size(call, 1), i))).collect(),
                "slice_scatter" => {
                    let (axis, start, step) = (size(call, 2), size(call, 3), size(call, 5));
                    vec![x.scatter(operand(1), |c| replaced(c, axis, start + c[axis] * step))]
                }
                "select_scatter" => vec![x.scatter(operand(1), |c| with(c, size(call, 2), size(call, 3)))],
                "diagonal_scatter" => {
                    vec![x.scatter(operand(1), |c| on_diagonal(c, int(call, 2), size(call, 3), size(call, 4)))]
                }
                other => panic!("no dense form of {other}"),
            };
            for (out, array) in call.outs.iter().zip(results) {
                assert_eq!(array.shape, raw.values[*out].shape, "%{out} of {}", text(raw));
                assert_eq!(array.data.len(), array.shape.iter().product::<usize>(), "%{out} of {}", text(raw));
                all.insert(*out, array);
            }
        }
        all
    }
}

/// Which programs are made.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Every view is certain, and no write goes through a view that shows elements several times: nothing may be refused.
    Certain,
    /// Also `reshape`, `contiguous` and `to`, and writes through any view.
    Any,
}

/// Adds a random call, if there is one for the operand that was drawn. `wide`: tensors made through `expand` or `unfold`.
fn extend(b: &mut Builder, r: &mut Random, style: Style, wide: &mut Vec<usize>) {
    let count = b.raw.values.len();
    // Later tensors more often.
    let id = r.below(count).max(r.below(count));
    let shape = b.raw.values[id].shape.clone();
    let (v, rank) = (Arg::Value(id), shape.len());
    let axis = r.below(rank);
    let arg = |n: usize| Arg::Int(n as i64);
    let ints = |s: &[usize]| Arg::Ints(s.iter().map(|n| *n as i64).collect());
    let mut through_wide = wide.contains(&id);
    let before = count;
    // Half of the calls write.
    let choice = if r.below(2) == 0 { 100 + r.below(9) } else { r.below(18) };
    if choice >= 100 && through_wide && style == Style::Certain {
        return;
    }
    match choice {
        0 | 1 if rank > 0 && shape[axis] > 0 => {
            let at = r.below(shape[axis]);
            let mut s = shape;
            s.remove(axis);
            b.call("select", "int", vec![v, arg(axis), arg(at)], &s);
        }
        2..=4 if rank > 0 => {
            let (start, step) = (r.below(shape[axis] + 1), 1 + r.below(2));
            let end = start + r.below(shape[axis] - start + 1);
            let mut s = shape;
            s[axis] = (end - start).div_ceil(step);
            b.call("slice", "Tensor", vec![v, arg(axis), arg(start), arg(end), arg(step)], &s);
        }
        5 if rank > 1 => {
            let other = r.below(rank);
            let mut s = shape;
            s.swap(axis, other);
            b.call("transpose", "int", vec![v, arg(axis), arg(other)], &s);
        }
        6 if rank > 1 => {
            let perm = r.shuffled(rank);
            let s: Vec<usize> = perm.iter().map(|a| shape[*a]).collect();
            b.call("permute", "", vec![v, ints(&perm)], &s);
        }
        7 if rank < 4 => {
            let at = r.below(rank + 1);
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
            if rank > 1 && r.below(2) == 0 {
                let a = r.below(rank - 1);
                s[a] *= s.remove(a + 1);
            } else if rank > 0 && s[axis].is_multiple_of(2) && s[axis] > 0 {
                s[axis] /= 2;
                s.insert(axis, 2);
            }
            let name = if style == Style::Any && r.below(2) == 0 { "reshape" } else { "view" };
            b.call(name, "", vec![v, ints(&s)], &s);
        }
        11 if rank < 3 => {
            let mut s = shape;
            through_wide = true;
            if rank > 0 && s[axis] == 1 {
                s[axis] = 2;
            } else {
                s.insert(0, 1 + r.below(2));
            }
            b.call("expand", "", vec![v, ints(&s), Arg::Bool(false)], &s);
        }
        12 if rank > 1 => {
            let other = (axis + 1 + r.below(rank - 1)) % rank;
            let offset = r.below(3) as i64 - 1;
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
        16 if style == Style::Any && r.below(2) == 0 => {
            _ = b.call("contiguous", "", vec![v, Arg::None], &shape);
        }
        16 if style == Style::Any => {
            let args = vec![v, Arg::Int(7), Arg::Bool(false), Arg::Bool(false), Arg::None];
            b.call("to", "dtype", args, &shape);
        }
        16 => _ = b.call("dropout", "", vec![v, Arg::Float(0.5), Arg::Bool(false)], &shape),
        17 if r.below(2) == 0 => _ = b.call("detach", "", vec![v], &shape),
        17 => {
            through_wide = false;
            let other = r.below(count);
            match b.raw.values[other].shape == shape {
                true => b.call("add", "Tensor", vec![v, Arg::Value(other), Arg::Int(1)], &shape),
                false => b.call("clone", "", vec![v, Arg::None], &shape),
            };
        }
        100 => _ = b.call("mul_", "Scalar", vec![v, Arg::Float(1.25)], &shape),
        101 => _ = b.call("fill_", "Scalar", vec![v, Arg::Float(r.below(50) as f64)], &shape),
        102 => _ = b.call("zero_", "", vec![v], &shape),
        103 => _ = b.call("neg_", "", vec![v], &shape),
        104 => _ = b.call("clamp_", "", vec![v, Arg::Float(3.0), Arg::Float(120.0)], &shape),
        105.. => {
            let fits =
                |s: &[usize]| s.len() <= rank && s.iter().rev().zip(shape.iter().rev()).all(|(a, b)| a == b || *a == 1);
            let all: Vec<usize> = (0..count).filter(|o| fits(&b.raw.values[*o].shape)).collect();
            let other = Arg::Value(all[r.below(all.len())]);
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
    let mut r = Random(seed);
    let mut b = Builder::default();
    let shape = |r: &mut Random| (0..1 + r.below(3)).map(|_| 1 + r.below(4)).collect::<Vec<_>>();
    b.input("f64", &shape(&mut r));
    b.input("f64", &shape(&mut r));
    b.buffer("f64", &shape(&mut r), "buffer");
    let (length, mut wide) = (3 + r.below(14), vec![]);
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
        Style::Any => (0..1 + r.below(3)).map(|_| r.below(count)).collect(),
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
