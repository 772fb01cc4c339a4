//! Parts of outputs, computed from only what they depend on, equal those parts of the whole outputs.
use kiln_graph::{Graph, Random, Tensor, random_params, text};
use kiln_interp::graph::{Demand, Positions, Precision, Region, no_fallback, part, run_parts, run_with};

/// Fails with the first element of a part that differs. Elements are computed as in the whole, so they are equal to the
/// bit.
fn agree(g: &Graph, inputs: &[Tensor], demand: &Demand) -> Result<(), String> {
    let params: Vec<Tensor> = random_params(g);
    let all = run_with(g, inputs, &params, Precision::F64, &mut no_fallback).map_err(|e| e.to_string())?;
    let parts = run_parts(g, inputs, &params, demand, &mut no_fallback).map_err(|e| e.to_string())?;
    for (o, (got, all)) in parts.iter().zip(&all).enumerate() {
        let want = part(all, &demand.outputs()[o]).ok_or("a region of another shape")?;
        if got.ty != want.ty {
            return Err(format!("output {o} is {}, should be {}", got.ty, want.ty));
        }
        for (i, (x, y)) in got.to_f64_vec().into_iter().zip(want.to_f64_vec()).enumerate() {
            if x != y && !(x.is_nan() && y.is_nan()) {
                return Err(format!("output {o}, element {i} of the part: {x}, should be {y}"));
            }
        }
    }
    Ok(())
}

/// Positions of every axis, chosen by `seed`: all, some, or none.
fn region(shape: &[usize], seed: u64) -> Region {
    let mut random = Random::new(seed);
    let mut axis = |n: usize| {
        let bits = random.next_u64() >> 33;
        match bits % 4 {
            0 => Positions::all(n),
            _ => Positions::of(n, (0..n).filter(|i| bits >> (2 + i % 24) & 1 == 1)),
        }
    };
    shape.iter().map(|n| axis(*n)).collect()
}
fn demand(g: &Graph, seed: u64) -> Demand {
    let output = |(o, v)| region(g.shape(v), seed.wrapping_mul(977).wrapping_add(o as u64));
    Demand::new(g, g.outputs.iter().copied().enumerate().map(output).collect())
}

#[test]
fn parts_of_random_graphs() {
    let mut tried = 0;
    for seed in 0..300 {
        let g = kiln_graphgen::case(seed, kiln_graphgen::Scale::Small);
        let inputs = kiln_graphgen::case_inputs(&g, seed);
        let demand = demand(&g, seed);
        // A case that the interpreter refuses as a whole, such as one that divides by zero, has nothing to compare
        // with.
        match agree(&g, &inputs, &demand) {
            Err(e) if e.contains("division by zero") => {}
            Err(e) => panic!("seed {seed}: {e}\n{g}\n{demand:?}"),
            Ok(()) => tried += 1,
        }
    }
    assert!(tried > 250, "{tried}");
}

/// Ops whose parts are not computed as smaller tensors are, at sizes where it shows.
const OPS: [(&str, &str); 24] = [
    ("%q: f32[2,4,9,8], %k: f32[2,2,12,8], %v: f32[2,2,12,6]", "attention %q, %k, %v scale=0.3 causal=true"),
    ("%q: f32[4,9,8], %k: f32[4,12,8], %v: f32[4,12,6], %m: f32[4,1,12]", "attention %q, %k, %v, %m scale=0.3"),
    ("%q: f32[4,9,8], %k: f32[2,12,8], %m: f32[9,12]", "attention %q, %k, %k, %m scale=0.3 causal=true"),
    (
        "%x: f32[2,6,9,10], %w: f32[8,3,3,3], %b: f32[8]",
        "conv %x, %w, %b stride=[2,1] padding=[1,2] dilation=[1,2] groups=2",
    ),
    ("%x: f32[2,6,9,10], %w: f32[5,6,3,2]", "conv %x, %w stride=[1,2] padding=[1,0] dilation=[2,1]"),
    ("%x: f32[2,6,9,10], %w: f32[6,1,3,3]", "conv %x, %w padding=[1,1] groups=6"),
    ("%x: f32[2,3,5,6,7], %w: f32[4,3,2,3,2]", "conv %x, %w padding=[1,1,0] stride=[1,2,1]"),
    ("%x: f32[2,3,9], %w: f32[4,3,2]", "conv %x, %w padding=[1]"),
    (
        "%x: f32[2,6,5,4], %w: f32[6,3,3,3], %b: f32[3]",
        "conv %x, %w, %b transposed=true stride=[2,2] padding=[1,0] output_padding=[1,0]",
    ),
    ("%x: f32[2,6,5,4], %w: f32[6,2,3,3]", "conv %x, %w transposed=true stride=[1,2] dilation=[2,1] groups=3"),
    ("%x: f32[2,3,9,10]", "pool.max %x window=[3,2] stride=[2,2] padding=[1,0] dilation=[2,1]"),
    ("%x: f32[3,9,10]", "pool.avg %x window=[3,3] stride=[2,2] padding=[1,1] ceil=true"),
    ("%x: f32[3,9,10]", "pool.avg %x window=[3,3] stride=[2,2] padding=[1,1] count_pad=true"),
    ("%x: f32[4,6,10]", "reshape %x shape=[2,12,2,5]"),
    ("%x: f32[6,4,3]", "reshape %x shape=[8,9]"),
    ("%x: f32[1,24,1]", "reshape %x shape=[2,1,3,4,1]"),
    ("%x: f32[9,6]", "slice %x axis=0 start=1 len=3 step=3"),
    ("%x: f32[9,6]", "flip %x axes=[0]"),
    ("%x: f32[9,6], %z: f32[4,6]", "concat %x, %z, %x axis=0"),
    ("%x: f32[5,7]", "pad %x, 3 lo=[2,-1] hi=[-1,3]"),
    ("%x: f32[7,8], %w: f32[9,8], %b: f32[9]", "linear %x, %w, %b"),
    ("%a: f32[3,1,7,8], %b: f32[4,8,5]", "dot %a, %b"),
    ("%x: f32[5,6,7]", "group_norm %x groups=3 eps=1e-5"),
    ("%x: f32[5,6,7]", "scan.sum %x axis=1"),
];

#[test]
fn parts_of_each_kind_of_op() {
    for (args, body) in OPS {
        let g = text::parse(&format!("graph g({args}) {{ %y = {body} return %y }}"))
            .unwrap_or_else(|e| panic!("{body}: {e}"));
        let inputs = kiln_graphgen::inputs(&g, 1);
        for seed in 0..40 {
            let demand = demand(&g, seed);
            agree(&g, &inputs, &demand).unwrap_or_else(|e| panic!("{body}, seed {seed}: {e}\n{demand:?}"));
        }
    }
}

#[test]
fn counts_along_an_axis_and_indices() {
    let source = "graph g(%x: f32[6,5], %i: i64[4,5], %t: i64[2,3]) {\n  %n = iota axis=0 : i64[6,5]\n  %c = cast %n \
                  to=f32\n  \
                  %y = add %x, %c\n  %g = gather %x, %i axis=0\n  %s = scatter %y, %i, %g axis=0 mode=add\n  \
                  %e = take %y, %t axis=1\n  return %s, %e, %g\n}";
    let g = text::parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let mut inputs = kiln_graphgen::inputs(&g, 1);
    for t in &mut inputs[1..] {
        (0..t.ty.count()).for_each(|i| t.set_i64(i, (i as i64 * 7) % 5));
    }
    for seed in 0..40 {
        let demand = demand(&g, seed);
        agree(&g, &inputs, &demand).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}\n{demand:?}"));
    }
}

#[test]
fn a_sample_takes_no_more_work_than_allowed() {
    let source = "graph g(%q: f32[2,8,512,64], %k: f32[2,8,512,64], %v: f32[2,8,512,64]) {\n  \
                  %y = attention %q, %k, %v scale=0.125\n  return %y\n}";
    let g = text::parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let all = Demand::whole(&g).work(&g);
    // Scores and the sums over values.
    assert!(all > 2 * 8 * 512 * 512 * 128, "{all}");
    let sample = Demand::sampled(&g, all / 10).expect("a part is small enough");
    assert!(sample.work(&g) <= all / 10);
    let [heads, queries] = [1, 2].map(|axis: usize| sample.outputs()[0][axis].count());
    assert!(heads > 1 && (16..512).contains(&queries), "{heads} heads, {queries} queries");
    assert!(Demand::sampled(&g, 512 * 64).is_none(), "a single element reads all keys of its head");
    // Every element of this one depends on all of both operands.
    let source = "graph g(%a: f32[256,256]) {\n  %b = dot %a, %a\n  %c = dot %b, %b\n  %d = dot %c, %b\n  return %d\n}";
    let g = text::parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    assert!(Demand::sampled(&g, 1 << 20).is_none());
}
