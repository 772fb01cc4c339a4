//! PTX of typical programs through `ptxas`: accepted, without spills, with the accesses and instructions expected.
mod nvptx_common;

use kiln_block::{Elem, Kernel};
use kiln_codegen::nvptx::{Arch, Ptx, compile};
use nvptx_common as programs;
use std::path::PathBuf;
use std::process::Command;

/// `$PTXAS`, or what scripts/setup has put in place.
fn ptxas() -> Option<PathBuf> {
    let local = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps/ptxas/bin/ptxas"));
    std::env::var_os("PTXAS").map(PathBuf::from).or(Some(local)).filter(|p| p.exists())
}

/// Registers a thread, by `ptxas`; fails on spills and warnings. `None` without `ptxas`.
fn assemble(ptx: &Ptx, arch: Arch) -> Option<usize> {
    let Some(ptxas) = ptxas() else {
        eprintln!("skipped: no ptxas ($PTXAS or scripts/setup)");
        return None;
    };
    let dir = std::env::temp_dir().join(format!("kiln-ptx-{}-{}-{}", std::process::id(), ptx.name, arch.name()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, binary) = (dir.join("k.ptx"), dir.join("k.cubin"));
    std::fs::write(&source, &ptx.text).unwrap();
    let arch = format!("-arch={}", arch.name());
    let out = Command::new(ptxas).args(["-v", &arch]).arg(&source).arg("-o").arg(&binary).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{log}\n{}", ptx.text);
    assert!(log.contains("0 bytes spill stores, 0 bytes spill loads"), "{log}");
    assert!(!log.contains("warning"), "{log}");
    let used = log.split("Used ").nth(1).and_then(|s| s.split(' ').next()).unwrap();
    println!("{:24} {:12} {:4} registers, {:6} bytes shared", ptx.name, arch, used, ptx.shared);
    used.parse().ok()
}

fn check(kernel: &Kernel) -> Ptx {
    let mut last = None;
    for arch in [Arch::Sm80, Arch::Sm90a] {
        let ptx = compile(kernel, arch).unwrap_or_else(|e| panic!("{e}"));
        assemble(&ptx, arch);
        last = Some(ptx);
    }
    last.unwrap()
}

fn count(ptx: &Ptx, what: &str) -> usize {
    ptx.text.lines().filter(|l| l.contains(what)).count()
}

#[test]
fn vector_add() {
    let ptx = check(&programs::vector_add(1 << 20, Elem::F32));
    assert_eq!(count(&ptx, "ld.global.nc.v4"), 4, "{}", ptx.text);
    assert_eq!(count(&ptx, "st.global.v4"), 2, "{}", ptx.text);
    assert_eq!(count(&ptx, "setp"), 0, "no mask is left:\n{}", ptx.text);
}

#[test]
fn row_sum() {
    let ptx = check(&programs::row_sum(1024));
    assert_eq!(count(&ptx, "ld.global.nc.v4"), 2, "{}", ptx.text);
    assert_eq!(ptx.shared, 0, "rows stay in a warp");
}

#[test]
fn everything() {
    for k in programs::programs() {
        for arch in [Arch::Sm80, Arch::Sm90a] {
            let start = std::time::Instant::now();
            match compile(&k, arch) {
                Ok(ptx) => {
                    println!("{} {:?}", k.name, start.elapsed());
                    assemble(&ptx, arch);
                }
                Err(e) => println!("{e}"),
            }
        }
    }
}
