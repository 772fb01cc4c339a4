//! Pools whose windows overlap: a GPU thread computes a strip of results.
use crate::common::{compare, kernel};
use kiln_graph::{Graph, Tensor, random};
use kiln_lower::lower;
use kiln_machine::Arch;
use kiln_plan::{KernelKind::Pool, exec::Work};

const GPU: Arch = Arch::Sm90a;

/// The graph on random inputs, some of which are infinite or NaN.
#[track_caller]
fn check(lines: &str) {
    let g: Graph = format!("graph k{lines}").parse().unwrap_or_else(|e| panic!("{e}\n{lines}"));
    let mut inputs = random::inputs(&g, 7);
    inputs.iter_mut().filter(|t| t.ty.dtype.is_float()).for_each(spoil);
    match compare(Pool, &g, &inputs, GPU) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => panic!("{e}\n{lines}"),
        Err(e) => panic!("{e}\n{lines}"),
    }
}
fn spoil(x: &mut Tensor) {
    let n = x.ty.count();
    for (i, v) in [f64::NAN, f64::NEG_INFINITY, f64::INFINITY].into_iter().enumerate() {
        (0..n.div_ceil(1000)).for_each(|k| x.set_f64((k * 997 + 311 * i) % n, v));
    }
}

/// Rows of the result per thread: the program has one store for each.
fn rows(lines: &str) -> usize {
    let g: Graph = format!("graph k{lines}").parse().expect("a graph");
    let steps = lower(&kernel(Pool, g), GPU).expect("is lowered");
    let [Work::Block { code, .. }] = &steps.steps[..] else { panic!("one step") };
    let mut stores = 0;
    code.walk(&mut |_, d| stores += usize::from(d.op == kiln_block::Op::Store));
    stores
}

fn pool(shape: &str, kind: &str, attrs: &str) -> String {
    format!("(%x: {shape}) {{ %y = pool.{kind} %x {attrs}\n return %y }}")
}

#[test]
fn windows_of_every_kind() {
    for attrs in [
        "window=[3,3] stride=[1,1] padding=[1,1]",
        "window=[2,3] stride=[1,1] padding=[0,1]",
        "window=[5,4] stride=[2,1] padding=[2,2]",
        "window=[3,3] stride=[1,1] padding=[0,0] ceil=true",
    ] {
        for shape in ["[2,3,11,12]", "[1,2,9,7]", "[3,16,4]"] {
            check(&pool(&format!("f32{shape}"), "max", &format!("{attrs} dilation=[1,1]")));
            check(&pool(&format!("bf16{shape}"), "avg", &format!("{attrs} count_pad=false")));
            check(&pool(&format!("f16{shape}"), "avg", &format!("{attrs} count_pad=true")));
        }
    }
    check(&pool("f32[2,3,11,12]", "max", "window=[3,3] stride=[1,1] padding=[1,1] dilation=[2,1]"));
    check(&pool("i64[2,3,11,12]", "max", "window=[3,3] stride=[1,1] padding=[1,1]"));
    check(&pool("f32[5,4,40]", "avg", "window=[9] stride=[2] padding=[4] count_pad=false"));
    check(&pool("bf16[2,3,5,6,8]", "max", "window=[3,3,3] stride=[1,1,1] padding=[1,1,1]"));
}

/// Strips of several rows: numbers of rows that divide the image's and others, and operands besides the pool's.
#[test]
fn several_rows_a_thread() {
    let window = "window=[3,3] stride=[1,1] padding=[1,1]";
    for (shape, of_a_thread) in [("f32[48,48,13,17]", 7), ("bf16[40,64,13,14]", 2)] {
        let max = pool(shape, "max", window);
        assert_eq!(rows(&max), of_a_thread, "{shape}");
        check(&max);
        check(&pool(shape, "avg", &format!("{window} count_pad=false")));
    }
    let with_bias = format!(
        "(%x: f32[48,48,13,17], %b: f32[48,1,1]) {{ %p = pool.avg %x {window}\n %d = sub %p, %x\n %y = mul %d, %b\n return %y }}"
    );
    assert_eq!(rows(&with_bias), 1, "13 rows have no divisor");
    check(&with_bias);
    let divided = with_bias.replace("13,17", "14,17");
    assert_eq!(rows(&divided), 7);
    check(&divided);
}
