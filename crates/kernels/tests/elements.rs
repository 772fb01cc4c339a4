//! Elements and parts of blocks, read and assigned.
use crate::harness::{buffer, compiled, executed, pointer, zeros};
use kiln_block::Elem;
use kiln_kernels::Number;

struct Row {
    rule: &'static str,
    /// Lines of a kernel of `out`, int32 numbers that begin as 0, and `x`, those from 0 on. `a` is a block of 24 of
    /// them, `b` the same as 4 rows of 6, and `n` is 3, known only at run time.
    body: &'static str,
    /// The first elements of `out`.
    out: &'static [i32],
}

const fn row(rule: &'static str, body: &'static str, out: &'static [i32]) -> Row {
    Row { rule, body, out }
}

const ROWS: &[Row] = &[
    row("an element", "tl.store(out, a[5])", &[5]),
    row("from the end", "tl.store(out, a[-1])", &[23]),
    row("at run time", "tl.store(out, a[n] * 100 + a[n - 1])", &[302]),
    row("outside at run time is 0", "tl.store(out, a[n + 50] * 100 + a[n - 9])", &[0]),
    row("a row", "tl.store(out + tl.arange(0, 6), b[1])", &[6, 7, 8, 9, 10, 11, 0]),
    row("a row at run time", "tl.store(out + tl.arange(0, 6), b[n - 1, :])", &[12, 13, 14, 15, 16, 17, 0]),
    row("a column", "tl.store(out + tl.arange(0, 4), b[:, 2])", &[2, 8, 14, 20, 0]),
    row("the last axis by dots", "tl.store(out + tl.arange(0, 4), b[..., 2])", &[2, 8, 14, 20, 0]),
    row("of two axes", "tl.store(out, b[1, n])", &[9]),
    row("a new axis", "tl.store(out, b[None, 1].shape[1])", &[6]),
    row("a part", "tl.store(out + tl.arange(0, 3), a[4:7])", &[4, 5, 6, 0]),
    row("from the start", "tl.store(out + tl.arange(0, 20), a[:20] + 1)", &[1, 2, 3]),
    row("to the end", "tl.store(out, tl.sum(a[20:]) * 100 + tl.sum(a[-2:]))", &[8645]),
    row("of both axes", "tl.store(out, tl.sum(b[1:3, 2:4]))", &[46]),
    row("an element is assigned", "a[5] = 100\n    a[0] = n\n    tl.store(out, a[5] + a[0] + tl.sum(a))", &[477]),
    row("an element is increased", "a[n] += 10\n    a[n] *= 2\n    tl.store(out, tl.sum(a))", &[299]),
    row("outside nothing is assigned", "a[n + 50] = 1\n    tl.store(out, tl.sum(a))", &[276]),
    row("a row is assigned", "b[n - 1] = 7\n    tl.store(out, tl.sum(b))", &[231]),
    row(
        "a column is assigned",
        "b[:, 2] = tl.arange(0, 4) + 100\n    tl.store(out + tl.arange(0, 4), b[:, 2])\n    tl.store(out + 4, tl.sum(b))",
        &[100, 101, 102, 103, 638],
    ),
    row(
        "rows are assigned",
        "b[1:3] = tl.arange(0, 6)\n    tl.store(out + tl.arange(0, 4), tl.sum(b, 1))",
        &[15, 15, 15, 123],
    ),
    row(
        "a part of a row is increased",
        "b[1, 2:5] += tl.arange(1, 4)\n    tl.store(out + tl.arange(0, 6), b[1])",
        &[6, 7, 9, 11, 13, 11],
    ),
    row(
        "in a loop",
        "for k in range(n):\n        a[k] += k * 100\n    tl.store(out + tl.arange(0, 4), a[:4])",
        &[0, 101, 202, 3],
    ),
    row("on one side of an `if`", "if n > 2:\n        a[0] = 5\n    tl.store(out, a[0])", &[5]),
    row("a value is cast", "a[1] = 2.7\n    tl.store(out, a[1])", &[2]),
];

#[test]
fn elements_of_blocks() {
    let mut wrong = vec![];
    for Row { rule, body, out } in ROWS {
        let kernel = format!(
            "
def kernel(out, x):
    n = tl.num_programs(0) + 2
    a = tl.load(x + tl.arange(0, 24))
    b = tl.load(x + tl.arange(0, 4)[:, None] * 6 + tl.arange(0, 6))
    {body}
"
        );
        let arguments = vec![pointer(Number::Int32); 2];
        if let Err(error) = compiled(&kernel, arguments.clone()) {
            wrong.push(format!("{rule}: {error}"));
            continue;
        }
        let buffers = vec![zeros(Elem::I32, 64), buffer(Elem::I32, (0..64).map(f64::from))];
        let got = executed(&kernel, arguments, [1, 1, 1], buffers)[0].to_f64();
        let want: Vec<f64> = out.iter().map(|n| f64::from(*n)).collect();
        if got[..want.len()] != want {
            wrong.push(format!("{rule}: {got:?}, not {want:?}:{kernel}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
