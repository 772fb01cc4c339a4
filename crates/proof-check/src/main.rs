//! `kiln-proof-check FILE…`: says of each certificate whether its plan is shown to compute its graph. Exit status: 0
//! if all are, else 1.
use std::process::ExitCode;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: kiln-proof-check FILE…   certificates of `kiln explain MODEL --proof --json FILE`");
        return ExitCode::from(2);
    }
    let mut all = true;
    for file in files {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) => {
                eprintln!("{file}: {e}; write one by `kiln explain MODEL --proof --json FILE`");
                return ExitCode::from(2);
            }
        };
        match kiln_proof_check::check(&text) {
            Ok(checked) => println!("{file}: yes, {checked}"),
            Err(refused) => {
                println!("{file}: no, {refused}");
                all = false;
            }
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
