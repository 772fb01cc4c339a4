//! Inference and verifier: result types, and the messages of rejections.
use kiln_graph::{
    BinaryOp, DType, Graph, Init, Op, ParamId, ParamInfo, ReduceOp, Scalar, Type, UnaryOp, ValueId,
    infer::infer,
    ops::window::{conv_len, pool_len},
    text,
};

/// The type of `%y` in a graph with inputs `args` and `%y = body`, or the error.
fn ty(args: &str, body: &str) -> String {
    let source = format!("graph g({args}) {{ %y = {body} return %y }}");
    match text::parse(&source) {
        Ok(g) => g.ty(g.outputs[0]).to_string(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn result_types() {
    for (args, body, wanted) in [
        ("%a: f32[2,1], %b: f32[3]", "add %a, %b", "f32[2,3]"),
        ("%a: f32[0,1], %b: f32[3]", "add %a, %b", "f32[0,3]"),
        ("%a: i32[], %b: i32[4]", "le %a, %b", "bool[4]"),
        ("%c: bool[3], %a: f16[2,1]", "select %c, %a, 0", "f16[2,3]"),
        ("%a: u8[4]", "not %a", "u8[4]"),
        ("%a: f32[4,5]", "is_nan %a", "bool[4,5]"),
        ("%a: f32[4,5]", "reduce.argmax %a axes=[1]", "i64[4,1]"),
        ("%a: f32[5,3,4], %i: i64[2,7]", "take %a, %i axis=1", "f32[5,2,7,4]"),
        ("%a: f32[7,1,2,3], %b: f32[5,3,4]", "dot %a, %b", "f32[7,5,2,4]"),
        ("%a: f32[2,0], %b: f32[0,3]", "dot %a, %b", "f32[2,3]"),
        ("%x: f32[2,3,224,224], %w: f32[64,3,7,7]", "conv %x, %w stride=[2,2] padding=[3,3]", "f32[2,64,112,112]"),
        ("%x: f32[2,4,5], %w: f32[4,3,2]", "conv %x, %w transposed=true stride=[3] groups=2", "f32[2,6,14]"),
        ("%x: f32[1,6,6]", "pool.max %x window=[3,3] stride=[2,2] ceil=true", "f32[1,3,3]"),
        ("%x: f32[9,8]", "linear %x, %x", "f32[9,9]"),
        ("%q: bf16[2,8,5,16], %k: bf16[2,2,7,16], %v: bf16[2,2,7,4]", "attention %q, %k, %v scale=1", "bf16[2,8,5,4]"),
        (
            "%q: f16[2,8,5,16], %k: f16[2,2,7,16], %s: f32[8,1,1]",
            "attention %q, %k, %k, %s scale=1 sink=true",
            "f16[2,8,5,16]",
        ),
        ("%x: f32[3,4]", "slice %x axis=1 start=1 len=2 step=2", "f32[3,2]"),
        ("%x: f32[3,4]", "reshape %x shape=[2,6]", "f32[2,6]"),
        ("%x: f32[0,4]", "reshape %x shape=[9,0]", "f32[9,0]"),
    ] {
        assert_eq!(ty(args, body), wanted, "{body} on {args}");
    }
}

#[test]
fn rejections() {
    for (args, body, wanted) in [
        ("%a: f32[2], %b: f32[3]", "add %a, %b", "do not broadcast"),
        ("%a: f32[2], %b: f16[2]", "add %a, %b", "cast them to one type"),
        ("%a: bool[2]", "add %a, %a", "not defined on bool"),
        ("%a: f32[2]", "and %a, %a", "not defined on f32"),
        ("%a: i64[2]", "exp %a", "not defined on i64"),
        ("%a: f32[2]", "not %a", "not defined on f32"),
        ("%a: i64[2]", "reduce.mean %a axes=[0]", "mean of i64"),
        ("%a: bool[2]", "reduce.sum %a axes=[0]", "cast to i64"),
        ("%a: f32[0]", "reduce.max %a axes=[0]", "no elements"),
        ("%a: f32[2,2]", "reduce.sum %a axes=[0,0]", "named twice"),
        ("%a: f32[2,2]", "reduce.argmax %a axes=[0,1]", "takes one axis"),
        ("%a: f32[2,2]", "permute %a perm=[0,0]", "not a permutation"),
        ("%a: f32[2]", "slice %a axis=0 start=1 len=2", "does not lie in"),
        ("%a: f32[2]", "slice %a axis=0 start=0 len=2 step=0", "does not lie in"),
        ("%a: f32[2]", "slice %a axis=0 start=18446744073709551615 len=3", "does not lie in"),
        ("%a: f32[2]", "broadcast %a shape=[3]", "does not broadcast"),
        ("%a: f32[2]", "broadcast %a shape=[70368744177664,2]", "too large"),
        ("%a: f32[2]", "pad %a, 0 lo=[-3] hi=[2]", "cannot be padded or cropped"),
        ("%a: f32[2]", "pad %a, 0 lo=[9223372036854775807] hi=[9223372036854775807]", "cannot be padded or cropped"),
        ("%a: f32[2,3], %b: f32[2]", "concat %a, %b axis=0", "operand 1"),
        ("%a: f32[2], %i: f32[2]", "gather %a, %i axis=0", "must be an integer"),
        ("%a: f32[2,3], %i: i64[3,1]", "gather %a, %i axis=1", "no larger sizes"),
        ("%a: f32[2,3]", "dot %a, %a", "inner sizes"),
        ("%a: f32[3]", "dot %a, %a", "at least two axes"),
        ("%x: f32[1,3,4], %w: f32[2,3,5]", "conv %x, %w", "does not fit"),
        ("%x: f32[1,3,4], %w: f32[2,3,1]", "conv %x, %w groups=3", "channels do not fit"),
        ("%x: f32[1,3,4], %w: f32[2,3,1]", "conv %x, %w stride=[0]", "at least 1"),
        ("%x: f32[1,4]", "pool.max %x window=[2] padding=[2]", "more than half"),
        ("%x: f32[3,4]", "layer_norm %x axes=3 eps=1e-5", "last 3 axes"),
        ("%x: f32[3,4]", "layer_norm %x, %x, %x eps=1e-5", "gain and bias must be f32[4]"),
        ("%x: f32[3,4]", "group_norm %x groups=3 eps=1e-5", "3 groups"),
        ("%q: f32[3,4,5], %k: f32[2,4,5]", "attention %q, %k, %k scale=1", "not a multiple"),
        ("%q: f32[2,4,5], %s: f32[2,1,5]", "attention %q, %q, %q, %s scale=1 sink=true", "one score of each query"),
        ("%q: f32[2,4,5], %s: f64[2,1,1]", "attention %q, %q, %q, %s scale=1 sink=true", "the sink is f64"),
        ("%q: f32[2,4,5]", "attention %q, %q, %q scale=1 sink=true", "3 operands, 4 are wanted"),
        ("%a: f32[2]", "result %a index=1", "neither a fallback nor a launch"),
        ("%a: f32[2]", "fallback %a name=\"aten::x\" results=[]", "no results"),
        ("%a: f32[2]", "neg %a, %a", "takes 1 operand"),
    ] {
        let got = ty(args, body);
        assert!(got.contains(wanted), "{body} on {args}\nwanted {wanted}\n   got {got}");
    }
}

#[test]
fn window_arithmetic() {
    assert_eq!(conv_len(5, 3, 2, 1, 1), Some(3));
    assert_eq!(conv_len(2, 3, 1, 0, 1), None);
    assert_eq!(conv_len(usize::MAX, 1, 1, 1, 1), None);
    assert_eq!(conv_len(5, 3, 0, 0, 1), None);
    assert_eq!(pool_len(5, 2, 2, 0, 1, true), Some(3));
    assert_eq!(pool_len(5, 2, 3, 1, 1, true), Some(2));
    assert_eq!(pool_len(4, 2, 4, 1, 1, true), Some(2));
}

#[test]
fn inference_never_panics() {
    let f = |shape: &[usize]| Type::new(DType::F32, shape);
    let huge = f(&[usize::MAX, usize::MAX]);
    assert!(infer(&Op::Unary(UnaryOp::Neg), &[&huge]).is_err());
    assert!(infer(&Op::Binary(BinaryOp::Add), &[]).is_err());
    assert!(infer(&Op::Softmax { axis: usize::MAX }, &[&f(&[2])]).is_err());
    assert!(infer(&Op::Reshape(vec![usize::MAX, 2]), &[&f(&[2])]).is_err());
    assert!(infer(&Op::Reduce { op: ReduceOp::Sum, axes: vec![usize::MAX] }, &[&f(&[])]).is_err());
    let conv = Op::Conv {
        stride: vec![usize::MAX],
        padding: vec![usize::MAX],
        dilation: vec![usize::MAX],
        groups: usize::MAX,
        transposed: true,
        output_padding: vec![],
    };
    assert!(infer(&conv, &[&f(&[1, 1, 1]), &f(&[1, 1, 1])]).is_err());
    assert!(infer(&Op::Slice { axis: 0, start: usize::MAX, len: usize::MAX, step: usize::MAX }, &[&f(&[3])]).is_err());
}

#[test]
fn verifier_rejects() {
    let f = Type::new(DType::F32, [2]);
    let reject = |wanted: &str, g: Graph| {
        let e = g.verify().expect_err(wanted).to_string();
        assert!(e.contains(wanted), "wanted {wanted}\ngot {e}");
    };
    let with = |build: &dyn Fn(&mut Graph, ValueId)| {
        let mut g = Graph::new("g");
        let x = g.input(Type::new(DType::F32, [2]));
        build(&mut g, x);
        g
    };
    with(&|_, _| ()).verify().unwrap();
    reject(
        "has type f32[3]",
        with(&|g, x| {
            g.push(Op::Unary(UnaryOp::Neg), Type::new(DType::F32, [3]), &[x]);
        }),
    );
    reject(
        "neg cannot have 2 operands",
        with(&|g, x| {
            g.push(Op::Unary(UnaryOp::Neg), f.clone(), &[x, x]);
        }),
    );
    reject("output 0: %9 does not exist", with(&|g, _| g.outputs.push(ValueId(9))));
    reject(
        "not listed",
        with(&|g, _| {
            g.push(Op::Input(7), f.clone(), &[]);
        }),
    );
    reject("not `input 1`", with(&|g, x| g.inputs.push(x)));
    reject(
        "@3 does not exist",
        with(&|g, _| {
            g.push(Op::Param(ParamId(3)), f.clone(), &[]);
        }),
    );
    reject(
        "a constant has rank 0",
        with(&|g, _| {
            g.push(Op::Const(Scalar::Float(1.0)), f.clone(), &[]);
        }),
    );
    reject(
        "not a value of f32",
        with(&|g, _| {
            g.push(Op::Const(Scalar::Int(1)), Type::new(DType::F32, []), &[]);
        }),
    );
    reject(
        "iota",
        with(&|g, _| {
            g.push(Op::Iota { axis: 1 }, f.clone(), &[]);
        }),
    );
    let param = |init| ParamInfo { name: "w".into(), ty: Type::new(DType::F32, [2]), init };
    reject("1 element given", with(&|g, _| g.params.push(param(Init::Data(vec![Scalar::Float(1.0)])))));
    reject(
        "random scale",
        with(&|g, _| {
            g.params.push(param(Init::Random { seed: 1, scale: Scalar::Float(f64::NAN) }));
        }),
    );
    reject("not a value of f32", with(&|g, _| g.params.push(param(Init::Fill(Scalar::Bool(true))))));
    let mut g = Graph::new("g");
    assert!(g.add(Op::Unary(UnaryOp::Neg), &[ValueId(5)]).is_err());
}
