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
    /// Runs one op on the host. `args` are the op's operands; the kernel's outputs are the first of its results, in order.
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, String>;
    /// Runs a kernel's body on the host.
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, String>;
    /// Runs one op on CUDA device `index`, where the operands are ready, writing `outputs` in place; waits for the device.
    /// `None`: cannot; then the operands are copied to the host and [`Callbacks::fallback`] is called.
    fn fallback_device(
        &self,
        op: &FallbackOp,
        args: &[DeviceTensor],
        outputs: &[DeviceTensor],
        index: usize,
    ) -> Option<()> {
        let _ = (op, args, outputs, index);
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

/// The first results of a callback, if there is one of the right type for each output.
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
        None => Ok(results.into_iter().take(outputs.len()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::DType;

    #[test]
    fn outputs_are_the_first_results() {
        let types = [DType::F32, DType::I64, DType::F32].map(|d| Type::new(d, [2]));
        let results = || types.iter().enumerate().map(|(i, t)| Tensor::from_f64(t.clone(), [i as f64; 2])).collect();
        let taken = |outputs: &[usize]| {
            let outputs: Vec<&Type> = outputs.iter().map(|o| &types[*o]).collect();
            let result = check_results("k", "libtorch", Ok(results()), &outputs);
            result.map(|r| r.iter().map(|t| t.get_i64(0)).collect::<Vec<_>>()).map_err(|e| e.to_string())
        };
        assert_eq!(taken(&[0, 1, 2]), Ok(vec![0, 1, 2]));
        assert_eq!(taken(&[0, 1]), Ok(vec![0, 1]));
        assert!(taken(&[1]).unwrap_err().contains("result 0 is f32[2] instead of i64[2]"));
        assert!(taken(&[0, 1, 2, 0]).unwrap_err().contains("3 results instead of 4"));
    }
}
