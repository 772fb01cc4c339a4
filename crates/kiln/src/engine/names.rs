//! Names of a binding's values, by which bindings of one engine share what is folded and packed.
//!
//! A parameter of the program has one name in all bindings; one that conversion made is named by its contents. A
//! load-time kernel is named by the texts of its block programs, which name no kernel and no buffer: whatever makes the
//! code differ is in them.
use crate::{Compiled, digest::digest};
use kiln_plan::Stage;
use kiln_runtime::{Names, Param};
use std::convert::Infallible;

/// `origins`: the program's parameter that each of `params` is; `None` for those that conversion made.
pub(super) fn names(compiled: &Compiled, params: &[Param], origins: &[Option<usize>]) -> Names {
    let param = |(i, p): (usize, &Param)| match (origins.get(i).copied().flatten(), p) {
        (Some(origin), _) => format!("parameter {origin}"),
        (None, Param::Host(t)) => format!("{} {}", t.ty, digest(t.bytes())),
        // Conversion makes tensors of the host alone: no other binding has this one.
        (None, Param::Device(d)) => format!("at {:#x} in binding {:p}", d.address(), compiled),
    };
    let kernel = |k: usize| match compiled.plan.kernels[k].stage {
        Stage::Load => digest(text(compiled, k).as_bytes()),
        Stage::Run => String::new(),
    };
    Names {
        params: params.iter().enumerate().map(param).collect(),
        kernels: (0..compiled.plan.kernels.len()).map(kernel).collect(),
    }
}

/// What a kernel does, down to its code.
fn text(compiled: &Compiled, kernel: usize) -> String {
    let program = |id: usize| {
        let mut nameless = compiled.programs[id].clone();
        nameless.name.clear();
        Ok::<_, Infallible>(kiln_block::text::print(&nameless))
    };
    let Ok(steps) = compiled.steps[kernel].clone().map(program);
    format!("{steps:?}")
}
