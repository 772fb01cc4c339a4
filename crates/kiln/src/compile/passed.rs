//! How arguments of kernels on GPUs are passed, in the runtime's form.
use kiln_block::Elem;
use kiln_codegen::nvptx::{self, Argument};
use kiln_graph::DType;
use kiln_runtime::{Extent, LaunchMap, Passed, TensorMap};

/// The arguments of a program, in its parameters' order.
pub fn passed(arguments: &[Argument]) -> Vec<Passed> {
    arguments.iter().map(one).collect()
}

fn one(argument: &Argument) -> Passed {
    match argument {
        Argument::Address => Passed::Address,
        Argument::Scalar(elem) => Passed::Scalar(elem.bytes()),
        Argument::Map(m) => Passed::Map(TensorMap {
            dtype: dtype(m.elem),
            offset: m.array.offset,
            sizes: m.array.sizes.clone(),
            strides: m.array.strides.clone(),
            tile: m.tile.clone(),
            swizzle: m.swizzle,
        }),
        Argument::LaunchMap(m) => Passed::LaunchMap(launch_map(m)),
    }
}

fn launch_map(m: &nvptx::LaunchMap) -> LaunchMap {
    let extents = |all: &[kiln_block::Extent]| {
        all.iter().map(|e| Extent { factor: e.factor, arguments: e.params.clone() }).collect()
    };
    LaunchMap {
        dtype: dtype(m.elem),
        base: m.array.base,
        sizes: extents(&m.array.sizes),
        strides: extents(&m.array.strides),
        tile: m.tile.clone(),
        swizzle: m.swizzle,
    }
}

/// Tensor maps describe tensors' buffers, so their element type is a tensor's.
fn dtype(elem: Elem) -> DType {
    DType::ALL.into_iter().find(|d| d.name() == elem.name()).unwrap_or(DType::U8)
}
