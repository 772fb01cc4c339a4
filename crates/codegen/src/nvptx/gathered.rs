//! Loads from few aligned vectors, for elements that are in these but not in order: one of each pair, every second
//! element, one that several registers read. Each vector is read once, and its elements are distributed to the
//! registers.
//!
//! Windows ([`kiln_block::LoadMode::Window`]) are read in the same way.
use super::emit::{Res, Val};
use super::r#gen::Gen;
use super::index::Pointer;
use super::words::Words;
use inkwell::values::IntValue;
use kiln_block::Elem;
use std::cmp::Reverse;

/// A load by aligned vectors.
#[derive(Debug, PartialEq)]
pub(super) struct Gathered<'c> {
    /// Elements per vector.
    n: usize,
    /// Start of each vector, and the condition under which it is read.
    vectors: Vec<(Pointer<'c>, Option<IntValue<'c>>)>,
    /// For each register the vector of its element and the position in it; `None`: no thread has an element.
    places: Vec<Option<(usize, usize)>>,
}

impl<'c> Gathered<'c> {
    /// The fewest vectors, and of equally few the narrowest; `None` unless they are fewer than `others`. For a window
    /// the widest, and at most `others`: the neighbours of an element are what the window's other loads read. Only for
    /// memory that the kernel never writes; all elements of a vector must have the same mask.
    pub fn fewer(
        pointers: &[Pointer<'c>],
        masks: Option<&[IntValue<'c>]>,
        others: usize,
        window: bool,
    ) -> Option<Gathered<'c>> {
        let bytes = pointers.first()?.elem.bytes();
        let align = pointers.iter().map(|p| p.align).min()?.min(16) as usize;
        if others < 2 || !pointers.iter().all(|p| p.readonly) {
            return None;
        }
        let widths = (1..).map(|i| 1 << i).take_while(|n| n * bytes <= align);
        let all = widths.filter_map(|n| Gathered::of(pointers, masks, n));
        if window {
            let best = all.min_by_key(|g| (g.vectors.len(), Reverse(g.n)));
            return best.filter(|g| g.vectors.len() <= others && g.n > 1);
        }
        all.min_by_key(|g| g.vectors.len()).filter(|g| g.vectors.len() < others)
    }
    fn of(pointers: &[Pointer<'c>], masks: Option<&[IntValue<'c>]>, n: usize) -> Option<Gathered<'c>> {
        let mut g = Gathered { n, vectors: vec![], places: vec![] };
        for (i, p) in pointers.iter().enumerate() {
            let mask = masks.map(|m| m[i]).filter(|m| m.get_zero_extended_constant() != Some(1));
            if mask.is_some_and(|m| m.get_zero_extended_constant() == Some(0)) {
                g.places.push(None);
                continue;
            }
            let (place, first) = (p.off.rem_euclid(n as i64), p.off.div_euclid(n as i64) * n as i64);
            let same = |v: &(Pointer<'c>, _)| v.0.base == p.base && v.0.off == first;
            let at = match g.vectors.iter().position(same) {
                Some(at) if g.vectors[at].1 == mask => at,
                Some(_) => return None,
                None => {
                    g.vectors.push((Pointer { off: first, ..*p }, mask));
                    g.vectors.len() - 1
                }
            };
            g.places.push(Some((at, place as usize)));
        }
        Some(g)
    }
}

impl<'c> Gen<'c, '_> {
    /// One value per register, zero where there is none.
    pub fn load_gathered(&mut self, g: &Gathered<'c>, elem: Elem) -> Res<Vec<Val<'c>>> {
        let w = Words::of(g.n * elem.bytes(), elem);
        // All loads are issued before the first result is used.
        let loaded: Vec<_> = g.vectors.iter().map(|(p, m)| self.load_words(*p, *m, w)).collect::<Res<_>>()?;
        let values: Vec<_> = loaded.iter().map(|words| self.unpack(words, elem)).collect::<Res<_>>()?;
        let zero = self.e.elem(elem).const_zero();
        Ok(g.places.iter().map(|p| p.map_or(zero, |(vector, at)| values[vector][at])).collect())
    }
}
