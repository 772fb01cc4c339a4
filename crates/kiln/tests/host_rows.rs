//! Row functions over many row lengths, compiled for the host, against the interpreter: tails, several schedules, NaN
//! and infinity.
use kiln::{CompileOptions, DType, Model, Tensor, bench::interpret, compile};
use kiln_graph::Random;

/// Functions of the rows and of the columns of `%x: dtype[rows,n]`.
fn model(dtype: DType, rows: usize, n: usize) -> Model {
    let d = dtype.name();
    let text = format!(
        "graph rows(%x: {d}[{rows},{n}], %g: {d}[{n}], %b: {d}[{n}]) {{
            %softmax = softmax %x axis=1
            %log = log_softmax %x axis=1
            %norm = layer_norm %x, %g, %b axes=1 affine=true eps=1e-5
            %rms = rms_norm %x, %g eps=1e-6
            %sum = reduce.sum %x axes=[1]
            %max = reduce.max %x axes=[1]
            %arg = reduce.argmax %x axes=[1]
            %scan = scan.sum %x axis=1
            %columns = reduce.sum %x axes=[0]
            %across = softmax %x axis=0
            %down = scan.sum %x axis=0
            return %softmax, %log, %norm, %rms, %sum, %max, %arg, %scan, %columns, %across, %down\n}}"
    );
    Model::from_graph(text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap()
}

/// Random rows. With `special`: among them a constant row, one with a NaN, one with each infinity, and one of only
/// minus infinity.
fn inputs(model: &Model, seed: u64, special: bool) -> Vec<Tensor> {
    let mut all = kiln_graphgen::inputs(&model.graph, seed);
    let [rows, n] = all[0].ty.shape[..] else { panic!("rows") };
    if !special {
        return all;
    }
    let mut r = Random::new(seed);
    let put = |t: &mut Tensor, row: usize, i: usize, v: f64| t.set_f64(row % rows * n + i, v);
    for i in 0..n {
        put(&mut all[0], 1, i, 0.5);
        put(&mut all[0], 5, i, f64::NEG_INFINITY);
    }
    for (row, v) in [(2, f64::NAN), (3, f64::INFINITY), (4, f64::NEG_INFINITY)] {
        let i = r.next_below(n);
        put(&mut all[0], row, i, v);
    }
    all
}

fn check(dtype: DType, rows: usize, n: usize, seed: u64, special: bool) {
    let model = model(dtype, rows, n);
    let inputs = inputs(&model, seed, special);
    let compiled = compile(&model, &CompileOptions::default()).unwrap();
    let got = compiled.session().unwrap().run(&inputs).unwrap();
    let want = interpret(&model, &inputs).unwrap();
    let tolerance = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 4e-6,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    for (o, (g, w)) in got.iter().zip(&want).enumerate() {
        // The tolerance grows with the results: sums of long rows are large.
        let scale = w.to_f64_vec().iter().filter(|v| v.is_finite()).fold(1.0f64, |a, v| a.max(v.abs()));
        for i in 0..w.ty.count() {
            let (g, w) = (g.get_f64(i), w.get_f64(i));
            let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * scale;
            let (m, at) = (n.max(1), if special { "special" } else { "plain" });
            assert!(
                same,
                "{dtype} [{rows},{n}], {at}, seed {seed}: output {o} at {i} (row {}): {g}, should be {w}",
                i / m
            );
        }
    }
}

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::Bf16, DType::F16];

#[test]
fn common_lengths() {
    for dtype in TYPES {
        for n in [7, 16, 96, 255, 931, 1000] {
            check(dtype, 6, n, 1, false);
            check(dtype, 6, n, 2, true);
        }
    }
}
#[test]
fn long_rows() {
    for dtype in [DType::F32, DType::Bf16] {
        for n in [4097, 20_000] {
            check(dtype, 7, n, 3, true);
        }
    }
    check(DType::F32, 2, 70_001, 4, false);
    check(DType::F32, 5000, 9, 5, true);
}
#[test]
fn lengths_at_random() {
    for seed in 100..116 {
        let mut r = Random::new(seed);
        let (dtype, bits) = (r.choose(&TYPES), 1 + r.next_below(12));
        let n = 1 + r.next_below(1 << bits);
        check(dtype, 6 + r.next_below(90), n, seed, r.next_below(2) == 0);
    }
}

/// Relative error (2-norm) of sums in f32 against sums in f64; rounding the results once gives 3e-8.
fn error_of_sums(rows: usize, columns: usize, axis: usize) -> f64 {
    let kept = if axis == 0 { columns } else { rows };
    let text = format!(
        "graph sums(%x: f32[{rows},{columns}]) {{
            %sum = reduce.sum %x axes=[{axis}] : f32[{}]
            return %sum\n}}",
        if axis == 0 { format!("1,{columns}") } else { format!("{rows},1") }
    );
    let model = Model::from_graph(text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap();
    let inputs = kiln_graphgen::inputs(&model.graph, 7);
    let compiled = compile(&model, &CompileOptions::default()).unwrap();
    let got = compiled.session().unwrap().run(&inputs).unwrap();
    let mut exact = vec![0.0; kept];
    for i in 0..rows * columns {
        exact[if axis == 0 { i % columns } else { i / columns }] += inputs[0].get_f64(i);
    }
    let wrong: f64 = exact.iter().enumerate().map(|(i, e)| (got[0].get_f64(i) - e).powi(2)).sum();
    (wrong / exact.iter().map(|e| e * e).sum::<f64>()).sqrt()
}

#[test]
fn long_sums_are_as_exact_as_short_ones() {
    let tall = [(512, 3), (4096, 8), (65536, 16), (20000, 100), (4096, 1024), (100_000, 33)];
    let wide = [(64, 100), (64, 4097), (64, 65_537), (64, 200_000)];
    for (rows, columns, axis) in tall.map(|(r, c)| (r, c, 0)).into_iter().chain(wide.map(|(r, c)| (r, c, 1))) {
        let error = error_of_sums(rows, columns, axis);
        assert!(error < 2.5e-7, "[{rows},{columns}] over axis {axis}: {error:.1e}");
    }
}
