//! Types of the lower level's ops, and the local rules of tokens, barriers and roles.
use super::{Facts, Place, Rule, rules::*, upper};
use crate::{BlockProgram, Elem, InstData, Op, Type, Value};

pub fn check(k: &BlockProgram, data: &InstData, facts: &mut Facts, place: &Place) -> Rule {
    tokens(k, data, facts)?;
    fences(data, facts)?;
    let ty = |n: usize| k.ty(data.args[n]);
    let (args, results) = (data.args.len(), data.results.len());
    let arity = |least: usize, most: usize, out: usize| {
        count("operands", args, least, most)?;
        count("results", results, out, out)?;
        count("regions", data.regions.len(), 0, 0)
    };
    let out = || k.ty(data.results[0]);
    let staged = |n: usize| tile_at(k, data, facts, n);
    let barrier_at = |n: usize| -> Rule {
        let Type::Barrier { count, .. } = ty(n) else {
            return Err(format!("operand {n} is {}; a barrier is needed", ty(n)));
        };
        stage(k, facts, data.args[n + 1], *count)
    };
    let outside = || ensure(!place.nested, || "allocate outside of loops and branches".into());
    let cluster =
        |on: bool| ensure(!on || k.cluster > 1, || "multicast needs a cluster; set it or drop `multicast`".into());
    match &data.op {
        Op::ConvertLayout => {
            arity(1, 1, 1)?;
            held("the operand", ty(0))?;
            same("the result", out(), ty(0))
        }
        Op::Prefetch { .. } => {
            arity(1, 1, 0)?;
            let (_, shape) = pointer("the operand", ty(0))?;
            ensure(shape.is_empty(), || format!("the operand is {}; one pointer is needed", ty(0)))
        }
        Op::AllocShared => {
            arity(0, 0, 1)?;
            outside()?;
            ensure(matches!(out(), Type::Shared { .. }), || format!("the result is {}; a shared tile is needed", out()))
        }
        Op::SharedStore => {
            arity(3, 3, 0)?;
            same("the value", ty(2), &staged(0)?)
        }
        Op::SharedLoad => {
            arity(2, 2, 1)?;
            same("the result", out(), &staged(0)?)
        }
        Op::AsyncCopy => {
            arity(3, 4, 0)?;
            let tile = staged(0)?;
            let (elem, shape) = pointer("the source", ty(2))?;
            same("what is copied", &Type::block(elem, shape), &tile)?;
            if args > 3 {
                same("the mask", ty(3), &Type::block(Elem::Bool, shape))?;
            }
            Ok(())
        }
        Op::AsyncCommit
        | Op::AsyncWait { .. }
        | Op::Sync
        | Op::FenceAsync
        | Op::TmaStoreWait { .. }
        | Op::WgmmaCommit => arity(0, 0, 0),
        Op::ClusterSync => {
            arity(0, 0, 0)?;
            ensure(!place.in_role, || "the cluster's barrier waits for all warps; move it out of the role".into())
        }
        Op::AllocBarriers => {
            arity(0, 0, 1)?;
            outside()?;
            ensure(matches!(out(), Type::Barrier { .. }), || format!("the result is {}; barriers are needed", out()))
        }
        Op::BarrierExpect { .. } => {
            arity(2, 2, 0)?;
            barrier_at(0)
        }
        Op::BarrierArrive { multicast } => {
            arity(2, 2, 0)?;
            cluster(*multicast)?;
            barrier_at(0)
        }
        Op::BarrierWait => {
            arity(3, 3, 0)?;
            scalar_i32("the phase", ty(2))?;
            barrier_at(0)
        }
        Op::TmaLoad { multicast } => {
            arity(5, 10, 0)?;
            cluster(*multicast)?;
            copied(ty(0), ty(2), &staged(0)?, (if *multicast { k.cluster } else { 1 }, true))?;
            barrier_at(3)?;
            upper::starts(k, &data.args[5..], ty(2).shape().len())
        }
        Op::TmaStore => {
            arity(3, 8, 0)?;
            ensure(!facts.roots.contains_key(&data.args[0]), || "the descriptor's parameter is readonly".into())?;
            copied(ty(1), ty(0), &staged(1)?, (1, false))?;
            upper::starts(k, &data.args[3..], ty(0).shape().len())
        }
        Op::Wgmma { transpose_a, transpose_b } if args == 4 => {
            ensure(!transpose_a, || "a left operand in registers is `[M,K]`; permute it before".into())?;
            held("the left operand", ty(0))?;
            ensure(ty(0).elem().is_some_and(|e| e.is_half() || e == Elem::F32), || {
                format!("the left operand is {}; in registers 16-bit floats or f32 are needed", ty(0))
            })?;
            arity(4, 4, 1)?;
            matmul([false, *transpose_b], ty(0), &staged(1)?, ty(3), out())
        }
        Op::Wgmma { transpose_a, transpose_b } => {
            arity(5, 5, 1)?;
            matmul([*transpose_a, *transpose_b], &staged(0)?, &staged(2)?, ty(4), out())
        }
        Op::SharedDot { transpose_a, transpose_b, .. } => {
            arity(5, 6, 1)?;
            if args > 5 {
                scalar_i32("the depth", ty(5))?;
            }
            shared_matmul([*transpose_a, *transpose_b], &staged(0)?, &staged(2)?, ty(4), out())
        }
        Op::WgmmaWait { .. } if results == 0 => {
            count("results", results, 0, 0)?;
            let blocks = data.args.iter().all(|v| matches!(k.ty(*v), Type::Block { .. }));
            ensure(blocks, || "a wait without a result takes left operands in registers only".into())
        }
        Op::WgmmaWait { .. } => {
            arity(1, 1, 1)?;
            match ty(0) {
                Type::Token { elem, shape } => same("the result", out(), &Type::block(*elem, shape.clone())),
                other => Err(format!("the operand is {other}; a token is needed")),
            }
        }
        Op::Roles(roles) => {
            count("operands", args, 0, 0)?;
            count("results", results, 0, 0)?;
            count("regions", data.regions.len(), roles.len().max(1), roles.len().max(1))?;
            ensure(!place.nested && !place.in_role && !facts.roles, || {
                "roles stand once, in the kernel's own list".into()
            })?;
            facts.roles = true;
            for (role, region) in roles.iter().zip(&data.regions) {
                let wanted = usize::from(role.copies > 1);
                count("parameters of the role", region.params.len(), wanted, wanted)?;
                region.params.iter().try_for_each(|v| scalar_i32("the number of the copy", k.ty(*v)))?;
            }
            let warps = roles.iter().fold(0usize, |a, r| a.saturating_add(r.warps.saturating_mul(r.copies)));
            ensure(roles.iter().all(|r| r.warps > 0 && r.copies > 0) && warps == k.warps, || {
                format!("the roles have {warps} warps and the kernel {}; they must be the same", k.warps)
            })?;
            ensure(roles.iter().all(|r| r.registers.is_multiple_of(8) && r.registers <= 256), || {
                "registers of a role are a multiple of 8 up to 256, or 0".into()
            })
        }
        _ => Ok(()),
    }
}

/// Operand `n` is a shared tile and `n + 1` its stage: gives the type of a block that fits a stage.
fn tile_at(k: &BlockProgram, data: &InstData, facts: &Facts, n: usize) -> Result<Type, String> {
    match k.ty(data.args[n]) {
        Type::Shared { elem, shape, stages, .. } => {
            stage(k, facts, data.args[n + 1], *stages)?;
            Ok(Type::block(*elem, shape.clone()))
        }
        other => Err(format!("operand {n} is {other}; a shared tile is needed")),
    }
}
fn stage(k: &BlockProgram, facts: &Facts, v: Value, stages: usize) -> Rule {
    scalar_i32("the stage", k.ty(v))?;
    match facts.constants.get(&v) {
        Some(s) => ensure(*s >= 0 && (*s as usize) < stages, || format!("stage {s} of {stages}")),
        None => Ok(()),
    }
}
/// A tile and a descriptor that are copied to each other; the descriptor covers one of `parts` slices along the first
/// axis, or with `first` the first of its rows.
fn copied(tile: &Type, desc: &Type, block: &Type, (parts, first): (usize, bool)) -> Rule {
    let whole = upper::descriptor(desc)?;
    let extra = whole.shape().len().saturating_sub(block.shape().len());
    let (lead, rest) = whole.shape().split_at(extra);
    let mut shape = rest.to_vec();
    shape.first_mut().into_iter().for_each(|n| *n = n.saturating_mul(parts));
    if let (true, [rows, _], [all, _]) = (first && parts == 1, &mut shape[..], block.shape()) {
        *rows = if *rows < *all { *all } else { *rows };
    }
    ensure(lead.iter().all(|n| *n == 1), || format!("{desc} has more axes than {tile}; further ones must be 1"))?;
    same("the descriptor's tile", &whole.with_shape(shape), block)?;
    match (tile, desc) {
        (Type::Shared { swizzle: a, .. }, Type::Desc { swizzle: b, .. }) if a != b => {
            Err(format!("the tile is swizzled {a}, the descriptor {b}; they must be the same"))
        }
        _ => Ok(()),
    }
}
/// Rows, columns and depth of a matmul of tiles into `out`. With `narrow` the right tile may have fewer columns.
fn sizes(
    [transpose_a, transpose_b]: [bool; 2],
    a: &Type,
    b: &Type,
    out: &Type,
    narrow: bool,
) -> Result<[usize; 3], String> {
    let ([a0, a1], [b0, b1], [p, q]) = (a.shape(), b.shape(), out.shape()) else {
        return Err(format!("{a} by {b} into {out}; 2-D tiles are needed"));
    };
    let (ka, m) = if transpose_a { (a0, a1) } else { (a1, a0) };
    let (kb, n) = if transpose_b { (b1, b0) } else { (b0, b1) };
    ensure(ka == kb && m == p && (n == q || narrow && n < q), || {
        format!("{a} by {b} into {out}; the sizes do not fit")
    })?;
    Ok([*m, *n, *ka])
}
fn shared_matmul(transposed: [bool; 2], a: &Type, b: &Type, acc: &Type, out: &Type) -> Rule {
    let f32s = [a, b, acc, out].iter().all(|t| t.elem() == Some(Elem::F32));
    ensure(f32s, || format!("{a} by {b} into {out}; shared_dot is of f32"))?;
    sizes(transposed, a, b, out, false)?;
    held("the result", out)?;
    same("the accumulator", acc, out)
}
fn matmul([transpose_a, transpose_b]: [bool; 2], a: &Type, b: &Type, acc: &Type, out: &Type) -> Rule {
    let Type::Token { elem, shape } = out else { return Err(format!("the result is {out}; a token is needed")) };
    let Some(e) = a.elem().filter(|e| e.is_half() || e.is_f8() || *e == Elem::F32) else {
        return Err(format!("wgmma is not defined on {a}"));
    };
    ensure(b.elem() == Some(e) && *elem == Elem::F32, || {
        format!("{a} by {b} into {out}; one type into f32 is needed")
    })?;
    let [m, n, ka] = sizes([transpose_a, transpose_b], a, b, out, true)?;
    ensure(m.is_multiple_of(64) && n.is_multiple_of(8) && ka * e.bytes() >= 32, || {
        format!("{a} by {b}: rows must be a multiple of 64, columns of 8, a row of K at least 32 bytes")
    })?;
    ensure(e.bytes() == 2 || (!transpose_a && transpose_b), || {
        format!("{a} by {b}: operands of other than 16 bits must be K-major")
    })?;
    match acc {
        Type::Token { .. } => same("the accumulator", acc, out),
        _ => same("the accumulator", acc, &Type::block(*elem, shape.clone())),
    }
}

/// Reads of copied tiles are fenced before an arrival, in their own region.
fn fences(data: &InstData, facts: &mut Facts) -> Rule {
    match (&data.op, facts.unfenced) {
        (Op::SharedLoad, _) => {
            facts.unfenced = data.args.first().copied().filter(|t| facts.copied.contains(t)).or(facts.unfenced)
        }
        (Op::FenceAsync, _) => facts.unfenced = None,
        (Op::BarrierArrive { .. }, Some(tile)) => {
            return Err(format!(
                "{tile} was read, and the next copy into it may overtake that; put `fence_async` before"
            ));
        }
        _ if !data.regions.is_empty() => return fenced(facts),
        _ => {}
    }
    Ok(())
}
/// Where a region begins or ends, all reads of copied tiles are fenced.
pub fn fenced(facts: &Facts) -> Rule {
    match facts.unfenced {
        Some(tile) => Err(format!("{tile} was read in another region; put `fence_async` after it there")),
        None => Ok(()),
    }
}

/// A token is used once, and waited for after its commit.
fn tokens(k: &BlockProgram, data: &InstData, facts: &mut Facts) -> Rule {
    for v in data.args.iter().filter(|v| matches!(k.ty(**v), Type::Token { .. })) {
        ensure(matches!(data.op, Op::Wgmma { .. } | Op::WgmmaWait { .. } | Op::For), || {
            format!("{v} is a matmul in flight; read it after `wgmma_wait`")
        })?;
        ensure(facts.consumed.insert(*v), || format!("{v} went into an op already; use that op's result"))?;
        ensure(!matches!(data.op, Op::WgmmaWait { .. }) || !facts.uncommitted.contains(v), || {
            format!("{v} is waited for before `wgmma_commit`")
        })?;
    }
    match data.op {
        Op::Wgmma { .. } => _ = data.results.first().map(|v| facts.uncommitted.insert(*v)),
        Op::WgmmaCommit => facts.uncommitted.clear(),
        _ => {}
    }
    Ok(())
}
