//! The compiled artifact, a zip: `graph.json`, `plan.txt` (the plan's text form), `explain.json` (the report), `meta.json`,
//! parameters, and for GPU targets `ptx/NAME.ptx`. Host code is generated again when it is opened, as it depends on the processor.
use crate::{
    CompileOptions, Compiled, Error, Model, Target, compile,
    compile::{CompiledCode, from_plan},
    io,
};
use kiln_graph::{Graph, Init, ParamInfo, Tensor, params::param_data};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{BufReader, Cursor, Read, Write},
    path::Path,
};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Meta {
    version: u32,
    target: String,
    fuse: bool,
    numerics: kiln_plan::Numerics,
    guards: Vec<(usize, kiln_graph::Scalar)>,
    /// The archive it was compiled from, so that benches can run the original.
    archive: Option<String>,
}

/// A model with the plan it was compiled to.
pub struct Opened {
    pub model: Model,
    pub plan: kiln_plan::Plan,
    pub options: CompileOptions,
}

/// Whether a zip that starts so is one of Kiln's, also when it is cut short.
pub fn is_artifact(start: &[u8]) -> bool {
    /// Bytes of a zip's entry before its name.
    const HEADER: usize = 30;
    start.get(HEADER..).is_some_and(|name| name.starts_with(b"kiln/meta.json"))
}
/// Bytes that `is_artifact` looks at.
pub const START: u64 = 64;

/// Writes an artifact.
pub fn write(path: &Path, c: &Compiled, model: &Model) -> Result<(), Error> {
    let archive =
        model.archive.as_ref().map(|p| std::path::absolute(p).unwrap_or_else(|_| p.clone()).display().to_string());
    let meta = Meta {
        version: VERSION,
        target: c.options.target.name().into(),
        fuse: c.options.fuse,
        numerics: c.options.numerics,
        guards: model.guards.clone(),
        archive,
    };
    let encode =
        |e: &dyn std::fmt::Display| Error::failed(format!("cannot encode {}: {e}", path.display()), "report this");
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    let mut put = |name: &str, bytes: &[u8]| -> Result<(), Error> {
        // Stored: weights do not compress, and the file can be mapped.
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(format!("kiln/{name}"), options).map_err(|e| encode(&e))?;
        zip.write_all(bytes).map_err(|e| encode(&e))
    };
    put("meta.json", &serde_json::to_vec_pretty(&meta).map_err(|e| encode(&e))?)?;
    put("graph.json", &serde_json::to_vec(&c.graph).map_err(|e| encode(&e))?)?;
    put("plan.txt", kiln_plan::text::print(&c.plan).as_bytes())?;
    put("explain.json", crate::Report::new(c).to_json()?.as_bytes())?;
    // Seeded parameters are made again from the graph.
    let stored = c.graph.params.iter().zip(&c.params).filter(|(p, _)| p.init == Init::External);
    for (i, (_, t)) in stored.enumerate() {
        put(&format!("params/{i}"), t.bytes())?;
    }
    if let CompiledCode::Ptx(list) = &c.code {
        for p in list.iter().filter(|p| !p.text.is_empty()) {
            put(&format!("ptx/{}.ptx", p.name), p.text.as_bytes())?;
        }
    }
    let bytes = zip.finish().map_err(|e| encode(&e))?.into_inner();
    io::write_whole(path, &bytes)
}

/// An artifact, of which only what is asked for is read.
struct Reader<'a> {
    path: &'a Path,
    zip: ZipArchive<BufReader<File>>,
    meta: Meta,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path) -> Result<Reader<'a>, Error> {
        let file = File::open(path).map_err(|e| Error::reading(path, &e))?;
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|e| unusable(path, e))?;
        let meta: Meta = serde_json::from_slice(&part(path, &mut zip, "meta.json")?).map_err(|e| unusable(path, e))?;
        match meta.version {
            VERSION => Ok(Reader { path, zip, meta }),
            other => Err(unusable(path, format!("it is of version {other}, this Kiln reads {VERSION}"))),
        }
    }
    fn get(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        part(self.path, &mut self.zip, name)
    }
    fn text(&mut self, name: &str) -> Result<String, Error> {
        String::from_utf8(self.get(name)?).map_err(|e| unusable(self.path, e))
    }
    fn target(&self) -> Result<Target, Error> {
        let target = [Target::Cpu, Target::Sm80, Target::Sm90a].into_iter().find(|t| t.name() == self.meta.target);
        target.ok_or_else(|| unusable(self.path, format!("its target {} is unknown", self.meta.target)))
    }
    fn plan(&mut self) -> Result<kiln_plan::Plan, Error> {
        kiln_plan::text::parse(&self.text("plan.txt")?).map_err(|e| unusable(self.path, e))
    }
    fn params(&mut self, graph: &Graph) -> Result<Vec<Tensor>, Error> {
        let mut stored = 0;
        let mut one = |(i, info): (usize, &ParamInfo)| {
            if info.init != Init::External {
                return Ok(param_data(i, info));
            }
            let bytes = self.get(&format!("params/{stored}"))?;
            stored += 1;
            Tensor::from_bytes(info.ty.clone(), &bytes)
                .ok_or_else(|| unusable(self.path, format!("parameter {} is cut short", info.name)))
        };
        graph.params.iter().enumerate().map(&mut one).collect()
    }
}
/// Room made before reading a part, whatever size a file claims for it.
const MAX_RESERVED: usize = 1 << 30;

fn part(path: &Path, zip: &mut ZipArchive<BufReader<File>>, name: &str) -> Result<Vec<u8>, Error> {
    let mut file = zip.by_name(&format!("kiln/{name}")).map_err(|_| unusable(path, format!("{name} is missing")))?;
    let mut out = Vec::with_capacity(usize::try_from(file.size()).unwrap_or(0).min(MAX_RESERVED));
    file.read_to_end(&mut out).map_err(|e| unusable(path, format!("{name}: {e}")))?;
    Ok(out)
}

fn unusable(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::failed(
        format!("{} is not a usable artifact: {what}", path.display()),
        "compile the model again with `kiln compile`",
    )
}

/// The report that an artifact carries.
pub fn report(path: &Path) -> Result<crate::Report, Error> {
    crate::Report::from_json(&Reader::open(path)?.text("explain.json")?, &path.display().to_string())
}
/// The plan that an artifact carries.
pub fn plan(path: &Path) -> Result<kiln_plan::Plan, Error> {
    Reader::open(path)?.plan()
}
/// What an artifact was compiled for.
pub fn target(path: &Path) -> Result<Target, Error> {
    Reader::open(path)?.target()
}

/// Reads an artifact back.
pub fn read(path: &Path) -> Result<Opened, Error> {
    let mut reader = Reader::open(path)?;
    let target = reader.target()?;
    let graph = Graph::from_json(&reader.text("graph.json")?).map_err(|e| unusable(path, e))?;
    let plan = reader.plan()?;
    let params = reader.params(&graph)?;
    let Meta { fuse, numerics, guards, archive, .. } = reader.meta;
    let model = Model { graph, params, path: path.into(), archive: archive.map(Into::into), guards, import_s: 0.0 };
    let options = CompileOptions { target, fuse, numerics, ..CompileOptions::default() };
    Ok(Opened { model, plan, options })
}

/// Compiled as it was when written, for the target it was written for; another target or setting plans anew.
pub fn open(path: &Path, options: &CompileOptions) -> Result<(Model, Compiled), Error> {
    let opened = read(path)?;
    let same = opened.options.target == options.target
        && opened.options.fuse == options.fuse
        && options.constraints.is_empty()
        && options.tuned.is_none();
    let compiled =
        if same { from_plan(&opened.model, opened.plan, options)? } else { compile(&opened.model, options)? };
    Ok((opened.model, compiled))
}
