//! Text form of a plan: prints everything, parses back to the same plan.
//!
//! ```text
//! plan "mlp" machine="h200" numerics=reassociates lower_bound_us=2.3 {
//!   search iterations=2 before=9 after=11 stopped="saturated" candidates=7 tried=1 greedy_us=4.1
//!   b0: f32[8,16] = input 0
//!   b1: f32[16] = param @0
//!   b2: f32[8,16] = temp
//!   kernel "add_relu_0" pointwise run (b0, b1) -> (b2) {
//!     cost read=576 written=512 matrix=0 other=256 us=2.0003
//!     rules "relu"
//!     alternative "one kernel per op (2 kernels)" us=4.1
//!     stop "gemm_1" "arithmetic before a product"
//!     values %2 "%4" %3 "%5 %6"
//!     made %3 "relu"
//!     graph add_relu_0(%0: f32[8,16], %1: f32[16]) {
//!       …
//!     }
//!   }
//!   return b2
//! }
//! ```
//! One item per line; a body is the text of a graph.
use crate::{
    Alternative, Buffer, BufferId, BufferKind, Cost, Kernel, KernelKind, Numerics, Origin, Plan, PlanError, Precision,
    Reason, Search, Stage, Stop, Tuning,
};
use kiln_graph::{Graph, ParamId, ValueId};
use std::fmt::{Display, Write};
use std::str::FromStr;

fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}
fn list(ids: &[BufferId]) -> String {
    ids.iter().map(BufferId::to_string).collect::<Vec<_>>().join(", ")
}

impl Precision {
    /// What is said of it; nothing of exact products.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Precision::Exact => None,
            Precision::Tf32x3 => Some("tf32x3"),
            Precision::Tf32 => Some("tf32"),
        }
    }
}
impl Numerics {
    pub const ALL: [Numerics; 4] = [Numerics::Exact, Numerics::Reassociates, Numerics::Splits, Numerics::Approximates];
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Reassociates => "reassociates",
            Numerics::Splits => "splits",
            Numerics::Approximates => "approximates",
        }
    }
}
impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Load => "load",
            Stage::Run => "run",
        }
    }
}
impl KernelKind {
    pub const ALL: [KernelKind; 9] = [
        KernelKind::Pointwise,
        KernelKind::Reduction,
        KernelKind::Scan,
        KernelKind::Gemm,
        KernelKind::Attention,
        KernelKind::Conv,
        KernelKind::Pool,
        KernelKind::Scatter,
        KernelKind::Fallback,
    ];
}

/// The canonical text. Parsing it gives an equal plan.
pub fn print(p: &Plan) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail; the results are dropped throughout.
    let (name, machine, numerics) = (quoted(&p.name), quoted(&p.machine), p.numerics.name());
    let _ = writeln!(out, "plan {name} machine={machine} numerics={numerics} lower_bound_us={} {{", p.lower_bound_us);
    let s = &p.search;
    let _ = writeln!(
        out,
        "  search iterations={} before={} after={} stopped={} candidates={} tried={} greedy_us={}",
        s.iterations,
        s.enodes_before,
        s.enodes_after,
        quoted(&s.stopped),
        s.candidates,
        s.tried,
        s.greedy_us
    );
    for (i, b) in p.buffers.iter().enumerate() {
        let kind = match b.kind {
            BufferKind::Input(n) => format!("input {n}"),
            BufferKind::Param(id) => format!("param {id}"),
            BufferKind::Frozen => "frozen".to_string(),
            BufferKind::Temp => "temp".to_string(),
        };
        let _ = writeln!(out, "  b{i}: {} = {kind}", b.ty);
    }
    for k in &p.kernels {
        kernel(&mut out, k);
    }
    let outputs = list(&p.outputs);
    let _ = writeln!(out, "  return{}{outputs}\n}}", if outputs.is_empty() { "" } else { " " });
    out
}
fn kernel(out: &mut String, k: &Kernel) {
    let (name, kind, stage) = (quoted(&k.name), k.kind.name(), k.stage.name());
    let _ = writeln!(out, "  kernel {name} {kind} {stage} ({}) -> ({}) {{", list(&k.inputs), list(&k.outputs));
    let c = &k.cost;
    let _ = writeln!(
        out,
        "    cost read={} written={} matrix={} other={} us={}",
        c.bytes_read, c.bytes_written, c.matrix_flops, c.other_flops, c.us
    );
    if let Some(precision) = k.precision.name() {
        let _ = writeln!(out, "    precision {precision}");
    }
    if !k.reason.rules.is_empty() {
        let rules: Vec<String> = k.reason.rules.iter().map(|r| quoted(r)).collect();
        let _ = writeln!(out, "    rules {}", rules.join(" "));
    }
    if let Some(template) = k.reason.template {
        let _ = writeln!(out, "    template {}", quoted(&template.to_string()));
    }
    match &k.reason.tuning {
        Some(Tuning::Measured { device, us, default_us }) => {
            let _ = writeln!(out, "    tuned {} us={us} default={default_us}", quoted(device));
        }
        Some(Tuning::Unused { why }) => {
            let _ = writeln!(out, "    not_tuned {}", quoted(why));
        }
        None => {}
    }
    if let Some(a) = &k.reason.alternative {
        let _ = writeln!(out, "    alternative {} us={}", quoted(&a.what), a.us);
    }
    for s in &k.reason.stops {
        let _ = writeln!(out, "    stop {} {}", quoted(&s.kernel), quoted(&s.why));
    }
    let named: Vec<String> =
        k.reason.origins.iter().map(|o| format!("{} {}", o.value, quoted(&o.names.join(" ")))).collect();
    if !named.is_empty() {
        let _ = writeln!(out, "    values {}", named.join(" "));
    }
    for o in k.reason.origins.iter().filter(|o| !o.rules.is_empty()) {
        let rules: Vec<String> = o.rules.iter().map(|r| quoted(r)).collect();
        let _ = writeln!(out, "    made {} {}", o.value, rules.join(" "));
    }
    for line in k.body.to_string().lines() {
        let _ = writeln!(out, "    {line}");
    }
    out.push_str("  }\n");
}

impl Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print(self))
    }
}
impl FromStr for Plan {
    type Err = PlanError;
    fn from_str(text: &str) -> Result<Plan, PlanError> {
        parse(text)
    }
}

/// Words of one line: quoted strings whole; `(`, `)`, `,`, `=`, `:` on their own.
struct Words<'a> {
    rest: &'a str,
}
type Parsed<T> = Result<T, String>;
impl<'a> Words<'a> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }
    fn word(&mut self) -> Parsed<&'a str> {
        let first = self.peek().ok_or("the line ends too early")?;
        let end = match first {
            '(' | ')' | ',' | '=' | ':' => 1,
            _ => self.rest.find(|c: char| c.is_whitespace() || "(),=:".contains(c)).unwrap_or(self.rest.len()),
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(word)
    }
    fn expect(&mut self, want: &str) -> Parsed<()> {
        let found = self.word()?;
        if found == want { Ok(()) } else { Err(format!("`{found}` where `{want}` is wanted")) }
    }
    fn string(&mut self) -> Parsed<String> {
        self.rest = self.rest.trim_start();
        let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = stream.next().and_then(Result::ok).ok_or("a quoted string is wanted")?;
        self.rest = &self.rest[stream.byte_offset()..];
        Ok(text)
    }
    fn value<T: FromStr>(&mut self) -> Parsed<T> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("`{word}` is not a valid value here"))
    }
    /// `key=`.
    fn key(&mut self, key: &str) -> Parsed<()> {
        self.expect(key)?;
        self.expect("=")
    }
    fn keyed<T: FromStr>(&mut self, key: &str) -> Parsed<T> {
        self.key(key)?;
        self.value()
    }
    fn strings(&mut self) -> Parsed<Vec<String>> {
        let mut out = vec![];
        while self.peek().is_some() {
            out.push(self.string()?);
        }
        Ok(out)
    }
    fn body_value(&mut self) -> Parsed<ValueId> {
        let word = self.word()?;
        let id = word.strip_prefix('%').and_then(|n| n.parse().ok());
        id.map(ValueId).ok_or_else(|| format!("`{word}` is not a value; write it as %3"))
    }
    fn buffer(&mut self) -> Parsed<BufferId> {
        let word = self.word()?;
        let id = word.strip_prefix('b').and_then(|n| n.parse().ok());
        id.map(BufferId).ok_or_else(|| format!("`{word}` is not a buffer; write it as b3"))
    }
    fn buffers(&mut self) -> Parsed<Vec<BufferId>> {
        let mut out = vec![];
        while self.peek().is_some_and(|c| c != ')') {
            if !out.is_empty() {
                self.expect(",")?;
            }
            out.push(self.buffer()?);
        }
        Ok(out)
    }
    fn end(&mut self) -> Parsed<()> {
        if self.peek().is_none() { Ok(()) } else { Err(format!("`{}` is too much", self.rest)) }
    }
}

struct Lines<'a> {
    lines: Vec<&'a str>,
    at: usize,
}
impl<'a> Lines<'a> {
    /// The next line that is not empty, as words.
    fn next(&mut self) -> Parsed<Words<'a>> {
        while self.lines.get(self.at).is_some_and(|l| l.trim().is_empty()) {
            self.at += 1;
        }
        let line = self.lines.get(self.at).ok_or("the text ends too early")?;
        self.at += 1;
        Ok(Words { rest: line })
    }
}

/// Reads the form that [`print`] writes. The result is not verified.
pub fn parse(text: &str) -> Result<Plan, PlanError> {
    let mut lines = Lines { lines: text.lines().collect(), at: 0 };
    plan(&mut lines).map_err(|what| PlanError::Parse { line: lines.at, what })
}

fn plan(lines: &mut Lines) -> Parsed<Plan> {
    let mut p = Plan::default();
    let mut w = lines.next()?;
    w.expect("plan")?;
    p.name = w.string()?;
    w.key("machine")?;
    p.machine = w.string()?;
    w.key("numerics")?;
    let name = w.word()?;
    let known = Numerics::ALL.into_iter().find(|n| n.name() == name);
    p.numerics = known.ok_or_else(|| format!("`{name}` is not exact, reassociates or approximates"))?;
    p.lower_bound_us = w.keyed("lower_bound_us")?;
    w.expect("{")?;
    loop {
        let mut w = lines.next()?;
        let start = w.rest;
        match w.word()? {
            "search" => p.search = search(&mut w)?,
            "kernel" => p.kernels.push(parse_kernel(&mut w, lines)?),
            "return" => {
                p.outputs = w.buffers()?;
                w.end()?;
                lines.next()?.expect("}")?;
                return Ok(p);
            }
            _ => {
                w.rest = start;
                let id = w.buffer()?;
                if id.0 as usize != p.buffers.len() {
                    return Err(format!("{id} where b{} is wanted; buffers are numbered from 0", p.buffers.len()));
                }
                p.buffers.push(buffer(&mut w)?);
            }
        }
        w.end()?;
    }
}
fn search(w: &mut Words) -> Parsed<Search> {
    Ok(Search {
        iterations: w.keyed("iterations")?,
        enodes_before: w.keyed("before")?,
        enodes_after: w.keyed("after")?,
        stopped: {
            w.key("stopped")?;
            w.string()?
        },
        candidates: w.keyed("candidates")?,
        tried: w.keyed("tried")?,
        greedy_us: w.keyed("greedy_us")?,
    })
}
fn buffer(w: &mut Words) -> Parsed<Buffer> {
    w.expect(":")?;
    let (ty, kind) = w.rest.split_once(" = ").ok_or("`= input`, `= param`, `= frozen` or `= temp` is wanted")?;
    w.rest = kind;
    let kind = match w.word()? {
        "input" => BufferKind::Input(w.value()?),
        "param" => {
            let word = w.word()?;
            let id = word.strip_prefix('@').and_then(|n| n.parse().ok());
            BufferKind::Param(ParamId(id.ok_or_else(|| format!("`{word}` is not a parameter; write it as @3"))?))
        }
        "frozen" => BufferKind::Frozen,
        "temp" => BufferKind::Temp,
        other => return Err(format!("`{other}` is not input, param, frozen or temp")),
    };
    Ok(Buffer { ty: ty.trim().parse()?, kind })
}
fn parse_kernel(w: &mut Words, lines: &mut Lines) -> Parsed<Kernel> {
    let name = w.string()?;
    let kind = w.word()?;
    let kind =
        KernelKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(|| format!("no kernel kind `{kind}`"))?;
    let stage = match w.word()? {
        "load" => Stage::Load,
        "run" => Stage::Run,
        other => return Err(format!("`{other}` is not load or run")),
    };
    w.expect("(")?;
    let inputs = w.buffers()?;
    w.expect(")")?;
    w.expect("->")?;
    w.expect("(")?;
    let outputs = w.buffers()?;
    w.expect(")")?;
    w.expect("{")?;
    w.end()?;
    let (mut cost, mut precision, mut reason) = (Cost::default(), Precision::Exact, Reason::default());
    loop {
        let mut w = lines.next()?;
        match w.word()? {
            "cost" => {
                cost = Cost {
                    bytes_read: w.keyed("read")?,
                    bytes_written: w.keyed("written")?,
                    matrix_flops: w.keyed("matrix")?,
                    other_flops: w.keyed("other")?,
                    us: w.keyed("us")?,
                }
            }
            "precision" => {
                let name = w.word()?;
                let known = [Precision::Tf32x3, Precision::Tf32].into_iter().find(|p| p.name() == Some(name));
                precision = known.ok_or_else(|| format!("`{name}` is not tf32x3 or tf32"))?;
            }
            "rules" => reason.rules = w.strings()?,
            "template" => reason.template = Some(w.string()?.parse()?),
            "tuned" => {
                let (device, us, default_us) = (w.string()?, w.keyed("us")?, w.keyed("default")?);
                reason.tuning = Some(Tuning::Measured { device, us, default_us });
            }
            "not_tuned" => reason.tuning = Some(Tuning::Unused { why: w.string()? }),
            "values" => reason.origins = origins(&mut w)?,
            "made" => {
                let value = w.body_value()?;
                let found = reason.origins.iter_mut().find(|o| o.value == value);
                found.ok_or_else(|| format!("{value} is made by a rule but not among the values"))?.rules =
                    w.strings()?;
            }
            "alternative" => reason.alternative = Some(Alternative { what: w.string()?, us: w.keyed("us")? }),
            "stop" => reason.stops.push(Stop { kernel: w.string()?, why: w.string()? }),
            "graph" => {
                let body = body(lines)?;
                lines.next()?.expect("}")?;
                return Ok(Kernel { name, kind, stage, body, inputs, outputs, cost, precision, reason });
            }
            other => {
                return Err(format!(
                    "`{other}` is not cost, precision, rules, template, tuned, not_tuned, alternative, stop, values, made or graph"
                ));
            }
        }
        w.end()?;
    }
}
fn origins(w: &mut Words) -> Parsed<Vec<Origin>> {
    let mut out = vec![];
    while w.peek().is_some() {
        let (value, names) = (w.body_value()?, w.string()?);
        out.push(Origin { value, names: names.split_whitespace().map(String::from).collect(), rules: vec![] });
    }
    Ok(out)
}
/// The graph that begins on the line just read, up to the line of its closing brace.
fn body(lines: &mut Lines) -> Parsed<Graph> {
    let from = lines.at - 1;
    while lines.lines.get(lines.at).ok_or("the text ends inside a body")?.trim() != "}" {
        lines.at += 1;
    }
    lines.at += 1;
    let text = lines.lines[from..lines.at].join("\n");
    kiln_graph::text::parse(&text).map_err(|e| format!("body that begins on line {}: {e}", from + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_prints_and_parses_back() {
        let body: Graph =
            "graph k(%x: f32[4,8], %b: f32[8]) {\n %y = add %x, %b\n return %y\n}".parse().expect("valid");
        let buffer = |kind, ty: &str| Buffer { kind, ty: ty.parse().expect("a type") };
        let p = Plan {
            name: "a \"quoted\" name".into(),
            machine: "h200".into(),
            buffers: vec![
                buffer(BufferKind::Input(0), "f32[4,8]"),
                buffer(BufferKind::Param(ParamId(0)), "f32[8]"),
                buffer(BufferKind::Temp, "f32[4,8]"),
            ],
            kernels: vec![Kernel {
                name: "add_0".into(),
                kind: KernelKind::Pointwise,
                stage: Stage::Run,
                body,
                inputs: vec![BufferId(0), BufferId(1)],
                outputs: vec![BufferId(2)],
                cost: Cost { us: 2.125, bytes_read: 160, ..Cost::default() },
                precision: Precision::Tf32x3,
                reason: Reason {
                    rules: vec!["a".into(), "b c".into()],
                    alternative: Some(Alternative { what: "apart".into(), us: 4.5 }),
                    stops: vec![Stop { kernel: "gemm_1".into(), why: "two anchors".into() }],
                    origins: vec![Origin {
                        value: ValueId(2),
                        names: vec!["%7".into(), "%9".into()],
                        rules: vec!["a".into()],
                    }],
                    template: "warpgroup 64x128 parts 3".parse().ok(),
                    tuning: Some(Tuning::Measured { device: "NVIDIA H200".into(), us: 2.5, default_us: 3.25 }),
                },
            }],
            outputs: vec![BufferId(2), BufferId(0)],
            ..Plan::default()
        };
        let text = p.to_string();
        let again: Plan = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again.to_string(), text);
        assert_eq!(crate::verify::verify(&again), Ok(()));
        let json = serde_json::to_string(&p).expect("serialises");
        let from_json: Plan = serde_json::from_str(&json).expect("parses");
        assert_eq!(from_json.to_string(), text);
    }

    #[test]
    fn errors_say_the_line_and_what_is_wanted() {
        let text = "plan \"x\" machine=\"h\" numerics=exact lower_bound_us=0 {\n  b1: f32[] = temp\n  return\n}";
        let e = parse(text).expect_err("buffers count from 0");
        assert_eq!(e.to_string(), "plan text, line 2: b1 where b0 is wanted; buffers are numbered from 0");
    }
}
