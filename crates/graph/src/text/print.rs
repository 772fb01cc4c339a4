//! Graph to text: canonical, one line per node, values numbered by position.
use crate::{Graph, Init, Op, PoolKind, Scalar, ScatterMode, graph::float_text};
use std::fmt::{Display, Write};

/// The canonical text. Parsing it gives an equal graph.
pub fn print(g: &Graph) -> String {
    let mut out = String::new();
    let leading = g.inputs.iter().enumerate().all(|(i, v)| v.0 as usize == i && *g.source(*v) == Default::default());
    let header = if leading { join(&g.inputs, |v| format!("{v}: {}", g.ty(*v))) } else { String::new() };
    // Writing to a string cannot fail; the results are dropped throughout.
    let _ = writeln!(out, "graph {}({header}) {{", name(&g.name));
    for (i, p) in g.params.iter().enumerate() {
        let _ = writeln!(out, "  @{i} {}: {}{}", quoted(&p.name), p.ty, init(&p.init));
    }
    for v in g.values().skip(if leading { g.inputs.len() } else { 0 }) {
        let _ = write!(out, "  {v} = {}", g.op(v).name());
        let args = join(&g.args(v), |a| a.to_string());
        let attributes = attributes(g.op(v));
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

/// An op's attributes as they stand in the text: `axis=1 start=0 len=4 step=1`.
pub fn attributes(op: &Op) -> String {
    match op {
        Op::Input(i) => i.to_string(),
        Op::Param(p) => p.to_string(),
        Op::Const(s) => scalar(*s),
        Op::Iota { axis } | Op::Concat { axis } | Op::Gather { axis } | Op::Take { axis } | Op::Scan { axis, .. } => {
            format!("axis={axis}")
        }
        Op::Softmax { axis } | Op::LogSoftmax { axis } => format!("axis={axis}"),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Dot | Op::Linear => String::new(),
        Op::Cast(dtype) => format!("to={dtype}"),
        Op::Reshape(shape) | Op::Broadcast(shape) => format!("shape={}", list(shape)),
        Op::Permute(perm) => format!("perm={}", list(perm)),
        Op::Slice { axis, start, len, step } => format!("axis={axis} start={start} len={len} step={step}"),
        Op::Flip(axes) | Op::Reduce { axes, .. } => format!("axes={}", list(axes)),
        Op::Pad { lo, hi } => format!("lo={} hi={}", list(lo), list(hi)),
        Op::Scatter { axis, mode } => {
            let mode = match mode {
                ScatterMode::Replace => "replace",
                ScatterMode::Add => "add",
            };
            format!("axis={axis} mode={mode}")
        }
        Op::Conv { stride, padding, dilation, groups, transposed, output_padding } => format!(
            "stride={} padding={} dilation={} groups={groups} transposed={transposed} output_padding={}",
            list(stride),
            list(padding),
            list(dilation),
            list(output_padding)
        ),
        Op::Pool { kind, window, stride, padding, dilation, ceil } => {
            let [w, s, p, d] = [window, stride, padding, dilation].map(|l| list(l));
            let count = match kind {
                PoolKind::Max => String::new(),
                PoolKind::Avg { count_pad } => format!(" count_pad={count_pad}"),
            };
            format!("window={w} stride={s} padding={p} dilation={d} ceil={ceil}{count}")
        }
        Op::LayerNorm { axes, affine, eps } => format!("axes={axes} affine={affine} eps={}", scalar(*eps)),
        Op::RmsNorm { eps } | Op::BatchNorm { eps } => format!("eps={}", scalar(*eps)),
        Op::GroupNorm { groups, affine, eps } => format!("groups={groups} affine={affine} eps={}", scalar(*eps)),
        Op::Attention { scale, causal } => format!("scale={} causal={causal}", scalar(*scale)),
        Op::Fallback(f) => format!(
            "name={} overload={} args={} results={} why={}",
            quoted(&f.name),
            quoted(&f.overload),
            quoted(&f.args),
            list(&f.results),
            quoted(&f.why)
        ),
        Op::Result(i) => format!("index={i}"),
    }
}

fn init(init: &Init) -> String {
    match init {
        Init::External => String::new(),
        Init::Random { seed, scale } => format!(" = random(seed={seed}, scale={})", scalar(*scale)),
        Init::Fill(s) => format!(" = fill({})", scalar(*s)),
        Init::Data(data) => format!(" = [{}]", join(data, |s| scalar(*s))),
    }
}

pub(super) fn scalar(s: Scalar) -> String {
    match s {
        Scalar::Int(v) => v.to_string(),
        Scalar::Bool(v) => v.to_string(),
        Scalar::Float(v) if v.is_finite() => format!("{v:?}"),
        Scalar::Float(v) => match float_text::special(v).strip_prefix("nan:") {
            Some(bits) => format!("nan({bits})"),
            None => float_text::special(v),
        },
    }
}

fn name(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        && !matches!(name, "nan" | "inf");
    if plain { name.into() } else { quoted(name) }
}

/// JSON's escapes.
fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

fn list<T: Display>(items: &[T]) -> String {
    format!("[{}]", join(items, T::to_string))
}

fn join<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}
