//! `print` and `assert`: element after element, by functions of this process that generated code calls.
use super::text::{Name, reg};
use super::value::{Form, Val};
use super::{Emit, Res};
use kiln_block::{Elem, InstData, Op, Value};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

/// The functions that code with reports calls.
pub(super) fn functions() -> [(&'static str, usize); 2] {
    [("kiln_print", print as *const () as usize), ("kiln_assert", assert as *const () as usize)]
}

/// The first assertion that failed since it was last taken.
static FAILED: Mutex<Option<String>> = Mutex::new(None);

/// What the first assertion said that has failed since this was last called, in any thread.
pub fn take_failure() -> Option<String> {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Where an element is: its instance, and its coordinates.
#[repr(C)]
struct Place {
    instance: [i64; 3],
    rank: i64,
    /// As many as the rank.
    at: *const i64,
}

impl Place {
    /// # Safety
    /// There are as many coordinates as the rank says.
    unsafe fn coordinates(&self) -> String {
        // SAFETY: this function's contract.
        let at: Vec<String> = (0..self.rank as usize).map(|n| unsafe { *self.at.add(n) }.to_string()).collect();
        at.join(", ")
    }
}

/// Kinds of numbers, by what their 64 bits are.
const NOTHING: i64 = 0;
const SIGNED: i64 = 1;
const UNSIGNED: i64 = 2;
const FLOAT: i64 = 3;

/// # Safety
/// Generated code gives the bytes of a text, and a place.
unsafe extern "C" fn print(text: *const u8, len: i64, place: *const Place, kind: i64, bits: i64) {
    // SAFETY: this function's contract.
    let (text, place) = unsafe { (std::slice::from_raw_parts(text, len as usize), &*place) };
    let [x, y, z] = place.instance;
    // SAFETY: as above.
    let at = unsafe { place.coordinates() };
    let text = String::from_utf8_lossy(text);
    let value = match kind {
        SIGNED => bits.to_string(),
        UNSIGNED => (bits as u64).to_string(),
        FLOAT => format!("{:?}", f64::from_bits(bits as u64)),
        _ => return tell(&format!("pid ({x}, {y}, {z}) {text}\n")),
    };
    tell(&format!("pid ({x}, {y}, {z}) idx ({at}) {text} {value}\n"));
}

fn tell(line: &str) {
    // Nobody can be told that standard output is closed.
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// # Safety
/// As [`print`].
unsafe extern "C" fn assert(text: *const u8, len: i64, place: *const Place) {
    // SAFETY: this function's contract.
    let (text, place) = unsafe { (std::slice::from_raw_parts(text, len as usize), &*place) };
    let [x, y, z] = place.instance;
    // SAFETY: as above.
    let at = unsafe { place.coordinates() };
    let text = String::from_utf8_lossy(text);
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    failed.get_or_insert_with(|| format!("{text}: it does not hold for element ({at}) of instance ({x}, {y}, {z})"));
}

impl Emit<'_> {
    pub fn report(&mut self, data: &InstData) -> Res<()> {
        self.flush()?;
        match &data.op {
            Op::Print(text) if data.args.is_empty() => {
                let (text, len) = self.constant_text(text);
                let place = self.element_place(&[])?;
                self.call_print(&text, len, &place, NOTHING, "0".into());
                Ok(())
            }
            Op::Print(text) => {
                let (value, mask) = (data.args[0], data.args.get(1).copied());
                let (text, len) = self.constant_text(text);
                self.each_element(value, |e, at| {
                    let shown = match mask {
                        Some(mask) => {
                            let mask = e.eval(mask, at)?;
                            e.reg(&mask, 1)
                        }
                        None => "true".into(),
                    };
                    let place = e.element_place(at)?;
                    let (kind, bits) = e.bits(value, at)?;
                    e.when(&shown, |e| e.call_print(&text, len, &place, kind, bits.clone()));
                    Ok(())
                })
            }
            Op::Assert(text) => {
                let [holds, mask @ ..] = &data.args[..] else { return Err("an assertion of nothing".into()) };
                let (text, len) = self.constant_text(text);
                self.each_element(*holds, |e, at| {
                    let holds = e.eval(*holds, at)?;
                    let holds = e.reg(&holds, 1);
                    let d = e.text.depth();
                    let mut fails = e.text.emit(d, format!("xor i1 {holds}, true"));
                    if let [mask, ..] = mask {
                        let mask = e.eval(*mask, at)?;
                        let mask = e.reg(&mask, 1);
                        fails = e.text.emit(d, format!("and i1 {fails}, {mask}"));
                    }
                    let place = e.element_place(at)?;
                    e.when(&fails, |e| {
                        let args = [("ptr", &text[..]), ("i64", &len.to_string()), ("ptr", &place[..])];
                        e.text.call_void(d, "kiln_assert", &args);
                    });
                    Ok(())
                })
            }
            other => Err(format!("{other:?} as a report")),
        }
    }
    /// Text that runs where a condition holds.
    fn when(&mut self, condition: &Name, then: impl FnOnce(&mut Self)) {
        let (d, label) = (self.text.depth(), self.text.label());
        self.text.line(d, format!("br i1 {condition}, label %{label}.do, label %{label}.on"));
        self.text.mark(&format!("{label}.do"));
        then(self);
        self.text.line(d, format!("br label %{label}.on"));
        self.text.mark(&format!("{label}.on"));
    }
    /// A loop over the elements of a value.
    fn each_element(&mut self, value: Value, element: impl Fn(&mut Self, &[Val]) -> Res<()>) -> Res<()> {
        self.memo = vec![Default::default()];
        self.lanes = 1;
        let shape = self.shape(value);
        let mut at: Vec<Val> = vec![Val::int(Elem::I64, 0); shape.len()];
        let mut open = vec![];
        for (a, &n) in shape.iter().enumerate().filter(|(_, n)| **n > 1) {
            let (label, i) = self.text.open_loop();
            self.memo.push(Default::default());
            at[a] = self.counter(&i, 0, 0);
            open.push((label, i, n));
        }
        element(self, &at)?;
        while let Some((label, i, n)) = open.pop() {
            self.memo.pop();
            self.text.close_loop(&label, &i, "0", &n.to_string(), 1);
        }
        self.memo = vec![Default::default()];
        Ok(())
    }
    /// A [`Place`] in memory.
    fn element_place(&mut self, at: &[Val]) -> Res<Name> {
        let rank = at.len();
        let place = self.text.alloca("{ [3 x i64], i64, ptr }", 8);
        let coordinates = self.text.alloca(&format!("[{} x i64]", rank.max(1)), 8);
        let numbers: Vec<Name> = self.pid.iter().map(|p| p.text.clone()).collect();
        let mut words: Vec<(Name, Name)> = vec![];
        for (n, number) in numbers.into_iter().enumerate() {
            words.push((self.at_byte(&place, 8 * n), number));
        }
        words.push((self.at_byte(&place, 24), rank.to_string().into()));
        for (n, v) in at.iter().enumerate() {
            let number = self.as_num(v)?.text;
            words.push((self.at_byte(&coordinates, 8 * n), number));
        }
        let d = self.text.depth();
        for (to, number) in words {
            self.text.line(d, format!("store i64 {number}, ptr {to}"));
        }
        let to = self.at_byte(&place, 32);
        self.text.line(d, format!("store ptr {coordinates}, ptr {to}"));
        Ok(place)
    }
    fn at_byte(&mut self, base: &Name, byte: usize) -> Name {
        let d = self.text.depth();
        self.text.emit(d, format!("getelementptr i8, ptr {base}, i64 {byte}"))
    }
    /// The kind of an element, and its 64 bits.
    fn bits(&mut self, value: Value, at: &[Val]) -> Res<(i64, Name)> {
        let v = self.eval(value, at)?;
        let d = self.text.depth();
        if let Form::Ptr(root, off) = &v.form {
            let off = self.reg(off, 1);
            let address = self.gep(d, super::text::mem(v.elem), root, &off);
            return Ok((UNSIGNED, self.text.emit(d, format!("ptrtoint ptr {address} to i64"))));
        }
        let (name, ty) = (self.reg(&v, 1), reg(v.elem));
        Ok(match ty {
            "i64" => (if v.elem.is_signed() { SIGNED } else { UNSIGNED }, name),
            "double" => (FLOAT, self.text.emit(d, format!("bitcast double {name} to i64"))),
            "float" | "half" | "bfloat" => {
                let wide = self.text.emit(d, format!("fpext {ty} {name} to double"));
                (FLOAT, self.text.emit(d, format!("bitcast double {wide} to i64")))
            }
            _ if v.elem.is_signed() => (SIGNED, self.text.emit(d, format!("sext {ty} {name} to i64"))),
            _ => (UNSIGNED, self.text.emit(d, format!("zext {ty} {name} to i64"))),
        })
    }
    fn call_print(&mut self, text: &str, len: usize, place: &Name, kind: i64, bits: Name) {
        let (len, kind) = (len.to_string(), kind.to_string());
        let args = [("ptr", text), ("i64", &len[..]), ("ptr", &place[..]), ("i64", &kind[..]), ("i64", &bits[..])];
        let d = self.text.depth();
        self.text.call_void(d, "kiln_print", &args);
    }
    /// A constant of the module with the bytes of a text; gives its name, and how many they are.
    fn constant_text(&mut self, text: &str) -> (String, usize) {
        let bytes = text.as_bytes();
        let mut escaped = String::new();
        bytes.iter().for_each(|b| _ = write!(escaped, "\\{b:02X}"));
        let name = format!("kiln_text.{}", self.text.fresh().trim_start_matches('%'));
        let constant = format!("@{name} = private unnamed_addr constant [{} x i8] c\"{escaped}\"\n", bytes.len());
        self.text.add_helper(&name, constant);
        (format!("@{name}"), bytes.len())
    }
}
