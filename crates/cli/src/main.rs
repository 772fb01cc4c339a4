//! The `kiln` command: parses the command line, calls the library, renders results and errors.
mod args;
mod commands;
mod render;

use clap::Parser;
use std::process::ExitCode;

/// Archives are imported by a child process, which is this program again, under limits on time and memory.
fn limit_imports(call: &args::Cli) {
    let Ok(program) = std::env::current_exe() else { return };
    let mut limits = kiln::Limits { seconds: call.import_seconds, ..kiln::Limits::default() };
    if let Some(gib) = call.import_memory {
        limits.memory = (gib * (1u64 << 30) as f64) as u64;
    }
    kiln::import_in_child(program, vec!["__import".into()], limits);
}

fn main() -> ExitCode {
    let call = args::Cli::parse();
    limit_imports(&call);
    match commands::run(call.command) {
        Ok(status) => status,
        Err(e) => {
            render::error(&e);
            ExitCode::from(e.exit_status())
        }
    }
}
