//! Reads and writes tensors in safetensors files, named "0", "1", … in order, or by the names of inputs; makes random
//! inputs; writes files whole or not at all.
use crate::Error;
use kiln_graph::{DType, Random, Tensor, Type};
use safetensors::{Dtype as StDtype, SafeTensorError, SafeTensors, tensor::TensorView};
use std::{
    io::{Read, Write},
    path::Path,
};

#[doc(hidden)]
pub fn dtype(d: StDtype) -> Option<DType> {
    DType::of_safetensors_name(&d.to_string())
}
/// A tensor as a view that safetensors can write.
#[doc(hidden)]
pub fn view(t: &Tensor) -> Result<TensorView<'_>, SafeTensorError> {
    let dtype: StDtype = serde_json::from_value(t.ty.dtype.safetensors_name().into())?;
    TensorView::new(dtype, t.ty.shape.clone(), t.bytes())
}

/// Reads tensors "0", "1", … ; other names are an error, so that a misnamed input is not silently ignored.
pub fn read(path: &Path) -> Result<Vec<Tensor>, Error> {
    read_named(path, || Ok(vec![]))
}
/// Reads tensors "0", "1", …, or those of these names, which are asked for where none is named "0". Gives them in
/// order.
///
/// # Errors
/// If the file cannot be read, a name is missing, or a tensor has none of the names.
pub fn read_named(path: &Path, names: impl FnOnce() -> Result<Vec<String>, Error>) -> Result<Vec<Tensor>, Error> {
    let bytes = whole(path)?;
    let help = "write it with safetensors.torch.save_file({\"0\": first, \"1\": second, …}, path)";
    let bad = |what: String| Error::failed(format!("{} is not a usable inputs file: {what}", path.display()), help);
    let file = SafeTensors::deserialize(&bytes).map_err(|e| bad(format!("not safetensors ({e})")))?;
    let numbers = || (0..file.len()).map(|i| i.to_string()).collect();
    let names: Vec<String> = match file.is_empty() || file.tensor("0").is_ok() {
        true => numbers(),
        false => match names()? {
            none if none.is_empty() => numbers(),
            names => names,
        },
    };
    let known = |name: &str| names.iter().any(|n| n == name);
    let all = || {
        let mut all: Vec<&str> = file.names();
        all.sort_unstable();
        format!("it has {} ({})", kiln_graph::count(file.len(), "tensor"), all.join(", "))
    };
    if let Some(name) = file.names().into_iter().find(|n| !known(n)) {
        let wanted = names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ");
        return Err(bad(format!("{}, but \"{name}\" is no input: those are {wanted}, or numbers", all())));
    }
    // Arguments with defaults may be left out at the end.
    let given = names.iter().rposition(|n| file.tensor(n).is_ok()).map_or(names.len(), |last| last + 1);
    let mut out = vec![];
    for name in &names[..given] {
        let Ok(view) = file.tensor(name) else {
            return Err(bad(format!("{} but none is named \"{name}\"", all())));
        };
        let d = dtype(view.dtype())
            .ok_or_else(|| bad(format!("tensor \"{name}\" is {:?}; known are {}", view.dtype(), DType::names())))?;
        let ty = Type::new(d, view.shape().to_vec());
        kiln_graph::memory::require(view.data().len(), &format!("tensor \"{name}\" of {}", path.display()))
            .map_err(Error::memory)?;
        out.push(Tensor::from_bytes(ty, view.data()).ok_or_else(|| bad(format!("tensor \"{name}\" is truncated")))?);
    }
    Ok(out)
}

/// A file's bytes; fails if there is not enough memory for them.
fn whole(path: &Path) -> Result<Vec<u8>, Error> {
    let mut file = std::fs::File::open(path).map_err(|e| Error::reading(path, e))?;
    let size = file.metadata().map_err(|e| Error::reading(path, e))?.len();
    let bytes = usize::try_from(size).unwrap_or(usize::MAX);
    let mut all = kiln_graph::memory::reserve(bytes, &path.display().to_string()).map_err(Error::memory)?;
    file.read_to_end(&mut all).map_err(|e| Error::reading(path, e))?;
    Ok(all)
}

/// Writes tensors "0", "1", … to a temporary file next to `path`, which is then renamed, so that no half-written file
/// is left.
pub fn write(path: &Path, tensors: &[Tensor]) -> Result<(), Error> {
    let views: Result<Vec<(String, TensorView<'_>)>, _> =
        tensors.iter().enumerate().map(|(i, t)| view(t).map(|v| (i.to_string(), v))).collect();
    let bytes = views
        .and_then(|v| safetensors::serialize(v, None))
        .map_err(|e| Error::failed(format!("cannot encode the outputs: {e}"), "report this with the model"))?;
    write_whole(path, &bytes)
}

/// Writes a file completely or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let wrap = |e: std::io::Error| Error::writing(path, e);
    if path.is_dir() {
        return Err(Error::failed(format!("cannot write {}: it is a folder", path.display()), "name a file in it"));
    }
    // A device such as /dev/null is written in place.
    if path.exists() && !path.is_file() {
        return std::fs::write(path, bytes).map_err(wrap);
    }
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(wrap)?;
    file.write_all(bytes).map_err(wrap)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644));
    }
    file.persist(path).map_err(|e| wrap(e.error))?;
    Ok(())
}

/// A random input: normal for floats, uniform in `0..limit` for integers, even odds for bool. The same on every
/// machine.
pub fn random(ty: &Type, limit: i64, seed: u64) -> Tensor {
    /// Least number of elements for which a thread is started.
    const LEAST: usize = 1 << 16;
    let mut all = Tensor::zeros(ty.clone());
    let (bytes, chunk) = (ty.dtype.bytes(), ty.count().div_ceil(crate::cores::cores()).max(LEAST));
    std::thread::scope(|s| {
        for (n, out) in all.bytes_mut().chunks_mut(chunk * bytes).enumerate() {
            let part = Type::new(ty.dtype, [out.len() / bytes]);
            let work = move || out.copy_from_slice(random_from(part, limit, seed, n * chunk).bytes());
            if chunk < ty.count() { drop(s.spawn(work)) } else { work() }
        }
    });
    all
}

/// The elements of a random input that begin at index `first`.
fn random_from(ty: Type, limit: i64, seed: u64, first: usize) -> Tensor {
    let float = ty.dtype.is_float();
    let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1));
    random.skip(first as u64 * if float { 2 } else { 1 });
    let limit = if ty.dtype == DType::Bool { 2 } else { limit.max(1) };
    let mut t = Tensor::zeros(ty);
    for i in 0..t.ty.count() {
        if float {
            // Box-Muller.
            let (u, v) = (1.0 - random.uniform(), random.uniform());
            t.set_f64(i, (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos());
        } else {
            t.set_i64(i, (random.uniform() * limit as f64) as i64);
        }
    }
    t
}

/// `f32[8,128]` or `i64[2,32]<30522` (integers below a limit; 2 if none is given).
pub fn parse_input(text: &str) -> Result<(Type, i64), Error> {
    let wrong = |why: String| Error::usage(why, "write inputs as 'f32[8,128]', integers as 'i64[2,32]<30522'");
    let (ty, limit) = match text.split_once('<') {
        None => (text, 2),
        Some((ty, n)) => {
            (ty, n.trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| wrong(format!("`{n}` is not a limit")))?)
        }
    };
    Ok((ty.parse().map_err(wrong)?, limit))
}

/// The random input that `text` describes ([`parse_input`]); fails if there is not enough memory for it.
pub fn described(text: &str, seed: u64) -> Result<Tensor, Error> {
    let (ty, limit) = parse_input(text)?;
    kiln_graph::memory::require(ty.bytes(), &format!("an input {ty}")).map_err(Error::memory)?;
    Ok(random(&ty, limit, seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_every_type_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("all.safetensors");
        let all = DType::ALL.map(|d| random(&Type::new(d, [3, 5]), 2, 1));
        write(&path, &all).expect("a file");
        assert_eq!(read(&path).expect("tensors"), all);
    }

    #[test]
    fn tensors_are_found_by_number_or_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("named.safetensors");
        let one = |n: f64| Tensor::from_f64(Type::new(DType::F32, [1]), [n]);
        let read_as = |tensors: &[(&str, f64)], names: &[&str]| {
            let tensors: Vec<(&str, Tensor)> = tensors.iter().map(|(name, n)| (*name, one(*n))).collect();
            let views: Vec<_> = tensors.iter().map(|(name, t)| (*name, view(t).expect("a view"))).collect();
            write_whole(&path, &safetensors::serialize(views, None).expect("encoded")).expect("a file");
            let names = names.iter().map(|n| n.to_string()).collect();
            read_named(&path, || Ok(names)).map_err(|e| e.to_string())
        };
        let names = ["x", "mask", "scale"];
        assert_eq!(
            read_as(&[("mask", 2.0), ("x", 1.0), ("scale", 3.0)], &names),
            Ok([1.0, 2.0, 3.0].map(one).to_vec())
        );
        assert_eq!(read_as(&[("1", 2.0), ("0", 1.0)], &names), Ok([1.0, 2.0].map(one).to_vec()));
        // Those at the end may have defaults.
        assert_eq!(read_as(&[("x", 1.0)], &names), Ok(vec![one(1.0)]));
        let missing = read_as(&[("x", 1.0), ("scale", 3.0)], &names).expect_err("no mask");
        assert!(missing.contains("none is named \"mask\""), "{missing}");
        let unknown = read_as(&[("x", 1.0), ("maks", 2.0)], &names).expect_err("a typing error");
        assert!(unknown.contains("\"maks\" is no input: those are \"x\", \"mask\", \"scale\""), "{unknown}");
        let unnamed = read_as(&[("x", 1.0)], &[]).expect_err("a graph has numbers alone");
        assert!(unnamed.contains("\"x\" is no input: those are \"0\""), "{unnamed}");
    }

    #[test]
    fn random_inputs_do_not_depend_on_the_threads_that_fill_them() {
        for ty in ["f32[3,70001]", "i64[200000]", "bool[140000]"] {
            let ty: Type = ty.parse().expect("a type");
            let whole = random_from(ty.clone(), 5, 9, 0);
            assert!(random(&ty, 5, 9).bytes() == whole.bytes(), "{ty}");
        }
    }
}
