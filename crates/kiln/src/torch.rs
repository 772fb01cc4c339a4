//! Access to libtorch, which is loaded once per process when first needed; imports archives, in a child process if one
//! is set; turns libtorch's errors into [`Error`].
use crate::Error;
use kiln_graph::Tensor;
use kiln_torch_host::{Imported, Limits, Torch, TorchError};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

pub(crate) fn torch() -> Result<Torch, Error> {
    Torch::load().map_err(failed)
}

/// The program that imports archives in place of this process: path, arguments and limits.
static CHILD: OnceLock<(PathBuf, Vec<String>, Limits)> = OnceLock::new();

/// Makes all further imports of archives run in a child process, `program` with `arguments`, which must call
/// [`kiln_torch_host::child::serve`]. A TorchScript archive is a program, which importing runs: without this it runs in
/// the caller's process, without limits on time and memory. Only the first call has an effect.
pub fn import_in_child(program: PathBuf, arguments: Vec<String>, limits: Limits) {
    // A second call has no effect, as documented.
    let _ = CHILD.set((program, arguments, limits));
}

/// Imports an archive, in a child process if one is set.
pub(crate) fn import(path: &Path, inputs: &[Tensor]) -> Result<Imported, Error> {
    let imported = match CHILD.get() {
        None => torch()?.import(path, inputs),
        Some((program, arguments, limits)) => {
            let mut command = Command::new(program);
            command.args(arguments);
            kiln_torch_host::child::import(command, *limits, path, inputs)
        }
    };
    imported.map_err(failed)
}

/// Converts an error of libtorch: problems in a model keep their source lines, other errors become one sentence with a
/// remedy.
pub(crate) fn failed(e: TorchError) -> Error {
    match e {
        TorchError::Model(e) => Error::model(e),
        other => Error::caused(other.to_string(), "`kiln doctor` shows what was found", other),
    }
}
