//! The program of an archive as a list of operator calls on values with symbolic sizes.
//!
//! Inputs are the user's arguments, in order; parameters, buffers and constants are values with a name, whose data
//! stays in the archive. Arguments at their default are not in the file: they come from the operator's schema
//! ([`fallback::parameters`]). Nodes that compute sizes give expressions; assertions about tensors are dropped, since
//! every type is known.
mod converted;
mod launch;
mod source;

use crate::archive::{Archive, Stored, complex, dtype};
use crate::schema::*;
use converted::{converted_only, default_value};
use kiln_aten::extent::Extent;
use kiln_aten::guard;
use kiln_aten::mutation::{Write, functional_form};
use kiln_aten::program::{Guard, Input, InputKind, Output, Program, Symbol, Value};
use kiln_aten::raw::{Arg, Call};
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{Type, fallback};
use source::{EXPERTS, foreign, frames, is_of_experts, module};
use std::collections::{BTreeMap, HashMap};

/// A program, and where the data of its parameters is.
pub struct Reading {
    pub program: Program,
    /// In the order of the program's parameters.
    pub stored: Vec<Stored>,
}

struct Reader<'a> {
    scope: Scope<'a>,
    program: Program,
    stored: Vec<Stored>,
    problems: Vec<Problem>,
}

/// The names of a graph: the program's own, or those of a region that a node calls.
struct Scope<'a> {
    graph: &'a Graph,
    /// Values by name.
    ids: HashMap<&'a str, usize>,
    /// Numbers that nodes computed from sizes.
    numbers: HashMap<&'a str, Extent>,
}

impl<'a> Scope<'a> {
    fn new(graph: &'a Graph) -> Scope<'a> {
        Scope { graph, ids: HashMap::new(), numbers: HashMap::new() }
    }
}

/// Reads the archive's only program.
pub fn read(archive: &mut Archive) -> Result<Reading, ImportErrors> {
    let programs = archive.programs();
    let [name] = &programs[..] else {
        let what = format!("the archive holds {} programs", programs.len());
        return Err(Problem::new(what).help("save one program per file with torch.export.save").into());
    };
    let exported: ExportedProgram = archive.json(&format!("models/{name}.json"))?;
    let version = &exported.schema_version;
    if version.major != 8 {
        let what = format!("the archive has schema {}.{}; Kiln reads schema 8", version.major, version.minor);
        return Err(Problem::new(what).help("save it again with PyTorch 2.8 or later, or update Kiln").into());
    }
    let folders =
        [("weights", archive.payloads("weights", name)?), ("constants", archive.payloads("constants", name)?)];
    let graph = &exported.graph_module.graph;
    let signature = &exported.graph_module.signature;
    let program = Program {
        name: name.clone(),
        symbols: symbols(graph, &exported.range_constraints)?,
        guards: vec![],
        values: vec![],
        inputs: vec![],
        params: vec![],
        calls: vec![],
        outputs: vec![],
        writes: vec![],
    };
    let mut r = Reader { scope: Scope::new(graph), program, stored: vec![], problems: vec![] };
    for spec in &signature.input_specs {
        if let Err(p) = r.input(spec, &folders) {
            r.problems.push(p);
        }
    }
    r.nodes(&graph.nodes);
    for spec in &signature.output_specs {
        if let Err(p) = r.output(spec, signature) {
            r.problems.push(p);
        }
    }
    if !r.problems.is_empty() {
        return Err(kiln_aten::source::settle_problems(ImportErrors { errors: r.problems }));
    }
    r.program.guards = guards(&r.program, exported.guards_code.as_deref());
    Ok(Reading { program: r.program, stored: r.stored })
}

/// The conditions of a program on its sizes. Archives of early minor versions do not have them: then nothing is known
/// of other sizes.
fn guards(program: &Program, code: Option<&[String]>) -> Vec<Guard> {
    let Some(code) = code else {
        let text =
            "its sizes are those at export (the archive has no guards; save it again with a newer PyTorch)".into();
        return vec![Guard { text, condition: None }];
    };
    let shapes: HashMap<&str, &[Extent]> =
        program.tensor_inputs().map(|(i, v)| (i.name.as_str(), &v.shape[..])).collect();
    // A tensor inside an argument is an input of the name `args_0`.
    let dimensions = |name: &str| shapes.get(name.replace('[', "_").replace(']', "").as_str()).copied();
    let guard = |text: &String| Guard { text: text.clone(), condition: guard::parse(text, &dimensions).ok() };
    code.iter().map(guard).collect()
}

/// The symbols of a program, with their ranges and their sizes at export.
fn symbols(graph: &Graph, ranges: &BTreeMap<String, Range>) -> Result<BTreeMap<String, Symbol>, Problem> {
    let mut found = BTreeMap::new();
    for size in graph.tensor_values.values().flat_map(|t| &t.sizes).chain(graph.sym_int_values.values()) {
        let SymInt::AsExpr(e) = size else { continue };
        let extent = Extent::parse(&e.expr_str).map_err(Problem::new)?;
        for name in extent.symbols() {
            let range = ranges.get(name);
            let (min, max) = (range.and_then(|r| r.min_val), range.and_then(|r| r.max_val));
            let symbol: &mut Symbol = found.entry(name.to_string()).or_insert(Symbol { min, max, hint: None });
            if let (Extent::Symbol(_), Some(Hint::AsInt(n))) = (&extent, &e.hint) {
                symbol.hint = Some(*n);
            }
        }
    }
    Ok(found)
}

impl<'a> Reader<'a> {
    fn size(&self, size: &SymInt) -> Result<Extent, Problem> {
        match size {
            SymInt::AsInt(n) => Ok(Extent::Integer(*n)),
            SymInt::AsExpr(e) => Extent::parse(&e.expr_str).map_err(Problem::new),
        }
    }
    /// A size that is a number: of a stored tensor.
    fn fixed(&self, size: &SymInt) -> Result<i64, Problem> {
        match size {
            SymInt::AsInt(n) => Ok(*n),
            SymInt::AsExpr(e) => Err(Problem::new(format!("a stored tensor has the size {}", e.expr_str))),
        }
    }
    /// A new value for a tensor of the program.
    fn value(&mut self, name: &'a str, parameter: Option<&str>) -> Result<usize, Problem> {
        let graph = self.scope.graph;
        let meta = graph.tensor_values.get(name).ok_or_else(|| Problem::new(format!("value {name} has no type")))?;
        let other =
            || complex(meta.dtype).map_or_else(|| format!("ScalarType {}", meta.dtype), |(name, _)| name.into());
        let dtype = dtype(meta.dtype).map_or_else(other, |d| d.name().to_string());
        let shape = meta.sizes.iter().map(|s| self.size(s)).collect::<Result<_, _>>()?;
        self.program.values.push(Value { dtype, shape, name: parameter.map(str::to_string) });
        let id = self.program.values.len() - 1;
        self.scope.ids.insert(name, id);
        Ok(id)
    }
    fn input(&mut self, spec: &'a InputSpec, folders: &[(&str, PayloadConfig); 2]) -> Result<(), Problem> {
        let (arg, name) = match spec {
            InputSpec::UserInput { arg: Argument::AsTensor(t) } => {
                let id = self.value(&t.name, None)?;
                self.program.inputs.push(Input { name: t.name.clone(), kind: InputKind::Value(id) });
                return Ok(());
            }
            InputSpec::ConstantInput { name, value } => {
                let kind = InputKind::Constant(self.argument(value)?);
                self.program.inputs.push(Input { name: name.clone(), kind });
                return Ok(());
            }
            InputSpec::Parameter { arg, parameter_name: name }
            | InputSpec::Buffer { arg, buffer_name: name }
            | InputSpec::TensorConstant { arg, tensor_constant_name: name } => (arg, name),
            InputSpec::UserInput { arg: Argument::AsSymInt(SymArg::AsName(name)) } => {
                let size = self.sized(name)?;
                self.scope.numbers.insert(name, size.clone());
                self.program.inputs.push(Input { name: name.clone(), kind: InputKind::Size(size) });
                return Ok(());
            }
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
        let parts = complex(meta.dtype).map(|(_, part)| part);
        let dtype = dtype(meta.dtype).or(parts).ok_or_else(|| {
            Problem::new(format!("`{name}` has a type that Kiln does not have (ScalarType {})", meta.dtype))
        })?;
        let size = |s| usize::try_from(self.fixed(s)?).map_err(|_| Problem::new("a tensor has a negative size"));
        let mut stored = Stored {
            name: name.clone(),
            entry,
            ty: Type::new(dtype, meta.sizes.iter().map(size).collect::<Result<Vec<usize>, _>>()?),
            strides: meta.strides.iter().map(|s| self.fixed(s)).collect::<Result<_, _>>()?,
            offset: self.fixed(&meta.storage_offset)?,
        };
        let id = self.value(&arg.name, Some(name))?;
        let shape = stored.ty.shape.iter().map(|n| Extent::Integer(*n as i64));
        if !self.program.values[id].shape.iter().cloned().eq(shape) {
            return Err(Problem::new(format!("`{name}` is stored in another shape than the program reads")));
        }
        if parts.is_some() {
            // A complex element is two that follow each other.
            stored.ty.shape.push(2);
            stored.strides.iter_mut().for_each(|s| *s = s.saturating_mul(2));
            stored.strides.push(1);
            stored.offset = stored.offset.saturating_mul(2);
        }
        self.program.params.push(id);
        self.stored.push(stored);
        Ok(())
    }
    /// The expression of a number that the program computes from sizes.
    fn sized(&self, name: &str) -> Result<Extent, Problem> {
        let size = self.scope.graph.sym_int_values.get(name);
        self.size(size.ok_or_else(|| Problem::new(format!("size {name} has no expression")))?)
    }
    fn nodes(&mut self, nodes: &'a [Node]) {
        for node in nodes {
            if let Err(p) = self.node(node) {
                self.problems.push(Problem { source: frames(node), module: module(node), ..p });
                self.declare(node);
            }
        }
    }
    fn node(&mut self, node: &'a Node) -> Result<(), Problem> {
        if let Some((region, args)) = region(node)? {
            return self.call(node, region, args);
        }
        if let [Argument::AsSymInt(SymArg::AsName(name))] = &node.outputs[..] {
            let size = self.sized(name)?;
            self.scope.numbers.insert(name, size);
            return Ok(());
        }
        if node.target.starts_with("_operator.") && matches!(node.outputs[..], [Argument::Other(_)]) {
            // A comparison of sizes, which only assertions read.
            return Ok(());
        }
        if node.target == launch::TARGET {
            return self.launch(node);
        }
        let unknown = || foreign(&node.target);
        let target = node.target.strip_prefix("torch.ops.aten.").ok_or_else(unknown)?;
        let (operator, overload) = target.split_once('.').ok_or_else(unknown)?;
        if operator.starts_with("_assert") || node.outputs.is_empty() {
            return Ok(());
        }
        let (name, overload) = (format!("aten::{operator}"), if overload == "default" { "" } else { overload });
        let unlisted = || {
            let help = if is_of_experts(target) { EXPERTS } else { "write it with other operators" };
            Problem::new(format!("Kiln does not know the operator `{target}`")).help(help)
        };
        // An in-place operator has the parameters of its functional form.
        let functional = functional_form(&name, overload).unwrap_or_else(|| (name.clone(), overload.to_string()));
        let parameters =
            fallback::parameters(&functional.0, &functional.1).or_else(|| converted_only(operator, overload));
        let parameters = parameters.ok_or_else(unlisted)?;
        let argument = |(at, (parameter, default)): (usize, (&str, Option<&'static str>))| match (
            // The tensor that an in-place operator changes is `self`, whatever its functional form calls it.
            node.inputs.iter().find(|i| i.name == parameter || at == 0 && i.name == "self"),
            default,
        ) {
            (Some(given), _) => self.argument(&given.arg),
            (None, Some(text)) => Ok(default_value(text)),
            (None, None) => Err(Problem::new(format!("`{target}` lacks its argument `{parameter}`"))),
        };
        let mut args = parameters.into_iter().enumerate().map(argument).collect::<Result<Vec<_>, _>>()?;
        if operator == "as_strided" {
            args[0] = self.memory(node, &args[0]).unwrap_or_else(|| args[0].clone());
        }
        let mut outs = vec![];
        for out in &node.outputs {
            match out {
                Argument::AsTensor(t) => outs.push(self.value(&t.name, None)?),
                Argument::AsTensors(all) => {
                    for t in all {
                        outs.push(self.value(&t.name, None)?);
                    }
                }
                // A number that attention on a GPU gives to its gradient: of no use to inference.
                _ if operator.starts_with("_scaled_dot_product_") => {}
                other => return Err(Problem::new(format!("a result of `{target}` is not a tensor: {other:?}"))),
            }
        }
        let (source, module) = (frames(node), module(node));
        self.program.calls.push(Call { name, overload: overload.into(), args, outs, source, module, vouched: false });
        Ok(())
    }
    /// The nodes of a region in place of the node that calls it.
    fn call(&mut self, node: &'a Node, region: &'a Graph, args: &'a [NamedArgument]) -> Result<(), Problem> {
        let broken = || {
            let what = format!("`{}` and the region that it calls do not fit", node.target);
            Problem::new(what).help("save the program again")
        };
        let mut inner = Scope::new(region);
        if region.inputs.len() != args.len() || region.outputs.len() != node.outputs.len() {
            return Err(broken());
        }
        for (input, given) in region.inputs.iter().zip(args) {
            match (input, self.argument(&given.arg)?) {
                (Argument::AsTensor(t), Arg::Value(id)) => _ = inner.ids.insert(&t.name, id),
                (Argument::AsSymInt(SymArg::AsName(name)), Arg::Size(n)) => _ = inner.numbers.insert(name, n),
                (Argument::AsTensor(_) | Argument::AsSymInt(SymArg::AsName(_)), _) => return Err(broken()),
                _ => {}
            }
        }
        let outer = std::mem::replace(&mut self.scope, inner);
        self.nodes(&region.nodes);
        let results: Result<Vec<Arg>, Problem> = region.outputs.iter().map(|out| self.argument(out)).collect();
        self.scope = outer;
        for (out, result) in node.outputs.iter().zip(results?) {
            match (out, result) {
                (Argument::AsTensor(t), Arg::Value(id)) => _ = self.scope.ids.insert(&t.name, id),
                (Argument::AsSymInt(SymArg::AsName(name)), Arg::Size(n)) => _ = self.scope.numbers.insert(name, n),
                (Argument::AsTensor(_) | Argument::AsTensors(_) | Argument::AsSymInt(_), _) => return Err(broken()),
                _ => {}
            }
        }
        Ok(())
    }
    /// All elements of a node's first operand in the order of its memory, where its export says that it starts its
    /// memory and is row-major.
    fn memory(&mut self, node: &'a Node, operand: &Arg) -> Option<Arg> {
        let Argument::AsTensor(t) = &node.inputs.first()?.arg else { return None };
        let meta = self.scope.graph.tensor_values.get(&t.name)?;
        let fixed = |sizes: &[SymInt]| sizes.iter().map(|s| self.fixed(s).ok()).collect::<Option<Vec<i64>>>();
        let (sizes, strides) = (fixed(&meta.sizes)?, fixed(&meta.strides)?);
        let mut step = 1;
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            if *size != 1 && *stride != step {
                return None;
            }
            step *= size;
        }
        if self.fixed(&meta.storage_offset).ok()? != 0 {
            return None;
        }
        let value = Value {
            dtype: self.program.values[self.scope.ids[t.name.as_str()]].dtype.clone(),
            shape: vec![Extent::Integer(step)],
            name: None,
        };
        self.program.values.push(value);
        let flat = self.program.values.len() - 1;
        let (source, module) = (frames(node), module(node));
        let args = vec![operand.clone(), Arg::Ints(vec![-1])];
        let name = "aten::reshape".to_string();
        self.program.calls.push(Call {
            name,
            overload: String::new(),
            args,
            outs: vec![flat],
            source,
            module,
            vouched: false,
        });
        Some(Arg::Value(flat))
    }
    /// Values for the results of a node that was refused, so that only its own problem is reported.
    fn declare(&mut self, node: &'a Node) {
        let names = node.outputs.iter().flat_map(|out| match out {
            Argument::AsTensor(t) => std::slice::from_ref(t),
            Argument::AsTensors(all) => &all[..],
            _ => &[],
        });
        for t in names {
            if !self.scope.ids.contains_key(t.name.as_str()) {
                // A value without a type is one more problem of the same node.
                let _ = self.value(&t.name, None);
            }
        }
    }
    fn tensor(&self, name: &str) -> Result<Arg, Problem> {
        let undefined = || Problem::new(format!("value {name} is used before it is defined"));
        self.scope.ids.get(name).map(|id| Arg::Value(*id)).ok_or_else(undefined)
    }
    fn number(&self, s: &SymArg) -> Result<Arg, Problem> {
        match s {
            SymArg::AsInt(n) => Ok(Arg::Int(*n)),
            SymArg::AsName(name) => {
                let undefined = || Problem::new(format!("size {name} is used before it is defined"));
                self.scope.numbers.get(name.as_str()).cloned().map(Arg::Size).ok_or_else(undefined)
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
            Argument::AsComplex(z) => Arg::Complex([z.real.value(), z.imag.value()]),
            Argument::AsFloats(all) => Arg::List(all.iter().map(|x| Arg::Float(x.value())).collect()),
            Argument::AsBool(b) => Arg::Bool(*b),
            Argument::AsBools(all) => Arg::List(all.iter().map(|b| Arg::Bool(*b)).collect()),
            Argument::AsString(s) => Arg::Str(s.clone()),
            Argument::AsSymInt(s) => self.number(s)?,
            // A list of numbers becomes one of integers when sizes are known.
            Argument::AsSymInts(all) if all.is_empty() => Arg::Ints(vec![]),
            Argument::AsSymInts(all) => Arg::List(all.iter().map(|s| self.number(s)).collect::<Result<_, _>>()?),
            Argument::AsScalarType(n) => match (dtype(*n), complex(*n)) {
                (Some(d), _) => Arg::Int(i64::from(d.torch_number())),
                // ATen's numbers are one less than the schema's.
                (None, Some(_)) => Arg::Int(i64::from(*n) - 1),
                (None, None) => return Err(Problem::new(format!("ScalarType {n} is a type that Kiln does not have"))),
            },
            // Values have no strides: formats and layouts of memory mean nothing.
            Argument::AsMemoryFormat(_) | Argument::AsLayout(_) => Arg::None,
            Argument::AsDevice(d) => Arg::Device(d.kind.clone()),
            Argument::AsGraph(_) => return Err(Problem::new("a graph is an operand")),
            Argument::Other(v) => Arg::Opaque(v.to_string()),
        })
    }
    fn output(&mut self, spec: &OutputSpec, signature: &Signature) -> Result<(), Problem> {
        let id = |r: &Self, name: &str| match r.tensor(name)? {
            Arg::Value(id) => Ok(id),
            other => Err(Problem::new(format!("a result is not a tensor: {other:?}"))),
        };
        let found = match spec {
            OutputSpec::UserOutput { arg: Argument::AsTensor(t) } => Output::Value(id(self, &t.name)?),
            OutputSpec::UserOutput { arg: Argument::AsNone(_) } => Output::None,
            OutputSpec::UserOutput { arg: Argument::AsSymInt(s) } => match self.number(s)? {
                Arg::Size(e) => Output::Size(e),
                number => Output::Constant(number),
            },
            OutputSpec::UserOutput { arg } => Output::Constant(self.argument(arg)?),
            OutputSpec::BufferMutation { arg, buffer_name } => {
                let buffer = signature.input_specs.iter().find_map(|s| match s {
                    InputSpec::Buffer { arg, buffer_name: name } if name == buffer_name => Some(arg),
                    _ => None,
                });
                return self.write(buffer.map(|b| b.name.as_str()), &arg.name, buffer_name);
            }
            OutputSpec::UserInputMutation { arg, user_input_name } => {
                return self.write(Some(user_input_name), &arg.name, user_input_name);
            }
            OutputSpec::Other(v) => {
                return Err(Problem::new(format!("a result is of another kind: {v}")).help("export for inference"));
            }
        };
        self.program.outputs.push(found);
        Ok(())
    }
    /// The program leaves a value in a buffer or input.
    fn write(&mut self, target: Option<&str>, value: &str, name: &str) -> Result<(), Problem> {
        let target = target.and_then(|t| self.scope.ids.get(t)).copied();
        let target =
            target.ok_or_else(|| Problem::new(format!("the program writes `{name}`, which it does not read")))?;
        let Arg::Value(value) = self.tensor(value)? else { return Ok(()) };
        self.program.writes.push(Write { target, value });
        Ok(())
    }
}

/// The region that a node calls and the region's operands, for a node that only changes what PyTorch does around the
/// region: whether it records gradients, or casts operands by autocast where that is switched off.
fn region(node: &Node) -> Result<Option<(&Graph, &[NamedArgument])>, Problem> {
    let args = &node.inputs[..];
    let found = match (node.target.strip_prefix("torch.ops.higher_order."), args) {
        (Some("wrap_with_set_grad_enabled"), [_, NamedArgument { arg: Argument::AsGraph(region), .. }, args @ ..]) => {
            Some((&region.graph, args))
        }
        (
            Some("wrap_with_autocast"),
            [_, _, enabled, _, NamedArgument { arg: Argument::AsGraph(region), .. }, args @ ..],
        ) => {
            if !matches!(enabled.arg, Argument::AsBool(false)) {
                let what =
                    "the program runs a part of it under `torch.autocast`, whose casts the archive does not have";
                let help = "save `program.run_decompositions({})`, which writes the casts";
                return Err(Problem::new(what).help(help));
            }
            Some((&region.graph, args))
        }
        _ => None,
    };
    Ok(found)
}
