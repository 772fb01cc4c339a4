//! PTX of typical programs with inputs and the interpreter's results, for a machine with a GPU.
//!
//!     cargo run --release -p kiln-codegen --example dump_ptx -- DIR [sm_80|sm_89|sm_90a]
//!     python3 crates/codegen/examples/run_ptx.py DIR
//!
//! Writes to DIR, for every program, NAME.ptx and one file per argument and result, and `index.json` with the launches.
#[path = "../tests/nvptx_common/mod.rs"]
mod programs;

use kiln_codegen::nvptx::compile;
use kiln_interp::block::{Buffer, run};
use kiln_machine::Arch;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: dump_ptx DIR [sm_80|sm_89|sm_90a]")?;
    let dir = Path::new(&dir);
    let arch: Arch = args.next().map_or(Ok(Arch::Sm90a), |name| name.parse())?;
    std::fs::create_dir_all(dir)?;
    let mut index = vec![];
    for (n, p) in programs::programs().iter().enumerate() {
        let start = std::time::Instant::now();
        let ptx = compile(&p.kernel, arch.machine())?;
        let took = start.elapsed();
        let name = format!("{n:02}_{}", ptx.name);
        std::fs::write(dir.join(format!("{name}.ptx")), &ptx.text)?;
        let elem = |i: usize| p.kernel.ty(p.kernel.params[i].value).elem().ok_or("a parameter without elements");
        let mut buffers = vec![];
        for (i, x) in programs::inputs(p).into_iter().enumerate() {
            buffers.push(Buffer::from_f64(elem(i)?, &[x.len()], x));
        }
        let mut list = vec![];
        for (i, b) in buffers.iter().enumerate() {
            std::fs::write(dir.join(format!("{name}.in{i}")), &b.bytes)?;
        }
        run(&p.kernel, &mut buffers)?;
        for (i, b) in buffers.iter().enumerate() {
            std::fs::write(dir.join(format!("{name}.out{i}")), &b.bytes)?;
            let written = !p.kernel.params[i].readonly;
            list.push(format!(r#"{{"elem": "{}", "count": {}, "written": {written}}}"#, b.elem, b.count()));
        }
        let [x, y, z] = ptx.grid.constant().expect("the grid of these programs is a constant");
        index.push(format!(
            r#"{{"name": "{name}", "entry": "{}", "grid": [{x}, {y}, {z}], "threads": {}, "shared": {}, "args": [{}]}}"#,
            ptx.name,
            ptx.threads,
            ptx.shared,
            list.join(", ")
        ));
        println!("{name}: {took:.1?}");
    }
    std::fs::write(dir.join("index.json"), format!("[\n{}\n]\n", index.join(",\n")))?;
    Ok(())
}
