//! The program of an archive as a list of operator calls, for given sizes of its symbols.
//!
//! Inputs are the user's tensors, in order; parameters, buffers and constants are values with a name, whose data stays in the archive.
//! Arguments at their default are not in the file: they come from the operator's schema ([`fallback::parameters`]). Nodes that compute
//! sizes give numbers; assertions about tensors are dropped, since every type is known.
use crate::archive::{Archive, Stored, dtype};
use crate::extent::Extent;
use crate::schema::*;
use kiln_aten::raw::{Arg, Call, Raw, RawInfo, RawInput};
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{Type, fallback};
use std::collections::{BTreeMap, HashMap};

/// The form in which programs are read.
const FUNCTIONAL: &str = "save `program.run_decompositions({})`, which has no in-place operators";

/// Operators that are converted, but that a graph may not leave to libtorch: parameters with their defaults, as in torch's schemas.
const CONVERTED_ONLY: &str = "_unsafe_view(self, size)
lift_fresh(self)
lift_fresh_copy(self)
empty_like(self, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None)
empty.memory_format(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None)
new_empty(self, size, dtype=None, layout=None, device=None, pin_memory=None)
unsafe_split.Tensor(self, split_size, dim=0)
unsafe_split_with_sizes(self, split_sizes, dim=0)
unsafe_chunk(self, chunks, dim=0)
to.dtype_layout(self, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, copy=False, memory_format=None)
to.device(self, device, dtype, non_blocking=False, copy=False, memory_format=None)
_fused_rms_norm(input, normalized_shape, weight, eps)
_scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False)";

/// A program as operator calls.
pub struct Reading {
    pub raw: Raw,
    /// Parameters, buffers and constants by the id of their value.
    pub stored: HashMap<usize, Stored>,
    pub symbols: BTreeMap<String, i64>,
}

struct Reader<'a> {
    graph: &'a Graph,
    symbols: BTreeMap<String, i64>,
    raw: Raw,
    /// Values by name.
    ids: HashMap<&'a str, usize>,
    /// Numbers that nodes computed from sizes.
    numbers: HashMap<&'a str, i64>,
}

/// Reads the archive's only program.
pub fn read(archive: &mut Archive, sizes: &BTreeMap<String, i64>, inputs: &[Type]) -> Result<Reading, ImportErrors> {
    let programs = archive.programs();
    let [name] = &programs[..] else {
        let what = format!("the archive holds {} programs", programs.len());
        return Err(Problem::new(what).help("save one program per file with torch.export.save").into());
    };
    let program: ExportedProgram = archive.json(&format!("models/{name}.json"))?;
    let version = &program.schema_version;
    if version.major != 8 {
        let what = format!("the archive has schema {}.{}; Kiln reads schema 8", version.major, version.minor);
        return Err(Problem::new(what).help("save it again with PyTorch 2.8 or later, or update Kiln").into());
    }
    let folders =
        [("weights", archive.payloads("weights", name)?), ("constants", archive.payloads("constants", name)?)];
    let graph = &program.graph_module.graph;
    let mut wanted = sizes_of(&program.graph_module, inputs);
    wanted.extend(sizes.clone());
    let exported = symbols(graph, &program.range_constraints, &BTreeMap::new())?;
    let symbols = symbols(graph, &program.range_constraints, &wanted)?;
    if symbols != exported {
        holds_for_other_sizes(program.guards_code.as_deref())?;
    }
    let raw =
        Raw { inputs: vec![], values: vec![], calls: vec![], outputs: vec![], structure: serde_json::Value::Null };
    let mut r = Reader { graph, symbols, raw, ids: HashMap::new(), numbers: HashMap::new() };
    let mut stored = HashMap::new();
    let mut problems = vec![];
    for spec in &program.graph_module.signature.input_specs {
        match r.input(spec, &folders) {
            Ok(None) => {}
            Ok(Some((id, tensor))) => _ = stored.insert(id, tensor),
            Err(p) => problems.push(p),
        }
    }
    for node in &graph.nodes {
        if let Err(p) = r.node(node) {
            problems.push(Problem { source: frames(node), module: module(node), ..p });
            r.declare(node);
        }
    }
    for spec in &program.graph_module.signature.output_specs {
        if let Err(p) = r.output(spec) {
            problems.push(p);
        }
    }
    match problems.is_empty() {
        true => Ok(Reading { raw: r.raw, stored, symbols: r.symbols }),
        false => Err(kiln_aten::source::settle_problems(ImportErrors { errors: problems })),
    }
}

/// An error if the program is known, or not known not, to depend on more about its sizes than their ranges: export may have followed a
/// branch on a size (`if x.shape[0] % 2 == 0`), and guards say so.
fn holds_for_other_sizes(guards: Option<&[String]>) -> Result<(), Problem> {
    let help = "give inputs of the sizes at export, or export again for these sizes";
    let Some(guards) = guards else {
        let what = "the archive does not say for which sizes it holds, other than those at export";
        return Err(
            Problem::new(what).help("save it again with a newer PyTorch, or give inputs of the sizes at export")
        );
    };
    match guards.iter().find(|g| !is_of_types(g)) {
        None => Ok(()),
        Some(g) => {
            let what = format!("the program holds only where `{g}`, which Kiln does not evaluate");
            Err(Problem::new(what).help(help))
        }
    }
}

/// Whether a guard says no more than the types of inputs: that a size is a number, or another size.
fn is_of_types(guard: &str) -> bool {
    let size = |s: &str| {
        let index = s.strip_prefix("L[").and_then(|s| s.split_once("].size()["));
        index.and_then(|(_, axis)| axis.strip_suffix(']')).is_some_and(|axis| axis.parse::<usize>().is_ok())
    };
    let side = |s: &str| s.parse::<i64>().is_ok() || size(s);
    guard.split_once(" == ").is_some_and(|(a, b)| side(a) && side(b))
}

/// Sizes of the symbols that are dimensions of inputs, by the inputs' types.
fn sizes_of(module: &GraphModule, inputs: &[Type]) -> BTreeMap<String, i64> {
    let tensors = module.signature.input_specs.iter().filter_map(|spec| match spec {
        InputSpec::UserInput { arg: Argument::AsTensor(t) } => module.graph.tensor_values.get(&t.name),
        _ => None,
    });
    let mut found = BTreeMap::new();
    for (meta, ty) in tensors.zip(inputs) {
        for (size, n) in meta.sizes.iter().zip(&ty.shape) {
            let SymInt::AsExpr(e) = size else { continue };
            if let Ok(Extent::Symbol(name)) = Extent::parse(&e.expr_str) {
                found.insert(name, *n as i64);
            }
        }
    }
    found
}

/// The size of every symbol: the one asked for, else the one at export.
fn symbols(
    graph: &Graph,
    ranges: &BTreeMap<String, Range>,
    sizes: &BTreeMap<String, i64>,
) -> Result<BTreeMap<String, i64>, ImportErrors> {
    let mut found = BTreeMap::new();
    for size in graph.tensor_values.values().flat_map(|t| &t.sizes).chain(graph.sym_int_values.values()) {
        let SymInt::AsExpr(e) = size else { continue };
        let Ok(Extent::Symbol(name)) = Extent::parse(&e.expr_str) else { continue };
        if let Some(Hint::AsInt(n)) = e.hint {
            found.insert(name, n);
        }
    }
    for (name, size) in sizes {
        let known: Vec<&str> = found.keys().map(String::as_str).collect();
        if !found.contains_key(name) {
            let what = format!("the program has no dimension `{name}`");
            let help =
                if known.is_empty() { "its sizes are fixed".into() } else { format!("it has {}", known.join(", ")) };
            return Err(Problem::new(what).help(help).into());
        }
        let range = ranges.get(name);
        let (least, most) =
            (range.and_then(|r| r.min_val).unwrap_or(0), range.and_then(|r| r.max_val).unwrap_or(i64::MAX));
        if !(least..=most).contains(size) {
            let what = format!("dimension `{name}` cannot be {size}: it was exported for {least} to {most}");
            return Err(Problem::new(what).help("export again with a wider torch.export.Dim").into());
        }
        found.insert(name.clone(), *size);
    }
    Ok(found)
}

impl<'a> Reader<'a> {
    fn size(&self, size: &SymInt) -> Result<i64, Problem> {
        match size {
            SymInt::AsInt(n) => Ok(*n),
            SymInt::AsExpr(e) => Extent::parse(&e.expr_str).and_then(|e| e.value(&self.symbols)).map_err(|e| {
                Problem::new(e).help("sizes that depend on data are not supported: compute them outside of the model")
            }),
        }
    }
    fn shape(&self, of: &TensorMeta) -> Result<Vec<usize>, Problem> {
        let size = |s| usize::try_from(self.size(s)?).map_err(|_| Problem::new("a tensor has a negative size"));
        of.sizes.iter().map(size).collect()
    }
    /// A new value for a tensor of the program.
    fn value(&mut self, name: &'a str, parameter: Option<&str>) -> Result<usize, Problem> {
        let graph = self.graph;
        let meta = graph.tensor_values.get(name).ok_or_else(|| Problem::new(format!("value {name} has no type")))?;
        let dtype = dtype(meta.dtype).map_or_else(|| format!("ScalarType {}", meta.dtype), |d| d.name().to_string());
        let (shape, name_of) = (self.shape(meta)?, parameter.map(str::to_string));
        self.raw.values.push(RawInfo {
            dtype,
            shape,
            constant: parameter.is_some(),
            folded: false,
            scalar: None,
            name: name_of,
        });
        let id = self.raw.values.len() - 1;
        self.ids.insert(name, id);
        Ok(id)
    }
    fn input(
        &mut self,
        spec: &'a InputSpec,
        folders: &[(&str, PayloadConfig); 2],
    ) -> Result<Option<(usize, Stored)>, Problem> {
        let (arg, name) = match spec {
            InputSpec::UserInput { arg: Argument::AsTensor(t) } => {
                let id = self.value(&t.name, None)?;
                self.raw.inputs.push(RawInput { name: t.name.clone(), value: Some(id), scalar: None });
                return Ok(None);
            }
            // The program was specialised for it.
            InputSpec::ConstantInput { .. } => return Ok(None),
            InputSpec::Parameter { arg, parameter_name: name }
            | InputSpec::Buffer { arg, buffer_name: name }
            | InputSpec::TensorConstant { arg, tensor_constant_name: name } => (arg, name),
            InputSpec::UserInput { arg } => {
                let help = "pass sizes through the shapes of tensors";
                return Err(Problem::new(format!("an input is not a tensor: {arg:?}")).help(help));
            }
            InputSpec::Other(v) => return Err(Problem::new(format!("an input is neither tensor nor number: {v}"))),
        };
        let missing = || Problem::new(format!("`{name}` has no data in the archive")).help("save the program again");
        let (folder, payload) =
            folders.iter().find_map(|(folder, p)| Some((folder, p.config.get(name)?))).ok_or_else(missing)?;
        let pickled = || {
            let help = "make it a plain tensor before export; Kiln never unpickles";
            Problem::new(format!("`{name}` is stored as a pickled object")).help(help)
        };
        let (entry, meta) = payload.entry(folder).zip(payload.tensor_meta.as_ref()).ok_or_else(pickled)?;
        let dtype = dtype(meta.dtype).ok_or_else(|| {
            Problem::new(format!("`{name}` has a type that Kiln does not have (ScalarType {})", meta.dtype))
        })?;
        let stored = Stored {
            name: name.clone(),
            entry,
            ty: Type::new(dtype, self.shape(meta)?),
            strides: meta.strides.iter().map(|s| self.size(s)).collect::<Result<_, _>>()?,
            offset: self.size(&meta.storage_offset)?,
        };
        let id = self.value(&arg.name, Some(name))?;
        if self.raw.values[id].shape != stored.ty.shape {
            return Err(Problem::new(format!("`{name}` is stored in another shape than the program reads")));
        }
        Ok(Some((id, stored)))
    }
    fn node(&mut self, node: &'a Node) -> Result<(), Problem> {
        if let [Argument::AsSymInt(SymArg::AsName(name))] = &node.outputs[..] {
            let graph = self.graph;
            let size =
                graph.sym_int_values.get(name).ok_or_else(|| Problem::new(format!("size {name} has no expression")))?;
            let number = self.size(size)?;
            self.numbers.insert(name, number);
            return Ok(());
        }
        if node.target.starts_with("_operator.") && matches!(node.outputs[..], [Argument::Other(_)]) {
            // A comparison of sizes, which only assertions read.
            return Ok(());
        }
        let unknown =
            || Problem::new(format!("`{}` is not an ATen operator", node.target)).help("write it with ATen operators");
        let target = node.target.strip_prefix("torch.ops.aten.").ok_or_else(unknown)?;
        let (operator, overload) = target.split_once('.').ok_or_else(unknown)?;
        if operator.starts_with("_assert") || node.outputs.is_empty() {
            return Ok(());
        }
        if operator.ends_with('_') && !operator.starts_with("__") {
            return Err(Problem::new(format!("`{operator}` changes a tensor in place")).help(FUNCTIONAL));
        }
        let (name, overload) = (format!("aten::{operator}"), if overload == "default" { "" } else { overload });
        let unlisted = || {
            Problem::new(format!("Kiln does not know the operator `{target}`")).help("write it with other operators")
        };
        let parameters = fallback::parameters(&name, overload).or_else(|| converted_only(operator, overload));
        let parameters = parameters.ok_or_else(unlisted)?;
        let argument = |(parameter, default): (&str, Option<&'static str>)| match (
            node.inputs.iter().find(|i| i.name == parameter),
            default,
        ) {
            (Some(given), _) => self.argument(&given.arg),
            (None, Some(text)) => Ok(default_value(text)),
            (None, None) => Err(Problem::new(format!("`{target}` lacks its argument `{parameter}`"))),
        };
        let args = parameters.into_iter().map(argument).collect::<Result<_, _>>()?;
        let mut outs = vec![];
        for out in &node.outputs {
            match out {
                Argument::AsTensor(t) => outs.push(self.value(&t.name, None)?),
                Argument::AsTensors(all) => {
                    for t in all {
                        outs.push(self.value(&t.name, None)?);
                    }
                }
                other => return Err(Problem::new(format!("a result of `{target}` is not a tensor: {other:?}"))),
            }
        }
        let (source, module) = (frames(node), module(node));
        self.raw.calls.push(Call { name, overload: overload.into(), args, outs, source, module });
        Ok(())
    }
    /// Values for the results of a node that was refused, so that only its own problem is reported.
    fn declare(&mut self, node: &'a Node) {
        let names = node.outputs.iter().flat_map(|out| match out {
            Argument::AsTensor(t) => std::slice::from_ref(t),
            Argument::AsTensors(all) => &all[..],
            _ => &[],
        });
        for t in names {
            if !self.ids.contains_key(t.name.as_str()) {
                // A value without a type is one more problem of the same node.
                let _ = self.value(&t.name, None);
            }
        }
    }
    fn tensor(&self, name: &str) -> Result<Arg, Problem> {
        let undefined = || Problem::new(format!("value {name} is used before it is defined"));
        self.ids.get(name).map(|id| Arg::Value(*id)).ok_or_else(undefined)
    }
    fn number(&self, s: &SymArg) -> Result<i64, Problem> {
        match s {
            SymArg::AsInt(n) => Ok(*n),
            SymArg::AsName(name) => {
                let undefined = || Problem::new(format!("size {name} is used before it is defined"));
                self.numbers.get(name.as_str()).copied().ok_or_else(undefined)
            }
            other => Err(Problem::new(format!("a size is not an integer: {other:?}"))),
        }
    }
    fn argument(&self, a: &Argument) -> Result<Arg, Problem> {
        let optional = |t: &OptionalTensor| match t {
            OptionalTensor::AsTensor(t) => self.tensor(&t.name),
            OptionalTensor::AsNone(_) => Ok(Arg::None),
        };
        Ok(match a {
            Argument::AsNone(_) => Arg::None,
            Argument::AsTensor(t) => self.tensor(&t.name)?,
            Argument::AsTensors(all) => Arg::List(all.iter().map(|t| self.tensor(&t.name)).collect::<Result<_, _>>()?),
            Argument::AsOptionalTensor(t) => optional(t)?,
            Argument::AsOptionalTensors(all) => Arg::List(all.iter().map(optional).collect::<Result<_, _>>()?),
            Argument::AsInt(n) => Arg::Int(*n),
            Argument::AsInts(all) => Arg::Ints(all.clone()),
            Argument::AsFloat(x) => Arg::Float(x.value()),
            Argument::AsFloats(all) => Arg::List(all.iter().map(|x| Arg::Float(x.value())).collect()),
            Argument::AsBool(b) => Arg::Bool(*b),
            Argument::AsBools(all) => Arg::List(all.iter().map(|b| Arg::Bool(*b)).collect()),
            Argument::AsString(s) => Arg::Str(s.clone()),
            Argument::AsSymInt(s) => Arg::Int(self.number(s)?),
            Argument::AsSymInts(all) => Arg::Ints(all.iter().map(|s| self.number(s)).collect::<Result<_, _>>()?),
            Argument::AsScalarType(n) => match dtype(*n) {
                Some(d) => Arg::Int(i64::from(d.torch_number())),
                None => return Err(Problem::new(format!("ScalarType {n} is a type that Kiln does not have"))),
            },
            // Values have no strides: formats and layouts of memory mean nothing.
            Argument::AsMemoryFormat(_) | Argument::AsLayout(_) => Arg::None,
            Argument::AsDevice(d) => Arg::Device(d.kind.clone()),
            Argument::Other(v) => Arg::Opaque(v.to_string()),
        })
    }
    fn output(&mut self, spec: &OutputSpec) -> Result<(), Problem> {
        let written = |what: String| {
            Problem::new(what).help("return the new value as a result; state that stays is not supported yet")
        };
        match spec {
            OutputSpec::UserOutput { arg: Argument::AsTensor(t) } => {
                let Arg::Value(id) = self.tensor(&t.name)? else { return Ok(()) };
                self.raw.outputs.push(id);
                Ok(())
            }
            OutputSpec::UserOutput { arg: Argument::AsNone(_) } => Ok(()),
            OutputSpec::UserOutput { arg } => {
                Err(Problem::new(format!("a result is not a tensor: {arg:?}")).help("return tensors only"))
            }
            OutputSpec::BufferMutation { buffer_name } => {
                Err(written(format!("the program writes its buffer `{buffer_name}`")))
            }
            OutputSpec::UserInputMutation { user_input_name } => {
                Err(written(format!("the program writes its input `{user_input_name}`")))
            }
            OutputSpec::Other(v) => {
                Err(Problem::new(format!("a result is of another kind: {v}")).help("export for inference"))
            }
        }
    }
}

/// The parameters of an operator of [`CONVERTED_ONLY`].
fn converted_only(operator: &str, overload: &str) -> Option<Vec<(&'static str, Option<&'static str>)>> {
    let full = if overload.is_empty() { operator.to_string() } else { format!("{operator}.{overload}") };
    let parameters =
        CONVERTED_ONLY.lines().find_map(|l| l.strip_prefix(&full)?.strip_prefix('(')?.strip_suffix(')'))?;
    let parameter = |p: &'static str| p.split_once('=').map_or((p, None), |(name, default)| (name, Some(default)));
    Some(parameters.split(", ").map(parameter).collect())
}

/// The value of a default as a schema writes it.
fn default_value(text: &str) -> Arg {
    let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Some(items) = list {
        let items: Vec<Arg> = items.split(',').map(str::trim).filter(|t| !t.is_empty()).map(default_value).collect();
        let ints: Option<Vec<i64>> = items.iter().map(|a| if let Arg::Int(n) = a { Some(*n) } else { None }).collect();
        return ints.map_or(Arg::List(items), Arg::Ints);
    }
    match (text, text.parse::<i64>(), text.parse::<f64>()) {
        ("None", ..) => Arg::None,
        ("True", ..) => Arg::Bool(true),
        ("False", ..) => Arg::Bool(false),
        (_, Ok(n), _) => Arg::Int(n),
        (_, _, Ok(x)) => Arg::Float(x),
        _ => Arg::Str(text.trim_matches('"').to_string()),
    }
}

/// The frames of a node's Python stack, innermost first, each as `file:line`.
fn frames(node: &Node) -> String {
    let trace = node.metadata.get("stack_trace").map(String::as_str).unwrap_or_default();
    let frame = |line: &str| {
        let (file, rest) = line.trim().strip_prefix("File \"")?.split_once("\", line ")?;
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{file}:{number}"))
    };
    let mut all: Vec<String> = trace.lines().filter_map(frame).collect();
    all.reverse();
    all.join("\n")
}

/// The path of the innermost module: the last entry `key,path,class` of the node's stack.
fn module(node: &Node) -> String {
    let stack = node.metadata.get("nn_module_stack").map(String::as_str).unwrap_or_default();
    stack.rsplit(';').next().and_then(|entry| entry.split(',').nth(1)).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_read_as_schemas_write_them() {
        for (text, value) in [
            ("None", Arg::None),
            ("True", Arg::Bool(true)),
            ("-1", Arg::Int(-1)),
            ("1.0000000000000001e-05", Arg::Float(1e-5)),
            ("0.", Arg::Float(0.0)),
            ("[1, 1]", Arg::Ints(vec![1, 1])),
            ("[]", Arg::Ints(vec![])),
            ("\"none\"", Arg::Str("none".into())),
        ] {
            assert_eq!(default_value(text), value, "{text}");
        }
    }

    #[test]
    fn operators_that_are_only_converted_have_parameters_too() {
        assert_eq!(converted_only("_unsafe_view", ""), Some(vec![("self", None), ("size", None)]));
        let split = vec![("self", None), ("split_size", None), ("dim", Some("0"))];
        assert_eq!(converted_only("unsafe_split", "Tensor"), Some(split));
        assert_eq!((converted_only("unsafe_split", ""), converted_only("empty", "")), (None, None));
        for line in CONVERTED_ONLY.lines() {
            let (full, _) = line.split_once('(').unwrap();
            let (operator, overload) = full.split_once('.').unwrap_or((full, ""));
            assert!(fallback::parameters(&format!("aten::{operator}"), overload).is_none(), "{line} is listed twice");
        }
    }

    #[test]
    fn only_guards_that_types_imply_are_passed_over() {
        for implied in ["L['x'].size()[0] == L['y'].size()[0]", "L['x'].size()[1] == 3", "L['args'][0].size()[1] == 3"]
        {
            assert!(is_of_types(implied), "{implied}");
        }
        for more in [
            "(L['x'].size()[0] % 2) == 0",
            "L['x'].size()[0] != 1",
            "L['x'].size()[0] == 2*L['y'].size()[0]",
            "L['n'] == 3",
            "x",
        ] {
            assert!(!is_of_types(more), "{more}");
        }
    }

    #[test]
    fn frames_are_innermost_first() {
        let trace = "  File \"/m/model.py\", line 3, in forward\n    y = self.f(x)\n  File \"/m/layer.py\", line 12, in forward\n";
        let metadata = BTreeMap::from([
            ("stack_trace".to_string(), trace.to_string()),
            ("nn_module_stack".to_string(), "L__self__,,Net;L__self___layer,layer.0,Layer".to_string()),
        ]);
        let node = Node { target: String::new(), inputs: vec![], outputs: vec![], metadata };
        assert_eq!((frames(&node).as_str(), module(&node).as_str()), ("/m/layer.py:12\n/m/model.py:3", "layer.0"));
    }
}
