//! Whether the rows of a batch are independent: each row of the outputs follows from the same row of the inputs,
//! whatever the others are.
//!
//! Takes: the graphs of a program for two sizes of its batch. Gives: which axis of each output is the batch, or the
//! operator that mixes rows. Never: assumes what it has not seen: an operator that is not listed here mixes.
//!
//! The two graphs must be one graph but for the extents of one axis of each value, the batch, which must be as many
//! times as large as the batch is. A value that is the same in both graphs depends on no row. Then each operator has to
//! keep rows apart. Rows that are added at the end change nothing, not even if they become NaN.
//!
//! Values that follow from constants alone, as indices do, are computed. So a lookup in a table of rows is proved where
//! each row looks up its own, and a value that is another one for another size of the batch refuses where it meets
//! data.
use crate::op_names::op_name;
use kiln_graph::{Graph, Op, ParamInfo, Tensor, ValueId};
use kiln_interp::graph as interp;

/// The batch axis of a value: `each` positions of it for each row, those of a row side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The axis.
    pub axis: usize,
    /// Positions for each row.
    pub each: usize,
}

/// The batch axis of each output of `a`; `None` for outputs that depend on no row. `a` and `b`: graphs of one program
/// for batches of these sizes.
///
/// # Errors
/// What mixes rows, as a sentence.
pub fn independent([a, b]: [&Graph; 2], sizes: [usize; 2]) -> Result<Vec<Option<Rows>>, String> {
    let differs = || "the program is another one for another size of the batch".to_string();
    if a.len() != b.len() || a.inputs != b.inputs || a.outputs != b.outputs || a.params.len() != b.params.len() {
        return Err(differs());
    }
    let fixed = |(p, q): (&ParamInfo, &ParamInfo)| p.ty == q.ty;
    if let Some((p, _)) = a.params.iter().zip(&b.params).find(|p| !fixed(*p)) {
        return Err(format!("the constant `{}` depends on the size of the batch", p.name));
    }
    let mut all: Vec<Fact> = Vec::with_capacity(a.len());
    for v in a.values() {
        if a.args(v) != b.args(v) || a.dtype(v) != b.dtype(v) {
            return Err(differs());
        }
        let fact = axis([a, b], sizes, v).and_then(|rows| {
            if let Some(computed) = computed([a, b], v, &all) {
                let varies = !agree(&computed, rows);
                return Ok(Fact { rows, computed: Some(computed), varies });
            }
            let operands: Vec<&Fact> = a.args(v).iter().map(|o| &all[o.0 as usize]).collect();
            if operands.iter().any(|o| o.varies) || !same_op(a.op(v), b.op(v), rows) {
                return Err("depends on the size of the batch".to_string());
            }
            match keeps(a, v, &operands, rows) {
                true => Ok(Fact { rows, computed: None, varies: false }),
                false => Err("mixes the rows of the batch".to_string()),
            }
        });
        all.push(fact.map_err(|what| told(a, v, &what))?);
    }
    let output = |v: &ValueId| match &all[v.0 as usize] {
        Fact { varies: true, .. } => Err(told(a, *v, "depends on the size of the batch")),
        fact => Ok(fact.rows),
    };
    a.outputs.iter().map(output).collect()
}

/// What is known of a value.
struct Fact {
    rows: Option<Rows>,
    /// In both graphs, if it follows from constants.
    computed: Option<[Tensor; 2]>,
    /// Whether rows that both graphs have are different ones.
    varies: bool,
}

/// The most elements of a value that is computed here.
const MOST: usize = 1 << 18;

/// A value in both graphs, if it follows from constants alone.
fn computed(graphs: [&Graph; 2], v: ValueId, all: &[Fact]) -> Option<[Tensor; 2]> {
    let one = |side: usize| {
        let g = graphs[side];
        let node = g.node(v);
        if node.ty.count() > MOST || is_given(&node.op) {
            return None;
        }
        let operand = |o: &ValueId| all[o.0 as usize].computed.as_ref().map(|c| c[side].clone());
        let operands: Vec<Tensor> = g.args(v).iter().map(operand).collect::<Option<_>>()?;
        let mut alone = Graph::new("");
        let args: Vec<ValueId> = operands.iter().map(|t| alone.input(t.ty.clone())).collect();
        let result = alone.push(node.op.clone(), node.ty.clone(), &args);
        alone.outputs = vec![result];
        interp::run(&alone, &operands, &[], &mut interp::no_fallback).ok()?.pop()
    };
    Some([one(0)?, one(1)?])
}

/// Whether a value does not follow from its operands alone, or is one of several results.
fn is_given(op: &Op) -> bool {
    matches!(op, Op::Input(_) | Op::Param(_) | Op::Fallback(_) | Op::Launch(_) | Op::Result(_))
}

/// Whether both are the same in the rows that both have.
fn agree([a, b]: &[Tensor; 2], rows: Option<Rows>) -> bool {
    let Some(rows) = rows else { return a == b };
    let both = a.ty.shape[rows.axis].min(b.ty.shape[rows.axis]);
    let part = |t: &Tensor| {
        let inner = t.ty.shape[rows.axis + 1..].iter().product::<usize>() * t.ty.dtype.bytes();
        let (all, kept) = (t.ty.shape[rows.axis] * inner, both * inner);
        t.bytes().chunks_exact(all.max(1)).flat_map(|c| &c[..kept]).copied().collect::<Vec<u8>>()
    };
    part(a) == part(b)
}

/// Whether each row of an index looks up positions of the same row of a table.
fn looks_up_its_own(index: &Fact, table: Rows) -> bool {
    let (Some(rows), Some([index, _])) = (index.rows, &index.computed) else { return false };
    let inner: usize = index.ty.shape[rows.axis + 1..].iter().product();
    (0..index.ty.count()).all(|i| {
        let row = i / inner % index.ty.shape[rows.axis] / rows.each;
        usize::try_from(index.get_i64(i)).is_ok_and(|at| at / table.each == row)
    })
}

fn told(g: &Graph, v: ValueId, what: &str) -> String {
    let node = g.node(v);
    let place = node.source.place();
    let at = if place.is_empty() { String::new() } else { format!(" ({place})") };
    let name = op_name(&node.op);
    format!("`{name}`{at} {what}")
}

/// The axis of a value that differs; `None` if none does.
fn axis([a, b]: [&Graph; 2], sizes: [usize; 2], v: ValueId) -> Result<Option<Rows>, String> {
    let shapes = [a.shape(v), b.shape(v)];
    let unlike = || "has a result whose shape is not as many times the batch".to_string();
    if shapes[0].len() != shapes[1].len() {
        return Err(unlike());
    }
    let mut different = (0..shapes[0].len()).filter(|i| shapes[0][*i] != shapes[1][*i]);
    let Some(axis) = different.next() else { return Ok(None) };
    let each = shapes[0][axis] / sizes[0];
    let fits = each > 0 && shapes[0][axis] == each * sizes[0] && shapes[1][axis] == each * sizes[1];
    if different.next().is_some() || !fits {
        return Err(unlike());
    }
    Ok(Some(Rows { axis, each }))
}

/// Whether both ops are the same but for the extent of the batch.
fn same_op(a: &Op, b: &Op, batch: Option<Rows>) -> bool {
    let but_batch = |p: &[usize], q: &[usize]| {
        p.len() == q.len() && (0..p.len()).all(|i| p[i] == q[i] || batch.is_some_and(|r| r.axis == i))
    };
    match (a, b) {
        (Op::Reshape(p), Op::Reshape(q)) | (Op::Broadcast(p), Op::Broadcast(q)) => but_batch(p, q),
        (
            Op::Slice { axis, start, step, len },
            Op::Slice { axis: axis_b, start: start_b, step: step_b, len: len_b },
        ) => {
            (axis, start, step) == (axis_b, start_b, step_b) && (len == len_b || batch.is_some_and(|r| r.axis == *axis))
        }
        _ => a == b,
    }
}

/// Whether each row of `v`, whose batch axis is `batch`, follows from the same row of its operands.
fn keeps(g: &Graph, v: ValueId, facts: &[&Fact], batch: Option<Rows>) -> bool {
    let args = g.args(v);
    let operands: &[Option<Rows>] = &facts.iter().map(|f| f.rows).collect::<Vec<_>>();
    let rank = |i: usize| g.shape(args[i]).len();
    let none = operands.iter().all(Option::is_none);
    let Some(to) = batch else {
        // A value that is the same for all sizes of the batch must not come from rows.
        return none;
    };
    // An operand without rows counts as each row's, if it has no extent along the batch; inference makes sure of that
    // where shapes broadcast.
    let aligned = |i: usize, shift: usize| operands[i].is_none_or(|r| Rows { axis: r.axis + shift, ..r } == to);
    let pointwise = || (0..args.len()).all(|i| aligned(i, g.shape(v).len() - rank(i)));
    let only_first = || operands[0] == Some(to) && operands[1..].iter().all(Option::is_none);
    // The same axis of all operands that have rows.
    let all_same = || operands.iter().all(|r| *r == Some(to));
    match g.op(v) {
        // The batch of an input is what the caller says; positions along the batch are each row's own.
        Op::Input(_) | Op::Iota { .. } => true,
        Op::Param(_) | Op::Const(_) => false,
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::Logaddexp => pointwise(),
        Op::Broadcast(_) => pointwise(),
        Op::Reshape(_) => operands[0].is_some_and(|from| {
            let outer = |s: &[usize], r: Rows| s[..r.axis].iter().product::<usize>();
            let inner = |s: &[usize], r: Rows| r.each * s[r.axis + 1..].iter().product::<usize>();
            let (x, y) = (g.shape(args[0]), g.shape(v));
            outer(x, from) == outer(y, to) && inner(x, from) == inner(y, to)
        }),
        Op::Permute(perm) => operands[0].is_some_and(|from| perm[to.axis] == from.axis && from.each == to.each),
        Op::Slice { axis, .. } => only_first() && (*axis != to.axis || g.shape(v) == g.shape(args[0])),
        Op::Flip(axes) => only_first() && !axes.contains(&to.axis),
        Op::Pad { lo, hi } => only_first() && lo[to.axis] == 0 && hi[to.axis] == 0,
        Op::Concat { axis } => all_same() && *axis != to.axis,
        Op::Gather { axis } => match operands {
            [Some(_), Some(_)] => all_same() && *axis != to.axis,
            // Of a table that all rows read.
            [None, Some(_)] => operands[1] == Some(to) && *axis == to.axis,
            _ => false,
        },
        Op::Take { axis } => match operands {
            [None, Some(index)] => Rows { axis: axis + index.axis, ..*index } == to,
            [Some(x), None] => {
                let moved = if x.axis > *axis { x.axis + rank(1) - 1 } else { x.axis };
                x.axis != *axis && Rows { axis: moved, ..*x } == to
            }
            [Some(x), Some(index)] => {
                let found = Rows { axis: axis + index.axis, ..*index } == to;
                x.axis == *axis && found && looks_up_its_own(facts[1], *x)
            }
            _ => false,
        },
        Op::Scatter { axis, .. } => all_same() && *axis != to.axis,
        Op::Reduce { axes, .. } => only_first() && !axes.contains(&to.axis),
        Op::Scan { axis, .. } | Op::Softmax { axis } | Op::LogSoftmax { axis } => only_first() && *axis != to.axis,
        Op::LayerNorm { axes, .. } => only_first() && to.axis < rank(0) - axes,
        Op::RmsNorm { .. } => only_first() && to.axis + 1 < rank(0),
        Op::GroupNorm { .. } => only_first() && to.axis == 0,
        Op::BatchNorm { .. } => only_first() && to.axis != 1,
        Op::Linear => only_first() && to.axis + 1 < rank(0),
        Op::Dot => {
            let last = g.shape(v).len() - 1;
            match to.axis {
                n if n == last => operands[0].is_none() && aligned(1, last + 1 - rank(1)),
                m if m + 1 == last => operands[1].is_none() && aligned(0, last + 1 - rank(0)),
                _ => pointwise(),
            }
        }
        Op::Conv { .. } => only_first() && to.axis == 0,
        Op::Pool { window, .. } => only_first() && to.axis < rank(0) - window.len(),
        Op::Attention { .. } => to.axis + 3 < g.shape(v).len() && pointwise(),
        Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::{Tensor, Type};

    /// A graph for `n` rows: `{k}` is `k` times as many.
    fn graph(text: &str, n: usize) -> Graph {
        let mut text = text.to_string();
        for k in 1..=8 {
            text = text.replace(&format!("{{{k}}}"), &(k * n).to_string());
        }
        text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
    }
    fn proof(text: &str) -> Result<Vec<Option<Rows>>, String> {
        independent([&graph(text, 4), &graph(text, 3)], [4, 3])
    }

    fn random(ty: &Type, seed: usize) -> Tensor {
        // Indices of all tables here.
        let value = |i: usize| ((i * 7919 + seed * 104729) % 1009) as f64;
        let value = |i: usize| if ty.dtype.is_int() { value(i) % 3.0 } else { value(i) / 500.0 - 1.0 };
        Tensor::from_f64(ty.clone(), (0..ty.count()).map(value))
    }
    /// The first positions of a tensor along an axis.
    fn narrow(t: &Tensor, axis: usize, len: usize) -> Tensor {
        let inner: usize = t.ty.shape[axis + 1..].iter().product();
        let all = t.ty.shape[axis] * inner;
        let values = t.to_f64_vec();
        let kept = (0..values.len()).filter(|i| i % all < len * inner).map(|i| values[i]);
        let mut ty = t.ty.clone();
        ty.shape[axis] = len;
        Tensor::from_f64(ty, kept)
    }
    fn run(g: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
        kiln_interp::graph::run(g, inputs, &[], &mut |_, _| Err("no libtorch here".into())).expect("runs")
    }
    /// Proved, and true: with other rows behind them the first three are the same, down to the last bit.
    #[track_caller]
    fn kept(text: &str) {
        let rows = proof(text).unwrap_or_else(|why| panic!("{why}: {text}"));
        let [large, small] = [4, 3].map(|n| graph(text, n));
        let inputs: Vec<Tensor> = large.inputs.iter().enumerate().map(|(i, v)| random(large.ty(*v), i)).collect();
        let cut = |(v, t): (&ValueId, &Tensor)| {
            let axis = axis([&large, &small], [4, 3], *v).expect("an input");
            axis.map_or_else(|| t.clone(), |r| narrow(t, r.axis, 3 * r.each))
        };
        let few: Vec<Tensor> = large.inputs.iter().zip(&inputs).map(cut).collect();
        for ((all, want), rows) in run(&large, &inputs).iter().zip(run(&small, &few)).zip(rows) {
            let got = rows.map_or_else(|| all.clone(), |r| narrow(all, r.axis, 3 * r.each));
            assert_eq!(got, want, "{text}");
        }
    }
    #[track_caller]
    fn refused(text: &str, why: &str) {
        match proof(text) {
            Err(told) => assert!(told.contains(why), "{told}: {text}"),
            Ok(rows) => panic!("{rows:?}: {text}"),
        }
    }

    #[test]
    fn models_whose_rows_are_independent() {
        kept("graph mlp(%x: f32[{1},5], %w: f32[6,5], %b: f32[6], %g: f32[6]) {
            %h = linear %x, %w, %b  %a = gelu_tanh %h  %n = layer_norm %a, %g, %b eps=1e-5  %y = softmax %n axis=1 return %y }");
        kept(
            "graph conv(%x: f32[{1},2,5,5], %w: f32[3,2,3,3], %c: f32[3]) {
            %h = conv %x, %w padding=[1,1]  %n = batch_norm %h, %c, %c, %c, %c eps=1.0  %p = pool.max %n window=[2,2]
            %m = reduce.mean %p axes=[2,3]  %y = reshape %m shape=[{1},3] return %y }",
        );
        kept("graph encoder(%ids: i64[{1},6], %mask: f32[{1},6], %t: f32[3,8], %w: f32[8,8]) {
            %e = take %t, %ids axis=0  %p = iota axis=1 : i64[1,6]  %pe = take %t, %ids axis=0  %x = add %e, %pe
            %q = linear %x, %w  %q4 = reshape %q shape=[{1},6,2,4]  %h = permute %q4 perm=[0,2,1,3]
            %m4 = reshape %mask shape=[{1},1,1,6]  %a = attention %h, %h, %h, %m4 scale=0.5  %t1 = permute %a perm=[0,2,1,3]
            %m = reshape %t1 shape=[{6},8]  %o = linear %m, %w  %y = reshape %o shape=[{1},6,8]
            %first = slice %y axis=1 len=1  return %first, %y, %p }");
    }

    #[test]
    fn operators_that_keep_rows_apart() {
        for text in [
            "graph g(%x: f32[{1},4]) { %y = scan.sum %x axis=1 return %y }",
            "graph g(%x: f32[{1},4], %b: f32[4]) { %y = add %b, %x return %y }",
            "graph g(%x: f32[2,{1},4]) { %y = permute %x perm=[1,0,2] %z = reduce.sum %y axes=[1,2] return %z }",
            "graph g(%x: f32[{1},4], %c: f32[1,4]) { %b = broadcast %c shape=[{1},4] %y = concat %x, %b axis=1 return \
             %y }",
            "graph g(%x: f32[{1},4]) { %i = iota axis=0 : f32[{1},1] %y = mul %x, %i return %y }",
            "graph g(%x: f32[{1},4], %i: i64[{1},2]) { %y = gather %x, %i axis=1 return %y }",
            "graph g(%t: f32[3,2], %i: i64[{1},2]) { %y = gather %t, %i axis=0 return %y }",
            "graph g(%x: f32[{1},4], %i: i64[2]) { %y = take %x, %i axis=1 return %y }",
            "graph g(%x: f32[2,{1},3], %i: i64[2,2]) { %y = take %x, %i axis=0 return %y }",
            "graph g(%x: f32[{1},4], %i: i64[{1},2], %s: f32[{1},2]) { %y = scatter %x, %i, %s axis=1 mode=add return \
             %y }",
            "graph g(%x: f32[{1},4,3], %w: f32[3,5]) { %y = dot %x, %w return %y }",
            "graph g(%x: f32[{1},4,3], %z: f32[{1},3,5]) { %y = dot %x, %z return %y }",
            "graph g(%x: f32[{1},3], %w: f32[3,5]) { %y = dot %x, %w return %y }",
            "graph g(%x: f32[3,{1}], %w: f32[5,3]) { %y = dot %w, %x return %y }",
            "graph g(%x: f32[{1},4]) { %y = pad %x, 1.0 lo=[0,1] hi=[0,2] return %y }",
            "graph g(%x: f32[{1},4]) { %y = flip %x axes=[1] return %y }",
            "graph g(%x: f32[{1},4,2]) { %y = group_norm %x groups=2 eps=1.0 return %y }",
            "graph g(%x: f32[{4}]) { %i = iota axis=0 : i64[{1},1] %j = mul %i, 4 %k = iota axis=1 : i64[1,4]
                %at = add %j, %k %y = take %x, %at axis=0 return %y }",
            // What depends on the size meets no data.
            "graph g(%x: f32[{1},4]) { %i = iota axis=0 : i64[{1}] %in = lt %i, {1} %c = reshape %in shape=[{1},1]
                %y = select %c, %x, 0.0 return %y }",
            "graph g(%x: f32[{2},4]) { %y = reshape %x shape=[{1},2,4] %z = softmax %y axis=1 return %z }",
        ] {
            kept(text);
        }
    }

    #[test]
    fn operators_that_mix_rows() {
        for (text, why) in [
            ("graph g(%x: f32[{1},4]) { %y = softmax %x axis=0 return %y }", "`softmax` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = scan.sum %x axis=0 return %y }", "`scan.sum` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = reduce.mean %x axes=[0] return %y }", "`reduce.mean` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = flip %x axes=[0] return %y }", "`flip` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = slice %x axis=0 len=1 return %y }", "`slice` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = layer_norm %x axes=2 eps=1.0 return %y }", "`layer_norm` mixes"),
            // Another row's, though the shapes fit.
            ("graph g(%x: f32[{1},{1}]) { %y = neg %x return %y }", "`input` has a result"),
            ("graph g(%x: f32[{1},4]) { %t = permute %x perm=[1,0] %y = dot %x, %t return %y }", "`dot` has a result"),
            ("graph g(%x: f32[{1},4]) { %t = permute %x perm=[1,0] %y = dot %t, %x return %y }", "`dot` mixes"),
            // Rows are the inner part of the axis.
            (
                "graph g(%x: f32[2,{1}]) { %y = reshape %x shape=[{2}] %z = reshape %y shape=[{1},2] return %z }",
                "`reshape` mixes",
            ),
            (
                "graph g(%x: f32[{1},4]) { %y = reshape %x shape=[{4}] %z = softmax %y axis=0 return %z }",
                "`softmax` mixes",
            ),
            ("graph g(%x: f32[{1},4], %i: i64[{1},4]) { %y = gather %x, %i axis=0 return %y }", "`gather` mixes"),
            ("graph g(%x: f32[{1},4], %i: i64[{1}]) { %y = take %x, %i axis=0 return %y }", "`take` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = concat %x, %x axis=0 return %y }", "`concat` mixes"),
            ("graph g(%x: f32[{1},4]) { %y = mul %x, {1}.0 return %y }", "`mul` depends on the size"),
            (
                "graph g(%x: f32[{1},4]) { %i = iota axis=0 : f32[{1},1] %j = mul %i, {1}.0 %y = mul %x, %j return %y \
                 }",
                "`mul` depends on the size",
            ),
            ("graph g(%x: f32[{1}]) { %i = iota axis=0 : i64[{1}] %j = mul %i, {1} return %x, %j }", "`mul` depends"),
            // Another row's.
            (
                "graph g(%x: f32[{4}]) { %i = iota axis=0 : i64[{1},1] %j = mul %i, 3 %y = take %x, %j axis=0 return \
                 %y }",
                "`take` mixes",
            ),
            // Weights of their own for each row.
            ("graph g(%x: f32[{1},4], %w: f32[{1},4]) { %y = linear %x, %w return %y }", "`linear` has a result"),
        ] {
            refused(text, why);
        }
    }

    /// The place is the user's.
    #[test]
    fn refusals_name_the_place() {
        refused(
            r#"graph g(%x: f32[{1},4]) { %y = softmax %x axis=0 loc("head", "model.py:7") return %y }"#,
            "`softmax` (head, model.py:7) mixes the rows of the batch",
        );
    }
}
