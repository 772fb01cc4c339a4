//! Programs that multiply, toward warpgroups: with tensor maps and in roles, where the machine has them and the program
//! the form, otherwise with pipelined loops. Sizes of a launch in a graph are constants, and so are the arrays of its
//! maps.
use super::neighbours::Fused;
use kiln_block::{Array, BlockProgram, Extent, LaunchArray, passes};
use kiln_graph::{Graph, Type};
use kiln_machine::Machine;
use kiln_plan::exec::Slot;

/// The same program in roles or with pipelined loops; as it is where neither applies.
pub fn placed(fused: Fused, body: &Graph, machine: &Machine) -> Fused {
    if !machine.arch.is_gpu() || !passes::multiplies(&fused.program) {
        return fused;
    }
    let roles = passes::to_warpgroups(&fused.program, machine).ok();
    if let Some(roles) = roles.and_then(|made| with_constant_arrays(made.roles, &fused.args, body)) {
        return roles;
    }
    match passes::to_pipeline(&fused.program, machine) {
        Ok(program) => Fused { program, ..fused },
        Err(_) => fused,
    }
}

/// The program with constant arrays in place of those that a launcher would describe; `None` if one is not constant.
fn with_constant_arrays(mut program: BlockProgram, args: &[Slot], body: &Graph) -> Option<Fused> {
    let mut args = args.to_vec();
    for n in 0..program.params.len() {
        let Some(array) = program.params[n].launch_array.take() else { continue };
        let slot = *args.get(array.base)?;
        program.params[n].array = Some(constant(&array, tensor(body, slot)?.count())?);
        args.push(slot);
    }
    let is_valid = args.len() == program.params.len() && kiln_block::verify::verify(&program).is_ok();
    is_valid.then_some(Fused { program, args })
}

fn tensor(body: &Graph, slot: Slot) -> Option<&Type> {
    match slot {
        Slot::Input(n) => body.inputs.get(n as usize).map(|v| body.ty(*v)),
        Slot::Output(n) => body.outputs.get(n as usize).map(|v| body.ty(*v)),
        Slot::Scratch(_) | Slot::Faults | Slot::Counter => None,
    }
}

/// The array of a tensor with this many elements; an axis without an end ends with the tensor.
fn constant(array: &LaunchArray, elements: usize) -> Option<Array> {
    let number = |e: &Extent| e.value(|_| None).and_then(|n| usize::try_from(n).ok());
    let strides: Vec<usize> = array.strides.iter().map(number).collect::<Option<_>>()?;
    let sizes: Vec<usize> = array.sizes.iter().map(number).collect::<Option<_>>()?;
    let end = |(extent, stride): (&Extent, &usize)| {
        (*extent == Extent::ENDLESS).then_some(elements.div_ceil(*stride.max(&1)))
    };
    let ends = array.sizes.iter().zip(&strides).map(end);
    let sizes = sizes.iter().zip(ends).map(|(size, end)| end.map_or(*size, |end| end.min(*size))).collect();
    Some(Array { offset: 0, sizes, strides })
}
