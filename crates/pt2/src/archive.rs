//! The zip: its entries as bytes and JSON, and tensors from their storages.
//!
//! All paths are below one folder, which holds `archive_format`. An entry of a tensor is its whole storage; size,
//! strides and offset are in the program's payload, so several tensors may share an entry.
//!
//! The file is mapped into memory, and tensors lie in the map: PyTorch stores entries as they are, at multiples of 64
//! bytes. So pages are read when they are used, and processes share them. Tensors are copied if their elements are not
//! dense or not aligned, if they are bools, which are checked, or if the file cannot be mapped. The zip's checksum is
//! checked of entries that are read, not of mapped ones.
use crate::schema::{Payload, PayloadConfig};
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{DType, Tensor, Type, infer::check_type, memory};
use memmap2::Mmap;
use serde::de::DeserializeOwned;
use std::{fs::File, io::Read, ops::Range, path::Path, sync::Arc};
use zip::{CompressionMethod, ZipArchive, read::ZipFile};

pub struct Archive {
    zip: ZipArchive<File>,
    /// The file, where the system can map it.
    map: Option<Arc<Mmap>>,
    root: String,
    path: String,
}

/// A tensor of the archive: a strided view of a storage.
#[derive(Debug)]
pub struct Stored {
    /// As the program names it, such as `encoder.weight`.
    pub name: String,
    /// Below the archive's folder.
    pub entry: String,
    pub ty: Type,
    /// In elements.
    pub strides: Vec<i64>,
    pub offset: i64,
}

impl Archive {
    pub fn open(path: &Path) -> Result<Archive, ImportErrors> {
        let path = path.display().to_string();
        let file = File::open(&path).map_err(|e| Problem::new(format!("cannot open {path}: {e}")))?;
        let not_one = |what: &str| {
            Problem::new(format!("{path} is not a .pt2 archive: {what}")).help(
                "write one with `torch.export.save(torch.export.export(model, inputs).run_decompositions({}), \
                 \"model.pt2\")`",
            )
        };
        // SAFETY: as with every mapped file, its bytes stay as they are while the map lives only if nothing writes into
        // the file or cuts it; `Exported` and the guide say so. Nothing here depends on what the bytes are once they
        // are checked: floats and integers have no invalid values, and bools are copied.
        let map = unsafe { Mmap::map(&file) }.ok().map(Arc::new);
        let zip = ZipArchive::new(file).map_err(|e| not_one(&e.to_string()))?;
        let root = zip.file_names().find_map(|n| Some(n.strip_suffix("archive_format")?.to_string()));
        let root = root.ok_or_else(|| not_one("it has no entry archive_format"))?;
        let mut archive = Archive { zip, map, root, path: path.clone() };
        if archive.bytes("archive_format")? != b"pt2" {
            return Err(not_one("its format is another").into());
        }
        if archive.bytes("byteorder")? != b"little" {
            return Err(not_one("it was written by a big-endian machine").into());
        }
        Ok(archive)
    }
    /// The names of the programs: files of the folder `models`.
    pub fn programs(&self) -> Vec<String> {
        let folder = format!("{}models/", self.root);
        let name = |n: &str| Some(n.strip_prefix(&folder)?.strip_suffix(".json")?.to_string());
        self.zip.file_names().filter_map(name).collect()
    }
    /// An entry, which is stored as it is, and what to say if its content is not to be had.
    fn entry(&mut self, name: &str) -> Result<(ZipFile<'_, File>, impl Fn(String) -> Problem + use<>), Problem> {
        let what = format!("{}: entry {name}", self.path);
        let broken = move |why: String| Problem::new(format!("{what}: {why}")).help("save the program again");
        let entry = self.zip.by_name(&format!("{}{name}", self.root)).map_err(|e| broken(e.to_string()))?;
        match entry.compression() {
            CompressionMethod::Stored => Ok((entry, broken)),
            _ => Err(broken("is compressed; entries of .pt2 archives are stored".into())),
        }
    }
    fn bytes(&mut self, name: &str) -> Result<Vec<u8>, ImportErrors> {
        let (mut entry, broken) = self.entry(name)?;
        let size = entry.size() as usize;
        memory::require(size, "an entry of the archive").map_err(|e| broken(e.to_string()))?;
        let mut bytes = Vec::with_capacity(size);
        entry.read_to_end(&mut bytes).map_err(|e| broken(e.to_string()))?;
        Ok(bytes)
    }
    pub fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ImportErrors> {
        let bytes = self.bytes(name)?;
        let unread = |e| Problem::new(format!("{}: {name} does not follow the schema: {e}", self.path));
        serde_json::from_slice(&bytes).map_err(|e| {
            unread(e).help("export again with PyTorch 2.9 or later; if it is as new, please report it").into()
        })
    }
    /// Where the tensors of a folder are; an archive without any has no such file.
    pub fn payloads(&mut self, folder: &str, program: &str) -> Result<PayloadConfig, ImportErrors> {
        let config = format!("data/{folder}/{program}_{folder}_config.json");
        let pickled = format!("data/{folder}/{program}.pt");
        let has = |name: &str| self.zip.index_for_name(&format!("{}{name}", self.root)).is_some();
        if has(&pickled) && !has(&config) {
            let what =
                format!("{}: its {folder} are one pickled file, {pickled}, as PyTorch 2.8 writes them", self.path);
            return Err(Problem::new(what).help("save the program with PyTorch 2.9 or later").into());
        }
        self.json(&config)
    }
    /// Where an entry lies in the map; `None` without a map.
    fn mapped(&mut self, name: &str) -> Result<Option<Range<usize>>, Problem> {
        let Some(size) = self.map.as_ref().map(|m| m.len()) else { return Ok(None) };
        let (entry, broken) = self.entry(name)?;
        let start = entry.data_start().and_then(|at| usize::try_from(at).ok());
        let end = start.and_then(|at| at.checked_add(usize::try_from(entry.size()).ok()?));
        let range = start.zip(end).filter(|(_, end)| *end <= size).map(|(start, end)| start..end);
        range.map(Some).ok_or_else(|| broken("reaches beyond the end of the file".into()))
    }
    /// The tensor as dense data: in the map, or a copy.
    pub fn tensor(&mut self, stored: &Stored) -> Result<Tensor, ImportErrors> {
        let wrong = |path: &str, what| Problem::new(format!("{path}: tensor {}: {what}", stored.name));
        let (Some(range), Some(map)) = (self.mapped(&stored.entry)?, &self.map) else {
            let bytes = self.bytes(&stored.entry)?;
            return dense(&bytes, stored).map_err(|what| wrong(&self.path, what).into());
        };
        let storage = &map[range];
        let found = match place(storage.len(), stored).map_err(|what| wrong(&self.path, what))? {
            Some(place) if stored.ty.dtype != DType::Bool => {
                let at = storage[place].as_ptr();
                // SAFETY: the elements are dense in the map, which the tensor keeps; `Archive::open` says when it stays
                // as it is.
                Ok(unsafe { Tensor::foreign(stored.ty.clone(), at, map.clone()) })
            }
            _ => dense(storage, stored),
        };
        found.map_err(|what| wrong(&self.path, what).into())
    }
}

impl Payload {
    /// The entry, unless its content is pickled, which means a tensor subclass or another object.
    pub fn entry(&self, folder: &str) -> Option<String> {
        (!self.use_pickle).then(|| format!("data/{folder}/{}", self.path_name))
    }
}

/// The dtype of the schema's number (`ScalarType`); not ATen's number.
pub fn dtype(number: u32) -> Option<DType> {
    Some(match number {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        12 => DType::Bool,
        13 => DType::Bf16,
        29 => DType::F8e4m3,
        30 => DType::F8e5m2,
        _ => return None,
    })
}

/// The name of the complex dtype with the schema's number, and the type of its parts.
pub fn complex(number: u32) -> Option<(&'static str, DType)> {
    match number {
        10 => Some(("complex64", DType::F32)),
        11 => Some(("complex128", DType::F64)),
        _ => None,
    }
}

/// Where in a storage of so many bytes the elements are, if they are dense and in row-major order. Fails if they are
/// beyond it.
fn place(storage: usize, stored: &Stored) -> Result<Option<Range<usize>>, String> {
    let (ty, width) = (&stored.ty, stored.ty.dtype.bytes());
    check_type(ty)?;
    if ty.count() == 0 {
        return Ok(Some(0..0));
    }
    let reach = |n: (&usize, &i64)| (*n.0 as i128 - 1) * *n.1 as i128;
    let last = stored.offset as i128 + ty.shape.iter().zip(&stored.strides).map(reach).sum::<i128>();
    let valid = stored.offset >= 0 && stored.strides.iter().all(|s| *s >= 0) && stored.strides.len() == ty.rank();
    if !valid || (last + 1) * width as i128 > storage as i128 {
        return Err(format!("reaches beyond its storage of {storage} bytes"));
    }
    let start = stored.offset as usize * width;
    let row_major =
        ty.strides().iter().zip(&stored.strides).zip(&ty.shape).all(|((own, s), n)| *own as i64 == *s || *n == 1);
    Ok(row_major.then(|| start..start + ty.bytes()))
}

/// Elements of a storage in row-major order, copied.
fn dense(storage: &[u8], stored: &Stored) -> Result<Tensor, String> {
    let (ty, width) = (&stored.ty, stored.ty.dtype.bytes());
    let place = place(storage.len(), stored)?;
    let mut out = Tensor::try_zeros(ty.clone(), &stored.name).map_err(|e| e.to_string())?;
    match place {
        Some(place) => out.bytes_mut().copy_from_slice(&storage[place]),
        None => gather(storage, stored, width, &mut out),
    }
    if ty.dtype == DType::Bool && out.bytes().iter().any(|b| *b > 1) {
        return Err("holds bools that are neither 0 nor 1".into());
    }
    Ok(out)
}

/// Copies the elements of a strided view, which lie within the storage ([`place`]).
fn gather(storage: &[u8], stored: &Stored, width: usize, out: &mut Tensor) {
    let (ty, start) = (&stored.ty, stored.offset as usize * width);
    let mut at = vec![0usize; ty.rank()];
    for element in out.bytes_mut().chunks_exact_mut(width) {
        let from: usize = at.iter().zip(&stored.strides).map(|(i, s)| i * *s as usize).sum();
        element.copy_from_slice(&storage[start + from * width..][..width]);
        for (i, n) in at.iter_mut().zip(&ty.shape).rev() {
            *i += 1;
            if *i < *n {
                break;
            }
            *i = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_a_storage_become_dense_or_are_refused() {
        let storage: Vec<u8> = (0..12).collect();
        let view = |shape: &[usize], strides: &[i64], offset: i64| {
            let ty = Type::new(DType::U8, shape);
            dense(&storage, &Stored { name: "w".into(), entry: String::new(), ty, strides: strides.to_vec(), offset })
        };
        let bytes = |t: Result<Tensor, String>| t.unwrap().bytes().to_vec();
        assert_eq!(bytes(view(&[3, 4], &[4, 1], 0)), storage);
        assert_eq!(bytes(view(&[2, 3], &[1, 4], 1)), [1, 5, 9, 2, 6, 10]);
        assert_eq!(bytes(view(&[2, 2], &[0, 1], 4)), [4, 5, 4, 5]);
        assert_eq!(bytes(view(&[], &[], 7)), [7]);
        assert_eq!(bytes(view(&[0, 5], &[5, 1], 90)), [0u8; 0]);
        let bools = |bytes: &[u8]| {
            let ty = Type::new(DType::Bool, [bytes.len()]);
            dense(bytes, &Stored { name: "mask".into(), entry: String::new(), ty, strides: vec![1], offset: 0 })
        };
        assert!(bools(&[0, 1, 1]).is_ok());
        assert!(bools(&[0, 2]).is_err_and(|e| e.contains("neither 0 nor 1")));
        for (shape, strides, offset) in [
            (&[3, 4][..], &[4, 1][..], 1),
            (&[2], &[12], 0),
            (&[2], &[-1], 3),
            (&[1], &[1], -1),
            (&[1 << 40, 1 << 40], &[0, 0], 0),
        ] {
            assert!(view(shape, strides, offset).is_err(), "{shape:?} {strides:?} {offset}");
        }
    }
}
