//! The zip: its entries as bytes and JSON, and tensors from their storages.
//!
//! All paths are below one folder, which holds `archive_format`. An entry of a tensor is its whole storage; size, strides and offset are in
//! the program's payload, so several tensors may share an entry.
use crate::schema::{Payload, PayloadConfig};
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{DType, Tensor, Type, memory};
use serde::de::DeserializeOwned;
use std::{fs::File, io::Read, path::Path};
use zip::{CompressionMethod, ZipArchive};

pub struct Archive {
    zip: ZipArchive<File>,
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
            Problem::new(format!("{path} is not a .pt2 archive: {what}"))
                .help("write one with `torch.export.save(torch.export.export(model, inputs).run_decompositions({}), \"model.pt2\")`")
        };
        let zip = ZipArchive::new(file).map_err(|e| not_one(&e.to_string()))?;
        let root = zip.file_names().find_map(|n| Some(n.strip_suffix("archive_format")?.to_string()));
        let root = root.ok_or_else(|| not_one("it has no entry archive_format"))?;
        let mut archive = Archive { zip, root, path: path.clone() };
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
    fn bytes(&mut self, name: &str) -> Result<Vec<u8>, ImportErrors> {
        let at = format!("{}{name}", self.root);
        let broken =
            |what: String| Problem::new(format!("{}: entry {name}: {what}", self.path)).help("save the program again");
        let mut entry = self.zip.by_name(&at).map_err(|e| broken(e.to_string()))?;
        if entry.compression() != CompressionMethod::Stored {
            return Err(broken("is compressed; entries of .pt2 archives are stored".into()).into());
        }
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
            unread(e).help("export again with PyTorch 2.8 or later; if it is as new, please report it").into()
        })
    }
    /// Where the tensors of a folder are; an archive without any has no such file.
    pub fn payloads(&mut self, folder: &str, program: &str) -> Result<PayloadConfig, ImportErrors> {
        self.json(&format!("data/{folder}/{program}_{folder}_config.json"))
    }
    /// The tensor as dense data.
    pub fn tensor(&mut self, stored: &Stored) -> Result<Tensor, ImportErrors> {
        let bytes = self.bytes(&stored.entry)?;
        dense(&bytes, stored)
            .map_err(|what| Problem::new(format!("{}: tensor {}: {what}", self.path, stored.name)).into())
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

/// Elements of a storage in row-major order.
fn dense(storage: &[u8], stored: &Stored) -> Result<Tensor, String> {
    let (ty, width) = (&stored.ty, stored.ty.dtype.bytes());
    let mut out = Tensor::try_zeros(ty.clone(), &stored.name).map_err(|e| e.to_string())?;
    if ty.count() == 0 {
        return Ok(out);
    }
    let reach = |n: (&usize, &i64)| (*n.0 as i128 - 1) * *n.1 as i128;
    let last = stored.offset as i128 + ty.shape.iter().zip(&stored.strides).map(reach).sum::<i128>();
    let valid = stored.offset >= 0 && stored.strides.iter().all(|s| *s >= 0) && stored.strides.len() == ty.rank();
    if !valid || (last + 1) * width as i128 > storage.len() as i128 {
        return Err(format!("reaches beyond its storage of {} bytes", storage.len()));
    }
    let start = stored.offset as usize * width;
    if ty.strides().iter().zip(&stored.strides).zip(&ty.shape).all(|((own, s), n)| *own as i64 == *s || *n == 1) {
        out.bytes_mut().copy_from_slice(&storage[start..start + ty.bytes()]);
        return Ok(out);
    }
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
    Ok(out)
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
        for (shape, strides, offset) in
            [(&[3, 4][..], &[4, 1][..], 1), (&[2], &[12], 0), (&[2], &[-1], 3), (&[1], &[1], -1)]
        {
            assert!(view(shape, strides, offset).is_err(), "{shape:?} {strides:?} {offset}");
        }
    }
}
