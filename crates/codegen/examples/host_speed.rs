//! Speed of generated host code against memcpy, and compile times. `cargo run --release --example host_speed`
use kiln_block::*;
use kiln_codegen::host;
use std::time::Instant;

const GELU: usize = 16 << 20;
const ROWS: usize = 4096;
const COLS: usize = 4096;

fn gelu(erf: bool) -> BlockProgram {
    let block = 4096;
    let mut b = Builder::new("gelu", [GELU / block, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let pid = b.program_id(0);
    let n = b.i32(block as i64);
    let base = b.binary(BinaryOp::Mul, pid, n);
    let i = b.iota(block);
    let i = b.binary(BinaryOp::Add, base, i);
    let limit = b.i32(GELU as i64);
    let mask = b.cmp(CmpOp::Lt, i, limit);
    let (px, py) = (b.ptr_add(x, i), b.ptr_add(y, i));
    let v = b.load(px, Some(mask), None);
    let c = |b: &mut Builder, v: f64| b.constant(Type::scalar(Elem::F32), Const::Float(v));
    let inner = if erf {
        let s = c(&mut b, std::f64::consts::FRAC_1_SQRT_2);
        let t = b.binary(BinaryOp::Mul, v, s);
        b.unary(UnaryOp::Erf, t)
    } else {
        let (a, s) = (c(&mut b, 0.044715), c(&mut b, 0.7978845608028654));
        let v2 = b.binary(BinaryOp::Mul, v, v);
        let v3 = b.binary(BinaryOp::Mul, v2, v);
        let t = b.binary(BinaryOp::Mul, v3, a);
        let t = b.binary(BinaryOp::Add, v, t);
        let t = b.binary(BinaryOp::Mul, t, s);
        b.unary(UnaryOp::Tanh, t)
    };
    let (one, half) = (c(&mut b, 1.0), c(&mut b, 0.5));
    let t = b.binary(BinaryOp::Add, inner, one);
    let h = b.binary(BinaryOp::Mul, v, half);
    let r = b.binary(BinaryOp::Mul, h, t);
    b.store(py, r, Some(mask));
    b.finish()
}

fn softmax() -> BlockProgram {
    let mut b = Builder::new("softmax", [ROWS, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let row = b.program_id(0);
    let n = b.i32(COLS as i64);
    let base = b.binary(BinaryOp::Mul, row, n);
    let i = b.iota(COLS);
    let off = b.binary(BinaryOp::Add, base, i);
    let mask = b.cmp(CmpOp::Lt, i, n);
    let ninf = b.constant(Type::scalar(Elem::F32), Const::Float(f64::NEG_INFINITY));
    let (px, py) = (b.ptr_add(x, off), b.ptr_add(y, off));
    let v = b.load(px, Some(mask), Some(ninf));
    let m = b.reduce(ReduceOp::Max, v, 0);
    let d = b.binary(BinaryOp::Sub, v, m);
    let e = b.unary(UnaryOp::Exp, d);
    let s = b.reduce(ReduceOp::Sum, e, 0);
    let r = b.binary(BinaryOp::Div, e, s);
    b.store(py, r, Some(mask));
    b.finish()
}

fn matmul(n: usize) -> BlockProgram {
    let mut b = Builder::new("matmul", [16, 1, 1], 4);
    let [x, y, z] = [("x", true), ("y", true), ("z", false)].map(|(s, r)| b.param(s, Elem::F32, r));
    let (i, j) = (b.iota(n), b.iota(n));
    let (i, j) = (b.expand_dims(i, 1), b.expand_dims(j, 0));
    let w = b.i32(n as i64);
    let row = b.binary(BinaryOp::Mul, i, w);
    let off = b.binary(BinaryOp::Add, row, j);
    let (px, py, pz) = (b.ptr_add(x, off), b.ptr_add(y, off), b.ptr_add(z, off));
    let (vx, vy) = (b.load(px, None, None), b.load(py, None, None));
    let zero = b.constant(Type::block(Elem::F32, [n, n]), Const::Float(0.0));
    let (lo, hi, step) = (b.i32(0), b.i32(16), b.i32(1));
    let r = b.for_loop([lo, hi, step], &[zero], |b, _, c| vec![b.dot(vx, vy, c[0], DotPrecision::Exact)]);
    b.store(pz, r[0], None);
    b.finish()
}

/// Median seconds of a run on `threads` threads.
fn time(k: &BlockProgram, args: &[*mut u8], threads: u64) -> f64 {
    let module = host::compile(std::slice::from_ref(k)).unwrap();
    let f = module.function(0).unwrap();
    let n = k.instances().unwrap() as u64;
    let mut runs: Vec<f64> = (0..9)
        .map(|_| {
            let addresses: Vec<usize> = args.iter().map(|p| *p as usize).collect();
            let t = Instant::now();
            std::thread::scope(|s| {
                for i in 0..threads {
                    let a = addresses.clone();
                    s.spawn(move || {
                        let a: Vec<*mut u8> = a.iter().map(|p| *p as *mut u8).collect();
                        // SAFETY: the buffers are as large as the kernels' shapes say, and instances write disjoint
                        // elements.
                        unsafe { f(a.as_ptr(), n * i / threads, n * (i + 1) / threads) }
                    });
                }
            });
            t.elapsed().as_secs_f64()
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[0]
}

fn main() {
    let (mut x, mut y, mut z) = (vec![0.5f32; GELU], vec![0f32; GELU], vec![0f32; GELU]);
    x.iter_mut().enumerate().for_each(|(i, v)| *v = (i % 1000) as f32 * 0.01 - 5.0);
    for k in [gelu(false), gelu(true), softmax(), matmul(128)] {
        let t = Instant::now();
        let m = host::compile(std::slice::from_ref(&k)).unwrap();
        println!("{:10} compiled in {:.1} ms", k.name, t.elapsed().as_secs_f64() * 1e3);
        drop(m);
    }
    let bytes = (GELU * 8) as f64;
    let copies: Vec<f64> = (0..9)
        .map(|_| {
            let t = Instant::now();
            y.copy_from_slice(&x);
            t.elapsed().as_secs_f64()
        })
        .collect();
    let best = copies.iter().copied().fold(f64::INFINITY, f64::min);
    println!("memcpy, 1 thread: {:.2} GB/s", bytes / best / 1e9);
    for threads in [1, 2] {
        for (name, k) in
            [("gelu tanh 16M", gelu(false)), ("gelu erf 16M", gelu(true)), ("softmax 4096x4096", softmax())]
        {
            let s = time(&k, &[x.as_mut_ptr().cast(), y.as_mut_ptr().cast()], threads);
            println!("{name}, {threads} threads: {:.2} GB/s, {:.2} ms", bytes / s / 1e9, s * 1e3);
        }
        let s = time(&matmul(128), &[x.as_mut_ptr().cast(), y.as_mut_ptr().cast(), z.as_mut_ptr().cast()], threads);
        println!("dot 128^3, {threads} threads: {:.1} GFLOP/s", 2.0 * 128f64.powi(3) * 256.0 / s / 1e9);
    }
}
