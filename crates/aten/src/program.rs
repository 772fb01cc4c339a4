//! A program with symbolic sizes, as a door reads it once: operator calls on values whose dimensions are expressions.
//!
//! `.pt2` archives are read into it; a traced graph of torch.compile is handed over as its JSON form. [`Program::bind`]
//! finds the sizes of the symbols from the types of inputs, and checks ranges and guards. [`Program::at`] gives the
//! calls for these sizes ([`Raw`]), which [`crate::convert`] turns into a graph: behind the door every size is known.
use crate::{
    convert::context::part_type,
    error::{ImportErrors, Problem},
    extent::{Extent, Sizes},
    mutation::Write,
    raw::{Arg, Call, Raw, RawInfo, RawInput},
};
use kiln_graph::{DType, Type};
use serde::Deserialize;
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
};

/// A program for all sizes within its ranges.
#[derive(Debug, Deserialize)]
pub struct Program {
    /// Its name, for reports.
    #[serde(default)]
    pub name: String,
    /// The symbols of its dimensions.
    #[serde(default)]
    pub symbols: BTreeMap<String, Symbol>,
    /// What must hold of the symbols, besides ranges.
    #[serde(skip)]
    pub guards: Vec<Guard>,
    /// All tensors.
    pub values: Vec<Value>,
    /// What a caller passes, in order.
    pub inputs: Vec<Input>,
    /// Ids of the values whose data comes with the program: parameters, buffers and constants.
    pub params: Vec<usize>,
    /// In execution order.
    pub calls: Vec<Call>,
    /// What a run gives, in order.
    pub outputs: Vec<Output>,
    /// What a run changes.
    #[serde(default)]
    pub writes: Vec<Write>,
}

/// A symbol of a program's sizes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Symbol {
    /// The least size.
    #[serde(default)]
    pub min: Option<i64>,
    /// The largest size.
    #[serde(default)]
    pub max: Option<i64>,
    /// The size when the program was traced.
    #[serde(default)]
    pub hint: Option<i64>,
}

/// A condition on sizes beyond their ranges.
#[derive(Debug, Clone)]
pub struct Guard {
    /// As the file has it.
    pub text: String,
    /// Its value is 1 where the program holds; `None`: unknown, so the program holds at the sizes of tracing alone.
    pub condition: Option<Extent>,
}

/// A tensor of the program.
#[derive(Debug, Clone, Deserialize)]
pub struct Value {
    /// Kiln's name of the dtype, or torch's if Kiln does not have it.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<Extent>,
    /// Name of a parameter, buffer or constant.
    #[serde(default)]
    pub name: Option<String>,
}

/// One thing that a caller passes.
#[derive(Debug, Deserialize)]
pub struct Input {
    /// As in the source.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: InputKind,
}

/// What an input is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputKind {
    /// A tensor: its value.
    Value(usize),
    /// A number that is a size.
    Size(Extent),
    /// A number, text or None, for which the program was traced.
    Constant(Arg),
}

/// One thing that a run gives.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// A tensor: its value.
    Value(usize),
    /// A number that follows from sizes.
    Size(Extent),
    /// A number or text.
    Constant(Arg),
    /// Nothing.
    None,
}

impl Value {
    /// The value as a caller passes it, and as the data of a parameter is: a complex tensor has its parts along one
    /// more axis.
    pub fn in_memory(&self) -> Cow<'_, Value> {
        match part_type(&self.dtype) {
            None => Cow::Borrowed(self),
            Some(part) => {
                let shape = self.shape.iter().cloned().chain([Extent::Integer(2)]).collect();
                Cow::Owned(Value { dtype: part.name().into(), shape, name: self.name.clone() })
            }
        }
    }
}

impl Program {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// If the text is not this form, or names values that it does not have.
    pub fn from_json(text: &str) -> Result<Program, ImportErrors> {
        let unread =
            |e: String| Problem::new(format!("the traced program cannot be read: {e}")).help("please report it");
        let program: Program = serde_json::from_str(text).map_err(|e| unread(e.to_string()))?;
        program.check().map_err(unread)?;
        Ok(program)
    }

    /// Fails if the program names a value that it does not have, computes one twice, or uses one before it is computed.
    pub fn check(&self) -> Result<(), String> {
        let mut used: Vec<usize> = self.params.clone();
        used.extend(self.writes.iter().flat_map(|w| [w.target, w.value]));
        used.extend(self.inputs.iter().filter_map(|i| if let InputKind::Value(id) = i.kind { Some(id) } else { None }));
        used.extend(self.outputs.iter().filter_map(|o| if let Output::Value(id) = o { Some(*id) } else { None }));
        for call in &self.calls {
            used.extend(&call.outs);
            call.args.iter().for_each(|a| a.values(&mut used));
        }
        if let Some(id) = used.iter().find(|id| **id >= self.values.len()) {
            return Err(format!("there is no value {id}"));
        }
        let mut known = HashSet::new();
        let inputs = self.inputs.iter().filter_map(|i| if let InputKind::Value(id) = i.kind { Some(id) } else { None });
        let define = |known: &mut HashSet<usize>, id: usize| match known.insert(id) {
            true => Ok(()),
            false => Err(format!("value {id} is computed twice")),
        };
        inputs.chain(self.params.iter().copied()).try_for_each(|id| define(&mut known, id))?;
        for call in &self.calls {
            let mut used = vec![];
            call.args.iter().for_each(|a| a.values(&mut used));
            if let Some(id) = used.iter().find(|id| !known.contains(*id)) {
                return Err(format!("`{}` uses value {id} before it is computed", call.name));
            }
            call.outs.iter().try_for_each(|id| define(&mut known, *id))?;
        }
        Ok(())
    }

    /// The tensor inputs, in order.
    pub fn tensor_inputs(&self) -> impl Iterator<Item = (&Input, &Value)> {
        self.inputs.iter().filter_map(|i| match i.kind {
            InputKind::Value(id) => Some((i, &self.values[id])),
            _ => None,
        })
    }

    /// The sizes at tracing. A symbol without one, as of sizes that depend on data, is left out.
    pub fn traced_sizes(&self) -> Sizes {
        self.symbols.iter().filter_map(|(name, s)| Some((name.clone(), s.hint?))).collect()
    }

    /// The sizes of all symbols. `wanted` has some by a symbol's name (`s53`), or by input and axis (`x.0`), whose size
    /// may follow from one (`2*s53`); `inputs` are the types of the tensor inputs, or empty; the rest are sizes of
    /// tracing.
    ///
    /// # Errors
    /// If a name is unknown, no symbol gives an axis the size that is wanted, or [`Program::bind`] or
    /// [`Program::holds`] fails.
    pub fn sizes(&self, wanted: &Sizes, inputs: &[Type]) -> Result<Sizes, Problem> {
        let mut sizes = if inputs.is_empty() { Sizes::new() } else { self.bind(inputs, &[])? };
        let mut dimensions = vec![];
        for (name, size) in wanted {
            let extent = match self.symbols.contains_key(name) {
                true => Extent::Symbol(name.clone()),
                false => self.extent_of_axis(name)?.clone(),
            };
            dimensions.push((name, *size, extent));
        }
        // Symbols first: expressions may need them.
        dimensions.sort_by_key(|(.., e)| !matches!(e, Extent::Symbol(_)));
        for (name, size, extent) in dimensions {
            let known = sizes.clone();
            fit(&extent, size, &mut sizes).map_err(|_| match extent.value(&known) {
                Ok(other) => {
                    let what =
                        format!("dimension `{name}` is {size}, but the inputs or other sizes given make it {other}");
                    Problem::new(what).help("leave it out, or give other inputs")
                }
                Err(_) => {
                    let free: Vec<&str> = extent.symbols().into_iter().filter(|s| !known.contains_key(*s)).collect();
                    let what = format!(
                        "dimension `{name}` is {extent}, and Kiln finds no {} that makes it {size}",
                        free.join(", ")
                    );
                    Problem::new(what).help(format!("give the size of {} in its place", free.join(" and of ")))
                }
            })?;
        }
        for (name, size) in self.traced_sizes() {
            sizes.entry(name).or_insert(size);
        }
        self.holds(&sizes)?;
        Ok(sizes)
    }

    /// The symbol of this name, or that is the size of `INPUT.AXIS`.
    ///
    /// # Errors
    /// If there is none.
    pub fn symbol(&self, name: &str) -> Result<String, Problem> {
        if self.symbols.contains_key(name) {
            return Ok(name.into());
        }
        match self.extent_of_axis(name)? {
            Extent::Symbol(s) => Ok(s.clone()),
            other => {
                let free = other.symbols().into_iter().collect::<Vec<_>>().join(" and of ");
                Err(Problem::new(format!("dimension `{name}` is {other}"))
                    .help(format!("name the size of {free} in its place")))
            }
        }
    }

    /// The size of `INPUT.AXIS`, which has a symbol in it.
    fn extent_of_axis(&self, name: &str) -> Result<&Extent, Problem> {
        let unknown = || {
            let axes: Vec<String> = self.symbolic_axes().map(|(axis, e)| format!("{axis} ({e})")).collect();
            let help = match axes.len() {
                0 => "its sizes are fixed; export it with `dynamic_shapes`".into(),
                _ => format!("it has {}", axes.join(", ")),
            };
            Problem::new(format!("the program has no dimension `{name}` whose size can be chosen")).help(help)
        };
        self.symbolic_axes().find(|(axis, _)| axis == name).map(|(_, e)| e).ok_or_else(unknown)
    }
    /// `INPUT.AXIS` and the size of every axis of an input that is a symbol or follows from symbols.
    fn symbolic_axes(&self) -> impl Iterator<Item = (String, &Extent)> {
        self.tensor_inputs().flat_map(|(input, v)| {
            let axes = v.shape.iter().enumerate().filter(|(_, e)| !e.symbols().is_empty());
            axes.map(move |(axis, e)| (format!("{}.{axis}", input.name), e))
        })
    }

    /// The sizes of the symbols for tensor inputs of these types. `numbers` are the inputs that are sizes, in order;
    /// those that are left out are not checked.
    ///
    /// # Errors
    /// If the number of inputs, a dtype, a rank, a dimension or a number does not fit.
    pub fn bind(&self, inputs: &[Type], numbers: &[i64]) -> Result<Sizes, Problem> {
        let count = self.tensor_inputs().count();
        if inputs.len() != count {
            let all: Vec<String> = self.tensor_inputs().map(|(i, v)| format!("{}: {}", i.name, v)).collect();
            let what = format!("{} input tensors were given, but the program takes {count}", inputs.len());
            return Err(Problem::new(what).help(format!("give ({})", all.join(", "))));
        }
        let mut sizes = Sizes::new();
        // Dimensions that are symbols first: expressions may need them.
        for direct in [true, false] {
            for ((input, value), ty) in self.tensor_inputs().zip(inputs) {
                let value = &value.in_memory();
                if direct {
                    same_kind(&input.name, value, ty)?;
                }
                for (axis, (e, n)) in value.shape.iter().zip(&ty.shape).enumerate() {
                    if matches!(e, Extent::Symbol(_)) == direct {
                        fit(e, *n as i64, &mut sizes).map_err(|want| {
                            let name = &input.name;
                            let what =
                                format!("input `{name}` is {ty}: its dimension {axis} has to be {want}, not {n}");
                            Problem::new(what).help(format!("pass {value}"))
                        })?;
                    }
                }
            }
        }
        let sized =
            self.inputs.iter().filter_map(|i| if let InputKind::Size(e) = &i.kind { Some((i, e)) } else { None });
        for ((input, e), n) in sized.zip(numbers) {
            fit(e, *n, &mut sizes).map_err(|want| {
                let what = format!("input `{}` has to be {want}, not {n}", input.name);
                Problem::new(what).help("pass the size that it stands for")
            })?;
        }
        Ok(sizes)
    }

    /// Fails unless sizes are within their ranges and every guard holds. Guards that Kiln cannot evaluate hold at the
    /// sizes of tracing.
    pub fn holds(&self, sizes: &Sizes) -> Result<(), Problem> {
        for (name, size) in sizes {
            let Some(Symbol { min, max, hint }) = self.symbols.get(name) else { continue };
            let (least, most) = (min.unwrap_or(0), max.unwrap_or(i64::MAX));
            // torch counts a size of 1 apart: a range from 2 may have been traced at another size only.
            if !(least..=most).contains(size) && *hint != Some(*size) {
                let axis = self
                    .symbolic_axes()
                    .find(|(_, e)| matches!(e, Extent::Symbol(s) if s == name))
                    .map_or(String::new(), |(axis, _)| format!(" ({axis})"));
                let most = if most >= i64::MAX >> 1 { "any size".to_string() } else { most.to_string() };
                let what = format!(
                    "dimension `{name}`{axis} cannot be {size}: the program was exported for {least} to {most}"
                );
                return Err(Problem::new(what).help("export again with a wider torch.export.Dim"));
            }
        }
        let traced = || self.traced_sizes() == *sizes;
        for guard in &self.guards {
            let problem = |why: &str| {
                Problem::new(format!("the program holds only where `{}`{why}", guard.text))
                    .help("give inputs of the sizes at export, or export again for these sizes")
            };
            match guard.condition.as_ref().and_then(|c| c.value(sizes).ok()) {
                Some(0) => return Err(problem(", which these sizes do not meet")),
                Some(_) => {}
                None if traced() => {}
                None => return Err(problem(", which Kiln does not evaluate")),
            }
        }
        Ok(())
    }

    /// The calls for these sizes of the symbols. `outputs` of the result are the tensors that the program gives, then
    /// the values that it writes.
    ///
    /// # Errors
    /// If a size depends on data, is negative, or is beyond 64 bits.
    pub fn at(&self, sizes: &Sizes) -> Result<Raw, ImportErrors> {
        let params: HashSet<usize> = self.params.iter().copied().collect();
        let mut problems = vec![];
        let mut values = Vec::with_capacity(self.values.len());
        for (id, v) in self.values.iter().enumerate() {
            let shape = v.shape.iter().map(|e| dimension(e, sizes)).collect::<Result<Vec<usize>, String>>();
            let shape = shape.unwrap_or_else(|why| {
                let (source, module) = self.origin(id);
                problems.push(Problem { source, module, ..depends_on_data(why) });
                vec![]
            });
            let (dtype, name) = (v.dtype.clone(), v.name.clone());
            values.push(RawInfo { dtype, shape, constant: params.contains(&id), folded: false, scalar: None, name });
        }
        let mut calls = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let args = call.args.iter().map(|a| a.at(sizes)).collect::<Result<Vec<Arg>, String>>();
            match args {
                Ok(args) => calls.push(Call { args, ..call.clone() }),
                Err(why) => problems.push(Problem {
                    source: call.source.clone(),
                    module: call.module.clone(),
                    ..depends_on_data(why)
                }),
            }
        }
        if let Some(first) = problems.into_iter().next() {
            // One unknown size makes many others unknown.
            return Err(crate::source::settle_problems(first.into()));
        }
        crate::retype::mend(&mut values, &calls).map_err(|p| crate::source::settle_problems(p.into()))?;
        let inputs = self.tensor_inputs().map(|(i, _)| i.name.clone());
        let ids = self.inputs.iter().filter_map(|i| if let InputKind::Value(id) = i.kind { Some(id) } else { None });
        let inputs = inputs.zip(ids).map(|(name, id)| RawInput { name, value: Some(id), scalar: None }).collect();
        let results = self.outputs.iter().filter_map(|o| if let Output::Value(id) = o { Some(*id) } else { None });
        let outputs = results.chain(self.writes.iter().map(|w| w.value)).collect();
        Ok(Raw { inputs, values, calls, outputs, structure: serde_json::Value::Null })
    }

    /// Where a value is computed.
    fn origin(&self, id: usize) -> (String, String) {
        let call = self.calls.iter().find(|c| c.outs.contains(&id));
        call.map(|c| (c.source.clone(), c.module.clone())).unwrap_or_default()
    }
}

fn depends_on_data(why: String) -> Problem {
    Problem::new(why).help(
        "compute sizes that depend on data outside of the model, or let PyTorch run these operators: \
         `kiln.compile(torch.export.load(FILE))` in Python, for a file whose writer you trust",
    )
}

fn dimension(e: &Extent, sizes: &Sizes) -> Result<usize, String> {
    usize::try_from(e.value(sizes)?).map_err(|_| "a tensor has a negative size".to_string())
}

/// Fails unless dtype and rank are the program's.
fn same_kind(name: &str, value: &Value, ty: &Type) -> Result<(), Problem> {
    let dtype: Option<DType> = value.dtype.parse().ok();
    if dtype.is_some_and(|d| d != ty.dtype) {
        let what = format!("input `{name}` is {}, but the program takes {}", ty.dtype, value.dtype);
        return Err(Problem::new(what).help("convert it, or export again with this dtype"));
    }
    if value.shape.len() != ty.rank() {
        let what =
            format!("input `{name}` is {ty}, of rank {}, but the program takes rank {}", ty.rank(), value.shape.len());
        return Err(Problem::new(what).help(format!("pass {value}")));
    }
    Ok(())
}

/// Makes a dimension `n`: binds its symbol if it is the only one that is not known. Fails with what the dimension has
/// to be.
fn fit(e: &Extent, n: i64, sizes: &mut Sizes) -> Result<(), String> {
    let unknown: Vec<String> =
        e.symbols().into_iter().filter(|s| !sizes.contains_key(*s)).map(str::to_string).collect();
    let Some(symbol) = unknown.first() else {
        return match e.value(sizes) {
            Ok(want) if want == n => Ok(()),
            Ok(want) => Err(want.to_string()),
            Err(why) => Err(why),
        };
    };
    // Linear expressions are solved: `2*s0 + 1` of 7 is 3.
    let at = |s: i64| e.value(&sizes.iter().map(|(k, v)| (k.clone(), *v)).chain([(symbol.clone(), s)]).collect()).ok();
    let solved = at(0).zip(at(1)).and_then(|(zero, one)| {
        let (slope, rise) = (one.checked_sub(zero)?, n.checked_sub(zero)?);
        (slope != 0 && rise % slope == 0).then(|| rise / slope)
    });
    match solved.filter(|s| unknown.len() == 1 && at(*s) == Some(n)) {
        Some(s) => {
            sizes.insert(symbol.clone(), s);
            Ok(())
        }
        None => Err(format!("a value of {e}")),
    }
}

impl Arg {
    /// The argument with sizes as numbers.
    fn at(&self, sizes: &Sizes) -> Result<Arg, String> {
        Ok(match self {
            Arg::Size(e) => Arg::Int(e.value(sizes)?),
            Arg::List(items) => {
                let items: Vec<Arg> = items.iter().map(|a| a.at(sizes)).collect::<Result<_, _>>()?;
                let int = |a: &Arg| if let Arg::Int(n) = a { Some(*n) } else { None };
                match items.iter().map(int).collect::<Option<Vec<i64>>>() {
                    Some(ints) if !ints.is_empty() => Arg::Ints(ints),
                    _ => Arg::List(items),
                }
            }
            other => other.clone(),
        })
    }
}

/// As `f32[s0, 3]`.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(Extent::to_string).collect();
        write!(f, "{}[{}]", self.dtype, shape.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `y = x[0..s0] + w` with a dimension that is twice a symbol, and a buffer that is written.
    const TEXT: &str = r#"{
        "name": "forward",
        "symbols": {"s0": {"min": 2, "max": 64, "hint": 4}, "s1": {"min": 0, "max": null, "hint": 3}},
        "values": [
            {"dtype": "f32", "shape": ["Symbol('s0')", 3]},
            {"dtype": "f32", "shape": ["Add(Mul(Integer(2), Symbol('s1')), Integer(1))"]},
            {"dtype": "f32", "shape": [3], "name": "w"},
            {"dtype": "f32", "shape": ["Symbol('s0')", 3]},
            {"dtype": "f32", "shape": ["Symbol('s0')", 3]}],
        "inputs": [{"name": "x", "value": 0}, {"name": "n", "size": "Symbol('s0')"}, {"name": "odd", "value": 1},
            {"name": "flag", "constant": {"bool": true}}],
        "params": [2],
        "calls": [{"name": "aten::add", "overload": "Tensor", "args": [{"value": 0}, {"value": 2}, {"int": 1}],
             "outs": [3]},
            {"name": "aten::view", "overload": "", "args": [
                {"value": 3}, {"list": [{"size": "Symbol('s0')"}, {"int": 3}]}],
             "outs": [4]}],
        "outputs": [{"value": 3}, {"size": "Symbol('s1')"}, "none", {"constant": "none"}],
        "writes": [{"target": 2, "value": 3}]
    }"#;

    fn types(shapes: &[&[usize]]) -> Vec<Type> {
        shapes.iter().map(|s| Type::new(DType::F32, *s)).collect()
    }

    #[test]
    fn sizes_follow_from_inputs_and_are_checked() {
        let mut p = Program::from_json(TEXT).expect("valid");
        assert!(p.bind(&types(&[&[6, 3], &[7]]), &[6]).is_ok());
        let e = p.bind(&types(&[&[6, 3], &[7]]), &[5]).expect_err("another number").to_string();
        assert!(e.contains("input `n` has to be 6, not 5"), "{e}");
        let sizes =
            |p: &Program, shapes: &[&[usize]]| p.sizes(&Sizes::new(), &types(shapes)).map_err(|e| e.to_string());
        assert_eq!(sizes(&p, &[]), Ok(Sizes::from([("s0".into(), 4), ("s1".into(), 3)])));
        assert_eq!(sizes(&p, &[&[6, 3], &[7]]), Ok(Sizes::from([("s0".into(), 6), ("s1".into(), 3)])));
        for (shapes, told) in [
            (&[&[6, 3][..], &[8]][..], "input `odd` is f32[8]: its dimension 0 has to be a value of 2*s1 + 1, not 8"),
            (&[&[6, 2], &[7]], "its dimension 1 has to be 3, not 2"),
            (&[&[6], &[7]], "of rank 1, but the program takes rank 2"),
            (&[&[65, 3], &[7]], "dimension `s0` (x.0) cannot be 65: the program was exported for 2 to 64"),
            (&[&[6, 3]], "1 input tensors were given, but the program takes 2"),
        ] {
            let e = sizes(&p, shapes).expect_err(told);
            assert!(e.contains(told) && e.contains("help: "), "{e}");
        }
        let condition = Extent::parse("Equality(Mod(Symbol('s0'), Integer(2)), Integer(0))").ok();
        p.guards = vec![Guard { text: "s0 % 2 == 0".into(), condition }];
        assert!(sizes(&p, &[&[6, 3], &[7]]).is_ok());
        assert!(sizes(&p, &[&[5, 3], &[7]]).is_err_and(|e| e.contains("holds only where `s0 % 2 == 0`")));
        p.guards = vec![Guard { text: "?".into(), condition: None }];
        assert!(sizes(&p, &[&[4, 3], &[7]]).is_ok(), "the sizes of tracing");
        assert!(sizes(&p, &[&[5, 3], &[7]]).is_err_and(|e| e.contains("which Kiln does not evaluate")));
    }

    #[test]
    fn sizes_are_chosen_by_symbol_or_by_axis() {
        let p = Program::from_json(TEXT).expect("valid");
        let of = |name: &str| p.sizes(&Sizes::from([(name.into(), 9)]), &[]).map_err(|e| e.to_string());
        assert_eq!(of("s0").map(|s| s["s0"]), Ok(9));
        assert_eq!(of("x.0").map(|s| s["s0"]), Ok(9));
        for name in ["x.1", "batch"] {
            let e = of(name).expect_err(name);
            assert!(e.contains(&format!("no dimension `{name}`")) && e.contains("x.0 (s0), odd.0 (2*s1 + 1)"), "{e}");
        }
        assert_eq!(of("odd.0").map(|s| s["s1"]), Ok(4), "2*s1 + 1 is 9");
        let both = |size| p.sizes(&Sizes::from([("s1".into(), 4), ("odd.0".into(), size)]), &[]);
        assert!(both(9).is_ok());
        let e = both(11).expect_err("not 2*4 + 1").to_string();
        assert!(e.contains("`odd.0` is 11, but the inputs or other sizes given make it 9"), "{e}");
        let e = p.sizes(&Sizes::from([("odd.0".into(), 8)]), &[]).expect_err("an even size").to_string();
        assert!(e.contains("`odd.0` is 2*s1 + 1, and Kiln finds no s1 that makes it 8"), "{e}");
        assert!(e.ends_with("help: give the size of s1 in its place"), "{e}");
        let e =
            p.sizes(&Sizes::from([("x.0".into(), 9)]), &types(&[&[6, 3], &[7]])).expect_err("two sizes").to_string();
        assert!(e.contains("is 9, but the inputs or other sizes given make it 6"), "{e}");
    }

    #[test]
    fn calls_have_numbers_for_sizes() {
        let p = Program::from_json(TEXT).expect("valid");
        let raw = p.at(&p.sizes(&Sizes::from([("s0".into(), 5)]), &[]).expect("in range")).expect("known");
        assert_eq!((&raw.values[0].shape[..], &raw.values[1].shape[..]), (&[5, 3][..], &[7][..]));
        assert_eq!(raw.calls[1].args[1], Arg::Ints(vec![5, 3]));
        assert_eq!((raw.outputs, raw.inputs.len()), (vec![3, 3], 2));
        assert!(raw.values[2].constant && !raw.values[0].constant);
        let e = p.at(&Sizes::from([("s0".into(), 5)])).expect_err("s1 is unknown").to_string();
        assert!(e.contains("the size s1 depends on data"), "{e}");
    }

    #[test]
    fn values_that_do_not_exist_or_not_yet_are_refused() {
        for (from, to, told) in [
            ("\"params\": [2]", "\"params\": [9]", "there is no value 9"),
            ("\"outs\": [4]", "\"outs\": [3]", "value 3 is computed twice"),
            ("\"outs\": [4]", "\"outs\": [2]", "value 2 is computed twice"),
            (
                "[{\"value\": 0}, {\"value\": 2}",
                "[{\"value\": 0}, {\"value\": 4}",
                "`aten::add` uses value 4 before it is computed",
            ),
        ] {
            let e = Program::from_json(&TEXT.replace(from, to)).expect_err(told).to_string();
            assert!(e.contains(told), "{e}");
        }
        assert!(Program::from_json("{}").is_err());
    }
}
