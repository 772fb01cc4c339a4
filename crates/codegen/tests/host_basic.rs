//! Host code of small programs against straightforward Rust.
use kiln_block::*;
use kiln_codegen::host;

/// Compiles and runs all instances on raw buffers, in the order of the parameters.
fn run(k: &BlockProgram, buffers: &mut [&mut [u8]]) {
    let module = match host::compile(std::slice::from_ref(k)) {
        Ok(m) => m,
        Err(e) => panic!("{e}\n{}", host::llvm_text(std::slice::from_ref(k)).unwrap_or_default()),
    };
    let args: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr()).collect();
    let f = module.function(0).unwrap();
    let n = k.instances().unwrap() as u64;
    // In two ranges, as threads would.
    // SAFETY: the test's buffers are as large as the kernel's parameters reach.
    unsafe {
        f(args.as_ptr(), 0, n / 2);
        f(args.as_ptr(), n / 2, n);
    }
}
fn bytes<T>(v: &mut [T]) -> &mut [u8] {
    // SAFETY: plain numbers, as bytes.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), std::mem::size_of_val(v)) }
}
fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut r = kiln_number::Random::new(seed);
    (0..n).map(|_| (4.0 * r.uniform() - 2.0) as f32).collect()
}
fn close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance * w.abs().max(1.0) || (g.is_nan() && w.is_nan()) || g == w,
            "element {i}: {g}, expected {w}"
        );
    }
}

fn offsets(b: &mut Builder, block: usize) -> Value {
    let pid = b.program_id(0);
    let n = b.i32(block as i64);
    let base = b.binary(BinaryOp::Mul, pid, n);
    let i = b.iota(block);
    b.binary(BinaryOp::Add, base, i)
}

#[test]
fn vector_add_with_tail() {
    for n in [1usize, 5, 16, 100, 1000, 4096, 5000] {
        let mut b = Builder::new("add", [n.div_ceil(1024), 1, 1], 4);
        let [x, y, z] = [("x", true), ("y", true), ("z", false)].map(|(s, r)| b.param(s, Elem::F32, r));
        let i = offsets(&mut b, 1024);
        let limit = b.i32(n as i64);
        let mask = b.cmp(CmpOp::Lt, i, limit);
        let (px, py, pz) = (b.ptr_add(x, i), b.ptr_add(y, i), b.ptr_add(z, i));
        let (vx, vy) = (b.load(px, Some(mask), None), b.load(py, Some(mask), None));
        let s = b.binary(BinaryOp::Add, vx, vy);
        b.store(pz, s, Some(mask));
        let k = b.finish();
        let (mut x, mut y, mut z) = (random(n, 1), random(n, 2), vec![0f32; n + 64]);
        let want: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).chain([0.0; 64]).collect();
        run(&k, &mut [bytes(&mut x), bytes(&mut y), bytes(&mut z)]);
        close(&z, &want, 0.0);
    }
}

/// Vectors are loaded and stored whole, and turned in registers.
#[test]
fn elements_in_reverse_order() {
    for n in [1usize, 5, 16, 100, 1000, 1024, 5000] {
        for (elem, size) in [(Elem::F32, 4), (Elem::I64, 8), (Elem::U8, 1), (Elem::F16, 2)] {
            for backwards in [[true, false], [false, true], [true, true]] {
                let mut b = Builder::new("turn", [n.div_ceil(1024), 1, 1], 4);
                let (x, y) = (b.param("x", elem, true), b.param("y", elem, false));
                let i = offsets(&mut b, 1024);
                let (limit, last) = (b.i32(n as i64), b.i32(n as i64 - 1));
                let mask = (n != 1024).then(|| b.cmp(CmpOp::Lt, i, limit));
                let turned = b.binary(BinaryOp::Sub, last, i);
                let [from, to] = backwards.map(|back| if back { turned } else { i });
                let (px, py) = (b.ptr_add(x, from), b.ptr_add(y, to));
                let v = b.load(px, mask, None);
                b.store(py, v, mask);
                let k = b.finish();
                let text = host::llvm_text(std::slice::from_ref(&k)).unwrap();
                assert!(!text.contains("masked.gather") && !text.contains("masked.scatter"), "{text}");
                // Halves of small numbers are normal.
                let mut x: Vec<u8> = (0..n * size).map(|i| (i * 7 % 61) as u8).collect();
                let mut y = vec![255u8; (n + 64) * size];
                run(&k, &mut [&mut x, &mut y]);
                let mut want: Vec<&[u8]> = x.chunks(size).collect();
                if backwards != [true, true] {
                    want.reverse();
                }
                assert_eq!(y[..n * size], want.concat(), "{n} of {elem}, {backwards:?}");
                assert!(
                    y[n * size..].iter().all(|b| *b == 255),
                    "{n} of {elem}, {backwards:?}: written beyond the end"
                );
            }
        }
    }
}

fn softmax(rows: usize, cols: usize) -> BlockProgram {
    let width = cols.next_power_of_two();
    let mut b = Builder::new("softmax", [rows, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let row = b.program_id(0);
    let n = b.i32(cols as i64);
    let base = b.binary(BinaryOp::Mul, row, n);
    let i = b.iota(width);
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

#[test]
fn row_softmax() {
    for (rows, cols) in [(3, 8), (4, 100), (2, 128), (5, 1000), (2, 1)] {
        let k = softmax(rows, cols);
        let (mut x, mut y) = (random(rows * cols, 3), vec![0f32; rows * cols]);
        let mut want = vec![];
        for r in x.chunks(cols) {
            let m = r.iter().cloned().fold(f32::NEG_INFINITY, f32::max);
            let s: f64 = r.iter().map(|v| ((v - m) as f64).exp()).sum();
            want.extend(r.iter().map(|v| (((v - m) as f64).exp() / s) as f32));
        }
        run(&k, &mut [bytes(&mut x), bytes(&mut y)]);
        close(&y, &want, 1e-6);
    }
}

#[test]
fn compile_time() {
    let k = softmax(4, 1000);
    let t = std::time::Instant::now();
    host::compile(std::slice::from_ref(&k)).unwrap();
    let first = t.elapsed();
    let t = std::time::Instant::now();
    for _ in 0..5 {
        host::compile(std::slice::from_ref(&k)).unwrap();
    }
    println!("softmax: first {first:?}, then {:?} each", t.elapsed() / 5);
}
