//! Rows in a tile and a tail of few lanes ([`crate::schedule::tail`]).
use crate::emit::emitter::{Lanes, Scope};
use crate::emit::frame::Frame;
use crate::emit::math;
use crate::emit::row_program::RowLoop;
use crate::scalar::expr::CoordId;
use crate::schedule::tile::Cut;
use kiln_block::Value;

/// Lanes of a row from `start` on.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    lanes: usize,
}

/// A piece, with the values that have been emitted for it.
struct EmittedPiece {
    row: Lanes,
    shifted: Option<(CoordId, Lanes)>,
    scope: Scope,
}

impl RowLoop<'_> {
    /// Emits the whole row, in a tile and a tail of `tail` lanes.
    pub fn in_pieces(&self, f: &mut Frame, tail: usize) {
        let half = self.plan.row.block / 2;
        let pieces = [Piece { start: 0, lanes: half }, Piece { start: half, lanes: tail }];
        let mut pieces: Vec<EmittedPiece> = pieces.into_iter().map(|p| self.emitted(f, p)).collect();
        for level in &self.levels {
            let mut parts: Vec<Vec<Value>> = vec![];
            for piece in &mut pieces {
                self.take_up(f, piece);
                let row = piece.row;
                let mut filled = vec![];
                for r in level {
                    let v = f.em.value(&mut f.b, r.body());
                    filled.push(f.em.fill_outside(&mut f.b, r.op(), v, row));
                }
                parts.push(filled);
                piece.scope = f.em.leave(&mut f.b);
            }
            for (i, r) in level.iter().enumerate() {
                let row = self.tile_row();
                let [tile, tail] = [0, 1].map(|p: usize| f.em.reduce_axis(&mut f.b, r.op(), parts[p][i], row));
                let whole = math::combine(&mut f.b, r.op(), tile, tail);
                r.nodes().for_each(|n| f.em.set(n, whole));
            }
        }
        let (along, once): (Vec<_>, Vec<_>) = self.scene.stores.iter().partition(|s| s.at.uses(self.plan.row.id));
        once.into_iter().for_each(|s| f.store(s));
        for piece in &mut pieces {
            self.take_up(f, piece);
            along.iter().for_each(|s| f.store(s));
            piece.scope = f.em.leave(&mut f.b);
        }
    }
    fn emitted(&self, f: &mut Frame, piece: Piece) -> EmittedPiece {
        let cut = Cut { block: piece.lanes, ..self.plan.row };
        let Some(shift) = &self.plan.unaligned else {
            return EmittedPiece { row: f.lanes_from(cut, piece.start), shifted: None, scope: Scope::default() };
        };
        let lanes = f.lanes_from(Cut { extent: self.plan.width(), ..cut }, piece.start);
        let row = f.peeled(cut, shift, lanes);
        let shifted = f.em.coords.get(&shift.lane).map(|lanes| (shift.lane, *lanes));
        EmittedPiece { row, shifted, scope: Scope::default() }
    }
    /// Makes this piece the current one, until its scope is left.
    fn take_up(&self, f: &mut Frame, piece: &mut EmittedPiece) {
        f.em.coords.insert(self.plan.row.id, piece.row);
        f.em.coords.extend(piece.shifted);
        f.em.resume(std::mem::take(&mut piece.scope));
    }
}
