//! Adds vectors on a GPU with hand-written PTX, checks the sums and measures the bandwidth: a smoke test for a new
//! machine.
use kiln_graph::{DType, Tensor, Type};
use kiln_plan::{
    Buffer, BufferId, BufferKind, Stage,
    exec::{Slot, Work},
};
use kiln_runtime::{
    Code, Device, Executable, InputSpec, KernelCode, NoCallbacks, Ptx, RuntimeError, Session, TimeOptions, cuda,
};
use std::{process::ExitCode, sync::Arc};

/// `c[i] = a[i] + b[i]`, four f32 per thread. The launch sets the cluster size.
const ADD: &str = "\
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 scratch[];
.visible .entry add(.param .u64 pa, .param .u64 pb, .param .u64 pc)
{
    .reg .b32 %r<4>;
    .reg .f32 %f<12>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [pa];
    ld.param.u64 %rd2, [pb];
    ld.param.u64 %rd3, [pc];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r1, %r1, %r2, %r3;
    mul.wide.u32 %rd4, %r1, 16;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd5];
    ld.global.v4.f32 {%f4, %f5, %f6, %f7}, [%rd6];
    add.f32 %f8, %f0, %f4;
    add.f32 %f9, %f1, %f5;
    add.f32 %f10, %f2, %f6;
    add.f32 %f11, %f3, %f7;
    st.global.v4.f32 [%rd7], {%f8, %f9, %f10, %f11};
    ret;
}
";

const N: usize = 1 << 26;
const THREADS: usize = 256;

fn add(name: &str, inputs: [u32; 2], output: u32, shared: usize, cluster: usize) -> KernelCode {
    let grid = [N / 4 / THREADS, 1, 1];
    let text = if cluster > 1 { ADD.replace("sm_80", "sm_90").into() } else { ADD.into() };
    let code = Code::Ptx(Ptx {
        entry: "add".into(),
        text,
        cubin: None,
        grid,
        threads: THREADS,
        shared,
        cluster,
        passed: vec![],
    });
    let args = vec![Slot::Input(0), Slot::Input(1), Slot::Output(0)];
    KernelCode {
        name: name.into(),
        stage: if name == "fold" { Stage::Load } else { Stage::Run },
        inputs: inputs.map(BufferId).into(),
        outputs: vec![BufferId(output)],
        steps: vec![Work::Block { code, args }].into(),
        sites: vec![],
    }
}

fn smoke() -> Result<(), RuntimeError> {
    let driver = cuda::driver()?;
    println!("driver {}", driver.version);
    for d in &driver.devices {
        let gib = d.memory as f64 / f64::from(1 << 30);
        println!(
            "cuda:{} {} {}: {} multiprocessors, {gib:.1} GiB, {} KiB of shared memory",
            d.index,
            d.name,
            d.arch(),
            d.multiprocessors,
            d.shared >> 10
        );
    }
    let ty = Type::new(DType::F32, [N]);
    let kinds = [
        BufferKind::Input(0),
        BufferKind::Param(kiln_graph::ParamId(0)),
        BufferKind::Frozen,
        BufferKind::Temp,
        BufferKind::Temp,
        BufferKind::Temp,
    ];
    // frozen = 2 p, t = x + frozen, u = t + p, out = t + u = 2 x + 5 p.
    let clustered = driver.devices.first().is_some_and(|d| d.capability.0 >= 9);
    let kernels = vec![
        add("fold", [1, 1], 2, 0, 1),
        add("add_0", [0, 2], 3, 0, 1),
        add("add_shared_1", [3, 1], 4, 100 << 10, 1),
        add("add_cluster_2", [3, 4], 5, 0, if clustered { 2 } else { 1 }),
    ];
    let exe = Executable {
        name: "smoke".into(),
        inputs: vec![InputSpec { name: "x".into(), ty: ty.clone() }],
        buffers: kinds.map(|kind| Buffer { ty: ty.clone(), kind }).into(),
        kernels,
        outputs: [5, 0, 1, 2, 5].map(BufferId).into(),
        written: vec![],
    };
    let p = Tensor::from_f64(ty.clone(), (0..N).map(|i| (i % 1000) as f64));
    let session = Session::new(&Device::open("cuda:0")?, exe, vec![p], Arc::new(NoCallbacks))?;
    println!("memory: {:?} for runs, {:?} for loading", session.memory().run, session.memory().load);
    let mut x = Tensor::zeros(ty);
    let mut wrong = 0;
    for round in 0..3 {
        x.set_f64(7, f64::from(round));
        let out = session.run(std::slice::from_ref(&x))?;
        let values: Vec<&[f32]> = out.iter().filter_map(|t| t.as_slice::<f32>()).collect();
        for (i, v) in values[0].iter().enumerate() {
            let (x, p) = (if i == 7 { round as f32 } else { 0.0 }, (i % 1000) as f32);
            let right = *v == 2.0 * x + 5.0 * p && values[1][i] == x && values[2][i] == p && values[3][i] == 2.0 * p;
            wrong += usize::from(!right || values[4][i] != *v);
        }
    }
    println!("three runs: {wrong} wrong elements");
    let timing = session.time(std::slice::from_ref(&x), TimeOptions::default())?;
    let rate = |us: f64, bytes: usize| bytes as f64 / us * 1e-3;
    let report = |name: &str, s: kiln_runtime::Spread, bytes: usize| {
        let (median, p10, p90) = (s.median_us, s.p10_us, s.p90_us);
        println!(
            "{name}: {median:.1} us ({p10:.1} to {p90:.1}, {} samples), {:.0} GB/s",
            s.samples,
            rate(median, bytes)
        );
    };
    report("run", timing.run, 9 * N * 4);
    for k in timing.kernels {
        report(&k.name, k.spread, 3 * N * 4);
    }
    let copy = session.executable().inputs[0].ty.bytes();
    let start = std::time::Instant::now();
    session.run(&[x])?;
    println!("one run with copies ({} MiB in, {} MiB out): {:?}", copy >> 20, copy >> 19, start.elapsed());
    Ok(())
}

fn main() -> ExitCode {
    match smoke() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
