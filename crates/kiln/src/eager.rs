//! Computes a graph with libtorch's eager operators, op by op: a reference that shares no code with the compiler or the
//! interpreter.
//!
//! Takes a graph, its inputs and parameters; gives the outputs, each value rounded by libtorch itself.
mod sink;

use kiln_graph::decompose::decompose_op;
use kiln_graph::{
    BinaryOp, DType, FallbackOp, FullyMasked, Graph, Op, PoolKind, ReduceOp, Scalar, ScanOp, ScatterMode, Tensor, Type,
};
use kiln_graph::{CompareOp, ValueId, memory};
use kiln_torch_host::Torch;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Outputs of a graph without parameters.
pub fn run(torch: &Torch, g: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    run_model(torch, g, inputs, &[], Floats::Own)
}

/// The dtypes in which floats are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Floats {
    /// Those of the graph.
    Own,
    /// f16 and bf16 in f32, which is faster on hosts without instructions for them, and more exact.
    Wide,
}
impl Floats {
    fn of(self, ty: &Type) -> Type {
        let dtype = match ty.dtype {
            DType::F16 | DType::Bf16 if self == Floats::Wide => DType::F32,
            own => own,
        };
        Type::new(dtype, ty.shape.clone())
    }
}

/// Outputs of the graph. A value is dropped after its last use; what no output depends on is computed too.
pub fn run_model(
    torch: &Torch,
    g: &Graph,
    inputs: &[Tensor],
    params: &[Tensor],
    floats: Floats,
) -> Result<Vec<Tensor>, String> {
    let e = Eager { torch };
    let to = |x: &Tensor, dtype| if x.ty.dtype == dtype { Ok(x.clone()) } else { e.cast(x, dtype) };
    let computed = |x: Tensor| to(&x, floats.of(&x.ty).dtype);
    let mut last_use: Vec<ValueId> = g.values().collect();
    g.values().for_each(|v| g.args(v).into_iter().for_each(|a| last_use[a.0 as usize] = v));
    let kept: HashSet<ValueId> = g.outputs.iter().copied().collect();
    let mut values: Vec<Option<Tensor>> = vec![None; g.len()];
    let mut results: HashMap<ValueId, Vec<Tensor>> = HashMap::new();
    for v in g.values() {
        let args = g.args(v);
        let operands: Option<Vec<Tensor>> = args.iter().map(|a: &ValueId| values[a.0 as usize].clone()).collect();
        let operands = operands.ok_or_else(|| format!("an operand of {v} was not computed"))?;
        let ty = floats.of(g.ty(v));
        memory::require(ty.bytes(), &format!("{v} ({ty})")).map_err(|e| e.to_string())?;
        let value = match g.op(v) {
            Op::Input(i) => computed(inputs.get(*i as usize).cloned().ok_or(format!("input {i} is not given"))?)?,
            Op::Param(p) => {
                computed(params.get(p.0 as usize).cloned().ok_or(format!("parameter {} is not given", p.0))?)?
            }
            Op::Fallback(f) => {
                // Its arguments may name dtypes.
                let own = operands.iter().zip(&args).map(|(x, a)| to(x, g.dtype(*a)));
                let own = own.collect::<Result<Vec<_>, String>>()?;
                let all = torch.run_fallback(f, &own).map_err(|e| e.to_string())?;
                let all = all.into_iter().map(computed).collect::<Result<Vec<_>, String>>()?;
                let first = all.first().cloned().ok_or_else(|| format!("{} gave nothing", f.name))?;
                results.insert(v, all);
                first
            }
            Op::Launch(launch) => {
                // libtorch has no block programs: the interpreter of these stands in.
                let own = operands.iter().zip(&args).map(|(x, a)| to(x, g.dtype(*a)));
                let own = own.collect::<Result<Vec<_>, String>>()?;
                let all = kiln_interp::graph::run_launch(launch, &own)?;
                let all = all.into_iter().map(computed).collect::<Result<Vec<_>, String>>()?;
                let first = all.first().cloned().ok_or_else(|| format!("{} gave nothing", launch.program.name))?;
                results.insert(v, all);
                first
            }
            Op::Result(i) => {
                let of = results.get(&args[0]).and_then(|all| all.get(*i as usize));
                of.cloned().ok_or_else(|| format!("{} has no result {i}", args[0]))?
            }
            // A power with a constant exponent is a separate operator in libtorch.
            Op::Binary(BinaryOp::Pow) if matches!(g.op(args[1]), Op::Const(_)) => {
                let (x, power) = (&operands[0], &operands[1]);
                let power = if power.ty.dtype.is_float() { json!(power.get_f64(0)) } else { json!(power.get_i64(0)) };
                e.call("pow", "Tensor_Scalar", json!([{"tensor": 0}, power]), std::slice::from_ref(x), &ty)?
            }
            Op::Cast(_) => to(&operands[0], ty.dtype)?,
            op => eval(torch, op, &ty, &operands).map_err(|e| format!("{v} = {}: {e}", op.name()))?,
        };
        values[v.0 as usize] = Some(value);
        for a in args.iter().filter(|a| last_use[a.0 as usize] == v && !kept.contains(a)) {
            values[a.0 as usize] = None;
            results.remove(a);
        }
    }
    let outputs: Option<Vec<Tensor>> = g.outputs.iter().map(|v| values[v.0 as usize].clone()).collect();
    outputs.ok_or_else(|| "an output was not computed".into())
}

/// A scalar as an argument in JSON, which cannot represent infinities and NaN as numbers.
fn number(s: Scalar) -> Value {
    match s {
        Scalar::Int(v) => json!(v),
        Scalar::Bool(v) => json!(v),
        Scalar::Float(v) if v.is_finite() => json!(v),
        Scalar::Float(v) => json!({"float": v.to_string()}),
    }
}

/// Operators on host tensors; operand `i` is written `{"tensor": i}`.
struct Eager<'a> {
    torch: &'a Torch,
}
impl Eager<'_> {
    fn call(&self, name: &str, overload: &str, args: Value, operands: &[Tensor], ty: &Type) -> Result<Tensor, String> {
        let op = FallbackOp {
            name: format!("aten::{name}"),
            overload: overload.into(),
            args: args.to_string(),
            results: vec![ty.clone()],
            why: String::new(),
            vouched: false,
        };
        let results = self.torch.run_fallback(&op, operands).map_err(|e| e.to_string())?;
        results.into_iter().next().ok_or_else(|| format!("{name} gave nothing"))
    }
    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor, String> {
        let ty = Type { dtype: to, shape: x.ty.shape.clone() };
        let args = json!([{"tensor": 0}, to.torch_number(), false, false, null]);
        self.call("to", "dtype", args, std::slice::from_ref(x), &ty)
    }
    /// The result of attention, with NaN for queries that `mask` lets attend to no key.
    fn nan_if_fully_masked(&self, x: Tensor, mask: &Tensor) -> Result<Tensor, String> {
        let (t, bools) = (json!({"tensor": 0}), Type { dtype: DType::Bool, ..mask.ty.clone() });
        let one = std::slice::from_ref::<Tensor>;
        let hidden = match mask.ty.dtype {
            DType::Bool => self.call("logical_not", "", json!([t]), one(mask), &bools)?,
            _ => self.call("isneginf", "", json!([t]), one(mask), &bools)?,
        };
        let mut rows = bools;
        rows.shape.pop();
        let axis = rows.rank();
        rows.shape.push(1);
        let blind = self.call("all", "dim", json!([t, axis, true]), one(&hidden), &rows)?;
        let (ty, nan) = (x.ty.clone(), json!({"float": "NaN"}));
        self.call("masked_fill", "Scalar", json!([t, {"tensor": 1}, nan]), &[x, blind], &ty)
    }
}

/// Whether the op only moves elements: each result element is an element of an operand.
fn only_moves(op: &Op) -> bool {
    op.is_view()
        || matches!(op, Op::Select | Op::Concat { .. } | Op::Gather { .. } | Op::Take { .. } | Op::Scatter { .. })
}

/// Computes one op. The match has an arm for every op, so that a new op has to be added to this reference.
pub fn eval(torch: &Torch, op: &Op, ty: &Type, args: &[Tensor]) -> Result<Tensor, String> {
    if ty.dtype.is_f8() && only_moves(op) {
        // Most of these operators do not take f8 in libtorch, so they move the bytes as u8.
        let bytes = |t: &Tensor| match t.ty.dtype {
            d if d.is_f8() => Tensor::from_bytes(Type::new(DType::U8, t.ty.shape.clone()), t.bytes()),
            _ => Some(t.clone()),
        };
        let args: Option<Vec<Tensor>> = args.iter().map(bytes).collect();
        let moved = eval(torch, op, &Type::new(DType::U8, ty.shape.clone()), &args.unwrap_or_default())?;
        return Tensor::from_bytes(ty.clone(), moved.bytes())
            .ok_or_else(|| format!("{moved:?} are not the bytes of {ty}"));
    }
    let c = EagerOp { torch: Eager { torch }, ty, args };
    match op {
        Op::Input(_) | Op::Param(_) => Err("an argument has no value of its own".into()),
        Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => Err("has several results".into()),
        Op::Const(_) | Op::Iota { .. } => source(&c, op),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::Logaddexp => pointwise(&c, op),
        Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice { .. }
        | Op::Flip(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::Take { .. }
        | Op::Scatter { .. } => movement(&c, op),
        Op::Reduce { op, axes } => reduce(&c.torch, *op, axes, ty, &args[0]),
        Op::Scan { op, axis } => {
            let name = match op {
                ScanOp::Sum => "cumsum",
                ScanOp::Prod => "cumprod",
            };
            c.call(name, "", json!([operand(0), axis, ty.dtype.torch_number()]))
        }
        Op::Dot | Op::Linear | Op::Conv { .. } | Op::Pool { .. } => contraction(&c, op),
        Op::Softmax { .. }
        | Op::LogSoftmax { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::GroupNorm { .. }
        | Op::BatchNorm { .. } => norm(&c, op),
        Op::Attention { .. } => attention(&c, op),
    }
}

/// Operand `i` of an operator, in JSON.
fn operand(i: usize) -> Value {
    json!({"tensor": i})
}

/// An op that is computed: its type and its operands.
struct EagerOp<'a> {
    torch: Eager<'a>,
    ty: &'a Type,
    args: &'a [Tensor],
}
impl EagerOp<'_> {
    /// An operator of libtorch on the op's operands.
    fn call(&self, name: &str, overload: &str, list: Value) -> Result<Tensor, String> {
        self.torch.call(name, overload, list, self.args, self.ty)
    }
    /// Operand `i`, or null where the op has fewer.
    fn optional(&self, i: usize) -> Value {
        if i < self.args.len() { operand(i) } else { Value::Null }
    }
    /// The error for an op that a function does not compute.
    fn unknown(&self, op: &Op) -> Result<Tensor, String> {
        Err(format!("{} is computed by another function", op.name()))
    }
}

/// Constants and positions.
fn source(c: &EagerOp, op: &Op) -> Result<Tensor, String> {
    let x = operand(0);
    match op {
        Op::Const(s) => {
            c.call("full", "", json!([[], number(*s), c.ty.dtype.torch_number(), null, {"device": "cpu"}, null]))
        }
        Op::Iota { axis } => {
            let row = Type::new(c.ty.dtype, [c.ty.shape[*axis]]);
            let list = json!([c.ty.shape[*axis], c.ty.dtype.torch_number(), null, {"device": "cpu"}, null]);
            let row = match c.ty.dtype {
                d if d.is_f8() => {
                    let wide = Type::new(DType::F32, row.shape);
                    let list = json!([c.ty.shape[*axis], DType::F32.torch_number(), null, {"device": "cpu"}, null]);
                    c.torch.cast(&c.torch.call("arange", "", list, &[], &wide)?, c.ty.dtype)?
                }
                _ => c.torch.call("arange", "", list, &[], &row)?,
            };
            let mut shape = vec![1; c.ty.rank()];
            shape[*axis] = c.ty.shape[*axis];
            let flat = c.torch.call("reshape", "", json!([x, shape]), &[row], &Type::new(c.ty.dtype, shape.clone()))?;
            c.torch.call("expand", "", json!([x, c.ty.shape, false]), &[flat], c.ty)
        }
        _ => c.unknown(op),
    }
}

/// Ops that compute each element from those at its place.
fn pointwise(c: &EagerOp, op: &Op) -> Result<Tensor, String> {
    let (x, t) = (operand(0), operand);
    match op {
        Op::Unary(u) => {
            let f = u.function();
            let name = f.torch.first().ok_or("has no operator of libtorch in its row")?;
            let more: Vec<Value> = serde_json::from_str(f.arguments).map_err(|e| e.to_string())?;
            c.call(name, "", Value::Array([vec![x], more].concat()))
        }
        Op::Binary(b) => {
            let (name, overload, more) = binary(*b, c.ty.dtype.is_float());
            c.call(name, overload, Value::Array([vec![x, t(1)], more].concat()))
        }
        Op::Compare(order) => {
            let name = match order {
                CompareOp::Eq => "eq",
                CompareOp::Ne => "ne",
                CompareOp::Lt => "lt",
                CompareOp::Le => "le",
                CompareOp::Gt => "gt",
                CompareOp::Ge => "ge",
            };
            c.call(name, "Tensor", json!([x, t(1)]))
        }
        Op::Select => c.call("where", "self", json!([x, t(1), t(2)])),
        Op::Cast(d) => c.torch.cast(&c.args[0], *d),
        Op::Logaddexp => c.call(op.name(), "", (0..c.args.len()).map(t).collect()),
        _ => c.unknown(op),
    }
}

/// Ops that only move elements.
fn movement(c: &EagerOp, op: &Op) -> Result<Tensor, String> {
    let (x, t) = (operand(0), operand);
    match op {
        Op::Reshape(shape) => c.call("reshape", "", json!([x, shape])),
        Op::Permute(perm) => c.call("permute", "", json!([x, perm])),
        Op::Broadcast(shape) => c.call("expand", "", json!([x, shape, false])),
        Op::Slice { axis, start, len, step } => {
            let end = if *len == 0 { *start } else { start + (len - 1) * step + 1 };
            c.call("slice", "Tensor", json!([x, axis, start, end, step]))
        }
        Op::Flip(axes) => c.call("flip", "", json!([x, axes])),
        Op::Pad { lo, hi } => {
            let widths: Vec<i64> = lo.iter().zip(hi).rev().flat_map(|(l, h)| [*l, *h]).collect();
            let value = match c.ty.dtype {
                d if d.is_float() => number(Scalar::Float(c.args[1].get_f64(0))),
                DType::Bool => json!(c.args[1].get_f64(0) != 0.0),
                _ => json!(c.args[1].get_i64(0)),
            };
            c.torch.call("constant_pad_nd", "", json!([x, widths, value]), &c.args[..1], c.ty)
        }
        Op::Concat { axis } => c.call("cat", "", json!([(0..c.args.len()).map(t).collect::<Vec<_>>(), axis])),
        Op::Gather { axis } => {
            let index = c.torch.cast(&c.args[1], DType::I64)?;
            c.torch.call("gather", "", json!([x, axis, t(1), false]), &[c.args[0].clone(), index], c.ty)
        }
        Op::Take { axis } => {
            let mut list = vec![Value::Null; *axis];
            list.push(t(1));
            let index = c.torch.cast(&c.args[1], DType::I64)?;
            c.torch.call("index", "Tensor", json!([x, list]), &[c.args[0].clone(), index], c.ty)
        }
        Op::Scatter { axis, mode } => {
            let index = c.torch.cast(&c.args[1], DType::I64)?;
            let operands = [c.args[0].clone(), index, c.args[2].clone()];
            let (name, overload) = match mode {
                ScatterMode::Replace => ("scatter", "src"),
                ScatterMode::Add => ("scatter_add", ""),
            };
            c.torch.call(name, overload, json!([x, axis, t(1), t(2)]), &operands, c.ty)
        }
        _ => c.unknown(op),
    }
}

/// Matmuls, convolutions and pools.
fn contraction(c: &EagerOp, op: &Op) -> Result<Tensor, String> {
    let (x, t) = (operand(0), operand);
    match op {
        Op::Dot | Op::Linear => {
            let wide: Vec<Tensor> = c.args.iter().map(|a| c.torch.cast(a, c.ty.dtype)).collect::<Result<_, _>>()?;
            match op {
                Op::Dot => c.torch.call("matmul", "", json!([x, t(1)]), &wide, c.ty),
                _ => c.torch.call("linear", "", json!([x, t(1), c.optional(2)]), &wide, c.ty),
            }
        }
        Op::Conv { stride, padding, dilation, groups, transposed, output_padding } => c.call(
            "convolution",
            "",
            json!([x, t(1), c.optional(2), stride, padding, dilation, transposed, output_padding, groups]),
        ),
        Op::Pool { kind, window, stride, padding, dilation, ceil } => {
            let n = window.len();
            match kind {
                PoolKind::Max => {
                    c.call(&format!("max_pool{n}d"), "", json!([x, window, stride, padding, dilation, ceil]))
                }
                PoolKind::Avg { count_pad } => {
                    let mut list = vec![x, json!(window), json!(stride), json!(padding), json!(ceil), json!(count_pad)];
                    if n > 1 {
                        list.push(Value::Null);
                    }
                    c.call(&format!("avg_pool{n}d"), "", Value::Array(list))
                }
            }
        }
        _ => c.unknown(op),
    }
}

/// Softmax and norms.
fn norm(c: &EagerOp, op: &Op) -> Result<Tensor, String> {
    let (x, t) = (operand(0), operand);
    match op {
        Op::Softmax { axis } => c.call("softmax", "int", json!([x, axis, null])),
        Op::LogSoftmax { axis } => c.call("log_softmax", "int", json!([x, axis, null])),
        Op::LayerNorm { axes, eps, .. } => {
            let shape = &c.ty.shape[c.ty.rank() - axes..];
            c.call("layer_norm", "", json!([x, shape, c.optional(1), c.optional(2), number(*eps), false]))
        }
        Op::RmsNorm { eps } => c.call("rms_norm", "", json!([x, c.ty.shape[c.ty.rank() - 1..], t(1), number(*eps)])),
        Op::GroupNorm { groups, eps, .. } => {
            c.call("group_norm", "", json!([x, groups, c.optional(1), c.optional(2), number(*eps), false]))
        }
        Op::BatchNorm { eps } => {
            c.call("batch_norm", "", json!([x, t(1), t(2), t(3), t(4), false, 0.0, number(*eps), false]))
        }
        _ => c.unknown(op),
    }
}

/// Attention, by libtorch's operator, or written in ops where it has none.
fn attention(c: &EagerOp, op: &Op) -> Result<Tensor, String> {
    let (x, t) = (operand(0), operand);
    match op {
        op if op.is_attention_of_steps()
            || op.has_wide_scores(&c.args.iter().map(|x| x.ty.dtype).collect::<Vec<_>>()) =>
        {
            // libtorch has no operator for it.
            let types: Vec<Type> = c.args.iter().map(|x| x.ty.clone()).collect();
            let parts = decompose_op(op, &types).map_err(|e| e.to_string())?.ok_or("attention has no decomposition")?;
            let results = run_model(c.torch.torch, &parts, c.args, &[], Floats::Own)?;
            results.into_iter().next().ok_or_else(|| "no result".into())
        }
        Op::Attention { sink: true, .. } => {
            let types: Vec<Type> = c.args.iter().map(|x| x.ty.clone()).collect();
            let written = sink::written(op, &types).map_err(|e| e.to_string())?;
            let results = run_model(c.torch.torch, &written, c.args, &[], Floats::Own)?;
            results.into_iter().next().ok_or_else(|| "no result".into())
        }
        Op::Attention { scale, causal, fully_masked, .. } => {
            let grouped = c.args[0].ty.shape[c.args[0].ty.rank() - 3] != c.args[1].ty.shape[c.args[1].ty.rank() - 3];
            let list = json!([x, t(1), t(2), c.optional(3), 0.0, causal, number(*scale), grouped]);
            let safe = c.call("scaled_dot_product_attention", "", list)?;
            match (fully_masked, c.args.get(3)) {
                (FullyMasked::Nan, Some(mask)) => c.torch.nan_if_fully_masked(safe, mask),
                _ => Ok(safe),
            }
        }
        _ => c.unknown(op),
    }
}

fn reduce(e: &Eager, op: ReduceOp, axes: &[usize], ty: &Type, x: &Tensor) -> Result<Tensor, String> {
    let (t, code) = (json!({"tensor": 0}), ty.dtype.torch_number());
    let call = |name: &str, overload: &str, list: Value| e.call(name, overload, list, std::slice::from_ref(x), ty);
    match op {
        ReduceOp::Sum => call("sum", "dim_IntList", json!([t, axes, true, code])),
        ReduceOp::Mean => call("mean", "dim", json!([t, axes, true, null])),
        ReduceOp::Prod => axes.iter().try_fold(x.clone(), |x, axis| {
            let mut ty = x.ty.clone();
            ty.shape[*axis] = 1;
            e.call("prod", "dim_int", json!([t, axis, true, code]), &[x], &ty)
        }),
        ReduceOp::Max => call("amax", "", json!([t, axes, true])),
        ReduceOp::Min => call("amin", "", json!([t, axes, true])),
        ReduceOp::Any => call("any", "dims", json!([t, axes, true])),
        ReduceOp::All => call("all", "dims", json!([t, axes, true])),
        ReduceOp::ArgMax | ReduceOp::ArgMin => {
            let name = if op == ReduceOp::ArgMax { "argmax" } else { "argmin" };
            let x = if x.ty.dtype == DType::Bool { e.cast(x, DType::U8)? } else { x.clone() };
            e.call(name, "", json!([t, axes[0], true]), &[x], ty)
        }
    }
}

/// Name, overload, and the arguments that follow the operands.
fn binary(op: BinaryOp, float: bool) -> (&'static str, &'static str, Vec<Value>) {
    match op {
        BinaryOp::Add => ("add", "Tensor", vec![json!(1)]),
        BinaryOp::Sub => ("sub", "Tensor", vec![json!(1)]),
        BinaryOp::Mul => ("mul", "Tensor", vec![]),
        BinaryOp::Div if float => ("div", "Tensor", vec![]),
        BinaryOp::Div => ("div", "Tensor_mode", vec![json!("trunc")]),
        BinaryOp::FloorDiv => ("div", "Tensor_mode", vec![json!("floor")]),
        BinaryOp::Remainder => ("remainder", "Tensor", vec![]),
        BinaryOp::Fmod => ("fmod", "Tensor", vec![]),
        BinaryOp::Pow => ("pow", "Tensor_Tensor", vec![]),
        BinaryOp::Max => ("maximum", "", vec![]),
        BinaryOp::Min => ("minimum", "", vec![]),
        BinaryOp::Atan2 => ("atan2", "", vec![]),
        BinaryOp::And => ("bitwise_and", "Tensor", vec![]),
        BinaryOp::Or => ("bitwise_or", "Tensor", vec![]),
        BinaryOp::Xor => ("bitwise_xor", "Tensor", vec![]),
    }
}
