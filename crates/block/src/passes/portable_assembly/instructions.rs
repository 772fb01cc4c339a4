//! What instructions of PTX mean, as a table: the name without its type and the words that only say how exact it is.
use super::{Translation, unsigned};
use crate::{BinaryOp, Const, Elem, Op, UnaryOp, Value};

/// What an instruction does with its sources, in the type of its name.
#[derive(Clone, Copy)]
enum Meaning {
    Move,
    Unary(UnaryOp),
    Binary(BinaryOp),
    Reciprocal,
    Fma,
    /// A function of three bits, given by its table.
    Lookup,
    /// Bytes chosen from two words.
    Bytes,
    /// A shift of two words by a count that wraps: left or right.
    ShiftLeft,
    ShiftRight,
}

/// Words of names that change no meaning here.
const PRECISION: [&str; 6] = ["rn", "ftz", "approx", "full", "sync", "aligned"];
/// Instructions whose effect a processor's instance, a single thread, has already.
const NOTHING: [&str; 4] = ["bar.sync", "barrier.sync", "griddepcontrol.wait", "griddepcontrol.launch_dependents"];

const FLOATS: &[(&str, Meaning)] = &[
    ("add", Meaning::Binary(BinaryOp::Add)),
    ("sub", Meaning::Binary(BinaryOp::Sub)),
    ("mul", Meaning::Binary(BinaryOp::Mul)),
    ("div", Meaning::Binary(BinaryOp::DivRn)),
    ("max", Meaning::Binary(BinaryOp::MaxNum)),
    ("min", Meaning::Binary(BinaryOp::MinNum)),
    ("max.NaN", Meaning::Binary(BinaryOp::Max)),
    ("min.NaN", Meaning::Binary(BinaryOp::Min)),
    ("fma", Meaning::Fma),
    ("mov", Meaning::Move),
    ("neg", Meaning::Unary(UnaryOp::Neg)),
    ("abs", Meaning::Unary(UnaryOp::Abs)),
    ("ex2", Meaning::Unary(UnaryOp::Exp2)),
    ("lg2", Meaning::Unary(UnaryOp::Log2)),
    ("sin", Meaning::Unary(UnaryOp::Sin)),
    ("cos", Meaning::Unary(UnaryOp::Cos)),
    ("tanh", Meaning::Unary(UnaryOp::Tanh)),
    ("sqrt", Meaning::Unary(UnaryOp::SqrtRn)),
    ("rsqrt", Meaning::Unary(UnaryOp::Rsqrt)),
    ("rcp", Meaning::Reciprocal),
];

const INTEGERS: &[(&str, Meaning)] = &[
    ("mov", Meaning::Move),
    ("add", Meaning::Binary(BinaryOp::Add)),
    ("sub", Meaning::Binary(BinaryOp::Sub)),
    ("mul.lo", Meaning::Binary(BinaryOp::Mul)),
    ("mul.hi", Meaning::Binary(BinaryOp::MulHi)),
    ("max", Meaning::Binary(BinaryOp::Max)),
    ("min", Meaning::Binary(BinaryOp::Min)),
    ("and", Meaning::Binary(BinaryOp::And)),
    ("or", Meaning::Binary(BinaryOp::Or)),
    ("xor", Meaning::Binary(BinaryOp::Xor)),
    ("not", Meaning::Unary(UnaryOp::Not)),
    ("neg", Meaning::Unary(UnaryOp::Neg)),
    ("abs", Meaning::Unary(UnaryOp::Abs)),
    ("shl", Meaning::Binary(BinaryOp::Shl)),
    ("shr", Meaning::Binary(BinaryOp::Shr)),
    ("lop3", Meaning::Lookup),
    ("prmt", Meaning::Bytes),
    ("shf.l.wrap", Meaning::ShiftLeft),
    ("shf.r.wrap", Meaning::ShiftRight),
];

/// The type at the end of a name.
fn typed(suffix: &str) -> Option<Elem> {
    Some(match suffix {
        "f64" => Elem::F64,
        "f32" => Elem::F32,
        "f16" => Elem::F16,
        "bf16" => Elem::Bf16,
        "s64" => Elem::I64,
        "s32" => Elem::I32,
        "s16" => Elem::I16,
        "s8" => Elem::I8,
        "u64" | "b64" => Elem::U64,
        "u32" | "b32" => Elem::U32,
        "u16" | "b16" => Elem::U16,
        "u8" | "b8" => Elem::U8,
        _ => return None,
    })
}

/// A name and its operands, the destination first.
pub struct Line {
    name: String,
    operands: Vec<String>,
}

/// The instructions of a text, without comments, braces around it and declarations of registers.
pub fn lines(text: &str) -> Vec<Line> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join(" ");
    let code = code.trim();
    let code = code.strip_prefix('{').and_then(|code| code.strip_suffix('}')).unwrap_or(code);
    let parts = code.split(';').map(str::trim).filter(|part| !part.is_empty() && !part.starts_with(".reg"));
    parts
        .map(|part| {
            let (name, rest) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
            let operands = rest.split(',').map(|operand| operand.trim().to_string()).collect();
            Line { name: name.to_string(), operands }
        })
        .collect()
}

/// A number as PTX writes it: `0f3F800000`, `0x1F`, `0b101`, `-3`.
fn literal(text: &str, elem: Elem) -> Option<Const> {
    let digits = |prefix: &str, radix: u32| {
        let digits = text.strip_prefix(prefix)?;
        i64::from_str_radix(digits, radix).ok()
    };
    if let Some(bits) = digits("0f", 16).or_else(|| digits("0F", 16)) {
        return Some(Const::Float(f64::from(f32::from_bits(bits as u32))));
    }
    let value = digits("0x", 16).or_else(|| digits("0b", 2)).or_else(|| text.parse().ok());
    let float = || text.parse().ok().filter(|_| elem.is_float()).map(Const::Float);
    value.map(Const::Int).or_else(float)
}

impl Translation<'_> {
    /// Adds what an instruction does; `None` if its meaning is not known.
    pub fn instruction(&mut self, line: &Line) -> Option<()> {
        if NOTHING.contains(&&line.name[..]) {
            return Some(());
        }
        let words: Vec<&str> = line.name.split('.').filter(|word| !PRECISION.contains(word)).collect();
        let (suffix, base) = words.split_last()?;
        let value = match base {
            ["cvt", "satfinite", pair] => self.pair_of_f8(pair, line)?,
            ["cvt", to] => self.converted(to, suffix, line)?,
            _ => {
                let elem = typed(suffix)?;
                let table = if elem.is_float() { FLOATS } else { INTEGERS };
                let meaning = table.iter().find(|row| row.0 == base.join(".")).map(|row| row.1)?;
                self.meant(meaning, elem, line)?
            }
        };
        self.registers.insert(line.operands.first()?.clone(), value);
        Some(())
    }
    /// The n-th source as an element.
    fn source(&mut self, line: &Line, n: usize, elem: Elem) -> Option<Value> {
        let name = line.operands.get(n + 1)?;
        match self.registers.get(name).copied() {
            Some(value) => self.in_type(value, elem),
            None => {
                let value = literal(name, elem)?;
                Some(self.constant(elem, value))
            }
        }
    }
    fn meant(&mut self, meaning: Meaning, elem: Elem, line: &Line) -> Option<Value> {
        let x = self.source(line, 0, elem)?;
        let arity = match meaning {
            Meaning::Move | Meaning::Unary(_) | Meaning::Reciprocal => 1,
            Meaning::Binary(_) => 2,
            Meaning::Fma | Meaning::Bytes | Meaning::ShiftLeft | Meaning::ShiftRight => 3,
            Meaning::Lookup => 4,
        };
        if line.operands.len() != arity + 1 || elem.is_half() {
            return None;
        }
        Some(match meaning {
            Meaning::Move => x,
            Meaning::Unary(op) => self.b.unary(op, x),
            Meaning::Binary(op @ (BinaryOp::Shl | BinaryOp::Shr)) => {
                let count = self.source(line, 1, Elem::U32)?;
                let count = self.in_type(count, elem)?;
                self.b.binary(op, x, count)
            }
            Meaning::Binary(op) => {
                let y = self.source(line, 1, elem)?;
                self.b.binary(op, x, y)
            }
            Meaning::Reciprocal => {
                let one = self.constant(elem, Const::Float(1.0));
                self.b.binary(BinaryOp::DivRn, one, x)
            }
            Meaning::Fma => {
                let (y, z) = (self.source(line, 1, elem)?, self.source(line, 2, elem)?);
                self.emit(Op::Fma, &[x, y, z], elem)
            }
            Meaning::Lookup => self.looked_up(line, elem)?,
            Meaning::Bytes => self.chosen_bytes(line)?,
            Meaning::ShiftLeft | Meaning::ShiftRight => self.shifted_pair(meaning, line)?,
        })
    }
    /// To another type: the value, not the bits.
    fn converted(&mut self, to: &str, from: &str, line: &Line) -> Option<Value> {
        let (to, from) = (typed(to)?, typed(from)?);
        // Floats become integers by modes of rounding that the name says, and `rn` is left out above.
        if from.is_float() && !to.is_float() {
            return None;
        }
        let x = self.source(line, 0, from)?;
        Some(if from == to { x } else { self.emit(Op::Cast(to), &[x], to) })
    }
    /// Two floats as 8-bit floats, the second one in the lower byte.
    fn pair_of_f8(&mut self, pair: &str, line: &Line) -> Option<Value> {
        let (elem, most) = match pair {
            "e4m3x2" => (Elem::F8e4m3, 448.0),
            "e5m2x2" => (Elem::F8e5m2, 57344.0),
            _ => return None,
        };
        let mut halves = vec![];
        for n in 0..2 {
            let x = self.source(line, n, Elem::F32)?;
            let (least, most) =
                (self.constant(Elem::F32, Const::Float(-most)), self.constant(Elem::F32, Const::Float(most)));
            let x = self.b.binary(BinaryOp::Max, x, least);
            let x = self.b.binary(BinaryOp::Min, x, most);
            let short = self.emit(Op::Cast(elem), &[x], elem);
            halves.push(self.in_type(short, Elem::U16)?);
        }
        let eight = self.constant(Elem::U16, Const::Int(8));
        let high = self.b.binary(BinaryOp::Shl, halves[0], eight);
        Some(self.b.binary(BinaryOp::Or, high, halves[1]))
    }
    /// Each bit by a table of the three sources' bits.
    fn looked_up(&mut self, line: &Line, elem: Elem) -> Option<Value> {
        let table = match literal(line.operands.get(4)?, elem) {
            Some(Const::Int(table)) => table,
            // An operand that the constraint `n` makes constant.
            _ => self.known(self.registers.get(line.operands.get(4)?).copied()?)?,
        };
        let sources: Vec<Value> = (0..3).map(|n| self.source(line, n, elem)).collect::<Option<_>>()?;
        let inverse: Vec<Value> = sources.iter().map(|v| self.b.unary(UnaryOp::Not, *v)).collect();
        let mut all = self.constant(elem, Const::Int(0));
        for row in (0..8).filter(|row| table >> row & 1 == 1) {
            let bit = |n: usize| if row >> (2 - n) & 1 == 1 { sources[n] } else { inverse[n] };
            let (a, b, c) = (bit(0), bit(1), bit(2));
            let both = self.b.binary(BinaryOp::And, a, b);
            let term = self.b.binary(BinaryOp::And, both, c);
            all = self.b.binary(BinaryOp::Or, all, term);
        }
        Some(all)
    }
    /// The integer that a scalar or splat is of.
    fn known(&self, v: Value) -> Option<i64> {
        let k = self.b.program();
        let defining = |v: Value| k.insts.iter().find(|data| data.results == [v]);
        let mut data = defining(v)?;
        if matches!(data.op, Op::Splat | Op::Broadcast | Op::Cast(_)) {
            data = defining(data.args[0])?;
        }
        match data.op {
            Op::Const(Const::Int(value)) => Some(value),
            _ => None,
        }
    }
    fn chosen_bytes(&mut self, line: &Line) -> Option<Value> {
        let [low, high, choice] = [0, 1, 2].map(|n| self.source(line, n, Elem::U32));
        let [low, high, choice] = [low?, high?, choice?].map(|v| self.in_type(v, Elem::U64));
        let (low, high, choice) = (low?, high?, choice?);
        let number = |t: &mut Self, value: i64| t.constant(Elem::U64, Const::Int(value));
        let word = number(self, 32);
        let high = self.b.binary(BinaryOp::Shl, high, word);
        let both = self.b.binary(BinaryOp::Or, low, high);
        let mut all = number(self, 0);
        for n in 0..4 {
            let place = number(self, 4 * n);
            let selector = self.b.binary(BinaryOp::Shr, choice, place);
            let (seven, eight, byte) = (number(self, 7), number(self, 8), number(self, 255));
            let index = self.b.binary(BinaryOp::And, selector, seven);
            let place = self.b.binary(BinaryOp::Mul, index, eight);
            let moved = self.b.binary(BinaryOp::Shr, both, place);
            let chosen = self.b.binary(BinaryOp::And, moved, byte);
            // With the fourth bit of the selector, the byte's sign in all of its bits.
            let (three, one) = (number(self, 3), number(self, 1));
            let repeats = self.b.binary(BinaryOp::Shr, selector, three);
            let repeats = self.b.binary(BinaryOp::And, repeats, one);
            let sign = self.b.binary(BinaryOp::Shr, chosen, seven);
            let sign = self.b.binary(BinaryOp::Mul, sign, byte);
            let by_sign = self.b.binary(BinaryOp::Mul, sign, repeats);
            let plain = self.b.binary(BinaryOp::Xor, repeats, one);
            let by_value = self.b.binary(BinaryOp::Mul, chosen, plain);
            let found = self.b.binary(BinaryOp::Or, by_sign, by_value);
            let place = number(self, 8 * n);
            let found = self.b.binary(BinaryOp::Shl, found, place);
            all = self.b.binary(BinaryOp::Or, all, found);
        }
        self.in_type(all, unsigned(Elem::U32))
    }
    fn shifted_pair(&mut self, meaning: Meaning, line: &Line) -> Option<Value> {
        let [low, high, count] = [0, 1, 2].map(|n| self.source(line, n, Elem::U32));
        let (low, high, count) = (low?, high?, count?);
        let (most, bits) = (self.constant(Elem::U32, Const::Int(31)), self.constant(Elem::U32, Const::Int(32)));
        let count = self.b.binary(BinaryOp::And, count, most);
        let rest = self.b.binary(BinaryOp::Sub, bits, count);
        // A shift by all bits gives 0.
        let (up, down) = if matches!(meaning, Meaning::ShiftLeft) { (count, rest) } else { (rest, count) };
        let high = self.b.binary(BinaryOp::Shl, high, up);
        let low = self.b.binary(BinaryOp::Shr, low, down);
        Some(self.b.binary(BinaryOp::Or, high, low))
    }
}
