//! Loads at offsets of which nothing is known, as a vector where they turn out to be neighbours.
//!
//! Hand-written kernels wrap indices (`i % n`), choose them (`where(i < n, i, 0)`) or read them from memory. Mostly
//! they are neighbours all the same, and a gather takes ten times as long as a load. Where offsets are kept in memory,
//! it is kept with them which vectors are those of neighbours ([`Run`]).
use super::Emit;
use super::text::{Name, literal, suffix, vector};
use super::value::{Num, Run};

/// Lanes of one load.
pub(super) struct Scattered<'a> {
    /// Type and alignment of an element in memory.
    pub ty: &'a str,
    pub align: usize,
    pub root: &'a Name,
    /// A vector of offsets in elements.
    pub offsets: Name,
    /// Lanes outside of it are zero.
    pub mask: Option<Name>,
}

impl Emit<'_> {
    /// One address a lane.
    pub fn gather(&mut self, d: usize, load: &Scattered) -> Name {
        let (n, ty) = (self.lanes, load.ty);
        let (t, pointers) = (vector(ty, n), format!("{} align {}", vector("ptr", n), load.align));
        let mask = load.mask.clone().unwrap_or_else(|| literal("i1", n, "true"));
        let p = self.text.emit(d, format!("getelementptr {ty}, ptr {}, <{n} x i64> {}", load.root, load.offsets));
        let name = format!("llvm.masked.gather.{}.v{n}p0", suffix(ty, n));
        self.text.call(d, &t, &name, &[(&pointers, &p), (&vector("i1", n), &mask), (&t, "zeroinitializer")])
    }
    /// One load if the offsets are those of neighbours.
    pub fn gather_or_load(&mut self, d: usize, load: &Scattered) -> Name {
        let (n, ty) = (self.lanes, load.ty);
        let t = vector(ty, n);
        let Run { first, neighbours } = match self.runs.get(&load.offsets) {
            Some(run) => run.clone(),
            None => self.find_run(d, "i64", &load.offsets),
        };
        let label = self.text.label();
        self.text.line(d, format!("br i1 {neighbours}, label %{label}.row, label %{label}.each"));
        self.text.mark_at(d, &format!("{label}.row"));
        let p = self.gep(d, ty, load.root, &first.text);
        let row = match &load.mask {
            None => self.text.emit(d, format!("load {t}, ptr {p}, align {}", load.align)),
            Some(mask) => {
                let ptr = format!("ptr align {}", load.align);
                let name = format!("llvm.masked.load.{}.p0", suffix(ty, n));
                let mask_type = vector("i1", n);
                self.text.call(d, &t, &name, &[(&ptr, &p), (&mask_type, mask), (&t, "zeroinitializer")])
            }
        };
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark_at(d, &format!("{label}.each"));
        let lanes = self.gather(d, load);
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark_at(d, &format!("{label}.on"));
        self.text.emit(d, format!("phi {t} [ {row}, %{label}.row ], [ {lanes}, %{label}.each ]"))
    }
    /// Whether integers of a vector are those of neighbours.
    pub fn find_run(&mut self, d: usize, ty: &str, offsets: &Name) -> Run {
        let n = self.lanes;
        let t = vector(ty, n);
        let first = self.text.emit(d, format!("extractelement {t} {offsets}, i64 0"));
        let all = self.splat(ty, &first, n, d);
        let steps: Vec<String> = (0..n).map(|lane| format!("{ty} {lane}")).collect();
        let row = self.text.emit(d, format!("add {t} {all}, <{}>", steps.join(", ")));
        let same = self.text.emit(d, format!("icmp eq {t} {row}, {offsets}"));
        let bits = self.text.emit(d, format!("bitcast <{n} x i1> {same} to i{n}"));
        Run { first: Num::opaque(first), neighbours: self.text.emit(d, format!("icmp eq i{n} {bits}, -1")) }
    }
}
