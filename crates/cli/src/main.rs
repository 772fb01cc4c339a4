//! The `kiln` command: parses the call, lets the library work, renders what it says.
mod args;
mod commands;
mod render;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let call = args::Cli::parse();
    match commands::run(call.command) {
        Ok(status) => status,
        Err(e) => {
            render::error(&e);
            ExitCode::from(e.exit_status())
        }
    }
}
