//! Runs a `.pt2`, an artifact or a text graph on random inputs: `cargo run --release -p kiln --example run --
//! graphs/softmax.kiln cpu`.
use kiln::{Engine, Error, Settings};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "graphs/softmax.kiln".into());
    let device = args.next().map_or(Ok(kiln::DeviceKind::Cpu), |name| name.parse())?;
    let engine = Engine::open(path.as_ref(), &Settings { device, ..Settings::default() })?;
    // The sizes at export; inputs of other sizes are compiled for when they come.
    let sizes = engine.program().sizes(&Default::default(), &[])?;
    let types = engine.at(&sizes)?.inputs.clone();
    let inputs: Vec<_> = types.iter().enumerate().map(|(i, ty)| kiln::io::random(ty, 2, i as u64)).collect();
    for output in engine.run(&inputs)? {
        println!("{} {:?}", output.ty, output.to_f64_vec().iter().take(8).collect::<Vec<_>>());
    }
    Ok(())
}
