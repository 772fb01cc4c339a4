//! PTX of fused graphs, run by an interpreter of PTX, each kernel by a schedule drawn from those proposed.
use kiln::compile::{Compiled, CompiledCode};
use kiln::{CompileOptions, Model, Target};
use kiln_difftest::{Expected, scheduled, schedules_of};
use kiln_graph::{Graph, Random, Tensor};
use kiln_graphgen::{Scale, case, case_inputs};
use kiln_interp::ptx;
use kiln_plan::BufferKind;
use kiln_plan::exec::{Slot, Work};
use std::collections::HashMap;

/// Why a program is not run: the interpreter of PTX has no warpgroups, tensor maps and clusters.
enum Stop {
    NotCovered(String),
    Wrong(String),
}

/// Outputs of a compiled graph on these inputs.
fn run(c: &Compiled, inputs: &[Tensor]) -> Result<Vec<Tensor>, Stop> {
    let CompiledCode::Ptx(code) = &c.code else { return Err(Stop::Wrong("no PTX".into())) };
    let filled = |b: &kiln_plan::Buffer| match b.kind {
        BufferKind::Input(n) => inputs[n as usize].bytes().to_vec(),
        BufferKind::Param(p) => c.params[p.0 as usize].bytes().to_vec(),
        _ => vec![0xff; b.ty.bytes()],
    };
    let mut memory: Vec<Vec<u8>> = c.plan.buffers.iter().map(filled).collect();
    for (kernel, steps) in c.plan.kernels.iter().zip(&c.steps) {
        let mut own: HashMap<Slot, Vec<u8>> = HashMap::from([(Slot::Faults, vec![0; 8]), (Slot::Counter, vec![0; 4])]);
        own.extend(steps.scratch.iter().enumerate().map(|(i, ty)| (Slot::Scratch(i as u32), vec![0xff; ty.bytes()])));
        for step in &steps.steps {
            let Work::Block { code: id, args } = step else { return Err(Stop::NotCovered(kernel.name.clone())) };
            let p = &code[*id];
            let covered = p.cluster == 1 && p.args.iter().all(|a| matches!(a, kiln_codegen::nvptx::Argument::Address));
            if !covered {
                return Err(Stop::NotCovered(kernel.name.clone()));
            }
            let place = |slot: &Slot| match slot {
                Slot::Input(n) => Some(kernel.inputs[*n as usize].0 as usize),
                Slot::Output(n) => Some(kernel.outputs[*n as usize].0 as usize),
                _ => None,
            };
            let mut buffers: Vec<Vec<u8>> =
                args.iter().map(|s| place(s).map_or_else(|| own[s].clone(), |at| memory[at].clone())).collect();
            let launch = ptx::Launch { grid: p.grid.constant().unwrap(), threads: p.threads, shared: p.shared };
            let about = |e: &ptx::PtxError| format!("{} ({:?}): {e}", kernel.name, kernel.schedule);
            match ptx::run(&p.text, launch, &mut buffers) {
                Ok(()) => {}
                Err(e @ ptx::PtxError::Unknown { .. }) => return Err(Stop::NotCovered(about(&e))),
                Err(e) => return Err(Stop::Wrong(about(&e))),
            }
            for ((slot, param), b) in args.iter().zip(&c.programs[*id].params).zip(buffers) {
                match place(slot) {
                    _ if param.readonly => {}
                    Some(at) => memory[at] = b,
                    None => _ = own.insert(*slot, b),
                }
            }
        }
    }
    let output = |b: &kiln_plan::BufferId| {
        let ty = c.plan.buffer(*b).ty.clone();
        Tensor::from_bytes(ty, &memory[b.0 as usize]).ok_or_else(|| Stop::Wrong("an output of another size".into()))
    };
    c.plan.outputs.iter().map(output).collect()
}

/// Runs a graph with `draws` schedules; gives how many were run, and adds what stopped the others.
fn tried(graph: &Graph, inputs: &[Tensor], target: Target, draws: u64, others: &mut Vec<String>) -> usize {
    let options = CompileOptions { target, ..CompileOptions::default() };
    let model = Model::from_graph(graph.clone()).expect("is a model");
    let Ok(expected) = Expected::new(&model, inputs, std::slice::from_ref(&options)) else { return 0 };
    let mut count = 0;
    for seed in 0..draws {
        let compiled = scheduled(&model, &options, seed * 77 + 5).expect("compiles");
        let about = || format!("{target:?}: {}\n{graph}", schedules_of(&compiled));
        match run(&compiled, inputs) {
            Ok(got) => {
                expected.check(&got).unwrap_or_else(|e| panic!("{e}\n{}", about()));
                count += 1;
            }
            Err(Stop::NotCovered(what)) => others.push(what),
            Err(Stop::Wrong(what)) => panic!("{what}\n{}", about()),
        }
    }
    count
}

#[test]
fn random_graphs() {
    let (mut count, mut others) = (0, vec![]);
    for seed in 500..560 {
        let graph = case(seed, Scale::Small);
        let inputs = case_inputs(&graph, seed);
        count += tried(&graph, &inputs, [Target::Sm90a, Target::Sm80][seed as usize % 2], 2, &mut others);
    }
    println!("{count} runs; not covered: {others:#?}");
    assert!(count > 40, "{count} of 120 runs: {others:#?}");
}

/// What random graphs have little of: windows, concatenations and slices at odd positions, long rows, columns, scans.
#[test]
fn nests() {
    let graphs = [
        "graph k(%a: bf16[5,3,7,7], %w: bf16[3,1,3,3]) { %y = conv %a, %w stride=[1,1] padding=[1,1] groups=3\n \
         %z = silu %y\n return %z }",
        "graph k(%a: f16[3,5,14,14], %w: f16[5,1,5,5]) { %y = conv %a, %w stride=[1,1] padding=[2,2] groups=5\n \
         return %y }",
        "graph k(%a: f32[4,6,9,13]) { %y = pool.avg %a window=[3,3] stride=[2,1] padding=[1,0]\n return %y }",
        "graph k(%a: f16[9,133], %b: f16[9,7], %c: f16[9,64]) { %y = concat %a, %b, %c axis=1\n %z = relu %y\n \
         return %z }",
        "graph k(%a: bf16[5,301]) { %p = slice %a axis=1 start=37 len=264\n %q = slice %a axis=1 start=0 len=37\n \
         %y = concat %p, %q axis=1\n return %y }",
        "graph k(%a: bf16[31,45]) { %t = permute %a perm=[1,0]\n %y = relu %t\n return %y }",
        "graph k(%a: f16[3,10,11,16]) { %t = permute %a perm=[0,3,1,2]\n %y = relu %t\n return %y }",
        "graph k(%a: f16[70,71]) { %y = log_softmax %a axis=1\n return %y }",
        "graph k(%a: bf16[66,45]) { %y = softmax %a axis=1\n return %y }",
        "graph k(%a: f32[35,130]) { %y = scan.sum %a axis=1\n return %y }",
        "graph k(%a: f32[40,9,9]) { %y = softmax %a axis=1\n return %y }",
        "graph k(%a: f16[2,4097]) { %y = softmax %a axis=1\n return %y }",
        "graph k(%a: bf16[3,1000], %g: bf16[1000]) { %y = rms_norm %a, %g eps=1e-6\n return %y }",
        "graph k(%a: f32[515,37]) { %y = softmax %a axis=0\n return %y }",
        "graph k(%a: f16[3,700]) { %y = scan.sum %a axis=1\n return %y }",
        "graph k(%a: f32[12000]) { %y = scan.sum %a axis=0\n return %y }",
        "graph k(%a: i64[2,5001]) { %y = scan.sum %a axis=1\n return %y }",
        "graph k(%a: bf16[600,37]) { %y = scan.sum %a axis=0\n return %y }",
        "graph k(%a: f32[6,5,9,8]) { %y = reduce.mean %a axes=[0,2,3]\n return %y }",
    ];
    for text in graphs {
        let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let (inputs, mut others) = (kiln_graphgen::inputs(&graph, 7), vec![]);
        let count: usize =
            [Target::Sm90a, Target::Sm80].map(|t| tried(&graph, &inputs, t, 6, &mut others)).iter().sum();
        println!("{count} of 12, {text}");
        assert!(count > 3, "{count} of 12 runs: {others:#?}\n{text}");
    }
}

/// Positions of extremes among equal numbers, zeros of both signs, infinities and NaNs, in one thread, in several, and
/// in several warps.
#[test]
fn positions_of_extremes() {
    const SPECIAL: [f64; 9] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.5, -1.5, 1e-40, -3.0];
    for (shape, axis) in [("[40,7]", 1), ("[6,300]", 1), ("[3,5000]", 1), ("[70,40]", 0), ("[2,9,9]", 1)] {
        for (op, dtype) in
            [("argmax", "f32"), ("argmin", "f32"), ("argmax", "bf16"), ("argmin", "f16"), ("argmax", "f64")]
        {
            let text = format!("graph k(%a: {dtype}{shape}) {{ %y = reduce.{op} %a axes=[{axis}]\n return %y }}");
            let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
            let mut count = 0;
            // Fewer and fewer kinds of numbers, so that there are rows without a NaN, and of equals alone.
            for first in [0, 1, 3, 5] {
                let mut input = Tensor::zeros(graph.ty(graph.inputs[0]).clone());
                let mut random = Random::new(first as u64);
                for i in 0..input.ty.count() {
                    let kinds = (SPECIAL.len() - first).min(4 + 2 * (i / 97 % 3));
                    input.set_f64(i, SPECIAL[first + random.next_below(kinds)]);
                }
                let mut others = vec![];
                count += tried(&graph, &[input], [Target::Sm90a, Target::Sm80][first % 2], 3, &mut others);
            }
            assert!(count > 3, "{count} runs of {text}");
        }
    }
}
