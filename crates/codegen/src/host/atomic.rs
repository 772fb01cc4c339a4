//! Atomic accesses: element after element, in the order of the program. Instances on other threads see each as one
//! access.
use super::eval::{Buffer, Place};
use super::group::block_elem;
use super::memory::Store;
use super::text::{Name, mem, reg};
use super::value::{Form, Val};
use super::{Emit, Res};
use kiln_block::{AtomicOp, Atomicity, BinaryOp, Elem, InstData, MemoryOrder, Op, Value};

/// An access to an element at an address.
struct Access<'a> {
    elem: Elem,
    at: &'a Name,
    how: Atomicity,
}

impl Emit<'_> {
    pub fn atomic(&mut self, data: &InstData) -> Res<()> {
        let [ptr, operands @ ..] = &data.args[..] else { return Err("an atomic access without a pointer".into()) };
        let swaps = matches!(data.op, Op::CompareSwap { .. });
        let (values, mask) = operands.split_at(operands.len().min(if swaps { 2 } else { 1 }));
        let shape = self.shape(*ptr);
        let result = data.results.first().copied();
        let buffer = match result {
            Some(v) => Some(self.new_buffer(block_elem(self.kernel.ty(v))?, &shape)),
            None => None,
        };
        self.flush()?;
        self.memo = vec![Default::default()];
        self.lanes = 1;
        let mut at: Vec<Val> = vec![Val::int(Elem::I64, 0); shape.len()];
        let mut open = vec![];
        for (a, &n) in shape.iter().enumerate().filter(|(_, n)| **n > 1) {
            let (label, i) = self.text.open_loop();
            self.memo.push(Default::default());
            at[a] = self.counter(&i, 0, 0);
            open.push((label, i, n));
        }
        self.element(data, (*ptr, values, mask.first().copied()), &at, buffer.as_ref())?;
        while let Some((label, i, n)) = open.pop() {
            self.memo.pop();
            self.text.close_loop(&label, &i, "0", &n.to_string(), 1);
        }
        self.memo = vec![Default::default()];
        if let (Some(v), Some(buffer)) = (result, buffer) {
            self.place.insert(v, Place::Buffer(buffer));
        }
        Ok(())
    }
    /// One element: nothing, and 0 as what was there, where the mask is false.
    fn element(
        &mut self,
        data: &InstData,
        (ptr, values, mask): (Value, &[Value], Option<Value>),
        at: &[Val],
        buffer: Option<&Buffer>,
    ) -> Res<()> {
        let p = self.eval(ptr, at)?;
        let values: Vec<Val> = values.iter().map(|v| self.eval(*v, at)).collect::<Res<_>>()?;
        let values: Vec<Name> = values.iter().map(|v| self.reg(v, 1)).collect();
        let mask = mask.map(|m| self.eval(m, at)).transpose()?.filter(|m| !m.is_true());
        let mask = mask.map(|m| self.reg(&m, 1));
        let Form::Ptr(root, off) = &p.form else { return Err("an atomic access to no pointer".into()) };
        let off = self.reg(off, 1);
        let d = self.text.depth();
        let address = self.gep(d, mem(p.elem), root, &off);
        let slot = self.text.alloca(reg(p.elem), 8);
        self.text.line(d, format!("store {} zeroinitializer, ptr {slot}", reg(p.elem)));
        let label = self.text.label();
        let go = mask.unwrap_or_else(|| "true".into());
        self.text.line(d, format!("br i1 {go}, label %{label}.do, label %{label}.on"));
        self.text.mark(&format!("{label}.do"));
        let old = match data.op {
            Op::Atomic { op, how } => self.updated(&Access { elem: p.elem, at: &address, how }, op, &values[0])?,
            Op::CompareSwap { how } => {
                self.swapped(&Access { elem: p.elem, at: &address, how }, &values[0], &values[1])?
            }
            _ => return Err(format!("{:?} as an atomic access", data.op)),
        };
        self.text.line(d, format!("store {} {old}, ptr {slot}", reg(p.elem)));
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark(&format!("{label}.on"));
        let Some(buffer) = buffer else { return Ok(()) };
        let old = self.text.emit(d, format!("load {}, ptr {slot}", reg(p.elem)));
        let old = self.wrap(p.elem, old, 1, d);
        let to = self.linear(&buffer.shape, at);
        self.write(Store::Scratch, &buffer.ptr, &to, &old, None)
    }
    /// What an element was before its update.
    fn updated(&mut self, access: &Access, op: AtomicOp, by: &Name) -> Res<Name> {
        let (d, elem) = (self.text.depth(), access.elem);
        let name = match op {
            AtomicOp::Add if elem.is_half() => return self.added_half(access, by),
            AtomicOp::Add if elem.is_float() => "fadd",
            AtomicOp::Add => "add",
            AtomicOp::Max | AtomicOp::Min if elem.is_float() => {
                return Err(format!("an atomic {op:?} of {elem} on processors"));
            }
            AtomicOp::Max => {
                if elem.is_signed() {
                    "max"
                } else {
                    "umax"
                }
            }
            AtomicOp::Min => {
                if elem.is_signed() {
                    "min"
                } else {
                    "umin"
                }
            }
            AtomicOp::And => "and",
            AtomicOp::Or => "or",
            AtomicOp::Xor => "xor",
            AtomicOp::Exchange => "xchg",
        };
        let (order, at, ty) = (order(access.how), access.at, mem(elem));
        Ok(self.text.emit(d, format!("atomicrmw {name} ptr {at}, {ty} {by} {order}, align {}", elem.bytes())))
    }
    /// Where an element has the expected bits, it gets the new ones.
    fn swapped(&mut self, access: &Access, expected: &Name, new: &Name) -> Res<Name> {
        let (d, ty) = (self.text.depth(), mem(access.elem));
        if access.elem.is_half() {
            let [expected, new] = [expected, new].map(|x| self.pack(d, access.elem, Store::Tensor, x.clone(), 1));
            let old = self.exchange(access, "i16", &expected?, &new?).0;
            return self.unpack(d, access.elem, Store::Tensor, old, 1);
        }
        let word = match access.elem.bytes() {
            8 => "i64",
            2 => "i16",
            _ => "i32",
        };
        let bits = |e: &mut Self, x: &Name| match ty == word {
            true => x.clone(),
            false => e.text.emit(d, format!("bitcast {ty} {x} to {word}")),
        };
        let (expected, new) = (bits(self, expected), bits(self, new));
        let old = self.exchange(access, word, &expected, &new).0;
        Ok(if ty == word { old } else { self.text.emit(d, format!("bitcast {word} {old} to {ty}")) })
    }
    /// What was there, and whether it was as expected.
    fn exchange(&mut self, access: &Access, word: &str, expected: &Name, new: &Name) -> (Name, Name) {
        let (d, at, how) = (self.text.depth(), access.at, order(access.how));
        // A failed exchange writes nothing, so it orders as a load.
        let failed = if access.how.order.acquires() { "acquire" } else { "monotonic" };
        let pair = self.text.emit(
            d,
            format!("cmpxchg ptr {at}, {word} {expected}, {word} {new} {how} {failed}, align {}", access.elem.bytes()),
        );
        let ty = format!("{{ {word}, i1 }}");
        let old = self.text.emit(d, format!("extractvalue {ty} {pair}, 0"));
        (old, self.text.emit(d, format!("extractvalue {ty} {pair}, 1")))
    }
    /// A sum of 16 bits, tried until no other thread comes between.
    fn added_half(&mut self, access: &Access, by: &Name) -> Res<Name> {
        let (d, elem) = (self.text.depth(), access.elem);
        let label = self.text.label();
        let seen = self.text.alloca("i16", 2);
        let first = self.text.emit(d, format!("load atomic i16, ptr {} monotonic, align 2", access.at));
        self.text.line(d, format!("store i16 {first}, ptr {seen}"));
        self.text.line(d, format!("br label %{label}.try"));
        self.text.mark(&format!("{label}.try"));
        let now = self.text.emit(d, format!("load i16, ptr {seen}"));
        let wide = self.unpack(d, elem, Store::Tensor, now.clone(), 1)?;
        let sum = self.binary_reg(BinaryOp::Add, elem, d, &wide, by, 1)?;
        let sum = self.pack(d, elem, Store::Tensor, sum, 1)?;
        let (old, done) = self.exchange(access, "i16", &now, &sum);
        self.text.line(d, format!("store i16 {old}, ptr {seen}"));
        self.text.line(d, format!("br i1 {done}, label %{label}.done, label %{label}.try"));
        self.text.mark(&format!("{label}.done"));
        Ok(wide)
    }
}

/// LLVM's name of an order.
fn order(how: Atomicity) -> &'static str {
    match how.order {
        MemoryOrder::Relaxed => "monotonic",
        MemoryOrder::Acquire => "acquire",
        MemoryOrder::Release => "release",
        MemoryOrder::AcquireRelease => "acq_rel",
    }
}
