//! How to use Kiln as a library: opens a model, compiles it for this processor, and runs it on random inputs.
//!
//!     cargo run --release -p kiln --example embed -- [MODEL]
//!
//! MODEL is a text graph (default: graphs/softmax.kiln) or an artifact. A TorchScript archive works as well, with
//! inputs as the second argument of [`Model::open`] and the plugin next to the program.
use kiln::{CompileOptions, Error, Model, compile, explain};
use std::path::Path;

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "graphs/softmax.kiln".into());
    let model = Model::open(Path::new(&path), &[])?;

    // `target: Target::Sm90a` compiles for an H200, `contract: Numerics::Exact.into()` rounds after every op.
    let compiled = compile(&model, &CompileOptions::default())?;
    let kernels = explain::count(compiled.plan.kernels.len(), "kernel");
    println!("{}: {kernels}, {:.1} us predicted", compiled.plan.name, compiled.plan.predicted_us());

    // A session holds weights and memory; it runs as often as you like.
    let session = compiled.session()?;
    let inputs = model.example_inputs(1);
    let outputs = session.run(&inputs)?;
    for (i, t) in outputs.iter().enumerate() {
        println!("output {i}: {}, begins with {}", t.ty, t.get_f64(0));
    }
    Ok(())
}
