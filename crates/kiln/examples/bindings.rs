//! What a new binding of a program costs, step by step, when others were compiled before it, and how much of its code
//! is new.
//!
//!     cargo run --release -p kiln --example bindings -- MODEL.pt2 [TARGET] SYMBOL=SIZE[,SYMBOL=SIZE] ...
//!
//! One row a binding, in order: seconds of import, plan, lowering and code generation; kernels, distinct block
//! programs, how many of them no binding before had, and of these how many differ from one before in numbers alone: no
//! more than these could be one program with extents as parameters. For a GPU also the seconds that `ptxas` takes for
//! the new ones, on all cores.
use kiln::{CompileOptions, Program, Target, compile::CompiledCode, cubin::Cubins, program::Sizes};
use std::{collections::HashSet, path::Path, time::Instant};

/// The text with each number replaced.
fn skeleton(text: &str) -> String {
    let mut out = String::new();
    let mut last = false;
    for c in text.chars() {
        let digit = c.is_ascii_digit();
        if digit && !last {
            out.push('#');
        }
        if !digit {
            out.push(c);
        }
        last = digit;
    }
    out
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let path = args.next().ok_or("give a .pt2 file")?;
    let target = args.next_if(|a| !a.contains('=')).map_or(Ok(Target::Cpu), |t| t.parse())?;
    let program = Program::open(Path::new(&path))?;
    let sizes = |text: String| -> Result<Sizes, Box<dyn std::error::Error>> {
        let pair = |p: &str| {
            let (name, size) = p.split_once('=').ok_or("give SYMBOL=SIZE")?;
            Ok::<_, Box<dyn std::error::Error>>((name.to_string(), size.parse()?))
        };
        let wanted: Sizes = text.split(',').map(pair).collect::<Result<_, _>>()?;
        Ok(program.sizes(&wanted, &[])?)
    };
    let all: Vec<Sizes> = args.map(sizes).collect::<Result<_, _>>()?;
    let options = CompileOptions { target, ..CompileOptions::default() };
    println!("| sizes | import | plan | lower | code | kernels | programs | new | of them in numbers alone | ptxas |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let (mut texts, mut skeletons) = (HashSet::new(), HashSet::new());
    for (sizes, compiled) in all.iter().zip(program.compile_all(&all, &options)?) {
        let text = |p: &kiln_block::BlockProgram| {
            let mut nameless = p.clone();
            nameless.name.clear();
            kiln_block::text::print(&nameless)
        };
        let all: Vec<String> = compiled.programs.iter().map(text).collect();
        let start = Instant::now();
        if let CompiledCode::Ptx(list) = &compiled.code {
            let fresh = list.iter().zip(&all).filter(|(_, t)| !texts.contains(*t)).map(|(p, _)| p.text.as_str());
            Cubins::assemble(fresh, target)?;
        }
        let assembled = start.elapsed().as_secs_f64();
        let new: Vec<String> = all.into_iter().filter(|t| !texts.contains(t)).collect();
        let numbers = new.iter().filter(|t| skeletons.contains(&skeleton(t))).count();
        let t = compiled.timings;
        println!(
            "| {sizes:?} | {:.3} | {:.3} | {:.3} | {:.3} | {} | {} | {} | {numbers} | {assembled:.3} |",
            t.import_s,
            t.rewrite_s,
            t.lower_s,
            t.codegen_s,
            compiled.plan.kernels.len(),
            compiled.programs.len(),
            new.len(),
        );
        skeletons.extend(new.iter().map(|t| skeleton(t)));
        texts.extend(new);
    }
    Ok(())
}
