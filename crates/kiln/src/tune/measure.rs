//! Compiles and times candidate schedules of one kernel on a GPU. Candidates are compiled separately and loaded into
//! one session with the same inputs, so that their samples can be interleaved.
use super::TuneOptions;
use crate::{
    CompileOptions, DeviceKind, Error, Model,
    compile::{self, Reference, from_plan},
};
use kiln_graph::Tensor;
use kiln_plan::{Buffer, BufferId, BufferKind, Kernel, Plan, Schedule, Stage, exec::Work};
use kiln_runtime::{Code, Device, Executable, KernelTimer, Session};
use std::{sync::Arc, time::Duration};

/// Pause after each sample, in multiples of the sample's duration.
const PAUSE: f64 = 8.0;

pub struct GpuBench {
    /// The kernel's body as a model of its own.
    model: Model,
    /// One kernel, from the body's inputs to its outputs.
    plan: Plan,
    options: CompileOptions,
    device: Device,
    inputs: Vec<Tensor>,
}

impl GpuBench {
    pub fn new(kernel: &Kernel, options: &TuneOptions) -> Result<GpuBench, Error> {
        let model = Model::from_graph(kernel.body.clone())?;
        let inputs = model.example_inputs(0);
        let options_of_one = CompileOptions { tuned: None, cache: false, ..options.compile.clone() };
        let device = compile::open_device(DeviceKind::Cuda(options.gpu), None)?;
        Ok(GpuBench { plan: alone(kernel), model, options: options_of_one, device, inputs })
    }
}

impl GpuBench {
    /// Whether cuBLASLt is available on the GPU.
    pub fn has_library(&self) -> bool {
        matches!(&self.device, Device::Cuda(d) if d.has_library())
    }
}

/// A plan with this kernel alone.
fn alone(kernel: &Kernel) -> Plan {
    let body = &kernel.body;
    let input = |i: usize| Buffer { ty: body.ty(body.inputs[i]).clone(), kind: BufferKind::Input(i as u32) };
    let output = |v| Buffer { ty: body.ty(v).clone(), kind: BufferKind::Temp };
    let inputs = body.inputs.len();
    let buffers: Vec<Buffer> = (0..inputs).map(input).chain(body.outputs.iter().map(|v| output(*v))).collect();
    let id = |n: std::ops::Range<usize>| n.map(|i| BufferId(i as u32)).collect::<Vec<_>>();
    let outputs = id(inputs..buffers.len());
    let kernel = Kernel { inputs: id(0..inputs), outputs: outputs.clone(), stage: Stage::Run, ..kernel.clone() };
    Plan { name: kernel.name.clone(), buffers, kernels: vec![kernel], outputs, ..Plan::default() }
}

/// A compiled candidate; candidates are equal if their code is.
pub struct Compiled {
    exe: Executable,
}
impl Compiled {
    fn texts(&self) -> impl Iterator<Item = (&str, [usize; 3])> {
        let steps = self.exe.kernels.iter().flat_map(|k| &k.steps.steps);
        steps.filter_map(|w| match w {
            Work::Block { code: Code::Ptx(p), .. } => Some((&*p.text, p.grid)),
            _ => None,
        })
    }
}
impl PartialEq for Compiled {
    fn eq(&self, other: &Compiled) -> bool {
        self.texts().eq(other.texts())
    }
}

pub struct Ready {
    timer: KernelTimer,
    session: Session,
}

impl kiln_tune::Bench for GpuBench {
    type Code = Compiled;
    type Ready = Ready;

    fn compile(&self, schedule: &Schedule) -> Result<Compiled, String> {
        if schedule.is_call() && !self.has_library() {
            return Err("cuBLASLt is not on the library path".into());
        }
        let mut plan = self.plan.clone();
        plan.kernels[0].schedule = Some(schedule.clone());
        let compiled = from_plan(&self.model, plan, &self.options).map_err(|e| e.to_string())?;
        let interpreted = compiled.steps[0].steps.iter().find_map(|w| match w {
            Work::Interpret { why, .. } => Some(why.clone()),
            _ => None,
        });
        match interpreted {
            Some(why) => Err(why),
            // Compilation replaces a schedule without code.
            None if compiled.plan.kernels[0].schedule.as_ref() != Some(schedule) => {
                Err("there is no code for it".into())
            }
            None => Ok(Compiled { exe: compiled.executable() }),
        }
    }

    /// All candidates read the same inputs and write the same outputs.
    fn load(&mut self, codes: Vec<Compiled>) -> Result<Ready, String> {
        let mut all = codes.into_iter().map(|c| c.exe);
        let mut exe = all.next().ok_or("there is no candidate")?;
        exe.kernels.extend(all.flat_map(|e| e.kernels));
        let session = Session::new(&self.device, exe, vec![], Arc::new(Reference)).map_err(|e| e.to_string())?;
        let timer = session.kernel_timer(&self.inputs).map_err(|e| e.to_string())?;
        Ok(Ready { timer, session })
    }

    /// Pauses after each sample: without pauses the GPU reaches its power limit, where it is slower and other schedules
    /// are the best.
    fn sample(&mut self, ready: &mut Ready, n: usize) -> Result<f64, String> {
        const LEAST_US: f64 = 100.0;
        const MOST: Duration = Duration::from_millis(60);
        let us = ready.session.sample_kernel(&ready.timer, &self.inputs, n).map_err(|e| e.to_string())?;
        let pause = Duration::try_from_secs_f64(PAUSE * us.max(LEAST_US) / 1e6).unwrap_or(MOST);
        std::thread::sleep(pause.min(MOST));
        Ok(us)
    }
}
