//! Reads `.pt2` archives, as `torch.export.save` writes them, without libtorch.
//!
//! Takes: an archive of schema 8, in functional form (`program.run_decompositions({})`) or in core ATen, and sizes of its symbolic
//! dimensions. Gives: a verified [`Graph`] for these sizes with the data of its parameters; or all problems of the program at once.
//! Never: Python. Pickled objects are refused, not read. Programs that write buffers or inputs are refused, as are operators that change a
//! tensor in place.
//!
//! The archive is a zip ([`archive`]) with the program as JSON ([`schema`]); dimensions are expressions over symbols ([`extent`]). The
//! program becomes a list of operator calls ([`read`]), which [`kiln_aten`] converts.
mod archive;
mod extent;
mod read;
mod schema;

use kiln_aten::{ImportErrors, ParamData, Problem, convert, source};
use kiln_graph::{Graph, Tensor, Type};
use std::{collections::BTreeMap, path::Path};

/// A program for given sizes.
#[derive(Debug)]
pub struct Program {
    /// The graph; its inputs are the program's tensor inputs, in order.
    pub graph: Graph,
    /// In the order of `graph.params`.
    pub params: Vec<Tensor>,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// The size of each symbol.
    pub symbols: BTreeMap<String, i64>,
}

/// Reads the program of an archive.
///
/// `sizes`: of symbols by name (`s53`). `inputs`: types of the inputs, which give the sizes of their symbolic dimensions; may be empty.
/// Other symbols get the size they had at export.
///
/// # Errors
/// If the file is no such archive, a size is outside its range, or the program cannot be converted: all problems, with what to do.
pub fn import(path: &Path, sizes: &BTreeMap<String, i64>, inputs: &[Type]) -> Result<Program, ImportErrors> {
    let mut archive = archive::Archive::open(path)?;
    let mut reading = read::read(&mut archive, sizes, inputs)?;
    source::settle(&mut reading.raw);
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let converted = convert::convert(&reading.raw, &name)?;
    let defect = |e| Problem::new(format!("the imported graph is invalid (a defect of Kiln; please report it): {e}"));
    converted.graph.verify().map_err(defect)?;
    let data = |p: &ParamData| match p {
        ParamData::Made(t) => Ok(t.clone()),
        ParamData::Raw(id) => archive.tensor(&reading.stored[id]),
    };
    let params = converted.params.iter().map(data).collect::<Result<_, _>>()?;
    let inputs = reading.raw.inputs.into_iter().map(|i| i.name).collect();
    Ok(Program { graph: converted.graph, params, inputs, symbols: reading.symbols })
}
