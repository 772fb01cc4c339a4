//! What the runtime cannot do itself and asks of others: libtorch for ops that are not compiled, and the graph interpreter.
use crate::RuntimeError;
use kiln_graph::{FallbackOp, Graph, Tensor, Type};
use kiln_plan::exec::Work;

/// Dense row-major memory on a device.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceTensor {
    pub ty: Type,
    /// Address on the device; 0 if there are no elements.
    pub address: u64,
}

/// Called while a session runs, one call at a time per session, from any thread. Must not call back into the session.
pub trait Callbacks: Send + Sync {
    /// Runs one op on the host. `args` are the kernel's inputs in order; the results are the kernel's outputs in order.
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, String>;
    /// Runs a kernel's body on the host.
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, String>;
    /// Runs one op on device `index` in the order of `stream` (a `CUstream`), writing `outputs` in place.
    /// `None`: cannot; then the arguments are copied to the host and [`Callbacks::fallback`] is called.
    fn fallback_device(
        &self,
        op: &FallbackOp,
        args: &[DeviceTensor],
        outputs: &[DeviceTensor],
        index: usize,
        stream: *mut std::ffi::c_void,
    ) -> Option<Result<(), String>> {
        let _ = (op, args, outputs, index, stream);
        None
    }
}

/// For executables without such steps: refuses everything.
pub struct NoCallbacks;
impl Callbacks for NoCallbacks {
    fn fallback(&self, op: &FallbackOp, _: &[Tensor]) -> Result<Vec<Tensor>, String> {
        Err(format!("{} needs libtorch, which was not set up", op.name))
    }
    fn interpret(&self, _: &Graph, _: &[Tensor]) -> Result<Vec<Tensor>, String> {
        Err("the graph interpreter was not set up".into())
    }
}

/// Runs a step through its callback and checks the results against the kernel's outputs.
pub(crate) fn call<K>(
    callbacks: &dyn Callbacks,
    kernel: &str,
    work: &Work<K>,
    args: &[Tensor],
    outputs: &[&Type],
) -> Result<Vec<Tensor>, RuntimeError> {
    match work {
        Work::Fallback(op) => check_results(kernel, "libtorch", callbacks.fallback(op, args), outputs),
        Work::Interpret { body, .. } => {
            check_results(kernel, "the interpreter", callbacks.interpret(&body.0, args), outputs)
        }
        Work::Block { .. } | Work::Gemm(_) => Ok(vec![]),
    }
}

/// The results of a callback, if there is one of the right type for each output.
pub(crate) fn check_results(
    kernel: &str,
    by: &'static str,
    result: Result<Vec<Tensor>, String>,
    outputs: &[&Type],
) -> Result<Vec<Tensor>, RuntimeError> {
    let fail = |what| RuntimeError::Callback { kernel: kernel.into(), by, what };
    let results = result.map_err(fail)?;
    if results.len() < outputs.len() {
        return Err(fail(format!("{} results instead of {}", results.len(), outputs.len())));
    }
    match results.iter().zip(outputs).enumerate().find(|(_, (t, want))| t.ty != ***want) {
        Some((i, (t, want))) => Err(fail(format!("result {i} is {} instead of {want}", t.ty))),
        None => Ok(results),
    }
}
