//! Sessions: a model compiled for the sizes of its inputs, and its runs.
use crate::{
    call::{self, Shown, array, guarded, handle, missing},
    kiln_model, kiln_status, kiln_type,
};
use kiln::{Binding, Device, Engine, Error, Tensor, Type, engine, program::Sizes};
use std::{
    ffi::{c_char, c_void},
    sync::Arc,
};

/// A model compiled for given sizes of its inputs. Threads may share it: their runs wait for each other.
pub struct kiln_session {
    engine: Arc<Engine>,
    binding: Arc<Binding>,
    outputs: Vec<Type>,
    shown_inputs: Vec<Shown>,
    shown_outputs: Vec<Shown>,
}

/// Compiles a model for inputs of these types, which takes from milliseconds to seconds. A model keeps its last 64 sessions, so that asking
/// again for the same sizes takes microseconds. On the CPU they share the model's weights; on a GPU each has a copy of its own.
///
/// inputs, count: the type of every input, in order. NULL and 0 for the sizes at export; for models without sizes that vary.
/// session: is set to the session, which kiln_session_close frees; to NULL on failure.
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_session_open(
    model: *const kiln_model,
    inputs: *const kiln_type,
    count: usize,
    session: *mut *mut kiln_session,
    error: *mut *mut c_char,
) -> kiln_status {
    let work = || {
        if session.is_null() {
            return Err(missing("session"));
        }
        // SAFETY: not null, so the address of a pointer, as the header asks.
        unsafe { session.write(std::ptr::null_mut()) };
        // SAFETY: a live model and so many types, as the header asks.
        let (model, inputs) = unsafe { (handle(model, "model")?, array(inputs, count, "inputs")?) };
        // SAFETY: shapes have as many numbers as their ranks say, as the header asks.
        let read = |(i, ty): (usize, &kiln_type)| unsafe { call::read_type(ty, &format!("input {i}")) };
        let types: Vec<Type> = inputs.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let engine = &model.engine;
        let binding = match types.is_empty() {
            true => engine.at(&engine.program().sizes(&Sizes::new(), &[])?)?,
            false => engine.bind(&types, &[])?,
        };
        let opened = kiln_session::new(engine, binding)?;
        // SAFETY: as above.
        unsafe { session.write(Box::into_raw(Box::new(opened))) };
        Ok(())
    };
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Frees a session, after its runs are done: on a GPU wait for the stream first. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_session_close(session: *mut kiln_session) {
    let work = || {
        if !session.is_null() {
            // SAFETY: made by `kiln_session_open` and freed once, as the header asks.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(())
    };
    // SAFETY: there is no message.
    unsafe { guarded(std::ptr::null_mut(), work) };
}

/// The type of an input, all sizes known. Its dtype is 0 if there is no such input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_session_input_type(session: *const kiln_session, index: usize) -> kiln_type {
    // SAFETY: null or live, as the header asks.
    unsafe { session.as_ref() }.and_then(|s| s.shown_inputs.get(index)).map_or(Shown::nothing(), Shown::view)
}

/// The type of an output, all sizes known. Its dtype is 0 if there is no such output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_session_output_type(session: *const kiln_session, index: usize) -> kiln_type {
    // SAFETY: null or live, as the header asks.
    unsafe { session.as_ref() }.and_then(|s| s.shown_outputs.get(index)).map_or(Shown::nothing(), Shown::view)
}

/// Runs the model on memory of the host, and waits until it is done. On the CPU inputs are read and outputs written in place. On a GPU they
/// are copied to it and back.
///
/// inputs: an address for each input, in order; dense and row-major, of the session's types. Bools are 0 or 1.
/// outputs: an address for each output, in order, with room for its elements. No output overlaps an input or another output. The model's
///     own state is changed as well, if it has any, which stays on the device; kiln_model_reset undoes that.
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds. After a failure outputs may
///     be written in part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_run(
    session: *const kiln_session,
    inputs: *const *const c_void,
    input_count: usize,
    outputs: *const *mut c_void,
    output_count: usize,
    error: *mut *mut c_char,
) -> kiln_status {
    let work = || {
        // SAFETY: a live session and so many addresses, as the header asks.
        let (session, ends) = unsafe { ends(session, inputs, input_count, outputs, output_count) }?;
        match (session.engine.device(), session.binding.writes.is_empty()) {
            // SAFETY: memory of the session's types that does not overlap, as the header asks.
            (Device::Host(_), true) => unsafe { session.run_on(&ends, None) },
            // SAFETY: as above.
            _ => unsafe { session.run_on_copies(&ends) },
        }
    };
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Enqueues a run on memory of the session's GPU, and does not wait for it.
///
/// inputs, outputs: as for kiln_run, in memory of the GPU, which stays allocated until the run is done.
/// stream: a CUstream or cudaStream_t of the GPU's primary context, which the runtime of CUDA uses; NULL for the default stream. The next
///     run of a model with state waits for this one if it is on another stream.
/// error: as for kiln_run. What goes wrong on the GPU is found later: kiln_session_check tells.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_run_cuda(
    session: *const kiln_session,
    inputs: *const *const c_void,
    input_count: usize,
    outputs: *const *mut c_void,
    output_count: usize,
    stream: *mut c_void,
    error: *mut *mut c_char,
) -> kiln_status {
    let work = || {
        // SAFETY: a live session and so many addresses, as the header asks.
        let (session, ends) = unsafe { ends(session, inputs, input_count, outputs, output_count) }?;
        if matches!(session.engine.device(), Device::Host(_)) {
            return Err(Error::usage(
                "the model was opened for the CPU",
                "call kiln_run, or open it with device=cuda:0",
            ));
        }
        let stream = stream.expose_provenance() as u64;
        match session.binding.writes.is_empty() {
            // SAFETY: memory of the session's types and device that does not overlap, and a stream, as the header asks.
            true => unsafe { session.run_on(&ends, Some(stream)) },
            // SAFETY: as above.
            false => unsafe { session.engine.run_binding_on(&session.binding, &ends.inputs, &ends.outputs, stream) },
        }
    };
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Waits for all runs of a session. Fails if the GPU did, or if a run found an index out of range in its inputs.
///
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_session_check(session: *const kiln_session, error: *mut *mut c_char) -> kiln_status {
    // SAFETY: null or live, as the header asks.
    let work = || Ok(unsafe { handle(session, "session") }?.binding.session.check()?);
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Addresses of inputs and outputs, one for each.
struct Ends {
    inputs: Vec<u64>,
    outputs: Vec<u64>,
}

/// # Safety
/// The session is null or live, and the arrays are null or have so many addresses.
unsafe fn ends<'a>(
    session: *const kiln_session,
    inputs: *const *const c_void,
    input_count: usize,
    outputs: *const *mut c_void,
    output_count: usize,
) -> Result<(&'a kiln_session, Ends), Error> {
    // SAFETY: this function's contract.
    let session = unsafe { handle(session, "session") }?;
    // SAFETY: this function's contract.
    let inputs = unsafe { array(inputs, input_count, "inputs") }?;
    // SAFETY: this function's contract.
    let outputs = unsafe { array(outputs, output_count, "outputs") }?;
    let inputs = inputs.iter().map(|p| p.expose_provenance() as u64).collect();
    let outputs = outputs.iter().map(|p| p.expose_provenance() as u64).collect();
    let (all, types) = (Ends { inputs, outputs }, &session.binding.inputs);
    for (what, given, types) in [("input", &all.inputs, types), ("output", &all.outputs, &session.outputs)] {
        if given.len() != types.len() {
            let (n, want) = (given.len(), types.len());
            return Err(Error::usage(
                format!("{n} {what}s were passed, but the model has {want}"),
                "pass one address each",
            ));
        }
        if let Some(i) = (0..given.len()).find(|i| given[*i] == 0 && types[*i].bytes() > 0) {
            return Err(missing(&format!("{what} {i}")));
        }
    }
    Ok((session, all))
}

impl kiln_session {
    fn new(engine: &Arc<Engine>, binding: Arc<Binding>) -> Result<kiln_session, Error> {
        let tensor = |r: &engine::Result| if let engine::Result::Tensor(_, ty) = r { Some(ty.clone()) } else { None };
        let outputs: Vec<Type> = binding.results.iter().filter_map(tensor).collect();
        let (shown_inputs, shown_outputs) =
            (binding.inputs.iter().map(Shown::of).collect(), outputs.iter().map(Shown::of).collect());
        Ok(kiln_session { engine: engine.clone(), binding, outputs, shown_inputs, shown_outputs })
    }

    /// # Safety
    /// As [`kiln::Session::run_on`], for a program without state.
    unsafe fn run_on(&self, ends: &Ends, stream: Option<u64>) -> Result<(), Error> {
        // SAFETY: this function's contract; the numbers of addresses were checked.
        Ok(unsafe { self.binding.session.run_on(&ends.inputs, &ends.outputs, stream) }?)
    }

    /// Runs on tensors of the host; outputs are copied.
    ///
    /// # Safety
    /// The addresses are of memory of the host, of the session's types.
    unsafe fn run_on_copies(&self, ends: &Ends) -> Result<(), Error> {
        let at = |address: u64| std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        let borrowed = |(ty, address): (&Type, &u64)| match ty.bytes() {
            0 => Tensor::zeros(ty.clone()),
            // SAFETY: this function's contract. The run does not keep the tensor (`Engine::run_binding`).
            _ => unsafe { Tensor::foreign(ty.clone(), at(*address), Arc::new(())) },
        };
        let inputs: Vec<Tensor> = self.binding.inputs.iter().zip(&ends.inputs).map(borrowed).collect();
        let results = self.engine.run_binding(&self.binding, 1, &inputs)?;
        for (result, address) in results.iter().zip(&ends.outputs).filter(|(r, _)| !r.bytes().is_empty()) {
            // SAFETY: this function's contract: room for the output's elements, apart from all inputs.
            unsafe { at(*address).copy_from_nonoverlapping(result.bytes().as_ptr(), result.bytes().len()) };
        }
        Ok(())
    }
}
