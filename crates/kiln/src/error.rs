//! Errors as users read them: one sentence, the place in the model, what to do. Each keeps the typed error of the stage
//! that caused it.
use std::path::Path;

/// An error as a user reads it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call itself is wrong: exit status 2.
    #[error("{what}")]
    Usage {
        /// In one sentence.
        what: String,
        /// What to do; may be empty.
        help: String,
    },
    /// The work failed: exit status 1.
    #[error("{what}")]
    Failed {
        /// In one sentence, which includes the cause's message.
        what: String,
        /// What to do; may be empty.
        help: String,
        /// The error of the stage that failed, where one did.
        #[source]
        cause: Option<Box<Cause>>,
    },
    /// The inputs do not fit the model: exit status 1.
    #[error("{what}")]
    Inputs {
        /// In one sentence.
        what: String,
        /// What to do.
        help: String,
    },
    /// Several problems of one model, each with its own line.
    #[error("{what}")]
    Model {
        /// In one sentence.
        what: String,
        /// In the order of the source.
        problems: Vec<Problem>,
    },
    /// A device or a run failed; the message includes the remedy.
    #[error(transparent)]
    Runtime(#[from] kiln_runtime::RuntimeError),
}

/// An error of one stage, as that stage gave it.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A graph is wrong.
    #[error(transparent)]
    Graph(#[from] kiln_graph::GraphError),
    /// A plan is wrong.
    #[error(transparent)]
    Plan(#[from] kiln_plan::PlanError),
    /// No plan could be made.
    #[error(transparent)]
    Rewrite(#[from] kiln_rewrite::RewriteError),
    /// A kernel could not be lowered.
    #[error(transparent)]
    Lower(#[from] kiln_lower::LowerError),
    /// A block program is wrong.
    #[error(transparent)]
    Block(#[from] kiln_block::BlockError),
    /// No code could be generated from a block program.
    #[error(transparent)]
    Codegen(#[from] kiln_codegen::CodegenError),
    /// A device or a run failed.
    #[error(transparent)]
    Runtime(#[from] kiln_runtime::RuntimeError),
    /// Importing an archive, or calling libtorch, failed.
    #[error(transparent)]
    Torch(#[from] kiln_torch_host::TorchError),
    /// A store of measurements is wrong.
    #[error(transparent)]
    Store(#[from] kiln_tune::StoreError),
    /// There is not enough memory.
    #[error(transparent)]
    Memory(#[from] kiln_graph::memory::NoMemory),
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// One problem in a model's source.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// In one sentence.
    pub what: String,
    /// `file:line` in the model's own source, or empty.
    pub line: String,
    /// Module path, or empty.
    pub module: String,
    /// What to do; may be empty.
    pub help: String,
}

impl Error {
    /// A model cannot be compiled: one problem without a line is a sentence, others are listed.
    pub(crate) fn model(errors: kiln_aten::ImportErrors) -> Error {
        let problem =
            |p: kiln_aten::Problem| Problem { what: p.message, line: p.source, module: p.module, help: p.help };
        let problems: Vec<Problem> = errors.errors.into_iter().map(problem).collect();
        match &problems[..] {
            [p] if p.line.is_empty() => Error::failed(p.what.clone(), p.help.clone()),
            all => {
                let (n, s) = (all.len(), if all.len() == 1 { "" } else { "s" });
                Error::Model { what: format!("the model cannot be compiled: {n} problem{s}"), problems }
            }
        }
    }
    /// The call is wrong; `help` says how to write it.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Usage { what: what.into(), help: help.into() }
    }
    /// The inputs do not fit the model; `help` says what to give.
    pub fn inputs(what: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Inputs { what: what.into(), help: help.into() }
    }
    /// The work failed; `help` says what to do.
    pub fn failed(what: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Failed { what: what.into(), help: help.into(), cause: None }
    }
    /// The same, caused by an error of a stage; `what` includes that error's message.
    pub fn caused(what: impl Into<String>, help: impl Into<String>, cause: impl Into<Cause>) -> Error {
        Error::Failed { what: what.into(), help: help.into(), cause: Some(Box::new(cause.into())) }
    }
    /// This error with its message changed by `tell`.
    pub(crate) fn retold(self, tell: impl Fn(&str) -> String) -> Error {
        match self {
            Error::Usage { .. } => self,
            Error::Inputs { what, help } => Error::Inputs { what: tell(&what), help },
            Error::Failed { what, help, cause } => Error::Failed { what: tell(&what), help, cause },
            Error::Model { what, problems } => Error::Model { what: tell(&what), problems },
            Error::Runtime(e) => Error::caused(tell(&e.to_string()), "", e),
        }
    }
    /// Reading `path` failed.
    pub fn reading(path: &Path, e: std::io::Error) -> Error {
        let help = match e.kind() {
            std::io::ErrorKind::NotFound => "check the path",
            std::io::ErrorKind::PermissionDenied => "check the file's permissions",
            _ => "check the file and its disk",
        };
        Error::caused(format!("cannot read {}: {}", path.display(), plain(&e)), help, e)
    }
    /// Writing `path` failed.
    pub fn writing(path: &Path, e: std::io::Error) -> Error {
        Error::caused(
            format!("cannot write {}: {}", path.display(), plain(&e)),
            "choose a folder that exists and is writable, on a disk with space left",
            e,
        )
    }
    /// There is not enough memory; the message includes the remedy.
    pub fn memory(e: kiln_graph::memory::NoMemory) -> Error {
        Error::caused(e.to_string(), "", e)
    }
    /// What to do about it.
    pub fn help(&self) -> &str {
        match self {
            Error::Usage { help, .. } | Error::Inputs { help, .. } | Error::Failed { help, .. } => help,
            Error::Model { .. } | Error::Runtime(_) => "",
        }
    }
    /// The message with its places and remedies, where there is nothing but text to tell it with.
    pub fn sentence(&self) -> String {
        let with_help = |text: String, help: &str| if help.is_empty() { text } else { format!("{text}; {help}") };
        let Error::Model { what, problems } = self else { return with_help(self.to_string(), self.help()) };
        let problem = |p: &Problem| {
            let at = if p.line.is_empty() { String::new() } else { format!("\n    at {}", p.line) };
            let module = if p.module.is_empty() { String::new() } else { format!(" in {}", p.module) };
            let help = if p.help.is_empty() { String::new() } else { format!("\n    help: {}", p.help) };
            format!("\n  {}{at}{module}{help}", p.what)
        };
        what.clone() + &problems.iter().map(problem).collect::<String>()
    }
    /// Exit status of a command that fails with it: 2 for wrong usage, else 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Usage { .. } => 2,
            Error::Inputs { .. } | Error::Failed { .. } | Error::Model { .. } | Error::Runtime(_) => 1,
        }
    }
}

/// The message of an I/O error without the operating system's error number.
fn plain(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_rewrite::RewriteError;

    #[test]
    fn a_cause_keeps_its_type_when_it_is_told_with_other_words() {
        let cycle = RewriteError::Cycle;
        let e = Error::caused(format!("cannot plan m: {cycle}"), "report this", cycle).retold(|w| format!("at 1: {w}"));
        assert!(e.to_string().starts_with("at 1: cannot plan m: ") && e.help() == "report this", "{e}");
        let Error::Failed { cause: Some(cause), .. } = e else { panic!("{e} has no cause") };
        assert!(matches!(*cause, Cause::Rewrite(RewriteError::Cycle)), "{cause}");
    }
}
