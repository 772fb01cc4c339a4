//! Calls with a smaller batch than that of their binding.
//!
//! Takes: the arguments, and the sizes of a bucket. Gives: the rows of the results that belong to the arguments, as
//! views. Copies every argument that has a batch; rows that are added are zeros, which are indices that exist and no
//! other row's business.
use super::Engine;
use crate::errors::{UsageError, raised};
use kiln::{
    engine,
    program::{InputKind, Output},
};
use pyo3::{prelude::*, types::PyList};

impl Engine {
    /// Runs the program on copies of the arguments, with zeros behind them up to the sizes of a bucket; gives views of
    /// its results.
    pub(super) fn call_padded(
        &self,
        py: Python<'_>,
        count: usize,
        args: &Bound<'_, PyList>,
        rounded: &engine::Rounded,
    ) -> PyResult<Option<Py<PyList>>> {
        let program = self.engine.program();
        let mut shapes = program.input_shapes(&rounded.sizes).map_err(raised)?.into_iter();
        let padded = PyList::empty(py);
        for (input, given) in program.inputs().iter().zip(args.iter()) {
            match &input.kind {
                InputKind::Value(_) => {
                    let missing = || UsageError::new_err(format!("input `{}` has no shape", input.name));
                    let shape = shapes.next().ok_or_else(missing)?;
                    let given = given.call_method0("detach")?;
                    let sizes: Vec<usize> = given.getattr("shape")?.extract()?;
                    let mut to = given.clone();
                    if sizes != shape {
                        to = given.call_method1("new_zeros", (shape,))?;
                        let mut part = to.clone();
                        for (axis, size) in sizes.into_iter().enumerate() {
                            part = part.call_method1("narrow", (axis, 0, size))?;
                        }
                        part.call_method1("copy_", (given,))?;
                    }
                    padded.append(to)?;
                }
                InputKind::Size(e) => padded.append(e.value(&rounded.sizes).map_err(UsageError::new_err)?)?,
                InputKind::Constant(_) => padded.append(given)?,
            }
        }
        let Some(outputs) = self.call(py, count, &padded)? else { return Ok(None) };
        if let Some(binding) = self.engine.bindings().iter().find(|b| b.sizes == rounded.sizes) {
            binding.pad();
        }
        let outputs = outputs.bind(py);
        let is_tensor = |o: &Output| matches!(o, Output::Value(_));
        let tensors = program.outputs().iter().enumerate().filter(|(_, o)| is_tensor(o)).map(|(at, _)| at);
        for (at, keep) in tensors.zip(&rounded.keep) {
            let mut kept = outputs.get_item(at)?;
            for (axis, size) in keep {
                kept = kept.call_method1("narrow", (*axis, 0, *size))?;
            }
            outputs.set_item(at, kept)?;
        }
        Ok(Some(outputs.clone().unbind()))
    }
}
