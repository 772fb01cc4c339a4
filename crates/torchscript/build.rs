//! Compiles the C++ shim against the libtorch that torch-sys links.
use std::{env, path::PathBuf};

const FILES: [&str; 7] = ["load", "dump", "specialise", "views", "reads", "mutation", "execute"];

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    let Some(lib) = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        panic!("torch-sys did not say where libtorch is; run scripts/setup");
    };
    // The headers are next to the libraries, both in the libtorch archive and in the Python wheel.
    let include = lib.parent().map(|root| root.join("include")).unwrap_or_default();
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .warnings(false)
        .opt_level(1)
        .debug(false)
        .files(FILES.map(|f| format!("cpp/{f}.cpp")))
        .compile("kiln_torch_shim");
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    // Only this package's tests and examples need an rpath: the plugin's host has loaded libtorch already.
    for target in ["tests", "examples"] {
        println!("cargo:rustc-link-arg-{target}=-Wl,-rpath,{}", lib.display());
    }
}
