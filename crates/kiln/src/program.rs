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
    program::{InputKind, Output, Symbol},
};
use kiln_graph::{Tensor, Type};
use std::path::{Path, PathBuf};

/// A program with its weights.
#[derive(Debug)]
pub struct Program {
    program: program::Program,
    /// In the order of the program's parameters.
    params: Vec<Tensor>,
    path: PathBuf,
}

impl Program {
    /// Reads a `.pt2` archive.
    ///
    /// # Errors
    /// [`Error::Model`] or [`Error::Failed`]: the archive cannot be read, with what to do.
    pub fn open(path: &Path) -> Result<Program, Error> {
        let exported = kiln_pt2::open(path).map_err(Error::model)?;
        Ok(Program { program: exported.program, params: exported.params, path: path.into() })
    }
    /// A program in its JSON form ([`kiln_aten::program`]) with the data of its parameters, in order.
    ///
    /// # Errors
    /// If the text is not a program, or `params` are not its parameters in number, dtype and shape.
    pub fn from_json(text: &str, params: Vec<Tensor>) -> Result<Program, Error> {
        let program = program::Program::from_json(text).map_err(Error::model)?;
        let fits = |(id, t): (&usize, &Tensor)| {
            let value = &program.values[*id];
            let sizes: Option<Vec<usize>> =
                value.shape.iter().map(|e| usize::try_from(e.value(&Sizes::new()).ok()?).ok()).collect();
            value.dtype == t.ty.dtype.name() && sizes.as_ref() == Some(&t.ty.shape)
        };
        if program.params.len() != params.len() || !program.params.iter().zip(&params).all(fits) {
            return Err(Error::usage("the parameters given are not those of the traced program", "please report it"));
        }
        Ok(Program { program, params, path: PathBuf::new() })
    }

    /// The symbols of its sizes.
    pub fn symbols(&self) -> &std::collections::BTreeMap<String, Symbol> {
        &self.program.symbols
    }
    /// What a caller passes, in order: names and kinds.
    pub fn inputs(&self) -> &[program::Input] {
        &self.program.inputs
    }
    /// What a run gives, in order.
    pub fn outputs(&self) -> &[Output] {
        &self.program.outputs
    }
    /// The data of its parameters, in order.
    pub fn params(&self) -> &[Tensor] {
        &self.params
    }

    /// The sizes of all symbols: of inputs of these types (which may be empty), those asked for by name (`s53`, or `x.0`: input and axis),
    /// and for the rest those of tracing.
    ///
    /// # Errors
    /// [`Error::Inputs`] if a name is unknown, a dtype, rank or size does not fit, a size is outside of its range, or a guard does not hold.
    pub fn sizes(&self, wanted: &Sizes, inputs: &[Type]) -> Result<Sizes, Error> {
        self.program.sizes(wanted, inputs).map_err(|p| Error::inputs(p.message, p.help))
    }

    /// The model for these sizes.
    ///
    /// # Errors
    /// [`Error::Model`] or [`Error::Failed`] with all that cannot be compiled.
    pub fn at(&self, sizes: &Sizes) -> Result<Model, Error> {
        let start = std::time::Instant::now();
        let made = self.program.specialise(sizes).map_err(Error::model)?;
        let data = |p: &ParamData| match p {
            ParamData::Made(t) => t.clone(),
            ParamData::Raw(index) => self.params[*index].clone(),
        };
        let state = |index: &usize| {
            let name = self.program.values[self.program.params[*index]].name.clone().unwrap_or_default();
            State { name, initial: self.params[*index].clone() }
        };
        let writes = made.writes.iter().map(|w| Written { input: w.input, output: w.output }).collect();
        Ok(Model {
            params: made.params.iter().map(data).collect(),
            path: self.path.clone(),
            states: made.states.iter().map(state).collect(),
            writes,
            import_s: start.elapsed().as_secs_f64(),
            ..Model::of(made.graph)
        })
    }
}
