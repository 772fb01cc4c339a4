//! Matmuls by cuBLASLt, which is loaded at run time.
//!
//! Takes: a [`GemmCall`] and device addresses. Gives: a matmul that can be enqueued, or `None` where the library is
//! missing or has no algorithm; a kernel then runs its steps without the library, or the host computes the matmul.
use super::raw::{Context, StreamHandle};
use cudarc::cublaslt::{
    result::{self, CublasError},
    sys,
};
use kiln_graph::DType;
use kiln_plan::exec::{Activation, GemmCall, Strided};
use std::{ffi::c_void, sync::Arc};

/// The version of cuBLASLt on this machine, as `13.1.0`; `None` if it is not installed.
pub fn version() -> Option<String> {
    // SAFETY: loading the library runs only its own initialisation.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    // SAFETY: a function without arguments that every version of the library has.
    let version = unsafe { sys::cublasLtGetVersion() };
    Some(format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100))
}

/// A cuBLASLt handle for one device.
pub struct Library {
    context: Arc<Context>,
    raw: sys::cublasLtHandle_t,
}
// SAFETY: handles may be used from any thread, several at a time.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}
impl Library {
    /// `None` if the library is missing or does not initialise. The context must be current.
    pub fn new(context: &Arc<Context>) -> Option<Library> {
        // SAFETY: loading the library runs only its own initialisation.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let raw = result::create_handle().ok()?;
        Some(Library { context: context.clone(), raw })
    }
}
impl Drop for Library {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: created by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::destroy_handle(self.raw) };
    }
}

/// Device addresses of a matmul's matrices, of the operands of its epilogue, and of the library's workspace, with its
/// size in bytes.
pub struct Places {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub residual: Option<u64>,
    pub bias: Option<u64>,
    pub workspace: (u64, usize),
}

impl Places {
    /// The addresses of what the call reads and writes in the buffers at these addresses.
    fn offset(self, call: &GemmCall) -> Option<Places> {
        let [a, b, c, added] = call.strided()?;
        let bytes = |dtype: DType, s: Strided| (s.offset * dtype.bytes()) as u64;
        Some(Places {
            a: self.a + bytes(call.dtype, a),
            b: self.b + bytes(call.dtype, b),
            c: self.c + bytes(call.c_dtype, c),
            residual: self.residual.map(|at| at + bytes(call.c_dtype, added)),
            bias: self.bias.zip(call.epilogue.bias).map(|(at, b)| at + (b.1 * call.c_dtype.bytes()) as u64),
            ..self
        })
    }
    /// The library's A, B, C and D.
    fn matrices(&self) -> [u64; 4] {
        [self.b, self.a, self.residual.unwrap_or(self.c), self.c]
    }
}
/// The alignment of an address, as far as the library's algorithms go.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// A matmul with its algorithm, which can be enqueued any number of times.
pub struct Matmul {
    library: Arc<Library>,
    what: Description,
    /// In the library's order: our b, our a, the residual, the result.
    layouts: [Layout; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// The alignments that it was chosen for, as the library's A, B, C and D.
    aligned: [u32; 4],
    places: Places,
    double: bool,
    /// alpha, the factor of the matmul, and beta, that of the residual.
    factors: [f64; 2],
}
// SAFETY: descriptions are only read; the library may be used from any thread.
unsafe impl Send for Matmul {}

impl Matmul {
    /// Chooses the algorithm. `None` if the library has none for this matmul.
    pub fn new(library: &Arc<Library>, call: &GemmCall, places: Places) -> Option<Matmul> {
        if !call.dtype.is_float() {
            return None;
        }
        let [a, b, c, added] = call.strided()?;
        let batch = call.batch.iter().product::<usize>();
        let places = places.offset(call)?;
        // The library is column-major: it computes our result transposed, from our operands transposed and swapped.
        let layouts = [
            Layout::new(call.dtype, b, [call.k, call.n], batch).ok()?,
            Layout::new(call.dtype, a, [call.m, call.k], batch).ok()?,
            Layout::new(call.c_dtype, added, [call.m, call.n], batch).ok()?,
            Layout::new(call.c_dtype, c, [call.m, call.n], batch).ok()?,
        ];
        let what = Description::new(call, [b.by_columns, a.by_columns], places.bias).ok()?;
        let preference = Preference::new(&places).ok()?;
        // SAFETY: all handles were just created, and live.
        let found = unsafe {
            let [right, left, added, to] = layouts.each_ref().map(|l| l.0);
            result::get_matmul_algo_heuristic(library.raw, what.0, right, left, added, to, preference.0)
        };
        let (algorithm, double) = (found.ok()?.algo, call.dtype == DType::F64);
        let factors = [call.epilogue.scale, call.epilogue.residual.as_ref().map_or(0.0, |r| r.1)];
        let aligned = places.matrices().map(alignment);
        Some(Matmul { library: library.clone(), what, layouts, algorithm, aligned, places, double, factors })
    }

    /// Moves the matrices and the bias; the workspace stays. False if one is less aligned than the algorithm was chosen
    /// for, or the library refuses; the matmul is then as before.
    pub fn set(&mut self, call: &GemmCall, places: Places) -> bool {
        let Some(places) = places.offset(call) else { return false };
        let fits = places.matrices().map(alignment).iter().zip(self.aligned).all(|(new, least)| *new >= least);
        if !fits || places.bias != self.places.bias && places.bias.is_none_or(|b| self.what.set_bias(b).is_err()) {
            return false;
        }
        self.places = Places { workspace: self.places.workspace, ..places };
        true
    }

    /// Enqueues the matmul.
    ///
    /// # Safety
    /// The addresses point to live memory of the sizes that the call describes.
    pub unsafe fn enqueue(&self, stream: StreamHandle) -> Result<(), CublasError> {
        let factors = self.factors.map(|f| (f as f32, f));
        let [alpha, beta] = factors.each_ref().map(|n| match self.double {
            true => std::ptr::from_ref(&n.1).cast::<c_void>(),
            false => std::ptr::from_ref(&n.0).cast::<c_void>(),
        });
        let [right, left, added, to] = self.layouts.each_ref().map(|l| l.0);
        let at = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let (c, (workspace, size)) = (at(self.places.c), self.places.workspace);
        let residual = at(self.places.residual.unwrap_or(self.places.c));
        // SAFETY: descriptions live as long as `self`; memory by this function's contract. The factors are read before
        // the call returns.
        unsafe {
            result::matmul(
                self.library.raw,
                self.what.0,
                alpha,
                beta,
                at(self.places.b),
                right,
                at(self.places.a),
                left,
                residual,
                added,
                c,
                to,
                &self.algorithm,
                at(workspace),
                size,
                stream.raw.cast(),
            )
        }
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType_t {
    use sys::cudaDataType_t as T;
    match dtype {
        DType::Bf16 => T::CUDA_R_16BF,
        DType::F16 => T::CUDA_R_16F,
        DType::F64 => T::CUDA_R_64F,
        _ => T::CUDA_R_32F,
    }
}

struct Description(sys::cublasLtMatmulDesc_t);
impl Description {
    /// `transposed`: for the library's A and B, whether the library has to transpose them; it expects columns to be
    /// contiguous.
    fn new(call: &GemmCall, transposed: [bool; 2], bias: Option<u64>) -> Result<Description, CublasError> {
        use sys::{cublasComputeType_t as C, cublasLtEpilogue_t as E, cublasLtMatmulDescAttributes_t as A};
        let (compute, scale) = match (call.dtype, call.tf32) {
            (DType::F64, _) => (C::CUBLAS_COMPUTE_64F, DType::F64),
            (DType::F32, true) => (C::CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32),
            _ => (C::CUBLAS_COMPUTE_32F, DType::F32),
        };
        let made = Description(result::create_matmul_desc(compute, data_type(scale))?);
        let sides = [A::CUBLASLT_MATMUL_DESC_TRANSA, A::CUBLASLT_MATMUL_DESC_TRANSB];
        for (attribute, transposed) in sides.into_iter().zip(transposed) {
            let operation = i32::from(transposed);
            // SAFETY: the description lives; operations are 32-bit numbers, 1 for transposed.
            unsafe {
                let value = std::ptr::from_ref(&operation).cast();
                result::set_matmul_desc_attribute(made.0, attribute, value, size_of::<i32>())?;
            }
        }
        let epilogue = match (bias, call.epilogue.activation) {
            (None, None) => E::CUBLASLT_EPILOGUE_DEFAULT,
            (Some(_), None) => E::CUBLASLT_EPILOGUE_BIAS,
            (None, Some(Activation::Relu)) => E::CUBLASLT_EPILOGUE_RELU,
            (Some(_), Some(Activation::Relu)) => E::CUBLASLT_EPILOGUE_RELU_BIAS,
            (None, Some(Activation::GeluTanh)) => E::CUBLASLT_EPILOGUE_GELU,
            (Some(_), Some(Activation::GeluTanh)) => E::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        let epilogue = epilogue as u32;
        // SAFETY: the description lives; an epilogue is a 32-bit number.
        unsafe {
            let value = std::ptr::from_ref(&epilogue).cast();
            result::set_matmul_desc_attribute(made.0, A::CUBLASLT_MATMUL_DESC_EPILOGUE, value, size_of::<u32>())?;
        }
        if let Some(bias) = bias {
            made.set_bias(bias)?;
        }
        Ok(made)
    }
    fn set_bias(&self, bias: u64) -> Result<(), CublasError> {
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
        // SAFETY: the description lives; an address is a 64-bit number.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, std::ptr::from_ref(&bias).cast(), size_of::<u64>())
        }
    }
}
impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

struct Layout(sys::cublasLtMatrixLayout_t);
impl Layout {
    /// The layout of a matrix of `rows` by `columns`. The axis that is contiguous in memory is a column to the library.
    fn new(dtype: DType, s: Strided, [rows, columns]: [usize; 2], batch: usize) -> Result<Layout, CublasError> {
        use sys::cublasLtMatrixLayoutAttribute_t as A;
        let (long, short) = if s.by_columns { (rows, columns) } else { (columns, rows) };
        let pitch = s.pitch.max(long).max(1) as i64;
        let made = Layout(result::create_matrix_layout(data_type(dtype), long as u64, short as u64, pitch)?);
        let (count, stride) = (batch as i32, s.batch_stride as i64);
        // SAFETY: the layout lives; the count is a 32-bit number, the stride a 64-bit one.
        unsafe {
            let count = std::ptr::from_ref(&count).cast();
            let stride = std::ptr::from_ref(&stride).cast();
            use A::{
                CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as STRIDE,
            };
            result::set_matrix_layout_attribute(made.0, COUNT, count, size_of::<i32>())?;
            result::set_matrix_layout_attribute(made.0, STRIDE, stride, size_of::<i64>())?;
        }
        Ok(made)
    }
}
impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// The constraints on the choice of an algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);
impl Preference {
    /// At most the workspace and the alignment that `places` have. Split-K partial sums are added in the compute type,
    /// in a fixed order.
    fn new(places: &Places) -> Result<Preference, CublasError> {
        use sys::{cublasLtMatmulPreferenceAttributes_t as A, cublasLtReductionScheme_t as R};
        let made = Preference(result::create_matmul_pref()?);
        let put = |attribute, value: *const c_void, size| {
            // SAFETY: the preferences live, and the value has this size.
            unsafe { result::set_matmul_pref_attribute(made.0, attribute, value, size) }
        };
        let bytes = places.workspace.1 as u64;
        put(A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::ptr::from_ref(&bytes).cast(), size_of::<u64>())?;
        let schemes = R::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        put(A::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::ptr::from_ref(&schemes).cast(), size_of::<u32>())?;
        let attributes = [
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (attribute, alignment) in attributes.into_iter().zip(places.matrices().map(alignment)) {
            put(attribute, std::ptr::from_ref(&alignment).cast(), size_of::<u32>())?;
        }
        Ok(made)
    }
}
impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
