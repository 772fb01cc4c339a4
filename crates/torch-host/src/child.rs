//! Importing in a process of its own, with a limit on its time and memory: a TorchScript archive is a program, which importing runs.
//!
//! The child is told everything on its standard input and answers on its standard output: lengths as eight bytes, JSON, then the
//! bytes of tensors in their order. What the archive's program prints goes to standard error.
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

/// How long importing may take, and how much memory it may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub seconds: f64,
    /// Bytes.
    pub memory: u64,
}

impl Default for Limits {
    /// Five minutes, and three quarters of the machine's memory.
    fn default() -> Limits {
        // SAFETY: takes and gives plain numbers.
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

/// Imports `path` by `command`, a process that calls [`serve`].
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
            // The watch ends with it, also where this thread is killed by a panic: the sender is dropped.
            drop(ended);
            answer
        });
        let complaints = s.spawn(move || forward(stderr));
        let late = end.recv_timeout(Duration::try_from_secs_f64(limits.seconds).unwrap_or(Duration::MAX));
        let late = late == Err(RecvTimeoutError::Timeout);
        if late {
            // Its pipes close, which ends both threads.
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
            Err(failed(format!("it ended by signal {}, a crash of libtorch", status.signal().unwrap_or_default())))
        }
        (Ok(Ok(answer)), ..) => answer.map_err(|e| too_large(e, path, limits)),
        (Ok(Err(e)), ..) => Err(failed(format!("its answer is cut short ({e})"))),
        (Err(panic), ..) => std::panic::resume_unwind(panic),
    }
}

fn is_out_of_memory(status: ExitStatus, said: bool) -> bool {
    status.signal() == Some(libc::SIGKILL) || (said && status.signal().is_some())
}

/// libtorch says in words that it has no memory.
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

/// Passes on what the child says; whether it said that there is no memory.
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

/// The child: answers one request and is done. Only a process that was started for this may call it.
pub fn serve() -> io::Result<()> {
    // SAFETY: plain numbers. The child ends with its parent; what libtorch or the model prints does not get into the answer.
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
    // SAFETY: reads the structs. Private memory is limited, not addresses: libtorch's libraries reserve more of those than they use.
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
