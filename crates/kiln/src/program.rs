//! Programs with symbolic sizes and their weights: what a `.pt2` archive holds, and what a traced graph of
//! torch.compile is. A model whose sizes are fixed, as of an artifact, is a program without symbols.
//!
//! Takes: an archive, a program's JSON form with its weights, or a model. Gives: a [`Model`] for each binding of its
//! symbols.
use crate::{
    CompileOptions, Compiled, Error, Model,
    artifact::{Made, Opened},
    compile::{self, CodeCache},
    model::{State, Written},
};
use kiln_aten::{ParamData, extent::Extent, program};
pub use kiln_aten::{
    Refusal,
    extent::Sizes,
    program::{Input, InputKind, Output, Symbol},
    raw::Arg,
};
use kiln_graph::{DType, Graph, Type, ValueId};
use kiln_runtime::Param;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A program with its weights.
pub struct Program {
    program: program::Program,
    /// In the order of the program's parameters.
    params: Vec<Param>,
    path: PathBuf,
    /// What the program is made of if it has a graph in place of calls.
    fixed: Option<Box<Fixed>>,
}

/// A model whose sizes are fixed. Its state are the last parameters of the program.
struct Fixed {
    graph: Graph,
    writes: Vec<Written>,
    /// Of an artifact.
    made: Option<Made>,
}

/// The type of an input or output whose sizes may vary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dims {
    /// `None` if Kiln does not have it.
    pub dtype: Option<DType>,
    /// `None` where a size varies.
    pub shape: Vec<Option<usize>>,
}

/// A program at given sizes, with its weights where they are.
pub(crate) struct Specialised {
    /// Without parameters, and without state.
    pub model: Model,
    /// In the order of the graph's parameters.
    pub params: Vec<Param>,
    /// The program's parameter that each of them is; `None` for those that conversion made.
    pub origins: Vec<Option<usize>>,
    /// The program's parameters that are state, in the order of the graph's last inputs.
    pub states: Vec<usize>,
}

impl Program {
    /// Reads a `.pt2` archive.
    ///
    /// # Errors
    /// [`Error::Model`] or [`Error::Failed`]: the archive cannot be read, with what to do.
    pub(crate) fn exported(path: &Path) -> Result<Program, Error> {
        let exported = kiln_pt2::open(path).map_err(Error::model)?;
        let params = exported.params.into_iter().map(Param::Host).collect();
        Ok(Program { program: exported.program, params, path: path.into(), fixed: None })
    }
    /// A program in its JSON form ([`kiln_aten::program`]) with the data of its parameters, in order.
    ///
    /// # Errors
    /// If the text is not a program, or `params` are not its parameters in number, dtype and shape.
    pub fn from_json(text: &str, params: Vec<Param>) -> Result<Program, Error> {
        let program = program::Program::from_json(text).map_err(Error::model)?;
        let fits = |(id, p): (&usize, &Param)| {
            let value = program.values[*id].in_memory();
            let size = |e: &kiln_aten::extent::Extent| usize::try_from(e.value(&Sizes::new()).ok()?).ok();
            let sizes: Option<Vec<usize>> = value.shape.iter().map(size).collect();
            value.dtype == p.ty().dtype.name() && sizes.as_ref() == Some(&p.ty().shape)
        };
        if program.params.len() != params.len() || !program.params.iter().zip(&params).all(fits) {
            return Err(Error::usage("the parameters given are not those of the traced program", "please report it"));
        }
        Ok(Program { program, params, path: PathBuf::new(), fixed: None })
    }
    /// A program without symbols, whose inputs are `input0`, `input1`, ….
    ///
    /// # Errors
    /// [`Error::Usage`] if the model is specialised on values of its inputs.
    pub fn from_model(model: Model) -> Result<Program, Error> {
        Program::of(model, None)
    }
    /// What an artifact holds. Its plan is kept.
    ///
    /// # Errors
    /// As [`Program::from_model`].
    pub fn from_artifact(opened: Opened) -> Result<Program, Error> {
        let (model, made) = opened.split();
        Program::of(model, Some(made))
    }
    fn of(model: Model, made: Option<Made>) -> Result<Program, Error> {
        if let Some((input, value)) = model.guards.first() {
            let what = format!(
                "{} holds only where input {input} is {}, the value it was imported with",
                model.path.display(),
                value.as_f64()
            );
            return Err(Error::usage(
                what,
                "use `kiln run`, which checks the value, or export the model with torch.export",
            ));
        }
        let program = interface(&model);
        let Model { graph, params, path, states, writes, .. } = model;
        let params = params.into_iter().chain(states.into_iter().map(|s| s.initial)).map(Param::Host).collect();
        Ok(Program { program, params, path, fixed: Some(Box::new(Fixed { graph, writes, made })) })
    }
    /// The options it was compiled with, if it is an artifact's; else the defaults.
    pub fn options(&self) -> CompileOptions {
        self.made().map_or_else(CompileOptions::default, |m| m.options.clone())
    }
    fn made(&self) -> Option<&Made> {
        self.fixed.as_ref()?.made.as_ref()
    }

    /// Its name, for reports.
    pub fn name(&self) -> &str {
        &self.program.name
    }
    /// The symbols of its sizes.
    pub fn symbols(&self) -> &BTreeMap<String, Symbol> {
        &self.program.symbols
    }
    /// What a caller passes, in order: names and kinds.
    pub fn inputs(&self) -> &[Input] {
        &self.program.inputs
    }
    /// What a run gives, in order.
    pub fn outputs(&self) -> &[Output] {
        &self.program.outputs
    }
    /// Types of the inputs that are tensors, in order.
    pub fn input_dims(&self) -> Vec<Dims> {
        self.program.tensor_inputs().map(|(_, v)| dims(&v.in_memory())).collect()
    }
    /// Types of the outputs that are tensors, in order.
    pub fn output_dims(&self) -> Vec<Dims> {
        let value = |o: &Output| {
            if let Output::Value(id) = o { Some(dims(&self.program.values[*id].in_memory())) } else { None }
        };
        self.program.outputs.iter().filter_map(value).collect()
    }
    /// The data of its parameters, in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }
    /// Names of its parameters, in order.
    pub fn param_names(&self) -> impl Iterator<Item = &str> {
        self.program.params.iter().map(|id| self.program.values[*id].name.as_deref().unwrap_or_default())
    }

    /// The symbol of this name, or of a dimension (`x.0`: input and axis).
    ///
    /// # Errors
    /// [`Error::Inputs`] if there is none.
    pub fn symbol(&self, name: &str) -> Result<String, Error> {
        self.program.symbol(name).map_err(|p| Error::inputs(p.message, p.help))
    }
    /// Shapes of the inputs that are tensors, for these sizes of all symbols.
    ///
    /// # Errors
    /// [`Error::Inputs`] if a symbol is missing.
    pub fn input_shapes(&self, sizes: &Sizes) -> Result<Vec<Vec<usize>>, Error> {
        let size = |e: &Extent| usize::try_from(e.value(sizes)?).map_err(|e| e.to_string());
        let shape = |(_, v): (&Input, &program::Value)| v.shape.iter().map(size).collect::<Result<_, _>>();
        let shapes: Result<_, String> = self.program.tensor_inputs().map(shape).collect();
        shapes.map_err(|what| Error::inputs(what, "give the sizes of all symbols"))
    }

    /// The sizes of all symbols: of inputs of these types (which may be empty), those asked for by name (`s53`, or
    /// `x.0`: input and axis), and for the rest those of tracing.
    ///
    /// # Errors
    /// [`Error::Inputs`] if a name is unknown, a dtype, rank or size does not fit, a size is outside of its range, or a
    /// guard does not hold.
    pub fn sizes(&self, wanted: &Sizes, inputs: &[Type]) -> Result<Sizes, Error> {
        self.program.sizes(wanted, inputs).map_err(|p| Error::inputs(p.message, p.help))
    }
    /// The sizes of all symbols for inputs of these types, and the inputs that are numbers, in order.
    ///
    /// # Errors
    /// [`Error::Inputs`] as [`Program::sizes`].
    pub fn bind(&self, inputs: &[Type], numbers: &[i64]) -> Result<Sizes, Error> {
        let bound = self.program.bind(inputs, numbers).and_then(|s| self.program.holds(&s).map(|()| s));
        bound.map_err(|p| Error::inputs(p.message, p.help))
    }

    /// The model for these sizes.
    ///
    /// # Errors
    /// [`Error::Model`] or [`Error::Failed`] with all that cannot be compiled; [`Error::Usage`] if weights are in
    /// memory of a GPU.
    pub fn at(&self, sizes: &Sizes) -> Result<Model, Error> {
        let Specialised { model, params, states, .. } = self.specialise(sizes)?;
        let on_host = |p: &Param| match p {
            Param::Host(t) => Ok(t.clone()),
            Param::Device(_) => Err(Error::usage("the weights are in memory of a GPU", "copy them to the CPU first")),
        };
        let state = |index: usize| {
            let name = self.param_names().nth(index).unwrap_or_default().to_string();
            on_host(&self.params[index]).map(|initial| State { name, initial })
        };
        let params = params.iter().map(on_host).collect::<Result<_, _>>()?;
        let states = states.into_iter().map(state).collect::<Result<_, _>>()?;
        Ok(Model { params, states, ..model })
    }

    /// The model for these sizes, compiled: with the plan of an artifact if `options` are those it was written with.
    ///
    /// # Errors
    /// As [`Program::at`], and if the model cannot be compiled.
    pub fn compile(&self, sizes: &Sizes, options: &CompileOptions) -> Result<(Model, Compiled), Error> {
        let model = self.at(sizes)?;
        let compiled = self.compile_model(&model, options, &CodeCache::default())?;
        Ok((model, compiled))
    }
    /// Compiles one of its models, which may be without weights.
    pub(crate) fn compile_model(
        &self,
        model: &Model,
        options: &CompileOptions,
        codes: &CodeCache,
    ) -> Result<Compiled, Error> {
        match self.made() {
            Some(made) => made.compile(model, options, codes),
            None => compile::compile_with(model, options, codes),
        }
    }
    /// Compiles for several sizes, one after the other, without weights. Programs that are equal are compiled once.
    ///
    /// # Errors
    /// As [`Program::compile`].
    pub fn compile_all(&self, all: &[Sizes], options: &CompileOptions) -> Result<Vec<Compiled>, Error> {
        let codes = CodeCache::default();
        let one = |sizes: &Sizes| self.compile_model(&self.specialise(sizes)?.model, options, &codes);
        all.iter().map(one).collect()
    }

    /// The model for these sizes without its weights, to ask about its plan.
    ///
    /// # Errors
    /// As [`Program::at`].
    pub fn without_weights(&self, sizes: &Sizes) -> Result<Model, Error> {
        self.specialise(sizes).map(|s| s.model)
    }

    /// The same with weights where they are.
    pub(crate) fn specialise(&self, sizes: &Sizes) -> Result<Specialised, Error> {
        let start = std::time::Instant::now();
        if let Some(Fixed { graph, writes, .. }) = self.fixed.as_deref() {
            let model = Model { path: self.path.clone(), writes: writes.clone(), ..Model::of(graph.clone()) };
            let weights = graph.params.len();
            let states = (weights..self.params.len()).collect();
            let origins = (0..weights).map(Some).collect();
            return Ok(Specialised { model, params: self.params[..weights].to_vec(), origins, states });
        }
        let made = self.program.specialise(sizes).map_err(Error::model)?;
        let data = |p: &ParamData| match p {
            ParamData::Made(t) => Param::Host(t.clone()),
            ParamData::Raw(index) => self.params[*index].clone(),
        };
        let writes = made.writes.iter().map(|w| Written { input: w.input, output: w.output }).collect();
        let params = made.params.iter().map(data).collect();
        let path = self.path.clone();
        let model = Model { path, writes, import_s: start.elapsed().as_secs_f64(), ..Model::of(made.graph) };
        let origin = |p: &ParamData| if let ParamData::Raw(index) = p { Some(*index) } else { None };
        let origins = made.params.iter().map(origin).collect();
        Ok(Specialised { model, params, origins, states: made.states })
    }
}

/// The calls of a program in its JSON form that Kiln refuses at the sizes of tracing. Without them, and with their
/// results as inputs, it can be compiled.
///
/// # Errors
/// [`Error::Model`] or [`Error::Failed`]: the text is not a program, or has problems that are not of one call.
pub fn refusals(text: &str) -> Result<Vec<Refusal>, Error> {
    let program = program::Program::from_json(text).map_err(Error::model)?;
    program.refusals(&program.traced_sizes()).map_err(Error::model)
}

/// The types of a model as those of a program without calls: its parameters, then its state.
fn interface(model: &Model) -> program::Program {
    let graph = &model.graph;
    let mut values = vec![];
    let mut add = |ty: &Type, name: Option<String>| {
        // Invariant: sizes of a graph are below 2^46.
        let shape = ty.shape.iter().map(|n| Extent::Integer(*n as i64)).collect();
        values.push(program::Value { dtype: ty.dtype.name().into(), shape, name });
        values.len() - 1
    };
    let given = model.input_types();
    let input = |(i, ty): (usize, &Type)| Input { name: format!("input{i}"), kind: InputKind::Value(add(ty, None)) };
    let inputs = given.iter().enumerate().map(input).collect();
    let result = |v: &ValueId| Output::Value(add(graph.ty(*v), None));
    let outputs = graph.outputs[..model.results()].iter().map(result).collect();
    let mut params: Vec<usize> = graph.params.iter().map(|p| add(&p.ty, Some(p.name.clone()))).collect();
    params.extend(model.states.iter().map(|s| add(&s.initial.ty, Some(s.name.clone()))));
    program::Program {
        name: graph.name.clone(),
        symbols: BTreeMap::new(),
        guards: vec![],
        values,
        inputs,
        params,
        calls: vec![],
        outputs,
        writes: vec![],
    }
}

fn dims(value: &program::Value) -> Dims {
    let size = |e: &Extent| usize::try_from(e.value(&Sizes::new()).ok()?).ok();
    Dims { dtype: value.dtype.parse().ok(), shape: value.shape.iter().map(size).collect() }
}
