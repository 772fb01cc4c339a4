//! Terminal output: errors with the model's source line where it can be found, a progress display, and writes to
//! standard output that tolerate a closed pipe.
use kiln::{Error, error::Problem};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report, Severity};
use std::io::{IsTerminal, Write};

/// Writes to standard output; a closed pipe is not an error.
pub fn out(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::failed(format!("cannot write to standard output: {e}"), "check where it goes"))
        }
        _ => Ok(()),
    }
}

/// Columns of the terminal; 100 if standard output is not a terminal.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal = || terminal_size::terminal_size_of(std::io::stdout()).map(|s| usize::from(s.0.0));
    columns.or_else(terminal).unwrap_or(100).clamp(40, 160)
}

/// Writes a report to a file, or to standard output for "-".
pub fn to(path: &std::path::Path, text: &str) -> Result<(), Error> {
    if path.as_os_str() == "-" { out(text) } else { kiln::io::write_whole(path, text.as_bytes()) }
}

/// Prints an error to standard error.
pub fn error(e: &Error) {
    let mut text = String::new();
    match e {
        Error::Model { what, problems } => {
            text += &show(MietteDiagnostic::new(what.clone()).with_severity(Severity::Error), None);
            problems.iter().for_each(|p| text += &problem(p));
        }
        _ => {
            let mut d = MietteDiagnostic::new(e.to_string());
            if !e.help().is_empty() {
                d = d.with_help(e.help());
            }
            text += &show(d, None);
        }
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn problem(p: &Problem) -> String {
    let mut d = MietteDiagnostic::new(p.what.clone());
    if !p.help.is_empty() {
        d = d.with_help(p.help.clone());
    }
    let place = p.line.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse::<usize>().ok()?)));
    let source = place.and_then(|(file, line)| Some((file, line, std::fs::read_to_string(file).ok()?)));
    match source {
        Some((file, line, text)) if line >= 1 && line <= text.lines().count() => {
            let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
            let whole = text.lines().nth(line - 1).unwrap_or_default();
            let indent = whole.len() - whole.trim_start().len();
            let label = if p.module.is_empty() { "here".to_string() } else { format!("in {}", p.module) };
            let span = start + indent..start + whole.trim_end().len().max(indent + 1);
            show(d.with_labels([LabeledSpan::at(span, label)]), Some(NamedSource::new(file, text)))
        }
        _ => {
            let mut at = p.line.clone();
            if !p.module.is_empty() {
                at += &format!(" (module {})", p.module);
            }
            if !at.trim().is_empty() {
                d.message = format!("{}, at {}", d.message, at.trim());
            }
            show(d, None)
        }
    }
}

fn show(d: MietteDiagnostic, source: Option<NamedSource<String>>) -> String {
    let terminal = std::io::stderr().is_terminal();
    let theme = match (terminal, std::env::var_os("NO_COLOR").is_none()) {
        (true, true) => GraphicalTheme::unicode(),
        (true, false) => GraphicalTheme::unicode_nocolor(),
        _ => GraphicalTheme::none(),
    };
    // Outside of a terminal messages are not wrapped, so that scripts can match whole sentences.
    let handler = GraphicalReportHandler::new_themed(theme).with_width(if terminal { 100 } else { 10_000 });
    let report = match source {
        Some(s) => Report::from(d).with_source_code(s),
        None => Report::from(d),
    };
    let mut text = String::new();
    if handler.render_report(&mut text, report.as_ref()).is_err() {
        text = format!("error: {report}\n");
    }
    text
}

/// A spinner on a terminal for work that may take over a second; nothing when piped.
pub struct Progress(Option<indicatif::ProgressBar>);
impl Progress {
    pub fn new(what: &str) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = indicatif::ProgressBar::new_spinner().with_message(what.to_string());
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        Progress(Some(bar))
    }
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_string());
        }
    }
    /// Shows a progress bar in place of the spinner: `done` of `of`, and what is being done.
    pub fn count(&self, done: usize, of: usize, what: &str) {
        let Some(bar) = &self.0 else { return };
        if bar.length().is_none()
            && let Ok(style) = indicatif::ProgressStyle::with_template("{bar:24} {pos}/{len} {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_string());
    }
}
impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
