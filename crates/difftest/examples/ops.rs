//! Tests every op on every type that it takes, and chains under exact numerics, on a device against stored results of
//! libtorch.
//!
//!     cargo run --release -p kiln-difftest --example ops -- write FILE                       needs libtorch
//!     cargo run --release -p kiln-difftest --example ops -- check FILE [cpu|cuda:0]          on any machine
//!     cargo run --release -p kiln-difftest --example ops -- rows [cpu|cuda:0]
//!
//! `rows` compares rows of batch-invariant plans at several batch sizes.
use kiln::{
    CompileOptions, Contract, Device, Error, Model, Numerics, Target, Torch, compile::DeviceKind, compile::open_device,
};
use kiln_difftest::{invariance, near, pack, pack::Packed};
use std::{path::Path, process::exit};

/// Number of chains in a file.
const CHAINS: u64 = 1000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", file] => write(Path::new(file)),
        ["check", file] | ["check", file, "cpu"] => check(Path::new(file), DeviceKind::Cpu),
        ["check", file, "cuda:0"] => check(Path::new(file), DeviceKind::Cuda(0)),
        ["rows"] | ["rows", "cpu"] => rows(DeviceKind::Cpu),
        ["rows", "cuda:0"] => rows(DeviceKind::Cuda(0)),
        _ => {
            eprintln!("write FILE, check FILE [cpu|cuda:0], or rows [cpu|cuda:0]");
            exit(2)
        }
    };
    match done {
        Ok(0) => {}
        Ok(_) => exit(1),
        Err(e) => {
            eprintln!("{e}");
            exit(1)
        }
    }
}

fn write(file: &Path) -> Result<usize, Error> {
    let torch = Torch::load().map_err(|e| Error::failed(e.to_string(), "run scripts/setup and scripts/test"))?;
    let all =
        pack::all(&torch, CHAINS).map_err(|e| Error::failed(format!("libtorch has no result: {e}"), "report this"))?;
    pack::write(file, &all)?;
    println!("{} cases in {}", all.len(), file.display());
    Ok(0)
}

fn target(kind: DeviceKind) -> Target {
    match kind {
        DeviceKind::Cpu => Target::Cpu,
        DeviceKind::Cuda(_) => Target::Sm90a,
    }
}

/// Checks batch invariance; gives the number of contracts under which rows differ.
fn rows(kind: DeviceKind) -> Result<usize, Error> {
    let device = open_device(kind, Some(1))?;
    let mut failed = 0;
    for numerics in Numerics::ALL {
        let contract = Contract { batch_invariant: true, ..numerics.into() };
        match invariance::check(&device, target(kind), contract, &invariance::BATCHES) {
            Ok(compared) => println!("{contract}: {compared} comparisons, every row has the same bytes"),
            Err(wrong) => {
                failed += 1;
                println!("{contract}:\n{wrong}");
            }
        }
    }
    Ok(failed)
}

/// Runs the cases of a file; gives the number of cases that fail.
fn check(file: &Path, kind: DeviceKind) -> Result<usize, Error> {
    let (all, device) = (pack::read(file)?, open_device(kind, Some(1))?);
    let target = target(kind);
    let failed = all.iter().filter_map(|p| one(p, target, &device).err().map(|e| format!("{}: {e}", p.case.name)));
    let failed: Vec<String> = failed.inspect(|e| println!("{e}")).collect();
    println!("{} cases, {} failed", all.len(), failed.len());
    Ok(failed.len())
}

fn one(p: &Packed, target: Target, device: &Device) -> Result<(), String> {
    let options = CompileOptions { target, contract: p.numerics.into(), ..CompileOptions::default() };
    let model = Model::from_graph(p.case.graph.clone()).map_err(|e| e.to_string())?;
    let compiled = kiln::compile(&model, &options).map_err(|e| e.to_string())?;
    let session = compiled.session_in(device).map_err(|e| e.to_string())?;
    let outputs = session.run(&p.case.inputs).map_err(|e| e.to_string())?;
    let mut each = outputs.iter().zip(&p.want).enumerate();
    each.try_for_each(|(o, (got, want))| {
        near::check(p.case.near, got, want, target != Target::Cpu).map_err(|e| format!("output {o}, {e}"))
    })
}
