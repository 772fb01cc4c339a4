//! Block programs as PTX with what a launch needs, for a machine with a GPU.
//!
//!     cargo run --release -p kiln-codegen --example block_ptx -- DIR FILE[:pass,pass…]…
//!
//! Runs the passes on each program and writes DIR/NAME.ptx, DIR/NAME.json (entry, grid, threads, shared bytes, cluster,
//! arguments) and DIR/NAME.block (the program after the passes). NAME is the name of the file and of the passes, joined
//! by `-`.
use kiln_block::{passes, text, verify::verify};
use kiln_codegen::nvptx::compile;
use kiln_machine::Arch;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: block_ptx DIR FILE[:pass,pass…]…")?;
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    for job in args {
        let (file, names) = job.split_once(':').unwrap_or((&job, ""));
        let names: Vec<&str> = names.split(',').filter(|n| !n.is_empty()).collect();
        let stem = Path::new(file).file_stem().and_then(|s| s.to_str()).ok_or("a file's name is needed")?;
        let name = [&[stem], &names[..]].concat().join("-");
        let mut kernel = text::parse(&std::fs::read_to_string(file)?)?;
        verify(&kernel)?;
        let start = std::time::Instant::now();
        passes::run(&names, &mut kernel, Arch::Sm90a.machine())?;
        verify(&kernel)?;
        passes::canonicalise(&mut kernel)?;
        let passed = start.elapsed();
        let mut ptx = compile(&kernel, Arch::Sm90a.machine())?;
        std::fs::write(dir.join(format!("{name}.block")), text::print(&kernel))?;
        std::fs::write(dir.join(format!("{name}.ptx")), std::mem::take(&mut ptx.text))?;
        std::fs::write(dir.join(format!("{name}.json")), serde_json::to_string_pretty(&ptx)?)?;
        println!("{name}: passes {passed:.1?}, with code {:.1?}", start.elapsed());
    }
    Ok(())
}
