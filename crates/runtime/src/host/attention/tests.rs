//! Attention compared with loops in f64: generated sizes, strides, masks and dtypes, on every instruction set of this
//! processor.
use super::*;
use crate::HostDevice;
use kiln_graph::{FullyMasked, Random, Tensor, Type};
use kiln_plan::exec::{Mask, Sink, axes};

/// What cases draw.
trait Draw {
    fn one_in(&mut self, n: usize) -> bool;
    /// Uniform in -1..1.
    fn number(&mut self) -> f64;
    fn numbers(&mut self, dtype: DType, count: usize) -> Tensor;
    /// A matrix over (batch.., group, queries, columns) of these sizes, with axes in memory in an order and with gaps
    /// as drawn. Axes that `same` names have stride 0.
    fn matrix(&mut self, slot: u32, batch: &[usize], rows: [usize; 2], cols: usize, same: &[usize]) -> (Matrix, usize);
}
impl Draw for Random {
    fn one_in(&mut self, n: usize) -> bool {
        self.next_below(n) == 0
    }
    fn number(&mut self) -> f64 {
        2.0 * self.uniform() - 1.0
    }
    fn numbers(&mut self, dtype: DType, count: usize) -> Tensor {
        Tensor::from_f64(Type::new(dtype, [count]), (0..count).map(|_| self.number()).collect::<Vec<_>>())
    }
    fn matrix(&mut self, slot: u32, batch: &[usize], rows: [usize; 2], cols: usize, same: &[usize]) -> (Matrix, usize) {
        let sizes = [batch, &rows, &[cols]].concat();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        match self.next_below(4) {
            // Heads inside of queries, as a projection gives them.
            0 => order.swap(batch.len() - 1, batch.len() + 1),
            // Contiguous along the rows.
            1 => order.rotate_right(1),
            _ => {}
        }
        let (mut strides, mut stride) = (vec![0; sizes.len()], 1);
        for &axis in order.iter().rev() {
            if !same.contains(&axis) {
                strides[axis] = stride;
                stride *= sizes[axis];
                stride += if self.one_in(3) { 1 + self.next_below(3) } else { 0 };
            }
        }
        let n = batch.len();
        let offset = self.next_below(5);
        let matrix = Matrix {
            slot: Slot::Input(slot),
            offset,
            rows: axes([(rows[0], strides[n]), (rows[1], strides[n + 1])]),
            cols: axes([(cols, strides[n + 2])]),
            batch_strides: strides[..n].to_vec(),
        };
        let end: usize = sizes.iter().zip(&strides).map(|(n, s)| (n - 1) * s).sum();
        (matrix, offset + end + 1)
    }
}

fn place(m: &Matrix, batch: &[usize], i: usize, row: usize, col: usize) -> usize {
    m.offset + offset(&m.batch_strides, batch, i) + Side(&m.rows).at(row) + Side(&m.cols).at(col)
}

/// A call with its operands.
#[derive(Clone)]
struct Case {
    call: AttentionCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    ends: Option<Tensor>,
    sink: Option<Tensor>,
    /// Elements of the result's buffer.
    count: usize,
}

const DTYPES: [(DType, DType); 6] = [
    (DType::F32, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::F64, DType::F64),
];

impl Case {
    fn draw(r: &mut Random) -> Case {
        let (dtype, out_dtype) = DTYPES[r.next_below(6)];
        let batch = vec![1 + r.next_below(2), 1 + r.next_below(3)];
        let long = r.one_in(4);
        let most = if long { [200, 1300] } else { [70, 300] };
        let group = [1, 1, 2, 3][r.next_below(4)];
        let mut queries = [1, 1 + r.next_below(4), 1 + r.next_below(most[0])][r.next_below(3)];
        let keys = 1 + r.next_below(most[1]);
        let causal = r.one_in(3);
        if causal && r.one_in(2) {
            queries = keys.min(most[0]);
        }
        let (depth, width) = (1 + r.next_below(70), [1 + r.next_below(70), 32, 64][r.next_below(3)]);
        let scale = [0.125, 0.125, 0.3, 1.5, 0.0, -0.2][r.next_below(6)];
        let n = batch.len();
        let (q, for_q) = r.matrix(0, &batch, [group, queries], depth, &[]);
        let (k, for_k) = r.matrix(1, &batch, [1, keys], depth, &[]);
        let (v, for_v) = r.matrix(2, &batch, [1, keys], width, &[]);
        let (mut out, count) = r.matrix(0, &batch, [group, queries], width, &[]);
        out.slot = Slot::Output(0);
        let same = |r: &mut Random| (0..n + 2).filter(|_| r.one_in(2)).collect::<Vec<_>>();
        let masked = r.one_in(2).then(|| {
            let same = same(r);
            let (matrix, count) = r.matrix(3, &batch, [group, queries], keys, &same);
            let dtype = if r.one_in(2) { DType::Bool } else { dtype };
            let often = 1 + r.next_below(4);
            let values = (0..count).map(|_| match (dtype, r.next_below(5) < often) {
                (DType::Bool, counts) => f64::from(u8::from(counts)),
                (_, true) => 3.0 * r.number(),
                (_, false) => f64::NEG_INFINITY,
            });
            let values: Vec<f64> = values.collect();
            (Mask { dtype, matrix }, Tensor::from_f64(Type::new(dtype, [count]), values))
        });
        let ended = r.one_in(3).then(|| {
            let same = same(r);
            let (matrix, count) = r.matrix(4, &batch, [group, queries], 1, &same);
            let far = 1 + r.next_below(2 * keys);
            let end = |r: &mut Random| if r.one_in(9) { -3.0 } else { r.next_below(far) as f64 };
            let values: Vec<f64> = (0..count).map(|_| end(r)).collect();
            (matrix, Tensor::from_f64(Type::new(DType::I64, [count]), values))
        });
        let sinks = r.one_in(2).then(|| {
            let same = same(r);
            let (matrix, count) = r.matrix(5, &batch, [group, queries], 1, &same);
            let dtype = if r.one_in(2) { dtype } else { dtype.compute() };
            let lowest = f64::NEG_INFINITY;
            let one = |r: &mut Random| {
                [3.0, 9.0, 1e4, -1e4, lowest, lowest, f64::NAN, 0.0][r.next_below(8)] * r.number().abs()
            };
            let values: Vec<f64> = (0..count).map(|_| if r.one_in(2) { 4.0 * r.number() } else { one(r) }).collect();
            (Sink { dtype, matrix }, Tensor::from_f64(Type::new(dtype, [count]), values))
        });
        let sink = sinks.as_ref().map(|s| s.0.clone());
        let (mask, ends) = (masked.as_ref().map(|m| m.0.clone()), ended.as_ref().map(|e| e.0.clone()));
        let fully_masked = [FullyMasked::Zero, FullyMasked::Nan][r.next_below(2)];
        let batch_invariant = r.one_in(4);
        let call = AttentionCall {
            dtype,
            out_dtype,
            batch_invariant,
            batch,
            group,
            queries,
            keys,
            depth,
            width,
            scale,
            causal,
            fully_masked,
            q,
            k,
            v,
            out,
            mask,
            ends,
            sink,
        };
        let [q, k, v] = [for_q, for_k, for_v].map(|count| r.numbers(dtype, count));
        let (mask, ends, sink) = (masked.map(|m| m.1), ended.map(|e| e.1), sinks.map(|s| s.1));
        Case { call, q, k, v, mask, ends, sink, count }
    }

    fn batches(&self) -> usize {
        self.call.batch.iter().product()
    }
    fn end(&self, i: usize, row: usize) -> usize {
        let a = &self.call;
        let end = if a.causal { a.keys.min(row % a.queries + 1) } else { a.keys };
        match (&a.ends, &self.ends) {
            (Some(m), Some(t)) => end.min(t.get_i64(place(m, &a.batch, i, row, 0)).max(0) as usize),
            _ => end,
        }
    }
    /// Keys and values that no row attends to are NaN.
    fn poison(&mut self) {
        for i in 0..self.batches() {
            let last = (0..self.call.rows()).map(|row| self.end(i, row)).max().unwrap_or(0);
            for key in last..self.call.keys {
                let a = &self.call;
                (0..a.depth).for_each(|d| self.k.set_f64(place(&a.k, &a.batch, i, key, d), f64::NAN));
                (0..a.width).for_each(|e| self.v.set_f64(place(&a.v, &a.batch, i, key, e), f64::NAN));
            }
        }
    }
    /// A row of the result.
    fn want(&self, i: usize, row: usize) -> Vec<f64> {
        let a = &self.call;
        let at = |m: &Matrix, row, col| place(m, &a.batch, i, row, col);
        let score = |key: usize| {
            let product = |d| self.q.get_f64(at(&a.q, row, d)) * self.k.get_f64(at(&a.k, key, d));
            let x = a.scale * (0..a.depth).map(product).sum::<f64>();
            match (&a.mask, &self.mask) {
                (Some(m), Some(t)) => match (m.dtype, t.get_f64(at(&m.matrix, row, key))) {
                    (DType::Bool, 0.0) => f64::NEG_INFINITY,
                    (DType::Bool, _) => x,
                    (_, f64::NEG_INFINITY) => f64::NEG_INFINITY,
                    (_, bias) => x + bias,
                },
                _ => x,
            }
        };
        let scores: Vec<f64> = (0..self.end(i, row)).map(score).collect();
        let sink = match (&a.sink, &self.sink) {
            (Some(s), Some(t)) => Some(t.get_f64(at(&s.matrix, row, 0))),
            _ => None,
        };
        // The weights of keys that do not count are NaN, too.
        if sink.is_some_and(f64::is_nan) {
            return vec![f64::NAN; a.width];
        }
        let all = || scores.iter().copied().chain(sink);
        let most = all().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY && !all().any(|s| s.is_nan()) {
            return vec![if a.fully_masked == FullyMasked::Nan { f64::NAN } else { 0.0 }; a.width];
        }
        let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = all().map(|s| (s - most).exp()).sum();
        let value = |e: usize, key: usize| self.v.get_f64(at(&a.v, key, e));
        (0..a.width).map(|e| powers.iter().enumerate().map(|(key, p)| p / sum * value(e, key)).sum()).collect()
    }
    fn run(&self, device: &HostDevice, level: Level) -> Tensor {
        let mut out = Tensor::from_f64(Type::new(self.call.out_dtype, [self.count]), vec![7.0; self.count]);
        let at = |t: &Tensor| t.bytes().as_ptr();
        let x = Operands {
            q: at(&self.q),
            k: at(&self.k),
            v: at(&self.v),
            out: out.bytes_mut().as_mut_ptr(),
            mask: self.mask.as_ref().map(at),
            ends: self.ends.as_ref().map(at),
            sink: self.sink.as_ref().map(at),
        };
        // SAFETY: the tensors were made large enough for the call.
        unsafe { attention_by(level, device.parallel(), &self.call, x) };
        out
    }
    /// Compares each instruction set with loops in f64.
    fn check(&self, device: &HostDevice, name: &str) {
        let a = &self.call;
        let rows = || (0..self.batches()).flat_map(|i| (0..a.rows()).map(move |row| (i, row)));
        let want: Vec<Vec<f64>> = rows().map(|(i, row)| self.want(i, row)).collect();
        for &level in Level::here() {
            let got = self.run(device, level);
            let mut written = vec![false; self.count];
            // Roundings of probabilities, relative to values of at most 1, and of the result.
            let sums = match a.dtype {
                DType::F64 => 1e-13,
                DType::Bf16 if level == Level::Amx => 2.0 / 512.0,
                _ => 5e-6,
            };
            let rounding = match a.out_dtype {
                DType::Bf16 => 1.0 / 256.0,
                DType::F16 => 1.0 / 2048.0,
                DType::F32 => 1e-6,
                _ => 1e-15,
            };
            for ((i, row), want) in rows().zip(&want) {
                for (e, want) in want.iter().enumerate() {
                    let at = place(&a.out, &a.batch, i, row, e);
                    let got = got.get_f64(at);
                    written[at] = true;
                    let close = (got - want).abs() <= sums + rounding * want.abs() || got.is_nan() && want.is_nan();
                    let threads = device.threads();
                    assert!(close, "{name}, {level}, {threads} threads: [{i}][{row},{e}] is {got}, not {want}: {a:#?}");
                }
            }
            let others = (0..self.count).filter(|at| !written[*at]);
            others.for_each(|at| assert_eq!(got.get_f64(at), 7.0, "{name}, {level}: {at} beyond was written: {a:#?}"));
        }
    }
}

#[test]
fn any_shape_mask_and_type() {
    for seed in 0..200 {
        let device = HostDevice::new([1, 3][seed as usize % 2]).unwrap();
        let mut case = Case::draw(&mut Random::new(seed));
        case.poison();
        case.check(&device, &format!("seed {seed}"));
    }
}

/// A case of one head without a mask.
fn plain(dtype: DType, queries: usize, keys: usize, depth: usize) -> Case {
    let by_row = |slot, rows: usize, cols: usize| Matrix {
        slot,
        offset: 0,
        rows: axes([(rows, cols)]),
        cols: axes([(cols, 1)]),
        batch_strides: vec![0],
    };
    let mut r = Random::new(1);
    let [q, k, v] = [queries, keys, keys].map(|rows| r.numbers(dtype, rows * depth));
    let call = AttentionCall {
        dtype,
        out_dtype: dtype,
        batch_invariant: false,
        batch: vec![1],
        group: 1,
        queries,
        keys,
        depth,
        width: depth,
        scale: 0.25,
        causal: false,
        fully_masked: FullyMasked::Zero,
        q: by_row(Slot::Input(0), queries, depth),
        k: by_row(Slot::Input(1), keys, depth),
        v: by_row(Slot::Input(2), keys, depth),
        out: by_row(Slot::Output(0), queries, depth),
        mask: None,
        ends: None,
        sink: None,
    };
    Case { call, q, k, v, mask: None, ends: None, sink: None, count: queries * depth }
}

#[test]
fn long_keys_are_split_over_threads_and_joined() {
    for (dtype, _) in [DTYPES[0], DTYPES[1], DTYPES[5]] {
        for (queries, keys) in [(1, 5000), (2, 4097), (40, 4100)] {
            let case = plain(dtype, queries, keys, 24);
            // SAFETY: every processor has this level.
            let unit = unsafe { Vectors::<f32>::ready(Level::Portable) };
            assert!(Split::new(&unit, 4, 1, &case.call, queries.min(10)).parts > 1, "{queries} queries are not split");
            case.check(&HostDevice::new(4).unwrap(), "parts");
            let same = Case { call: AttentionCall { batch_invariant: true, ..case.call.clone() }, ..case };
            assert_eq!(Split::new(&unit, 4, 1, &same.call, 4).parts, 1);
        }
    }
}

/// Sums of many keys stay as exact as sums of blocks: their error does not grow with each key.
#[test]
fn errors_over_many_keys() {
    for queries in [1, 16] {
        let case = plain(DType::F32, queries, 30_000, 16);
        let want = case.want(0, 0);
        for &level in Level::here() {
            let got = case.run(&HostDevice::new(1).unwrap(), level);
            let most = want.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            let error = want.iter().enumerate().map(|(e, x)| (got.get_f64(e) - x).abs()).fold(0.0, f64::max);
            assert!(error < 1e-6 * most, "{level}, {queries} queries: an error of {error} in values up to {most}");
        }
    }
}

#[test]
fn results_of_a_query_do_not_depend_on_others_where_the_contract_says_so() {
    let device = HostDevice::new(4).unwrap();
    for (dtype, _) in [DTYPES[0], DTYPES[1]] {
        let mut many = plain(dtype, 90, 3000, 24);
        many.call.batch_invariant = true;
        for &level in Level::here() {
            let all = many.run(&device, level);
            for queries in [1, 2, 17] {
                let mut few = plain(dtype, queries, 3000, 24);
                few.call.batch_invariant = true;
                (few.k, few.v) = (many.k.clone(), many.v.clone());
                few.q = Tensor::from_f64(few.q.ty.clone(), many.q.to_f64_vec()[..queries * 24].to_vec());
                let some = few.run(&device, level);
                assert_eq!(
                    some.to_f64_vec(),
                    all.to_f64_vec()[..queries * 24],
                    "{level}, {queries} queries in {dtype}"
                );
            }
        }
    }
}

#[test]
fn scores_that_are_not_finite() {
    let device = HostDevice::new(1).unwrap();
    for (dtype, _) in DTYPES {
        for (queries, keys) in [(1, 40), (20, 600)] {
            for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut case = plain(dtype, queries, keys, 8);
                // One key has an element that is not finite, so that its scores are not, or have this sign or the
                // other.
                case.k.set_f64((keys - 3) * 8, odd);
                for &level in Level::here() {
                    let got = case.run(&device, level).to_f64_vec();
                    for row in 0..queries {
                        // An infinite score gives NaN, minus infinity no probability.
                        let nan = odd.is_nan() || (odd > 0.0) == (case.q.get_f64(row * 8) > 0.0);
                        let all = got[row * 8..][..8].iter();
                        let name = format!("{level}, {dtype}, {queries} x {keys}, row {row}, {odd}");
                        assert!(all.clone().all(|x| x.is_nan() == nan), "{name}: {all:?}");
                        let want = if nan { vec![] } else { case.want(0, row) };
                        let close = all.zip(&want).all(|(a, b)| (a - b).abs() < 0.02);
                        assert!(close, "{name}: {:?}, not {want:?}", &got[row * 8..][..8]);
                    }
                }
            }
        }
    }
}

#[test]
fn keys_that_a_mask_hides_are_not_computed() {
    let device = HostDevice::new(1).unwrap();
    for ((dtype, _), of_mask) in DTYPES.into_iter().flat_map(|d| [(d, DType::Bool), (d, d.0)]) {
        // A window that is narrower than a block of keys, as a mask for each query.
        let (queries, keys) = (300, 1500);
        let mut case = plain(dtype, queries, keys, 8);
        let sees = |row: usize, key: usize| key <= row + 600 && key + 20 > row + 600;
        let kept = |at: usize| match (of_mask, sees(at / keys, at % keys)) {
            (DType::Bool, sees) => f64::from(u8::from(sees)),
            (_, true) => 0.0,
            (_, false) => f64::NEG_INFINITY,
        };
        let values: Vec<f64> = (0..queries * keys).map(kept).collect();
        let (rows, cols) = (axes([(queries, keys)]), axes([(keys, 1)]));
        let matrix = Matrix { slot: Slot::Input(3), rows, cols, ..case.call.q.clone() };
        case.call.mask = Some(Mask { dtype: of_mask, matrix });
        case.mask = Some(Tensor::from_f64(Type::new(of_mask, [queries * keys]), values));
        // Blocks of keys before all windows, and after them, are not read.
        for key in (0..512).chain(1024..keys) {
            (0..8).for_each(|e| case.v.set_f64(key * 8 + e, f64::NAN));
        }
        for &level in Level::here() {
            let got = case.run(&device, level).to_f64_vec();
            assert!(
                got.iter().all(|x| x.is_finite()),
                "{level}, {dtype} with a mask of {of_mask}: hidden values count"
            );
        }
        (0..8 * keys).filter(|at| !(512..1024).contains(&(at / 8))).for_each(|at| case.v.set_f64(at, 0.0));
        case.check(&device, "window");
    }
}

#[test]
fn masks_of_the_lowest_number_leave_equal_probabilities() {
    // Beside the lowest number of f16, scores still differ.
    for (dtype, _) in DTYPES.into_iter().filter(|d| d.0 != DType::F16) {
        let mut case = plain(dtype, 5, 600, 8);
        let lowest = dtype.format().map_or(f64::MIN, |f| -f.largest());
        let matrix =
            Matrix { slot: Slot::Input(3), rows: axes([(5, 0)]), cols: axes([(600, 0)]), ..case.call.q.clone() };
        case.call.mask = Some(Mask { dtype, matrix });
        case.mask = Some(Tensor::from_f64(Type::new(dtype, [1]), [lowest]));
        for &level in Level::here() {
            let got = case.run(&HostDevice::new(1).unwrap(), level).to_f64_vec();
            let mean = |e: usize| (0..600).map(|key| case.v.get_f64(key * 8 + e)).sum::<f64>() / 600.0;
            let near = |(i, x): (usize, &f64)| (x - mean(i % 8)).abs() < 2e-3;
            assert!(got.iter().enumerate().all(near), "{level}, {dtype}: {got:?}");
        }
    }
}
