//! The compiled artifact, a zip: `graph.json`, `plan.txt` (the plan's text form), `explain.json` (the report), `meta.json`,
//! parameters, and for GPU targets `ptx/NAME.ptx`. Host code is generated again when it is opened, as it depends on the processor.
use crate::{
    CompileOptions, Compiled, Error, Model, Target, compile,
    compile::{CompiledCode, from_plan},
    io,
};
use kiln_graph::{Graph, Init, Tensor};
use serde::{Deserialize, Serialize};
use std::{
    io::{Cursor, Read, Write},
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

/// Whether a zip file is one of Kiln's.
pub fn is_artifact(bytes: &[u8]) -> bool {
    ZipArchive::new(Cursor::new(bytes)).is_ok_and(|z| z.index_for_name("kiln/meta.json").is_some())
}

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

/// The report that an artifact carries.
pub fn report(path: &Path) -> Result<crate::Report, Error> {
    let bytes = std::fs::read(path).map_err(|e| Error::reading(path, &e))?;
    let missing = |e: &dyn std::fmt::Display| {
        Error::failed(
            format!("{} carries no report: {e}", path.display()),
            "compile the model again with `kiln compile`",
        )
    };
    let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(|e| missing(&e))?;
    let mut text = String::new();
    let mut file = zip.by_name("kiln/explain.json").map_err(|e| missing(&e))?;
    file.read_to_string(&mut text).map_err(|e| missing(&e))?;
    crate::Report::from_json(&text, &path.display().to_string())
}

/// Reads an artifact back.
pub fn read(path: &Path) -> Result<Opened, Error> {
    let bytes = std::fs::read(path).map_err(|e| Error::reading(path, &e))?;
    let bad = |what: String| {
        Error::failed(
            format!("{} is not a usable artifact: {what}", path.display()),
            "compile the model again with `kiln compile`",
        )
    };
    let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(|e| bad(e.to_string()))?;
    let mut get = |name: String| -> Result<Vec<u8>, Error> {
        let mut file = zip.by_name(&format!("kiln/{name}")).map_err(|_| bad(format!("{name} is missing")))?;
        let mut out = vec![];
        file.read_to_end(&mut out).map_err(|e| bad(format!("{name}: {e}")))?;
        Ok(out)
    };
    let meta: Meta = serde_json::from_slice(&get("meta.json".into())?).map_err(|e| bad(e.to_string()))?;
    if meta.version != VERSION {
        return Err(bad(format!("it is of version {}, this Kiln reads {VERSION}", meta.version)));
    }
    let target = [Target::Cpu, Target::Sm80, Target::Sm90a].into_iter().find(|t| t.name() == meta.target);
    let target = target.ok_or_else(|| bad(format!("its target {} is unknown", meta.target)))?;
    let text = String::from_utf8(get("graph.json".into())?).map_err(|e| bad(e.to_string()))?;
    let graph = Graph::from_json(&text).map_err(|e| bad(e.to_string()))?;
    let text = String::from_utf8(get("plan.txt".into())?).map_err(|e| bad(e.to_string()))?;
    let plan = kiln_plan::text::parse(&text).map_err(|e| bad(e.to_string()))?;
    let mut params: Vec<Tensor> = kiln_graph::params::random_params(&graph);
    let stored = graph.params.iter().zip(&mut params).filter(|(p, _)| p.init == Init::External);
    for (i, (info, t)) in stored.enumerate() {
        let bytes = get(format!("params/{i}"))?;
        *t = Tensor::from_bytes(info.ty.clone(), &bytes)
            .ok_or_else(|| bad(format!("parameter {} is cut short", info.name)))?;
    }
    let model = Model {
        graph,
        params,
        path: path.into(),
        archive: meta.archive.map(Into::into),
        guards: meta.guards,
        import_s: 0.0,
    };
    let options = CompileOptions { target, fuse: meta.fuse, numerics: meta.numerics, ..CompileOptions::default() };
    Ok(Opened { model, plan, options })
}

/// Compiled as it was when written, for the target it was written for; another target or setting plans anew.
pub fn open(path: &Path, options: &CompileOptions) -> Result<(Model, Compiled), Error> {
    let opened = read(path)?;
    let same = opened.options.target == options.target
        && opened.options.fuse == options.fuse
        && options.constraints.is_empty();
    let compiled =
        if same { from_plan(&opened.model, opened.plan, options)? } else { compile(&opened.model, options)? };
    Ok((opened.model, compiled))
}
