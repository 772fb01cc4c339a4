//! Steps of a run on a GPU that only the host can run: library calls in place, anything else on copies of its operands.
//!
//! Takes: a step without a launch. Gives: its results on the device, in order of the stream. Waits for the stream,
//! unless the library enqueues its work there itself. Never: runs while the stream is captured, with that exception.
use super::{
    raw::{StreamHandle, download, upload},
    session::{CudaSession, graph::Whose},
};
use crate::{
    Code, DeviceTensor, KernelCode, RuntimeError,
    callbacks::{call, call_in_place},
    host::{Tally, attention, gemm, run_grid},
};
use kiln_graph::Tensor;
use kiln_plan::{
    BufferId,
    exec::{LibraryCall, Slot, Work},
};

impl CudaSession {
    /// Runs a step on the host: a library call in place if possible, anything else on copies of its operands.
    pub(super) fn host_step(
        &self,
        k: usize,
        kernel: &KernelCode,
        work: &Work<Code>,
        whose: Whose,
        stream: StreamHandle,
    ) -> Result<(), RuntimeError> {
        if let Work::Fallback(call) = work
            && self.library_step(kernel, call, whose, stream)?
        {
            return Ok(());
        }
        if whose == Whose::Captured {
            return Err(self.not_captured(kernel));
        }
        let slots: Vec<Slot> = match work {
            Work::Block { args, .. } => args.clone(),
            Work::Gemm(g) => g.slots(),
            Work::Attention(a) => a.slots(),
            Work::Fallback(_) | Work::Interpret { .. } => (0..kernel.inputs.len() as u32).map(Slot::Input).collect(),
        };
        let mut tensors = self.fetch(k, kernel, &slots, stream)?;
        match work {
            Work::Fallback(_) | Work::Interpret { .. } => {
                let types: Vec<_> = kernel.outputs.iter().map(|b| self.exe.ty(*b)).collect();
                let results = call(&*self.callbacks, [&self.exe.name, &kernel.name], work, &tensors, &types)?;
                let results: Vec<_> = (0..types.len() as u32).map(Slot::Output).zip(results).collect();
                self.store(k, kernel, &results, stream)
            }
            _ => {
                self.compute(work, &mut tensors);
                if let Work::Gemm(g) = work {
                    gemm::finish(g, &mut tensors);
                }
                let written =
                    slots.into_iter().zip(tensors).filter(|(s, _)| !matches!(s, Slot::Input(_))).collect::<Vec<_>>();
                self.store(k, kernel, &written, stream)
            }
        }
    }

    /// Copies the slots to the host, in order.
    fn fetch(
        &self,
        k: usize,
        kernel: &KernelCode,
        slots: &[Slot],
        stream: StreamHandle,
    ) -> Result<Vec<Tensor>, RuntimeError> {
        let mut tensors = Vec::with_capacity(slots.len());
        let mut all = Ok(());
        for slot in slots {
            // Invariant: the slot exists (`Executable::check`).
            let Some(ty) = self.exe.slot_type(kernel, *slot) else { continue };
            let mut t = Tensor::zeros(ty.clone());
            // SAFETY: the address is that of a buffer of this type; `wait` follows before the tensors are used or
            // dropped.
            let copied = unsafe { download(t.bytes_mut(), self.address(k, kernel, *slot), stream) };
            tensors.push(t);
            all = all.and(self.device.check(|| format!("copying for kernel `{}`", kernel.name), copied));
        }
        self.wait_for(stream, "running")?;
        all.map(|()| tensors)
    }

    /// Copies values from the host to their slots.
    fn store(
        &self,
        k: usize,
        kernel: &KernelCode,
        values: &[(Slot, Tensor)],
        stream: StreamHandle,
    ) -> Result<(), RuntimeError> {
        for (slot, t) in values {
            // SAFETY: the tensor has the type of the buffer at this address.
            let copied = unsafe { upload(self.address(k, kernel, *slot), t.bytes(), stream) };
            self.device.check(|| format!("copying for kernel `{}`", kernel.name), copied)?;
        }
        // The caller drops the tensors after this returns.
        self.wait_for(stream, "running")
    }

    /// Runs host code or a matmul on host copies of its arguments.
    fn compute(&self, work: &Work<Code>, tensors: &mut [Tensor]) {
        let Some(host) = &self.host else { return };
        let args: Vec<*mut u8> = tensors.iter_mut().map(|t| t.bytes_mut().as_mut_ptr()).collect();
        let p = host.parallel();
        match work {
            // SAFETY: the compiler made the code for buffers of these types, in this order.
            Work::Block { code: Code::Host { f, instances, .. }, .. } => unsafe {
                run_grid(p, *f, *instances, &args, &Tally::default());
            },
            // SAFETY: `Executable::check` has checked the extents.
            Work::Gemm(g) => unsafe {
                let x = gemm::Operands { a: args[0], b: args[1], c: args[2] };
                gemm::gemm(p, g, x, &gemm::Weights::default());
            },
            // SAFETY: as for matmuls; the operands are in the order of `AttentionCall::slots`.
            Work::Attention(a) => unsafe {
                let mut args = args.iter();
                let x = attention::Operands::new(a, |_| args.next().map_or(std::ptr::null_mut(), |at| *at));
                attention::attention(p, a, x);
            },
            _ => {}
        }
    }

    /// Runs a library call on the kernel's buffers; false if the library cannot.
    fn library_step(
        &self,
        kernel: &KernelCode,
        call: &LibraryCall,
        whose: Whose,
        stream: StreamHandle,
    ) -> Result<bool, RuntimeError> {
        let on_device =
            |b: &BufferId| DeviceTensor { ty: self.exe.ty(*b).clone(), address: self.addresses[b.0 as usize] };
        let args: Vec<DeviceTensor> = kernel.inputs.iter().map(on_device).collect();
        let outputs: Vec<DeviceTensor> = kernel.outputs.iter().map(on_device).collect();
        let in_order = self.callbacks.in_order();
        if !(in_order && whose != Whose::Own) {
            if whose == Whose::Captured {
                return Err(self.not_captured(kernel));
            }
            self.wait_for(stream, "running")?;
        }
        let done = call_in_place(&*self.callbacks, call, &args, &outputs, Some(self.device.info().index));
        // The library may have made another context current.
        let context = &self.device.inner.context;
        self.device.check(|| format!("running kernel `{}`", kernel.name), context.bind())?;
        if in_order && whose == Whose::Own {
            // The library has enqueued its work on a stream that the session does not know.
            self.device.check(|| format!("running kernel `{}`", kernel.name), context.synchronize())?;
        }
        Ok(done)
    }
    fn not_captured(&self, kernel: &KernelCode) -> RuntimeError {
        RuntimeError::Unsupported {
            kernel: kernel.name.clone(),
            device: self.device.name(),
            what: "it needs the host, and the stream is being captured".into(),
            remedy: "run the model outside of the capture".into(),
        }
    }
}
