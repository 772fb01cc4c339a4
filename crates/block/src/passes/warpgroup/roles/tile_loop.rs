//! The loop over tiles that both roles run, and how often a tile's loop over K runs where that is no constant.
use super::super::copy::Copier;
use crate::{BinaryOp as B, Builder, CmpOp, Inst, Value};

/// Iterations that the launch, or the tile, decides.
#[derive(Clone, Copy)]
pub struct TileTrips {
    /// At least one.
    pub count: Value,
    /// Whether there is none: then a stage of zeros is multiplied.
    pub is_empty: Value,
}

impl TileTrips {
    /// Of a loop over K whose bounds the copier has.
    pub fn of(b: &mut Builder, c: &mut Copier, depth: Inst) -> Option<TileTrips> {
        let bounds = c.all(&c.k.inst(depth).args[..3]);
        let [lo, hi, step] = bounds[..] else { return None };
        let (one, length) = (b.i32(1), b.binary(B::Sub, hi, lo));
        let is_empty = b.cmp(CmpOp::Le, hi, lo);
        let (last, length) = (b.binary(B::Sub, step, one), b.binary(B::Max, length, one));
        let length = b.binary(B::Add, length, last);
        Some(TileTrips { count: b.binary(B::Div, length, step), is_empty })
    }
}

/// The loop over tiles, and its bounds.
pub fn bounds_of(c: &mut Copier, tiles: Option<Inst>) -> Option<(Inst, [Value; 3])> {
    let tiles = tiles?;
    let bounds = c.all(&c.k.inst(tiles).args);
    Some((tiles, bounds.try_into().ok()?))
}

/// Runs `body` for every tile of this block, with carried scalars. `before`: the instructions of a tile that its starts
/// depend on.
pub fn over_tiles<'k>(
    b: &mut Builder,
    c: &mut Copier<'k>,
    (tiles, before): (Option<Inst>, &[Inst]),
    start: &[Value],
    body: impl FnOnce(&mut Builder, &mut Copier<'k>, &[Value]) -> Vec<Value>,
) {
    let Some((tiles, bounds)) = bounds_of(c, tiles) else {
        body(b, c, start);
        return;
    };
    b.for_loop(bounds, start, |b, t, now| at_tile(b, c, (tiles, t), before, |b, c| body(b, c, now)));
}

/// Runs `body` for tile `t` of the loop over tiles.
pub fn at_tile<'k, T>(
    b: &mut Builder,
    c: &mut Copier<'k>,
    (tiles, t): (Inst, Value),
    before: &[Inst],
    body: impl FnOnce(&mut Builder, &mut Copier<'k>) -> T,
) -> T {
    c.enter();
    c.set(c.k.inst(tiles).regions[0].params[0], t);
    c.scalars(b, before);
    let done = body(b, c);
    c.leave();
    done
}
