//! Consecutive rows of any length to rows of a tile and back, through shared memory; and rows that are kept as they
//! were loaded.
use super::emit::{Fail, Res, Val};
use super::exchange::Placement;
use super::r#gen::Gen;
use super::index::{Index, Reg};
use inkwell::values::{IntValue, PointerValue};
use kiln_block::layout::{Flat, axis_bits};
use kiln_block::{BlockProgram, CmpOp, Elem, InstData, Op, Value};

impl<'c> Gen<'c, '_> {
    pub fn unpack_rows(&mut self, data: &InstData, row: usize) -> Res<Vec<Reg<'c>>> {
        let (from, to) = (data.args[0], data.results[0]);
        let (elem, values) = (self.elem(from)?, self.plain(from)?);
        let (flat, tile) = (self.places_in_a_row(from)?, self.places_of_rows(to, row)?);
        let start = self.rows_room(&flat, &tile, elem.bytes())?;
        let (a, b) = (self.flat(from)?, self.flat(to)?);
        self.scatter(&a, &flat, start, &values, elem)?;
        self.filled()?;
        let values = self.gather(&b, &tile, start, elem)?;
        Ok(values.into_iter().map(|v| Reg::of(v, elem)).collect())
    }
    pub fn pack_rows(&mut self, data: &InstData, row: usize) -> Res<Vec<Reg<'c>>> {
        let (from, to) = (data.args[0], data.results[0]);
        let (elem, values) = (self.elem(from)?, self.plain(from)?);
        let (tile, flat) = (self.places_of_rows(from, row)?, self.places_in_a_row(to)?);
        let start = self.rows_room(&flat, &tile, elem.bytes())?;
        let (a, b) = (self.flat(from)?, self.flat(to)?);
        self.scatter_rows(from, &a, &tile, start, &values, row)?;
        self.filled()?;
        let values = self.gather(&b, &flat, start, elem)?;
        Ok(values.into_iter().map(|v| Reg::of(v, elem)).collect())
    }
    fn places_in_a_row(&self, v: Value) -> Res<Placement> {
        let [all] = self.k.ty(v).shape() else { return Err(shape()) };
        Ok(Placement { weights: (0..all.ilog2()).map(|b| 1 << b).collect(), elements: *all })
    }
    fn places_of_rows(&self, v: Value, row: usize) -> Res<Placement> {
        let [high, wide] = self.k.ty(v).shape() else { return Err(shape()) };
        let weights = (0..wide.ilog2()).map(|b| 1 << b).chain((0..high.ilog2()).map(|b| row << b)).collect();
        // The end of a row overlaps the next row; that of the last row reaches past all.
        Ok(Placement { weights, elements: (high - 1) * row + wide })
    }
    /// Scratch for the rows.
    fn rows_room(&mut self, flat: &Placement, tile: &Placement, bytes: usize) -> Res<usize> {
        if self.blocks.count > 1 {
            return Err(Fail::Unsupported("pack and unpack in an instance of several blocks".into()));
        }
        Ok(self.room(&[flat.elements.max(tile.elements) * bytes])?[0])
    }
    /// Writes rows to their places, without the elements past their ends.
    fn scatter_rows(
        &mut self,
        v: Value,
        flat: &Flat,
        place: &Placement,
        start: usize,
        values: &[Val<'c>],
        row: usize,
    ) -> Res<()> {
        let (k, elem) = (self.k, self.elem(v)?);
        let columns = self.coordinates(flat, k.ty(v).shape(), 1)?;
        let base = self.scratch_base(flat, place, elem)?;
        let end = Index::constant(row as i64, 32);
        for (r, (value, column)) in values.iter().zip(columns).enumerate() {
            let inside = column.compare(CmpOp::Lt, end, &self.e, &mut self.memo)?;
            let ptr = self.shared_at(base, start + place.at(flat.register(r)) * elem.bytes())?;
            match inside.get_zero_extended_constant() {
                Some(0) => {}
                Some(_) => self.shared_store(ptr, &[*value], elem)?,
                None => self.shared_store_if(inside, ptr, *value, elem)?,
            }
        }
        Ok(())
    }
    fn shared_store_if(&mut self, when: IntValue<'c>, ptr: PointerValue<'c>, v: Val<'c>, elem: Elem) -> Res<()> {
        let e = &self.e;
        let (ty, letter, word) = match elem.bytes() {
            4 => ("b32", 'r', e.i32()),
            2 => ("b16", 'h', e.cx.i16_type()),
            _ => return Err(Fail::Unsupported(format!("pack and unpack of {elem}"))),
        };
        let at = e.b.build_ptr_to_int(ptr, e.i32(), "")?;
        let text = format!("@$0 st.shared.{ty} [$1], $2;");
        let args = [when.into(), at.into(), e.bitcast(v, word)?];
        e.asm(&text, &format!("b,r,{letter},~{{memory}}"), None, &args, true, false)?;
        Ok(())
    }
}

/// Whether threads reduce several rows each, every one within a warp. To save registers, the assembler would load a row
/// only when it is done with the one before. It does not move loads past stores unless they are marked constant, so
/// these are not.
pub(super) fn in_turns(k: &BlockProgram) -> bool {
    let mut found = false;
    k.walk(&mut |_, d| {
        let (Op::Reduce { axis, .. }, [arg, ..]) = (&d.op, &d.args[..]) else { return };
        let shape = k.ty(*arg).shape();
        let Some(flat) = k.value(*arg).layout.as_ref().and_then(|l| l.flat(shape)) else { return };
        let bits = axis_bits(shape, *axis as usize);
        let apart = flat.warps.iter().flatten().all(|b| !bits.contains(b));
        let lanes = flat.lanes.iter().flatten().any(|b| bits.contains(b));
        found |= apart && lanes && flat.registers.iter().any(|b| !bits.contains(b));
    });
    found
}

fn shape() -> Fail {
    Fail::Unsupported("rows of this shape".into())
}
