//! Tensor-map copies between global memory and shared tiles. One thread of a group issues them.
use super::emit::{Fail, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::tiles::Tile;
use inkwell::values::{IntValue, PointerValue};
use kiln_block::{InstData, Value};

/// Address space of the shared memory of all blocks of a cluster.
const CLUSTER: u16 = 7;

impl<'c> Gen<'c, '_> {
    pub fn fence_async(&mut self) -> Res<()> {
        self.fenced = true;
        self.effect("fence.proxy.async.shared_cta", &[])
    }
    pub fn store_wait(&mut self, pending: u8) -> Res<()> {
        self.once(|g| g.effect("cp.async.bulk.wait.group.read", &[g.e.int(pending.into()).into()]))
    }
    pub fn tma_load(&mut self, data: &InstData, multicast: bool) -> Res<()> {
        let [tile, stage, desc, barrier, turn, ref starts @ ..] = data.args[..] else { return Err(mistyped("a copy")) };
        let t = Tile::of(self.k, tile)?;
        let at = self.staged(stage, t.stage_bytes())?;
        let to = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let bar = self.barrier_at(barrier, turn)?;
        let map = self.descriptor(desc)?;
        let mut starts = self.starts(starts)?;
        let mut offset = self.e.int(0);
        let blocks = if multicast { self.k.cluster } else { 1 };
        if multicast {
            let rank = int(self.e.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", &[], &[])?)?;
            let rows = t.rows / blocks;
            let first = starts.len() - 2;
            starts[first] = self.e.add(starts[first], self.e.mul(rank, self.e.int(rows as i64))?)?;
            offset = self.e.mul(rank, self.e.int((rows * t.row_bytes()) as i64))?;
        }
        self.once(|g| {
            for panel in 0..t.panels() {
                let more = g.e.add(offset, g.e.int((panel * t.panel_bytes()) as i64))?;
                let to = g.e.gep(g.e.i8().into(), to, more)?;
                let address = g.e.b.build_ptr_to_int(to, g.e.i64(), "")?;
                let to = g.e.b.build_int_to_ptr(address, g.e.ptr(CLUSTER), "")?;
                let mut args = vec![to.into(), bar.into(), map.into()];
                args.extend(g.box_starts(&starts, panel * t.row_bytes() / t.elem.bytes())?);
                let mask = g.e.cx.i16_type().const_int((1 << blocks) - 1, false);
                args.extend::<[Val<'c>; 3]>([mask.into(), g.e.int_of(g.e.i64(), 0).into(), g.e.bool(multicast).into()]);
                args.extend::<[Val<'c>; 2]>([g.e.bool(false).into(), g.e.int(0).into()]);
                g.effect(&format!("cp.async.bulk.tensor.g2s.tile.{}d", starts.len()), &args)?;
            }
            Ok(())
        })
    }
    pub fn tma_store(&mut self, data: &InstData) -> Res<()> {
        let [desc, tile, stage, ref starts @ ..] = data.args[..] else { return Err(mistyped("a copy")) };
        let t = Tile::of(self.k, tile)?;
        let at = self.staged(stage, t.stage_bytes())?;
        let from = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let map = self.descriptor(desc)?;
        let starts = self.starts(starts)?;
        self.once(|g| {
            for panel in 0..t.panels() {
                let from = g.e.gep(g.e.i8().into(), from, g.e.int((panel * t.panel_bytes()) as i64))?;
                let mut args = vec![from.into(), map.into()];
                args.extend(g.box_starts(&starts, panel * t.row_bytes() / t.elem.bytes())?);
                args.extend::<[Val<'c>; 2]>([g.e.int_of(g.e.i64(), 0).into(), g.e.bool(false).into()]);
                g.effect(&format!("cp.async.bulk.tensor.s2g.tile.{}d", starts.len()), &args)?;
            }
            g.effect("cp.async.bulk.commit.group", &[])
        })
    }
    fn starts(&mut self, starts: &[Value]) -> Res<Vec<IntValue<'c>>> {
        starts.iter().map(|v| int(self.plain(*v)?[0])).collect()
    }
    /// The starts of a box, innermost first, `column` further along the innermost axis.
    fn box_starts(&self, starts: &[IntValue<'c>], column: usize) -> Res<Vec<Val<'c>>> {
        let mut all: Vec<IntValue<'c>> = starts.iter().rev().copied().collect();
        all[0] = self.e.add(all[0], self.e.int(column as i64))?;
        Ok(all.into_iter().map(Into::into).collect())
    }
    fn descriptor(&self, v: Value) -> Res<PointerValue<'c>> {
        self.maps.get(&v).copied().ok_or_else(|| Fail::Unsupported(format!("{v} as a descriptor")))
    }
}
