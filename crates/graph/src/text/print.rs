//! Printer: graph to canonical text, one line per node, with values numbered by position.
use super::programs::indented;
use crate::launch::{ArgumentValue, LaunchArgument, LaunchOp, ProgramText};
use crate::{
    Graph, Init, Op,
    ops::{Attribute, Visitor, quoted},
    scalar,
};
use std::fmt::Write;

/// The canonical text of a graph. Parsing it gives an equal graph.
pub fn print(g: &Graph) -> String {
    let mut out = String::new();
    let leading = g.inputs.iter().enumerate().all(|(i, v)| v.0 as usize == i && *g.source(*v) == Default::default());
    let header = if leading { join(&g.inputs, |v| format!("{v}: {}", g.ty(*v))) } else { String::new() };
    // Writing to a string cannot fail, so results are ignored throughout.
    let _ = writeln!(out, "graph {}({header}) {{", name(&g.name));
    for (i, p) in g.params.iter().enumerate() {
        let _ = writeln!(out, "  @{i} {}: {}{}", quoted(&p.name), p.ty, init(&p.init));
    }
    for program in programs(g) {
        out.push_str(&indented(&program.text));
    }
    for v in g.values().skip(if leading { g.inputs.len() } else { 0 }) {
        let _ = write!(out, "  {v} = {}", g.op(v).name());
        let (args, attributes) = match g.op(v) {
            Op::Launch(launch) => {
                (String::new(), called(launch, &g.args(v).iter().map(ToString::to_string).collect::<Vec<_>>()))
            }
            op => (join(&g.args(v), |a| a.to_string()), attributes(op)),
        };
        for part in [args, attributes].into_iter().filter(|p| !p.is_empty()) {
            let _ = write!(out, " {part}");
        }
        let _ = write!(out, " : {}", g.ty(v));
        let source = g.source(v);
        if !source.module.is_empty() || !source.line.is_empty() {
            let _ = write!(out, " loc({}, {})", quoted(&source.module), quoted(&source.line));
        }
        out.push('\n');
    }
    let outputs = join(&g.outputs, |v| v.to_string());
    let _ = writeln!(out, "  return{}{outputs}\n}}", if outputs.is_empty() { "" } else { " " });
    out
}

/// An op's attributes in the text form: `axis=1 start=0 len=4 step=1`.
pub fn attributes(op: &Op) -> String {
    match op {
        Op::Input(i) => return i.to_string(),
        Op::Param(p) => return p.to_string(),
        Op::Const(s) => return scalar::text(*s),
        Op::Launch(launch) => return called(launch, &[]),
        _ => {}
    }
    let mut shown = Shown(vec![]);
    // `visit` takes `&mut self` for parsing; printing visits a clone.
    op.clone().visit(&mut shown);
    shown.0.join(" ")
}

/// The programs that a graph launches, each once.
fn programs(g: &Graph) -> Vec<&ProgramText> {
    let mut all: Vec<&ProgramText> = vec![];
    for v in g.values() {
        if let Op::Launch(launch) = g.op(v)
            && !all.iter().any(|p| p.name == launch.program.name)
        {
            all.push(&launch.program);
        }
    }
    all
}

/// `scale(x=%0, out=new f32[8], n=8) grid=[1]`; operands without a name are `_`.
fn called(launch: &LaunchOp, operands: &[String]) -> String {
    let mut operands = operands.iter().map(String::as_str);
    let argument = |a: &LaunchArgument| {
        let value = match &a.value {
            ArgumentValue::Operand => operands.next().unwrap_or("_").to_string(),
            ArgumentValue::Copy(_) => format!("copy {}", operands.next().unwrap_or("_")),
            ArgumentValue::New(ty) => format!("new {ty}"),
            ArgumentValue::Number(n) => scalar::text(*n),
        };
        format!("{}={value}", name(&a.parameter))
    };
    let arguments = launch.arguments.iter().map(argument).collect::<Vec<_>>().join(", ");
    let grid = if launch.grid.is_empty() { String::new() } else { format!(" grid={}", launch.grid.show()) };
    format!("{}({arguments}){grid}", name(&launch.program.name))
}

struct Shown(Vec<String>);
impl Visitor for Shown {
    fn needed<T: Attribute>(&mut self, key: &'static str, value: &mut T) {
        self.0.push(format!("{key}={}", value.show()));
    }
    fn optional<T: Attribute>(&mut self, key: &'static str, value: &mut T) {
        self.needed(key, value);
    }
    fn or<T: Attribute>(&mut self, key: &'static str, value: &mut T, _: impl FnOnce() -> T) {
        self.needed(key, value);
    }
    fn rare<T: Attribute + Default + PartialEq>(&mut self, key: &'static str, value: &mut T) {
        if *value != T::default() {
            self.needed(key, value);
        }
    }
}

fn init(init: &Init) -> String {
    match init {
        Init::External => String::new(),
        Init::Random { seed, scale } => format!(" = random(seed={seed}, scale={})", scalar::text(*scale)),
        Init::Fill(s) => format!(" = fill({})", scalar::text(*s)),
        Init::Data(data) => format!(" = [{}]", join(data, |s| scalar::text(*s))),
    }
}

fn name(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        && !matches!(name, "nan" | "inf");
    if plain { name.into() } else { quoted(name) }
}

fn join<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}
