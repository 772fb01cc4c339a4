//! The text form: valid text parses, prints canonically and parses back to an equal graph; invalid text is an error
//! with a position.
use kiln_graph::{
    BinaryOp, DType, FallbackOp, FullyMasked, Graph, GraphError, Init, Op, PoolKind, ReduceOp, Scalar, ScatterMode,
    ScoreStep, Source, Type, UnaryOp, text,
};

fn round_trip(g: &Graph) {
    let printed = text::print(g);
    let back = text::parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert_eq!(*g, back, "{printed}");
    assert_eq!(printed, text::print(&back));
    let json = g.to_json().unwrap();
    assert_eq!(*g, Graph::from_json(&json).unwrap(), "{json}");
}

#[test]
fn by_hand() {
    let g = text::parse(
        "# comment
        graph mlp(%x: f32[4,8]) {  ; another
          @w \"fc.weight\": f32[16,8] = random(seed=3, scale=0.1)
          @b: f32[16] = fill(0)
          %y = linear %x, @w, @b loc(\"fc\", \"m.py:3\")
          %z = mul %y, 2   # a literal takes the dtype of the rest
          %m = reduce.max %z axes=[1] : f32[4,1]
          return %m, %z
        }",
    )
    .unwrap();
    round_trip(&g);
    assert_eq!(
        g.to_string(),
        "graph mlp(%0: f32[4,8]) {
  @0 \"fc.weight\": f32[16,8] = random(seed=3, scale=0.1)
  @1 \"b\": f32[16] = fill(0.0)
  %1 = param @0 : f32[16,8]
  %2 = param @1 : f32[16]
  %3 = linear %0, %1, %2 : f32[4,16] loc(\"fc\", \"m.py:3\")
  %4 = const 2.0 : f32[]
  %5 = mul %3, %4 : f32[4,16]
  %6 = reduce.max %5 axes=[1] : f32[4,1]
  return %6, %5
}
"
    );
}

#[test]
fn errors_have_places() {
    let check = |body: &str, wanted: &str| {
        let source = format!("graph g(%x: f32[2,3]) {{\n  {body}\n  return %x\n}}");
        let e = text::parse(&source).unwrap_err().to_string();
        assert!(e.contains(wanted), "wanted: {wanted}\ngot: {e}");
    };
    check("%y = addd %x, %x", "line 2, column 8: there is no op `addd`; did you mean `add`?");
    check("%y = add %x, %q", "line 2, column 16: `%q` is not defined above");
    check("%y = add %x, %x : f32[3]", "add gives f32[2,3], but f32[3] is stated");
    check("%x = neg %x", "defined twice");
    check("%y = reduce.sum %x", "axes= is missing");
    check("%y = reduce.sum %x axes=[2]", "f32[2,3] has no axis 2");
    check("%y = neg %x axis=1", "neg has no attribute axis=");
    check("%y = reshape %x shape=[4]", "6 elements");
    check("%y = select %x, %x, %x", "must be bool");
    check("%y = add 1, 2", "all operands are numbers");
    check("%y = linear %x, @w", "`@w` is not declared above");
    check("%y = const 300 : u8[]", "not a value of u8");
    check("%y = iota axis=0 : f32[99999999999999999999]", "expected a size");
    check("%y = iota axis=0 : f32[99999999999,9999999999]", "too large");
    check("%y = neg %x loc(\"a)", "no closing quote");
    check("%y = input 3 : f32[2]", "not listed as the graph's input");
    check("}", "expected `return`");
}

#[test]
fn every_kind_of_op_survives() {
    let f = DType::F32;
    let mut g = Graph::new("all kinds \"quoted\" ü");
    let early = g.constant(f, Scalar::Float(f64::NEG_INFINITY));
    let x = g.input(Type::new(f, [2, 3, 8, 8]));
    let sink = g.input(Type::new(f, [3, 1, 1]));
    g.set_source(x, Source { module: "m\n\"".into(), line: "ünïcode.py:3".into() });
    let consts = [f64::NAN, -0.0, 1e300, 5e-324, f64::INFINITY, f64::from_bits(0xfff8_0000_0000_0001), 0.1];
    let mut outs: Vec<_> = consts.map(|c| g.constant(f, Scalar::Float(c))).into();
    let w = g.param("w", Type::new(f, [4, 3, 3, 3]), Init::Random { seed: u64::MAX, scale: Scalar::Float(0.02) });
    let d = g.param("d", Type::new(f, [2]), Init::Data(vec![Scalar::Float(f64::NAN), Scalar::Float(1.0)]));
    let e = g.param("e", Type::new(DType::I64, [0]), Init::Data(vec![]));
    let idx = g.push(Op::Iota { axis: 3 }, Type::new(DType::I64, [2, 3, 8, 8]), &[]);
    outs.extend([early, d, e]);
    let one = |v: usize| vec![v, v];
    let conv = |t, o: usize| Op::Conv {
        stride: one(2),
        padding: one(1),
        dilation: one(1),
        groups: 1,
        transposed: t,
        output_padding: one(o),
    };
    let pool = |kind| Op::Pool { kind, window: one(3), stride: one(2), padding: one(1), dilation: one(1), ceil: true };
    let attention = |fully_masked| Op::Attention {
        scale: Scalar::Float(0.125),
        causal: true,
        fully_masked,
        score: vec![
            ScoreStep::Number(BinaryOp::Div, Scalar::Float(50.0)),
            ScoreStep::Unary(UnaryOp::Tanh),
            ScoreStep::Operand(BinaryOp::Mul),
        ],
        sink: fully_masked == FullyMasked::Nan,
        lse: fully_masked == FullyMasked::Nan,
    };
    let fallback = FallbackOp {
        name: "aten::linalg_svd".into(),
        overload: String::new(),
        args: r#"[{"tensor":0},true,"\n"]"#.into(),
        results: vec![Type::new(f, [2]), Type::new(DType::I64, [2]), Type::new(f, [2])],
        why: "not compiled yet".into(),
        vouched: false,
    };
    let ops: Vec<(Op, Vec<_>)> = vec![
        (Op::Cast(DType::Bf16), vec![x]),
        (Op::Reshape(vec![2, 192]), vec![x]),
        (Op::Permute(vec![3, 1, 2, 0]), vec![x]),
        (Op::Broadcast(vec![5, 2, 3, 8, 8]), vec![x]),
        (Op::Slice { axis: 2, start: 1, len: 3, step: 2 }, vec![x]),
        (Op::Flip(vec![0, 2]), vec![x]),
        (Op::Pad { lo: vec![0, -1, 0, 2], hi: vec![0, 0, -2, 1] }, vec![x, early]),
        (Op::Concat { axis: 1 }, vec![x, x, x]),
        (Op::Gather { axis: 3 }, vec![x, idx]),
        (Op::Take { axis: 0 }, vec![x, e]),
        (Op::Scatter { axis: 3, mode: ScatterMode::Add }, vec![x, idx, x]),
        (Op::Reduce { op: ReduceOp::ArgMax, axes: vec![3] }, vec![x]),
        (Op::Scan { op: kiln_graph::ScanOp::Sum, axis: 1 }, vec![x]),
        (Op::Dot, vec![x, x]),
        (conv(false, 0), vec![x, w]),
        (Op::Slice { axis: 1, start: 0, len: 3, step: 1 }, vec![x]),
        (pool(PoolKind::Max), vec![x]),
        (pool(PoolKind::Avg { count_pad: false }), vec![x]),
        (Op::Softmax { axis: 1 }, vec![x]),
        (Op::LayerNorm { axes: 2, affine: false, eps: Scalar::Float(1e-5) }, vec![x]),
        (Op::GroupNorm { groups: 3, affine: false, eps: Scalar::Float(1e-5) }, vec![x]),
        (attention(FullyMasked::Zero), vec![x, x, x, x]),
        (attention(FullyMasked::Nan), vec![x, x, x, x, sink]),
        (Op::Fallback(Box::new(fallback)), vec![x]),
        (Op::Unary(UnaryOp::IsNan), vec![x]),
        (Op::Binary(BinaryOp::Pow), vec![x, early]),
    ];
    for (op, args) in ops {
        let is_fallback = matches!(op, Op::Fallback(_));
        let v = g.add(op, &args).unwrap();
        outs.push(v);
        if is_fallback {
            outs.push(g.add(Op::Result(1), &[v]).unwrap());
        }
    }
    g.outputs = outs;
    g.verify().unwrap();
    round_trip(&g);
}

#[test]
fn hostile_json_is_an_error() {
    let g = text::parse("graph g(%x: f32[2,3]) { %y = neg %x return %y }").unwrap();
    let json = g.to_json().unwrap();
    for (from, to) in [
        ("[2,3]", "[2,4]"),
        ("[[0,1,0]]", "[[1,0,0]]"),
        ("[[0,1,0]]", "[[0,7,0]]"),
        ("[[0,1,0]]", "[[0,1,5]]"),
        ("[[0,1,0]]", "[]"),
        ("[[0,1,0]]", "[[1,1,0]]"),
        ("\"outputs\":[1]", "\"outputs\":[9]"),
        ("\"inputs\":[0]", "\"inputs\":[1]"),
        ("[2,3]", "[18446744073709551615,18446744073709551615]"),
        ("{", "["),
    ] {
        let bad = json.replacen(from, to, 1);
        assert_ne!(bad, json, "{from} is not in {json}");
        assert!(Graph::from_json(&bad).is_err(), "{bad}");
    }
}

#[test]
fn cut_or_mangled_text_never_panics() {
    let whole = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mangled.kiln")).unwrap();
    text::parse(&whole).unwrap();
    for cut in 0..whole.len() {
        if whole.is_char_boundary(cut) {
            let _: Result<Graph, GraphError> = text::parse(&whole[..cut]);
            for c in ['-', '[', '"', '9', '%', '=', 'ü'] {
                let _ = text::parse(&format!("{}{c}{}", &whole[..cut], &whole[cut..]));
            }
        }
    }
}
