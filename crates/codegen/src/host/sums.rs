//! Sums of f32 that are within a rounding or two of exact.
//!
//! A vector accumulator of f32 takes at most [`CHUNK`] terms per lane before it is flushed into lanes of f64, and lanes
//! are added up in f64: a row is rounded to f32 once, whatever its length.
use super::group::{Accumulators, Group, Running, Sink, block_elem};
use super::text::{Name, literal, vector};
use super::{Emit, Res};
use kiln_block::{Elem, ReduceOp};

/// Vectors that an f32 accumulator takes before it is flushed.
pub(super) const CHUNK: usize = 32;

impl Emit<'_> {
    /// Whether lanes of f32 are added up in f64.
    pub fn widens(&self, sink: &Sink) -> bool {
        let Sink::Reduce { op: ReduceOp::Sum, operand, .. } = sink else { return false };
        self.lanes > 1 && block_elem(self.kernel.ty(*operand)) == Ok(Elem::F32)
    }
    /// Lanes of f64 at zero, for accumulators that will be flushed.
    pub fn open_wide(&mut self) -> Name {
        let (d, t) = (self.text.depth(), vector("double", self.lanes));
        let wide = self.text.alloca(&t, 64);
        self.text.line(d, format!("store {t} zeroinitializer, ptr {wide}"));
        wide
    }
    /// Flushes accumulators of f32 into their lanes of f64.
    pub fn empty_into_wide(&mut self, group: &Group, running: &[Running]) -> Res<()> {
        let (d, n) = (self.text.depth(), self.lanes);
        let t = vector("float", n);
        for ((_, sink), run) in group.sinks().iter().zip(running) {
            let (Running::Lanes(acc), Sink::Reduce { op, .. }) = (run, sink) else { continue };
            let Some(wide) = acc.wide.clone() else { continue };
            let sum = self.merged(*op, acc)?.0;
            let sum = self.plus_wide(&sum, Some(&wide));
            self.text.line(d, format!("store {} {sum}, ptr {wide}", vector("double", n)));
            for slot in acc.places() {
                self.text.line(d, format!("store {t} {}, ptr {slot}", literal("float", n, "0.0")));
            }
        }
        Ok(())
    }
    /// Lanes of f32 as f64, plus what was flushed before.
    pub fn plus_wide(&mut self, x: &Name, wide: Option<&Name>) -> Name {
        let (d, n) = (self.text.depth(), self.lanes);
        let t = vector("double", n);
        let x = self.text.emit(d, format!("fpext {} {x} to {t}", vector("float", n)));
        let Some(wide) = wide else { return x };
        let w = self.text.emit(d, format!("load {t}, ptr {wide}"));
        self.text.emit(d, format!("fadd {t} {w}, {x}"))
    }
}

impl Accumulators {
    /// Stack slots of the values.
    fn places(&self) -> impl Iterator<Item = &Name> {
        self.slots.iter().map(|(slot, _)| slot)
    }
}
