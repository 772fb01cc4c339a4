//! Pools, whose windows overlap.
use crate::common::{check_by, compare};
use kiln_graph::{Graph, Tensor};
use kiln_machine::Arch;
use kiln_plan::{KernelKind::Pool, exec::Work};

const GPU: Arch = Arch::Sm90a;

/// The graph on random inputs, some of which are infinite or NaN.
#[track_caller]
fn check(lines: &str) {
    let g: Graph = format!("graph k{lines}").parse().unwrap_or_else(|e| panic!("{e}\n{lines}"));
    let mut inputs = kiln_graphgen::inputs(&g, 7);
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

/// Several rows of the result in a thread, whose windows share rows of the image; operands besides the pool's.
#[test]
fn several_rows_a_thread() {
    let window = "window=[3,3] stride=[1,1] padding=[1,1]";
    let with_bias = |shape: &str, bias: &str| {
        format!(
            "(%x: {shape}, %b: {bias}) {{ %p = pool.avg %x {window}\n %d = sub %p, %x\n %y = mul %d, %b\n return %y }}"
        )
    };
    let (odd, half) = ("f32[48,8,14,17]", "bf16[4,64,13,14]");
    for (lines, schedule, rows) in [
        (pool(odd, "max", window), "unroll i1 7; fuse i0,i1; split i0 8; split i2 32; bind warp 2", 7),
        (pool(odd, "avg", &format!("{window} count_pad=false")), "unroll i1 2; split i2 32; bind warp 1", 2),
        (with_bias(odd, "f32[8,1,1]"), "unroll i2 7; fuse i1,i2; split i1 16; split i3 32; bind warp 4", 7),
        // Neighbours of an axis that no window shares, all of it.
        (with_bias(half, "bf16[64,1,1]"), "unroll i0 4; fuse i1,i2,i3; split i1 512; bind warp 2; registers 128", 4),
    ] {
        let steps = check_by(Pool, &format!("graph k{lines}"), GPU, schedule);
        let [Work::Block { code, .. }] = &steps.steps[..] else { panic!("one step") };
        let mut stores = 0;
        code.walk(&mut |_, d| stores += usize::from(matches!(d.op, kiln_block::Op::Store(_))));
        assert_eq!(stores, rows, "{lines}");
        check(&lines);
    }
}
