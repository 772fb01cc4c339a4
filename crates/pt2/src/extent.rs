//! Sizes as expressions over symbols, in the form of sympy's `srepr`: `Mul(Integer(64), Symbol('s53', positive=True, integer=True))`.
use std::collections::BTreeMap;

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
        let mut p = Parser { rest: text };
        let found = p.expression()?;
        match p.rest.trim() {
            "" => Ok(found),
            more => Err(format!("`{more}` follows the expression `{text}`")),
        }
    }
    /// The value for these sizes of symbols.
    pub fn value(&self, symbols: &BTreeMap<String, i64>) -> Result<i64, String> {
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
            _ => return Err(format!("`{name}` of {args:?} is not a size that Kiln can compute")),
        };
        value.ok_or_else(|| format!("`{name}` of {args:?} is beyond 64 bits"))
    }
}

struct Parser<'a> {
    rest: &'a str,
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
            _ => {
                let mut args = vec![self.expression()?];
                while self.eat(',') {
                    args.push(self.expression()?);
                }
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
        let symbols = BTreeMap::from([("s53".to_string(), 7), ("s0".to_string(), -3)]);
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
    fn what_cannot_be_computed_is_an_error() {
        let none = BTreeMap::new();
        let value = |text: &str| Extent::parse(text).and_then(|e| e.value(&none)).unwrap_err();
        assert_eq!(value("Symbol('u0')"), "the size u0 depends on data");
        assert!(value("Pow(Integer(2), Integer(64))").contains("beyond 64 bits"));
        assert!(value("FloorDiv(Integer(1), Integer(0))").contains("not a size"));
        assert!(value("sin(Integer(1))").contains("not a size"));
        for broken in ["", "s53", "Integer(", "Integer(x)", "Add(Integer(1)", "Integer(1))", "Symbol(s)"] {
            assert!(Extent::parse(broken).is_err(), "{broken}");
        }
    }
}
