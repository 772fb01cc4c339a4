//! What the runtime cannot do itself and asks of others: libtorch for ops that are not compiled, and the graph interpreter.
use crate::RuntimeError;
use kiln_graph::{FallbackOp, Graph, Tensor, Type};
use kiln_plan::exec::{LibraryCall, Work};

/// Dense row-major memory on a device or on the host.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceTensor {
    pub ty: Type,
    /// Address; without a meaning if there are no elements.
    pub address: u64,
}

/// Runs a library call in place, if that can be done; `inputs` and `outputs` are the kernel's.
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
    callbacks.fallback_in_place(&call.op, inputs, &results, cuda).is_some()
}

/// Why a callback gives no results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// An index is not one of the axis it is used on; in the words of [`kiln_plan::index::out_of_range`].
    Index(String),
    /// An op cannot be run on these inputs: which one, and why.
    Op(String),
    /// What is missing here, and what to do about it.
    Missing(String),
}
impl Refused {
    pub fn into_words(self) -> String {
        match self {
            Refused::Index(what) | Refused::Op(what) | Refused::Missing(what) => what,
        }
    }
}

/// Called while a session runs, one call at a time per session, from any thread. Must not call back into the session.
pub trait Callbacks: Send + Sync {
    /// Runs one op on the host. `args` are the op's operands; gives all its results.
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, Refused>;
    /// Runs a kernel's body on the host.
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused>;
    /// Runs one op where the operands are (`cuda`: the device's number; `None`: the host) and ready. There is an entry for each
    /// of its results, written in place, or left out if its address is 0. Waits for the device.
    /// `None`: cannot; then [`Callbacks::fallback`] is called with copies on the host.
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
}

/// For executables without such steps: refuses everything.
pub struct NoCallbacks;
impl Callbacks for NoCallbacks {
    fn fallback(&self, op: &FallbackOp, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Err(Refused::Missing(format!("{} needs libtorch; make the session with callbacks that have it", op.name)))
    }
    fn interpret(&self, _: &Graph, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Err(Refused::Missing("it is not set up; make the session with callbacks that have it".into()))
    }
}

/// Runs a step through its callback and checks the results against the kernel's outputs. `of`: names of the model and the kernel.
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
            check_results(of, &by, callbacks.fallback(&call.op, args), &call.results, outputs)
        }
        Work::Interpret { body, .. } => {
            let all: Vec<usize> = (0..outputs.len()).collect();
            check_results(of, "the interpreter", callbacks.interpret(&body.0, args), &all, outputs)
        }
        Work::Block { .. } | Work::Gemm(_) => Ok(vec![]),
    }
}

/// For each output, the result of that number, if there is one and it has the output's type.
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
            fail(format!("{what}; give inputs that it takes, as the examples were, or report the model"))
        }
        Refused::Missing(what) => fail(what),
    })?;
    let pick = |(&n, want): (&usize, &&Type)| match results.get(n) {
        None => Err(fail(format!("{} results, no number {n}; report the model", results.len()))),
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
        assert!(taken(&[3], &[0]).unwrap_err().contains("3 results, no number 3"));
    }

    #[test]
    fn refusals_end_with_what_to_do() {
        let say =
            |refused| check_results(["m", "k"], "the interpreter", Err(refused), &[], &[]).unwrap_err().to_string();
        assert_eq!(
            say(Refused::Index("take: index 4 is out of range for an axis of 4".into())),
            "running `m`, kernel `k`: take: index 4 is out of range for an axis of 4; \
             give indices from 0 to one below the axis' length"
        );
        let op = say(Refused::Op("%3 = div: division by zero".into()));
        assert!(
            op.starts_with("running kernel `k` through the interpreter: %3 = div: division by zero; give inputs"),
            "{op}"
        );
        assert_eq!(
            say(Refused::Missing("no x; get x".into())),
            "running kernel `k` through the interpreter: no x; get x"
        );
    }
}
