//! Sizes as expressions over symbols, in the form of sympy's `srepr`: `Mul(Integer(64), Symbol('s53', positive=True,
//! integer=True))`.
//!
//! A condition is an expression whose value is 0 or 1.
use serde::{Deserialize, Deserializer};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The size of each symbol.
pub type Sizes = BTreeMap<String, i64>;

/// An integer expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Extent {
    /// A number.
    Integer(i64),
    /// A symbol by its name.
    Symbol(String),
    /// A function of sympy or torch (`Add`, `FloorDiv`, …).
    Call(String, Vec<Extent>),
}

impl Extent {
    /// Parses the text form.
    pub fn parse(text: &str) -> Result<Extent, String> {
        let mut p = Parser { rest: text, depth: 0 };
        let found = p.expression()?;
        match p.rest.trim() {
            "" => Ok(found),
            more => Err(format!("`{more}` follows the expression `{text}`")),
        }
    }
    /// The symbols that it mentions.
    pub fn symbols(&self) -> BTreeSet<&str> {
        match self {
            Extent::Integer(_) => BTreeSet::new(),
            Extent::Symbol(s) => BTreeSet::from([s.as_str()]),
            Extent::Call(_, args) => args.iter().flat_map(Extent::symbols).collect(),
        }
    }
    /// The value for these sizes of symbols.
    pub fn value(&self, symbols: &Sizes) -> Result<i64, String> {
        let (name, args) = match self {
            Extent::Integer(n) => return Ok(*n),
            Extent::Symbol(s) => {
                return symbols.get(s).copied().ok_or_else(|| format!("the size {s} depends on data"));
            }
            Extent::Call(name, args) => (name.as_str(), args),
        };
        let args: Vec<i64> = args.iter().map(|a| a.value(symbols)).collect::<Result<_, _>>()?;
        let value = match (name, &args[..]) {
            ("Add", all) => all.iter().try_fold(0i64, |a, b| a.checked_add(*b)),
            ("Mul", all) => all.iter().try_fold(1i64, |a, b| a.checked_mul(*b)),
            ("Max", [first, rest @ ..]) => Some(rest.iter().fold(*first, |a, b| a.max(*b))),
            ("Min", [first, rest @ ..]) => Some(rest.iter().fold(*first, |a, b| a.min(*b))),
            ("Pow" | "PowByNatural", [a, b]) => u32::try_from(*b).ok().and_then(|b| a.checked_pow(b)),
            ("FloorDiv" | "CleanDiv", [a, b]) if *b > 0 => Some(a.div_euclid(*b)),
            ("CeilDiv", [a, b]) if *b > 0 => a.checked_neg().map(|a| -a.div_euclid(*b)),
            ("Mod" | "PythonMod", [a, b]) if *b > 0 => Some(a.rem_euclid(*b)),
            ("ModularIndexing", [a, b, c]) if *b > 0 && *c > 0 => Some(a.div_euclid(*b).rem_euclid(*c)),
            ("Identity", [a]) => Some(*a),
            ("Equality" | "Eq", [a, b]) => Some(i64::from(a == b)),
            ("Unequality" | "Ne", [a, b]) => Some(i64::from(a != b)),
            ("StrictLessThan" | "Lt", [a, b]) => Some(i64::from(a < b)),
            ("LessThan" | "Le", [a, b]) => Some(i64::from(a <= b)),
            ("StrictGreaterThan" | "Gt", [a, b]) => Some(i64::from(a > b)),
            ("GreaterThan" | "Ge", [a, b]) => Some(i64::from(a >= b)),
            ("And", all) => Some(i64::from(all.iter().all(|a| *a != 0))),
            ("Or", all) => Some(i64::from(all.iter().any(|a| *a != 0))),
            ("Not", [a]) => Some(i64::from(*a == 0)),
            _ => return Err(format!("`{name}` of {args:?} is not a size that Kiln can compute")),
        };
        value.ok_or_else(|| format!("`{name}` of {args:?} is beyond 64 bits"))
    }
}

/// As people write it: `2*s0 + 1`, `FloorDiv(s0, 2)`.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, args) = match self {
            Extent::Integer(n) => return write!(f, "{n}"),
            Extent::Symbol(s) => return f.write_str(s),
            Extent::Call(name, args) => (name.as_str(), args),
        };
        let sum = |a: &Extent| matches!(a, Extent::Call(name, _) if name == "Add");
        let all = args.iter().map(|a| if name == "Mul" && sum(a) { format!("({a})") } else { a.to_string() });
        match name {
            "Add" => f.write_str(&all.collect::<Vec<_>>().join(" + ")),
            "Mul" => f.write_str(&all.collect::<Vec<_>>().join("*")),
            _ => write!(f, "{name}({})", all.collect::<Vec<_>>().join(", ")),
        }
    }
}

/// A number, or the text of an expression.
impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Extent, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(d)? {
            Form::Number(n) => Ok(Extent::Integer(n)),
            Form::Text(text) => Extent::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// The most functions within each other: an expression is parsed and evaluated by recursion.
const DEEPEST: usize = 200;

struct Parser<'a> {
    rest: &'a str,
    /// How many functions the expression to parse is in.
    depth: usize,
}
impl<'a> Parser<'a> {
    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let text = self.rest.trim_start();
        let (word, rest) = text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()));
        self.rest = rest;
        word
    }
    fn eat(&mut self, c: char) -> bool {
        let after = self.rest.trim_start().strip_prefix(c);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }
    fn expression(&mut self) -> Result<Extent, String> {
        // Functions of torch have their module in front.
        let head = self.word(|c| c.is_alphanumeric() || c == '_' || c == '.');
        let name = head.rsplit('.').next().unwrap_or_default();
        if !self.eat('(') {
            return Err(format!("expected `(` after `{head}`, found `{}`", self.rest));
        }
        let found = match name {
            "Integer" => {
                let digits = self.word(|c| c.is_ascii_digit() || c == '-');
                Extent::Integer(digits.parse().map_err(|_| format!("`{digits}` is not an integer"))?)
            }
            "Symbol" => {
                let quoted = self.eat('\'');
                let symbol = self.word(|c| c != '\'').to_string();
                if !quoted || !self.eat('\'') {
                    return Err("expected a symbol's name in quotes".into());
                }
                // Assumptions (`positive=True`) follow.
                self.word(|c| c != ')');
                Extent::Symbol(symbol)
            }
            _ if self.depth == DEEPEST => return Err(format!("more than {DEEPEST} functions within each other")),
            _ => {
                self.depth += 1;
                let mut args = vec![self.expression()?];
                while self.eat(',') {
                    args.push(self.expression()?);
                }
                self.depth -= 1;
                Extent::Call(name.to_string(), args)
            }
        };
        if self.eat(')') { Ok(found) } else { Err(format!("expected `)`, found `{}`", self.rest)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_computed_from_symbols() {
        let symbols = Sizes::from([("s53".to_string(), 7), ("s0".to_string(), -3)]);
        let value = |text: &str| Extent::parse(text).and_then(|e| e.value(&symbols));
        let s = "Symbol('s53', positive=True, integer=True)";
        assert_eq!(value(&format!("Mul(Integer(64), {s})")), Ok(448));
        assert_eq!(value(&format!("Add(Mul(Integer(-2), {s}), Integer(1), {s})")), Ok(-6));
        assert_eq!(value(&format!("torch.utils._sympy.functions.FloorDiv({s}, Integer(2))")), Ok(3));
        assert_eq!(value("FloorDiv(Symbol('s0'), Integer(2))"), Ok(-2));
        assert_eq!(value("CeilDiv(Symbol('s0'), Integer(2))"), Ok(-1));
        assert_eq!(value("Mod(Symbol('s0'), Integer(2))"), Ok(1));
        assert_eq!(value(&format!("Max(Pow({s}, Integer(2)), Integer(3))")), Ok(49));
    }

    #[test]
    fn conditions_are_0_or_1() {
        let symbols = Sizes::from([("n".to_string(), 6)]);
        let value = |text: &str| Extent::parse(text).and_then(|e| e.value(&symbols));
        for (text, holds) in [
            ("Equality(Mod(Symbol('n'), Integer(2)), Integer(0))", 1),
            ("Not(GreaterThan(Symbol('n'), Integer(6)))", 0),
            ("And(StrictLessThan(Symbol('n'), Integer(7)), Unequality(Symbol('n'), Integer(5)))", 1),
            ("Or(LessThan(Symbol('n'), Integer(5)), StrictGreaterThan(Symbol('n'), Integer(6)))", 0),
        ] {
            assert_eq!(value(text), Ok(holds), "{text}");
        }
    }

    #[test]
    fn an_extent_is_a_number_or_text_in_json() {
        let read = |json: &str| serde_json::from_str::<Extent>(json).map_err(|e| e.to_string());
        assert_eq!(read("7"), Ok(Extent::Integer(7)));
        assert_eq!(read("\"Symbol('s0')\""), Ok(Extent::Symbol("s0".into())));
        assert!(read("\"s0\"").is_err() && read("1.5").is_err());
    }

    #[test]
    fn what_cannot_be_computed_is_an_error() {
        let none = Sizes::new();
        let value = |text: &str| Extent::parse(text).and_then(|e| e.value(&none)).unwrap_err();
        assert_eq!(value("Symbol('u0')"), "the size u0 depends on data");
        assert!(value("Pow(Integer(2), Integer(64))").contains("beyond 64 bits"));
        assert!(value("FloorDiv(Integer(1), Integer(0))").contains("not a size"));
        assert!(value("sin(Integer(1))").contains("not a size"));
        let deep = |n: usize| format!("{}Integer(1){}", "Add(".repeat(n), ")".repeat(n));
        assert!(Extent::parse(&deep(150)).is_ok_and(|e| e.value(&none) == Ok(1)));
        assert!(Extent::parse(&deep(1_000_000)).is_err_and(|e| e.contains("within each other")));
        for broken in ["", "s53", "Integer(", "Integer(x)", "Add(Integer(1)", "Integer(1))", "Symbol(s)"] {
            assert!(Extent::parse(broken).is_err(), "{broken}");
        }
    }
}
