//! Conditions on the sizes of a program's inputs, as torch.export writes them: Python such as `(L['x'].size()[0] % 2)
//! == 0`.
//!
//! Takes the text and the inputs' dimensions. Gives an expression over symbols whose value is 1 where the program
//! holds. What is not arithmetic of sizes is an error; the caller then knows only that the program holds for the sizes
//! it was exported at.
use crate::extent::Extent;

/// The dimensions of an input by its name in Python, as `x` or `states[0]`.
pub type Dimensions<'a> = &'a dyn Fn(&str) -> Option<&'a [Extent]>;

/// Parses a guard.
pub fn parse<'a>(text: &str, dimensions: Dimensions<'a>) -> Result<Extent, String> {
    let mut p = Parser { rest: text, dimensions, left: LONGEST };
    let found = p.alternatives()?;
    match p.rest.trim() {
        "" => Ok(found),
        more => Err(format!("`{more}` is not arithmetic of sizes")),
    }
}

/// The most operands and signs of a guard: it is parsed and evaluated by recursion.
const LONGEST: usize = 400;

struct Parser<'t, 'a> {
    rest: &'t str,
    dimensions: Dimensions<'a>,
    /// How many more operands and signs it may have.
    left: usize,
}

fn call(name: &str, args: impl Into<Vec<Extent>>) -> Extent {
    Extent::Call(name.into(), args.into())
}

impl<'t> Parser<'t, '_> {
    fn eat(&mut self, token: &str) -> bool {
        let Some(after) = self.rest.trim_start().strip_prefix(token) else { return false };
        // A word ends where letters end: `or` is no part of `order`.
        let inside = |c: char| c.is_alphanumeric() || c == '_';
        if token.ends_with(inside) && after.starts_with(inside) {
            return false;
        }
        self.rest = after;
        true
    }
    /// Counts an operand or a sign. All recursion passes here.
    fn count(&mut self) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or_else(|| format!("it has more than {LONGEST} operands"))?;
        Ok(())
    }
    fn need(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected `{token}` before `{}`", self.rest)) }
    }
    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let text = self.rest.trim_start();
        let (word, rest) = text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()));
        self.rest = rest;
        word
    }
    /// The first of these operators that comes next, and the function it stands for.
    fn operator(&mut self, all: &[(&str, &'static str)]) -> Option<&'static str> {
        all.iter().find_map(|(token, name)| self.eat(token).then_some(*name))
    }
    fn alternatives(&mut self) -> Result<Extent, String> {
        let mut found = self.conjunction()?;
        while self.eat("or") {
            found = call("Or", [found, self.conjunction()?]);
        }
        Ok(found)
    }
    fn conjunction(&mut self) -> Result<Extent, String> {
        let mut found = self.negation()?;
        while self.eat("and") {
            found = call("And", [found, self.negation()?]);
        }
        Ok(found)
    }
    fn negation(&mut self) -> Result<Extent, String> {
        if !self.eat("not") {
            return self.comparison();
        }
        self.count()?;
        Ok(call("Not", [self.negation()?]))
    }
    /// `a < b <= c` means `a < b and b <= c`.
    fn comparison(&mut self) -> Result<Extent, String> {
        const ALL: [(&str, &str); 6] =
            [("==", "Eq"), ("!=", "Ne"), ("<=", "Le"), (">=", "Ge"), ("<", "Lt"), (">", "Gt")];
        let mut left = self.sum()?;
        let mut all = vec![];
        while let Some(name) = self.operator(&ALL) {
            let right = self.sum()?;
            all.push(call(name, [left, right.clone()]));
            left = right;
        }
        Ok(match all.len() {
            0 => left,
            1 => all.remove(0),
            _ => call("And", all),
        })
    }
    fn sum(&mut self) -> Result<Extent, String> {
        let mut left = self.product()?;
        while let Some(name) = self.operator(&[("+", "Add"), ("-", "Sub")]) {
            let right = self.product()?;
            left = match name {
                "Sub" => call("Add", [left, call("Mul", [Extent::Integer(-1), right])]),
                _ => call(name, [left, right]),
            };
        }
        Ok(left)
    }
    fn product(&mut self) -> Result<Extent, String> {
        let mut left = self.factor()?;
        while !self.rest.trim_start().starts_with("**")
            && let Some(name) = self.operator(&[("*", "Mul"), ("//", "FloorDiv"), ("%", "Mod")])
        {
            left = call(name, [left, self.factor()?]);
        }
        Ok(left)
    }
    fn factor(&mut self) -> Result<Extent, String> {
        self.count()?;
        if self.eat("-") {
            return Ok(call("Mul", [Extent::Integer(-1), self.factor()?]));
        }
        let base = self.atom()?;
        if self.eat("**") { Ok(call("Pow", [base, self.factor()?])) } else { Ok(base) }
    }
    fn atom(&mut self) -> Result<Extent, String> {
        if self.eat("(") {
            let inner = self.alternatives()?;
            return self.need(")").map(|()| inner);
        }
        if self.rest.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            let digits = self.word(|c| c.is_ascii_digit() || c == '_');
            // What follows would make it another number: `0.5`, `1e3`.
            if self.rest.starts_with(['.', 'e']) {
                return Err(format!("`{digits}{}` is not an integer", self.rest));
            }
            return digits.replace('_', "").parse().map(Extent::Integer).map_err(|_| format!("{digits} is too large"));
        }
        if self.rest.trim_start().starts_with("L[") {
            return self.size();
        }
        let name = self.word(|c| c.is_alphanumeric() || c == '_' || c == '.').rsplit('.').next().unwrap_or_default();
        let name = match name {
            "min" | "Min" => "Min",
            "max" | "Max" => "Max",
            "" => return Err(format!("`{}` is not arithmetic of sizes", self.rest)),
            other => other,
        };
        self.need("(")?;
        let mut args = vec![self.alternatives()?];
        while self.eat(",") {
            args.push(self.alternatives()?);
        }
        self.need(")").map(|()| call(name, args))
    }
    /// `L['x'].size()[0]`, where more indices may follow the argument's name.
    fn size(&mut self) -> Result<Extent, String> {
        self.need("L[")?;
        let mut name = self.key()?;
        while self.eat("[") {
            name = format!("{name}[{}]", self.key()?);
        }
        self.need(".size()[")?;
        let axis = self.word(|c| c.is_ascii_digit()).to_string();
        self.need("]")?;
        let all = (self.dimensions)(&name).ok_or_else(|| format!("`{name}` is no tensor input of the program"))?;
        let found = axis.parse().ok().and_then(|axis: usize| all.get(axis));
        found.cloned().ok_or_else(|| format!("`{name}` has no axis {axis}"))
    }
    /// What stands between brackets, up to the closing one: a name in quotes, or a number.
    fn key(&mut self) -> Result<String, String> {
        let quote = self.eat("'") || self.eat("\"");
        let key = self.word(|c| !matches!(c, '\'' | '"' | ']')).to_string();
        if quote && !(self.eat("'") || self.eat("\"")) {
            return Err(format!("the quotes of `{key}` do not close"));
        }
        self.need("]").map(|()| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Sizes;

    fn holds(text: &str, n: i64) -> Result<bool, String> {
        let (x, pair) = ([Extent::Symbol("n".into()), Extent::Integer(3)], [Extent::Integer(8)]);
        let dimensions = |name: &str| match name {
            "x" => Some(&x[..]),
            "pair[1]" => Some(&pair[..]),
            _ => None,
        };
        parse(text, &dimensions)?.value(&Sizes::from([("n".into(), n)])).map(|v| v != 0)
    }

    #[test]
    fn guards_are_python() {
        for (text, yes, no) in [
            ("(L['x'].size()[0] % 2) == 0", 6, 7),
            ("L['x'].size()[0] != 1", 2, 1),
            ("4 <= L['x'].size()[0] <= 64", 64, 65),
            ("not (L['x'].size()[0] == 5 or L['x'].size()[0] > 9)", 4, 5),
            ("L['x'].size()[0] // 2 + 1 == L['x'].size()[1]", 5, 6),
            ("2*L['x'].size()[0] - 1 < L['pair'][1].size()[0]", 4, 5),
            ("-L['x'].size()[0] + 2**3 >= min(L['x'].size()[0], 3)", 5, 6),
            ("Eq(Mod(L['x'].size()[0], 4), 0) and L[\"x\"].size()[0] > 4", 8, 4),
            ("torch.sym_max(1, 2) == 3 or max(L['x'].size()[0], 2) == 2", 2, 3),
        ] {
            // A function that has no value is an error only where it is met.
            if text.starts_with("torch.sym_max") {
                assert!(holds(text, yes).is_err(), "{text}");
                continue;
            }
            assert_eq!((holds(text, yes), holds(text, no)), (Ok(true), Ok(false)), "{text}");
        }
    }

    #[test]
    fn other_python_is_an_error() {
        for text in [
            "",
            "x",
            "L['n'] == 3",
            "L['y'].size()[0] == 3",
            "L['x'].size()[2] == 3",
            "0.5 < 1",
            "L['x'].dtype",
            "(1",
            "1 2",
        ] {
            assert!(holds(text, 3).is_err(), "{text}");
        }
        for deep in ["(", "not ", "-", "1+", "f(", "1<"] {
            let e = holds(&format!("{}1", deep.repeat(1_000_000)), 3).expect_err(deep);
            assert!(e.contains("more than 400 operands"), "{deep}: {}", &e[..e.len().min(80)]);
        }
    }
}
