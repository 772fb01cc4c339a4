//! State of models: what runs change and later runs read, such as caches.
use crate::{
    call::{Shown, guarded, handle, missing},
    kiln_model, kiln_status, kiln_type,
};
use kiln::{Engine, Error, Tensor, Type};
use std::ffi::{CString, c_char, c_void};

/// The states of a model, once one was asked for.
pub(crate) struct States {
    names: Vec<CString>,
    types: Vec<Type>,
    shown: Vec<Shown>,
}

impl States {
    fn of(engine: &Engine) -> Result<States, Error> {
        let names = engine.state_names()?;
        let types: Vec<Type> = names.iter().map(|n| engine.state_type(n)).collect::<Result<_, _>>()?;
        let shown = types.iter().map(Shown::of).collect();
        let names = names.iter().map(|n| CString::new(n.replace('\0', " ")).unwrap_or_default()).collect();
        Ok(States { names, types, shown })
    }
}
impl kiln_model {
    /// None if the model cannot be read for the sizes of its export.
    fn states(&self) -> Option<&States> {
        self.states.get_or_init(|| States::of(&self.engine).ok()).as_ref()
    }
}

/// Number of states: buffers that runs change, and that later runs read, such as caches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_state_count(model: *const kiln_model) -> usize {
    // SAFETY: null or live, as the header asks.
    unsafe { model.as_ref() }.and_then(kiln_model::states).map_or(0, |s| s.names.len())
}

/// The name of a state as in the model's source, which lives as long as the model. NULL if there is no such state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_state_name(model: *const kiln_model, index: usize) -> *const c_char {
    // SAFETY: null or live, as the header asks.
    let states = unsafe { model.as_ref() }.and_then(kiln_model::states);
    states.and_then(|s| s.names.get(index)).map_or(std::ptr::null(), |n| n.as_ptr())
}

/// The type of a state. Its dtype is 0 if there is no such state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_state_type(model: *const kiln_model, index: usize) -> kiln_type {
    // SAFETY: null or live, as the header asks.
    let states = unsafe { model.as_ref() }.and_then(kiln_model::states);
    states.and_then(|s| s.shown.get(index)).map_or(Shown::nothing(), Shown::view)
}

/// Copies a state to memory of the host, as the last run has left it; before the first run it has the values of the file. Waits for runs.
///
/// index: a number below kiln_model_state_count.
/// to: room for its elements, which become dense and row-major.
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_read_state(
    model: *const kiln_model,
    index: usize,
    to: *mut c_void,
    error: *mut *mut c_char,
) -> kiln_status {
    let work = || {
        // SAFETY: null or live, as the header asks.
        let (engine, name, _) = state(unsafe { handle(model, "model") }?, index)?;
        let value = engine.state(name)?;
        match (to.is_null(), value.bytes().is_empty()) {
            (_, true) => Ok(()),
            (true, false) => Err(missing("to")),
            (false, false) => {
                // SAFETY: room for the state's elements, as the header asks.
                unsafe { to.cast::<u8>().copy_from_nonoverlapping(value.bytes().as_ptr(), value.bytes().len()) };
                Ok(())
            }
        }
    };
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Sets a state, which the next run reads. Waits for runs.
///
/// index: a number below kiln_model_state_count.
/// from: its elements in memory of the host, dense and row-major. Bools are 0 or 1.
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_write_state(
    model: *const kiln_model,
    index: usize,
    from: *const c_void,
    error: *mut *mut c_char,
) -> kiln_status {
    let work = || {
        // SAFETY: null or live, as the header asks.
        let (engine, name, ty) = state(unsafe { handle(model, "model") }?, index)?;
        if from.is_null() && ty.bytes() > 0 {
            return Err(missing("from"));
        }
        let bytes = match ty.bytes() {
            0 => &[],
            // SAFETY: the state's elements, as the header asks.
            n => unsafe { std::slice::from_raw_parts(from.cast::<u8>(), n) },
        };
        // Invariant: as many bytes as the type has.
        let value = Tensor::from_bytes(ty.clone(), bytes).unwrap_or_else(|| Tensor::zeros(ty.clone()));
        engine.set_state(name, &value)
    };
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// Gives all states the values that the file has. Waits for runs.
///
/// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_model_reset(model: *const kiln_model, error: *mut *mut c_char) -> kiln_status {
    // SAFETY: null or live, as the header asks.
    let work = || unsafe { handle(model, "model") }?.engine.reset();
    // SAFETY: null or the address of a pointer, as the header asks.
    unsafe { guarded(error, work) }
}

/// A state by its number: its name and type.
fn state(model: &kiln_model, index: usize) -> Result<(&Engine, &str, &Type), Error> {
    // The reason is lost where states cannot be listed: say it now.
    let names = model.engine.state_names()?;
    let found = model.states().and_then(|s| Some((s.names.get(index)?.to_str().ok()?, s.types.get(index)?)));
    let none = || Error::usage(format!("there is no state {index}"), format!("the model has {}", names.len()));
    let (name, ty) = found.ok_or_else(none)?;
    Ok((&model.engine, name, ty))
}
