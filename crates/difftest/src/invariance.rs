//! Checks batch invariance: a row's result must not depend on the number of other rows or on its position among them.
//! Runs models at several batch sizes and with reversed rows, and compares the results byte for byte.
use kiln::{CompileOptions, Contract, Device, Graph, Model, Target, Tensor, compile};
use kiln_graph::{Type, random_tensor};

/// Batch sizes that are compared, each with the next larger one.
pub const BATCHES: [usize; 5] = [1, 2, 8, 64, 512];

/// A model as a graph's text, beginning with the list of inputs: `B` stands for the batch size, `D` for the type.
pub struct Case {
    /// Such as `mlp`.
    pub name: &'static str,
    text: &'static str,
    dtypes: &'static [&'static str],
}

const FLOATS: &[&str] = &["f32", "bf16", "f16"];

/// The models: multilayer perceptrons, transformer layers with composites and in primitives, a small convolutional
/// network, rows of many lengths.
pub const CASES: &[Case] = &[
    Case {
        name: "mlp",
        text: "(%x: D[B,96]) {
            @a: D[256,96] = random(seed=1, scale=0.1)\n @b: D[256] = random(seed=2, scale=0.1)
            @c: D[96,256] = random(seed=3, scale=0.1)\n @d: D[96] = random(seed=4, scale=0.1)
            %h = linear %x, @a, @b\n %g = gelu_erf %h\n %y = linear %g, @c, @d\n %z = softmax %y axis=1\n return %y, %z }",
        dtypes: FLOATS,
    },
    Case {
        name: "narrow mlp",
        text: "(%x: D[B,700]) {
            @a: D[5,700] = random(seed=1, scale=0.1)\n @c: D[1000,5] = random(seed=3, scale=0.5)
            %h = linear %x, @a\n %g = silu %h\n %y = linear %g, @c\n %z = log_softmax %y axis=1\n return %h, %z }",
        dtypes: FLOATS,
    },
    Case {
        name: "deep sums",
        text: "(%x: D[B,4096]) {
            @a: D[64,4096] = random(seed=1, scale=0.05)\n %h = linear %x, @a\n %s = reduce.sum %x axes=[1]
            %m = reduce.mean %h axes=[1]\n %y = sub %h, %m\n %c = scan.sum %x axis=1\n return %y, %s, %c }",
        dtypes: FLOATS,
    },
    Case {
        name: "transformer layer",
        text: "(%x: D[B,17,64]) {
            @g: D[64] = random(seed=1, scale=1.0)\n @h: D[64] = random(seed=2, scale=0.1)
            @q: D[64,64] = random(seed=3, scale=0.1)\n @k: D[64,64] = random(seed=4, scale=0.1)
            @v: D[64,64] = random(seed=5, scale=0.1)\n @o: D[64,64] = random(seed=6, scale=0.1)
            @u: D[128,64] = random(seed=7, scale=0.1)\n @w: D[64,128] = random(seed=8, scale=0.1)
            %n = layer_norm %x, @g, @h axes=1 eps=1e-5
            %q0 = linear %n, @q\n %k0 = linear %n, @k\n %v0 = linear %n, @v
            %q1 = reshape %q0 shape=[B,17,4,16]\n %k1 = reshape %k0 shape=[B,17,4,16]\n %v1 = reshape %v0 shape=[B,17,4,16]
            %q2 = permute %q1 perm=[0,2,1,3]\n %k2 = permute %k1 perm=[0,2,1,3]\n %v2 = permute %v1 perm=[0,2,1,3]
            %a = attention %q2, %k2, %v2 scale=0.25 causal=true
            %b = permute %a perm=[0,2,1,3]\n %c = reshape %b shape=[B,17,64]\n %d = linear %c, @o\n %e = add %x, %d
            %r = rms_norm %e, @g eps=1e-6\n %f = linear %r, @u\n %s = gelu_tanh %f\n %t = linear %s, @w\n %y = add %e, %t
            return %y }",
        dtypes: FLOATS,
    },
    Case {
        name: "layer norm of a sum",
        text: "(%x: D[B,64], %y: D[B,64], %z: D[B,200]) {
            @g: D[64] = random(seed=1, scale=1.0)\n @h: D[64] = random(seed=2, scale=0.1)
            %s = add %x, %y\n %n = layer_norm %s, @g, @h axes=1 eps=1e-5\n %t = mul %z, %z\n %m = reduce.mean %t axes=[1]
            return %n, %m }",
        dtypes: FLOATS,
    },
    Case {
        name: "attention of one query",
        text: "(%q: D[B,8,1,64], %k: D[B,2,300,64], %v: D[B,2,300,64]) {
            %a = attention %q, %k, %v scale=0.125 causal=false\n return %a }",
        dtypes: FLOATS,
    },
    Case {
        name: "attention in primitives",
        text: "(%q: D[B,3,24,32], %k: D[B,3,24,32], %v: D[B,3,24,32]) {
            %t = permute %k perm=[0,1,3,2]\n %s = dot %q, %t\n %m = mul %s, 0.1767767\n %p = softmax %m axis=3\n %o = dot %p, %v
            return %o, %p }",
        dtypes: FLOATS,
    },
    Case {
        name: "convolutions",
        text: "(%x: D[B,4,14,14]) {
            @a: D[8,4,3,3] = random(seed=1, scale=0.2)\n @b: D[8] = random(seed=2, scale=0.1)\n @c: D[16,8,1,1] = random(seed=3, scale=0.2)
            %h = conv %x, @a, @b padding=[1,1]\n %r = relu %h\n %p = pool.avg %r window=[2,2]\n %y = conv %p, @c
            %m = reduce.mean %y axes=[2,3]\n return %y, %m }",
        dtypes: FLOATS,
    },
    Case {
        name: "rows of odd lengths",
        text: "(%x: D[B,7], %y: D[B,1003], %z: D[B,20011], %w: D[B,33,48]) {
            %a = softmax %x axis=1\n %b = softmax %y axis=1\n %c = reduce.sum %z axes=[1]\n %s = sin %y\n %d = reduce.sum %s axes=[1]
            %e = softmax %w axis=1\n %f = reduce.mean %w axes=[1]\n %g = reduce.prod %x axes=[1]\n return %a, %b, %c, %d, %e, %f, %g }",
        dtypes: FLOATS,
    },
];

impl Case {
    fn graph(&self, dtype: &str, batch: usize) -> Result<Graph, String> {
        let b = batch.to_string();
        let text = self.text.replace("D[", &format!("{dtype}[")).replace("[B,", &format!("[{b},"));
        format!("graph rows{text}").parse().map_err(|e| format!("{}: {e}", self.name))
    }
}

/// Compiles and runs each case for each batch size and type under `contract`, and compares the rows that two batches
/// have in common. Gives the number of comparisons; the error lists all differences.
pub fn check(device: &Device, target: Target, contract: Contract, batches: &[usize]) -> Result<usize, String> {
    let (mut wrong, mut compared) = (vec![], 0);
    for case in CASES {
        for dtype in case.dtypes {
            let most = batches.iter().copied().max().unwrap_or(1);
            let g = case.graph(dtype, most)?;
            let inputs: Vec<Tensor> = g.inputs.iter().map(|v| g.ty(*v).clone()).enumerate().map(rows).collect();
            let mut before: Option<(usize, Vec<Tensor>)> = None;
            for &batch in batches {
                let outputs = run(&case.graph(dtype, batch)?, batch, &inputs, (device, target, contract))
                    .map_err(|e| format!("{} in {dtype}, {batch} rows: {e}", case.name))?;
                if let Some((fewer, small)) = &before {
                    compared += 1;
                    wrong.extend(differing(small, &outputs).map(|(o, at)| {
                        format!(
                            "{} in {dtype}: output {o} differs between batches of {fewer} and {batch}, first in row \
                             {at}",
                            case.name
                        )
                    }));
                }
                if batch > 1 {
                    compared += 1;
                    let reversed: Vec<Tensor> =
                        inputs.iter().filter_map(|t| first(t, batch)).map(|t| reversed(&t)).collect();
                    let again = run(&case.graph(dtype, batch)?, batch, &reversed, (device, target, contract))
                        .map_err(|e| format!("{} in {dtype}, {batch} rows reversed: {e}", case.name))?;
                    let again: Vec<Tensor> = again.iter().map(self::reversed).collect();
                    wrong.extend(differing(&again, &outputs).map(|(o, at)| {
                        format!(
                            "{} in {dtype}: output {o} of {batch} rows differs if the rows are reversed, first in \
                             row {at}",
                            case.name
                        )
                    }));
                }
                before = Some((batch, outputs));
            }
        }
    }
    if wrong.is_empty() { Ok(compared) } else { Err(wrong.join("\n")) }
}

fn rows((i, ty): (usize, Type)) -> Tensor {
    random_tensor(ty, 11 + i as u64, 1.0)
}

/// The first rows of a tensor.
fn first(t: &Tensor, count: usize) -> Option<Tensor> {
    let mut shape = t.ty.shape.clone();
    *shape.first_mut()? = count;
    let ty = Type::new(t.ty.dtype, shape);
    let bytes = t.bytes().get(..ty.bytes())?;
    Tensor::from_bytes(ty, bytes)
}

/// The rows in reverse order.
fn reversed(t: &Tensor) -> Tensor {
    let rows = t.ty.shape.first().copied().unwrap_or(1).max(1);
    let bytes: Vec<u8> = t.bytes().chunks((t.bytes().len() / rows).max(1)).rev().flatten().copied().collect();
    Tensor::from_bytes(t.ty.clone(), &bytes).unwrap_or_else(|| t.clone())
}

fn run(
    graph: &Graph,
    batch: usize,
    inputs: &[Tensor],
    (device, target, contract): (&Device, Target, Contract),
) -> Result<Vec<Tensor>, String> {
    let given: Option<Vec<Tensor>> = inputs.iter().map(|t| first(t, batch)).collect();
    let given = given.ok_or("an input has fewer rows")?;
    let model = Model::from_graph(graph.clone()).map_err(|e| e.to_string())?;
    let options = CompileOptions { target, contract, ..CompileOptions::default() };
    let compiled = compile(&model, &options).map_err(|e| e.to_string())?;
    let session = compiled.session_in(device).map_err(|e| e.to_string())?;
    session.run(&given).map_err(|e| e.to_string())
}

/// Outputs whose bytes differ from the first rows of the larger batch, with the first row that differs.
fn differing<'a>(small: &'a [Tensor], large: &'a [Tensor]) -> impl Iterator<Item = (usize, usize)> + 'a {
    small.iter().zip(large).enumerate().filter_map(|(o, (s, l))| {
        let row = s.bytes().len() / s.ty.shape.first().copied().unwrap_or(1).max(1);
        let at = s.bytes().iter().zip(l.bytes()).position(|(a, b)| a != b)?;
        Some((o, at / row.max(1)))
    })
}
