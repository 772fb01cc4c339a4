//! Modules run by libtorch: the reference for correctness checks and benchmarks.
use crate::{
    Device,
    abi::{Dense, RawModule, Str, Symbols, Text},
    error::{TorchError, utf8},
    thread,
};
use kiln_graph::{Tensor, Type};
use std::{path::Path, sync::Arc};

/// A loaded module with its inputs. [`Session::run`] does nothing but run forward, so it can be timed.
pub struct Session {
    raw: *mut RawModule,
    symbols: Arc<Symbols>,
}

// SAFETY: only libtorch's thread uses the module, for one caller at a time (`&mut self`).
unsafe impl Send for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: not null, freed once.
        thread::call(|| unsafe { (self.symbols.session_free)(self.raw) })
    }
}

impl Session {
    pub(crate) fn open(
        symbols: &Arc<Symbols>,
        path: &Path,
        inputs: &[Tensor],
        device: Device,
        threads: usize,
    ) -> Result<Session, TorchError> {
        let dense: Vec<Dense> = inputs.iter().map(Dense::host).collect();
        let path = utf8(path)?;
        let mut error = Text::EMPTY;
        // SAFETY: host tensors that live through the call; the plugin copies them.
        let raw = unsafe {
            (symbols.session)(Str::new(path), dense.as_ptr(), dense.len(), device.number(), threads, &mut error)
        };
        symbols.checked(!raw.is_null(), error)?;
        Ok(Session { raw, symbols: symbols.clone() })
    }

    /// Runs forward once and waits until the device is done.
    pub fn run(&mut self) -> Result<(), TorchError> {
        let mut error = Text::EMPTY;
        // SAFETY: the module is alive, and `&mut self` is exclusive.
        let status = thread::call(|| unsafe { (self.symbols.session_run)(self.raw, &mut error) });
        self.symbols.checked(status == 0, error)
    }

    /// Host copies of the flattened outputs of the last run.
    pub fn outputs(&mut self) -> Result<Vec<Tensor>, TorchError> {
        let (mut types, mut error) = (Text::EMPTY, Text::EMPTY);
        // SAFETY: as above.
        let status = thread::call(|| unsafe { (self.symbols.session_outputs)(self.raw, &mut types, &mut error) });
        self.symbols.checked(status == 0, error)?;
        let types: Vec<String> = self.symbols.json(types)?;
        let output = |(i, text): (usize, String)| {
            let ty: Type = text.parse().map_err(TorchError::Plugin)?;
            // SAFETY: the bytes live until the next call on this module; they are copied here.
            let bytes = unsafe { (self.symbols.session_output)(self.raw, i).bytes() };
            Tensor::from_bytes(ty, bytes).ok_or_else(|| TorchError::Plugin(format!("output {i} does not fit {text}")))
        };
        types.into_iter().enumerate().map(output).collect()
    }
}
