//! Flash attention by warpgroups, from `sm_90` on: tiles of queries, keys and values through tensor maps, both matmuls
//! by `wgmma`.
//!
//! Takes: an attention of half types whose operands are strided arrays. Gives: the block program of a tile of queries,
//! `for keys { load; dot; softmax; load; dot }`, which the passes of the block IR make persistent and warp-specialised
//! ([`kiln_block::passes::warpgroup`]); or `None` if an operand is computed, or a pass refuses.
//!
//! Operands of the scores (biases, masks) come as tiles too, where tensor maps describe them and shared memory has room
//! ([`score_tiles`]); others are read by address.
//!
//! Where a mask depends on data, a kernel before this one finds the blocks of keys that it leaves
//! ([`crate::attention::block_mask`]).
//!
//! Where tiles are few, keys are split into slices, which a second step joins, as for warps. The queries of a group of
//! heads that share their keys are the rows of one tile where they fit; a producer then needs bounds that rise or fall
//! along the queries.
//!
//! Tiles are taken head by head within groups of heads whose keys and values fit the L2 cache together, those with most
//! keys first, so that short ones fill what long ones leave.
mod program;
mod resolved;
mod tiles;

pub use crate::attention::schedule::RING;

use crate::attention::program::TileRows;
use crate::attention::schedule;
use crate::error::LowerError;
use crate::nest::lowering::Lowering;
use crate::scalar::scores::Sizes;
use crate::steps::Emitted;
use kiln_block::passes::split;
use kiln_block::passes::warpgroup::roles::back_to_back_dots::{self, WarpRoles};
use kiln_block::passes::warpgroup::{Launch, persistent};
use kiln_graph::ValueId;
use kiln_plan::attention::{self, Warpgroups};
use kiln_plan::exec::{Slot, Work};
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledAttention};
use kiln_plan::{Hardware, Step};
use resolved::Resolved;
use tiles::Arrays;

/// What warpgroups need, as an error message.
pub const NEEDS: &str = "tiles in shared memory need operands of half types that are strided arrays with rows of \
     multiples of 16 bytes, and room for them";

/// An attention by warpgroups.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The attention in the body, and its sizes.
    pub v: ValueId,
    pub z: &'a Sizes,
    pub shape: Warpgroups,
    pub rows: TileRows,
    /// What the schedule asks for beside the tiles.
    pub asked: &'a TiledAttention,
}

/// `None` where warpgroups do not apply.
pub fn lower(kernel: &Lowering, request: &Request, machine: &Hardware) -> Result<Option<Emitted>, LowerError> {
    let resolved = Resolved::new(kernel, request)?;
    let Some(arrays) = Arrays::of(&resolved, usize::MAX) else { return Ok(None) };
    // Shared memory may have room for fewer tiles of scores.
    for score_tiles in (0..=arrays.scores.len()).rev() {
        let Some(arrays) = Arrays::of(&resolved, score_tiles) else { return Ok(None) };
        let Work::Block { code, args } = program::emit(&resolved, arrays)? else { return Ok(None) };
        let blocks = persistent_blocks(kernel, &code, request.asked, machine)?;
        let dynamic = code.instances().is_some_and(|tiles| tiles > blocks);
        let launch = Launch { blocks, cluster: 1, group: 1, axes: None, dynamic };
        let specialised = persistent::run(&split::run(&code), launch)
            .and_then(|code| back_to_back_dots::run(&code, Some(roles(request)), machine));
        let Ok(code) = specialised else { continue };
        let schedule = TiledAttention {
            persist: Some(blocks),
            block_mask: !resolved.before.steps.is_empty(),
            ..schedule::of_warpgroups(&request.shape)
        };
        let args = args.into_iter().chain(launch.dynamic.then_some(Slot::Counter)).collect();
        let matmul_schedule = Some(MatmulSchedule::Attention(schedule));
        let step = Emitted { matmul_schedule, ..Emitted::step(Work::Block { code, args }) };
        return Ok(Some(resolved.before.then(step)));
    }
    Ok(None)
}

/// What warps do.
fn roles(request: &Request) -> WarpRoles {
    let Request { z, shape, .. } = request;
    WarpRoles { consumers: shape.consumers, left: shape.left, right: RING, columns: Some(z.e), depth: Some(z.d) }
}

/// Blocks of the persistent kernel: as many as the schedule asks for, at most one for each tile and multiprocessor.
fn persistent_blocks(
    kernel: &Lowering,
    code: &kiln_block::BlockProgram,
    asked: &TiledAttention,
    machine: &Hardware,
) -> Result<usize, LowerError> {
    let tiles = code.instances().ok_or_else(|| kernel.unsupported("the grid is not a constant"))?;
    let limit = tiles.min(machine.units.multiprocessors);
    let blocks = asked.persist.unwrap_or(limit);
    if blocks > limit {
        let step = Step::Persist(blocks);
        return Err(kernel.unsupported(format!("`{step}` does not fit: at most {limit} blocks have tiles")));
    }
    Ok(blocks)
}

/// Whether a kernel before the attention may look for the blocks of keys that its mask leaves.
pub fn finds_keys(
    kernel: &Lowering,
    v: ValueId,
    z: &Sizes,
    sizes: &attention::Sizes,
    machine: &Hardware,
) -> Result<bool, LowerError> {
    let mask = resolved::data_mask(kernel, v, z, TileRows::of(sizes))?;
    Ok(mask.is_some_and(|mask| sizes.finds_keys(mask.heads(), machine)))
}
