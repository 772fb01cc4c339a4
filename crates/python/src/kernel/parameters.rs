//! A kernel's parameters, and how the arguments of a call are bound to them.
use super::arguments::{Bound as Argument, Wanted};
use super::call_error;
use crate::exchange::{DLDevice, Exchange};
use kiln::kernels::{Number, Options};
use pyo3::{exceptions::PyValueError, prelude::*, types::*};
use rustc_hash::FxHashMap;

/// Most warps of a block on any GPU.
const MAX_WARPS: usize = 32;

/// One parameter.
struct Parameter {
    name: Py<PyString>,
    /// It is a constant of the program.
    constant: bool,
    /// It is an array (`kiln.language.Array`).
    array: bool,
    /// The element type that its annotation says: of a number, or of what a pointer points to.
    annotated: Option<Number>,
    /// Whether facts about its value are used.
    specialised: bool,
    /// Its value where a call gives none.
    default: Option<Py<PyAny>>,
}

pub struct Parameters {
    all: Vec<Parameter>,
    /// By name.
    places: FxHashMap<String, usize>,
    /// The kernel's name, for messages.
    kernel: String,
}

type Extracted = (Py<PyString>, bool, Option<String>, bool, Option<(Py<PyAny>,)>);

impl Parameters {
    pub fn new(list: &Bound<'_, PyList>) -> PyResult<Parameters> {
        let one = |item: Bound<'_, PyAny>| {
            let (name, constant, annotated, specialised, default): Extracted = item.extract()?;
            let array = annotated.as_deref() == Some("Array");
            let annotated = annotated.and_then(|name| Number::named(name.trim_start_matches('*')));
            Ok(Parameter { name, constant, array, annotated, specialised, default: default.map(|d| d.0) })
        };
        let mut items = list.iter();
        let kernel = items.next().map(|name| name.extract()).transpose()?.unwrap_or_default();
        let all = items.map(one).collect::<PyResult<Vec<Parameter>>>()?;
        let place = |(at, p): (usize, &Parameter)| Ok((p.name.bind(list.py()).to_str()?.to_string(), at));
        let places = all.iter().enumerate().map(place).collect::<PyResult<_>>()?;
        Ok(Parameters { all, places, kernel })
    }

    /// The place of a parameter.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The value of each parameter, and the options of the launch.
    pub fn bind<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Options)> {
        let (py, given) = (args.py(), args.len());
        if given > self.all.len() {
            let what = format!("{}() takes {} arguments, but {given} were given", self.kernel, self.all.len());
            return Err(call_error(what));
        }
        let mut values = Vec::with_capacity(self.all.len());
        values.extend(args.iter());
        let mut named = 0;
        for p in &self.all[given..] {
            let found = kwargs.map(|k| k.get_item(p.name.bind(py))).transpose()?.flatten();
            named += usize::from(found.is_some());
            let value = match (found, &p.default) {
                (Some(value), _) => value,
                (None, Some(default)) => default.bind(py).clone(),
                (None, None) => {
                    let name = p.name.bind(py);
                    return Err(call_error(format!("{}() lacks the argument `{name}`", self.kernel)));
                }
            };
            values.push(value);
        }
        let options = match kwargs {
            Some(kwargs) if kwargs.len() > named => self.options(kwargs, given)?,
            _ => Options::default(),
        };
        Ok((values, options))
    }

    /// Keywords that are no parameters.
    fn options(&self, kwargs: &Bound<'_, PyDict>, given: usize) -> PyResult<Options> {
        let mut options = Options::default();
        for (key, value) in kwargs.iter() {
            let key = key.cast::<PyString>()?.to_str()?;
            if let Some(at) = self.places.get(key) {
                if *at < given {
                    return Err(call_error(format!("{}() has two values for `{key}`", self.kernel)));
                }
                continue;
            }
            match key {
                "num_warps" => options.warps = warps(&value)?,
                "debug" => options.debug = value.is_truthy()?,
                // The compiler decides these.
                "num_stages"
                | "num_ctas"
                | "maxnreg"
                | "enable_fp_fusion"
                | "launch_pdl"
                | "sanitize_overflow"
                | "launch_cooperative_grid"
                | "num_buffers_warp_spec"
                | "num_consumer_groups"
                | "matrix_instr_nonkdim"
                | "waves_per_eu"
                | "kpack"
                | "reg_dec_producer"
                | "reg_inc_consumer"
                | "extern_libs"
                | "generate_native_code" => {}
                _ => {
                    let what = format!("{}() has no parameter or option `{key}`", self.kernel);
                    return Err(pyo3::exceptions::PyKeyError::new_err(what));
                }
            }
        }
        Ok(options)
    }

    /// What each value is for the compiler; notes the device of tensors.
    pub fn classify<'py>(
        &self,
        exchange: &Exchange,
        values: &[Bound<'py, PyAny>],
        device: &mut Option<DLDevice>,
    ) -> PyResult<Vec<Argument<'py>>> {
        let mut all = Vec::with_capacity(values.len());
        for (p, value) in self.all.iter().zip(values) {
            let wanted =
                Wanted { constant: p.constant, array: p.array, annotated: p.annotated, specialised: p.specialised };
            let name = || format!("argument `{}` of {}()", p.name.bind(value.py()), self.kernel);
            all.push(Argument::of(exchange, value, wanted, device, &name)?);
        }
        note_memory(&mut all);
        Ok(all)
    }

    /// The arguments by name, for grids that are functions of them.
    pub fn named<'py>(&self, py: Python<'py>, values: &[Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (p, value) in self.all.iter().zip(values) {
            dict.set_item(p.name.bind(py), value)?;
        }
        Ok(dict)
    }
}

/// Warps of an instance.
fn warps(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let wrong = || PyValueError::new_err(format!("num_warps is a power of two from 1 to {MAX_WARPS}, not {value}"));
    let warps: usize = value.extract().map_err(|_| wrong())?;
    if warps.is_power_of_two() && warps <= MAX_WARPS { Ok(warps) } else { Err(wrong()) }
}

/// Notes which tensors have memory that no other argument has, and whether offsets have 32 bits: one fact for all of
/// them, so that it at most doubles the variants.
fn note_memory(arguments: &mut [Argument<'_>]) {
    let mut pointers = Vec::with_capacity(arguments.len());
    arguments.iter_mut().for_each(|a| a.pointers(&mut |p| pointers.push(p)));
    let near = pointers.iter().all(|p| p.is_near());
    for i in 0..pointers.len() {
        pointers[i].near = near;
        let unshared = (0..pointers.len()).all(|j| i == j || !pointers[i].overlaps(pointers[j]));
        pointers[i].unshared = unshared;
    }
}

/// The three sizes of a grid: one to three integers, or a function of the arguments that gives them.
pub fn grid<'py>(grid: &Bound<'py, PyAny>, named: impl Fn() -> PyResult<Bound<'py, PyDict>>) -> PyResult<[usize; 3]> {
    let made = if grid.is_callable() { Some(grid.call1((named()?,))?) } else { None };
    let sizes = made.as_ref().unwrap_or(grid);
    let wrong = |why: &str| call_error(format!("a grid is one to three sizes, not {sizes}{why}"));
    let mut all = [1usize; 3];
    let mut set = |at: usize, size: Bound<'_, PyAny>| {
        let size: i64 = size.extract().map_err(|_| wrong(""))?;
        let place = all.get_mut(at).ok_or_else(|| wrong(""))?;
        *place = usize::try_from(size).map_err(|_| wrong("; sizes are not negative"))?;
        PyResult::Ok(())
    };
    if let Ok(tuple) = sizes.cast::<PyTuple>() {
        tuple.iter().enumerate().try_for_each(|(i, size)| set(i, size))?;
    } else if let Ok(list) = sizes.cast::<PyList>() {
        list.iter().enumerate().try_for_each(|(i, size)| set(i, size))?;
    } else {
        set(0, sizes.clone())?;
    }
    Ok(all)
}
