//! Pointwise kernels: arithmetic, views, data movement.
use crate::common::{self, check, compare};
use kiln_graph::{DType, Tensor, Type};
use kiln_lower::lower;
use kiln_machine::Arch;
use kiln_plan::{KernelKind::Pointwise, exec::Work};

fn body(lines: &str) {
    check(Pointwise, &format!("graph k{lines}"));
}

#[test]
fn plain() {
    for n in [1, 7, 64, 1000, 5000] {
        body(&format!("(%x: f32[{n}], %y: f32[{n}]) {{ %z = add %x, %y\n return %z }}"));
        body(&format!("(%x: bf16[{n}], %y: bf16[{n}]) {{ %z = mul %x, %y\n %w = gelu_tanh %z\n return %z, %w }}"));
    }
    body("(%x: f64[], %y: f64[3,5]) { %z = mul %x, %y\n return %z }");
    body("(%x: f32[0,5]) { %z = exp %x\n return %z }");
}

#[test]
fn views() {
    body("(%x: f32[6,10]) { %y = permute %x perm=[1,0]\n return %y }");
    body("(%x: f32[70,45], %z: f32[45,70]) { %y = permute %x perm=[1,0]\n %w = add %y, %z\n return %w }");
    body("(%x: f32[4,6,33]) { %y = reshape %x shape=[8,99]\n %z = neg %y\n return %z }");
    body("(%x: f32[2,12,20]) { %y = reshape %x shape=[2,12,4,5]\n %z = permute %y perm=[0,2,1,3]\n return %z }");
    body("(%x: f32[2,3,20,16]) { %y = permute %x perm=[0,2,1,3]\n %z = reshape %y shape=[2,20,48]\n return %z }");
    body("(%x: f32[5,30]) { %y = slice %x axis=1 start=3 len=9 step=2\n %z = exp %y\n return %z }");
    body("(%x: f32[5,30]) { %y = flip %x axes=[1]\n %z = sub %y, %x\n return %z }");
    body("(%x: f32[30]) { %y = broadcast %x shape=[4,30]\n return %y }");
    body("(%x: f32[7,1,80], %b: f32[9,1]) { %y = add %x, %b\n return %y }");
    body("(%x: f32[3,100,7]) { %y = permute %x perm=[2,0,1]\n %z = reshape %y shape=[210,10]\n return %z }");
}

#[test]
fn movement() {
    body("(%x: f32[5,6], %y: f32[5,9]) { %c = concat %x, %y axis=1\n %z = neg %c\n return %z }");
    body("(%x: f32[5,6], %y: f32[2,6], %w: f32[1,6]) { %c = concat %x, %y, %w axis=0\n return %c }");
    // Reflected edges: index expressions that are negative before a quotient is taken.
    body(
        "(%x: f32[2,3,5]) { %r = reshape %x shape=[2,1,3,5]\n %a = slice %r axis=2 start=1 len=2 step=1\n \
         %b = flip %a axes=[2]\n %c = slice %r axis=2 start=0 len=2 step=1\n %d = flip %c axes=[2]\n \
         %e = concat %b, %r, %d axis=2\n return %e }",
    );
    body("(%x: f32[5,6]) { %c = pad %x, 2.5 lo=[1,2] hi=[0,-3]\n return %c }");
    body("(%x: f32[5,6]) { %c = pad %x, 1.0 lo=[0,4] hi=[3,3]\n %d = reshape %c shape=[4,26]\n return %d }");
    body(
        "(%x: f32[2,64,64]) { %a = slice %x axis=2 start=0 len=32 step=1\n \
         %b = slice %x axis=2 start=32 len=32 step=1\n %n = neg %b\n %c = concat %n, %a axis=2\n return %c }",
    );
}

/// A tensor whose regions are assigned one after the other, as in a window's mask: each assignment is a concatenation
/// of the parts around it. What was assigned is read once for each region, not once for each way to go through the
/// concatenations.
#[test]
fn assignments_to_slices() {
    let bounds = [(0, 5), (5, 9), (9, 12)];
    let regions: Vec<_> = bounds.iter().flat_map(|rows| bounds.map(|columns| (*rows, columns))).collect();
    let (mut inputs, mut lines, mut last) = ("%x: f32[12,12]".to_string(), String::new(), "%x".to_string());
    for (i, ((top, bottom), (left, right))) in regions.iter().enumerate() {
        let mut slice = |name: &str, of: &str, axis: usize, start: usize, end: usize| {
            if start == end {
                return None;
            }
            lines += &format!("%{name}{i} = slice {of} axis={axis} start={start} len={} step=1\n", end - start);
            Some(format!("%{name}{i}"))
        };
        let above = slice("above", &last, 0, 0, *top);
        let rows = slice("rows", &last, 0, *top, *bottom).unwrap_or_default();
        let below = slice("below", &last, 0, *bottom, 12);
        let (before, after) = (slice("before", &rows, 1, 0, *left), slice("after", &rows, 1, *right, 12));
        inputs += &format!(", %v{i}: f32[]");
        lines += &format!("%new{i} = broadcast %v{i} shape=[{},{}]\n", bottom - top, right - left);
        let joined = |parts: [Option<String>; 3]| parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        lines += &format!("%row{i} = concat {} axis=1\n", joined([before, Some(format!("%new{i}")), after]));
        lines += &format!("%all{i} = concat {} axis=0\n", joined([above, Some(format!("%row{i}")), below]));
        last = format!("%all{i}");
    }
    let text = format!("graph k({inputs}) {{\n{lines}return {last}\n}}");
    check(Pointwise, &text);
    let steps = lower(&common::kernel(Pointwise, text.parse().expect("a graph")), Arch::Sm90a).expect("it is lowered");
    let [Work::Block { code, .. }] = &steps.steps[..] else { panic!("{}", common::text(&steps)) };
    let program = kiln_block::text::print(code);
    // Each region is read where its bounds hold.
    assert_eq!(program.matches(" = load_apart ").count(), regions.len(), "{program}");
}

/// Rows that no tile fits are loaded as one contiguous run, in which the channel may change anywhere.
#[test]
fn channels() {
    for d in ["f32", "bf16"] {
        for [n, c, hw] in [[4, 40, 196], [3, 70, 49], [2, 9, 784], [5, 1000, 33], [40, 1, 1001]] {
            body(&format!(
                "(%x: {d}[{n},{c},{hw}], %a: {d}[{c}], %s: {d}[{n},{c},1]) {{ %b = reshape %a shape=[1,{c},1]\n \
                 %y = add %x, %b\n %z = mul %y, %s\n %r = relu %z\n return %r, %y }}"
            ));
        }
    }
    body("(%x: f32[4,40,196], %y: f32[4,40,1], %z: f32[196]) { %a = add %x, %y\n %b = mul %a, %z\n return %b }");
    body(
        "(%x: f32[4,40,196]) { %i = iota axis=1 : i64[4,40,196]\n %f = cast %i to=f32\n %y = mul %x, %f\n return %y }",
    );
}

/// Long unaligned rows: lanes are counted from the multiple of a vector before the stored row.
#[test]
fn unaligned_rows() {
    for d in ["f32", "bf16"] {
        for n in [257, 333, 1021, 2047, 2501] {
            body(&format!(
                "(%x: {d}[7,{n}], %a: {d}[{n}], %c: {d}[7,1]) {{ %b = add %x, %a\n %y = mul %b, %c\n \
                 %f = cast %y to=f32\n return %y, %f }}"
            ));
            body(&format!(
                "(%x: {d}[3,5,{n}], %y: {d}[3,5,40]) {{ %c = concat %x, %y axis=2\n \
                 %s = slice %c axis=2 start=9 len={n}\n %i = iota axis=2 : i64[3,5,{n}]\n %f = cast %i to={d}\n \
                 %z = sub %s, %f\n return %z }}"
            ));
        }
        body(&format!("(%x: {d}[9,300]) {{ %c = pad %x, 2.5 lo=[1,2] hi=[2,3]\n %y = neg %c\n return %y }}"));
        body(&format!(
            "(%x: {d}[3,4,261], %y: {d}[4,261]) {{ %t = permute %x perm=[1,0,2]\n %b = broadcast %y shape=[3,4,261]\n \
             %p = permute %b perm=[1,0,2]\n %z = mul %t, %p\n return %z }}"
        ));
    }
}

/// Interleaved pairs, in the forms in which rotary embeddings are written.
#[test]
fn pairs() {
    for (n, half) in [(64, 32), (6, 3), (34, 17)] {
        let even = format!("%a = slice %x axis=2 start=0 len={half} step=2");
        let odd = format!("%b = slice %x axis=2 start=1 len={half} step=2\n %n = neg %b");
        let pair = |x: &str, y: &str| {
            format!(
                "%p = reshape {x} shape=[3,7,{half},1]\n %q = reshape {y} shape=[3,7,{half},1]\n \
                 %c = concat %p, %q axis=3\n %r = reshape %c shape=[3,7,{n}]"
            )
        };
        for t in ["f32", "bf16"] {
            let rotated = pair("%n", "%a");
            body(&format!(
                "(%x: {t}[3,7,{n}], %s: {t}[7,{n}]) {{ {even}\n {odd}\n {rotated}\n %y = mul %r, %s\n \
                 %z = add %x, %y\n return %z }}"
            ));
            let both = pair("%d", "%e");
            body(&format!(
                "(%x: {t}[3,7,{n}], %s: {t}[7,{half}]) {{ %v = reshape %x shape=[3,7,{half},2]\n \
                 %i = slice %v axis=3 start=0 len=1\n %j = slice %v axis=3 start=1 len=1\n \
                 %a = reshape %i shape=[3,7,{half}]\n %b = reshape %j shape=[3,7,{half}]\n %d = mul %a, %s\n \
                 %e = sub %b, %a\n {both}\n return %r }}"
            ));
            body(&format!("(%x: {t}[3,7,{n}]) {{ {even}\n {odd}\n %y = mul %a, %n\n return %y }}"));
        }
    }
    // Triples, and pairs of rows.
    body(
        "(%x: f32[5,12]) { %v = reshape %x shape=[5,4,3]\n %f = flip %v axes=[2]\n %r = reshape %f shape=[5,12]\n \
         %y = sub %x, %r\n return %y }",
    );
    body(
        "(%x: f32[6,8]) { %v = reshape %x shape=[3,2,8]\n %a = slice %v axis=1 start=1 len=1\n \
         %b = slice %v axis=1 start=0 len=1\n %c = concat %a, %b axis=1\n %r = reshape %c shape=[6,8]\n return %r }",
    );
}

#[test]
fn gathers() {
    let int = |shape: &[usize], v: &[f64]| Tensor::from_f64(Type::new(DType::I64, shape), v.iter().copied());
    let x = |shape: &[usize]| kiln_graph::random_tensor(Type::new(DType::F32, shape), 3, 1.0);
    let run = |text: &str, inputs: &[Tensor]| {
        let g = text.parse().unwrap_or_else(|e| panic!("{e}"));
        for t in common::TARGETS {
            compare(Pointwise, &g, inputs, t).unwrap_or_else(|e| panic!("{e}")).unwrap_or_else(|e| panic!("{e}"));
        }
    };
    run(
        "graph k(%x: f32[10,40], %i: i64[2,3]) { %y = take %x, %i axis=0\n return %y }",
        &[x(&[10, 40]), int(&[2, 3], &[0.0, 9.0, 9.0, 3.0, 0.0, 5.0])],
    );
    run(
        "graph k(%x: f32[4,9], %i: i64[2,9]) { %y = gather %x, %i axis=0\n return %y }",
        &[x(&[4, 9]), int(&[2, 9], &[0., 1., 2., 3., 3., 2., 1., 0., 0., 3., 2., 1., 0., 3., 2., 1., 0., 3.])],
    );
    run(
        "graph k(%x: f32[4,9], %i: i64[3]) { %p = pad %x, 1.0 lo=[0,2] hi=[0,2]\n %y = take %p, %i axis=1\n \
         return %y }",
        &[x(&[4, 9]), int(&[3], &[0., 5., 12.])],
    );
}

#[test]
fn unary_functions() {
    for d in ["f32", "f64", "f16", "bf16"] {
        for op in [
            "neg",
            "abs",
            "sign",
            "exp",
            "exp2",
            "expm1",
            "reciprocal",
            "sin",
            "cos",
            "tan",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "erf",
            "floor",
            "ceil",
            "trunc",
            "relu",
            "sigmoid",
            "silu",
            "gelu_erf",
            "gelu_tanh",
            "softplus",
            "mish",
            "hardswish",
            "hardsigmoid",
            "log_sigmoid",
        ] {
            body(&format!("(%x: {d}[40]) {{ %y = {op} %x\n return %y }}"));
        }
        for op in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt"] {
            body(&format!("(%x: {d}[40]) {{ %a = abs %x\n %b = add %a, 0.5\n %y = {op} %b\n return %y }}"));
        }
        body(&format!("(%x: {d}[9]) {{ %y = is_nan %x\n %z = is_inf %x\n %n = not %y\n return %y, %z, %n }}"));
    }
    for d in ["i64", "i32", "u8"] {
        for op in ["abs", "sign", "floor", "relu", "not"] {
            body(&format!("(%x: {d}[20]) {{ %y = {op} %x\n return %y }}"));
        }
    }
}

#[test]
fn binary_functions() {
    for d in ["f32", "f64"] {
        for op in ["add", "sub", "mul", "div", "floor_div", "remainder", "fmod", "max", "min", "atan2"] {
            body(&format!("(%x: {d}[50], %y: {d}[50]) {{ %z = {op} %x, %y\n return %z }}"));
        }
        for p in ["2.0", "3.0", "4.0", "0.5", "-1.0", "1.7", "1.0", "0.0"] {
            body(&format!("(%x: {d}[50]) {{ %a = abs %x\n %b = add %a, 0.1\n %z = pow %b, {p}\n return %z }}"));
        }
    }
    for d in ["i64", "i32", "u8"] {
        for op in ["add", "sub", "mul", "max", "min", "and", "or", "xor"] {
            body(&format!("(%x: {d}[50], %y: {d}[50]) {{ %z = {op} %x, %y\n return %z }}"));
        }
        for op in ["div", "floor_div", "remainder", "fmod"] {
            body(&format!("(%x: {d}[50]) {{ %z = {op} %x, 3\n return %z }}"));
        }
        body(&format!("(%x: {d}[50]) {{ %z = pow %x, 2\n %e = and %x, 3\n %w = pow %x, %e\n return %z, %w }}"));
    }
    for op in ["eq", "ne", "lt", "le", "gt", "ge"] {
        body(&format!("(%x: f32[50], %y: f32[50]) {{ %z = {op} %x, %y\n %w = select %z, %x, %y\n return %w, %z }}"));
    }
    body(
        "(%x: bool[9], %y: bool[9]) { %a = and %x, %y\n %b = or %x, %y\n %c = xor %a, %b\n %m = max %x, %c\n \
         %e = lt %x, %y\n return %c, %m, %e }",
    );
}

#[test]
fn casts() {
    for from in ["f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"] {
        for to in ["f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"] {
            if from == to || (to == "u8" && from.contains('f')) {
                continue;
            }
            body(&format!("(%x: {from}[30]) {{ %y = cast %x to={to}\n return %y }}"));
        }
    }
    body(
        "(%x: f32[30]) { %y = cast %x to=bf16\n %z = cast %y to=f32\n %d = sub %x, %z\n %e = mul %d, 1000.0\n \
         return %e }",
    );
    body(
        "() { %i = iota axis=1 : i64[4,30]\n %f = iota axis=0 : f32[4,30]\n %c = cast %i to=f32\n %s = add %c, %f\n \
         return %s }",
    );
}
