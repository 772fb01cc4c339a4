//! Launches of block programs in graphs, by the interpreter of block programs.
//!
//! A program computes in its own types whatever the precision of the graph's interpretation: operands are rounded to
//! them, results are as it stores them. What it never writes of a new result is NaN, or another number that stands out.
use super::Precision;
use super::value::Value;
use crate::block::{self, Buffer};
use kiln_block::bind::{BoundArgument, BoundTensor, BoundValue, TensorAccess, bind_text};
use kiln_block::{Const, Elem};
use kiln_graph::launch::{ArgumentValue, LaunchOp};
use kiln_graph::{DType, Scalar, Tensor, Type, memory};

/// Every byte of memory that nobody has written: NaN in all floats.
const UNWRITTEN: u8 = 0xff;

/// All results of a launch.
pub(super) fn launched(launch: &LaunchOp, args: &[&Value], precision: Precision) -> Result<Vec<Value>, String> {
    let operands: Vec<Tensor> = args.iter().map(|a| a.to_own_tensor()).collect();
    let results = run_launch(launch, &operands)?;
    Ok(results.iter().map(|t| Value::from_tensor(t, t.ty.dtype, precision)).collect())
}

/// Runs a launch on tensors; gives its results in the order of its arguments.
///
/// # Errors
/// If the program does not take these tensors, or a run of it fails.
pub fn run_launch(launch: &LaunchOp, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let mut tensors = tensors(launch, operands)?;
    let arguments: Vec<BoundArgument> =
        launch.arguments.iter().zip(&tensors).map(|(a, t)| argument(&a.parameter, &a.value, t.as_ref())).collect();
    let name = &launch.program.name;
    let bound = bind_text(name, &launch.program.text, &launch.grid, &arguments)
        .map_err(|why| format!("program `{name}`: {why}"))?;
    let buffer = |n: &usize| {
        let tensor = tensors[*n].as_ref().ok_or_else(|| format!("program `{name}`: a pointer has no tensor"))?;
        let elem = element(tensor.ty.dtype)?;
        Ok(Buffer::new(elem, &tensor.ty.shape, tensor.bytes().to_vec()))
    };
    let mut buffers = bound.arguments.iter().map(buffer).collect::<Result<Vec<Buffer>, String>>()?;
    block::run(&bound.program, &mut buffers).map_err(|e| e.to_string())?;
    for (n, buffer) in bound.arguments.iter().zip(&buffers) {
        if let (Some(_), Some(tensor)) = (launch.arguments[*n].value.result(), &mut tensors[*n]) {
            tensor.bytes_mut().copy_from_slice(&buffer.bytes);
        }
    }
    let is_result = |n: &usize| launch.arguments[*n].value.result().is_some();
    Ok((0..tensors.len()).filter(is_result).filter_map(|n| tensors[n].clone()).collect())
}

/// The tensor of each argument as it is before the program runs; none for numbers.
fn tensors(launch: &LaunchOp, operands: &[Tensor]) -> Result<Vec<Option<Tensor>>, String> {
    let mut operands = operands.iter();
    let mut next = || operands.next().cloned().ok_or_else(|| "a launch has too few operands".to_string());
    let one = |value: &ArgumentValue| {
        Ok(match value {
            ArgumentValue::Operand | ArgumentValue::Copy(_) => Some(next()?),
            ArgumentValue::New(ty) => Some(unwritten(ty)?),
            ArgumentValue::Number(_) => None,
        })
    };
    launch.arguments.iter().map(|a| &a.value).map(one).collect()
}

fn unwritten(ty: &Type) -> Result<Tensor, String> {
    memory::require(ty.bytes(), &format!("a result ({ty})")).map_err(|e| e.to_string())?;
    let mut tensor = Tensor::zeros(ty.clone());
    tensor.bytes_mut().fill(UNWRITTEN);
    Ok(tensor)
}

fn argument<'a>(parameter: &'a str, value: &ArgumentValue, tensor: Option<&Tensor>) -> BoundArgument<'a> {
    let access = match value {
        ArgumentValue::Operand => TensorAccess::Read,
        ArgumentValue::Copy(_) => TensorAccess::Updated,
        ArgumentValue::New(_) | ArgumentValue::Number(_) => TensorAccess::New,
    };
    let value = match (value, tensor) {
        (ArgumentValue::Number(n), _) => BoundValue::Number(number(*n)),
        (_, Some(tensor)) => BoundValue::Tensor(BoundTensor {
            kind: tensor.ty.dtype.kind(),
            elements: tensor.ty.count(),
            access,
            // What the interpreter computes does not depend on it.
            is_alone: false,
        }),
        (_, None) => BoundValue::Number(Const::Int(0)),
    };
    BoundArgument { parameter, value }
}

fn number(n: Scalar) -> Const {
    match n {
        Scalar::Int(n) => Const::Int(n),
        Scalar::Float(x) => Const::Float(x),
        Scalar::Bool(b) => Const::Bool(b),
    }
}

fn element(dtype: DType) -> Result<Elem, String> {
    let found = Elem::ALL.into_iter().find(|e| e.kind() == dtype.kind());
    found.ok_or_else(|| format!("block programs have no {dtype}; cast the tensor"))
}
