//! Runs the block programs of a compiled model with the block interpreter: tests the programs that PTX is generated
//! from without a GPU.
use kiln::{Compiled, Tensor, Type};
use kiln_block::Elem;
use kiln_graph::DType;
use kiln_interp::block::{self, Buffer};
use kiln_plan::exec::{Slot, Steps, Work};
use kiln_plan::{BufferId, BufferKind};
use std::collections::HashMap;

fn elem(d: DType) -> Result<Elem, String> {
    Elem::ALL.into_iter().find(|e| e.name() == d.name()).ok_or_else(|| format!("{d} is no element of block programs"))
}
fn buffer(ty: &Type, bytes: Vec<u8>) -> Result<Buffer, String> {
    Ok(Buffer::new(elem(ty.dtype)?, &ty.shape, bytes))
}
fn tensor(ty: &Type, b: &Buffer) -> Result<Tensor, String> {
    Tensor::from_bytes(ty.clone(), &b.bytes).ok_or_else(|| format!("a buffer does not hold {ty}"))
}

/// The model's outputs, and the kernels without a program, with reasons; the graph interpreter runs those.
pub fn run(c: &Compiled, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Vec<String>), String> {
    let plan = &c.plan;
    let mut memory: HashMap<BufferId, Buffer> = HashMap::new();
    for (i, b) in plan.buffers.iter().enumerate() {
        let given = match b.kind {
            BufferKind::Input(n) => inputs.get(n as usize),
            BufferKind::Param(p) => c.params.get(p.0 as usize),
            BufferKind::Frozen | BufferKind::Temp => None,
        };
        // Memory that has not been written holds NaN, or meaningless integers.
        let bytes = given.map_or_else(|| vec![0xff; b.ty.bytes()], |t| t.bytes().to_vec());
        memory.insert(BufferId(i as u32), buffer(&b.ty, bytes)?);
    }
    let mut interpreted = vec![];
    for (kernel, steps) in plan.kernels.iter().zip(&c.steps) {
        let mut scratch = HashMap::new();
        let name = |slot: &Slot| match *slot {
            Slot::Input(i) => Some(kernel.inputs[i as usize]),
            Slot::Output(i) => Some(kernel.outputs[i as usize]),
            Slot::Scratch(_) | Slot::Faults | Slot::Counter => None,
        };
        let steps = without_library(steps)?;
        for (i, ty) in steps.scratch.iter().enumerate() {
            scratch.insert(Slot::Scratch(i as u32), buffer(ty, vec![0xff; ty.bytes()])?);
        }
        let record = Type::new(DType::I64, [1]);
        scratch.insert(Slot::Faults, buffer(&record, vec![0; record.bytes()])?);
        let counter = Type::new(DType::I32, [1]);
        scratch.insert(Slot::Counter, buffer(&counter, vec![0; counter.bytes()])?);
        for step in &steps.steps {
            match step {
                Work::Block { code, args } => {
                    let program = &c.programs[*code];
                    let take = |s: &Slot| name(s).map_or_else(|| scratch.get(s), |id| memory.get(&id)).cloned();
                    let mut buffers: Vec<Buffer> = args
                        .iter()
                        .map(|s| take(s).ok_or_else(|| format!("there is no {s:?}")))
                        .collect::<Result<_, _>>()?;
                    block::run(program, &mut buffers).map_err(|e| format!("{}: {e}", kernel.name))?;
                    for ((slot, p), b) in args.iter().zip(&program.params).zip(buffers) {
                        if p.readonly {
                            continue;
                        }
                        match name(slot) {
                            Some(id) => memory.insert(id, b),
                            None => scratch.insert(*slot, b),
                        };
                    }
                }
                Work::Interpret { body, why } => {
                    interpreted.push(format!("{}: {why}", kernel.name));
                    let read = |id: &BufferId| tensor(&plan.buffer(*id).ty, &memory[id]);
                    let args: Vec<Tensor> = kernel.inputs.iter().map(read).collect::<Result<_, _>>()?;
                    let results = kiln_interp::graph::run(&body.0, &args, &[], &mut kiln_interp::graph::no_fallback)
                        .map_err(|e| e.to_string())?;
                    for (id, t) in kernel.outputs.iter().zip(results) {
                        memory.insert(*id, buffer(&t.ty, t.bytes().to_vec())?);
                    }
                }
                Work::Gemm(_) | Work::Attention(_) | Work::Fallback(_) => {
                    return Err(format!("{} calls a library", kernel.name));
                }
            }
        }
        let record = tensor(&record, &scratch[&Slot::Faults])?.get_i64(0);
        if let Some(fault) = kiln_plan::index::Fault::of(record) {
            return Err(format!("{}: {fault:?}", kernel.name));
        }
    }
    let outputs = plan.outputs.iter().map(|id| tensor(&plan.buffer(*id).ty, &memory[id])).collect::<Result<_, _>>()?;
    Ok((outputs, interpreted))
}

/// The kernel's steps, or its alternative steps if the former call a GPU library.
fn without_library(steps: &Steps<usize>) -> Result<&Steps<usize>, String> {
    let calls = |s: &Steps<usize>| s.steps.iter().any(|w| matches!(w, Work::Gemm(_) | Work::Attention(_)));
    match &steps.otherwise {
        _ if !calls(steps) => Ok(steps),
        Some(other) if !calls(other) => Ok(other),
        _ => Err("a matmul needs a library".into()),
    }
}
