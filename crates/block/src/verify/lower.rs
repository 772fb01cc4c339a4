//! Types of the lower level's ops, and the local rules of tokens, barriers and roles.
use super::{Facts, Place, Rule, rules::*, upper};
use crate::{BlockProgram, Elem, InstData, Op, Role, Type, Value};

/// Tokens and fences, then operand and result counts, then types.
pub fn check(k: &BlockProgram, data: &InstData, facts: &mut Facts, place: &Place) -> Rule {
    tokens(k, data, facts)?;
    fences(data, facts)?;
    let op = Checked { k, data, facts };
    match &data.op {
        Op::ConvertLayout => {
            op.arity(1, 1, 1)?;
            held("the operand", op.ty(0))?;
            same("the result", op.out(), op.ty(0))
        }
        Op::Prefetch { .. } => {
            op.arity(1, 1, 0)?;
            let (_, shape) = pointer("the operand", op.ty(0))?;
            ensure(shape.is_empty(), || format!("the operand is {}; one pointer is needed", op.ty(0)))
        }
        Op::AsyncCommit
        | Op::AsyncWait { .. }
        | Op::Sync
        | Op::FenceAsync
        | Op::TmaStoreWait { .. }
        | Op::WgmmaCommit => op.arity(0, 0, 0),
        Op::AllocShared | Op::SharedStore | Op::SharedLoad | Op::AsyncCopy => shared_tiles(&op, place),
        Op::ClusterSync | Op::AllocBarriers | Op::BarrierExpect { .. } | Op::BarrierArrive { .. } | Op::BarrierWait => {
            barriers(&op, place)
        }
        Op::TmaLoad { .. } | Op::TmaStore => bulk_copies(&op),
        Op::Wgmma { .. } | Op::SharedDot { .. } | Op::WgmmaToken | Op::WgmmaWait { .. } => matmuls(&op),
        Op::Roles(roles) => {
            warp_roles(&op, place, roles)?;
            facts.roles = true;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn outside_of_loops(place: &Place) -> Rule {
    ensure(!place.nested, || "allocate outside of loops and branches".into())
}

/// Tiles in shared memory: where they are allocated, written and read by threads, and copied to asynchronously.
fn shared_tiles(s: &Checked, place: &Place) -> Rule {
    match &s.data.op {
        Op::AllocShared => {
            s.arity(0, 0, 1)?;
            outside_of_loops(place)?;
            ensure(matches!(s.out(), Type::Shared { .. }), || {
                format!("the result is {}; a shared tile is needed", s.out())
            })
        }
        Op::SharedStore => {
            s.arity(3, 3, 0)?;
            same("the value", s.ty(2), &tile_at(s, 0)?)
        }
        Op::SharedLoad => {
            s.arity(2, 2, 1)?;
            same("the result", s.out(), &tile_at(s, 0)?)
        }
        Op::AsyncCopy => {
            s.arity(3, 4, 0)?;
            let tile = tile_at(s, 0)?;
            let (elem, shape) = pointer("the source", s.ty(2))?;
            same("what is copied", &Type::block(elem, shape), &tile)?;
            if s.data.args.len() > 3 {
                same("the mask", s.ty(3), &Type::block(Elem::Bool, shape))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Barriers of a block, and the one of a cluster.
fn barriers(s: &Checked, place: &Place) -> Rule {
    match &s.data.op {
        Op::ClusterSync => {
            s.arity(0, 0, 0)?;
            ensure(!place.in_role, || "the cluster's barrier waits for all warps; move it out of the role".into())
        }
        Op::AllocBarriers => {
            s.arity(0, 0, 1)?;
            outside_of_loops(place)?;
            ensure(matches!(s.out(), Type::Barrier { .. }), || {
                format!("the result is {}; barriers are needed", s.out())
            })
        }
        Op::BarrierExpect { .. } => {
            s.arity(2, 2, 0)?;
            barrier_at(s, 0)
        }
        Op::BarrierArrive { multicast } => {
            s.arity(2, 2, 0)?;
            multicast_in_cluster(s, *multicast)?;
            barrier_at(s, 0)
        }
        Op::BarrierWait => {
            s.arity(3, 3, 0)?;
            scalar_i32("the phase", s.ty(2))?;
            barrier_at(s, 0)
        }
        _ => Ok(()),
    }
}

/// Copies between shared tiles and descriptors.
fn bulk_copies(s: &Checked) -> Rule {
    match &s.data.op {
        Op::TmaLoad { multicast } => {
            s.arity(5, 10, 0)?;
            multicast_in_cluster(s, *multicast)?;
            copied(s.ty(0), s.ty(2), &tile_at(s, 0)?, (if *multicast { s.k.cluster } else { 1 }, true))?;
            barrier_at(s, 3)?;
            upper::starts(s.k, &s.data.args[5..], s.ty(2).shape().len())
        }
        Op::TmaStore => {
            s.arity(3, 8, 0)?;
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || "the descriptor's parameter is readonly".into())?;
            copied(s.ty(1), s.ty(0), &tile_at(s, 1)?, (1, false))?;
            upper::starts(s.k, &s.data.args[3..], s.ty(0).shape().len())
        }
        _ => Ok(()),
    }
}

/// Matmuls of shared tiles, and where threads wait for them.
fn matmuls(s: &Checked) -> Rule {
    match &s.data.op {
        Op::Wgmma { transpose_a, transpose_b } if s.data.args.len() == 4 => {
            ensure(!transpose_a, || "a left operand in registers is `[M,K]`; permute it before".into())?;
            held("the left operand", s.ty(0))?;
            ensure(s.ty(0).elem().is_some_and(|e| e.is_half() || e == Elem::F32), || {
                format!("the left operand is {}; in registers 16-bit floats or f32 are needed", s.ty(0))
            })?;
            s.arity(4, 4, 1)?;
            matmul([false, *transpose_b], s.ty(0), &tile_at(s, 1)?, s.ty(3), s.out())
        }
        Op::Wgmma { transpose_a, transpose_b } => {
            s.arity(5, 5, 1)?;
            matmul([*transpose_a, *transpose_b], &tile_at(s, 0)?, &tile_at(s, 2)?, s.ty(4), s.out())
        }
        Op::SharedDot { transpose_a, transpose_b, .. } => {
            s.arity(5, 6, 1)?;
            if s.data.args.len() > 5 {
                scalar_i32("the depth", s.ty(5))?;
            }
            shared_matmul([*transpose_a, *transpose_b], &tile_at(s, 0)?, &tile_at(s, 2)?, s.ty(4), s.out())
        }
        Op::WgmmaToken => {
            s.arity(1, 1, 1)?;
            match s.out() {
                Type::Token { elem, shape } => same("the operand", s.ty(0), &Type::block(*elem, shape.clone())),
                other => Err(format!("the result is {other}; a token is needed")),
            }
        }
        Op::WgmmaWait { .. } if s.data.results.is_empty() => {
            let blocks = s.data.args.iter().all(|v| matches!(s.k.ty(*v), Type::Block { .. }));
            ensure(blocks, || "a wait without a result takes left operands in registers only".into())
        }
        Op::WgmmaWait { .. } => {
            s.arity(1, 1, 1)?;
            match s.ty(0) {
                Type::Token { elem, shape } => same("the result", s.out(), &Type::block(*elem, shape.clone())),
                other => Err(format!("the operand is {other}; a token is needed")),
            }
        }
        _ => Ok(()),
    }
}

/// The roles of a kernel's warps: once, in its own list, of all its warps.
fn warp_roles(s: &Checked, place: &Place, roles: &[Role]) -> Rule {
    let regions = &s.data.regions;
    count("operands", s.data.args.len(), 0, 0)?;
    count("results", s.data.results.len(), 0, 0)?;
    count("regions", regions.len(), roles.len().max(1), roles.len().max(1))?;
    ensure(!place.nested && !place.in_role && !s.facts.roles, || "roles stand once, in the kernel's own list".into())?;
    for (role, region) in roles.iter().zip(regions) {
        let wanted = usize::from(role.copies > 1);
        count("parameters of the role", region.params.len(), wanted, wanted)?;
        region.params.iter().try_for_each(|v| scalar_i32("the number of the copy", s.k.ty(*v)))?;
    }
    let warps = roles.iter().fold(0usize, |a, r| a.saturating_add(r.warps.saturating_mul(r.copies)));
    ensure(roles.iter().all(|r| r.warps > 0 && r.copies > 0) && warps == s.k.warps, || {
        format!("the roles have {warps} warps and the kernel {}; they must be the same", s.k.warps)
    })?;
    ensure(roles.iter().all(|r| r.registers.is_multiple_of(8) && r.registers <= 256), || {
        "registers of a role are a multiple of 8 up to 256, or 0".into()
    })
}

fn multicast_in_cluster(s: &Checked, multicast: bool) -> Rule {
    ensure(!multicast || s.k.cluster > 1, || "multicast needs a cluster; set it or drop `multicast`".into())
}

/// Operand `n` is a set of barriers and `n + 1` the one of these.
fn barrier_at(s: &Checked, n: usize) -> Rule {
    let Type::Barrier { count, .. } = s.ty(n) else {
        return Err(format!("operand {n} is {}; a barrier is needed", s.ty(n)));
    };
    stage(s.k, s.facts, s.data.args[n + 1], *count)
}
/// Operand `n` is a shared tile and `n + 1` its stage: gives the type of a block that fits a stage.
fn tile_at(s: &Checked, n: usize) -> Result<Type, String> {
    match s.ty(n) {
        Type::Shared { elem, shape, stages, .. } => {
            stage(s.k, s.facts, s.data.args[n + 1], *stages)?;
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
    let bytes = |e: Elem| matches!(e, Elem::I8 | Elem::U8);
    let Some(e) = a.elem().filter(|e| e.is_half() || e.is_f8() || *e == Elem::F32 || bytes(*e)) else {
        return Err(format!("wgmma is not defined on {a}"));
    };
    let sums = if bytes(e) { Elem::I32 } else { Elem::F32 };
    ensure(b.elem() == Some(e) && *elem == sums, || format!("{a} by {b} into {out}; one type into {sums} is needed"))?;
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
