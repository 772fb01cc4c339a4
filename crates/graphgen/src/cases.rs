//! Random graphs similar to those of users, over the dtypes, lengths and access patterns on which kernels specialise.
//!
//! Each case belongs to a family (rows, matmuls, data movement, …) that determines its first inputs and the
//! probabilities of its steps. Steps pick from all values so far, so families mix. Steps that do not fit are skipped.
mod families;
mod inputs;
mod layers;
mod rows;
mod steps;

pub use inputs::case_inputs;

use families::FAMILIES;
use kiln_graph::Random;
use kiln_graph::{DType, Graph, GraphError, Init, Scalar, Type, ValueId};

/// Size of the tensors of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Up to 2^14 elements per value: hundreds of cases per second.
    Small,
    /// Up to 2^20 elements per value and matmul sizes up to 512, which reach warpgroup and cluster kernels.
    Large,
}
impl Scale {
    /// Maximum number of elements of a value.
    fn limit(self) -> usize {
        if self == Scale::Small { 1 << 14 } else { 1 << 20 }
    }
    /// Maximum number of FMAs of a matmul.
    fn work(self) -> usize {
        if self == Scale::Small { 1 << 19 } else { 1 << 26 }
    }
    fn rows(self) -> &'static [usize] {
        match self {
            Scale::Small => &[1, 2, 7, 31, 32, 33, 64, 96, 128, 255, 256, 1000, 1024, 4097, 8192],
            Scale::Large => &[
                7, 96, 255, 256, 768, 1000, 1024, 2048, 4096, 4097, 8192, 12672, 16384, 20001, 50257, 65536, 131072,
                262144,
            ],
        }
    }
    fn sides(self) -> &'static [usize] {
        match self {
            Scale::Small => &[1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 65],
            Scale::Large => &[1, 3, 16, 64, 96, 100, 127, 128, 192, 256, 257, 320, 384, 512],
        }
    }
}

struct Maker {
    g: Graph,
    r: Random,
    scale: Scale,
    dtype: DType,
    /// Values of float dtypes.
    floats: Vec<ValueId>,
    /// Integer and bool values.
    others: Vec<ValueId>,
}

type Made = Result<ValueId, GraphError>;

/// A random graph with several inputs, parameters and outputs. Valid by construction; depends only on its seed and
/// scale.
pub fn case(seed: u64, scale: Scale) -> Graph {
    let family = &FAMILIES[(seed % FAMILIES.len() as u64) as usize];
    let mut r = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let dtype = r.choose(&[DType::F32, DType::F32, DType::Bf16, DType::Bf16, DType::F16, DType::F64]);
    let g = Graph::new(format!("{}_{seed}", family.name));
    let mut m = Maker { g, r, scale, dtype, floats: vec![], others: vec![] };
    (family.start)(&mut m);
    let total: usize = family.steps.iter().map(|s| s.1).sum();
    let (wanted, mut made) = (1 + m.r.next_below(9), 0);
    for _ in 0..wanted * 20 {
        if made == wanted {
            break;
        }
        let mut at = m.r.next_below(total);
        let (step, _) = family
            .steps
            .iter()
            .find(|s| {
                let found = at < s.1;
                at = at.wrapping_sub(s.1);
                found
            })
            .unwrap_or(&family.steps[0]);
        if let Ok(v) = step(&mut m)
            && m.g.ty(v).count() <= m.scale.limit()
            && !m.knows(v)
        {
            m.keep(v);
            made += 1;
        }
    }
    m.finish()
}

impl Maker {
    fn knows(&self, v: ValueId) -> bool {
        self.floats.contains(&v) || self.others.contains(&v)
    }
    fn keep(&mut self, v: ValueId) {
        if self.g.dtype(v).is_float() { self.floats.push(v) } else { self.others.push(v) }
    }
    /// Chooses the outputs: the last values and some others; occasionally an unmodified input, or one value twice.
    fn finish(mut self) -> Graph {
        let mut outputs: Vec<ValueId> = self.floats.last().into_iter().chain(self.others.last()).copied().collect();
        let all: Vec<ValueId> = self.floats.iter().chain(&self.others).copied().collect();
        for _ in 0..self.r.next_below(4) {
            outputs.push(self.r.choose(&all));
        }
        if self.r.next_below(8) != 0 {
            // Usually remove duplicate outputs.
            let mut seen = vec![];
            outputs.retain(|v| {
                !seen.contains(v) && {
                    seen.push(*v);
                    true
                }
            });
        }
        if self.r.next_below(8) != 0 && outputs.len() > 1 {
            let computed = |v: &ValueId| !self.g.op(*v).is_leaf();
            if outputs.iter().any(computed) {
                outputs.retain(computed);
            }
        }
        self.g.outputs = outputs;
        self.g.without_dead()
    }

    /// A new input, or occasionally a parameter.
    fn input(&mut self, dtype: DType, shape: &[usize]) -> ValueId {
        let ty = Type::new(dtype, shape);
        if self.r.next_below(5) == 0 && ty.count() < 1 << 14 {
            let n = self.g.params.len();
            let scale = if dtype.is_float() { Scalar::Float(1.0) } else { Scalar::Float(5.0) };
            return self.g.param(format!("p{n}"), ty, Init::Random { seed: n as u64 + 1, scale });
        }
        self.g.input(ty)
    }
    /// A length such that `others` rows of it stay within the size limit.
    fn length(&mut self, others: usize) -> usize {
        let most = (self.scale.limit() / others.max(1)).max(1);
        let fitting: Vec<usize> = self.scale.rows().iter().copied().filter(|&n| n <= most).collect();
        match self.r.next_below(30) {
            0 => self.r.next_below(3),
            1 => 1 + self.r.next_below(most.min(2000)),
            _ if fitting.is_empty() => 1,
            _ => self.r.choose(&fitting),
        }
    }
    /// A float value; prefers recent ones, so that graphs get deep.
    fn near(&mut self) -> Made {
        let n = self.floats.len();
        let back = self.r.next_below(n).min(self.r.next_below(n));
        self.floats.get((n.max(1) - 1).wrapping_sub(back)).copied().ok_or_else(unfit)
    }
    /// Any value.
    fn any(&mut self) -> Made {
        if !self.others.is_empty() && self.r.next_below(3) != 0 {
            return Ok(self.r.choose(&self.others.clone()));
        }
        self.near()
    }
    fn integer(&mut self) -> Made {
        let ints: Vec<ValueId> = self.others.iter().copied().filter(|v| self.g.dtype(*v).is_int()).collect();
        if ints.is_empty() { Err(unfit()) } else { Ok(self.r.choose(&ints)) }
    }
    /// A second operand for `x`: an existing value, or a new input that broadcasts to it.
    fn partner(&mut self, x: ValueId) -> Made {
        let (dtype, shape) = (self.g.dtype(x), self.g.shape(x).to_vec());
        if self.r.next_below(5) < 3 {
            let y = if dtype.is_float() { self.near()? } else { self.any()? };
            if kiln_graph::infer::broadcast(&shape, self.g.shape(y)).is_ok()
                && self.g.dtype(y).is_float() == dtype.is_float()
            {
                return self.g.cast(y, dtype);
            }
        }
        if self.g.inputs.len() >= 7 {
            let number = self.r.normal();
            let held = |(least, largest): (i64, i64)| (number * 3.0).round().clamp(least as f64, largest as f64);
            return self.g.constant_like(x, dtype.int_range().map_or(number, held));
        }
        let rank = shape.len();
        let to = match self.r.next_below(5) {
            0 => shape,
            1 if rank > 0 => shape[rank - 1..].to_vec(),
            2 if rank > 0 => [&shape[..rank - 1], &[1]].concat(),
            3 if rank > 1 => {
                let axis = self.r.next_below(rank);
                shape.iter().enumerate().map(|(i, &d)| if i == axis { d } else { 1 }).collect()
            }
            _ => vec![],
        };
        Ok(self.input(dtype, &to))
    }

    fn start_rows(&mut self) {
        let lead = self.r.choose(&[1, 1, 2, 3, 5, 8, 33, 64]);
        let n = self.length(lead);
        let rows = self.r.choose(&[1, 1, 2, 4]).min((self.scale.limit() / (lead * n).max(1)).max(1));
        let shape = match self.r.next_below(6) {
            0 => vec![n],
            1 => vec![rows, lead, n],
            // Along the columns.
            2 => vec![n, lead],
            _ => vec![lead * rows, n],
        };
        self.start(&[shape.clone(), shape]);
    }
    fn start_views(&mut self) {
        let rank = self.r.next_below(5);
        let mut shape: Vec<usize> = vec![];
        for _ in 0..rank {
            let taken: usize = shape.iter().product();
            let n = if self.r.next_below(3) == 0 {
                self.length(taken * 64)
            } else {
                self.r.choose(&[1, 2, 3, 4, 5, 8, 16, 17])
            };
            shape.push(if taken * n > self.scale.limit() { 1 } else { n });
        }
        if self.r.next_below(2) == 0 {
            shape.reverse();
        }
        self.start(&[shape.clone(), shape]);
    }
    fn start_matmuls(&mut self) {
        let sides = self.scale.sides();
        let [m, k, n] = [0; 3].map(|_| self.r.choose(sides));
        let batch = self.r.choose(&[vec![], vec![], vec![2], vec![3, 2], vec![1]]);
        if m * n * k * batch.iter().product::<usize>() > self.scale.work() {
            return self.start(&[vec![64, 32], vec![32, 64]]);
        }
        let a = if self.r.next_below(4) == 0 { [k, m] } else { [m, k] };
        let b = if self.r.next_below(3) == 0 { [n, k] } else { [k, n] };
        let shared = if self.r.next_below(3) == 0 { vec![] } else { batch.clone() };
        self.start(&[[&batch[..], &a].concat(), [&shared[..], &b].concat()]);
    }
    fn start_images(&mut self) {
        let large = self.scale == Scale::Large;
        let n = 1 + self.r.next_below(3);
        let c = self.r.choose(if large { &[3, 16, 32, 64, 128] } else { &[1, 2, 3, 4, 6, 8] });
        let [h, w] = [0; 2].map(|_| self.r.choose(if large { &[7, 14, 15, 28, 33] } else { &[1, 3, 5, 7, 8] }));
        let shape = if self.once_in(5) { vec![n, c, w] } else { vec![n, c, h, w] };
        self.start(&[shape]);
    }
    fn start_heads(&mut self) {
        let large = self.scale == Scale::Large;
        let b = 1 + self.r.next_below(2);
        let h = self.r.choose(&[1, 2, 4]);
        let [s, t] =
            [0; 2].map(|_| self.r.choose(if large { &[1, 16, 33, 64, 100, 128, 256] } else { &[1, 2, 7, 16, 33] }));
        let d = self.r.choose(if large { &[16, 32, 64, 80, 128] } else { &[4, 8, 16, 20] });
        let t = if self.once_in(2) { s } else { t };
        self.start(&[vec![b, h, s, d], vec![b, h, t, d], vec![b, h, t, d]]);
    }
    fn start_integers(&mut self) {
        let rows = self.r.choose(&[1, 2, 5, 8]);
        let n = self.length(rows * 4);
        for dtype in [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8] {
            if self.r.next_below(3) != 0 {
                let shape = if self.once_in(4) { vec![rows, 1] } else { vec![rows, n] };
                let v = self.g.input(Type::new(dtype, shape));
                self.others.push(v);
            }
        }
        self.start(&[vec![rows, n]]);
    }
    fn start(&mut self, shapes: &[Vec<usize>]) {
        for shape in shapes {
            let v = self.g.input(Type::new(self.dtype, shape.clone()));
            self.floats.push(v);
        }
    }
    /// True with probability 1/n.
    fn once_in(&mut self, n: usize) -> bool {
        self.r.next_below(n) == 0
    }
}

fn unfit() -> GraphError {
    GraphError::Operand { value: ValueId(0), op: "random".into(), what: "nothing fits".into() }
}
