//! Reads `.pt2` archives, as `torch.export.save` writes them, without libtorch.
//!
//! Takes: an archive of schema 8: training form, functional form (`program.run_decompositions({})`) or core ATen.
//! Gives: the program with its symbols, ranges and guards, and the data of its parameters; or all problems of the
//! program at once. Never: Python. Pickled objects are refused, not read.
//!
//! The archive is a zip ([`archive`]) with the program as JSON ([`schema`]). [`read`] makes it a
//! [`kiln_aten::Program`], which gives a graph for each binding of its symbols.
mod archive;
mod read;
mod schema;

use kiln_aten::{ImportErrors, Program};
use kiln_graph::Tensor;
use std::path::Path;

/// A program with its data. Parameters lie in the mapped file where they can: while any of them lives, nothing may
/// write into the file or cut it, or its values change and an access beyond its end ends the process. To replace the
/// file, rename another one to its place.
#[derive(Debug)]
pub struct Exported {
    /// What is computed, for all sizes within its ranges.
    pub program: Program,
    /// In the order of the program's parameters.
    pub params: Vec<Tensor>,
}

/// Reads the program of an archive.
///
/// # Errors
/// If the file is no such archive or the program cannot be read: all problems, with what to do.
pub fn open(path: &Path) -> Result<Exported, ImportErrors> {
    let mut archive = archive::Archive::open(path)?;
    let read::Reading { mut program, stored } = read::read(&mut archive)?;
    program.name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let params = stored.iter().map(|s| archive.tensor(s)).collect::<Result<_, _>>()?;
    Ok(Exported { program, params })
}
