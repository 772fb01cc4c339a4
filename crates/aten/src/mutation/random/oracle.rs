//! Tensors as PyTorch has them: an offset and strides into memory that several may share.
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
            order = shuffled(r, shape.len());
            (gap, offset) = (1 + r.next_below(2), r.next_below(3));
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
    let mut layout = layout.map(Random::new);
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
