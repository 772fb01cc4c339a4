//! Row kernels under every schedule: rows in a tile, in loops, strided in memory, split.
use crate::common::{check, check_by, check_on, compare, compare_kernel, kernel};
use kiln_graph::{DType, Graph, Tensor, Type};
use kiln_lower::lower;
use kiln_machine::Arch;
use kiln_plan::KernelKind::{Reduction, Scan};
use kiln_plan::exec::Work;

fn body(lines: &str) {
    check(Reduction, &format!("graph k{lines}"));
}

#[test]
fn sums_by_shape() {
    for shape in ["[1,1]", "[1,5]", "[5,1]", "[7,33]", "[300,20]", "[3,1000]", "[2,40000]", "[1,300000]", "[20,4097]"] {
        for axis in ["[0]", "[1]", "[0,1]"] {
            body(&format!("(%x: f32{shape}) {{ %s = reduce.sum %x axes={axis}\n return %s }}"));
        }
    }
    body("(%x: f32[]) { %s = reduce.sum %x axes=[]\n return %s }");
    body("(%x: f32[4,0]) { %s = reduce.sum %x axes=[1]\n %p = reduce.prod %x axes=[1]\n return %s, %p }");
    for axes in ["[0]", "[1]", "[2]", "[0,1]", "[0,2]", "[1,2]", "[0,1,2]"] {
        body(&format!("(%x: f32[5,18,40]) {{ %s = reduce.sum %x axes={axes}\n return %s }}"));
        body(&format!(
            "(%x: f32[3,200,17]) {{ %e = exp %x\n %s = reduce.mean %e axes={axes}\n %n = neg %s\n return %n }}"
        ));
    }
}

#[test]
fn kinds_of_reduction() {
    for d in ["f32", "f64", "f16", "bf16"] {
        for op in ["sum", "mean", "prod", "max", "min", "argmax", "argmin"] {
            for (shape, axis) in [("[9,30]", 1), ("[30,9]", 0), ("[2,20000]", 1), ("[5000,6]", 0), ("[1,70000]", 1)] {
                if op == "prod" && shape.len() > 7 {
                    continue;
                }
                body(&format!("(%x: {d}{shape}) {{ %s = reduce.{op} %x axes=[{axis}]\n return %s }}"));
            }
        }
    }
    for d in ["i64", "i32", "u8"] {
        for op in ["sum", "max", "min", "argmax", "argmin"] {
            body(&format!("(%x: {d}[9,30]) {{ %s = reduce.{op} %x axes=[1]\n return %s }}"));
            body(&format!("(%x: {d}[1,70000]) {{ %s = reduce.{op} %x axes=[1]\n return %s }}"));
        }
    }
    for op in ["any", "all", "max", "min", "argmax"] {
        body(&format!("(%x: bool[9,30]) {{ %s = reduce.{op} %x axes=[1]\n return %s }}"));
        body(&format!("(%x: bool[9000,2]) {{ %s = reduce.{op} %x axes=[0]\n return %s }}"));
    }
}

#[test]
fn rows_with_arithmetic() {
    for shape in ["[6,37]", "[2,20000]", "[1,70000]", "[300,8]"] {
        body(&format!(
            "(%x: f32{shape}) {{ %m = reduce.max %x axes=[1]\n %d = sub %x, %m\n %e = exp %d\n \
             %s = reduce.sum %e axes=[1]\n %y = div %e, %s\n return %y, %m }}"
        ));
        body(&format!(
            "(%x: bf16{shape}) {{ %m = reduce.mean %x axes=[1]\n %d = sub %x, %m\n %q = mul %d, %d\n \
             %v = reduce.mean %q axes=[1]\n %r = rsqrt %v\n %y = mul %d, %r\n return %y }}"
        ));
        body(&format!("(%x: f32{shape}) {{ %y = softmax %x axis=1\n return %y }}"));
        body(&format!("(%x: f32{shape}) {{ %y = log_softmax %x axis=1\n return %y }}"));
        body(&format!("(%x: f32{shape}) {{ %y = softmax %x axis=0\n return %y }}"));
    }
    body("(%x: f32[4,6,50]) { %y = softmax %x axis=1\n return %y }");
    body(
        "(%x: f32[2,3,20,50], %m: f32[20,50]) { %a = mul %x, 0.125\n %b = add %a, %m\n %y = softmax %b axis=3\n \
         return %y }",
    );
}

/// Mean and variance of rows that do not fit a tile take one pass, with one instance per row and with split rows.
#[test]
fn moments_in_one_pass() {
    let target = Arch::Sm80;
    for (d, rows, n, schedule, steps) in [
        ("f32", 2, 20001, "split r 4096; bind warp 8; split-reduce r 2", 2),
        ("bf16", 3, 32768, "split r 4096; bind warp 8; split-reduce r 4", 2),
        ("f16", 1, 131075, "split r 8192; bind warp 8; split-reduce r 8", 2),
        ("f32", 300, 16385, "split r 4096; bind warp 8", 1),
        ("bf16", 270, 16392, "split r 8192; bind warp 8", 1),
    ] {
        let norm = "%y = layer_norm %s, %g, %c eps=1e-5";
        let text = format!(
            "graph k(%x: {d}[{rows},{n}], %r: {d}[{rows},{n}], %g: {d}[{n}], %c: {d}[{n}]) {{ %s = add %x, %r\n \
             {norm}\n return %y }}"
        );
        assert_eq!(check_by(Reduction, &text, target, schedule).steps.len(), steps, "{text}");
    }
    let text = "graph k(%x: f32[2,40000]) { %m = reduce.mean %x axes=[1]\n %d = sub %x, %m\n %q = mul %d, %d\n \
                %v = reduce.mean %q axes=[1]\n %s = reduce.sum %x axes=[1]\n return %v, %m, %s }";
    check_on(Reduction, text, target);
}

/// One pass is as accurate as two: far from zero, for equal elements, and with one outlier.
#[test]
fn moments_do_not_cancel() {
    let n = 30011;
    let text = format!(
        "graph k(%x: f32[4,{n}]) {{ %m = reduce.mean %x axes=[1]\n %d = sub %x, %m\n %q = mul %d, %d\n \
         %v = reduce.mean %q axes=[1]\n %l = log2 %v\n return %l, %m }}"
    );
    let g: Graph = text.parse().unwrap();
    let noise = kiln_graph::random_tensor(Type::new(DType::F32, [n]), 5, 1.0);
    let element = |i: usize| {
        let (row, j) = (i / n, i % n);
        let x = noise.get_f64(j);
        match row {
            0 => 4096.0 + x,
            1 => 1e-3 * x - 7.0 + j as f64,
            2 if j == 0 => 1e15,
            2 => x,
            _ => 1e19 + 1e15 * x,
        }
    };
    let x = Tensor::from_f64(Type::new(DType::F32, [4, n]), (0..4 * n).map(element));
    for arch in [Arch::Sm80, Arch::Sm89, Arch::Sm90a] {
        match compare(Reduction, &g, std::slice::from_ref(&x), arch) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => panic!("{e}"),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Unaligned rows: several per tile, or peeled to alignment.
#[test]
fn unaligned_rows() {
    for d in ["f32", "bf16", "f16"] {
        for shape in ["[5,1001]", "[3,8193]"] {
            let n = shape.trim_matches(']').rsplit(',').next().unwrap_or("1");
            body(&format!("(%x: {d}{shape}) {{ %y = softmax %x axis=1\n return %y }}"));
            // The first output is not a result of the reduction.
            body(&format!(
                "(%x: {d}{shape}, %r: {d}{shape}, %w: {d}[{n}], %c: {d}[{n}]) {{ %s = add %x, %r\n \
                 %y = layer_norm %s, %w, %c eps=1e-5\n return %s, %y }}"
            ));
        }
        body(&format!("(%x: {d}[8500,15]) {{ %y = softmax %x axis=1\n return %y }}"));
    }
    // A result of another type, and an operand with one element per row.
    body(
        "(%x: bf16[9000,7], %w: f32[9000,1]) { %f = cast %x to=f32\n %s = reduce.sum %f axes=[1]\n %d = sub %f, %s\n \
         %y = mul %d, %w\n return %y, %s }",
    );
    body("(%x: f32[7,4099]) { %v = slice %x axis=1 start=1 len=4097\n %y = softmax %v axis=1\n return %y }");
    body("(%x: f32[5,3,4097]) { %v = slice %x axis=1 start=1 len=2\n %y = softmax %v axis=2\n return %y }");
}

/// The same in loops over chunks of a row, of which the first and the last are ragged: softmax in two passes, also with
/// the second from the end, and parts of rows. A row of 2049 elements ends with its second chunk or begins a third, as
/// it starts at one place or another; of 2045 the last part has none.
#[test]
fn peeled_loops() {
    for (d, vector) in [("f32", 4), ("bf16", 8), ("f16", 8)] {
        let peeled = format!("split r 1024; bind warp 4; peel r {vector}");
        for n in [1025, 2045, 2049, 2051, 5003] {
            let softmax = format!("graph k(%x: {d}[9,{n}]) {{ %y = softmax %x axis=1\n return %y }}");
            for rest in ["", "; reverse r", "; split-reduce r 2"] {
                check_by(Reduction, &softmax, Arch::Sm90a, &format!("{peeled}{rest}"));
            }
            let sums = format!("graph k(%x: {d}[9,{n}]) {{ %y = reduce.sum %x axes=[1]\n return %y }}");
            let exponentials = format!(
                "graph k(%x: {d}[9,{n}]) {{ %m = reduce.max %x axes=[1]\n %d = sub %x, %m\n %e = exp %d\n \
                 %s = reduce.sum %e axes=[1]\n %l = log %s\n %y = add %l, %m\n return %y }}"
            );
            for rest in ["", "; split-reduce r 2", "; split-reduce r 3"] {
                check_by(Reduction, &sums, Arch::Sm90a, &format!("{peeled}{rest}"));
                check_by(Reduction, &exponentials, Arch::Sm90a, &format!("{peeled}{rest}"));
            }
        }
    }
    let refused = |body: &str, schedule: &str| {
        let text = format!("graph k(%x: f32[9,5003], %g: f32[5003]) {{ {body}\n return %y }}");
        let k = kernel(Reduction, text.parse().unwrap());
        lower(&kiln_plan::Kernel { schedule: Some(schedule.parse().unwrap()), ..k }, Arch::Sm90a)
            .unwrap_err()
            .to_string()
    };
    let peeled = "split r 1024; bind warp 4; peel r 4";
    let counts = refused("%y = layer_norm %x, %g, %g eps=1e-5", peeled);
    assert!(counts.contains("a loop that counts the elements of each lane begins where its row does"), "{counts}");
    let lane = refused("%y = reduce.argmax %x axes=[1]", "split r 8192; bind warp 4; peel r 4");
    assert!(lane.contains("the position that a tile of a whole row is reduced to is a lane's"), "{lane}");
}

/// Positions in loops over rows: of equal elements the first, NaN before all, and elements that are no better than
/// none.
#[test]
fn positions_in_loops() {
    let pad = |d: &str, n: usize, what: &str| {
        format!(
            "graph k(%x: {d}[9,{n}]) {{ %a = {what}\n %y = reduce.argmax %a axes=[1]\n \
             %z = reduce.argmin %a axes=[1]\n return %y, %z }}"
        )
    };
    for (d, vector) in [("f32", 4), ("bf16", 8), ("f16", 8)] {
        for n in [1025, 2045, 5003] {
            // Many equal elements; nothing but infinities; NaN where an element is negative.
            for what in ["floor %x", "sub %x, inf", "add %x, inf", "sqrt %x"] {
                let text = pad(d, n, what);
                for rest in ["", "; split-reduce r 2", "; split-reduce r 3"] {
                    for peel in [String::new(), format!("; peel r {vector}")] {
                        check_by(Reduction, &text, Arch::Sm90a, &format!("split r 1024; bind warp 4{peel}{rest}"));
                    }
                }
            }
        }
    }
    for n in [1025, 2048] {
        check_by(Reduction, &pad("i32", n, "mul %x, 0"), Arch::Sm90a, "split r 1024; bind warp 4");
        check_by(Reduction, &pad("i32", n, "max %x, 2147483647"), Arch::Sm90a, "split r 1024; bind warp 4");
    }
}

/// Many such rows read replicated copies of the operands that they share, which a step before makes.
#[test]
fn replicated_operands() {
    let text = "graph k(%x: f32[4112,1021], %v: f32[1022]) { %w = slice %v axis=0 start=1 len=1021\n \
                %s = reduce.sum %x axes=[1]\n %d = sub %x, %s\n %y = mul %d, %w\n return %y }";
    let schedule = "split i0 4; split r 1024; bind warp 4; peel r 4; stage operands global";
    let steps = check_by(Reduction, text, Arch::Sm90a, schedule);
    assert_eq!((steps.steps.len(), steps.scratch.len()), (2, 1));
}

/// Long rows in persistent kernels, also where they do not fill their tiles. For unaligned rows the number of clusters
/// is such that all rows of a cluster have one alignment.
#[test]
fn persistent_rows() {
    let by = |d: &str, rows: usize, n: usize, schedule: &str| {
        let text = format!(
            "graph k(%x: {d}[{rows},{n}], %g: {d}[{n}], %b: {d}[{n}]) {{ %y = layer_norm %x, %g, %b eps=1e-5\n \
             return %y }}"
        );
        let k = kernel(Reduction, text.parse().unwrap());
        lower(&kiln_plan::Kernel { schedule: Some(schedule.parse().unwrap()), ..k }, Arch::Sm90a)
    };
    for (d, n, schedule) in [
        ("bf16", 50257, "split r 65536; bind warp 16; bind cluster 2; peel r 8; persist 64"),
        ("f16", 50304, "split r 65536; bind warp 16; bind cluster 2; persist 66"),
        ("f32", 50257, "split r 65536; bind warp 16; bind cluster 4; peel r 4; persist 28"),
    ] {
        let steps = by(d, 2670, n, schedule).unwrap();
        let [Work::Block { code, .. }] = &steps.steps[..] else { panic!("{schedule}: several steps") };
        assert!(kiln_block::passes::persistent_rows::is_persistent(code), "{schedule}");
        assert!(schedule.ends_with(&format!("persist {}", code.grid.along(0).unwrap_or(0))), "{schedule}");
    }
    let refused =
        by("bf16", 2670, 50257, "split r 65536; bind warp 16; bind cluster 2; peel r 8; persist 2671").unwrap_err();
    assert!(refused.to_string().contains("`persist 2671` does not fit"), "{refused}");
}

#[test]
fn norms() {
    for d in ["f32", "bf16", "f16", "f64"] {
        for w in [5, 64, 768, 17000] {
            body(&format!(
                "(%x: {d}[6,{w}], %g: {d}[{w}], %b: {d}[{w}]) {{ %y = layer_norm %x, %g, %b axes=1 affine=true \
                 eps=1e-5\n return %y }}"
            ));
            body(&format!(
                "(%x: {d}[2,3,{w}], %r: {d}[2,3,{w}], %g: {d}[{w}]) {{ %s = add %x, %r\n \
                 %y = rms_norm %s, %g eps=1e-6\n return %y, %s }}"
            ));
        }
    }
    body(
        "(%x: f32[3,4,5,6], %g: f32[5,6], %b: f32[5,6]) { %y = layer_norm %x, %g, %b axes=2 affine=true eps=1e-5\n \
         return %y }",
    );
    body(
        "(%x: f32[2,8,5,6], %g: f32[8], %b: f32[8]) { %y = group_norm %x, %g, %b groups=4 affine=true eps=1e-5\n \
         %z = silu %y\n return %z }",
    );
    body(
        "(%x: f32[2,8,50,60], %g: f32[8], %b: f32[8]) { %y = group_norm %x, %g, %b groups=2 affine=true eps=1e-5\n \
         return %y }",
    );
    body(
        "(%x: f32[2,8,5,6], %g: f32[8], %b: f32[8], %m: f32[8], %v: f32[8]) { %w = abs %v\n \
         %y = batch_norm %x, %g, %b, %m, %w eps=1e-5\n return %y }",
    );
}

#[test]
fn views_around_rows() {
    body(
        "(%x: f32[12,8,16]) { %y = softmax %x axis=2\n %z = reshape %y shape=[3,4,8,16]\n \
         %w = permute %z perm=[0,2,1,3]\n return %w }",
    );
    body(
        "(%x: f32[4,6,10]) { %y = reshape %x shape=[24,10]\n %s = reduce.sum %y axes=[1]\n \
         %r = reshape %s shape=[4,6]\n return %r }",
    );
    body(
        "(%x: f32[4,60]) { %y = reshape %x shape=[4,6,10]\n %m = reduce.max %y axes=[2]\n %d = sub %y, %m\n \
         %z = reshape %d shape=[4,60]\n return %z }",
    );
    body("(%x: f32[7,9]) { %t = permute %x perm=[1,0]\n %y = softmax %t axis=1\n return %y }");
    body("(%x: f32[4,5], %y: f32[4,6]) { %c = concat %x, %y axis=1\n %s = softmax %c axis=1\n return %s }");
}

#[test]
fn rows_a_little_longer_than_a_power_of_two() {
    for (d, n) in
        [("f32", 1025), ("f32", 1055), ("f32", 4097), ("bf16", 2049), ("bf16", 4099), ("f16", 4120), ("f64", 2051)]
    {
        let norm = "%m = reduce.mean %x axes=[1]\n %d = sub %x, %m\n %q = mul %d, %d\n %v = reduce.mean %q axes=[1]\n \
                    %r = rsqrt %v\n %n = mul %d, %r\n %y = mul %n, %g";
        body(&format!("(%x: {d}[7,{n}], %g: {d}[{n}]) {{ {norm}\n return %y }}"));
        for op in ["sum", "max", "min", "argmax"] {
            body(&format!("(%x: {d}[7,{n}]) {{ %s = reduce.{op} %x axes=[1]\n return %s }}"));
        }
        body(&format!("(%x: {d}[7,{n}]) {{ %y = softmax %x axis=1\n return %y }}"));
    }
}

const GPU: Arch = Arch::Sm90a;

/// The kernel by a schedule of wide rows, which has so many launches, gives what the interpreter gives.
fn by_wide_rows(graph: &str, launches: usize) {
    let graph = format!("graph k{graph}");
    let mut k = kernel(Reduction, graph.parse().expect("a graph"));
    let found = kiln_lower::scheduled(&k, GPU.machine()).expect("lowers").expect("has a nest");
    let widens = |s: &kiln_plan::Schedule| matches!(s.steps.first(), Some(kiln_plan::Step::Widen(..)));
    k.schedule = found.schedules.into_iter().map(|s| s.0).find(widens);
    assert!(k.schedule.is_some(), "{graph}");
    assert_eq!(lower(&k, GPU).expect("lowers").steps.len(), launches, "{graph}");
    let inputs = kiln_graphgen::inputs(&k.body, 7);
    compare_kernel(&k, &inputs, GPU).expect("lowers").unwrap_or_else(|e| panic!("{e}\n{graph}"));
}

/// Large sums of columns of unaligned or narrow rows: several rows are reshaped to a wide one, whose columns a second
/// step combines.
#[test]
fn columns_are_summed_in_wide_rows() {
    for graph in [
        "(%x: f32[65536,33]) { %s = reduce.sum %x axes=[0]\n %n = neg %s\n return %n }",
        "(%x: bf16[2,8192,259], %y: bf16[2,8192,259]) { %p = mul %x, %y\n %s = reduce.mean %p axes=[1]\n return %s }",
        "(%x: f32[3,16384,44]) { %s = reduce.max %x axes=[1]\n %t = reduce.min %x axes=[1]\n return %s, %t }",
        // The last wide row is not full.
        "(%x: f32[65537,33]) { %s = reduce.sum %x axes=[0]\n return %s }",
        "(%x: bf16[2,8195,61]) { %s = reduce.max %x axes=[1]\n return %s }",
        // The maximum and the sum of exponentials, in one pass.
        "(%x: f16[8195,61]) { %m = reduce.max %x axes=[0]\n %d = sub %x, %m\n %e = exp %d\n \
         %s = reduce.sum %e axes=[0]\n \
         %l = log %s\n %y = add %l, %m\n return %y }",
        "(%x: f32[2,8195,30]) { %m = reduce.max %x axes=[1]\n %r = reshape %m shape=[2,1,30]\n %d = sub %x, %r\n \
         %e = exp %d\n \
         %s = reduce.sum %e axes=[1]\n %t = reduce.sum %x axes=[1]\n return %s, %t }",
    ] {
        by_wide_rows(graph, 2);
    }
    // Not if rows are read together with something else.
    body("(%x: f32[65536,33], %w: f32[33]) { %p = mul %x, %w\n %s = reduce.sum %p axes=[0]\n return %s }");
}

/// Norms along columns of unaligned or narrow rows: a third step stores along the wide rows.
#[test]
fn columns_are_normalized_in_wide_rows() {
    for graph in [
        "(%x: bf16[65536,70]) { %y = softmax %x axis=0\n return %y }",
        "(%x: f32[40007,33]) { %y = log_softmax %x axis=0\n return %y }",
        "(%x: f16[3,9001,61]) { %y = softmax %x axis=1\n return %y }",
        "(%x: f16[2,9001,45], %g: f16[45]) { %q = mul %x, %x\n %m = reduce.mean %q axes=[1]\n %r = rsqrt %m\n \
         %n = mul %x, %r\n %y = mul %n, %g\n %z = neg %y\n return %y, %z }",
    ] {
        by_wide_rows(graph, 3);
    }
}

/// Norms whose last pass goes from the ends of rows to their starts: with parts of rows, in loops, in wide rows, and
/// where the last chunk is not full.
#[test]
fn the_last_pass_of_a_norm_is_reversed() {
    for (graph, schedule) in [
        (
            "(%x: f32[3,20000]) { %y = softmax %x axis=1\n return %y }",
            "split r 2048; bind warp 4; split-reduce r 5; reverse r",
        ),
        ("(%x: f16[5,4097]) { %y = log_softmax %x axis=1\n return %y }", "split r 1024; bind warp 4; reverse r"),
        ("(%x: bf16[5,4096]) { %y = softmax %x axis=1\n return %y }", "split r 512; bind warp 2; reverse r"),
        (
            "(%x: f32[5001,70]) { %y = softmax %x axis=0\n return %y }",
            "split r 128; split i0 32; bind warp 4; split-reduce r 9; reverse r",
        ),
        (
            "(%x: f32[5001,33]) { %y = log_softmax %x axis=0\n return %y }",
            "widen i0 8; split r 16; split i0 128; bind warp 4; split-reduce r 6; reverse r",
        ),
        (
            "(%x: f16[2,9000], %g: f16[9000]) { %m = reduce.mean %x axes=[1]\n %d = sub %x, %m\n %q = mul %d, %d\n \
             %v = reduce.mean %q axes=[1]\n %r = rsqrt %v\n %n = mul %d, %r\n %y = mul %n, %g\n return %y, %m }",
            "split r 1024; bind warp 4; split-reduce r 3; reverse r",
        ),
    ] {
        let mut k = kernel(Reduction, format!("graph k{graph}").parse().expect("a graph"));
        k.schedule = Some(schedule.parse().expect("a schedule"));
        let inputs = kiln_graphgen::inputs(&k.body, 7);
        compare_kernel(&k, &inputs, GPU).expect("lowers").unwrap_or_else(|e| panic!("{e}\n{graph}\n{schedule}"));
    }
}

/// What wide rows do not do, and passes that are not reversed, are refused by name.
#[test]
fn wide_and_reversed_rows_that_are_refused() {
    for (graph, schedule, why) in [
        (
            "(%x: f32[65536,33]) { %y = scan.sum %x axis=0\n return %y }",
            "widen i0 4; split r 64; split i0 128; bind warp 4; split-reduce r 4",
            "depend on the order of rows",
        ),
        (
            "(%x: f32[65536,33]) { %m = reduce.mean %x axes=[0]\n %d = sub %x, %m\n %q = mul %d, %d\n \
             %v = reduce.mean %q axes=[0]\n return %v }",
            "widen i0 4; split r 64; split i0 128; bind warp 4; split-reduce r 4",
            "mean and variance",
        ),
        (
            "(%x: f32[65536,33]) { %m = reduce.max %x axes=[0]\n %d = sub %x, %m\n return %m, %d }",
            "widen i0 4; split r 64; split i0 128; bind warp 4; split-reduce r 4",
            "some results are stored for each row",
        ),
        (
            "(%x: f32[65536,33]) { %s = reduce.sum %x axes=[0]\n return %s }",
            "widen i0 4; split r 64; split i0 128; bind warp 4; prefetch 4; split-reduce r 4",
            "only split",
        ),
        (
            "(%x: f32[65537,33]) { %s = reduce.sum %x axes=[0]\n return %s }",
            "widen i0 4; split r 1; split i0 128; bind warp 4; split-reduce r 4",
            "one wide row",
        ),
        (
            "(%x: f32[1000000,33]) { %s = reduce.sum %x axes=[0]\n return %s }",
            "widen i0 64; split r 64; split i0 128; bind warp 4; split-reduce r 100",
            "5248 partial results of a column are too many",
        ),
        (
            "(%x: f32[9,4000]) { %y = softmax %x axis=1\n return %y }",
            "split r 4096; bind warp 4; reverse r",
            "the whole row",
        ),
        (
            "(%x: f32[9,4000]) { %y = reduce.sum %x axes=[1]\n return %y }",
            "split r 1024; bind warp 4; reverse r",
            "nothing is stored along rows",
        ),
        (
            "(%x: f32[9,4000]) { %y = scan.sum %x axis=1\n return %y }",
            "split r 1024; bind warp 4; reverse r",
            "scans need",
        ),
    ] {
        let kind = if graph.contains("scan") { Scan } else { Reduction };
        let mut k = kernel(kind, format!("graph k{graph}").parse().expect("a graph"));
        k.schedule = Some(schedule.parse().expect("a schedule"));
        let found = lower(&k, GPU).map(|_| ()).expect_err(graph).to_string();
        assert!(found.contains(why), "{found}\n{graph}");
    }
}

/// Many short columns: each thread has columns of its own and exchanges nothing.
#[test]
fn short_columns_belong_to_threads() {
    for (d, shape) in [("f32", "[2,3,140000]"), ("bf16", "[3,5,200001]"), ("f16", "[1,7,140000]")] {
        check_on(Reduction, &format!("graph k(%x: {d}{shape}) {{ %y = softmax %x axis=1\n return %y }}"), GPU);
    }
    let scaled = "(%x: f32[1,6,140000], %w: f32[6,1]) {
        %m = reduce.mean %x axes=[1]
        %d = sub %x, %m
        %p = mul %d, %w
        return %p, %m }";
    check_on(Reduction, &format!("graph k{scaled}"), GPU);
}

/// Strips of columns in which each thread has columns of its own: short and longer ones, of sizes that no tile divides.
#[test]
fn sums_of_columns_that_belong_to_threads() {
    for (graph, schedule) in [
        ("(%x: f32[3,200004]) { %s = reduce.sum %x axes=[0]\n return %s }", "split r 4; split i0 128; bind warp 1"),
        (
            "(%x: bf16[2,9,98312]) { %s = reduce.max %x axes=[1]\n %n = neg %s\n return %n }",
            "split r 8; split i1 256; bind warp 1",
        ),
        ("(%x: bool[3,400000]) { %s = reduce.max %x axes=[0]\n return %s }", "split r 4; split i0 512; bind warp 1"),
        ("(%x: i64[9,50000]) { %s = reduce.sum %x axes=[0]\n return %s }", "split r 8; split i0 64; bind warp 1"),
        (
            "(%x: f32[5,17,20000]) { %s = reduce.mean %x axes=[1]\n %t = reduce.min %x axes=[1]\n return %s, %t }",
            "split r 8; split i1 128; bind warp 1",
        ),
    ] {
        assert_eq!(check_by(Reduction, &format!("graph k{graph}"), GPU, schedule).steps.len(), 1, "{graph}");
    }
}

/// Sums of columns: at once, in chunks of which threads add up several rows first, and split.
#[test]
fn strips_of_columns() {
    for (d, shape, ops) in [
        ("bf16", "[270,130,64]", &["sum"][..]),
        ("f32", "[266,260,40]", &["max"]),
        ("bf16", "[5000,264]", &["sum", "min"]),
        ("f32", "[9000,100]", &["sum", "argmin"]),
        ("f64", "[20,150,40]", &["sum", "max"]),
        ("f32", "[9000,3]", &["sum", "argmax"]),
    ] {
        let axis = shape.matches(',').count() - 1;
        for op in ops {
            let body = format!("(%x: {d}{shape}) {{ %s = reduce.{op} %x axes=[{axis}]\n return %s }}");
            check_on(Reduction, &format!("graph k{body}"), GPU);
        }
    }
}
