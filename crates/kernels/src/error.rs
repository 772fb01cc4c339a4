//! Why a kernel has no program: what is wrong, where in the user's source, by which calls it came there, and what to
//! write instead.
use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of mistake it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Python or Triton that this compiler does not support.
    Unsupported,
    Syntax,
    /// A name that is bound to nothing, or to something that a kernel cannot use.
    Name,
    Type,
    /// A value that is out of its range, shapes that do not fit.
    Value,
    /// A `static_assert` that does not hold.
    Assertion,
    /// A defect of this compiler.
    Internal,
}

impl ErrorKind {
    fn title(self) -> &'static str {
        match self {
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Syntax => "syntax error",
            ErrorKind::Name => "name error",
            ErrorKind::Type => "type error",
            ErrorKind::Value => "value error",
            ErrorKind::Assertion => "static assertion failed",
            ErrorKind::Internal => "internal error",
        }
    }
}

/// Text in the user's source. Lines and columns count from 1.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    pub file: String,
    pub line: usize,
    pub column: usize,
    /// After the last column on the same line.
    pub end_column: usize,
    /// The source line, as it is in the file.
    pub text: String,
    /// The function that the line is in.
    pub function: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
pub struct KernelError {
    pub kind: ErrorKind,
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
    pub place: Option<Place>,
    /// Calls that lead to the place, innermost first.
    pub calls: Vec<Place>,
}

/// What evaluating gives; errors are large and rare.
pub type Eval<T> = Result<T, Box<KernelError>>;

impl KernelError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Box<KernelError> {
        Box::new(KernelError { kind, message: message.into(), hint: None, place: None, calls: vec![] })
    }
    pub fn with_hint(mut self: Box<Self>, hint: impl Into<String>) -> Box<KernelError> {
        self.hint = Some(hint.into());
        self
    }
    /// At a place, unless an inner one is known.
    pub fn at(mut self: Box<Self>, place: impl FnOnce() -> Place) -> Box<KernelError> {
        if self.place.is_none() {
            self.place = Some(place());
        }
        self
    }
    pub fn called_from(mut self: Box<Self>, call: Place) -> Box<KernelError> {
        self.calls.push(call);
        self
    }
}

pub fn unsupported(message: impl Into<String>, hint: impl Into<String>) -> Box<KernelError> {
    KernelError::new(ErrorKind::Unsupported, message).with_hint(hint)
}
pub fn type_error(message: impl Into<String>, hint: impl Into<String>) -> Box<KernelError> {
    KernelError::new(ErrorKind::Type, message).with_hint(hint)
}
pub fn value_error(message: impl Into<String>, hint: impl Into<String>) -> Box<KernelError> {
    KernelError::new(ErrorKind::Value, message).with_hint(hint)
}
pub fn name_error(message: impl Into<String>, hint: impl Into<String>) -> Box<KernelError> {
    KernelError::new(ErrorKind::Name, message).with_hint(hint)
}
pub fn internal(message: impl Into<String>) -> Box<KernelError> {
    KernelError::new(ErrorKind::Internal, message)
        .with_hint("this is a defect of Kiln; please report it with the kernel")
}

impl fmt::Display for Place {
    /// `file:line:column`, the line, and carets under the columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let carets = "^".repeat(self.end_column.saturating_sub(self.column).max(1));
        let indent: String =
            self.text.chars().take(self.column.saturating_sub(1)).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "{margin}--> {}:{}:{}", self.file, self.line, self.column)?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {}", self.text)?;
        write!(f, "{margin} | {indent}{carets}")
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.title(), self.message)?;
        if let Some(place) = &self.place {
            write!(f, "\n{place}")?;
        }
        for call in &self.calls {
            write!(f, "\ncalled in {}\n{call}", call.function)?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhelp: {hint}")?;
        }
        Ok(())
    }
}
