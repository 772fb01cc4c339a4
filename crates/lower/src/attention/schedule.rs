//! Schedules of attention: the tiles that they ask for, and those of a choice by price.
use kiln_graph::DType;
use kiln_plan::attention::{Sizes, Tiles, Warpgroups, Way};
use kiln_plan::matmul_schedule::TiledAttention;
use kiln_plan::{Axis, Engine, Hardware, Operand, Precision, Step};

/// Tiles of keys and of values in shared memory.
pub const RING: usize = 2;

/// What multiplies in a program of warps. A single f32 query takes sums of products.
fn engine(z: &Sizes) -> Engine {
    match (z.dtype, z.precision) {
        (DType::F32, Precision::Tf32x3) => Engine::Mma3xTf32,
        (DType::F32, _) => Engine::Fma,
        _ => Engine::Mma,
    }
}

pub fn of_way(z: &Sizes, way: &Way, m: &Hardware) -> TiledAttention {
    match way {
        Way::Warps(t) => of_tiles(z, t),
        Way::Warpgroups(w) => {
            let tiles = z.heads * z.queries.div_ceil(w.rows()) * w.parts;
            TiledAttention { persist: Some(tiles.min(m.units.multiprocessors)), ..of_warpgroups(w) }
        }
    }
}
pub fn of_tiles(z: &Sizes, t: &Tiles) -> TiledAttention {
    TiledAttention {
        engine: engine(z),
        size: [t.queries, t.keys],
        slices: t.parts,
        stages: None,
        warps: Some(t.warps),
        persist: None,
        block_mask: false,
    }
}
pub fn of_warpgroups(w: &Warpgroups) -> TiledAttention {
    TiledAttention {
        engine: Engine::Wgmma,
        size: [w.rows(), w.keys],
        slices: w.parts,
        stages: Some([w.left, RING]),
        warps: None,
        persist: None,
        block_mask: false,
    }
}

/// The tiles that a schedule asks for, if they fit.
pub fn way(z: &Sizes, asked: &TiledAttention, m: &Hardware) -> Result<Way, String> {
    let [queries, keys] = asked.size;
    let multiply = Step::Multiply(asked.engine, asked.size.to_vec());
    let refuse = |step: &Step, why: String| Err(format!("`{step}` does not fit: {why}"));
    let all = z.seen().div_ceil(keys).max(1);
    let part = all.div_ceil(asked.slices) * keys;
    if asked.slices > 1 && z.seen().div_ceil(part) != asked.slices {
        let step = Step::SplitReduce(Axis::Keys, asked.slices);
        return refuse(
            &step,
            format!("{all} tiles of {keys} keys are not so many slices, each of as many tiles but the last"),
        );
    }
    let parts = asked.slices;
    let Some([left, ring]) = asked.stages else {
        let like = z.tiles(m);
        if asked.engine != engine(z) {
            return refuse(&multiply, format!("operands in registers are multiplied by `{}`", engine(z).name()));
        }
        // Layouts of tiles follow from whether they are rows of matmuls.
        let rows = if like.queries == 1 { 1..=1 } else { 2..=128 };
        if !rows.contains(&queries)
            || !queries.is_power_of_two()
            || !keys.is_power_of_two()
            || !(16..=128).contains(&keys)
        {
            let why =
                format!("queries are a power of two from {} to {}, and keys from 16 to 128", rows.start(), rows.end());
            return refuse(&multiply, why);
        }
        let Some(warps) = asked.warps.filter(|n| n.is_power_of_two() && *n <= 8) else {
            return refuse(&multiply, "it needs `bind warp N` with 1 to 8 warps, a power of two".into());
        };
        if asked.persist.is_some() || asked.block_mask {
            return refuse(&multiply, "`persist` and `block-mask` are for tiles in shared memory".into());
        }
        return Ok(Way::Warps(Tiles { queries, keys, warps, part, parts }));
    };
    let Some(like) = z.warpgroups(m).filter(|_| asked.engine == Engine::Wgmma) else {
        let why = "tiles in shared memory are for `tensor-core wgmma`: half types, more than 32 queries, heads of at \
                   most 256, a multiple of 8, from sm_90 on";
        return refuse(&multiply, why.into());
    };
    if asked.warps.is_some() {
        return Err("warps follow from a tile whose operands are staged".into());
    }
    let consumers = queries / Warpgroups::ROWS;
    if ![1, 2].contains(&consumers) || queries % Warpgroups::ROWS > 0 || keys != like.keys {
        return refuse(&multiply, format!("tiles have 64 or 128 queries, and for this width {} keys", like.keys));
    }
    if left != like.left {
        return refuse(&Step::Stage(vec![Operand::Q], left), format!("{} for this width", like.left));
    }
    if ring != RING {
        return refuse(&Step::Stage(vec![Operand::K, Operand::V], ring), format!("there are {RING} tiles of each"));
    }
    Ok(Way::Warpgroups(Warpgroups { consumers, part, parts, ..like }))
}
