//! Import in a child process with limits on time and memory, because a TorchScript archive is a program and importing
//! runs it.
//!
//! The `kiln` executable starts itself again as the child. The parent writes the request to the child's standard input
//! and reads the graph and the weights from its standard output. Each message is an 8-byte little-endian length and
//! JSON, followed by the bytes of the tensors in order. What the archive prints goes to standard error.
use crate::{Guard, Imported, Torch, TorchError};
use kiln_graph::{Graph, Tensor, Type};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::{fd::FromRawFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

/// Limits on the wall time and memory of one import.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Wall time in seconds.
    pub seconds: f64,
    /// Private memory in bytes.
    pub memory: u64,
}

impl Default for Limits {
    /// Five minutes, and three quarters of the machine's physical memory.
    fn default() -> Limits {
        // SAFETY: `sysconf` takes and returns plain numbers.
        let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        let bytes = u64::try_from(pages).ok().zip(u64::try_from(page).ok()).map(|(n, size)| n.saturating_mul(size));
        Limits { seconds: 300.0, memory: bytes.map_or(u64::MAX, |b| b / 4 * 3) }
    }
}

#[derive(Serialize, Deserialize)]
struct Request {
    path: String,
    memory: u64,
    inputs: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Reply {
    graph: String,
    guards: Vec<Guard>,
    structure: serde_json::Value,
}

fn put<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(&text)
}

fn get<T: serde::de::DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let mut text = vec![];
    from.take(u64::from_le_bytes(length)).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn tensor(from: &mut impl Read, ty: &Type) -> io::Result<Tensor> {
    let mut t = Tensor::try_zeros(ty.clone(), "a weight").map_err(io::Error::other)?;
    from.read_exact(t.bytes_mut())?;
    Ok(t)
}

/// Imports `path` in the child process that `command` starts, which must call [`serve`].
///
/// # Errors
/// The import's own errors, an exceeded limit, or a child that could not start or crashed.
pub fn import(mut command: Command, limits: Limits, path: &Path, inputs: &[Tensor]) -> Result<Imported, TorchError> {
    let name = crate::error::utf8(path)?;
    let program = PathBuf::from(command.get_program());
    let failed = |what: String| TorchError::Child { path: path.into(), what };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(format!("{} does not start: {e}", program.display())))?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failed("its pipes are missing".into()));
    };
    let (ended, end) = channel::<()>();
    let outcome = std::thread::scope(|s| {
        let child = &mut child;
        let talk = s.spawn(move || {
            let request = Request {
                path: name.into(),
                memory: limits.memory,
                inputs: inputs.iter().map(|t| t.ty.to_string()).collect(),
            };
            let asked =
                put(&mut stdin, &request).and_then(|()| inputs.iter().try_for_each(|t| stdin.write_all(t.bytes())));
            drop(stdin);
            let answer = asked.and_then(|()| answer(&mut BufReader::with_capacity(1 << 20, stdout)));
            // Dropping the sender ends the wait below; a panic of this thread drops it too.
            drop(ended);
            answer
        });
        let complaints = s.spawn(move || forward(stderr));
        let late = end.recv_timeout(Duration::try_from_secs_f64(limits.seconds).unwrap_or(Duration::MAX));
        let late = late == Err(RecvTimeoutError::Timeout);
        if late {
            // Killing the child closes its pipes, which ends both threads.
            let _ = child.kill();
        }
        let status = child.wait();
        let no_memory = complaints.join().unwrap_or(false);
        (talk.join(), status, late, no_memory)
    });
    match outcome {
        (_, _, true, _) => Err(TorchError::TooLong { path: path.into(), seconds: limits.seconds }),
        (_, Ok(status), _, no_memory) if is_out_of_memory(status, no_memory) => {
            Err(TorchError::TooLarge { path: path.into(), bytes: limits.memory })
        }
        (_, Ok(status), ..) if status.signal().is_some() => {
            Err(failed(format!("it was killed by signal {}: libtorch crashed", status.signal().unwrap_or_default())))
        }
        (Ok(Ok(answer)), ..) => answer.map_err(|e| too_large(e, path, limits)),
        (Ok(Err(e)), ..) => Err(failed(format!("its reply is incomplete ({e})"))),
        (Err(panic), ..) => std::panic::resume_unwind(panic),
    }
}

fn is_out_of_memory(status: ExitStatus, reported: bool) -> bool {
    status.signal() == Some(libc::SIGKILL) || (reported && status.signal().is_some())
}

/// Recognises libtorch's out-of-memory errors by their message.
fn too_large(e: TorchError, path: &Path, limits: Limits) -> TorchError {
    let words = ["can't allocate memory", "bad_alloc", "Cannot allocate memory", "not enough memory"];
    match &e {
        TorchError::Memory(_) => TorchError::TooLarge { path: path.into(), bytes: limits.memory },
        TorchError::Model(errors) if errors.errors.iter().any(|p| words.iter().any(|w| p.message.contains(w))) => {
            TorchError::TooLarge { path: path.into(), bytes: limits.memory }
        }
        _ => e,
    }
}

/// Forwards the child's standard error; true if the child reported that it ran out of memory.
fn forward(stderr: impl Read) -> bool {
    let mut no_memory = false;
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        let text = String::from_utf8_lossy(&line);
        if text.contains("memory allocation of") || text.contains("bad_alloc") {
            no_memory = true;
        } else {
            eprintln!("{text}");
        }
    }
    no_memory
}

fn answer(from: &mut impl Read) -> io::Result<Result<Imported, TorchError>> {
    let reply: Reply = match get::<Result<Reply, TorchError>>(from)? {
        Ok(reply) => reply,
        Err(e) => return Ok(Err(e)),
    };
    let graph = match Graph::from_json(&reply.graph) {
        Ok(graph) => graph,
        Err(e) => return Ok(Err(TorchError::Plugin(e.to_string()))),
    };
    let params = graph.params.iter().map(|p| tensor(from, &p.ty)).collect::<io::Result<_>>()?;
    Ok(Ok(Imported { graph, params, guards: reply.guards, structure: reply.structure }))
}

/// The child's side: reads one request from standard input, writes one reply to standard output. Only a process started
/// for this purpose may call it: it redirects standard output and limits the memory of the whole process.
pub fn serve() -> io::Result<()> {
    // SAFETY: plain numbers. The child dies with its parent. Standard output is redirected to standard error, so that
    // prints of libtorch or the model do not corrupt the reply.
    let mut out = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let out = libc::dup(libc::STDOUT_FILENO);
        if out < 0 || libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) < 0 {
            return Err(io::Error::last_os_error());
        }
        BufWriter::with_capacity(1 << 20, File::from_raw_fd(out))
    };
    let mut input = BufReader::new(io::stdin().lock());
    let request: Request = get(&mut input)?;
    let types = request.inputs.iter().map(|t| t.parse::<Type>().map_err(io::Error::other));
    let types = types.collect::<io::Result<Vec<Type>>>()?;
    let inputs = types.iter().map(|ty| tensor(&mut input, ty)).collect::<io::Result<Vec<_>>>()?;
    let limit = libc::rlimit { rlim_cur: request.memory, rlim_max: request.memory };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: only reads the structs. The limit is on private memory, not on address space, of which libtorch's
    // libraries reserve more than they use.
    if unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) | libc::setrlimit(libc::RLIMIT_CORE, &no_core) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let path = PathBuf::from(&request.path);
    let imported = Torch::load().and_then(|t| t.import(&path, &inputs));
    match imported {
        Err(e) => put(&mut out, &Err::<Reply, _>(e))?,
        Ok(Imported { graph, params, guards, structure }) => {
            let graph = graph.to_json().map_err(io::Error::other)?;
            put(&mut out, &Ok::<_, TorchError>(Reply { graph, guards, structure }))?;
            params.iter().try_for_each(|t| out.write_all(t.bytes()))?;
        }
    }
    out.flush()
}
