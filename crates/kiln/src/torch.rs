//! The one libtorch of this process, loaded when first needed, and its errors as Kiln's.
use crate::{Error, error::Problem};
use kiln_torch_host::{Torch, TorchError};

pub(crate) fn torch() -> Result<Torch, Error> {
    Torch::load().map_err(failed)
}

/// Problems of a model keep their lines; the rest is one sentence with its remedy.
pub(crate) fn failed(e: TorchError) -> Error {
    match e {
        TorchError::Model(e) if e.errors.len() == 1 && e.errors[0].source.is_empty() => {
            let p = &e.errors[0];
            Error::failed(p.message.clone(), p.help.clone())
        }
        TorchError::Model(e) => {
            let problem = |p: kiln_torch_host::Problem| Problem {
                what: p.message,
                line: p.source,
                module: p.module,
                help: p.help,
            };
            let n = e.errors.len();
            let what = format!("the model cannot be compiled: {n} problem{}", if n == 1 { "" } else { "s" });
            Error::Model { what, problems: e.errors.into_iter().map(problem).collect() }
        }
        other => Error::failed(other.to_string(), "`kiln doctor` shows what was found"),
    }
}
