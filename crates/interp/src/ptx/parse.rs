//! Reads a module: the instructions of its entry, in order.
use super::PtxError;
use std::collections::HashMap;

/// Registers that are set at launch.
const SPECIAL: [&str; 13] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
];

/// Other such registers begin so, or have a point.
const UNKNOWN: [&str; 5] = ["%cluster", "%lanemask", "%warpid", "%smid", "%clock"];

/// A register by its number.
pub type Reg = usize;

#[derive(Clone, PartialEq, Debug)]
pub enum Arg {
    Reg(Reg),
    Imm(u64),
    Vector(Vec<Arg>),
    /// `[base + offset]`; without a base it is an offset in shared memory.
    Address(Option<Reg>, i64),
    /// A pointer parameter.
    Param(usize),
    /// A scalar parameter.
    Scalar(usize),
    /// Position of an instruction.
    Label(usize),
    /// `%tid.x` and its like, by name.
    Special(String),
}

#[derive(Clone, Debug)]
pub struct Inst {
    /// The predicate under which it is executed, and whether that is negated.
    pub guard: Option<(Reg, bool)>,
    pub op: Vec<String>,
    pub args: Vec<Arg>,
    pub line: String,
}

pub struct Program {
    pub insts: Vec<Inst>,
    pub registers: usize,
}

/// The one entry of a module.
pub fn program(text: &str) -> Result<Program, PtxError> {
    let unknown =
        |what: &str| PtxError::Unknown { line: text.lines().next().unwrap_or_default().into(), what: what.into() };
    let entry = text.find(".entry").ok_or_else(|| unknown("there is no entry"))?;
    let open = text[entry..].find("\n{").ok_or_else(|| unknown("the entry has no body"))? + entry;
    let params: Vec<Param> = text[entry..open].split(',').filter_map(Param::read).collect();
    let body: Vec<&str> = text[open + 2..].lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
    let mut r = Reader { params, names: HashMap::new(), labels: HashMap::new(), scope: 0 };
    // Labels first: a position for each.
    let statements = statements(&body.join("\n"));
    let mut lines = vec![];
    for (scope, s) in &statements {
        match s.strip_suffix(':') {
            Some(label) => _ = r.labels.insert(Reader::label(label, *scope), lines.len()),
            None if s.starts_with('.') => {}
            None => lines.push((*scope, s.as_str())),
        }
    }
    let mut insts = vec![];
    for (scope, line) in lines {
        r.scope = scope;
        insts.push(r.inst(line)?);
    }
    Ok(Program { insts, registers: r.names.len() })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).filter(|w| !w.is_empty())
}

/// Statements without their semicolons, and labels with their colons, each with the number of its scope: braces around
/// statements open one.
fn statements(body: &str) -> Vec<(usize, String)> {
    let (mut all, mut now, mut list, mut scope) = (vec![], String::new(), false, 0);
    let is_name = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$');
    for c in body.chars() {
        match c {
            '{' | '}' if now.trim().is_empty() && !list => scope += 1,
            ';' => all.push((scope, std::mem::take(&mut now))),
            ':' if is_name(now.trim()) => {
                now.push(c);
                all.push((scope, std::mem::take(&mut now)));
            }
            _ => {
                list = c == '{' || list && c != '}';
                now.push(if c.is_whitespace() { ' ' } else { c });
            }
        }
    }
    all.into_iter().map(|(n, s)| (n, s.trim().to_string())).filter(|s| !s.1.is_empty()).collect()
}

/// A parameter as it is declared.
struct Param<'t> {
    name: &'t str,
    is_pointer: bool,
}

impl<'t> Param<'t> {
    fn read(declared: &'t str) -> Option<Param<'t>> {
        let name = words(declared).find(|w| w.contains("_param_"))?;
        Some(Param { name, is_pointer: declared.contains(".ptr") })
    }
}

struct Reader<'t> {
    params: Vec<Param<'t>>,
    names: HashMap<String, Reg>,
    labels: HashMap<String, usize>,
    /// That of the instruction which is read.
    scope: usize,
}

impl Reader<'_> {
    /// A label that LLVM makes is the only one of its name; others are those of their scope.
    fn label(name: &str, scope: usize) -> String {
        if name.starts_with('$') { name.into() } else { format!("{name} {scope}") }
    }
    fn register(&mut self, name: &str) -> Reg {
        let next = self.names.len();
        *self.names.entry(name.to_string()).or_insert(next)
    }
    fn inst(&mut self, line: &str) -> Result<Inst, PtxError> {
        let fail = |what: String| PtxError::Unknown { line: line.into(), what };
        let mut rest = line;
        let guard = match rest.strip_prefix('@') {
            Some(guarded) => {
                let (name, then) = guarded.split_once(' ').ok_or_else(|| fail("a guard alone".into()))?;
                rest = then.trim();
                Some((self.register(name.trim_start_matches('!')), name.starts_with('!')))
            }
            None => None,
        };
        let (op, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        let op: Vec<String> = op.split('.').map(str::to_string).collect();
        let args = parts(operands).into_iter().map(|a| self.arg(a)).collect::<Result<Vec<_>, _>>().map_err(fail)?;
        Ok(Inst { guard, op, args, line: line.into() })
    }
    fn arg(&mut self, text: &str) -> Result<Arg, String> {
        if let Some(list) = text.strip_prefix('{') {
            let inner = list.trim_end_matches('}');
            return Ok(Arg::Vector(parts(inner).into_iter().map(|a| self.arg(a)).collect::<Result<_, _>>()?));
        }
        if let Some(address) = text.strip_prefix('[') {
            let inner = address.trim_end_matches(']');
            let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
            let (base, offset) = (base.trim(), offset.trim());
            let offset: i64 = offset.parse().map_err(|_| format!("`{offset}` is no offset"))?;
            return match self.params.iter().position(|p| p.name == base) {
                Some(n) if self.params[n].is_pointer => Ok(Arg::Param(n)),
                Some(n) => Ok(Arg::Scalar(n)),
                None if base == "_shared" => Ok(Arg::Address(None, offset)),
                None => Ok(Arg::Address(Some(self.register(base)), offset)),
            };
        }
        match text.chars().next() {
            Some('$') => {
                self.labels.get(text).map(|at| Arg::Label(*at)).ok_or_else(|| format!("there is no label {text}"))
            }
            Some('%') if SPECIAL.contains(&text) => Ok(Arg::Special(text.into())),
            Some('%') if text.contains('.') || UNKNOWN.iter().any(|u| text.starts_with(u)) => {
                Err(format!("the interpreter has no {text}"))
            }
            Some(c) if c.is_ascii_digit() || c == '-' => number(text).map(Arg::Imm),
            _ if text == "_shared" => Ok(Arg::Imm(0)),
            _ => match self.labels.get(&Reader::label(text, self.scope)) {
                Some(at) => Ok(Arg::Label(*at)),
                None => Ok(Arg::Reg(self.register(text))),
            },
        }
    }
}

/// Operands: what commas outside of brackets and braces separate.
fn parts(text: &str) -> Vec<&str> {
    let (mut all, mut depth, mut from) = (vec![], 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    all.push(&text[from..]);
    all.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}

/// Bits of a number: `0f` and `0d` are those of a float.
fn number(text: &str) -> Result<u64, String> {
    let text = text.trim_end_matches('U');
    let parsed = match text.get(..2) {
        Some("0f" | "0d" | "0x") => u64::from_str_radix(&text[2..], 16).ok(),
        _ => text.parse::<i128>().ok().map(|v| v as u64),
    };
    parsed.ok_or_else(|| format!("`{text}` is no number"))
}
