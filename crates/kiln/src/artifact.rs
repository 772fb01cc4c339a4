//! The compiled artifact, a zip: `graph.json`, `plan.txt` (the plan's text form), `explain.json` (the report),
//! `meta.json`, parameters, and for GPU targets `ptx/NAME.ptx`, which are for people to read, and on request
//! `cubin/NAME.cubin`, machine code. `digests.json` has the SHA-256 of every other part.
//!
//! Artifacts are not trusted. A part's digest is checked when the part is read. Whoever changes a part can also compute
//! a new digest, so the plan is verified and checked against the graph as well, code is always generated again from the
//! plan, and no part may be larger than the file. A file that an artifact names is never opened: the path of its
//! archive is for messages alone, and `bench --archive` takes the path from the user.
//!
//! Machine code is the exception: it cannot be checked, so it is used only on request
//! ([`CompileOptions::machine_code`]), by those who trust the file. It is used for a program if the PTX that is
//! generated again has the digest of the PTX it was made from, so machine code of another version of Kiln is left out;
//! that protects from mistakes, not from whoever wrote the file.
use crate::{
    CompileOptions, Compiled, Error, Model, Target,
    compile::{CodeCache, CompiledCode, compile_with, from_plan_with},
    cubin::Cubins,
    digest::digest,
    io,
    model::{State, Written},
    workers,
};
use kiln_codegen::nvptx::Ptx;
use kiln_graph::{FallbackOp, Graph, Init, Op, ParamInfo, Tensor, Type, fallback, params::param_data};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Cursor, Read, Write},
    path::Path,
};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

const VERSION: u32 = 6;

#[derive(Serialize, Deserialize)]
struct Meta {
    version: u32,
    target: String,
    fuse: bool,
    contract: kiln_plan::Contract,
    /// The machine description that the plan was priced with, if it was not the target's default.
    machine: Option<kiln_machine::Machine>,
    guards: Vec<(usize, kiln_graph::Scalar)>,
    /// Names of the state, whose initial contents are the parts `states/N`.
    states: Vec<String>,
    writes: Vec<Written>,
    /// The archive it was compiled from, for messages only: the path is untrusted and never opened.
    archive: Option<String>,
    /// Absent if there is no machine code.
    #[serde(default)]
    machine_code: Option<MachineCode>,
}

/// What machine code is for.
#[derive(Serialize, Deserialize)]
struct MachineCode {
    /// As `ptxas` names it.
    arch: String,
    /// By program, the digest of the PTX it was made from.
    ptx: BTreeMap<String, String>,
}

/// A model with the plan it was compiled to.
pub struct Opened {
    /// The graph with its weights.
    pub model: Model,
    /// Its plan, as it was compiled.
    pub plan: kiln_plan::Plan,
    /// The options it was compiled with.
    pub options: CompileOptions,
    /// Its machine code, which is not trusted yet.
    pub cubins: Cubins,
}

/// What an artifact holds besides its model.
pub(crate) struct Made {
    pub plan: kiln_plan::Plan,
    pub options: CompileOptions,
    pub cubins: Cubins,
}
impl Opened {
    pub(crate) fn split(self) -> (Model, Made) {
        (self.model, Made { plan: self.plan, options: self.options, cubins: self.cubins })
    }
}
impl Made {
    /// Compiles the model: with the plan it was compiled to if `options` are those it was written with, else with a new
    /// plan.
    pub(crate) fn compile(
        &self,
        model: &Model,
        options: &CompileOptions,
        codes: &CodeCache,
    ) -> Result<Compiled, Error> {
        let same = self.options.target == options.target
            && self.options.fuse == options.fuse
            && self.options.contract == options.contract
            && self.options.machine == options.machine
            && options.constraints.is_empty()
            && options.tuned.is_none();
        let mut compiled = match same {
            true => from_plan_with(model, self.plan.clone(), options, codes)?,
            false => compile_with(model, options, codes)?,
        };
        if options.machine_code {
            compiled.cubins = self.cubins.clone();
        }
        Ok(compiled)
    }
}

/// Whether a file that starts with these bytes is an artifact, even if it is truncated.
pub fn is_artifact(start: &[u8]) -> bool {
    /// Bytes of a zip entry's header before its name.
    const HEADER: usize = 30;
    start.get(HEADER..).is_some_and(|name| name.starts_with(b"kiln/meta.json"))
}
/// Number of bytes that `is_artifact` needs.
pub const START: u64 = 64;

/// Writes an artifact.
pub fn write(path: &Path, c: &Compiled, model: &Model) -> Result<(), Error> {
    if let Some(op) = vouched(&c.graph) {
        let what = format!(
            "the program calls `{}`, an operator that only this process knows, so it cannot be written",
            op.name
        );
        return Err(Error::usage(what, "save the model without this operator, or write it with operators of aten"));
    }
    let archive =
        model.archive.as_ref().map(|p| std::path::absolute(p).unwrap_or_else(|_| p.clone()).display().to_string());
    let archive = archive.or_else(|| model.compiled_from.clone());
    let programs: &[Ptx] = if let CompiledCode::Ptx(list) = &c.code { list } else { &[] };
    let cubins = programs.iter().filter_map(|p| Some((p, c.cubins.of(&p.text)?))).collect::<Vec<_>>();
    let machine_code = (!cubins.is_empty()).then(|| MachineCode {
        arch: c.options.target.name().into(),
        ptx: cubins.iter().map(|(p, _)| (p.name.clone(), digest(p.text.as_bytes()))).collect(),
    });
    let meta = Meta {
        version: VERSION,
        target: c.options.target.name().into(),
        fuse: c.options.fuse,
        contract: c.options.contract,
        machine: c.options.machine.clone(),
        guards: model.guards.clone(),
        states: model.states.iter().map(|s| s.name.clone()).collect(),
        writes: model.writes.clone(),
        archive,
        machine_code,
    };
    let encode =
        |e: &dyn std::fmt::Display| Error::failed(format!("cannot encode {}: {e}", path.display()), "report this");
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    let mut digests = Digests::new();
    let mut put = |name: &str, bytes: &[u8]| -> Result<(), Error> {
        digests.insert(name.into(), digest(bytes));
        add(&mut zip, name, bytes).map_err(|e| encode(&e))
    };
    put(META, &serde_json::to_vec_pretty(&meta).map_err(|e| encode(&e))?)?;
    put("graph.json", &serde_json::to_vec(&c.graph).map_err(|e| encode(&e))?)?;
    put("plan.txt", kiln_plan::text::print(&c.plan).as_bytes())?;
    put("explain.json", crate::Report::new(c).to_json()?.as_bytes())?;
    // Parameters with an initialiser are computed again from the graph.
    let stored = c.graph.params.iter().zip(&c.params).filter(|(p, _)| p.init == Init::External);
    for (i, (_, t)) in stored.enumerate() {
        put(&format!("params/{i}"), t.bytes())?;
    }
    for (i, s) in model.states.iter().enumerate() {
        put(&format!("states/{i}"), s.initial.bytes())?;
    }
    for p in programs.iter().filter(|p| !p.text.is_empty()) {
        put(&format!("ptx/{}.ptx", p.name), p.text.as_bytes())?;
    }
    for (p, cubin) in cubins {
        put(&format!("cubin/{}.cubin", p.name), &cubin.bytes)?;
    }
    let digests = serde_json::to_vec_pretty(&digests).map_err(|e| encode(&e))?;
    add(&mut zip, DIGESTS, &digests).map_err(|e| encode(&e))?;
    let bytes = zip.finish().map_err(|e| encode(&e))?.into_inner();
    io::write_whole(path, &bytes)
}

/// An operator of the graph that no file may name.
fn vouched(g: &Graph) -> Option<&FallbackOp> {
    let unlisted = |op: &FallbackOp| op.vouched && fallback::parameters(&op.name, &op.overload).is_none();
    g.values().find_map(|v| match g.op(v) {
        Op::Fallback(op) if unlisted(op) => Some(&**op),
        _ => None,
    })
}

/// Adds a part uncompressed: weights do not compress, and so no part can be larger than the file.
fn add(zip: &mut ZipWriter<Cursor<Vec<u8>>>, name: &str, bytes: &[u8]) -> zip::result::ZipResult<()> {
    zip.start_file(
        format!("kiln/{name}"),
        SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored),
    )?;
    Ok(zip.write_all(bytes)?)
}

/// Name of the part with the digests of all others.
const DIGESTS: &str = "digests.json";
/// SHA-256 by part, in hexadecimal.
type Digests = BTreeMap<String, String>;

/// An artifact whose parts are read on demand.
struct Reader<'a> {
    path: &'a Path,
    zip: ZipArchive<BufReader<File>>,
    digests: Digests,
    meta: Meta,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path) -> Result<Reader<'a>, Error> {
        let mut zip = archive(path)?;
        let text = part(path, &mut zip, META)?;
        let Version { version } = serde_json::from_slice(&text).map_err(|e| unusable(path, e))?;
        if version != VERSION {
            return Err(unusable(
                path,
                format!("it has format version {version}, but this Kiln reads version {VERSION}"),
            ));
        }
        let digests: Digests =
            serde_json::from_slice(&part(path, &mut zip, DIGESTS)?).map_err(|e| unusable(path, e))?;
        unchanged(path, &digests, META, &text)?;
        let meta = serde_json::from_slice(&text).map_err(|e| unusable(path, e))?;
        Ok(Reader { path, zip, digests, meta })
    }
    fn get(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        checked(self.path, &mut self.zip, &self.digests, name)
    }
    fn text(&mut self, name: &str) -> Result<String, Error> {
        String::from_utf8(self.get(name)?).map_err(|e| unusable(self.path, e))
    }
    /// The options it was compiled with, except constraints and measurements, whose effects are in the plan.
    fn options(&self) -> Result<CompileOptions, Error> {
        let Meta { fuse, contract, ref machine, .. } = self.meta;
        let (target, machine) = (self.target()?, machine.clone());
        Ok(CompileOptions { target, fuse, contract, machine, ..CompileOptions::default() })
    }
    fn target(&self) -> Result<Target, Error> {
        self.meta.target.parse().map_err(|e| unusable(self.path, e))
    }
    fn plan(&mut self) -> Result<kiln_plan::Plan, Error> {
        let plan = kiln_plan::text::parse(&self.text("plan.txt")?).map_err(|e| unusable(self.path, e))?;
        kiln_plan::verify::verify(&plan).map_err(|e| unusable(self.path, e))?;
        Ok(plan)
    }
    fn cubins(&mut self) -> Result<Cubins, Error> {
        let Some(MachineCode { arch, ptx }) = self.meta.machine_code.take() else { return Ok(Cubins::default()) };
        let target = arch.parse().ok().filter(|t| self.target().is_ok_and(|own| own == *t)).and_then(Cubins::new);
        let mut cubins = target.ok_or_else(|| unusable(self.path, format!("its machine code is for `{arch}`")))?;
        for (name, ptx) in ptx {
            cubins.put(ptx, self.get(&format!("cubin/{name}.cubin"))?);
        }
        Ok(cubins)
    }
    /// Parameters, read and checked on all cores.
    fn params(&self, graph: &Graph) -> Result<Vec<Tensor>, Error> {
        /// Parts that a thread reads with one archive.
        const AT_ONCE: usize = 16;
        kiln_graph::params::require(graph).map_err(|e| unusable(self.path, e))?;
        let mut stored = 0..;
        let mut number = |info: &ParamInfo| if info.init == Init::External { stored.next() } else { None };
        let numbers: Vec<Option<usize>> = graph.params.iter().map(&mut number).collect();
        let wanted: Vec<_> = graph.params.iter().zip(numbers).enumerate().collect();
        let chunks: Vec<_> = wanted.chunks(AT_ONCE).collect();
        let read = workers::map(&chunks, |chunk| {
            let mut zip = archive(self.path)?;
            let one = |(i, (info, number)): &(usize, (&ParamInfo, Option<usize>))| {
                let Some(number) = number else { return Ok(param_data(*i, info)) };
                let bytes = checked(self.path, &mut zip, &self.digests, &format!("params/{number}"))?;
                Tensor::from_bytes(info.ty.clone(), &bytes)
                    .ok_or_else(|| unusable(self.path, format!("parameter {} is truncated", info.name)))
            };
            chunk.iter().map(one).collect::<Result<Vec<Tensor>, Error>>()
        });
        Ok(read.into_iter().collect::<Result<Vec<_>, Error>>()?.into_iter().flatten().collect())
    }
    fn states(&mut self, graph: &Graph) -> Result<Vec<State>, Error> {
        let names = self.meta.states.clone();
        // Invariant: there are as many inputs at least (`fits`).
        let types = graph.inputs[graph.inputs.len() - names.len()..].iter().map(|v| graph.ty(*v));
        let mut one = |(i, (name, ty)): (usize, (String, &Type))| {
            let bytes = self.get(&format!("states/{i}"))?;
            let truncated = || unusable(self.path, format!("state {name} is truncated"));
            let initial = Tensor::from_bytes(ty.clone(), &bytes).ok_or_else(truncated)?;
            Ok(State { name, initial })
        };
        names.into_iter().zip(types).enumerate().map(&mut one).collect()
    }
}

const META: &str = "meta.json";
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn unchanged(path: &Path, digests: &Digests, name: &str, bytes: &[u8]) -> Result<(), Error> {
    match digests.get(name) {
        Some(d) if *d == digest(bytes) => Ok(()),
        Some(_) => Err(unusable(path, format!("{name} was changed: its digest does not match"))),
        None => Err(unusable(path, format!("{name} has no digest"))),
    }
}

fn archive(path: &Path) -> Result<ZipArchive<BufReader<File>>, Error> {
    let file = File::open(path).map_err(|e| Error::reading(path, e))?;
    ZipArchive::new(BufReader::new(file)).map_err(|e| unusable(path, e))
}

/// A part's bytes, which have the digest that they had when they were written.
fn checked(
    path: &Path,
    zip: &mut ZipArchive<BufReader<File>>,
    digests: &Digests,
    name: &str,
) -> Result<Vec<u8>, Error> {
    let bytes = part(path, zip, name)?;
    unchanged(path, digests, name, &bytes)?;
    Ok(bytes)
}

/// A part's bytes. Parts are uncompressed, so none can be larger than the file.
fn part(path: &Path, zip: &mut ZipArchive<BufReader<File>>, name: &str) -> Result<Vec<u8>, Error> {
    let whole = std::fs::metadata(path).map_err(|e| Error::reading(path, e))?.len();
    let file = zip.by_name(&format!("kiln/{name}")).map_err(|_| unusable(path, format!("{name} is missing")))?;
    let size = file.size();
    if size > whole {
        return Err(unusable(path, format!("{name} claims {size} bytes, more than the file has")));
    }
    let bytes = usize::try_from(size).unwrap_or(usize::MAX);
    let mut out = kiln_graph::memory::reserve(bytes, name).map_err(|e| unusable(path, e))?;
    file.take(size).read_to_end(&mut out).map_err(|e| unusable(path, format!("{name}: {e}")))?;
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
/// The options an artifact was compiled with, except constraints and measurements, whose effects are in its plan.
pub fn options(path: &Path) -> Result<CompileOptions, Error> {
    Reader::open(path)?.options()
}

/// Reads an artifact back.
pub fn read(path: &Path) -> Result<Opened, Error> {
    let mut reader = Reader::open(path)?;
    let options = reader.options()?;
    let graph = Graph::from_json(&reader.text("graph.json")?).map_err(|e| unusable(path, e))?;
    let plan = reader.plan()?;
    fits(&graph, &plan, &reader.meta).map_err(|what| unusable(path, what))?;
    let params = reader.params(&graph)?;
    let states = reader.states(&graph)?;
    let cubins = reader.cubins()?;
    let Meta { guards, archive, writes, .. } = reader.meta;
    let model = Model { params, path: path.into(), compiled_from: archive, guards, states, writes, ..Model::of(graph) };
    Ok(Opened { model, plan, options, cubins })
}

/// Checks that the plan takes the graph's inputs and parameters and gives its outputs, that guards refer to scalar
/// inputs, and that state and what is written are inputs and outputs.
fn fits(graph: &Graph, plan: &kiln_plan::Plan, meta: &Meta) -> Result<(), String> {
    use kiln_plan::BufferKind;
    let Meta { guards, states, writes, .. } = meta;
    let inputs: Vec<&Type> = graph.inputs.iter().map(|v| graph.ty(*v)).collect();
    for b in &plan.buffers {
        let (what, given) = match b.kind {
            BufferKind::Input(n) => (format!("input {n}"), inputs.get(n as usize).copied()),
            BufferKind::Param(p) => (format!("parameter {p}"), graph.params.get(p.0 as usize).map(|p| &p.ty)),
            BufferKind::Frozen | BufferKind::Temp => continue,
        };
        match given {
            Some(ty) if *ty == b.ty => {}
            Some(ty) => return Err(format!("{what} is {} in its plan and {ty} in its graph", b.ty)),
            None => return Err(format!("its plan reads {what}, which its graph does not have")),
        }
    }
    let given: Vec<&Type> = plan.outputs.iter().map(|b| &plan.buffer(*b).ty).collect();
    let wanted: Vec<&Type> = graph.outputs.iter().map(|v| graph.ty(*v)).collect();
    if given != wanted {
        return Err("the outputs of its plan and of its graph differ".into());
    }
    let results = graph.outputs.len().checked_sub(writes.len());
    let last = |w: &Written| results.is_some_and(|n| (n..graph.outputs.len()).contains(&w.output));
    let typed = |w: &Written| graph.inputs.get(w.input).map(|v| graph.ty(*v)) == wanted.get(w.output).copied();
    if states.len() > inputs.len() || !writes.iter().all(|w| last(w) && typed(w)) {
        return Err("its state is not in its graph".into());
    }
    match guards.iter().find(|(i, _)| inputs.get(*i).is_none_or(|ty| ty.count() != 1)) {
        Some((i, _)) => Err(format!("it is specialised on the value of input {i}, which is not a scalar")),
        None => Ok(()),
    }
}

/// Opens an artifact and compiles it: with its own plan if `options` are those it was written with ([`options`]), else
/// with a new plan.
pub fn open(path: &Path, options: &CompileOptions) -> Result<(Model, Compiled), Error> {
    let (model, made) = read(path)?.split();
    let compiled = made.compile(&model, options, &CodeCache::default())?;
    Ok((model, compiled))
}
