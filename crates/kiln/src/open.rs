//! Detects what a file contains, and opens models and programs: from torch.export or TorchScript, a text graph, or an
//! artifact.
use crate::{
    Error, Model, artifact, launches,
    program::{Input, InputKind, Program, Sizes},
    recognise, torch,
};
use kiln_graph::{Tensor, Type};
use std::{fs::File, io::Read, path::Path};

/// What a file contains, detected from its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A zip archive that `torch.jit.save` wrote.
    TorchScript,
    /// A zip archive that `torch.export.save` wrote.
    ExportedProgram,
    /// What `kiln compile` wrote.
    Artifact,
    /// A graph as text.
    GraphText,
    /// A plan as text.
    PlanText,
    /// Block programs as text.
    BlockText,
    /// What `explain --json` wrote.
    Report,
}

/// Bytes read to distinguish text from binary data.
const SNIFFED: u64 = 4096;

impl FileKind {
    /// With its article, for messages.
    pub fn words(self) -> &'static str {
        match self {
            FileKind::TorchScript => "a TorchScript archive",
            FileKind::ExportedProgram => "a program of torch.export",
            FileKind::Artifact => "an artifact",
            FileKind::GraphText => "a text graph",
            FileKind::PlanText => "a plan",
            FileKind::BlockText => "a block program",
            FileKind::Report => "a report of `kiln explain --json`",
        }
    }
    /// Reads a zip's directory, or a whole text. For a file of another known format the error names it and says how to
    /// make a model of it.
    pub fn of(path: &Path) -> Result<FileKind, Error> {
        use FileKind::{Artifact, GraphText, TorchScript};
        let reading = |e| Error::reading(path, e);
        if path.is_dir() {
            return Err(recognise::folder(path, |p| matches!(FileKind::of(p), Ok(Artifact | GraphText | TorchScript))));
        }
        let mut file = File::open(path).map_err(reading)?;
        let mut start = vec![];
        file.by_ref().take(artifact::START).read_to_end(&mut start).map_err(reading)?;
        if start.starts_with(b"PK") {
            return match artifact::is_artifact(&start) {
                true => Ok(FileKind::Artifact),
                false => Ok(match recognise::zip(path)? {
                    recognise::Archive::TorchScript => FileKind::TorchScript,
                    recognise::Archive::ExportedProgram => FileKind::ExportedProgram,
                }),
            };
        }
        // Kiln's own files are text. Other files may be large, so only their start is read.
        file.by_ref().take(SNIFFED).read_to_end(&mut start).map_err(reading)?;
        let is_text =
            std::str::from_utf8(&start).map_or_else(|e| e.error_len().is_none(), |_| true) && !start.contains(&0);
        let neither = || {
            Error::failed(
                format!("{} is neither a TorchScript archive nor a Kiln file", path.display()),
                "give a .pt file written by torch.jit.save, or a .kiln text graph, which begins with `graph NAME(…)`",
            )
        };
        if !is_text {
            return Err(recognise::other(path, &start).unwrap_or_else(neither));
        }
        file.read_to_end(&mut start).map_err(reading)?;
        let text = String::from_utf8_lossy(&start);
        let first = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#') && !l.starts_with(';'));
        match first.and_then(|l| l.split_whitespace().next()) {
            Some("graph") => Ok(FileKind::GraphText),
            Some("plan") => Ok(FileKind::PlanText),
            Some("kernel") => Ok(FileKind::BlockText),
            Some(word) if word.starts_with('{') => Ok(FileKind::Report),
            _ => Err(recognise::other(path, &start).unwrap_or_else(neither)),
        }
    }
}

impl Program {
    /// Opens a `.pt2` archive, an artifact or a text graph. The weights of a `.pt2` lie in its file, which is mapped:
    /// while the program or a session of it lives, nothing may write into the file or cut it. Another file may be
    /// renamed to its place.
    ///
    /// # Errors
    /// [`Error::Usage`] if the file holds something else, and others if it cannot be read, each with what to do.
    pub fn open(path: &Path) -> Result<Program, Error> {
        match FileKind::of(path)? {
            FileKind::ExportedProgram => Program::exported(path),
            FileKind::Artifact => Program::from_artifact(artifact::read(path)?),
            FileKind::GraphText => Program::from_model(Model::from_text(path)?),
            FileKind::TorchScript => Err(Error::usage(
                format!("{} holds a TorchScript archive, which does not say what its inputs are", path.display()),
                "save the model with torch.export.save, or compile the archive to an artifact with `kiln compile`",
            )),
            kind => Err(Error::usage(
                format!("{} holds {}, not a model", path.display(), kind.words()),
                "give a .pt2 archive of torch.export, an artifact of `kiln compile`, or a text graph",
            )),
        }
    }
}

/// Names of the tensors that a program of torch.export or an archive of TorchScript takes, in order, as its module has
/// them; none for other files, and for archives whose arguments are not tensors.
///
/// # Errors
/// If the file cannot be read.
pub fn input_names(path: &Path) -> Result<Vec<String>, Error> {
    match FileKind::of(path)? {
        FileKind::ExportedProgram => {
            let program = Program::exported(path)?;
            let is_tensor = |i: &&Input| matches!(i.kind, InputKind::Value(_));
            Ok(program.inputs().iter().filter(is_tensor).map(|i| i.name.clone()).collect())
        }
        FileKind::TorchScript => {
            let arguments = torch::torch()?.arguments(path).map_err(torch::failed)?;
            let is_plain = arguments.iter().all(|a| matches!(a.ty.as_str(), "Tensor" | "int" | "float" | "bool"));
            Ok(if is_plain { arguments.into_iter().map(|a| a.name).collect() } else { vec![] })
        }
        _ => Ok(vec![]),
    }
}

impl Model {
    /// Opens `path`. An archive of TorchScript needs example inputs: its graph is specialised to their types.
    pub fn open(path: &Path, inputs: &[Tensor]) -> Result<Model, Error> {
        Model::open_at(path, inputs, &Sizes::new())
    }
    /// The same, with sizes of the symbolic dimensions of a `.pt2` program by name ([`Program::sizes`]).
    pub fn open_at(path: &Path, inputs: &[Tensor], sizes: &Sizes) -> Result<Model, Error> {
        let start = std::time::Instant::now();
        let kind = FileKind::of(path)?;
        if kind != FileKind::ExportedProgram && !sizes.is_empty() {
            let what = format!("{} holds {}, whose sizes are fixed", path.display(), kind.words());
            return Err(Error::usage(
                what,
                "leave out --dim, or give a .pt2 program that was exported with `dynamic_shapes`",
            ));
        }
        let mut model = match kind {
            FileKind::TorchScript => Model::import(path, inputs)?,
            FileKind::ExportedProgram => Model::exported(path, inputs, sizes)?,
            FileKind::GraphText => Model::from_text(path)?,
            FileKind::Artifact => artifact::read(path)?.model,
            kind => {
                return Err(Error::usage(
                    format!("{} holds {}, not a model", path.display(), kind.words()),
                    "give a .pt archive or a text graph; `kiln print` and `kiln opt` take plans and block programs",
                ));
            }
        };
        model.import_s = start.elapsed().as_secs_f64();
        model.check_inputs(inputs)?;
        Ok(model)
    }
    /// A program of torch.export, for the sizes of these inputs or else those at export. Nothing of it is run.
    fn exported(path: &Path, inputs: &[Tensor], sizes: &Sizes) -> Result<Model, Error> {
        let types: Vec<Type> = inputs.iter().map(|t| t.ty.clone()).collect();
        let program = Program::exported(path)?;
        program.at(&program.sizes(sizes, &types)?)
    }
    fn from_text(path: &Path) -> Result<Model, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|_| Error::failed(format!("{} is not UTF-8 text", path.display()), "give a text graph"))?;
        let mut read = |file: &str| {
            let path = path.parent().unwrap_or(Path::new("")).join(file);
            let helped =
                |e| format!("{}: {e}; give the path of a block program, from this file's folder", path.display());
            std::fs::read_to_string(&path).map_err(helped)
        };
        let graph = kiln_graph::text::parse_with(&text, &mut read).map_err(|e| {
            Error::caused(format!("{}: {e}", path.display()), "correct the line that the message names", e)
        })?;
        launches::check_text(&graph, &text).map_err(|e| e.retold(|what| format!("{}: {what}", path.display())))?;
        Ok(Model { path: path.into(), ..Model::from_graph(graph)? })
    }
    fn import(path: &Path, inputs: &[Tensor]) -> Result<Model, Error> {
        let named = |e: Error| match e {
            runtime @ Error::Runtime(_) => runtime,
            other => other.retold(|what| format!("{}: {what}", path.display())),
        };
        let imported = torch::import(path, inputs).map_err(named)?;
        let guards = imported.guards.iter().map(|g| (g.input, g.value)).collect();
        Ok(Model {
            params: imported.params,
            path: path.into(),
            archive: Some(path.into()),
            guards,
            ..Model::of(imported.graph)
        })
    }
}
