//! Recognises files that users pass in place of a model, by content, never by name, and answers with the lines of
//! Python that make an archive of them. Takes a path, gives an error. Reads only as much of the file as needed, and
//! never runs code in it.
mod pickle;

use crate::Error;
use pickle::Top;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufReader, Read, Seek},
    path::Path,
};
use zip::ZipArchive;

/// A zip that holds a model.
pub enum Archive {
    /// `torch.jit.save` wrote it.
    TorchScript,
    /// `torch.export.save` wrote it.
    ExportedProgram,
}

/// The Python line that writes an archive of a module.
const SAVE: &str = "torch.jit.trace(model, inputs).save(\"model.pt\")";

/// The error: `what` is wrong with `path`, and `lines` of Python that fix it, introduced by `lead`.
fn answer(path: &Path, what: &str, lead: &str, lines: &[&str]) -> Error {
    let lines: String = lines.iter().map(|l| format!("\n    {l}")).collect();
    Error::failed(format!("{} {what}", path.display()), format!("{lead}{lines}"))
}

/// A path as a Python string literal.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// The error for a file of weights; `load`: the Python line that loads them into a model.
fn weights(path: &Path, what: &str, load: &str) -> Error {
    answer(path, what, "build the model in Python, give it these weights, and write an archive:", &[load, SAVE])
}

/// The error for a folder.
pub fn folder(path: &Path, is_model: impl Fn(&Path) -> bool) -> Error {
    let has = |name: &str| path.join(name).is_file();
    if has("config.json") {
        let line =
            format!("model = transformers.AutoModel.from_pretrained({}, return_dict=False).eval()", quoted(path));
        return answer(path, "is a folder of a transformers model, not an archive", "write one:", &[&line, SAVE]);
    }
    if has("saved_model.pb") {
        return Error::failed(
            format!("{} is a folder of a TensorFlow model", path.display()),
            "Kiln compiles PyTorch models; rebuild the model in PyTorch",
        );
    }
    let models = models_in(path, is_model);
    let help = match models.first() {
        Some(first) => format!("give one of its files, as {}", path.join(first).display()),
        None => format!("give a file; in Python:\n    {SAVE}"),
    };
    Error::failed(format!("cannot read {}: it is a folder, not a model", path.display()), help)
}

/// Names of a folder's files that hold archives or text graphs.
fn models_in(path: &Path, is_model: impl Fn(&Path) -> bool) -> BTreeSet<std::ffi::OsString> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    // Looks at no more than 100 files.
    let files = entries.filter(|e| e.path().is_file()).take(100);
    files.filter(|e| is_model(&e.path())).map(|e| e.file_name()).collect()
}

/// Checks a zip that is not an artifact: an error unless it is a TorchScript archive or a program of torch.export.
pub fn zip(path: &Path) -> Result<Archive, Error> {
    let file = File::open(path).map_err(|e| Error::reading(path, e))?;
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|e| {
        let text = format!("{} begins as a zip file, but cannot be read as one: {e}", path.display());
        Error::failed(text, "it may have been cut short: copy or save it again")
    })?;
    // All files of a PyTorch archive are in one folder of any name.
    let names: BTreeSet<String> = zip.file_names().map(String::from).collect();
    let inside = |name: &str| names.iter().find(|n| n.split_once('/').is_some_and(|n| n.1 == name)).cloned();
    if inside("constants.pkl").is_some() {
        return Ok(Archive::TorchScript);
    }
    if names.iter().any(|n| n.contains("data/aotinductor/")) {
        let what = "holds a model that AOTInductor has compiled: machine code, not a graph";
        return Err(answer(path, what, "write an archive of the model it was made from:", &[SAVE]));
    }
    if inside("archive_format").is_some() {
        return Ok(Archive::ExportedProgram);
    }
    if names.contains("serialized_exported_program.json") {
        let what = "is a program that torch.export of PyTorch before 2.8 saved";
        return Err(answer(path, what, "export the model again with PyTorch 2.8 or later, or trace it:", &[SAVE]));
    }
    if let Some(name) = inside("data.pkl") {
        let mut bytes = vec![];
        let read = zip.by_name(&name).map(|f| f.take(pickle::ENOUGH).read_to_end(&mut bytes));
        return match read {
            Ok(Ok(_)) => Err(pickled(path, &bytes, 0)),
            _ => Err(Error::failed(
                format!("{} is damaged: its data.pkl cannot be read", path.display()),
                "save it again",
            )),
        };
    }
    Err(answer(path, "is a zip file without a model", "give an archive:", &[SAVE]))
}

/// The error for a file written by `torch.save` or `pickle.dump`; the first `skip` pickles are not the object.
fn pickled(path: &Path, bytes: &[u8], skip: usize) -> Error {
    let file = quoted(path);
    // PyTorch's safe reader (`weights_only`) supports only protocols 2 and 3.
    let (safe, warning) = match bytes.get(1) {
        Some(4..) => (", weights_only=False", RUNS),
        _ => ("", ""),
    };
    let loaded = |part: &str| format!("model.load_state_dict(torch.load({file}{safe}){part}); model.eval(){warning}");
    match &pickle::top(bytes, skip) {
        Top::Weights => weights(path, "holds weights without a model (a state_dict)", &loaded("")),
        Top::Checkpoint(key) => weights(
            path,
            &format!("is a checkpoint: a dict with weights under {key:?}, without a model"),
            &loaded(&format!("[{key:?}]")),
        ),
        Top::Module(class) => {
            let line = format!("model = torch.load({file}, weights_only=False).eval(){RUNS}");
            let what = format!(
                "holds a pickled module ({class}), which is its weights and the name of its class, not a graph"
            );
            answer(path, &what, "write an archive, where the class can be imported:", &[&line, SAVE])
        }
        Top::Tensor => answer(path, "holds a tensor, not a model", "give the model's archive:", &[SAVE]),
        Top::Other(what) => {
            answer(path, &format!("holds a pickled {what}, not a model"), "give the model's archive:", &[SAVE])
        }
    }
}
/// Warning on a line that loads a pickle in full.
const RUNS: &str = "  # runs code that the file names";

/// The error for a file that is neither a zip nor one of Kiln's text forms; `start` is its beginning. `None`: not a
/// known format.
pub fn other(path: &Path, start: &[u8]) -> Option<Error> {
    let says = |what: &str, help: &str| Some(Error::failed(format!("{} {what}", path.display()), help));
    let text = String::from_utf8_lossy(start);
    if start.is_empty() {
        return says("is empty, and not a TorchScript archive", "write it again; a copy or a download may have failed");
    }
    if start.starts_with(b"GGUF") {
        let lines = "model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE, \
                     return_dict=False).eval()";
        let what = "holds quantised weights for llama.cpp (GGUF), not a graph";
        return Some(answer(path, what, "load them into the model they are of, and write an archive:", &[lines, SAVE]));
    }
    if let Some(skip) = pickle::begins(start) {
        let file = File::open(path).ok()?;
        let mut bytes = vec![];
        file.take(pickle::ENOUGH).read_to_end(&mut bytes).ok()?;
        return Some(pickled(path, &bytes, skip));
    }
    if let Some(names) = safetensors(path) {
        if names.iter().all(|n| n.parse::<usize>().is_ok()) {
            return says("holds input tensors, not a model", "give it as --inputs, and the model's archive as MODEL");
        }
        let load = format!("model.load_state_dict(safetensors.torch.load_file({})); model.eval()", quoted(path));
        return Some(weights(path, "holds weights without a model (safetensors)", &load));
    }
    if text.starts_with("version https://git-lfs.github.com/") {
        return says("is a Git LFS pointer in place of the file", "fetch the file itself: `git lfs pull`");
    }
    let first = text.trim_start().to_lowercase();
    if first.starts_with("<!doctype html") || first.starts_with("<html") {
        return says(
            "is a web page, not a model",
            "a download went wrong: look at it in a browser, then download again",
        );
    }
    if onnx(path) {
        let what = "is an ONNX model, which Kiln does not read";
        let line = "model = Model(…); model.eval()  # the PyTorch model that it was exported from";
        return Some(answer(path, what, "write an archive of the PyTorch model:", &[line, SAVE]));
    }
    let python = |l: &str| l.starts_with("import ") || (l.starts_with("from ") && l.contains(" import "));
    if text.lines().any(python) {
        let what = "is Python source, not a model";
        return Some(answer(
            path,
            what,
            "add this at its end, run it, and give what it writes:",
            &["model.eval()", SAVE],
        ));
    }
    None
}

/// Names of the tensors, if the file is a safetensors file.
fn safetensors(path: &Path) -> Option<Vec<String>> {
    let mut file = File::open(path).ok()?;
    let whole = file.metadata().ok()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    // The format's own limit on its header.
    let length = u64::from_le_bytes(length);
    if length > whole.checked_sub(8)?.min(100_000_000) {
        return None;
    }
    let header: serde_json::Value = serde_json::from_reader(file.take(length)).ok()?;
    let tensors = header.as_object()?.iter().filter(|(name, _)| *name != "__metadata__");
    tensors.map(|(name, t)| t.get("data_offsets").map(|_| name.clone())).collect()
}

/// Whether the whole file is a protobuf message like ONNX's: field 1 (version) is a number, field 7 (graph) a message,
/// and no field number is above 25. Skips contents by their lengths.
fn onnx(path: &Path) -> bool {
    let walk = || -> Option<bool> {
        let mut file = BufReader::new(File::open(path).ok()?);
        let whole = file.get_ref().metadata().ok()?.len();
        let (mut at, mut version, mut graph) = (0, false, false);
        while at < whole {
            let tag = varint(&mut file)?;
            match (tag >> 3, tag & 7) {
                (field @ 1..=25, 0) => {
                    version |= field == 1;
                    varint(&mut file)?;
                }
                (field @ 1..=25, 2) => {
                    graph |= field == 7;
                    let length = i64::try_from(varint(&mut file)?).ok()?;
                    file.seek_relative(length).ok()?;
                }
                _ => return None,
            }
            at = file.stream_position().ok()?;
        }
        Some(version && graph && at == whole)
    };
    walk().unwrap_or(false)
}

/// A protobuf varint: seven bits per byte, the lowest first.
fn varint(file: &mut impl Read) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        file.read_exact(&mut byte).ok()?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
