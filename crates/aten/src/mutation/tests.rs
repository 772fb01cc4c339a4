//! In-place operators in, functional calls out, as text.
use super::{Write, functionalise};
use crate::{
    convert::convert,
    raw::{Arg, Call, Raw, RawInfo, RawInput},
};
use kiln_graph::Op;

/// Writes a program down call by call.
pub struct Builder {
    pub raw: Raw,
}

impl Default for Builder {
    fn default() -> Builder {
        let structure = serde_json::Value::Null;
        Builder { raw: Raw { inputs: vec![], values: vec![], calls: vec![], outputs: vec![], structure } }
    }
}

impl Builder {
    fn value(&mut self, dtype: &str, shape: &[usize], name: Option<&str>) -> usize {
        self.raw.values.push(RawInfo {
            dtype: dtype.into(),
            shape: shape.to_vec(),
            constant: name.is_some(),
            folded: false,
            scalar: None,
            name: name.map(str::to_string),
        });
        self.raw.values.len() - 1
    }
    pub fn input(&mut self, dtype: &str, shape: &[usize]) -> usize {
        let id = self.value(dtype, shape, None);
        self.raw.inputs.push(RawInput { name: format!("in{id}"), value: Some(id), scalar: None });
        id
    }
    pub fn buffer(&mut self, dtype: &str, shape: &[usize], name: &str) -> usize {
        self.value(dtype, shape, Some(name))
    }
    /// A call with one result, of the first operand's dtype.
    pub fn call(&mut self, name: &str, overload: &str, args: Vec<Arg>, shape: &[usize]) -> usize {
        self.several(name, overload, args, &[shape])[0]
    }
    pub fn several(&mut self, name: &str, overload: &str, args: Vec<Arg>, shapes: &[&[usize]]) -> Vec<usize> {
        let mut operands = vec![];
        args.iter().for_each(|a| a.values(&mut operands));
        let dtype = operands.first().map_or("f64".into(), |id| self.raw.values[*id].dtype.clone());
        let outs: Vec<usize> = shapes.iter().map(|s| self.value(&dtype, s, None)).collect();
        self.raw.calls.push(Call {
            name: format!("aten::{name}"),
            overload: overload.into(),
            args,
            outs: outs.clone(),
            source: format!("net.py:{}", self.raw.calls.len() + 1),
            module: "net".into(),
            vouched: false,
        });
        outs
    }
}

fn arg(a: &Arg) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(", "));
    match a {
        Arg::None => "None".into(),
        Arg::Value(id) => format!("%{id}"),
        Arg::Int(v) => v.to_string(),
        Arg::Float(v) => format!("{v:?}"),
        Arg::Bool(v) => v.to_string(),
        Arg::Ints(v) => list(v.iter().map(i64::to_string).collect()),
        Arg::List(v) => list(v.iter().map(arg).collect()),
        other => format!("{other:?}"),
    }
}

/// A program as text: a line for each call, then the outputs.
pub fn text(raw: &Raw) -> String {
    let mut all = String::new();
    for c in &raw.calls {
        let out = |id: &usize| {
            let info = &raw.values[*id];
            format!("%{id}: {}{:?}", info.dtype, info.shape)
        };
        let name = format!("{}.{}", &c.name["aten::".len()..], c.overload);
        let outs: Vec<String> = c.outs.iter().map(out).collect();
        let args: Vec<String> = c.args.iter().map(arg).collect();
        all += &format!("{} = {}({})\n", outs.join(", "), name.trim_end_matches('.'), args.join(", "));
    }
    all + &format!("return {}", raw.outputs.iter().map(|id| format!("%{id}")).collect::<Vec<_>>().join(", "))
}

/// Builds a program whose outputs are those that `build` returns, and compares its functional form.
#[track_caller]
fn check(build: impl FnOnce(&mut Builder) -> Vec<usize>, want: &str, writes: &[(usize, usize)]) {
    let mut b = Builder::default();
    b.raw.outputs = build(&mut b);
    let (raw, found) = functionalise(b.raw).unwrap_or_else(|e| panic!("{e}"));
    let want: Vec<&str> = want.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert_eq!(text(&raw), want.join("\n"));
    let writes: Vec<Write> = writes.iter().map(|&(target, value)| Write { target, value }).collect();
    assert_eq!(found, writes);
}

/// Builds a program and checks its problems, without their help.
#[track_caller]
fn refused(build: impl FnOnce(&mut Builder) -> Vec<usize>, want: &[&str]) {
    let mut b = Builder::default();
    b.raw.outputs = build(&mut b);
    let problems = functionalise(b.raw).map(|(raw, _)| text(&raw)).expect_err("the program is refused").errors;
    let line = |p: &crate::Problem| format!("{} {}: {}", p.source, p.module, p.message);
    assert_eq!(problems.iter().map(line).collect::<Vec<_>>(), want);
    assert!(problems.iter().all(|p| p.help.contains("clone()") && p.help.contains("run_decompositions()")));
}

fn v(id: usize) -> Arg {
    Arg::Value(id)
}
fn n(v: i64) -> Arg {
    Arg::Int(v)
}

#[test]
fn a_program_without_in_place_operators_stays() {
    check(
        |b| {
            let x = b.input("f32", &[4]);
            let y = b.call("view", "", vec![v(x), Arg::Ints(vec![2, 2])], &[2, 2]);
            vec![b.call("__and__", "Tensor", vec![v(y), v(y)], &[2, 2])]
        },
        "%1: f32[2, 2] = view(%0, [2, 2])
         %2: f32[2, 2] = __and__.Tensor(%1, %1)
         return %2",
        &[],
    );
}

#[test]
fn a_write_into_a_result_is_the_functional_operator() {
    check(
        |b| {
            let x = b.input("f32", &[4]);
            let y = b.call("neg", "", vec![v(x)], &[4]);
            let z = b.call("relu_", "", vec![v(y)], &[4]);
            let w = b.call("requires_grad_", "", vec![v(z), Arg::Bool(false)], &[4]);
            vec![b.call("add", "Tensor", vec![v(y), v(w), n(1)], &[4]), z]
        },
        "%1: f32[4] = neg(%0)
         %5: f32[4] = relu(%1)
         %4: f32[4] = add.Tensor(%5, %5, 1)
         return %4, %5",
        &[],
    );
}

#[test]
fn a_write_through_a_chain_of_views_is_scattered_back() {
    check(
        |b| {
            let x = b.input("f32", &[2, 3]);
            let y = b.call("neg", "", vec![v(x)], &[2, 3]);
            let t = b.call("t", "", vec![v(y)], &[3, 2]);
            let rows = b.call("slice", "Tensor", vec![v(t), n(0), n(1), n(i64::MAX), n(1)], &[2, 2]);
            let row = b.call("select", "int", vec![v(rows), n(0), n(-1)], &[2]);
            b.call("fill_", "Scalar", vec![v(row), Arg::Float(1.5)], &[2]);
            vec![y, rows]
        },
        "%1: f32[2, 3] = neg(%0)
         %2: f32[3, 2] = t(%1)
         %3: f32[2, 2] = slice.Tensor(%2, 0, 1, 9223372036854775807, 1)
         %4: f32[2] = select.int(%3, 0, -1)
         %6: f32[2] = fill.Scalar(%4, 1.5)
         %7: f32[2, 2] = select_scatter(%3, %6, 0, 1)
         %8: f32[3, 2] = slice_scatter(%2, %7, 0, 1, 3, 1)
         %9: f32[2, 3] = permute(%8, [1, 0])
         return %9, %7",
        &[],
    );
}

#[test]
fn views_are_computed_again_where_they_are_used_after_a_write() {
    check(
        |b| {
            let x = b.input("f32", &[4]);
            let y = b.call("neg", "", vec![v(x)], &[4]);
            let a = b.call("view", "", vec![v(y), Arg::Ints(vec![2, 2])], &[2, 2]);
            let row = b.call("select", "int", vec![v(a), n(0), n(1)], &[2]);
            b.call("zero_", "", vec![v(y)], &[4]);
            vec![b.call("neg", "", vec![v(row)], &[2]), a]
        },
        "%1: f32[4] = neg(%0)
         %2: f32[2, 2] = view(%1, [2, 2])
         %3: f32[2] = select.int(%2, 0, 1)
         %6: f32[4] = zero(%1)
         %7: f32[2, 2] = reshape(%6, [2, 2])
         %8: f32[2] = select.int(%7, 0, 1)
         %5: f32[2] = neg(%8)
         return %5, %7",
        &[],
    );
}

#[test]
fn views_of_other_places_stay() {
    check(
        |b| {
            let x = b.input("f32", &[4, 2]);
            let y = b.call("neg", "", vec![v(x)], &[4, 2]);
            let parts = b.several("split", "Tensor", vec![v(y), n(2), n(0)], &[&[2, 2], &[2, 2]]);
            let last = b.call("select", "int", vec![v(y), n(0), n(3)], &[2]);
            b.call("add_", "Tensor", vec![v(parts[0]), v(parts[1]), n(1)], &[2, 2]);
            vec![parts[0], parts[1], last, y]
        },
        "%1: f32[4, 2] = neg(%0)
         %2: f32[2, 2], %3: f32[2, 2] = split.Tensor(%1, 2, 0)
         %4: f32[2] = select.int(%1, 0, 3)
         %6: f32[2, 2] = add.Tensor(%2, %3, 1)
         %7: f32[4, 2] = slice_scatter(%1, %6, 0, 0, 2, 1)
         return %6, %3, %4, %7",
        &[],
    );
}

#[test]
fn a_result_of_another_dtype_is_cast_back() {
    check(
        |b| {
            let x = b.input("f16", &[4]);
            let wide = b.input("f32", &[4]);
            let scalar = b.input("f32", &[]);
            let y = b.call("neg", "", vec![v(x)], &[4]);
            b.call("add_", "Tensor", vec![v(y), v(wide), n(1)], &[4]);
            b.call("mul_", "Tensor", vec![v(y), v(scalar)], &[4]);
            b.call("div_", "Scalar", vec![v(y), Arg::Float(3.0)], &[4]);
            b.call("gt_", "Scalar", vec![v(y), Arg::Float(3.0)], &[4]);
            let mask = vec![v(y), v(wide), v(scalar)];
            vec![b.call("masked_fill_", "Tensor", mask, &[4])]
        },
        "%3: f16[4] = neg(%0)
         %9: f32[4] = add.Tensor(%3, %1, 1)
         %10: f16[4] = to.dtype(%9, 5, false, false, None)
         %11: f16[4] = mul.Tensor(%10, %2)
         %12: f16[4] = div.Scalar(%11, 3.0)
         %13: bool[4] = gt.Scalar(%12, 3.0)
         %14: f16[4] = to.dtype(%13, 5, false, false, None)
         %15: f16[4] = masked_fill.Tensor(%14, %1, %2)
         return %15",
        &[],
    );
}

#[test]
fn sums_of_integers_are_cast_back() {
    check(
        |b| {
            let x = b.input("i32", &[4]);
            let y = b.call("neg", "", vec![v(x)], &[4]);
            b.call("cumsum_", "", vec![v(y), n(0), Arg::None], &[4]);
            vec![b.call("bitwise_or_", "Scalar", vec![v(y), n(1)], &[4])]
        },
        "%1: i32[4] = neg(%0)
         %4: i64[4] = cumsum(%1, 0, None)
         %5: i32[4] = to.dtype(%4, 3, false, false, None)
         %6: i32[4] = bitwise_or.Scalar(%5, 1)
         return %6",
        &[],
    );
}

#[test]
fn writes_into_inputs_and_buffers_are_reported() {
    check(
        |b| {
            let x = b.input("f32", &[2]);
            let cache = b.input("f32", &[4, 2]);
            let steps = b.buffer("i64", &[], "steps");
            b.call("add_", "Tensor", vec![v(steps), n(1), n(1)], &[]);
            let row = b.call("select", "int", vec![v(cache), n(0), n(2)], &[2]);
            b.call("copy_", "", vec![v(row), v(x), Arg::Bool(false)], &[2]);
            b.call("add_", "Tensor", vec![v(steps), n(1), n(1)], &[]);
            vec![x]
        },
        "%7: i64[] = add.Tensor(%2, 1, 1)
         %4: f32[2] = select.int(%1, 0, 2)
         %8: f32[2] = copy(%4, %0, false)
         %9: f32[4, 2] = select_scatter(%1, %8, 0, 2)
         %10: i64[] = add.Tensor(%7, 1, 1)
         return %0",
        &[(2, 10), (1, 9)],
    );
}

#[test]
fn a_write_into_no_elements_changes_nothing() {
    check(
        |b| {
            let x = b.input("f32", &[4]);
            let none = b.call("slice", "Tensor", vec![v(x), n(0), n(2), n(2), n(1)], &[0]);
            vec![b.call("zero_", "", vec![v(none)], &[0])]
        },
        "%1: f32[0] = slice.Tensor(%0, 0, 2, 2, 1)
         return %1",
        &[],
    );
}

#[test]
fn folded_contents_of_changed_memory_are_forgotten() {
    let mut b = Builder::default();
    let x = b.input("f32", &[1]);
    let zero = b.call("zeros_like", "", vec![v(x)], &[1]);
    let view = b.call("detach", "", vec![v(zero)], &[1]);
    for id in [zero, view] {
        (b.raw.values[id].folded, b.raw.values[id].scalar) = (true, Some(Arg::Float(0.0)));
    }
    // Without views.
    let one = b.call("ones_like", "", vec![v(x)], &[1]);
    b.raw.values[one].folded = true;
    let count = b.buffer("f32", &[], "count");
    b.raw.values[count].scalar = Some(Arg::Float(0.0));
    for written in [zero, one] {
        b.call("add_", "Tensor", vec![v(written), v(x), n(1)], &[1]);
    }
    b.call("add_", "Scalar", vec![v(count), n(1), n(1)], &[]);
    b.raw.outputs = vec![view, one];
    let (raw, _) = functionalise(b.raw).unwrap();
    assert!([zero, view, one, count].iter().all(|id| !raw.values[*id].folded && raw.values[*id].scalar.is_none()));
}

#[test]
fn what_may_be_a_copy_is_refused_only_where_it_matters() {
    let flat = |b: &mut Builder, of: usize| b.call("reshape", "", vec![v(of), Arg::Ints(vec![6])], &[6]);
    // Written, but its base is not used again.
    check(
        |b| {
            let x = b.input("f32", &[2, 3]);
            let y = b.call("neg", "", vec![v(x)], &[2, 3]);
            let f = flat(b, y);
            vec![b.call("relu_", "", vec![v(f)], &[6])]
        },
        "%1: f32[2, 3] = neg(%0)
         %2: f32[6] = reshape(%1, [6])
         %4: f32[6] = relu(%2)
         return %4",
        &[],
    );
    // Of other places than those written.
    check(
        |b| {
            let x = b.input("f32", &[2, 2, 3]);
            let y = b.call("neg", "", vec![v(x)], &[2, 2, 3]);
            let first = b.call("select", "int", vec![v(y), n(0), n(0)], &[2, 3]);
            let second = b.call("select", "int", vec![v(y), n(0), n(1)], &[2, 3]);
            let f = flat(b, second);
            b.call("zero_", "", vec![v(first)], &[2, 3]);
            vec![f]
        },
        "%1: f32[2, 2, 3] = neg(%0)
         %2: f32[2, 3] = select.int(%1, 0, 0)
         %3: f32[2, 3] = select.int(%1, 0, 1)
         %4: f32[6] = reshape(%3, [6])
         %6: f32[2, 3] = zero(%2)
         %7: f32[2, 2, 3] = select_scatter(%1, %6, 0, 0)
         return %4",
        &[],
    );
    let either = "may change another tensor that is used afterwards: `aten::reshape` gives a view or a copy, depending \
                  on strides";
    // The base of a written tensor, and what is made of a base that is written.
    for written in [1, 2] {
        refused(
            |b| {
                let x = b.input("f32", &[2, 3]);
                let y = b.call("neg", "", vec![v(x)], &[2, 3]);
                let f = flat(b, y);
                let shape = b.raw.values[written].shape.clone();
                b.call("relu_", "", vec![v(written)], &shape);
                vec![y, f, y]
            },
            &[&format!("net.py:3 net: `aten::relu_` {either}")],
        );
    }
    refused(
        |b| {
            let x = b.input("f32", &[2, 3]);
            let f = flat(b, x);
            vec![b.call("relu_", "", vec![v(f)], &[6])]
        },
        &["net.py:2 net: `aten::relu_` may change an input or a constant: `aten::reshape` gives a view or a copy, \
             depending on strides"],
    );
    // Strides address all of the memory, not only the operand's part of it.
    refused(
        |b| {
            let x = b.input("f32", &[4]);
            let y = b.call("neg", "", vec![v(x)], &[4]);
            let head = b.call("slice", "Tensor", vec![v(y), n(0), n(0), n(2), n(1)], &[2]);
            let tail = b.call("slice", "Tensor", vec![v(y), n(0), n(2), n(4), n(1)], &[2]);
            let strided = vec![v(head), Arg::Ints(vec![2]), Arg::Ints(vec![2]), n(0)];
            let odd = b.call("as_strided", "", strided, &[2]);
            b.call("zero_", "", vec![v(tail)], &[2]);
            vec![odd]
        },
        &["net.py:5 net: `aten::zero_` may change another tensor that is used afterwards: `aten::as_strided` gives a \
             view or a copy, depending on strides"],
    );
}

#[test]
fn writes_that_cannot_be_followed_are_refused() {
    refused(
        |b| {
            let x = b.input("f32", &[3]);
            let y = b.call("neg", "", vec![v(x)], &[3]);
            let wide = b.call("expand", "", vec![v(y), Arg::Ints(vec![2, 3]), Arg::Bool(false)], &[2, 3]);
            let windows = b.call("unfold", "", vec![v(y), n(0), n(2), n(1)], &[2, 2]);
            b.call("add_", "Scalar", vec![v(wide), n(1), n(1)], &[2, 3]);
            b.call("add_", "Scalar", vec![v(windows), n(1), n(1)], &[2, 2]);
            b.call("unsqueeze_", "", vec![v(y), n(0)], &[1, 3]);
            b.call("add", "out", vec![v(y), v(y), n(1), v(x)], &[3]);
            b.call("_foreach_add_", "Scalar", vec![Arg::List(vec![v(y)]), n(1)], &[3]);
            vec![y]
        },
        &[
            "net.py:4 net: `aten::add_` writes into a view made by `aten::expand`, which shows an element several \
             times",
            "net.py:5 net: `aten::add_` changes part of a tensor through a view made by `aten::unfold`, which Kiln \
             cannot follow",
            "net.py:6 net: `aten::unsqueeze_` changes the shape of a tensor in place",
            "net.py:7 net: `aten::add.out` writes into several tensors or into `out=`",
            "net.py:8 net: `aten::_foreach_add_.Scalar` writes into several tensors or into `out=`",
        ],
    );
}

#[test]
fn dropout_in_inference_is_its_operand() {
    let dropout = |b: &mut Builder, name: &str, x: usize, train: bool| {
        b.call(name, "", vec![v(x), Arg::Float(0.5), Arg::Bool(train)], &[3])
    };
    check(
        |b| {
            let x = b.input("f32", &[3]);
            let y = b.call("neg", "", vec![v(x)], &[3]);
            let same = dropout(b, "dropout", y, false);
            b.call("relu_", "", vec![v(same)], &[3]);
            let y = dropout(b, "dropout_", y, false);
            vec![dropout(b, "dropout_", y, true)]
        },
        "%1: f32[3] = neg(%0)
         %2: f32[3] = dropout(%1, 0.5, false)
         %6: f32[3] = relu(%2)
         %7: f32[3] = dropout(%6, 0.5, true)
         return %7",
        &[],
    );
}

#[test]
fn functional_forms_are_compiled() {
    let mut b = Builder::default();
    let (x, cache, mask) = (b.input("f32", &[4, 6]), b.buffer("f16", &[4, 6], "cache"), b.input("bool", &[4, 6]));
    let (rows, values) = (b.input("i64", &[2]), b.input("f32", &[2, 6]));
    let y = b.call("neg", "", vec![v(x)], &[4, 6]);
    let calls = [
        ("relu_", "", vec![]),
        ("add_", "Tensor", vec![v(x), n(2)]),
        ("mul_", "Scalar", vec![Arg::Float(0.5)]),
        ("clamp_", "", vec![n(0), Arg::None]),
        ("gt_", "Scalar", vec![n(0)]),
        ("pow_", "Scalar", vec![Arg::Float(2.0)]),
        ("masked_fill_", "Scalar", vec![v(mask), Arg::Float(f64::NEG_INFINITY)]),
        ("index_copy_", "", vec![n(0), v(rows), v(values)]),
        ("index_put_", "", vec![Arg::List(vec![v(rows)]), v(values), Arg::Bool(false)]),
        ("copy_", "", vec![v(cache), Arg::Bool(false)]),
    ];
    for (name, overload, rest) in calls {
        b.call(name, overload, [vec![v(y)], rest].concat(), &[4, 6]);
        let now = b.call("clone", "", vec![v(y), Arg::None], &[4, 6]);
        b.raw.outputs.push(now);
    }
    let row = b.call("select", "int", vec![v(y), n(0), n(1)], &[6]);
    b.call("fill_", "Scalar", vec![v(row), n(3)], &[6]);
    let columns = b.call("slice", "Tensor", vec![v(y), n(1), n(0), n(3), n(1)], &[4, 3]);
    b.call("zero_", "", vec![v(columns)], &[4, 3]);
    b.call("mul_", "Tensor", vec![v(cache), v(y)], &[4, 6]);
    b.raw.outputs.extend([row, y]);
    let (mut raw, writes) = functionalise(b.raw).unwrap();
    assert_eq!(writes.iter().map(|w| w.target).collect::<Vec<_>>(), [cache]);
    raw.outputs.extend(writes.iter().map(|w| w.value));
    let graph = convert(&raw, "f").unwrap_or_else(|e| panic!("{e}")).graph;
    graph.verify().unwrap();
    let whole = graph.to_string();
    assert!(graph.values().all(|id| !matches!(graph.op(id), Op::Fallback(_))), "{whole}");
    let written = graph.outputs.last().map(|v| graph.ty(*v).to_string());
    assert_eq!(written.as_deref(), Some("f16[4,6]"), "{whole}");
}

#[test]
fn as_strided_is_compiled_where_the_order_in_memory_is_known() {
    let strided = |operand: fn(&mut Builder) -> usize, shape: &[usize], strides: &[i64], offset: Arg| {
        let mut b = Builder::default();
        let x = operand(&mut b);
        let sizes = shape.iter().map(|n| *n as i64).collect();
        let args = vec![v(x), Arg::Ints(sizes), Arg::Ints(strides.to_vec()), offset];
        b.raw.outputs = vec![b.call("as_strided", "", args, shape)];
        convert(&b.raw, "f").map(|c| c.graph.to_string()).map_err(|e| e.to_string())
    };
    let vector = |b: &mut Builder| b.input("f32", &[12]);
    let matrix = |b: &mut Builder| b.input("f32", &[3, 4]);
    let reordered = |b: &mut Builder| {
        let x = b.input("f32", &[4, 3]);
        let t = b.call("t", "", vec![v(x)], &[3, 4]);
        b.call("contiguous", "", vec![v(t), Arg::None], &[3, 4])
    };
    let part = |b: &mut Builder| {
        let x = b.input("f32", &[24]);
        b.call("slice", "Tensor", vec![v(x), n(0), n(0), n(24), n(2)], &[12])
    };
    let dense = strided(vector, &[2, 3], &[3, 1], n(4)).unwrap();
    assert!(dense.contains("slice") && !dense.contains("take"), "{dense}");
    for (operand, offset) in [(vector as fn(&mut Builder) -> usize, n(1)), (reordered, Arg::None)] {
        let table = strided(operand, &[2, 3], &[1, 4], offset).unwrap();
        assert!(table.contains("take"), "{table}");
    }
    for operand in [matrix as fn(&mut Builder) -> usize, part] {
        let why = strided(operand, &[2, 3], &[3, 1], n(0)).unwrap_err();
        assert!(why.contains("whose order in memory is not known"), "{why}");
    }
    let why = strided(vector, &[2, 3], &[7, 2], n(1)).unwrap_err();
    assert!(why.contains("beyond its operand"), "{why}");
}
