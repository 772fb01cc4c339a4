//! Loads of 16 bytes that start at no multiple of 16: the two aligned accesses they lie in, shifted into place.
use super::emit::{Res, Val, int};
use super::r#gen::Gen;
use super::index::Pointer;
use super::memory::{When, Words};
use inkwell::IntPredicate;
use inkwell::values::IntValue;
use kiln_block::Elem;

const BYTES: usize = 16;

impl<'c> Gen<'c, '_> {
    /// `n` elements from `ptr` on, 16 bytes in all; anything where none of them is there.
    pub fn load_anywhere(&mut self, ptr: Pointer<'c>, when: &When<'c>, elem: Elem, n: usize) -> Res<Vec<Val<'c>>> {
        let e = &self.e;
        let w = Words::of(BYTES, elem);
        // Groups of a block lie whole vectors apart, so all of them are as far from an aligned address.
        let first = Pointer { off: ptr.off.rem_euclid(n as i64), ..ptr };
        let address = e.b.build_ptr_to_int(first.value(e)?, e.i64(), "")?;
        let past = e.and(e.trunc(address, e.i32())?, e.int(BYTES as i64 - 1))?;
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
                let (mut here, mut next) = (e.bool(false), e.bool(false));
                for (i, m) in masks.iter().enumerate() {
                    let end = e.int((BYTES - i * elem.bytes()) as i64);
                    let inside = e.icmp(IntPredicate::ULT, past, end)?;
                    here = e.or(here, e.and(*m, inside)?)?;
                    next = e.or(next, e.and(*m, e.not(inside)?)?)?;
                }
                (Some(here), next)
            }
        };
        let mut words = self.load_words(low, here, w)?;
        words.extend(self.load_words(high, Some(next), w)?);
        let words = self.shifted(words, past, w, elem)?;
        self.unpack(&words, elem)
    }
    /// The 16 bytes that start `past` bytes into twice as many.
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
