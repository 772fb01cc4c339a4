//! Programs written in Rust, run by the interpreter, beside plain loops.
use kiln_block::write::{WriteError, Writer, write};
use kiln_block::{AtomicOp, BlockProgram, Elem, text};
use kiln_interp::block::{Buffer, run_grid};

fn ran(program: Result<BlockProgram, WriteError>, grid: [usize; 3], mut buffers: Vec<Buffer>) -> Vec<Vec<f64>> {
    let program = program.unwrap_or_else(|e| panic!("{e}"));
    let printed = text::print(&program);
    assert_eq!(text::parse(&printed).as_ref(), Ok(&program), "{printed}");
    run_grid(&program, grid, &mut buffers).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    buffers.iter().map(Buffer::to_f64).collect()
}
fn floats(n: usize, at: impl Fn(usize) -> f64) -> Buffer {
    Buffer::from_f64(Elem::F32, &[n], (0..n).map(at))
}
fn int(n: usize) -> Buffer {
    Buffer::scalar(Elem::I32, n as f64)
}

#[test]
fn vector_add() {
    let add = write("add", |k| {
        let [x, y, out] = ["x", "y", "out"].map(|name| k.pointer(name, Elem::F32));
        let n = k.scalar("n", Elem::I32);
        let i = k.program_id(0) * 8 + k.arange(8);
        let inside = i.lt(n);
        let sum = (x + i).masked(inside).load() + (y + i).masked(inside).load();
        (out + i).masked(inside).store(sum);
    });
    let buffers = vec![floats(19, |i| i as f64), floats(19, |i| 0.5 * i as f64), floats(19, |_| 0.0), int(19)];
    let out = &ran(add, [3, 1, 1], buffers)[2];
    assert_eq!(*out, (0..19).map(|i| 1.5 * f64::from(i)).collect::<Vec<f64>>());
}

#[test]
fn masked_softmax() {
    let softmax = write("softmax", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let columns = k.scalar("columns", Elem::I32);
        let (start, i) = (k.program_id(0) * columns, k.arange(8));
        let inside = i.lt(columns);
        let row = (x + start + i).masked(inside).load_or(f64::NEG_INFINITY);
        let e = (row - row.max(0)).exp();
        (out + start + i).masked(inside).store(e / e.sum(0));
    });
    let x = |i: usize| (i * 7 % 5) as f64 - 2.0;
    let out = &ran(softmax, [3, 1, 1], vec![floats(15, x), floats(15, |_| 0.0), int(5)])[1];
    for row in 0..3 {
        let sum: f64 = (0..5).map(|c| x(row * 5 + c).exp()).sum();
        for c in 0..5 {
            assert!((out[row * 5 + c] - x(row * 5 + c).exp() / sum).abs() < 1e-6, "{out:?}");
        }
    }
}

#[test]
fn matmul_in_a_loop() {
    const SIDE: i32 = 16;
    let matmul = write("matmul", |k| {
        let [a, b, c] = ["a", "b", "c"].map(|name| k.pointer(name, Elem::F32));
        let depth = k.scalar("depth", Elem::I32);
        let (rows, columns) = (k.arange(SIDE as usize).expand(1), k.arange(SIDE as usize).expand(0));
        let zeros = k.zeros(&[SIDE as usize; 2], Elem::F32);
        let [sums] = k.for_range((0, depth, SIDE), [zeros], |at, [sums]| {
            let left = (a + rows * depth + (columns + at)).masked((columns + at).lt(depth)).load();
            let right = (b + (rows + at) * SIDE + columns).masked((rows + at).lt(depth)).load();
            [k.dot(left, right, sums)]
        });
        (c + rows * SIDE + columns).store(sums);
    });
    let (side, depth) = (SIDE as usize, 20);
    let (a, b) = (|i: usize| (i % 3) as f64, |i: usize| (i % 5) as f64 - 1.0);
    let buffers = vec![floats(side * depth, a), floats(depth * side, b), floats(side * side, |_| 0.0), int(depth)];
    let out = &ran(matmul, [1, 1, 1], buffers)[2];
    for (i, got) in out.iter().enumerate() {
        let want: f64 = (0..depth).map(|k| a(i / side * depth + k) * b(k * side + i % side)).sum();
        assert_eq!(*got, want, "element {i}");
    }
}

#[test]
fn a_while_loop_that_may_not_run() {
    // Steps of the Collatz sequence down to 1.
    let steps = write("steps", |k| {
        let (x, out) = (k.pointer("x", Elem::I32), k.pointer("out", Elem::I32));
        let p = k.program_id(0);
        let first = (x + p).load();
        let [_, count] = k.while_loop(
            [first, k.full(&[], Elem::I32, 0)],
            |[n, _]| n.gt(1),
            |[n, count]| [(n % 2).eq(0).select(n / 2, n * 3 + 1), count + 1],
        );
        k.when(count.ge(0), || (out + p).store(count));
    });
    let ints = |all: &[f64]| Buffer::from_f64(Elem::I32, &[all.len()], all.iter().copied());
    let out = ran(steps, [4, 1, 1], vec![ints(&[1.0, 2.0, 6.0, 7.0]), ints(&[9.0; 4])]);
    assert_eq!(out[1], [0.0, 1.0, 8.0, 16.0]);
}

#[test]
fn an_atomic_histogram() {
    let histogram = write("histogram", |k| {
        let (x, bins) = (k.pointer("x", Elem::I32), k.pointer("bins", Elem::I32));
        let n = k.scalar("n", Elem::I32);
        let i = k.program_id(0) * 8 + k.arange(8);
        let value = (x + i).masked(i.lt(n)).load();
        (bins + value % 4).masked(i.lt(n)).atomic(AtomicOp::Add, 1);
    });
    let x = Buffer::from_f64(Elem::I32, &[21], (0..21).map(|i| f64::from(i * i % 7)));
    let out = ran(histogram, [3, 1, 1], vec![x, Buffer::zeros(Elem::I32, &[4]), int(21)]);
    let mut want = [0.0; 4];
    (0..21).for_each(|i| want[i * i % 7 % 4] += 1.0);
    assert_eq!(out[1], want);
}

#[test]
fn a_reduction_by_a_function() {
    // The last position of the largest.
    let last = write("last", |k| {
        let (x, out) = (k.pointer("x", Elem::F32), k.pointer("out", Elem::I32));
        let i = k.arange(8);
        let [_, at] = k.reduce_by([(x + i).load(), i], 0, |[a, i], [b, j]| {
            let second = b.gt(a) | b.eq(a) & j.gt(i);
            [second.select(b, a), second.select(j, i)]
        });
        out.store(at);
    });
    let x = [3.0, 9.0, 1.0, 9.0, -2.0, 9.0, 0.0, 8.0];
    let out = ran(last, [1, 1, 1], vec![floats(8, |i| x[i]), Buffer::zeros(Elem::I32, &[1])]);
    assert_eq!(out[1], [5.0]);
}

#[test]
fn operands_are_promoted() {
    let types = write("types", |k| {
        let (half, short) = (k.scalar("half", Elem::F16), k.scalar("short", Elem::Bf16));
        let (i, u, long) = (k.scalar("i", Elem::I32), k.scalar("u", Elem::U32), k.scalar("long", Elem::I64));
        let (byte, on) = (k.scalar("byte", Elem::I8), i.lt(3));
        let table = [
            (half * 2.0, Elem::F16),
            (half / half, Elem::F32),
            (half / 2, Elem::F32),
            (half + short, Elem::F16),
            (short * short, Elem::Bf16),
            (short + i, Elem::F32),
            (half + long, Elem::F16),
            (i + u, Elem::U32),
            (u + long, Elem::I64),
            (byte + long, Elem::I64),
            (byte * 2, Elem::I8),
            (i * 0.5, Elem::F32),
            (i / 2, Elem::I32),
            (i + (1_i64 << 40), Elem::I32),
            (on & true, Elem::Bool),
            (on.select(1, i), Elem::I32),
        ];
        for (n, (value, elem)) in table.into_iter().enumerate().filter(|(n, _)| *n != 13) {
            assert_eq!(value.elem(), Some(elem), "row {n}");
        }
    });
    let e = types.expect_err("one literal is too large for what it meets").to_string();
    assert!(e.contains("1099511627776 is no i32"), "{e}");
}

fn faults(body: impl FnOnce(&Writer)) -> Vec<String> {
    match write("wrong", body) {
        Ok(program) => panic!("it is a program:\n{}", text::print(&program)),
        Err(e) => {
            assert!(e.faults.iter().all(|f| f.place.is_none_or(|p| p.file().ends_with("written.rs"))), "{e}");
            e.faults.into_iter().map(|f| f.what).collect()
        }
    }
}

#[test]
fn mistakes_are_told_once_with_their_place() {
    let line = line!() + 2;
    let e = write("wrong", |k| {
        let bad = k.arange(8) + k.arange(4);
        (k.pointer("x", Elem::F32) + bad * 2).store(bad);
        let _ = k.arange(4).sum(1);
    });
    let e = e.expect_err("wrong");
    assert_eq!(e.faults.len(), 2, "what follows from a mistake is none: {e}");
    assert!(e.to_string().contains(&format!("written.rs:{line}:")), "{e}");
    assert!(e.to_string().contains("shapes [8] and [4] do not broadcast"), "{e}");
}

#[test]
fn each_mistake_has_a_sentence() {
    let all = faults(|k| {
        let (p, i, x) = (k.pointer("p", Elem::F32), k.arange(4), k.full(&[4], Elem::F32, 1));
        let _ = p + x;
        let _ = p * 2;
        let _ = p + p;
        let _ = x & 1;
        let _ = i.exp();
        let _ = x.load();
        p.store(i);
        let _ = (p + i).masked(i).load();
        let _ = i.lt(2) + i.lt(3);
        let _ = k.full(&[4], Elem::I8, 300);
        let _ = k.dot(x, x, x);
        let _ = x.reshape(&[8]);
        let _ = k.for_range((0, 4), [x], |at, [x]| [x + at.to(Elem::F64)]);
        let _ = k.if_else(i.lt(2), || [], || []);
        (p + i).atomic(AtomicOp::Max, 1);
        let _ = k.scalar("u", Elem::U32) / k.scalar("s", Elem::I32);
    });
    let wanted = [
        "an offset is an integer, not f32",
        "pointers take `+` and `-` with integers alone",
        "pointers are not combined with each other",
        "bits of f32 are not combined",
        "this function is not defined on i32",
        "only pointers lead to memory",
        "a block of shape [4] does not broadcast to []",
        "a condition is a bool, not i32",
        "there is no arithmetic on bools",
        "300 is no i8",
        "is not added to",
        "has not as many elements as [8]",
        "value 0 is f32[4] at first and then f64[4]",
        "a condition is a single bool",
        "f32 is not updated so",
        "differ in sign",
    ];
    let told = all.join("\n");
    for sentence in wanted {
        assert!(told.contains(sentence), "no `{sentence}` in\n{told}");
    }
}
