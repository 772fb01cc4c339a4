//! Imports an archive: takes its path and example inputs; gives the verified graph and the parameters' data.
use crate::ffi::{self, RawArchive, TorchTensor, c_string, checked};
use kiln_aten::{ImportErrors, ParamData, Problem, Raw, convert, raw::Arg, source};
use kiln_graph::{Graph, Scalar, Tensor};
use serde::{Deserialize, Serialize};
use std::{ffi::CStr, path::Path, ptr::NonNull};

/// A scalar argument of `forward` whose example value is baked into the graph: the graph is valid for this value only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Index among the graph's inputs.
    pub input: usize,
    pub name: String,
    pub value: Scalar,
}

/// An argument of `forward`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Argument {
    pub name: String,
    /// TorchScript's spelling of the type: `Tensor`, `int`, `Optional[Tensor]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Whether a call may omit it, if it omits all later arguments too.
    pub optional: bool,
}

/// An imported model.
#[derive(Debug)]
pub struct Imported {
    pub graph: Graph,
    /// In the order of `graph.params`.
    pub params: Vec<Tensor>,
    pub guards: Vec<Guard>,
    /// How the flat outputs nest: `{"tensor": i}`, `{"tuple": […]}`, `{"list": […]}`, `{"dict": [[key, …]]}`,
    /// `{"constant": …}`.
    pub structure: serde_json::Value,
}

struct Archive(NonNull<RawArchive>);

impl Drop for Archive {
    fn drop(&mut self) {
        // SAFETY: owned, closed once.
        unsafe { ffi::kt_close(self.0.as_ptr()) }
    }
}

impl Archive {
    fn open(path: &Path) -> Result<Archive, ImportErrors> {
        if !path.is_file() {
            let message = format!("cannot read the model `{}`: no such file", path.display());
            return Err(Problem::new(message).help("give the path of a TorchScript archive (.pt)").into());
        }
        let c_path = c_string(&path.to_string_lossy())?;
        // SAFETY: a NUL-terminated path; `e` can be written.
        checked(|e| unsafe { ffi::kt_open(c_path.as_ptr(), e) }).map(Archive)
    }

    fn arguments(&self) -> Result<Vec<Argument>, ImportErrors> {
        // SAFETY: a live archive; pointers are valid for the call; `e` can be written.
        let text = checked(|e| unsafe { ffi::kt_arguments(self.0.as_ptr(), e).cast_mut() })?;
        // SAFETY: a NUL-terminated text that lives until the next call on this archive.
        read_json(&unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy())
    }

    fn specialise(&self, inputs: &[Tensor]) -> Result<Raw, ImportErrors> {
        let tensors = borrow_all(inputs)?;
        let raw: Vec<_> = tensors.iter().map(TorchTensor::as_ptr).collect();
        let n = raw.len() as i32;
        // SAFETY: a live archive; pointers are valid for the call; `e` can be written.
        let text = checked(|e| unsafe { ffi::kt_specialise(self.0.as_ptr(), raw.as_ptr(), n, e).cast_mut() })?;
        // SAFETY: as above.
        read_json(&unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy())
    }

    fn contents(&self, id: usize) -> Result<Tensor, ImportErrors> {
        // SAFETY: a live archive; pointers are valid for the call; `e` can be written.
        let raw = checked(|e| unsafe { ffi::kt_value(self.0.as_ptr(), id as i32, e) })?;
        // SAFETY: the shim transfers ownership.
        unsafe { TorchTensor::from_raw(raw) }.to_host()
    }
}

fn read_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ImportErrors> {
    serde_json::from_str(text).map_err(|e| Problem::new(format!("the shim's JSON does not parse: {e}")).into())
}

/// Non-owning libtorch tensors over host tensors, which must outlive them. Nothing writes to them.
pub(crate) fn borrow_all(inputs: &[Tensor]) -> Result<Vec<TorchTensor>, ImportErrors> {
    // SAFETY: dense host memory of that type; callers keep `inputs` alive, and the shim copies before writing.
    inputs.iter().map(|t| unsafe { TorchTensor::over(t.bytes().as_ptr().cast_mut().cast(), &t.ty, -1) }).collect()
}

/// The arguments of an archive's `forward`.
pub fn arguments(path: &Path) -> Result<Vec<Argument>, ImportErrors> {
    Archive::open(path)?.arguments()
}

/// Imports a TorchScript archive, specialised on example inputs.
pub fn import(path: &Path, inputs: &[Tensor]) -> Result<Imported, ImportErrors> {
    let archive = Archive::open(path).map_err(source::settle_problems)?;
    let mut raw = archive.specialise(inputs).map_err(source::settle_problems)?;
    source::settle(&mut raw);
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let converted = convert::convert(&raw, &name)?;
    converted
        .graph
        .verify()
        .map_err(|e| Problem::new(format!("the imported graph is not valid (a bug of the importer): {e}")))?;
    let params = converted.params.iter().map(|p| match p {
        ParamData::Raw(id) => archive.contents(*id),
        ParamData::Made(t) => Ok(t.clone()),
    });
    let guards = raw.inputs.iter().enumerate().filter_map(|(input, i)| {
        let value = match i.scalar.as_ref()? {
            Arg::Int(v) => Scalar::Int(*v),
            Arg::Float(v) => Scalar::Float(*v),
            Arg::Bool(v) => Scalar::Bool(*v),
            _ => return None,
        };
        Some(Guard { input, name: i.name.clone(), value })
    });
    Ok(Imported {
        params: params.collect::<Result<_, _>>()?,
        guards: guards.collect(),
        structure: raw.structure.clone(),
        graph: converted.graph,
    })
}
