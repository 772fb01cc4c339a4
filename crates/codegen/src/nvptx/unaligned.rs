//! Unaligned loads of 16 bytes: reads the two aligned vectors that contain them, and shifts the bytes into place.
use super::emit::{Res, Val, int};
use super::r#gen::Gen;
use super::index::Pointer;
use super::memory::When;
use super::words::Words;
use inkwell::IntPredicate;
use inkwell::values::IntValue;
use kiln_block::Elem;

const BYTES: usize = 16;

impl<'c> Gen<'c, '_> {
    /// The 32 aligned bytes that contain the 16 from `ptr` on, if all elements of these are inside.
    pub fn load_around(&mut self, ptr: Pointer<'c>, when: &When<'c>, elem: Elem, n: usize) -> Res<Vec<Val<'c>>> {
        let w = Words::of(BYTES, elem);
        // Groups of a block are whole vectors apart, so all have the same misalignment.
        let first = Pointer { off: ptr.off.rem_euclid(n as i64), ..ptr };
        let past = self.past(ptr, n)?;
        let e = &self.e;
        let back = e.sext(e.sub(e.int(0), past)?, e.i64())?;
        let base = e.gep(e.i8().into(), first.value(e)?, back)?;
        let low = Pointer { base, align: BYTES as u64, off: ptr.off - first.off, ..ptr };
        let high = Pointer { off: low.off + n as i64, ..low };
        let crosses = e.icmp(IntPredicate::NE, past, e.int(0))?;
        let (here, next) = match when {
            When::Never => (Some(e.bool(false)), e.bool(false)),
            When::Always => (None, crosses),
            When::If(m) => (Some(*m), e.and(crosses, *m)?),
            When::Each(masks) => {
                let all = self.all(masks)?;
                (Some(all), e.and(crosses, all)?)
            }
        };
        let mut words = self.load_words(low, here, w)?;
        words.extend(self.load_words(high, Some(next), w)?);
        Ok(words)
    }
    /// The `n` elements from `ptr` on, extracted from the words around them; zeros outside of the mask.
    pub fn chosen_around(
        &mut self,
        words: Vec<Val<'c>>,
        (ptr, when): (Pointer<'c>, &When<'c>),
        elem: Elem,
        n: usize,
    ) -> Res<Vec<Val<'c>>> {
        let w = Words::of(BYTES, elem);
        let past = self.past(ptr, n)?;
        let words = self.shifted(words, past, w, elem)?;
        let values = self.unpack(&words, elem)?;
        let When::Each(masks) = when else { return Ok(values) };
        // Few threads are at an end of a row.
        let end = self.e.and(self.any(masks)?, self.e.not(self.all(masks)?)?)?;
        self.in_part(end, values, |g, _| {
            let one = Words::of(elem.bytes(), elem);
            let mut out = vec![];
            for (i, mask) in masks.iter().enumerate() {
                let word = g.load_words(Pointer { off: ptr.off + i as i64, ..ptr }, Some(*mask), one)?;
                out.extend(g.unpack(&word, elem)?);
            }
            Ok(out)
        })
    }
    /// Bytes from the preceding aligned address to `ptr`.
    fn past(&self, ptr: Pointer<'c>, n: usize) -> Res<IntValue<'c>> {
        let e = &self.e;
        let first = Pointer { off: ptr.off.rem_euclid(n as i64), ..ptr };
        let address = e.b.build_ptr_to_int(first.value(e)?, e.i64(), "")?;
        e.and(e.trunc(address, e.i32())?, e.int(BYTES as i64 - 1))
    }
    /// The 16 bytes that start `past` bytes into the 32.
    fn shifted(&self, mut words: Vec<Val<'c>>, past: IntValue<'c>, w: Words, elem: Elem) -> Res<Vec<Val<'c>>> {
        let e = &self.e;
        // By whole words, the largest steps first.
        let mut step = w.words / 2;
        while step > 0 {
            let bit = e.and(past, e.int((step * w.bits / 8) as i64))?;
            let moves = e.icmp(IntPredicate::NE, bit, e.int(0))?;
            words = (0..words.len() - step).map(|i| e.select(moves, words[i + step], words[i])).collect::<Res<_>>()?;
            step /= 2;
        }
        if elem.bytes() * 8 == w.bits {
            words.truncate(w.words);
            return Ok(words);
        }
        let bits = e.shl(e.and(past, e.int(3))?, e.int(3))?;
        let word = self.word(w);
        words
            .windows(2)
            .take(w.words)
            .map(|pair| {
                let (low, high) = (int(pair[0])?, int(pair[1])?);
                e.call("llvm.fshr", &[word.into()], &[high.into(), low.into(), bits.into()])
            })
            .collect()
    }
}
