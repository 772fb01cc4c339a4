//! Loads in flight while the program computes (`cp.async`): every thread copies what it will read to its own places in
//! shared memory, so that it waits for its own copies only.
use super::emit::{Fail, Res, Val, mistyped};
use super::r#gen::Gen;
use super::index::{Pointer, Reg};
use super::memory::{When, in_vectors};
use super::tiles::Tile;
use super::words::Words;
use inkwell::values::{IntValue, PointerValue};
use kiln_block::{Elem, InstData, LoadMode, Op, Swizzle, Type, Value};
use kiln_machine::isa::VECTOR;

impl<'c> Gen<'c, '_> {
    pub fn async_copy(&mut self, data: &InstData) -> Res<()> {
        let [tile, _, ptr, ref mask @ ..] = data.args[..] else { return Err(mistyped("a copy")) };
        if Tile::of(self.k, tile).is_ok_and(|t| t.swizzle != Swizzle::None) {
            return self.swizzled_copy(data);
        }
        let pointers = self.regs(ptr)?.iter().map(Reg::pointer).collect::<Res<Vec<_>>>()?;
        let masks = self.masks(mask.first().copied())?;
        let elem = self.k.ty(tile).elem().ok_or_else(|| mistyped("a copy"))?;
        let per = VECTOR / elem.bytes();
        if !self.are_private(tile, ptr) || !pointers.len().is_multiple_of(per) {
            return Err(Fail::Unsupported("copies to shared memory that are not of a thread's own vectors".into()));
        }
        if !in_vectors(&pointers, per) {
            return self.copy_at_once(tile, &pointers, masks.as_deref(), elem);
        }
        for (n, chunk) in pointers.chunks(per).enumerate() {
            let to = self.own_vector(tile, n)?;
            let to = self.e.b.build_ptr_to_int(to, self.e.i32(), "")?;
            let from = chunk[0].value(&self.e)?;
            let some = match When::of(masks.as_ref().map(|m| &m[n * per..(n + 1) * per])) {
                When::Never => continue,
                When::Always => None,
                When::If(m) => Some(m),
                When::Each(masks) => Some(self.any(&masks)?),
            };
            let e = &self.e;
            let copy = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16";
            match some {
                None => e.asm(&format!("{copy};"), "r,l,~{memory}", None, &[to.into(), from.into()], true, false)?,
                Some(some) => {
                    let bytes = e.iselect(some, e.int(VECTOR as i64), e.int(0))?;
                    let args = [to.into(), from.into(), bytes.into()];
                    e.asm(&format!("{copy}, $2;"), "r,l,r,~{memory}", None, &args, true, false)?
                }
            };
        }
        Ok(())
    }
    /// Elements that are not in aligned vectors go through registers.
    fn copy_at_once(
        &mut self,
        tile: Value,
        pointers: &[Pointer<'c>],
        masks: Option<&[IntValue<'c>]>,
        elem: Elem,
    ) -> Res<()> {
        let values = self.load_all(pointers, masks, None, elem, LoadMode::Vectors)?;
        for (n, vector) in values.chunks(VECTOR / elem.bytes()).enumerate() {
            let to = self.own_vector(tile, n)?;
            self.shared_store(to, vector, elem)?;
        }
        Ok(())
    }
    pub fn async_commit(&mut self) -> Res<()> {
        self.e.asm("cp.async.commit_group;", "~{memory}", None, &[], true, false)?;
        Ok(())
    }
    pub fn async_wait(&mut self, pending: u8) -> Res<()> {
        self.e.asm(&format!("cp.async.wait_group {pending};"), "~{memory}", None, &[], true, false)?;
        Ok(())
    }
    pub fn staged_load(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let (tile, result) = (data.args[0], data.results[0]);
        let (elem, registers) = (self.elem(result)?, self.flat(result)?.per_thread());
        if !self.are_private(tile, result) || !(registers * elem.bytes()).is_multiple_of(VECTOR) {
            return self.fragment_load(data);
        }
        let w = Words::of(VECTOR, elem);
        let word = self.word(w);
        let mut out = vec![];
        for n in 0..registers * elem.bytes() / VECTOR {
            let from = self.own_vector(tile, n)?;
            let v = self.e.load(word.vec_type(w.words as u32).into(), from, VECTOR, false)?;
            let words: Vec<Val<'c>> = (0..w.words).map(|i| self.e.element(v, i)).collect::<Res<_>>()?;
            out.extend(self.unpack(&words, elem)?.into_iter().map(|v| Reg::of(v, elem)));
        }
        Ok(out)
    }
    /// Whether every thread has its own part of the tile: the tile has one stage, is only copied to and read, always in
    /// the layout of `like`, and that layout has no replicas.
    fn are_private(&self, tile: Value, like: Value) -> bool {
        let Ok(flat) = self.flat(like) else { return false };
        let mut alike = flat.threads().all(|b| b.is_some());
        self.k.walk(&mut |_, d| {
            let other = match d.op {
                _ if !d.args.contains(&tile) => return,
                Op::SharedLoad => d.results[0],
                Op::AsyncCopy => d.args[2],
                _ => return alike = false,
            };
            alike &= self.flat(other).is_ok_and(|f| f == flat);
        });
        alike && matches!(self.k.ty(tile), Type::Shared { stages: 1, swizzle: Swizzle::None, .. })
    }
    /// Address of the thread's `n`-th vector of a tile: those of a warp are adjacent.
    fn own_vector(&mut self, tile: Value, n: usize) -> Res<PointerValue<'c>> {
        let own = 5 + self.own_warp_bits();
        let weights: Vec<i64> =
            (0..self.threads.bits).map(|i| if i < own { (VECTOR << i) as i64 } else { 0 }).collect();
        let thread = self.threads.sum(&self.e, &weights)?.value(&self.e, &mut self.memo)?;
        let at = self.places.at(tile)? + (n << own) * VECTOR;
        self.shared_at(thread, at)
    }
}
