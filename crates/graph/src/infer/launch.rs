//! The type of a launch, and whether its arguments fit each other. What the program says of them is not checked here.
use super::check_type;
use crate::launch::{ArgumentValue, LaunchOp};
use crate::{Type, count};

/// Most axes of a grid.
const GRID_AXES: usize = 3;

/// The type of a launch on operands of these types, or what is wrong with its arguments.
pub(super) fn first_result(launch: &LaunchOp, operands: &[&Type]) -> Result<Type, String> {
    let name = &launch.program.name;
    if launch.grid.len() > GRID_AXES {
        return Err(format!("the grid of `{name}` has {} axes; give one to three sizes", launch.grid.len()));
    }
    if operands.len() != launch.operands() {
        return Err(format!(
            "the arguments of `{name}` take {}, the node has {}",
            count(launch.operands(), "operand"),
            count(operands.len(), "operand")
        ));
    }
    for (n, a) in launch.arguments.iter().enumerate() {
        if launch.arguments[..n].iter().any(|before| before.parameter == a.parameter) {
            return Err(format!("`{}` of `{name}` is given twice; remove one", a.parameter));
        }
    }
    let given = launch.arguments.iter().filter(|a| a.value.takes_operand()).zip(operands);
    for (a, operand) in given {
        if let ArgumentValue::Copy(ty) = &a.value
            && ty != *operand
        {
            return Err(format!("`{}` is a copy of {operand}, so its result cannot be {ty}", a.parameter));
        }
    }
    launch.results().try_for_each(check_type)?;
    launch.results().next().cloned().ok_or_else(|| {
        format!(
            "`{name}` has no result; give the tensors that it writes as `new f32[8]`, or `copy %x` if it reads them"
        )
    })
}
