//! Calls without a conversion: they become fallback nodes, which libtorch runs. If all operands are constants, the
//! folded results of the example run become parameters instead. Collectives are fallbacks that are never folded, and
//! that keep their order ([`kiln_graph::fallback::collective`]).
use super::context::Ctx;
use crate::{
    error::Problem,
    raw::{Arg, Call},
};
use kiln_graph::{DType, FallbackOp, Op, Type, ValueId, fallback::collective::is_collective};
use serde_json::{Value, json};

pub fn fall_back(ctx: &mut Ctx, call: &Call, why: String) -> Result<(), Problem> {
    let problem = |message: String, help: &str| Problem {
        message,
        source: call.source.clone(),
        module: call.module.clone(),
        help: help.into(),
    };
    let collective = is_collective(&call.name);
    if !collective && call.outs.iter().all(|id| ctx.info(*id).folded && ctx.raw_type(*id).is_ok()) {
        for id in &call.outs {
            let v = ctx.leaf(*id).map_err(|e| problem(e, ""))?;
            ctx.bind(*id, v);
        }
        return Ok(());
    }
    let mut results = vec![];
    for id in &call.outs {
        results.push(ctx.raw_type(*id).map_err(|_| {
            problem(
                format!("`{}` gives {} values, a dtype that Kiln does not have", call.name, ctx.info(*id).dtype),
                &format!("Kiln's dtypes are {}; compute this part outside the model", DType::names()),
            )
        })?);
    }
    let mut operands = vec![];
    let args: Vec<Value> = call
        .args
        .iter()
        .map(|a| template(ctx, a, &mut operands))
        .collect::<Result<_, _>>()
        .map_err(|e| problem(format!("`{}` cannot be run by libtorch: {e}", call.name), ""))?;
    if let Some(before) = ctx.last_collective.filter(|v| collective && !operands.contains(v)) {
        operands.push(before);
    }
    let op = FallbackOp {
        name: call.name.clone(),
        overload: call.overload.clone(),
        args: Value::Array(args).to_string(),
        results: results.clone(),
        why,
        vouched: call.vouched,
    };
    let types: Vec<Type> = operands.iter().map(|v| ctx.ty(*v).clone()).collect();
    kiln_graph::fallback::check(&op, &types.iter().collect::<Vec<_>>()).map_err(|e| {
        problem(
            format!("`{}` has no compiled form ({}), and libtorch cannot run it for Kiln: {e}", call.name, op.why),
            "write this part with other operators, or compute it outside the model",
        )
    })?;
    let Some(first) = results.first() else { return Ok(()) };
    let node = ctx.unshared(Op::Fallback(Box::new(op)), first.clone(), &operands);
    if collective {
        ctx.last_collective = Some(node);
    }
    for (i, (id, ty)) in call.outs.iter().zip(results).enumerate() {
        let v = if i == 0 { node } else { ctx.typed(Op::Result(i as u32), ty, &[node]) };
        ctx.bind(*id, v);
    }
    Ok(())
}

/// The argument as JSON; a tensor becomes `{"tensor": i}`, operand i of the node.
fn template(ctx: &mut Ctx, arg: &Arg, operands: &mut Vec<ValueId>) -> Result<Value, String> {
    Ok(match arg {
        Arg::None => Value::Null,
        Arg::Value(id) => {
            let v = ctx.value(*id)?;
            let i = operands.iter().position(|o| *o == v).unwrap_or_else(|| {
                operands.push(v);
                operands.len() - 1
            });
            json!({ "tensor": i })
        }
        Arg::Int(v) => json!(v),
        Arg::Float(v) if v.is_finite() => json!(v),
        Arg::Float(v) => json!({ "float": v.to_string().to_lowercase() }),
        Arg::Bool(v) => json!(v),
        Arg::Str(v) => json!(v),
        Arg::Device(v) => json!({ "device": v }),
        Arg::Ints(v) => json!(v),
        Arg::List(v) => Value::Array(v.iter().map(|a| template(ctx, a, operands)).collect::<Result<_, _>>()?),
        Arg::Complex(_) => return Err("an argument is a complex number".into()),
        Arg::Size(e) => return Err(format!("the size {e} is not known")),
        Arg::Opaque(kind) => return Err(format!("an argument is a {kind}")),
    })
}
