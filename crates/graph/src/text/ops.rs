//! From an op's name and attributes to the op, with defaults for what is left out.
use crate::{
    BinaryOp, CompareOp, DType, FallbackOp, Op, PoolKind, ReduceOp, Scalar, ScanOp, ScatterMode, Type, UnaryOp,
};

/// Value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum Attr {
    Int(i128),
    /// A float or a bool.
    Scalar(Scalar),
    Word(String),
    Str(String),
    List(Vec<i128>),
    Types(Vec<Type>),
}

/// Attributes in the order of the text; each is taken once, and none may be left over.
pub(super) struct Attrs(pub Vec<(String, Attr)>);

impl Attrs {
    fn take(&mut self, key: &str) -> Option<Attr> {
        let i = self.0.iter().position(|(k, _)| k == key)?;
        Some(self.0.remove(i).1)
    }
    fn or<T>(&mut self, key: &str, get: impl Fn(Attr) -> Option<T>, what: &str, default: T) -> Result<T, String> {
        match self.take(key) {
            None => Ok(default),
            Some(a) => get(a).ok_or_else(|| format!("{key}= wants {what}")),
        }
    }
    fn want<T>(&mut self, key: &str, get: impl Fn(Attr) -> Option<T>, what: &str) -> Result<T, String> {
        let attr = self.take(key).ok_or_else(|| format!("{key}= is missing: give {what}"))?;
        get(attr).ok_or_else(|| format!("{key}= wants {what}"))
    }
    fn usize(&mut self, key: &str) -> Result<usize, String> {
        self.want(key, size, "a number")
    }
    fn list(&mut self, key: &str) -> Result<Vec<usize>, String> {
        self.want(key, sizes, "a list of numbers, as [1,2]")
    }
    fn list_or(&mut self, key: &str, default: Vec<usize>) -> Result<Vec<usize>, String> {
        self.or(key, sizes, "a list of numbers, as [1,2]", default)
    }
    fn scalar(&mut self, key: &str) -> Result<Scalar, String> {
        self.want(key, scalar, "a number")
    }
    fn bool_or(&mut self, key: &str, default: bool) -> Result<bool, String> {
        self.or(key, boolean, "true or false", default)
    }
    fn string_or(&mut self, key: &str) -> Result<String, String> {
        self.or(key, |a| if let Attr::Str(s) = a { Some(s) } else { None }, "a string in quotes", String::new())
    }
}

fn size(a: Attr) -> Option<usize> {
    if let Attr::Int(v) = a { usize::try_from(v).ok() } else { None }
}
fn sizes(a: Attr) -> Option<Vec<usize>> {
    if let Attr::List(l) = a { l.into_iter().map(|v| usize::try_from(v).ok()).collect() } else { None }
}
fn signed(a: Attr) -> Option<Vec<i64>> {
    if let Attr::List(l) = a { l.into_iter().map(|v| i64::try_from(v).ok()).collect() } else { None }
}
fn scalar(a: Attr) -> Option<Scalar> {
    match a {
        Attr::Int(v) => i64::try_from(v).ok().map(Scalar::Int),
        Attr::Scalar(s) => Some(s),
        _ => None,
    }
}
fn boolean(a: Attr) -> Option<bool> {
    if let Attr::Scalar(Scalar::Bool(v)) = a { Some(v) } else { None }
}

/// The op called `name` on `args`. Leaves are not built here. The error is a clause.
pub(super) fn build(name: &str, attrs: &mut Attrs, args: &[Type]) -> Result<Op, String> {
    let op = build_op(name, attrs, args)?;
    match attrs.0.first() {
        Some((key, _)) => Err(format!("{name} has no attribute {key}=; leave it out")),
        None => Ok(op),
    }
}

fn build_op(name: &str, a: &mut Attrs, args: &[Type]) -> Result<Op, String> {
    if let Some(op) = UnaryOp::from_name(name) {
        return Ok(Op::Unary(op));
    }
    if let Some(op) = BinaryOp::from_name(name) {
        return Ok(Op::Binary(op));
    }
    if let Some(op) = CompareOp::from_name(name) {
        return Ok(Op::Compare(op));
    }
    if let Some(op) = ReduceOp::from_name(name) {
        return Ok(Op::Reduce { op, axes: a.list("axes")? });
    }
    if let Some(op) = ScanOp::from_name(name) {
        return Ok(Op::Scan { op, axis: a.usize("axis")? });
    }
    let spatial = args.first().map_or(0, |x| x.rank().saturating_sub(2));
    let affine = args.len() > 1;
    Ok(match name {
        "select" => Op::Select,
        "cast" => Op::Cast(a.want("to", dtype, "an element type, as f32")?),
        "reshape" => Op::Reshape(a.list("shape")?),
        "broadcast" => Op::Broadcast(a.list("shape")?),
        "permute" => Op::Permute(a.list("perm")?),
        "slice" => Op::Slice {
            axis: a.usize("axis")?,
            start: a.or("start", size, "a number", 0)?,
            len: a.usize("len")?,
            step: a.or("step", size, "a number", 1)?,
        },
        "flip" => Op::Flip(a.list("axes")?),
        "pad" => {
            let none = vec![0; args.first().map_or(0, Type::rank)];
            let what = "a list of numbers, as [0,-1]";
            Op::Pad { lo: a.or("lo", signed, what, none.clone())?, hi: a.or("hi", signed, what, none)? }
        }
        "concat" => Op::Concat { axis: a.usize("axis")? },
        "gather" => Op::Gather { axis: a.usize("axis")? },
        "take" => Op::Take { axis: a.usize("axis")? },
        "scatter" => Op::Scatter {
            axis: a.usize("axis")?,
            mode: a.or("mode", scatter_mode, "replace or add", ScatterMode::Replace)?,
        },
        "dot" => Op::Dot,
        "conv" => {
            let stride = a.list_or("stride", vec![1; spatial])?;
            Op::Conv {
                padding: a.list_or("padding", vec![0; spatial])?,
                dilation: a.list_or("dilation", vec![1; spatial])?,
                groups: a.or("groups", size, "a number", 1)?,
                transposed: a.bool_or("transposed", false)?,
                output_padding: a.list_or("output_padding", vec![0; stride.len()])?,
                stride,
            }
        }
        "pool.max" => pool(PoolKind::Max, a)?,
        "pool.avg" => pool(PoolKind::Avg { count_pad: a.bool_or("count_pad", true)? }, a)?,
        "softmax" => Op::Softmax { axis: a.usize("axis")? },
        "log_softmax" => Op::LogSoftmax { axis: a.usize("axis")? },
        "layer_norm" => Op::LayerNorm {
            axes: a.or("axes", size, "a number", 1)?,
            affine: a.bool_or("affine", affine)?,
            eps: a.scalar("eps")?,
        },
        "rms_norm" => Op::RmsNorm { eps: a.scalar("eps")? },
        "group_norm" => {
            Op::GroupNorm { groups: a.usize("groups")?, affine: a.bool_or("affine", affine)?, eps: a.scalar("eps")? }
        }
        "batch_norm" => Op::BatchNorm { eps: a.scalar("eps")? },
        "linear" => Op::Linear,
        "attention" => Op::Attention { scale: a.scalar("scale")?, causal: a.bool_or("causal", false)? },
        "fallback" => Op::Fallback(Box::new(FallbackOp {
            name: a.string_or("name")?,
            overload: a.string_or("overload")?,
            args: a.string_or("args")?,
            results: a.want("results", types, "a list of types, as [f32[8], i64[8]]")?,
            why: a.string_or("why")?,
        })),
        "result" => Op::Result(a.want("index", |v| size(v)?.try_into().ok(), "a number")?),
        _ => return Err(unknown(name)),
    })
}

fn pool(kind: PoolKind, a: &mut Attrs) -> Result<Op, String> {
    let window = a.list("window")?;
    let n = window.len();
    Ok(Op::Pool {
        kind,
        stride: a.list_or("stride", window.clone())?,
        padding: a.list_or("padding", vec![0; n])?,
        dilation: a.list_or("dilation", vec![1; n])?,
        ceil: a.bool_or("ceil", false)?,
        window,
    })
}

fn dtype(a: Attr) -> Option<DType> {
    if let Attr::Word(w) = a { w.parse().ok() } else { None }
}
fn scatter_mode(a: Attr) -> Option<ScatterMode> {
    match a {
        Attr::Word(w) if w == "replace" => Some(ScatterMode::Replace),
        Attr::Word(w) if w == "add" => Some(ScatterMode::Add),
        _ => None,
    }
}
fn types(a: Attr) -> Option<Vec<Type>> {
    match a {
        Attr::Types(t) => Some(t),
        Attr::List(l) if l.is_empty() => Some(vec![]),
        _ => None,
    }
}

/// Names the op that was probably meant, if one is near.
fn unknown(name: &str) -> String {
    let near = Op::names().min_by_key(|k| distance(k, name)).filter(|k| distance(k, name) * 2 <= name.len());
    match near {
        Some(near) => format!("there is no op `{name}`; did you mean `{near}`?"),
        None => format!(
            "there is no op `{name}`; ops are add, mul, reduce.sum, dot, reshape, … (see the op set's documentation)"
        ),
    }
}

/// Edit distance; names are short, longer ones are cut.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<u8>, Vec<u8>) = (a.bytes().take(40).collect(), b.bytes().take(40).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
