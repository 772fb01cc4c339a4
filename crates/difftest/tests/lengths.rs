//! A decoding step's attention, compiled whole: keys beyond the position are not read, on the host and by GPU programs,
//! and the report says so.
use kiln::{CompileOptions, Model, Report, Target, Tensor, bench::interpret, compile};
use kiln_difftest::programs;
use kiln_graph::Random;

/// Two layers' attention over one cache of 600 keys, under one mask.
fn model(dtype: &str, queries: usize, mask: &str) -> Model {
    let text = format!(
        "graph step(%q: {dtype}[2,8,{queries},32], %k: {dtype}[2,2,600,32], %v: {dtype}[2,2,600,32], %position: i64[{queries}]) {{
            %key = iota axis=0 : i64[600]
            %own = reshape %position shape=[{queries},1]
            %seen = {mask} %key, %own
            %a = attention %q, %k, %v, %seen scale=0.2
            %b = attention %a, %k, %v, %seen scale=0.1 fully_masked=nan
            return %a, %b\n}}"
    );
    Model::from_graph(text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap()
}

fn options(target: Target) -> CompileOptions {
    CompileOptions { target, ..CompileOptions::default() }
}

/// Inputs at these positions, and the same with NaN in all keys from `first` on.
fn inputs(model: &Model, positions: &[i64], first: usize, seed: u64) -> [Vec<Tensor>; 2] {
    let mut r = Random::new(seed);
    let g = &model.graph;
    let mut all: Vec<Tensor> = g.inputs.iter().map(|v| Tensor::zeros(g.ty(*v).clone())).collect();
    for t in &mut all[..3] {
        (0..t.ty.count()).for_each(|i| t.set_f64(i, r.next_below(1 << 12) as f64 / 2048.0 - 1.0));
    }
    positions.iter().enumerate().for_each(|(i, p)| all[3].set_i64(i, *p));
    let mut poisoned = all.clone();
    for t in &mut poisoned[1..3] {
        for i in 0..t.ty.count() {
            if i / 32 % 600 >= first {
                t.set_f64(i, f64::NAN);
            }
        }
    }
    [all, poisoned]
}

fn same(got: &[Tensor], want: &[Tensor], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (o, (g, w)) in got.iter().zip(want).enumerate() {
        for i in 0..w.ty.count() {
            let (g, w) = (g.get_f64(i), w.get_f64(i));
            let equal = (g - w).abs() <= tolerance || (g.is_nan() && w.is_nan());
            assert!(equal, "{what}: output {o} at {i}: {g}, should be {w}");
        }
    }
}

#[test]
fn keys_beyond_the_position_are_not_read() {
    for (dtype, tolerance) in [("f32", 1e-5), ("bf16", 0.02)] {
        for (queries, least) in [(1, -1), (1, 0), (1, 99), (1, 599), (1, 1 << 40), (3, -2), (40, 250)] {
            let model = model(dtype, queries, "le");
            let positions: Vec<i64> = (0..queries as i64).map(|i| least + i).collect();
            let end = (positions[queries - 1].clamp(-1, 599) + 1) as usize;
            let what = format!("{dtype}, {queries} queries from {least}");
            // On the host one score is computed even where all are masked.
            let [clean, poisoned] = inputs(&model, &positions, end.max(1), 3);
            let want = interpret(&model, &clean).unwrap();
            let compiled = compile(&model, &options(Target::Cpu)).unwrap();
            same(&compiled.session().unwrap().run(&poisoned).unwrap(), &want, tolerance, &what);
            // A block of keys is read as a whole.
            let [_, poisoned] = inputs(&model, &positions, end.next_multiple_of(128), 3);
            let compiled = compile(&model, &options(Target::Sm90a)).unwrap();
            let (got, interpreted) = programs::run(&compiled, &poisoned).unwrap();
            assert_eq!(interpreted, [""; 0]);
            same(&got, &want, tolerance, &what);
        }
    }
}

#[test]
fn the_report_says_where_loops_end() {
    for target in [Target::Cpu, Target::Sm90a] {
        // On GPUs keys before the first are skipped, too, and slices of the keys are cut from there on.
        let starts = if target == Target::Cpu { vec![] } else { vec!["input 3".to_string()] };
        for (mask, ends) in [("le", vec!["input 3".to_string()]), ("ge", starts)] {
            let model = model("bf16", 1, mask);
            let report = Report::new(&compile(&model, &options(target)).unwrap());
            let attention: Vec<_> = report.kernels.iter().filter(|k| k.kind == "attention").collect();
            assert_eq!(attention.len(), 2, "{target:?}");
            for k in attention {
                assert_eq!(k.loop_ends, ends, "{target:?}, {mask}");
                let text = report.in_depth(&k.name, 120).unwrap();
                assert_eq!(text.contains("read on the device from input 3"), !ends.is_empty(), "{text}");
            }
        }
    }
}
