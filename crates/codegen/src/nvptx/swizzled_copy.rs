//! Asynchronous copies from pointers into swizzled tiles, which matmuls read (`cp.async`).
//!
//! The bits of an element's address in a tile are sums without carry of bits of its coordinates, swizzled or not. So the
//! address of a register is that of the thread's first one with bits flipped, which is an addition where the thread's
//! part has none of them.
use super::emit::{Fail, Res, Val, mistyped};
use super::r#gen::Gen;
use super::index::{Pointer, Reg};
use super::memory::{When, in_vectors};
use super::tiles::Tile;
use inkwell::values::{IntValue, PointerValue};
use kiln_block::layout::{Flat, axis_bits};
use kiln_block::{InstData, LoadMode};
use kiln_machine::isa::VECTOR;

impl Tile {
    /// Byte of an element in a stage of a swizzled tile.
    fn byte(&self, [row, column]: [usize; 2]) -> usize {
        let (line, chunks) = (self.row_bytes(), self.row_bytes() / VECTOR);
        let byte = column * self.elem.bytes();
        let turn = (row / (8 / chunks)) % chunks;
        let chunk = (byte % line / VECTOR) ^ turn;
        byte / line * self.panel_bytes() + row * line + chunk * VECTOR + byte % VECTOR
    }
    /// The same, of an element by its row-major number.
    pub(super) fn byte_of(&self, element: usize) -> usize {
        let columns = axis_bits(&[self.rows, self.columns], 1).len();
        self.byte([element >> columns, element & ((1 << columns) - 1)])
    }
}

/// Addresses of a thread's vectors in a stage of a tile.
pub(super) struct VectorPlaces<'c> {
    /// Start of the stage, and the byte of the thread's first element in it.
    base: PointerValue<'c>,
    first: IntValue<'c>,
    /// Bits that `first` may have.
    varying: usize,
}

impl<'c> Gen<'c, '_> {
    /// `async_copy` into a swizzled tile. Outside of the mask it is 0.
    pub fn swizzled_copy(&mut self, data: &InstData) -> Res<()> {
        let [tile, stage, ptr, ref mask @ ..] = data.args[..] else { return Err(mistyped("a copy")) };
        let t = Tile::of(self.k, tile)?;
        let pointers = self.regs(ptr)?.iter().map(Reg::pointer).collect::<Res<Vec<_>>>()?;
        let masks = self.masks(mask.first().copied())?;
        let (flat, per) = (self.flat(ptr)?, VECTOR / t.elem.bytes());
        if !pointers.len().is_multiple_of(per) || !starts_with_vectors(&flat, per) {
            return Err(Fail::Unsupported("copies to a swizzled tile that are not of vectors".into()));
        }
        // What a loop carries, or memory says, is in vectors by analysis alone.
        let (vectors, masked) = match &self.facts {
            Some(facts) => {
                let (run, align) = facts.alignment(ptr, 1);
                let same = mask.first().map_or(per, |m| facts.same_along(self.k, *m, 1));
                (run >= per && align >= VECTOR, same >= per)
            }
            None => (false, false),
        };
        let at = self.staged(stage, t.stage_bytes())?;
        let base = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let places = self.vector_places(&t, &flat, base)?;
        let first = self.first_copy(&flat)?;
        self.when(first, |g| {
            (0..pointers.len()).step_by(per).try_for_each(|n| {
                let to = g.vector_place(&places, t.byte_of(flat.register(n)))?;
                let some = if masked { n..n + 1 } else { n..n + per };
                let masks = masks.as_ref().map(|m| &m[some]);
                g.copy_vector(&t, to, (&pointers[n..n + per], vectors), masks)
            })
        })
    }
    pub(super) fn vector_places(&mut self, t: &Tile, flat: &Flat, base: PointerValue<'c>) -> Res<VectorPlaces<'c>> {
        // Every bit of the thread's number flips bits of its own or of the swizzle, so their sum is without carry.
        let bits: Vec<usize> = flat.threads().map(|b| b.map_or(0, |b| t.byte_of(1 << b))).collect();
        let mut first = self.e.int(0);
        for (bit, flipped) in bits.iter().enumerate().filter(|(_, flipped)| **flipped != 0) {
            let mut weights = vec![0; self.threads.bits];
            weights[bit] = 1;
            let one = self.threads.sum(&self.e, &weights)?.value(&self.e, &mut self.memo)?;
            first = self.e.xor(first, self.e.mul(one, self.e.int(*flipped as i64))?)?;
        }
        Ok(VectorPlaces { base, first, varying: bits.iter().fold(0, |all, b| all | b) })
    }
    pub(super) fn vector_place(&self, p: &VectorPlaces<'c>, byte: usize) -> Res<PointerValue<'c>> {
        let e = &self.e;
        // Bits that no thread has are added, which folds into the instruction's offset.
        let (added, flipped) = (byte & !p.varying, byte & p.varying);
        let first = if flipped == 0 { p.first } else { e.xor(p.first, e.int(flipped as i64))? };
        let at = e.gep(e.i8().into(), p.base, first)?;
        e.gep(e.i8().into(), at, e.int(added as i64))
    }
    fn copy_vector(
        &mut self,
        t: &Tile,
        to: PointerValue<'c>,
        (pointers, aligned): (&[Pointer<'c>], bool),
        masks: Option<&[IntValue<'c>]>,
    ) -> Res<()> {
        let inside = match When::of(masks) {
            When::Always => None,
            When::Never => Some(self.e.bool(false)),
            When::If(m) => Some(m),
            When::Each(_) => return self.copy_elements(t, to, pointers, masks),
        };
        if !aligned && !in_vectors(pointers, pointers.len()) {
            // Only where masks are of vectors there is one of them.
            let masks = inside.map(|m| vec![m; pointers.len()]);
            let masks = masks.as_deref();
            return self.copy_elements(t, to, pointers, masks);
        }
        let e = &self.e;
        let to = e.b.build_ptr_to_int(to, e.i32(), "")?;
        let from = pointers[0].value(e)?;
        // Fewer bytes than the copy's are filled with zeros.
        let bytes = inside.map_or(Ok(e.int(VECTOR as i64)), |m| e.iselect(m, e.int(VECTOR as i64), e.int(0)))?;
        let (text, args): (_, Vec<Val<'c>>) = match inside {
            None => ("cp.async.cg.shared.global.L2::128B [$0], [$1], 16;", vec![to.into(), from.into()]),
            Some(_) => {
                ("cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;", vec![to.into(), from.into(), bytes.into()])
            }
        };
        let constraints = if inside.is_some() { "r,l,r,~{memory}" } else { "r,l,~{memory}" };
        e.asm(text, constraints, None, &args, true, false)?;
        Ok(())
    }
    /// Elements that are not in one aligned vector, or not under one mask, go through registers.
    fn copy_elements(
        &mut self,
        t: &Tile,
        to: PointerValue<'c>,
        pointers: &[Pointer<'c>],
        masks: Option<&[IntValue<'c>]>,
    ) -> Res<()> {
        let values = self.load_all(pointers, masks, None, t.elem, LoadMode::Vectors)?;
        self.shared_store(to, &values, t.elem)
    }
}

/// Whether the first registers of a thread are neighbours in a row, `per` of them.
fn starts_with_vectors(flat: &Flat, per: usize) -> bool {
    (0..per.ilog2() as usize).all(|bit| flat.registers.get(bit) == Some(&(bit as u8)))
}
