//! Loads and stores of lanes: contiguous, forwards or backwards, uniform, or one address per lane; masked or not.
use super::scattered::Scattered;
use super::short_float::by_integers;
use super::text::{Name, literal, mem, reg, suffix, vector};
use super::value::{Form, Val};
use super::{Emit, Res};
use kiln_block::{
    Elem,
    ops::{FAULT_INDEX_BITS, fault_site},
};

/// How elements are stored: as in tensors, or in scratch memory as registers hold them (half types as f32).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Store {
    Tensor,
    Scratch,
}
/// When a load is executed, and what it gives otherwise.
#[derive(Clone, Copy, Default)]
pub(super) struct Guard<'a> {
    pub mask: Option<&'a Val>,
    pub other: Option<&'a Val>,
    /// Emit in the innermost scope: the memory changes there, or an assumption of that scope makes the load safe.
    pub pin: bool,
}
impl Guard<'_> {
    pub fn pinned() -> Self {
        Guard { pin: true, ..Guard::default() }
    }
}

impl Store {
    pub fn ty(self, e: Elem) -> &'static str {
        match self {
            Store::Tensor => mem(e),
            Store::Scratch if e == Elem::Bool => "i8",
            Store::Scratch => reg(e),
        }
    }
    pub fn bytes(self, e: Elem) -> usize {
        match self {
            Store::Scratch => e.compute().bytes(),
            Store::Tensor => e.bytes(),
        }
    }
}

/// Contiguous elements, one for each lane.
struct Run {
    /// Offset of the element at the lowest address.
    first: Name,
    /// Whether that is the last lane's.
    backwards: bool,
}

impl Emit<'_> {
    /// Memory to register.
    pub fn unpack(&mut self, d: usize, e: Elem, kind: Store, x: Name, n: usize) -> Res<Name> {
        let (i16s, i32s, f) = (vector("i16", n), vector("i32", n), vector("float", n));
        Ok(match (e, kind) {
            (Elem::Bool, _) => self.text.emit(d, format!("icmp ne {} {x}, {}", vector("i8", n), literal("i8", n, "0"))),
            (_, Store::Scratch) => x,
            (Elem::Bf16, _) => {
                let w = self.text.emit(d, format!("zext {i16s} {x} to {i32s}"));
                let s = self.text.emit(d, format!("shl {i32s} {w}, {}", literal("i32", n, "16")));
                self.text.emit(d, format!("bitcast {i32s} {s} to {f}"))
            }
            (Elem::F16, _) if self.machine.f16c => {
                let h = vector("half", n);
                let b = self.text.emit(d, format!("bitcast {i16s} {x} to {h}"));
                self.text.emit(d, format!("fpext {h} {b} to {f}"))
            }
            (e, _) => match by_integers(e) {
                Some(format) => self.short_unpack(d, format, &x, n),
                None => x,
            },
        })
    }
    /// Register to memory; half types hold rounded values already.
    pub fn pack(&mut self, d: usize, e: Elem, kind: Store, x: Name, n: usize) -> Res<Name> {
        let (i16s, i32s, f) = (vector("i16", n), vector("i32", n), vector("float", n));
        Ok(match (e, kind) {
            (Elem::Bool, _) => self.text.emit(d, format!("zext {} {x} to {}", vector("i1", n), vector("i8", n))),
            (_, Store::Scratch) => x,
            (Elem::Bf16, _) => {
                let b = self.text.emit(d, format!("bitcast {f} {x} to {i32s}"));
                let s = self.text.emit(d, format!("lshr {i32s} {b}, {}", literal("i32", n, "16")));
                self.text.emit(d, format!("trunc {i32s} {s} to {i16s}"))
            }
            (Elem::F16, _) if self.machine.f16c => {
                let h = vector("half", n);
                let b = self.text.emit(d, format!("fptrunc {f} {x} to {h}"));
                self.text.emit(d, format!("bitcast {h} {b} to {i16s}"))
            }
            (e, _) => match by_integers(e) {
                Some(format) => self.short_pack(d, format, &x, n),
                None => x,
            },
        })
    }
    pub fn gep(&mut self, d: usize, ty: &str, root: &Name, off: &str) -> Name {
        self.text.emit(d, format!("getelementptr {ty}, ptr {root}, i64 {off}"))
    }
    fn gep_lanes(&mut self, d: usize, ty: &str, root: &Name, off: &Val) -> Name {
        let n = self.lanes;
        let o = self.reg(off, n);
        self.text.emit(d, format!("getelementptr {ty}, ptr {root}, <{n} x i64> {o}"))
    }
    /// The contiguous elements at these offsets, if they are contiguous.
    fn run(&mut self, d: usize, off: &Val) -> Option<Run> {
        match &off.form {
            Form::Lanes(b, 1) => Some(Run { first: b.text.clone(), backwards: false }),
            Form::Lanes(b, -1) => {
                let back = 1 - self.lanes as i64;
                Some(Run { first: self.text.emit(d, format!("add i64 {}, {back}", b.text)), backwards: true })
            }
            _ => None,
        }
    }
    /// A vector of lanes in the order of memory, or the other way round.
    fn turned(&mut self, d: usize, ty: &str, run: &Run, x: Name) -> Name {
        if !run.backwards {
            return x;
        }
        let (t, n) = (vector(ty, self.lanes), self.lanes);
        let order = (0..n).rev().map(|i| format!("i32 {i}")).collect::<Vec<_>>().join(", ");
        self.text.emit(d, format!("shufflevector {t} {x}, {t} poison, <{n} x i32> <{order}>"))
    }
    /// A dummy location to read and write when a uniform mask is false.
    fn nowhere(&mut self) -> Name {
        if self.dummy.is_none() {
            self.dummy = Some(self.text.alloca("i64", 8));
        }
        self.dummy.clone().unwrap_or_else(|| "null".into())
    }

    /// Reads; gives `other` (default: 0) where the mask is false.
    pub fn read(&mut self, e: Elem, kind: Store, root: &Name, off: &Val, guard: Guard) -> Res<Val> {
        let Guard { mask, other, pin } = guard;
        let mask = mask.filter(|m| !m.is_true());
        let mut d = off.depth.max(mask.map_or(0, |m| m.depth)).max(other.map_or(0, |o| o.depth));
        if pin {
            d = self.text.depth();
        }
        let ty = kind.ty(e);
        let zero = match e {
            e if e.is_float() => "0.0",
            Elem::Bool => "false",
            _ => "0",
        };
        let zero = Val { elem: e, form: Form::Scalar(zero.into()), depth: 0 };
        let other = other.unwrap_or(&zero);
        if let Form::Num(n) = &off.form {
            let p = self.gep(d, ty, root, &n.text);
            return match mask {
                Some(mask) => {
                    let x = self.read_if_any(e, kind, (d, p), mask)?;
                    self.select(mask, &x, other)
                }
                None => self.read_one(e, kind, d, &p),
            };
        }
        let n = self.lanes;
        let x = self.read_lanes(e, kind, (d, root), off, mask);
        let x = self.unpack(d, e, kind, x, n)?;
        let v = Val { elem: e, form: Form::Vec(x), depth: d };
        match mask {
            Some(m) if !matches!(&other.form, Form::Scalar(s) if matches!(&**s, "0.0" | "0" | "false")) => {
                self.select(m, &v, other)
            }
            _ => Ok(v),
        }
    }
    /// The element at an address.
    fn read_one(&mut self, e: Elem, kind: Store, d: usize, p: &Name) -> Res<Val> {
        let x = self.text.emit(d, format!("load {}, ptr {p}", kind.ty(e)));
        let x = self.unpack(d, e, kind, x, 1)?;
        Ok(self.wrap(e, x, 1, d))
    }
    /// The element at an address where any lane of the mask is set; else what a dummy location has.
    fn read_if_any(&mut self, e: Elem, kind: Store, (d, p): (usize, Name), mask: &Val) -> Res<Val> {
        let any = if mask.uniform() {
            self.reg(mask, 1)
        } else {
            let m = self.reg(mask, self.lanes);
            let t = vector("i1", self.lanes);
            self.text.call(d, "i1", &format!("llvm.vector.reduce.or.v{}i1", self.lanes), &[(&t, &m)])
        };
        let safe = self.nowhere();
        let p = self.text.emit(d, format!("select i1 {any}, ptr {p}, ptr {safe}"));
        self.read_one(e, kind, d, &p)
    }
    /// A vector of lanes at offsets from `root`, as memory has it: a run, or gathered; zero where the mask is false.
    fn read_lanes(&mut self, e: Elem, kind: Store, (d, root): (usize, &Name), off: &Val, mask: Option<&Val>) -> Name {
        let (n, ty) = (self.lanes, kind.ty(e));
        let (t, mt) = (vector(ty, n), vector("i1", n));
        match (self.run(d, off), mask) {
            (Some(run), None) => {
                let p = self.gep(d, ty, root, &run.first);
                let x = self.text.emit(d, format!("load {t}, ptr {p}, align {}", kind.bytes(e)));
                self.turned(d, ty, &run, x)
            }
            (Some(run), Some(m)) => {
                let m = self.reg(m, n);
                let m = self.turned(d, "i1", &run, m);
                let p = self.gep(d, ty, root, &run.first);
                let ptr = format!("ptr align {}", kind.bytes(e));
                let name = format!("llvm.masked.load.{}.p0", suffix(ty, n));
                let x = self.text.call(d, &t, &name, &[(&ptr, &p), (&mt, &m), (&t, "zeroinitializer")]);
                self.turned(d, ty, &run, x)
            }
            (None, m) => {
                let mask = m.map(|m| self.reg(m, n));
                let offsets = self.reg(off, n);
                let load = Scattered { ty, align: kind.bytes(e), root, offsets, mask };
                let unknown = matches!(off.form, Form::Vec(_)) && kind == Store::Tensor && n > 1;
                if unknown && self.kernel.has_launch_values() {
                    self.gather_or_load(d, &load)
                } else {
                    self.gather(d, &load)
                }
            }
        }
    }

    /// Writes in the innermost open scope.
    pub fn write(&mut self, kind: Store, root: &Name, off: &Val, v: &Val, mask: Option<&Val>) -> Res<()> {
        let d = self.text.depth();
        let (e, ty) = (v.elem, kind.ty(v.elem));
        let mask = mask.filter(|m| !m.is_true());
        let all_uniform = v.uniform() && mask.is_none_or(|m| m.uniform());
        if let (Form::Num(o), true) = (&off.form, all_uniform) {
            let x = self.reg(v, 1);
            let x = self.pack(d, e, kind, x, 1)?;
            let mut p = self.gep(d, ty, root, &o.text);
            if let Some(m) = mask {
                let m = self.reg(m, 1);
                let safe = self.nowhere();
                p = self.text.emit(d, format!("select i1 {m}, ptr {p}, ptr {safe}"));
            }
            self.text.line(d, format!("store {ty} {x}, ptr {p}"));
            return Ok(());
        }
        let n = self.lanes;
        let (t, mt) = (vector(ty, n), vector("i1", n));
        let x = self.reg(v, n);
        let x = self.pack(d, e, kind, x, n)?;
        match (self.run(d, off), mask) {
            (Some(run), None) => {
                let x = self.turned(d, ty, &run, x);
                let p = self.gep(d, ty, root, &run.first);
                self.text.line(d, format!("store {t} {x}, ptr {p}, align {}", kind.bytes(e)));
            }
            (Some(run), Some(m)) => {
                let m = self.reg(m, n);
                let (x, m) = (self.turned(d, ty, &run, x), self.turned(d, "i1", &run, m));
                let p = self.gep(d, ty, root, &run.first);
                let ptr = format!("ptr align {}", kind.bytes(e));
                let name = format!("llvm.masked.store.{}.p0", suffix(ty, n));
                self.text.call_void(d, &name, &[(&t, &x), (&ptr, &p), (&mt, &m)]);
            }
            (None, m) => {
                let m = match m {
                    Some(m) => self.reg(m, n),
                    None => literal("i1", n, "true"),
                };
                let p = self.gep_lanes(d, ty, root, off);
                let ptr = format!("{} align {}", vector("ptr", n), kind.bytes(e));
                let name = format!("llvm.masked.scatter.{}.v{n}p0", suffix(ty, n));
                self.text.call_void(d, &name, &[(&t, &x), (&ptr, &p), (&mt, &m)]);
            }
        }
        Ok(())
    }

    /// Writes the largest fault of the lanes where `bad` and the mask hold to `to`, behind a branch that is hardly ever
    /// taken.
    pub fn check(&mut self, to: &Val, [bad, index]: [&Val; 2], mask: Option<&Val>, site: u32) -> Res<()> {
        let Form::Ptr(root, off) = &to.form else { return Err("a check that writes to no pointer".into()) };
        let Form::Num(off) = &off.form else { return Err("a check that writes to many places".into()) };
        let mask = mask.filter(|m| !m.is_true());
        let uniform = [Some(bad), Some(index), mask].iter().flatten().all(|v| v.uniform());
        let (n, d) = (if uniform { 1 } else { self.lanes }, self.text.depth());
        let (mut bad, index) = (self.reg(bad, n), self.reg(index, n));
        let (bools, words) = (vector("i1", n), vector("i64", n));
        if let Some(m) = mask {
            let m = self.reg(m, n);
            bad = self.text.emit(d, format!("and {bools} {bad}, {m}"));
        }
        let any = match n {
            1 => bad.clone(),
            _ => self.text.call(d, "i1", &format!("llvm.vector.reduce.or.v{n}i1"), &[(&bools, &bad)]),
        };
        let label = self.text.label();
        self.text.line(d, format!("br i1 {any}, label %{label}.bad, label %{label}.on"));
        self.text.mark(&format!("{label}.bad"));
        let last = (1i64 << (FAULT_INDEX_BITS - 1)) - 1;
        let of = |v: i64| literal("i64", n, &v.to_string());
        let v = suffix("i64", n);
        let low = self.text.call(d, &words, &format!("llvm.smax.{v}"), &[(&words, &index), (&words, &of(-last - 1))]);
        let kept = self.text.call(d, &words, &format!("llvm.smin.{v}"), &[(&words, &low), (&words, &of(last))]);
        let bits = self.text.emit(d, format!("and {words} {kept}, {}", of((1 << FAULT_INDEX_BITS) - 1)));
        let fault = self.text.emit(d, format!("or {words} {bits}, {}", of(fault_site(site))));
        let some = self.text.emit(d, format!("select {bools} {bad}, {words} {fault}, {words} {}", of(0)));
        let most = match n {
            1 => some,
            _ => self.text.call(d, "i64", &format!("llvm.vector.reduce.umax.v{n}i64"), &[(&words, &some)]),
        };
        let p = self.gep(d, "i64", root, &off.text);
        self.text.line(d, format!("store atomic i64 {most}, ptr {p} monotonic, align 8"));
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark(&format!("{label}.on"));
        Ok(())
    }
}
