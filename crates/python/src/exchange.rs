//! Tensors of torch as addresses, and memory of torch's allocator as tensors.
//!
//! torch gives a table of C functions for it (DLPack's exchange API, `torch.Tensor.__dlpack_c_exchange_api__`), which
//! costs 55 ns a tensor. A torch without the table is asked through the tensors' methods instead.
use crate::errors::{InputError, KilnError};
use kiln::{DType, Type};
use pyo3::{ffi, intern, prelude::*, sync::PyOnceLock, types::*};
use std::borrow::Cow;
use std::ffi::{c_char, c_void};

/// DLPack's device: a kind ([`CPU`], [`CUDA`]) and a number.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLDevice {
    pub kind: i32,
    pub id: i32,
}
pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;

/// DLPack's dtype.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// DLPack's view of a tensor. `strides` may be null for a dense tensor.
#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

/// DLPack's tensor with an owner.
#[repr(C)]
struct Managed {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: DLTensor,
}

/// The same before DLPack 1.0, which every torch takes as a capsule.
#[repr(C)]
struct Unversioned {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// The table (`DLPackExchangeAPI` of DLPack 1.3).
#[repr(C)]
struct Table {
    version: Version,
    previous: *mut c_void,
    allocate: unsafe extern "C" fn(*mut DLTensor, *mut *mut Managed, *mut c_void, SetError) -> i32,
    from_python: unsafe extern "C" fn(*mut ffi::PyObject, *mut *mut Managed) -> i32,
    to_python: unsafe extern "C" fn(*mut Managed, *mut *mut ffi::PyObject) -> i32,
    borrow: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut DLTensor) -> i32>,
    stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> i32,
}

// SAFETY: functions that torch calls from any thread, and a link that is not followed.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

/// The way to torch's tensors.
pub struct Exchange {
    table: Option<&'static Table>,
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    torch: Py<PyModule>,
}

/// A tensor's memory and layout, valid while the tensor lives and is not resized.
pub struct Borrowed {
    pub address: u64,
    pub device: DLDevice,
    pub ty: Type,
    /// Elements lie in row-major order without gaps.
    pub dense: bool,
}

/// A tensor as a kernel takes it.
pub struct Pointed {
    pub address: u64,
    /// From the address to the end of the last element; `None`: unknown.
    pub bytes: Option<u64>,
    pub device: DLDevice,
    /// torch's name, such as `float32`.
    pub dtype: Cow<'static, str>,
}

/// What an input has to be.
pub struct Wanted {
    pub dtype: DLDataType,
    pub shape: Vec<i64>,
    pub device: DLDevice,
}

/// How a tensor compares with what is wanted.
pub enum Match {
    /// It is as wanted and dense, at this address.
    At(u64),
    /// It is as wanted, but its elements are not in row-major order.
    Strided,
    /// Its dtype or shape is another.
    Other,
}

/// A new tensor of torch that no Python object owns yet.
pub enum New {
    /// Through the table.
    Managed(*mut c_void),
    /// Through `torch.empty`.
    Python(Py<PyAny>),
}

/// The name of a capsule that holds a tensor of before DLPack 1.0 which nobody took over.
const UNVERSIONED: &std::ffi::CStr = c"dltensor";

static EXCHANGE: PyOnceLock<Exchange> = PyOnceLock::new();

impl Exchange {
    /// The exchange of the torch that is imported.
    pub fn of(py: Python<'_>) -> PyResult<&Exchange> {
        EXCHANGE.get_or_try_init(py, || {
            let torch = py.import("torch")?;
            let tensor = torch.getattr("Tensor")?.cast_into::<PyType>()?;
            let parameter = py.import("torch.nn")?.getattr("Parameter")?.cast_into::<PyType>()?;
            let table = tensor.getattr("__dlpack_c_exchange_api__").ok().and_then(|capsule| {
                // SAFETY: the capsule lives as long as its type; a wrong name gives null and an error, which is
                // cleared.
                let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
                drop(PyErr::take(py));
                // SAFETY: the capsule's name says that it is such a table; torch keeps it for ever.
                unsafe { table.cast::<Table>().as_ref() }.filter(|t| t.version.major == 1 && t.borrow.is_some())
            });
            Ok(Exchange { table, tensor: tensor.unbind(), parameter: parameter.unbind(), torch: torch.unbind() })
        })
    }

    /// Whether the object is exactly a tensor or a parameter: subclasses may mean something else by their memory.
    pub fn is_tensor(&self, o: &Bound<'_, PyAny>) -> bool {
        let ty = o.get_type().as_ptr();
        ty == self.tensor.as_ptr() || ty == self.parameter.as_ptr()
    }

    /// Fails unless the object is a plain tensor: of torch's own classes, with elements in memory.
    fn plain(&self, o: &Bound<'_, PyAny>) -> PyResult<()> {
        // Nested tensors are of torch's own class, or of another one.
        if o.getattr(intern!(o.py(), "is_nested")).is_ok_and(|n| n.is_truthy().unwrap_or(false)) {
            let what = "an input is a nested tensor; pass a padded one (`torch.nested.to_padded_tensor`)";
            return Err(InputError::new_err(what));
        }
        if self.is_tensor(o) {
            return Ok(());
        }
        let name = o.get_type().fully_qualified_name()?.to_string();
        Err(InputError::new_err(format!(
            "an input is a {name}, but the program takes a torch.Tensor; pass a plain tensor"
        )))
    }

    /// Memory and layout of a tensor.
    pub fn borrow(&self, o: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
        self.plain(o)?;
        let py = o.py();
        let layout = o.getattr(intern!(py, "layout"))?;
        if !layout.is(&self.torch.bind(py).getattr(intern!(py, "strided"))?) {
            return Err(InputError::new_err(format!(
                "an input has the layout {layout}; pass a dense tensor (`to_dense()`)"
            )));
        }
        let device = o.getattr(intern!(py, "device"))?;
        let device = self.device(&device)?;
        let dtype = o.getattr(intern!(py, "dtype"))?;
        let name = dtype.str()?.to_string();
        let dtype = dtype_of(name.trim_start_matches("torch.")).ok_or_else(|| {
            let remedy = if name.starts_with("torch.q") { "pass `dequantize()` of it" } else { "convert it" };
            InputError::new_err(format!("an input is {name}, a dtype that Kiln does not have; {remedy}"))
        })?;
        let shape: Vec<usize> = o.getattr(intern!(py, "shape"))?.extract()?;
        let dense = o.call_method0(intern!(py, "is_contiguous"))?.extract()? && !self.is_lazy(o)?;
        let address = o.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok(Borrowed { address, device, ty: Type::new(dtype, shape), dense })
    }

    /// Whether the tensor's elements are those of its memory negated or conjugated, which torch does when they are
    /// read.
    fn is_lazy(&self, o: &Bound<'_, PyAny>) -> PyResult<bool> {
        o.call_method0(intern!(o.py(), "is_neg"))?.extract()
    }

    /// The address of a tensor's elements, as fast as possible; 0 for other objects.
    pub fn address(&self, o: &Bound<'_, PyAny>) -> PyResult<u64> {
        if !self.is_tensor(o) {
            return Ok(0);
        }
        let Some(borrow) = self.table.and_then(|t| t.borrow) else {
            return o.call_method0(intern!(o.py(), "data_ptr"))?.extract();
        };
        let mut t = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the object is a tensor; the table fills the view, or raises.
        unsafe {
            if borrow(o.as_ptr(), t.as_mut_ptr()) != 0 {
                return Err(PyErr::fetch(o.py()));
            }
            let t = t.assume_init();
            Ok(t.data as u64 + t.byte_offset)
        }
    }

    /// Where a tensor's first element is, and its dtype; of other objects, what their `data_ptr()` and `dtype` say.
    pub fn pointer(&self, o: &Bound<'_, PyAny>) -> PyResult<Pointed> {
        let borrow = self.table.and_then(|t| t.borrow).filter(|_| self.is_tensor(o));
        if let Some(borrow) = borrow {
            let mut t = std::mem::MaybeUninit::<DLTensor>::uninit();
            // SAFETY: the object is a tensor; the table fills the view, or raises.
            if unsafe { borrow(o.as_ptr(), t.as_mut_ptr()) } == 0 {
                // SAFETY: it has been filled.
                let t = unsafe { t.assume_init() };
                if let Ok(dtype) = torch_name(t.dtype) {
                    return Ok(Pointed {
                        address: t.data as u64 + t.byte_offset,
                        // SAFETY: as above; the table gives `ndim` sizes and strides.
                        bytes: Some(unsafe { extent(&t) }),
                        device: t.device,
                        dtype: dtype.into(),
                    });
                }
            }
            drop(PyErr::take(o.py()));
        }
        let py = o.py();
        let address = o.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let dtype = o.getattr(intern!(py, "dtype"))?.str()?.to_string();
        let device = match o.getattr(intern!(py, "device")) {
            Ok(device) => self.device(&device)?,
            Err(_) => DLDevice { kind: CPU, id: 0 },
        };
        let bytes = o.getattr(intern!(py, "nbytes")).and_then(|n| n.extract()).ok();
        Ok(Pointed { address, bytes, device, dtype: dtype.trim_start_matches("torch.").to_string().into() })
    }

    fn device(&self, device: &Bound<'_, PyAny>) -> PyResult<DLDevice> {
        let py = device.py();
        let kind: String = device.getattr(intern!(py, "type"))?.extract()?;
        let id: Option<i32> = device.getattr(intern!(py, "index"))?.extract()?;
        match kind.as_str() {
            "cpu" => Ok(DLDevice { kind: CPU, id: 0 }),
            "cuda" => Ok(DLDevice { kind: CUDA, id: id.unwrap_or(0) }),
            other => {
                let what = format!("an input is on the device {other}; Kiln runs on cpu and cuda");
                Err(InputError::new_err(what))
            }
        }
    }

    /// Compares a tensor with what is wanted, as fast as possible. The object has to be a tensor
    /// ([`Exchange::is_tensor`]).
    pub fn compare(&self, o: &Bound<'_, PyAny>, want: &Wanted) -> PyResult<Match> {
        let Some(borrow) = self.table.and_then(|t| t.borrow) else {
            let b = self.borrow(o)?;
            let same = b.device == want.device && dl_dtype(b.ty.dtype) == want.dtype && shape_of(&b.ty) == want.shape;
            return Ok(match (same, b.dense) {
                (true, true) => Match::At(b.address),
                (true, false) => Match::Strided,
                (false, _) => Match::Other,
            });
        };
        let mut t = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the object is a tensor; the table fills the view, or raises.
        let t = unsafe {
            if borrow(o.as_ptr(), t.as_mut_ptr()) != 0 {
                // What DLPack has no form for is told in Kiln's words if it has any, else in torch's.
                let e = PyErr::fetch(o.py());
                self.borrow(o)?;
                return Err(InputError::new_err(format!("an input cannot be read: {e}; pass a dense tensor")));
            }
            t.assume_init()
        };
        // SAFETY: torch gives `ndim` sizes and strides that live as long as the tensor's view.
        let (shape, strides) = unsafe { (list(t.shape, t.ndim), list(t.strides, t.ndim)) };
        if t.dtype != want.dtype || shape != want.shape || t.device != want.device {
            return Ok(Match::Other);
        }
        let mut next = 1;
        let mut dense = true;
        if !t.strides.is_null() {
            for (n, s) in shape.iter().zip(strides).rev() {
                dense &= *n == 1 || *s == next;
                next *= n;
            }
            dense |= next == 0;
        }
        if !dense || self.is_lazy(o)? {
            return Ok(Match::Strided);
        }
        Ok(Match::At(t.data as u64 + t.byte_offset))
    }

    /// A new dense tensor of torch's allocator, uninitialised: its address, and the tensor.
    pub fn allocate(&self, py: Python<'_>, want: &Wanted) -> PyResult<(u64, New)> {
        if let Some(table) = self.table {
            let mut prototype = DLTensor {
                data: std::ptr::null_mut(),
                device: want.device,
                ndim: want.shape.len() as i32,
                dtype: want.dtype,
                shape: want.shape.as_ptr().cast_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            };
            let mut managed = std::ptr::null_mut();
            let mut why = String::new();
            // SAFETY: the prototype lives through the call, which only reads it; `why` outlives the call as well.
            let failed = unsafe {
                let why = (&raw mut why).cast();
                (table.allocate)(&mut prototype, &mut managed, why, told) != 0 || managed.is_null()
            };
            if failed {
                drop(PyErr::take(py));
                return Err(crate::errors::DeviceError::new_err(format!("torch cannot allocate a result: {why}")));
            }
            // SAFETY: the table gave a managed tensor.
            let address = unsafe { (*managed).tensor.data as u64 + (*managed).tensor.byte_offset };
            return Ok((address, New::Managed(managed.cast())));
        }
        let torch = self.torch.bind(py);
        let kwargs = PyDict::new(py);
        kwargs.set_item("dtype", torch.getattr(torch_name(want.dtype)?)?)?;
        let device = if want.device.kind == CPU { "cpu".into() } else { format!("cuda:{}", want.device.id) };
        kwargs.set_item("device", device)?;
        let t = torch.call_method("empty", (want.shape.clone(),), Some(&kwargs))?;
        let address = t.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok((address, New::Python(t.unbind())))
    }

    /// The tensor as a Python object.
    pub fn finish(&self, py: Python<'_>, new: New) -> PyResult<Py<PyAny>> {
        match (new, self.table) {
            (New::Python(t), _) => Ok(t),
            (New::Managed(managed), Some(table)) => {
                let mut object = std::ptr::null_mut();
                // SAFETY: `allocate` or `view` made the tensor; this call takes it over.
                unsafe {
                    if (table.to_python)(managed.cast(), &mut object) != 0 {
                        return Err(PyErr::fetch(py));
                    }
                    Ok(Bound::from_owned_ptr(py, object).unbind())
                }
            }
            // Only the table makes managed tensors.
            (New::Managed(_), None) => Err(KilnError::new_err("torch's exchange table is gone; please report it")),
        }
    }

    /// A tensor that shows memory which it does not own.
    ///
    /// # Safety
    /// The memory stays in place while the tensor, or any that shares its storage, is used.
    pub unsafe fn view(&self, py: Python<'_>, ty: &Type, address: u64, device: DLDevice) -> PyResult<Py<PyAny>> {
        /// What the tensor's description points to.
        struct Owner {
            managed: Managed,
            unversioned: Unversioned,
            shape: Vec<i64>,
            strides: Vec<i64>,
        }
        unsafe extern "C" fn delete(managed: *mut Managed) {
            // SAFETY: `context` is the box that `view` leaked; torch calls the deleter once.
            drop(unsafe { Box::from_raw((*managed).context.cast::<Owner>()) });
        }
        unsafe extern "C" fn delete_unversioned(managed: *mut Unversioned) {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw((*managed).context.cast::<Owner>()) });
        }
        /// Frees what a capsule holds that torch did not take over; torch renames a capsule that it took.
        unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
            // SAFETY: a capsule that this function was given to; one of this name still holds the leaked box.
            unsafe {
                if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) != 0 {
                    delete_unversioned(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast());
                }
            }
        }
        let tensor = || DLTensor {
            data: std::ptr::with_exposed_provenance_mut(address as usize),
            device,
            ndim: ty.rank() as i32,
            dtype: dl_dtype(ty.dtype),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let context = std::ptr::null_mut();
        let version = Version { major: 1, minor: 0 };
        let mut owner = Box::new(Owner {
            managed: Managed { version, context, deleter: Some(delete), flags: 0, tensor: tensor() },
            unversioned: Unversioned { tensor: tensor(), context, deleter: Some(delete_unversioned) },
            shape: shape_of(ty),
            strides: ty.strides().iter().map(|s| *s as i64).collect(),
        });
        let (shape, strides) = (owner.shape.as_mut_ptr(), owner.strides.as_mut_ptr());
        for t in [&mut owner.managed.tensor, &mut owner.unversioned.tensor] {
            (t.shape, t.strides) = (shape, strides);
        }
        let owner = Box::into_raw(owner);
        let mut object = std::ptr::null_mut();
        // SAFETY: the box lives until a deleter is called, with the description that torch takes over.
        unsafe {
            (*owner).managed.context = owner.cast();
            (*owner).unversioned.context = owner.cast();
            let Some(table) = self.table else {
                let held = (&raw mut (*owner).unversioned).cast();
                let capsule = ffi::PyCapsule_New(held, UNVERSIONED.as_ptr(), Some(drop_capsule));
                let capsule = Bound::from_owned_ptr_or_err(py, capsule)?;
                let dlpack = py.import(intern!(py, "torch.utils.dlpack"))?;
                return Ok(dlpack.call_method1(intern!(py, "from_dlpack"), (capsule,))?.unbind());
            };
            if (table.to_python)(&raw mut (*owner).managed, &mut object) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(Bound::from_owned_ptr(py, object).unbind())
        }
    }

    /// torch's current stream on a device; `None` on the CPU.
    pub fn stream(&self, py: Python<'_>, device: DLDevice) -> PyResult<Option<u64>> {
        if device.kind != CUDA {
            return Ok(None);
        }
        if let Some(table) = self.table {
            let mut stream = std::ptr::null_mut();
            // SAFETY: the table writes one pointer.
            if unsafe { (table.stream)(device.kind, device.id, &mut stream) } != 0 {
                return Err(PyErr::fetch(py));
            }
            return Ok(Some(stream as u64));
        }
        let cuda = self.torch.bind(py).getattr("cuda")?;
        Ok(Some(cuda.call_method1("current_stream", (device.id,))?.getattr("cuda_stream")?.extract()?))
    }
}

/// The tensors of a result: itself, or its elements.
pub fn tensors<'py>(result: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    match result.is_instance_of::<PyTuple>() || result.is_instance_of::<PyList>() {
        true => result.try_iter()?.collect(),
        false => Ok(vec![result.clone()]),
    }
}

/// Bytes from a tensor's first element to the end of its last.
///
/// # Safety
/// Sizes and strides are null, or `ndim` numbers.
unsafe fn extent(t: &DLTensor) -> u64 {
    // SAFETY: this function's contract.
    let (shape, strides) = unsafe { (list(t.shape, t.ndim), list(t.strides, t.ndim)) };
    if shape.contains(&0) {
        return 0;
    }
    let last: i64 = match strides.is_empty() {
        true => shape.iter().product::<i64>() - 1,
        false => shape.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum(),
    };
    (last as u64 + 1) * u64::from(t.dtype.bits.div_ceil(8))
}

/// Stores the message of an error of the table; `to` is a `String`.
unsafe extern "C" fn told(to: *mut c_void, kind: *const c_char, what: *const c_char) {
    let text = |p: *const c_char| match p.is_null() {
        true => String::new(),
        // SAFETY: the table gives texts that end in zero.
        false => unsafe { std::ffi::CStr::from_ptr(p) }.to_string_lossy().into_owned(),
    };
    // SAFETY: `allocate` passes its string.
    unsafe { *to.cast::<String>() = format!("{} {}", text(kind), text(what)).trim().to_string() };
}

/// # Safety
/// `at` is null, or points to `n` numbers that live for `'a`.
unsafe fn list<'a>(at: *const i64, n: i32) -> &'a [i64] {
    match (at.is_null(), usize::try_from(n)) {
        // SAFETY: this function's contract.
        (false, Ok(n)) => unsafe { std::slice::from_raw_parts(at, n) },
        _ => &[],
    }
}

/// The shape in DLPack's numbers.
pub fn shape_of(ty: &Type) -> Vec<i64> {
    ty.shape.iter().map(|n| *n as i64).collect()
}

/// torch's name and DLPack's number of a dtype.
fn names(dtype: DType) -> (&'static str, DLDataType) {
    let d = |name, code, bits| (name, DLDataType { code, bits, lanes: 1 });
    match dtype {
        DType::F32 => d("float32", 2, 32),
        DType::F64 => d("float64", 2, 64),
        DType::F16 => d("float16", 2, 16),
        DType::Bf16 => d("bfloat16", 4, 16),
        DType::F8e4m3 => d("float8_e4m3fn", 10, 8),
        DType::F8e5m2 => d("float8_e5m2", 12, 8),
        DType::I64 => d("int64", 0, 64),
        DType::I32 => d("int32", 0, 32),
        DType::I16 => d("int16", 0, 16),
        DType::I8 => d("int8", 0, 8),
        DType::U8 => d("uint8", 1, 8),
        DType::Bool => d("bool", 6, 8),
    }
}

/// DLPack's number of a dtype.
pub fn dl_dtype(dtype: DType) -> DLDataType {
    names(dtype).1
}
fn dtype_of(torch: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|d| names(*d).0 == torch)
}
fn torch_name(dtype: DLDataType) -> PyResult<&'static str> {
    let found = DType::ALL.into_iter().map(names).find(|(_, number)| *number == dtype);
    found.map(|(name, _)| name).ok_or_else(|| KilnError::new_err("a result has a dtype that torch does not have"))
}
