//! Atomic accesses that give what was in memory before (`atom`): updates and compare-and-swap.
//!
//! One thread accesses an element. Threads that hold copies of it get what it was through shared memory. An access that
//! releases waits for all threads of the instance first, and after one that acquires all wait for it.
use super::emit::{Fail, Res, Val, int, mistyped};
use super::exchange::Placement;
use super::r#gen::Gen;
use super::index::{Pointer, Reg};
use inkwell::values::IntValue;
use kiln_block::layout::Flat;
use kiln_block::{AtomicOp, Atomicity, Elem, InstData, MemoryOrder, Scope};

/// How memory changes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Access {
    Update(AtomicOp),
    CompareSwap,
}

impl Access {
    /// The instruction that gives the new element from the old one, where memory has none for the update: it is
    /// repeated until no other thread comes between.
    fn repeated(self, elem: Elem) -> Option<&'static str> {
        match (self, elem) {
            (Access::Update(AtomicOp::Max), Elem::F16) => Some("max.f16"),
            (Access::Update(AtomicOp::Min), Elem::F16) => Some("min.f16"),
            (Access::Update(AtomicOp::Max), Elem::Bf16) => Some("max.bf16"),
            (Access::Update(AtomicOp::Min), Elem::Bf16) => Some("min.bf16"),
            _ => None,
        }
    }
    /// Name and type of the instruction.
    fn instruction(self, elem: Elem, arch: kiln_machine::Arch) -> Res<String> {
        let bits = 8 * elem.bytes();
        let sign = if elem.is_signed() { 's' } else { 'u' };
        let text = match (self, elem) {
            _ if self.repeated(elem).is_some() => "cas.b16".into(),
            (Access::CompareSwap, _) => format!("cas.b{bits}"),
            (Access::Update(AtomicOp::Add), Elem::F16) => "add.noftz.f16".into(),
            (Access::Update(AtomicOp::Add), Elem::Bf16) if arch.has_clusters() => "add.noftz.bf16".into(),
            (Access::Update(AtomicOp::Add), Elem::F32 | Elem::F64) => format!("add.f{bits}"),
            (Access::Update(AtomicOp::Add), e) if e.is_int() => format!("add.u{bits}"),
            (Access::Update(AtomicOp::Max), _) => format!("max.{sign}{bits}"),
            (Access::Update(AtomicOp::Min), _) => format!("min.{sign}{bits}"),
            (Access::Update(AtomicOp::And), _) => format!("and.b{bits}"),
            (Access::Update(AtomicOp::Or), _) => format!("or.b{bits}"),
            (Access::Update(AtomicOp::Xor), _) => format!("xor.b{bits}"),
            (Access::Update(AtomicOp::Exchange), _) => format!("exch.b{bits}"),
            (Access::Update(op), e) => return Err(Fail::Unsupported(format!("an atomic {op:?} of {e}"))),
        };
        Ok(text)
    }
}

/// Order and scope as PTX names them.
fn suffix(how: Atomicity) -> String {
    let order = match how.order {
        MemoryOrder::Relaxed => "relaxed",
        MemoryOrder::Acquire => "acquire",
        MemoryOrder::Release => "release",
        MemoryOrder::AcquireRelease => "acq_rel",
    };
    let scope = match how.scope {
        Scope::Block => "cta",
        Scope::Device => "gpu",
        Scope::System => "sys",
    };
    format!("{order}.{scope}")
}

impl<'c> Gen<'c, '_> {
    pub fn fetched(&mut self, access: Access, how: Atomicity, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let elem = self.elem(data.args[1])?;
        let name = format!("atom.{}.global.{}", suffix(how), access.instruction(elem, self.m.arch)?);
        let expected = if access == Access::CompareSwap { Some(self.plain(data.args[1])?) } else { None };
        // The new values come last, where a mask may follow.
        let args = match access {
            Access::CompareSwap => vec![data.args[0], data.args[2]],
            Access::Update(_) => data.args.clone(),
        };
        let (pointers, values, masks) = self.written(&InstData { args, ..data.clone() })?;
        match how.order.releases() {
            true => self.sync()?,
            false => self.after_reads(data.args[0])?,
        }
        let mut before = vec![];
        for (i, p) in pointers.iter().enumerate() {
            let mask = masks.as_ref().map(|m| m[i]);
            let operands: Vec<Val<'c>> =
                expected.iter().map(|e| e[i]).chain([values[i]]).map(|v| self.bits(v, elem)).collect::<Res<_>>()?;
            before.push(self.access((&name, access.repeated(elem)), *p, &operands, mask)?);
        }
        self.wrote = true;
        if how.order.acquires() {
            self.sync()?;
        }
        let flat = self.flat(data.args[0])?;
        let before = match self.first_copy(&flat)? {
            Some(first) if !data.results.is_empty() => self.given_to_copies(&flat, elem, first, &before)?,
            _ => before,
        };
        before.into_iter().map(|v| Ok(Reg::of(self.e.bitcast(v, self.e.elem(elem))?, elem))).collect()
    }
    /// An element's bits as an integer.
    fn bits(&self, v: Val<'c>, elem: Elem) -> Res<Val<'c>> {
        match elem.bytes() {
            8 => self.e.bitcast(v, self.e.i64()),
            4 => self.e.bitcast(v, self.e.i32()),
            _ => self.e.bitcast(v, self.e.cx.i16_type()),
        }
    }
    /// One access of a thread, under its mask; what was there, in an integer. `repeated`: what gives the new element.
    fn access(
        &self,
        (name, repeated): (&str, Option<&str>),
        p: Pointer<'c>,
        operands: &[Val<'c>],
        mask: Option<IntValue<'c>>,
    ) -> Res<Val<'c>> {
        let (letter, ty) = match p.elem.bytes() {
            8 => ('l', "b64"),
            4 => ('r', "b32"),
            _ => ('h', "b16"),
        };
        let at = p.elem.bytes() as i64 * p.off;
        let list =
            |first: usize| (first..first + operands.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
        let text = match (mask, repeated) {
            (_, Some(update)) => {
                let first = if mask.is_some() { 2 } else { 1 };
                let skip = if mask.is_some() { "mov.b16 $0, 0; @!$1 bra DONE; " } else { "" };
                format!(
                    "{{ .reg .b16 %new, %seen; .reg .pred %again; {skip}\
                     ld.relaxed.sys.global.b16 $0, [${first} + {at}]; \
                     TRY: {update} %new, $0, ${}; {name} %seen, [${first} + {at}], $0, %new; \
                     setp.ne.u16 %again, %seen, $0; mov.b16 $0, %seen; @%again bra TRY; DONE: }}",
                    first + 1
                )
            }
            (Some(_), None) => format!("{{ mov.{ty} $0, 0; @$1 {name} $0, [$2 + {at}], {}; }}", list(3)),
            (None, None) => format!("{name} $0, [$1 + {at}], {};", list(2)),
        };
        let guard = if mask.is_some() { "b," } else { "" };
        let inputs = vec![letter.to_string(); operands.len()].join(",");
        let constraints = format!("=&{letter},{guard}l,{inputs},~{{memory}}");
        let mut args: Vec<Val<'c>> = mask.map(Into::into).into_iter().chain([p.base.into()]).collect();
        args.extend(operands);
        let old = self.e.asm(&text, &constraints, Some(operands[0].get_type()), &args, true, false)?;
        old.ok_or_else(|| mistyped("an atomic access"))
    }
    /// What the first threads have, in those that hold copies of the same elements.
    fn given_to_copies(
        &mut self,
        flat: &Flat,
        elem: Elem,
        first: IntValue<'c>,
        values: &[Val<'c>],
    ) -> Res<Vec<Val<'c>>> {
        let bits = flat.registers.iter().copied().chain(flat.threads().flatten()).max().map_or(0, |b| b as usize + 1);
        let place = Placement { weights: (0..bits).map(|b| 1 << b).collect(), elements: 1 << bits };
        let start = self.room(&[place.elements * elem.bytes()])?[0];
        let at = self.scratch_base(flat, &place, elem)?;
        let of = |r: usize| start + place.at(flat.register(r)) * elem.bytes();
        let (own, then) = (self.new_block("own"), self.new_block("copies"));
        self.e.b.build_conditional_branch(first, own, then)?;
        self.e.b.position_at_end(own);
        for (r, v) in values.iter().enumerate() {
            let ptr = self.shared_at(at, of(r))?;
            self.e.store(int(*v)?.into(), ptr, elem.bytes())?;
        }
        self.e.b.build_unconditional_branch(then)?;
        self.e.b.position_at_end(then);
        self.filled()?;
        let mut all = vec![];
        for (r, v) in values.iter().enumerate() {
            let ptr = self.shared_at(at, of(r))?;
            all.push(self.e.b.build_load(v.get_type(), ptr, "")?);
        }
        Ok(all)
    }
}
