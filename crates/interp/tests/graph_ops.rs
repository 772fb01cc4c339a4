//! The graph interpreter, op by op: a line of graph text, its inputs, and PyTorch's result.
use kiln_graph::{Graph, Tensor, Type, text};
use kiln_interp::graph::{InterpError, Precision, no_fallback, run, run_with};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn tensor(ty: &str, values: &[f64]) -> Tensor {
    let ty: Type = ty.parse().unwrap();
    assert_eq!(ty.count(), values.len(), "{ty}");
    Tensor::from_f64(ty, values.iter().copied())
}

/// Runs `body` (its last value is `%y`) on inputs named a, b, c, …
fn eval(body: &str, inputs: &[Tensor]) -> Result<Tensor, InterpError> {
    let names: Vec<String> = inputs.iter().zip('a'..).map(|(t, n)| format!("%{n}: {}", t.ty)).collect();
    let source = format!("graph g({}) {{ {body} return %y }}", names.join(", "));
    let g: Graph = text::parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    Ok(run(&g, inputs, &[], &mut no_fallback)?.remove(0))
}

fn check(body: &str, inputs: &[Tensor], wanted: &[f64]) {
    let got = eval(body, inputs).unwrap_or_else(|e| panic!("{body}: {e}")).to_f64_vec();
    let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * b.abs().max(1e-3);
    let ok = got.len() == wanted.len() && got.iter().zip(wanted).all(|(a, b)| same(*a, *b));
    assert!(ok, "{body}\n   got {got:?}\nwanted {wanted:?}");
}

#[test]
fn pointwise() {
    let x = || [tensor("f32[5]", &[-1.5, -0.5, 0.5, 2.5, NAN])];
    check("%y = round %a", &x(), &[-2.0, -0.0, 0.0, 2.0, NAN]);
    check("%y = relu %a", &x(), &[0.0, 0.0, 0.5, 2.5, NAN]);
    check("%y = sign %a", &x(), &[-1.0, -1.0, 1.0, 1.0, 0.0]);
    check("%y = is_nan %a", &x(), &[0.0, 0.0, 0.0, 0.0, 1.0]);
    check("%y = max %a, 0.5", &x(), &[0.5, 0.5, 0.5, 2.5, NAN]);
    check("%y = min 0.5, %a", &x(), &[-1.5, -0.5, 0.5, 0.5, NAN]);
    check("%y = remainder %a, 2", &x(), &[0.5, 1.5, 0.5, 0.5, NAN]);
    check("%y = fmod %a, 2", &x(), &[-1.5, -0.5, 0.5, 0.5, NAN]);
    check("%y = floor_div %a, 2", &x(), &[-1.0, -1.0, 0.0, 1.0, NAN]);
    check("%y = gelu_erf %a", &x(), &[-0.100210844, -0.154268772, 0.345731228, 2.484475915, NAN]);
    check("%y = gelu_tanh %a", &x(), &[-0.100428423, -0.154285990, 0.345714010, 2.484915734, NAN]);
    check("%y = softplus %a", &x(), &[0.201413278, 0.474076984, 0.974076984, 2.578889734, NAN]);
    check("%y = log_sigmoid %a", &x(), &[-1.701413278, -0.974076984, -0.474076984, -0.078889734, NAN]);
    check("%y = hardswish %a", &x(), &[-0.375, -0.208333333, 0.291666667, 2.291666667, NAN]);
    let i = || [tensor("i64[4]", &[7.0, -7.0, 7.0, -7.0]), tensor("i64[4]", &[2.0, 2.0, -2.0, -2.0])];
    check("%y = div %a, %b", &i(), &[3.0, -3.0, -3.0, 3.0]);
    check("%y = floor_div %a, %b", &i(), &[3.0, -4.0, -4.0, 3.0]);
    check("%y = remainder %a, %b", &i(), &[1.0, 1.0, -1.0, -1.0]);
    check("%y = fmod %a, %b", &i(), &[1.0, -1.0, 1.0, -1.0]);
    check("%y = pow %b, 3", &i(), &[8.0, 8.0, -8.0, -8.0]);
    check("%y = cast %a to=u8", &i(), &[7.0, 249.0, 7.0, 249.0]);
    check("%y = add %a, 250", &[tensor("u8[1]", &[10.0])], &[4.0]);
    check("%y = cast %a to=i32", &[tensor("f32[3]", &[2.9, -2.9, 0.0])], &[2.0, -2.0, 0.0]);
    check("%y = cast %a to=bf16", &[tensor("f32[2]", &[1.001, 256.0])], &[1.0, 256.0]);
    check(
        "%y = add %a, %b",
        &[tensor("f32[2,1]", &[1.0, 2.0]), tensor("f32[3]", &[10.0, 20.0, 30.0])],
        &[11.0, 21.0, 31.0, 12.0, 22.0, 32.0],
    );
    // One rounding per op: 1 + 2^-8 rounds to even in bf16.
    check("%y = add %a, %b", &[tensor("bf16[1]", &[1.0]), tensor("bf16[1]", &[0.00390625])], &[1.0]);
}

#[test]
fn movement() {
    let x = || [tensor("f32[2,3]", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    check("%y = permute %a perm=[1,0]", &x(), &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    check("%y = slice %a axis=1 start=0 len=2 step=2", &x(), &[1.0, 3.0, 4.0, 6.0]);
    check("%y = slice %a axis=1 start=3 len=0", &x(), &[]);
    check("%y = slice %a axis=1 start=2 len=1 step=18446744073709551615", &x(), &[3.0, 6.0]);
    check("%y = flip %a axes=[0,1]", &x(), &[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    check("%y = pad %a, 9 lo=[1,-1] hi=[0,1]", &x(), &[9.0, 9.0, 9.0, 2.0, 3.0, 9.0, 5.0, 6.0, 9.0]);
    check("%y = concat %a, %a axis=1", &x(), &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0]);
    let with = |i: Tensor| [x()[0].clone(), i];
    check("%y = take %a, %b axis=1", &with(tensor("i64[2]", &[2.0, 0.0])), &[3.0, 1.0, 6.0, 4.0]);
    check("%y = take %a, %b axis=0", &with(tensor("i64[]", &[1.0])), &[4.0, 5.0, 6.0]);
    check("%y = gather %a, %b axis=1", &with(tensor("i64[2,1]", &[2.0, 0.0])), &[3.0, 4.0]);
    let source = |i: &[f64]| [x()[0].clone(), tensor("i64[1,3]", i), tensor("f32[1,3]", &[10.0, 20.0, 30.0])];
    check("%y = scatter %a, %b, %c axis=1", &source(&[1.0, 1.0, 0.0]), &[30.0, 20.0, 3.0, 4.0, 5.0, 6.0]);
    check("%y = scatter %a, %b, %c axis=0 mode=add", &source(&[1.0, 0.0, 1.0]), &[1.0, 22.0, 3.0, 14.0, 5.0, 36.0]);
    check("%y = iota axis=1 : i32[2,3]", &[], &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
}

#[test]
fn reductions() {
    let x = || [tensor("f32[2,3]", &[1.0, NAN, 3.0, 4.0, 5.0, 5.0])];
    check("%y = reduce.max %a axes=[1]", &x(), &[NAN, 5.0]);
    check("%y = reduce.argmax %a axes=[1]", &x(), &[1.0, 1.0]);
    check("%y = reduce.argmin %a axes=[1]", &x(), &[1.0, 0.0]);
    check("%y = reduce.sum %a axes=[0]", &x(), &[5.0, NAN, 8.0]);
    check("%y = scan.sum %a axis=1", &x(), &[1.0, NAN, NAN, 4.0, 9.0, 14.0]);
    check("%y = reduce.sum %a axes=[0]", &[tensor("f32[0,2]", &[])], &[0.0, 0.0]);
    check("%y = reduce.prod %a axes=[0]", &[tensor("f32[0,2]", &[])], &[1.0, 1.0]);
    check("%y = reduce.mean %a axes=[0]", &[tensor("f32[0,2]", &[])], &[NAN, NAN]);
    check("%y = reduce.sum %a axes=[]", &[tensor("f32[]", &[3.0])], &[3.0]);
    check("%y = reduce.all %a axes=[0]", &[tensor("bool[2]", &[1.0, 0.0])], &[0.0]);
}

#[test]
fn matmuls() {
    let a = tensor("f32[2,2]", &[1.0, 2.0, 3.0, 4.0]);
    check("%y = dot %a, %b", &[a.clone(), tensor("f32[2,1]", &[1.0, -1.0])], &[-1.0, -1.0]);
    check("%y = dot %a, %b", &[tensor("f32[1,0]", &[]), tensor("f32[0,2]", &[])], &[0.0, 0.0]);
    let linear = [a, tensor("f32[1,2]", &[1.0, 10.0]), tensor("f32[1]", &[0.5])];
    check("%y = linear %a, %b, %c", &linear, &[21.5, 43.5]);
    let conv = [tensor("f32[1,1,4]", &[1.0, 2.0, 3.0, 4.0]), tensor("f32[1,1,2]", &[1.0, 10.0])];
    check("%y = conv %a, %b", &conv, &[21.0, 32.0, 43.0]);
    check("%y = conv %a, %b stride=[2] padding=[1]", &conv, &[10.0, 32.0, 4.0]);
    check("%y = conv %a, %b dilation=[3]", &conv, &[41.0]);
    check("%y = conv %a, %b stride=[2] transposed=true", &conv, &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0]);
    let groups = [tensor("f32[1,2,1]", &[3.0, 5.0]), tensor("f32[4,1,1]", &[1.0, 2.0, 3.0, 4.0])];
    check("%y = conv %a, %b groups=2", &groups, &[3.0, 6.0, 15.0, 20.0]);
    let x = || [tensor("f32[1,5]", &[1.0, 5.0, 2.0, 4.0, 3.0])];
    check("%y = pool.max %a window=[2]", &x(), &[5.0, 4.0]);
    check("%y = pool.max %a window=[2] ceil=true", &x(), &[5.0, 4.0, 3.0]);
    check("%y = pool.avg %a window=[3] stride=[2] padding=[1] ceil=true", &x(), &[2.0, 11.0 / 3.0, 7.0 / 3.0]);
    check("%y = pool.avg %a window=[3] stride=[2] padding=[1] count_pad=false", &x(), &[3.0, 11.0 / 3.0, 3.5]);
}

#[test]
fn composites() {
    let x = || [tensor("f32[1,3]", &[1000.0, 1001.0, 1002.0])];
    check("%y = softmax %a axis=1", &x(), &[0.090030573, 0.244728471, 0.665240956]);
    check("%y = log_softmax %a axis=1", &x(), &[-2.407605964, -1.407605964, -0.407605964]);
    check("%y = softmax %a axis=0", &[tensor("f32[2]", &[-INF, -INF])], &[NAN, NAN]);
    check("%y = layer_norm %a eps=0.0", &x(), &[-1.224744871, 0.0, 1.224744871]);
    let qkv = || [1, 2, 3].map(|s| tensor("f32[1,2,1]", &[s as f64, -s as f64]));
    let first = 3.0;
    let p = 1.0 / (1.0 + (4.0f64).exp());
    check("%y = attention %a, %b, %c scale=1.0 causal=true", &qkv(), &[first, 3.0 * p - 3.0 * (1.0 - p)]);
    let masked = || qkv().into_iter().chain([tensor("bool[2,2]", &[1.0, 0.0, 0.0, 0.0])]).collect::<Vec<_>>();
    check("%y = attention %a, %b, %c, %d scale=1.0", &masked(), &[3.0, 0.0]);
    check("%y = attention %a, %b, %c, %d scale=1.0 fully_masked=nan", &masked(), &[3.0, NAN]);
    // Query 0 with a sink of twice the weight of key 0, its only key; query 1 attends to none.
    let sink =
        |last: f64| masked().into_iter().chain([tensor("f32[2,1]", &[2.0 + 2f64.ln(), last])]).collect::<Vec<_>>();
    let with = "%y = attention %a, %b, %c, %e, %d scale=1.0 sink=true";
    check(with, &sink(0.5), &[1.0, 0.0]);
    check(with, &sink(-INF), &[1.0, 0.0]);
    check(with, &sink(NAN), &[1.0, NAN]);
    check(&format!("{with} fully_masked=nan"), &sink(0.5), &[1.0, 0.0]);
    check(&format!("{with} fully_masked=nan"), &sink(-INF), &[1.0, NAN]);
}

#[test]
fn errors_name_the_op_and_its_place() {
    let source = "graph g(%x: f32[2], %i: i64[1]) { %y = take %x, %i axis=0 loc(\"emb\", \"m.py:7\") return %y }";
    let g = text::parse(source).unwrap();
    let inputs = [tensor("f32[2]", &[1.0, 2.0]), tensor("i64[1]", &[2.0])];
    let e = run(&g, &inputs, &[], &mut no_fallback).unwrap_err();
    assert_eq!(e.to_string(), "%2 = take (emb, m.py:7): index 2 is out of range for an axis of 2");
    let e = run(&g, &inputs[..1], &[], &mut no_fallback).unwrap_err();
    assert_eq!(e.to_string(), "1 input given, the graph takes 2");
    let zero = [tensor("i64[1]", &[1.0]), tensor("i64[1]", &[0.0])];
    assert!(eval("%y = div %a, %b", &zero).unwrap_err().to_string().contains("division by zero"));
}

#[test]
fn fallbacks_and_precision() {
    let g = text::parse(
        "graph g(%x: bf16[2]) {
           %dead = fallback %x name=\"aten::erfc\" args=\"[{\\\"tensor\\\":0}]\" results=[bf16[2]]
           %f = fallback %x name=\"aten::topk\" args=\"[{\\\"tensor\\\":0}, 2]\" results=[bf16[2], i64[2]]
           %i = result %f index=1
           %y = mul %x, 0.1
           return %i, %y
         }",
    )
    .unwrap();
    let x = tensor("bf16[2]", &[1.0, 3.0]);
    let mut two = |op: &kiln_graph::FallbackOp, args: &[Tensor]| {
        assert_eq!(op.name, "aten::topk");
        Ok(vec![args[0].clone(), tensor("i64[2]", &[42.0, 43.0])])
    };
    let native = run(&g, std::slice::from_ref(&x), &[], &mut two).unwrap();
    assert_eq!(native[0].get_i64(0), 42);
    assert_eq!(native[1].ty.to_string(), "bf16[2]");
    let exact = run_with(&g, &[x], &[], Precision::F64, &mut two).unwrap();
    assert_eq!(exact[1].to_f64_vec(), [0.1, 3.0 * 0.1]);
}
