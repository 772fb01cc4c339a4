//! Functional calls on separate row-major arrays.
use super::*;

#[derive(Clone)]
pub struct Array {
    shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    fn at(&self, c: &[usize]) -> usize {
        assert!(c.iter().zip(&self.shape).all(|(i, n)| i < n) && c.len() == self.shape.len(), "{c:?} {:?}", self.shape);
        c.iter().zip(&self.shape).fold(0, |at, (i, n)| at * n + i)
    }
    fn gather(&self, shape: &[usize], from: impl Fn(&[usize]) -> Vec<usize>) -> Array {
        let data = coordinates(shape).iter().map(|c| self.data[self.at(&from(c))]).collect();
        Array { shape: shape.to_vec(), data }
    }
    fn broadcast(&self, shape: &[usize]) -> Array {
        let lead = shape.len() - self.shape.len();
        self.gather(shape, |c| c[lead..].iter().zip(&self.shape).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect())
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
                vec![x.gather(shape, |c| replaced(c, size(call, 1), size(call, 2) + c[size(call, 1)] * size(call, 4)))]
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
