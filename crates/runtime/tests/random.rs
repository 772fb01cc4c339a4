//! Random executables compared with direct evaluation: buffers that overlap in the memory plan show as wrong values.
use kiln_graph::{DType, ParamId, Random, Tensor, Type};
use kiln_plan::{
    Buffer, BufferId, BufferKind, Stage,
    exec::{Slot, Steps, Work},
};
use kiln_runtime::{Code, Device, Executable, HostDevice, InputSpec, KernelCode, NoCallbacks, Session};
use std::sync::Arc;

/// `out = a + 2 b`, through scratch memory that is written first and read last.
unsafe extern "C" fn combine(args: *const *mut u8, lo: u64, hi: u64) {
    // SAFETY: the arguments are buffers a, b, scratch, out of the same number of f32, one per instance.
    unsafe {
        let [a, b, scratch, out] = [0, 1, 2, 3].map(|i| (*args.add(i)).cast::<f32>());
        for i in lo as usize..hi as usize {
            *scratch.add(i) = *b.add(i) * 2.0;
            *out.add(i) = -1.0;
        }
        for i in lo as usize..hi as usize {
            *out.add(i) = *a.add(i) + *scratch.add(i);
        }
    }
}

/// Kernels that read random earlier buffers, all of one length. Load-time kernels come first and read only parameters
/// and frozen buffers.
fn program(r: &mut Random, n: usize) -> Executable {
    let ty = Type::new(DType::F32, [n]);
    let (inputs, params) = (1 + r.next_below(3), 1 + r.next_below(3));
    let mut kinds: Vec<BufferKind> = (0..inputs).map(|i| BufferKind::Input(i as u32)).collect();
    kinds.extend((0..params).map(|i| BufferKind::Param(ParamId(i as u32))));
    let mut kernels = vec![];
    let loads = r.next_below(5);
    for t in 0..loads + 1 + r.next_below(20) {
        let stage = if t < loads { Stage::Load } else { Stage::Run };
        let from = if stage == Stage::Load { inputs } else { 0 };
        let read = [0; 2].map(|_| BufferId((from + r.next_below(kinds.len() - from)) as u32));
        let out = BufferId(kinds.len() as u32);
        kinds.push(if stage == Stage::Load { BufferKind::Frozen } else { BufferKind::Temp });
        let args = vec![Slot::Input(0), Slot::Input(1), Slot::Scratch(0), Slot::Output(0)];
        let code = Code::Host { f: combine, instances: n as u64, keep: Arc::new(()) };
        let steps = Steps { scratch: vec![ty.clone()], ..vec![Work::Block { code, args }].into() };
        kernels.push(KernelCode {
            name: format!("k{t}"),
            stage,
            inputs: read.into(),
            outputs: vec![out],
            steps,
            sites: vec![],
        });
    }
    let outputs = (0..1 + r.next_below(4)).map(|_| BufferId(r.next_below(kinds.len()) as u32)).collect();
    Executable {
        name: "random".into(),
        inputs: (0..inputs).map(|_| InputSpec { name: String::new(), ty: ty.clone() }).collect(),
        buffers: kinds.into_iter().map(|kind| Buffer { ty: ty.clone(), kind }).collect(),
        kernels,
        outputs,
        written: vec![],
    }
}

fn evaluate(exe: &Executable, inputs: &[Tensor], params: &[Tensor]) -> Vec<Vec<f32>> {
    let given = inputs.iter().chain(params).map(|t| t.as_slice::<f32>().unwrap().to_vec());
    let mut values: Vec<Vec<f32>> = given.collect();
    for k in &exe.kernels {
        let [a, b] = [0, 1].map(|i| &values[k.inputs[i].0 as usize]);
        values.push(a.iter().zip(b).map(|(a, b)| a + b * 2.0).collect());
    }
    exe.outputs.iter().map(|o| values[o.0 as usize].clone()).collect()
}

#[test]
fn random_programs() {
    let mut r = Random::new(3);
    let devices = [1, 3].map(|t| Device::Host(HostDevice::new(t).unwrap()));
    for round in 0..150 {
        let n = [0, 1, 5, 64, 1000][r.next_below(5)];
        let exe = program(&mut r, n);
        let mut tensor = |_| Tensor::from_f64(Type::new(DType::F32, [n]), (0..n).map(|_| r.next_below(9) as f64));
        let inputs: Vec<Tensor> = (0..exe.inputs.len()).map(&mut tensor).collect();
        let params: Vec<Tensor> = (0..3).map(&mut tensor).collect();
        let used = exe.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Param(_))).count();
        let want = evaluate(&exe, &inputs, &params[..used]);
        let session = Session::new(&devices[round % 2], exe.clone(), params, Arc::new(NoCallbacks)).unwrap();
        for _ in 0..2 {
            let got = session.run(&inputs).unwrap();
            let got: Vec<Vec<f32>> = got.iter().map(|t| t.as_slice().unwrap().to_vec()).collect();
            assert_eq!(got, want, "program {round}: {exe:#?}\n{:#?}", session.memory());
        }
    }
}
