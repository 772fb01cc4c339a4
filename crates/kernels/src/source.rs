//! Functions with their trees, and places in their files.
use crate::error::{ErrorKind, Eval, KernelError, Place};
use crate::syntax::{self, FunctionTree, Span, SyntaxError};
use crate::unit::{Function, Site, Unit};
use std::sync::Arc;

pub fn parse(function: &Function) -> Eval<Arc<FunctionTree>> {
    syntax::parse_function(&function.source).map(Arc::new).map_err(|error| syntax_error(function, error))
}

pub fn syntax_error(function: &Function, error: SyntaxError) -> Box<KernelError> {
    KernelError::new(ErrorKind::Syntax, error.message)
        .with_hint("the source was read as one Python function; check that the file is as it was when it was defined")
        .at(|| place(function, error.span))
}

/// Where bytes of a function's text are in its file.
pub fn place(function: &Function, span: Span) -> Place {
    let source = &function.source;
    let start = floor_boundary(source, span.start as usize);
    let end = floor_boundary(source, span.end as usize).max(start);
    let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
    let columns = |bytes: &str| bytes.chars().count();
    let column = columns(&source[line_start..start]) + function.column_shift + 1;
    Place {
        file: function.file.clone(),
        line: function.first_line + source[..start].matches('\n').count(),
        column,
        end_column: column + columns(&source[start..end.min(line_end).max(start)]),
        text: format!("{}{}", " ".repeat(function.column_shift), source[line_start..line_end].trim_end()),
        function: function.name.clone(),
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

impl Unit {
    /// Where a site is.
    pub fn place(&self, site: Site) -> Option<Place> {
        let function = self.functions.get(site.function as usize)?;
        Some(place(function, site.span))
    }
}
