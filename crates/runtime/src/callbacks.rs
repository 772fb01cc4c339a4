//! Work that the runtime delegates: ops that are not compiled run in libtorch, kernel bodies that are not lowered in
//! the graph interpreter.
//!
//! The caller of the runtime implements [`Callbacks`]; results are checked against the kernel's outputs before they are
//! stored.
use crate::RuntimeError;
use kiln_graph::{FallbackOp, Graph, Tensor, Type};
use kiln_plan::exec::{LibraryCall, Work};

/// A dense row-major tensor in memory of a GPU or of the host.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceTensor {
    /// Dtype and shape.
    pub ty: Type,
    /// Address of the first byte; meaningless if there are no elements.
    pub address: u64,
}

/// Runs a library call in place; false if the callbacks cannot. `inputs` and `outputs` are the kernel's; `cuda` is the
/// device's number.
pub(crate) fn call_in_place(
    callbacks: &dyn Callbacks,
    call: &LibraryCall,
    inputs: &[DeviceTensor],
    outputs: &[DeviceTensor],
    cuda: Option<usize>,
) -> bool {
    let unwanted = |ty: &Type| DeviceTensor { ty: ty.clone(), address: 0 };
    let results = call.in_order(|o| outputs[o].clone()).into_iter().zip(&call.op.results);
    let results: Vec<DeviceTensor> = results.map(|(t, ty)| t.unwrap_or_else(|| unwanted(ty))).collect();
    let operands: Vec<DeviceTensor> = call.operands.iter().map(|i| inputs[*i].clone()).collect();
    callbacks.fallback_in_place(&call.op, &operands, &results, cuda).is_some()
}

/// Why a callback gave no results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// An index is out of range for the axis it is used on; the text is that of [`kiln_plan::index::out_of_range`].
    Index(String),
    /// An op cannot run on these inputs: its name, and why.
    Op(String),
    /// Something that the op needs is missing: what, and how to provide it.
    Missing(String),
}
impl Refused {
    /// The text of any variant.
    pub fn into_words(self) -> String {
        match self {
            Refused::Index(what) | Refused::Op(what) | Refused::Missing(what) => what,
        }
    }
}

/// Runs the steps that the runtime has no code for. A session makes one call at a time, from any thread.
/// Implementations must not call back into the session.
pub trait Callbacks: Send + Sync {
    /// Runs one op on the host. `args`: its operands. Returns all its results.
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, Refused>;
    /// Interprets a kernel's body on the host. `args`: the kernel's inputs. Returns its outputs.
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused>;
    /// Runs one op on the device that holds its operands (`cuda`: the device's number; `None`: the host). The operands
    /// are ready. Writes each result in place, except those whose address is 0, and waits for the device, unless
    /// [`Callbacks::in_order`]. `None` if it cannot; the session then calls [`Callbacks::fallback`] with copies on the
    /// host.
    fn fallback_in_place(
        &self,
        op: &FallbackOp,
        args: &[DeviceTensor],
        results: &[DeviceTensor],
        cuda: Option<usize>,
    ) -> Option<()> {
        let _ = (op, args, results, cuda);
        None
    }
    /// Whether [`Callbacks::fallback_in_place`] enqueues its work on the stream that the caller of
    /// [`crate::Session::run_on`] passes, as operators of a framework enqueue theirs on its current stream, and returns
    /// without waiting. `run_on` then does not wait before or after the call either, and the call may be captured.
    /// Other runs wait for the whole device after it.
    fn in_order(&self) -> bool {
        false
    }
    /// Whether operators on the host run on the thread that calls, and on the process's OpenMP threads.
    fn on_calling_thread(&self) -> bool {
        false
    }
}

/// Callbacks for executables without such steps: every call is refused.
pub struct NoCallbacks;
impl Callbacks for NoCallbacks {
    fn fallback(&self, op: &FallbackOp, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Err(Refused::Missing(format!("{} needs libtorch; create the session with callbacks that provide it", op.name)))
    }
    fn interpret(&self, _: &Graph, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Err(Refused::Missing("there is none; create the session with callbacks that provide it".into()))
    }
}

/// Runs a step through its callback and checks the results against the kernel's outputs. `of`: names of the model and
/// of the kernel.
pub(crate) fn call<K>(
    callbacks: &dyn Callbacks,
    of: [&str; 2],
    work: &Work<K>,
    args: &[Tensor],
    outputs: &[&Type],
) -> Result<Vec<Tensor>, RuntimeError> {
    match work {
        Work::Fallback(call) => {
            let by = match call.place.as_str() {
                "" => "libtorch".to_string(),
                place => format!("libtorch ({place})"),
            };
            let operands: Vec<Tensor> = call.operands.iter().map(|i| args[*i].clone()).collect();
            check_results(of, &by, callbacks.fallback(&call.op, &operands), &call.results, outputs)
        }
        Work::Interpret { body, .. } => {
            let all: Vec<usize> = (0..outputs.len()).collect();
            check_results(of, "the interpreter", callbacks.interpret(&body.0, args), &all, outputs)
        }
        Work::Block { .. } | Work::Gemm(_) | Work::Attention(_) => Ok(vec![]),
    }
}

/// For each output, the result with its number. Fails if there is no such result or it has another type than the
/// output.
fn check_results(
    [model, kernel]: [&str; 2],
    by: &str,
    result: Result<Vec<Tensor>, Refused>,
    numbers: &[usize],
    outputs: &[&Type],
) -> Result<Vec<Tensor>, RuntimeError> {
    let fail = |what| RuntimeError::Callback { kernel: kernel.into(), by: by.into(), what };
    let results = result.map_err(|refused| match refused {
        Refused::Index(what) => RuntimeError::Index { model: model.into(), kernel: kernel.into(), what },
        Refused::Op(what) => {
            fail(format!("{what}; pass inputs that the op accepts, like the example inputs, or report the model"))
        }
        Refused::Missing(what) => fail(what),
    })?;
    let pick = |(&n, want): (&usize, &&Type)| match results.get(n) {
        None => Err(fail(format!("it gave {} results, so there is no result {n}; report the model", results.len()))),
        Some(t) if t.ty != **want => Err(fail(format!("result {n} is {} instead of {want}; report the model", t.ty))),
        Some(t) => Ok(t.clone()),
    };
    numbers.iter().zip(outputs).map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::DType;

    #[test]
    fn outputs_are_results_by_number() {
        let types = [DType::F32, DType::I64, DType::F32].map(|d| Type::new(d, [2]));
        let results = || types.iter().enumerate().map(|(i, t)| Tensor::from_f64(t.clone(), [i as f64; 2])).collect();
        let taken = |numbers: &[usize], outputs: &[usize]| {
            let outputs: Vec<&Type> = outputs.iter().map(|o| &types[*o]).collect();
            let result = check_results(["m", "k"], "libtorch", Ok(results()), numbers, &outputs);
            result.map(|r| r.iter().map(|t| t.get_i64(0)).collect::<Vec<_>>()).map_err(|e| e.to_string())
        };
        assert_eq!(taken(&[0, 1, 2], &[0, 1, 2]), Ok(vec![0, 1, 2]));
        assert_eq!(taken(&[2, 1], &[0, 1]), Ok(vec![2, 1]));
        assert!(taken(&[1], &[0]).unwrap_err().contains("result 1 is i64[2] instead of f32[2]"));
        assert!(taken(&[3], &[0]).unwrap_err().contains("3 results, so there is no result 3"));
    }

    #[test]
    fn refusals_end_with_a_remedy() {
        let say =
            |refused| check_results(["m", "k"], "the interpreter", Err(refused), &[], &[]).unwrap_err().to_string();
        assert_eq!(
            say(Refused::Index("take: index 4 is out of range for an axis of 4".into())),
            "running `m`, kernel `k`: take: index 4 is out of range for an axis of 4; \
             give indices from 0 to one below the axis' length"
        );
        let op = say(Refused::Op("%3 = div: division by zero".into()));
        assert!(
            op.starts_with("running kernel `k` through the interpreter: %3 = div: division by zero; pass inputs"),
            "{op}"
        );
        assert_eq!(
            say(Refused::Missing("no x; get x".into())),
            "running kernel `k` through the interpreter: no x; get x"
        );
    }
}
