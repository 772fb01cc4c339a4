//! Models: files that were opened, and what they take and give.
use crate::{
    call::{Shown, guarded, missing, text},
    kiln_status, kiln_type,
    state::States,
};
use kiln::{Engine, Error, Numerics, Settings, program::Dims, program::InputKind};
use std::{
    ffi::{CString, c_char},
    path::Path,
    sync::{Arc, OnceLock},
};

/// A model on a device. Threads may share it.
pub struct kiln_model {
    pub(crate) engine: Arc<Engine>,
    names: Vec<CString>,
    inputs: Vec<Shown>,
    outputs: Vec<Shown>,
    pub(crate) states: OnceLock<Option<States>>,
}

/// Opens a file: a program of torch.export.save (.pt2), an artifact of `kiln compile`, or a text graph. Nothing is compiled yet.
///
/// path: the file's name, in UTF-8.
/// options: texts of the form "name=value", ended by NULL; NULL for none.
///     "device=cpu" (the default), "device=cuda:0";
///     "numerics=exact", "numerics=torch", "numerics=fast": how results may differ from the model as written; the default is what an artifact
///     was compiled with, else torch;
///     "threads=4": threads of the CPU; the default is all cores;
///     "machine_code=1": runs the machine code of an artifact as it is. Nothing can check it: only for files whose writer you trust.
/// model: is set to the model, which kiln_model_close frees; to NULL on failure.
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_open(
    path: *const c_char,
    options: *const *const c_char,
    model: *mut *mut kiln_model,
    error: *mut *mut c_char,
) -> kiln_status {
    let work = || {
        if model.is_null() {
            return Err(missing("model"));
        }
        // SAFETY: not null, so the address of a pointer, as the header asks.
        unsafe { model.write(std::ptr::null_mut()) };
        // SAFETY: texts that end with a zero byte, as the header asks.
        let (path, settings) = unsafe { (text(path, "path")?, settings(options)?) };
        let opened = kiln_model::new(Engine::open(Path::new(path), &settings)?)?;
        // SAFETY: as above.
        unsafe { model.write(Box::into_raw(Box::new(opened))) };
        Ok(())
    };
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Frees a model. Its sessions keep what they need, and are closed on their own. No other call may use the model meanwhile. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_close(model: *mut kiln_model) {
    let work = || {
        if !model.is_null() {
            // SAFETY: made by `kiln_model_open` and freed once, as the header asks.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(())
    };
    // SAFETY: there is no message.
    unsafe { guarded(std::ptr::null_mut(), work) };
}

/// Number of tensors that a run takes. Other arguments of the model, which were fixed when it was exported, do not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_input_count(model: *const kiln_model) -> usize {
    // SAFETY: null or live, as the header asks.
    unsafe { model.as_ref() }.map_or(0, |m| m.inputs.len())
}

/// Number of tensors that a run gives. Numbers that follow from sizes, and None, do not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_output_count(model: *const kiln_model) -> usize {
    // SAFETY: null or live, as the header asks.
    unsafe { model.as_ref() }.map_or(0, |m| m.outputs.len())
}

/// The name of an input, which lives as long as the model: of a .pt2 as in its source, else input0, input1, and so on. NULL if there is no
/// such input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_input_name(model: *const kiln_model, index: usize) -> *const c_char {
    // SAFETY: null or live, as the header asks.
    unsafe { model.as_ref() }.and_then(|m| m.names.get(index)).map_or(std::ptr::null(), |n| n.as_ptr())
}

/// The type of an input; a size that may vary is -1. Its dtype is 0 if there is no such input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_input_type(model: *const kiln_model, index: usize) -> kiln_type {
    // SAFETY: null or live, as the header asks.
    unsafe { model.as_ref() }.and_then(|m| m.inputs.get(index)).map_or(Shown::nothing(), Shown::view)
}

/// The type of an output; a size that varies is -1. Its dtype is 0 if there is no such output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_output_type(model: *const kiln_model, index: usize) -> kiln_type {
    // SAFETY: null or live, as the header asks.
    unsafe { model.as_ref() }.and_then(|m| m.outputs.get(index)).map_or(Shown::nothing(), Shown::view)
}

impl kiln_model {
    fn new(engine: Engine) -> Result<kiln_model, Error> {
        let program = engine.program();
        if let Some(n) = program.inputs().iter().find(|i| matches!(i.kind, InputKind::Size(_))) {
            let what =
                format!("the model takes a number that varies, `{}`, which the C interface does not pass", n.name);
            return Err(Error::usage(what, "export it with a number that is fixed, or take it from an input's size"));
        }
        let tensors = program.inputs().iter().filter(|i| matches!(i.kind, InputKind::Value(_)));
        let names = tensors.map(|i| CString::new(i.name.replace('\0', " ")).unwrap_or_default()).collect();
        let all = |dims: Vec<Dims>| dims.into_iter().map(|d| Shown::new(d.dtype, d.shape)).collect();
        let (inputs, outputs) = (all(program.input_dims()), all(program.output_dims()));
        Ok(kiln_model { engine: Arc::new(engine), names, inputs, outputs, states: OnceLock::new() })
    }
}

/// # Safety
/// `options` is null, or an array of texts that ends with null.
unsafe fn settings(options: *const *const c_char) -> Result<Settings, Error> {
    let mut settings = Settings::default();
    if options.is_null() {
        return Ok(settings);
    }
    for i in 0.. {
        // SAFETY: the end of the array was not reached yet.
        let option = unsafe { options.add(i).read() };
        if option.is_null() {
            break;
        }
        // SAFETY: this function's contract.
        let option = unsafe { text(option, "an option") }?;
        let wrong = |want: &str| Error::usage(format!("the option `{option}` is wrong"), format!("give {want}"));
        match option.split_once('=') {
            Some(("device", name)) => settings.device = name.parse()?,
            Some(("numerics", name)) => {
                let known = Numerics::ALL.into_iter().find(|n| n.name() == name);
                settings.contract = Some(known.ok_or_else(|| wrong("exact, torch or fast"))?.into());
            }
            Some(("threads", n)) => {
                let known = n.parse().ok().filter(|n| (1..=kiln::MAX_THREADS).contains(n));
                settings.threads = Some(known.ok_or_else(|| wrong(&format!("1 to {}", kiln::MAX_THREADS)))?);
            }
            Some(("machine_code", flag @ ("0" | "1"))) => settings.machine_code = flag == "1",
            Some(("machine_code", _)) => return Err(wrong("0 or 1")),
            _ => return Err(wrong("device=…, numerics=…, threads=… or machine_code=…")),
        }
    }
    Ok(settings)
}
