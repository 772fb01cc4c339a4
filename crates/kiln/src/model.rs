//! Models: a TorchScript archive, a text graph, or a compiled artifact.
use crate::{Error, artifact, io, recognise, torch};
use kiln_graph::{Graph, Op, Scalar, Tensor, Type, ValueId};
use std::{
    collections::HashSet,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// A graph with its weights, ready to compile.
pub struct Model {
    /// Ops and types.
    pub graph: Graph,
    /// Weights, in the order of the graph's parameters.
    pub params: Vec<Tensor>,
    /// The file it came from.
    pub path: PathBuf,
    /// The TorchScript archive that the user named, when libtorch can run the original.
    pub archive: Option<PathBuf>,
    /// What an artifact says that it was compiled from: for messages, never opened.
    pub compiled_from: Option<String>,
    /// Scalar arguments that the graph was specialised on: index of the input, and the one value it holds for.
    pub guards: Vec<(usize, Scalar)>,
    /// Seconds spent importing.
    pub import_s: f64,
}

/// What a file holds, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A zip archive that `torch.jit.save` wrote.
    TorchScript,
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

/// Bytes that tell text from data.
const SNIFFED: u64 = 4096;

impl FileKind {
    /// Reads a zip's directory, or the text whole. What is no file of Kiln's is named in the error, with what makes a model of it.
    pub fn of(path: &Path) -> Result<FileKind, Error> {
        let reading = |e| Error::reading(path, e);
        if path.is_dir() {
            return Err(recognise::folder(path));
        }
        let mut file = File::open(path).map_err(reading)?;
        let mut start = vec![];
        file.by_ref().take(artifact::START).read_to_end(&mut start).map_err(reading)?;
        if start.starts_with(b"PK") {
            return match artifact::is_artifact(&start) {
                true => Ok(FileKind::Artifact),
                false => recognise::zip(path).map(|()| FileKind::TorchScript),
            };
        }
        // Kiln's own files are text; of others, which may be large, the start is enough.
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

impl Model {
    /// Opens `path`. An archive needs example inputs: its graph is specialised to their types.
    pub fn open(path: &Path, inputs: &[Tensor]) -> Result<Model, Error> {
        let start = std::time::Instant::now();
        let mut model = match FileKind::of(path)? {
            FileKind::TorchScript => Model::import(path, inputs)?,
            FileKind::GraphText => Model::from_text(path)?,
            FileKind::Artifact => artifact::read(path)?.model,
            kind => {
                return Err(Error::usage(
                    format!("{} holds a {kind:?}, not a model", path.display()),
                    "give a .pt archive or a text graph; `kiln print` and `kiln opt` take plans and block programs",
                ));
            }
        };
        model.import_s = start.elapsed().as_secs_f64();
        model.check_inputs(inputs)?;
        Ok(model)
    }
    /// A graph made by hand, with its seeded parameters.
    pub fn from_graph(graph: Graph) -> Result<Model, Error> {
        kiln_graph::verify::verify(&graph).map_err(|e| {
            Error::caused(format!("the graph {} is wrong: {e}", graph.name), "mend the line it names", e)
        })?;
        kiln_graph::params::require(&graph).map_err(Error::memory)?;
        let params = kiln_graph::params::random_params(&graph);
        Ok(Model {
            graph,
            params,
            path: PathBuf::new(),
            archive: None,
            compiled_from: None,
            guards: vec![],
            import_s: 0.0,
        })
    }
    fn from_text(path: &Path) -> Result<Model, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|_| Error::failed(format!("{} is not UTF-8 text", path.display()), "give a text graph"))?;
        let graph = kiln_graph::text::parse(&text)
            .map_err(|e| Error::caused(format!("{}: {e}", path.display()), "mend the line it names", e))?;
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
            graph: imported.graph,
            params: imported.params,
            path: path.into(),
            archive: Some(path.into()),
            compiled_from: None,
            guards,
            import_s: 0.0,
        })
    }
    /// Element types and shapes, in the order of the inputs.
    pub fn input_types(&self) -> Vec<Type> {
        self.graph.inputs.iter().map(|v| self.graph.ty(*v).clone()).collect()
    }
    /// Seeded random inputs of the graph's types; integers are below 2, and 0 where they index a table of one row.
    ///
    /// Where they may be large, [`Model::require_inputs`] says first whether there is memory for them.
    pub fn example_inputs(&self, seed: u64) -> Vec<Tensor> {
        let guard = |i: usize| self.guards.iter().find(|g| g.0 == i).map(|g| g.1.as_f64());
        let one = |(i, ty): (usize, &Type)| match guard(i) {
            Some(v) => Tensor::from_f64(ty.clone(), [v]),
            None => io::random(ty, self.below(i), seed * 1000 + i as u64),
        };
        self.input_types().iter().enumerate().map(one).collect()
    }
    /// What random integers of an input stay below: 2, or the axis that it indexes, as it is or moved about.
    fn below(&self, input: usize) -> i64 {
        let (g, mut below) = (&self.graph, 2);
        let mut todo: Vec<ValueId> = g.inputs.get(input).copied().into_iter().collect();
        let mut seen = HashSet::new();
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            for user in g.users(v) {
                let args = g.args(user);
                match g.op(user) {
                    Op::Take { axis } | Op::Gather { axis } | Op::Scatter { axis, .. } if args[1] == v => {
                        below = below.min(g.shape(args[0])[*axis] as i64);
                    }
                    Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) => todo.push(user),
                    Op::Slice { .. } | Op::Flip(_) | Op::Concat { .. } => todo.push(user),
                    _ => {}
                }
            }
        }
        below
    }
    /// Whether there is memory for inputs of these types.
    pub fn require_inputs(&self) -> Result<(), Error> {
        let bytes = self.input_types().iter().fold(0usize, |sum, ty| sum.saturating_add(ty.bytes()));
        kiln_graph::memory::require(bytes, &format!("random inputs of {}", self.graph.name)).map_err(Error::memory)
    }
    /// Inputs given must be those of the graph; none given is fine.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<(), Error> {
        let want = self.input_types();
        if inputs.is_empty() {
            return Ok(());
        }
        if inputs.iter().map(|t| &t.ty).eq(want.iter()) {
            return match self.guards.iter().find(|(i, v)| inputs.get(*i).is_some_and(|t| t.get_f64(0) != v.as_f64())) {
                None => Ok(()),
                Some((i, v)) => Err(Error::failed(
                    format!("input {i} is a number that {} was compiled for: {}", self.path.display(), v.as_f64()),
                    "compile the model again with the value you want",
                )),
            };
        }
        let list = |t: &[Type]| t.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
        let have: Vec<Type> = inputs.iter().map(|t| t.ty.clone()).collect();
        Err(Error::failed(
            format!(
                "the inputs do not fit {}: it takes ({}), given are ({})",
                self.path.display(),
                list(&want),
                list(&have)
            ),
            "give inputs of these types, in this order",
        ))
    }
}
