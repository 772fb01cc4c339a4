//! Programs with symbolic sizes and their weights: what a `.pt2` archive holds, and what a traced graph of torch.compile is.
//!
//! Takes: an archive, or a program's JSON form with its weights. Gives: a [`Model`] for each binding of its symbols.
use crate::{
    Error, Model,
    model::{State, Written},
};
use kiln_aten::{ParamData, program};
pub use kiln_aten::{
    extent::Sizes,
    program::{Input, InputKind, Output, Symbol},
    raw::Arg,
};
use kiln_graph::Type;
use kiln_runtime::Param;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A program with its weights.
#[derive(Debug)]
pub struct Program {
    program: program::Program,
    /// In the order of the program's parameters.
    params: Vec<Param>,
    path: PathBuf,
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
    pub fn open(path: &Path) -> Result<Program, Error> {
        let exported = kiln_pt2::open(path).map_err(Error::model)?;
        let params = exported.params.into_iter().map(Param::Host).collect();
        Ok(Program { program: exported.program, params, path: path.into() })
    }
    /// A program in its JSON form ([`kiln_aten::program`]) with the data of its parameters, in order.
    ///
    /// # Errors
    /// If the text is not a program, or `params` are not its parameters in number, dtype and shape.
    pub fn from_json(text: &str, params: Vec<Param>) -> Result<Program, Error> {
        let program = program::Program::from_json(text).map_err(Error::model)?;
        let fits = |(id, p): (&usize, &Param)| {
            let value = &program.values[*id];
            let size = |e: &kiln_aten::extent::Extent| usize::try_from(e.value(&Sizes::new()).ok()?).ok();
            let sizes: Option<Vec<usize>> = value.shape.iter().map(size).collect();
            value.dtype == p.ty().dtype.name() && sizes.as_ref() == Some(&p.ty().shape)
        };
        if program.params.len() != params.len() || !program.params.iter().zip(&params).all(fits) {
            return Err(Error::usage("the parameters given are not those of the traced program", "please report it"));
        }
        Ok(Program { program, params, path: PathBuf::new() })
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
    /// The data of its parameters, in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }
    /// Names of its parameters, in order.
    pub fn param_names(&self) -> impl Iterator<Item = &str> {
        self.program.params.iter().map(|id| self.program.values[*id].name.as_deref().unwrap_or_default())
    }

    /// The sizes of all symbols: of inputs of these types (which may be empty), those asked for by name (`s53`, or `x.0`: input and axis),
    /// and for the rest those of tracing.
    ///
    /// # Errors
    /// [`Error::Inputs`] if a name is unknown, a dtype, rank or size does not fit, a size is outside of its range, or a guard does not hold.
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
    /// [`Error::Model`] or [`Error::Failed`] with all that cannot be compiled; [`Error::Usage`] if weights are in memory of a GPU.
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
